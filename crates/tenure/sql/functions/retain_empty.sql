-- retain_empty: a range goes as a whole. Its two partitions are truncated, which gives their space back at once and locks nothing else; what must
-- stay (at most a few thousand jobs: not ended, or kept for longer) is put back in the same transaction. The empty partitions are dropped later.
--
-- Why no job is lost: what has not ended is looked up after both partitions are locked, in a statement of its own, under read committed. A
-- transaction that is just ending a job has written its outcome, so that the lock is refused, or will wait for it, and then its lease is still seen. One
-- that has drawn an id and not yet inserted its job inserts afterwards: the partition stays attached for an hour.

-- empty_range: the step itself. When the range is in use it is tried again a minute later.
create or replace function tenure.empty_range(r tenure.partition) returns tenure.partition
language plpgsql as $$
declare
  c_live_max constant integer := 2000;
  c_bytes_max constant bigint := 67108864;     -- of payloads and results that are held in memory meanwhile
  v_job text := format('tenure.%I', 'job_' || r.first_block);
  v_outcome text := format('tenure.%I', 'outcome_' || r.first_block);
  v_keep bigint[];
  v_jobs tenure.job[];
  v_outcomes tenure.outcome[];
begin
  if not tenure.can_be_emptied(r) then
    return tenure.not_whole(r, null);
  end if;
  -- Those above first: who makes partitions locks them against everybody, and is not to be waited for with a range in hand.
  lock table tenure.job, tenure.outcome in row exclusive mode;
  if not tenure.lock_range(v_job, v_outcome) then
    r.walk_at := clock_timestamp() + interval '1 minute';
    return r;
  end if;
  v_keep := tenure.live_in(r.first_block, r.end_block, c_live_max);
  if cardinality(v_keep) = c_live_max then
    return tenure.not_whole(r, null);
  end if;
  v_keep := v_keep || r.keep_jobs;
  if tenure.bytes_of(v_keep) > c_bytes_max then
    return tenure.not_whole(r, null);
  end if;
  v_jobs := array(select j from tenure.job j where j.id >= r.first_block * 128 and j.id < r.end_block * 128 and j.id = any(v_keep));
  v_outcomes := array(select o from tenure.outcome o where o.job_id >= r.first_block * 128 and o.job_id < r.end_block * 128 and o.job_id = any(v_keep));
  execute format('truncate table %s, %s', v_job, v_outcome);
  -- Whole rows, so that a column that is added to these tables one day is not forgotten here.
  insert into tenure.job select u.* from unnest(v_jobs) as u;
  insert into tenure.outcome select u.* from unnest(v_outcomes) as u;
  r.removed := r.removed + greatest(0, r.looked - cardinality(v_outcomes));
  r.walk := 's';
  r.walked_to := r.first_block * 128 - 1;
  r.kept := cardinality(v_outcomes);
  r.low := null;
  r.low_until := null;
  return r;
end $$;

create or replace function tenure.bytes_of(p_jobs bigint[]) returns bigint
language sql stable as $$
  select coalesce((select sum(pg_column_size(j.payload)) from tenure.job j
                   where j.id >= (select min(u.job) from unnest(p_jobs) as u(job)) and j.id <= (select max(u.job) from unnest(p_jobs) as u(job)) and j.id = any(p_jobs)), 0)
       + coalesce((select sum(pg_column_size(o.result)) from tenure.outcome o
                   where o.job_id >= (select min(u.job) from unnest(p_jobs) as u(job)) and o.job_id <= (select max(u.job) from unnest(p_jobs) as u(job)) and o.job_id = any(p_jobs)), 0)
$$;

-- lock_range: locks two partitions against everybody, if that takes no time. False: they are in use. Who waits for such a lock makes others wait
-- behind him, and every claim reads the partitions of job; so nobody waits behind us for longer than 20 ms, and not at all behind a long read:
-- that is somebody who is there at two looks.
create or replace function tenure.lock_range(p_job text, p_outcome text) returns boolean
language plpgsql as $$
declare
  c_between constant double precision := 0.05;
  v_lock text := format('lock table %s, %s in access exclusive mode', p_job, p_outcome);
  v_held text[];
begin
  begin
    execute v_lock || ' nowait';
    return true;
  exception when lock_not_available then
    v_held := tenure.users_of(p_job, p_outcome);
  end;
  perform pg_sleep(c_between);
  if tenure.users_of(p_job, p_outcome) && v_held then
    return false;
  end if;
  begin
    perform set_config('lock_timeout', '20ms', true);
    execute v_lock;
    perform set_config('lock_timeout', '100ms', true);
    return true;
  exception when lock_not_available then
    return false;
  end;
end $$;

-- The transactions that hold a lock on one of them.
create or replace function tenure.users_of(p_job text, p_outcome text) returns text[]
language sql volatile as $$
  select coalesce(array_agg(distinct l.virtualtransaction), '{}') from pg_locks l
  where l.locktype = 'relation' and l.relation in (p_job::regclass, p_outcome::regclass) and l.granted and l.pid <> pg_backend_pid()
    and l.database = (select d.oid from pg_database d where d.datname = current_database())
$$;

