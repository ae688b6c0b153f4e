-- rescue: finds workers that are dead and gives their jobs away. Transition: lease -> ready (urgent or isolated), dead_letter, or outcome (cancelled).
-- Dead needs two sightings. By the lock: it is free, and free again at least the worker's grace later; this counts only for workers that
-- locked since the server started or last lost all connections at once. By time: the lease is over, and still over a third of the lease later.
-- It stops after a fifth of a second, so that a run never takes longer than its caller waits: what is done is kept, the rest comes next.
-- Returns {"suspects": n, "dead": workers newly dead, "rescued": jobs, "jobs": the first ten of them, to be named in a log, each with what became of it
-- ("dead", "cancelled", "spared": it runs again and the attempt does not count; none of these: it runs again), "more": whether to come again at once, "next_ms": when the next sighting is
-- due, or null}. A run that stopped early and rescued nothing has no hurry: what it met cannot be rescued for now.
-- Locks: worker rows of the suspects, skipping what others hold; for a dead worker its exclusive session lock until the end of the
-- transaction, so that it cannot come back in the middle; its lease rows in the order of their ids, skipping what others hold (a
-- handler's open transaction; it ends with the lease's time, and is met at the next run). Nothing else is waited for longer than 100 ms.
-- The leases are reached by index: their table keeps every page that it once needed, until a vacuum, and most of the time nobody is dead.
create or replace function tenure.rescue(p_limit integer default 1000) returns json
language plpgsql security definer
set search_path = pg_catalog, tenure, pg_temp set lock_timeout = '100ms' set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
declare
  c_dead_kept constant interval := '1 minute';
  c_time constant interval := '200 milliseconds';
  c_again_ms constant integer := 100;    -- a sighting that is due was put off: somebody holds the worker's row
  c_warnings constant integer := 10;     -- a turn; those that follow are alike
  v_end_at constant timestamptz := clock_timestamp() + c_time;
  v_dead integer;
  c_named constant integer := 10;        -- in the answer; those that follow are counted
  v_jobs bigint := 0;
  v_named json[] := '{}';
  v_leases integer := 0;
  v_failed integer := 0;
  v_from bigint;
  v_more boolean := false;
  v_lease record;
begin
  v_dead := tenure.declare_dead();
  v_from := (select d.place from tenure.duty d where d.name = 'rescue');
  for v_lease in
    -- Not a join: beside tables that were never analysed it would look at all workers for every lease.
    select l.id, l.kind, l.attempt, l.blocks, l.strip, l.worker_id, (select w.name from tenure.worker w where w.id = l.worker_id) as worker
    from tenure.lease l
    where l.worker_id = any(array(select w.id from tenure.worker w where w.dead_at is not null)) and l.id > v_from
    order by l.id limit p_limit for update of l skip locked
  loop
    v_leases := v_leases + 1;
    begin
      v_jobs := v_jobs + tenure.rescue_lease(v_lease.id);
      if cardinality(v_named) < c_named then
        v_named := v_named || array(
          select json_build_object('job', n.job_id, 'kind', v_lease.kind, 'attempt', v_lease.attempt, 'worker', v_lease.worker, 'worker_id', v_lease.worker_id,
                                   'dead', exists (select from tenure.dead_letter d where d.job_id = n.job_id),
                                   'cancelled', exists (select from tenure.outcome o where o.job_id = n.job_id),
                                   'spared', not exists (select from tenure.attempt_error e
                                                         where e.job_id = n.job_id and e.attempt = v_lease.attempt and e.lease_id = v_lease.id))
          from tenure.jobs_in(v_lease.blocks, v_lease.strip) n order by n.job_id limit c_named - cardinality(v_named));
      end if;
    exception when others then
      -- One bad row is one bad row: it is named, and tried again when all others had their turn.
      v_failed := v_failed + 1;
      if v_failed <= c_warnings then
        raise warning 'tenure: lease % could not be rescued: % (%)', v_lease.id, sqlerrm, sqlstate;
      end if;
    end;
    v_more := v_leases >= p_limit or clock_timestamp() > v_end_at;
    exit when v_more;
  end loop;
  -- The next turn goes on behind what could not be rescued.
  update tenure.duty d set place = case when v_more and v_failed > 0 then v_lease.id else 0 end
    where d.name = 'rescue' and (d.place > 0 or v_more and v_failed > 0);
  -- The row stays a while: a claim that was under way when its worker died commits leases afterwards, and is found by them.
  -- Its jobs outlast it, and are shown with its name; one that was put there for orphans had none.
  with gone as (
    delete from tenure.worker w
      where w.id = any(array(select x.id from tenure.worker x
                             where x.dead_at < clock_timestamp() - c_dead_kept and not exists (select from tenure.lease l where l.worker_id = x.id)
                             order by x.id for update skip locked))
      returning w.id, w.name, w.pid)
  insert into tenure.former_worker (id, name) select g.id, g.name from gone g where g.pid <> 0 order by g.id on conflict do nothing;
  -- Last, since it locks the rows of workers that may be on their way back.
  perform tenure.sight_workers();
  return json_build_object('dead', v_dead, 'rescued', v_jobs, 'jobs', to_json(v_named), 'more', v_more and v_jobs > 0,
    'suspects', (select count(*) from tenure.worker w where w.suspected_at is not null and w.dead_at is null),
    'next_ms', (select case when count(*) > 0 then greatest(c_again_ms, ceil(extract(epoch from min(tenure.second_sighting_at(w)) - clock_timestamp()) * 1000)) end::bigint
                from tenure.worker w where w.suspected_at is not null and w.dead_at is null));
