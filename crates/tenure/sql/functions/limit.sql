-- set_limit: a named limit, made or changed. It holds from the commit on, for jobs that wait as well; those that run stay. False: it was so before.
-- Parameters: concurrency (jobs that run at a time; 0: none), rate per period_ms with burst (how many may start at once after a pause; null: a tenth of a
-- second's worth, at least 1); the same with key_ for each key that jobs name. Null: no such bound.
-- Errors: TN002. Locks: the limit's row, waited for 5 s.
create or replace function tenure.set_limit(p_name text, p_concurrency integer default null, p_rate integer default null, p_period_ms bigint default null, p_burst integer default null,
                                 p_key_concurrency integer default null, p_key_rate integer default null, p_key_period_ms bigint default null, p_key_burst integer default null) returns boolean
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp set lock_timeout = '5s' as $$
declare
  v_burst integer := tenure.check_rate('', p_rate, p_period_ms, p_burst);
  v_key_burst integer := tenure.check_rate('key_', p_key_rate, p_key_period_ms, p_key_burst);
begin
  perform tenure.check_name('limit', p_name);
  if num_nonnulls(p_concurrency, p_rate, p_key_concurrency, p_key_rate) = 0 then
    perform tenure.refuse('TN002', format('the limit "%s" bounds nothing', p_name), 'Give a concurrency or a rate, of the whole or of each key; remove_limit lifts a limit.');
  end if;
  perform tenure.refuse('TN002', format('%s %s is outside 0 to 1000000', c.what, c.value), 'It is the number of jobs that run at a time; 0 stops them.')
    from (values ('concurrency', p_concurrency), ('key_concurrency', p_key_concurrency)) as c(what, value) where c.value not between 0 and 1000000;
  insert into tenure.limit_rule as r (name, concurrency, rate, period_ms, burst, key_concurrency, key_rate, key_period_ms, key_burst)
    values (p_name, p_concurrency, p_rate, case when p_rate is not null then coalesce(p_period_ms, 1000) end, v_burst,
            p_key_concurrency, p_key_rate, case when p_key_rate is not null then coalesce(p_key_period_ms, 1000) end, v_key_burst)
    on conflict (name) do update
      set concurrency = excluded.concurrency, rate = excluded.rate, period_ms = excluded.period_ms, burst = excluded.burst, key_concurrency = excluded.key_concurrency,
          key_rate = excluded.key_rate, key_period_ms = excluded.key_period_ms, key_burst = excluded.key_burst, set_at = clock_timestamp()
      where (r.concurrency, r.rate, r.period_ms, r.burst, r.key_concurrency, r.key_rate, r.key_period_ms, r.key_burst)
        is distinct from (excluded.concurrency, excluded.rate, excluded.period_ms, excluded.burst, excluded.key_concurrency, excluded.key_rate, excluded.key_period_ms, excluded.key_burst);
  if not found then
    return false;
  end if;
  perform tenure.limit_changed(p_name);
  return true;
end $$;

-- remove_limit: jobs that name it stand under it no longer, and new ones cannot name it. False: there was none.
create or replace function tenure.remove_limit(p_name text) returns boolean
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp set lock_timeout = '5s' as $$
begin
  delete from tenure.limit_rule r where r.name = p_name;
  if not found then
    return false;
  end if;
  perform tenure.limit_changed(p_name);
  return true;
end $$;

create or replace function tenure.check_rate(p_of text, p_rate integer, p_period_ms bigint, p_burst integer) returns integer
language plpgsql immutable as $$
begin
  if p_rate is null and num_nonnulls(p_period_ms, p_burst) > 0 then
    perform tenure.refuse('TN002', format('%speriod_ms or %sburst without %srate', p_of, p_of, p_of), 'Give the rate too: so many starts in each period.');
  end if;
  if p_rate not between 1 and 1000000 then
    perform tenure.refuse('TN002', format('%srate %s is outside 1 to 1000000', p_of, p_rate), 'It is the number of starts in each period; for fewer than one a second make the period longer.');
  end if;
  if p_period_ms not between 1 and 2678400000 then
    perform tenure.refuse('TN002', format('%speriod_ms %s is outside 1 to 2678400000 (31 days)', p_of, p_period_ms), 'The default is 1000, a second.');
  end if;
  if p_burst not between 1 and 1000000 then
    perform tenure.refuse('TN002', format('%sburst %s is outside 1 to 1000000', p_of, p_burst), 'It is how many may start at once after a pause.');
  end if;
  return case when p_rate is not null then coalesce(p_burst, least(1000000, greatest(1, p_rate * 100 / coalesce(p_period_ms, 1000)))) end;
end $$;

-- Whoever waits for one of its buckets is looked at anew.
create or replace function tenure.limit_changed(p_name text) returns void
language plpgsql as $$
begin
  insert into tenure.nudge (queue, look_at, buckets)
    select '', '-infinity', b.ids from (select array_agg(x.id) as ids from tenure.limit_bucket x where x.limit_name = p_name) b where b.ids is not null;
  perform tenure.wake_one(g.queue)
    from (select distinct n.queue from tenure.nudge n join tenure.limit_bucket b on b.id = n.bucket where b.limit_name = p_name) g;
end $$;

-- throttle: a provider said that it is too much. Nothing more starts under the limit (or its key) before p_for_ms have passed, in the whole fleet.
-- Then its rate is half of what it was, and grows by a tenth of what was set every 10 s; it is halved once a second at most, and not again while nothing starts. Holds for every claim that begins after the commit.
-- Returns the instant. Errors: TN002. Locks: none.
create or replace function tenure.throttle(p_limit text, p_key text, p_for_ms bigint) returns timestamptz
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp as $$
declare
  c_day_ms constant bigint := 86400000;
  v_until timestamptz;
begin
  if not exists (select from tenure.limit_rule r where r.name = p_limit) then
    perform tenure.refuse('TN002', format('there is no limit "%s" to throttle', left(p_limit, 40)), 'tenure.limits() shows those that are set.');
  end if;
  if p_key is not null then
    perform tenure.check_name('key', p_key);
  end if;
  if p_for_ms is null or p_for_ms < 0 then
    perform tenure.refuse('TN002', format('a limit cannot be throttled for %s ms', p_for_ms), 'Say for how long, 0 to 86400000 ms (a day); more counts as a day.');
  end if;
  v_until := clock_timestamp() + least(p_for_ms, c_day_ms) * interval '1 millisecond';
  insert into tenure.nudge (queue, look_at, throttle) values ('', '-infinity', json_build_object('limit', p_limit, 'key', p_key, 'until', v_until, 'at', clock_timestamp()));
  return v_until;
end $$;

-- throttle_job: the same, from a job that runs. p_limit null: those limits that the job stands under and that have a rate, or all of them when none has one. Of a limit
-- that has a rate for each key, or bounds nothing but keys, the job's key is throttled; otherwise the whole. A limit that is not set is warned of. Returns how many were throttled. Locks: none.
create or replace function tenure.throttle_job(p_job bigint, p_limit text, p_for_ms bigint) returns integer
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp as $$
declare
  v_moved integer;
begin
  with named as (
    select r.name, case when r.key_rate is not null or num_nonnulls(r.concurrency, r.rate) = 0 then u.entry ->> 'key' end as key, num_nonnulls(r.rate, r.key_rate) > 0 as has_rate
    from tenure.job j cross join lateral json_array_elements(j.limits -> 'under') as u(entry) join tenure.limit_rule r on r.name = u.entry ->> 'limit'
    where j.id = p_job and (p_limit is null or r.name = p_limit)
    union all
    select r.name, null, true from tenure.limit_rule r
    where r.name = p_limit and not exists (
      select from tenure.job j cross join lateral json_array_elements(j.limits -> 'under') as u(entry) where j.id = p_job and u.entry ->> 'limit' = p_limit))
  select count(tenure.throttle(n.name, n.key, greatest(p_for_ms, 0))) into v_moved from named n where n.has_rate or not exists (select from named x where x.has_rate);
  if v_moved = 0 and p_limit is not null then
    raise warning 'tenure: job % wants to throttle the limit "%", which is not set', p_job, p_limit;
  end if;
  return v_moved;
end $$;

-- limits: what is set, and how much of it is used now: a row for each limit as a whole (key null), and for each of the keys in use. What bounds nothing is null.
-- Reads only. places: jobs that run; tokens: that may start at once; waiting: jobs in lines, counted by bundles.
create or replace function tenure.limits(p_name text default null, p_keys integer default 0)
returns table (name text, key text, concurrency integer, running bigint, rate integer, period_ms bigint, burst integer, tokens double precision, pace double precision, blocked_until timestamptz, set_at timestamptz)
language sql stable rows 100 security definer set search_path = pg_catalog, tenure, pg_temp as $$
  with shown as (
    select r.name, null::text as key, r.set_at from tenure.limit_rule r where p_name is null or r.name = p_name
    union all
    (select b.limit_name, b.key, r.set_at from tenure.limit_bucket b join tenure.limit_rule r on r.name = b.limit_name
     where b.key <> '' and (p_name is null or r.name = p_name) order by b.limit_name, b.key limit p_keys))
  select s.name, s.key, case when s.key is null then r.concurrency else r.key_concurrency end,
         coalesce((select sum(tenure.bucket_use(l.buckets, l.strip, b.id)) from tenure.lease_slot t join tenure.lease l on l.id = t.lease_id where t.bucket_id = b.id), 0)::bigint,
         case when s.key is null then r.rate else r.key_rate end, case when s.key is null then r.period_ms else r.key_period_ms end,
         case when s.key is null then r.burst else r.key_burst end,
         case when b.id is null then case when s.key is null then r.burst else r.key_burst end else nullif(st.tokens, 'infinity') end,
         coalesce(st.pace, 1), case when st.blocked_until > clock_timestamp() then st.blocked_until end, s.set_at
  from shown s join tenure.limit_rule r on r.name = s.name
  left join tenure.limit_bucket b on b.limit_name = s.name and b.key = coalesce(s.key, '')
  left join lateral tenure.bucket_states(array[b.id], clock_timestamp()) st on true
  order by s.name, s.key nulls first
$$;
