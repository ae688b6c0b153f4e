-- record_stats: what a worker counted since its last report. Several workers, and many calls of one, make up a minute.
-- Parameters: p_worker, p_seq: the report's name. One that was taken before is not counted again, so a call whose answer was lost is repeated as it
-- was, p_minute included; a worker sends one at a time, and p_seq grows. p_minute: an instant in the minute that it counts for, at most an hour ago.
-- p_groups: [{"queue", "kind", "started", "completed", "failed", "retried", "dead", "cancelled", "snoozed", "released", "overruns",
--   "wait_buckets": [], "wait_counts": [], "run_buckets": [], "run_counts": []}]; what is left out is 0, or empty.
-- p_self: {"claim_buckets", "claim_counts", "flush_buckets", "flush_counts", "memory_bytes", "group_memory_bytes", "throttled_ms"}.
-- The worker may have been given up: what it counted has happened. Returns true: counted now; false: before.
-- It is not waited for until it is on disk: a crash of the server loses the last moments.
-- Errors: TN002. Locks: the worker's own row of the minute, waited for a tenth of a second at most (55P03: an earlier call is still at it).
create or replace function tenure.record_stats(p_worker bigint, p_seq bigint, p_minute timestamptz, p_groups json, p_self json default '{}') returns boolean
language plpgsql security definer
set search_path = pg_catalog, tenure, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set lock_timeout = '100ms' as $$
declare
  v_minute constant timestamptz := tenure.minute_of(p_minute);
begin
  if p_worker is null or p_seq is null or p_groups is null or p_self is null
     or p_minute not between clock_timestamp() - interval '1 hour' and clock_timestamp() + interval '1 hour' or p_minute is null then
    perform tenure.refuse('TN002', format('statistics %s of worker %s for the minute %s are refused', p_seq, p_worker, p_minute),
                          'Pass no nulls, and an instant of the last hour by the clock of this database.');
  end if;
  perform tenure.check_stats(p_groups, p_self);
  perform set_config('synchronous_commit', 'off', true);
  insert into tenure.stat_worker as w (minute, worker_id, last_seq, claim_buckets, claim_counts, flush_buckets, flush_counts, memory_bytes, group_memory_bytes, throttled_ms)
    select v_minute, p_worker, p_seq, coalesce(s.claim_buckets, '{}'), coalesce(s.claim_counts, '{}'), coalesce(s.flush_buckets, '{}'), coalesce(s.flush_counts, '{}'),
           s.memory_bytes, s.group_memory_bytes, coalesce(s.throttled_ms, 0)
    from tenure.stats_of_worker(p_self) s
    on conflict (minute, worker_id) do update
      set last_seq = excluded.last_seq,
          (claim_buckets, claim_counts) = (select m.buckets, m.counts from tenure.merge_histograms(w.claim_buckets, w.claim_counts, excluded.claim_buckets, excluded.claim_counts) m),
          (flush_buckets, flush_counts) = (select m.buckets, m.counts from tenure.merge_histograms(w.flush_buckets, w.flush_counts, excluded.flush_buckets, excluded.flush_counts) m),
          memory_bytes = greatest(w.memory_bytes, excluded.memory_bytes), group_memory_bytes = greatest(w.group_memory_bytes, excluded.group_memory_bytes),
          throttled_ms = w.throttled_ms + excluded.throttled_ms
      where w.last_seq < excluded.last_seq;
  if not found then
    return false;
  end if;
  insert into tenure.stat_delta (id, minute, queue, kind, started, completed, failed, retried, dead, cancelled, snoozed, released, overruns,
                                 wait_buckets, wait_counts, run_buckets, run_counts)
    select nextval('tenure.stat_delta_id'), v_minute, g.queue, g.kind, coalesce(g.started, 0), coalesce(g.completed, 0), coalesce(g.failed, 0),
           coalesce(g.retried, 0), coalesce(g.dead, 0), coalesce(g.cancelled, 0), coalesce(g.snoozed, 0), coalesce(g.released, 0), coalesce(g.overruns, 0),
           coalesce(g.wait_buckets, '{}'), coalesce(g.wait_counts, '{}'), coalesce(g.run_buckets, '{}'), coalesce(g.run_counts, '{}')
    from tenure.stats_of_groups(p_groups) g;
  return true;
end $$;

-- minute_of: the start of its minute.
create or replace function tenure.minute_of(p_at timestamptz) returns timestamptz
language sql immutable as $$ select date_bin(interval '1 minute', p_at, timestamptz '1970-01-01 00:00:00+00') $$;

create or replace function tenure.stats_of_groups(p_groups json)
returns table (queue text, kind text, started integer, completed integer, failed integer, retried integer, dead integer, cancelled integer, snoozed integer,
               released integer, overruns integer, wait_buckets smallint[], wait_counts integer[], run_buckets smallint[], run_counts integer[])
language sql stable as $$
  select g.queue, g.kind, g.started, g.completed, g.failed, g.retried, g.dead, g.cancelled, g.snoozed, g.released, g.overruns,
         g.wait_buckets, g.wait_counts, g.run_buckets, g.run_counts
  from json_to_recordset(p_groups) as g (queue text, kind text, started integer, completed integer, failed integer, retried integer, dead integer, cancelled integer,
    snoozed integer, released integer, overruns integer, wait_buckets smallint[], wait_counts integer[], run_buckets smallint[], run_counts integer[])
