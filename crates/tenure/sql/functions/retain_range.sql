-- retain_range: one step of retention in the first range that has something to do. A range is a pair of partitions of job and outcome.
--
-- A range that still gets new ids is *thinned*: its ended jobs are walked over in the order of their ids, and those that are due deleted; the
-- space goes to new jobs. The walk ends at the first job that was enqueued so late that neither it nor any after it can be due.
-- A range that gets no more ids is *looked* at first, without writing. When all in it is due but a few jobs, it is *emptied* as a whole
-- (retain_empty.sql), and what is left in the tables beside is *swept*. When the rest becomes due before long (within half the shortest age that
-- any queue keeps), it is left until then: deleting rows one by one is what a whole range saves. Otherwise it is thinned.
create or replace function tenure.retain_range(p_limit integer) returns table (removed bigint, emptied integer)
language plpgsql as $$
#variable_conflict use_column
declare
  c_time_ms constant bigint := 200;
  c_again constant interval := '10 minutes';  -- after a step that failed
  v_timeout_ms constant bigint := (select s.setting::bigint from pg_settings s where s.name = 'statement_timeout');
  v_end_at constant timestamptz := clock_timestamp()
    + least(c_time_ms, case when v_timeout_ms > 0 then v_timeout_ms / 4 end) * interval '1 millisecond';
  v_old tenure.partition;
  r tenure.partition;
begin
  select p.* into r from tenure.partition p
    where p.walk_at <= clock_timestamp() and p.first_block <= (select s.last_value from tenure.block_id s) order by p.first_block limit 1
    for update skip locked;
  if not found then
    return;
  end if;
  v_old := r;
  begin
    if r.walk is null then
      r := tenure.begin_walk(r);
    end if;
    if r.walk = 'l' then
      r := tenure.look(r, p_limit, v_end_at);
    elsif r.walk = 't' then
      r := tenure.thin(r, p_limit, v_end_at);
    elsif r.walk = 's' then
      r := tenure.sweep(r, v_end_at);
    elsif r.walk = 'e' then
      r := tenure.empty_range(r);
    end if;
  exception when others then
    raise warning 'tenure: finished jobs of the range from % on could not be removed, it is put off: % (%)', v_old.first_block * 128, sqlerrm, sqlstate;
    r := v_old;
    r.walk_at := clock_timestamp() + c_again;
  end;
  -- Its end is not ours.
  update tenure.partition p
    set walk_at = r.walk_at, walk = r.walk, walked_to = r.walked_to, looked = r.looked, kept = r.kept, keep_jobs = r.keep_jobs, due_at = r.due_at,
        low = r.low, low_until = r.low_until, exact = r.exact, removed = r.removed, drop_at = r.drop_at
    where p.first_block = r.first_block;
  return query select r.removed - v_old.removed, (r.walk = 's' and v_old.walk is distinct from 's')::integer;
end $$;

-- What the steps of a walk need to know of a range: the ids that end it, and whether it can be emptied: it is sealed, that is, no more ids are drawn
-- from it; this transaction sees what was committed before each of its statements, without which a job might be overlooked; and no foreign key of
-- the user's own points to job, which forbids to truncate any part of it.
create or replace function tenure.jobs_before(r tenure.partition) returns bigint
language sql immutable as $$ select coalesce(r.end_block * 128, 9223372036854775807) $$;

create or replace function tenure.can_be_emptied(r tenure.partition) returns boolean
language sql volatile as $$
  select coalesce(r.end_block <= (select s.last_value from tenure.block_id s), false)
     and current_setting('transaction_isolation') in ('read committed', 'read uncommitted')
     and not exists (select from pg_constraint c where c.contype = 'f' and c.confrelid = 'tenure.job'::regclass)
$$;

-- put_off: the walk is over, and the next one is not before p_at. Pauses are a hundred times as long as a walk over what is kept takes.
create or replace function tenure.put_off(r tenure.partition, p_at timestamptz) returns tenure.partition
language plpgsql as $$
begin
  r.walk := null;
  r.exact := false;
  r.keep_jobs := '{}';
  r.walk_at := greatest(p_at, clock_timestamp() + interval '1 minute', clock_timestamp() + r.kept * interval '1 millisecond');
  return r;
end $$;

