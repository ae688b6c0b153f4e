-- complete_many: the ends of many jobs of one worker, in one statement of its own transaction.
-- Transition: lease -> outcome (completed). Parameters: one entry per lease, each lease once; p_strips[i] holds the slots that
-- are done, as long as the lease's own strip; results only for the jobs that have one.
-- Returns only the slots that were not completed now, because the lease no longer has them: ended_by tells whether an earlier,
-- unanswered report did it, or the lease is lost. No row: all done.
-- Locks: the lease rows. The lease row is the arbiter: rescue, cancel and a handler's own transaction take it too, one wins.
-- By primary key alone (worker_id + 0): the index by worker leads over all that this worker ever had and somebody's old snapshot keeps.
-- A lease row that a handler's open transaction holds is not waited for longer than a tenth of a second, since
-- the worker's claims wait behind this call (55P03: report the others first).
-- Errors: TN002 when the arrays do not fit each other, or a lease is named twice.
-- A clock that was set back, or that of another host after a failover, makes no job end before it started.
create or replace function tenure.complete_many(p_worker bigint, p_token uuid, p_leases bigint[], p_strips bit varying[],
                                     p_result_jobs bigint[], p_results json[])
returns table (lease_id bigint, strip bit varying)
language plpgsql security definer
set search_path = pg_catalog, tenure, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set lock_timeout = '100ms' as $$
#variable_conflict use_column
declare
  v_now timestamptz := clock_timestamp();
  v_done bigint[];
  v_freed_in text;       -- a queue of leases that stood under limits …
  v_freed bigint[];      -- … and where they had places
begin
  perform tenure.check_strips('complete_many', p_leases, p_strips);
  if tenure.is_alive(p_worker, p_token) then
    with done as (
      select d.id, d.strip from unnest(p_leases, p_strips) as d(id, strip)),
    gone as (
      delete from tenure.lease l using done d
      where l.id = any(p_leases) and l.id = d.id and l.worker_id + 0 = p_worker and l.strip = d.strip
      returning l.id, l.attempt, l.leased_at, l.blocks, d.strip, l.queue, l.buckets),
    cut as (
      update tenure.lease l set strip = l.strip & ~ d.strip
      from done d
      where l.id = any(p_leases) and l.id = d.id and l.worker_id + 0 = p_worker and l.strip <> d.strip
        and case when length(l.strip) = length(d.strip) then l.strip & d.strip = d.strip end
      returning l.id, l.attempt, l.leased_at, l.blocks, d.strip, l.queue, l.buckets),
    ended as (
      select g.id, g.attempt, g.leased_at, g.blocks, g.strip, g.queue, g.buckets from gone g
      union all select c.id, c.attempt, c.leased_at, c.blocks, c.strip, c.queue, c.buckets from cut c),
    stored as (
      insert into tenure.outcome (job_id, state, attempt, worker_id, lease_id, started_at, finished_at, result)
      select n.job_id, 'c', e.attempt, p_worker, e.id, e.leased_at, greatest(v_now, e.leased_at), r.result
      from ended e cross join lateral tenure.jobs_in(e.blocks, e.strip) n
      left join unnest(p_result_jobs, p_results) as r(job_id, result) on r.job_id = n.job_id)
    select array(select e.id from ended e), (select e.queue from ended e where e.buckets is not null limit 1), (select array_agg(distinct b.id) from ended e cross join lateral unnest(e.buckets) as b(id))
      into v_done, v_freed_in, v_freed;
    if v_freed_in is not null then
      perform tenure.free_places(v_freed, v_freed_in);
    end if;
    if cardinality(v_done) = cardinality(p_leases) then
      return;
    end if;
  end if;
  -- Something else has happened to the others: they are looked at one by one.
  if (select count(distinct l.id) from unnest(p_leases) as l(id)) < cardinality(p_leases) then
    perform tenure.refuse('TN002', 'complete_many: a lease is named twice', 'Pass one strip per lease, with all its slots that are done.');
  end if;
  return query
    select d.id, r.strip
    from unnest(p_leases, p_strips) with ordinality as d(id, strip, o)
    cross join lateral (select tenure.complete_rest(p_worker, p_token, d.id, d.strip, p_result_jobs, p_results) as strip) r
    where d.id <> all(coalesce(v_done, '{}')) and bit_count(r.strip) > 0
    order by d.o;
end $$;

