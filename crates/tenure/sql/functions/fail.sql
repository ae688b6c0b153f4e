-- fail: the ends of attempts that did not complete, as a JSON array of
--   {"lease": n, "job": n, "verdict": "retry" | "permanent" | "snooze" | "throttled" | "cancelled" | "given_up", "limit": text | null, "delay_ms": n | null, "run_at_us": n | null,
--    "spread": x | null, "cause": text, "message": text, "details": any}
-- Transition: lease -> later (retrying, snoozed), ready (no delay), dead_letter, or outcome (cancelled).
-- run_at_us (microseconds since 1970) names an instant of this clock and goes before delay_ms; "spread" adds that part of the time until then.
-- throttled: a snooze, and the limit that the job stands under is slowed down for everybody (throttle_job).
-- A retry with neither waits min(1 h, 2 s * 2^(attempt - 1)) plus up to 25 %. A retry of the last attempt is a death. A job
-- that somebody wants cancelled is not retried. given_up: its worker gave up its registration and stopped the attempt. That uses none and is
-- recorded, and the job is ready at once, in its own lane; from the eleventh time on it counts as a retry, for the job may be the reason.
-- Returns a status per entry, in their order: 'retrying', 'snoozed', 'released' (given up), 'dead', 'cancelled',
-- 'already' (this lease reported it before) or 'lost'. Locks: the lease rows, in the order of their ids, then inserts; none is waited
-- for longer than a tenth of a second (55P03: report the others first).
create or replace function tenure.fail(p_worker bigint, p_token uuid, p_failures json) returns table (job_id bigint, status text)
language plpgsql security definer
set search_path = pg_catalog, tenure, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set lock_timeout = '100ms' as $$
#variable_conflict use_column
declare
  v_alive boolean := tenure.is_alive(p_worker, p_token);
  v_statuses text[] := array_fill('lost'::text, array[json_array_length(p_failures)]);
  f record;
begin
  p_failures := tenure.storable(p_failures);
  for f in
    select e.o::integer as place, (e.entry ->> 'lease')::bigint as lease, (e.entry ->> 'job')::bigint as job, e.entry as entry
    from json_array_elements(p_failures) with ordinality as e(entry, o)
    order by 2, 3
  loop
    if v_alive then
      v_statuses[f.place] := tenure.fail_one(p_worker, f.lease, f.job, f.entry);
    end if;
    if v_statuses[f.place] = 'lost' then
      v_statuses[f.place] := (select case s.status when 'lost' then 'lost' else 'already' end from tenure.ended_by(array[f.lease], array[f.job]) s);
    end if;
  end loop;
  return query
    select (e.entry ->> 'job')::bigint, v_statuses[e.o::integer] from json_array_elements(p_failures) with ordinality as e(entry, o) order by e.o;
end $$;

-- storable: the same JSON without what text cannot hold. Only when something in it cannot be stored, U+0000 and the halves of surrogate
-- pairs become U+FFFD: a failure must never be lost because its text is odd.
create or replace function tenure.storable(p_json json) returns json
language plpgsql immutable as $$
begin
  if position(E'\\u' in p_json::text) > 0 then
    perform p_json::jsonb;
  end if;
  return p_json;
exception when others then
  return regexp_replace(p_json::text, E'(?<!\\\\)((?:\\\\\\\\)*)\\\\u(?:0000|[dD][89a-fA-F][0-9a-fA-F]{2})', E'\\1\\\\ufffd', 'g')::json;
end $$;

create or replace function tenure.fail_one(p_worker bigint, p_lease bigint, p_job bigint, p_entry json) returns text
language plpgsql as $$
declare
  v_now timestamptz := clock_timestamp();
  c_given_up_free constant integer := 10;
  v_verdict text := p_entry ->> 'verdict';
  v_cause text := case v_verdict when 'given_up' then 'given_up' else coalesce(p_entry ->> 'cause', 'error') end;
  v_due_at timestamptz;
  v_lease tenure.lease;
  v_slot integer;
  v_priority smallint;
  v_max_attempts smallint;
  v_limits json;
  v_attempt integer;     -- attempts used from now on