-- next_look: when something that was kept may be due: what has not ended yet may end at any time.
create or replace function tenure.next_look(r tenure.partition) returns timestamptz
language sql volatile as $$
  select least(r.due_at, clock_timestamp() + least(tenure.keep_shortest(), interval '1 day'))
$$;

-- begin_walk: decides what to do with a range that nothing was done with for a while.
create or replace function tenure.begin_walk(r tenure.partition) returns tenure.partition
language plpgsql as $$
declare
  c_put_back constant integer := 1000;
  v_now constant timestamptz := clock_timestamp();
  v_shortest constant interval := tenure.keep_shortest();
  v_first_at timestamptz;
  v_late bigint;
  v_late_at timestamptz;
begin
  r.looked := 0;
  r.kept := 0;
  r.keep_jobs := '{}';
  r.due_at := null;
  -- Now and then from the very start: jobs that ended since, and whose neighbours are long gone.
  if r.low_until > v_now then
    r.walked_to := r.low - 1;
  else
    r.walked_to := r.first_block * 128 - 1;
    r.low := null;
    r.low_until := v_now + least(v_shortest, interval '1 day');
  end if;
  if not tenure.can_be_emptied(r) then
    r.walk := 't';
    return r;
  end if;

  select j.created_at into v_first_at from tenure.job j where j.id >= r.first_block * 128 and j.id < r.end_block * 128 order by j.id limit 1;
  if v_first_at is null then
    r.walk := 'e';
    return r;
  end if;
  if v_first_at > v_now - v_shortest then
    return tenure.put_off(r, v_first_at + v_shortest);
  end if;
  r.keep_jobs := tenure.live_in(r.first_block, r.end_block, c_put_back + 1);
  -- The last jobs of a range tell soonest that it is not due.
  select count(*) filter (where e.due_at > v_now), max(e.due_at) into v_late, v_late_at
    from (select min(x.job_id) as job_id
          from (select o.job_id from tenure.outcome o where o.job_id >= r.first_block * 128 and o.job_id < r.end_block * 128
                order by o.job_id desc limit 2 * c_put_back) x) l
    cross join lateral tenure.ends_in(l.job_id - 1, r.end_block * 128, 2 * c_put_back) e;
  if cardinality(r.keep_jobs) > c_put_back or v_late > c_put_back then
    return tenure.not_whole(r, case when cardinality(r.keep_jobs) <= c_put_back then v_late_at end);
  end if;
  r.walked_to := r.first_block * 128 - 1;
  r.walk := 'l';
  return r;
end $$;

-- not_whole: more than a few jobs of the range are kept, at least until p_until (null: nobody knows how long). Waits for them, or thins.
create or replace function tenure.not_whole(r tenure.partition, p_until timestamptz) returns tenure.partition
language plpgsql as $$
begin
  r.keep_jobs := '{}';
  if not r.exact and p_until <= clock_timestamp() + tenure.keep_shortest() / 2 then
    return tenure.put_off(r, p_until);
  end if;
  r.walk := 't';
  r.walked_to := case when r.low is null then r.first_block * 128 else r.low end - 1;
  r.looked := 0;
  r.kept := 0;
  r.due_at := null;
  return r;
end $$;

-- look: counts what is kept, and writes nothing; the jobs that ended late are noted, to be put back when the rest goes.
create or replace function tenure.look(r tenure.partition, p_limit integer, p_end_at timestamptz) returns tenure.partition
language plpgsql as $$
declare
  v_rows constant integer := least(p_limit, 2000);
  c_put_back constant integer := 1000;
  c_rewrite constant integer := 10000;   -- so many jobs are rather deleted one by one than written anew around the others
  v_now constant timestamptz := clock_timestamp();
  v_seen bigint;
  v_kept bigint;
  v_jobs bigint[];
  v_due_at timestamptz;
  v_until timestamptz;
  v_last bigint;
