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

-- fire_then_ms: the same for the first schedule whose time is still to come: what is overdue may be held by somebody, and is not asked for without a pause.
create or replace function tenure.fire_then_ms() returns bigint
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  c_ahead constant interval := '1500 milliseconds';
  v_now constant timestamptz := clock_timestamp();
begin
  return (select ceil(extract(epoch from s.look_at - v_now) * 1000)::bigint from tenure.schedule s
          where s.look_at > v_now and s.look_at <= v_now + c_ahead and s.removed_at is null order by s.look_at, s.id limit 1);
end $$;

-- due_schedules: what there is to decide about the schedules that want to be looked at, oldest first, and what time it is; those that failed, or may, come last, for
-- however many they are they must not keep the others. p_all as in fire_in_ms.
-- Backfills want no decision: they are moved on first. "more": there are more of either than one call takes.
-- Returns {"now_us", "schedules": [{"id", "version", "name", "rule", "zone", "gap", "twice", "missed", "missed_max", "missed_window_ms", "anchor_us",
-- "starts_us", "ends_us", "next_us", "from_us", "last_us", "look_us"}, …], "moved": backfills, "more", "next_ms": when there is none yet, as fire_in_ms, "then_ms": as fire_then_ms}: microseconds since 1970; next_us null:
-- nobody has computed a time since from_us; from_us null as well: it has no further one. last_us: up to there nothing is left to decide by any rule.
-- Locks: none of the schedules; those of move_backfills; and of schedules that were removed their own rows, skip locked: what is left of them goes after a while.
create or replace function tenure.due_schedules(p_all boolean default false, p_limit integer default 200) returns json
language plpgsql security definer
set search_path = pg_catalog, tenure, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off set lock_timeout = '100ms' as $$
declare
  c_since constant interval := '60 seconds';
  c_alone constant integer := 150;  -- about as many as fire has time for
  v_now constant timestamptz := clock_timestamp();
  v_from constant timestamptz := case when p_all then '-infinity' else v_now - c_since end;
  v_moved bigint;
  v_more boolean;
  v_due json;
begin
  if p_all then
    perform tenure.forget_removed(v_now);
  end if;
  v_moved := tenure.move_backfills(v_from);
  v_more := v_moved > 0 and exists (select from tenure.schedule_backfill b where b.look_at > v_from and b.look_at <= v_now);
  select json_agg(json_build_object(
           'id', d.id, 'version', d.version, 'name', d.name, 'rule', d.rule, 'zone', d.zone, 'gap', d.gap, 'twice', d.twice, 'missed', d.missed,
           'missed_max', d.missed_max, 'missed_window_ms', d.missed_window_ms, 'anchor_us', tenure.to_us(d.anchor_at), 'starts_us', tenure.to_us(d.starts_at),
           'ends_us', tenure.to_us(d.ends_at), 'next_us', tenure.to_us(d.next_at),
           'from_us', case when not d.ended then tenure.to_us(d.changed_at) end,
           'last_us', tenure.to_us(greatest(d.last_at, d.changed_at)), 'look_us', tenure.to_us(d.look_at)) order by d.alone, d.look_at, d.id),
         v_more or count(*) filter (where not d.alone) >= p_limit or count(*) filter (where d.alone) >= least(p_limit, c_alone)
    into v_due, v_more
    from ((select s.*, false as alone from tenure.schedule s
           where s.look_at > v_from and s.look_at <= v_now and s.removed_at is null and s.error is null and not s.suspect order by s.look_at, s.id limit p_limit)
          union all
          (select s.*, true from tenure.schedule s
           where s.look_at > v_from and s.look_at <= v_now and s.removed_at is null and (s.error is not null or s.suspect) order by s.look_at, s.id limit least(p_limit, c_alone))) d;
  return json_build_object('now_us', tenure.to_us(v_now), 'schedules', coalesce(v_due, '[]'), 'moved', v_moved, 'more', v_more, 'next_ms', case when v_due is null then tenure.fire_in_ms() end,
                           'then_ms', case when v_due is null then tenure.fire_then_ms() end);
end $$;

