//! Limits with many workers at once, with workers that die, and queues that take only so many jobs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tenure::testing::until_within;
use tenure::{Enqueue, ErrorCode, JobOptions, Limit, QueueBound, RawJson, Under, WhenFull};
use tenure_scenarios::protocol::Registration;
use tenure_scenarios::scenario::{limits, limits_chaos};
use tenure_scenarios::{Act, Size, Stage, assert_held, on_stage};

#[tokio::test]
async fn a_rate_is_used_up_and_never_exceeded_by_eight_workers_in_two_processes() {
    on_stage(Size::from_env(), async |stage| assert_held(&limits::rate(stage).await)).await;
}

#[tokio::test]
async fn a_rate_is_kept_by_a_limit_that_is_throttled_again_and_again() {
    on_stage(Size::from_env(), async |stage| assert_held(&limits::throttled(stage).await)).await;
}

#[tokio::test]
async fn small_tenants_do_not_wait_for_a_large_one() {
    on_stage(Size::from_env(), async |stage| assert_held(&limits::fairness(stage).await)).await;
}

#[tokio::test]
async fn shares_hold_whoever_claims() {
    on_stage(Size::from_env(), async |stage| assert_held(&limits::shares(stage).await)).await;
}

#[tokio::test]
async fn what_waits_behind_a_limit_delays_nothing_else() {
    on_stage(Size::from_env(), async |stage| assert_held(&limits::behind(stage).await)).await;
}

