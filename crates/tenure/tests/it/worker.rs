//! The worker in this process: how handlers end, what is claimed, and what a lost connection leaves.

mod claims;
mod life;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tenure::lifecycle::State;
use tenure::testing::{Gate, TestDatabase, until, with_database};
use tenure::{
    Client, Context, Enqueue, Fail, Job, JobId, JobInfo, KindOptions, RawJson, RetryPolicy, StopReason, Worker,
    WorkerBuilder,
};

const SECOND: Duration = Duration::from_secs(1);

#[derive(Debug, Serialize, Deserialize)]
struct Step {
    n: u32,
}

impl Job for Step {
    const KIND: &'static str = "step";
}

fn worker(db: &TestDatabase) -> WorkerBuilder {
    Worker::builder(db.url()).queue("default", 4).shutdown_grace(2 * SECOND)
}

fn step(n: u32) -> Enqueue {
    Enqueue::new(&Step { n }).unwrap()
}

async fn enqueue(client: &Client, count: u32) -> Vec<JobId> {
    let mut ids = Vec::new();
    for n in 0..count {
        ids.push(client.enqueue(step(n)).await.unwrap());
    }
    ids
}

async fn job(client: &Client, id: JobId) -> JobInfo {
    client.get(id).await.unwrap().expect("it was enqueued")
}

