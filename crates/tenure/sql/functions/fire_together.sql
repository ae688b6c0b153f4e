-- fire_together: what fire has to do about schedules that are nothing special, by a handful of statements however many they are: at most one time has come,
-- nothing is left out, nothing waits for the end of a run, the last one is no obstacle, and the queue has no bound, which each job would have to be admitted to. Bundles are
-- shared as by a bulk enqueue.
-- Parameters: as fire. Returns the number of jobs, of schedules that were dealt with, and the plans that are left for fire_one: special ones, and those whose
-- schedules failed or may fail. A plan that does not fit any more, or whose schedule somebody else has, is passed over. A time that has a run already fails by the
-- key of schedule_run: fire then divides, and fire_one passes over it.
-- Locks: those of lock_schedules, also of those that are left; those of an enqueue.
create or replace function tenure.fire_together(p_plans json, out jobs bigint, out done bigint, out special json[], out alone json[])
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  c_bundle_jobs constant integer := 100;
  c_near constant interval := '2 seconds';
  v_now constant timestamptz := clock_timestamp();
  v_bounded constant text[] := (select array_agg(b.queue) from tenure.queue_bound b);  -- null: none
  v_ours bigint[];
  v_places tid[];  -- of their rows, which stay there while they are locked
  v_plain bigint[];
  v_plain_places tid[];
  v_special bigint[];
  v_alone bigint[];
begin
  select l.ids, l.places into v_ours, v_places from tenure.lock_schedules(p_plans) l;
  -- A look of its own: what others have committed before the lock was ours is seen. Each row by its place, as above.
  with asked as materialized (
    select l.id, l.place, x.version, tenure.from_us(x.was_us) as was_at, coalesce(cardinality(x.fire_us), 0) as times, x.error is null and x.out_us is null and not coalesce(x.more, false) as plain
    from unnest(v_ours, v_places) as l(id, place)
      join json_to_recordset(p_plans) as x(id bigint, version bigint, was_us bigint, fire_us bigint[], out_us bigint[], more boolean, error text) on x.id = l.id)
  select coalesce(array_agg(c.id) filter (where c.class = 'plain'), '{}'), array_agg(c.place) filter (where c.class = 'plain'),
         array_agg(c.id) filter (where c.class = 'special'), array_agg(c.id) filter (where c.class = 'alone')
    into v_plain, v_plain_places, v_special, v_alone
    from (select a.id, a.place,
                 case when s.error is not null or s.suspect then 'alone'
                      when a.times > 0 and s.queue = any(v_bounded) then 'special'
                      when s.queued_at is null and a.plain and a.times <= 1
                           and (s.overlap = 'allow' or a.times = 0 or tenure.not_ended(s.last_job_id || s.hand_jobs) = '{}' /* as jobs_ended */) then 'plain'
                      else 'special' end as class
          from asked a
            cross join lateral (select o.queue, o.queued_at, o.error, o.suspect, o.overlap, o.last_job_id, o.hand_jobs from tenure.schedule o
                                where o.ctid = a.place and o.version = a.version and o.next_at is not distinct from a.was_at and o.removed_at is null and o.paused_at is null offset 0) s) c;
  special := '{}';
  alone := '{}';
  if v_special is not null then
    special := array(select e.plan from json_array_elements(p_plans) with ordinality as e(plan, n) where (e.plan ->> 'id')::bigint = any(v_special) order by e.n);
  end if;
  if v_alone is not null then
    alone := array(select e.plan from json_array_elements(p_plans) with ordinality as e(plan, n) where (e.plan ->> 'id')::bigint = any(v_alone) order by e.n);
  end if;
  done := cardinality(v_plain);
  if done = 0 then
    jobs := 0;
    return;
  end if;
  -- Before a block is drawn: cursors rely on it.
  perform pg_current_xact_id();
  with planned as materialized (
    select s.id, d.place_of, s.queue, s.kind, s.priority, s.max_attempts, s.timeout_ms, d.next_at, d.fire_at,
           d.fire_at + floor(random() * (s.jitter_ms + 1)) * interval '1 millisecond' as run_at,
           case when position('{{' in s.payload::text) = 0 and octet_length(s.payload::text) <= 65536 then s.payload  -- as render_payload says, but quicker
                when d.fire_at is not null then tenure.render_payload(s, d.fire_at) end as payload
    from (select l.place as place_of, tenure.from_us(x.fire_us[1]) as fire_at, tenure.from_us(x.next_us) as next_at
          from unnest(v_plain, v_plain_places) as l(id, place) join json_to_recordset(p_plans) as x(id bigint, fire_us bigint[], next_us bigint) on x.id = l.id) d
      join tenure.schedule s on s.ctid = d.place_of),
  timed as (
    select p.id, p.place_of, p.queue, p.kind, p.priority, p.max_attempts, p.timeout_ms, p.next_at, p.fire_at, p.run_at, p.payload,
           case when p.run_at > v_now then p.run_at end as due_at
    from planned p),
  placed as (
    select t.id, t.place_of, t.queue, t.kind, t.priority, t.max_attempts, t.timeout_ms, t.next_at, t.fire_at, t.run_at, t.payload, t.due_at,
           row_number() over (partition by t.fire_at is null, t.queue, t.kind, t.priority, t.due_at order by t.id) - 1 as place
    from timed t),
  drawn as materialized (
    select p.id, p.place_of, p.queue, p.kind, p.priority, p.max_attempts, p.timeout_ms, p.next_at, p.fire_at, p.run_at, p.payload, p.due_at, p.place,
           case when p.fire_at is not null and p.place % c_bundle_jobs = 0 then nextval('tenure.block_id') end as drawn
    from placed p),
  bundled as materialized (
    select d.id, d.place_of, d.queue, d.kind, d.priority, d.max_attempts, d.timeout_ms, d.next_at, d.fire_at, d.run_at, d.payload, d.due_at, d.drawn,
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
      set next_at = b.next_at, ended = b.next_at is null, look_at = b.next_at, last_at = greatest(s.last_at, b.fire_at), last_job_id = coalesce(b.block * 128 + b.place, s.last_job_id),
          hand_jobs = case when s.hand_jobs <> '{}' then tenure.not_ended(s.hand_jobs) else s.hand_jobs end, runs = s.runs + (b.fire_at is not null)::integer
      from bundled b where s.ctid = b.place_of),
  woken as (
    select count(tenure.wake_one(q.queue))
    from (select distinct b.queue from bundled b where b.drawn is not null and (b.due_at is null or b.due_at <= v_now + c_near)) q)
  select count(b.fire_at) into jobs from bundled b where (select count(*) from woken) >= 0;
  perform tenure.forget_runs(b.id, v_now) from unnest(v_plain) as b(id) where random() < 0.005;
