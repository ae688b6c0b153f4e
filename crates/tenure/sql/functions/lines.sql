-- Lines: jobs of one queue and kind that stand under the same limits and keys, and have the same fair and order key. A line in which nothing waits is idle (gate -1): its row
-- is kept for a while, as it says where its jobs are counted. All of this is done under the book (claim_limited.sql).

-- line_up: what takes turns or keeps an order, and suspects, go to their lines before anything is given out. True: there are more than one claim takes. Then a part of each line is taken,
-- the first ones in it, from a line on that chance names: one with very many jobs keeps no other waiting. Those that somebody cancels are left.
create or replace function tenure.line_up(p_queue text, p_now timestamptz) returns boolean
language plpgsql as $$
declare
  c_rows constant integer := 2000;   -- the book is held meanwhile
  c_lines constant integer := 500;
  v_ids bigint[] := array(select r.id from tenure.limited r where r.queue = p_queue and r.fresh = 2 limit c_rows + 1);
  v_from constant uuid := md5(random()::text)::uuid;
  v_last uuid := v_from;
  v_line uuid;
  v_lines uuid[] := '{}';
  v_is_round boolean := false;
begin
  if cardinality(v_ids) <= c_rows then
    if v_ids <> '{}' then
      perform tenure.put_in_lines(v_ids, p_now);
    end if;
    return false;
  end if;
  while cardinality(v_lines) < c_lines loop
    v_line := (select r.line from tenure.limited r where r.queue = p_queue and r.fresh = 2 and r.line > v_last order by r.line limit 1);
    if v_is_round then
      exit when v_line is null or v_line > v_from;
    elsif v_line is null then
      v_is_round := true;
      v_line := (select r.line from tenure.limited r where r.queue = p_queue and r.fresh = 2 and r.line <= v_from order by r.line limit 1);
      exit when v_line is null;
    end if;
    v_lines := v_lines || v_line;
    v_last := v_line;
  end loop;
  v_ids := array(
    select x.id from unnest(v_lines) as u(line)
    cross join lateral (
      select r.id from tenure.limited r where r.queue = p_queue and r.fresh = 2 and r.line = u.line order by r.place limit c_rows / cardinality(v_lines) for update skip locked) x);
  return tenure.put_in_lines(v_ids, p_now) > 0;
end $$;

-- put_in_lines: rows that have just come wait in their lines from now on; those that somebody cancels are left. Returns how many moved.
create or replace function tenure.put_in_lines(p_ids bigint[], p_now timestamptz) returns integer
language plpgsql as $$
declare
  v_ids constant bigint[] := array(select r.id from tenure.limited r where r.id = any(p_ids) order by r.id for update skip locked);
begin
  if v_ids <> '{}' then
    update tenure.limited r set fresh = 0, order_key = null where r.id = any(v_ids);
    perform tenure.make_lines(v_ids, p_now);
  end if;
  return cardinality(v_ids);
end $$;

-- make_lines: the lines of these rows, with the buckets that they need, where there are none yet. They are open from
-- now on. One that exists learns its present weight; an ordered one is looked at anew, for what came may be its head.
create or replace function tenure.make_lines(p_rows bigint[], p_now timestamptz) returns void
language plpgsql as $$
declare
  v_lines json[] := array(
    select json_build_object('line', x.line, 'queue', x.queue, 'kind', x.kind, 'limits', j.limits)
    from (select distinct on (r.line) r.line, r.queue, r.kind, r.block * 128 + position(B'1' in r.mask) - 1 as job from tenure.limited r where r.id = any(p_rows) order by r.line, r.id desc) x
    cross join lateral (select y.limits from tenure.job y where y.id = x.job offset 0) j);
  v_ids constant uuid[] := array(select (x.entry ->> 'line')::uuid from unnest(v_lines) as x(entry));
  v_known uuid[];
  v_fair text[];
