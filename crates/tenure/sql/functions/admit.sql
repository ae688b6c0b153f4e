-- admit: an enqueue into queues that are bounded asks for room, in its own transaction. Room that is taken comes back when the transaction rolls back, and when the jobs have
-- ended, whichever way: that is looked up in their outcomes, and so cannot be forgotten.
-- Parameters, side by side: queues, fair keys (null: none), and so many jobs of each. Returns the queues that are bounded: note_members counts what comes into these. With no room
-- for all of them: reject raises TN007; wait looks again until its time is over, and raises it then; drop cancels the oldest that wait, as many as are needed.
-- Errors: TN007, and TN005 when another enqueue into the queue, or a change of its bound, does not commit in time.
-- Locks: in the order of the queues the row of queue_bound FOR KEY SHARE, so that the bound is changed or lifted between enqueues and not beneath them, then the queue's row of
-- queue_room, then those of its keys in their order, all until the end of the transaction: enqueues into a bounded queue follow one another, which is what makes the bound exact.
-- Each is waited for for 5 s at most. Who waits for room gives all of them back meanwhile: a key that is full keeps nobody from its queue. drop locks jobs that wait, skipping what
-- others hold.
create or replace function tenure.admit(p_queues text[], p_keys text[], p_jobs bigint[]) returns text[]
language plpgsql set lock_timeout = '5s' as $$
declare
  c_again constant interval := '20 milliseconds';
  -- For a lock, at a time: whoever waits for one that a subtransaction took and gave to its parent waits for the whole transaction of somebody who waits for room, who has
  -- given it back meanwhile.
  c_wait_ms constant bigint := 100;
  v_start_at constant timestamptz := clock_timestamp();
  -- The longest that one of them waits. A subtransaction costs, and very many in one transaction more than that: none where nobody waits.
  v_wait_ms constant bigint := (select max(b.wait_ms) from tenure.queue_bound b where b.queue = any(p_queues));
  v_look_at timestamptz;
  v_until timestamptz;
  v_asked record;
  v_full boolean := false;
begin
  if v_wait_ms is null then
    v_asked := tenure.ask_room(p_queues, p_keys, p_jobs);
    if v_asked.why is not null then
      perform tenure.refuse_room(v_asked.bound, v_asked.key, v_asked.most, v_asked.jobs, v_asked.why);
    end if;
    return v_asked.bounded;
  end if;
  loop
    v_look_at := clock_timestamp();
    v_until := v_start_at + v_wait_ms * interval '1 millisecond';
    perform set_config('lock_timeout', greatest(1, least(c_wait_ms, extract(epoch from v_until - v_look_at) * 1000))::bigint::text, true);
    begin
      v_asked := tenure.ask_room(p_queues, p_keys, p_jobs);
      if v_asked.why is null then
        return v_asked.bounded;
      end if;
      raise exception using errcode = 'TN007';  -- takes back what was locked
    exception
      when sqlstate 'TN007' then
        v_until := v_start_at + coalesce((v_asked.bound).wait_ms, 0) * interval '1 millisecond';
        v_full := true;
        if v_asked.jobs > v_asked.most or clock_timestamp() >= v_until then
          perform tenure.refuse_room(v_asked.bound, v_asked.key, v_asked.most, v_asked.jobs, v_asked.why);
        end if;
        -- Counting takes half of the time at most, also when many wait and count one after the other.
        perform pg_sleep(extract(epoch from least(greatest(c_again, clock_timestamp() - v_look_at), v_until - clock_timestamp())));
      when sqlstate 'TN005' then
        if clock_timestamp() >= v_until and v_full then
          perform tenure.refuse_room(v_asked.bound, v_asked.key, v_asked.most, v_asked.jobs, v_asked.why);
        elsif clock_timestamp() >= v_until then
          raise;
        end if;
    end;
  end loop;
end $$;

-- ask_room: takes room for all of them, or stops at the first that has none and says which and why. Locks: those of admit, waited for as long as the caller's lock_timeout says.
create or replace function tenure.ask_room(p_queues text[], p_keys text[], p_jobs bigint[], out bounded text[], out bound tenure.queue_bound, out key text, out most bigint, out jobs bigint, out why text)
language plpgsql as $$
declare
  v_ask record;
