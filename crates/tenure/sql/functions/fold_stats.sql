-- fold_stats: a turn of the statistics, every 10 s: counts the jobs that were enqueued, adds what was told since the last turn to the rows of its
-- minutes, and removes what was kept long enough. It reads by ranges of ids from where the last turn stopped, and so never what earlier turns took
-- away, which somebody's old snapshot may keep.
-- Parameters: p_limit jobs counted at most, about (1 to 100,000); what was told: 1,000 rows; removed: 2,000 rows.
-- Returns {"ran": bool, "counted": jobs, "folded": rows, "removed": rows, "more": whether to call again at once}. In a transaction of its own, which
-- has no id yet: it draws one after a look at how far ids were drawn. Above read committed it is right as well, and mostly one turn later.
-- Locks: a transaction-level advisory lock that only this takes, without waiting; then rows of stat_delta, stat_minute, stat_worker and duty, which nobody
-- else holds for long; none is waited for longer than a tenth of a second. A part that fails is named in a warning and does not stop the others.
create or replace function tenure.fold_stats(p_limit integer default 20000) returns json
language plpgsql security definer
set search_path = pg_catalog, tenure, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
set max_parallel_workers_per_gather = 0 set lock_timeout = '100ms' as $$
declare
  c_every constant interval := '10 seconds';
  v_turn record;
  v_counted bigint := 0;
  v_folded bigint := 0;
  v_removed bigint := 0;
  v_more boolean := false;
begin
  if not pg_try_advisory_xact_lock(tenure.lock_class(), -3) then
    return json_build_object('ran', false, 'counted', 0, 'folded', 0, 'removed', 0, 'more', false);
  end if;
  v_turn := tenure.draw_marks();
  perform set_config('synchronous_commit', 'off', true);
  begin
    select c.jobs, c.more into v_counted, v_more from tenure.count_enqueued(v_turn.block, v_turn.xid, least(greatest(p_limit, 1), 100000)) c;
  exception when others then
    raise warning 'tenure: enqueued jobs could not be counted: % (%)', sqlerrm, sqlstate;
  end;
  begin
    select v_more or f.more, f.rows into v_more, v_folded from tenure.fold_deltas(v_turn.delta, v_turn.xid) f;
  exception when others then
    raise warning 'tenure: statistics could not be folded: % (%)', sqlerrm, sqlstate;
  end;
  begin
    v_removed := tenure.forget_stats();
  exception when others then
    raise warning 'tenure: old statistics could not be removed: % (%)', sqlerrm, sqlstate;
  end;
  perform tenure.set_turn('enqueued', clock_timestamp() + case when v_more then interval '0' else c_every end);
  return json_build_object('ran', true, 'counted', v_counted, 'folded', v_folded, 'removed', v_removed, 'more', v_more);
end $$;

-- draw_marks: how far blocks and deltas were drawn, and a transaction id drawn after that; null in a transaction that had one before: then it says nothing.
create or replace function tenure.draw_marks(out block bigint, out delta bigint, out xid xid8)
language plpgsql as $$
begin
  xid := pg_current_xact_id_if_assigned();
  select case when s.is_called then s.last_value else s.last_value - 1 end into block from tenure.block_id s;
  select case when s.is_called then s.last_value else s.last_value - 1 end into delta from tenure.stat_delta_id s;
  xid := case when xid is null then pg_current_xact_id() end;
end $$;

-- settled_mark: up to where no open transaction can still add a row, of a walk whose stored mark is p_mark; null: up to nowhere that is new.
-- Whoever draws a row's id has a transaction id before. So all who drew up to a mark have a smaller one than what was drawn after it, and have ended when it
-- is smaller than every open one. A stored id that no transaction has had yet comes from another cluster, by a dump, which has committed rows alone.
create or replace function tenure.settled_mark(p_drawn bigint, p_xid xid8, p_mark bigint, p_mark_xid xid8) returns bigint
language plpgsql as $$
declare
  v_open xid8;
  v_next xid8;