#[tokio::test]
async fn limits_that_hold_nothing_back_let_every_job_run() {
    on_stage(Size::from_env(), async |stage| assert_held(&limits::throughput(stage).await)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_limits_hold_while_workers_die_and_the_database_restarts() {
    assert_held(&limits_chaos::twenty_limits(Size::from_env()).await);
}

/// Eight sessions claim and complete as they like; each notes what it holds between the answer of a claim and its call to complete.
#[tokio::test]
async fn eight_workers_never_hold_more_than_the_limit_and_use_all_of_it() {
    const MOST: usize = 7;
    on_stage(Size::Ci, async |stage| {
        let client = stage.db.client().await;
        client.set_limit("gpu", Limit::new().concurrency(MOST as u32)).await.unwrap();
        let jobs = client.enqueue_many("act", 0..400, JobOptions::new().under("gpu")).await.unwrap().len();
        let (held, highest, ended) = <(Arc<AtomicUsize>, Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
        let mut sessions = Vec::new();
        for _ in 0..8 {
            let mut hand = stage.hand(&Registration::default()).await;
            let (held, highest, ended) = (held.clone(), highest.clone(), ended.clone());
            sessions.push(tokio::spawn(async move {
                while ended.load(Ordering::SeqCst) < jobs {
                    hand.rewind();
                    let (mine, _) = hand.claim(fastrand::i32(1..6)).await.unwrap();
                    let now = held.fetch_add(mine.len(), Ordering::SeqCst) + mine.len();
                    highest.fetch_max(now, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(fastrand::u64(30..60))).await; // sleep: it runs
                    held.fetch_sub(mine.len(), Ordering::SeqCst);
                    assert!(hand.complete(&mine).await.unwrap().is_empty(), "every end is accepted");
                    ended.fetch_add(mine.len(), Ordering::SeqCst);
                }
            }));
        }
        for session in sessions {
            session.await.unwrap();
        }
        assert_eq!(highest.load(Ordering::SeqCst), MOST, "all of it was used, and no more");
        assert_eq!(ended.load(Ordering::SeqCst), jobs);
    })
    .await;
}

/// S31: oban-bg/oban#424, rails/solid_queue#546 and #804.
#[tokio::test]
async fn the_place_of_a_killed_worker_is_free_within_twice_its_lease() {
    const LEASE: Duration = Duration::from_secs(3);
    on_stage(Size::Ci, async |stage| {
        stage.count("select tenure.set_limit('one', p_key_concurrency => 1)::int::bigint", &[]).await;
        let limits = r#"{"under": [{"limit": "one", "key": "k"}]}"#;
        let once = "select tenure.enqueue_limited('act', $1::text::json, $2::text::json, p_max_attempts => 1)";
        let long = Act::Stubborn { ms: 600_000 }.json();
        let first: i64 = stage.one(once, &[&long, &limits]).await;
        let mut holder = stage.start(stage.worker("holder").lease(LEASE)).await;
        stage.started(1, Duration::from_secs(20)).await;
        let second: i64 = stage.one(once, &[&Act::Sleep { ms: 1 }.json(), &limits]).await;
        until_within(Duration::from_secs(20), "it is known why it waits", async || {
            let why: String = stage.one("select explained from tenure.waits_for($1)", &[&second]).await;
            if why.contains("the limit one of the key k: 1 of 1 run") { Ok(()) } else { Err(why) }
        })
        .await;
        let other = stage.start(stage.worker("other").lease(LEASE)).await;
        stage.kill(&mut holder).await;
        let killed = Instant::now();
        until_within(Duration::from_secs(30), "the second has ended", async || {
            stage.status(second).await == "completed"
        })
        .await;
        assert!(killed.elapsed() <= 2 * LEASE, "it took {:?}", killed.elapsed());
        assert_eq!(stage.status(first).await, "dead");
        other.shut_down().await;
        assert_eq!(stage.count("select running from tenure.limits('one', 10) where key = 'k'", &[]).await, 0);
    })
    .await;
}

async fn counts(stage: &Stage) -> (i64, i64, i64) {
    let bounds = stage.db.client().await.queue_bounds().await.unwrap();
    (bounds[0].counted, bounds[0].refused, bounds[0].dropped)
}

fn job() -> Enqueue {
    Enqueue::raw("act", RawJson::parse("1").unwrap())
}

#[tokio::test]
async fn a_full_queue_refuses_by_every_way_until_a_job_has_ended_and_counts_what_it_refused() {
    on_stage(Size::Ci, async |stage| {
        let client = stage.db.client().await;
        let first = client.enqueue(job()).await.unwrap();
        assert!(client.set_queue_bound("default", QueueBound::new(WhenFull::Reject).jobs(3)).await.unwrap());
        assert!(!client.set_queue_bound("default", QueueBound::new(WhenFull::Reject).jobs(3)).await.unwrap());
        client.enqueue_many("act", [1, 2], JobOptions::new()).await.unwrap();
        let full = async |refused: Result<(), tenure::Error>| {
            let refused = refused.unwrap_err();
            assert_eq!(refused.code(), ErrorCode::Full, "{refused}");
            assert!(refused.to_string().contains("the queue \"default\" takes at most 3 jobs"), "{refused}");
        };
        full(client.enqueue(job()).await.map(drop)).await;
        full(client.enqueue_many("act", [1], JobOptions::new()).await.map(drop)).await;
        full(client.enqueue_copy([job()]).await.map(drop)).await;
        full(client.enqueue(job().fair("a", 1)).await.map(drop)).await;
        client.enqueue(job().queue("other")).await.unwrap();
        assert_eq!(counts(stage).await, (3, 4, 0));
        // What is rolled back takes no room, and what has ended leaves it.
        client.cancel(first).await.unwrap();
        let mut sql = stage.db.sql().await;
        // A queue that was found full is not counted again for a while.
        until_within(Duration::from_secs(20), "there is room", async || {
            let mut tx = sql.transaction().await.unwrap();
            let taken = client.enqueue_in(&mut tx, job()).await.is_ok();
            tx.rollback().await.unwrap();
            taken
        })
        .await;
        client.enqueue(job()).await.unwrap();
        full(client.enqueue(job()).await.map(drop)).await;
        assert!(client.remove_queue_bound("default").await.unwrap());
        client.enqueue(job()).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn an_enqueue_waits_for_room_and_the_oldest_makes_room() {
    on_stage(Size::Ci, async |stage| {
        let client = stage.db.client().await;
        let wait = |time| QueueBound::new(WhenFull::Wait(time)).jobs(1);
        client.set_queue_bound("default", wait(Duration::from_millis(100))).await.unwrap();
        let first = client.enqueue(job()).await.unwrap();
        let start = Instant::now();
        let refused = client.enqueue(job()).await.unwrap_err();
        assert!(refused.code() == ErrorCode::Full && start.elapsed() >= Duration::from_millis(100), "{refused}");
        client.set_queue_bound("default", wait(Duration::from_secs(20))).await.unwrap();
        let waiting = tokio::spawn({
            let client = client.clone();
            async move { client.enqueue(job()).await.unwrap() }
        });
        client.cancel(first).await.unwrap();
        let second = waiting.await.unwrap();
        client.set_queue_bound("default", QueueBound::new(WhenFull::DropOldest).jobs(1)).await.unwrap();
        let third = client.enqueue(job()).await.unwrap();
        assert_eq!(
            (stage.status(second.get()).await.as_str(), stage.status(third.get()).await.as_str()),
            ("cancelled", "available")
        );
        assert_eq!(counts(stage).await.2, 1);
        // One that runs cannot be dropped.
        let mut hand = stage.hand(&Registration::default()).await;
        hand.claim(1).await.unwrap();
        assert_eq!(client.enqueue(job()).await.unwrap_err().code(), ErrorCode::Full);
        assert_eq!(client.enqueue_many("act", [1, 2], JobOptions::new()).await.unwrap_err().code(), ErrorCode::Full);
    })
    .await;
}

#[tokio::test]
async fn a_changed_limit_holds_at_once_and_a_removed_one_bounds_nothing() {
    on_stage(Size::Ci, async |stage| {
        let client = stage.db.client().await;
        client.set_limit("gpu", Limit::new().concurrency(1)).await.unwrap();
        client.enqueue_many("act", 0..9, JobOptions::new().under(Under::limit("gpu").key("a"))).await.unwrap();
        let mut hand = stage.hand(&Registration::default()).await;
        let mut had = Vec::new();
        let mut more = async |expected: usize| {
            hand.rewind();
            let (jobs, _) = hand.claim(50).await.unwrap();
            assert_eq!(jobs.len(), expected);
            had.extend(jobs);
        };
        more(1).await;
        more(0).await;
        client.set_limit("gpu", Limit::new().concurrency(4).key_concurrency(3)).await.unwrap();
        more(2).await;
        client.set_limit("gpu", Limit::new().concurrency(5)).await.unwrap();
        more(2).await;
        client.set_limit("gpu", Limit::new().concurrency(2)).await.unwrap();
        more(0).await;
        client.remove_limit("gpu").await.unwrap();
        more(4).await;
    })
    .await;
}