$$;

create or replace function tenure.stats_of_worker(p_self json)
returns table (claim_buckets smallint[], claim_counts integer[], flush_buckets smallint[], flush_counts integer[],
               memory_bytes bigint, group_memory_bytes bigint, throttled_ms bigint)
language sql stable as $$
  select s.claim_buckets, s.claim_counts, s.flush_buckets, s.flush_counts, s.memory_bytes, s.group_memory_bytes, s.throttled_ms
  from json_to_record(p_self) as s (claim_buckets smallint[], claim_counts integer[], flush_buckets smallint[], flush_counts integer[],
    memory_bytes bigint, group_memory_bytes bigint, throttled_ms bigint)
$$;

-- check_stats: refuses what cannot be added up. One bad row must not stand in the way of all others when they are folded.
create or replace function tenure.check_stats(p_groups json, p_self json) returns void
language plpgsql as $$
declare
  c_hint constant text := 'Names have 1 to 128 bytes, counts are not negative, buckets are 0 to 137, and there are as many buckets as counts.';
  v_bad record;
begin
  select g.queue, g.kind into v_bad from tenure.stats_of_groups(p_groups) g
    where coalesce(octet_length(g.queue), 0) not between 1 and 128 or coalesce(octet_length(g.kind), 0) not between 1 and 128
      or least(g.started, g.completed, g.failed, g.retried, g.dead, g.cancelled, g.snoozed, g.released, g.overruns) < 0
      or not tenure.is_histogram(g.wait_buckets, g.wait_counts) or not tenure.is_histogram(g.run_buckets, g.run_counts)
    limit 1;
  if found then
    perform tenure.refuse('TN002', format('statistics of the kind %L in the queue %L are refused', v_bad.kind, v_bad.queue), c_hint);
  end if;
  if exists (select from tenure.stats_of_worker(p_self) s
             where not tenure.is_histogram(s.claim_buckets, s.claim_counts) or not tenure.is_histogram(s.flush_buckets, s.flush_counts)
               or least(s.memory_bytes, s.group_memory_bytes, s.throttled_ms) < 0) then
    perform tenure.refuse('TN002', 'the worker''s statistics of itself are refused', c_hint);
  end if;
end $$;

create or replace function tenure.is_histogram(p_buckets smallint[], p_counts integer[]) returns boolean
language sql immutable as $$
  select coalesce(cardinality(p_buckets), 0) = coalesce(cardinality(p_counts), 0)
    and not exists (select from unnest(p_buckets, p_counts) as u(bucket, n) where u.bucket is null or u.bucket not between 0 and 137 or u.n is null or u.n < 0)
$$;

-- merge_histograms: two of them as one. A count that would not fit stays at the most that does.
create or replace function tenure.merge_histograms(p_buckets smallint[], p_counts integer[], p_more_buckets smallint[], p_more_counts integer[],
                                                out buckets smallint[], out counts integer[])
language sql immutable as $$
  select coalesce(array_agg(m.bucket order by m.bucket), '{}'), coalesce(array_agg(m.n order by m.bucket), '{}')
  from (select u.bucket, least(sum(u.n), 2147483647)::integer as n
        from (select a.bucket, a.n from unnest(p_buckets, p_counts) as a(bucket, n) union all select b.bucket, b.n from unnest(p_more_buckets, p_more_counts) as b(bucket, n)) u
        group by u.bucket) m
$$;

-- note_ends: what a verb itself does to jobs that no worker runs: side by side, a row for each queue and kind. For the rare verbs; what ends a job of a
-- worker is told by the worker.
create or replace function tenure.note_ends(p_queue text, p_kind text, p_cancelled bigint, p_rescued bigint default 0, p_dead bigint default 0) returns void
language plpgsql as $$
begin
  if p_cancelled + p_rescued + p_dead > 0 then
    -- The fold relies on it: first the transaction's id, then the row's.
    perform pg_current_xact_id();
    insert into tenure.stat_delta (id, minute, queue, kind, cancelled, rescued, dead)
      values (nextval('tenure.stat_delta_id'), tenure.minute_of(clock_timestamp()), p_queue, p_kind, p_cancelled, p_rescued, p_dead);
  end if;
end $$;

-- note_cancelled: the same of jobs that were cancelled while they waited, a row for each of their queues and kinds.
create or replace function tenure.note_cancelled(p_jobs bigint[]) returns void
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
  v_first constant bigint := (select min(u.job) from unnest(p_jobs) as u(job));
  v_last constant bigint := (select max(u.job) from unnest(p_jobs) as u(job));
begin
  if v_first is not null then
    perform tenure.note_ends(g.queue, g.kind, g.jobs)
      from (select j.queue, j.kind, count(*) as jobs from tenure.job j where j.id >= v_first and j.id <= v_last and j.id = any(p_jobs) group by j.queue, j.kind) g;
  end if;
end $$;
