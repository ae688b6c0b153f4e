-- lease: what the verbs that end or give back jobs share.

-- Is this worker the one that registered, and is its lease not over? Read without a lock: the lease row is the arbiter.
create or replace function tenure.is_alive(p_worker bigint, p_token uuid) returns boolean
language plpgsql stable as $$
begin
  return exists (select from tenure.worker w
                 where w.id = p_worker and w.token = p_token and w.dead_at is null and w.lease_until > clock_timestamp());
end $$;

-- The slot of a job that the lease still holds, otherwise null.
create or replace function tenure.slot_of(p_blocks bigint[], p_strip bit varying, p_job bigint) returns integer
language sql immutable as $$
  select s.slot
  from unnest(p_blocks) with ordinality as b(block, o)
  cross join lateral (select (b.o::integer - 1) * 128 + (p_job & 127)::integer as slot) s
  where b.block = p_job >> 7 and get_bit(p_strip, s.slot) = 1
$$;

-- lease_of: the lease under which a job runs; all null: none. It reads the leases along their primary key, once: the index entry of a lease that
-- has gone is marked when it is met first and costs nothing from then on, whereas the table keeps every page that it once needed, until a vacuum.
create or replace function tenure.lease_of(p_job bigint) returns tenure.lease
language plpgsql stable
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  v_lease tenure.lease;
begin
  select l.* into v_lease from tenure.lease l
    where l.id > 0 and p_job >> 7 = any(l.blocks) and tenure.slot_of(l.blocks, l.strip, p_job) is not null limit 1;
  return v_lease;
end $$;

-- Refuses reports whose arrays do not fit each other: what lacks a strip would count as done.
create or replace function tenure.check_strips(p_verb text, p_leases bigint[], p_strips bit varying[]) returns void
language plpgsql immutable as $$
begin
  if cardinality(p_leases) is distinct from cardinality(p_strips) or array_position(p_leases, null) > 0 or array_position(p_strips, null) > 0 then
    perform tenure.refuse('TN002', format('%s: %s leases and %s strips do not fit each other', p_verb, coalesce(cardinality(p_leases)::text, 'no'),
      coalesce(cardinality(p_strips)::text, 'no')), 'Pass one strip per lease, and no nulls.');
  end if;
end $$;

-- Takes slots out of a lease row that the caller has locked; the row goes with its last job.
create or replace function tenure.leave_lease(p_lease bigint, p_held bit varying, p_gone bit varying) returns void
language plpgsql as $$
begin
  if p_held = p_gone then
    delete from tenure.lease l where l.id = p_lease;
  else
    update tenure.lease l set strip = l.strip & ~ p_gone where l.id = p_lease;
  end if;
end $$;

-- Flags of a bundle: 1 a suspect, two workers were lost with it; 2 snoozed, so that its next start is not its first; 4 its jobs stand under limits.
-- The lane of ready that a job waits in: a suspect stays apart from others, however its attempts end, until it is through.
create or replace function tenure.lane_of(p_priority smallint, p_flags smallint) returns smallint
language sql immutable as $$
  select case when p_flags & 1 = 1 then -1::smallint else p_priority end
$$;

-- Puts jobs, given as ids, back into a lane of ready with new ids that no cursor has passed. Jobs of one block share a row.
-- Those that stand under limits go to their lines.
create or replace function tenure.put_ready(p_jobs bigint[], p_queue text, p_lane smallint, p_kind text, p_attempt integer, p_flags integer) returns void
language plpgsql as $$
begin
  if p_flags & 4 = 4 then
    perform tenure.put_limited(p_jobs, p_queue, p_lane, p_kind, p_attempt, p_flags);
    return;
  end if;
  perform pg_current_xact_id();
  insert into tenure.ready (queue, priority, id, kind, attempt, flags, block, mask)
    select p_queue, p_lane, nextval('tenure.block_id'), p_kind, p_attempt, p_flags, b.block, b.mask
    from (select u.job >> 7 as block, bit_or(tenure.mask_of(u.job)) as mask from unnest(p_jobs) as u(job) group by u.job >> 7 order by 1) b;
  if cardinality(p_jobs) > 0 then
    perform tenure.wake_one(p_queue);
  end if;
end $$;

-- What a lease did with a job: 'completed', 'cancelled', 'dead', 'retrying', 'snoozed' by this lease, otherwise 'lost'. What rescue did with it,
-- burying and cancelling included, carries the lease's id as well, and is not what its worker had reported.
create or replace function tenure.ended_by(p_leases bigint[], p_jobs bigint[]) returns table (lease_id bigint, job_id bigint, status text)
language plpgsql stable security definer
set search_path = pg_catalog, tenure, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
begin
  return query
    select q.lease, q.job, coalesce(
      (select 'lost' from tenure.attempt_error e where e.job_id = q.job and e.lease_id = q.lease and e.cause = 'worker_lost' limit 1),
      (select case o.state when 'c' then 'completed' else 'cancelled' end from tenure.outcome o where o.job_id = q.job and o.lease_id = q.lease),
      (select 'dead' from tenure.dead_letter d where d.job_id = q.job and d.lease_id = q.lease),
      (select 'retrying' from tenure.attempt_error e where e.job_id = q.job and e.lease_id = q.lease limit 1),
      (select 'snoozed' from tenure.later t where t.block = q.job >> 7 and t.lease_id = q.lease and get_bit(t.mask, (q.job & 127)::integer) = 1 limit 1),
      (select 'snoozed' from tenure.snooze z where z.job_id = q.job and z.lease_id = q.lease),
      'lost')
    from unnest(p_leases, p_jobs) with ordinality as q(lease, job, o)
    order by q.o;
end $$;

-- leases_of: all that the database says this worker holds. A worker asks after it reconnected: a claim whose answer was lost
-- left leases that it does not know of, and that its heartbeats would keep for ever; it releases them.
create or replace function tenure.leases_of(p_worker bigint, p_token uuid) returns table (lease_id bigint, strip bit varying)
language plpgsql stable security definer
set search_path = pg_catalog, tenure, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
begin
  return query
    select l.id, l.strip from tenure.lease l
    where l.worker_id = p_worker and exists (select from tenure.worker w where w.id = p_worker and w.token = p_token)
    order by l.id;
end $$;
