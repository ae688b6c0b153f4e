-- claim_lines: the part of claim_limited for jobs that wait in lines: for a bucket, for their turn, for those before them.
-- Parameters as claim_limited, under its book. p_back: within a line the last priority comes first. look_at: something is left to look at, from then on.
create or replace function tenure.claim_lines(p_worker bigint, p_queue text, p_want integer, p_kinds text[], p_solo_kinds text[], p_back boolean, p_now timestamptz,
                                   out leases bigint[], out jobs integer, out look_at timestamptz)
language plpgsql as $$
declare
  c_rounds constant integer := 8;
  c_held constant interval := '100 milliseconds';   -- until rows that somebody holds are looked at again
  v_round record;
begin
  leases := '{}';
  jobs := 0;
  if not exists (select from unnest(p_kinds) as k(kind)
                 cross join lateral (select from tenure.nudge n where n.queue = p_queue and n.kind = k.kind and n.look_at <= p_now limit 1) x) then
    return;
  end if;
  for i in 0 .. c_rounds loop
    exit when jobs >= p_want;
    if tenure.open_gates(p_queue, p_kinds, p_now, true) then
      look_at := p_now;
    end if;
    if i > 0 then
      v_round := tenure.lines_round(p_worker, p_queue, p_want - jobs, p_kinds, p_solo_kinds, 0, 4, p_back, p_now);
      look_at := least(look_at, v_round.look_at);
      exit when v_round.jobs = 0 and not v_round.shut and not v_round.lost;
      if i = c_rounds then
        look_at := least(look_at, case when v_round.jobs = 0 and not v_round.shut then p_now + c_held else p_now end);
      end if;
    -- A suspect runs alone, with no other suspect beside it on its worker.
    elsif exists (select from tenure.limited s where s.queue = p_queue and s.kind = any(p_kinds) and s.lane = -1)
          and not exists (select from tenure.lease l where l.worker_id = p_worker and l.flags & 1 = 1) then
      v_round := tenure.lines_round(p_worker, p_queue, 1, p_kinds, p_solo_kinds, -1, -1, false, p_now);
      look_at := least(look_at, v_round.look_at);
    else
      continue;
    end if;
    leases := leases || v_round.leases;
    jobs := jobs + v_round.jobs;
  end loop;
  perform tenure.open_gates(p_queue, p_kinds, p_now, false);
end $$;

-- lines_round: one look at the open lines in the order of their turns. Each is asked for what brings all of them to the same turn; gets no more than each of its
-- buckets has left behind those before it; and is shut when one of them has nothing at all. What a line could not use goes to others in the next round.
-- Returns the leases, the number of their jobs, whether a line was shut or is idle, whether one lost its turn, as somebody holds its rows, and when what was left out is to be looked at again.
create or replace function tenure.lines_round(p_worker bigint, p_queue text, p_want integer, p_kinds text[], p_solo_kinds text[], p_lane_low integer, p_lane_high integer,
                                   p_back boolean, p_now timestamptz, out leases bigint[], out jobs integer, out shut boolean, out lost boolean, out look_at timestamptz)
language plpgsql as $$
declare
  v_asked record;
  v_shut uuid[];
  v_shut_by bigint[];
  v_shut_until timestamptz[];
  v_fit record;
  v_grants integer[];
  v_rows record;         -- bundles of these lines, and what is taken of each
  v_taken record;
  v_counts integer[];
  v_turns integer[];
