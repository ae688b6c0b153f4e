-- stats: what happened, added up over a time by queue, kind and minute, as wished; from what was folded and what was told since. It reads rows of minutes
-- and never jobs, so its cost is that of the time and of the kinds, whatever the number of jobs.
-- Parameters: p_since, p_until (null: the last hour, to now; whole minutes); p_queue, p_kind (null: any); p_by: some of queue, kind and minute, a row for each;
-- p_step: of so many whole minutes each (by minute; at most 10,000 steps).
-- Waits are those from the moment from which a job could run to its first start; runs are of each attempt. Percentiles are within 12.5 %.
-- Errors: TN002. Locks: none.
create or replace function tenure.stats(p_since timestamptz default null, p_until timestamptz default null, p_queue text default null, p_kind text default null,
                                     p_by text[] default '{queue,kind}', p_step interval default '1 minute')
returns table (at timestamptz, queue text, kind text, enqueued bigint, started bigint, completed bigint, failed bigint, retried bigint, dead bigint,
               cancelled bigint, snoozed bigint, released bigint, rescued bigint, overruns bigint,
               wait_p50_ms double precision, wait_p95_ms double precision, wait_p99_ms double precision,
               run_p50_ms double precision, run_p95_ms double precision, run_p99_ms double precision,
               wait_buckets smallint[], wait_counts bigint[], run_buckets smallint[], run_counts bigint[])
language plpgsql stable security definer
set search_path = pg_catalog, tenure, pg_temp set enable_seqscan = off set jit = off set max_parallel_workers_per_gather = 0 as $$
#variable_conflict use_column
declare
  c_steps_max constant integer := 10000;
  c_origin constant timestamptz := '1970-01-01 00:00:00+00';
  v_since constant timestamptz := tenure.minute_of(coalesce(p_since, clock_timestamp() - interval '1 hour'));
  v_until constant timestamptz := coalesce(p_until, 'infinity');
  v_by_minute constant boolean := 'minute' = any(p_by);
  v_folded bigint;
