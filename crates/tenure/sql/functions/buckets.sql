-- Buckets: where jobs under limits are counted. Written under the book alone (claim_limited.sql).

-- bucket_states: what is free in these buckets: places (infinity: no bound), tokens (infinity: no bound), how many of them come in a millisecond, and how
-- many there can be. Places in use are the jobs of leases, so that none is lost with whoever held it. What was throttled under a limit that is no more is so no longer.
create or replace function tenure.bucket_states(p_buckets bigint[], p_now timestamptz)
returns table (bucket bigint, places double precision, tokens double precision, per_ms double precision, burst double precision, blocked_until timestamptz, pace double precision, is_order boolean)
language plpgsql stable rows 100 as $$
begin
  return query
  select b.id,
         case when s.concurrency is null then 'infinity'::float8
              else s.concurrency - coalesce((select sum(tenure.bucket_use(l.buckets, l.strip, b.id)) from tenure.lease_slot t
                                             cross join lateral (select x.strip, x.buckets from tenure.lease x where x.id = t.lease_id offset 0) l where t.bucket_id = b.id), 0)::float8 end,
         case when s.per_ms is null then 'infinity'::float8
              else least(s.burst, coalesce(b.tokens, s.burst)
                     + greatest(0, case when b.pace >= 1 then extract(epoch from p_now - b.filled_at)::float8 * 1000 else tenure.paced_ms(b.pace, b.paced_at, b.filled_at, p_now) end) * s.per_ms) end,
         s.per_ms * tenure.pace_at(b.pace, b.paced_at, p_now), s.burst, case when r.name is not null then b.blocked_until end, tenure.pace_at(b.pace, b.paced_at, p_now), b.limit_name = ''
  from unnest(p_buckets) as u(id)
  cross join lateral (select x.id, x.limit_name, x.key, x.tokens, x.filled_at, x.blocked_until, x.pace, x.paced_at from tenure.limit_bucket x where x.id = u.id offset 0) b
  left join tenure.limit_rule r on r.name = b.limit_name
  cross join lateral (
    select case when b.limit_name = '' then 1 when b.key = '' then r.concurrency else r.key_concurrency end as concurrency,
           case when b.key = '' then r.rate::float8 / r.period_ms else r.key_rate::float8 / r.key_period_ms end as per_ms,
           case when b.key = '' then r.burst else r.key_burst end::float8 as burst) s;
end $$;

-- bucket_use: how many jobs of a lease stand under a bucket. The pieces of a lease stand under the same buckets (one dimension), or each under its own.
create or replace function tenure.bucket_use(p_buckets bigint[], p_strip bit varying, p_bucket bigint) returns bigint
language sql immutable as $$
  select case when array_ndims(p_buckets) = 1 then bit_count(p_strip)
              else (select coalesce(sum(bit_count(substring(p_strip from (g.i - 1) * 128 + 1 for 128))), 0)::bigint
                    from generate_subscripts(p_buckets, 1) as g(i) where p_bucket = any(p_buckets[g.i:g.i])) end
$$;

-- pace_at: what part of the rate holds: a tenth more every 10 s, up to all of it.
create or replace function tenure.pace_at(p_pace double precision, p_since timestamptz, p_at timestamptz) returns double precision
language sql immutable as $$
  select least(1, p_pace + 0.1 * greatest(0, floor(coalesce(extract(epoch from p_at - p_since), 0) / 10)))::double precision
$$;

-- paced_ms: for how many ms at the full rate tokens came between two instants.
create or replace function tenure.paced_ms(p_pace double precision, p_since timestamptz, p_from timestamptz, p_to timestamptz) returns double precision
language sql immutable as $$
  select coalesce(sum(least(1, p_pace + 0.1 * g.step) * greatest(0, extract(epoch from least(p_to, x.ends_at) - greatest(p_from, x.begins_at)))::float8 * 1000), 0)
  from generate_series(0, 10) as g(step)
  cross join lateral (
    select case when g.step > 0 then p_since + g.step * interval '10 seconds' else '-infinity' end as begins_at,
           case when g.step < 10 then p_since + (g.step + 1) * interval '10 seconds' else 'infinity' end as ends_at) x
  where x.begins_at < p_to and x.ends_at > p_from
$$;

-- wait_for_tokens: when so many will have come. Whoever waits at a pace that grows looks again at its next step.
create or replace function tenure.wait_for_tokens(p_now timestamptz, p_missing double precision, p_per_ms double precision, p_pace double precision) returns timestamptz
language sql immutable as $$
  select p_now + least(p_missing / p_per_ms, case when p_pace < 1 then 10000::float8 else 'infinity' end) * interval '1 millisecond'
$$;