begin
  leases := '{}';
  jobs := 0;
  lost := false;
  v_asked := tenure.ask_lines(p_queue, p_want, p_kinds, p_lane_low, p_lane_high, p_back, p_now);
  v_shut := v_asked.shut;
  v_shut_by := v_asked.shut_by;
  v_shut_until := v_asked.shut_until;
  if v_asked.lines is not null then
    v_fit := tenure.fit(v_asked.asks, v_asked.buckets, v_asked.cost_at, v_asked.costs, p_now, false);
    v_grants := array(select greatest(0, least(u.ask, u.fits))::integer from unnest(v_asked.asks, v_fit.fits) with ordinality as u(ask, fits, n) order by u.n);
    if array_remove(v_asked.heads, null) <> '{}' then
      -- Whoever ended a head since its line was looked at has freed its place, which was counted as free; what came back or came in before that is visible now.
      v_grants := array(
        select case when (select count(*) from (select from tenure.limited x where x.order_key = u.order_key and (x.lane, x.place) < (u.lane, u.place) limit 1) y) = 1 then 0 else u."grant" end
        from unnest(v_grants, v_asked.order_keys, v_asked.lanes, v_asked.places) with ordinality as u("grant", order_key, lane, place, n) order by u.n);
      if exists (select from unnest(v_grants, v_asked.asks, v_fit.fits, v_asked.heads) as u("grant", ask, fits, head) where u.head is not null and u."grant" = 0 and least(u.ask, u.fits) > 0) then
        look_at := p_now;
      end if;
    end if;
    select v_shut || array_agg(u.line), v_shut_by || array_agg(u.closed_by), v_shut_until || array_agg(u.closed_until) into v_shut, v_shut_by, v_shut_until
      from unnest(v_asked.lines, v_fit.closed_by, v_fit.closed_until) as u(line, closed_by, closed_until) where u.closed_by is not null;
    select array_agg(s.id order by s.n, s.id) as ids, array_agg(s.take order by s.n, s.id) as takes, array_agg(s.n order by s.n, s.id) as lines, array_agg(v_asked.buckets[s.n] order by s.n, s.id) as buckets,
           array_agg(v_asked.cost_at[s.n] order by s.n, s.id) as cost_at, array_agg(v_asked.costs[s.n] order by s.n, s.id) as costs
      into v_rows
      from (select p.n, p.id, least(p.jobs, p.grant - p.before)::integer as take
            from (select q.n, q.id, q.jobs, q.grant, sum(q.jobs) over w - q.jobs as before,
                         -- What costs otherwise is for a round of its own.
                         bool_and(q.costs is not distinct from v_asked.costs[q.n]) over w as is_alike
                  from (select g.n, g.grant, r.id, r.lane, r.place, r.jobs, r.costs
                        from unnest(v_asked.lines, v_grants, v_asked.heads, v_asked.sizes, v_asked.lanes) with ordinality as g(line, "grant", head, size, lane, n)
                        -- Behind rows that somebody cancels others are found.
                        cross join lateral (
                          select x.id, x.lane, x.place, bit_count(x.mask)::integer as jobs, x.costs::text as costs from tenure.limited x
                          where x.line = g.line and x.fresh = 0 and x.lane between g.lane and p_lane_high and (g.head is null or x.id = g.head)
                          order by x.lane, x.place, x.id limit least(g.grant, g.grant / g.size + 2) for update skip locked) r
                        where g.grant > 0) q
                  window w as (partition by q.n order by q.lane, q.place, q.id)) p
            where p.is_alike and p.before < p.grant) s;
    if v_rows.ids is not null then
      v_taken := tenure.take_limited(p_worker, p_queue, v_rows.ids, v_rows.takes, v_rows.buckets, p_solo_kinds, p_now);
      leases := v_taken.leases;
      jobs := v_taken.jobs;
      v_counts := v_taken.counts;
      perform tenure.charge(v_counts, v_rows.buckets, v_rows.cost_at, v_rows.costs, v_fit.rate_buckets, v_fit.rate_tokens, p_now);
    end if;
    -- A line of which somebody holds every row loses its turn, so that it keeps no other from having one.
    select array_agg(case when g.grant > 0 then coalesce(t.jobs, 1) else 0 end::integer order by g.n), coalesce(bool_or(g.grant > 0 and t.jobs is null), false)
      into v_turns, lost
      from unnest(v_grants) with ordinality as g("grant", n)
      left join (select u.n, nullif(sum(u.jobs), 0) as jobs from unnest(v_rows.lines, v_counts) as u(n, jobs) group by u.n) t on t.n = g.n;
    perform tenure.move_turns(p_queue, v_asked.lines, v_turns);
  end if;

  update tenure.line l set gate = -1 where l.digest = any(v_asked.lines || v_asked.empty) and (select count(*) from (select from tenure.limited r where r.line = l.digest and r.fresh = 0 limit 1) x) = 0;
  shut := found or v_shut is not null;
  perform tenure.shut_lines(p_queue, v_shut, v_shut_by, v_shut_until, p_now);
