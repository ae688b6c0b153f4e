-- claim_limited: the part of a claim that gives out jobs which stand under limits. Transition: limited -> lease (running).
-- Parameters: as claim, for one queue; p_kinds are those that are open. Returns the new leases, the number of their jobs, and busy: somebody else is at it,
-- so that it is worth while to come again in a moment.
-- Locks: the book, a transaction-level advisory lock that is never waited for. Whoever holds it, and nobody else, writes line, limit_bucket, lease_slot and
-- line_clock and takes rows from nudge. What it reads is what the holder before it committed, so that no two claims count the same place or token as free.
-- Rows of limited are skipped where somebody cancels them.
create or replace function tenure.claim_limited(p_worker bigint, p_queue text, p_want integer, p_kinds text[], p_solo_kinds text[],
                                     out leases bigint[], out jobs integer, out busy boolean)
language plpgsql set enable_sort = off set enable_bitmapscan = off as $$
declare
  c_rounds constant integer := 8;
  v_now timestamptz;
  v_round record;
begin
  leases := '{}';
  jobs := 0;
  busy := not pg_try_advisory_xact_lock(tenure.lock_class(), -4);
  if busy then
    return;
  end if;
  -- With a snapshot from before the lock it would count what others have taken since as free.
  if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    perform tenure.refuse('TN002', format('jobs under limits cannot be claimed in a transaction that is %s', current_setting('transaction_isolation')), 'Claim under read committed.');
  end if;
  v_now := clock_timestamp();
  perform tenure.fold_nudges(p_queue, p_kinds, v_now);
  for i in 0 .. c_rounds loop
    exit when jobs >= p_want;
    perform tenure.open_gates(p_queue, p_kinds, v_now, true);
    if i > 0 then
      v_round := tenure.limited_round(p_worker, p_queue, p_want - jobs, p_kinds, p_solo_kinds, 0, 4, v_now);
      exit when v_round.jobs = 0 and not v_round.shut;
    -- A suspect runs alone, with no other suspect beside it on its worker.
    elsif exists (select from tenure.limited s where s.queue = p_queue and s.kind = any(p_kinds) and s.lane = -1)
          and not exists (select from tenure.lease l where l.worker_id = p_worker and l.flags & 1 = 1) then
      v_round := tenure.limited_round(p_worker, p_queue, 1, p_kinds, p_solo_kinds, -1, -1, v_now);
    else
      continue;
    end if;
    leases := leases || v_round.leases;
    jobs := jobs + v_round.jobs;
  end loop;
  perform tenure.open_gates(p_queue, p_kinds, v_now, false);
  perform tenure.note_open(p_queue, p_kinds);
end $$;

-- fold_nudges: what has happened since the last claim: lines that are new, places that came free, limits that were throttled.
create or replace function tenure.fold_nudges(p_queue text, p_kinds text[], p_now timestamptz) returns void
language plpgsql as $$
declare
  c_rows constant integer := 2000;
  v_lines json[];
  v_freed bigint[];
  v_throttles json[];
  v_woken bigint;
begin
  with due as materialized (
    select n.id from tenure.nudge n where n.queue = any(array[p_queue, '']) and n.look_at <= p_now and n.bucket is null order by n.look_at, n.id limit c_rows),
  gone as (
    delete from tenure.nudge n where n.id = any(array(select d.id from due d)) returning n.id, n.queue, n.kind, n.line, n.limits, n.buckets, n.throttle)
  select (select array_agg(json_build_object('line', x.line, 'queue', x.queue, 'kind', x.kind, 'limits', x.limits) order by x.id)
          from (select distinct on (g.line) g.id, g.line, g.queue, g.kind, g.limits from gone g where g.line is not null order by g.line, g.id desc) x),
         (select array_agg(distinct u.bucket) from gone g cross join lateral unnest(g.buckets) as u(bucket)),
         (select array_agg(g.throttle order by g.id) from gone g where g.throttle is not null)
    into v_lines, v_freed, v_throttles;
  perform tenure.fold_throttle(u.throttle, p_now) from unnest(v_throttles) as u(throttle);
  if v_lines is not null then
    perform tenure.make_lines(v_lines, p_now);
  end if;
  if v_freed is not null then
    -- The counts that follow read no leases that have gone.
    delete from tenure.lease_slot t where t.bucket_id = any(v_freed) and (select count(*) from tenure.lease l where l.id = t.lease_id) = 0;
    with opened as (
      update tenure.nudge n set look_at = p_now where n.bucket = any(v_freed) and n.bucket > 0 and n.look_at > p_now returning n.queue, n.kind)
    select count(tenure.wake_one(o.queue)) into v_woken from (select distinct x.queue from opened x where x.queue <> p_queue or x.kind <> all(p_kinds)) o;
  end if;
