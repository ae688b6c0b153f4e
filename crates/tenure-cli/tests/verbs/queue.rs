//! Queues and kinds: paused and resumed, and how long what is finished is kept.

use serde_json::Value;
use tenure::testing::{TestDatabase, with_database};

use super::{json, stored, tenure};

#[tokio::test(flavor = "multi_thread")]
async fn queues_are_paused_and_resumed() {
    with_database(async |db| {
        assert_eq!(tenure(db, &["queue", "pause", "mail", "--reason", "down", "--by", "me"]).out, "mail paused\n");
        assert_eq!(tenure(db, &["queue", "pause", "mail"]).out, "mail was paused already\n");
        let queue = &json(db, &["queue", "list", "--json"])["queues"][0];
        assert_eq!((&queue["paused_by"], &queue["pause_reason"]), (&"me".into(), &"down".into()));
        assert!(tenure(db, &["queue", "list"]).out.contains("by me: down"));
        assert_eq!(json(db, &["queue", "resume", "mail", "--json"])["changed"], true);
        assert_eq!(tenure(db, &["queue", "resume", "mail"]).out, "mail was not paused\n");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kinds_are_paused_and_the_reason_is_shown_everywhere() {
    with_database(async |db| {
        // While there is no queue yet, and in one that there is not.
        for pause in [&["--kind", "early"][..], &["nowhere", "--kind", "early"]] {
            assert_eq!(tenure(db, &[&["queue", "pause"], pause].concat()).code, 0);
        }
        let list = json(db, &["queue", "list", "--json"]);
        assert_eq!(list["queues"], serde_json::json!([]));
        let paused: Vec<_> =
            list["paused_kinds"].as_array().expect("kinds").iter().map(|kind| &kind["queue"]).collect();
        assert_eq!(paused, [&Value::Null, &"nowhere".into()]);
        for pause in [&["--kind", "early"][..], &["nowhere", "--kind", "early"]] {
            assert_eq!(tenure(db, &[&["queue", "resume"], pause].concat()).code, 0);
        }
        let id = tenure(db, &["enqueue", "k", "1", "--queue", "mail"]).out.trim().to_owned();
        let pause = ["queue", "pause", "mail", "--kind", "k", "--reason", "bad deploy", "--by", "me"];
        assert_eq!(tenure(db, &pause).out, "k in mail paused\n");
        assert_eq!(tenure(db, &pause).out, "k in mail was paused already\n");
        assert_eq!(tenure(db, &["queue", "pause", "--kind", "k", "--by", "me"]).out, "k in every queue paused\n");
        for verb in [&["queue", "list"][..], &["status"]] {
            let shown = tenure(db, verb).out;
            assert!(shown.contains("every queue") && shown.contains("by me: bad deploy"), "{verb:?}: {shown}");
        }
        assert_eq!(json(db, &["queue", "list", "--json"])["paused_kinds"].as_array().map(Vec::len), Some(2));
        assert_eq!(json(db, &["status", "--json"])["paused_kinds"][0]["queue"], Value::Null);
        let shown = tenure(db, &["job", "show", &id]).out;
        assert!(shown.contains("waits because    the kind k is paused since "), "{shown}");
        assert_eq!(json(db, &["job", "show", &id, "--json"])["waits_for"]["reason"], "kind_paused");

        let end = tenure(db, &["queue", "resume", "--kind", "k"]);
        assert_eq!(end.out, "k in every queue resumed\n");
        assert!(end.said.contains("k is still paused in the queue mail"), "{}", end.said);
        assert_eq!(json(db, &["queue", "resume", "mail", "--kind", "k", "--json"])["changed"], true);
        assert_eq!(tenure(db, &["queue", "resume", "mail", "--kind", "k"]).out, "k in mail was not paused\n");

        let end = tenure(db, &["queue", "drain", "mail", "--wait", "--timeout", "10s"]);
        assert_eq!((end.code, end.out.as_str()), (0, "mail drained: paused, and nothing of it runs\n"));
        assert_eq!(json(db, &["job", "show", &id, "--json"])["waits_for"]["reason"], "queue_paused");
        assert_eq!(tenure(db, &["worker", "drain", "77"]).code, 3);
    })
    .await;
}

/// Lets the ends of all jobs lie back so far.
async fn age(db: &TestDatabase, days: i32) {
    let back = format!("interval '{days} days'");
    let sql = format!(
        "update tenure.job set created_at = created_at - {back};
         update tenure.outcome set started_at = started_at - {back}, finished_at = finished_at - {back};
         update tenure.dead_letter set died_at = died_at - {back}"
    );
    db.sql().await.batch_execute(&sql).await.expect("aged");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_queue_keeps_is_set_shown_and_taken_back() {
    with_database(async |db| {
        let day: u64 = 86_400_000;
        let set = json(db, &["queue", "set", "mail", "--keep-completed", "1d", "--keep-dead", "forever", "--json"]);
        assert_eq!((set["keep_completed_ms"].as_u64(), set["keep_cancelled_ms"].as_u64()), (Some(day), Some(7 * day)));
        let every = tenure(db, &["queue", "set", "--every", "--keep-cancelled", "12h"]);
        assert!(every.out.contains("7d, cancelled ones for 12h, dead letters for 90d"), "{every:?}");
        let list = tenure(db, &["queue", "list"]);
        assert!(list.out.contains("KEEPS") && list.out.contains("1d/12h/forever"), "{}", list.out);
        let queue = &json(db, &["queue", "list", "--json"])["queues"][0];
        assert_eq!((queue["keep_cancelled_ms"].as_u64(), queue["keep_own"].as_bool()), (Some(day / 2), Some(true)));
        let back = ["queue", "set", "mail", "--keep-completed", "default", "--keep-dead", "default", "--json"];
        assert_eq!(json(db, &back)["keep_completed_ms"].as_u64(), Some(7 * day));
        assert_eq!(json(db, &["queue", "list", "--json"])["queues"][0]["keep_own"].as_bool(), Some(false));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_due_is_counted_first_and_then_removed() {
    with_database(async |db| {
        for _ in 0..3 {
            let id = tenure(db, &["enqueue", "k", "1"]).out.trim().to_owned();
            assert_eq!(tenure(db, &["job", "cancel", &id]).code, 0);
        }
        assert!(tenure(db, &["prune", "--dry-run"]).said.contains("nothing is due"));
        age(db, 8).await;
        let due = json(db, &["prune", "--dry-run", "--json"]);
        assert_eq!(due, serde_json::json!([{ "queue": "default", "outcome": "cancelled", "jobs": 3 }]));
        assert_eq!(stored(db).await, 3);
        let waits = tenure(db, &["enqueue", "k", "1"]).out.trim().to_owned();
        assert_eq!(json(db, &["prune", "--json"])["removed"].as_u64(), Some(3));
        assert_eq!(stored(db).await, 1);
        assert_eq!(tenure(db, &["job", "show", &waits]).code, 0);
        assert!(tenure(db, &["prune"]).out.starts_with("removed 0 jobs"));
    })
    .await;
}
