-- requeue: an ended job runs again, as a new job that names it; the old id points on. Transition: none -> ready, for the new job.
-- Without p_payload nothing changes and the idempotency key stays; an edited job gets a key of its own. With p_run_at in the future it goes to
-- later (scheduled) until then. Returns the new id.
-- Errors: TN002 the payload or p_run_at, TN004 no such job, TN005 it has not ended, or was requeued before, or an enqueue into the bounded queue does not commit. Locks: the dead letter or outcome, shared, so that it is not
-- removed meanwhile; then, in a queue that is bounded, as enqueue (admit.sql): a requeue does not ask for room, but takes it; then the row in replacement.
create or replace function tenure.requeue(p_job bigint, p_payload json default null, p_run_at timestamptz default null) returns bigint
language plpgsql security definer
set search_path = pg_catalog, tenure, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set lock_timeout = '5s' as $$
declare
  v_now timestamptz := clock_timestamp();
  v_block bigint;
  v_old record;
  v_new bigint;
  v_bounded boolean;
begin
  select d.queue, d.kind, d.priority, d.max_attempts, d.timeout_ms, d.idempotency_key, coalesce(d.origin_id, d.job_id) as origin_id, d.payload, d.limits
    into v_old from tenure.dead_letter d where d.job_id = p_job for share;
  if not found then
    select j.queue, j.kind, j.priority, j.max_attempts, j.timeout_ms, tenure.idempotency_key_of(j) as idempotency_key,
           coalesce(j.origin_id, j.id) as origin_id, j.payload, j.limits
      into v_old from tenure.job j join tenure.outcome o on o.job_id = j.id where j.id = p_job for share of o;
  end if;
  if not found then
    if exists (select from tenure.job j where j.id = p_job) then
      perform tenure.refuse('TN005', format('job %s has not ended', p_job), 'Only dead, cancelled and completed jobs are requeued.');
    end if;
    perform tenure.refuse('TN004', format('there is no job %s', p_job), 'It may have been removed by retention or discarded.');
  end if;
  if p_payload is not null then
    perform tenure.check_payload(p_payload);
  end if;
  perform tenure.check_run_at(p_run_at);
  perform pg_current_xact_id();
  -- Before the row in replacement, for which others wait.
  v_bounded := tenure.admit_anyway(v_old.queue, v_old.limits ->> 'fair', 1);
  v_block := nextval('tenure.block_id');
  insert into tenure.replacement (job_id, new_id) values (p_job, v_block * 128) on conflict do nothing;
  if not found then
    select r.new_id into v_new from tenure.replacement r where r.job_id = p_job;
    perform tenure.refuse('TN005', format('job %s was requeued before, as job %s', p_job, v_new), format('Requeue job %s, once it has ended.', v_new));
  end if;
  insert into tenure.job (id, queue, kind, priority, max_attempts, timeout_ms, created_at, run_at, idempotency_key, origin_id, replaces_id, payload, limits)
    values (v_block * 128, v_old.queue, v_old.kind, v_old.priority, v_old.max_attempts, v_old.timeout_ms, v_now, p_run_at,
            case when p_payload is null then v_old.idempotency_key end, v_old.origin_id, p_job, coalesce(p_payload, v_old.payload), v_old.limits);
  if v_bounded then
    perform tenure.note_members(v_old.queue, v_old.limits ->> 'fair', array[v_block], array[1]);
  end if;
  if v_old.limits is not null then
    perform tenure.place_fresh(v_old.queue, v_old.priority, v_old.kind, v_old.limits, case when p_run_at > v_now then p_run_at end, array[v_block], array[1]);
    return v_block * 128;
  end if;
  if p_run_at > v_now then
    insert into tenure.later (block, id, due_at, reason, queue, priority, kind, attempt, flags, mask)
      values (v_block, v_block, p_run_at, 's', v_old.queue, v_old.priority, v_old.kind, 0, 0, tenure.mask_fresh(1));
    perform tenure.wake_near(v_old.queue, p_run_at, v_now);
    return v_block * 128;
  end if;
  insert into tenure.ready (queue, priority, id, kind, attempt, flags, block, mask)
    values (v_old.queue, v_old.priority, v_block, v_old.kind, 0, 0, v_block, tenure.mask_fresh(1));
  perform tenure.wake_one(v_old.queue);
  return v_block * 128;
end $$;

-- discard: removes a dead letter and its job for good. False: there is no such dead letter.
create or replace function tenure.discard(p_job bigint) returns boolean
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp set lock_timeout = '5s' as $$
begin
  delete from tenure.dead_letter d where d.job_id = p_job;
  if not found then
    return false;
  end if;
  perform tenure.forget(array[p_job]);
  return true;
end $$;