end $$;

-- make_lines: the lines that do not exist yet, with the buckets that they need. One that exists learns its present weight; an ordered one is looked at
-- anew, for what came may be its head.
create or replace function tenure.make_lines(p_lines json[], p_now timestamptz) returns void
language plpgsql as $$
declare
  v_ids constant uuid[] := array(select (x.entry ->> 'line')::uuid from unnest(p_lines) as x(entry));
  v_known uuid[];
  v_fair text[];
begin
  v_known := array(select l.id from tenure.line l where l.id = any(v_ids));
  update tenure.line l set share = x.share, steps_aside = x.aside
    from (select (e.entry ->> 'line')::uuid as id, coalesce((e.entry -> 'limits' ->> 'share')::float8, 1) as share, coalesce(e.entry -> 'limits' ->> 'failing' = 'aside', false) as aside
          from unnest(p_lines) as e(entry)) x
    where l.id = any(v_known) and l.id = x.id and (l.share, l.steps_aside) is distinct from (x.share, x.aside);
  p_lines := array(select x.entry from unnest(p_lines) as x(entry) where (x.entry ->> 'line')::uuid <> all(v_known) or x.entry -> 'limits' ->> 'order' is not null);
  if cardinality(p_lines) = 0 then
    return;
  end if;
  insert into tenure.limit_bucket (limit_name, key, filled_at)
    select distinct w.limit_name, w.key, p_now from unnest(p_lines) as x(entry) cross join lateral tenure.buckets_wanted(x.entry ->> 'queue', x.entry -> 'limits') w
    on conflict do nothing;
  insert into tenure.line_clock (queue, pass) select distinct x.entry ->> 'queue', 0 from unnest(p_lines) as x(entry) on conflict do nothing;
  insert into tenure.line as l (id, queue, kind, fair_key, share, order_bucket, steps_aside, buckets, cost_at, pass)
    select (x.entry ->> 'line')::uuid, x.entry ->> 'queue', x.entry ->> 'kind', x.entry -> 'limits' ->> 'fair', coalesce((x.entry -> 'limits' ->> 'share')::float8, 1),
           b.order_bucket, coalesce(x.entry -> 'limits' ->> 'failing' = 'aside', false), b.buckets, b.cost_at,
           (select c.pass from tenure.line_clock c where c.queue = x.entry ->> 'queue')
    from unnest(p_lines) as x(entry)
    cross join lateral (
      select coalesce(array_agg(k.id order by k.id), '{}') as buckets, coalesce(array_agg(w.cost_at order by k.id), '{}') as cost_at, max(k.id) filter (where w.limit_name = '') as order_bucket
      from tenure.buckets_wanted(x.entry ->> 'queue', x.entry -> 'limits') w
      cross join lateral (select y.id from tenure.limit_bucket y where y.limit_name = w.limit_name and y.key = w.key offset 0) k) b
    where (x.entry ->> 'line')::uuid <> all(v_known)
    on conflict (id) do nothing;
  -- A key that has jobs of another kind, or under other limits, has had its turns.
  v_fair := array(select distinct x.entry -> 'limits' ->> 'fair' from unnest(p_lines) as x(entry) where x.entry -> 'limits' ->> 'fair' is not null);
  if cardinality(v_fair) > 0 then
    with had as materialized (
      select s.queue, s.fair_key, max(s.pass) as pass from tenure.line s where s.fair_key is not null and s.fair_key = any(v_fair) group by s.queue, s.fair_key)
    update tenure.line l set pass = h.pass from had h
      where l.id = any(v_ids) and l.id <> all(v_known) and h.queue = l.queue and h.fair_key = l.fair_key and l.pass < h.pass;
  end if;
  with reopened as (
    update tenure.line s set gate = 0
      where s.gate <> 0 and s.order_bucket is not null
        and s.order_bucket = any(array(select l.order_bucket from tenure.line l where l.id = any(v_ids) and l.order_bucket is not null))
      returning s.queue, s.kind)
  insert into tenure.nudge (queue, kind, look_at, bucket)
    select distinct o.queue, o.kind, timestamptz '-infinity', 0
    from (select x.entry ->> 'queue' as queue, x.entry ->> 'kind' as kind from unnest(p_lines) as x(entry) union all select r.queue, r.kind from reopened r) o
    on conflict (bucket, queue, kind) where bucket is not null do nothing;