begin
  select pg_snapshot_xmin(s.now), pg_snapshot_xmax(s.now) into v_open, v_next from (select pg_current_snapshot() as now) s;
  return case when v_open >= p_xid then p_drawn
              when p_mark_xid < v_open or p_mark_xid >= v_next then p_mark end;
end $$;

-- count_enqueued: the jobs between the last one that was counted and the settled mark, about p_limit of them at most. What retention or an operator
-- removed before is not counted: it is there for a second at least, and a turn comes every ten.
create or replace function tenure.count_enqueued(p_block bigint, p_xid xid8, p_limit integer, out jobs bigint, out more boolean)
language plpgsql set enable_sort = off as $$
declare
  c_sample constant integer := 256;
  c_dense constant integer := 32;     -- jobs a block: from there on it costs clearly less to look at blocks
  v_walk record;
  v_settled bigint;
  v_sample record;
  v_last bigint;
begin
  jobs := 0;
  more := false;
  select d.next_at, d.place, d.mark, d.mark_xid into v_walk from tenure.duty d where d.name = 'enqueued' order by d.next_at desc limit 1;
  if p_block * 128 + 127 <= v_walk.place then
    return;
  end if;
  v_settled := tenure.settled_mark(p_block, p_xid, v_walk.mark, v_walk.mark_xid) * 128 + 127;
  if v_settled > v_walk.place then
    select count(*) as jobs, max(x.id) as last into v_sample
      from (select j.id from tenure.job j where j.id > v_walk.place and j.id <= v_settled order by j.id limit c_sample) x;
    if v_sample.jobs = c_sample and (v_sample.last >> 7) - (v_walk.place >> 7) <= c_sample / c_dense then
      select c.jobs, c.last into jobs, v_last from tenure.count_blocks(v_walk.place, v_settled, p_limit / 50 + 1) c;
    else
      select c.jobs, c.last into jobs, v_last from tenure.count_jobs_one_by_one(v_walk.place, v_settled, p_limit) c;
    end if;
    more := v_last < v_settled;
  end if;
  update tenure.duty d
    set place = greatest(d.place, v_last),
        -- The mark stays until it has settled.
        mark = case when p_xid is null or v_settled is null and d.mark is not null then d.mark else p_block end,
        mark_xid = case when p_xid is null or v_settled is null and d.mark is not null then d.mark_xid else p_xid end
    where d.name = 'enqueued' and d.next_at = v_walk.next_at;
end $$;

-- count_jobs_one_by_one: the jobs of a stretch of ids, p_limit at most, and the last id up to which none is left out.
create or replace function tenure.count_jobs_one_by_one(p_after bigint, p_last bigint, p_limit integer, out jobs bigint, out last bigint)
language plpgsql as $$
begin
  with walked as (
    select j.id, j.created_at, j.queue, j.kind from tenure.job j where j.id > p_after and j.id <= p_last order by j.id limit p_limit),
  counted as materialized (
    select tenure.minute_of(w.created_at) as minute, w.queue, w.kind, count(*) as jobs, max(w.id) as last from walked w group by 1, 2, 3),
  added as (
    insert into tenure.stat_minute as m (minute, queue, kind, enqueued)
    select c.minute, c.queue, c.kind, c.jobs from counted c
    on conflict (minute, queue, kind) do update set enqueued = m.enqueued + excluded.enqueued)
  select coalesce(sum(c.jobs), 0), case when sum(c.jobs) >= p_limit then max(c.last) else p_last end into jobs, last from counted c;
end $$;

-- count_blocks: the same where jobs come in bundles: those of a block are alike, were enqueued together, and have ids without gaps. So the first and the last
-- one tell of all: two looks a block, whatever it holds.
create or replace function tenure.count_blocks(p_after bigint, p_last bigint, p_blocks integer, out jobs bigint, out last bigint)
language plpgsql as $$
declare
  v_from constant bigint := (p_after + 1) >> 7;
  v_to constant bigint := least(p_last >> 7, v_from + p_blocks - 1);
