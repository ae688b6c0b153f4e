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

-- name: lines: whatever stands under limits is found: it has just come, or its line is there, and is open or waits for something
select t.id, t.line from tenure.limited t left join tenure.line l on l.digest = t.line
where not exists (select from tenure.limited_queue q where q.queue = t.queue) or t.fresh = 0 and (l.digest is null or not exists (select from tenure.nudge n where n.bucket = l.gate and n.queue = l.queue and n.kind = l.kind))
union all
-- Nobody waits for a place that is free: its end is noted as long as no claim has looked at it.
select null, l.digest from tenure.line l join tenure.nudge n on n.bucket = l.gate and n.queue = l.queue and n.kind = l.kind
  join tenure.limit_bucket b on b.id = l.gate and b.limit_name <> '' cross join lateral tenure.bucket_states(array[b.id], clock_timestamp()) s
where l.gate > 0 and n.look_at = 'infinity' and s.places >= 1 and b.id <> all(array(select u.bucket from tenure.nudge x cross join lateral unnest(x.buckets) as u(bucket)))
limit 100;

-- name: places: every lease has its place in each of its buckets, and no order key has more than one
select l.id, u.bucket as bucket, 'not counted' as what from tenure.lease l cross join lateral unnest(l.buckets) as u(bucket)
  where not exists (select from tenure.lease_slot t where t.bucket_id = u.bucket and t.lease_id = l.id)
union all
select null, b.id, 'more than one of an order key' from tenure.limit_bucket b
  where b.limit_name = '' and (select coalesce(sum(tenure.bucket_use(l.buckets, l.strip, b.id)), 0) from tenure.lease l where b.id = any(l.buckets)) > 1
limit 100;

-- name: room: a bounded queue takes no more than its bound leaves beside those that are counted
select r.queue, r.key, r.room, tenure.members(r.queue, r.key) as members, b.jobs, b.key_jobs
from tenure.queue_room r left join tenure.queue_bound b on b.queue = r.queue
where coalesce(r.room > case r.key when '' then b.jobs else b.key_jobs end - tenure.members(r.queue, r.key), true)
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

-- name: slots: no job stands for two logical times
select r.job_id, array_agg(r.schedule_id || ' ' || r.logical_at) as times from tenure.schedule_run r where r.job_id is not null group by r.job_id having count(*) > 1
limit 100;

-- name: looked at: a schedule that has something to do is looked at
select s.id, s.name from tenure.schedule s
where s.look_at is null and (s.removed_at is not null or s.paused_at is null and (not s.ended or s.queued_at is not null))
limit 100;

-- name: queued: what waits for the end of a run is noted as such
select s.id, s.name, s.queued_at from tenure.schedule s
where s.queued_at is not null and not exists (select from tenure.schedule_run r where r.schedule_id = s.id and r.logical_at = s.queued_at and r.state = 'queued')
union all
select r.schedule_id, null, r.logical_at from tenure.schedule_run r
where r.state = 'queued' and not exists (select from tenure.schedule s where s.id = r.schedule_id and s.queued_at = r.logical_at)
limit 100;

-- name: backfills: one that has ended has dealt with its times, or was cancelled, and has no job that goes on
select b.id, b.done, cardinality(b.times) as times, b.open_jobs from tenure.schedule_backfill b
where b.ended_at is not null and (b.cancelled_at is null and b.done < cardinality(b.times) or cardinality(b.open_jobs) > 0)
limit 100;
