-- cancel_many: one batch of the cancel of a selection. The caller repeats it, each time in a transaction of its own, with the place where the batch
-- before stopped, until there is none; and from the start until nothing was left to do, because jobs move meanwhile.
-- Transition: later, held, ready -> outcome (cancelled); a job that runs is asked for through its worker (cancel_request).
-- Parameters: p_statuses of the jobs (scheduled, retrying, snoozed, held, available, running); p_queue, p_kind (null: any); p_before: enqueued
-- before this instant (null: whenever); p_place and p_after: what the batch before returned (null: from the start); p_limit jobs, about.
-- Returns one row: jobs cancelled, jobs asked for, and where it stopped; place is null at the end.
-- Locks: rows of one of later, held or ready in the order of their keys, or of lease FOR KEY SHARE, skipping what others hold. No longer than
-- about 200 ms, so that it may be no part of a longer transaction.
create or replace function tenure.cancel_many(p_statuses text[], p_queue text, p_kind text, p_before timestamptz,
                                   p_place text default null, p_after text[] default null, p_limit integer default 2000,
                                   out cancelled bigint, out requested bigint, out place text, out after text[])
language plpgsql security definer
set search_path = pg_catalog, tenure, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set lock_timeout = '5s' as $$
declare
  c_place constant text := coalesce(p_place, 'later');
  v_step record;
begin
  if p_statuses is null or not p_statuses <@ array['scheduled', 'retrying', 'snoozed', 'held', 'available', 'running'] then
    perform tenure.refuse('TN002', format('jobs in the states %s cannot be cancelled', p_statuses),
      'Name some of scheduled, retrying, snoozed, held, available and running.');
  end if;
  case c_place
    when 'later' then
      v_step := tenure.cancel_later(p_statuses, p_queue, p_kind, p_before, p_after, p_limit);
    when 'held' then
      v_step := tenure.cancel_held(p_queue, p_kind, p_before, p_after, case when 'held' = any(p_statuses) then p_limit else 0 end);
    when 'ready' then
      v_step := tenure.cancel_ready(p_queue, p_kind, p_before, p_after, case when 'available' = any(p_statuses) then p_limit else 0 end);
    when 'lease' then
      v_step := tenure.cancel_leased(p_queue, p_kind, p_before, p_after, case when 'running' = any(p_statuses) then p_limit else 0 end);
    else
      perform tenure.refuse('TN002', format('%L is no place where jobs stand', c_place), 'Pass what the batch before returned, or null.');
  end case;
  cancelled := case c_place when 'lease' then 0 else v_step.jobs end;
  requested := case c_place when 'lease' then v_step.jobs else 0 end;
  after := v_step.after;
  -- Jobs go from later and held to ready, and from there to lease: whoever follows them meets each.
  place := case when after is not null then c_place
                else (array['held', 'ready', 'lease'])[array_position(array['later', 'held', 'ready'], c_place)] end;
end $$;

-- chosen_jobs: those of a bundle that were enqueued before p_before, and their mask.
create or replace function tenure.chosen_jobs(p_block bigint, p_mask bit(128), p_before timestamptz, out jobs bigint[], out mask bit(128))
language plpgsql stable as $$
begin
  if p_before is null then
    mask := p_mask;
    jobs := array(select n.job_id from tenure.jobs_in(array[p_block], p_mask) n);
    return;
  end if;
  select coalesce(array_agg(j.id), '{}'), coalesce(bit_or(tenure.mask_of(j.id)), p_mask & ~ p_mask) into jobs, mask
    from tenure.job j
    where j.id >= p_block * 128 and j.id < p_block * 128 + 128 and get_bit(p_mask, (j.id & 127)::integer) = 1 and j.created_at < p_before;
end $$;

create or replace function tenure.end_cancelled(p_jobs bigint[], p_attempt smallint) returns void
language sql as $$
  insert into tenure.outcome (job_id, state, attempt, finished_at) select u.job, 'x', p_attempt, clock_timestamp() from unnest(p_jobs) as u(job)
$$;

create or replace function tenure.cancel_later(p_statuses text[], p_queue text, p_kind text, p_before timestamptz, p_after text[], p_limit integer,
                                    out jobs bigint, out after text[])
language plpgsql as $$
declare
  v_reasons constant "char"[] := array(select r.reason from (values ('scheduled', 's'::"char"), ('retrying', 'r'), ('snoozed', 'z')) as r(status, reason)
                                       where r.status = any(p_statuses));
  v_end_at constant timestamptz := clock_timestamp() + interval '200 milliseconds';
  v_row record;
  v_chosen record;
