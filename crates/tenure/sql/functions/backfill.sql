-- backfill: times of the past of a schedule that are to run, a few at once. Which times these are is given by the caller, who knows the rule; from then on
-- the rows alone say what is left, and whoever fires schedules moves a backfill on: its row is taken by skip locked, so there is no leader here either.
-- A time that has run is skipped, unless the backfill is to run it again: with a new job, and so with a new idempotency key. Jobs are due at once.

-- add_backfill: begins one. p_times: in the order in which they run; each once, and none of them ahead. Returns its id. Null: there is no such schedule.
-- Errors: TN002, naming the value, also when it cannot be told any more whether a time has run.
-- Locks: the schedule's row, shared, waited for for five seconds at most: remove_schedule finds the backfill, or the backfill finds no schedule.
create or replace function tenure.add_backfill(p_schedule text, p_times timestamptz[], p_at_once integer default 10, p_priority integer default 4,
                                               p_again boolean default false, p_by text default null) returns bigint
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off set lock_timeout = '5s' as $$
declare
  c_times_max constant integer := 100000;
  v_now constant timestamptz := clock_timestamp();
  -- Counted from one, wherever the caller's array begins.
  v_all constant timestamptz[] := array(select t.at from unnest(p_times) with ordinality as t(at, o) order by t.o);
  v_times constant integer := cardinality(v_all);
  v_first_at timestamptz;
  v_schedule tenure.schedule;
  v_id bigint;
begin
  if v_times not between 1 and c_times_max then
    perform tenure.refuse('TN002', format('a backfill of %s times', v_times), 'Name 1 to 100000 of them; more in several backfills.');
  end if;
  if p_at_once is null or p_at_once not between 1 and 1000 then
    perform tenure.refuse('TN002', format('%s jobs at once is outside 1 to 1000', coalesce(p_at_once::text, 'null')), 'The default is 10.');
  end if;
  if p_priority is null or p_priority not between 1 and 4 then
    perform tenure.refuse('TN002', format('priority %s is outside 1 to 4', coalesce(p_priority::text, 'null')), '1 is the most urgent, 4 the least; the default is 4.');
  end if;
  if (select count(distinct t.at) <> v_times or max(t.at) > v_now or min(t.at) = '-infinity' from unnest(v_all) as t(at)) then
    perform tenure.refuse('TN002', 'a time is missing, comes twice, or lies ahead', 'Name instants of the past, each once.');
  end if;
  select s.* into v_schedule from tenure.schedule s where s.name = p_schedule and s.removed_at is null for share;
  if v_schedule.id is null then
    return null;
  end if;
  v_first_at := (select min(t.at) from unnest(v_all) as t(at));
  if not coalesce(p_again, false) and v_first_at < v_schedule.forgotten_at then
    perform tenure.refuse('TN002', format('whether schedule "%s" ran at %s cannot be told any more', p_schedule, v_first_at),
                          format('Begin at %s, or say that times are to run again.', v_schedule.forgotten_at));
  end if;
  insert into tenure.schedule_backfill (schedule_id, times, at_once, priority, again, created_at, created_by, look_at)
    values (v_schedule.id, v_all, p_at_once, p_priority, coalesce(p_again, false), v_now, coalesce(p_by, session_user), v_now)
    returning id into v_id;
  return v_id;
end $$;

-- cancel_backfill: no further time runs; jobs that wait are cancelled, also those
-- that wait to be tried again, and those that run end. True: it had not ended, nor was it
-- cancelled before. Null: there is no such backfill. Locks: its row, and those of cancel for jobs that wait, waited for for five seconds at most.
create or replace function tenure.cancel_backfill(p_backfill bigint, p_by text default null) returns boolean
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off set lock_timeout = '5s' as $$
declare
  v_now constant timestamptz := clock_timestamp();
  v_backfill tenure.schedule_backfill;
