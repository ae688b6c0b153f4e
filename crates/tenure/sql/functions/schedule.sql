-- schedule: what is declared, paused, and removed. Whether a rule is one is found out by who computes times: a worker, within a second, and the
-- clients before they store it. A rule or zone that cannot be read stands in the column error.
-- Locks: the schedule's row, waited for for five seconds at most.
-- Their plans are pinned, as a session may have made them when there were no schedules yet.

-- add_schedule: a new one. Returns its id. Null for a name that exists: nothing is changed. Errors: TN002, naming the value.
create or replace function tenure.add_schedule(
  p_name text, p_rule text, p_zone text, p_kind text, p_payload json, p_queue text default 'default', p_priority integer default 2,
  p_max_attempts integer default 5, p_timeout_ms bigint default null, p_starts_at timestamptz default null, p_ends_at timestamptz default null,
  p_jitter_ms bigint default 0, p_missed text default 'latest', p_missed_max integer default 100, p_missed_window_ms bigint default 86400000,
  p_overlap text default 'allow', p_gap text default 'next', p_twice text default 'first') returns bigint
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp set lock_timeout = '5s' as $$
declare
  v_now constant timestamptz := clock_timestamp();
  v_id bigint;
begin
  perform tenure.check_name('schedule', p_name);
  perform tenure.check_schedule(p_rule, p_zone, p_starts_at, p_ends_at, p_jitter_ms, p_missed, p_missed_max, p_missed_window_ms, p_overlap, p_gap, p_twice);
  perform tenure.check_job(p_kind, p_queue, p_priority, null, null, p_max_attempts, p_timeout_ms);
  perform tenure.check_template(p_payload);
  insert into tenure.schedule (name, rule, zone, anchor_at, starts_at, ends_at, gap, twice, missed, missed_max, missed_window_ms, overlap, jitter_ms,
                               kind, payload, queue, priority, max_attempts, timeout_ms, created_at, changed_at, look_at)
    values (p_name, p_rule, p_zone, coalesce(p_starts_at, v_now), p_starts_at, p_ends_at, p_gap, p_twice, p_missed, p_missed_max, p_missed_window_ms,
            p_overlap, p_jitter_ms, p_kind, p_payload, p_queue, p_priority, p_max_attempts, p_timeout_ms, v_now, v_now, v_now)
    on conflict (name) where removed_at is null do nothing
    returning id into v_id;
  return v_id;
end $$;

-- edit_schedule: gives a schedule another definition, as a whole. What changes when it runs holds from now on: a time that had come before and was
-- not dealt with is left out, and noted. What changes only the job holds for the next one; a run that waits for the end of the one before starts at the
-- next look when overlap is "allow" from now on. p_version: the one that was read, so that nobody's change is overwritten. True: it was changed; false: it was
-- so already. Null: there is no such schedule, or not in this version. Errors: TN002, naming the value, also when no version is named.
create or replace function tenure.edit_schedule(
  p_name text, p_version bigint, p_rule text, p_zone text, p_kind text, p_payload json, p_queue text default 'default', p_priority integer default 2,
  p_max_attempts integer default 5, p_timeout_ms bigint default null, p_starts_at timestamptz default null, p_ends_at timestamptz default null,
  p_jitter_ms bigint default 0, p_missed text default 'latest', p_missed_max integer default 100, p_missed_window_ms bigint default 86400000,
  p_overlap text default 'allow', p_gap text default 'next', p_twice text default 'first') returns boolean
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off set lock_timeout = '5s' as $$
declare
  v_now constant timestamptz := clock_timestamp();
  v_old tenure.schedule;
