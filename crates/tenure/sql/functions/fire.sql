-- fire: schedules whose time has come. Which times those are is computed by the caller, who knows the rules of time zones: due_schedules gives it what
-- there is to decide, without a lock, and fire does what was decided, in one transaction per call, with the next time. A decision holds only for the
-- version and the next time that it was made for: whoever comes second, with an old definition, after a pause or from a clock of its own changes nothing.
-- So there is no leader, and nobody holds a lock while he computes. (schedule, logical time) is the primary key of schedule_run besides.

-- fire_in_ms: when the next schedule or backfill wants to be looked at, if that is before maintenance comes again; 0: it is overdue. Null: none. Behind
-- somebody's old snapshot all entries that they ever had in the index stay: only with p_all it looks for what was due long ago, which leaves no entries behind.
create or replace function tenure.fire_in_ms(p_all boolean default false) returns bigint
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  c_ahead constant interval := '1500 milliseconds';
  c_since constant interval := '60 seconds';
  v_now constant timestamptz := clock_timestamp();
  v_from constant timestamptz := case when p_all then '-infinity' else v_now - c_since end;
  v_look_at timestamptz;
begin
  v_look_at := least(
    (select s.look_at from tenure.schedule s where s.look_at > v_from and s.look_at <= v_now + c_ahead and (p_all or s.removed_at is null)
       order by s.look_at, s.id limit 1),
    (select b.look_at from tenure.schedule_backfill b where b.look_at > v_from and b.look_at <= v_now + c_ahead order by b.look_at, b.id limit 1));
  return case when v_look_at is not null then greatest(0, ceil(extract(epoch from v_look_at - v_now) * 1000))::bigint end;
end $$;

-- due_schedules: what there is to decide about the schedules that want to be looked at, oldest first, and what time it is. p_all as in fire_in_ms.
-- Backfills want no decision: they are moved on first.
-- Returns {"now_us", "schedules": [{"id", "version", "name", "rule", "zone", "gap", "twice", "missed", "missed_max", "missed_window_ms", "anchor_us",
-- "starts_us", "ends_us", "next_us", "from_us"}, …], "next_ms": when there is none yet, as fire_in_ms}: microseconds since 1970; next_us null: nobody has
-- computed a time since from_us; from_us null as well: it has no further one.
-- Locks: none of the schedules; those of move_backfills; and of schedules that were removed their own rows, skip locked: what is left of them goes after a while.
create or replace function tenure.due_schedules(p_all boolean default false, p_limit integer default 200) returns json
language plpgsql security definer
set search_path = pg_catalog, tenure, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off set lock_timeout = '100ms' as $$
declare
  c_since constant interval := '60 seconds';
  v_now constant timestamptz := clock_timestamp();
  v_from constant timestamptz := case when p_all then '-infinity' else v_now - c_since end;
  v_due json;
begin
  if p_all then
    perform tenure.forget_removed(v_now);
  end if;
  perform tenure.move_backfills(v_from);
  select json_agg(json_build_object(
           'id', d.id, 'version', d.version, 'name', d.name, 'rule', d.rule, 'zone', d.zone, 'gap', d.gap, 'twice', d.twice, 'missed', d.missed,
           'missed_max', d.missed_max, 'missed_window_ms', d.missed_window_ms, 'anchor_us', tenure.to_us(d.anchor_at), 'starts_us', tenure.to_us(d.starts_at),
           'ends_us', tenure.to_us(d.ends_at), 'next_us', tenure.to_us(d.next_at),
           'from_us', case when d.next_at is null and d.last_at > d.changed_at then null else tenure.to_us(d.changed_at) end) order by d.look_at, d.id)
    into v_due
    from (select s.* from tenure.schedule s where s.look_at > v_from and s.look_at <= v_now and s.removed_at is null order by s.look_at, s.id limit p_limit) d;
  return json_build_object('now_us', tenure.to_us(v_now), 'schedules', coalesce(v_due, '[]'), 'next_ms', case when v_due is null then tenure.fire_in_ms() end);
end $$;