end $$;

-- When a suspect that does not show itself is dead.
create or replace function tenure.second_sighting_at(w tenure.worker) returns timestamptz
language sql immutable as $$
  select w.suspected_at + case w.suspected_by when 'l' then w.grace_ms else w.lease_ms / 3 end * interval '1 millisecond'
$$;

-- The keys of the session locks that are held now. A negative key, as retention's, is an oid above all those of workers, and no integer.
create or replace function tenure.locks_held() returns table (key integer)
language sql stable as $$
  select k.objid::bigint::integer
  from pg_locks k
  where k.locktype = 'advisory' and k.database = (select d.oid from pg_database d where d.datname = current_database())
    and k.classid = 'tenure'::regnamespace::oid and k.objsubid = 2 and k.granted and k.objid::bigint <= 2147483647
$$;

-- Since when no lock can have been lost but with its connection. All connections end at once when the server starts, when one of its
-- processes crashes (the postmaster lives on, but the statistics start anew; whoever lived through their reset knows that it was
-- none), and when a standby becomes the primary: then a free lock says nothing of its worker, which is still on its way back.
create or replace function tenure.locks_count_since() returns timestamptz
language sql stable as $$
  select greatest(pg_postmaster_start_time(), pg_last_xact_replay_timestamp(), case when me.backend_start < r.reset_at then null else r.reset_at end)
  from (select pg_stat_get_bgwriter_stat_reset_time() as reset_at) r
  left join pg_stat_get_activity(pg_backend_pid()) me on true
$$;

-- sightings: how each worker that was not given up looks at this moment: 'l' its session lock is free, 't' its lease is over, null it shows itself; and
-- whether a connection of its holds the lock. The locks are looked at once, whatever the number of workers. For rescue, and for people, who
-- look also while nobody maintains: then the rows of workers tell of nothing.
create or replace function tenure.sightings() returns table (worker_id bigint, by "char", has_lock boolean)
language sql stable rows 100 security definer set search_path = pg_catalog, tenure, pg_temp as $$
  with held as materialized (select h.key from tenure.locks_held() h),
  since as materialized (select tenure.locks_count_since() as at)
  select w.id, case when w.locked_at > since.at and not k.is_held then 'l' when w.lease_until < clock_timestamp() then 't' end::"char",
         w.locked_at is not null and k.is_held
  from tenure.worker w cross join since
  cross join lateral (select exists (select from held h where h.key = tenure.lock_key(w.id)) as is_held) k
  where w.dead_at is null
