-- partitions: makes the next ranges of job and outcome before they are needed.
-- Transition: none. Parameters: none. Returns the number of ranges made (0: enough are ahead).
-- The last range has no end, so that nothing that maintenance misses can make an enqueue fail; it is empty as long as
-- maintenance keeps up, and is then replaced by bounded ranges and a new endless one.
-- Locks: access exclusive on job and outcome for milliseconds, given up after 200 ms and tried again at the next run.
create or replace function tenure.add_partition(p_first bigint, p_end bigint) returns void
language plpgsql as $$
declare
  v_name text := case when p_end is null then 'tail' else p_first::text end;
  v_to text := case when p_end is null then 'maxvalue' else (p_end * 128)::text end;
begin
  execute format('create table tenure.%I partition of tenure.job for values from (%s) to (%s)', 'job_' || v_name, p_first * 128, v_to);
  execute format('create table tenure.%I partition of tenure.outcome for values from (%s) to (%s)', 'outcome_' || v_name, p_first * 128, v_to);
  insert into tenure.partition (first_block, end_block) values (p_first, p_end);
end $$;

-- Gives the endless range an end, when jobs were enqueued into it because no maintenance ran for a long time.
create or replace function tenure.bound_tail(p_first bigint, p_width bigint) returns bigint
language plpgsql as $$
declare
  v_end bigint;
begin
  -- Nobody holds a row lock on job now, and every id drawn so far lies below this end.
  select s.last_value + p_width into v_end from tenure.block_id s;
  alter table tenure.job detach partition tenure.job_tail;
  alter table tenure.outcome detach partition tenure.outcome_tail;
  execute format('alter table tenure.job_tail rename to %I', 'job_' || p_first);
  execute format('alter table tenure.outcome_tail rename to %I', 'outcome_' || p_first);
  execute format('alter table tenure.job attach partition tenure.%I for values from (%s) to (%s)', 'job_' || p_first, p_first * 128, v_end * 128);
  execute format('alter table tenure.outcome attach partition tenure.%I for values from (%s) to (%s)', 'outcome_' || p_first, p_first * 128, v_end * 128);
  update tenure.partition p set end_block = v_end where p.first_block = p_first;
  return v_end;
end $$;

create or replace function tenure.partitions() returns integer
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp set lock_timeout = '200ms' as $$
declare
  c_width constant bigint := 1000000;    -- blocks a range: 128 million jobs in full bundles, 1 million single ones
  c_width_max constant bigint := 1000000000;
  c_ranges constant integer := 3;        -- bounded ranges made at a time
  v_block bigint;
  v_first bigint;
  v_width bigint;
  v_made_at timestamptz;
begin
  select s.last_value into v_block from tenure.block_id s;
  select p.first_block into v_first from tenure.partition p where p.end_block is null;
  if not found then
    v_first := 0;
    v_width := c_width;
  else
    select p.end_block - p.first_block, p.made_at into v_width, v_made_at
      from tenure.partition p where p.end_block is not null order by p.first_block desc limit 1;
    if v_first - v_block >= v_width then
      return 0;
    end if;
    -- A range lasts a day or more: one that was used up sooner is followed by wider ones.
    if v_made_at > clock_timestamp() - interval '1 day' then
      v_width := least(v_width * 4, c_width_max);
    end if;
    lock table tenure.job, tenure.outcome in access exclusive mode;
    if exists (select from tenure.job_tail) or exists (select from tenure.outcome_tail) then
      v_first := tenure.bound_tail(v_first, v_width);
    else
      drop table tenure.job_tail, tenure.outcome_tail;
      delete from tenure.partition p where p.end_block is null;
    end if;
  end if;
  for i in 0 .. c_ranges - 1 loop
    perform tenure.add_partition(v_first + i * v_width, v_first + (i + 1) * v_width);
  end loop;
  perform tenure.add_partition(v_first + c_ranges * v_width, null);
  return c_ranges;
end $$;