-- worth_while: for so many tokens claims come again: what 50 ms bring, but not so many that a burst would be lost should nobody come in time; one at least.
create or replace function tenure.worth_while(p_per_ms double precision, p_burst double precision) returns double precision
language sql immutable as $$ select greatest(1, floor(least(p_burst / 2, p_per_ms * 50))) $$;

-- fold_throttle: nothing starts before the instant, and from then on the rate is half of what it was, once a second at most, and once for each block: what fails meanwhile had begun before it.
-- No token is handed out with it, and no debt forgiven: what is there is cut to one, and more come from the end of the block on.
create or replace function tenure.fold_throttle(p_throttle json, p_now timestamptz) returns void
language plpgsql as $$
declare
  c_pace_min constant double precision := 1.0 / 64;
  v_limit constant text := p_throttle ->> 'limit';
  v_key constant text := coalesce(p_throttle ->> 'key', '');
  v_until constant timestamptz := (p_throttle ->> 'until')::timestamptz;
  v_at constant timestamptz := (p_throttle ->> 'at')::timestamptz;
begin
  insert into tenure.limit_bucket (limit_name, key, filled_at) values (v_limit, v_key, p_now) on conflict do nothing;
  update tenure.limit_bucket b
    set blocked_until = greatest(b.blocked_until, v_until), filled_at = greatest(b.blocked_until, v_until, p_now), tokens = least(s.tokens, 1),
        pace = case when b.paced_at > v_at - interval '1 second' then b.pace else greatest(c_pace_min, tenure.pace_at(b.pace, b.paced_at, v_at) / 2) end,
        paced_at = greatest(b.paced_at, v_until, v_at)
    from tenure.bucket_states(array(select x.id from tenure.limit_bucket x where x.limit_name = v_limit and x.key = v_key), p_now) s
    where b.limit_name = v_limit and b.key = v_key;
end $$;

-- forget_slots: what leases that have ended left in lease_slot, idle lines, and buckets of keys that nobody uses and that are full. Done with the net, which waits for the book 100 ms;
-- of buckets 500 from one on that chance names, so that those in use keep no other waiting. A line or bucket that is needed again is made again. True: there is more.
create or replace function tenure.forget_slots() returns boolean
language plpgsql set enable_seqscan = off set jit = off as $$
declare
  c_rows constant integer := 500;   -- the book is held meanwhile
  v_rows bigint;
  v_more boolean;
  v_from bigint;
  v_buckets bigint[];
begin
  -- As for claims, what others have written since must be visible.
  if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    return false;
  end if;
  begin
    perform pg_advisory_xact_lock(tenure.lock_class(), -6);
  exception when lock_not_available then
    return false;
  end;
  delete from tenure.lease_slot t
    where (t.bucket_id, t.lease_id) in (
      select x.bucket_id, x.lease_id from tenure.lease_slot x where not exists (select from tenure.lease l where l.id = x.lease_id) limit c_rows);
  get diagnostics v_rows = row_count;
  v_more := v_rows >= c_rows;
  delete from tenure.line l where l.digest in (select x.digest from tenure.line x where x.gate = -1 limit c_rows) and l.gate + 0 = -1;
  get diagnostics v_rows = row_count;
  v_more := v_more or v_rows >= c_rows;
  v_from := floor(random() * (select s.last_value from tenure.bucket_id s));
  v_buckets := array(select b.id from tenure.limit_bucket b where b.id >= v_from order by b.id limit c_rows);
  if cardinality(v_buckets) < c_rows then
    v_buckets := v_buckets || array(select b.id from tenure.limit_bucket b where b.id < v_from order by b.id limit c_rows - cardinality(v_buckets));
  end if;
  v_buckets := array(
    select s.bucket from tenure.bucket_states(v_buckets, clock_timestamp()) s
    where (s.per_ms is null or s.tokens >= s.burst) and s.pace >= 1 and coalesce(s.blocked_until < clock_timestamp(), true)
      and (select b.key from tenure.limit_bucket b where b.id = s.bucket) <> ''
      and (select count(*) from (select from tenure.lease_slot t where t.bucket_id = s.bucket limit 1) x) = 0
      and (select count(*) from (select from tenure.nudge n where n.bucket = s.bucket limit 1) x) = 0);
  if v_buckets = '{}' then
    return v_more;
  end if;
  -- Lines name buckets, and nothing finds those that name one: all are looked at, once.
  delete from tenure.limit_bucket b
    where b.id = any(array(select u.id from unnest(v_buckets) as u(id) except select n.bucket from tenure.line l cross join lateral unnest(l.buckets) as n(bucket)));
  get diagnostics v_rows = row_count;
  return v_more or v_rows > 0;
end $$;
