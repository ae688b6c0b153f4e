-- cancel_many: one batch of the cancel of a selection. The caller repeats it, each time in a transaction of its own, with the place where the batch
-- before stopped, until there is none; and from the start until nothing was left to do and nobody was in the way, because jobs move meanwhile.
-- Transition: later, held, limited, ready -> outcome (cancelled); a job that runs is asked for through its worker (cancel_request).
-- Parameters: p_statuses of the jobs (scheduled, retrying, snoozed, held, available, running); p_queue, p_kind (null: any); p_before: enqueued
-- before this instant (null: whenever); p_place and p_after: what the batch before returned (null: from the start); p_limit jobs, about.
-- Returns one row: jobs cancelled, jobs asked for, jobs of the selection that were left because somebody is just changing them (busy), and where
-- it stopped; place is null at the end.
-- Locks: single rows of one of later, held, limited or ready in the order of their keys, or of lease FOR KEY SHARE, skipping what others hold. It stops
-- after 200 ms or 100,000 rows, whatever the selection meets, so that it may be no part of a longer transaction.
create or replace function tenure.cancel_many(p_statuses text[], p_queue text, p_kind text, p_before timestamptz,
                                   p_place text default null, p_after text[] default null, p_limit integer default 2000,
                                   out cancelled bigint, out requested bigint, out busy bigint, out place text, out after text[])
language plpgsql security definer
set search_path = pg_catalog, tenure, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set lock_timeout = '5s' as $$
declare
  c_place constant text := coalesce(p_place, 'later');
  c_end_at constant timestamptz := clock_timestamp() + interval '200 milliseconds';
begin
  if p_statuses is null or not p_statuses <@ array['scheduled', 'retrying', 'snoozed', 'held', 'available', 'running'] then
    perform tenure.refuse('TN002', format('jobs in the states %s cannot be cancelled', p_statuses),
      'Name some of scheduled, retrying, snoozed, held, available and running.');
  end if;
  cancelled := 0;
  requested := 0;
  busy := 0;
  if c_place = 'later' and p_statuses && array['scheduled', 'retrying', 'snoozed'] then
    select s.jobs, s.busy, s.after into cancelled, busy, after
      from tenure.cancel_later(p_statuses, p_queue, p_kind, p_before, p_after, p_limit, c_end_at) s;
  elsif c_place = 'held' and 'held' = any(p_statuses) then
    select s.jobs, s.busy, s.after into cancelled, busy, after from tenure.cancel_held(p_queue, p_kind, p_before, p_after, p_limit, c_end_at) s;
  elsif c_place = 'limited' and 'held' = any(p_statuses) then
    select s.jobs, s.busy, s.after into cancelled, busy, after from tenure.cancel_limited(p_queue, p_kind, p_before, p_after, p_limit, c_end_at) s;
  elsif c_place = 'ready' and 'available' = any(p_statuses) then
    select s.jobs, s.busy, s.after into cancelled, busy, after from tenure.cancel_ready(p_queue, p_kind, p_before, p_after, p_limit, c_end_at) s;
  elsif c_place = 'lease' and 'running' = any(p_statuses) then
    select s.jobs, s.busy, s.after into requested, busy, after from tenure.cancel_leased(p_queue, p_kind, p_before, p_after, p_limit, c_end_at) s;
  elsif c_place not in ('later', 'held', 'limited', 'ready', 'lease') then
    perform tenure.refuse('TN002', format('%L is no place where jobs stand', c_place), 'Pass what the batch before returned, or null.');
  end if;
  -- Jobs go from later and held to ready, and from there to lease: whoever follows them meets each.
  place := case when after is not null then c_place
                else (array['held', 'limited', 'ready', 'lease'])[array_position(array['later', 'held', 'limited', 'ready'], c_place)] end;
end $$;

-- cancel_rows_max: rows that a batch reads at most. Each is compared on its own, so that the time is looked at also where the selection meets little.
create or replace function tenure.cancel_rows_max() returns integer
language sql immutable as $$ select 100000 $$;

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

