-- set_queue_bound: a queue takes so many jobs that have not ended, or so many of each fair key. Jobs that are there count. False: it was so before.
-- Parameters: policy reject, wait (with wait_ms) or drop; docs/guide/limit.md. Errors: TN002, TN005. Locks: the bound's row, which every enqueue into the queue holds shared until it commits,
-- waited for 5 s; those of its room. Enqueues that have not committed and saw no bound are not counted.
create or replace function tenure.set_queue_bound(p_queue text, p_jobs integer default null, p_key_jobs integer default null, p_policy text default 'reject', p_wait_ms integer default null) returns boolean
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp set lock_timeout = '5s' as $$
declare
  v_was tenure.queue_bound;
  v_n bigint;
begin
  perform tenure.check_name('queue', p_queue);
  if num_nonnulls(p_jobs, p_key_jobs) = 0 then
    perform tenure.refuse('TN002', format('the bound of the queue "%s" bounds nothing', p_queue), 'Give jobs, key_jobs or both; remove_queue_bound lifts a bound.');
  end if;
  perform tenure.refuse('TN002', format('%s %s is outside 1 to 10000000', c.what, c.value), 'It is the number of jobs that have not ended; pause a queue to stop it.')
    from (values ('jobs', p_jobs), ('key_jobs', p_key_jobs)) as c(what, value) where c.value not between 1 and 10000000;
  if p_policy is null or p_policy not in ('reject', 'wait', 'drop') then
    perform tenure.refuse('TN002', format('the policy "%s" is not known', p_policy), 'It is reject, wait (for wait_ms) or drop (the oldest that waits).');
  end if;
  if (p_policy = 'wait') <> (p_wait_ms is not null) or p_wait_ms not between 1 and 600000 then
    perform tenure.refuse('TN002', format('wait_ms %s does not fit the policy %s', coalesce(p_wait_ms::text, 'null'), p_policy), 'The policy wait needs 1 to 600000 ms (10 minutes); the others have none.');
  end if;
  select b.* into v_was from tenure.queue_bound b where b.queue = p_queue;
  if (v_was.jobs, v_was.key_jobs, v_was.policy, v_was.wait_ms) is not distinct from (p_jobs, p_key_jobs, p_policy, p_wait_ms) then
    return false;
  end if;
  insert into tenure.queue_bound (queue, jobs, key_jobs, policy, wait_ms) values (p_queue, p_jobs, p_key_jobs, p_policy, p_wait_ms) on conflict (queue) do nothing returning n into v_n;
  if v_n is null then
    -- Whoever was admitted has the row locked: nobody else counts members now.
    if not tenure.lock_bound_alone(p_queue) then
      perform tenure.refuse('TN005', format('the bound of the queue "%s" is just being lifted', p_queue), 'Try again.');
    end if;
    update tenure.queue_bound b set jobs = p_jobs, key_jobs = p_key_jobs, policy = p_policy, wait_ms = p_wait_ms, set_at = clock_timestamp() where b.queue = p_queue;
    update tenure.queue_room r set room = case r.key when '' then p_jobs else p_key_jobs end - tenure.members(r.queue, r.key), full_at = null
      where r.queue = p_queue and case r.key when '' then p_jobs else p_key_jobs end is not null;
    delete from tenure.queue_room r where r.queue = p_queue and case r.key when '' then p_jobs else p_key_jobs end is null;
    return true;
  end if;
  execute format('create sequence tenure.%I', 'refused_' || v_n);
  execute format('create sequence tenure.%I', 'full_' || v_n);
  insert into tenure.queue_member (queue, key, block, mask)
    select p_queue, coalesce(j.limits ->> 'fair', ''), n.job_id >> 7, bit_or(tenure.mask_of(n.job_id))
    from (select array[r.block] as blocks, r.mask as strip, false as limited from tenure.ready r where r.queue = p_queue
          union all select array[t.block], t.mask, t.flags & 4 = 4 from tenure.later t where t.queue = p_queue
          union all select array[h.block], h.mask, false from tenure.held h where h.queue = p_queue
          union all select array[t.block], t.mask, true from tenure.limited t where t.queue = p_queue
          union all select l.blocks, l.strip, l.buckets is not null from tenure.lease l where l.queue = p_queue) s
    cross join lateral tenure.jobs_in(s.blocks, s.strip) n
    left join lateral (select x.limits from tenure.job x where s.limited and x.id = n.job_id offset 0) j on true
    group by 2, 3;
  return true;
end $$;

-- lock_bound_alone: waits until no enqueue holds the bound, 5 s at most, a little at a time: as admit does. False: there is no bound. Errors: 55P03.
create or replace function tenure.lock_bound_alone(p_queue text) returns boolean
language plpgsql set lock_timeout = '100ms' as $$
declare
  v_until constant timestamptz := clock_timestamp() + interval '5 seconds';
begin
  loop
    begin
      perform from tenure.queue_bound b where b.queue = p_queue for update;
      return found;
    exception when lock_not_available then
      if clock_timestamp() >= v_until then
        raise;
      end if;
    end;
  end loop;
end $$;

-- remove_queue_bound: the queue takes what comes. False: it had no bound. Locks: as set_queue_bound. A sequence that a refused enqueue's open transaction still holds is left, and
-- says nothing any more.
create or replace function tenure.remove_queue_bound(p_queue text) returns boolean
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp set lock_timeout = '5s' as $$
declare
  v_n bigint;
  v_name text;
begin
  perform tenure.lock_bound_alone(p_queue);
  delete from tenure.queue_bound b where b.queue = p_queue returning b.n into v_n;
  if v_n is null then
    return false;
  end if;
  perform set_config('lock_timeout', '100ms', true);
  foreach v_name in array array['refused_', 'full_'] loop
    begin
      execute format('drop sequence tenure.%I', v_name || v_n);
    exception when lock_not_available then
      null;
    end;
  end loop;
  delete from tenure.queue_room r where r.queue = p_queue;
  delete from tenure.queue_member m where m.queue = p_queue;
  return true;
end $$;

-- queue_bounds: the bounds that are set, with how many jobs are counted now (some may have ended since), and how many were refused and dropped. Reads only.
create or replace function tenure.queue_bounds() returns table (queue text, jobs integer, key_jobs integer, policy text, wait_ms integer, counted bigint, refused bigint, dropped bigint, set_at timestamptz)
language sql stable security definer set search_path = pg_catalog, tenure, pg_temp as $$
  select b.queue, b.jobs, b.key_jobs, b.policy, b.wait_ms, tenure.members(b.queue, ''), coalesce(pg_sequence_last_value(format('tenure.%I', 'refused_' || b.n)::regclass), 0),
         (select coalesce(sum(r.dropped), 0)::bigint from tenure.queue_room r where r.queue = b.queue), b.set_at
  from tenure.queue_bound b order by b.queue
$$;
