-- release: gives jobs back that were not run, or not to their end, for no fault of theirs. Transition: lease -> ready, in the
-- urgent lane, with the attempt not used; -> outcome (cancelled) when somebody wants it cancelled, for the next worker would not know of
-- that. Parameters as complete_many. Returns the slots that the lease no longer held.
-- Locks: the lease rows in the order given, which is that of their ids; none is waited for longer than a tenth of a second (55P03: release the others first).
-- Errors: TN002 when the arrays do not fit each other.
create or replace function tenure.release(p_worker bigint, p_token uuid, p_leases bigint[], p_strips bit varying[])
returns table (lease_id bigint, strip bit varying)
language plpgsql security definer
set search_path = pg_catalog, tenure, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set lock_timeout = '100ms' as $$
#variable_conflict use_column
declare
  c_urgent constant smallint := 0;
  v_alive boolean := tenure.is_alive(p_worker, p_token);
  v_lease tenure.lease;
  v_still bit varying;
  v_jobs bigint[];
  v_cancelled bigint[];
begin
  perform tenure.check_strips('release', p_leases, p_strips);
  for i in 1 .. cardinality(p_leases) loop
    v_still := p_strips[i] & ~ p_strips[i];
    if v_alive then
      select l.* into v_lease from tenure.lease l where l.id = p_leases[i] and l.worker_id = p_worker for update;
      if found and length(v_lease.strip) = length(p_strips[i]) then
        v_still := v_lease.strip & p_strips[i];
        if bit_count(v_still) > 0 then
          perform tenure.leave_lease(v_lease.id, v_lease.strip, v_still);
          perform tenure.free_places(v_lease.buckets, v_lease.queue);
          v_jobs := array(select n.job_id from tenure.jobs_in(v_lease.blocks, v_still) n);
          v_cancelled := tenure.cancel_wanted(v_lease, v_jobs);
          perform tenure.put_ready(array(select u.job from unnest(v_jobs) as u(job) where u.job <> all(v_cancelled)), v_lease.queue,
                                   tenure.lane_of(c_urgent, v_lease.flags), v_lease.kind, v_lease.attempt - 1, v_lease.flags);
        end if;
      end if;
    end if;
    if v_still <> p_strips[i] then
      lease_id := p_leases[i];
      strip := p_strips[i] & ~ v_still;
      return next;
    end if;
  end loop;
end $$;