async fn until_status(client: &Client, id: JobId, status: State) {
    until("the job's status", async || {
        let seen = job(client, id).await.status;
        if seen == status { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
}

/// Runs what is there with this handler until nothing is left.
async fn drain<F, Fut, R>(db: &TestDatabase, options: KindOptions, handler: F) -> tenure::Summary
where
    F: Fn(Context, Step) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R, Fail>> + Send + 'static,
    R: Serialize,
{
    let mut worker = worker(db).handle_with(options, handler).drain(true).start().await.unwrap();
    tokio::time::timeout(30 * SECOND, worker.join()).await.expect("drained")
}

#[tokio::test]
async fn a_panic_is_a_failed_attempt_and_the_slot_returns() {
    with_database(async |db| {
        let client = db.client().await;
        let mut panicking = Vec::new();
        for n in 0..12 {
            panicking.push(client.enqueue(step(n).max_attempts(1)).await.unwrap());
        }
        let good = enqueue(&client, 12).await;
        let summary = drain(db, KindOptions::new(), |ctx: Context, job: Step| async move {
            match (ctx.max_attempts(), job.n % 4) {
                (1, 0) => panic!("plain"),
                (1, 1) => panic!("formatted {}", job.n),
                (1, 2) => std::panic::panic_any(7),
                (1, _) => tokio::task::spawn_blocking(|| panic!("on another thread")).await.unwrap(),
                _ => Ok(()),
            }
        })
        .await;
        assert_eq!((summary.stats.panics, summary.stats.dead, summary.stats.completed), (12, 12, 12));
        for id in panicking {
            let errors = client.attempt_errors(id).await.unwrap();
            assert_eq!(errors[0].cause, "panic");
            assert!(errors[0].message.starts_with("panic: "), "{}", errors[0].message);
        }
        assert_eq!(job(&client, good[0]).await.status, State::Completed);
    })
    .await;
}

#[tokio::test]
async fn a_handler_is_aborted_at_its_timeout() {
    with_database(async |db| {
        let client = db.client().await;
        let id = client.enqueue(step(0).timeout(SECOND / 10).max_attempts(1)).await.unwrap();
        let summary = drain(db, KindOptions::new(), |_: Context, _: Step| async move {
            std::future::pending::<()>().await;
            Ok(())
        })
        .await;
        assert_eq!((summary.stats.timeouts, summary.stats.dead), (1, 1));
        assert_eq!(client.attempt_errors(id).await.unwrap()[0].cause, "timeout");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocking_handler_keeps_its_slot_past_its_timeout_and_its_late_end_is_a_timeout() {
    with_database(async |db| {
        let client = db.client().await;
        let id = client.enqueue(step(0).timeout(SECOND / 10).max_attempts(1)).await.unwrap();
        let summary = drain(db, KindOptions::new(), |_: Context, _: Step| async move {
            std::thread::sleep(SECOND * 5 / 2);
            Ok("done after all")
        })
        .await;
        let stats = summary.stats;
        assert_eq!((stats.started, stats.overruns, stats.timeouts, stats.late_ends), (1, 1, 1, 1));
        assert_eq!((stats.completed, stats.dead), (0, 1));
        let ended = &client.attempt_errors(id).await.unwrap()[0];
        assert_eq!(ended.cause, "timeout");
        assert!(ended.message.contains("past its timeout of 100ms: refused"), "{}", ended.message);
    })
    .await;
}

#[tokio::test]
async fn a_cancelled_handler_is_told_why_and_the_job_ends_cancelled() {
    with_database(async |db| {
        let client = db.client().await;
        let (polite, rude) = (client.enqueue(step(0)).await.unwrap(), client.enqueue(step(1)).await.unwrap());
        let gate = Arc::new(Gate::new());
        let at = gate.clone();
        let options = KindOptions::new().stop_grace(SECOND / 10);
        let worker = worker(db)
            .handle_with(options, move |ctx: Context, job: Step| {
                let at = at.clone();
                async move {
                    at.open();
                    at.pass().await;
                    if job.n == 1 {
                        std::future::pending::<()>().await;
                    }
                    assert_eq!(ctx.cancelled().await, StopReason::Cancelled);
                    Err::<(), _>(Fail::retry("stopped"))
                }
            })
            .start()
            .await
            .unwrap();
        gate.arrived(2).await;
        for id in [polite, rude] {
            client.cancel(id).await.unwrap();
        }
        for id in [polite, rude] {
            until_status(&client, id, State::Cancelled).await;
        }
        assert_eq!(worker.stats().cancelled, 2);
    })
    .await;
}

#[tokio::test]
async fn completing_in_the_handlers_transaction_commits_all_or_nothing() {
    with_database(async |db| {
        let client = db.client().await;
        let sql = db.sql().await;
        sql.batch_execute("create table effect (n int)").await.unwrap();
        let committed = client.enqueue(step(0)).await.unwrap();
        let rolled_back = client.enqueue(step(1).max_attempts(1)).await.unwrap();
        let url = db.url().to_owned();
        let summary = drain(db, KindOptions::new(), move |ctx: Context, job: Step| {
            let url = url.clone();
            async move {
                let (mut own, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
                tokio::spawn(connection);
                let mut tx = own.transaction().await?;
                tx.execute("insert into effect values ($1)", &[&i32::try_from(job.n).unwrap()]).await?;
                ctx.complete_in(&mut tx, &json!({ "n": job.n })).await?;
                if job.n == 0 {
                    tx.commit().await?;
                } else {
                    tx.rollback().await?;
                }
                Ok(())
            }
        })
        .await;
        assert_eq!((summary.stats.completed, summary.stats.dead), (1, 1));
        assert_eq!(job(&client, committed).await.result.unwrap().get(), r#"{"n":0}"#);
        assert_eq!(job(&client, rolled_back).await.status, State::Dead);
        let effects: i64 = sql.query_one("select count(*) from effect", &[]).await.unwrap().get(0);
        assert_eq!(effects, 1);
    })
    .await;
}

#[tokio::test]
async fn a_result_that_cannot_be_stored_does_not_undo_the_work() {
    with_database(async |db| {
        let client = db.client().await;
        let ids = enqueue(&client, 3).await;
        let summary = drain(db, KindOptions::new(), |_: Context, job: Step| async move {
            Ok(match job.n {
                0 => json!({ "text": "a\0b" }),
                1 => json!("x".repeat(2_000_000)),
                _ => json!({ "n": 18446744073709551615_u64 }),
            })
        })
        .await;
        assert_eq!(summary.stats.completed, 3);
        let mut results = Vec::new();
        for id in ids {
            results.push(job(&client, id).await.result.expect("stored").decode::<Value>().unwrap());
        }
        assert_eq!(results[0]["value"], json!({ "text": "a\u{fffd}b" }));
        assert!(results[1]["sanitised"].as_str().unwrap().contains("more than"));
        assert_eq!(results[2], json!({ "n": 18446744073709551615_u64 }));
    })
    .await;
}

#[tokio::test]
async fn what_a_worker_cannot_run_stays_unharmed() {
    with_database(async |db| {
        let client = db.client().await;
        let unknown = client.enqueue(Enqueue::raw("nobody", RawJson::null())).await.unwrap();
        let refused = client.enqueue(Enqueue::raw("broken", RawJson::null())).await.unwrap();
        let mut worker = worker(db)
            .handle_raw("broken", KindOptions::new(), |ctx: Context, _| async move {
                ctx.refuse_kind("its program is missing");
                Err(Fail::retry("not recorded"))
            })
            .start()
            .await
            .unwrap();
        let summary = worker.join().await;
        assert_eq!(summary.refused_kinds, ["broken"]);
        for id in [unknown, refused] {
            let seen = job(&client, id).await;
            assert_eq!((seen.status, seen.attempt, seen.last_error), (State::Available, 0, None));
        }
    })
    .await;
}

#[tokio::test]
async fn a_job_is_tried_again_at_the_very_instant_that_its_handler_names() {
    with_database(async |db| {
        let client = db.client().await;
        let at = SystemTime::UNIX_EPOCH + Duration::from_micros(1_893_456_000_123_457);
        let id = client.enqueue(step(0)).await.unwrap();
        let handler = move |_: Context, _: Step| async move { Err::<(), _>(Fail::retry("not yet").at(at)) };
        assert_eq!(drain(db, KindOptions::new(), handler).await.stats.failed, 1);
        assert_eq!(job(&client, id).await.run_at, at);

        // An HTTP date: not before it, and up to a quarter of the time until then after it.
        let busy =
            |_: Context, _: Step| async { tenure::classify::http_status(503, Some("Tue, 01 Jan 2030 00:00:00 GMT")) };
        let id = client.enqueue(step(1)).await.unwrap();
        assert_eq!(drain(db, KindOptions::new(), busy).await.stats.failed, 1);
        let (at, now) = (SystemTime::UNIX_EPOCH + Duration::from_secs(1_893_456_000), client.now().await.unwrap());
        let late = job(&client, id).await.run_at.duration_since(at).expect("not early");
        let wait = at.duration_since(now).expect("this test is of another time");
        assert!(late <= wait / 4 + SECOND && late > Duration::ZERO, "{late:?} after the instant, {wait:?} from now");
    })
    .await;
}

#[tokio::test]
async fn a_kinds_own_retry_policy_decides_the_delay() {
    with_database(async |db| {
        let client = db.client().await;
        let id = client.enqueue(step(0)).await.unwrap();
        let options = KindOptions::new().retry(RetryPolicy::fixed(500 * SECOND));
        let summary =
            drain(db, options, |_: Context, _: Step| async move { Err::<(), _>(Fail::retry("not yet")) }).await;
        assert_eq!(summary.stats.failed, 1);
        let seen = job(&client, id).await;
        let delay = seen.run_at.duration_since(SystemTime::now()).unwrap();
        assert!(delay > 490 * SECOND && delay < 630 * SECOND, "{delay:?}");
    })
    .await;
}
