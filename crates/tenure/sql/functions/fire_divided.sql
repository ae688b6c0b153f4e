-- fire_divided: what fire does, whatever fails of it: the plain schedules together, then those about which there is something, one by one, and last, alone, those that
-- failed before or may fail. If the plain ones fail, and nobody knows which of them, they are divided into small parts of such that are alike; of a part that fails
-- each is done alone. For that there is little time: however many fail, the others must not wait. Those that it does not reach are remembered as suspect, so that
-- what is known is not found out again: until they have fired they come after the others, also in the next calls.
-- Parameters and what it returns: as fire.
-- Locks: as fire. From a failure on it holds the rows of all of them, so that several workers do not divide the same ones.
create or replace function tenure.fire_divided(p_plans json, out jobs bigint, out failed bigint, out done bigint)
language plpgsql as $$
declare
  c_time constant interval := '1 second';
  c_time_parts constant interval := '400 milliseconds';
  c_time_alone constant interval := '200 milliseconds';
  v_until constant timestamptz := clock_timestamp() + c_time;
  v_until_parts timestamptz;
  v_until_alone timestamptz;
  v_parts json[];
  v_part json;
  v_members json[];
  v_done record;
  v_divided boolean := false;
  v_special json[] := '{}';
  v_alone json[] := '{}';
  v_left json[] := '{}';
  v_plan json;
begin
  jobs := 0;
  failed := 0;
  done := 0;
  if json_array_length(p_plans) = 1 then
    v_special := array[p_plans -> 0];
  else
    begin
      select f.jobs, f.done, f.special, f.alone into v_done from tenure.fire_together(p_plans) f;
      jobs := v_done.jobs;
      done := v_done.done;
      v_special := v_done.special;
      v_alone := v_done.alone;
    exception when others then
      v_divided := true;
    end;
  end if;
  if v_divided then
    select d.parts, d.alone into v_parts, v_alone from tenure.divide_schedules(p_plans) d;
    v_until_parts := clock_timestamp() + c_time_parts;
    foreach v_part in array v_parts loop
      v_members := array(select e.plan from json_array_elements(v_part) as e(plan));
      if clock_timestamp() > v_until_parts then
        v_alone := v_alone || v_members;
        continue;
      end if;
      begin
        select f.jobs, f.done, f.special, f.alone into v_done from tenure.fire_together(v_part) f;
        jobs := jobs + v_done.jobs;
        done := done + v_done.done;
        v_special := v_special || v_done.special;
        v_alone := v_alone || v_done.alone;
      exception when others then
        v_alone := v_alone || v_members;
      end;
    end loop;
  end if;

  foreach v_plan in array v_special loop
    select f.jobs, f.failed, f.done into v_done from tenure.fire_alone(v_plan) f;
    jobs := jobs + v_done.jobs;
    failed := failed + v_done.failed;
    done := done + v_done.done;
    exit when clock_timestamp() > v_until;
  end loop;
  -- Those that fired wait for the end of this call, and dividing took its time.
  v_until_alone := clock_timestamp() + case when v_divided then c_time_alone / 2 else c_time_alone end;
  foreach v_plan in array v_alone loop
    if clock_timestamp() > v_until_alone then
      v_left := v_left || v_plan;
      continue;
    end if;
    select f.jobs, f.failed, f.done into v_done from tenure.fire_alone(v_plan) f;
    jobs := jobs + v_done.jobs;
    failed := failed + v_done.failed;
    done := done + v_done.done;
  end loop;
  if v_divided and cardinality(v_left) > 0 then
    done := done + tenure.suspect_schedules(array_to_json(v_left));
  end if;
end $$;

-- fire_alone: fire_one for one plan; a failure is noted in the schedule's row.
create or replace function tenure.fire_alone(p_plan json, out jobs bigint, out failed bigint, out done bigint)
language plpgsql as $$
begin
  jobs := tenure.fire_one(p_plan);
  failed := 0;
  done := (jobs is not null)::integer;
  jobs := coalesce(jobs, 0);
exception when others then
  perform tenure.note_failure((p_plan ->> 'id')::bigint, (p_plan ->> 'version')::bigint, sqlerrm, sqlstate);
  jobs := 0;
  failed := 1;
  done := 1;
end $$;

-- divide_schedules: locks those of these schedules that nobody else has, from now on, and divides their plans. alone: those whose payload cannot be put together,
-- of which there are the most when a limit or a server's time zones have changed, and those whose time has a run already: these are found without trying. parts: the others, with those of a kind, queue,
-- zone and size of which there are many apart, for what is alike fails alike; the few first.
create or replace function tenure.divide_schedules(p_plans json, out parts json[], out alone json[])
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  c_part constant integer := 50;  -- each costs a call of fire_together, and when it fails as many of fire_one
  c_many constant integer := 10;
  c_time constant interval := '150 milliseconds';
  v_until timestamptz;
  v_ours bigint[];
  v_places tid[];
begin
  select l.ids, l.places into v_ours, v_places from tenure.lock_schedules(p_plans) l;
  v_until := clock_timestamp() + c_time;
  with held as materialized (
    select e.plan, e.n, (s.kind, s.queue, s.zone, s.size) as likeness,
           clock_timestamp() > v_until
             or tenure.is_renderable(s.schedule, tenure.from_us((e.plan -> 'fire_us' ->> 0)::bigint))
                and not exists (select from tenure.schedule_run r where r.schedule_id = l.id and r.logical_at = tenure.from_us((e.plan -> 'fire_us' ->> 0)::bigint)) as fit
    from unnest(v_ours, v_places) as l(id, place)
      join json_array_elements(p_plans) with ordinality as e(plan, n) on (e.plan ->> 'id')::bigint = l.id
      cross join lateral (select o.kind, o.queue, o.zone, floor(ln(pg_column_size(o.payload))) as size, o as schedule
                          from tenure.schedule o where o.ctid = l.place offset 0) s),
  alike as (
    select h.plan, h.n, h.fit, case when count(*) over (partition by h.likeness) >= c_many then dense_rank() over (order by h.likeness) else 0 end as sort
    from held h),
  placed as (
    select a.plan, a.n, a.fit, a.sort, (row_number() over (partition by a.fit, a.sort order by a.n) - 1) / c_part as part
    from alike a),
  parted as (
    select json_agg(p.plan order by p.n) as plans, p.fit, p.sort, p.part from placed p group by p.fit, p.sort, p.part)
  select coalesce(array_agg(p.plans order by p.sort, p.part) filter (where p.fit), '{}'),
         array(select e.plan from parted f cross join lateral json_array_elements(f.plans) as e(plan) where not f.fit)
    into parts, alone
    from parted p;
end $$;

-- is_renderable: can the payload of this logical time, if there is one, be put together?
create or replace function tenure.is_renderable(p_schedule tenure.schedule, p_at timestamptz) returns boolean
language plpgsql stable as $$
begin
  return p_at is null or tenure.render_payload(p_schedule, p_at) is not null;
exception when others then
  return false;
end $$;

-- suspect_schedules: remembers that these, which the caller holds, are to fire alone. Returns how many it was not known of.
create or replace function tenure.suspect_schedules(p_plans json) returns bigint
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  v_rows bigint;
begin
  update tenure.schedule s set suspect = true
    where s.ctid = any(array(select u.place from tenure.lock_schedules(p_plans) l cross join unnest(l.places) as u(place)))
      and s.error is null and not s.suspect;
  get diagnostics v_rows = row_count;
  return v_rows;
end $$;