begin
  select b.* into v_backfill from tenure.schedule_backfill b where b.id = p_backfill for update;
  if v_backfill.id is null or v_backfill.ended_at is not null or v_backfill.cancelled_at is not null then
    return case when v_backfill.id is not null then false end;
  end if;
  update tenure.schedule_backfill b set cancelled_at = v_now, cancelled_by = coalesce(p_by, session_user) where b.id = p_backfill returning b.* into v_backfill;
  perform tenure.move_backfill(v_backfill);
  return true;
end $$;

-- ran_of: how many of these times of a schedule have a run, or one that waits. Locks: none.
create or replace function tenure.ran_of(p_schedule text, p_times timestamptz[]) returns bigint
language sql stable security definer set search_path = pg_catalog, tenure, pg_temp set enable_seqscan = off set jit = off as $$
  select count(*) from tenure.schedule s cross join unnest(p_times) as t(at)
  where s.name = p_schedule and s.removed_at is null and tenure.has_run(s.id, t.at)
$$;

-- move_backfills: those that want to be looked at, a few of them and for a moment. Returns how many. One that fails says why in its row, until it goes on, and is tried again a
-- minute later; in a second when somebody was in its way, or the queue is full.
-- Locks: their rows, skip locked; each one's schedule, which is not waited for either.
create or replace function tenure.move_backfills(p_since timestamptz) returns bigint
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  c_backfills constant integer := 10;
  c_time constant interval := '200 milliseconds';
  v_now constant timestamptz := clock_timestamp();
  v_id bigint;
  v_backfill tenure.schedule_backfill;
  v_moved bigint := 0;
begin
  for v_id in select b.id from tenure.schedule_backfill b where b.look_at > p_since and b.look_at <= v_now order by b.look_at, b.id limit c_backfills loop
    exit when clock_timestamp() > v_now + c_time;
    select b.* into v_backfill from tenure.schedule_backfill b where b.id = v_id and b.look_at <= v_now for update skip locked;
    continue when v_backfill.id is null;
    v_moved := v_moved + 1;
    begin
      perform tenure.move_backfill(v_backfill);
    exception when others then
      update tenure.schedule_backfill b
        set error = left(sqlerrm, 4000), error_at = coalesce(b.error_at, v_now),
            look_at = v_now + case when tenure.is_passing(sqlstate) or sqlstate = 'TN007' then interval '1 second' else interval '1 minute' end
        where b.id = v_id;
    end;
  end loop;
  return v_moved;
end $$;

-- move_backfill: enqueues as many further times as may run now; of one that is cancelled, or whose schedule was removed, cancels what waits; one that ended a week
-- ago goes.
-- The caller holds its row.
create or replace function tenure.move_backfill(p_backfill tenure.schedule_backfill) returns void
language plpgsql as $$
declare
  c_looks_max constant integer := 1000;       -- times that one turn goes through
  c_soon constant interval := '100 milliseconds';
  c_later constant interval := '500 milliseconds';  -- by and by, while no job ends, 5 s: each look writes the row anew
  c_slower constant interval := '90 seconds';
  v_now constant timestamptz := clock_timestamp();
  v_schedule tenure.schedule;
  v_all constant integer := cardinality(p_backfill.times);
  v_done integer := p_backfill.done;
  v_times timestamptz[];
  v_run timestamptz[] := '{}';
  v_at timestamptz;
  v_room bigint;
  v_open bigint[];
  v_dead integer;
  v_jobs bigint[] := '{}';
  v_over boolean;