$$;

-- Is no connection of this worker alive, as far as its session lock can tell?
create or replace function tenure.lock_is_free(w tenure.worker) returns boolean
language sql stable as $$
  select w.locked_at > tenure.locks_count_since() and not exists (select from tenure.locks_held() h where h.key = tenure.lock_key(w.id))
$$;

-- The first sighting of each suspect; one that shows itself is a suspect no longer.
create or replace function tenure.sight_workers() returns void
language plpgsql as $$
begin
  with seen as materialized (select s.worker_id, s.by from tenure.sightings() s),
  changed as (
    select w.id, s.by from tenure.worker w join seen s on s.worker_id = w.id
    where w.suspected_by is distinct from s.by and w.dead_at is null order by w.id for update of w skip locked)
  update tenure.worker w
    set suspected_by = c.by, suspected_at = case when c.by is not null then clock_timestamp() end
    from changed c where w.id = c.id;
end $$;

-- The second sighting. The worker's row is locked and everything is looked at again; its exclusive session lock is the last word on connections.
create or replace function tenure.declare_dead() returns integer
language plpgsql as $$
declare
  v_worker tenure.worker;
  v_dead integer := 0;
begin
  for v_worker in
    select w.* from tenure.worker w
    where w.suspected_at is not null and w.dead_at is null and tenure.second_sighting_at(w) <= clock_timestamp()
    order by w.id for update skip locked
  loop
    if v_worker.suspected_by = 'l' then
      continue when not tenure.lock_is_free(v_worker)
        or not pg_try_advisory_xact_lock(tenure.lock_class(), tenure.lock_key(v_worker.id));
    else
      continue when v_worker.lease_until >= clock_timestamp();
    end if;
    update tenure.worker w set dead_at = clock_timestamp() where w.id = v_worker.id;
    delete from tenure.sleeper s where s.worker_id = v_worker.id;
    perform tenure.tell(v_worker.id, 'rescued');
    v_dead := v_dead + 1;
  end loop;
  return v_dead;
end $$;

-- rescue_lease: gives the jobs of one lease away, whose row the caller has locked. Returns their number.
-- What is claimed counts as started. A job goes back to the urgent lane at once; from its second lost worker on it is a suspect and runs apart from
-- others; after three lost workers, or when its attempts are used up, it is buried with that cause. What a worker could not stop when it
-- stopped in order goes back without using an attempt.
create or replace function tenure.rescue_lease(p_lease bigint) returns bigint
language plpgsql as $$
declare
  c_lost_workers_max constant integer := 3;
  c_isolate_after constant integer := 2;
  c_urgent constant smallint := 0;
  v_now timestamptz := clock_timestamp();
  v_lease tenure.lease;
  v_jobs bigint[];
  v_unharmed bigint[] := '{}';
  v_cancelled bigint[];
  v_dead bigint[];
  v_isolated bigint[];
  v_worker tenure.worker;
  v_message text;
  v_details json;