begin
  if v_verdict is null or v_verdict not in ('retry', 'permanent', 'snooze', 'throttled', 'cancelled', 'given_up') then
    perform tenure.refuse('TN002', format('verdict "%s" is not known', v_verdict), 'It is retry, permanent, snooze, throttled, cancelled or given_up.');
  end if;
  select l.* into v_lease from tenure.lease l where l.id = p_lease and l.worker_id = p_worker for update;
  v_slot := tenure.slot_of(v_lease.blocks, v_lease.strip, p_job);
  if v_slot is null then
    return 'lost';
  end if;
  perform tenure.leave_lease(v_lease.id, v_lease.strip, set_bit(v_lease.strip & ~ v_lease.strip, v_slot, 1));
  perform tenure.free_places(v_lease.buckets, v_lease.queue);

  if v_verdict = 'throttled' then
    perform tenure.throttle_job(p_job, p_entry ->> 'limit', (extract(epoch from tenure.next_run(p_entry, v_lease.attempt, v_now) - v_now) * 1000)::bigint);
    v_verdict := 'snooze';
  end if;
  if v_verdict in ('retry', 'snooze', 'given_up') then
    if cardinality(tenure.take_cancel_requests(array[p_job])) > 0 then
      v_verdict := 'cancelled';
    end if;
  end if;
  if v_verdict <> 'snooze' then
    perform tenure.record_error(v_lease, p_job, v_cause, coalesce(p_entry ->> 'message', ''), p_entry -> 'details', v_now);
  end if;
  if v_verdict = 'cancelled' then
    perform tenure.take_cancel_requests(array[p_job]);
    insert into tenure.outcome (job_id, state, attempt, worker_id, lease_id, started_at, finished_at)
      values (p_job, 'x', v_lease.attempt, p_worker, p_lease, v_lease.leased_at, greatest(v_now, v_lease.leased_at));
    return 'cancelled';
  end if;

  select j.priority, j.max_attempts, j.limits into strict v_priority, v_max_attempts, v_limits from tenure.job j where j.id = p_job;
  if v_verdict = 'given_up' then
    if (select count(*) from tenure.attempt_error e where e.job_id = p_job and e.cause = 'given_up') <= c_given_up_free then
      perform tenure.put_ready(array[p_job], v_lease.queue, tenure.lane_of(v_priority, v_lease.flags), v_lease.kind, v_lease.attempt - 1, v_lease.flags);
      return 'released';
    end if;
    v_verdict := 'retry';
  end if;
  if v_verdict = 'permanent' or (v_verdict = 'retry' and v_lease.attempt >= v_max_attempts) then
    perform tenure.bury(p_job, v_lease, v_cause, coalesce(p_entry ->> 'message', ''), v_now);
    return 'dead';
  end if;
  v_attempt := v_lease.attempt - case v_verdict when 'snooze' then 1 else 0 end;
  if v_verdict = 'snooze' then
    -- It will not start for the first time: how long it waits then says nothing of the queue.
    v_lease.flags := v_lease.flags | 2;
    insert into tenure.snooze as z (job_id, snoozes, lease_id, last_at) values (p_job, 1, p_lease, v_now)
      on conflict (job_id) do update set snoozes = z.snoozes + 1, lease_id = excluded.lease_id, last_at = excluded.last_at;
  end if;
  v_due_at := tenure.next_run(p_entry, v_lease.attempt, v_now);
  if v_due_at <= v_now then
    perform tenure.put_ready(array[p_job], v_lease.queue, tenure.lane_of(v_priority, v_lease.flags), v_lease.kind, v_attempt, v_lease.flags);
    return case v_verdict when 'snooze' then 'snoozed' else 'retrying' end;
  end if;
  perform pg_current_xact_id();
  if v_limits ->> 'order' is not null and v_limits ->> 'failing' is distinct from 'aside' then
    -- It stays the head of its line, and those behind it wait with it.
    perform tenure.place_limited(array[p_job], v_lease.queue, tenure.lane_of(v_priority, v_lease.flags), v_lease.kind, v_attempt, v_lease.flags, v_limits, v_due_at);
    return case v_verdict when 'snooze' then 'snoozed' else 'retrying' end;
  end if;
  insert into tenure.later (block, id, due_at, reason, queue, priority, kind, attempt, flags, mask, lease_id)
    values (p_job >> 7, nextval('tenure.block_id'), v_due_at,
            case v_verdict when 'snooze' then 'z' else 'r' end, v_lease.queue, v_priority, v_lease.kind,
            v_attempt, v_lease.flags, tenure.mask_of(p_job), p_lease);
  return case v_verdict when 'snooze' then 'snoozed' else 'retrying' end;
end $$;

-- next_run: when a job whose attempt failed now is due again: between now and in ten years.
create or replace function tenure.next_run(p_entry json, p_attempt smallint, p_now timestamptz) returns timestamptz
language plpgsql as $$
declare
  c_delay_ms_max constant bigint := 315576000000;  -- 10 years
  v_run_at_us constant numeric := (p_entry ->> 'run_at_us')::numeric;
  v_wait_ms numeric := coalesce(v_run_at_us / 1000 - extract(epoch from p_now) * 1000, (p_entry ->> 'delay_ms')::bigint, tenure.backoff_ms(p_attempt));