begin
  if p_backfill.ended_at is not null then
    delete from tenure.schedule_backfill b where b.id = p_backfill.id;
    return;
  end if;
  if p_backfill.cancelled_at is null and not exists (select from tenure.schedule s where s.id = p_backfill.schedule_id and s.removed_at is null) then
    update tenure.schedule_backfill b set cancelled_at = v_now where b.id = p_backfill.id returning b.* into p_backfill;
  end if;
  if p_backfill.cancelled_at is not null then
    perform tenure.cancel_waiting(j.id) from unnest(p_backfill.open_jobs) with ordinality as j(id, o) order by j.o;
  end if;
  v_open := tenure.not_ended(p_backfill.open_jobs);
  v_dead := (select count(*) from unnest(p_backfill.open_jobs) as j(id) where exists (select from tenure.dead_letter d where d.job_id = j.id));
  if p_backfill.cancelled_at is null and v_done < v_all and cardinality(v_open) < p_backfill.at_once then
    select s.* into v_schedule from tenure.schedule s where s.id = p_backfill.schedule_id and s.removed_at is null for update skip locked;
    -- Whoever just fires it would meet the same times; one that has just been removed is met at the next look.
    if v_schedule.id is not null then
      v_times := p_backfill.times[v_done + 1 : v_done + c_looks_max];
      v_room := tenure.room_at_once(v_schedule.queue, least(p_backfill.at_once - cardinality(v_open), v_all - v_done), false);
      foreach v_at in array v_times loop
        exit when cardinality(v_run) >= v_room;
        v_done := v_done + 1;
        -- What waits for the end of the run before will run by itself.
        if v_at is distinct from v_schedule.queued_at and (p_backfill.again or not tenure.has_run(v_schedule.id, v_at)) then
          v_run := v_run || v_at;
        end if;
      end loop;
      if v_room = 0 and cardinality(v_open) = 0 then
        perform tenure.refuse_full(v_schedule.queue);
      end if;
      v_jobs := tenure.enqueue_backfill(v_schedule, v_run, p_backfill.priority);
    end if;
  end if;
  v_open := v_open || v_jobs;
  v_over := cardinality(v_open) = 0 and (v_done = v_all or p_backfill.cancelled_at is not null);
  update tenure.schedule_backfill b
    set done = v_done, enqueued = b.enqueued + cardinality(v_jobs), skipped = b.skipped + (v_done - b.done) - cardinality(v_jobs), dead = b.dead + v_dead,
        open_jobs = v_open, error = null, error_at = null, ended_at = case when v_over then v_now end,
        look_at = v_now + case when v_over then tenure.runs_kept() when v_done > b.done or cardinality(v_open) < cardinality(b.open_jobs) then c_soon
                             -- For how long is said by the job that came last.
                             else c_later + coalesce((select greatest('0', least(v_now - j.created_at, c_slower)) from tenure.job j where j.id = v_open[cardinality(v_open)]), '0') / 20 end
    where b.id = p_backfill.id;
end $$;

-- enqueue_backfill: the jobs of these times. Returns their ids in the same order. A time that has a run already has this one instead.
create or replace function tenure.enqueue_backfill(p_schedule tenure.schedule, p_times timestamptz[], p_priority smallint) returns bigint[]
language plpgsql as $$
declare
  v_payloads constant json[] := array(select tenure.render_payload(p_schedule, t.at) from unnest(p_times) with ordinality as t(at, o) order by t.o);
  v_jobs constant bigint[] := array(
    select m.id from tenure.enqueue_many(p_schedule.kind, v_payloads, p_schedule.queue, p_priority, p_max_attempts => p_schedule.max_attempts,
                                         p_timeout_ms => p_schedule.timeout_ms) as m(id));
begin
  insert into tenure.schedule_run (schedule_id, logical_at, state, job_id, noted_at)
    select p_schedule.id, t.at, 'backfilled', v_jobs[t.o], clock_timestamp() from unnest(p_times) with ordinality as t(at, o)
    on conflict (schedule_id, logical_at) do update set state = 'backfilled', job_id = excluded.job_id, noted_at = excluded.noted_at;
  update tenure.schedule s set runs = s.runs + cardinality(p_times) where s.id = p_schedule.id and cardinality(p_times) > 0;
  return v_jobs;
end $$;

-- has_run: does this time of a schedule have a job, or does one wait for the end of the run before? A job that was cancelled is none.
create or replace function tenure.has_run(p_schedule bigint, p_at timestamptz) returns boolean
language sql stable set enable_seqscan = off set enable_bitmapscan = off as $$
  select exists (select from tenure.schedule_run r where r.schedule_id = p_schedule and r.logical_at = p_at
                 and (r.state = 'queued' or r.job_id is not null and not exists (select from tenure.outcome o where o.job_id = r.job_id and o.state = 'x')))
$$;
