-- leases: what runs, for the view, without the numbers by which leases are known. It reads the rows as lease_of does, and for the same reason.
create or replace function tenure.leases() returns table (attempt smallint, leased_at timestamptz, worker_id bigint, blocks bigint[], strip bit varying)
language sql stable rows 100 security definer
set search_path = pg_catalog, tenure, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
  select l.attempt, l.leased_at, l.worker_id, l.blocks, l.strip from tenure.lease l where l.id > 0
$$;

-- end_of: how a job ended, for whoever waits for it; a status of null: not yet. No row: no such job. Four looks by primary key.
create or replace function tenure.end_of(p_job bigint) returns table (status text, result json, cause text, message text, replaced_by bigint)
language plpgsql stable security definer
set search_path = pg_catalog, tenure, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
begin
  return query
    select case when d.job_id is not null then 'dead' when o.state = 'c' then 'completed' when o.state = 'x' then 'cancelled' end,
           o.result, d.cause, d.message, x.new_id
    from (values (p_job)) as q(id)
    left join tenure.outcome o on o.job_id = p_job
    left join tenure.dead_letter d on d.job_id = p_job
    left join tenure.replacement x on x.job_id = p_job
    where o.job_id is not null or d.job_id is not null or exists (select from tenure.job j where j.id = p_job);
end $$;

-- jobs: the plain view of one row per job with a status; a dead letter that was requeued is still there, with replaced_by. Read-only; cheap for one id (the leases of what runs are looked through) and for one status. Each branch is one table of state, so that
-- a condition on status leaves the other tables alone, and joins by ranges of ids as well as by block, so that either side can lead.
create or replace view tenure.jobs as
with state as (
  select j.id, 'available'::text as status, r.attempt, null::timestamptz as started_at, null::timestamptz as finished_at, null::bigint as worker_id, null::json as result, null::timestamptz as due_at
    from tenure.ready r join tenure.job j on j.id >= r.block * 128 and j.id < r.block * 128 + 128
      and j.queue = r.queue and j.priority = r.priority and r.id = j.id >> 7
    where r.id = r.block and get_bit(r.mask, (j.id & 127)::integer) = 1
  union all
  select j.id, 'available', r.attempt, null, null, null, null, null
    from tenure.ready r join tenure.job j on j.id >= r.block * 128 and j.id < r.block * 128 + 128 and r.block = j.id >> 7
    where r.id <> r.block and get_bit(r.mask, (j.id & 127)::integer) = 1
  union all
  select j.id, case t.reason when 's' then 'scheduled' when 'r' then 'retrying' else 'snoozed' end, t.attempt, null, null, null, null, t.due_at
    from tenure.later t join tenure.job j on j.id >= t.block * 128 and j.id < t.block * 128 + 128 and t.block = j.id >> 7
    where get_bit(t.mask, (j.id & 127)::integer) = 1
  union all
  select j.id, 'held', h.attempt, null, null, null, null, null
    from tenure.held h join tenure.job j on j.id >= h.block * 128 and j.id < h.block * 128 + 128 and h.block = j.id >> 7
    where get_bit(h.mask, (j.id & 127)::integer) = 1
  union all
  select j.id, 'held', t.attempt, null, null, null, null, t.due_at
    from tenure.limited t join tenure.job j on j.id >= t.block * 128 and j.id < t.block * 128 + 128 and t.id = j.id >> 7
    where t.id = t.block and get_bit(t.mask, (j.id & 127)::integer) = 1
  union all
  select j.id, 'held', t.attempt, null, null, null, null, t.due_at
    from tenure.limited t join tenure.job j on j.id >= t.block * 128 and j.id < t.block * 128 + 128 and t.block = j.id >> 7
    where t.id <> t.block and get_bit(t.mask, (j.id & 127)::integer) = 1
  union all
  select j.id, 'running', l.attempt, l.leased_at, null, l.worker_id, null, null
    from tenure.leases() l cross join lateral unnest(l.blocks) with ordinality as b(block, o)
    join tenure.job j on j.id >= b.block * 128 and j.id < b.block * 128 + 128 and get_bit(l.strip, ((b.o - 1) * 128 + (j.id & 127))::integer) = 1
    where j.id >> 7 = any(l.blocks)
  union all
  select o.job_id, case o.state when 'c' then 'completed' else 'cancelled' end, o.attempt, o.started_at, o.finished_at, o.worker_id, o.result, null
    from tenure.outcome o
)
select j.id, j.kind, j.queue, s.status, j.priority, s.attempt, j.max_attempts, coalesce(s.due_at, j.run_at, j.created_at) as run_at, j.created_at,
       s.started_at, s.finished_at, greatest(j.created_at, s.started_at, s.finished_at, p.at, e.failed_at) as updated_at,
       coalesce(w.name, f.name, 'worker ' || s.worker_id || ' (left)') as worker, e.message as last_error, j.payload, s.result, p.value as progress,
       j.timeout_ms, tenure.idempotency_key_of(j) as idempotency_key, j.origin_id, j.replaces_id, x.new_id as replaced_by,
       coalesce(s.status = 'running' and j.id = any(w.overrun_jobs), false) as overrun, coalesce(z.snoozes, 0) as snoozes