begin
  if p_by is null or not p_by <@ array['queue', 'kind', 'minute'] then
    perform tenure.refuse('TN002', format('statistics by %s are not known', coalesce(p_by::text, 'null')), 'Name some of queue, kind and minute.');
  end if;
  if p_step is null or extract(month from p_step) > 0 or extract(year from p_step) > 0 or p_step < interval '1 minute'
     or date_bin(interval '1 minute', c_origin + p_step, c_origin) <> c_origin + p_step then
    perform tenure.refuse('TN002', format('statistics in steps of %s are not kept', coalesce(p_step::text, 'null')), 'Use whole minutes.');
  end if;
  if v_by_minute and least(v_until, clock_timestamp()) - v_since > c_steps_max * p_step then
    perform tenure.refuse('TN002', format('statistics since %s in steps of %s are more than %s rows', v_since, p_step, c_steps_max), 'Use longer steps, or a shorter time.');
  end if;
  v_folded := (select d.place from tenure.duty d where d.name = 'deltas' order by d.next_at desc limit 1);
  return query
    with told as (
      select m.minute, m.queue, m.kind, m.enqueued, m.started, m.completed, m.failed, m.retried, m.dead, m.cancelled, m.snoozed, m.released, m.rescued, m.overruns,
             m.wait_buckets, m.wait_counts, m.run_buckets, m.run_counts
      from tenure.stat_minute m
      where m.minute >= v_since and m.minute < v_until and (p_queue is null or m.queue = p_queue) and (p_kind is null or m.kind = p_kind)
      union all
      select d.minute, d.queue, d.kind, 0, d.started, d.completed, d.failed, d.retried, d.dead, d.cancelled, d.snoozed, d.released, d.rescued, d.overruns,
             d.wait_buckets, d.wait_counts, d.run_buckets, d.run_counts
      from tenure.stat_delta d
      where d.id > v_folded and d.minute >= v_since and d.minute < v_until and (p_queue is null or d.queue = p_queue) and (p_kind is null or d.kind = p_kind)),
    -- What is not wished apart is the same for all, and not null: nulls cannot be joined by their values.
    keyed as materialized (
      select case when v_by_minute then greatest(date_bin(p_step, t.minute, c_origin), v_since) else 'infinity' end as at,
             case when 'queue' = any(p_by) then t.queue else '' end as queue, case when 'kind' = any(p_by) then t.kind else '' end as kind,
             t.enqueued, t.started, t.completed, t.failed, t.retried, t.dead, t.cancelled, t.snoozed, t.released, t.rescued, t.overruns,
             t.wait_buckets, t.wait_counts, t.run_buckets, t.run_counts
      from told t),
    counted as (
      select k.at, k.queue, k.kind, sum(k.enqueued)::bigint as enqueued, sum(k.started)::bigint as started, sum(k.completed)::bigint as completed,
             sum(k.failed)::bigint as failed, sum(k.retried)::bigint as retried, sum(k.dead)::bigint as dead, sum(k.cancelled)::bigint as cancelled,
             sum(k.snoozed)::bigint as snoozed, sum(k.released)::bigint as released, sum(k.rescued)::bigint as rescued, sum(k.overruns)::bigint as overruns
      from keyed k group by 1, 2, 3),
    waits as (
      select x.at, x.queue, x.kind, array_agg(x.bucket order by x.bucket) as buckets, array_agg(x.n order by x.bucket) as counts
      from (select k.at, k.queue, k.kind, u.bucket, sum(u.n)::bigint as n
            from keyed k cross join lateral unnest(k.wait_buckets, k.wait_counts) as u(bucket, n) group by 1, 2, 3, 4) x
      group by 1, 2, 3),
    runs as (
      select x.at, x.queue, x.kind, array_agg(x.bucket order by x.bucket) as buckets, array_agg(x.n order by x.bucket) as counts
      from (select k.at, k.queue, k.kind, u.bucket, sum(u.n)::bigint as n
            from keyed k cross join lateral unnest(k.run_buckets, k.run_counts) as u(bucket, n) group by 1, 2, 3, 4) x
      group by 1, 2, 3)
    select case when v_by_minute then c.at end, nullif(c.queue, ''), nullif(c.kind, ''), c.enqueued, c.started, c.completed, c.failed, c.retried, c.dead,
           c.cancelled, c.snoozed, c.released, c.rescued, c.overruns,
           tenure.percentile_ms(w.buckets, w.counts, 0.5), tenure.percentile_ms(w.buckets, w.counts, 0.95), tenure.percentile_ms(w.buckets, w.counts, 0.99),
           tenure.percentile_ms(r.buckets, r.counts, 0.5), tenure.percentile_ms(r.buckets, r.counts, 0.95), tenure.percentile_ms(r.buckets, r.counts, 0.99),
           coalesce(w.buckets, '{}'), coalesce(w.counts, '{}'), coalesce(r.buckets, '{}'), coalesce(r.counts, '{}')
    from counted c
    left join waits w on w.at = c.at and w.queue = c.queue and w.kind = c.kind
    left join runs r on r.at = c.at and r.queue = c.queue and r.kind = c.kind
    order by c.at, c.queue, c.kind;
end $$;

-- uncounted_since: since when enqueued jobs are not in the statistics yet; null: all are, but for those of the last moments. A transaction that is open for
-- long and has written something, anywhere on the server, holds the count back.
create or replace function tenure.uncounted_since() returns timestamptz
language plpgsql stable security definer
set search_path = pg_catalog, tenure, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_sort = off set jit = off as $$
declare
  c_moments constant interval := '1 minute';
  v_place constant bigint := (select d.place from tenure.duty d where d.name = 'enqueued' order by d.next_at desc limit 1);
  v_at constant timestamptz := (select j.created_at from tenure.job j where j.id > v_place order by j.id limit 1);
begin
  return case when v_at < clock_timestamp() - c_moments then v_at end;
end $$;

