-- claim: gives a worker up to p_wants[i] jobs of p_queues[i]. Transition: ready -> lease (running); of jobs that stand under limits, limited -> lease.
-- Parameters: p_lanes the order in which lanes are read (-1 isolated suspects, 0 urgent, 1-4 priorities); p_after the cursors,
-- one per queue and lane; p_solo_kinds kinds whose lease rows hold one job each; p_low: started from the floors, report
-- the first visible row of each lane; p_most: jobs of all queues together, at most: who asks for very many queues does not hold what he can use only later, and from
-- which queue on it looks is left to chance, so that none is left out for ever. Returns the jobs, and in the last row (job_id null) a JSON trailer. due_at: since when a job could run that starts for
-- the first time; null: it has been started before. The trailer's now_us is the clock in microseconds since 1970, when the jobs were about to be sent.
-- Locks: the rows taken in ready, skipping what others hold; no lock on worker. No job rows: nothing to claim.
-- Errors: TN003 when the worker is unknown or its lease is over; TN002 when the arrays do not fit each other.
--
-- Three rules: rows are addressed by primary key; a lease is built from what the delete or the cut returned, never from
-- what was picked (a picked row may be newer than the snapshot, and the delete then misses it); a queue that is paused is not read.
-- A paused kind is for this claim a kind that the worker does not handle. The trailer names such kinds, so that the worker goes back to the
-- start of its lanes when one of them is resumed: its cursors have passed over them.
-- Ids reach the delete, the cut and the answer as values, not by a join: a plan made while a table was empty would walk the whole lane, or all leases of the fleet.
create or replace function tenure.claim(p_worker bigint, p_token uuid, p_queues text[], p_wants integer[], p_kinds text[], p_solo_kinds text[],
                             p_lanes integer[], p_after bigint[], p_low boolean, p_most integer default 10000)
returns table (lease_id bigint, job_id bigint, slot integer, queue text, kind text, attempt smallint, max_attempts smallint,
               timeout_ms bigint, created_at timestamptz, due_at timestamptz, idempotency_key text, payload json)
language plpgsql security definer
set search_path = pg_catalog, tenure, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_sort = off set jit = off as $$
#variable_conflict use_column
declare
  c_look_max constant interval := '1 hour';
  c_places_queues constant integer := 64;  -- whose places are looked up together: a claim that ends before the last queue looks at few of the others
  c_row_jobs_min constant integer := 25; -- of rows that were not looked at yet so many jobs are expected at least: others may be large, and who picks more than he takes keeps them from others
  c_pieces_max constant integer := 64;   -- of a lease row: stays below the size at which PostgreSQL moves values out of line
  v_now timestamptz := clock_timestamp();
  v_snapshot pg_snapshot := pg_current_snapshot();
  v_drained boolean;
  v_paused text[];
  v_some_kinds_paused boolean;
  v_paused_kinds text[];   -- side by side: these kinds …
  v_paused_in text[];      -- … in these queues; null: in every queue
  v_kinds text[];          -- that are taken from this queue
  v_lanes integer := cardinality(p_lanes);
  v_from bigint[] := p_after;
  v_open bigint[];       -- the first row that stands at each place
  v_all_open constant boolean := coalesce(p_low, false) or cardinality(p_queues) <= c_places_queues;  -- they are looked up at once
  v_block integer;       -- those of queues of this block are known
  v_only record;         -- row: the only one that can be had in a lane; low: where those that can be had begin
  v_row tenure.ready;
  v_much boolean := false;
  v_leases bigint[] := '{}';
  i integer;             -- the queue
  v_first_queue integer := floor(random() * cardinality(p_queues));
  v_lane smallint;
  v_at integer;          -- place of this queue and lane in p_after
  v_want integer;        -- still wanted from this queue
  v_most integer;        -- of them in this pass
  v_rows integer;        -- rows of ready to look at in this pass
  v_row_jobs integer := 100;  -- that a row brought of late
  v_seen integer;
  v_got integer;
  v_last bigint;
  v_end bigint;
  v_new bigint[];
  v_some_limited boolean;
  v_limited_queues text[]; -- in which something stands under limits, or stood; null: in none
  v_limited record;        -- what claim_limited gave
  v_limited_first boolean := random() < 0.5;  -- where both wait, jobs under limits and others take turns in being first
  v_look_at timestamptz;   -- when there may be something under limits; infinity: nobody knows
  v_look_ms bigint;        -- the least of that, in the queues from which more was wanted