begin
  if p_version is null then
    perform tenure.refuse('TN002', format('which version of schedule "%s" is to be changed is missing (SQL null)', p_name),
                          'Pass the version that was read from tenure.schedules: what somebody has changed since then is not overwritten.');
  end if;
  perform tenure.check_schedule(p_rule, p_zone, p_starts_at, p_ends_at, p_jitter_ms, p_missed, p_missed_max, p_missed_window_ms, p_overlap, p_gap, p_twice);
  perform tenure.check_job(p_kind, p_queue, p_priority, null, null, p_max_attempts, p_timeout_ms);
  perform tenure.check_template(p_payload);
  v_old := tenure.schedule_named(p_name);
  if v_old.id is null or v_old.version <> p_version then
    return null;
  end if;
  if (v_old.rule, v_old.zone, v_old.starts_at, v_old.ends_at, v_old.jitter_ms, v_old.missed, v_old.missed_max, v_old.missed_window_ms, v_old.overlap,
      v_old.gap, v_old.twice, v_old.kind, v_old.payload::text, v_old.queue, v_old.priority, v_old.max_attempts, v_old.timeout_ms)
     is not distinct from (p_rule, p_zone, p_starts_at, p_ends_at, p_jitter_ms, p_missed, p_missed_max, p_missed_window_ms, p_overlap,
      p_gap, p_twice, p_kind, p_payload::text, p_queue, p_priority::smallint, p_max_attempts::smallint, p_timeout_ms) then
    return false;
  end if;
  update tenure.schedule s
    set version = s.version + 1, rule = p_rule, zone = p_zone, starts_at = p_starts_at, ends_at = p_ends_at, jitter_ms = p_jitter_ms, missed = p_missed,
        missed_max = p_missed_max, missed_window_ms = p_missed_window_ms, overlap = p_overlap, gap = p_gap, twice = p_twice, kind = p_kind,
        payload = p_payload, queue = p_queue, priority = p_priority, max_attempts = p_max_attempts, timeout_ms = p_timeout_ms, error = null, error_at = null,
        suspect = s.suspect or s.error is not null, look_at = case when v_old.look_at is not null then v_now end
    where s.id = v_old.id;
  -- Another rhythm begins now; the same one goes on as it was.
  if (v_old.rule, v_old.zone, v_old.starts_at, v_old.ends_at, v_old.gap, v_old.twice) is distinct from (p_rule, p_zone, p_starts_at, p_ends_at, p_gap, p_twice) then
    perform tenure.leave_out(v_old.id, tenure.undecided_since(v_old), v_now, 'changed');
    update tenure.schedule s
      set next_at = null, ended = false, changed_at = v_now, ruled_at = v_now, anchor_at = coalesce(p_starts_at, v_now),
          look_at = case when v_old.paused_at is null then v_now end
      where s.id = v_old.id;
  end if;
  return true;
end $$;

-- pause_schedule: nothing is enqueued until resume_schedule; a run that waits for the end of the one before is left out. True: it was not paused
-- before. Null: there is no such schedule.
create or replace function tenure.pause_schedule(p_name text, p_by text default null, p_reason text default null) returns boolean
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off set lock_timeout = '5s' as $$
declare
  v_now constant timestamptz := clock_timestamp();
  v_old constant tenure.schedule := tenure.schedule_named(p_name);
begin
  if v_old.id is null or v_old.paused_at is not null then
    return case when v_old.id is not null then false end;
  end if;
  perform tenure.leave_out(v_old.id, tenure.undecided_since(v_old), v_now, 'paused');
  perform tenure.give_up_queued(v_old.id, v_old.queued_at, 'overlap');
  update tenure.schedule s
    set version = s.version + 1, paused_at = v_now, paused_by = coalesce(p_by, session_user), pause_reason = p_reason, next_at = null, look_at = null,
        queued_at = null
    where s.id = v_old.id;
  return true;
end $$;

-- resume_schedule: it runs again from now on; what fell into the pause is not made up for. True: it was paused. Null: there is no such schedule.
create or replace function tenure.resume_schedule(p_name text) returns boolean
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off set lock_timeout = '5s' as $$
declare
  v_now constant timestamptz := clock_timestamp();
  v_old constant tenure.schedule := tenure.schedule_named(p_name);