from state s
join tenure.job j on j.id = s.id
left join tenure.worker w on w.id = s.worker_id
left join tenure.former_worker f on f.id = s.worker_id
left join tenure.progress p on p.job_id = s.id
left join tenure.snooze z on z.job_id = s.id
left join tenure.replacement x on x.job_id = s.id
left join lateral (select a.message, a.failed_at from tenure.attempt_error a where a.job_id = s.id order by a.attempt desc, a.lease_id desc limit 1) e on true
union all
select d.job_id, d.kind, d.queue, 'dead', d.priority, d.attempt, d.max_attempts, coalesce(d.run_at, d.created_at), d.created_at,
       d.started_at, d.died_at, d.died_at, coalesce(w.name, f.name, 'worker ' || d.worker_id || ' (left)'), d.message, d.payload, null, p.value,
       d.timeout_ms, d.idempotency_key, d.origin_id, d.replaces_id, x.new_id, false, coalesce(z.snoozes, 0)
from tenure.dead_letter d
left join tenure.worker w on w.id = d.worker_id
left join tenure.former_worker f on f.id = d.worker_id
left join tenure.progress p on p.job_id = d.job_id
left join tenure.snooze z on z.job_id = d.job_id
left join tenure.replacement x on x.job_id = d.job_id;

-- queue_stats: what waits in each queue; as dead count the dead letters that are open, not those that were requeued. Counts bundles, so that a million jobs cost ten thousand rows.
create or replace function tenure.queue_stats() returns table (queue text, available bigint, scheduled bigint, running bigint, held bigint, dead bigint,
                                                    oldest_due_at timestamptz, paused_at timestamptz, paused_by text, pause_reason text)
language sql stable security definer set search_path = pg_catalog, tenure, pg_temp as $$
  with counted as (
    -- What came back has a new id, and the block that it always had.
    select r.queue, 'a' as what, sum(bit_count(r.mask)) as jobs, min(r.block) filter (where r.id <> r.block) as first_back from tenure.ready r group by r.queue
    union all select t.queue, 's', sum(bit_count(t.mask)), null from tenure.later t group by t.queue
    union all select h.queue, 'h', sum(bit_count(h.mask)), null from tenure.held h group by h.queue
    union all select t.queue, 'h', sum(bit_count(t.mask)), null from tenure.limited t group by t.queue
    union all select l.queue, 'r', sum(bit_count(l.strip)), null from tenure.lease l group by l.queue
    union all select d.queue, 'd', count(*), null from tenure.dead_letter d
      where not exists (select from tenure.replacement x where x.job_id = d.job_id) group by d.queue
    union all select q.name, 'q', 0, null from tenure.queue q),
  summed as (
    select c.queue, coalesce(sum(c.jobs) filter (where c.what = 'a'), 0)::bigint as available, coalesce(sum(c.jobs) filter (where c.what = 's'), 0)::bigint as scheduled,
           coalesce(sum(c.jobs) filter (where c.what = 'r'), 0)::bigint as running, coalesce(sum(c.jobs) filter (where c.what = 'h'), 0)::bigint as held,
           coalesce(sum(c.jobs) filter (where c.what = 'd'), 0)::bigint as dead, min(c.first_back) as first_back
    from counted c group by c.queue)
  select s.queue, s.available, s.scheduled, s.running, s.held, s.dead,
         (select min(coalesce(j.run_at, j.created_at))
          from (select x.block from generate_series(-1, 4) as lane(priority)
                cross join lateral (select r.block from tenure.ready r where r.queue = s.queue and r.priority = lane.priority order by r.id limit 1) x
                union all select s.first_back) first
          join tenure.job j on j.id >= first.block * 128 and j.id < first.block * 128 + 128),
         q.paused_at, q.paused_by, q.pause_reason
  from summed s left join tenure.queue q on q.name = s.queue
  order by s.queue
$$;

-- worker_list: the workers without their tokens. Who is suspected is found out when somebody looks: with nobody to maintain, no row says it.
create or replace view tenure.worker_list as
select w.id, w.name, w.host, w.pid, w.version, w.queues, w.kinds, w.started_at, w.seen_at, w.lease_until, w.lease_ms, coalesce(s.has_lock, false) as has_lock,
       case when w.dead_at is not null then 'dead' when s.by is not null then 'suspected' when exists (select from tenure.worker_drain d where d.worker_id = w.id) then 'drained' else 'alive' end as state,
       (select coalesce(sum(bit_count(l.strip)), 0) from tenure.lease l where l.worker_id = w.id) as running,
       cardinality(w.overrun_jobs) as overruns
from tenure.worker w left join tenure.sightings() s on s.worker_id = w.id;