end $$;

-- buckets_wanted: where a job under these limits is counted.
create or replace function tenure.buckets_wanted(p_queue text, p_limits json) returns table (limit_name text, key text, cost_at smallint)
language sql immutable as $$
  select u.entry ->> 'limit', k.key, u.o::smallint
  from json_array_elements(p_limits -> 'under') with ordinality as u(entry, o)
  cross join lateral (select '' as key union all select u.entry ->> 'key' where u.entry ->> 'key' is not null) k
  union all
  select '', p_queue || E'\n' || (p_limits ->> 'order'), 0::smallint where p_limits ->> 'order' is not null
$$;

-- fold_throttle: the rate is halved, once a second at most, and nothing starts before the instant.
create or replace function tenure.fold_throttle(p_throttle json, p_now timestamptz) returns void
language plpgsql as $$
declare
  c_pace_min constant double precision := 1.0 / 64;
  v_until constant timestamptz := (p_throttle ->> 'until')::timestamptz;
  v_at constant timestamptz := (p_throttle ->> 'at')::timestamptz;
begin
  insert into tenure.limit_bucket (limit_name, key, filled_at) values (p_throttle ->> 'limit', coalesce(p_throttle ->> 'key', ''), p_now) on conflict do nothing;
  update tenure.limit_bucket b
    set blocked_until = greatest(b.blocked_until, v_until), tokens = 1, filled_at = greatest(b.blocked_until, v_until),
        pace = case when b.paced_at > v_at - interval '1 second' then b.pace else greatest(c_pace_min, tenure.pace_at(b.pace, b.paced_at, v_at) / 2) end,
        paced_at = case when b.paced_at > v_at - interval '1 second' then b.paced_at else v_at end
    where b.limit_name = p_throttle ->> 'limit' and b.key = coalesce(p_throttle ->> 'key', '');
end $$;

-- pace_at: what part of the rate holds: a tenth more every 10 s, up to all of it.
create or replace function tenure.pace_at(p_pace double precision, p_since timestamptz, p_at timestamptz) returns double precision
language sql immutable as $$
  select least(1, p_pace + 0.1 * greatest(0, floor(coalesce(extract(epoch from p_at - p_since), 0) / 10)))::double precision
$$;