begin
  if v_old.id is null or v_old.paused_at is null then
    return case when v_old.id is not null then false end;
  end if;
  perform tenure.leave_out(v_old.id, v_old.paused_at, v_now, 'paused');
  update tenure.schedule s
    set version = s.version + 1, paused_at = null, paused_by = null, pause_reason = null, changed_at = v_now, next_at = null, ended = false, look_at = v_now,
        suspect = s.suspect or s.error is not null, error = null, error_at = null
    where s.id = v_old.id;
  return true;
end $$;

-- remove_schedule: it is gone, and its name is free; jobs that it has enqueued stay, its backfills are cancelled. Its runs can be looked at for as long as
-- they are kept. False: there is no such schedule.
create or replace function tenure.remove_schedule(p_name text) returns boolean
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off set lock_timeout = '5s' as $$
declare
  v_now constant timestamptz := clock_timestamp();
  v_old constant tenure.schedule := tenure.schedule_named(p_name);
begin
  if v_old.id is null then
    return false;
  end if;
  perform tenure.give_up_queued(v_old.id, v_old.queued_at, 'overlap');
  perform tenure.cancel_backfill(b.id) from tenure.schedule_backfill b where b.schedule_id = v_old.id and b.ended_at is null;
  update tenure.schedule s
    set version = s.version + 1, removed_at = v_now, next_at = null, queued_at = null, look_at = v_now + tenure.runs_kept()
    where s.id = v_old.id;
  return true;
end $$;

-- run_schedule: one more job of a schedule, now, whatever its times and its overlap, also when it is paused. Its logical time is this second; that of
-- a time of the rule stays free. The next times meet it by the policy of overlap, and that of the last time as well: what must not run beside itself must not do so
-- because somebody ran it by hand. The last 100 of those that have not ended count. Returns the job's id. Null: there is no such schedule. Errors: TN002 when the job is refused, TN005 when this
-- second had a run already.
create or replace function tenure.run_schedule(p_name text) returns bigint
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off set lock_timeout = '5s' as $$
declare
  c_hand_jobs constant integer := 100;  -- fire looks at each of them
  -- No time of a rule has a fraction.
  v_at constant timestamptz := date_trunc('second', clock_timestamp()) + interval '1 microsecond';
  v_schedule constant tenure.schedule := tenure.schedule_named(p_name);
  v_job bigint;
begin
  if v_schedule.id is null then
    return null;
  end if;
  if exists (select from tenure.schedule_run r where r.schedule_id = v_schedule.id and r.logical_at = v_at) then
    perform tenure.refuse('TN005', format('schedule "%s" was run by hand in this second already', p_name), 'Call again in a second.');
  end if;
  v_job := tenure.enqueue(v_schedule.kind, tenure.render_payload(v_schedule, v_at), v_schedule.queue, v_schedule.priority,
                          p_max_attempts => v_schedule.max_attempts, p_timeout_ms => v_schedule.timeout_ms);
  insert into tenure.schedule_run (schedule_id, logical_at, state, job_id) values (v_schedule.id, v_at, 'by hand', v_job);
  update tenure.schedule s
    set hand_jobs = (select (o.jobs || v_job)[greatest(1, cardinality(o.jobs) + 2 - c_hand_jobs):] from (select tenure.not_ended(s.hand_jobs) as jobs) o), runs = s.runs + 1
    where s.id = v_schedule.id;
  return v_job;
end $$;

-- schedule_named: the row of a schedule that was not removed, locked; all null: there is none.
create or replace function tenure.schedule_named(p_name text) returns tenure.schedule
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  v_schedule tenure.schedule;
begin
  select s.* into v_schedule from tenure.schedule s where s.name = p_name and s.removed_at is null for update;
  return v_schedule;
end $$;

-- undecided_since: from here on nothing was done about a schedule's times: from its next one, or, while nobody has computed that, from the first second after the change
-- from which it holds. Null: it has no further time, or rests.
create or replace function tenure.undecided_since(p_schedule tenure.schedule) returns timestamptz
language sql stable as $$
  select coalesce(p_schedule.next_at, case when p_schedule.look_at is not null and not p_schedule.ended
                                           then date_trunc('second', p_schedule.changed_at) + interval '1 second' end)
$$;