-- end_cancelled: their outcomes. The statistics learn of all of a batch together.
create or replace function tenure.end_cancelled(p_jobs bigint[], p_attempt smallint) returns void
language plpgsql as $$
begin
  insert into tenure.outcome (job_id, state, attempt, finished_at) select u.job, 'x', p_attempt, clock_timestamp() from unnest(p_jobs) as u(job);
end $$;

create or replace function tenure.cancel_later(p_statuses text[], p_queue text, p_kind text, p_before timestamptz, p_after text[], p_limit integer,
                                    p_end_at timestamptz, out jobs bigint, out busy bigint, out after text[])
language plpgsql as $$
declare
  v_reasons constant "char"[] := array(select r.reason from (values ('scheduled', 's'::"char"), ('retrying', 'r'), ('snoozed', 'z')) as r(status, reason)
                                       where r.status = any(p_statuses));
  v_row record;
  v_later tenure.later;
  v_chosen record;
  v_ended bigint[] := '{}';
begin
  jobs := 0;
  busy := 0;
  for v_row in
    select t.block, t.id, t.reason, t.queue, t.kind, t.mask from tenure.later t
    where (t.block, t.id) > (coalesce(p_after[1]::bigint, -1), coalesce(p_after[2]::bigint, -1))
    order by t.block, t.id limit tenure.cancel_rows_max()
  loop
    if v_row.reason = any(v_reasons) and (p_queue is null or v_row.queue = p_queue) and (p_kind is null or v_row.kind = p_kind) then
      select t.* into v_later from tenure.later t where t.block = v_row.block and t.id = v_row.id for update skip locked;
      if found then
        v_chosen := tenure.chosen_jobs(v_later.block, v_later.mask, p_before);
        perform tenure.leave_later(v_later, v_chosen.mask);
        perform tenure.end_cancelled(v_chosen.jobs, v_later.attempt);
        v_ended := v_ended || v_chosen.jobs;
        jobs := cardinality(v_ended);
      elsif exists (select from tenure.later t where t.block = v_row.block and t.id = v_row.id) then
        busy := busy + cardinality((tenure.chosen_jobs(v_row.block, v_row.mask, p_before)).jobs);
      end if;
    end if;
    after := array[v_row.block, v_row.id]::text[];
    exit when jobs >= p_limit or clock_timestamp() > p_end_at;
  end loop;
  perform tenure.note_cancelled(v_ended);
end $$;

create or replace function tenure.cancel_held(p_queue text, p_kind text, p_before timestamptz, p_after text[], p_limit integer, p_end_at timestamptz,
                                   out jobs bigint, out busy bigint, out after text[])
language plpgsql as $$
declare
  v_row record;
  v_held tenure.held;
  v_chosen record;
  v_ended bigint[] := '{}';
begin
  jobs := 0;
  busy := 0;
  for v_row in
    select h.block, h.id, h.queue, h.kind, h.mask from tenure.held h
    where (h.block, h.id) > (coalesce(p_after[1]::bigint, -1), coalesce(p_after[2]::bigint, -1))
    order by h.block, h.id limit tenure.cancel_rows_max()
  loop
    if (p_queue is null or v_row.queue = p_queue) and (p_kind is null or v_row.kind = p_kind) then
      select h.* into v_held from tenure.held h where h.block = v_row.block and h.id = v_row.id for update skip locked;
      if found then
        v_chosen := tenure.chosen_jobs(v_held.block, v_held.mask, p_before);
        perform tenure.leave_held(v_held, v_chosen.mask);
        perform tenure.end_cancelled(v_chosen.jobs, v_held.attempt);
        v_ended := v_ended || v_chosen.jobs;
        jobs := cardinality(v_ended);
      elsif exists (select from tenure.held h where h.block = v_row.block and h.id = v_row.id) then
        busy := busy + cardinality((tenure.chosen_jobs(v_row.block, v_row.mask, p_before)).jobs);
      end if;
    end if;
    after := array[v_row.block, v_row.id]::text[];
    exit when jobs >= p_limit or clock_timestamp() > p_end_at;
  end loop;
  perform tenure.note_cancelled(v_ended);