begin
  loop
    select count(*), count(*) filter (where e.due_at > v_now), array_agg(e.job_id) filter (where e.due_at > v_now),
           min(e.due_at) filter (where e.due_at > v_now), max(e.due_at), max(e.job_id)
      into v_seen, v_kept, v_jobs, v_due_at, v_until, v_last
      from tenure.ends_in(r.walked_to, tenure.jobs_before(r), v_rows) e;
    exit when v_seen = 0;
    r.looked := r.looked + v_seen;
    r.kept := r.kept + v_kept;
    r.due_at := least(r.due_at, v_due_at);
    r.walked_to := v_last;
    if v_kept + cardinality(r.keep_jobs) > 2 * c_put_back then
      return tenure.not_whole(r, v_until);
    end if;
    r.keep_jobs := r.keep_jobs || coalesce(v_jobs, '{}');
    if v_seen < v_rows then
      exit;
    end if;
    if clock_timestamp() > p_end_at then
      return r;
    end if;
  end loop;
  if cardinality(r.keep_jobs) = 0 or r.looked - r.kept >= c_rewrite then
    r.walk := 'e';
  elsif r.looked > r.kept then
    r := tenure.not_whole(r, null);
  else
    r := tenure.put_off(r, tenure.next_look(r));
  end if;
  return r;
end $$;

-- thin: deletes what is due, some hundred jobs at a time.
create or replace function tenure.thin(r tenure.partition, p_limit integer, p_end_at timestamptz) returns tenure.partition
language plpgsql as $$
declare
  v_rows constant integer := least(p_limit, 500);
  v_now constant timestamptz := clock_timestamp();
  v_shortest constant interval := tenure.keep_shortest();
  v_left integer := p_limit;
  v_seen bigint;
  v_jobs bigint[];
  v_kept_first bigint;
  v_due_at timestamptz;
  v_last bigint;
  v_last_at timestamptz;
begin
  loop
    select count(*), coalesce(array_agg(e.job_id) filter (where e.due_at <= v_now), '{}'), min(e.job_id) filter (where e.due_at > v_now),
           min(e.due_at) filter (where e.due_at > v_now), max(e.job_id), max(e.created_at)
      into v_seen, v_jobs, v_kept_first, v_due_at, v_last, v_last_at
      from tenure.ends_in(r.walked_to, tenure.jobs_before(r), v_rows) e;
    r.looked := r.looked + v_seen;
    r.kept := r.kept + v_seen - cardinality(v_jobs);
    r.due_at := least(r.due_at, v_due_at);
    r.low := coalesce(r.low, v_kept_first);
    r.walked_to := coalesce(v_last, r.walked_to);
    v_jobs := tenure.take_ends(v_jobs);
    r.removed := r.removed + cardinality(v_jobs);
    v_left := v_left - cardinality(v_jobs);
    if v_seen < v_rows or v_last_at > v_now - v_shortest then
      return tenure.end_thinning(r, least(v_last_at + v_shortest, v_now + least(v_shortest, interval '1 hour')));
    end if;
    exit when v_left <= 0 or clock_timestamp() > p_end_at;
  end loop;
  return r;
end $$;

-- The walk has come to its end. A sealed range of which nothing is left gives its space back.
create or replace function tenure.end_thinning(r tenure.partition, p_next_at timestamptz) returns tenure.partition
language plpgsql as $$
begin
  r.low := coalesce(r.low, r.walked_to + 1);
  if r.kept = 0 and tenure.can_be_emptied(r) and cardinality(tenure.live_in(r.first_block, r.end_block, 1)) = 0
     and not exists (select from tenure.outcome o where o.job_id >= r.first_block * 128 and o.job_id < r.end_block * 128) then
    r.walk := 'e';
    r.keep_jobs := '{}';
    return r;
  end if;
  return tenure.put_off(r, least(r.due_at, p_next_at));
end $$;

-- take_ends: deletes these jobs and their outcomes, but for those that somebody holds, a requeue for instance. Returns the deleted.
create or replace function tenure.take_ends(p_jobs bigint[]) returns bigint[]
language plpgsql as $$
declare
  v_first bigint;
  v_last bigint;
  v_jobs bigint[];
begin
  select min(u.job), max(u.job) into v_first, v_last from unnest(p_jobs) as u(job);
  v_jobs := array(select o.job_id from tenure.outcome o where o.job_id >= v_first and o.job_id <= v_last and o.job_id = any(p_jobs)
                  order by o.job_id for update skip locked);
  delete from tenure.outcome o where o.job_id >= v_first and o.job_id <= v_last and o.job_id = any(v_jobs);
  perform tenure.forget(v_jobs);
  return v_jobs;
end $$;