-- leave_out: notes that times from p_next_at to now have no run. Nothing when that one has not come.
create or replace function tenure.leave_out(p_schedule bigint, p_next_at timestamptz, p_now timestamptz, p_reason text) returns void
language plpgsql as $$
begin
  if p_next_at <= p_now then
    insert into tenure.schedule_gap (schedule_id, first_at, last_at, reason) values (p_schedule, p_next_at, p_now, p_reason) on conflict do nothing;
  end if;
end $$;

-- give_up_queued: a run that waited for the end of the one before has none.
create or replace function tenure.give_up_queued(p_schedule bigint, p_queued_at timestamptz, p_state text) returns void
language plpgsql as $$
begin
  update tenure.schedule_run r set state = p_state, noted_at = clock_timestamp() where r.schedule_id = p_schedule and r.logical_at = p_queued_at and r.state = 'queued';
  if found then
    update tenure.schedule s set left_out = s.left_out + 1 where s.id = p_schedule;
  end if;
end $$;

create or replace function tenure.runs_kept() returns interval
language sql immutable as $$ select interval '7 days' $$;

create or replace function tenure.check_schedule(
  p_rule text, p_zone text, p_starts_at timestamptz, p_ends_at timestamptz, p_jitter_ms bigint, p_missed text, p_missed_max integer,
  p_missed_window_ms bigint, p_overlap text, p_gap text, p_twice text) returns void
language plpgsql stable as $$
begin
  if p_rule is null or octet_length(p_rule) not between 1 and 65536 then
    perform tenure.refuse('TN002', format('the rule has %s bytes', coalesce(octet_length(p_rule), 0)), 'Write a cron line, @every 90s, or @at with instants.');
  end if;
  if p_zone is null or octet_length(p_zone) not between 1 and 64 then
    perform tenure.refuse('TN002', 'the time zone is missing', 'Name one of the IANA database: Europe/Berlin, UTC.');
  end if;
  if p_starts_at not between '1970-01-01Z' and '9999-01-01Z' or p_ends_at not between '1970-01-01Z' and '9999-01-01Z' then
    perform tenure.refuse('TN002', format('start %s or end %s lies outside 1970 to 9998', coalesce(p_starts_at::text, 'none'), coalesce(p_ends_at::text, 'none')), 'Leave out what has no bound.');
  end if;
  if p_ends_at < p_starts_at then
    perform tenure.refuse('TN002', 'the schedule ends before it starts', 'Write p_starts_at before p_ends_at.');
  end if;
  if p_jitter_ms is null or p_jitter_ms not between 0 and 86400000 then
    perform tenure.refuse('TN002', format('jitter %s ms is outside 0 to a day', coalesce(p_jitter_ms::text, 'null')), '0 means none.');
  end if;
  if p_missed is null or p_missed not in ('skip', 'latest', 'all') then
    perform tenure.refuse('TN002', format('%L says nothing of missed runs', p_missed), 'Use skip, latest or all.');
  end if;
  if p_missed_max is null or p_missed_max not between 1 and 1000 or p_missed_window_ms is null or p_missed_window_ms not between 1000 and 31622400000 then
    perform tenure.refuse('TN002', format('%s missed runs within %s ms is out of range', coalesce(p_missed_max::text, 'null'), coalesce(p_missed_window_ms::text, 'null')),
                          '1 to 1000 runs, within 1 second to 366 days.');
  end if;
  if p_overlap is null or p_overlap not in ('allow', 'skip', 'queue', 'cancel') then
    perform tenure.refuse('TN002', format('%L says nothing of runs that overlap', p_overlap), 'Use allow, skip, queue or cancel.');
  end if;
  if p_gap is null or p_gap not in ('next', 'skip') then
    perform tenure.refuse('TN002', format('%L says nothing of times that do not exist', p_gap), 'Use next or skip.');
  end if;
  if p_twice is null or p_twice not in ('first', 'second', 'both') then
    perform tenure.refuse('TN002', format('%L says nothing of times that come twice', p_twice), 'Use first, second or both.');
  end if;
end $$;