begin
  bounded := '{}';
  for v_ask in
    select u.queue, '' as key, sum(u.jobs)::bigint as jobs from unnest(p_queues, p_jobs) as u(queue, jobs) group by 1 union all
    select u.queue, u.key, sum(u.jobs)::bigint from unnest(p_queues, p_keys, p_jobs) as u(queue, key, jobs) where u.key is not null group by 1, 2 order by 1, 2
  loop
    key := v_ask.key;
    jobs := v_ask.jobs;
    if key = '' then
      bound := tenure.lock_bound(v_ask.queue);
      if bound.queue is not null then
        bounded := bounded || bound.queue;
      end if;
    end if;
    most := case key when '' then bound.jobs else bound.key_jobs end;
    if most is not null then
      why := tenure.take_room(bound, key, most, jobs);
      exit when why is not null;
    end if;
  end loop;
end $$;

-- lock_bound: the bound of a queue, kept as it is until the end of the transaction; all null: it has none. Errors: TN005.
create or replace function tenure.lock_bound(p_queue text) returns tenure.queue_bound
language plpgsql as $$
declare
  v_bound tenure.queue_bound;
begin
  select b.* into v_bound from tenure.queue_bound b where b.queue = p_queue for key share;
  return v_bound;
exception when lock_not_available then
  perform tenure.refuse_busy(p_queue);
end $$;

-- admit_anyway: what comes without asking (a requeue) takes its room all the same, even if there is none: the room is below zero then, until enough have ended. False: the queue
-- has no bound. Errors: TN005. Locks: as admit.
create or replace function tenure.admit_anyway(p_queue text, p_key text, p_jobs bigint) returns boolean
language plpgsql set lock_timeout = '5s' as $$
declare
  v_bound constant tenure.queue_bound := tenure.lock_bound(p_queue);
begin
  if v_bound.queue is null then
    return false;
  end if;
  perform tenure.lock_room(p_queue, k.key, k.most, clock_timestamp()) from (values ('', v_bound.jobs), (p_key, v_bound.key_jobs)) as k(key, most) where num_nulls(k.key, k.most) = 0;
  update tenure.queue_room r set room = r.room - p_jobs where r.queue = p_queue and (r.key = '' or r.key = p_key);
  return true;
end $$;

-- room_at_once: how many of so many jobs a queue takes, for who cannot wait: schedules and backfills are served by the connection that renews a worker's lease. The policy wait
-- waits for nothing here; drop makes room, if p_drop. What is returned stays free for this transaction: admit, which follows, finds it at once. All of them: the queue has no bound.
-- Errors: TN005 when another enqueue into the queue, or a change of its bound, has not committed. Locks: those of admit for the queue as a whole, waited for for a
-- tenth of a second; with drop, those of jobs that wait.
create or replace function tenure.room_at_once(p_queue text, p_jobs bigint, p_drop boolean) returns bigint
language plpgsql set lock_timeout = '100ms' as $$
declare
  c_again constant interval := '200 milliseconds';  -- a queue that was found full is not counted again before: many may ask, one after the other
  v_bound tenure.queue_bound;
  v_wanted bigint;
  v_room tenure.queue_room;
begin
  v_bound := tenure.lock_bound(p_queue);
  if v_bound.jobs is null then
    return p_jobs;
  end if;
  v_wanted := least(p_jobs, v_bound.jobs);
  v_room := tenure.lock_room(p_queue, '', v_bound.jobs, clock_timestamp());
  if v_room.room < v_wanted and coalesce(v_room.full_at < clock_timestamp() - c_again, true) then
    v_room.room := tenure.count_room(p_queue, '', v_wanted);
  end if;
  if v_room.room < v_wanted and p_drop and v_bound.policy = 'drop' then
    perform tenure.drop_oldest(p_queue, '', v_wanted - v_room.room);
    v_room.room := tenure.count_room(p_queue, '', v_wanted);
  end if;
  return greatest(0, least(v_room.room, v_wanted));
end $$;

