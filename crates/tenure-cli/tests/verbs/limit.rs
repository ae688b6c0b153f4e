//! Limits and bounded queues: set, shown, lifted.

use tenure::testing::with_database;

use super::{json, tenure};

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_is_set_shown_and_lifted_and_says_why_a_job_waits() {
    with_database(async |db| {
        assert_eq!(tenure(db, &["limit", "list"]).said, "no limit is set\n");
        let set = ["limit", "set", "provider", "--rate", "60/min", "--burst", "5", "--key-concurrency", "0"];
        assert_eq!(tenure(db, &set).out, "provider is set\n");
        assert_eq!(tenure(db, &set).out, "provider was set so already\n");
        let shown = &json(db, &["limit", "list", "--json"])[0];
        assert_eq!((&shown["rate"], &shown["period_ms"], &shown["burst"]), (&60.into(), &60_000.into(), &5.into()));
        assert!(tenure(db, &["limit", "show", "provider"]).out.contains("60/60s"));
        let id = tenure(db, &["enqueue", "k", "1", "--under", "provider=acme", "--fair", "acme"]).out.trim().to_owned();
        assert_eq!(json(db, &["job", "show", &id, "--json"])["status"], "held");
        assert_eq!(tenure(db, &["limit", "remove", "provider"]).out, "provider is lifted\n");
        for verb in ["show", "remove"] {
            let end = tenure(db, &["limit", verb, "provider"]);
            assert!(end.code == 3 && end.said.contains("there is no limit \"provider\""), "{}", end.said);
        }
        let end = tenure(db, &["enqueue", "k", "1", "--under", "provider"]);
        assert!(end.code == 2 && end.said.contains("there is no limit \"provider\""), "{}", end.said);
        assert_eq!(tenure(db, &["limit", "set", "nothing"]).code, 2);
        assert_eq!(tenure(db, &["limit", "set", "p", "--rate", "often"]).code, 2);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_bounded_refuses_and_takes_what_comes_again() {
    with_database(async |db| {
        assert_eq!(tenure(db, &["queue", "bounds"]).said, "no queue is bounded\n");
        assert_eq!(tenure(db, &["queue", "bound", "mail"]).code, 2);
        assert_eq!(tenure(db, &["queue", "bound", "mail", "--jobs", "1"]).out, "mail is bounded\n");
        assert_eq!(tenure(db, &["queue", "bound", "mail", "--jobs", "1"]).out, "mail was bounded so already\n");
        assert_eq!(tenure(db, &["enqueue", "k", "1", "--queue", "mail"]).code, 0);
        let end = tenure(db, &["enqueue", "k", "1", "--queue", "mail"]);
        assert!(end.code == 1 && end.said.contains("the queue \"mail\" takes at most 1 jobs"), "{}", end.said);
        let bound = &json(db, &["queue", "bounds", "--json"])[0];
        assert_eq!(
            (&bound["when_full"], &bound["counted"], &bound["refused"]),
            (&"reject".into(), &1.into(), &1.into())
        );
        assert_eq!(tenure(db, &["queue", "bound", "mail", "--jobs", "1", "--when-full", "drop"]).code, 0);
        assert_eq!(tenure(db, &["enqueue", "k", "2", "--queue", "mail"]).code, 0);
        assert_eq!(json(db, &["queue", "bounds", "--json"])[0]["dropped"], 1);
        assert_eq!(tenure(db, &["queue", "unbound", "mail"]).out, "mail takes what comes\n");
        assert_eq!(tenure(db, &["queue", "unbound", "mail"]).code, 3);
    })
    .await;
}
