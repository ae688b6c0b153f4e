-- cancel: a job that waits ends at once (-> outcome, cancelled); one that runs is asked to, through its worker.
-- Returns 'cancelled', 'requested', or where it stands already: 'completed', 'already cancelled', 'dead'. Null: no such job.
-- Locks: one row of ready, later or held, or none. A job moves between those tables; it is looked for again a few times. The leases come last: to look
-- through them costs more than the rest.
create or replace function tenure.cancel(p_job bigint) returns text
language plpgsql security definer
set search_path = pg_catalog, tenure, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set lock_timeout = '5s' as $$
begin
  return tenure.cancel_job(p_job);
end $$;

-- cancel_job: what cancel and cancel_settled have in common. How long a lock is waited for is theirs.
create or replace function tenure.cancel_job(p_job bigint) returns text
language plpgsql as $$
declare
  c_looks constant integer := 10;
  v_worker bigint;
  v_state "char";
begin
  for i in 1 .. c_looks loop
    if tenure.cancel_waiting(p_job) then
      return 'cancelled';
    end if;
    if exists (select from tenure.dead_letter d where d.job_id = p_job) then
      return 'dead';
    end if;
    select o.state into v_state from tenure.outcome o where o.job_id = p_job;
    if found then
      return case v_state when 'c' then 'completed' else 'already cancelled' end;
    end if;
    v_worker := (tenure.lease_of(p_job)).worker_id;
    if v_worker is not null then
      -- A look first: whoever asks again holds no lock on the request that rescue would meet.
      if not exists (select from tenure.cancel_request c where c.job_id = p_job and c.worker_id = v_worker) then
        insert into tenure.cancel_request (job_id, worker_id) values (p_job, v_worker)
          on conflict (job_id) do update set worker_id = excluded.worker_id;
      end if;
      perform tenure.tell(v_worker, 'cancel ' || p_job);
      return 'requested';
    end if;
    if not exists (select from tenure.job j where j.id = p_job) then
      return null;
    end if;
    -- Enqueued, and yet in none of the tables: it is just moving.
  end loop;
  perform tenure.refuse('TN005', format('job %s moves too fast to be caught', p_job), 'Try again.');
end $$;

-- cancel_waiting: a job that waits ends. False: it does not wait. Locks: one row of ready, later or held.
create or replace function tenure.cancel_waiting(p_job bigint) returns boolean
language plpgsql as $$
declare
  v_attempt constant smallint := tenure.take_waiting(p_job);
begin
  if v_attempt is null then
    return false;
  end if;
  insert into tenure.outcome (job_id, state, attempt, finished_at) values (p_job, 'x', v_attempt, clock_timestamp());
  perform tenure.note_cancelled(array[p_job]);
  return true;
end $$;

-- cancel_settled: the second look of whoever got 'requested', in a transaction of its own after that of cancel. A verb that was ending the attempt
-- meanwhile did not see the request: it is waited for, and the job that waits again is cancelled. After 'requested' from here no further attempt
-- begins. Returns what cancel returns. Errors: TN005 when somebody is just cancelling or ending the job, and nobody's request is there yet.
-- Locks: the job's lease row FOR KEY SHARE, then those of cancel, none waited for longer than a second, or a quarter of the caller's
-- statement_timeout: the answer is worth more than the wait.
create or replace function tenure.cancel_settled(p_job bigint) returns text
language plpgsql security definer
set search_path = pg_catalog, tenure, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set lock_timeout = '1s' as $$
declare
  c_looks constant integer := 10;
  v_timeout_ms constant bigint := (select s.setting::bigint from pg_settings s where s.name = 'statement_timeout');
  v_lease bigint;
  v_answer text;
begin
  if v_timeout_ms between 1 and 3999 then
    perform set_config('lock_timeout', greatest(v_timeout_ms / 4, 1)::text, true);
  end if;
  for i in 1 .. c_looks loop
    v_lease := (tenure.lease_of(p_job)).id;
    perform from tenure.lease l where l.id = v_lease for key share;
    v_answer := tenure.cancel_job(p_job);
    exit when v_answer <> 'requested'
      or exists (select from tenure.lease l where l.id = v_lease and tenure.slot_of(l.blocks, l.strip, p_job) is not null);
  end loop;
  return v_answer;
exception when lock_not_available then
  -- A handler's open transaction holds its lease: it commits the end, or the attempt goes on, and the request is seen by now. If there is one: who
  -- makes it may still roll back, and then nobody has asked.
  if exists (select from tenure.cancel_request c where c.job_id = p_job) then
    return 'requested';
  end if;
  perform tenure.refuse('TN005', format('somebody is just cancelling or ending job %s', p_job), 'Try again when that transaction has ended.');