-- fire: does what was decided. p_plans: [{"id", "version", "was_us": next_us as it was read, "fire_us": [logical times], "out_us": [first, last, number]
-- of missed times that are left out, or null, "next_us": the first time that is left, "more": it has come already, "error": why there is no plan}, …].
-- Schedules that cannot fire are noted in their row, do not stop the others, and are tried again a minute later. What cannot be done within a second is
-- left for the next call.
-- Returns {"jobs": enqueued, "failed": schedules that could not fire, "next_ms": as fire_in_ms}.
-- Locks: each schedule's row, in the order of their ids, skip locked; with overlap "cancel" those of cancel for its last job, waited for for a tenth of
-- a second at most; those of an enqueue.
create or replace function tenure.fire(p_plans json) returns json
language plpgsql security definer
set search_path = pg_catalog, tenure, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off set lock_timeout = '100ms' as $$
declare
  c_time constant interval := '1 second';
  v_done record;
begin
  select f.jobs, f.failed into v_done from tenure.fire_divided(p_plans, clock_timestamp() + c_time) f;
  return json_build_object('jobs', v_done.jobs, 'failed', v_done.failed, 'next_ms', tenure.fire_in_ms());
end $$;

-- fire_divided: some schedules: the plain ones together, and if one of these fails, and nobody knows which, each half for itself; the others one by one.
-- After p_until nothing more is begun, but for the first half of what failed: otherwise one that fails could keep the others from firing for ever.
create or replace function tenure.fire_divided(p_plans json, p_until timestamptz, out jobs bigint, out failed bigint)
language plpgsql as $$
declare
  v_plans constant integer := json_array_length(p_plans);
  v_part json;
  v_done record;
  v_rest json;
  v_together boolean := false;
  v_first boolean := true;
begin
  jobs := 0;
  failed := 0;
  if v_plans = 0 or clock_timestamp() > p_until then
    return;
  end if;
  begin
    -- A time that has a run already, which fails the others, is passed over here.
    if v_plans = 1 then
      jobs := tenure.fire_one(p_plans -> 0);
      return;
    end if;
    select f.jobs, f.rest into v_done from tenure.fire_together(p_plans) f;
    v_rest := v_done.rest;
    jobs := v_done.jobs;
    v_together := true;
  exception when others then
    if v_plans = 1 then
      perform tenure.note_failure((p_plans -> 0 ->> 'id')::bigint, (p_plans -> 0 ->> 'version')::bigint, sqlerrm, sqlstate);
      failed := 1;
      return;
    end if;
  end;
  if v_together then
    for v_part in select json_build_array(e.plan) from json_array_elements(v_rest) as e(plan) order by (e.plan ->> 'id')::bigint loop
      select f.jobs, f.failed into v_done from tenure.fire_divided(v_part, p_until) f;
      jobs := jobs + v_done.jobs;
      failed := failed + v_done.failed;
    end loop;
    return;
  end if;
  for v_part in
    select json_agg(e.plan order by e.o) from json_array_elements(p_plans) with ordinality as e(plan, o)
    group by e.o > v_plans / 2 order by e.o > v_plans / 2
  loop
    select f.jobs, f.failed into v_done
      from tenure.fire_divided(v_part, case when v_first then greatest(p_until, clock_timestamp() + interval '10 milliseconds') else p_until end) f;
    v_first := false;
    jobs := jobs + v_done.jobs;
    failed := failed + v_done.failed;
  end loop;
end $$;

-- fire_one: one schedule, whatever there is about it. Returns the number of jobs that it has enqueued.
create or replace function tenure.fire_one(p_plan json) returns bigint
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  c_look_again constant interval := '1 second';
  v_now constant timestamptz := clock_timestamp();
  v_schedule tenure.schedule;
  v_next_at timestamptz := tenure.from_us((p_plan ->> 'next_us')::bigint);
  v_out constant json := p_plan -> 'out_us';
  v_runs bigint := 0;
  v_left_out bigint := 0;
  v_us bigint;
  v_at timestamptz;
  v_state text;
  v_job bigint;
