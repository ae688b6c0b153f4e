-- vacuum_horizon: who keeps vacuum from removing dead rows in this database, the oldest first, and how many dead rows the hot tables have.
-- Held back by: a session whose snapshot, or whose own transaction, is open; a transaction that was prepared and never ended; a replication slot
-- with the horizon of its standby, or the process that sends to a standby without a slot (how old that is, is known in transactions only: a healthy
-- standby with hot_standby_feedback holds some horizon all the time). Vacuums are not counted, for they hold nobody back; a
-- transaction that reads only, and runs many short statements, is counted from its start while one of them runs.
-- `old`: for longer than the setting snapshot_warn_ms (1 minute by default), or 100,000 transactions when it has no time.
-- Runs with the rights of the schema's owner. Sessions of others whose details the owner may not read are counted in hidden_sessions.
-- Returns json: {"warn_after_ms", "hidden_sessions", "snapshots": [at most 10], "dead_rows": [a row per hot table]}. Reads only; no locks.
create or replace function tenure.vacuum_horizon() returns json
language plpgsql stable security definer set search_path = pg_catalog, tenure, pg_temp as $$
declare
  c_transactions constant bigint := 100000;
  v_warn_ms constant bigint := greatest(coalesce((select s.value::bigint from tenure.setting s where s.name = 'snapshot_warn_ms'), 60000), 0);
  v_hidden bigint;
  v_snapshots json;
  v_dead json;
begin
  select count(*) into v_hidden from pg_stat_activity a where a.datname = current_database() and a.query = '<insufficient privilege>';

  with holding as (
    select case when a.datname is null then 'standby' else 'session' end as holder, null::text as name, a.pid, a.usename::text as "user",
           a.application_name as application, a.state,
           -- A sender has no statements: what began long ago is the replication.
           case when a.backend_type = 'walsender' then a.xact_start else coalesce(a.xact_start, a.query_start, a.backend_start) end as since,
           greatest(age(a.backend_xmin), age(a.backend_xid))::bigint as transactions
    from pg_stat_activity a
    where (a.datname = current_database() or (a.datname is null and a.backend_type = 'walsender'))
      and coalesce(a.backend_xmin, a.backend_xid) is not null and a.pid <> pg_backend_pid() and a.backend_type <> 'autovacuum worker'
      and not exists (select from pg_stat_progress_vacuum v where v.pid = a.pid)
    union all
    select 'prepared', p.gid, null, p.owner::text, null, null, p.prepared, age(p.transaction)::bigint
    from pg_prepared_xacts p where p.database = current_database()
    union all
    select 'slot', s.slot_name::text, s.active_pid, null, null, case when s.active then 'active' else 'inactive' end, null, age(s.xmin)::bigint
    from pg_replication_slots s where s.xmin is not null),
  oldest as (
    select h.holder, h.name, h.pid, h."user", h.application, h.state, extract(epoch from clock_timestamp() - h.since)::float8 as age_s, h.transactions,
           coalesce(h.since <= clock_timestamp() - v_warn_ms * interval '1 millisecond', h.transactions >= c_transactions) as old
    from holding h order by h.transactions desc, h.since limit 10)
  select coalesce(json_agg(o order by o.transactions desc, o.age_s desc nulls first), '[]') into v_snapshots from oldest o;

  select coalesce(json_agg(t order by t.dead desc, t."table"), '[]') into v_dead
  from (select s.relname::text as "table", s.n_dead_tup as dead, s.n_live_tup as live
        from pg_stat_all_tables s
        where s.schemaname = 'tenure' and s.relname in ('ready', 'later', 'held', 'lease', 'worker', 'sleeper', 'inbox', 'inbox_open', 'duty')) t;

  return json_build_object('warn_after_ms', v_warn_ms, 'hidden_sessions', v_hidden, 'snapshots', v_snapshots, 'dead_rows', v_dead);
end $$;
