-- register_worker: one process, one row; a new one at every start, so that nobody inherits the jobs of a namesake.
-- With p_lock the connection takes the worker's shared session lock before its row can be seen: while a lock is held, the
-- process lives. Behind a transaction pooler there is none, and only time tells. Registers its queues, as far as nobody is at them.
-- p_former: the worker as which this process was registered before; null: it is a new one. If that one is drained, this one is: the operator
-- meant the process. The former drain stays, for the answer to this call may be lost.
-- Locks: none that an operator's verb holds for longer than a tenth of a second.
create or replace function tenure.register_worker(p_name text, p_host text, p_pid integer, p_version text, p_queues text[], p_kinds text[],
                                       p_lease_ms integer, p_grace_ms integer, p_lock boolean, p_former bigint default null)
returns table (worker_id bigint, token uuid)
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp set lock_timeout = '2s' as $$
declare
  v_id bigint := nextval('tenure.worker_id');
  v_token uuid := gen_random_uuid();
  v_now timestamptz;
begin
  perform tenure.check_name(t.what, t.name) from (values ('worker name', p_name), ('host', p_host), ('version', p_version)) as t(what, name);
  perform tenure.check_name('queue', q.queue) from unnest(p_queues) as q(queue);
  perform tenure.check_name('kind', k.kind) from unnest(p_kinds) as k(kind);
  if p_lock then
    perform pg_advisory_lock_shared(tenure.lock_class(), tenure.lock_key(v_id));
  end if;
  v_now := clock_timestamp();
  perform tenure.note_queue(q.queue) from (select distinct u.queue from unnest(p_queues) as u(queue) order by 1) q;
  insert into tenure.worker (id, token, name, host, pid, version, queues, kinds, lease_ms, grace_ms, seen_at, lease_until, locked_at)
    values (v_id, v_token, p_name, p_host, p_pid, p_version, p_queues, p_kinds, p_lease_ms, p_grace_ms, v_now,
            v_now + p_lease_ms * interval '1 millisecond', case when p_lock then v_now end);
  insert into tenure.worker_drain (worker_id, drained_at) select v_id, d.drained_at from tenure.worker_drain d where d.worker_id = p_former;
  return query select v_id, v_token;
end $$;

-- note_queue: a queue that has no row yet gets one. Somebody who is just pausing it, say, makes that row himself: he is not waited for.
create or replace function tenure.note_queue(p_queue text) returns void
language plpgsql set lock_timeout = '100ms' as $$
begin
  if not exists (select from tenure.queue q where q.name = p_queue) then
    insert into tenure.queue (name) values (p_queue) on conflict do nothing;
  end if;
exception when lock_not_available then
  null;
end $$;

-- attach_worker: another connection of the worker, or one made anew, takes the shared lock. False: the worker was given up,
-- and the lock is not kept. Waits for a rescuer that is at work on this worker, which ends in false; for two seconds at most.
create or replace function tenure.attach_worker(p_worker bigint, p_token uuid) returns boolean
language plpgsql security definer
set search_path = pg_catalog, tenure, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set lock_timeout = '2s' as $$
begin
  perform pg_advisory_lock_shared(tenure.lock_class(), tenure.lock_key(p_worker));
  update tenure.worker w set locked_at = clock_timestamp(), suspected_at = null, suspected_by = null
    where w.id = p_worker and w.token = p_token and w.dead_at is null;
  if not found then
    perform pg_advisory_unlock_shared(tenure.lock_class(), tenure.lock_key(p_worker));
    return false;
  end if;
  return true;
end $$;

-- heartbeat: extends the lease of all that the worker holds. No row: the worker was given up, and must stop its handlers.
-- A lease that is over but was not yet given away is extended too: nobody else has the jobs. Locks: the worker's row, waited for two seconds at most.
create or replace function tenure.heartbeat(p_worker bigint, p_token uuid) returns table (lease_left_ms integer, cancel_jobs bigint[])
language plpgsql security definer
set search_path = pg_catalog, tenure, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set lock_timeout = '2s' as $$
begin
  return query
    update tenure.worker w
      set seen_at = clock_timestamp(), lease_until = clock_timestamp() + w.lease_ms * interval '1 millisecond',
          suspected_at = case when w.suspected_by = 'l' then w.suspected_at end,
          suspected_by = case when w.suspected_by = 'l' then w.suspected_by end
      where w.id = p_worker and w.token = p_token and w.dead_at is null
      returning w.lease_ms, array(select c.job_id from tenure.cancel_request c where c.worker_id = w.id order by c.job_id limit 1000);
end $$;

-- leave_worker: the last act of a clean stop. False: it still holds leases, or was given up. Its name stays for those who look at its jobs.
create or replace function tenure.leave_worker(p_worker bigint, p_token uuid) returns boolean
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp as $$
declare
  v_name text;
begin
  delete from tenure.worker w
    where w.id = p_worker and w.token = p_token and w.dead_at is null
      and not exists (select from tenure.lease l where l.worker_id = w.id)
    returning w.name into v_name;
  if not found then
    return false;
  end if;
  insert into tenure.former_worker (id, name) values (p_worker, v_name) on conflict do nothing;
  return true;
end $$;