begin
  select s.* into v_schedule from tenure.schedule s where s.id = (p_plan ->> 'id')::bigint for update skip locked;
  if v_schedule.id is null or v_schedule.version <> (p_plan ->> 'version')::bigint or v_schedule.removed_at is not null or v_schedule.paused_at is not null
     or v_schedule.next_at is distinct from tenure.from_us((p_plan ->> 'was_us')::bigint) then
    return 0;
  end if;
  if p_plan ->> 'error' is not null then
    perform tenure.note_failure(v_schedule.id, v_schedule.version, p_plan ->> 'error', null);
    return 0;
  end if;

  if v_schedule.queued_at is not null and tenure.has_ended(v_schedule.last_job_id) then
    v_job := tenure.enqueue_run(v_schedule, v_schedule.queued_at);
    update tenure.schedule_run r set state = 'fired', job_id = v_job, noted_at = v_now where r.schedule_id = v_schedule.id and r.logical_at = v_schedule.queued_at;
    v_schedule.queued_at := null;
    v_schedule.last_job_id := v_job;
    v_runs := v_runs + 1;
  end if;

  if json_typeof(v_out) = 'array' then
    insert into tenure.schedule_gap (schedule_id, first_at, last_at, times, reason)
      values (v_schedule.id, tenure.from_us((v_out ->> 0)::bigint), tenure.from_us((v_out ->> 1)::bigint), (v_out ->> 2)::bigint, 'missed')
      on conflict do nothing;
    v_left_out := v_left_out + (v_out ->> 2)::bigint;
  end if;

  for v_us in select e.us::text::bigint from json_array_elements(p_plan -> 'fire_us') as e(us) loop
    v_at := tenure.from_us(v_us);
    -- It was dealt with before. Whoever else could note it needs the lock on the schedule's row; the primary key stands behind that.
    continue when exists (select from tenure.schedule_run r where r.schedule_id = v_schedule.id and r.logical_at = v_at);
    v_job := null;
    v_state := tenure.state_of_run(v_schedule);
    if v_state = 'replaced' then
      update tenure.schedule_run r set state = 'replaced', noted_at = v_now where r.schedule_id = v_schedule.id and r.logical_at = v_schedule.queued_at;
      v_left_out := v_left_out + 1;
      v_state := 'queued';
    end if;
    case v_state
      when 'fired' then
        v_job := tenure.enqueue_run(v_schedule, v_at);
        v_schedule.last_job_id := v_job;
        v_runs := v_runs + 1;
      when 'queued' then
        v_schedule.queued_at := v_at;
      else
        v_left_out := v_left_out + 1;
    end case;
    insert into tenure.schedule_run (schedule_id, logical_at, state, job_id, noted_at) values (v_schedule.id, v_at, v_state, v_job, v_now);
    v_schedule.last_at := greatest(v_schedule.last_at, v_at);
  end loop;

  update tenure.schedule s
    set next_at = v_next_at, last_at = v_schedule.last_at, last_job_id = v_schedule.last_job_id, queued_at = v_schedule.queued_at, error = null, error_at = null,
        look_at = case when (p_plan ->> 'more')::boolean then v_now else least(v_next_at, case when v_schedule.queued_at is not null then v_now + c_look_again end) end,
        runs = s.runs + v_runs, left_out = s.left_out + v_left_out
    where s.id = v_schedule.id;
  if v_runs > 0 and random() < 0.005 then
    perform tenure.forget_runs(v_schedule.id, v_now);
  end if;
  return v_runs;
end $$;

-- state_of_run: what becomes of the next time of a schedule, by its policy and its last job: 'fired', 'queued', 'replaced' (queued, in the place of the
-- one that is), 'overlap' (left out).
create or replace function tenure.state_of_run(p_schedule tenure.schedule) returns text
language plpgsql as $$
begin
  if p_schedule.overlap = 'allow' or (p_schedule.queued_at is null and tenure.has_ended(p_schedule.last_job_id)) then
    return 'fired';
  end if;
  case p_schedule.overlap
    when 'skip' then
      return 'overlap';
    when 'queue' then
      return case when p_schedule.queued_at is null then 'queued' else 'overlap' end;
    when 'cancel' then
      -- A job that waits has ended with that; one that runs ends when its handler does.
      if p_schedule.queued_at is null and tenure.cancel_job(p_schedule.last_job_id) <> 'requested' then
        return 'fired';
      end if;
      return case when p_schedule.queued_at is null then 'queued' else 'replaced' end;
  end case;
end $$;

-- enqueue_run: the job of a logical time. Its time is the planned one, so that what is late is seen to be.
create or replace function tenure.enqueue_run(p_schedule tenure.schedule, p_at timestamptz) returns bigint
language plpgsql as $$
begin
  return tenure.enqueue(p_schedule.kind, tenure.render_payload(p_schedule, p_at), p_schedule.queue, p_schedule.priority,
                        p_run_at => p_at + floor(random() * (p_schedule.jitter_ms + 1)) * interval '1 millisecond',
                        p_max_attempts => p_schedule.max_attempts, p_timeout_ms => p_schedule.timeout_ms);
end $$;