-- note_full: the queue has just been found full, by somebody whose transaction has taken that back. Locks: its row of queue_room, skip locked.
create or replace function tenure.note_full(p_queue text) returns void
language sql as $$
  update tenure.queue_room r set full_at = clock_timestamp()
    where (r.queue, r.key) in (select x.queue, x.key from tenure.queue_room x where x.queue = p_queue and x.key = '' for update skip locked)
$$;

-- refuse_full: there is no room for a job that cannot wait for it. It is not counted as refused: whoever asks comes again.
create or replace function tenure.refuse_full(p_queue text) returns void
language plpgsql as $$
begin
  perform tenure.refuse('TN007', format('the queue "%s" is bounded, and full', p_queue), 'It is tried again by itself; raise the bound with set_queue_bound when that is for long.');
end $$;

-- note_members: what was admitted is counted by its bundles. For queues with a bound, which the caller has locked.
create or replace function tenure.note_members(p_queue text, p_key text, p_blocks bigint[], p_counts integer[]) returns void
language plpgsql as $$
begin
  insert into tenure.queue_member (queue, key, block, mask)
    select p_queue, coalesce(p_key, ''), u.block, tenure.mask_fresh(u.jobs) from unnest(p_blocks, p_counts) as u(block, jobs);
end $$;

-- take_room: of a queue, or of one of its keys. Returns null, or why there is none.
create or replace function tenure.take_room(p_bound tenure.queue_bound, p_key text, p_most bigint, p_jobs bigint) returns text
language plpgsql as $$
declare
  v_waits constant boolean := p_bound.policy = 'wait';
  v_count_at timestamptz;
  v_room bigint;
begin
  if p_jobs > p_most then
    return 'it never holds so many at once';
  end if;
  -- A look without a lock: who is refused stands in no row.
  if p_bound.policy = 'reject' and (select r.room < p_jobs from tenure.queue_room r where r.queue = p_bound.queue and r.key = p_key) and tenure.found_full(p_bound.n, p_key) then
    return 'it is full';
  end if;
  v_room := (tenure.lock_room(p_bound.queue, p_key, p_most, clock_timestamp())).room;
  if v_room < p_jobs and p_bound.policy = 'drop' and tenure.found_full(p_bound.n, p_key) then
    -- Those that have ended since are the oldest as a rule: nothing is dropped for room that is there.
    v_room := tenure.count_room(p_bound.queue, p_key, p_jobs, 1);
  end if;
  if v_room < p_jobs and (v_waits or not tenure.found_full(p_bound.n, p_key)) then
    v_count_at := clock_timestamp();
    v_room := tenure.count_room(p_bound.queue, p_key, p_jobs);
    if v_room < p_jobs and not v_waits then
      perform tenure.note_found_full(p_bound.n, p_key, clock_timestamp() - v_count_at);
    end if;
  end if;
  if v_room < p_jobs and p_bound.policy = 'drop' then
    perform tenure.drop_oldest(p_bound.queue, p_key, p_jobs - v_room);
    v_room := tenure.count_room(p_bound.queue, p_key, p_jobs);
  end if;
  if v_room < p_jobs then
    return case p_bound.policy when 'wait' then format('it did not get room within %s ms', p_bound.wait_ms)
                               when 'drop' then 'too few of the oldest wait, so that none can be dropped' else 'it is full' end;
  end if;
  update tenure.queue_room r set room = r.room - p_jobs where r.queue = p_bound.queue and r.key = p_key;
  return null;
end $$;

-- found_full: has a queue, or one of its keys, just been counted in vain? That is kept in a sequence, where the rollback that comes with every refusal does not take it back: until
-- when, in ms, and whose it was. One place for all of a queue: who alternates is counted each time.
create or replace function tenure.found_full(p_n bigint, p_key text) returns boolean
language sql volatile as $$
  select coalesce(s.value & 65535 = hashtext(p_key) & 65535 and s.value >> 16 > extract(epoch from clock_timestamp()) * 1000, false)
  from (select pg_sequence_last_value(format('tenure.%I', 'full_' || p_n)::regclass) as value) s
$$;

