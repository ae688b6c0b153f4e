-- sync_schedules: makes the schedules that an owner has declared those that he declares now. Those of others, and those that were added by hand, stay as they are.
-- p_schedules: [{"name", "rule", "zone", "kind", "payload", "queue", "priority", "max_attempts", "timeout_ms", "starts_us", "ends_us", "jitter_ms", "missed", "missed_max",
-- "missed_window_ms", "overlap", "gap", "twice"}, …], with the defaults of add_schedule for what is left out; instants in microseconds since 1970.
-- p_adopt: those of the same name that were added by hand become his. p_dry_run: only says what it would do. p_basis: does nothing unless the dry run that gave this
-- basis would say the same again.
-- Returns {"added": [names], "changed": [{"name", "fields": [{"field", "was", "is"}, …]}, …], "adopted": [names], "removed": [names], "unchanged": how many, "basis"}.
-- What is as it was declared keeps its version and its next time; a pause stays. Errors: TN002, naming schedule and value; TN005 when a name belongs to somebody else, or
-- p_basis does not fit any more.
-- Locks: a transaction-level advisory lock, so that there is one sync at a time; then the schedules that change, each waited for for five seconds at most.
create or replace function tenure.sync_schedules(
  p_owner text, p_schedules json, p_adopt boolean default false, p_dry_run boolean default false, p_basis text default null) returns json
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp set lock_timeout = '5s' as $$
declare
  v_declared record;
  v_old tenure.schedule;
  v_fields json;
  v_name text;
  v_names text[] := '{}';
  v_added text[] := '{}';
  v_changed json[] := '{}';
  v_adopted text[] := '{}';
  v_removed text[] := '{}';
  v_foreign text[] := '{}';
  v_unchanged bigint := 0;
  v_basis text := '';
begin
  perform tenure.check_name('owner', p_owner);
  perform tenure.check_definitions(p_schedules);
  perform pg_advisory_xact_lock(tenure.lock_class(), -5);
  for v_declared in select d.definition ->> 'name' as name, d.definition from json_array_elements(p_schedules) as d(definition) order by 1 loop
    v_names := v_names || v_declared.name;
    select s.* into v_old from tenure.schedule s where s.name = v_declared.name and s.removed_at is null;
    v_fields := tenure.changed_fields(v_old, v_declared.definition);
    v_basis := v_basis || concat_ws(' ', v_declared.name, v_old.id, v_old.version, v_fields, chr(10));
    if v_old.id is null then
      v_added := v_added || v_declared.name;
      continue;
    end if;
    if v_old.declared_by is distinct from p_owner then
      if not p_adopt or v_old.declared_by is not null then
        v_foreign := v_foreign || format('"%s" %s', v_old.name, coalesce('is declared by "' || v_old.declared_by || '"', 'was added by hand'));
        continue;
      end if;
      v_adopted := v_adopted || v_old.name;
    end if;
    if v_fields is not null then
      v_changed := v_changed || json_build_object('name', v_old.name, 'fields', v_fields);
    elsif v_old.declared_by = p_owner then
      v_unchanged := v_unchanged + 1;
    end if;
  end loop;
  if cardinality(v_foreign) > 0 then
    perform tenure.refuse('TN005', 'schedule ' || array_to_string(v_foreign[:10], ', ') || case when cardinality(v_foreign) > 10 then format(' and %s more', cardinality(v_foreign) - 10) else '' end,
                          'Give yours another name, or remove the other one. What was added by hand can be taken over: --adopt, Schedules::adopt, p_adopt.');
  end if;
  v_removed := array(select s.name from tenure.schedule s where s.declared_by = p_owner and s.removed_at is null and s.name <> all(v_names) order by s.name);
  v_basis := md5(v_basis || array_to_string(v_removed, chr(10)));
  if v_basis <> p_basis then
    perform tenure.refuse('TN005', format('the schedules of "%s" are not any more what they were when the changes were shown', p_owner), 'Look at the changes again.');
  end if;

  if not p_dry_run then
    for v_declared in select d.definition ->> 'name' as name, d.definition from json_array_elements(p_schedules) as d(definition) order by 1 loop
      if v_declared.name = any(v_added) then
        perform tenure.add_definition(v_declared.definition);
        update tenure.schedule s set declared_by = p_owner where s.name = v_declared.name and s.removed_at is null;
      elsif exists (select from unnest(v_changed) as c(change) where c.change ->> 'name' = v_declared.name) then
        perform tenure.edit_definition(v_declared.definition);
      end if;
    end loop;
    update tenure.schedule s set declared_by = p_owner where s.name = any(v_adopted) and s.removed_at is null;
    foreach v_name in array v_removed loop
      perform tenure.remove_schedule(v_name);
    end loop;
  end if;
  return json_build_object('added', v_added, 'changed', to_json(v_changed), 'adopted', v_adopted, 'removed', v_removed, 'unchanged', v_unchanged, 'basis', v_basis);
