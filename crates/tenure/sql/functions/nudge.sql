-- Nudges: what claims under limits have to look at, and from when on. Whoever ends a lease only inserts one; whoever holds the book (claim_limited.sql) takes them.

-- free_places: a lease that stands under limits was cut or has gone: whoever waits for its places is looked at anew. Nothing for other leases.
create or replace function tenure.free_places(p_buckets bigint[], p_queue text) returns void
language plpgsql as $$
begin
  if p_buckets <> '{}' then
    insert into tenure.nudge (queue, look_at, buckets) values ('', clock_timestamp(), p_buckets);
    perform tenure.wake_one(p_queue);
  end if;
end $$;

-- limits_look_at: when there may be something under limits for these kinds of a queue: at once, at an instant; null: nobody knows. p_now: what is due by then
-- has been looked at, and the next instant is asked for. A few looks along indexes.
create or replace function tenure.limits_look_at(p_queue text, p_kinds text[], p_now timestamptz default null) returns timestamptz
language plpgsql stable as $$
begin
  if p_now is not null then
    return (select min(x.look_at) from unnest(p_kinds) as k(kind)
            cross join lateral (select n.look_at from tenure.nudge n where n.queue = p_queue and n.kind = k.kind and n.look_at > p_now order by n.look_at limit 1) x);
  end if;
  if tenure.some_fresh(p_queue, p_kinds) then
    return '-infinity';
  end if;
  return (select min(x.look_at) from (select p_queue as queue, u.kind from unnest(p_kinds) as u(kind) union all select '', '') k
          cross join lateral (select n.look_at from tenure.nudge n where n.queue = k.queue and n.kind = k.kind order by n.look_at limit 1) x);
end $$;

-- some_fresh: something has come that no claim has looked at. Counts of one, where exists would say the same, as in note_open.
create or replace function tenure.some_fresh(p_queue text, p_kinds text[]) returns boolean
language plpgsql stable as $$
begin
  return exists (select from unnest(p_kinds) as k(kind) cross join lateral (select from tenure.limited r where r.queue = p_queue and r.fresh = 1 and r.kind = k.kind limit 1) x)
    or exists (select from tenure.limited r where r.queue = p_queue and r.fresh = 2);
end $$;

-- fold_nudges: what has happened since the last claim: places that came free, bounds that changed, limits that were throttled. True: there may be more.
create or replace function tenure.fold_nudges(p_queue text, p_kinds text[], p_now timestamptz) returns boolean
language plpgsql as $$
declare
  c_rows constant integer := 2000;
  v_freed bigint[];
  v_throttles json[];
  v_folded bigint;
  v_woken bigint;
begin
  with due as materialized (
    select n.id from tenure.nudge n where n.queue = '' and n.kind = '' order by n.look_at limit c_rows),
  gone as (
    delete from tenure.nudge n where n.id = any(array(select d.id from due d)) returning n.id, n.buckets, n.throttle)
  select (select array_agg(distinct u.bucket) from gone g cross join lateral unnest(g.buckets) as u(bucket)),
         (select array_agg(g.throttle order by g.id) from gone g where g.throttle is not null), (select count(*) from gone)
    into v_freed, v_throttles, v_folded;
  perform tenure.fold_throttle(u.throttle, p_now) from unnest(v_throttles) as u(throttle);
  if v_freed is not null then
    -- The counts that follow read no leases that have gone.
    delete from tenure.lease_slot t where t.bucket_id = any(v_freed) and (select count(*) from tenure.lease l where l.id = t.lease_id) = 0;
    with opened as (
      update tenure.nudge n set look_at = p_now where n.bucket = any(v_freed) and n.bucket > 0 and n.look_at > p_now returning n.queue, n.kind)
    select count(tenure.wake_one(o.queue)) into v_woken from (select distinct x.queue from opened x where x.queue <> p_queue or x.kind <> all(p_kinds)) o;
  end if;
  return v_folded >= c_rows;
end $$;
