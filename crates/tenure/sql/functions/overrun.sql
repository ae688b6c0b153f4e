-- note_overruns: all jobs of a worker that should have ended and have not (a handler that blocks its thread, past its timeout, its cancel or
-- its worker's stop); the first 1,000 are kept. For people to see in `jobs` and `worker_list`. With p_left the worker has stopped in order but
-- for these: when its process ends they go back without using an attempt, for that was no death. False: the worker was given up.
-- Locks: the worker's row, waited for two seconds at most.
create or replace function tenure.note_overruns(p_worker bigint, p_token uuid, p_jobs bigint[], p_left boolean) returns boolean
language plpgsql security definer
set search_path = pg_catalog, tenure, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set lock_timeout = '2s' as $$
declare
  c_jobs_max constant integer := 1000;
begin
  update tenure.worker w set overrun_jobs = p_jobs[1:c_jobs_max], left_at = case when p_left then coalesce(w.left_at, clock_timestamp()) end
    where w.id = p_worker and w.token = p_token and w.dead_at is null;
  return found;
end $$;