begin
  with walked as (
    select f.created_at, f.queue, f.kind, l.id - f.id + 1 as jobs
    from generate_series(v_from, v_to) as b(block)
    cross join lateral (select j.id, j.created_at, j.queue, j.kind from tenure.job j
                        where j.id > p_after and j.id >= b.block * 128 and j.id < b.block * 128 + 128 order by j.id limit 1) f
    cross join lateral (select j.id from tenure.job j where j.id >= f.id and j.id < b.block * 128 + 128 order by j.id desc limit 1) l),
  counted as materialized (
    select tenure.minute_of(w.created_at) as minute, w.queue, w.kind, sum(w.jobs)::bigint as jobs from walked w group by 1, 2, 3),
  added as (
    insert into tenure.stat_minute as m (minute, queue, kind, enqueued)
    select c.minute, c.queue, c.kind, c.jobs from counted c
    on conflict (minute, queue, kind) do update set enqueued = m.enqueued + excluded.enqueued)
  select coalesce(sum(c.jobs), 0) into jobs from counted c;
  last := least(v_to * 128 + 127, p_last);
end $$;

-- fold_deltas: adds the rows of stat_delta up to the settled mark to their minutes, 1,000 at most, and removes them.
create or replace function tenure.fold_deltas(p_delta bigint, p_xid xid8, out rows bigint, out more boolean)
language plpgsql as $$
declare
  c_rows constant integer := 1000;
  v_walk record;
  v_settled bigint;
  v_last bigint;
begin
  more := false;
  rows := 0;
  select d.next_at, d.place, d.mark, d.mark_xid into v_walk from tenure.duty d where d.name = 'deltas' order by d.next_at desc limit 1;
  if p_delta <= v_walk.place then
    return;
  end if;
  v_settled := tenure.settled_mark(p_delta, p_xid, v_walk.mark, v_walk.mark_xid);
  if v_settled > v_walk.place then
    select count(*), max(x.id) into rows, v_last
      from (select d.id from tenure.stat_delta d where d.id > v_walk.place and d.id <= v_settled order by d.id limit c_rows) x;
    more := rows >= c_rows;
    if rows > 0 then
      perform tenure.fold_range(v_walk.place, v_last);
    end if;
  end if;
  -- Its time says nothing but which version of the row is the newest (turn_at).
  update tenure.duty d
    set next_at = clock_timestamp(), place = case when more then v_last else greatest(d.place, v_settled) end,
        mark = case when p_xid is null or v_settled is null and d.mark is not null then d.mark else p_delta end,
        mark_xid = case when p_xid is null or v_settled is null and d.mark is not null then d.mark_xid else p_xid end
    where d.name = 'deltas' and d.next_at = v_walk.next_at;
end $$;

