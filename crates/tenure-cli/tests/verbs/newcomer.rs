//! What somebody sees who has read nothing but the README: counts that agree, names instead of numbers, slips that are named.

use serde_json::Value;
use tenure::testing::{TestDatabase, with_database};
use tenure::{Fail, JobOptions, KindOptions, Worker};

use super::{json, tenure, tenure_with};

/// Lets a worker of this name fail all jobs of the kind for good, and leave.
async fn bury_all(db: &TestDatabase, name: &str) {
    let mut worker = Worker::builder(db.url())
        .name(name)
        .queue("default", 1)
        .handle_raw("k", KindOptions::new(), |_, _| async { Err(Fail::permanent("bad")) })
        .drain(true)
        .start()
        .await
        .expect("a worker");
    worker.join().await;
}

fn length(list: &Value) -> usize {
    list.as_array().expect("a list").len()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_requeued_dead_letter_is_open_nowhere_and_seen_where_it_is_asked_for() {
    with_database(async |db| {
        let client = db.client().await;
        let ids = client.enqueue_many("k", 0..3, JobOptions::new()).await.expect("enqueued");
        bury_all(db, "clerk").await;
        let new = client.requeue(ids[0], None).await.expect("requeued");
        let dead = |more: &[&str]| length(&json(db, &[&["job", "list", "--status", "dead", "--json"], more].concat()));
        let letters = |more: &[&str]| length(&json(db, &[&["dead", "list", "--json"], more].concat()));
        let groups =
            |more: &[&str]| json(db, &[&["dead", "list", "--group", "--json"], more].concat())[0]["count"].clone();
        assert_eq!((dead(&[]), letters(&[]), groups(&[])), (2, 2, 2.into()));
        for verb in [&["queue", "list", "--json"][..], &["status", "--json"]] {
            assert_eq!(json(db, verb)["queues"][0]["dead"], 2, "{verb:?}");
        }
        let all = &["--requeued"][..];
        assert_eq!((dead(all), letters(all), groups(all)), (3, 3, 3.into()));
        assert!(tenure(db, &["job", "list"]).out.contains("dead, requeued"));
        let shown = tenure(db, &["dead", "list", "--requeued"]).out;
        assert!(shown.contains(&format!("requeued as {new}")), "{shown}");
        // What changes dead letters leaves it alone.
        let unasked = tenure(db, &["dead", "discard", "--all"]);
        assert!(unasked.code == 2 && unasked.said.contains("add --yes"), "{unasked:?}");
        assert_eq!((letters(&[]), letters(all)), (2, 3), "nothing is gone unasked");
        assert_eq!(length(&json(db, &["dead", "discard", "--all", "--yes", "--json"])), 2);
        assert_eq!((letters(&[]), letters(all)), (0, 1));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_listed_by_several_states_as_they_are_cancelled() {
    with_database(async |db| {
        for (kind, more) in
            [("k", &[][..]), ("k", &["--in", "1h"][..]), ("late", &["--in", "1h"][..]), ("gone", &[][..])]
        {
            assert_eq!(tenure(db, &[&["enqueue", kind, "1"], more].concat()).code, 0);
        }
        assert_eq!(tenure(db, &["job", "cancel", "--kind", "gone", "--yes"]).code, 0);
        let kinds = |args: &[&str]| -> Vec<String> {
            let jobs = json(db, &[&["job", "list", "--json"], args].concat());
            jobs.as_array().expect("a list").iter().map(|job| job["kind"].to_string()).collect()
        };
        let [k, late, gone] = ["\"k\"", "\"late\"", "\"gone\""];
        assert_eq!(kinds(&["--status", "scheduled,available"]), [late, k, k], "newest first, whatever their states");
        assert_eq!(kinds(&["--status", "available", "--status", "cancelled,cancelled"]), [gone, k]);
        assert_eq!(kinds(&["--status", "available,scheduled", "--limit", "1"]), [late]);
        assert_eq!(kinds(&["--status", "available,scheduled", "--kind", "k"]), [k, k]);
        assert_eq!(kinds(&["--status", "running,held"]), [""; 0]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_worker_of_a_finished_job_is_shown_by_its_name() {
    with_database(async |db| {
        let id = tenure(db, &["enqueue", "k", "1"]).out.trim().to_owned();
        bury_all(db, "clerk").await;
        assert_eq!(length(&json(db, &["worker", "list", "--json"])), 0, "it left");
        assert_eq!(json(db, &["job", "show", &id, "--json"])["worker"], "clerk");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_without_jobs_is_named_with_those_that_have_some() {
    with_database(async |db| {
        assert_eq!(tenure(db, &["enqueue", "k", "1", "--queue", "mail"]).code, 0);
        for verb in [
            &["queue", "resume"][..],
            &["queue", "pause"],
            &["queue", "resume"],
            &["queue", "drain"],
            &["queue", "set", "--keep-dead", "9d"],
        ] {
            let end = tenure(db, &[verb, &["mial"]].concat());
            assert_eq!(end.code, 0, "{verb:?}: {end:?}");
            let warned = end.said.contains("no job is in the queue \"mial\" now");
            assert!(warned && end.said.contains("queues with jobs: \"mail\""), "{verb:?}: {}", end.said);
            let end = tenure(db, &[verb, &["mail"]].concat());
            assert_eq!((end.code, end.said.as_str()), (0, ""), "{verb:?}");
        }
        // Where no queue has jobs there is no other name to be meant.
        assert_eq!(tenure(db, &["job", "cancel", "--queue", "mail", "--yes"]).code, 0);
        assert_eq!(tenure(db, &["queue", "resume", "mail"]).said, "");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_says_the_same_of_a_database_that_was_not_migrated() {
    with_database(async |db| {
        let commands = "status|enqueue k 1|enqueue --many - --kind k|job list|job list --status dead|job show 1|job cancel 1|job cancel --all --yes|\
                        queue list|queue pause q|queue pause --kind k|queue resume q|queue resume --kind k|queue drain q|\
                        queue set q --keep-dead 1d|queue set --every --keep-dead 1d|dead list|dead list --group|dead show 1|\
                        dead requeue 1|dead requeue --all|dead discard 1|dead discard --all|prune|prune --dry-run|\
                        worker list|worker drain 1|worker resume 1|work --exec k=cat --drain";
        let expected = format!(
            "tenure: the database {:?} has no schema \"nowhere\" of tenure\n        run `tenure migrate`, with the same database and --schema\n",
            db.name()
        );
        for command in commands.split('|') {
            let mut args: Vec<_> = command.split(' ').collect();
            args.extend(["--schema", "nowhere"]);
            let end = tenure_with(db, &args, "1\n2\n");
            assert_eq!((end.code, end.out.as_str(), end.said.as_str()), (1, "", expected.as_str()), "{command}");
        }
    })
    .await;
}
