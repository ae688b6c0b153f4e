//! What `tenure doctor` finds, and that it leaves nothing behind.

use serde_json::Value;
use tenure::testing::{TestDatabase, until, with_database};

use super::{json, tenure};

/// Jobs for tomorrow: more than a scan may read.
const LATER: &str = "select count(tenure.enqueue('k', '{}', p_delay_ms => 86400000)) from generate_series(1, 6000)";
/// All that could have been left: rows of every table, and who holds what.
const THERE: &str = "
    select (select count(*) from tenure.job) + (select count(*) from tenure.queue) + (select count(*) from tenure.worker) + (select count(*) from tenure.ready)
         + (select count(*) from tenure.later) + (select count(*) from tenure.lease) + (select count(*) from tenure.outcome) + (select count(*) from tenure.dead_letter)
         + (select count(*) from tenure.inbox) + (select count(*) from tenure.sleeper) + (select count(*) from tenure.stat_delta)
         + (select count(*) from tenure.stat_minute) + (select count(*) from tenure.stat_worker) + (select count(*) from tenure.former_worker)";

async fn count(db: &TestDatabase, sql: &str) -> i64 {
    db.sql().await.query_one(sql, &[]).await.expect("a count").get(0)
}

fn of<'a>(found: &'a Value, list: &str, key: &str, name: &str) -> Vec<&'a Value> {
    found[list].as_array().expect("a list").iter().filter(|one| one[key] == name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_index_is_found_with_what_it_costs_and_nothing_stays() {
    with_database(async |db| {
        count(db, LATER).await;
        assert_eq!(tenure(db, &["queue", "set", "default", "--keep-dead", "30d"]).code, 0);
        let before = count(db, THERE).await;
        let end = tenure(db, &["doctor", "--plans"]);
        assert_eq!(end.code, 0, "{end:?}");
        assert!(end.out.starts_with("CALL") && end.out.contains("claim 100"), "{}", end.out);
        assert!(end.out.contains("head of queue \"default\""), "{}", end.out);
        assert!(end.out.ends_with("all plans are as they should be\n"), "{}", end.out);
        assert_eq!(count(db, THERE).await, before, "nothing stays");
        assert_eq!(count(db, "select count(*) from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())").await, 0);

        db.sql().await.batch_execute("drop index tenure.later_due; analyze").await.expect("dropped");
        let end = tenure(db, &["doctor", "--plans", "--json"]);
        assert_eq!(end.code, 1, "{end:?}");
        let found: Value = serde_json::from_str(&end.out).expect("JSON");
        let of_table = of(&found, "findings", "place", "later");
        assert_eq!(of_table.len(), 1, "{found}");
        assert!(of_table[0]["what"] == "the index later_due is missing", "{found}");
        assert!(of_table[0]["way_out"].as_str().expect("words").contains("create index concurrently"), "{found}");
        let promote = of(&found, "findings", "place", "promote");
        assert_eq!(promote.len(), 1, "{found}");
        let what = promote[0]["what"].as_str().expect("words");
        assert!(what.starts_with("reads ") && what.ends_with(" rows of later by a sequential scan"), "{what}");
        assert!(of(&found, "calls", "call", "promote")[0]["scans"][0]["rows"].as_u64() >= Some(6_000), "{found}");
        assert!(of(&found, "findings", "place", "enqueue").is_empty(), "what does without it is not named: {found}");
        let table = tenure(db, &["doctor", "--plans"]);
        assert!(
            table.out.contains("FOUND") && table.out.contains("later: the index later_due is missing\n  make it again"),
            "{}",
            table.out
        );
        assert_eq!(count(db, THERE).await, before, "nothing stays");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_that_a_worker_is_at_are_left_out_and_said() {
    with_database(async |db| {
        let worker = db.sql().await;
        worker.batch_execute("begin; select pg_advisory_xact_lock(tenure.lock_class(), 0)").await.expect("locked");
        let found = json(db, &["doctor", "--plans", "--json"]);
        let left_out: Vec<&str> =
            found["left_out"].as_array().expect("a list").iter().filter_map(|one| one["call"].as_str()).collect();
        assert_eq!(
            left_out,
            ["due_schedules", "net, inbox", "net, orphans", "net, sleepers", "promote", "rescue", "tick"]
        );
        assert!(
            of(&found, "calls", "call", "tick").is_empty() && of(&found, "calls", "call", "fold_stats").len() == 1,
            "{found}"
        );
        worker.batch_execute("commit").await.expect("unlocked");
        assert_eq!(json(db, &["doctor", "--plans", "--json"])["left_out"], Value::Array(Vec::new()));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_may_not_look_is_told_who_may() {
    with_database(async |db| {
        let role = format!("viewer_{}", db.name());
        let admin = db.sql().await;
        let make = format!("create role {role} login password '{role}'; grant usage on schema tenure to {role}");
        admin.batch_execute(&make).await.expect("a role");
        let (_, host) = db.url().rsplit_once('@').expect("a URL");
        let url = format!("postgres://{role}:{role}@{host}");
        let end = tenure(db, &["doctor", "--plans", "--database-url", &url]);
        assert_eq!((end.code, end.out.as_str()), (1, ""), "{end:?}");
        assert!(end.said.contains("permission denied") && end.said.contains("owner of the schema"), "{}", end.said);
        admin.batch_execute(&format!("drop owned by {role}; drop role {role}")).await.expect("dropped");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_to_look_at_has_to_be_said_and_the_schema_has_to_be_there() {
    with_database(async |db| {
        let end = tenure(db, &["doctor"]);
        assert_eq!(end.code, 2, "{end:?}");
        assert!(end.said.contains("say what to look at: --plans"), "{}", end.said);
        let end = tenure(db, &["doctor", "--plans", "--schema", "nowhere"]);
        assert_eq!(end.code, 1, "{end:?}");
        assert!(end.said.contains("run `tenure migrate`"), "{}", end.said);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_rows_at_the_start_of_a_queue_are_found_and_gone_after_a_vacuum() {
    with_database(async |db| {
        assert_eq!(tenure(db, &["queue", "set", "mail", "--keep-dead", "30d"]).code, 0);
        let forgotten = db.sql().await;
        forgotten
            .batch_execute("begin isolation level repeatable read; select count(*) from tenure.ready")
            .await
            .expect("a snapshot");
        let dead = "insert into tenure.ready (queue, priority, id, kind, attempt, flags, block, mask)
              select 'mail', 2, n, 'k', 0, 0, n, tenure.mask_fresh(1) from generate_series(1, 12000) n;
            delete from tenure.ready";
        db.sql().await.batch_execute(dead).await.expect("dead rows");
        let counted = "select coalesce(sum(n_dead_tup), 0)::bigint from pg_stat_user_tables where relname = 'ready'";
        until("the server has counted the dead rows", async || count(db, counted).await >= 12_000).await;
        let end = tenure(db, &["doctor", "--plans"]);
        assert_eq!(end.code, 1, "{end:?}");
        assert!(end.out.contains("head of queue \"mail\": touches "), "{}", end.out);
        // Some rows that the calls themselves left may be counted as well.
        assert!(end.out.contains("ready has 12"), "{}", end.out);
        assert!(end.out.contains(" dead rows: vacuum tenure.ready; `tenure status` names who"), "{}", end.out);
        forgotten.batch_execute("commit").await.expect("ended");
        db.sql().await.batch_execute("vacuum tenure.ready").await.expect("vacuumed");
        let end = tenure(db, &["doctor", "--plans"]);
        assert_eq!(end.code, 0, "{end:?}");
    })
    .await;
}