begin
  jobs := 0;
  if v_reasons = '{}' then
    return;
  end if;
  for v_row in
    select t.block, t.id, t.mask, t.attempt from tenure.later t
    where (t.block, t.id) > (coalesce(p_after[1]::bigint, -1), coalesce(p_after[2]::bigint, -1)) and t.reason = any(v_reasons)
      and (p_queue is null or t.queue = p_queue) and (p_kind is null or t.kind = p_kind)
    order by t.block, t.id limit p_limit for update skip locked
  loop
    v_chosen := tenure.chosen_jobs(v_row.block, v_row.mask, p_before);
    if v_chosen.mask = v_row.mask then
      delete from tenure.later t where t.block = v_row.block and t.id = v_row.id;
    elsif v_chosen.jobs <> '{}' then
      update tenure.later t set mask = t.mask & ~ v_chosen.mask where t.block = v_row.block and t.id = v_row.id;
    end if;
    perform tenure.end_cancelled(v_chosen.jobs, v_row.attempt);
    jobs := jobs + cardinality(v_chosen.jobs);
    after := array[v_row.block, v_row.id]::text[];
    exit when jobs >= p_limit or clock_timestamp() > v_end_at;
  end loop;
end $$;

create or replace function tenure.cancel_held(p_queue text, p_kind text, p_before timestamptz, p_after text[], p_limit integer,
                                   out jobs bigint, out after text[])
language plpgsql as $$
declare
  v_end_at constant timestamptz := clock_timestamp() + interval '200 milliseconds';
  v_row record;
  v_chosen record;
begin
  jobs := 0;
  for v_row in
    select h.block, h.id, h.mask, h.attempt from tenure.held h
    where (h.block, h.id) > (coalesce(p_after[1]::bigint, -1), coalesce(p_after[2]::bigint, -1))
      and (p_queue is null or h.queue = p_queue) and (p_kind is null or h.kind = p_kind)
    order by h.block, h.id limit p_limit for update skip locked
  loop
    v_chosen := tenure.chosen_jobs(v_row.block, v_row.mask, p_before);
    if v_chosen.mask = v_row.mask then
      delete from tenure.held h where h.block = v_row.block and h.id = v_row.id;
    elsif v_chosen.jobs <> '{}' then
      update tenure.held h set mask = h.mask & ~ v_chosen.mask where h.block = v_row.block and h.id = v_row.id;
    end if;
    perform tenure.end_cancelled(v_chosen.jobs, v_row.attempt);
    jobs := jobs + cardinality(v_chosen.jobs);
    after := array[v_row.block, v_row.id]::text[];
    exit when jobs >= p_limit or clock_timestamp() > v_end_at;
  end loop;
end $$;

-- cancel_ready walks one queue when one is named: its rows stand side by side.
create or replace function tenure.cancel_ready(p_queue text, p_kind text, p_before timestamptz, p_after text[], p_limit integer,
                                    out jobs bigint, out after text[])
language plpgsql as $$
declare
  v_end_at constant timestamptz := clock_timestamp() + interval '200 milliseconds';
  v_last_queue constant text := coalesce(p_queue, (select r.queue from tenure.ready r order by r.queue desc limit 1));
  v_row record;
  v_chosen record;
begin
  jobs := 0;
  for v_row in
    select r.queue, r.priority, r.id, r.block, r.mask, r.attempt from tenure.ready r
    where (r.queue, r.priority, r.id) > (coalesce(p_after[1], p_queue, ''), coalesce(p_after[2]::smallint, -2::smallint), coalesce(p_after[3]::bigint, -1))
      and r.queue <= v_last_queue and (p_kind is null or r.kind = p_kind)
    order by r.queue, r.priority, r.id limit p_limit for update skip locked
  loop
    v_chosen := tenure.chosen_jobs(v_row.block, v_row.mask, p_before);
    if v_chosen.mask = v_row.mask then
      delete from tenure.ready r where r.queue = v_row.queue and r.priority = v_row.priority and r.id = v_row.id;
    elsif v_chosen.jobs <> '{}' then
      update tenure.ready r set mask = r.mask & ~ v_chosen.mask where r.queue = v_row.queue and r.priority = v_row.priority and r.id = v_row.id;
    end if;
    perform tenure.end_cancelled(v_chosen.jobs, v_row.attempt);
    jobs := jobs + cardinality(v_chosen.jobs);
    after := array[v_row.queue, v_row.priority::text, v_row.id::text];
    exit when jobs >= p_limit or clock_timestamp() > v_end_at;
  end loop;