begin
  -- One statement for all that is looked up before: each one has its price, and most claims find none of it. Most places are empty, and one look at all of them costs
  -- less than a pass over each.
  select exists (select from tenure.worker_drain d where d.worker_id = w.id), array(select q.name from tenure.queue q where q.name = any(p_queues) and q.paused_at is not null),
         exists (select from tenure.kind_pause), exists (select from tenure.limited_queue),
         -- With p_low of all of them: the floors rely on it.
         case when v_all_open then array(
           select case when p_low or coalesce(p_wants[g.n / v_lanes + 1], 0) > 0 then (
                    select r.id from tenure.ready r
                    where r.queue = p_queues[g.n / v_lanes + 1] and r.priority = p_lanes[g.n % v_lanes + 1] and r.id > p_after[g.n + 1] order by r.id limit 1) end
           from generate_series(0, cardinality(p_after) - 1) as g(n) order by g.n) else array_fill(null::bigint, array[coalesce(cardinality(p_after), 0)]) end
    into v_drained, v_paused, v_some_kinds_paused, v_some_limited, v_open
    from tenure.worker w
    where w.id = p_worker and w.token = p_token and w.dead_at is null and w.lease_until > v_now;
  if not found then
    perform tenure.refuse('TN003', format('worker %s is unknown or its lease is over', p_worker), 'Call heartbeat: while its row lives, it renews the lease, and the claim can be repeated. If that is refused too, stop its handlers and register a new worker.');
  end if;
  if cardinality(p_wants) is distinct from cardinality(p_queues) or cardinality(p_after) is distinct from cardinality(p_queues) * v_lanes
     or num_nulls(p_queues, p_lanes, p_kinds) > 0 or array_position(p_after, null) > 0 then
    perform tenure.refuse('TN002', format('claim: %s queues, %s wants, %s lanes and %s cursors do not fit each other', cardinality(p_queues),
      cardinality(p_wants), v_lanes, cardinality(p_after)), 'Pass a want per queue and a cursor per queue and lane; no kinds are an empty array.');
  end if;
  p_most := coalesce(p_most, 10000);
  -- A null among the solo kinds must not make a job neither solo nor not.
  p_solo_kinds := array_remove(coalesce(p_solo_kinds, '{}'), null);
  if v_some_kinds_paused then
    select array_agg(k.kind), array_agg(k.queue) into v_paused_kinds, v_paused_in from tenure.kind_pause k
      where k.kind = any(p_kinds) and (k.queue is null or k.queue = any(p_queues));
  end if;
  if v_some_limited then
    v_limited_queues := array(select distinct q.queue from tenure.limited_queue q where q.queue = any(p_queues));
  end if;
  v_kinds := p_kinds;
  if v_drained then
    p_wants := array_fill(0, array[cardinality(p_queues)]);
  end if;

  for step in 0 .. cardinality(p_queues) - 1 loop
    i := (v_first_queue + step) % cardinality(p_queues) + 1;
    v_want := least(coalesce(p_wants[i], 0), 1000, p_most);
    if p_most <= 0 then
      perform tenure.wake_next(p_queues[i], p_worker);
      exit;
    end if;
    continue when v_want <= 0 or p_queues[i] = any(v_paused);
    if v_paused_kinds is not null then
      v_kinds := tenure.kinds_open(p_kinds, p_queues[i], v_paused_kinds, v_paused_in);
      continue when v_kinds = '{}';
    end if;
    v_limited := null;
    if p_queues[i] = any(v_limited_queues) then
      v_look_at := tenure.limits_look_at(p_queues[i], v_kinds);
      if v_limited_first and v_look_at <= v_now then
        v_limited := tenure.claim_limited(p_worker, p_queues[i], v_want, v_kinds, p_solo_kinds, p_lanes);
        v_leases := v_leases || v_limited.leases;
        v_want := v_want - v_limited.jobs;
        p_most := p_most - v_limited.jobs;
      end if;
    end if;
    if not v_all_open and v_block is distinct from (i - 1) / c_places_queues then
      v_block := (i - 1) / c_places_queues;
      v_open[v_block * c_places_queues * v_lanes + 1 : least((v_block + 1) * c_places_queues * v_lanes, cardinality(p_after))]
        := tenure.first_rows(p_queues, p_wants, p_lanes, p_after, v_block * c_places_queues, (v_block + 1) * c_places_queues);
    end if;
    for j in 1 .. v_lanes loop
      exit when v_want <= 0;
      v_lane := p_lanes[j];
      v_at := (i - 1) * v_lanes + j;
      continue when v_open[v_at] is null;
      -- What lies before it was taken and is not vacuumed away yet: nobody walks over that twice.
      p_after[v_at] := v_open[v_at] - 1;
      if v_lane = -1 then
        -- A suspect runs with no other suspect beside it on its worker.
        continue when not exists (select from tenure.ready r where r.queue = p_queues[i] and r.priority = -1)
          or exists (select from tenure.lease l where l.worker_id = p_worker and l.flags & 1 = 1);
      end if;
      if v_lane >= 0 and not v_much then
        -- Idle workers find one row: what follows would do the same with it, at three times the cost. Where there was more in another lane it is not tried again.
        with picked as materialized (
          select r.id, bit_count(r.mask) <= v_want and r.kind <> all(p_solo_kinds) as is_whole from tenure.ready r
          where r.queue = p_queues[i] and r.priority = v_lane and r.id > p_after[v_at] and r.kind = any(v_kinds) order by r.id limit 2 for update skip locked),
        gone as (
          delete from tenure.ready r
          where r.queue = p_queues[i] and r.priority = v_lane and r.id = (select case when count(*) = 1 and bool_and(p.is_whole) then min(p.id) end from picked p)
          returning r)
        select (select g.r from gone g) as row, (select min(p.id) from picked p) as low into v_only;
        v_row := v_only.row;
        if v_row.id is not null then
          return query
            with leased as (
              insert into tenure.lease (worker_id, queue, kind, attempt, flags, leased_at, blocks, strip)
              values (p_worker, p_queues[i], v_row.kind, v_row.attempt + 1, v_row.flags, v_now, array[v_row.block], v_row.mask) returning id)
            select l.id, j.id, (j.id & 127)::integer, p_queues[i], v_row.kind, (v_row.attempt + 1)::smallint, j.max_attempts, j.timeout_ms, j.created_at,
                   case when v_row.attempt = 0 and v_row.flags & 2 = 0 then greatest(j.created_at, j.run_at) end, j.idempotency_key, j.payload
            from leased l cross join tenure.job j
            where j.id >= v_row.block * 128 and j.id <= v_row.block * 128 + 127 and get_bit(v_row.mask, (j.id & 127)::integer) = 1;
          get diagnostics v_got = row_count;
          p_after[v_at] := v_row.id;
          v_want := v_want - v_got;
          p_most := p_most - v_got;
          continue;
        end if;
        -- To try whether others still hold what lies before costs far more than to walk over what they took.
        p_after[v_at] := coalesce(v_only.low - 1, p_after[v_at]);
        v_much := true;
      end if;
      v_rows := case when v_lane = -1 then 1 else least(v_want, v_want / greatest(v_row_jobs, c_row_jobs_min) + 1) end;
      loop
        v_most := case v_lane when -1 then 1 else v_want end;
        with picked as materialized (
          select r.id, r.mask, bit_count(r.mask)::integer as jobs
          from tenure.ready r
          where r.queue = p_queues[i] and r.priority = v_lane and r.id > p_after[v_at] and r.kind = any(v_kinds)
          order by r.id limit v_rows
          for update skip locked),
        span as materialized (
          select min(p.id) as low, max(p.id) as high, count(*) as rows, coalesce(sum(p.jobs), 0) as jobs from picked p),
        -- The first bundle that is not taken whole, if more was picked than is wanted: cut, or left as it is where what is wanted ends before it.
        last as materialized (
          select q.id, case when q.take > 0 then tenure.mask_first(q.mask, q.take) end as mask, q.take
          from (select p.id, p.mask, p.jobs, v_most - (sum(p.jobs) over (order by p.id) - p.jobs)::integer as take from picked p) q
          where (select s.jobs from span s) > v_most and q.take < q.jobs
          order by q.id limit 1),
        gone as (
          delete from tenure.ready r
          where r.queue = p_queues[i] and r.priority = v_lane and r.id >= (select s.low from span s) and r.id <= (select s.high from span s)
            and r.id = any(array(select p.id from picked p where p.id < coalesce((select l.id from last l), 9223372036854775807)))
          returning r.id, r.kind, r.attempt, r.flags, r.block, r.mask),
        cut as (
          update tenure.ready r set mask = r.mask & ~ c.mask
          from last c
          where r.queue = p_queues[i] and r.priority = v_lane and r.id = (select l.id from last l) and r.id = c.id and c.take > 0
          returning r.id, r.kind, r.attempt, r.flags, r.block, c.mask),
        taken as (
          select g.id, g.kind, g.attempt, g.flags, g.block, g.mask, (row_number() over (partition by g.kind, g.attempt, g.flags order by g.id) - 1) / c_pieces_max as part
          from (select n.id, n.kind, n.attempt, n.flags, n.block, n.mask from gone n union all select c.id, c.kind, c.attempt, c.flags, c.block, c.mask from cut c) g),
        leased as (
          insert into tenure.lease (worker_id, queue, kind, attempt, flags, leased_at, blocks, strip)
          select p_worker, p_queues[i], t.kind, t.attempt + 1, t.flags, v_now, array_agg(t.block), tenure.join_bits(t.mask)  -- both see the pieces in one order: that of ids, in which the window sorted them
          from taken t where t.kind <> all(p_solo_kinds) group by t.kind, t.attempt, t.flags, t.part
          union all
          select p_worker, p_queues[i], t.kind, t.attempt + 1, t.flags, v_now, array[t.block], tenure.mask_of(n.job_id)
          from taken t cross join lateral tenure.jobs_in(array[t.block], t.mask) n where t.kind = any(p_solo_kinds)
          returning id, bit_count(strip) as jobs)
        select array(select l.id from leased l order by l.id), (select sum(l.jobs) from leased l), (select max(g.id) from gone g), s.rows,
               -- All that this worker can run is taken, whole: what stands there is of other kinds, or held, and is not walked over again and again.
               case when s.rows < v_rows and s.jobs <= v_want then
                 (select r.id from tenure.ready r where r.queue = p_queues[i] and r.priority = v_lane and r.id > p_after[v_at] order by r.id desc limit 1)
               end
          into v_new, v_got, v_last, v_seen, v_end from span s;
        p_after[v_at] := coalesce(greatest(v_last, v_end), p_after[v_at]);
        exit when v_got is null;
        v_leases := v_leases || v_new;
        v_want := v_want - v_got;
        p_most := p_most - v_got;
        exit when v_lane = -1;
        v_row_jobs := greatest(1, v_got / v_seen);
        exit when v_want <= 0 or v_seen < v_rows;
        v_rows := least(v_want, v_want / v_row_jobs + 1);
      end loop;
      exit when v_want <= 0;
    end loop;
    if v_want > 0 and p_queues[i] = any(v_limited_queues) then
      if v_look_at <= v_now then
        if v_limited is null then
          v_limited := tenure.claim_limited(p_worker, p_queues[i], v_want, v_kinds, p_solo_kinds, p_lanes);
          v_leases := v_leases || v_limited.leases;
          v_want := v_want - v_limited.jobs;
          p_most := p_most - v_limited.jobs;
        end if;
        v_look_at := case when v_limited.busy then clock_timestamp() + (4 + random() * 8) * interval '1 millisecond' else least(v_limited.look_at, tenure.limits_look_at(p_queues[i], v_kinds, v_now)) end;
      end if;
      if v_want > 0 and v_look_at <= v_now + c_look_max then
        -- All that wait are told the same instant: some come a little later, and find that others have been there.
        v_look_ms := least(v_look_ms, greatest(1, ceil(extract(epoch from v_look_at - clock_timestamp()) * 1000 + random() * 15)));
      end if;
    end if;
    if v_want <= 0 and p_wants[i] > 0 then
      perform tenure.wake_next(p_queues[i], p_worker);
    end if;
  end loop;

  if cardinality(v_leases) > 0 then
    return query
      select l.id, j.id, s.slot, l.queue, l.kind, l.attempt, j.max_attempts, j.timeout_ms, j.created_at,
             case when l.attempt = 1 and l.flags & 2 = 0 then greatest(j.created_at, j.run_at) end, j.idempotency_key, j.payload
      from tenure.lease l
      cross join lateral tenure.pieces_of(l.blocks, l.strip) p
      join tenure.job j on j.id >= p.first_job and j.id <= p.last_job
      cross join lateral (select p.slot + (j.id & 127)::integer as slot) s
      where l.id = any(v_leases) and get_bit(l.strip, s.slot) = 1;
  end if;

  if p_low and p_after <> v_from then
    -- There is something for the floors to follow, which they can do only behind a transaction id drawn after that scan.
    perform pg_current_xact_id();
  end if;
  -- first: from where the pass started, for a row that somebody holds and may give back was passed over just now. A row before it, that was committed since v_open was looked
  -- up, belongs to a transaction that was open when v_snapshot was taken: no floor moves past it.
  return query select null::bigint, null::bigint, null::integer, null::text, null::text, null::smallint, null::smallint,
    null::bigint, null::timestamptz, null::timestamptz, null::text,
    json_build_object(
      'now_us', (extract(epoch from clock_timestamp()) * 1000000)::bigint, 'after', p_after,
      'first', case when p_low then array(
        select case when v_open[g.n + 1] is not null then (
                 select r.id from tenure.ready r
                 where r.queue = p_queues[g.n / v_lanes + 1] and r.priority = p_lanes[g.n % v_lanes + 1] and r.id >= v_open[g.n + 1]
                   and r.kind = any(case when v_paused_kinds is null then p_kinds else tenure.kinds_open(p_kinds, p_queues[g.n / v_lanes + 1], v_paused_kinds, v_paused_in) end)
                 order by r.id limit 1) end
        from generate_series(0, cardinality(p_after) - 1) as g(n) order by g.n) end,
      'xid', pg_current_xact_id_if_assigned()::text, 'xmin', pg_snapshot_xmin(v_snapshot)::text, 'xmax', pg_snapshot_xmax(v_snapshot)::text,
      'next_due_ms', (select greatest(0, ceil(extract(epoch from t.due_at - v_now) * 1000))::bigint from tenure.later t where t.due_at > v_now order by t.due_at limit 1),
      'paused', v_paused, 'paused_kinds', v_paused_kinds, 'paused_in', v_paused_in,
      'tick_due', coalesce(d.in_ms = 0, false), 'tick_in_ms', d.in_ms, 'few_workers', coalesce(d.few_workers, false), 'look_ms', v_look_ms)
    from (select) one
    left join lateral (
      select case when y.next_at not between v_now and v_now + interval '2 seconds' then 0 else ceil(extract(epoch from y.next_at - v_now) * 1000)::bigint end as in_ms, y.few_workers
      from tenure.duty y where y.name = 'tick' order by y.next_at desc limit 1) d on true;
end $$;
