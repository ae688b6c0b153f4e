-- tick: all that has to happen now and then, by whoever comes first. Once a second per database; twice when the worker that does it is busy (jobs
-- run, and those of a dead worker should not wait for long), and when workers are few (none of many may be about to look anyway): promote, cancels whose job has moved, and rescue; every 30 s everything due however old (again at once until nothing is left), and the net below all that: orphaned leases, rows left in
-- inbox, partitions. The net's duties and retain are only named: the caller runs each in a transaction of its own.
-- A turn that ended no job is not waited for until it is on disk: after a crash the next one does the same again.
-- Each duty ends early rather than late: a caller that gives up undoes them all, and would do so again and again.
-- Returns {"ran": bool, "next_ms": when to come again, "promoted": jobs, "rescued": jobs, "rescued_jobs": some of them as rescue names them, "net": [duties to pass to net, one by one],
-- "retain": whether retain is due, "horizon": whether somebody should look at vacuum_horizon and warn, once a minute}. Locks: a transaction-level advisory lock that only maintenance takes, without waiting; then those of the
-- duties. A duty that fails is named in a warning and does not stop the others. Rescue comes last: the worker that it marks as a suspect may be on its
-- way back, and its row is then locked to the end of the transaction only.
drop function if exists tenure.tick(bigint);
create or replace function tenure.tick(p_worker bigint, p_busy boolean default false) returns json
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp set lock_timeout = '100ms' as $$
declare
  c_few constant int4range := '[2,4]';
  v_interval_ms bigint := case when p_busy then 500 else 1000 end;
  c_just constant interval := '2 seconds';
  v_now timestamptz := clock_timestamp();
  v_next_at timestamptz;
  v_next_ms bigint;
  v_few boolean;
  v_rescue json;
  v_promote json;
  v_cancelled bigint := 1;
  v_net boolean;
  v_all boolean;
  v_horizon boolean := false;
begin
  if not pg_try_advisory_xact_lock(tenure.lock_class(), 0) then
    return json_build_object('ran', false, 'next_ms', v_interval_ms, 'promoted', 0, 'rescued', 0);
  end if;
  select d.next_at into v_next_at from tenure.duty d where d.name = 'tick';
  if v_next_at > v_now then
    -- Between two turns only what has just become due is moved: a job does not wait for the next turn.
    if exists (select from tenure.later t where t.due_at <= v_now and t.due_at > v_now - c_just) then
      v_promote := tenure.promote(1000, c_just);
    end if;
    return json_build_object('ran', false, 'next_ms', ceil(extract(epoch from v_next_at - v_now) * 1000)::bigint,
                             'promoted', coalesce((v_promote ->> 'promoted')::bigint, 0), 'rescued', 0);
  end if;
  update tenure.duty d set next_at = v_now + interval '30 seconds' where d.name = 'net' and d.next_at <= v_now;
  v_net := found;
  update tenure.duty d set next_at = v_now + interval '30 seconds' where d.name = 'overdue' and d.next_at <= v_now;
  v_all := found;

  begin
    v_promote := tenure.promote(1000, case when not v_all then interval '60 seconds' end);
    if v_all and (v_promote ->> 'more')::boolean then
      -- What became due while no worker was there may be much: it goes on at the next turn.
      update tenure.duty d set next_at = clock_timestamp() where d.name = 'overdue';
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
  if v_net then
    update tenure.duty d set next_at = v_now + interval '1 minute' where d.name = 'horizon' and d.next_at <= v_now;
    v_horizon := found;
  end if;

  v_few := (select count(*)::integer <@ c_few from tenure.worker w where w.dead_at is null);
  if v_few then
    v_interval_ms := 500;
  end if;
  v_next_ms := least(v_interval_ms, (v_rescue ->> 'next_ms')::bigint,
                     case when (v_rescue ->> 'more')::boolean or (v_promote ->> 'more')::boolean then 0 end);
  update tenure.duty d set next_at = clock_timestamp() + v_next_ms * interval '1 millisecond', few = v_few where d.name = 'tick';
  if (v_rescue ->> 'dead')::bigint + (v_rescue ->> 'rescued')::bigint + v_cancelled = 0 then
    perform set_config('synchronous_commit', 'off', true);
  end if;
  return json_build_object('ran', true, 'next_ms', v_next_ms, 'promoted', coalesce((v_promote ->> 'promoted')::bigint, 0),
                           'rescued', coalesce((v_rescue ->> 'rescued')::bigint, 0),
                           'rescued_jobs', v_rescue -> 'jobs',
                           'net', case when v_net then json_build_array('orphans', 'inbox', 'partitions') else '[]' end,
                           'horizon', v_horizon,
                           'retain', exists (select from tenure.duty d where d.name = 'retain' and d.next_at <= clock_timestamp()));
end $$;

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
      if tenure.take_left_behind() > 0 and exists (select from tenure.inbox) then
        update tenure.duty d set next_at = clock_timestamp() where d.name = 'net';
      end if;
    when 'partitions' then
      perform tenure.partitions();
    else
      perform tenure.refuse('TN002', format('%L is no duty of the net', p_duty), 'Pass what tick returned.');
  end case;
end $$;
