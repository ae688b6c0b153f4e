-- promote: what is due moves from later to ready, under new ids that no cursor has passed. Transition: later -> ready, or limited (held).
-- Parameters: p_limit rows at most; p_since leaves out what was due longer ago, so that a run does not walk over what former
-- runs took away while somebody's old snapshot keeps it (null: everything; maintenance does that now and then).
-- Returns {"promoted": jobs, "more": whether rows were left}. Locks: the rows taken, skipping what others hold.
create or replace function tenure.promote(p_limit integer default 1000, p_since interval default null) returns json
language plpgsql security definer
set search_path = pg_catalog, tenure, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
  v_now constant timestamptz := clock_timestamp();  -- a bound of the index; the function itself would be a filter on every row
  v_rows bigint;
  v_jobs bigint;
  v_queues text[];
begin
  perform pg_current_xact_id();
  with due as materialized (
    select t.block, t.id from tenure.later t
    where t.due_at <= v_now and t.due_at > coalesce(v_now - p_since, '-infinity')
    order by t.due_at, t.id limit p_limit for update skip locked),
  taken as (
    delete from tenure.later t using due d
    where t.block = any(array(select x.block from due x)) and t.block = d.block and t.id = d.id
    returning t.block, t.mask, t.queue, t.priority, t.kind, t.attempt, t.flags),
  -- Jobs of one block that come back together share a row again.
  merged as (
    select t.block, bit_or(t.mask) as mask, t.queue, tenure.lane_of(t.priority, t.flags) as lane, t.kind, t.attempt, t.flags
    from taken t group by t.block, t.queue, t.priority, t.kind, t.attempt, t.flags),
  readied as (
    insert into tenure.ready (queue, priority, id, kind, attempt, flags, block, mask)
    select m.queue, m.lane, nextval('tenure.block_id'), m.kind, m.attempt, m.flags, m.block, m.mask from merged m where m.flags & 4 = 0
    returning queue, mask),
  -- What stands under limits goes to its line.
  lined as (
    select m.mask, tenure.put_limited(array(select n.job_id from tenure.jobs_in(array[m.block], m.mask) n), m.queue, m.lane, m.kind, m.attempt, m.flags) from merged m where m.flags & 4 = 4)
  select (select count(*) from due), coalesce((select sum(bit_count(r.mask)) from readied r), 0) + coalesce((select sum(bit_count(l.mask)) from lined l), 0), array(select distinct r.queue from readied r)
    into v_rows, v_jobs, v_queues;
  perform tenure.wake_one(q.queue) from unnest(v_queues) as q(queue);
  return json_build_object('promoted', coalesce(v_jobs, 0), 'more', v_rows >= p_limit);
end $$;
