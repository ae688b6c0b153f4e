-- cron: pg_cron in the place of workers: what has to happen now and then when none is up, and what there is to know about its set-up. docs/operate/pg_cron.md

-- tick: for pg_cron, each minute or more often. Promotes what is due, fires the schedules whose time has come by the times ahead, takes the jobs of dead workers
-- and does what else maintenance has to (see tick with a worker). Where workers live they come first: it leaves turns of maintenance to them, and fires only what
-- is overdue by 5 s.
-- Returns {"ran": false while another one runs, "promoted", "rescued", "jobs": fired, "failed": schedules that could not fire}.
-- Locks: a transaction-level advisory lock of its own, without waiting; then those of promote, fire, net and tick, none of which wait. tick with its rescue comes last:
-- the row of a worker that is suspected is locked to the end of the transaction. What fails is named in a warning.
create or replace function tenure.tick() returns json
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp set jit = off set lock_timeout = '100ms' as $$
declare
  c_long constant interval := '5 seconds';  -- much at once is done in turns
  c_since constant interval := '5 minutes';
  c_commit constant text := current_setting('synchronous_commit');
  c_begin constant timestamptz := clock_timestamp();
  c_before constant timestamptz := tenure.turn_at('cron');
  c_workers constant boolean := exists (select from tenure.worker w where w.dead_at is null and w.lease_until > c_begin);
  v_all boolean;
  v_duty text;
  v_step json;
  v_promoted bigint := 0;
  v_fired json := '{"jobs": 0, "failed": 0}';
begin
  if not pg_try_advisory_xact_lock(tenure.lock_class(), -4) then
    return json_build_object('ran', false, 'promoted', 0, 'rescued', 0, 'jobs', 0, 'failed', 0);
  end if;
  perform tenure.set_turn('cron', c_begin);
  -- Behind somebody's old snapshot all entries that an index ever had stay: only now and then it looks at all of them.
  v_all := tenure.take_turn('cron all', c_begin, interval '30 seconds');
  begin
    loop
      v_step := tenure.promote(1000, case when not v_all then c_since end);
      v_promoted := v_promoted + (v_step ->> 'promoted')::bigint;
      exit when not (v_step ->> 'more')::boolean or clock_timestamp() > c_begin + c_long;
    end loop;
  exception when others then
    raise warning 'tenure: promote failed: % (%)', sqlerrm, sqlstate;
  end;
  begin
    v_fired := tenure.fire_ahead(c_begin, c_before, c_begin + c_long, c_workers, case when v_all then '-infinity' else c_begin - c_since end);
  exception when others then
    raise warning 'tenure: schedules could not be fired: % (%)', sqlerrm, sqlstate;
  end;
  if v_all then
    perform tenure.forget_ahead();
  end if;
  if not c_workers and tenure.take_turn('net', c_begin, interval '30 seconds') then
    foreach v_duty in array tenure.net_duties() loop
      begin
        perform tenure.net(v_duty);
      exception when others then
        raise warning 'tenure: % failed: % (%)', v_duty, sqlerrm, sqlstate;
      end;
    end loop;
  end if;
  -- A turn is news for the worker that does it, of what is due next: where workers live it is theirs.
  v_step := case when c_workers then '{"promoted": 0, "rescued": 0}'::json else tenure.tick(0) end;
  v_promoted := v_promoted + (v_step ->> 'promoted')::bigint;
  -- tick does not wait until a turn that moved nothing is on disk; this one may have.
  if v_promoted + (v_fired ->> 'jobs')::bigint > 0 then
    perform set_config('synchronous_commit', c_commit, true);
  end if;
  return json_build_object('ran', true, 'promoted', v_promoted, 'rescued', v_step -> 'rescued', 'jobs', v_fired -> 'jobs', 'failed', v_fired -> 'failed');
end $$;

