-- progress: what a running job says of itself. False: the lease is lost, and nothing was written. Locks: none that others wait for, but the row in progress.
create or replace function tenure.progress(p_job bigint, p_fence bigint, p_progress json) returns boolean
language plpgsql security definer
set search_path = pg_catalog, tenure, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
begin
  perform tenure.check_payload(p_progress);
  insert into tenure.progress as p (job_id, lease_id, at, value)
    select p_job, l.id, clock_timestamp(), p_progress
    from tenure.lease l join tenure.worker w on w.id = l.worker_id
    where l.id = p_fence and tenure.slot_of(l.blocks, l.strip, p_job) is not null and w.dead_at is null
    on conflict (job_id) do update set lease_id = excluded.lease_id, at = excluded.at, value = excluded.value
      where p.lease_id <= excluded.lease_id;
  return found;
end $$;
