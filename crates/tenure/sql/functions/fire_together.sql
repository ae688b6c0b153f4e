-- fire_together: what fire has to do about schedules that are nothing special, by a handful of statements however many they are: at most one time has come,
-- nothing is left out, nothing waits for the end of a run, and the last one is no obstacle. Bundles are shared as by a bulk enqueue.
-- Parameters: as fire. Returns the number of jobs, and the plans that are not dealt with, for fire_one. A time that has a run already fails by the key of
-- schedule_run: fire then divides, and fire_one passes over it.
-- Locks: the schedules' rows, in the order of their ids, skip locked, also of those that are left; those of an enqueue.
create or replace function tenure.fire_together(p_plans json, out jobs bigint, out rest json)
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  c_bundle_jobs constant integer := 100;
  c_near constant interval := '2 seconds';
  v_now constant timestamptz := clock_timestamp();
  v_ours bigint[];
  v_plain bigint[];
begin
  v_ours := array(select s.id from tenure.schedule s where s.id = any(array(select x.id from json_to_recordset(p_plans) as x(id bigint)))
                  order by s.id for update skip locked);
  -- A look of its own: what others have committed before the lock was ours is seen.
  v_plain := array(
    select s.id
    from json_to_recordset(p_plans) as x(id bigint, version bigint, was_us bigint, fire_us bigint[], out_us bigint[], more boolean, error text)
      join tenure.schedule s on s.id = x.id
    where x.id = any(v_ours) and s.version = x.version and s.next_at is not distinct from tenure.from_us(x.was_us) and s.removed_at is null
      and s.paused_at is null and s.queued_at is null and s.error is null and x.error is null and x.out_us is null and not coalesce(x.more, false)
      and coalesce(cardinality(x.fire_us), 0) <= 1 and (s.overlap = 'allow' or coalesce(cardinality(x.fire_us), 0) = 0 or tenure.has_ended(s.last_job_id)));
  rest := (select coalesce(json_agg(e.plan), '[]') from json_array_elements(p_plans) as e(plan) where not (e.plan ->> 'id')::bigint = any(v_plain));
  if cardinality(v_plain) = 0 then
    jobs := 0;
    return;
  end if;
  -- Before a block is drawn: cursors rely on it.
  perform pg_current_xact_id();
  with planned as materialized (
    select s.id, s.queue, s.kind, s.priority, s.max_attempts, s.timeout_ms, d.next_at, d.fire_at,
           d.fire_at + floor(random() * (s.jitter_ms + 1)) * interval '1 millisecond' as run_at,
           case when position('{{' in s.payload::text) = 0 and octet_length(s.payload::text) <= 65536 then s.payload  -- as render_payload says, but quicker
                when d.fire_at is not null then tenure.render_payload(s, d.fire_at) end as payload
    from (select x.id, tenure.from_us(x.fire_us[1]) as fire_at, tenure.from_us(x.next_us) as next_at
          from json_to_recordset(p_plans) as x(id bigint, fire_us bigint[], next_us bigint) where x.id = any(v_plain)) d
      join tenure.schedule s on s.id = d.id),
  timed as (
    select p.id, p.queue, p.kind, p.priority, p.max_attempts, p.timeout_ms, p.next_at, p.fire_at, p.run_at, p.payload,
           case when p.run_at > v_now then p.run_at end as due_at
    from planned p),
  placed as (
    select t.id, t.queue, t.kind, t.priority, t.max_attempts, t.timeout_ms, t.next_at, t.fire_at, t.run_at, t.payload, t.due_at,
           row_number() over (partition by t.fire_at is null, t.queue, t.kind, t.priority, t.due_at order by t.id) - 1 as place
    from timed t),
  drawn as materialized (
    select p.id, p.queue, p.kind, p.priority, p.max_attempts, p.timeout_ms, p.next_at, p.fire_at, p.run_at, p.payload, p.due_at, p.place,
           case when p.fire_at is not null and p.place % c_bundle_jobs = 0 then nextval('tenure.block_id') end as drawn
    from placed p),
  bundled as materialized (
    select d.id, d.queue, d.kind, d.priority, d.max_attempts, d.timeout_ms, d.next_at, d.fire_at, d.run_at, d.payload, d.due_at, d.drawn,
           max(d.drawn) over bundle as block, d.place % c_bundle_jobs as place, (count(*) over bundle)::integer as jobs
    from drawn d
    window bundle as (partition by d.fire_at is null, d.queue, d.kind, d.priority, d.due_at, d.place / c_bundle_jobs)),
  enqueued as (
    insert into tenure.job (id, queue, kind, priority, max_attempts, timeout_ms, created_at, run_at, payload)
    select b.block * 128 + b.place, b.queue, b.kind, b.priority, b.max_attempts, b.timeout_ms, v_now, b.run_at, b.payload
    from bundled b where b.fire_at is not null),
  delayed as (
    insert into tenure.later (block, id, due_at, reason, queue, priority, kind, attempt, flags, mask)
    select b.block, b.block, b.due_at, 's', b.queue, b.priority, b.kind, 0, 0, tenure.mask_fresh(b.jobs)
    from bundled b where b.drawn is not null and b.due_at is not null),
  readied as (
    insert into tenure.ready (queue, priority, id, kind, attempt, flags, block, mask)
    select b.queue, b.priority, b.block, b.kind, 0, 0, b.block, tenure.mask_fresh(b.jobs)
    from bundled b where b.drawn is not null and b.due_at is null),
  noted as (
    insert into tenure.schedule_run (schedule_id, logical_at, state, job_id, noted_at)
    select b.id, b.fire_at, 'fired', b.block * 128 + b.place, v_now
    from bundled b where b.fire_at is not null),
  moved as (
    update tenure.schedule s
      set next_at = b.next_at, look_at = b.next_at, last_at = greatest(s.last_at, b.fire_at), last_job_id = coalesce(b.block * 128 + b.place, s.last_job_id),
          runs = s.runs + (b.fire_at is not null)::integer
      from bundled b where s.id = b.id),
  woken as (
    select count(tenure.wake_one(q.queue))
    from (select distinct b.queue from bundled b where b.drawn is not null and (b.due_at is null or b.due_at <= v_now + c_near)) q)
  select count(b.fire_at) into jobs from bundled b where (select count(*) from woken) >= 0;
  perform tenure.forget_runs(b.id, v_now) from unnest(v_plain) as b(id) where random() < 0.005;
end $$;