end $$;

-- cancel_leased takes a lock that the end of an attempt waits for: it then sees the request, and no further attempt begins. Where somebody is just
-- ending one the request is made without; the next pass meets the job where it waits, or maintenance does. It counts those that were not asked for before,
-- so that a pass over jobs whose workers take their time ends.
create or replace function tenure.cancel_leased(p_queue text, p_kind text, p_before timestamptz, p_after text[], p_limit integer,
                                     out jobs bigint, out after text[])
language plpgsql as $$
declare
  v_end_at constant timestamptz := clock_timestamp() + interval '200 milliseconds';
  v_row record;
  v_lease tenure.lease;
  v_jobs bigint[];
begin
  jobs := 0;
  for v_row in
    select l.id, l.worker_id, l.blocks, l.strip from tenure.lease l
    where l.id > coalesce(p_after[1]::bigint, -1) and (p_queue is null or l.queue = p_queue) and (p_kind is null or l.kind = p_kind)
    order by l.id limit p_limit
  loop
    v_lease := null;
    select l.* into v_lease from tenure.lease l where l.id = v_row.id for key share skip locked;
    continue when v_lease.id is null and not exists (select from tenure.lease l where l.id = v_row.id);
    v_jobs := array(
      select n.job_id from tenure.jobs_in(coalesce(v_lease.blocks, v_row.blocks), coalesce(v_lease.strip, v_row.strip)) n
      where (p_before is null or exists (select from tenure.job j where j.id = n.job_id and j.created_at < p_before))
        and not exists (select from tenure.cancel_request c where c.job_id = n.job_id and c.worker_id = v_row.worker_id)
      order by n.job_id);
    if v_jobs <> '{}' and tenure.request_cancels(v_jobs, v_row.worker_id) then
      jobs := jobs + cardinality(v_jobs);
      perform tenure.tell(v_row.worker_id, 'cancel ' || u.job) from unnest(v_jobs) as u(job);
    end if;
    after := array[v_row.id]::text[];
    exit when jobs >= p_limit or clock_timestamp() > v_end_at;
  end loop;
end $$;

-- request_cancels: false, and nothing was asked for, when somebody else is just asking for one of these jobs and has not committed: the ends of all
-- leases that the caller has locked would wait with it.
create or replace function tenure.request_cancels(p_jobs bigint[], p_worker bigint) returns boolean
language plpgsql set lock_timeout = '20ms' as $$
begin
  insert into tenure.cancel_request (job_id, worker_id) select u.job, p_worker from unnest(p_jobs) as u(job) order by u.job
    on conflict (job_id) do update set worker_id = excluded.worker_id;
  return true;
exception when lock_not_available then
  return false;
end $$;

-- count_jobs: how many a cancel of this selection would meet, by status. Counts bundles and not jobs unless an instant is named. Locks: none.
create or replace function tenure.count_jobs(p_statuses text[], p_queue text, p_kind text, p_before timestamptz) returns table (status text, jobs bigint)
language sql stable security definer set search_path = pg_catalog, tenure, pg_temp as $$
  with bundle as (
    select 'available' as status, array[r.block] as blocks, r.mask::bit varying as strip from tenure.ready r
      where 'available' = any(p_statuses) and (p_queue is null or r.queue = p_queue) and (p_kind is null or r.kind = p_kind)
    union all
    select case t.reason when 's' then 'scheduled' when 'r' then 'retrying' else 'snoozed' end, array[t.block], t.mask from tenure.later t
      where p_statuses && array['scheduled', 'retrying', 'snoozed'] and (p_queue is null or t.queue = p_queue) and (p_kind is null or t.kind = p_kind)
    union all
    select 'held', array[h.block], h.mask from tenure.held h
      where 'held' = any(p_statuses) and (p_queue is null or h.queue = p_queue) and (p_kind is null or h.kind = p_kind)
    union all
    select 'running', l.blocks, l.strip from tenure.lease l
      where 'running' = any(p_statuses) and (p_queue is null or l.queue = p_queue) and (p_kind is null or l.kind = p_kind))
  select b.status, sum(case when p_before is null then bit_count(b.strip)
                            else (select count(*) from tenure.jobs_in(b.blocks, b.strip) n join tenure.job j on j.id = n.job_id where j.created_at < p_before) end)::bigint
  from bundle b where b.status = any(p_statuses)
  group by b.status order by b.status
$$;
