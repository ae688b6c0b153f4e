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

-- resume: the queue is claimed from again. True: it was paused.
create or replace function tenure.resume(p_queue text) returns boolean
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp set lock_timeout = '5s' as $$
begin
  update tenure.queue q set paused_at = null, paused_by = null, pause_reason = null where q.name = p_queue and q.paused_at is not null;
  if not found then
    return false;
  end if;
  perform tenure.tell(s.worker_id, 'work') from tenure.sleeper s where s.queue = p_queue;
  return true;
end $$;
