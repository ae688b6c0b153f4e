-- ahead: the next times of schedules, which programs have computed by the rules of time zones, for who has none: pg_cron's tick (cron.sql). They are kept
-- only where that is in use. 512 of them at most; workers renew them when half is used, after an edit, and each week, for the rules may have changed.

-- times_wanted: the schedules whose times ahead are missing or run short, as due_schedules describes them; none where nobody uses pg_cron. Whoever knows
-- the rules passes their times to set_times_ahead. Locks: none.
create or replace function tenure.times_wanted(p_limit integer default 100) returns json
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp set jit = off as $$
declare
  c_day constant interval := '1 day';
  c_week constant interval := '7 days';
  v_now constant timestamptz := clock_timestamp();
  v_wanted json;
begin
  if tenure.turn_at('cron') < v_now - c_day and not exists (select from pg_extension e where e.extname = 'pg_cron') then
    return '[]';
  end if;
  select json_agg(json_build_object(
           'id', w.id, 'version', w.version, 'name', w.name, 'rule', w.rule, 'zone', w.zone, 'gap', w.gap, 'twice', w.twice, 'missed', w.missed,
           'missed_max', w.missed_max, 'missed_window_ms', w.missed_window_ms, 'anchor_us', tenure.to_us(w.anchor_at), 'starts_us', tenure.to_us(w.starts_at),
           'ends_us', tenure.to_us(w.ends_at), 'next_us', tenure.to_us(w.next_at),
           'from_us', case when not w.ended then tenure.to_us(w.changed_at) end,
           'last_us', tenure.to_us(greatest(w.last_at, w.changed_at)), 'look_us', tenure.to_us(w.look_at)))
    into v_wanted
    from (select s.* from tenure.schedule s left join tenure.schedule_ahead a on a.schedule_id = s.id
          where s.removed_at is null and s.look_at is not null
            and (a.version is distinct from s.version or a.computed_at < v_now - c_week or not a.complete and a.times[cardinality(a.times) / 2 + 1] <= v_now)
          order by s.id limit p_limit) w;
  return coalesce(v_wanted, '[]');
end $$;

-- set_times_ahead: stores what was computed. p_lists: [{"id", "version", "times_us": up to 512 logical times from the next one on, in order, "complete":
-- there are no further ones}, …]. What was computed for another version than the schedule has is of no use, and left out. Returns how many were stored.
-- Locks: rows of schedule_ahead, in the order of ids.
create or replace function tenure.set_times_ahead(p_lists json) returns bigint
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp set lock_timeout = '5s' as $$
declare
  v_now constant timestamptz := clock_timestamp();
  v_rows bigint;
begin
  insert into tenure.schedule_ahead (schedule_id, version, times, complete, computed_at)
    select s.id, s.version, array(select tenure.from_us(t.us::bigint) from json_array_elements_text(l.list -> 'times_us') with ordinality as t(us, n) order by t.n),
           (l.list ->> 'complete')::boolean, v_now
    from json_array_elements(p_lists) as l(list)
    join tenure.schedule s on s.id = (l.list ->> 'id')::bigint and s.version = (l.list ->> 'version')::bigint and s.removed_at is null
    order by s.id
    on conflict (schedule_id) do update
      set version = excluded.version, times = excluded.times, complete = excluded.complete, computed_at = excluded.computed_at
      where schedule_ahead.version <= excluded.version;
  get diagnostics v_rows = row_count;
  return v_rows;
end $$;

-- forget_ahead: removes times of schedules that are gone. Locks: their rows, which nobody else changes then.
create or replace function tenure.forget_ahead() returns void
language sql as $$
  delete from tenure.schedule_ahead a where a.schedule_id = any(array(
    select x.schedule_id from tenure.schedule_ahead x
    where not exists (select from tenure.schedule s where s.id = x.schedule_id and s.removed_at is null) order by x.schedule_id limit 1000))
$$;

-- plan_ahead: what to do about a schedule at p_now, as fire wants it: what src/model/due.rs decides, but for times that were computed before. A time before
-- p_late is missed. The last time that is known is not fired: which one follows it is not. Null: the times that are known do not reach to now.
create or replace function tenure.plan_ahead(
  p_schedule tenure.schedule, p_times timestamptz[], p_complete boolean, p_now timestamptz, p_late timestamptz) returns json
language plpgsql stable as $$
declare
  -- Nothing is left: it only waits for the end of a run.
  c_ended constant boolean := p_schedule.ended;
  v_next constant timestamptz := case when not c_ended then coalesce(p_schedule.next_at, p_times[1]) end;
  v_after timestamptz;
  v_come timestamptz[] := '{}';
  v_missed integer;  -- of them, the first ones
  v_from integer;    -- the first one that runs
begin
  if v_next > p_now then
    v_after := v_next;
  elsif v_next is not null then
    v_come := array(select t.at from unnest(v_next || p_times) with ordinality as t(at, n) where t.at >= v_next and t.at <= p_now and (t.n = 1 or t.at > v_next) order by t.at);
    v_after := (select min(t.at) from unnest(p_times) as t(at) where t.at > p_now);
  end if;
  if v_after is null and not c_ended and p_complete is not true then
    return null;
  end if;
  v_missed := (select count(*) from unnest(v_come) as t(at) where t.at < p_late);
  v_from := 1 + case p_schedule.missed
    when 'skip' then v_missed
    -- Of times of which some are only late, the latest is no missed one.
    when 'latest' then case when v_missed = cardinality(v_come) then greatest(v_missed - 1, 0) else v_missed end
    else greatest(v_missed - p_schedule.missed_max,
                  (select count(*) from unnest(v_come[:v_missed]) as t(at) where t.at < p_now - p_schedule.missed_window_ms * interval '1 millisecond'))
  end;
  return json_build_object(
    'id', p_schedule.id, 'version', p_schedule.version, 'look_us', tenure.to_us(p_schedule.look_at), 'was_us', tenure.to_us(p_schedule.next_at),
    'fire_us', array(select tenure.to_us(t.at) from unnest(v_come[v_from:]) as t(at) order by t.at),
    'out_us', case when v_from > 1 then array[tenure.to_us(v_come[1]), tenure.to_us(v_come[v_from - 1]), v_from - 1] end,
    'next_us', tenure.to_us(v_after), 'more', false, 'error', null);
end $$;
