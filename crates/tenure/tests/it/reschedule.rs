//! One-shot instants: on time, moved, and run now.

use std::time::{Duration, Instant};

use tenure::lifecycle::State;
use tenure::testing::{until, with_database};
use tenure::{Context, Enqueue, ErrorCode, Fail, JobId, KindOptions, Moved, RawJson, Worker};
use tenure_scenarios::protocol::Registration;
use tenure_scenarios::{Act, Size, on_stage};

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_becomes_due_soon_starts_on_time_although_nobody_polls() {
    with_database(async |db| {
        let client = db.client().await;
        let handler = |_: Context, _: RawJson| async { Ok::<_, Fail>(None) };
        // With its polls alone it would look after 20 s again.
        let worker = Worker::builder(db.url()).queue("default", 4).handle_raw("k", KindOptions::new(), handler);
        let _worker = worker.poll(Duration::from_secs(20)).start().await.unwrap();
        let sleeping = "select count(*) from tenure.sleeper";
        let sql = db.sql().await;
        until("the worker sleeps", async || sql.query_one(sleeping, &[]).await.unwrap().get::<_, i64>(0) > 0).await;
        let begin = Instant::now();
        let delay = Duration::from_millis(700);
        let later = client.enqueue(Enqueue::raw("k", RawJson::null()).delay(HOUR)).await.unwrap();
        let soon = client.enqueue(Enqueue::raw("k", RawJson::null()).delay(delay)).await.unwrap();
        client.reschedule(later, Moved::By(delay)).await.unwrap();
        for id in [soon, later] {
            client.wait(id, Duration::from_secs(15)).await.unwrap();
        }
        assert!(begin.elapsed() >= delay);
        let late = "select max(extract(epoch from o.started_at - j.created_at))::float8 from tenure.outcome o join tenure.job j on j.id = o.job_id";
        let late: f64 = sql.query_one(late, &[]).await.unwrap().get(0);
        assert!((0.7..5.0).contains(&late), "it started {late} s after it was enqueued");
    })
    .await;
}

#[tokio::test]
async fn a_waiting_job_is_moved_and_keeps_its_attempts() {
    on_stage(Size::Ci, async |stage| {
        let client = stage.db.client().await;
        let ids = stage.enqueue_many(&Act::Sleep { ms: 0 }, 3).await;
        let (first, second) = (JobId::from(ids[0]), JobId::from(ids[1]));
        assert_eq!(client.reschedule(first, Moved::By(HOUR)).await.unwrap(), State::Scheduled);
        let at = client.now().await.unwrap() + 2 * HOUR;
        assert_eq!(client.reschedule(first, Moved::To(at)).await.unwrap(), State::Scheduled);
        let seen = client.get(first).await.unwrap().unwrap();
        assert!(seen.run_at.duration_since(at).unwrap_or_default() < Duration::from_millis(1), "{seen:?}");
        // The others of its bundle stay, and a failed one keeps what it has used.
        let mut hand = stage.hand(&Registration::default()).await;
        let (jobs, _) = hand.claim(10).await.unwrap();
        assert_eq!(jobs.iter().map(|job| job.job).collect::<Vec<_>>(), ids[1..]);
        hand.fail(&jobs[0], "retry", Some(3_600_000)).await.unwrap();
        assert_eq!(client.reschedule(second, Moved::By(2 * HOUR)).await.unwrap(), State::Retrying);
        assert_eq!(client.run_now(second).await.unwrap(), State::Available);
        assert_eq!(client.run_now(second).await.unwrap(), State::Available);
        assert_eq!(client.reschedule(second, Moved::By(HOUR)).await.unwrap(), State::Retrying);
        assert_eq!(client.run_now(second).await.unwrap(), State::Available);
        let (again, _) = hand.claim(10).await.unwrap();
        assert_eq!((again.len(), again[0].job, again[0].attempt), (1, ids[1], 2));
        assert_eq!(client.run_now(first).await.unwrap(), State::Available);
        // What runs and what has ended does not wait for a time.
        let running = client.run_now(second).await.unwrap_err();
        assert!(running.code() == ErrorCode::Refused && running.to_string().contains("is running"), "{running}");
        hand.complete(&again).await.unwrap();
        let ended = client.reschedule(second, Moved::By(HOUR)).await.unwrap_err();
        assert!(ended.to_string().contains("is completed") && ended.to_string().contains("requeue"), "{ended}");
        assert_eq!(client.run_now(JobId::from(999_999_999)).await.unwrap_err().code(), ErrorCode::NotFound);
        let far = client.reschedule(first, Moved::By(Duration::from_secs(400_000_000))).await.unwrap_err();
        assert_eq!(far.code(), ErrorCode::BadInput);
    })
    .await;
}

#[tokio::test]
async fn the_head_of_an_order_that_waits_for_its_retry_is_moved_and_keeps_its_place() {
    on_stage(Size::Ci, async |stage| {
        let client = stage.db.client().await;
        let ordered = || Enqueue::raw("act", RawJson::null()).order("o");
        let first = client.enqueue(ordered()).await.unwrap();
        let second = client.enqueue(ordered()).await.unwrap();
        let mut hand = stage.hand(&Registration::default()).await;
        let mut claim = async |expected: &[i64]| {
            hand.rewind();
            let (jobs, _) = hand.claim(10).await.unwrap();
            assert_eq!(jobs.iter().map(|job| job.job).collect::<Vec<_>>(), expected);
            for job in &jobs {
                hand.fail(job, "retry", Some(3_600_000)).await.unwrap();
            }
        };
        claim(&[first.get()]).await;
        claim(&[]).await;
        assert_eq!(client.run_now(first).await.unwrap(), State::Available);
        claim(&[first.get()]).await;
        assert_eq!(client.reschedule(first, Moved::By(2 * HOUR)).await.unwrap(), State::Retrying);
        claim(&[]).await;
        assert_eq!(client.run_now(first).await.unwrap(), State::Available);
        // It waits no longer for a time, and the other never did.
        for id in [first, second] {
            let held = client.run_now(id).await.unwrap_err();
            assert!(held.code() == ErrorCode::Refused && held.to_string().contains("is held"), "{held}");
        }
        claim(&[first.get()]).await;
    })
    .await;
}
