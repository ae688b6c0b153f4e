-- claim_fresh: the part of claim_limited for jobs that have just come. They are given out in their order, like those of a plain queue, as long as their buckets
-- have something for them. What has to wait, and what comes after jobs of its like that wait, moves to its line.
-- Parameters as claim_limited, under its book. p_back: the last priority comes first. look_at: more are left, to be looked at from then on.
-- Tables are read by look-ups along an index, and by arrays of ids: a plan that was made while they were small would walk through all of them.
create or replace function tenure.claim_fresh(p_worker bigint, p_queue text, p_want integer, p_kinds text[], p_solo_kinds text[], p_back boolean, p_now timestamptz,
                                   out leases bigint[], out jobs integer, out look_at timestamptz)
language plpgsql as $$
declare
  c_moved_max constant integer := 2000;   -- to their lines by one claim: the book is held meanwhile
  v_round record;
  v_moved integer := 0;
  v_asks integer := p_want;
  v_rows integer := p_want / greatest(1, coalesce((
    select max(x.jobs) from unnest(p_kinds) as k(kind)
    cross join lateral (select bit_count(r.mask)::integer as jobs from tenure.limited r where r.queue = p_queue and r.fresh = 1 and r.kind = k.kind order by r.lane, r.id limit 1) x), 1)) + 2;
begin
  leases := '{}';
  jobs := 0;
  loop
    v_round := tenure.fresh_round(p_worker, p_queue, p_want - jobs, v_asks, v_rows, p_kinds, p_solo_kinds, p_back, p_now);
    leases := leases || v_round.leases;
    jobs := jobs + v_round.jobs;
    v_moved := v_moved + v_round.moved;
    exit when jobs >= p_want;
    if v_moved >= c_moved_max then
      look_at := p_now;
      exit;
    end if;
    if v_round.jobs = 0 and v_round.moved = 0 then
      exit when not p_back;
      p_back := false;
    end if;
    -- Whatever is wanted: behind jobs that have to wait there may be some that can run.
    v_rows := least(2 * v_rows, c_moved_max - v_moved);
    v_asks := greatest(p_want - jobs, v_rows);
  end loop;
end $$;

-- fresh_round: one look at so many bundles that have just come, and at so many of their jobs, of which no more than p_want are given out. Returns also how many bundles moved to their lines.
create or replace function tenure.fresh_round(p_worker bigint, p_queue text, p_want integer, p_asks integer, p_rows integer, p_kinds text[], p_solo_kinds text[], p_back boolean, p_now timestamptz,
                                   out leases bigint[], out jobs integer, out moved integer)
language plpgsql as $$
declare
  v_ids bigint[];
  v_asks integer[];
  v_costs text[];
  v_lined boolean[];     -- others of its like wait already
  v_new bigint[];
  v_buckets text[];
  v_cost_at text[];
  v_fit record;
  v_takes integer[];
  v_taken record;
