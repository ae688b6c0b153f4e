-- partitions: makes the next ranges of job and outcome before they are needed.
-- Transition: none. Parameters: none. Returns the number of ranges made (0: enough are ahead).
-- Behind the ranges to come stands a spare one, so wide that no outage of maintenance uses it up (3 months of 500 single enqueues a second), and
-- behind that the tail, which has no end, so that an enqueue never lacks a partition. As long as no id was drawn from them they are empty, and
-- are dropped and made anew further on. A spare that was used stays: it has an end, so that it becomes a range like any other without a look at
-- its rows, and once there are ranges behind it the ids go on there. A tail that was used stays the tail: to give it an end, all of its rows
-- would be read while everybody is locked out.
-- Locks: the rows of the unused spare and the tail in `partition`, which set_keep holds too, without waiting; then access exclusive on job and
-- outcome for milliseconds, given up after 200 ms and tried again at the next run.
create or replace function tenure.partitions() returns integer
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp set lock_timeout = '200ms' as $$
declare
  c_width constant bigint := 1000000;    -- blocks a range: 128 million jobs in full bundles, 1 million single ones
  c_width_max constant bigint := 1000000000;
  c_spare constant bigint := 4 * c_width_max;
  c_ranges constant integer := 2;        -- ordinary ranges made at a time
  v_block bigint := (select s.last_value from tenure.block_id s);
  v_last tenure.partition;               -- the last ordinary range
  v_width bigint;
  v_unused bigint[];
  v_first bigint;
begin
  select p.* into v_last from tenure.partition p where p.end_block - p.first_block <= c_width_max order by p.first_block desc limit 1;
  if v_block < v_last.first_block then
    perform tenure.leave_spare(c_width_max);
    return 0;
  end if;
  v_unused := array(select p.first_block from tenure.partition p
                    where p.first_block > v_block and coalesce(p.end_block - p.first_block > c_width_max, true)
                    order by p.first_block for update nowait);
  if v_last.first_block is not null then
    if v_unused = '{}' then
      raise warning 'tenure: the range without an end is in use: no further ranges can be made, and finished jobs are removed from it one by one';
      return 0;
    end if;
    lock table tenure.job, tenure.outcome in access exclusive mode;
    -- Nobody inserts now, and whoever drew an id before is counted.
    select s.last_value into v_block from tenure.block_id s;
    v_first := tenure.drop_unused(v_unused, v_block);
    if v_first is null then
      return 0;
    end if;
    -- A range lasts a day or more: one that was used up sooner is followed by wider ones.
    v_width := v_last.end_block - v_last.first_block;
    v_width := case when v_last.made_at > clock_timestamp() - interval '1 day' then least(v_width * 4, c_width_max) else v_width end;
  end if;
  v_first := coalesce(v_first, 0);
  v_width := coalesce(v_width, c_width);
  for i in 0 .. c_ranges - 1 loop
    perform tenure.add_partition(v_first + i * v_width, v_first + (i + 1) * v_width);
  end loop;
  v_first := v_first + c_ranges * v_width;
  perform tenure.add_partition(v_first, v_first + c_spare);
  perform tenure.add_partition(v_first + c_spare, null);
  return c_ranges;
end $$;

create or replace function tenure.partition_name(p_table text, p_first bigint, p_end bigint) returns text
language sql immutable as $$ select format('tenure.%I', p_table || '_' || coalesce(case when p_end is not null then p_first end::text, 'tail')) $$;

create or replace function tenure.add_partition(p_first bigint, p_end bigint) returns void
language plpgsql as $$
declare
  v_to text := case when p_end is null then 'maxvalue' else (p_end * 128)::text end;
begin
  execute format('create table %s partition of tenure.job for values from (%s) to (%s)', tenure.partition_name('job', p_first, p_end), p_first * 128, v_to);
  execute format('create table %s partition of tenure.outcome for values from (%s) to (%s)', tenure.partition_name('outcome', p_first, p_end), p_first * 128, v_to);
  insert into tenure.partition (first_block, end_block) values (p_first, p_end);
end $$;

-- drop_unused: drops those of the given ranges from which no id was drawn, which are the last ones. Returns where the first of them began; null: none is.
create or replace function tenure.drop_unused(p_ranges bigint[], p_drawn bigint) returns bigint
language plpgsql as $$
declare
  v_range tenure.partition;
  v_first bigint;
begin
  for v_range in select p.* from tenure.partition p where p.first_block = any(p_ranges) and p.first_block > p_drawn order by p.first_block loop
    execute format('drop table %s, %s', tenure.partition_name('job', v_range.first_block, v_range.end_block),
                   tenure.partition_name('outcome', v_range.first_block, v_range.end_block));
    delete from tenure.partition p where p.first_block = v_range.first_block;
    v_first := coalesce(v_first, v_range.first_block);
  end loop;
  return v_first;
end $$;

-- leave_spare: when ids are drawn from a spare range (one wider than p_width_max) and there are ranges behind it, they go on there, so that the
-- spare is emptied as a whole one day and not row by row. The row lock lets one caller do it, since a sequence that is set twice would go back. In
-- the second half of a spare, ids are let come to its end by themselves: they must not get there between the look and the setting.
create or replace function tenure.leave_spare(p_width_max bigint) returns void
language plpgsql as $$
declare
  v_block bigint := (select s.last_value from tenure.block_id s);
  v_end bigint;
begin
  select p.end_block into v_end from tenure.partition p
    where p.end_block - p.first_block > p_width_max and v_block >= p.first_block and v_block < (p.first_block + p.end_block) / 2
    for update nowait;
  if (select s.last_value < v_end from tenure.block_id s) then
    perform setval('tenure.block_id', v_end);
  end if;
end $$;