begin
  delete from tenure.lease l where l.id = p_lease returning l.* into strict v_lease;
  perform tenure.free_places(v_lease.buckets, v_lease.queue);
  v_jobs := array(select n.job_id from tenure.jobs_in(v_lease.blocks, v_lease.strip) n order by n.job_id);
  select w.* into v_worker from tenure.worker w where w.id = v_lease.worker_id;
  v_message := format('worker %s%s was lost while it ran the job', v_lease.worker_id,
                      ' ("' || v_worker.name || '", process ' || v_worker.pid || ' on ' || v_worker.host || ')');
  v_details := json_build_object('host', v_worker.host, 'pid', v_worker.pid, 'seen_at', v_worker.seen_at, 'dead_at', v_worker.dead_at);
  if v_worker.left_at is not null then
    v_unharmed := array(select u.job from unnest(v_jobs) as u(job) where u.job = any(v_worker.overrun_jobs));
  end if;
  perform tenure.record_error(v_lease, u.job, 'worker_lost', v_message, v_details, v_now) from unnest(v_jobs) as u(job) where u.job <> all(v_unharmed);

  v_cancelled := tenure.cancel_wanted(v_lease, v_jobs);

  with losses as (
    select u.job, count(*) as lost from unnest(v_jobs) as u(job) join tenure.attempt_error e on e.job_id = u.job and e.cause = 'worker_lost'
    where u.job <> all(v_cancelled || v_unharmed) group by u.job)
    select coalesce(array_agg(s.job) filter (where s.lost >= c_lost_workers_max or v_lease.attempt >= j.max_attempts), '{}'),
           coalesce(array_agg(s.job) filter (where s.lost between c_isolate_after and c_lost_workers_max - 1 and v_lease.attempt < j.max_attempts), '{}')
      into v_dead, v_isolated
      from losses s join tenure.job j on j.id = s.job;
  perform tenure.bury(u.job, v_lease, 'worker_lost', v_message, v_now) from unnest(v_dead) as u(job);
  perform tenure.put_ready(v_isolated, v_lease.queue, -1::smallint, v_lease.kind, v_lease.attempt, v_lease.flags | 1);
  perform tenure.put_ready(array(select u.job from unnest(v_jobs) as u(job) where u.job <> all(v_cancelled || v_dead || v_isolated || v_unharmed)),
                           v_lease.queue, tenure.lane_of(c_urgent, v_lease.flags), v_lease.kind, v_lease.attempt, v_lease.flags);
  perform tenure.put_ready(array(select u.job from unnest(v_unharmed) as u(job) where u.job <> all(v_cancelled)), v_lease.queue,
                           tenure.lane_of(c_urgent, v_lease.flags), v_lease.kind, v_lease.attempt - 1, v_lease.flags);
  perform tenure.note_ends(v_lease.queue, v_lease.kind, 0, p_rescued => cardinality(v_jobs), p_dead => cardinality(v_dead));
  return cardinality(v_jobs);
end $$;

-- adopt_orphans: leases whose worker row is missing altogether (deleted by hand, or lost in a restore) get one that is dead, so that the next rescue
-- finds them. It reads the index by worker from one worker to the next. Returns the number of workers. Drains of workers that are gone are removed a
-- day later: until then their processes, which were only cut off, may register anew, and are drained still. Names of workers that have gone go after
-- 90 days.
create or replace function tenure.adopt_orphans() returns bigint
language plpgsql set enable_seqscan = off set jit = off as $$
declare
  v_workers bigint;
begin
  with recursive owner as (
    (select l.worker_id from tenure.lease l order by l.worker_id limit 1)
    union all
    select n.worker_id from owner o cross join lateral (select l.worker_id from tenure.lease l where l.worker_id > o.worker_id order by l.worker_id limit 1) n)
  insert into tenure.worker (id, token, name, host, pid, version, queues, kinds, lease_ms, grace_ms, seen_at, lease_until, dead_at)
    select o.worker_id, gen_random_uuid(), 'not registered', 'unknown', 0, 'unknown', '{}', '{}', 30000, 1000, clock_timestamp(), clock_timestamp(), clock_timestamp()
    from owner o where not exists (select from tenure.worker w where w.id = o.worker_id)
    on conflict do nothing;
  get diagnostics v_workers = row_count;
  delete from tenure.worker_drain d
    where d.worker_id = any(array(select x.worker_id from tenure.worker_drain x where x.gone_at < clock_timestamp() - interval '1 day'
                                  order by x.worker_id for update skip locked));
  update tenure.worker_drain d set gone_at = clock_timestamp()
    where d.worker_id = any(array(select x.worker_id from tenure.worker_drain x
                                  where x.gone_at is null and not exists (select from tenure.worker w where w.id = x.worker_id)
                                  order by x.worker_id for update skip locked));
  delete from tenure.former_worker f
    where f.id = any(array(select x.id from tenure.former_worker x where x.gone_at < clock_timestamp() - interval '90 days'
                           order by x.gone_at limit 1000 for update skip locked));
  return v_workers;
end $$;