-- has_ended: is there nothing left to do for this job? Also when retention has removed it. Null: there was none.
create or replace function tenure.has_ended(p_job bigint) returns boolean
language sql stable as $$
  select p_job is null or exists (select from tenure.outcome o where o.job_id = p_job) or exists (select from tenure.dead_letter d where d.job_id = p_job)
         or not exists (select from tenure.job j where j.id = p_job)
$$;

-- note_failure: why a schedule could not fire. Who is only in the way of somebody for a moment is no failure; it is looked at again at once.
create or replace function tenure.note_failure(p_schedule bigint, p_version bigint, p_message text, p_state text) returns void
language plpgsql as $$
declare
  v_now constant timestamptz := clock_timestamp();
  v_passing constant boolean := coalesce(tenure.is_passing(p_state), false);
begin
  update tenure.schedule s
    set error = case when v_passing then s.error else left(p_message, 4000) end, error_at = case when v_passing then s.error_at else coalesce(s.error_at, v_now) end,
        look_at = v_now + case when v_passing then interval '1 second' else interval '1 minute' end
    where s.id = (select x.id from tenure.schedule x where x.id = p_schedule and x.version = p_version and x.paused_at is null and x.removed_at is null for update skip locked);
end $$;

-- is_passing: is that only somebody who was in the way for a moment?
create or replace function tenure.is_passing(p_state text) returns boolean
language sql immutable as $$ select p_state in ('55P03', '40001', '40P01', 'TN005') $$;

-- forget_runs: removes what is noted of a schedule's oldest times, and says up to when it did: whether those ran cannot be told any more. All of a week
-- is kept, and the last 10,000 runs in any case, those of a daily schedule for years. Locks: the schedule's row, which the caller has.
create or replace function tenure.forget_runs(p_schedule bigint, p_now timestamptz) returns void
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  c_runs constant integer := 10000;
  c_at_once constant integer := 1000;
  v_last_at constant timestamptz := (
    select r.logical_at from tenure.schedule_run r where r.schedule_id = p_schedule order by r.logical_at desc offset c_runs limit 1);
  v_before constant timestamptz := least(v_last_at, p_now - tenure.runs_kept());
begin
  if v_last_at is not null and tenure.forget_notes(p_schedule, v_before, c_at_once) > 0 then
    update tenure.schedule s
      set forgotten_at = greatest(s.forgotten_at, (select r.logical_at from tenure.schedule_run r where r.schedule_id = p_schedule and r.state <> 'queued' order by r.logical_at limit 1))
      where s.id = p_schedule;
  end if;
end $$;

-- forget_notes: some of the notes of a schedule that are older, the oldest first. Returns how many rows went.
create or replace function tenure.forget_notes(p_schedule bigint, p_before timestamptz, p_limit integer) returns bigint
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  v_runs bigint;
  v_gaps bigint;
begin
  delete from tenure.schedule_run r where r.schedule_id = p_schedule and r.logical_at = any(array(
    select x.logical_at from tenure.schedule_run x
    where x.schedule_id = p_schedule and x.logical_at < p_before and x.state <> 'queued' order by x.logical_at limit p_limit));
  get diagnostics v_runs = row_count;
  delete from tenure.schedule_gap g where g.schedule_id = p_schedule and g.first_at = any(array(
    select x.first_at from tenure.schedule_gap x where x.schedule_id = p_schedule and x.last_at < p_before order by x.first_at limit p_limit));
  get diagnostics v_gaps = row_count;
  return v_runs + v_gaps;
end $$;

-- forget_removed: what is left of a few schedules that were removed a while ago.
create or replace function tenure.forget_removed(p_now timestamptz) returns void
language plpgsql as $$
declare
  c_schedules constant integer := 10;
  c_runs constant integer := 1000;
  v_id bigint;
begin
  for v_id in select s.id from tenure.schedule s where s.look_at <= p_now and s.removed_at is not null order by s.look_at limit c_schedules for update skip locked loop
    if tenure.forget_notes(v_id, 'infinity', c_runs) = 0 then
      delete from tenure.schedule s where s.id = v_id;
    end if;
  end loop;
end $$;

-- to_us, from_us: microseconds since 1970, as programs count.
create or replace function tenure.to_us(p_at timestamptz) returns bigint
language sql immutable as $$ select (extract(epoch from p_at) * 1000000)::bigint $$;

create or replace function tenure.from_us(p_us bigint) returns timestamptz
language sql immutable as $$ select timestamptz 'epoch' + p_us * interval '1 microsecond' $$;