begin
  leases := '{}';
  jobs := 0;
  moved := 0;
  for i in 1 .. 2 loop
    select array_agg(s.id order by s.n), array_agg(case when s.is_lined then 0 else least(s.jobs, p_asks - s.before) end order by s.n), array_agg(s.costs order by s.n),
           array_agg(s.is_lined order by s.n), array_agg(s.buckets order by s.n), array_agg(s.cost_at order by s.n), array_agg(s.id) filter (where s.buckets is null)
      into v_ids, v_asks, v_costs, v_lined, v_buckets, v_cost_at, v_new
      from (select r.id, r.jobs, r.costs::text as costs, coalesce(l.gate <> -1, false) as is_lined, l.buckets::text as buckets, l.cost_at::text as cost_at, row_number() over w as n,
                   (sum(case when l.gate <> -1 then 0 else r.jobs end) over w - case when l.gate <> -1 then 0 else r.jobs end)::integer as before
            -- Behind rows that somebody cancels others are found.
            from (select x.id, x.line, x.rank, x.jobs, x.costs
                  from (select u.kind, case when p_back then (select m.lane from tenure.limited m where m.queue = p_queue and m.fresh = 1 and m.kind = u.kind order by m.lane desc, m.id desc limit 1) else 0 end as low
                        from unnest(p_kinds) as u(kind)) k
                  cross join lateral (
                    select y.id, y.line, case when p_back then - y.lane else y.lane end as rank, bit_count(y.mask)::integer as jobs, y.costs from tenure.limited y
                    where y.queue = p_queue and y.fresh = 1 and y.kind = k.kind and y.lane >= k.low order by y.lane, y.id limit p_rows for update skip locked) x
                  order by x.rank, x.id limit p_rows) r
            left join lateral (select z.gate, z.buckets, z.cost_at from tenure.line z where z.digest = r.line offset 0) l on true
            window w as (order by r.rank, r.id)) s
      where s.is_lined or s.before < p_asks;
    exit when v_new is null;
    -- Of these keys nothing was given out of late.
    perform tenure.make_idle_lines(v_new, p_now);
  end loop;
  if v_ids is null then
    return;
  end if;
  v_fit := tenure.fit(v_asks, v_buckets, v_cost_at, v_costs, p_now, true);
  v_takes := array(select greatest(0, least(t.take, p_want - (sum(t.take) over (order by t.n) - t.take)))::integer
                   from (select u.n, greatest(0, least(u.ask, u.fits)) as take from unnest(v_asks, v_fit.fits) with ordinality as u(ask, fits, n)) t order by t.n);
  if exists (select from unnest(v_takes) as u(take) where u.take > 0) then
    v_taken := tenure.take_limited(p_worker, p_queue, v_ids, v_takes, v_buckets, p_solo_kinds, p_now);
    leases := v_taken.leases;
    jobs := v_taken.jobs;
    perform tenure.charge(v_taken.counts, v_buckets, v_cost_at, v_costs, v_fit.rate_buckets, v_fit.rate_tokens, p_now);
  end if;
  if exists (select from unnest(v_lined, v_fit.closed_by) as u(lined, closed_by) where u.lined or u.closed_by is not null) then
    moved := tenure.put_in_lines(array(select u.id from unnest(v_ids, v_lined, v_fit.closed_by) as u(id, lined, closed_by) where u.lined or u.closed_by is not null), p_now);
    perform tenure.shut_lines(p_queue, array_agg(s.line), array_agg(s.closed_by), array_agg(s.closed_until), p_now)
      from (select distinct on (r.line) r.line, u.closed_by, u.closed_until
            from unnest(v_ids, v_lined, v_fit.closed_by, v_fit.closed_until) as u(id, lined, closed_by, closed_until)
            cross join lateral (select x.line from tenure.limited x where x.id = u.id and x.fresh + 0 = 0 offset 0) r
            where not u.lined and u.closed_by is not null order by r.line, u.closed_until desc) s;
  end if;
end $$;

-- under_buckets: where jobs are counted that stand under these limits and keys.
create or replace function tenure.under_buckets(p_under text[]) returns table (limit_name text, key text, cost_at smallint)
language sql immutable as $$
  select p_under[g.i], k.key, ((g.i + 1) / 2)::smallint
  from generate_series(1, cardinality(p_under), 2) as g(i) cross join lateral (select '' as key union all select p_under[g.i + 1] where p_under[g.i + 1] <> '') k
$$;

-- fit: how many of those that ask fit into their buckets, each behind those before it; null: it has none. Side by side: what is asked, the buckets, which
-- of the costs counts there (0: none), the costs. closed_by: the bucket that has nothing at all, until an instant or nobody knows when (infinity).
-- All of them null: there is enough for all. Returns also the tokens of the buckets that have a rate.
-- Tokens are saved up for whoever comes first and wants more than there are: nobody behind him takes any of them. p_fresh: those that ask have just come, and stand
-- behind all that wait at a gate for tokens.
create or replace function tenure.fit(p_asks integer[], p_buckets text[], p_cost_at text[], p_costs text[], p_now timestamptz, p_fresh boolean,
                           out fits double precision[], out closed_by bigint[], out closed_until timestamptz[], out rate_buckets bigint[], out rate_tokens double precision[])
language plpgsql stable as $$
declare
  v_buckets bigint[];
  v_places double precision[];
  v_tokens double precision[];
  v_per_ms double precision[];
  v_bursts double precision[];
  v_blocked timestamptz[];
  v_paces double precision[];
  v_gated boolean[];
  v_all boolean;
  v_missing bigint[];