begin
  if v_run_at_us is not null then
    v_wait_ms := v_wait_ms * (1 + coalesce((p_entry ->> 'spread')::numeric, 0));
  end if;
  return p_now + least(c_delay_ms_max, greatest(0, v_wait_ms))::float8 * interval '1 millisecond';
end $$;

-- The default backoff after the given attempt: exponential, base 2 s, factor 2, at most 1 h, plus 0 to 25 %.
create or replace function tenure.backoff_ms(p_attempt integer) returns bigint
language sql volatile as $$
  select (least(3600000, 2000 * 2 ^ least(p_attempt - 1, 20)) * (1 + random() * 0.25))::bigint
$$;

-- One row per failed attempt. Text is cut to 16 KiB and says so; details above 64 KiB are left out and say so. Kept are a job's first and its
-- last 20 attempts, and every loss of a worker: they are counted, and three of them bury the job.
create or replace function tenure.record_error(p_lease tenure.lease, p_job bigint, p_cause text, p_message text, p_details json, p_now timestamptz) returns void
language plpgsql as $$
declare
  c_details_bytes constant integer := 65536;
  c_kept constant integer := 20;
begin
  insert into tenure.attempt_error (job_id, attempt, lease_id, cause, message, details, worker_id, worker_name, started_at, failed_at)
    values (p_job, p_lease.attempt, p_lease.id, left(p_cause, 128), tenure.cut_text(p_message),
            case when octet_length(p_details::text) > c_details_bytes
                 then json_build_object('left_out', format('%s bytes of details; the limit is %s', octet_length(p_details::text), c_details_bytes)) else p_details end,
            p_lease.worker_id, (select w.name from tenure.worker w where w.id = p_lease.worker_id), p_lease.leased_at, p_now)
    on conflict do nothing;
  if p_lease.attempt > 2 * c_kept then
    delete from tenure.attempt_error e
      where e.job_id = p_job and e.attempt > c_kept and e.attempt <= p_lease.attempt - c_kept and e.cause <> 'worker_lost';
  end if;
end $$;

-- A text of at most 16 KiB: cut at a character, and says so.
create or replace function tenure.cut_text(p_text text) returns text
language plpgsql immutable as $$
declare
  c_bytes constant integer := 16384;
  c_mark constant text := ' … [cut]';
  v_text text := left(p_text, c_bytes);
begin
  if octet_length(p_text) <= c_bytes then
    return p_text;
  end if;
  -- Characters have 1 to 4 bytes: by their mean, then one by one.
  while octet_length(v_text) + octet_length(c_mark) > c_bytes loop
    v_text := left(v_text, least(length(v_text) - 1, ((c_bytes - octet_length(c_mark))::bigint * length(v_text) / octet_length(v_text))::integer));
  end loop;
  return v_text || c_mark;
end $$;

-- The complete copy of a job that is not retried.
create or replace function tenure.bury(p_job bigint, p_lease tenure.lease, p_cause text, p_message text, p_now timestamptz) returns void
language plpgsql as $$
begin
  insert into tenure.dead_letter (job_id, queue, kind, priority, max_attempts, timeout_ms, created_at, run_at, idempotency_key, origin_id,
                                  replaces_id, payload, attempt, cause, message, fingerprint, errors, worker_id, lease_id, started_at, died_at, limits)
    select j.id, j.queue, j.kind, j.priority, j.max_attempts, j.timeout_ms, j.created_at, j.run_at, tenure.idempotency_key_of(j), j.origin_id,
           j.replaces_id, j.payload, p_lease.attempt, left(p_cause, 128), tenure.cut_text(p_message), tenure.fingerprint(p_cause, p_message), tenure.errors_of(j.id),
           p_lease.worker_id, p_lease.id, p_lease.leased_at, p_now, j.limits
    from tenure.job j where j.id = p_job;
end $$;

create or replace function tenure.errors_of(p_job bigint) returns json
language sql stable as $$
  select coalesce(json_agg(json_build_object('attempt', e.attempt, 'cause', e.cause, 'message', e.message, 'details', e.details,
                                             'worker', e.worker_name, 'worker_id', e.worker_id, 'lease', e.lease_id,
                                             'started_at', e.started_at, 'failed_at', e.failed_at) order by e.attempt, e.lease_id), '[]')
  from tenure.attempt_error e where e.job_id = p_job
$$;

-- The same for every attempt of a job: its own, or "<id>-<microseconds of created_at in hexadecimal>". The instant keeps keys apart
-- when a restored database hands out an id again.
create or replace function tenure.idempotency_key_of(p_job tenure.job) returns text
language sql immutable as $$
  select coalesce(p_job.idempotency_key, p_job.id || '-' || to_hex((extract(epoch from p_job.created_at) * 1000000)::bigint))
$$;