begin
  v_known := array(select l.digest from tenure.line l where l.digest = any(v_ids));
  -- Nobody saves up turns while nothing of his waits.
  update tenure.line l set gate = 0, pass = greatest(l.pass, (select c.pass from tenure.line_clock c where c.queue = l.queue)) where l.digest = any(v_known) and l.gate = -1;
  if found then
    insert into tenure.nudge (queue, kind, look_at, bucket)
      select distinct l.queue, l.kind, timestamptz '-infinity', 0 from tenure.line l where l.digest = any(v_known) and l.gate + 0 = 0
      on conflict (bucket, queue, kind) where bucket is not null do nothing;
  end if;
  update tenure.line l set share = x.share
    from (select (e.entry ->> 'line')::uuid as digest, coalesce((e.entry -> 'limits' ->> 'share')::float8, 1) as share from unnest(v_lines) as e(entry)) x
    where l.digest = any(v_known) and l.digest = x.digest and l.share <> x.share;
  v_lines := array(select x.entry from unnest(v_lines) as x(entry) where (x.entry ->> 'line')::uuid <> all(v_known) or x.entry -> 'limits' ->> 'order' is not null);
  if cardinality(v_lines) = 0 then
    return;
  end if;
  insert into tenure.limit_bucket (limit_name, key, filled_at)
    select distinct w.limit_name, w.key, p_now from unnest(v_lines) as x(entry) cross join lateral tenure.buckets_wanted(x.entry ->> 'queue', x.entry -> 'limits') w
    on conflict do nothing;
  insert into tenure.line_clock (queue, pass) select distinct x.entry ->> 'queue', 0 from unnest(v_lines) as x(entry) on conflict do nothing;
  insert into tenure.line as l (digest, queue, kind, fair_key, share, order_bucket, order_key, buckets, cost_at, pass)
    select (x.entry ->> 'line')::uuid, x.entry ->> 'queue', x.entry ->> 'kind', x.entry -> 'limits' ->> 'fair', coalesce((x.entry -> 'limits' ->> 'share')::float8, 1),
           b.order_bucket, tenure.order_key(x.entry ->> 'queue', x.entry -> 'limits'), b.buckets, b.cost_at,
           (select c.pass from tenure.line_clock c where c.queue = x.entry ->> 'queue')
    from unnest(v_lines) as x(entry)
    cross join lateral (
      select coalesce(array_agg(k.id order by k.id), '{}') as buckets, coalesce(array_agg(w.cost_at order by k.id), '{}') as cost_at, max(k.id) filter (where w.limit_name = '') as order_bucket
      from tenure.buckets_wanted(x.entry ->> 'queue', x.entry -> 'limits') w
      cross join lateral (select y.id from tenure.limit_bucket y where y.limit_name = w.limit_name and y.key = w.key offset 0) k) b
    where (x.entry ->> 'line')::uuid <> all(v_known)
    on conflict (digest) do nothing;
  -- A key that has jobs of another kind, or under other limits, has had its turns.
  v_fair := array(select distinct x.entry -> 'limits' ->> 'fair' from unnest(v_lines) as x(entry) where x.entry -> 'limits' ->> 'fair' is not null);
  if cardinality(v_fair) > 0 then
    with had as materialized (
      select s.queue, s.fair_key, max(s.pass) as pass from tenure.line s where s.fair_key is not null and s.fair_key = any(v_fair) group by s.queue, s.fair_key)
    update tenure.line l set pass = h.pass from had h
      where l.digest = any(v_ids) and l.digest <> all(v_known) and h.queue = l.queue and h.fair_key = l.fair_key and l.pass < h.pass;
  end if;
  with reopened as (
    update tenure.line s set gate = 0
      where s.gate > 0 and s.order_bucket is not null
        and s.order_bucket = any(array(select l.order_bucket from tenure.line l where l.digest = any(v_ids) and l.order_bucket is not null))
      returning s.queue, s.kind)
  insert into tenure.nudge (queue, kind, look_at, bucket)
    select distinct o.queue, o.kind, timestamptz '-infinity', 0
    from (select x.entry ->> 'queue' as queue, x.entry ->> 'kind' as kind from unnest(v_lines) as x(entry) union all select r.queue, r.kind from reopened r) o
    on conflict (bucket, queue, kind) where bucket is not null do nothing;
end $$;

-- make_idle_lines: the lines of these rows, that have no fair and no order key and wait for nothing yet.
create or replace function tenure.make_idle_lines(p_rows bigint[], p_now timestamptz) returns void
language plpgsql as $$
begin
  with told as materialized (
    select distinct on (r.line) r.line, r.queue, r.kind, r.under from tenure.limited r where r.id = any(p_rows) order by r.line),
  wanted as materialized (
    select t.line, w.limit_name, w.key, w.cost_at, k.id
    from told t cross join lateral tenure.under_buckets(t.under) w
    left join lateral (select x.id from tenure.limit_bucket x where x.limit_name = w.limit_name and x.key = w.key offset 0) k on true),
  made as (
    insert into tenure.limit_bucket (limit_name, key, filled_at) select distinct w.limit_name, w.key, p_now from wanted w where w.id is null returning id, limit_name, key),
  named as (
    select w.line, array_agg(coalesce(w.id, m.id) order by coalesce(w.id, m.id)) as buckets, array_agg(w.cost_at order by coalesce(w.id, m.id)) as cost_at
    from wanted w left join made m on m.limit_name = w.limit_name and m.key = w.key group by w.line)
  insert into tenure.line (digest, queue, kind, share, buckets, cost_at, pass, gate)
    select t.line, t.queue, t.kind, 1, n.buckets, n.cost_at, 0, -1 from told t join named n on n.line = t.line
    on conflict (digest) do nothing;
  insert into tenure.line_clock (queue, pass) select distinct r.queue, 0 from tenure.limited r where r.id = any(p_rows) on conflict do nothing;
end $$;

-- order_key: jobs of a queue that keep an order among themselves, whatever their kinds; null: this one keeps none.
create or replace function tenure.order_key(p_queue text, p_limits json) returns text
language sql immutable as $$ select p_queue || E'\n' || (p_limits ->> 'order') $$;

