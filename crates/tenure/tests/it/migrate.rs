//! The migration: complete or not at all, harmless twice, and what it refuses.

use tenure::lifecycle::State;
use tenure::testing::{TestDatabase, with_database};
use tenure::{Client, Enqueue, Error, ErrorCode, JobFilter, MigrateOptions, RawJson, migration_sql};

const PLAIN: MigrateOptions = MigrateOptions { roles: false };

async fn lazy(db: &TestDatabase, schema: &str) -> Client {
    Client::builder(db.url()).schema(schema).connect().await.unwrap()
}

/// What a schema consists of, without its name. (Warnings name tenure whatever the schema.)
async fn shape(db: &TestDatabase, schema: &str) -> Vec<String> {
    let sql = "
        select 'function ' || p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ') ' || md5(replace(replace(p.prosrc, '''tenure: ', ''''), $1, '*'))
          from pg_proc p where p.pronamespace = $1::regnamespace
        union all
        select 'column ' || c.relname || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || ' ' || a.attnotnull
          from pg_attribute a join pg_class c on c.oid = a.attrelid
          where c.relnamespace = $1::regnamespace and a.attnum > 0 and not a.attisdropped
        union all
        select 'constraint ' || conname || ' ' || replace(pg_get_constraintdef(oid), $1, '*')
          from pg_constraint where connamespace = $1::regnamespace
        order by 1";
    let sql = sql.replace("$1", &format!("'{schema}'"));
    let session = db.sql().await;
    // Names are shown with their schema, also to a role that is named like it.
    session.batch_execute("set search_path = pg_catalog").await.unwrap();
    let rows = session.query(&sql, &[]).await.unwrap();
    rows.iter().map(|row| row.get::<_, String>(0).replace(&format!("{schema}."), "*.")).collect()
}

/// Both schemas consist of the same; what differs is shown.
async fn assert_same_shape(db: &TestDatabase, one: &str, other: &str) {
    let (one, other) = (shape(db, one).await, shape(db, other).await);
    let missing = |from: &[String], of: &[String]| -> Vec<String> {
        from.iter().filter(|part| !of.contains(part)).cloned().collect()
    };
    let (left, right) = (missing(&one, &other), missing(&other, &one));
    assert!(left.is_empty() && right.is_empty(), "only in the first: {left:#?}\nonly in the second: {right:#?}");
}

#[tokio::test]
async fn a_second_migration_changes_nothing() {
    with_database(async |db| {
        let client = db.client().await;
        let before = shape(db, "tenure").await;
        let done = client.migrate(PLAIN).await.unwrap();
        assert_eq!((done.from, done.applied.len()), (done.to, 0));
        assert_eq!(shape(db, "tenure").await, before);
    })
    .await;
}

#[tokio::test]
async fn many_first_migrations_at_once_make_one_schema() {
    with_database(async |db| {
        let clients = [lazy(db, "jobs").await, lazy(db, "jobs").await, lazy(db, "jobs").await, lazy(db, "jobs").await];
        let running = clients.map(|client| tokio::spawn(async move { client.migrate(PLAIN).await }));
        let mut made = 0;
        for migration in running {
            made += migration.await.unwrap().unwrap().applied.len();
        }
        let versions = "select count(*) from jobs.migration";
        let count: i64 = db.sql().await.query_one(versions, &[]).await.unwrap().get(0);
        assert_eq!(made as i64, count);
    })
    .await;
}

#[tokio::test]
async fn another_schema_is_the_same_under_another_name_and_apart_from_the_first() {
    with_database(async |db| {
        let (client, other) = (db.client().await, lazy(db, "jobs_2").await);
        other.migrate(PLAIN).await.unwrap();
        assert_same_shape(db, "jobs_2", "tenure").await;
        other.enqueue(Enqueue::raw("k", RawJson::null())).await.unwrap();
        other.enqueue_copy([Enqueue::raw("k", RawJson::null())]).await.unwrap();
        assert_eq!(other.list(&JobFilter::default()).await.unwrap().len(), 2);
        assert_eq!(client.list(&JobFilter::default()).await.unwrap().len(), 0);
    })
    .await;
}

#[tokio::test]
async fn the_printed_script_makes_what_the_migration_makes() {
    with_database(async |db| {
        db.sql().await.batch_execute(&migration_sql("printed", PLAIN).unwrap()).await.unwrap();
        assert_same_shape(db, "printed", "tenure").await;
        let done = lazy(db, "printed").await.migrate(PLAIN).await.unwrap();
        assert_eq!(done.applied, [""; 0]);
    })
    .await;
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_left_alone() {
    with_database(async |db| {
        let sql = db.sql().await;
        sql.batch_execute("insert into tenure.migration (version, name, digest) values (9999, '9999_future', '')")
            .await
            .unwrap();
        let error = db.client().await.migrate(PLAIN).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Schema);
        assert!(error.to_string().contains("has version 9999") && error.help().is_some(), "{error}");
    })
    .await;
}

#[tokio::test]
async fn a_schema_of_a_build_with_other_migrations_is_refused_and_left_alone() {
    with_database(async |db| {
        let sql = db.sql().await;
        for other in ["update tenure.migration set digest = 'other'", "alter table tenure.migration drop column digest"]
        {
            sql.batch_execute(other).await.unwrap();
            let error = db.client().await.migrate(PLAIN).await.unwrap_err();
            assert_eq!(error.code(), ErrorCode::Schema);
            assert!(error.to_string().contains("another migration 0001_tables") && error.help().is_some(), "{error}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_migration_that_fails_half_way_leaves_nothing() {
    with_database(async |db| {
        let sql = db.sql().await;
        // The schema exists, with something in the way of a later statement.
        sql.batch_execute("create schema jobs; create table jobs.worker (x int)").await.unwrap();
        let error = lazy(db, "jobs").await.migrate(PLAIN).await.unwrap_err();
        assert!(error.to_string().contains("apply migration 0001_tables"), "{error}");
        let tables =
            "select count(*) from pg_class where relnamespace = 'jobs'::regnamespace and relkind in ('r', 'p')";
        assert_eq!(sql.query_one(tables, &[]).await.unwrap().get::<_, i64>(0), 1);
    })
    .await;
}

#[tokio::test]
async fn a_read_only_database_is_refused_by_name() {
    with_database(async |db| {
        let sql = db.sql().await;
        let on = format!("alter database {} set default_transaction_read_only = on", db.name());
        sql.batch_execute(&on).await.unwrap();
        let error = match Client::connect(db.url()).await {
            Err(error) => error,
            Ok(client) => client.migrate(PLAIN).await.unwrap_err(),
        };
        assert_eq!(error.code(), ErrorCode::ReadOnly, "{error}");
        assert!(error.help().unwrap().contains("connect to the primary"), "{error}");
        sql.batch_execute(&on.replace("= on", "= off")).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_database_without_the_schema_names_the_way_out() {
    with_database(async |db| {
        let client = lazy(db, "nowhere").await;
        let errors: [Error; 4] = [
            client.enqueue(Enqueue::raw("k", RawJson::null())).await.unwrap_err(),
            client.enqueue_copy([Enqueue::raw("k", RawJson::null())]).await.unwrap_err(),
            client.list(&JobFilter::default()).await.unwrap_err(),
            client.server().await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.code(), ErrorCode::Schema, "{error}");
            assert!(error.help().unwrap().contains("tenure migrate"), "{error}");
        }
    })
    .await;
}

/// The same server and database, as another role.
fn url_as(db: &TestDatabase, role: &str) -> String {
    let (scheme, rest) = db.url().split_once("://").expect("a URL");
    let host = rest.split_once('@').map_or(rest, |(_, host)| host);
    format!("{scheme}://{role}:{role}@{host}")
}

/// A login role of this name, in the group when one is named; the group's members may do what its name says.
async fn login(db: &TestDatabase, role: &str, group: Option<&str>) -> Client {
    let sql = db.sql().await;
    let member = group.map(|group| format!("; grant {group} to {role}")).unwrap_or_default();
    sql.batch_execute(&format!("create role {role} login password '{role}'{member}")).await.unwrap();
    Client::builder(url_as(db, role)).schema("app").connect().await.unwrap()
}

#[tokio::test]
async fn each_role_may_do_what_its_name_says_and_nothing_else() {
    with_database(async |db| {
        let suffix = format!("{:x}", fastrand::u32(..));
        let names = ["nobody", "producer", "viewer", "admin", "worker"].map(|name| format!("t_{name}_{suffix}"));
        let owner = lazy(db, "app").await;
        owner.migrate(MigrateOptions { roles: true }).await.unwrap();
        let nobody = login(db, &names[0], None).await;
        let producer = login(db, &names[1], Some("app_producer")).await;
        let viewer = login(db, &names[2], Some("app_viewer")).await;
        let admin = login(db, &names[3], Some("app_admin")).await;
        let worker = login(db, &names[4], Some("app_worker")).await;

        let denied = |result: Result<(), Error>| {
            let error = result.unwrap_err();
            assert_eq!(error.code(), ErrorCode::Denied, "{error}");
            assert!(error.help().is_some(), "{error}");
        };
        let job = || Enqueue::raw("k", RawJson::null());
        denied(nobody.enqueue(job()).await.map(drop));
        denied(nobody.list(&JobFilter::default()).await.map(drop));
        denied(nobody.migrate(PLAIN).await.map(drop));
        denied(viewer.enqueue(job()).await.map(drop));
        denied(viewer.pause("q", None, None).await.map(drop));
        denied(producer.pause("q", None, None).await.map(drop));
        denied(worker.pause("q", None, None).await.map(drop));

        let id = producer.enqueue(job()).await.unwrap();
        producer.enqueue_copy([job()]).await.unwrap();
        producer.cancel(id).await.unwrap();
        producer.wait(id, std::time::Duration::ZERO).await.unwrap();
        // Handlers enqueue, look and cancel as producers do.
        let other = worker.enqueue(job()).await.unwrap();
        worker.cancel(other).await.unwrap();
        worker.wait(other, std::time::Duration::ZERO).await.unwrap();
        assert_eq!(viewer.list(&JobFilter::default()).await.unwrap().len(), 3);
        viewer.get(id).await.unwrap().unwrap();
        viewer.queues().await.unwrap();
        viewer.workers().await.unwrap();
        viewer.server().await.unwrap();
        viewer.dead_letters(&tenure::DeadFilter::new(), None, None).await.unwrap();
        viewer.attempt_errors(id).await.unwrap();
        viewer.vacuum_horizon().await.unwrap();
        worker.vacuum_horizon().await.unwrap();
        denied(producer.vacuum_horizon().await.map(drop));
        denied(viewer.set_keep(None, State::Dead, None).await);
        denied(producer.prune(|_| ()).await.map(drop));
        viewer.prune_preview().await.unwrap();
        admin.set_keep(Some("q"), State::Dead, Some(std::time::Duration::from_secs(86_400))).await.unwrap();
        admin.prune(|_| ()).await.unwrap();
        // It may look, and there is nothing to see.
        assert_eq!(admin.cron_jobs().await.unwrap_err().code(), ErrorCode::Refused);
        admin.pause("q", None, None).await.unwrap();
        admin.requeue(id, None).await.unwrap();

        // A later migration without --roles keeps the rights.
        owner.migrate(PLAIN).await.unwrap();
        producer.enqueue(job()).await.unwrap();
        let sql = db.sql().await;
        for name in &names {
            sql.batch_execute(&format!("drop owned by {name}; drop role {name}")).await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn what_a_plain_role_cannot_see_of_old_snapshots_is_counted() {
    with_database(async |db| {
        let (sql, role) = (db.sql().await, format!("t_plain_{:x}", fastrand::u32(..)));
        let owner = login(db, &role, None).await;
        sql.batch_execute(&format!("create schema app authorization {role}")).await.unwrap();
        owner.migrate(PLAIN).await.unwrap();
        let begin = "begin isolation level repeatable read; select 1";
        let (others, own) = (db.sql().await, tokio_postgres::connect(&url_as(db, &role), tokio_postgres::NoTls).await);
        let (own, connection) = own.unwrap();
        tokio::spawn(connection);
        let mut pids = Vec::new();
        for session in [&others, &own] {
            session.batch_execute(begin).await.unwrap();
            pids.push(session.query_one("select pg_backend_pid()", &[]).await.unwrap().get::<_, i32>(0));
        }
        let seen = async || {
            let horizon = owner.vacuum_horizon().await.unwrap();
            let named = |pid: &i32| horizon.snapshots.iter().any(|snapshot| snapshot.pid == Some(*pid));
            (pids.iter().map(named).collect::<Vec<_>>(), horizon.hidden_sessions > 0)
        };
        assert_eq!(seen().await, (vec![false, true], true));
        sql.batch_execute(&format!("grant pg_read_all_stats to {role}")).await.unwrap();
        assert_eq!(seen().await, (vec![true, true], false));
        others.batch_execute("commit").await.unwrap();
        own.batch_execute("commit").await.unwrap();
        sql.batch_execute(&format!("drop owned by {role} cascade; drop role {role}")).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_database_that_is_not_utf8_is_refused() {
    with_database(async |db| {
        let (sql, name) = (db.sql().await, format!("{}_latin", db.name()));
        let create = format!("create database {name} encoding 'LATIN1' lc_collate 'C' lc_ctype 'C' template template0");
        sql.batch_execute(&create).await.unwrap();
        let client = Client::builder(db.url().replace(db.name(), &name)).schema("app").connect_lazy().unwrap();
        let error = client.migrate(PLAIN).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Schema);
        assert!(error.to_string().contains("LATIN1"), "{error}");
        drop(client);
        sql.batch_execute(&format!("drop database {name} with (force)")).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_schema_that_was_made_for_its_owner_is_filled_without_the_right_to_make_one() {
    with_database(async |db| {
        let (sql, role) = (db.sql().await, format!("t_owner_{:x}", fastrand::u32(..)));
        let owner = login(db, &role, None).await;
        assert_eq!(owner.migrate(PLAIN).await.unwrap_err().code(), ErrorCode::Denied);
        sql.batch_execute(&format!("create schema app authorization {role}")).await.unwrap();
        owner.migrate(PLAIN).await.unwrap();
        owner.enqueue(Enqueue::raw("k", RawJson::null())).await.unwrap();
        sql.batch_execute(&format!("drop owned by {role} cascade; drop role {role}")).await.unwrap();
    })
    .await;
}