end $$;

-- take_waiting: takes one job out of ready, later, held or limited. Returns the attempts that it has used; null: it does not wait there.
create or replace function tenure.take_waiting(p_job bigint) returns smallint
language plpgsql as $$
declare
  v_block bigint := p_job >> 7;
  v_bit integer := (p_job & 127)::integer;
  v_mask bit(128) := tenure.mask_of(p_job);
  v_job tenure.job;
  v_ready tenure.ready;
  v_later tenure.later;
  v_held tenure.held;
  v_limited tenure.limited;
begin
  select j.* into v_job from tenure.job j where j.id = p_job;
  select r.* into v_ready from tenure.ready r
    where r.queue = v_job.queue and r.priority = v_job.priority and r.id = v_block and get_bit(r.mask, v_bit) = 1 for update;
  if not found then
    select r.* into v_ready from tenure.ready r where r.block = v_block and r.id <> r.block and get_bit(r.mask, v_bit) = 1 for update;
  end if;
  if found then
    perform tenure.leave_ready(v_ready, v_mask);
    return v_ready.attempt;
  end if;
  select t.* into v_later from tenure.later t where t.block = v_block and get_bit(t.mask, v_bit) = 1 for update;
  if found then
    perform tenure.leave_later(v_later, v_mask);
    return v_later.attempt;
  end if;
  select h.* into v_held from tenure.held h where h.block = v_block and get_bit(h.mask, v_bit) = 1 for update;
  if found then
    perform tenure.leave_held(v_held, v_mask);
    return v_held.attempt;
  end if;
  if v_job.limits is not null then
    v_limited := tenure.limited_row_of(p_job);
    if v_limited.id is not null then
      perform tenure.leave_limited(v_limited, v_mask);
      return v_limited.attempt;
    end if;
  end if;
  return null;
end $$;

-- limited_row_of: the row of limited in which a job waits, locked; all null: it waits in none. What came back has a row of another number than its block's.
create or replace function tenure.limited_row_of(p_job bigint) returns tenure.limited
language plpgsql as $$
declare
  v_block constant bigint := p_job >> 7;
  v_bit constant integer := (p_job & 127)::integer;
  v_limited tenure.limited;
begin
  select l.* into v_limited from tenure.limited l where l.id = v_block and get_bit(l.mask, v_bit) = 1 for update;
  if not found then
    select l.* into v_limited from tenure.limited l where l.block = v_block and l.id <> l.block and get_bit(l.mask, v_bit) = 1 for update;
  end if;
  return v_limited;
end $$;

-- leave_ready, leave_later, leave_held, leave_limited: take jobs out of a row that the caller has locked; the row goes with its last job.
create or replace function tenure.leave_ready(p_row tenure.ready, p_gone bit(128)) returns void
language plpgsql as $$
begin
  if p_row.mask = p_gone then
    delete from tenure.ready r where r.queue = p_row.queue and r.priority = p_row.priority and r.id = p_row.id;
  elsif bit_count(p_gone) > 0 then
    update tenure.ready r set mask = r.mask & ~ p_gone where r.queue = p_row.queue and r.priority = p_row.priority and r.id = p_row.id;
  end if;
end $$;

create or replace function tenure.leave_later(p_row tenure.later, p_gone bit(128)) returns void
language plpgsql as $$
begin
  if p_row.mask = p_gone then
    delete from tenure.later t where t.block = p_row.block and t.id = p_row.id;
  elsif bit_count(p_gone) > 0 then
    update tenure.later t set mask = t.mask & ~ p_gone where t.block = p_row.block and t.id = p_row.id;
  end if;
end $$;

create or replace function tenure.leave_held(p_row tenure.held, p_gone bit(128)) returns void
language plpgsql as $$
begin
  if p_row.mask = p_gone then
    delete from tenure.held h where h.block = p_row.block and h.id = p_row.id;
  elsif bit_count(p_gone) > 0 then
    update tenure.held h set mask = h.mask & ~ p_gone where h.block = p_row.block and h.id = p_row.id;
  end if;
end $$;

create or replace function tenure.leave_limited(p_row tenure.limited, p_gone bit(128)) returns void
language plpgsql as $$
begin
  if p_row.mask = p_gone then
    delete from tenure.limited l where l.id = p_row.id;
    if p_row.place <> p_row.id then
      -- It may have been the head of an ordered line.
      perform tenure.free_places(array[x.order_bucket], p_row.queue) from tenure.line x where x.digest = p_row.line and x.order_bucket is not null;
    end if;
  elsif bit_count(p_gone) > 0 then
    update tenure.limited l set mask = l.mask & ~ p_gone where l.id = p_row.id;
  end if;