-- bucket_states: what is free in these buckets: places (infinity: no bound), tokens (infinity: no bound), how many of them come in a millisecond, and how
-- many there can be. Places in use are the jobs of leases, so that none is lost with whoever held it. A rate runs at the pace of when tokens were last
-- counted, which is never more than that of now.
create or replace function tenure.bucket_states(p_buckets bigint[], p_now timestamptz)
returns table (bucket bigint, places double precision, tokens double precision, per_ms double precision, burst double precision, blocked_until timestamptz, pace double precision, is_order boolean)
language plpgsql stable rows 100 as $$
begin
  return query
  select b.id,
         case when s.concurrency is null then 'infinity'::float8
              else s.concurrency - coalesce((select sum(bit_count(l.strip)) from tenure.lease_slot t
                                             cross join lateral (select x.strip from tenure.lease x where x.id = t.lease_id offset 0) l where t.bucket_id = b.id), 0)::float8 end,
         case when s.per_ms is null then 'infinity'::float8
              else least(s.burst, coalesce(b.tokens, s.burst) + greatest(0, extract(epoch from p_now - b.filled_at)::float8 * 1000) * s.per_ms) end,
         s.per_ms, s.burst, b.blocked_until, tenure.pace_at(b.pace, b.paced_at, p_now), b.limit_name = ''
  from unnest(p_buckets) as u(id)
  cross join lateral (select x.* from tenure.limit_bucket x where x.id = u.id offset 0) b
  left join tenure.limit_rule r on r.name = b.limit_name
  cross join lateral (
    select case when b.limit_name = '' then 1 when b.key = '' then r.concurrency else r.key_concurrency end as concurrency,
           case when b.key = '' then r.rate::float8 / r.period_ms else r.key_rate::float8 / r.key_period_ms end * tenure.pace_at(b.pace, b.paced_at, b.filled_at) as per_ms,
           case when b.key = '' then r.burst else r.key_burst end::float8 as burst) s;
end $$;

-- open_gates: lines that wait for a bucket which may have something again are opened, in the order of their turns, as many as it has places or tokens for. A gate without
-- lines goes. p_open false: only says when to look again.
create or replace function tenure.open_gates(p_queue text, p_kinds text[], p_now timestamptz, p_open boolean) returns void
language plpgsql as $$
declare
  c_gates constant integer := 200;
  c_all constant integer := 1000000;
  v_gate record;
  v_opened bigint;
  v_open boolean := false;
begin
  for v_gate in
    with due as materialized (
      select n.id, n.kind, n.bucket from tenure.nudge n
      where n.queue = p_queue and n.look_at <= p_now and n.bucket > 0 and n.kind = any(p_kinds) order by n.look_at, n.id limit c_gates)
    select d.id, d.kind, d.bucket, s.is_order,
           case when s.blocked_until > p_now or s.places < 1 or s.tokens < 1 then 0 when s.is_order then c_all else least(s.places, floor(s.tokens), c_all) end::integer as room,
           case when s.places < 1 then 'infinity' when s.blocked_until > p_now then s.blocked_until
                when s.tokens < 1 then p_now + (1 - s.tokens) / s.per_ms * interval '1 millisecond' else p_now end as look_at
    from due d left join tenure.bucket_states(array(select distinct x.bucket from due x), p_now) s on s.bucket = d.bucket
    order by d.id
  loop
    if v_gate.room > 0 and p_open then
      update tenure.line l set gate = 0
        where l.id = any(array(select x.id from tenure.line x where x.queue = p_queue and x.kind = v_gate.kind and x.gate = v_gate.bucket order by x.pass, x.id limit v_gate.room));
      v_open := true;
    end if;
    if not exists (select from tenure.line x where x.queue = p_queue and x.kind = v_gate.kind and x.gate = v_gate.bucket) then
      delete from tenure.nudge n where n.id = v_gate.id;
    elsif v_gate.look_at > p_now then
      update tenure.nudge n set look_at = v_gate.look_at where n.id = v_gate.id;
    end if;
  end loop;
end $$;

-- note_open: as long as lines of a kind are open, claims find something to look at.
create or replace function tenure.note_open(p_queue text, p_kinds text[]) returns void
language plpgsql as $$
begin
  delete from tenure.nudge n
    where n.bucket = 0 and n.queue = p_queue and n.kind = any(p_kinds)
      and not exists (select from tenure.line l where l.queue = p_queue and l.kind = n.kind and l.gate = 0);
  insert into tenure.nudge (queue, kind, look_at, bucket)
    select p_queue, k.kind, '-infinity', 0 from unnest(p_kinds) as k(kind)
    where exists (select from tenure.line l where l.queue = p_queue and l.kind = k.kind and l.gate = 0)
      and not exists (select from tenure.nudge n where n.bucket = 0 and n.queue = p_queue and n.kind = k.kind)
    on conflict (bucket, queue, kind) where bucket is not null do nothing;
