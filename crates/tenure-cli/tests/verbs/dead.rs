//! Dead letters: dealt with one by one, and shown by cause.

use tenure::testing::with_database;

use super::{json, tenure};

#[tokio::test(flavor = "multi_thread")]
async fn of_dead_letters_that_are_named_all_are_requeued_or_none() {
    with_database(async |db| {
        let ids: Vec<_> = (0..3).map(|_| tenure(db, &["enqueue", "k", "1"]).out.trim().to_owned()).collect();
        let client = db.client().await;
        let mut worker = tenure::Worker::builder(db.url())
            .queue("default", 1)
            .handle_raw("k", tenure::KindOptions::new(), |_, _| async { Err(tenure::Fail::permanent("\u{1b}[2Jbad")) })
            .drain(true)
            .start()
            .await
            .expect("a worker");
        worker.join().await;
        let [first, second, third] = [&ids[0], &ids[1], &ids[2]];
        // The second was requeued by somebody else meanwhile.
        client.requeue(second.parse::<i64>().expect("an id").into(), None).await.expect("requeued");
        let end = tenure(db, &["dead", "requeue", first, second, third, "--json"]);
        assert!(end.code == 1 && end.out.is_empty() && end.said.contains(second.as_str()), "{end:?}");
        // One that is named twice is requeued once.
        let answer = json(db, &["dead", "requeue", first, third, first, "--json"]);
        let requeued: Vec<_> = answer.as_array().expect("an array").iter().map(|row| row["id"].to_string()).collect();
        assert_eq!(requeued, [first.clone(), third.clone()]);

        let shown = tenure(db, &["dead", "show", third]);
        assert!(shown.out.contains("message          \u{241b}[2Jbad"), "{}", shown.out);
        assert!(!shown.out.contains('\u{1b}') && !tenure(db, &["job", "show", third]).out.contains('\u{1b}'));
        let listed = tenure(db, &["dead", "list", "--requeued"]).out;
        assert!(listed.contains("[2Jbad") && !listed.contains('\u{1b}'), "{listed}");
        let end = tenure(db, &["dead", "list", "--cause", "eror"]);
        assert!(
            end.said.contains("\"eror\" is none of the causes") && end.said.contains("error, panic"),
            "{}",
            end.said
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_shown_by_cause_and_with_their_line() {
    with_database(async |db| {
        let client = db.client().await;
        client.enqueue_many("k", 0..4, tenure::JobOptions::new()).await.expect("enqueued");
        let die = async || {
            let mut worker = tenure::Worker::builder(db.url())
                .queue("default", 1)
                .handle_raw("k", tenure::KindOptions::new(), |ctx, _| async move {
                    Err(tenure::Fail::permanent(format!("no order {}", ctx.job_id())))
                })
                .drain(true)
                .start()
                .await
                .expect("a worker");
            worker.join().await;
        };
        die().await;
        let groups = json(db, &["dead", "list", "--group", "--json"]);
        assert_eq!((&groups[0]["count"], &groups[0]["message"]), (&4.into(), &"no order <n>".into()));
        let group = groups[0]["fingerprint"].as_str().expect("a name");
        let shown = tenure(db, &["dead", "list", "--group"]).out;
        assert!(shown.contains(group) && shown.contains("no order <n>"), "{shown}");
        assert_eq!(
            json(db, &["dead", "list", "--fingerprint", group, "--since", "1h", "--json"]).as_array().map(Vec::len),
            Some(4)
        );
        let moved = json(db, &["dead", "requeue", "--fingerprint", group, "--over", "1m", "--json"]);
        assert_eq!(moved.as_array().map(Vec::len), Some(4));
        db.sql().await.execute("update tenure.later set due_at = clock_timestamp()", &[]).await.expect("due");
        db.sql().await.query("select tenure.promote()", &[]).await.expect("moved");
        die().await;
        let again = moved[0]["new_id"].to_string();
        let line = &json(db, &["dead", "show", &again, "--json"])["line"];
        assert_eq!((&line[0]["id"], &line[0]["status"]), (&moved[0]["id"], &"dead".into()));
        let shown = tenure(db, &["dead", "show", &again]).out;
        assert!(shown.contains("LINE") && shown.contains(&moved[0]["id"].to_string()), "{shown}");
    })
    .await;
}
