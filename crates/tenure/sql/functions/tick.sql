-- tick: all that has to happen now and then, by whoever comes first: promote, cancels whose job has moved, and rescue; every 30 s everything due
-- however old (again at once until nothing is left), and the net below all that: orphaned leases, rows left in inbox, partitions, what sleepers could not take back.
-- Once a second per database; twice when the worker that does it is busy (jobs run, and those of a dead worker should not wait for long), and
-- where few workers live: of many, one looks soon whether it was done.
-- The net's duties, retain and fold_stats are only named: the caller runs each in a transaction of its own.
-- Each duty ends early rather than late: a caller that gives up undoes them all, and would do so again and again.
-- A turn that moved no job and declared nobody dead is not waited for until it is on disk: after a crash the next one does the same again.
-- Returns {"ran": bool, "next_ms": when to come again, "promoted": jobs, "rescued": jobs, "rescued_jobs": some of them as rescue names them,
-- "net": [duties to pass to net, one by one], "retain" and "stats": whether retain and fold_stats are due, "horizon": whether somebody should look at vacuum_horizon and
-- warn, once a minute, "fire_ms": when to fire schedules, if that is before the next turn, "due_ms": when the next job becomes due, if that is before
-- any next turn; 0: there were more than one look moves. A claim names that as well, but not what becomes due between a turn and the claim that follows it}.
-- Locks: a transaction-level advisory lock that only maintenance takes, without waiting; then those of the duties, and rows of duty before,
-- between and after them. A duty that fails is named in a warning and does not stop the others. Rescue comes last: the worker that it marks as
-- a suspect may be on its way back, and its row is then locked to the end of the transaction only.
create or replace function tenure.tick(p_worker bigint, p_busy boolean default false) returns json
language plpgsql security definer
set search_path = pg_catalog, tenure, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off set lock_timeout = '100ms' as $$
declare
  c_interval_ms constant bigint := 1000;
  c_short_ms constant bigint := 500;
  c_few constant int4range := '[2,4]';  -- of five that each poll once a second, one looks every 200 ms; a single one has nobody to rescue
  c_just constant interval := '2 seconds';
  c_ahead_max constant interval := '2 seconds';
  v_now timestamptz := clock_timestamp();
  v_next_at timestamptz;
  v_next_ms bigint;
  v_few_workers boolean;
  v_rescue json;
  v_promote json;
  v_cancelled bigint;
  v_moved bigint;
  v_net boolean;
  v_all boolean;
begin
  if not pg_try_advisory_xact_lock(tenure.lock_class(), 0) then
    return json_build_object('ran', false, 'next_ms', c_interval_ms, 'promoted', 0, 'rescued', 0);
  end if;
  v_next_at := tenure.turn_at('tick');
  -- Further ahead than any turn is set: the clock was set back, or another host's is behind.
  if v_next_at > v_now and v_next_at <= v_now + c_ahead_max then
    -- Between two turns only what has just become due is moved: a job does not wait for the next turn.
    if exists (select from tenure.later t where t.due_at <= v_now and t.due_at > v_now - c_just) then
      v_promote := tenure.promote(1000, c_just);
    end if;
    return json_build_object('ran', false, 'next_ms', ceil(extract(epoch from v_next_at - v_now) * 1000)::bigint,
                             'promoted', coalesce((v_promote ->> 'promoted')::bigint, 0), 'rescued', 0,
                             'due_ms', case when (v_promote ->> 'more')::boolean then 0 else tenure.due_in_ms(v_now, c_ahead_max) end);
  end if;
  v_net := tenure.take_turn('net', v_now, interval '30 seconds');
  v_all := tenure.take_turn('overdue', v_now, interval '30 seconds');

  begin
    v_promote := tenure.promote(1000, case when not v_all then interval '60 seconds' end);
    if v_all and (v_promote ->> 'more')::boolean then
      -- What became due while no worker was there may be much: it goes on at the next turn.
      perform tenure.set_turn('overdue', clock_timestamp());
    end if;
  exception when others then
    raise warning 'tenure: promote failed: % (%)', sqlerrm, sqlstate;
  end;
  begin
    v_cancelled := tenure.follow_cancels();
  exception when others then
    raise warning 'tenure: cancels could not be followed: % (%)', sqlerrm, sqlstate;
  end;
  begin
    v_rescue := tenure.rescue();
  exception when others then
    raise warning 'tenure: rescue failed: % (%)', sqlerrm, sqlstate;
  end;

  v_few_workers := (select count(*)::integer <@ c_few from tenure.worker w where w.dead_at is null);
  v_next_ms := least(case when p_busy or v_few_workers then c_short_ms else c_interval_ms end, (v_rescue ->> 'next_ms')::bigint,
                     case when (v_rescue ->> 'more')::boolean or (v_promote ->> 'more')::boolean then 0 end);
  update tenure.duty d set next_at = clock_timestamp() + v_next_ms * interval '1 millisecond', few_workers = v_few_workers
    where d.name = 'tick' and d.next_at = v_next_at;
  -- Null, and so waited for, when one of them failed.
  v_moved := (v_promote ->> 'promoted')::bigint + v_cancelled + (v_rescue ->> 'dead')::bigint + (v_rescue ->> 'rescued')::bigint;
  if v_moved = 0 then
    perform set_config('synchronous_commit', 'off', true);
  end if;
  return json_build_object('ran', true, 'next_ms', v_next_ms, 'promoted', coalesce((v_promote ->> 'promoted')::bigint, 0),
                           'rescued', coalesce((v_rescue ->> 'rescued')::bigint, 0),
                           'rescued_jobs', v_rescue -> 'jobs',
                           'net', case when v_net then to_json(tenure.net_duties()) else '[]' end,
                           'fire_ms', tenure.fire_in_ms(v_all),
                           'due_ms', tenure.due_in_ms(v_now, c_ahead_max),
                           'horizon', v_net and tenure.take_turn('horizon', v_now, interval '1 minute'),
                           'retain', tenure.turn_at('retain') not between clock_timestamp() and clock_timestamp() + interval '1 minute',
                           'stats', tenure.turn_at('enqueued') not between clock_timestamp() and clock_timestamp() + interval '10 seconds');