-- live_in: the jobs of these blocks that have not ended, at most p_limit. One statement, so that none is missed that moves meanwhile.
create or replace function tenure.live_in(p_first bigint, p_end bigint, p_limit integer) returns bigint[]
language plpgsql as $$
begin
  return array(
    with recursive lane as (
      (select r.queue, r.priority from tenure.ready r order by r.queue, r.priority limit 1)
      union all
      select n.queue, n.priority from lane l cross join lateral (
        select r.queue, r.priority from tenure.ready r where (r.queue, r.priority) > (l.queue, l.priority) order by r.queue, r.priority limit 1) n)
    select u.job_id from (
      select n.job_id from lane l
        cross join lateral (select r.block, r.mask from tenure.ready r
          where r.queue = l.queue and r.priority = l.priority and r.id >= p_first and r.id < p_end and r.id = r.block order by r.id limit p_limit) b
        cross join lateral tenure.jobs_in(array[b.block], b.mask) n
      union all
      select n.job_id from tenure.ready r cross join lateral tenure.jobs_in(array[r.block], r.mask) n where r.block >= p_first and r.block < p_end and r.id <> r.block
      union all
      select n.job_id from tenure.later t cross join lateral tenure.jobs_in(array[t.block], t.mask) n where t.block >= p_first and t.block < p_end
      union all
      select n.job_id from tenure.held h cross join lateral tenure.jobs_in(array[h.block], h.mask) n where h.block >= p_first and h.block < p_end
      union all
      select n.job_id from tenure.limited t cross join lateral tenure.jobs_in(array[t.block], t.mask) n where t.id >= p_first and t.id < p_end and t.id = t.block
      union all
      select n.job_id from tenure.limited t cross join lateral tenure.jobs_in(array[t.block], t.mask) n where t.block >= p_first and t.block < p_end and t.id <> t.block
      union all
      select n.job_id from tenure.lease l cross join lateral tenure.jobs_in(l.blocks, l.strip) n
        where n.job_id >= p_first * 128 and n.job_id < p_end * 128) u
    limit p_limit);
end $$;

-- sweep: what an emptied range has left in the tables beside: rows of jobs that are gone, and were not buried.
create or replace function tenure.sweep(r tenure.partition, p_end_at timestamptz) returns tenure.partition
language plpgsql as $$
declare
  c_rows constant integer := 500;
  v_end constant bigint := r.end_block * 128;
  v_seen bigint[];
  v_jobs bigint[];
begin
  loop
    v_seen := array(
      select distinct u.job_id from (
        (select e.job_id from tenure.attempt_error e where e.job_id > r.walked_to and e.job_id < v_end order by e.job_id limit c_rows)
        union all
        (select p.job_id from tenure.progress p where p.job_id > r.walked_to and p.job_id < v_end order by p.job_id limit c_rows)
        union all
        (select z.job_id from tenure.snooze z where z.job_id > r.walked_to and z.job_id < v_end order by z.job_id limit c_rows)
        union all
        (select x.job_id from tenure.replacement x where x.job_id > r.walked_to and x.job_id < v_end order by x.job_id limit c_rows)) u
      order by u.job_id limit c_rows);
    v_jobs := array(
      select u.job from unnest(v_seen) as u(job)
      where not exists (select from tenure.job j where j.id = u.job) and not exists (select from tenure.dead_letter d where d.job_id = u.job));
    perform tenure.forget(v_jobs);
    if cardinality(v_seen) = 0 then
      exit;
    end if;
    r.walked_to := v_seen[cardinality(v_seen)];
    if clock_timestamp() > p_end_at then
      return r;
    end if;
  end loop;
  if exists (select from tenure.job j where j.id >= r.first_block * 128 and j.id < v_end) then
    return tenure.put_off(r, tenure.next_look(r));
  end if;
  r := tenure.put_off(r, 'infinity');
  r.drop_at := clock_timestamp() + interval '1 hour';
  return r;
end $$;

-- drop_ranges: drops partitions that were emptied a while ago. Returns their number.
-- Locks: access exclusive on job and outcome for milliseconds, given up after 100 ms and tried again ten minutes later.
create or replace function tenure.drop_ranges() returns integer
language plpgsql as $$
declare
  c_ranges constant integer := 16;
  c_again constant interval := '10 minutes';
  v_ranges bigint[] := array(select p.first_block from tenure.partition p where p.drop_at <= clock_timestamp() order by p.first_block limit c_ranges
                                   for update skip locked);
  v_dropped bigint[] := '{}';
  v_first bigint;
begin
  if cardinality(v_ranges) = 0 or current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    return 0;
  end if;
  begin
    lock table tenure.job, tenure.outcome in access exclusive mode;
    foreach v_first in array v_ranges loop
      v_dropped := v_dropped || tenure.drop_range(v_first);
    end loop;
  exception when lock_not_available then
    v_dropped := '{}';
  end;
  update tenure.partition p set drop_at = clock_timestamp() + c_again where p.first_block = any(v_ranges) and p.drop_at is not null;
  return cardinality(array_remove(v_dropped, null));
end $$;

-- drop_range: one of them, unless somebody reads it or something was put into it since. Returns its first block; null: it stays.
create or replace function tenure.drop_range(p_first bigint) returns bigint
language plpgsql as $$
declare
  v_end bigint := (select p.end_block from tenure.partition p where p.first_block = p_first);
  v_job text := format('tenure.%I', 'job_' || p_first);
  v_outcome text := format('tenure.%I', 'outcome_' || p_first);
begin
  if exists (select from tenure.job j where j.id >= p_first * 128 and j.id < v_end * 128)
     or exists (select from tenure.outcome o where o.job_id >= p_first * 128 and o.job_id < v_end * 128) then
    update tenure.partition p set drop_at = null, walk_at = clock_timestamp() where p.first_block = p_first;
    return null;
  end if;
  execute format('lock table %s, %s in access exclusive mode nowait', v_job, v_outcome);
  execute format('drop table %s, %s', v_job, v_outcome);
  delete from tenure.partition p where p.first_block = p_first;
  return p_first;
exception
  when lock_not_available then
    return null;
  when others then
    raise warning 'tenure: the empty range from % on could not be dropped: % (%)', p_first * 128, sqlerrm, sqlstate;
    return null;
end $$;
