-- tick: all that has to happen now and then, by whoever comes first. Once a second per database: rescue and promote; every 30 s the net below
-- them: everything due however old, orphaned leases, rows left in inbox, stale cancel requests, partitions.
-- Returns {"ran": bool, "next_ms": when to come again, "promoted": jobs, "rescued": jobs}. Locks: a transaction-level advisory lock that only
-- maintenance takes, without waiting; then those of the duties. A duty that fails is named in a warning and does not stop the others.
create or replace function tenure.tick(p_worker bigint) returns json
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp as $$
declare
  c_interval_ms constant bigint := 1000;
  v_now timestamptz := clock_timestamp();
  v_next_at timestamptz;
  v_next_ms bigint := c_interval_ms;
  v_rescue json;
  v_promote json;
  v_net boolean;
begin
  if not pg_try_advisory_xact_lock(tenure.lock_class(), 0) then
    return json_build_object('ran', false, 'next_ms', c_interval_ms, 'promoted', 0, 'rescued', 0);
  end if;
  select d.next_at into v_next_at from tenure.duty d where d.name = 'tick';
  if v_next_at > v_now then
    return json_build_object('ran', false, 'next_ms', ceil(extract(epoch from v_next_at - v_now) * 1000)::bigint, 'promoted', 0, 'rescued', 0);
  end if;
  update tenure.duty d set next_at = v_now + interval '30 seconds' where d.name = 'net' and d.next_at <= v_now;
  v_net := found;

  begin
    v_rescue := tenure.rescue();
  exception when others then
    raise warning 'tenure: rescue failed: % (%)', sqlerrm, sqlstate;
  end;
  begin
    v_promote := tenure.promote(1000, case when not v_net then interval '60 seconds' end);
  exception when others then
    raise warning 'tenure: promote failed: % (%)', sqlerrm, sqlstate;
  end;
  if v_net then
    perform tenure.tick_net();
  end if;

  v_next_ms := least(v_next_ms, (v_rescue ->> 'next_ms')::bigint,
                     case when (v_rescue ->> 'more')::boolean or (v_promote ->> 'more')::boolean then 0 end);
  update tenure.duty d set next_at = clock_timestamp() + v_next_ms * interval '1 millisecond' where d.name = 'tick';
  return json_build_object('ran', true, 'next_ms', v_next_ms, 'promoted', coalesce((v_promote ->> 'promoted')::bigint, 0),
                           'rescued', coalesce((v_rescue ->> 'rescued')::bigint, 0));
end $$;

create or replace function tenure.tick_net() returns void
language plpgsql as $$
declare
  v_txid xid8;
begin
  begin
    perform tenure.rescue_orphans();
  exception when others then
    raise warning 'tenure: rescue of orphans failed: % (%)', sqlerrm, sqlstate;
  end;
  begin
    select i.txid into v_txid from tenure.inbox i order by i.txid limit 1;
    if found then
      perform tenure.take_inbox(v_txid);
    end if;
  exception when others then
    raise warning 'tenure: rows left in inbox by transaction % could not be enqueued: % (%)', v_txid, sqlerrm, sqlstate;
  end;
  begin
    delete from tenure.cancel_request c
      where c.requested_at < clock_timestamp() - interval '1 minute'
        and not exists (select from tenure.lease l where tenure.slot_of(l.blocks, l.strip, c.job_id) is not null);
  exception when others then
    raise warning 'tenure: clean-up of cancel requests failed: % (%)', sqlerrm, sqlstate;
  end;
  begin
    perform tenure.partitions();
  exception when others then
    raise warning 'tenure: partitions could not be made ahead: % (%)', sqlerrm, sqlstate;
  end;
end $$;
