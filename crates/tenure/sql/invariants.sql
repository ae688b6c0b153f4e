-- The invariants: each query returns the rows that break it. No row, no fault.

-- name: conservation: every job stands in exactly one of ready, later, held, limited, lease, outcome and dead_letter
with place as (
  select n.job_id, 'ready' as place from tenure.ready r cross join lateral tenure.jobs_in(array[r.block], r.mask) n
  union all select n.job_id, 'later' from tenure.later t cross join lateral tenure.jobs_in(array[t.block], t.mask) n
  union all select n.job_id, 'held' from tenure.held h cross join lateral tenure.jobs_in(array[h.block], h.mask) n
  union all select n.job_id, 'limited' from tenure.limited t cross join lateral tenure.jobs_in(array[t.block], t.mask) n
  union all select n.job_id, 'lease' from tenure.lease l cross join lateral tenure.jobs_in(l.blocks, l.strip) n
  union all select o.job_id, 'outcome' from tenure.outcome o
  union all select d.job_id, 'dead_letter' from tenure.dead_letter d)
select coalesce(j.id, p.job_id) as job_id, coalesce(array_agg(p.place order by p.place) filter (where p.place is not null), '{}') as places, j.id is not null as in_job
from tenure.job j full join place p on p.job_id = j.id
group by j.id, p.job_id
having count(p.place) <> 1 or (j.id is null and array_agg(p.place) <> array['dead_letter'])
limit 100;

-- name: one lease: no job is in two leases, and every lease belongs to a worker
select n.job_id, array_agg(l.id order by l.id) as leases
from tenure.lease l cross join lateral tenure.jobs_in(l.blocks, l.strip) n
group by n.job_id having count(*) > 1
limit 100;

-- name: owned: every lease belongs to a worker
select l.id, l.worker_id from tenure.lease l where not exists (select from tenure.worker w where w.id = l.worker_id)
limit 100;

-- name: same kind: what a bundle says of its jobs is what the jobs say
select r.id, r.block, 'ready' as place from tenure.ready r cross join lateral tenure.jobs_in(array[r.block], r.mask) n join tenure.job j on j.id = n.job_id
  where (j.queue, j.kind) <> (r.queue, r.kind) or (r.priority > 0 and j.priority <> r.priority)
union all
select t.id, t.block, 'later' from tenure.later t cross join lateral tenure.jobs_in(array[t.block], t.mask) n join tenure.job j on j.id = n.job_id
  where (j.queue, j.kind, j.priority) <> (t.queue, t.kind, t.priority)
union all
select l.id, n.job_id >> 7, 'lease' from tenure.lease l cross join lateral tenure.jobs_in(l.blocks, l.strip) n join tenure.job j on j.id = n.job_id
  where (j.queue, j.kind) <> (l.queue, l.kind)
limit 100;

-- name: limits: what stands under limits waits in its line, and says so everywhere; nothing else does
select r.id, r.block, 'ready' as place from tenure.ready r cross join lateral tenure.jobs_in(array[r.block], r.mask) n join tenure.job j on j.id = n.job_id where j.limits is not null
union all
select t.id, t.block, 'later' from tenure.later t cross join lateral tenure.jobs_in(array[t.block], t.mask) n join tenure.job j on j.id = n.job_id
  where (j.limits is not null) <> (t.flags & 4 = 4)
union all
select t.id, t.block, 'limited' from tenure.limited t cross join lateral tenure.jobs_in(array[t.block], t.mask) n join tenure.job j on j.id = n.job_id
  where j.limits is null or t.flags & 4 = 0 or (j.queue, j.kind) <> (t.queue, t.kind) or t.line <> tenure.line_id(j.queue, j.kind, j.limits)
union all
select l.id, n.job_id >> 7, 'lease' from tenure.lease l cross join lateral tenure.jobs_in(l.blocks, l.strip) n join tenure.job j on j.id = n.job_id
  where (j.limits is not null) <> (l.flags & 4 = 4) or (j.limits is not null) <> (l.buckets is not null)
limit 100;

-- name: lines: whatever waits in a line is found: the line is there and open, or is to be looked at
select t.id, t.line from tenure.limited t left join tenure.line l on l.id = t.line
where not exists (select from tenure.nudge n where n.line = t.line)
  and (l.id is null or not exists (select from tenure.nudge n where n.bucket = l.gate and n.queue = l.queue and n.kind = l.kind))
limit 100;

-- name: places: every lease has its place in each of its buckets, and no bucket has more than it may
select l.id, u.bucket as bucket, 'not counted' as what from tenure.lease l cross join lateral unnest(l.buckets) as u(bucket)
  where not exists (select from tenure.lease_slot t where t.bucket_id = u.bucket and t.lease_id = l.id)
union all
select null, b.id, 'more than one of an order key' from tenure.limit_bucket b
  where b.limit_name = '' and (select coalesce(sum(bit_count(l.strip)), 0) from tenure.lease l where b.id = any(l.buckets)) > 1
limit 100;

-- name: attempts: no job has used more attempts than it has, and each that is recorded was before the one that runs
select n.job_id, l.attempt, j.max_attempts from tenure.lease l cross join lateral tenure.jobs_in(l.blocks, l.strip) n join tenure.job j on j.id = n.job_id
  where l.attempt > j.max_attempts
limit 100;

-- name: drawn: no id in use was not drawn from its sequence yet
select j.id, s.last_value from tenure.block_id s cross join lateral (select max(x.id) as id from tenure.job x) j where j.id >> 7 > s.last_value
union all
select l.id, s.last_value from tenure.lease_id s cross join lateral (select max(x.id) as id from tenure.lease x) l where l.id > s.last_value;

-- name: forgotten: nothing is noted about a job that is gone, unless its range was emptied a moment ago and is being swept
with noted as (
  select e.job_id, 'attempt_error' as place from tenure.attempt_error e
  union all select p.job_id, 'progress' from tenure.progress p
  union all select z.job_id, 'snooze' from tenure.snooze z
  union all select x.job_id, 'replacement' from tenure.replacement x)
select n.job_id, n.place from noted n
where not exists (select from tenure.job j where j.id = n.job_id) and not exists (select from tenure.dead_letter d where d.job_id = n.job_id)
  and not exists (select from tenure.partition p where p.walk = 's' and n.job_id >= p.first_block * 128 and n.job_id < p.end_block * 128)
limit 100;

-- name: folded: the fold has passed over no statistics that it did not take
select d.id, w.place from tenure.stat_delta d cross join (select x.place from tenure.duty x where x.name = 'deltas') w where d.id <= w.place
limit 100;
