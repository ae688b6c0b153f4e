-- sync_schedules: makes the schedules that an owner has declared those that he declares now. Those of others, and those that were added by hand, stay as they are.
-- p_schedules: [{"name", "rule", "zone", "kind", "payload", "queue", "priority", "max_attempts", "timeout_ms", "starts_us", "ends_us", "jitter_ms", "missed", "missed_max",
-- "missed_window_ms", "overlap", "gap", "twice"}, …], with the defaults of add_schedule for what is left out or null; instants in microseconds since 1970.
-- p_adopt: those of the same name that were added by hand become his. p_dry_run: only says what it would do. p_basis: does nothing unless the dry run that gave this
-- basis would say the same again.
-- Returns {"added": [names], "changed": [{"name", "fields": [{"field", "was", "is"}, …]}, …], "adopted": [names], "removed": [names], "unchanged": how many, "basis"}.
-- What is as it was declared keeps its version and its next time; a pause stays. 1000 schedules at most. Errors: TN002, naming schedule and value; TN005 when a name
-- belongs to somebody else, when p_basis does not fit any more, or when somebody changes one of them just now: what he did is not overwritten.
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
  v_versions jsonb := '{}';  -- by name, as they were compared
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
    v_versions := v_versions || jsonb_build_object(v_old.name, v_old.version);
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
  select coalesce(array_agg(s.name order by s.name), '{}'), v_versions || coalesce(jsonb_object_agg(s.name, s.version), '{}'),
         v_basis || coalesce(string_agg(concat_ws(' ', s.name, s.id, s.version), chr(10) order by s.name), '')
    into v_removed, v_versions, v_basis
    from tenure.schedule s where s.declared_by = p_owner and s.removed_at is null and s.name <> all(v_names);
  v_basis := md5(v_basis);
  if v_basis <> p_basis then
    perform tenure.refuse('TN005', format('the schedules of "%s" are not any more what they were when the changes were shown', p_owner), 'Look at the changes again.');
  end if;

  if not p_dry_run then
    perform tenure.check_version(n.name, (v_versions ->> n.name)::bigint)
      from (select distinct u.name from unnest(v_adopted || v_removed || array(select c.change ->> 'name' from unnest(v_changed) as c(change))) as u(name) order by u.name) n;
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

-- check_version: refuses when a schedule is not any more as it was compared; otherwise it stays so, for its row is locked.
create or replace function tenure.check_version(p_name text, p_version bigint) returns void
language plpgsql as $$
declare
  v_now constant tenure.schedule := tenure.schedule_named(p_name);
begin
  if v_now.version is distinct from p_version then
    perform tenure.refuse('TN005', format('schedule "%s" was %s by somebody else just now', p_name, case when v_now.id is null then 'removed' else 'changed' end),
                          'Nothing was done. Look at the changes again.');
  end if;
end $$;

-- add_schedules: several new ones, all or none; nobody declares them. p_schedules as in sync_schedules, 1000 at most. Returns how many. Errors: TN002, naming schedule and value;
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

-- check_definitions: refuses what is no array of definitions, or one of too many, what is no definition, and a name that is there twice.
create or replace function tenure.check_definitions(p_schedules json) returns void
language plpgsql stable as $$
declare
  c_schedules_max constant integer := 1000;  -- one transaction, whose locks others wait for
  v_name text;
begin
  if p_schedules is null or json_typeof(p_schedules) <> 'array' then
    perform tenure.refuse('TN002', 'the schedules are no array', 'Pass [{"name": …, "rule": …, "zone": …, "kind": …, "payload": …}, …].');
  end if;
  if json_array_length(p_schedules) > c_schedules_max then
    perform tenure.refuse('TN002', format('%s schedules at once are more than %s', json_array_length(p_schedules), c_schedules_max),
                          'Divide them: a sync in several owners, for what an owner does not name is removed; others in several calls.');
  end if;
  perform tenure.check_definition(d.definition, d.n) from json_array_elements(p_schedules) with ordinality as d(definition, n) order by d.n;
  select d.definition ->> 'name' into v_name from json_array_elements(p_schedules) as d(definition) group by 1 having count(*) > 1 limit 1;
  if found then
    perform tenure.refuse('TN002', format('schedule "%s" is there twice', v_name), 'Leave one of them out.');
  end if;