-- check_template: refuses a payload whose places for values are not known, as a handler would get them as they stand.
create or replace function tenure.check_template(p_payload json) returns void
language plpgsql stable as $$
declare
  c_known constant text[] := array['{{{{', '{{logical_time}}', '{{logical_local}}', '{{logical_date}}', '{{logical_epoch}}', '{{schedule}}'];
  v_place text;
begin
  perform tenure.check_payload(p_payload);
  for v_place in select m.found[1] from regexp_matches(p_payload::text, '(\{\{\{\{|\{\{[^{}"\\]{0,40}\}?\}?)', 'g') as m(found) loop
    if v_place <> all(c_known) then
      perform tenure.refuse('TN002', format('the payload''s %s stands for nothing', v_place),
                            'Use {{logical_time}}, {{logical_local}}, {{logical_date}}, {{logical_epoch}} or {{schedule}}, or {{{{ for two braces.');
    end if;
  end loop;
end $$;

-- render_payload: the payload of a run. It is put together as text: what is put in needs no quoting but the name's. Only what is there is looked up, for very many may be due at once. Errors: TN002 when it is too large.
create or replace function tenure.render_payload(p_schedule tenure.schedule, p_at timestamptz) returns json
language plpgsql stable as $$
declare
  v_text text := p_schedule.payload::text;
  v_local timestamp;