end $$;

-- due_in_ms: when the first job becomes due of those that were not yet due at p_since; null: none within p_ahead. 0: it is due by now.
create or replace function tenure.due_in_ms(p_since timestamptz, p_ahead interval) returns bigint
language sql stable set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
  select greatest(0, ceil(extract(epoch from d.due_at - clock_timestamp()) * 1000))::bigint
  from (select t.due_at from tenure.later t where t.due_at > p_since order by t.due_at limit 1) d
  where d.due_at <= p_since + p_ahead
$$;

-- turn_at: when a duty is due. Its row is written anew at every turn, and behind somebody's old snapshot all former versions stay. By name alone
-- they are walked through one by one; by time, newest first, the live one is met at once. What writes it at every turn names that time for the same reason.
create or replace function tenure.turn_at(p_duty text) returns timestamptz
language sql stable set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
  select d.next_at from tenure.duty d where d.name = p_duty order by d.next_at desc limit 1
$$;

-- set_turn: it is due then. Nothing happens when somebody else has just taken or set it. True: it was set.
create or replace function tenure.set_turn(p_duty text, p_next_at timestamptz) returns boolean
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  v_at constant timestamptz := tenure.turn_at(p_duty);
begin
  update tenure.duty d set next_at = p_next_at where d.name = p_duty and d.next_at = v_at;
  return found;
end $$;

-- take_turn: if it is due, it is ours, and due again after p_every. True: it is ours. Further ahead than that it is due as well: the clock was set back.
create or replace function tenure.take_turn(p_duty text, p_now timestamptz, p_every interval) returns boolean
language sql as $$
  select case when tenure.turn_at(p_duty) not between p_now and p_now + p_every then tenure.set_turn(p_duty, p_now + p_every) else false end
$$;

-- net_duties: what net does, one by one.
create or replace function tenure.net_duties() returns text[]
language sql immutable as $$ select array['orphans', 'inbox', 'partitions', 'sleepers', 'limits'] $$;

-- net: one duty of the net, as tick named it. In a transaction of its own: one that is slow or fails undoes nothing else, and is tried again with the
-- next net. Errors: TN002 for a duty that does not exist. Locks: those of the duty.
create or replace function tenure.net(p_duty text) returns void
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp set lock_timeout = '100ms' as $$
begin
  case p_duty
    when 'orphans' then
      perform tenure.adopt_orphans();
    when 'inbox' then
      -- More of them: at the next turn already.
      if tenure.take_left_behind() > 0 then
        perform tenure.set_turn('net', clock_timestamp());
      end if;
    when 'partitions' then
      perform tenure.partitions();
    when 'sleepers' then
      perform tenure.forget_sleepers();
    when 'limits' then
      if tenure.forget_slots() then
        perform tenure.set_turn('net', clock_timestamp());
      end if;
    else
      perform tenure.refuse('TN002', format('%L is no duty of the net', p_duty), 'Pass what tick returned.');
  end case;
end $$;