end $$;

-- ask_lines: the open lines whose turn it is, and side by side with them what each is asked for, its head if nothing else may be given out (it keeps an order), jobs, lane and place of its
-- first bundle, the order key, buckets and costs; the lines that have to wait, for what and until when; and those in which nothing waits.
create or replace function tenure.ask_lines(p_queue text, p_want integer, p_kinds text[], p_lane_low integer, p_lane_high integer, p_back boolean, p_now timestamptz,
                                 out lines uuid[], out asks integer[], out heads bigint[], out sizes integer[], out lanes smallint[], out places bigint[], out order_keys text[],
                                 out buckets text[], out cost_at text[], out costs text[],
                                 out shut uuid[], out shut_by bigint[], out shut_until timestamptz[], out empty uuid[])
language plpgsql as $$
#variable_conflict use_column
declare
  c_unlined constant interval := '50 milliseconds';   -- until what somebody holds is looked for again
begin
  with open as (
    -- Who had to wait for a bucket has no turns in store.
    select l.digest as id, greatest(l.pass, c.pass) as pass, l.share, l.fair_key, l.order_bucket, l.order_key, l.buckets, l.cost_at, l.head, l.lane, l.place, l.costs, l.due_at, l.jobs
    from tenure.line_clock c cross join unnest(p_kinds) as k(kind)
    cross join lateral (
      select x.digest, x.pass, x.share, x.fair_key, x.order_bucket, x.order_key, x.buckets, x.cost_at, h.id as head, h.lane, h.place, h.costs, h.due_at, h.jobs
      from tenure.line x
      left join lateral (
        select r.id, r.lane, r.place, r.costs, r.due_at, bit_count(r.mask)::integer as jobs from tenure.limited r
        where r.line = x.digest and r.fresh = 0
          and r.lane between case when x.order_bucket is not null then -1
                                  when p_back then (select m.lane from tenure.limited m where m.line = x.digest and m.fresh = 0 order by m.lane desc, m.place desc, m.id desc limit 1)
                                  else p_lane_low end
                     and case when x.order_bucket is null then p_lane_high else 4 end
        order by r.lane, r.place, r.id limit 1) h on true
      where x.queue = p_queue and x.kind = k.kind and x.gate = 0
        -- What is for another round has no part in this one; what has nothing becomes idle.
        and (h.lane between p_lane_low and p_lane_high or h.id is null and (select count(*) from (select from tenure.limited s where s.line = x.digest and s.fresh = 0 limit 1) y) = 0)
      order by x.pass limit p_want) l
    where c.queue = p_queue
    order by l.pass, l.place, l.digest limit p_want),
  headed as materialized (
    select o.id, o.pass, o.share, o.fair_key, o.order_bucket, o.order_key, o.buckets, o.cost_at, o.head, o.lane, o.place, o.costs, o.due_at, o.jobs,
           o.order_bucket is not null and exists (
             select from tenure.line s
             cross join lateral (select r.lane, r.place from tenure.limited r where r.line = s.digest and r.fresh = 0 order by r.lane, r.place, r.id limit 1) f
             where s.order_bucket = o.order_bucket and s.digest <> o.id and (f.lane, f.place) < (o.lane, o.place)) as is_behind,
           -- It has not been seen by a claim yet, or somebody holds it.
           (select count(*) from (select from tenure.limited u where u.order_key = o.order_key and (u.lane, u.place) < (o.lane, o.place) limit 1) y) = 1 as is_unlined
    from open o),
  able as materialized (
    select h.id, h.pass, h.order_bucket, h.order_key, h.buckets, h.cost_at, h.head, h.lane, h.place, h.costs, h.jobs,
           -- Of those with the same turn the oldest comes first.
           row_number() over (order by h.pass, h.place, h.id) as n,
           -- The lines of one key have one share together.
           h.share / count(*) over (partition by h.fair_key, case when h.fair_key is null then h.id end) as share
    from headed h
    where h.head is not null and not h.is_behind and not h.is_unlined and coalesce(h.due_at <= p_now, true)),
  summed as (
    select a.n, sum(a.share) over w as shares, sum(a.pass * a.share) over w as weighed, lead(a.pass) over w as next_pass from able a window w as (order by a.n)),
  level as materialized (
    select (p_want + s.weighed) / s.shares as pass from summed s where s.next_pass is null or s.next_pass >= (p_want + s.weighed) / s.shares order by s.n limit 1),
  wished as (
    select a.n, a.id, a.order_bucket, a.order_key, a.buckets, a.cost_at, a.head, a.lane, a.place, a.costs, a.jobs,
           case when a.order_bucket is not null then 1 else greatest(0, least(p_want, ceil(((select v.pass from level v) - a.pass) * a.share)))::integer end as wish from able a),
  asked as materialized (
    select w.n, w.id, w.order_bucket, w.order_key, w.buckets, w.cost_at, w.head, w.lane, w.place, w.costs, w.jobs, least(w.wish, p_want - (sum(w.wish) over (order by w.n) - w.wish))::integer as ask from wished w),
  waiting as (
    select h.id, h.order_bucket, case when h.is_behind then 'infinity' when h.is_unlined then p_now + c_unlined else h.due_at end as until
    from headed h where h.head is not null and (h.is_behind or h.is_unlined or h.due_at > p_now))
  select (select array_agg(a.id order by a.n) from asked a where a.ask > 0), (select array_agg(a.ask order by a.n) from asked a where a.ask > 0),
         (select array_agg(case when a.order_bucket is not null then a.head end order by a.n) from asked a where a.ask > 0), (select array_agg(a.jobs order by a.n) from asked a where a.ask > 0),
         (select array_agg(a.lane order by a.n) from asked a where a.ask > 0), (select array_agg(a.place order by a.n) from asked a where a.ask > 0),
         (select array_agg(a.order_key order by a.n) from asked a where a.ask > 0),
         (select array_agg(a.buckets::text order by a.n) from asked a where a.ask > 0), (select array_agg(a.cost_at::text order by a.n) from asked a where a.ask > 0),
         (select array_agg(a.costs::text order by a.n) from asked a where a.ask > 0),
         (select array_agg(w.id order by w.id) from waiting w), (select array_agg(w.order_bucket order by w.id) from waiting w), (select array_agg(w.until order by w.id) from waiting w),
         (select array_agg(h.id) from headed h where h.head is null)
    into lines, asks, heads, sizes, lanes, places, order_keys, buckets, cost_at, costs, shut, shut_by, shut_until, empty;
