-- settings: the numbers that can be set for the whole schema: what holds now, the range, the default, and whether it was set. How long jobs are kept
-- has verbs of its own, keeps and set_keep. Reads only. Errors: none. Locks: none.
create or replace function tenure.settings() returns table (name text, value bigint, lowest bigint, highest bigint, default_value bigint, is_set boolean)
language sql stable rows 4 security definer set search_path = pg_catalog, tenure, pg_temp as $$
  select k.name, coalesce(s.value::bigint, k.default_value), k.lowest, k.highest, k.default_value, s.name is not null
  from (values ('payload_bytes', 65536::bigint, 16777216::bigint, 65536::bigint),
               ('snapshot_warn_ms', 1000, 604800000, 60000),
               ('stats_keep_ms', 3600000, 315576000000, 2592000000),
               -- By these rows a report that is repeated within the hour is known.
               ('worker_stats_keep_ms', 7200000, 315576000000, 86400000)) as k(name, lowest, highest, default_value)
  left join tenure.setting s on s.name = k.name
  order by k.name
$$;

-- set_setting: sets one of them; null: as if it had never been set. Works again and again.
-- Errors: TN002 for another name, or a value out of its range. Locks: the setting's row, waited for 5 s.
create or replace function tenure.set_setting(p_name text, p_value bigint) returns void
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp set lock_timeout = '5s' as $$
declare
  v_known record;
begin
  select s.lowest, s.highest into v_known from tenure.settings() s where s.name = p_name;
  if not found then
    perform tenure.refuse('TN002', format('%L is no setting', p_name),
      format('Use %s; how long jobs are kept is set by set_keep.', (select string_agg(s.name, ' or ' order by s.name) from tenure.settings() s)));
  end if;
  if p_value not between v_known.lowest and v_known.highest then
    perform tenure.refuse('TN002', format('%s %s is outside %s to %s', p_name, p_value, v_known.lowest, v_known.highest), 'Null sets it back to the default.');
  end if;
  if p_value is null then
    delete from tenure.setting s where s.name = p_name;
  else
    insert into tenure.setting (name, value) values (p_name, p_value::text) on conflict (name) do update set value = excluded.value;
  end if;
end $$;