-- fire_ahead: fires what is due at p_now by the times ahead, in batches up to p_until: all of it in turn, whatever becomes of one batch, and again from the start
-- as long as something is done. p_before: when it was called before. What came since then is late and
-- not missed, as long as it is called each minute or so. p_workers: one lives at least. p_from leaves out what was due longer ago. Returns {"jobs", "failed"}.
-- Locks: those of fire.
create or replace function tenure.fire_ahead(p_now timestamptz, p_before timestamptz, p_until timestamptz, p_workers boolean, p_from timestamptz) returns json
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  c_batch constant integer := 200;
  c_late constant interval := '10 seconds';      -- as in src/model/due.rs
  c_patience constant interval := '5 seconds';   -- workers come first
  c_calls constant interval := '150 seconds';    -- between two calls, at most: each minute, and one of them may fail
  c_no_times constant text := 'no times ahead: a worker has to come, or a client that adds or edits a schedule';
  c_last_id constant bigint := 9223372036854775807;
  c_due constant timestamptz := p_now - case when p_workers then c_patience else '0' end;
  c_missed constant timestamptz := least(p_now - c_late, case when p_before > p_now - c_calls then p_before - c_patience end);
  v_plans json;
  v_count bigint;
  v_look_at timestamptz := p_from;  -- up to here it has come
  v_id bigint := c_last_id;
  v_any boolean := false;
  v_fired json;
  v_jobs bigint := 0;
  v_failed bigint := 0;
begin
  loop
    select json_agg(coalesce(p.plan, p.error)) filter (where p.plan is not null or not p_workers), count(*),
           (array_agg(p.look_at order by p.look_at desc, p.id desc))[1], (array_agg(p.id order by p.look_at desc, p.id desc))[1]
      into v_plans, v_count, v_look_at, v_id
      from (select s.look_at, s.id, tenure.plan_ahead(s, a.times, a.complete, p_now, c_missed) as plan,
                   json_build_object('id', s.id, 'version', s.version, 'look_us', tenure.to_us(s.look_at), 'was_us', tenure.to_us(s.next_at), 'fire_us', '{}'::bigint[],
                                     'out_us', null, 'next_us', tenure.to_us(s.next_at), 'more', false, 'error', c_no_times) as error
            from tenure.schedule s left join tenure.schedule_ahead a on a.schedule_id = s.id and a.version = s.version
            where (s.look_at, s.id) > (v_look_at, v_id) and s.look_at <= c_due and s.removed_at is null order by s.look_at, s.id limit c_batch) p;
    if v_plans is not null then
      v_fired := tenure.fire(v_plans);
      v_jobs := v_jobs + (v_fired ->> 'jobs')::bigint;
      v_failed := v_failed + (v_fired ->> 'failed')::bigint;
      v_any := v_any or (v_fired ->> 'done')::bigint > 0;
    end if;
    exit when clock_timestamp() > p_until;
    if v_count < c_batch then
      -- What fire had no time for is still due, and so is what somebody else holds, who is not waited for.
      exit when not v_any;
      v_any := false;
      v_look_at := p_from;
      v_id := c_last_id;
    end if;
  end loop;
  return json_build_object('jobs', v_jobs, 'failed', v_failed);
end $$;

-- cron_server: of what cron_state says, what needs rights of its own: {"loaded", "cron_database", "zone", "seen_us": when tick was called last, "now_us"}.
-- Locks: none.
create or replace function tenure.cron_server() returns json
language sql stable security definer set search_path = pg_catalog, tenure, pg_temp as $$
  select json_build_object(
    'loaded', tenure.readable_setting('shared_preload_libraries') ~ '\mpg_cron\M', 'cron_database', tenure.readable_setting('cron.database_name'),
    -- Before 1.5 there is no such setting.
    'zone', coalesce(tenure.readable_setting('cron.timezone'),
                     (select 'GMT' from pg_extension e where e.extname = 'pg_cron' and string_to_array(split_part(e.extversion, '-', 1), '.')::integer[] < '{1,5}')),
    'seen_us', tenure.to_us(nullif(tenure.turn_at('cron'), '-infinity')), 'now_us', tenure.to_us(clock_timestamp()))
$$;