-- note_found_full: it is not counted again for as long as the counting took, 20 ms at least.
create or replace function tenure.note_found_full(p_n bigint, p_key text, p_took interval) returns void
language sql as $$
  select setval(format('tenure.%I', 'full_' || p_n)::regclass,
                (extract(epoch from clock_timestamp() + greatest(p_took, '20 milliseconds')) * 1000)::bigint << 16 | (hashtext(p_key) & 65535))
$$;

-- refuse_room: says no, and counts it where a rollback does not take it back: at most 1,000 of one call.
create or replace function tenure.refuse_room(p_bound tenure.queue_bound, p_key text, p_most bigint, p_jobs bigint, p_why text) returns void
language plpgsql as $$
begin
  perform nextval(format('tenure.%I', 'refused_' || p_bound.n)::regclass) from generate_series(1, least(p_jobs, 1000));
  perform tenure.refuse('TN007', format('the queue "%s" takes at most %s jobs%s that have not ended, and there is no room for %s: %s', p_bound.queue, p_most,
                                        case when p_key <> '' then format(' of the key %s', p_key) else '' end, p_jobs, p_why),
                        case when p_jobs > p_most then 'Enqueue fewer at once' else 'Try again when some have ended' end || ', or raise the bound with set_queue_bound.');
end $$;

create or replace function tenure.refuse_busy(p_queue text) returns void
language plpgsql as $$
begin
  perform tenure.refuse('TN005', format('another enqueue into the bounded queue "%s" has not committed for a while', p_queue), 'Try again; a transaction that enqueues into a bounded queue should be short.');
end $$;

-- lock_room: the row of a queue's or key's room, made if there is none; TN005 once the time is over. How long one try waits is said by the caller's lock_timeout.
create or replace function tenure.lock_room(p_queue text, p_key text, p_most bigint, p_until timestamptz) returns tenure.queue_room
language plpgsql as $$
declare
  v_room tenure.queue_room;
begin
  loop
    begin
      select r.* into v_room from tenure.queue_room r where r.queue = p_queue and r.key = p_key for update;
      if found then
        return v_room;
      end if;
      insert into tenure.queue_room (queue, key, room) values (p_queue, p_key, p_most - tenure.members(p_queue, p_key)) on conflict do nothing;
    exception when lock_not_available then
      if clock_timestamp() >= p_until then
        perform tenure.refuse_busy(p_queue);
      end if;
    end;
  end loop;
end $$;

-- members: how many jobs are counted in a queue (key ''), or of a key.
create or replace function tenure.members(p_queue text, p_key text) returns bigint
language sql stable as $$
  select coalesce(sum(bit_count(m.mask)), 0)::bigint from tenure.queue_member m where m.queue = p_queue and (p_key = '' or m.key = p_key)
$$;

-- count_room: takes away those that have ended, the oldest first, until there is room for so many. p_looks: after so many looks at 1,000 bundles it ends; null: with the last
-- one. Returns the room. The caller has its row locked.
create or replace function tenure.count_room(p_queue text, p_key text, p_wanted bigint, p_looks integer default null) returns bigint
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = on as $$
declare
  c_rows constant integer := 1000;
  v_room bigint;
  v_after bigint := -1;
  v_last bigint;
  v_freed bigint;
  v_looks integer := 0;
