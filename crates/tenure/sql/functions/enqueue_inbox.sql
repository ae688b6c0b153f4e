-- enqueue_inbox: turns what this transaction copied into the table inbox into jobs. Returns the ids in the order of the rows.
-- Transition: none -> ready or later. Rows with the same queue, kind, priority and instant share bundles.
-- Locks: none that others wait for; the rows of inbox are this transaction's own.
create or replace function tenure.enqueue_inbox() returns setof bigint
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp as $$
begin
  return query select e.job_id from tenure.take_inbox(pg_current_xact_id()) e order by e.n;
end $$;

-- take_inbox: the same for the rows of any transaction that has ended (maintenance enqueues what was left behind), p_limit at most.
create or replace function tenure.take_inbox(p_txid xid8, p_limit integer default null) returns table (n bigint, job_id bigint)
language plpgsql as $$
#variable_conflict use_column
declare
  c_bundle_jobs constant integer := 100;
  v_now timestamptz := clock_timestamp();
  v_last bigint := 9223372036854775807;
begin
  if p_limit is not null then
    v_last := (select max(x.n) from (select i.n from tenure.inbox i where i.txid = p_txid order by i.n limit p_limit) x);
  end if;
  perform tenure.check_job(i.kind, i.queue, i.priority, i.run_at, null, i.max_attempts, i.timeout_ms)
    from (select distinct x.kind, x.queue, x.priority, x.run_at, x.max_attempts, x.timeout_ms from tenure.inbox x where x.txid = p_txid and x.n <= v_last) i;
  perform tenure.check_payload(i.payload) from tenure.inbox i
    where i.txid = p_txid and i.n <= v_last and (octet_length(i.payload::text) > 65536 or position(E'\\u' in i.payload::text) > 0);
  return query
  with taken as (
    delete from tenure.inbox i where i.txid = p_txid and i.n <= v_last
    returning i.n, i.kind, i.payload, i.queue, i.priority, i.run_at, i.max_attempts, i.timeout_ms),
  placed as (
    select t.*, row_number() over (partition by t.queue, t.kind, t.priority, t.run_at order by t.n) - 1 as place from taken t),
  bundled as materialized (
    select g.queue, g.kind, g.priority, g.run_at, g.bundle, g.jobs, nextval('tenure.block_id') as block
    from (select p.queue, p.kind, p.priority, p.run_at, p.place / c_bundle_jobs as bundle, count(*)::integer as jobs
          from placed p group by p.queue, p.kind, p.priority, p.run_at, p.place / c_bundle_jobs order by min(p.n)) g),
  stored as (
    insert into tenure.job (id, queue, kind, priority, max_attempts, timeout_ms, created_at, run_at, payload)
    select b.block * 128 + p.place % c_bundle_jobs, p.queue, p.kind, p.priority, p.max_attempts, p.timeout_ms, v_now, p.run_at, p.payload
    from placed p join bundled b on b.queue = p.queue and b.kind = p.kind and b.priority = p.priority
      and b.run_at is not distinct from p.run_at and b.bundle = p.place / c_bundle_jobs),
  delayed as (
    insert into tenure.later (block, id, due_at, reason, queue, priority, kind, attempt, flags, mask)
    select b.block, b.block, b.run_at, 's', b.queue, b.priority, b.kind, 0, 0, tenure.mask_fresh(b.jobs)
    from bundled b where b.run_at > v_now),
  readied as (
    insert into tenure.ready (queue, priority, id, kind, attempt, flags, block, mask)
    select b.queue, b.priority, b.block, b.kind, 0, 0, b.block, tenure.mask_fresh(b.jobs)
    from bundled b where b.run_at is null or b.run_at <= v_now
    returning queue),
  woken as (
    select tenure.wake_one(r.queue) from (select distinct queue from readied) r)
  select p.n, b.block * 128 + p.place % c_bundle_jobs
  from placed p join bundled b on b.queue = p.queue and b.kind = p.kind and b.priority = p.priority
    and b.run_at is not distinct from p.run_at and b.bundle = p.place / c_bundle_jobs
  where (select count(*) from woken) >= 0;
end $$;

-- take_left_behind: enqueues what transactions copied and forgot, some of it at a time. The rows of a transaction that cannot become jobs
-- are named in a warning and stay; they do not keep the others from it. Returns the number of jobs.
create or replace function tenure.take_left_behind() returns bigint
language plpgsql as $$
declare
  c_transactions constant integer := 100;
  c_rows constant integer := 2000;
  c_time constant interval := '100 milliseconds';
  v_end_at constant timestamptz := clock_timestamp() + c_time;
  v_txid xid8;
  v_jobs bigint := 0;
begin
  for v_txid in select i.txid from (select distinct x.txid from tenure.inbox x) i order by random() limit c_transactions loop
    begin
      v_jobs := v_jobs + (select count(*) from tenure.take_inbox(v_txid, c_rows));
    exception when others then
      raise warning 'tenure: rows left in inbox by transaction % could not be enqueued: % (%)', v_txid, sqlerrm, sqlstate;
    end;
    exit when clock_timestamp() > v_end_at;
  end loop;
  return v_jobs;
end $$;
