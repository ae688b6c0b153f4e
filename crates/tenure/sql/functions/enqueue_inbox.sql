-- enqueue_inbox: turns what this transaction copied into the table inbox into jobs. Returns the ids in the order of the rows.
-- Without it the commit does the same, and nobody learns the ids: no row outlives the transaction that wrote it.
-- Transition: none -> ready or later. Rows with the same queue, kind, priority and instant share bundles.
-- Errors: TN002 for a row that enqueue would refuse; TN007 and TN005 as enqueue. Locks: none that others wait for, but those of admit for queues that are bounded; the rows of
-- inbox are this transaction's own.
create or replace function tenure.enqueue_inbox() returns setof bigint
language plpgsql security definer
set search_path = pg_catalog, tenure, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
begin
  delete from tenure.inbox_open o where o.txid = pg_current_xact_id();
  return query select unnest(tenure.take_inbox(pg_current_xact_id()));
end $$;

-- note_inbox: after each statement that writes to inbox. It notes that this transaction has rows there, once, and so has the commit look.
-- The look is at the commit, whatever SET CONSTRAINTS says of others.
create or replace function tenure.note_inbox() returns trigger
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp as $$
begin
  set constraints tenure.inbox_open_is_taken deferred;
  insert into tenure.inbox_open (txid) values (pg_current_xact_id()) on conflict do nothing;
  return null;
end $$;

-- commit_inbox: at the commit of a transaction that has written to inbox. What enqueue_inbox has not taken becomes jobs now.
create or replace function tenure.commit_inbox() returns trigger
language plpgsql security definer
set search_path = pg_catalog, tenure, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
begin
  delete from tenure.inbox_open o where o.txid = new.txid;
  if found then
    perform tenure.take_inbox(new.txid);
  end if;
  return null;
end $$;

-- take_inbox: makes jobs of the rows of one transaction, of p_limit at most, and removes them. Returns the ids in the order of the rows.
-- The rows are read three times by their key, and no payload is sorted or kept beside: that costs less than to carry them through one statement.
-- Every step is linear or a sort by what the rows share: nothing is joined by their values, and no join is a nested loop, which the planner would choose
-- for the few rows that it expects and that would take minutes for 50,000.
create or replace function tenure.take_inbox(p_txid xid8, p_limit integer default null) returns bigint[]
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off set enable_sort = off set jit = off as $$
declare
  c_bundle_jobs constant integer := 100;
  v_now timestamptz := clock_timestamp();
  v_last bigint := 9223372036854775807;
  v_alike bigint;
  v_limited boolean;
  v_bounded text[];
  v_jobs bigint[];