end $$;

-- Tables are read by lateral look-ups along an index, and never joined: a plan that was made while they were small would walk through all of them.
-- limited_round: one look at the open lines in the order of their turns. Each is asked for what brings all of them to the same turn; gets no more than each of its
-- buckets has left behind those before it; and is shut when one of them has nothing at all. What a line could not use goes to others in the next round.
-- Returns the leases, the number of their jobs, and whether a line was shut or removed.
create or replace function tenure.limited_round(p_worker bigint, p_queue text, p_want integer, p_kinds text[], p_solo_kinds text[], p_lane_low integer, p_lane_high integer,
                                     p_now timestamptz, out leases bigint[], out jobs integer, out shut boolean)
language plpgsql as $$
declare
  c_pieces_max constant integer := 64;
  v_lines uuid[];
  v_grants integer[];
  v_rows integer[];
  v_heads bigint[];
  v_shut uuid[];
  v_shut_by bigint[];
  v_shut_until timestamptz[];
  v_empty uuid[];
  v_buckets bigint[];
  v_tokens double precision[];
  v_taken uuid[];
  v_counts integer[];
  v_costs text[];
begin
  with open as (
    -- Who had to wait for a bucket has no turns in store.
    select l.id, greatest(l.pass, c.pass) as pass, l.share, l.order_bucket, l.buckets, l.cost_at
    from tenure.line_clock c cross join unnest(p_kinds) as k(kind)
    cross join lateral (
      select x.id, x.pass, x.share, x.order_bucket, x.buckets, x.cost_at from tenure.line x
      where x.queue = p_queue and x.kind = k.kind and x.gate = 0
        and (p_lane_low >= 0 or exists (select from tenure.limited s where s.line = x.id and s.lane = -1))
      order by x.pass, x.id limit p_want) l
    where c.queue = p_queue
    order by l.pass, l.id limit p_want),
  headed as materialized (
    select o.id, o.pass, o.share, o.order_bucket, o.buckets, o.cost_at, h.id as head, h.costs, h.due_at, h.jobs, h.lane between p_lane_low and p_lane_high as is_here,
           o.order_bucket is not null and exists (
             select from tenure.line s
             cross join lateral (select r.lane, r.place from tenure.limited r where r.line = s.id order by r.lane, r.place, r.id limit 1) f
             where s.order_bucket = o.order_bucket and s.id <> o.id and (f.lane, f.place) < (h.lane, h.place)) as is_behind
    from open o
    left join lateral (
      select r.id, r.lane, r.place, r.costs, r.due_at, bit_count(r.mask)::integer as jobs from tenure.limited r
      where r.line = o.id and (r.lane between p_lane_low and p_lane_high or o.order_bucket is not null) order by r.lane, r.place, r.id limit 1) h on true),
  able as (
    select h.*, row_number() over (order by h.pass, h.id) as n from headed h
    where h.head is not null and h.is_here and not h.is_behind and coalesce(h.due_at <= p_now, true)),
  summed as (
    select a.n, sum(a.share) over w as shares, sum(a.pass * a.share) over w as weighed, lead(a.pass) over w as next_pass from able a window w as (order by a.n)),
  level as (
    select (p_want + s.weighed) / s.shares as pass from summed s where s.next_pass is null or s.next_pass >= (p_want + s.weighed) / s.shares order by s.n limit 1),
  wished as (
    select a.*, case when a.order_bucket is not null then 1 else greatest(0, least(p_want, ceil((v.pass - a.pass) * a.share)))::integer end as wish from able a cross join level v),
  asked as materialized (
    select w.*, least(w.wish, p_want - (sum(w.wish) over (order by w.n) - w.wish))::integer as ask from wished w),
  need as (
    select a.n, a.ask, b.bucket, coalesce(case when b.cost_at > 0 then a.costs[b.cost_at] end, 1)::float8 as cost
    from asked a cross join lateral unnest(a.buckets, a.cost_at) as b(bucket, cost_at) where a.ask > 0),
  state as materialized (
    select s.bucket, s.places, s.tokens, s.per_ms, s.burst, s.blocked_until from tenure.bucket_states(array(select distinct x.bucket from need x), p_now) s),
  left_over as (
    select x.n, x.bucket, x.cost, s.places, s.tokens, s.per_ms, s.burst, s.blocked_until,
           s.places - (sum(x.ask) over w - x.ask) as places_left, s.tokens - (sum(x.ask * x.cost) over w - x.ask * x.cost) as tokens_left
    from need x join state s on s.bucket = x.bucket window w as (partition by x.bucket order by x.n)),
  fit as (
    select o.n, o.bucket,
           -- A job that costs more than there can be takes all, and owes the rest.
           case when o.blocked_until > p_now then 0 else
             least(o.places_left, case when o.per_ms is null then o.places_left when o.tokens_left >= least(o.cost, o.burst) then greatest(1, floor(o.tokens_left / o.cost)) else 0 end) end as fits,
           case when o.places < 1 then 'infinity'::timestamptz
                when o.blocked_until > p_now then o.blocked_until
                when o.tokens < least(o.cost, o.burst) then p_now + (least(o.cost, o.burst) - o.tokens) / o.per_ms * interval '1 millisecond' end as closed_until
    from left_over o),
  bound as (
    select x.n, min(x.fits) as fits, (array_agg(x.bucket order by x.closed_until desc) filter (where x.closed_until is not null))[1] as closed_by, max(x.closed_until) as closed_until
    from fit x group by x.n),
  decided as materialized (
    select a.id, a.n, a.head, a.order_bucket, a.jobs, f.closed_by, f.closed_until, greatest(0, least(a.ask, f.fits))::integer as grant
    from asked a left join bound f on f.n = a.n where a.ask > 0),
  closed as (
    select d.id, d.closed_by, d.closed_until from decided d where d.closed_by is not null
    union all
    select h.id, h.order_bucket, case when h.is_behind then 'infinity' else h.due_at end from headed h where h.head is not null and (h.is_behind or h.is_here and h.due_at > p_now))
  select (select array_agg(d.id order by d.n) from decided d where d.grant > 0), (select array_agg(d.grant order by d.n) from decided d where d.grant > 0),
         (select array_agg(least(d.grant, d.grant / d.jobs + 2) order by d.n) from decided d where d.grant > 0),
         (select array_agg(case when d.order_bucket is not null then d.head end order by d.n) from decided d where d.grant > 0),
         (select array_agg(c.id order by c.id) from closed c), (select array_agg(c.closed_by order by c.id) from closed c), (select array_agg(c.closed_until order by c.id) from closed c),
         (select array_agg(h.id) from headed h where h.head is null),
         (select array_agg(s.bucket order by s.bucket) from state s where s.per_ms is not null), (select array_agg(s.tokens order by s.bucket) from state s where s.per_ms is not null)
    into v_lines, v_grants, v_rows, v_heads, v_shut, v_shut_by, v_shut_until, v_empty, v_buckets, v_tokens;

  leases := '{}';
  jobs := 0;
  shut := v_shut is not null;
  if v_lines is not null then
    with plan as (
      select p.line, p.grant, p.rows, p.head from unnest(v_lines, v_grants, v_rows, v_heads) as p(line, "grant", rows, head)),
    picked as materialized (
      select p.line, p.grant, r.id, r.lane, r.place, r.mask, r.costs, bit_count(r.mask)::integer as jobs
      from plan p
      cross join lateral (
        select x.id, x.lane, x.place, x.mask, x.costs from tenure.limited x
        where x.line = p.line and x.lane between p_lane_low and p_lane_high and (p.head is null or x.id = p.head)
        order by x.lane, x.place, x.id limit p.rows for update skip locked) r),
    sized as (
      select k.id, k.mask, k.jobs, case when k.is_alike then least(k.jobs, k.grant - k.before) else 0 end::integer as take
      from (select p.id, p.mask, p.jobs, p.grant, sum(p.jobs) over w - p.jobs as before,
                   -- What costs otherwise is for a round of its own.
                   bool_and(p.costs is not distinct from p.first_costs) over w as is_alike
            from (select q.*, first_value(q.costs) over (partition by q.line order by q.lane, q.place, q.id) as first_costs from picked q) p
            window w as (partition by p.line order by p.lane, p.place, p.id)) k),
    gone as (
      delete from tenure.limited r where r.id = any(array(select s.id from sized s where s.take = s.jobs))
      returning r.id, r.line, r.kind, r.attempt, r.flags, r.block, r.mask, r.costs),
    last as (
      select s.id, tenure.mask_first(s.mask, s.take) as mask from sized s where s.take > 0 and s.take < s.jobs),
    cut as (
      update tenure.limited r set mask = r.mask & ~ c.masks[array_position(c.ids, r.id)]
      from (select array_agg(l.id) as ids, array_agg(l.mask) as masks from last l) c
      where r.id = any(c.ids)
      returning r.id, r.line, r.kind, r.attempt, r.flags, r.block, c.masks[array_position(c.ids, r.id)] as mask, r.costs),
    taken as materialized (
      select g.id, g.line, g.kind, g.attempt, g.flags, g.block, g.mask, g.costs, l.buckets
      from (select n.* from gone n union all select c.* from cut c) g
      cross join lateral (select x.buckets from tenure.line x where x.id = g.line offset 0) l),
    parted as (
      select t.*, (row_number() over (partition by t.kind, t.attempt, t.flags, t.buckets order by t.id) - 1) / c_pieces_max as part from taken t),
    leased as (
      insert into tenure.lease (worker_id, queue, kind, attempt, flags, leased_at, blocks, strip, buckets)
      select p_worker, p_queue, t.kind, t.attempt + 1, t.flags, p_now, array_agg(t.block order by t.id), tenure.join_bits(t.mask order by t.id), t.buckets
      from parted t where t.kind <> all(p_solo_kinds) group by t.kind, t.attempt, t.flags, t.buckets, t.part
      union all
      select p_worker, p_queue, t.kind, t.attempt + 1, t.flags, p_now, array[t.block], tenure.mask_of(n.job_id), t.buckets
      from parted t cross join lateral tenure.jobs_in(array[t.block], t.mask) n where t.kind = any(p_solo_kinds)
      returning id, buckets),
    slotted as (
      insert into tenure.lease_slot (bucket_id, lease_id) select b.bucket, l.id from leased l cross join lateral unnest(l.buckets) as b(bucket)),
    counted as (
      select t.line, sum(bit_count(t.mask))::integer as jobs, min(t.costs::text) as costs from taken t group by t.line)
    select coalesce((select array_agg(l.id order by l.id) from leased l), '{}'), (select array_agg(c.line order by c.line) from counted c),
           (select array_agg(c.jobs order by c.line) from counted c), (select array_agg(c.costs order by c.line) from counted c)
      into leases, v_taken, v_counts, v_costs;
    jobs := coalesce((select sum(u.jobs) from unnest(v_counts) as u(jobs)), 0);
  end if;
  if v_taken is not null then
    perform tenure.charge(p_queue, v_taken, v_counts, v_costs, v_buckets, v_tokens, p_now);
  end if;

  delete from tenure.line l where l.id = any(v_taken || v_empty) and (select count(*) from (select from tenure.limited r where r.line = l.id limit 1) x) = 0;
  shut := shut or found;
  if v_shut is not null then
    update tenure.line l set gate = s.bucket from unnest(v_shut, v_shut_by) as s(line, bucket) where l.id = any(v_shut) and l.id = s.line;
    insert into tenure.nudge as n (queue, kind, look_at, bucket)
      select p_queue, l.kind, min(s.until), s.bucket from unnest(v_shut, v_shut_by, v_shut_until) as s(line, bucket, until) join tenure.line l on l.id = s.line
      group by l.kind, s.bucket
      on conflict (bucket, queue, kind) where bucket is not null do update set look_at = least(n.look_at, excluded.look_at);
  end if;