create or replace function tenure.fold_range(p_after bigint, p_last bigint) returns void
language plpgsql as $$
begin
  with gone as (
    delete from tenure.stat_delta d where d.id > p_after and d.id <= p_last
    returning d.minute, d.queue, d.kind, d.started, d.completed, d.failed, d.retried, d.dead, d.cancelled, d.snoozed, d.released, d.rescued, d.overruns,
              d.wait_buckets, d.wait_counts, d.run_buckets, d.run_counts),
  summed as (
    select g.minute, g.queue, g.kind, sum(g.started) as started, sum(g.completed) as completed, sum(g.failed) as failed, sum(g.retried) as retried,
           sum(g.dead) as dead, sum(g.cancelled) as cancelled, sum(g.snoozed) as snoozed, sum(g.released) as released, sum(g.rescued) as rescued,
           sum(g.overruns) as overruns
    from gone g group by 1, 2, 3),
  waits as (
    select x.minute, x.queue, x.kind, array_agg(x.bucket order by x.bucket) as buckets, array_agg(x.n order by x.bucket) as counts
    from (select g.minute, g.queue, g.kind, u.bucket, least(sum(u.n), 2147483647)::integer as n
          from gone g cross join lateral unnest(g.wait_buckets, g.wait_counts) as u(bucket, n) group by 1, 2, 3, 4) x
    group by 1, 2, 3),
  runs as (
    select x.minute, x.queue, x.kind, array_agg(x.bucket order by x.bucket) as buckets, array_agg(x.n order by x.bucket) as counts
    from (select g.minute, g.queue, g.kind, u.bucket, least(sum(u.n), 2147483647)::integer as n
          from gone g cross join lateral unnest(g.run_buckets, g.run_counts) as u(bucket, n) group by 1, 2, 3, 4) x
    group by 1, 2, 3)
  insert into tenure.stat_minute as m (minute, queue, kind, started, completed, failed, retried, dead, cancelled, snoozed, released, rescued, overruns,
                                       wait_buckets, wait_counts, run_buckets, run_counts)
    select s.minute, s.queue, s.kind, s.started, s.completed, s.failed, s.retried, s.dead, s.cancelled, s.snoozed, s.released, s.rescued, s.overruns,
           coalesce(w.buckets, '{}'), coalesce(w.counts, '{}'), coalesce(r.buckets, '{}'), coalesce(r.counts, '{}')
    from summed s
    left join waits w on w.minute = s.minute and w.queue = s.queue and w.kind = s.kind
    left join runs r on r.minute = s.minute and r.queue = s.queue and r.kind = s.kind
    on conflict (minute, queue, kind) do update
      set started = m.started + excluded.started, completed = m.completed + excluded.completed, failed = m.failed + excluded.failed,
          retried = m.retried + excluded.retried, dead = m.dead + excluded.dead, cancelled = m.cancelled + excluded.cancelled,
          snoozed = m.snoozed + excluded.snoozed, released = m.released + excluded.released, rescued = m.rescued + excluded.rescued,
          overruns = m.overruns + excluded.overruns,
          (wait_buckets, wait_counts) = (select h.buckets, h.counts from tenure.merge_histograms(m.wait_buckets, m.wait_counts, excluded.wait_buckets, excluded.wait_counts) h),
          (run_buckets, run_counts) = (select h.buckets, h.counts from tenure.merge_histograms(m.run_buckets, m.run_counts, excluded.run_buckets, excluded.run_counts) h);
end $$;

-- forget_stats: removes statistics that were kept long enough, every 10 minutes, 2,000 rows of each table at most, again at once while there are more.
-- Returns their number.
create or replace function tenure.forget_stats() returns bigint
language plpgsql as $$
declare
  c_rows constant integer := 2000;
  v_now constant timestamptz := clock_timestamp();
  v_minutes bigint;
  v_workers bigint;
begin
  if not tenure.take_turn('old_stats', v_now, interval '10 minutes') then
    return 0;
  end if;
  delete from tenure.stat_minute m
    using (select x.minute, x.queue, x.kind from tenure.stat_minute x
           where x.minute < v_now - tenure.stats_kept('stats_keep_ms') order by x.minute, x.queue, x.kind limit c_rows) o
    where m.minute = o.minute and m.queue = o.queue and m.kind = o.kind;
  get diagnostics v_minutes = row_count;
  delete from tenure.stat_worker w
    using (select x.minute, x.worker_id from tenure.stat_worker x
           where x.minute < v_now - tenure.stats_kept('worker_stats_keep_ms') order by x.minute, x.worker_id limit c_rows) o
    where w.minute = o.minute and w.worker_id = o.worker_id;
  get diagnostics v_workers = row_count;
  if greatest(v_minutes, v_workers) >= c_rows then
    perform tenure.set_turn('old_stats', v_now);
  end if;
  return v_minutes + v_workers;
end $$;

-- stats_kept: how long. A setting that was written by hand is held to the limits.
create or replace function tenure.stats_kept(p_setting text) returns interval
language plpgsql stable as $$
begin
  return (select interval '1 millisecond' * least(greatest(s.value, s.lowest), s.highest) from tenure.settings() s where s.name = p_setting);
end $$;
