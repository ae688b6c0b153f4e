-- claim: gives a worker up to p_wants[i] jobs of p_queues[i]. Transition: ready -> lease (running); of jobs that stand under limits, limited -> lease.
-- Parameters: p_lanes the order in which lanes are read (-1 isolated suspects, 0 urgent, 1-4 priorities); p_after the cursors,
-- one per queue and lane; p_solo_kinds kinds whose lease rows hold one job each; p_low: started from the floors, report
-- the first visible row of each lane. Returns the jobs, and in the last row (job_id null) a JSON trailer. due_at: since when a job could run that starts for
-- the first time; null: it has been started before. The trailer's now_us is the clock in microseconds since 1970, when the jobs were about to be sent.
-- Locks: the rows taken in ready, skipping what others hold; no lock on worker. No job rows: nothing to claim.
-- Errors: TN003 when the worker is unknown or its lease is over; TN002 when the arrays do not fit each other.
--
-- Three rules: rows are addressed by primary key; a lease is built from what the delete or the cut returned, never from
-- what was picked (a picked row may be newer than the snapshot, and the delete then misses it); a queue that is paused is not read.
-- A paused kind is for this claim a kind that the worker does not handle. The trailer names such kinds, so that the worker goes back to the
-- start of its lanes when one of them is resumed: its cursors have passed over them.
-- Ids reach the delete and the cut as values with bounds, not by a join: a plan made while the table was empty would walk the whole lane.
create or replace function tenure.claim(p_worker bigint, p_token uuid, p_queues text[], p_wants integer[], p_kinds text[], p_solo_kinds text[],
                             p_lanes integer[], p_after bigint[], p_low boolean)
returns table (lease_id bigint, job_id bigint, slot integer, queue text, kind text, attempt smallint, max_attempts smallint,
               timeout_ms bigint, created_at timestamptz, due_at timestamptz, idempotency_key text, payload json)
language plpgsql security definer
set search_path = pg_catalog, tenure, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_sort = off set jit = off as $$
#variable_conflict use_column
declare
  c_look_max constant interval := '1 hour';
  c_pieces_max constant integer := 64;   -- of a lease row: stays below the size at which PostgreSQL moves values out of line
  v_now timestamptz := clock_timestamp();
  v_xmin text := pg_snapshot_xmin(pg_current_snapshot())::text;
  v_drained boolean;
  v_paused text[];
  v_some_kinds_paused boolean;
  v_paused_kinds text[];   -- side by side: these kinds …
  v_paused_in text[];      -- … in these queues; null: in every queue
  v_kinds text[];          -- that are taken from this queue
  v_lanes integer := cardinality(p_lanes);
  v_from bigint[] := p_after;
  v_first bigint[] := array_fill(null::bigint, array[cardinality(p_after)]);
  v_leases bigint[] := '{}';
  v_lane smallint;
  v_at integer;          -- place of this queue and lane in p_after
  v_want integer;        -- still wanted from this queue
  v_rows integer;        -- rows of ready to look at in this pass
  v_seen integer;
  v_got integer;
  v_last bigint;
  v_end bigint;
  v_new bigint[];
  v_next_due_ms bigint;
  v_tick_in_ms bigint;
  v_few_workers boolean;
  v_limited record;        -- what claim_limited gave
  v_limited_first boolean := random() < 0.5;  -- where both wait, jobs under limits and others take turns in being first
  v_look_at timestamptz;   -- when there may be something under limits; infinity: nobody knows
  v_look_ms bigint;        -- the least of that, in the queues from which more was wanted