end $$;

-- charge: what was taken from lines is taken from their buckets, and moves their turns.
create or replace function tenure.charge(p_queue text, p_lines uuid[], p_jobs integer[], p_costs text[], p_buckets bigint[], p_tokens double precision[], p_now timestamptz) returns void
language plpgsql as $$
begin
  if p_buckets is not null then
    with used as (
      select b.bucket, sum(t.jobs * coalesce(case when b.cost_at > 0 then (t.costs::integer[])[b.cost_at] end, 1)) as tokens
      from unnest(p_lines, p_jobs, p_costs) as t(line, jobs, costs) cross join lateral (select x.buckets, x.cost_at from tenure.line x where x.id = t.line offset 0) l cross join lateral unnest(l.buckets, l.cost_at) as b(bucket, cost_at)
      where b.bucket = any(p_buckets) group by b.bucket)
    update tenure.limit_bucket k set tokens = s.tokens - u.tokens, filled_at = p_now
      from used u join unnest(p_buckets, p_tokens) as s(bucket, tokens) on s.bucket = u.bucket
      where k.id = any(p_buckets) and k.id = u.bucket;
  end if;
  update tenure.line_clock c set pass = greatest(c.pass, x.pass)
    from (select min(l.pass) as pass from tenure.line l where l.id = any(p_lines)) x where c.queue = p_queue and c.pass < x.pass;
  with moved as (
    update tenure.line l set pass = greatest(l.pass, c.pass) + t.jobs / l.share
      from unnest(p_lines, p_jobs) as t(line, jobs) cross join (select k.pass from tenure.line_clock k where k.queue = p_queue) c
      where l.id = any(p_lines) and l.id = t.line
      returning l.id, l.fair_key, l.pass)
  -- The same key in other lines, of other kinds or under other limits, has had the turn as well.
  update tenure.line s set pass = m.pass
    from moved m where s.fair_key is not null and s.fair_key = any(array(select x.fair_key from moved x)) and s.queue || '' = p_queue and s.fair_key = m.fair_key
      and s.id <> all(p_lines) and s.pass < m.pass;