end $$;

create or replace function tenure.cancel_limited(p_queue text, p_kind text, p_before timestamptz, p_after text[], p_limit integer, p_end_at timestamptz,
                                      out jobs bigint, out busy bigint, out after text[])
language plpgsql as $$
declare
  v_row record;
  v_limited tenure.limited;
  v_chosen record;
  v_ended bigint[] := '{}';
begin
  jobs := 0;
  busy := 0;
  for v_row in
    select l.id, l.queue, l.kind, l.block, l.mask from tenure.limited l
    where l.id > coalesce(p_after[1]::bigint, -1) order by l.id limit tenure.cancel_rows_max()
  loop
    if (p_queue is null or v_row.queue = p_queue) and (p_kind is null or v_row.kind = p_kind) then
      select l.* into v_limited from tenure.limited l where l.id = v_row.id for update skip locked;
      if found then
        v_chosen := tenure.chosen_jobs(v_limited.block, v_limited.mask, p_before);
        perform tenure.leave_limited(v_limited, v_chosen.mask);
        perform tenure.end_cancelled(v_chosen.jobs, v_limited.attempt);
        v_ended := v_ended || v_chosen.jobs;
        jobs := cardinality(v_ended);
      elsif exists (select from tenure.limited l where l.id = v_row.id) then
        busy := busy + cardinality((tenure.chosen_jobs(v_row.block, v_row.mask, p_before)).jobs);
      end if;
    end if;
    after := array[v_row.id]::text[];
    exit when jobs >= p_limit or clock_timestamp() > p_end_at;
  end loop;
  perform tenure.note_cancelled(v_ended);
end $$;

-- cancel_ready walks one queue when one is named: its rows stand side by side.
create or replace function tenure.cancel_ready(p_queue text, p_kind text, p_before timestamptz, p_after text[], p_limit integer, p_end_at timestamptz,
                                    out jobs bigint, out busy bigint, out after text[])
language plpgsql as $$
declare
  v_last_queue constant text := coalesce(p_queue, (select r.queue from tenure.ready r order by r.queue desc limit 1));
  v_row record;
  v_ready tenure.ready;
  v_chosen record;
  v_ended bigint[] := '{}';
begin
  jobs := 0;
  busy := 0;
  for v_row in
    select r.queue, r.priority, r.id, r.kind, r.block, r.mask from tenure.ready r
    where (r.queue, r.priority, r.id) > (coalesce(p_after[1], p_queue, ''), coalesce(p_after[2]::smallint, -2::smallint), coalesce(p_after[3]::bigint, -1))
      and r.queue <= v_last_queue
    order by r.queue, r.priority, r.id limit tenure.cancel_rows_max()
  loop
    if p_kind is null or v_row.kind = p_kind then
      select r.* into v_ready from tenure.ready r
        where r.queue = v_row.queue and r.priority = v_row.priority and r.id = v_row.id for update skip locked;
      if found then
        v_chosen := tenure.chosen_jobs(v_ready.block, v_ready.mask, p_before);
        perform tenure.leave_ready(v_ready, v_chosen.mask);
        perform tenure.end_cancelled(v_chosen.jobs, v_ready.attempt);
        v_ended := v_ended || v_chosen.jobs;
        jobs := cardinality(v_ended);
      elsif exists (select from tenure.ready r where r.queue = v_row.queue and r.priority = v_row.priority and r.id = v_row.id) then
        busy := busy + cardinality((tenure.chosen_jobs(v_row.block, v_row.mask, p_before)).jobs);
      end if;
    end if;
    after := array[v_row.queue, v_row.priority::text, v_row.id::text];
    exit when jobs >= p_limit or clock_timestamp() > p_end_at;
  end loop;
  perform tenure.note_cancelled(v_ended);