end $$;

-- lock_schedules: locks the rows of these plans' schedules that nobody else has, and says which those are and where they stay while they are locked: by its id all versions of a row
-- would be walked through, which somebody's old snapshot keeps. Those that are to be looked at at the same instant are found by one walk over that part of the index: a comparison
-- of pairs ends there behind the last entry of the instant, and for each of very many by itself that would be all the others.
-- Locks: the schedules' rows, skip locked, in any order.
create or replace function tenure.lock_schedules(p_plans json, out ids bigint[], out places tid[])
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off as $$
begin
  with wanted as materialized (
    select x.id, coalesce(timestamptz 'epoch' + x.look_us * interval '1 microsecond' /* from_us, but quicker */, (select o.look_at from tenure.schedule o where o.id = x.id)) as look_at
    from json_to_recordset(p_plans) as x(id bigint, look_us bigint)),
  instants as materialized (
    select w.look_at, min(w.id) as first_id, max(w.id) as last_id, array_agg(w.id) as ids from wanted w group by w.look_at)
  select array_agg(l.id), array_agg(l.place) into ids, places
  from instants i
    cross join lateral (select s.id, s.ctid as place from tenure.schedule s
                        where s.look_at is not null and (s.look_at, s.id) >= (i.look_at, i.first_id) and (s.look_at, s.id) <= (i.look_at, i.last_id)
                          and s.id + 0 /* not by the index of ids */ = any(i.ids) for update skip locked) l;
end $$;