-- buckets_wanted: where a job under these limits is counted.
create or replace function tenure.buckets_wanted(p_queue text, p_limits json) returns table (limit_name text, key text, cost_at smallint)
language sql immutable as $$
  select w.limit_name, w.key, w.cost_at from tenure.under_buckets(tenure.under_of(p_limits)) w
  union all
  select '', tenure.order_key(p_queue, p_limits), 0::smallint where p_limits ->> 'order' is not null
$$;

-- shut_lines: these lines wait for these buckets, which may have something again at these instants; infinity: once a place comes free.
create or replace function tenure.shut_lines(p_queue text, p_lines uuid[], p_buckets bigint[], p_until timestamptz[], p_now timestamptz) returns void
language plpgsql as $$
begin
  if p_lines is null then
    return;
  end if;
  update tenure.line l set gate = s.bucket from unnest(p_lines, p_buckets) as s(line, bucket) where l.digest = any(p_lines) and l.digest = s.line;
  insert into tenure.nudge as n (queue, kind, look_at, bucket)
    select p_queue, l.kind, min(s.until), s.bucket
    from unnest(p_lines, p_buckets, p_until) as s(line, bucket, until) cross join lateral (select x.kind from tenure.line x where x.digest = s.line offset 0) l
    group by l.kind, s.bucket
    -- What was due has been looked at; what has become due since has not.
    on conflict (bucket, queue, kind) where bucket is not null
      do update set look_at = case when n.look_at <= p_now then excluded.look_at else least(n.look_at, excluded.look_at) end;
end $$;

-- open_gates: lines that wait for a bucket which may have something again are opened, in the order of their turns, as many as it has places or tokens for. A gate without
-- lines goes. p_open false: only says when to look again. True: there may be more that are due than one look takes.
create or replace function tenure.open_gates(p_queue text, p_kinds text[], p_now timestamptz, p_open boolean) returns boolean
language plpgsql as $$
declare
  c_gates constant integer := 200;
  c_all constant integer := 1000000;
  v_gate record;
  v_gates integer := 0;
begin
  for v_gate in
    with due as materialized (
      select x.id, x.kind, x.bucket from unnest(p_kinds) as k(kind)
      cross join lateral (
        select n.id, n.kind, n.bucket, n.look_at from tenure.nudge n where n.queue = p_queue and n.kind = k.kind and n.look_at <= p_now and n.bucket > 0 order by n.look_at limit c_gates) x
      order by x.look_at limit c_gates)
    select d.id, d.kind, d.bucket, s.is_order,
           case when s.blocked_until > p_now or s.places < 1 or s.tokens < 1 then 0 when s.is_order then c_all else least(s.places, floor(s.tokens), c_all) end::integer as room,
           case when s.places < 1 then 'infinity' when s.blocked_until > p_now then s.blocked_until
                when s.tokens < 1 then tenure.wait_for_tokens(p_now, tenure.worth_while(s.per_ms, s.burst) - s.tokens, s.per_ms, s.pace) else p_now end as look_at
    from due d left join tenure.bucket_states(array(select distinct x.bucket from due x), p_now) s on s.bucket = d.bucket
    order by d.id
  loop
    v_gates := v_gates + 1;
    if v_gate.room > 0 and p_open then
      update tenure.line l set gate = 0
        where l.digest = any(array(select x.digest from tenure.line x where x.queue = p_queue and x.kind = v_gate.kind and x.gate = v_gate.bucket and x.gate >= 0 order by x.pass limit v_gate.room));
    end if;
    if not exists (select from tenure.line x where x.queue = p_queue and x.kind = v_gate.kind and x.gate = v_gate.bucket and x.gate >= 0) then
      delete from tenure.nudge n where n.id = v_gate.id;
    elsif v_gate.look_at > p_now then
      update tenure.nudge n set look_at = v_gate.look_at where n.id = v_gate.id;
    end if;
  end loop;
  return v_gates >= c_gates;
end $$;

-- note_open: as long as lines of a kind are open, claims find something to look at. Counts, where exists would say the same: the planner would make joins of those, which
-- read all lines.
create or replace function tenure.note_open(p_queue text, p_kinds text[]) returns void
language plpgsql as $$
declare
  v_open constant text[] := array(select k.kind from unnest(p_kinds) as k(kind)
    where (select count(*) from (select from tenure.line l where l.queue = p_queue and l.kind = k.kind and l.gate = 0 limit 1) x) = 1);
  v_noted constant text[] := array(select n.kind from unnest(p_kinds) as k(kind)
    cross join lateral (select x.kind from tenure.nudge x where x.bucket = 0 and x.queue = p_queue and x.kind = k.kind offset 0) n);
begin
  if not v_noted <@ v_open then
    delete from tenure.nudge n where n.bucket = 0 and n.queue = p_queue and n.kind = any(v_noted) and n.kind <> all(v_open);
  end if;
  if not v_open <@ v_noted then
    insert into tenure.nudge (queue, kind, look_at, bucket)
      select p_queue, u.kind, '-infinity', 0 from unnest(v_open) as u(kind) where u.kind <> all(v_noted)
      on conflict (bucket, queue, kind) where bucket is not null do nothing;
  end if;
end $$;