end $$;

-- take_cancel_requests: which of these jobs somebody wants cancelled. Their requests are removed; one that somebody holds counts all the same (a
-- committed wish is a wish, whoever looks after it at the moment), and follow_cancels removes it once the job has ended.
create or replace function tenure.take_cancel_requests(p_jobs bigint[]) returns bigint[]
language plpgsql as $$
declare
  v_jobs bigint[] := array(select c.job_id from tenure.cancel_request c where c.job_id = any(p_jobs) order by c.job_id);
begin
  if v_jobs <> '{}' then
    with free as materialized (
      select c.job_id from tenure.cancel_request c where c.job_id = any(v_jobs) order by c.job_id for update skip locked)
    delete from tenure.cancel_request c where c.job_id = any(array(select f.job_id from free f));
  end if;
  return v_jobs;
end $$;

-- cancel_wanted: of these jobs, which have just left this lease without an end of their own, those that somebody wants cancelled. They are
-- cancelled with that.
create or replace function tenure.cancel_wanted(p_lease tenure.lease, p_jobs bigint[]) returns bigint[]
language plpgsql as $$
declare
  v_jobs bigint[];
begin
  v_jobs := tenure.take_cancel_requests(p_jobs);
  insert into tenure.outcome (job_id, state, attempt, worker_id, lease_id, started_at, finished_at)
    select u.job, 'x', p_lease.attempt, p_lease.worker_id, p_lease.id, p_lease.leased_at, greatest(clock_timestamp(), p_lease.leased_at)
    from unnest(v_jobs) as u(job);
  perform tenure.note_ends(p_lease.queue, p_lease.kind, cardinality(v_jobs));
  return v_jobs;
end $$;

-- follow_cancels: a request is made while its job's attempt ends, or its worker gives the job back: it must not be lost with that. A job
-- that waits again is cancelled, one that runs elsewhere is asked there, and what is left of ended jobs is removed.
-- It stops after a tenth of a second, and goes on from there at the next call. Returns the number of jobs that it cancelled.
create or replace function tenure.follow_cancels(p_limit integer default 1000) returns bigint
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
  v_end_at constant timestamptz := clock_timestamp() + interval '100 milliseconds';
  v_request record;
  v_place bigint := 0;
  v_cancelled bigint := 0;
begin
  for v_request in
    select c.job_id, c.worker_id from tenure.cancel_request c
    where c.job_id > (select d.place from tenure.duty d where d.name = 'cancels') order by c.job_id limit p_limit
  loop
    begin
      v_cancelled := v_cancelled + tenure.follow_cancel(v_request.job_id, v_request.worker_id)::integer;
    exception when others then
      raise warning 'tenure: the request to cancel job % could not be followed: % (%)', v_request.job_id, sqlerrm, sqlstate;
    end;
    p_limit := p_limit - 1;
    if p_limit = 0 or clock_timestamp() > v_end_at then
      v_place := v_request.job_id;
      exit;
    end if;
  end loop;
  update tenure.duty d set place = v_place where d.name = 'cancels' and d.place <> v_place;
  return v_cancelled;
end $$;

-- follow_cancel: one request. What costs least is asked first: most jobs have ended, or still run where they were asked. Was it cancelled here?
create or replace function tenure.follow_cancel(p_job bigint, p_worker bigint) returns boolean
language plpgsql as $$
declare
  v_worker bigint;
begin
  if exists (select from tenure.outcome o where o.job_id = p_job) or exists (select from tenure.dead_letter d where d.job_id = p_job)
     or not exists (select from tenure.job j where j.id = p_job) then
    perform tenure.take_cancel_requests(array[p_job]);
    return false;
  end if;
  if exists (select from tenure.lease l
             where l.worker_id = p_worker and p_job >> 7 = any(l.blocks) and tenure.slot_of(l.blocks, l.strip, p_job) is not null) then
    return false;
  end if;
  if tenure.cancel_waiting(p_job) then
    perform tenure.take_cancel_requests(array[p_job]);
    return true;
  end if;
  v_worker := (tenure.lease_of(p_job)).worker_id;
  if v_worker is not null then
    update tenure.cancel_request c set worker_id = v_worker where c.job_id = p_job and c.worker_id <> v_worker;
    perform tenure.tell(v_worker, 'cancel ' || p_job);
  end if;
  return false;
end $$;
