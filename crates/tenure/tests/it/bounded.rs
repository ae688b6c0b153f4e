//! Queues that take only so many jobs, with several transactions at once: the bound stays exact, and nobody keeps others waiting who only waits himself.

use std::time::Duration;

use tenure::testing::{until, until_within};
use tenure::{Client, Enqueue, ErrorCode, QueueBound, RawJson, WhenFull};
use tenure_scenarios::{Size, Stage, on_stage};
use tokio::time::timeout;

/// Long enough for a machine that is busy, and shorter than any wait that is set here.
const SOON: Duration = Duration::from_secs(20);
const WAIT: WhenFull = WhenFull::Wait(Duration::from_secs(120));

fn job() -> Enqueue {
    Enqueue::raw("act", RawJson::parse("1").unwrap())
}

/// Sessions of this database that wait so.
async fn waiting(stage: &Stage, how: &str) -> bool {
    let text = format!("select count(*) from pg_stat_activity where datname = current_database() and {how}");
    stage.count(&text, &[]).await > 0
}

const FOR_A_LOCK: &str = "wait_event_type = 'Lock'";
const FOR_ROOM: &str = "wait_event = 'PgSleep'";

async fn cancel_all(stage: &Stage) {
    let text = "select count(tenure.cancel(id)) from tenure.jobs where status in ('available', 'held')";
    stage.count(text, &[]).await;
}

/// How many are taken until one is refused.
async fn fill(client: &Client) -> usize {
    let mut taken = 0;
    loop {
        match client.enqueue(job()).await {
            Ok(_) => taken += 1,
            Err(refused) => {
                assert_eq!(refused.code(), ErrorCode::Full, "{refused}");
                return taken;
            }
        }
    }
}

#[tokio::test]
async fn what_was_requeued_counts_and_leaves_the_bound_as_it_was() {
    on_stage(Size::Ci, async |stage| {
        let client = stage.db.client().await;
        client.set_queue_bound("default", QueueBound::new(WhenFull::Reject).jobs(4)).await.unwrap();
        assert_eq!(fill(&client).await, 4);
        let again =
            "select count(tenure.requeue(id)) from tenure.jobs where status = 'cancelled' and replaced_by is null";
        for _ in 0..2 {
            cancel_all(stage).await;
            assert_eq!(stage.count(again, &[]).await, 4);
        }
        // Four live: none is taken, and as many as have ended are.
        assert_eq!(fill(&client).await, 0);
        cancel_all(stage).await;
        until("there is room again", async || client.enqueue(job()).await.is_ok()).await;
        assert_eq!(fill(&client).await, 3);
    })
    .await;
}

#[tokio::test]
async fn whoever_requeues_beside_producers_the_bound_holds() {
    on_stage(Size::Ci, async |stage| {
        let client = stage.db.client().await;
        client.enqueue_many("act", 0..10, tenure::JobOptions::new()).await.unwrap();
        cancel_all(stage).await;
        client.set_queue_bound("default", QueueBound::new(WhenFull::Reject).jobs(15)).await.unwrap();
        let mut producers = Vec::new();
        for _ in 0..4 {
            let client = stage.db.client().await;
            producers.push(tokio::spawn(async move { fill(&client).await }));
        }
        for id in stage.sql.query("select id from tenure.jobs where status = 'cancelled'", &[]).await.unwrap() {
            stage.count("select tenure.requeue($1)", &[&id.get::<_, i64>(0)]).await;
        }
        let mut taken = 0;
        for producer in producers {
            taken += producer.await.unwrap();
        }
        assert!((5..=15).contains(&taken), "{taken} beside 10 that did not ask");
        cancel_all(stage).await;
        until("there is room again", async || client.enqueue(job()).await.is_ok()).await;
        assert_eq!(fill(&client).await, 14);
    })
    .await;
}

#[tokio::test]
async fn many_producers_reach_the_bound_of_the_queue_and_those_of_its_keys() {
    on_stage(Size::Ci, async |stage| {
        let client = stage.db.client().await;
        client.set_queue_bound("default", QueueBound::new(WhenFull::Reject).jobs(29).key_jobs(10)).await.unwrap();
        let mut producers = Vec::new();
        for n in 0..8 {
            let client = stage.db.client().await;
            producers.push(tokio::spawn(async move {
                let mut taken = 0;
                for i in 0..15 {
                    taken += usize::from(client.enqueue(job().fair(format!("key {}", (n + i) % 3), 1)).await.is_ok());
                }
                taken
            }));
        }
        let mut taken = 0;
        for producer in producers {
            taken += producer.await.unwrap();
        }
        assert_eq!(taken, 29);
        let keys = "select max(n) from (select count(*) as n from tenure.job group by limits ->> 'fair') x";
        assert_eq!(stage.count(keys, &[]).await, 10);
    })
    .await;
}

