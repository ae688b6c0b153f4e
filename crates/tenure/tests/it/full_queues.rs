//! Schedules and backfills whose queue is bounded: they keep to the bound, and wait for nothing.

use std::time::{Duration, Instant};

use tenure_scenarios::protocol::Registration;
use tenure_scenarios::{Size, Stage, on_stage};

use crate::failing::{make_due, turn};

async fn bound(stage: &Stage, jobs: i32, policy: &str, wait_ms: Option<i32>) {
    let set = "select tenure.set_queue_bound('default', $1, null, $2, $3)";
    stage.one::<bool>(set, &[&jobs, &policy, &wait_ms]).await;
}

#[tokio::test]
async fn schedules_keep_to_the_bound_of_their_queue_wait_for_nothing_and_say_so() {
    on_stage(Size::Ci, async |stage| {
        let add = "select count(tenure.add_schedule('s' || n, '@every 1h', 'UTC', 'act', '{\"Sleep\":{\"ms\":0}}')) from generate_series(1, 50) n";
        stage.count(add, &[]).await;
        let counted = "select counted from tenure.queue_bounds()";
        let mut hand = stage.hand(&Registration::default()).await;
        for (policy, wait_ms, left) in [("reject", None, 40), ("wait", Some(600_000), 30)] {
            bound(stage, 10, policy, wait_ms).await;
            stage.execute("update tenure.schedule set suspect = false, error = null, error_at = null", &[]).await;
            make_due(stage).await;
            stage.execute("update tenure.schedule set look_at = look_at + interval '1 hour' where runs > 0", &[]).await;
            let start = Instant::now();
            assert_eq!(turn(stage).await["jobs"], 10, "{policy}");
            assert!(start.elapsed() < Duration::from_secs(30), "{policy}: it waited for room");
            assert_eq!(stage.count(counted, &[]).await, 10, "{policy}");
            let refused = "select count(*) from tenure.schedule where runs = 0 and error like '%is bounded, and full' and look_at < clock_timestamp() + interval '2 seconds'";
            assert_eq!(stage.count(refused, &[]).await, left, "{policy}: they say why, and come again soon");
            let (jobs, _) = hand.claim(100).await.unwrap();
            assert_eq!(jobs.len(), 10, "{policy}");
            hand.complete(&jobs).await.unwrap();
        }
        bound(stage, 2, "drop", None).await;
        make_due(stage).await;
        turn(stage).await;
        let jobs = "select string_agg(distinct status, ' ') || count(*) filter (where status = 'available') from tenure.jobs where status <> 'completed'";
        assert_eq!(stage.one::<String>(jobs, &[]).await, "available cancelled2", "the oldest that wait go");
        stage.db.check_invariants().await;
    })
    .await;
}

#[tokio::test]
async fn who_does_not_commit_an_enqueue_into_a_bounded_queue_is_not_waited_for_and_is_named_after_a_while() {
    on_stage(Size::Ci, async |stage| {
        stage.count("select tenure.add_schedule('s', '@every 1h', 'UTC', 'act', '{}')", &[]).await;
        bound(stage, 10, "wait", Some(600_000)).await;
        make_due(stage).await;
        let mut other = stage.db.sql().await;
        let tx = other.transaction().await.unwrap();
        tx.query("select tenure.enqueue('act', '{}')", &[]).await.unwrap();
        let start = Instant::now();
        turn(stage).await;
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
        let error = "select coalesce(error, 'none') from tenure.schedule";
        assert_eq!(stage.one::<String>(error, &[]).await, "none", "it may be over in a moment");
        let later = "update tenure.schedule set next_at = next_at - interval '10 seconds', look_at = clock_timestamp()";
        stage.execute(later, &[]).await;
        turn(stage).await;
        let error = stage.one::<String>(error, &[]).await;
        assert!(error.contains("\"default\" has not committed"), "{error}");
        tx.commit().await.unwrap();
        stage.execute("update tenure.schedule set look_at = clock_timestamp()", &[]).await;
        assert_eq!(turn(stage).await["jobs"], 1);
        let state = "select concat_ws(' ', runs, error is null) from tenure.schedule";
        assert_eq!(stage.one::<String>(state, &[]).await, "1 t");
    })
    .await;
}

#[tokio::test]
async fn a_backfill_has_as_many_jobs_as_its_queue_takes_and_says_why_it_does_not_go_on() {
    on_stage(Size::Ci, async |stage| {
        let add = "select tenure.add_schedule('s', '@hourly', 'UTC', 'act', '{\"Sleep\":{\"ms\":0}}')";
        stage.count(add, &[]).await;
        stage.execute("update tenure.schedule set look_at = 'infinity'", &[]).await;
        bound(stage, 3, "wait", Some(600_000)).await;
        stage.count("select count(tenure.enqueue('act', '{\"Sleep\":{\"ms\":0}}')) from generate_series(1, 3) n", &[]).await;
        let begin = "select tenure.add_backfill('s', array(select date_trunc('hour', clock_timestamp()) - n * interval '1 hour' from generate_series(1, 5) n), 10)";
        stage.count(begin, &[]).await;
        let look = async || {
            stage.execute("update tenure.schedule_backfill set look_at = clock_timestamp() where ended_at is null", &[]).await;
            let start = Instant::now();
            stage.one::<String>("select tenure.due_schedules(true)::text", &[]).await;
            assert!(start.elapsed() < Duration::from_secs(30), "it waited for room");
            let state = "select concat_ws(' ', b.state, b.done, b.open, b.error, x.look_at < clock_timestamp() + interval '2 seconds')
                from tenure.backfills b join tenure.schedule_backfill x on x.id = b.id";
            stage.one::<String>(state, &[]).await
        };
        let mut hand = stage.hand(&Registration::default()).await;
        assert_eq!(look().await, "failing 0 0 the queue \"default\" is bounded, and full t");
        for expected in ["active 3 3 t", "active 5 2 t"] {
            let (jobs, _) = hand.claim(10).await.unwrap();
            assert_eq!(jobs.len(), 3);
            hand.complete(&jobs).await.unwrap();
            assert_eq!(look().await, expected);
        }
        stage.db.check_invariants().await;
    })
    .await;
}