end $$;

-- add_schedules: several new ones, all or none; nobody declares them. p_schedules as in sync_schedules. Returns how many. Errors: TN002, naming schedule and value;
-- TN005 when there is one of that name. Locks: none but those of an insert.
create or replace function tenure.add_schedules(p_schedules json) returns bigint
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp set lock_timeout = '5s' as $$
declare
  v_definition json;
begin
  perform tenure.check_definitions(p_schedules);
  for v_definition in select d.definition from json_array_elements(p_schedules) as d(definition) order by d.definition ->> 'name' loop
    perform tenure.add_definition(v_definition);
  end loop;
  return json_array_length(p_schedules);
end $$;

-- check_definitions: refuses what is no array of definitions, names a member that means nothing, and a name that is there twice.
create or replace function tenure.check_definitions(p_schedules json) returns void
language plpgsql stable as $$
declare
  c_known constant text[] := array['name', 'rule', 'zone', 'kind', 'payload', 'queue', 'priority', 'max_attempts', 'timeout_ms', 'starts_us', 'ends_us', 'jitter_ms', 'missed',
                                   'missed_max', 'missed_window_ms', 'overlap', 'gap', 'twice'];
  v_name text;
  v_key text;
begin
  if p_schedules is null or json_typeof(p_schedules) <> 'array' then
    perform tenure.refuse('TN002', 'the schedules are no array', 'Pass [{"name": …, "rule": …, "zone": …, "kind": …, "payload": …}, …].');
  end if;
  select d.definition ->> 'name', k.key into v_name, v_key
    from json_array_elements(p_schedules) as d(definition) cross join lateral json_object_keys(d.definition) as k(key) where k.key <> all(c_known) limit 1;
  if found then
    perform tenure.refuse('TN002', format('schedule "%s": "%s" means nothing', v_name, v_key), 'Known are ' || array_to_string(c_known, ', ') || '.');
  end if;
  select d.definition ->> 'name' into v_name from json_array_elements(p_schedules) as d(definition) group by 1 having count(*) > 1 limit 1;
  if found then
    perform tenure.refuse('TN002', format('schedule "%s" is there twice', v_name), 'Leave one of them out.');
  end if;
end $$;

-- definition: one as edit_schedule takes it, with what was left out. Instants and the payload as text, as they are compared.
create or replace function tenure.definition(p_definition json) returns jsonb
language sql stable as $$
  select jsonb_build_object(
    'rule', p_definition ->> 'rule', 'zone', p_definition ->> 'zone', 'kind', p_definition ->> 'kind', 'payload', coalesce((p_definition -> 'payload')::text, '{}'),
    'queue', coalesce(p_definition ->> 'queue', 'default'), 'priority', coalesce((p_definition ->> 'priority')::integer, 2),
    'max_attempts', coalesce((p_definition ->> 'max_attempts')::integer, 5), 'timeout_ms', (p_definition ->> 'timeout_ms')::bigint,
    'starts_us', (p_definition ->> 'starts_us')::bigint, 'ends_us', (p_definition ->> 'ends_us')::bigint, 'jitter_ms', coalesce((p_definition ->> 'jitter_ms')::bigint, 0),
    'missed', coalesce(p_definition ->> 'missed', 'latest'), 'missed_max', coalesce((p_definition ->> 'missed_max')::integer, 100),
    'missed_window_ms', coalesce((p_definition ->> 'missed_window_ms')::bigint, 86400000), 'overlap', coalesce(p_definition ->> 'overlap', 'allow'),
    'gap', coalesce(p_definition ->> 'gap', 'next'), 'twice', coalesce(p_definition ->> 'twice', 'first'))