end $$;

-- move_turns: what was taken from lines moves their turns; what was taken from any of a key's lines moves all of them, of whatever kinds and under whatever limits.
create or replace function tenure.move_turns(p_queue text, p_lines uuid[], p_jobs integer[]) returns void
language plpgsql as $$
declare
  v_keys text[];
  v_passes double precision[];
begin
  update tenure.line_clock c set pass = greatest(c.pass, x.pass)
    from (select min(l.pass) as pass from tenure.line l where l.digest = any(p_lines)) x where c.queue = p_queue and c.pass < x.pass;
  update tenure.line l set pass = greatest(l.pass, c.pass) + t.jobs / l.share
    from unnest(p_lines, p_jobs) as t(line, jobs) cross join (select k.pass from tenure.line_clock k where k.queue = p_queue) c
    where l.digest = any(p_lines) and l.digest = t.line and l.fair_key is null and t.jobs > 0;
  select array_agg(m.fair_key), array_agg(m.pass) into v_keys, v_passes
    from (select l.fair_key, greatest(max(l.pass), max(c.pass)) + sum(t.jobs / l.share) as pass
          from unnest(p_lines, p_jobs) as t(line, jobs) cross join (select k.pass from tenure.line_clock k where k.queue = p_queue) c
          cross join lateral (select x.fair_key, x.share, x.pass from tenure.line x where x.digest = t.line offset 0) l
          where l.fair_key is not null and t.jobs > 0 group by l.fair_key) m;
  if v_keys is not null then
    update tenure.line s set pass = m.pass from unnest(v_keys, v_passes) as m(fair_key, pass)
      where s.fair_key is not null and s.fair_key = any(v_keys) and s.queue || '' = p_queue and s.fair_key = m.fair_key and s.pass < m.pass;
  end if;
end $$;
