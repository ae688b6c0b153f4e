-- limited_reason: why a job that waits in a line does not run now: order, limit or fair_turn. No row: something else keeps it, which waits_for tells: a
-- pause, or no worker. Reads only, 10,000 bundles of its line at most.
create or replace function tenure.limited_reason(p_job bigint) returns table (reason text, explained text)
language plpgsql stable as $$
declare
  c_counted constant integer := 10000;
  v_now constant timestamptz := clock_timestamp();
  v_row tenure.limited;
  v_line tenure.line;
  v_head record;
  v_before text;
  v_ahead bigint;
  v_bound record;
begin
  select l.* into v_row from tenure.limited l
    where (l.id = p_job >> 7 or l.block = p_job >> 7 and l.id <> l.block) and l.block = p_job >> 7 and get_bit(l.mask, (p_job & 127)::integer) = 1 limit 1;
  if not found or exists (select from tenure.queue q where q.name = v_row.queue and q.paused_at is not null)
     or exists (select from tenure.kind_pause k where k.kind = v_row.kind and (k.queue is null or k.queue = v_row.queue))
     or not exists (select from tenure.takers() t join tenure.worker w on w.id = t.worker_id where v_row.queue = any(w.queues) and v_row.kind = any(w.kinds)) then
    return;
  end if;
  select l.* into v_line from tenure.line l where l.digest = v_row.line and v_row.fresh = 0;
  if not found then
    return query select 'fair_turn', 'it has just come, and the next claim of its queue looks at it';
    return;
  end if;
  if v_line.order_bucket is not null then
    select (select substring(b.key from position(E'\n' in b.key) + 1) from tenure.limit_bucket b where b.id = v_line.order_bucket) as key,
           (select (n.job_id) from tenure.lease_slot t join tenure.lease l on l.id = t.lease_id cross join lateral tenure.jobs_in(l.blocks, l.strip) n
            where t.bucket_id = v_line.order_bucket limit 1) as running,
           f.place as first, f.due_at, f.attempt
      into v_head
      from tenure.line s cross join lateral (select r.lane, r.place, r.due_at, r.attempt from tenure.limited r where r.line = s.digest and r.fresh = 0 order by r.lane, r.place, r.id limit 1) f
      where s.order_bucket = v_line.order_bucket order by f.lane, f.place limit 1;
    v_before := case when v_head.running is not null then format('job %s, which runs', v_head.running)
                     when v_head.first <> p_job and v_head.due_at > v_now then format('job %s, whose attempt %s failed and which is tried again at %s', v_head.first, v_head.attempt, tenure.instant_text(v_head.due_at))
                     when v_head.first <> p_job then format('job %s', v_head.first) end;
    if v_before is not null then
      return query select 'order', format('jobs of the order key %s run one at a time: it waits behind %s', v_head.key, v_before);
      return;
    end if;
    if v_head.due_at > v_now then
      return query select 'not_due', format('attempt %s failed, and it is tried again at %s; those of the order key %s behind it wait', v_head.attempt, tenure.instant_text(v_head.due_at), v_head.key);
      return;
    end if;
  end if;
  select coalesce(sum(bit_count(a.mask)), 0) + bit_count(v_row.mask & ~ ((~ 0::bit(128)) >> (p_job & 127)::integer)) into v_ahead
    from (select r.mask from tenure.limited r where r.line = v_row.line and r.fresh = 0 and (r.lane, r.place, r.id) < (v_row.lane, v_row.place, v_row.id) order by r.lane, r.place, r.id limit c_counted) a;
  v_before := case v_ahead when 0 then 'it is the first of its line' else format('%s jobs of its line are before it', v_ahead) end;
  -- The bound that lasts longest. Of a rate as many tokens are wanted before as jobs of its line and, turn by turn, of the other lines at its gate come first.
  select b.limit_name, b.key, s.places, s.tokens, s.per_ms, s.burst, s.blocked_until, s.pace,
         case when b.key = '' then r.concurrency else r.key_concurrency end as concurrency, case when b.key = '' then r.rate else r.key_rate end as rate,
         case when b.key = '' then r.period_ms else r.key_period_ms end as period_ms,
         greatest(s.blocked_until, v_now + greatest(0, least(c.cost, s.burst) + v_ahead * c.cost + tenure.jobs_beside(v_row.line, s.bucket, v_ahead + 1) - s.tokens) / s.per_ms * interval '1 millisecond') as expected_at
    into v_bound
    from tenure.bucket_states(v_line.buckets, v_now) s join tenure.limit_bucket b on b.id = s.bucket join tenure.limit_rule r on r.name = b.limit_name
    cross join lateral (
      select coalesce(max(case when u.cost_at > 0 then v_row.costs[u.cost_at] end), 1)::float8 as cost from unnest(v_line.buckets, v_line.cost_at) as u(bucket, cost_at) where u.bucket = s.bucket) c
    where s.places < 1 or s.blocked_until > v_now or s.tokens < least(c.cost, s.burst)
    order by s.places < 1 desc, expected_at desc nulls last limit 1;
  if not found then
    return query select 'fair_turn', format('%s, and other lines of its queue have their turns too', v_before);
  elsif v_bound.concurrency = 0 then
    return query select 'limit', format('the limit %s lets none run: its concurrency is 0, until set_limit changes that; %s', tenure.bucket_text(v_bound.limit_name, v_bound.key), v_before);
  elsif v_bound.places < 1 then
    return query select 'limit', format('the limit %s: %s of %s run, and it can start when one of them ends; %s', tenure.bucket_text(v_bound.limit_name, v_bound.key),
                                        v_bound.concurrency - v_bound.places, v_bound.concurrency, v_before);
  elsif v_bound.blocked_until > v_now then
    return query select 'limit', format('the limit %s is throttled until %s, and then starts with %s %% of its rate; %s', tenure.bucket_text(v_bound.limit_name, v_bound.key),
                                        tenure.instant_text(v_bound.blocked_until), round(v_bound.pace * 100), v_before);
  else
    return query select 'limit', format('the limit %s: %s per %s ms%s are used up; %s, and it can start at about %s', tenure.bucket_text(v_bound.limit_name, v_bound.key), v_bound.rate, v_bound.period_ms,
                                        case when v_bound.pace < 1 then format(', of which %s %% hold after it was throttled,', round(v_bound.pace * 100)) else '' end, v_before, tenure.instant_text(v_bound.expected_at));
  end if;
end $$;

-- jobs_beside: how many jobs of other lines that wait for the same bucket have their turns before the n-th of this one, at equal shares. Of 1,000 lines at most, and
-- 100 bundles of each.
create or replace function tenure.jobs_beside(p_line uuid, p_bucket bigint, p_n bigint) returns bigint
language sql stable as $$
  select coalesce(sum(least(p_n, w.jobs)), 0)::bigint
  from (select x.digest from tenure.nudge n
        cross join lateral (select l.digest from tenure.line l where l.queue = n.queue and l.kind = n.kind and l.gate = p_bucket and l.gate >= 0 and l.digest <> p_line order by l.pass limit 1000) x
        where n.bucket = p_bucket limit 1000) o
  cross join lateral (
    select sum(bit_count(y.mask)) as jobs from (select r.mask from tenure.limited r where r.line = o.digest and r.fresh = 0 order by r.lane, r.place limit 100) y) w
$$;

create or replace function tenure.bucket_text(p_limit text, p_key text) returns text
language sql immutable as $$ select p_limit || coalesce(' of the key ' || nullif(p_key, ''), '') $$;
