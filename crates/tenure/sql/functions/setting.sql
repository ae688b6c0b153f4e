-- set_setting: sets one of the numbers that hold for the whole schema; null: as if it had never been set. Works again and again.
-- Parameters: p_name payload_bytes (bytes, 65536 to 16777216; default 65536) or snapshot_warn_ms (ms, 1000 to 604800000; default 60000). How long jobs are
-- kept has a verb of its own, set_keep. Errors: TN002 for another name, or a value out of its range. Locks: the setting's row, waited for 5 s.
create or replace function tenure.set_setting(p_name text, p_value bigint) returns void
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp set lock_timeout = '5s' as $$
declare
  v_min bigint;
  v_max bigint;
begin
  case p_name
    when 'payload_bytes' then
      v_min := 65536;
      v_max := 16777216;
    when 'snapshot_warn_ms' then
      v_min := 1000;
      v_max := 604800000;
    else
      perform tenure.refuse('TN002', format('%L is no setting', p_name), 'Use payload_bytes or snapshot_warn_ms; how long jobs are kept is set by set_keep.');
  end case;
  if p_value not between v_min and v_max then
    perform tenure.refuse('TN002', format('%s %s is outside %s to %s', p_name, p_value, v_min, v_max), 'null sets it back to the default.');
  end if;
  if p_value is null then
    delete from tenure.setting s where s.name = p_name;
  else
    insert into tenure.setting (name, value) values (p_name, p_value::text) on conflict (name) do update set value = excluded.value;
  end if;
end $$;