-- worker_stats: how long each worker's claims and groups of ends took, with the way there and back, and what its process used. Beside the run times of
-- stats they tell a slow database from slow handlers. Parameters: p_since, p_until as those of stats. Workers that ran nothing tell nothing.
-- Percentiles are within 12.5 %. Locks: none.
create or replace function tenure.worker_stats(p_since timestamptz default null, p_until timestamptz default null)
returns table (worker_id bigint, name text, last_at timestamptz, claims bigint, claim_p50_ms double precision, claim_p99_ms double precision,
               flushes bigint, flush_p50_ms double precision, flush_p99_ms double precision, memory_bytes bigint, group_memory_bytes bigint, throttled_ms bigint,
               claim_buckets smallint[], claim_counts bigint[], flush_buckets smallint[], flush_counts bigint[])
language plpgsql stable security definer
set search_path = pg_catalog, tenure, pg_temp set enable_seqscan = off set jit = off set max_parallel_workers_per_gather = 0 as $$
#variable_conflict use_column
declare
  v_since constant timestamptz := tenure.minute_of(coalesce(p_since, clock_timestamp() - interval '1 hour'));
  v_until constant timestamptz := coalesce(p_until, 'infinity');
begin
  return query
    with told as materialized (
      select s.minute, s.worker_id, s.memory_bytes, s.group_memory_bytes, s.throttled_ms, s.claim_buckets, s.claim_counts, s.flush_buckets, s.flush_counts
      from tenure.stat_worker s where s.minute >= v_since and s.minute < v_until),
    counted as (
      select t.worker_id, max(t.minute) as last_at, max(t.memory_bytes) as memory_bytes, max(t.group_memory_bytes) as group_memory_bytes,
             sum(t.throttled_ms)::bigint as throttled_ms
      from told t group by 1),
    claims as (
      select x.worker_id, sum(x.n)::bigint as total, array_agg(x.bucket order by x.bucket) as buckets, array_agg(x.n order by x.bucket) as counts
      from (select t.worker_id, u.bucket, sum(u.n)::bigint as n from told t cross join lateral unnest(t.claim_buckets, t.claim_counts) as u(bucket, n) group by 1, 2) x
      group by 1),
    flushes as (
      select x.worker_id, sum(x.n)::bigint as total, array_agg(x.bucket order by x.bucket) as buckets, array_agg(x.n order by x.bucket) as counts
      from (select t.worker_id, u.bucket, sum(u.n)::bigint as n from told t cross join lateral unnest(t.flush_buckets, t.flush_counts) as u(bucket, n) group by 1, 2) x
      group by 1)
    select c.worker_id, coalesce(w.name, g.name), c.last_at,
           coalesce(l.total, 0), tenure.percentile_ms(l.buckets, l.counts, 0.5), tenure.percentile_ms(l.buckets, l.counts, 0.99),
           coalesce(f.total, 0), tenure.percentile_ms(f.buckets, f.counts, 0.5), tenure.percentile_ms(f.buckets, f.counts, 0.99),
           c.memory_bytes, c.group_memory_bytes, c.throttled_ms,
           coalesce(l.buckets, '{}'), coalesce(l.counts, '{}'), coalesce(f.buckets, '{}'), coalesce(f.counts, '{}')
    from counted c
    left join claims l on l.worker_id = c.worker_id
    left join flushes f on f.worker_id = c.worker_id
    left join tenure.worker w on w.id = c.worker_id
    left join tenure.former_worker g on g.id = c.worker_id
    order by c.worker_id;
end $$;

-- percentile_ms: of a histogram (buckets: src/model/histogram.rs), the part p_part of its values (0 to 1) is at most about so long; null: it is empty. The middle of
-- a bucket, within 12.5 %; below 0.1 ms it is 0.05, and from 20 days on that.
create or replace function tenure.percentile_ms(p_buckets smallint[], p_counts bigint[], p_part double precision) returns double precision
language sql immutable as $$
  select case when x.bucket <= 0 then 0.05
              when x.bucket >= 137 then 0.1 * power(2::double precision, 34)
              else 0.1 * power(2::double precision, (x.bucket - 1) / 4) * (1.125 + 0.25 * ((x.bucket - 1) % 4)) end
  from (select u.bucket, sum(u.n) over (order by u.bucket) as up_to, sum(u.n) over () as total from unnest(p_buckets, p_counts) as u(bucket, n)) x
  where x.up_to::double precision >= greatest(1, ceil(p_part * x.total::double precision))
  order by x.bucket limit 1
$$;