begin
  loop
    with seen as materialized (
      select m.key, m.block, m.mask from tenure.queue_member m
      where m.queue = p_queue and m.block > v_after and (p_key = '' or m.key = p_key) order by m.block limit c_rows),
    left_over as materialized (
      select s.key, s.block, s.mask,
             s.mask & coalesce((select bit_or(tenure.mask_of(j.id)) from tenure.job j where j.id >= s.block * 128 and j.id < s.block * 128 + 128), 0::bit(128))
               & ~ coalesce((select bit_or(tenure.mask_of(o.job_id)) from tenure.outcome o where o.job_id >= s.block * 128 and o.job_id < s.block * 128 + 128), 0::bit(128))
               & ~ coalesce((select bit_or(tenure.mask_of(d.job_id)) from tenure.dead_letter d where d.job_id >= s.block * 128 and d.job_id < s.block * 128 + 128), 0::bit(128)) as live
      from seen s),
    gone as (
      delete from tenure.queue_member m using left_over l
      where m.queue = p_queue and m.block = any(array(select x.block from left_over x where bit_count(x.live) = 0)) and m.key = l.key and m.block = l.block and bit_count(l.live) = 0),
    cut as (
      update tenure.queue_member m set mask = l.live from left_over l
      where m.queue = p_queue and m.block = any(array(select x.block from left_over x where bit_count(x.live) > 0 and x.live <> x.mask)) and m.key = l.key and m.block = l.block
        and bit_count(l.live) > 0 and l.live <> l.mask),
    credited as (
      update tenure.queue_room r set room = r.room + c.jobs
      from (select f.key, sum(f.jobs) as jobs
            from (select l.key, bit_count(l.mask) - bit_count(l.live) as jobs from left_over l where l.key <> '' union all
                  select '', bit_count(l.mask) - bit_count(l.live) from left_over l) f group by f.key having sum(f.jobs) > 0) c
      where r.queue = p_queue and r.key = c.key returning r.key)
    select max(l.block), (select count(*) from credited) into v_last, v_freed from left_over l;
    v_room := (select r.room from tenure.queue_room r where r.queue = p_queue and r.key = p_key);
    exit when v_room >= p_wanted;
    if v_last is null then
      update tenure.queue_room r set full_at = clock_timestamp() where r.queue = p_queue and r.key = p_key;
      exit;
    end if;
    v_after := v_last;
    v_looks := v_looks + 1;
    exit when v_looks >= p_looks;
  end loop;
  return v_room;
end $$;

-- drop_oldest: cancels the oldest that wait and that nobody holds, as many as it can. It looks at the 10,000 oldest bundles.
create or replace function tenure.drop_oldest(p_queue text, p_key text, p_jobs bigint) returns void
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  c_bundles constant integer := 10000;
  v_bundle record;
  v_job bigint;
  v_dropped bigint := 0;
begin
  for v_bundle in
    select m.block, m.mask from tenure.queue_member m where m.queue = p_queue and (p_key = '' or m.key = p_key) order by m.block limit c_bundles
  loop
    for v_job in select n.job_id from tenure.jobs_in(array[v_bundle.block], v_bundle.mask) n order by n.job_id loop
      exit when v_dropped >= p_jobs;
      if tenure.lock_waiting(v_job) and tenure.cancel_waiting(v_job) then
        v_dropped := v_dropped + 1;
      end if;
    end loop;
    exit when v_dropped >= p_jobs;
  end loop;
  update tenure.queue_room r set dropped = r.dropped + v_dropped where r.queue = p_queue and r.key = p_key;
end $$;

-- lock_waiting: locks the row in which a job waits. False: it does not wait, or somebody holds it, for whom nobody waits: he may be waiting for the room.
create or replace function tenure.lock_waiting(p_job bigint) returns boolean
language plpgsql as $$
declare
  c_block constant bigint := p_job >> 7;
  c_bit constant integer := (p_job & 127)::integer;
  v_job tenure.job;
begin
  select j.* into v_job from tenure.job j where j.id = p_job;
  perform from tenure.ready r where r.queue = v_job.queue and r.priority = v_job.priority and r.id = c_block and get_bit(r.mask, c_bit) = 1 for update skip locked;
  if not found then
    perform from tenure.ready r where r.block = c_block and r.id <> r.block and get_bit(r.mask, c_bit) = 1 for update skip locked;
  end if;
  if not found then
    perform from tenure.limited l where l.id = c_block and get_bit(l.mask, c_bit) = 1 for update skip locked;
  end if;
  if not found then
    perform from tenure.limited l where l.block = c_block and l.id <> l.block and get_bit(l.mask, c_bit) = 1 for update skip locked;
  end if;
  if not found then
    perform from tenure.later t where t.block = c_block and get_bit(t.mask, c_bit) = 1 for update skip locked;
  end if;
  if not found then
    perform from tenure.held h where h.block = c_block and get_bit(h.mask, c_bit) = 1 for update skip locked;
  end if;
  return found;
end $$;