begin
  if p_limit is not null then
    v_last := (select max(x.n) from (select i.n from tenure.inbox i where i.txid = p_txid order by i.n limit p_limit) x);
  end if;
  -- The latest instant of its like is too late, or none is; and none at all is -infinity.
  select count(tenure.check_job(i.kind, i.queue, i.priority, i.run_at, null, i.max_attempts, i.timeout_ms)), bool_or(i.limited) into v_alike, v_limited
    from (select x.kind, x.queue, x.priority, case min(x.run_at) when '-infinity' then '-infinity' else max(x.run_at) end as run_at, x.max_attempts, x.timeout_ms, bool_or(x.limits is not null) as limited
          from tenure.inbox x where x.txid = p_txid and x.n <= v_last group by x.kind, x.queue, x.priority, x.max_attempts, x.timeout_ms) i;
  if v_limited then
    with told as materialized (
      select d.limits, tenure.check_limits(d.limits::json) as checked
      from (select distinct i.limits::text as limits from tenure.inbox i where i.txid = p_txid and i.n <= v_last and i.limits is not null) d)
    update tenure.inbox x set limits = t.checked from told t where x.txid = p_txid and x.n <= v_last and x.limits::text = t.limits;
  end if;
  perform tenure.check_payload(i.payload) from tenure.inbox i
    where i.txid = p_txid and i.n <= v_last and (octet_length(i.payload::text) > 65536 or position(E'\\u' in i.payload::text) > 0);
  -- The rows of another transaction were written under its id, and a block is drawn only by a transaction that has one of its own.
  perform pg_current_xact_id();
  if exists (select from tenure.queue_bound) then
    select tenure.admit(array_agg(i.queue), array_agg(i.key), array_agg(i.jobs)) into v_bounded
      from (select x.queue, x.limits ->> 'fair' as key, count(*) as jobs from tenure.inbox x where x.txid = p_txid and x.n <= v_last group by 1, 2) i
      where exists (select from tenure.queue_bound b where b.queue = i.queue);
  end if;
  with placed as (
    select i.n, i.queue, i.kind, i.priority, i.run_at, i.limits::text as limits,
           -- What keeps an order has a bundle of its own: by their ids they follow one another as they came, whatever their kinds and priorities.
           case when i.limits ->> 'order' is null then row_number() over (partition by i.queue, i.kind, i.priority, i.run_at, i.limits::text order by i.n) - 1 else 0 end as place
    from tenure.inbox i where i.txid = p_txid and i.n <= v_last),
  -- Bundles are counted in the order in which the rows are sorted already.
  bundled as materialized (
    select p.n, p.place % c_bundle_jobs as place,
           case when p.place % c_bundle_jobs = 0 then p.queue end as queue, case when p.place % c_bundle_jobs = 0 then p.kind end as kind,
           p.priority, p.run_at, p.limits,
           count(*) filter (where p.place % c_bundle_jobs = 0)
             over (order by p.queue, p.kind, p.priority, p.run_at, p.limits, p.n rows unbounded preceding) as bundle
    from placed p),
  counted as (
    select b.bundle, count(*)::integer as jobs from bundled b group by b.bundle),
  drawn as materialized (
    select f.bundle, f.queue, f.kind, f.priority, f.run_at, f.limits, f.jobs, nextval('tenure.block_id') as block
    from (select b.bundle, b.queue, b.kind, b.priority, b.run_at, b.limits, c.jobs
          from bundled b join counted c on c.bundle = b.bundle where b.place = 0 order by b.n) f),
  delayed as (
    insert into tenure.later (block, id, due_at, reason, queue, priority, kind, attempt, flags, mask)
    select d.block, d.block, d.run_at, 's', d.queue, d.priority, d.kind, 0, 0, tenure.mask_fresh(d.jobs)
    from drawn d where d.run_at > v_now and d.limits is null),
  readied as (
    insert into tenure.ready (queue, priority, id, kind, attempt, flags, block, mask)
    select d.queue, d.priority, d.block, d.kind, 0, 0, d.block, tenure.mask_fresh(d.jobs)
    from drawn d where (d.run_at is null or d.run_at <= v_now) and d.limits is null
    returning queue),
  lined as (
    select tenure.place_fresh(g.queue, g.priority, g.kind, g.limits::json, g.run_at, g.blocks, g.counts)
    from (select d.queue, d.kind, d.priority, d.limits, case when d.run_at > v_now then d.run_at end as run_at,
                 array_agg(d.block order by d.block) as blocks, array_agg(d.jobs order by d.block) as counts
          from drawn d where d.limits is not null group by d.queue, d.kind, d.priority, d.limits, case when d.run_at > v_now then d.run_at end) g),
  counted_in as (
    select tenure.note_members(d.queue, d.limits::json ->> 'fair', array_agg(d.block), array_agg(d.jobs)) from drawn d
    where d.queue = any(v_bounded) group by d.queue, d.limits::json ->> 'fair'),
  woken as (
    -- Who sleeps looks again for what becomes due soon, as wake_near says.
    select count(tenure.wake_one(r.queue))
    from (select queue from readied union select d.queue from drawn d where d.run_at > v_now and d.run_at <= v_now + interval '2 seconds') r)
  select array_agg(d.block * 128 + b.place order by b.n) into v_jobs
  from bundled b join drawn d on d.bundle = b.bundle where (select count(*) from woken) >= 0 and (select count(*) from lined) >= 0 and (select count(*) from counted_in) >= 0;

  insert into tenure.job (id, queue, kind, priority, max_attempts, timeout_ms, created_at, run_at, payload, limits)
    select v_jobs[i.o], i.queue, i.kind, i.priority, i.max_attempts, i.timeout_ms, v_now, i.run_at, i.payload, i.limits
    from (select x.*, row_number() over (order by x.n) as o from tenure.inbox x where x.txid = p_txid and x.n <= v_last) i;
  delete from tenure.inbox i where i.txid = p_txid and i.n <= v_last;
  return v_jobs;
end $$;

-- take_left_behind: enqueues what transactions left in inbox, some of it at a time: those whose commit did not look, since triggers did not fire for them
-- (session_replication_role = replica). The rows of a transaction that cannot become jobs are named in a warning and stay; they do not keep the others
-- from it. Returns the number of jobs. Locks: a transaction-level advisory lock that only it takes, without waiting: no row is taken twice.
create or replace function tenure.take_left_behind() returns bigint
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
declare
  c_transactions constant integer := 100;
  c_rows constant integer := 2000;
  c_time constant interval := '100 milliseconds';
  v_end_at constant timestamptz := clock_timestamp() + c_time;
  v_ended constant xid8 := pg_snapshot_xmin(pg_current_snapshot());
  v_from xid8;
  v_txid xid8;
  v_jobs bigint := 0;
begin
  if not pg_try_advisory_xact_lock(tenure.lock_class(), -2) then
    return 0;
  end if;
  v_from := (select d.place::text::xid8 from tenure.duty d where d.name = 'inbox');
  for v_txid in select i.txid from (select distinct x.txid from tenure.inbox x where x.txid >= v_from) i order by random() limit c_transactions loop
    begin
      v_jobs := v_jobs + coalesce(cardinality(tenure.take_inbox(v_txid, c_rows)), 0);
    exception when others then
      raise warning 'tenure: rows left in inbox by transaction % could not be enqueued: % (%)', v_txid, sqlerrm, sqlstate;
    end;
    exit when clock_timestamp() > v_end_at;
  end loop;
  if v_txid is null then
    -- All those before had ended, and left nothing. Their rows are dead, and somebody's old snapshot may keep them: they are not looked at again.
    update tenure.duty d set place = v_ended::text::bigint where d.name = 'inbox';
  end if;
  return v_jobs;
end $$;