begin
  if position('{{' in v_text) = 0 then
    if octet_length(v_text) > 65536 then
      perform tenure.check_payload(p_schedule.payload);
    end if;
    return p_schedule.payload;
  end if;
  -- Two braces that are meant as such are out of the way meanwhile. JSON text holds no control characters.
  v_text := replace(v_text, '{{{{', chr(1));
  if position('{{logical_local}}' in v_text) > 0 or position('{{logical_date}}' in v_text) > 0 then
    v_local := tenure.local_at(date_trunc('second', p_at), p_schedule.zone);
    v_text := replace(v_text, '{{logical_local}}', to_char(v_local, 'YYYY-MM-DD"T"HH24:MI:SS'));
    v_text := replace(v_text, '{{logical_date}}', to_char(v_local, 'YYYY-MM-DD'));
  end if;
  if position('{{logical_time}}' in v_text) > 0 then
    v_text := replace(v_text, '{{logical_time}}', to_char(date_trunc('second', p_at) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'));
  end if;
  if position('{{logical_epoch}}' in v_text) > 0 then
    v_text := replace(v_text, '{{logical_epoch}}', floor(extract(epoch from p_at))::bigint::text);
  end if;
  if position('{{schedule}}' in v_text) > 0 then
    v_text := replace(v_text, '{{schedule}}', substr(to_json(p_schedule.name)::text, 2, length(to_json(p_schedule.name)::text) - 2));
  end if;
  v_text := replace(v_text, chr(1), '{{');
  if octet_length(v_text) > 65536 then
    perform tenure.check_payload(v_text::json);
  end if;
  return v_text::json;
end $$;

-- local_at: what the clocks of a zone show. "at time zone" would take CET, EET, MET, WET, EST, MST or HST for an abbreviation, an offset that is the same all year; the
-- setting takes them, as everybody else does, for the zone of that name. It is set within this function alone.
create or replace function tenure.local_at(p_at timestamptz, p_zone text) returns timestamp
language plpgsql stable set timezone = 'UTC' as $$
begin
  perform set_config('timezone', p_zone, true);
  return p_at::timestamp;
end $$;

-- troubled_schedules: those that cannot fire (failing); those whose time came 10 s ago, or whose run waits for the end of the one before, and that nobody has looked at since
-- (overdue); and those whose next time nobody has computed for 10 s (unplanned): whether it has come is not known here, where no rules are. At most p_limit of each state, up to
-- 10,000: many of one hide no other. p_after_at and p_after_id, since and id of the last one that is unplanned: only those that follow. Locks: none.
create or replace function tenure.troubled_schedules(p_limit integer default 100, p_after_at timestamptz default null, p_after_id bigint default null)
  returns table (id bigint, name text, state text, since timestamptz, error text)
language sql stable security definer set search_path = pg_catalog, tenure, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
  (select s.id, s.name, 'failing', s.error_at, s.error from tenure.schedule s
   where p_after_at is null and s.error is not null and s.removed_at is null and s.paused_at is null order by s.error_at, s.id limit least(p_limit, 10000))
  union all
  (select s.id, s.name, 'overdue', least(s.next_at, s.look_at), null from tenure.schedule s
   where p_after_at is null and s.look_at <= clock_timestamp() - interval '10 seconds' and (s.next_at <= clock_timestamp() - interval '10 seconds' or s.queued_at is not null)
     and s.removed_at is null and s.error is null
   order by s.look_at, s.id limit least(p_limit, 10000))
  union all
  (select s.id, s.name, 'unplanned', s.look_at, null from tenure.schedule s
   where s.look_at <= clock_timestamp() - interval '10 seconds' and (s.look_at, s.id) > (coalesce(p_after_at, '-infinity'), coalesce(p_after_id, 0))
     and s.next_at is null and not s.ended and s.queued_at is null and s.removed_at is null and s.error is null
   order by s.look_at, s.id limit least(p_limit, 10000))
$$;

-- schedules: those that were not removed, without what only maintenance needs.
create or replace view tenure.schedules as
select s.id, s.name, s.version, s.rule, s.zone, s.anchor_at, s.starts_at, s.ends_at, s.gap, s.twice, s.missed, s.missed_max, s.missed_window_ms, s.overlap,
       s.jitter_ms, s.target, s.kind, s.payload, s.queue, s.priority, s.max_attempts, s.timeout_ms, s.created_at, s.changed_at, s.paused_at, s.paused_by,
       s.pause_reason, case when s.paused_at is not null then 'paused' when s.error is not null then 'failing' when s.ended and s.look_at is null then 'ended' else 'active' end as state, s.next_at, s.last_at, s.last_job_id, s.queued_at, s.runs, s.left_out, s.error, s.error_at,
       s.ruled_at, s.forgotten_at, s.declared_by, s.ended
from tenure.schedule s where s.removed_at is null;

-- schedule_runs: what was decided for each logical time, and the stretches that were left out; also of schedules that were removed.
create or replace view tenure.schedule_runs as
select s.name as schedule, s.id as schedule_id, s.removed_at is not null as removed, r.logical_at, r.logical_at as last_at, 1::bigint as times, r.state, r.job_id, r.noted_at
from tenure.schedule_run r join tenure.schedule s on s.id = r.schedule_id
union all
select s.name, s.id, s.removed_at is not null, g.first_at, g.last_at, g.times, g.reason, null, g.noted_at
from tenure.schedule_gap g join tenure.schedule s on s.id = g.schedule_id;

-- backfills: those that go on, and those that ended in the last week.
create or replace view tenure.backfills as
select b.id, s.name as schedule, b.schedule_id,
       case when b.ended_at is not null and b.cancelled_at is not null then 'cancelled' when b.ended_at is not null then 'completed'
            when b.cancelled_at is not null then 'cancelling' when b.error is not null then 'failing' else 'active' end as state,
       least(b.times[1], b.times[cardinality(b.times)]) as first_at, greatest(b.times[1], b.times[cardinality(b.times)]) as last_at,
       b.times[1] > b.times[cardinality(b.times)] as newest_first, cardinality(b.times) as times, b.done, b.enqueued, b.skipped, b.dead,
       -- As has_ended, which those who look may not call.
       (select count(*)::integer from unnest(b.open_jobs) as o(id)
        where exists (select from tenure.job j where j.id = o.id) and not exists (select from tenure.outcome x where x.job_id = o.id)
          and not exists (select from tenure.dead_letter d where d.job_id = o.id)) as open,
       b.at_once, b.priority, b.again, b.created_at, b.created_by, b.cancelled_at, b.cancelled_by, b.ended_at, b.error, b.error_at
from tenure.schedule_backfill b left join tenure.schedule s on s.id = b.schedule_id;
