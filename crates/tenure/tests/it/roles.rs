//! What a role was granted it may also do: nothing on the way to it is refused.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use tenure::testing::{TestDatabase, with_database};
use tenure::{Client, MigrateOptions};
use tokio_postgres::error::SqlState;

const ROLES: [&str; 4] = ["viewer", "admin", "worker", "producer"];

/// A schema of its own with its roles, and a schedule whose backfill has an open job.
async fn prepare(db: &TestDatabase) -> tokio_postgres::Client {
    let owner = Client::builder(db.url()).schema("app").connect().await.unwrap();
    owner.migrate(MigrateOptions { roles: true }).await.unwrap();
    let sql = db.sql().await;
    let fill = "select app.add_schedule('s', '@daily', 'UTC', 'k', '{}'); select app.add_backfill('s', array[now() - interval '1 day']); select app.due_schedules(true)";
    sql.batch_execute(fill).await.unwrap();
    sql
}

/// Runs each statement as the role, and takes it back.
async fn refused(sql: &tokio_postgres::Client, role: &str, statements: &[String]) -> Vec<String> {
    let mut refused = Vec::new();
    for statement in statements {
        sql.batch_execute(&format!("begin; set local role app_{role}; set local statement_timeout = '20s'"))
            .await
            .unwrap();
        if let Err(error) = sql.batch_execute(statement).await
            && error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE)
        {
            refused.push(format!("{role}: {statement}: {error:?}"));
        }
        sql.batch_execute("rollback").await.unwrap();
    }
    refused
}

