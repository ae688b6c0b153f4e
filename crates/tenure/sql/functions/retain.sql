-- retain: removes finished jobs that were kept long enough, a step at a time, with all that belongs to them. Transition: outcome, dead_letter -> none.
-- Parameters: p_limit jobs at most that are deleted one by one; a call also ends after a fifth of a second, or a quarter of the
-- statement timeout if that is less, so that it never takes long.
-- Returns {"ran": bool, "removed": jobs, "emptied": ranges, "dropped": ranges, "in_use": ranges that wait
-- for somebody who reads them, "more": whether to call again at once}. Where it stands is
-- stored with each range, so that whoever calls next goes on from there, and nothing is lost with a caller.
-- Walks read indexes in their order. Parallel workers would read and sort all the rest of a range for each piece of it: without these settings
-- the planner prefers that from some hundred thousand rows on, and a range of 250,000 jobs took minutes.
-- Locks: a transaction-level advisory lock that only retain takes, without waiting. Then, in this order: rows of dead_letter or outcome,
-- skipping what others hold; or one old range of job and outcome (retain_empty.sql); the rows of the jobs in the other tables. Before that a
-- range's row in `partition`, and at the end that of duty, skipping both when somebody holds them.
-- A range whose step fails (a foreign key of the user's own to job, for one) is named in a warning and put off; the others go on.
create or replace function tenure.retain(p_limit integer default 2000) returns json
language plpgsql security definer
set search_path = pg_catalog, tenure, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_sort = off set jit = off
set max_parallel_workers_per_gather = 0 set lock_timeout = '100ms' as $$
declare
  c_every constant interval := '1 minute';
  v_limit integer := least(greatest(p_limit, 1), 10000);
  v_dead bigint;
  v_step record;
  v_dropped integer := 0;
  v_more boolean;
begin
  if not pg_try_advisory_xact_lock(tenure.lock_class(), -1) then
    return json_build_object('ran', false, 'removed', 0, 'emptied', 0, 'dropped', 0, 'in_use', 0, 'more', false);
  end if;
  -- What a crash of the server undoes is done again.
  perform set_config('synchronous_commit', 'off', true);
  begin
    v_dead := tenure.retain_dead(v_limit);
  exception when others then
    raise warning 'tenure: dead letters that are due could not be removed: % (%)', sqlerrm, sqlstate;
    v_dead := 0;
  end;
  select s.removed, s.emptied into v_step from tenure.retain_range(v_limit) s;
  -- No step: there is no range to walk over, or somebody holds those that there are.
  v_more := v_dead >= v_limit or v_step.removed is not null and exists (
    select from tenure.partition p cross join tenure.block_id s where p.walk_at <= clock_timestamp() and p.first_block <= s.last_value);
  if not v_more then
    v_dropped := tenure.drop_ranges();
  end if;
  update tenure.duty d set next_at = clock_timestamp() + case when v_more then interval '0' else c_every end
    where d.name = 'retain' and d.next_at = (select x.next_at from tenure.duty x where x.name = 'retain' and x.next_at = tenure.turn_at('retain') for update skip locked);
  return json_build_object('ran', true, 'removed', v_dead + coalesce(v_step.removed, 0), 'emptied', coalesce(v_step.emptied, 0),
                           'dropped', v_dropped, 'in_use', (select count(*) from tenure.partition p where p.walk = 'e' and p.walk_at > clock_timestamp()), 'more', v_more);
end $$;

-- walk_anew: retention looks at every range now, also at those that it had put off. p_exact: it does not wait for a range to become due as a
-- whole, either; that is what an operator means who asks for it. Locks: the rows of `partition`, in the order of ids, then duty. Until its transaction
-- ends retention stands still, and no new ranges are made.
create or replace function tenure.walk_anew(p_exact boolean default true) returns void
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp set lock_timeout = '5s' as $$
begin
  perform from tenure.partition p where p.drop_at is null order by p.first_block for update;
  -- What is left of an emptied range is swept first.
  update tenure.partition p set walk_at = '-infinity', walk = case p.walk when 's' then p.walk end, exact = p.exact or p_exact, low_until = null
    where p.drop_at is null;
  update tenure.duty d set next_at = '-infinity' where d.name = 'retain';
end $$;

-- retain_dead: dead letters that are due, and their jobs. Queue by queue, through the index: those of a queue that keeps them longer are
-- never read. Returns their number.
create or replace function tenure.retain_dead(p_limit integer) returns bigint
language plpgsql as $$
declare
  v_now constant timestamptz := clock_timestamp();
  v_default_ms constant bigint := tenure.keep_default('dead');
  v_jobs bigint[];
begin
  v_jobs := array(
    with recursive queued as (
      (select d.queue from tenure.dead_letter d order by d.queue limit 1)
      union all
      select n.queue from queued u cross join lateral (select d.queue from tenure.dead_letter d where d.queue > u.queue order by d.queue limit 1) n)
    select o.job_id from queued u
    left join tenure.queue q on q.name = u.queue
    cross join lateral (
      select d.job_id from tenure.dead_letter d
      where d.queue = u.queue and d.died_at <= v_now - coalesce(q.keep_dead_ms, v_default_ms) * interval '1 millisecond'
      order by d.died_at, d.job_id limit p_limit) o
    limit p_limit);
  v_jobs := array(select d.job_id from tenure.dead_letter d where d.job_id = any(v_jobs) order by d.job_id for update skip locked);
  delete from tenure.dead_letter d where d.job_id = any(v_jobs);
  perform tenure.forget(v_jobs);
  return cardinality(v_jobs);
end $$;

-- forget: removes jobs whose end the caller has just deleted, and all that was noted about them.
create or replace function tenure.forget(p_jobs bigint[]) returns void
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
  v_first bigint;
  v_last bigint;
begin
  select min(u.job), max(u.job) into v_first, v_last from unnest(p_jobs) as u(job);
  if v_first is null then
    return;
  end if;
  delete from tenure.job j where j.id >= v_first and j.id <= v_last and j.id = any(p_jobs);
  delete from tenure.attempt_error e where e.job_id = any(p_jobs);
  delete from tenure.progress p where p.job_id = any(p_jobs);
  delete from tenure.snooze z where z.job_id = any(p_jobs);
  delete from tenure.replacement x where x.job_id = any(p_jobs);
end $$;

-- retain_preview: what is due now, for a look before it is removed; nothing is changed. One stretch of ids at a time: p_after is the "last" of
-- the call before (null: from the start, which also counts dead letters). Returns {"last": id or null when that was all, "due": [{"queue",
-- "outcome", "jobs"}]}. Locks: none.
create or replace function tenure.retain_preview(p_after bigint default null, p_limit integer default 20000) returns json
language plpgsql stable security definer
set search_path = pg_catalog, tenure, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_sort = off set jit = off
set max_parallel_workers_per_gather = 0 as $$
declare
  v_now constant timestamptz := clock_timestamp();
  v_shortest constant interval := tenure.keep_shortest();
  v_last bigint;
  v_due json;
begin
  with seen as materialized (select e.job_id, e.state, e.created_at, e.due_at from tenure.ends_in(coalesce(p_after, -1), 9223372036854775807, p_limit) e),
  counted as (
    select j.queue, case s.state when 'c' then 'completed' else 'cancelled' end as outcome, count(*) as jobs
    from seen s join tenure.job j on j.id = s.job_id where s.due_at <= v_now group by 1, 2
    union all
    select d.queue, 'dead', count(*) from tenure.dead_letter d left join tenure.queue q on q.name = d.queue
    where p_after is null and d.died_at <= v_now - coalesce(q.keep_dead_ms, tenure.keep_default('dead')) * interval '1 millisecond' group by 1)
  select (select max(s.job_id) from seen s where (select count(*) from seen) >= p_limit and coalesce((select max(x.created_at) from seen x) <= v_now - v_shortest, true)),
         (select coalesce(json_agg(json_build_object('queue', c.queue, 'outcome', c.outcome, 'jobs', c.jobs) order by c.queue, c.outcome), '[]') from counted c)
    into v_last, v_due;
  return json_build_object('last', v_last, 'due', v_due);
end $$;
