-- reschedule: a job that waits is due at another time; the job itself does not change. One that could run now waits until then; with an instant that
-- has passed, or none, it can run now. One that failed and keeps those behind it in its order waiting does so until then. Returns where it waits:
-- 'scheduled', 'retrying', 'snoozed', 'available'; or where it stands and stays: 'held' (also for a limit, its turn or its order), 'running', 'completed', 'cancelled', 'dead'. Null: no such job. Errors: TN002 as enqueue, TN005.
-- run_now: the same without an instant.
-- Locks: one row of ready, limited or later, or none, waited for for five seconds at most. A job moves between those tables; it is looked for again a few times.
create or replace function tenure.reschedule(p_job bigint, p_run_at timestamptz default null, p_delay_ms bigint default null) returns text
language plpgsql security definer
set search_path = pg_catalog, tenure, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set lock_timeout = '5s' as $$
declare
  c_looks constant integer := 10;
  v_now constant timestamptz := clock_timestamp();
  v_due_at constant timestamptz := coalesce(p_run_at, v_now + p_delay_ms * interval '1 millisecond', v_now);
  v_job tenure.job;
  v_status text;
begin
  select j.* into v_job from tenure.job j where j.id = p_job;
  if not found then
    return case when exists (select from tenure.dead_letter d where d.job_id = p_job) then 'dead' end;
  end if;
  perform tenure.check_job(v_job.kind, v_job.queue, v_job.priority, p_run_at, p_delay_ms, v_job.max_attempts, v_job.timeout_ms);
  for i in 1 .. c_looks loop
    v_status := tenure.move_waiting(v_job, v_due_at, v_now);
    if v_status is not null then
      return v_status;
    end if;
    select case when h.block is not null then 'held' when d.job_id is not null then 'dead' when o.state = 'c' then 'completed' when o.state = 'x' then 'cancelled' end
      into v_status
      from (values (p_job)) as q(id)
      left join tenure.held h on h.block = p_job >> 7 and get_bit(h.mask, (p_job & 127)::integer) = 1
      left join tenure.dead_letter d on d.job_id = p_job
      left join tenure.outcome o on o.job_id = p_job;
    v_status := coalesce(v_status, case when (tenure.lease_of(p_job)).id is not null then 'running' end);
    if v_status is not null then
      return v_status;
    end if;
  end loop;
  perform tenure.refuse('TN005', format('job %s moves too fast to be caught', p_job), 'Try again.');
end $$;

create or replace function tenure.run_now(p_job bigint) returns text
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp as $$
begin
  return tenure.reschedule(p_job);
end $$;

-- move_waiting: moves one job between ready or limited and later, or within later. Returns where it waits then; null: it waits in neither.
create or replace function tenure.move_waiting(p_job tenure.job, p_due_at timestamptz, p_now timestamptz) returns text
language plpgsql as $$
declare
  v_block constant bigint := p_job.id >> 7;
  v_bit constant integer := (p_job.id & 127)::integer;
  v_mask constant bit(128) := tenure.mask_of(p_job.id);
  v_ready tenure.ready;
  v_later tenure.later;
  v_limited tenure.limited;
begin
  if p_job.limits is not null then
    v_limited := tenure.limited_row_of(p_job.id);
    if v_limited.due_at > p_now or v_limited.due_at is not null and p_due_at > p_now then
      -- It failed, and those behind it in its order wait with it: they do so until the other time.
      update tenure.limited l set due_at = case when p_due_at > p_now then p_due_at end where l.id = v_limited.id;
      perform tenure.free_places(array[x.order_bucket], p_job.queue) from tenure.line x where x.digest = v_limited.line and x.order_bucket is not null;
      if p_due_at <= p_now then
        return 'available';
      end if;
      perform tenure.wake_near(p_job.queue, p_due_at, p_now);
      return 'retrying';
    elsif v_limited.id is not null and p_due_at <= p_now then
      -- It waits for a limit, its turn or those before it, and not for a time.
      return 'held';
    elsif v_limited.id is not null then
      perform tenure.leave_limited(v_limited, v_mask);
      insert into tenure.later (block, id, due_at, reason, queue, priority, kind, attempt, flags, mask)
        values (v_block, nextval('tenure.block_id'), p_due_at, case v_limited.attempt when 0 then 's' else 'r' end, p_job.queue, p_job.priority, p_job.kind,
                v_limited.attempt, v_limited.flags, v_mask);
      perform tenure.wake_near(p_job.queue, p_due_at, p_now);
      return case v_limited.attempt when 0 then 'scheduled' else 'retrying' end;
    end if;
  end if;
  select r.* into v_ready from tenure.ready r
    where r.queue = p_job.queue and r.priority = p_job.priority and r.id = v_block and get_bit(r.mask, v_bit) = 1 for update;
  if not found then
    select r.* into v_ready from tenure.ready r where r.block = v_block and r.id <> r.block and get_bit(r.mask, v_bit) = 1 for update;
  end if;
  if found then
    if p_due_at <= p_now then
      return 'available';
    end if;
    perform tenure.leave_ready(v_ready, v_mask);
    insert into tenure.later (block, id, due_at, reason, queue, priority, kind, attempt, flags, mask)
      values (v_block, nextval('tenure.block_id'), p_due_at, case v_ready.attempt when 0 then 's' else 'r' end, p_job.queue, p_job.priority, p_job.kind,
              v_ready.attempt, v_ready.flags, v_mask);
    perform tenure.wake_near(p_job.queue, p_due_at, p_now);
    return case v_ready.attempt when 0 then 'scheduled' else 'retrying' end;
  end if;

  select t.* into v_later from tenure.later t where t.block = v_block and get_bit(t.mask, v_bit) = 1 for update;
  if not found then
    return null;
  end if;
  perform tenure.leave_later(v_later, v_mask);
  if p_due_at <= p_now then
    perform tenure.put_ready(array[p_job.id], p_job.queue, tenure.lane_of(v_later.priority, v_later.flags), p_job.kind, v_later.attempt, v_later.flags);
    return 'available';
  end if;
  insert into tenure.later (block, id, due_at, reason, queue, priority, kind, attempt, flags, mask, lease_id)
    values (v_block, nextval('tenure.block_id'), p_due_at, v_later.reason, p_job.queue, p_job.priority, p_job.kind, v_later.attempt, v_later.flags, v_mask,
            v_later.lease_id);
  perform tenure.wake_near(p_job.queue, p_due_at, p_now);
  return case v_later.reason when 's' then 'scheduled' when 'r' then 'retrying' else 'snoozed' end;
end $$;