begin
  with need as (
    select b.bucket, sum(a.ask) as jobs, sum(a.ask * coalesce(case when b.cost_at > 0 then (a.costs::integer[])[b.cost_at] end, 1)) as tokens
    from unnest(p_asks, p_buckets, p_cost_at, p_costs) as a(ask, buckets, cost_at, costs)
    cross join lateral unnest(a.buckets::bigint[], a.cost_at::smallint[]) as b(bucket, cost_at) group by b.bucket),
  state as materialized (
    select s.bucket, s.places, s.tokens, s.per_ms, s.burst, s.blocked_until, s.pace,
           p_fresh and s.per_ms is not null and (select count(*) from (select from tenure.nudge g where g.bucket = s.bucket limit 1) x) = 1 as is_gated
    from tenure.bucket_states(array(select x.bucket from need x), p_now) s)
  select array_agg(s.bucket), array_agg(s.places), array_agg(s.tokens), array_agg(s.per_ms), array_agg(s.burst), array_agg(s.blocked_until), array_agg(s.pace), array_agg(s.is_gated),
         bool_and(n.jobs <= s.places and n.tokens <= s.tokens and s.places >= 1 and s.tokens >= 1 and not s.is_gated and coalesce(s.blocked_until <= p_now, true)),
         array_agg(s.bucket) filter (where s.per_ms is not null), array_agg(s.tokens) filter (where s.per_ms is not null), array_agg(n.bucket) filter (where s.bucket is null)
    into v_buckets, v_places, v_tokens, v_per_ms, v_bursts, v_blocked, v_paces, v_gated, v_all, rate_buckets, rate_tokens, v_missing
    from need n left join state s on s.bucket = n.bucket;
  if v_missing is not null then
    -- To take it for one that bounds nothing would be worse than to give out nothing.
    raise exception 'tenure: lines name the buckets %, which are not there', v_missing using hint = 'Somebody has deleted rows of limit_bucket. Delete the lines that name them, from the table line, and set fresh to 2 in the rows of limited that wait in these.';
  end if;
  if coalesce(v_all, true) then
    -- There is enough for all: the usual case, in which nobody stands behind anybody.
    return;
  end if;
  with need as (
    select a.n, a.ask, b.bucket, coalesce(case when b.cost_at > 0 then (a.costs::integer[])[b.cost_at] end, 1)::float8 as cost
    from unnest(p_asks, p_buckets, p_cost_at, p_costs) with ordinality as a(ask, buckets, cost_at, costs, n)
    cross join lateral unnest(a.buckets::bigint[], a.cost_at::smallint[]) as b(bucket, cost_at)),
  state as (
    select s.bucket, s.places, s.tokens, s.per_ms, s.burst, s.blocked_until, s.pace, s.is_gated
    from unnest(v_buckets, v_places, v_tokens, v_per_ms, v_bursts, v_blocked, v_paces, v_gated) as s(bucket, places, tokens, per_ms, burst, blocked_until, pace, is_gated)),
  left_over as (
    select x.n, x.bucket, x.cost, s.places, s.tokens, s.per_ms, s.burst, s.blocked_until, s.pace, s.is_gated, max(least(x.cost, s.burst)) over w as most,
           s.places - (sum(x.ask) over w - x.ask) as places_left, s.tokens - (sum(x.ask * x.cost) over w - x.ask * x.cost) as tokens_left
    from need x join state s on s.bucket = x.bucket window w as (partition by x.bucket order by x.n)),
  fitting as (
    select o.n, o.bucket,
           -- A job that costs more than there can be takes all, and owes the rest.
           case when o.blocked_until > p_now or o.is_gated or o.tokens < o.most then 0 else
             least(o.places_left, case when o.per_ms is null then o.places_left when o.tokens_left >= least(o.cost, o.burst) then greatest(1, floor(o.tokens_left / o.cost)) else 0 end) end as fits,
           case when o.places < 1 then 'infinity'::timestamptz
                when o.blocked_until > p_now then o.blocked_until
                when o.tokens < o.most then tenure.wait_for_tokens(p_now, greatest(o.most, tenure.worth_while(o.per_ms, o.burst)) - o.tokens, o.per_ms, o.pace)
                when o.is_gated then tenure.wait_for_tokens(p_now, tenure.worth_while(o.per_ms, o.burst), o.per_ms, o.pace) end as closed_until
    from left_over o),
  bound as (
    select x.n, min(x.fits) as fits, (array_agg(x.bucket order by x.closed_until desc) filter (where x.closed_until is not null))[1] as closed_by, max(x.closed_until) as closed_until
    from fitting x group by x.n)
  select array_agg(b.fits order by u.n), array_agg(b.closed_by order by u.n), array_agg(b.closed_until order by u.n)
    into fits, closed_by, closed_until
    from generate_subscripts(p_asks, 1) as u(n) left join bound b on b.n = u.n;
end $$;

-- take_limited: leases so many jobs of each of these rows, which the caller has locked, side by side with their buckets. A lease is built from what the delete or the cut
-- returned. Returns the leases, the number of jobs, and of each row how many.
create or replace function tenure.take_limited(p_worker bigint, p_queue text, p_ids bigint[], p_takes integer[], p_buckets text[], p_solo_kinds text[], p_now timestamptz,
                                    out leases bigint[], out jobs integer, out counts integer[])