end $$;

-- cancel_leased takes a lock that the end of an attempt waits for: it then sees the request, and no further attempt begins. Where somebody is just
-- ending one the request is made without; the next pass meets the job where it waits, or maintenance does. It counts those that were not asked for before,
-- so that a pass over jobs whose workers take their time ends.
create or replace function tenure.cancel_leased(p_queue text, p_kind text, p_before timestamptz, p_after text[], p_limit integer, p_end_at timestamptz,
                                     out jobs bigint, out busy bigint, out after text[])
language plpgsql as $$
declare
  v_row record;
  v_jobs bigint[];
  v_busy bigint[];
begin
  jobs := 0;
  busy := 0;
  for v_row in
    select l.id, l.worker_id, l.queue, l.kind from tenure.lease l
    where l.id > coalesce(p_after[1]::bigint, -1) order by l.id limit tenure.cancel_rows_max()
  loop
    if (p_queue is null or v_row.queue = p_queue) and (p_kind is null or v_row.kind = p_kind) then
      perform from tenure.lease l where l.id = v_row.id for key share skip locked;
      v_jobs := array(
        select n.job_id from tenure.lease l cross join lateral tenure.jobs_in(l.blocks, l.strip) n
        where l.id = v_row.id and (p_before is null or exists (select from tenure.job j where j.id = n.job_id and j.created_at < p_before))
          and not exists (select from tenure.cancel_request c where c.job_id = n.job_id and c.worker_id = v_row.worker_id)
        order by n.job_id);
      if v_jobs <> '{}' then
        v_busy := tenure.request_cancels(v_jobs, v_row.worker_id, p_end_at);
        jobs := jobs + cardinality(v_jobs) - cardinality(v_busy);
        busy := busy + cardinality(v_busy);
        perform tenure.tell(v_row.worker_id, 'cancel ' || u.job) from unnest(v_jobs) as u(job) where u.job <> all(v_busy);
      end if;
    end if;
    after := array[v_row.id]::text[];
    exit when jobs >= p_limit or clock_timestamp() > p_end_at;
  end loop;
end $$;

-- request_cancels: asks for these jobs, and returns those that were left since somebody else is just asking for them and has not committed: the ends
-- of all leases that the caller has locked would wait with it. Whom the wait was for is not said, so the halves are tried, until p_end_at.
create or replace function tenure.request_cancels(p_jobs bigint[], p_worker bigint, p_end_at timestamptz) returns bigint[]
language plpgsql set lock_timeout = '5ms' as $$
declare
  c_half constant integer := cardinality(p_jobs) / 2;
begin
  insert into tenure.cancel_request (job_id, worker_id) select u.job, p_worker from unnest(p_jobs) as u(job) order by u.job
    on conflict (job_id) do update set worker_id = excluded.worker_id;
  return '{}';
exception when lock_not_available then
  if c_half = 0 or clock_timestamp() > p_end_at then
    return p_jobs;
  end if;
  return tenure.request_cancels(p_jobs[:c_half], p_worker, p_end_at) || tenure.request_cancels(p_jobs[c_half + 1:], p_worker, p_end_at);
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
    select 'held', array[t.block], t.mask from tenure.limited t
      where 'held' = any(p_statuses) and (p_queue is null or t.queue = p_queue) and (p_kind is null or t.kind = p_kind)
    union all
    select 'running', l.blocks, l.strip from tenure.lease l
      where 'running' = any(p_statuses) and (p_queue is null or l.queue = p_queue) and (p_kind is null or l.kind = p_kind))
  select b.status, sum(case when p_before is null then bit_count(b.strip)
                            else (select count(*) from tenure.jobs_in(b.blocks, b.strip) n join tenure.job j on j.id = n.job_id where j.created_at < p_before) end)::bigint
  from bundle b where b.status = any(p_statuses)
  group by b.status order by b.status
$$;
