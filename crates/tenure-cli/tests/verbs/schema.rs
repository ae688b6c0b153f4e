//! The database as a whole: migrated, set, and looked at.

use serde_json::Value;
use tenure::testing::with_database;

use super::{json, stored, tenure};

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_cannot_be_used_is_named_with_the_way_out() {
    with_database(async |db| {
        let (host, name) = db.url().rsplit_once('/').expect("a URL");
        let cases: &[(&[&str], &[&str])] = &[
            (&["--database-url", "postgres://127.0.0.1:1/x"], &["127.0.0.1:1/x", "refused", "is the server running"]),
            (
                &["--database-url", &format!("{host}/no_such_db")],
                &["\"no_such_db\" does not exist", "create the database"],
            ),
            (&["--schema", "nowhere"], &["nowhere", "run `tenure migrate`"]),
        ];
        for (options, parts) in cases {
            for verb in
                [&["status"][..], &["job", "list"], &["enqueue", "k", "1"], &["queue", "list"], &["dead", "list"]]
            {
                let end = tenure(db, &[verb, options].concat());
                assert_eq!((end.code, end.out.as_str()), (1, ""), "{verb:?} {options:?}: {end:?}");
                for part in *parts {
                    assert!(end.said.contains(part), "{verb:?} {options:?} does not say {part:?}: {}", end.said);
                }
            }
        }
        let wrong = tenure(db, &["status", "--database-url", "postgres://u:secret@h:port/x"]);
        assert_eq!(wrong.code, 2, "{wrong:?}");
        assert!(wrong.said.contains("no connection string") && !wrong.said.contains("secret"), "{}", wrong.said);
        assert_eq!(stored(db).await, 0, "{name}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn migrate_prints_migrates_and_refuses_a_newer_schema() {
    with_database(async |db| {
        let script = tenure(db, &["migrate", "--print", "--schema", "jobs"]);
        assert!(script.out.contains("create schema jobs;") && script.out.ends_with("commit;\n"));
        let first = json(db, &["migrate", "--schema", "jobs", "--json"]);
        assert_eq!((&first["from"], &first["applied"][0]), (&0.into(), &"0001_tables".into()));
        assert!(tenure(db, &["migrate", "--schema", "jobs"]).out.contains("functions renewed"));
        let sql = db.sql().await;
        sql.batch_execute("insert into jobs.migration (version, name, digest) values (9999, '9999_x', '')")
            .await
            .expect("a row");
        let end = tenure(db, &["migrate", "--schema", "jobs"]);
        assert_eq!(end.code, 1);
        assert!(end.said.contains("version 9999") && end.said.contains("newer program"), "{}", end.said);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn status_names_the_kinds_that_no_worker_handles_with_their_count_and_age() {
    with_database(async |db| {
        assert_eq!(json(db, &["status", "--json"])["unhandled_kinds"], serde_json::json!([]));
        for kind in ["mail", "mail", "male"] {
            assert_eq!(tenure(db, &["enqueue", kind, "1"]).code, 0);
        }
        let handles = "select tenure.register_worker('w', 'h', 1, '0', '{default}', '{male}', 30000, 1000, true)";
        let worker = db.sql().await;
        worker.query(handles, &[]).await.expect("registered");
        let kinds = &json(db, &["status", "--json"])["unhandled_kinds"];
        assert_eq!(kinds.as_array().map(Vec::len), Some(1), "{kinds}");
        let mail = (&kinds[0]["kind"], &kinds[0]["queue"], &kinds[0]["available"]);
        assert_eq!(mail, (&"mail".into(), &"default".into(), &2.into()));
        assert!(kinds[0]["oldest_due_at"].is_string(), "{kinds}");
        let shown = tenure(db, &["status"]).out;
        assert!(shown.contains("NO WORKER FOR") && shown.contains("mail"), "{shown}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn status_names_the_oldest_snapshot_and_warns_with_the_way_out_once_it_is_old() {
    with_database(async |db| {
        let sql = db.sql().await;
        sql.batch_execute("insert into tenure.setting values ('snapshot_warn_ms', '3600000')").await.expect("set");
        let forgotten = db.sql().await;
        forgotten
            .batch_execute("set application_name = 'psql\x1b[2J'; begin isolation level repeatable read; select 1")
            .await
            .expect("a snapshot");
        let pid: i32 = forgotten.query_one("select pg_backend_pid()", &[]).await.expect("its process").get(0);
        let oldest = |vacuum: &Value| {
            let mine = vacuum["snapshots"].as_array().expect("a list").iter().find(|s| s["pid"] == pid);
            mine.unwrap_or_else(|| panic!("{pid} in {vacuum}")).clone()
        };
        let young = oldest(&json(db, &["status", "--json"])["vacuum"]);
        assert_eq!((&young["holder"], &young["state"]), (&"session".into(), &"idle in transaction".into()), "{young}");
        assert!(young["age_s"].as_f64().is_some_and(|age| age > 0.0) && young["old"] == false, "{young}");
        let shown = tenure(db, &["status"]).out;
        assert!(shown.contains("oldest snapshot") && !shown.contains("WARNING"), "{shown}");

        sql.batch_execute("update tenure.setting set value = '0' where name = 'snapshot_warn_ms'").await.expect("set");
        let vacuum = &json(db, &["status", "--json"])["vacuum"];
        assert!(oldest(vacuum)["old"] == true && vacuum["dead_rows"][0]["dead"].is_u64(), "{vacuum}");
        let shown = tenure(db, &["status"]).out;
        let warning = format!("pg_terminate_backend({pid})");
        assert!(shown.contains("WARNING") && shown.contains(&warning) && !shown.contains('\x1b'), "{shown}");
        forgotten.batch_execute("commit").await.expect("commit");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_holds_for_the_whole_schema_is_listed_set_and_set_back() {
    with_database(async |db| {
        let list = tenure(db, &["setting", "list"]).out;
        assert!(list.starts_with("SETTING") && list.contains("65536 to 16777216"), "{list}");
        let large = format!("\"{}\"", "x".repeat(70_000));
        assert_eq!(tenure(db, &["enqueue", "k", &large]).code, 2);
        let end = tenure(db, &["setting", "set", "payload_bytes", "100000"]);
        assert_eq!((end.code, end.out.as_str()), (0, "payload_bytes is 100000\n"));
        assert_eq!(tenure(db, &["enqueue", "k", &large]).code, 0);
        let listed = &json(db, &["setting", "list", "--json"])[0];
        let facts = serde_json::json!([listed["name"], listed["value"], listed["default"], listed["set"]]);
        assert_eq!(facts, serde_json::json!(["payload_bytes", 100_000, 65_536, true]));
        let end = tenure(db, &["setting", "unset", "payload_bytes"]);
        assert_eq!((end.code, end.out.as_str()), (0, "payload_bytes is 65536, the default\n"));
        let again = json(db, &["setting", "unset", "payload_bytes", "--json"]);
        assert_eq!((&again["value"], &again["set"]), (&65_536.into(), &false.into()));
        let cases: &[(&[&str], &str)] = &[
            (&["set", "payload_bytes", "1"], "payload_bytes 1 is outside 65536 to 16777216"),
            (&["set", "payload_bytes", "-1"], "payload_bytes -1 is outside"),
            (&["set", "payload_bytes", "1MiB"], "\"1MiB\" is not such a number"),
            (&["set", "payload", "1"], "'payload' is no setting"),
            (&["unset", "payload"], "Use payload_bytes or snapshot_warn_ms"),
        ];
        for (args, words) in cases {
            let end = tenure(db, &[&["setting"], *args].concat());
            assert_eq!((end.code, end.out.as_str()), (2, ""), "{args:?}: {end:?}");
            assert!(end.said.contains(words), "{args:?}: {}", end.said);
        }
    })
    .await;
}