language plpgsql as $$
declare
  c_pieces_max constant integer := 64;
begin
  with asked as materialized (
    select u.id, u.take, u.buckets from unnest(p_ids, p_takes, p_buckets) as u(id, take, buckets) where u.take > 0),
  held as materialized (
    select r.id, r.mask, bit_count(r.mask)::integer as jobs from tenure.limited r where r.id = any(array(select a.id from asked a)) order by r.id),
  sized as materialized (
    select h.id, h.mask, h.jobs, least(h.jobs, a.take) as take, a.buckets from held h join asked a on a.id = h.id),
  gone as (
    delete from tenure.limited r where r.id = any(array(select s.id from sized s where s.take = s.jobs))
    returning r.id, r.kind, r.attempt, r.flags, r.block, r.mask),
  last as materialized (
    select s.id, tenure.mask_first(s.mask, s.take) as mask from sized s where s.take < s.jobs),
  cut as (
    update tenure.limited r set mask = r.mask & ~ l.mask from last l where r.id = any(array(select x.id from last x)) and r.id = l.id
    returning r.id, r.kind, r.attempt, r.flags, r.block, l.mask),
  taken as materialized (
    select g.id, g.kind, g.attempt, g.flags, g.block, g.mask, s.buckets, cardinality(s.buckets::bigint[]) as width
    from (select n.id, n.kind, n.attempt, n.flags, n.block, n.mask from gone n union all select c.id, c.kind, c.attempt, c.flags, c.block, c.mask from cut c) g
    join sized s on s.id = g.id),
  parted as (
    select t.id, t.kind, t.attempt, t.flags, t.block, t.mask, t.buckets, t.width,
           (row_number() over (partition by t.kind, t.attempt, t.flags, t.width order by t.id) - 1) / c_pieces_max as part from taken t),
  leased as (
    insert into tenure.lease (worker_id, queue, kind, attempt, flags, leased_at, blocks, strip, buckets)
    select p_worker, p_queue, t.kind, t.attempt + 1, t.flags, p_now, array_agg(t.block order by t.id), tenure.join_bits(t.mask order by t.id),
           case when min(t.buckets) = max(t.buckets) then min(t.buckets)::bigint[] else array_agg(t.buckets::bigint[] order by t.id) filter (where t.width > 0) end
    from parted t where t.kind <> all(p_solo_kinds) group by t.kind, t.attempt, t.flags, t.width, t.part
    union all
    select p_worker, p_queue, t.kind, t.attempt + 1, t.flags, p_now, array[t.block], tenure.mask_of(n.job_id), t.buckets::bigint[]
    from parted t cross join lateral tenure.jobs_in(array[t.block], t.mask) n where t.kind = any(p_solo_kinds)
    returning id, buckets),
  slotted as (
    insert into tenure.lease_slot (bucket_id, lease_id)
    select distinct b.bucket, l.id from leased l cross join lateral unnest(l.buckets) as b(bucket)),
  counted as materialized (
    select t.id, bit_count(t.mask)::integer as jobs from taken t)
  select array(select l.id from leased l order by l.id), (select coalesce(sum(c.jobs), 0) from counted c),
         (select array_agg(coalesce(c.jobs, 0) order by u.n) from unnest(p_ids) with ordinality as u(id, n) left join counted c on c.id = u.id)
    into leases, jobs, counts;
end $$;

-- charge: tokens of what was taken, from the buckets that have a rate.
create or replace function tenure.charge(p_counts integer[], p_buckets text[], p_cost_at text[], p_costs text[], p_rate_buckets bigint[], p_rate_tokens double precision[], p_now timestamptz) returns void
language plpgsql as $$
begin
  if p_rate_buckets is null then
    return;
  end if;
  with used as (
    select b.bucket, sum(a.jobs * coalesce(case when b.cost_at > 0 then (a.costs::integer[])[b.cost_at] end, 1)) as tokens
    from unnest(p_counts, p_buckets, p_cost_at, p_costs) as a(jobs, buckets, cost_at, costs)
    cross join lateral unnest(a.buckets::bigint[], a.cost_at::smallint[]) as b(bucket, cost_at)
    where a.jobs > 0 group by b.bucket)
  update tenure.limit_bucket k set tokens = s.tokens - u.tokens, filled_at = p_now
    from used u join unnest(p_rate_buckets, p_rate_tokens) as s(bucket, tokens) on s.bucket = u.bucket
    where k.id = any(p_rate_buckets) and k.id = u.bucket;
end $$;