$$;

-- changed_fields: where a stored schedule differs from a definition: [{"field", "was", "is"}, …]. Null: nowhere, or there is none.
create or replace function tenure.changed_fields(p_schedule tenure.schedule, p_definition json) returns json
language sql stable as $$
  select json_agg(json_build_object('field', n.key, 'was', o.value, 'is', n.value) order by n.key)
  from jsonb_each(tenure.definition(p_definition)) n
  join jsonb_each(jsonb_build_object(
    'rule', p_schedule.rule, 'zone', p_schedule.zone, 'kind', p_schedule.kind, 'payload', p_schedule.payload::text, 'queue', p_schedule.queue, 'priority', p_schedule.priority,
    'max_attempts', p_schedule.max_attempts, 'timeout_ms', p_schedule.timeout_ms, 'starts_us', tenure.to_us(p_schedule.starts_at), 'ends_us', tenure.to_us(p_schedule.ends_at),
    'jitter_ms', p_schedule.jitter_ms, 'missed', p_schedule.missed, 'missed_max', p_schedule.missed_max, 'missed_window_ms', p_schedule.missed_window_ms,
    'overlap', p_schedule.overlap, 'gap', p_schedule.gap, 'twice', p_schedule.twice)) o on o.key = n.key
  where p_schedule.id is not null and o.value is distinct from n.value
$$;

-- add_definition: add_schedule, which here may not find the name taken. What is wrong is said with the schedule's name.
create or replace function tenure.add_definition(p_definition json) returns void
language plpgsql as $$
declare
  v jsonb := tenure.definition(p_definition);
  v_id bigint;
  v_hint text;
begin
  v_id := tenure.add_schedule(
    p_definition ->> 'name', v ->> 'rule', v ->> 'zone', v ->> 'kind', (v ->> 'payload')::json, v ->> 'queue', (v ->> 'priority')::integer, (v ->> 'max_attempts')::integer,
    (v ->> 'timeout_ms')::bigint, tenure.from_us((v ->> 'starts_us')::bigint), tenure.from_us((v ->> 'ends_us')::bigint), (v ->> 'jitter_ms')::bigint, v ->> 'missed',
    (v ->> 'missed_max')::integer, (v ->> 'missed_window_ms')::bigint, v ->> 'overlap', v ->> 'gap', v ->> 'twice');
  if v_id is null then
    perform tenure.refuse('TN005', format('there is a schedule "%s" already', p_definition ->> 'name'), 'Give yours another name, or remove that one.');
  end if;
exception when sqlstate 'TN002' then
  get stacked diagnostics v_hint = pg_exception_hint;
  perform tenure.refuse('TN002', format('schedule "%s": %s', p_definition ->> 'name', sqlerrm), v_hint);
end $$;

-- edit_definition: edit_schedule, of the version that is there.
create or replace function tenure.edit_definition(p_definition json) returns void
language plpgsql as $$
declare
  v jsonb := tenure.definition(p_definition);
  v_old constant tenure.schedule := tenure.schedule_named(p_definition ->> 'name');
  v_hint text;
begin
  perform tenure.edit_schedule(
    v_old.name, v_old.version, v ->> 'rule', v ->> 'zone', v ->> 'kind', (v ->> 'payload')::json, v ->> 'queue', (v ->> 'priority')::integer, (v ->> 'max_attempts')::integer,
    (v ->> 'timeout_ms')::bigint, tenure.from_us((v ->> 'starts_us')::bigint), tenure.from_us((v ->> 'ends_us')::bigint), (v ->> 'jitter_ms')::bigint, v ->> 'missed',
    (v ->> 'missed_max')::integer, (v ->> 'missed_window_ms')::bigint, v ->> 'overlap', v ->> 'gap', v ->> 'twice');
exception when sqlstate 'TN002' then
  get stacked diagnostics v_hint = pg_exception_hint;
  perform tenure.refuse('TN002', format('schedule "%s": %s', p_definition ->> 'name', sqlerrm), v_hint);
end $$;