end $$;

-- check_definition: refuses what is no object with a name, members that mean nothing or are there twice, and values of another type, naming the schedule, or where
-- it is (from 1 on), and the value. Whether they are right is found out by add_schedule and edit_schedule.
create or replace function tenure.check_definition(p_definition json, p_position bigint) returns void
language plpgsql stable as $$
declare
  c_texts constant text[] := array['name', 'rule', 'zone', 'kind', 'queue', 'missed', 'overlap', 'gap', 'twice'];
  c_integers constant text[] := array['priority', 'max_attempts', 'missed_max'];
  c_bigints constant text[] := array['timeout_ms', 'jitter_ms', 'missed_window_ms'];
  c_instants constant text[] := array['starts_us', 'ends_us'];
  c_known constant text[] := c_texts || c_integers || c_bigints || c_instants || array['payload'];
  v_who text := format('schedule %s of those that were passed', p_position);
  v_member record;
  v_text text;
  v_min bigint;
  v_max bigint;
begin
  if json_typeof(p_definition) <> 'object' then
    perform tenure.refuse('TN002', format('%s is %s, and no object', v_who, left(p_definition::text, 100)), 'Pass {"name": …, "rule": …, "zone": …, "kind": …, "payload": …}.');
  end if;
  if json_typeof(p_definition -> 'name') is distinct from 'string' then
    perform tenure.refuse('TN002', format('the name of %s is %s', v_who, coalesce(left((p_definition -> 'name')::text, 100), 'missing')), 'Give it one: "name": "nightly".');
  end if;
  if p_definition ->> 'name' = '' then
    perform tenure.refuse('TN002', format('the name of %s is empty', v_who), 'Give it one: "name": "nightly".');
  end if;
  perform tenure.check_name('schedule', p_definition ->> 'name');
  v_who := format('schedule "%s"', p_definition ->> 'name');
  for v_member in select e.key, e.value, json_typeof(e.value) as type, count(*) over (partition by e.key) as times from json_each(p_definition) as e order by e.key loop
    if v_member.key <> all(c_known) then
      perform tenure.refuse('TN002', format('%s: "%s" means nothing', v_who, v_member.key), 'Known are ' || array_to_string(c_known, ', ') || '.');
    end if;
    if v_member.times > 1 then
      perform tenure.refuse('TN002', format('%s: "%s" is there %s times', v_who, v_member.key, v_member.times), 'Leave it in once.');
    end if;
    continue when v_member.type = 'null' or v_member.key = 'payload';
    v_text := v_member.value #>> '{}';
    if v_member.key = any(c_texts) then
      if v_member.type <> 'string' then
        perform tenure.refuse('TN002', format('%s: %s is %s, and no text', v_who, v_member.key, left(v_member.value::text, 100)), 'Write it in quotes.');
      end if;
      continue;
    end if;
    v_min := case when v_member.key = any(c_integers) then -2147483648 when v_member.key = any(c_bigints) then -9223372036854775808 else 0 end;
    v_max := case when v_member.key = any(c_integers) then 2147483647 when v_member.key = any(c_bigints) then 9223372036854775807
                  else tenure.to_us('9999-01-01Z') end;
    if v_member.type <> 'number' or v_text !~ '^-?[0-9]{1,19}$' or v_text::numeric not between v_min and v_max then
      perform tenure.refuse('TN002', format('%s: %s is %s, and no whole number from %s to %s', v_who, v_member.key, left(v_member.value::text, 100), v_min, v_max),
                            case when v_member.key = any(c_instants) then 'Microseconds since 1970; leave out what has no bound.' else 'Write it without quotes, point and exponent.' end);
    end if;
  end loop;
exception when data_exception then
  -- JSON has texts that the database has not.
  perform tenure.refuse('TN002', format('%s holds text that PostgreSQL cannot store: %s', v_who, sqlerrm), E'Remove \\u0000 and unpaired surrogates.');
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