-- fire: does what was decided. p_plans: [{"id", "version", "look_us" and "was_us": look_us and next_us as they were read, "fire_us": [logical times], "out_us": [first, last, number]
-- of missed times that are left out, or null, "next_us": the first time that is left, "more": it has come already, "error": why there is no plan, "unread": whether only because the caller cannot
-- read the rule: others then have a few seconds to do so}, …].
-- Schedules that cannot fire are noted in their row, do not stop the others (fire_divided), and are tried again a minute later. What cannot be done within a
-- second or so is left for the next call. A plan without look_us, of an older worker, does as well.
-- Behind somebody's old snapshot all versions that a row ever had stay, and by its id all of them are walked through: it is addressed by look_at and id, which
-- each version has for itself, in a form that only the index schedule_look can serve, and once it is locked by its place in the table.
-- Returns {"jobs": enqueued, "failed": schedules that could not fire, "done": schedules about which something was done, if only that they failed; none: what is
-- due is in somebody else's hands. "next_ms": as fire_in_ms, "then_ms": as fire_then_ms}.
-- Locks: each schedule's row, skip locked; with overlap "cancel" those of cancel for its last job, waited for for a tenth of
-- a second at most; those of an enqueue.
create or replace function tenure.fire(p_plans json) returns json
language plpgsql security definer
set search_path = pg_catalog, tenure, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off set lock_timeout = '100ms' as $$
declare
  v_done record;
begin
  select f.jobs, f.failed, f.done into v_done from tenure.fire_divided(p_plans) f;
  return json_build_object('jobs', v_done.jobs, 'failed', v_done.failed, 'done', v_done.done, 'next_ms', tenure.fire_in_ms(), 'then_ms', case when v_done.done = 0 then tenure.fire_then_ms() end);
end $$;

-- fire_one: one schedule, whatever there is about it. Returns the number of jobs that it has enqueued. Null: somebody else has it, or was first, or
-- may be able to do what we cannot.
create or replace function tenure.fire_one(p_plan json) returns bigint
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  c_look_again constant interval := '1 second';  -- while one waits for the end of the last job; by and by 5: each look writes the row anew
  c_slower constant interval := '80 seconds';
  c_for_others constant interval := '5 seconds';
  c_id constant bigint := (p_plan ->> 'id')::bigint;
  c_look_at constant timestamptz := coalesce(tenure.from_us((p_plan ->> 'look_us')::bigint), (select s.look_at from tenure.schedule s where s.id = c_id));
  v_now constant timestamptz := clock_timestamp();
  v_locked record;
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
  select s as schedule, s.ctid as place into v_locked from tenure.schedule s
    where s.look_at is not null and (s.look_at, s.id) >= (c_look_at, c_id) and (s.look_at, s.id) <= (c_look_at, c_id) limit 1 /* not all that are due at that instant */ for update skip locked;
  v_schedule := v_locked.schedule;
  if v_schedule.id is null or v_schedule.version <> (p_plan ->> 'version')::bigint or v_schedule.removed_at is not null or v_schedule.paused_at is not null
     or v_schedule.next_at is distinct from tenure.from_us((p_plan ->> 'was_us')::bigint) then
    return null;
  end if;
  if p_plan ->> 'error' is not null then
    -- Another program, of a later version or with other zones, may read what this one cannot.
    if coalesce((p_plan ->> 'unread')::boolean, false) and v_schedule.look_at > v_now - c_for_others then
      update tenure.schedule s set suspect = true where s.ctid = v_locked.place and s.error is null and not s.suspect;
      return case when found then 0 end;
    end if;
    raise exception using errcode = 'TN002', message = p_plan ->> 'error';
  end if;

  -- With "allow", which it was given since then, later times do not wait either: they would keep this one for ever.
  if v_schedule.queued_at is not null and (v_schedule.overlap = 'allow' or tenure.jobs_ended(v_schedule)) then
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
    set next_at = v_next_at, ended = v_next_at is null, suspect = false, last_at = v_schedule.last_at, last_job_id = v_schedule.last_job_id, queued_at = v_schedule.queued_at, error = null, error_at = null,
        look_at = case when (p_plan ->> 'more')::boolean then v_now else least(v_next_at, case when v_schedule.queued_at is not null then v_now + c_look_again + greatest('0', least(v_now - v_schedule.queued_at, c_slower)) / 20 end) end,
        hand_jobs = tenure.not_ended(v_schedule.hand_jobs), runs = s.runs + v_runs, left_out = s.left_out + v_left_out
    where s.ctid = v_locked.place;
  if v_runs + v_left_out > 0 and random() < 0.005 then
    perform tenure.forget_runs(v_schedule.id, v_now);
  end if;
  return v_runs;
end $$;

-- state_of_run: what becomes of the next time of a schedule, by its policy, its last job and those that were run by hand: 'fired', 'queued', 'replaced' (queued, in the place of the
-- one that is), 'overlap' (left out).
create or replace function tenure.state_of_run(p_schedule tenure.schedule) returns text
language plpgsql as $$
begin
  if p_schedule.overlap = 'allow' or (p_schedule.queued_at is null and tenure.jobs_ended(p_schedule)) then
    return 'fired';
  end if;
  case p_schedule.overlap
    when 'skip' then
      return 'overlap';
    when 'queue' then
      return case when p_schedule.queued_at is null then 'queued' else 'overlap' end;
    when 'cancel' then
      -- A job that waits has ended with that; one that runs ends when its handler does.
      if p_schedule.queued_at is null
         and (select coalesce(bool_and(tenure.cancel_job(j.id) <> 'requested'), true) from unnest(tenure.not_ended(p_schedule.last_job_id || p_schedule.hand_jobs)) as j(id)) then
        return 'fired';
      end if;
      return case when p_schedule.queued_at is null then 'queued' else 'replaced' end;
  end case;
end $$;

-- enqueue_run: the job of a logical time. Its time is the planned one, so that what is late is seen to be. Errors: TN007 when the queue is bounded and full, TN005 when
-- another enqueue into it does not commit: neither is waited for, whatever the queue's policy.
create or replace function tenure.enqueue_run(p_schedule tenure.schedule, p_at timestamptz) returns bigint
language plpgsql as $$
begin
  if tenure.room_at_once(p_schedule.queue, 1, true) < 1 then
    perform tenure.refuse_full(p_schedule.queue);
  end if;
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

-- not_ended: those of these jobs for which there is something left to do, in their order.
create or replace function tenure.not_ended(p_jobs bigint[]) returns bigint[]
language sql stable as $$
  select array(select j.id from unnest(p_jobs) with ordinality as j(id, o) where not tenure.has_ended(j.id) order by j.o)
$$;

-- jobs_ended: is no job of this schedule left that its next one could overlap: neither that of its last time nor one that was run by hand? A backfill's jobs
-- run beside each other and beside these.
create or replace function tenure.jobs_ended(p_schedule tenure.schedule) returns boolean
language sql stable as $$ select tenure.not_ended(p_schedule.last_job_id || p_schedule.hand_jobs) = '{}' $$;

-- note_failure: why a schedule could not fire. Who is only in the way of somebody for a moment is no failure, until its time was a while ago: then that is what
-- keeps it. It is looked at again in a second, and so is one whose queue is full, by and by in ten; others in a minute.
create or replace function tenure.note_failure(p_schedule bigint, p_version bigint, p_message text, p_state text) returns void
language plpgsql as $$
declare
  c_moment constant interval := '10 seconds';
  c_slower constant interval := '90 seconds';
  v_now constant timestamptz := clock_timestamp();
  v_passing constant boolean := coalesce(tenure.is_passing(p_state), false);
  v_soon constant boolean := v_passing or coalesce(p_state = 'TN007', false);
begin
  update tenure.schedule s
    set error = case when not v_passing or s.error is not null or coalesce(s.queued_at, s.next_at, s.changed_at) <= v_now - c_moment then left(p_message, 4000) end,
        error_at = case when not v_passing or s.error is not null or coalesce(s.queued_at, s.next_at, s.changed_at) <= v_now - c_moment then coalesce(s.error_at, v_now) end,
        look_at = v_now + case when v_soon then interval '1 second' + least(v_now - coalesce(s.error_at, v_now), c_slower) / 10 else interval '1 minute' end
    where s.id = (select x.id from tenure.schedule x where x.id = p_schedule and x.version = p_version and x.paused_at is null and x.removed_at is null for update skip locked);
  if p_state = 'TN007' then
    perform tenure.note_full(s.queue) from tenure.schedule s where s.id = p_schedule;
  end if;
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
