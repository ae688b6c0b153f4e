-- pause: nothing more is claimed from a queue, on any worker, until resume; running jobs finish. True: it was not paused before.
-- Locks: the queue's row.
create or replace function tenure.pause(p_queue text, p_by text default null, p_reason text default null) returns boolean
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp set lock_timeout = '5s' as $$
begin
  perform tenure.check_name('queue', p_queue);
  insert into tenure.queue as q (name, paused_at, paused_by, pause_reason)
    values (p_queue, clock_timestamp(), coalesce(p_by, session_user), p_reason)
    on conflict (name) do update
      set paused_at = excluded.paused_at, paused_by = excluded.paused_by, pause_reason = excluded.pause_reason
      where q.paused_at is null;
  return found;
end $$;

-- settle_pause: waits until no claim is under way that began before the pauses that are committed now, for p_wait_ms at most, and for half of the
-- caller's statement_timeout: what has not settled is then named, and no error. Null: none is;
-- otherwise the processes that may be one, for people. Call it after the pause's transaction, in one of its own. Every claim holds its lock on
-- kind_pause, taken before its snapshot, until its end. Who also reads what no claim reads is none, as a dump that goes on for hours, and neither is
-- who only writes there or analyzes it, as an operator's transaction that pauses.
create or replace function tenure.settle_pause(p_wait_ms integer default 2000) returns text
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp as $$
declare
  v_timeout_ms constant bigint := (select s.setting::bigint from pg_settings s where s.name = 'statement_timeout');
  v_end_at constant timestamptz := clock_timestamp()
    + least(p_wait_ms, case when v_timeout_ms > 0 then v_timeout_ms / 2 end) * interval '1 millisecond';
  v_holders text[];
begin
  v_holders := array(select k.virtualtransaction from tenure.pause_readers() k);
  loop
    v_holders := array(select k.virtualtransaction from tenure.pause_readers() k where k.virtualtransaction = any(v_holders));
    exit when v_holders = '{}' or clock_timestamp() > v_end_at;
    perform pg_sleep(0.002);
  end loop;
  return (
    select string_agg(format('process %s (%s)', k.pid, concat_ws(', ', 'user ' || a.usename, 'application ' || nullif(a.application_name, ''), a.state)), ', ' order by k.pid)
    from tenure.pause_readers() k left join pg_stat_activity a on a.pid = k.pid where k.virtualtransaction = any(v_holders));
end $$;

create or replace function tenure.pause_readers() returns table (virtualtransaction text, pid integer)
language sql volatile as $$
  select k.virtualtransaction, k.pid from pg_locks k
  where k.locktype = 'relation' and k.database = (select d.oid from pg_database d where d.datname = current_database())
    and k.relation = 'tenure.kind_pause'::regclass and k.pid <> pg_backend_pid() and k.granted and k.mode = 'AccessShareLock'
    and not exists (select from pg_locks d where d.pid = k.pid and d.locktype = 'relation' and d.database = k.database
                    and d.relation = 'tenure.dead_letter'::regclass and d.granted)
$$;

-- resume: the queue is claimed from again. True: it was paused.
create or replace function tenure.resume(p_queue text) returns boolean
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp set lock_timeout = '5s' as $$
begin
  update tenure.queue q set paused_at = null, paused_by = null, pause_reason = null where q.name = p_queue and q.paused_at is not null;
  if not found then
    return false;
  end if;
  perform tenure.tell(w.worker_id, 'work')
    from (select distinct s.worker_id from tenure.sleeper s where s.queue = p_queue and s.minute >= tenure.minute() - 1) w;
  return true;
end $$;

-- pause_kind: nothing more of a kind is claimed from one queue, or from any (p_queue null), until resume_kind. True: it was not paused so before.
-- For claims the kind is then one that nobody handles: its jobs are passed over once, whatever their number. Locks: the row in kind_pause.
create or replace function tenure.pause_kind(p_kind text, p_queue text default null, p_by text default null, p_reason text default null) returns boolean
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp set lock_timeout = '5s' as $$
begin
  perform tenure.check_name('kind', p_kind);
  if p_queue is not null then
    perform tenure.check_name('queue', p_queue);
  end if;
  insert into tenure.kind_pause (kind, queue, paused_at, paused_by, pause_reason)
    values (p_kind, p_queue, clock_timestamp(), coalesce(p_by, session_user), p_reason)
    on conflict do nothing;
  return found;
end $$;

-- resume_kind: undoes the pause_kind that had the same parameters, and no other. True: there was one.
create or replace function tenure.resume_kind(p_kind text, p_queue text default null) returns boolean
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp set lock_timeout = '5s' as $$
begin
  delete from tenure.kind_pause k where k.kind = p_kind and k.queue is not distinct from p_queue;
  if not found then
    return false;
  end if;
  perform tenure.tell(w.worker_id, 'work')
    from (select distinct s.worker_id from tenure.sleeper s where (p_queue is null or s.queue = p_queue) and s.minute >= tenure.minute() - 1) w;
  return true;
end $$;

-- kinds_open: those of p_kinds that are not paused in this queue. p_paused and p_in stand side by side; a null in p_in is every queue.
create or replace function tenure.kinds_open(p_kinds text[], p_queue text, p_paused text[], p_in text[]) returns text[]
language sql immutable as $$
  select array(select u.kind from unnest(p_kinds) as u(kind)
               where not exists (select from unnest(p_paused, p_in) as p(kind, queue) where p.kind = u.kind and coalesce(p.queue, p_queue) = p_queue))
$$;

-- drain_worker: a worker finishes what it runs and gets nothing more, until p_on is false; a new start of it is a new worker, and a process that
-- registers anew because it was cut off is not. False: no such live worker. Locks: the worker's row in worker_drain, and not the one that its heartbeats update.
create or replace function tenure.drain_worker(p_worker bigint, p_on boolean default true) returns boolean
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp set lock_timeout = '5s' as $$
begin
  if not exists (select from tenure.worker w where w.id = p_worker and w.dead_at is null) then
    return false;
  end if;
  if p_on then
    insert into tenure.worker_drain (worker_id) values (p_worker) on conflict do nothing;
  else
    delete from tenure.worker_drain d where d.worker_id = p_worker;
    perform tenure.tell(p_worker, 'work');
  end if;
  return true;
end $$;