-- cron_state: what there is to know about pg_cron here, with the rights of whoever asks: {"database", "role", "available": version, "installed": version,
-- "may_use", "may_schedule", "server": {"loaded", "cron_database", "zone", "seen_us", "now_us"}, null where the schema's owner may not read it,
-- "entries": [{"id", "name", "schedule", "database", "role", "active", "role_exists", "may_tick", "status", "message"}, …]: those that call tick, with their last run}. Locks: none.
create or replace function tenure.cron_state() returns json
language plpgsql set search_path = pg_catalog, tenure, pg_temp as $$
declare
  v_entries json;
  v_use boolean := coalesce(has_schema_privilege(to_regnamespace('cron'), 'usage'), false);
begin
  if v_use and to_regclass('cron.job') is not null and has_table_privilege('cron.job', 'select') then
    select json_agg(json_build_object(
             'id', j.jobid, 'name', j.jobname, 'schedule', j.schedule, 'database', j.database, 'role', j.username, 'active', j.active,
             'role_exists', u.oid is not null, 'may_tick', coalesce(has_function_privilege(u.oid, 'tenure.tick()', 'execute') and has_schema_privilege(u.oid, 'tenure', 'usage'), false),
             'status', r.status, 'message', r.return_message) order by j.jobid)
      into v_entries
      from cron.job j
      left join pg_roles u on u.rolname = j.username
      left join lateral (select d.status, d.return_message from cron.job_run_details d where d.jobid = j.jobid and d.status <> 'starting' order by d.runid desc limit 1) r on true
      where regexp_replace(j.command, '\s', '', 'g') like '%tenure.tick()%';
  end if;
  return json_build_object(
    'database', current_database(), 'role', current_user,
    'available', (select x.default_version from pg_available_extensions x where x.name = 'pg_cron'),
    'installed', (select x.extversion from pg_extension x where x.extname = 'pg_cron'),
    'may_use', v_use,
    'may_schedule', coalesce(has_function_privilege(to_regprocedure('cron.schedule(text,text,text)'), 'execute'), false),
    'server', tenure.cron_server(), 'entries', coalesce(v_entries, '[]'));
end $$;

-- readable_setting: null as well for who may not read it.
create or replace function tenure.readable_setting(p_name text) returns text
language plpgsql stable as $$
begin
  return current_setting(p_name, true);
exception when insufficient_privilege then
  return null;
end $$;

-- cron_jobs: pg_cron's entries that this role may see, with the time zone of their times (null: not readable for it). Errors: TN005 when pg_cron is not in this database.
-- Locks: none.
create or replace function tenure.cron_jobs() returns table (id bigint, name text, schedule text, command text, database text, role text, active boolean, zone text)
language plpgsql set search_path = pg_catalog, tenure, pg_temp as $$
begin
  if to_regclass('cron.job') is null then
    -- Not refuse: whoever calls this, with his own rights, has none to it.
    raise exception using errcode = 'TN005', message = format('database "%s" has no pg_cron', current_database()),
      hint = 'Its entries are in the database that cron.database_name says (postgres unless it is set): name that one.';
  end if;
  return query select j.jobid, j.jobname::text, j.schedule::text, j.command::text, j.database::text, j.username::text, j.active, tenure.cron_server() ->> 'zone'
    from cron.job j order by j.jobid;
end $$;

-- move_cron_jobs: adds schedules in the place of entries of pg_cron, which go with it: all of that or nothing. p_schedules as in add_schedules; p_jobs: the entries'
-- ids. With the rights of whoever calls it: pg_cron lets nobody remove entries of others. Returns how many schedules there are more. Errors: those of add_schedules.
-- Locks: those of an insert, and the entries' rows.
create or replace function tenure.move_cron_jobs(p_schedules json, p_jobs bigint[]) returns bigint
language plpgsql set search_path = pg_catalog, tenure, pg_temp as $$
declare
  v_added constant bigint := tenure.add_schedules(p_schedules);
  v_job bigint;
begin
  foreach v_job in array p_jobs loop
    perform cron.unschedule(v_job);
  end loop;
  return v_added;
end $$;