begin
  -- One statement for all that is looked up before: each one has its price, and most claims find none of it.
  select exists (select from tenure.worker_drain d where d.worker_id = w.id), array(select q.name from tenure.queue q where q.name = any(p_queues) and q.paused_at is not null),
         exists (select from tenure.kind_pause)
    into v_drained, v_paused, v_some_kinds_paused
    from tenure.worker w
    where w.id = p_worker and w.token = p_token and w.dead_at is null and w.lease_until > v_now;
  if not found then
    perform tenure.refuse('TN003', format('worker %s is unknown or its lease is over', p_worker), 'Call heartbeat: while its row lives, it renews the lease, and the claim can be repeated. If that is refused too, stop its handlers and register a new worker.');
  end if;
  if cardinality(p_wants) is distinct from cardinality(p_queues) or cardinality(p_after) is distinct from cardinality(p_queues) * v_lanes
     or p_kinds is null or array_position(p_after, null) > 0 then
    perform tenure.refuse('TN002', format('claim: %s queues, %s wants, %s lanes and %s cursors do not fit each other', cardinality(p_queues),
      cardinality(p_wants), v_lanes, cardinality(p_after)), 'Pass a want per queue and a cursor per queue and lane; no kinds are an empty array.');
  end if;
  -- A null among the solo kinds must not make a job neither solo nor not.
  p_solo_kinds := array_remove(coalesce(p_solo_kinds, '{}'), null);
  if v_some_kinds_paused then
    select array_agg(k.kind), array_agg(k.queue) into v_paused_kinds, v_paused_in from tenure.kind_pause k
      where k.kind = any(p_kinds) and (k.queue is null or k.queue = any(p_queues));
  end if;
  v_kinds := p_kinds;
  if v_drained then
    p_wants := array_fill(0, array[cardinality(p_queues)]);
  end if;

  for i in 1 .. cardinality(p_queues) loop
    v_want := least(coalesce(p_wants[i], 0), 1000);
    continue when v_want <= 0 or p_queues[i] = any(v_paused);
    if v_paused_kinds is not null then
      v_kinds := tenure.kinds_open(p_kinds, p_queues[i], v_paused_kinds, v_paused_in);
      continue when v_kinds = '{}';
    end if;
    v_limited := null;
    if v_limited_first and exists (select from tenure.nudge n where n.queue = p_queues[i] and n.look_at <= v_now and (n.kind = '' or n.kind = any(v_kinds))) then
      v_limited := tenure.claim_limited(p_worker, p_queues[i], v_want, v_kinds, p_solo_kinds);
      v_leases := v_leases || v_limited.leases;
      v_want := v_want - v_limited.jobs;
    end if;
    for j in 1 .. v_lanes loop
      exit when v_want <= 0;
      v_lane := p_lanes[j];
      v_at := (i - 1) * v_lanes + j;
      if v_lane = -1 then
        -- A suspect runs with no other suspect beside it on its worker.
        continue when not exists (select from tenure.ready r where r.queue = p_queues[i] and r.priority = -1)
          or exists (select from tenure.lease l where l.worker_id = p_worker and l.flags & 1 = 1);
      end if;
      v_rows := case when v_lane = -1 then 1 else v_want / 100 + 1 end;
      loop
        with picked as materialized (
          select r.id, r.mask, bit_count(r.mask)::integer as jobs
          from tenure.ready r
          where r.queue = p_queues[i] and r.priority = v_lane and r.id > p_after[v_at] and r.kind = any(v_kinds)
          order by r.id limit v_rows
          for update skip locked),
        sized as (
          select p.id, p.mask, p.jobs,
                 least(p.jobs, case v_lane when -1 then 1 else v_want end - (sum(p.jobs) over (order by p.id) - p.jobs))::integer as take
          from picked p),
        gone as (
          delete from tenure.ready r
          where r.queue = p_queues[i] and r.priority = v_lane
            and r.id >= (select min(p.id) from picked p) and r.id <= (select max(p.id) from picked p)
            and r.id = any(array(select s.id from sized s where s.take = s.jobs))
          returning r.id, r.kind, r.attempt, r.flags, r.block, r.mask),
        last as (
          select s.id, tenure.mask_first(s.mask, s.take) as mask from sized s where s.take > 0 and s.take < s.jobs),
        cut as (
          update tenure.ready r set mask = r.mask & ~ c.mask
          from last c
          where r.queue = p_queues[i] and r.priority = v_lane and r.id = (select l.id from last l) and r.id = c.id
          returning r.id, r.kind, r.attempt, r.flags, r.block, c.mask),
        taken as (
          select g.id, g.kind, g.attempt, g.flags, g.block, g.mask, (row_number() over (partition by g.kind, g.attempt, g.flags order by g.id) - 1) / c_pieces_max as part
          from (select n.id, n.kind, n.attempt, n.flags, n.block, n.mask from gone n union all select c.id, c.kind, c.attempt, c.flags, c.block, c.mask from cut c) g),
        leased as (
          insert into tenure.lease (worker_id, queue, kind, attempt, flags, leased_at, blocks, strip)
          select p_worker, p_queues[i], t.kind, t.attempt + 1, t.flags, v_now, array_agg(t.block order by t.id), tenure.join_bits(t.mask order by t.id)
          from taken t where t.kind <> all(p_solo_kinds) group by t.kind, t.attempt, t.flags, t.part
          union all
          select p_worker, p_queues[i], t.kind, t.attempt + 1, t.flags, v_now, array[t.block], tenure.mask_of(n.job_id)
          from taken t cross join lateral tenure.jobs_in(array[t.block], t.mask) n where t.kind = any(p_solo_kinds)
          returning id, bit_count(strip) as jobs)
        select array(select l.id from leased l order by l.id), (select sum(l.jobs) from leased l),
               (select max(g.id) from gone g), (select count(*) from picked),
               -- All that this worker can run is taken, whole: what stands there is of other kinds, or held, and is not walked over again and again.
               case when (select count(*) from picked) < v_rows and (select coalesce(sum(p.jobs), 0) from picked p) <= v_want then
                 (select r.id from tenure.ready r where r.queue = p_queues[i] and r.priority = v_lane and r.id > p_after[v_at] order by r.id desc limit 1)
               end
          into v_new, v_got, v_last, v_seen, v_end;
        p_after[v_at] := coalesce(greatest(v_last, v_end), p_after[v_at]);
        exit when v_got is null;
        v_leases := v_leases || v_new;
        v_want := v_want - v_got;
        exit when v_want <= 0 or v_seen < v_rows or v_lane = -1;
        v_rows := least(v_want, greatest(1, v_want * v_seen / v_got + 1));
      end loop;
      exit when v_want <= 0;
    end loop;
    if v_want > 0 then
      -- One look for all that stands under limits in this queue, and one for what concerns all queues.
      v_look_at := least((select n.look_at from tenure.nudge n where n.queue = p_queues[i] and (n.kind = '' or n.kind = any(v_kinds)) order by n.look_at, n.id limit 1),
                         (select n.look_at from tenure.nudge n where n.queue = '' order by n.look_at, n.id limit 1));
    end if;
    if v_want > 0 and v_look_at <= v_now then
      if v_limited is null then
        v_limited := tenure.claim_limited(p_worker, p_queues[i], v_want, v_kinds, p_solo_kinds);
        v_leases := v_leases || v_limited.leases;
        v_want := v_want - v_limited.jobs;
      end if;
      if v_limited.busy then
        v_look_ms := 2 + floor(random() * 4);
      else
        v_look_at := (select n.look_at from tenure.nudge n where n.queue = p_queues[i] and n.look_at > v_now and (n.kind = '' or n.kind = any(v_kinds)) order by n.look_at, n.id limit 1);
      end if;
    end if;
    if v_want > 0 and v_look_at between v_now and v_now + c_look_max then
      v_look_ms := least(v_look_ms, greatest(1, ceil(extract(epoch from v_look_at - clock_timestamp()) * 1000)));
    end if;
    if v_want <= 0 and p_wants[i] > 0 then
      perform tenure.wake_next(p_queues[i], p_worker);
    end if;
  end loop;

  if cardinality(v_leases) > 0 then
    return query
      select l.id, j.id, s.slot, l.queue, l.kind, l.attempt, j.max_attempts, j.timeout_ms, j.created_at,
             case when l.attempt = 1 and l.flags & 2 = 0 then greatest(j.created_at, j.run_at) end, j.idempotency_key, j.payload
      from unnest(v_leases) as v(id)
      join tenure.lease l on l.id = v.id
      cross join lateral tenure.pieces_of(l.blocks, l.strip) p
      join tenure.job j on j.id >= p.first_job and j.id <= p.last_job
      cross join lateral (select p.slot + (j.id & 127)::integer as slot) s
      where get_bit(l.strip, s.slot) = 1;
  end if;

  if p_low then
    if p_after <> v_from then
      -- There is something for the floors to follow, which they can do only behind a transaction id drawn after that scan.
      perform pg_current_xact_id();
    end if;
    for i in 1 .. cardinality(p_queues) loop
      if v_paused_kinds is not null then
        v_kinds := tenure.kinds_open(p_kinds, p_queues[i], v_paused_kinds, v_paused_in);
      end if;
      for j in 1 .. v_lanes loop
        v_at := (i - 1) * v_lanes + j;
        -- From where the pass started: a row that somebody holds and may give back was passed over just now.
        v_first[v_at] := tenure.first_ready(p_queues[i], p_lanes[j]::smallint, v_kinds, v_from[v_at]);
      end loop;
    end loop;
  end if;
  select greatest(0, ceil(extract(epoch from t.due_at - v_now) * 1000))::bigint into v_next_due_ms
    from tenure.later t where t.due_at > v_now order by t.due_at limit 1;
  select case when d.next_at not between v_now and v_now + interval '2 seconds' then 0 else ceil(extract(epoch from d.next_at - v_now) * 1000)::bigint end, d.few_workers
    into v_tick_in_ms, v_few_workers from tenure.duty d where d.name = 'tick' order by d.next_at desc limit 1;
  return query select null::bigint, null::bigint, null::integer, null::text, null::text, null::smallint, null::smallint,
    null::bigint, null::timestamptz, null::timestamptz, null::text,
    json_build_object('now_us', (extract(epoch from clock_timestamp()) * 1000000)::bigint, 'after', p_after, 'first', case when p_low then v_first end, 'xid', pg_current_xact_id_if_assigned()::text, 'xmin', v_xmin,
                      'next_due_ms', v_next_due_ms, 'paused', v_paused, 'paused_kinds', v_paused_kinds, 'paused_in', v_paused_in,
                      'tick_due', coalesce(v_tick_in_ms = 0, false), 'tick_in_ms', v_tick_in_ms, 'few_workers', coalesce(v_few_workers, false), 'look_ms', v_look_ms);
end $$;