#[tokio::test]
async fn who_waits_for_room_of_his_key_keeps_no_other_waiting_and_hears_of_a_raised_bound() {
    on_stage(Size::Ci, async |stage| {
        let client = stage.db.client().await;
        client.set_queue_bound("default", QueueBound::new(WAIT).jobs(100).key_jobs(1)).await.unwrap();
        client.enqueue(job().fair("a", 1)).await.unwrap();
        let other = stage.db.client().await;
        let waits = tokio::spawn(async move { other.enqueue(job().fair("a", 1)).await });
        until_within(SOON, "it waits for room", async || waiting(stage, FOR_ROOM).await).await;
        timeout(SOON, client.enqueue(job().fair("b", 1))).await.expect("b does not wait").unwrap();
        assert!(!waits.is_finished());
        timeout(SOON, client.set_queue_bound("default", QueueBound::new(WAIT).jobs(100).key_jobs(2)))
            .await
            .expect("the bound is raised")
            .unwrap();
        timeout(SOON, waits).await.expect("it has room").unwrap().unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_queue_that_was_found_full_is_not_counted_for_each_that_is_refused() {
    const JOBS: i64 = 1_000;
    on_stage(Size::Ci, async |stage| {
        stage.count("select tenure.set_queue_bound('default', 1000)::int::bigint", &[]).await;
        let fill = "select count(tenure.enqueue('act', '1')) from generate_series(1, 1000)";
        assert_eq!(stage.count(fill, &[]).await, JOBS);
        let mut sql = stage.db.sql().await;
        let tx = sql.transaction().await.unwrap();
        let refused = "do $$ begin for n in 1 .. 20 loop \
                         begin perform tenure.enqueue('act', '1'); raise 'taken'; exception when sqlstate 'TN007' then null; end; \
                       end loop; end $$";
        tx.batch_execute(refused).await.unwrap();
        let read = "select idx_tup_fetch + seq_tup_read from pg_stat_xact_user_tables where relid = 'tenure.queue_member'::regclass";
        let read: i64 = tx.query_one(read, &[]).await.unwrap().get(0);
        assert!((JOBS..=JOBS * 6).contains(&read), "twenty that were refused read {read} of {JOBS}");
    })
    .await;
}

#[tokio::test]
async fn nothing_is_dropped_for_room_that_has_come_since_the_queue_was_found_full() {
    on_stage(Size::Ci, async |stage| {
        let client = stage.db.client().await;
        client.set_queue_bound("default", QueueBound::new(WhenFull::DropOldest).jobs(3)).await.unwrap();
        let mut jobs = Vec::new();
        for _ in 0..3 {
            jobs.push(client.enqueue(job()).await.unwrap().get());
        }
        assert_eq!(stage.count("select (tenure.cancel($1) = 'cancelled')::int::bigint", &[&jobs[0]]).await, 1);
        stage.execute("select tenure.note_found_full(n, '', '1 minute') from tenure.queue_bound", &[]).await;
        client.enqueue(job()).await.unwrap();
        assert_eq!(stage.status(jobs[1]).await, "available", "it was dropped");
        client.enqueue(job()).await.unwrap();
        assert_eq!(stage.status(jobs[1]).await, "cancelled");
    })
    .await;
}

#[tokio::test]
async fn the_oldest_that_somebody_holds_is_passed_over_and_not_waited_for() {
    on_stage(Size::Ci, async |stage| {
        let client = stage.db.client().await;
        client.set_queue_bound("default", QueueBound::new(WhenFull::DropOldest).jobs(2)).await.unwrap();
        let oldest = client.enqueue(job()).await.unwrap().get();
        let next = client.enqueue(job()).await.unwrap().get();
        let mut sql = stage.db.sql().await;
        let mut tx = sql.transaction().await.unwrap();
        tx.query_one("select tenure.cancel($1)", &[&oldest]).await.unwrap();
        // The other would wait for this transaction, and this one for the room that the other holds.
        client.enqueue(job()).await.unwrap();
        assert_eq!(stage.status(next).await, "cancelled");
        client.enqueue_in(&mut tx, job()).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(stage.status(oldest).await, "cancelled");
        assert_eq!(stage.statuses().await.get("available"), Some(&2));
    })
    .await;
}

#[tokio::test]
async fn rows_that_are_copied_ask_queue_by_queue_in_one_order() {
    on_stage(Size::Ci, async |stage| {
        let client = stage.db.client().await;
        let queues: Vec<String> = ('a'..='i').map(String::from).collect();
        for queue in &queues {
            client.set_queue_bound(queue, QueueBound::new(WAIT).jobs(100)).await.unwrap();
        }
        let mut sql = stage.db.sql().await;
        let mut first = sql.transaction().await.unwrap();
        client.enqueue_in(&mut first, job().queue("a")).await.unwrap();
        let other = stage.db.client().await;
        let rows: Vec<Enqueue> = queues.iter().rev().map(|queue| job().queue(queue)).collect();
        let copied = tokio::spawn(async move { other.enqueue_copy(rows).await.map(|ids| ids.len()) });
        until_within(SOON, "it waits for the queue a", async || waiting(stage, FOR_A_LOCK).await).await;
        // It has nothing that another could wait for.
        for queue in &queues[1..] {
            timeout(SOON, client.enqueue_in(&mut first, job().queue(queue))).await.expect("nobody waits").unwrap();
        }
        first.commit().await.unwrap();
        assert_eq!(timeout(SOON, copied).await.expect("it goes on").unwrap().unwrap(), 9);
    })
    .await;
}

#[tokio::test]
async fn a_bound_is_lifted_and_set_again_between_enqueues() {
    on_stage(Size::Ci, async |stage| {
        let client = stage.db.client().await;
        let bound = QueueBound::new(WhenFull::Reject).key_jobs(5);
        client.set_queue_bound("default", bound).await.unwrap();
        let mut sql = stage.db.sql().await;
        let mut tx = sql.transaction().await.unwrap();
        client.enqueue_in(&mut tx, job()).await.unwrap();
        let other = stage.db.client().await;
        let lifted = tokio::spawn(async move { other.remove_queue_bound("default").await });
        until_within(SOON, "it waits, or has done it", async || {
            lifted.is_finished() || waiting(stage, FOR_A_LOCK).await
        })
        .await;
        tx.commit().await.unwrap();
        assert!(lifted.await.unwrap().unwrap());
        assert!(client.set_queue_bound("default", bound).await.unwrap(), "nothing is left of the one before");
        assert_eq!(client.queue_bounds().await.unwrap()[0].counted, 1);
    })
    .await;
}