async fn statements(sql: &tokio_postgres::Client, find: &str, role: &str) -> Vec<String> {
    let rows = sql.query(find, &[&format!("app_{role}")]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn each_role_may_look_at_every_table_and_view_that_it_was_granted() {
    with_database(async |db| {
        let sql = prepare(db).await;
        let find = "select format('select * from app.%I', c.relname) from pg_class c
            where c.relnamespace = 'app'::regnamespace and c.relkind in ('r', 'p', 'v') and has_table_privilege($1::name, c.oid, 'select') order by 1";
        for role in ROLES {
            let found = statements(&sql, find, role).await;
            assert!(found.len() >= 4, "{role}: {found:?}");
            assert_eq!(refused(&sql, role, &found).await, Vec::<String>::new());
            sql.batch_execute(&format!("set role app_{role}")).await.unwrap();
            let open = "select b.open from app.backfills b";
            assert_eq!(sql.query_one(open, &[]).await.unwrap().get::<_, i32>(0), 1, "{role}");
            sql.batch_execute("reset role").await.unwrap();
        }
    })
    .await;
}

/// What stands in for pg_cron, for those who operate.
const CRON: &str = "create schema cron;
    create table cron.job (jobid bigint, jobname text, schedule text, command text, database text, username text, active boolean);
    create table cron.job_run_details (runid bigint, jobid bigint, status text, return_message text);
    create function cron.unschedule(p_job bigint) returns boolean language sql as 'delete from cron.job where jobid = p_job returning true';
    insert into cron.job values (1, 'nightly', '30 2 * * *', 'select app.tick()', current_database(), current_user, true);
    grant usage on schema cron to app_admin, app_viewer; grant select on cron.job_run_details to app_admin, app_viewer;
    grant select, delete on cron.job to app_admin; grant select on cron.job to app_viewer";

/// Two jobs that are dead, and two that a worker holds.
const HELD: &str = "select app.enqueue('k', '{}') from generate_series(1, 4);
    create table public.worker as select r.worker_id as id, r.token from app.register_worker('w', 'h', 1, 'p', array['default'], array['k'], 60000, 1000, false) r;
    create table public.held as select c.job_id as job, c.lease_id as lease, row_number() over (order by c.job_id) as n from public.worker w
      cross join lateral app.claim(w.id, w.token, array['default'], array[10], array['k'], '{}', array[-1, 0, 1, 2, 3, 4], array_fill(0::bigint, array[6]), false) c
      where c.job_id is not null;
    grant select on public.held to public;
    select f.* from public.worker w cross join lateral app.fail(w.id, w.token, (
      select json_agg(json_build_object('lease', h.lease, 'job', h.job, 'verdict', 'permanent', 'cause', 'error', 'message', 'm')) from public.held h where h.n <= 2)) f";

/// The functions that run with the rights of whoever calls them, with calls of each form of them that go all their way. All others run with the owner's.
const INVOKED: [(&str, &[&str]); 11] = [
    (
        "complete",
        &[
            "select app.complete(job, lease, '1'::jsonb) from public.held where n = 3",
            "select app.complete(job, lease, '1'::text) from public.held where n = 4",
        ],
    ),
    ("cron_jobs", &["select * from app.cron_jobs()"]),
    ("cron_state", &["select app.cron_state()"]),
    ("enqueue", &["select app.enqueue('k', '{}'::jsonb)", "select app.enqueue('k', '{}'::text)"]),
    (
        "idempotency_key_of",
        &[
            "select app.idempotency_key_of(json_populate_record(null::app.job, '{\"id\": 7, \"created_at\": \"2026-01-01Z\"}'))",
        ],
    ),
    ("jobs_in", &["select * from app.jobs_in(array[1::bigint], set_bit(0::bit(128), 3, 1)::varbit)"]),
    (
        "move_cron_jobs",
        &[
            "select app.move_cron_jobs('[{\"name\": \"moved\", \"rule\": \"@daily\", \"zone\": \"UTC\", \"kind\": \"k\", \"payload\": {}}]', array[1::bigint])",
        ],
    ),
    ("outline", &["select app.outline('row 7 of \"x\"')"]),
    ("percentile_ms", &["select app.percentile_ms(array[9::smallint], array[1::bigint], 0.5)"]),
    (
        "progress",
        &[
            "select app.progress(job, lease, '1'::jsonb) from public.held where n = 3",
            "select app.progress(job, lease, '1'::text) from public.held where n = 3",
        ],
    ),
    (
        "requeue",
        &[
            "select app.requeue(job, '{}'::jsonb) from public.held where n = 1",
            "select app.requeue(job, '{}'::text) from public.held where n = 2",
        ],
    ),
];

#[tokio::test]
async fn each_role_may_call_every_verb_that_it_was_granted() {
    with_database(async |db| {
        let sql = prepare(db).await;
        sql.batch_execute(CRON).await.unwrap();
        sql.batch_execute(HELD).await.unwrap();
        let find = "select distinct p.proname::text from pg_proc p
            where p.pronamespace = 'app'::regnamespace and not p.prosecdef and has_function_privilege($1::name, p.oid, 'execute') order by 1";
        let mut called = BTreeSet::new();
        for role in ROLES {
            for name in statements(&sql, find, role).await {
                let calls = INVOKED.iter().find(|(invoked, _)| *invoked == name);
                let (_, calls) = calls.unwrap_or_else(|| panic!("{role} calls {name} with its own rights"));
                for call in *calls {
                    sql.batch_execute(&format!("begin; set local role app_{role}")).await.unwrap();
                    let end = sql.query(*call, &[]).await;
                    assert!(end.as_ref().is_ok_and(|rows| rows.len() == 1), "{role}: {call}: {end:?}");
                    sql.batch_execute("rollback").await.unwrap();
                }
                called.insert(name);
            }
        }
        assert_eq!(called.iter().map(String::as_str).collect::<Vec<_>>(), INVOKED.map(|(name, _)| name));
    })
    .await;
}

/// With TENURE_BLESS=1 the file is written anew.
#[tokio::test]
async fn each_role_has_the_grants_that_are_listed_and_no_other() {
    with_database(async |db| {
        let sql = prepare(db).await;
        let find = "select f.name from (
              select distinct format('execute %s', p.proname) as name from pg_proc p
                where p.pronamespace = 'app'::regnamespace and has_function_privilege($1::name, p.oid, 'execute')
              union select format('%s %s', r.privilege, c.relname) from pg_class c
                cross join unnest(array['select', 'insert', 'update', 'delete', 'truncate', 'references', 'trigger']) as r(privilege)
                where c.relnamespace = 'app'::regnamespace and c.relkind in ('r', 'p', 'v', 'm') and not c.relispartition and has_table_privilege($1::name, c.oid, r.privilege)
              union select format('%s %s (%s)', r.privilege, c.relname, string_agg(a.attname, ', ' order by a.attnum)) from pg_class c
                join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
                cross join unnest(array['select', 'insert', 'update', 'references']) as r(privilege)
                where c.relnamespace = 'app'::regnamespace and c.relkind in ('r', 'p', 'v', 'm') and not c.relispartition
                  and has_column_privilege($1::name, c.oid, a.attnum, r.privilege) and not has_table_privilege($1::name, c.oid, r.privilege)
                group by r.privilege, c.relname
              union select format('usage %s', c.relname) from pg_class c
                where c.relnamespace = 'app'::regnamespace and case when c.relkind = 'S' then has_sequence_privilege($1::name, c.oid, 'usage, select, update') end
            ) f(name) order by f.name collate \"C\"";
        let mut granted = String::new();
        for role in ROLES.map(|role| format!("app_{role}")).iter().chain(&["public".to_owned()]) {
            for row in sql.query(find, &[role]).await.unwrap() {
                writeln!(granted, "{} {}", role.trim_start_matches("app_"), row.get::<_, &str>(0)).unwrap();
            }
        }
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/roles/grants.txt");
        if std::env::var_os("TENURE_BLESS").is_some() {
            std::fs::write(path, &granted).unwrap();
        }
        let listed = std::fs::read_to_string(path).unwrap();
        let differs = |one: &str, other: &str| {
            let there: BTreeSet<_> = other.lines().collect();
            one.lines().filter(|line| !there.contains(line)).map(str::to_owned).collect::<Vec<_>>()
        };
        let (more, fewer) = (differs(&granted, &listed), differs(&listed, &granted));
        assert!(more.is_empty() && fewer.is_empty(), "granted besides: {more:#?}; no more: {fewer:#?}; TENURE_BLESS=1 cargo xtask test grants writes {path}");
    })
    .await;
}