end $$;

-- forget_slots: what leases that have ended left in lease_slot, and buckets of keys that nobody uses and that are full. Done with the net; true: there is more.
create or replace function tenure.forget_slots() returns boolean
language plpgsql set enable_seqscan = off set jit = off as $$
declare
  c_rows constant integer := 20000;
  v_rows bigint;
  v_buckets bigint;
begin
  if not pg_try_advisory_xact_lock(tenure.lock_class(), -4) then
    return false;
  end if;
  delete from tenure.lease_slot t
    where (t.bucket_id, t.lease_id) in (
      select x.bucket_id, x.lease_id from tenure.lease_slot x where not exists (select from tenure.lease l where l.id = x.lease_id) limit c_rows);
  get diagnostics v_rows = row_count;
  delete from tenure.limit_bucket b
    where b.id in (
      select k.id from tenure.limit_bucket k join tenure.bucket_states(array(select y.id from tenure.limit_bucket y where y.key <> '' order by y.filled_at, y.id limit c_rows), clock_timestamp()) s on s.bucket = k.id
      where (s.per_ms is null or s.tokens >= s.burst) and s.pace >= 1 and coalesce(s.blocked_until < clock_timestamp(), true)
        and not exists (select from tenure.lease_slot t where t.bucket_id = k.id)
        and k.id not in (select u.bucket from tenure.line l cross join lateral unnest(l.buckets) as u(bucket))
        and not exists (select from tenure.nudge n where n.bucket = k.id));
  get diagnostics v_buckets = row_count;
  return v_rows >= c_rows or v_buckets >= c_rows;
end $$;

-- free_places: a lease that stands under limits was cut or has gone: whoever waits for its places is looked at anew. Nothing for other leases.
create or replace function tenure.free_places(p_buckets bigint[], p_queue text) returns void
language plpgsql as $$
begin
  if p_buckets <> '{}' then
    insert into tenure.nudge (queue, look_at, buckets) values ('', clock_timestamp(), p_buckets);
    perform tenure.wake_one(p_queue);
  end if;
end $$;