-- complete_rest: of one lease, completes what the lease still holds. Returns the slots that it does not hold.
create or replace function tenure.complete_rest(p_worker bigint, p_token uuid, p_lease bigint, p_strip bit varying, p_result_jobs bigint[], p_results json[])
returns bit varying
language plpgsql as $$
declare
  v_lease tenure.lease;
  v_still bit varying;
begin
  if not tenure.is_alive(p_worker, p_token) then
    return p_strip;
  end if;
  select l.* into v_lease from tenure.lease l where l.id = p_lease and l.worker_id = p_worker for update;
  if not found or length(v_lease.strip) <> length(p_strip) then
    return p_strip;
  end if;
  v_still := v_lease.strip & p_strip;
  if bit_count(v_still) > 0 then
    perform tenure.leave_lease(v_lease.id, v_lease.strip, v_still);
    perform tenure.free_places(v_lease.buckets, v_lease.queue);
    insert into tenure.outcome (job_id, state, attempt, worker_id, lease_id, started_at, finished_at, result)
      select n.job_id, 'c', v_lease.attempt, p_worker, v_lease.id, v_lease.leased_at, greatest(clock_timestamp(), v_lease.leased_at), r.result
      from tenure.jobs_in(v_lease.blocks, v_still) n
      left join unnest(p_result_jobs, p_results) as r(job_id, result) on r.job_id = n.job_id;
  end if;
  return p_strip & ~ v_still;
end $$;

-- complete: the end of one job in the caller's own transaction, with the writes that it stands for.
-- Parameters: the fence is the lease's id, which a handler is given. Errors: TN001 when the lease is lost, so that the transaction
-- cannot commit; 40001 and 40P01 mean "repeat the transaction", under repeatable read and serializable.
-- From here on the session may idle in this transaction only as long as the lease lasts: a handler that hangs before its
-- commit does not keep the job from others.
-- Why it is right under each isolation level: the delete or update of the lease row meets that of a rescue on the row itself. The worker's
-- time decides nothing: when it is over, as after a clock that was set forward, and nobody was given the job, the worker is about to extend
-- it. The session may then idle for one whole lease, and so above read committed, where the time would be the snapshot's, always too early.
create or replace function tenure.complete(p_job bigint, p_fence bigint, p_result json default null) returns void
language plpgsql security definer
set search_path = pg_catalog, tenure, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
  v_lease tenure.lease;
  v_slot integer;
  v_fresh boolean;       -- the worker's row as it is now, not as it was when the transaction began
  v_left_ms bigint;
  v_now timestamptz := clock_timestamp();
begin
  select l.* into v_lease from tenure.lease l where l.id = p_fence for update;
  if found then
    v_slot := tenure.slot_of(v_lease.blocks, v_lease.strip, p_job);
    v_fresh := current_setting('transaction_isolation') in ('read committed', 'read uncommitted');
    select case when v_fresh and w.lease_until > v_now then ceil(extract(epoch from w.lease_until - v_now) * 1000) else w.lease_ms end into v_left_ms
      from tenure.worker w where w.id = v_lease.worker_id and w.dead_at is null;
  end if;
  if v_slot is null or v_left_ms is null then
    perform tenure.refuse('TN001', format('lease lost: lease %s does not hold job %s any more', p_fence, p_job),
                          'Roll back. The job was given to another worker, or has ended.');
  end if;
  perform tenure.leave_lease(v_lease.id, v_lease.strip, set_bit(v_lease.strip & ~ v_lease.strip, v_slot, 1));
  perform tenure.free_places(v_lease.buckets, v_lease.queue);
  insert into tenure.outcome (job_id, state, attempt, worker_id, lease_id, started_at, finished_at, result)
    values (p_job, 'c', v_lease.attempt, v_lease.worker_id, v_lease.id, v_lease.leased_at, greatest(v_now, v_lease.leased_at), p_result);
  perform tenure.limit_idle(v_left_ms);
end $$;

-- Sets idle_in_transaction_session_timeout for this transaction, unless the session's own is shorter.
create or replace function tenure.limit_idle(p_ms bigint) returns void
language plpgsql as $$
declare
  v_set_ms bigint := (select s.setting::bigint from pg_settings s where s.name = 'idle_in_transaction_session_timeout');
begin
  if v_set_ms = 0 or v_set_ms > p_ms then
    perform set_config('idle_in_transaction_session_timeout', least(p_ms, 2147483647)::text, true);
  end if;
end $$;
