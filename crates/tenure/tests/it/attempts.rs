//! How attempts end: handlers that do not stop, what is kept of each end, policies that misbehave.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tenure::lifecycle::State;
use tenure::testing::{Gate, Probe, TestDatabase, until, until_within, with_database};
use tenure::{
    AttemptError, Client, Context, Enqueue, Fail, Job, JobId, JobInfo, KindOptions, RetryPolicy, RunningWorker,
    StopReason, Worker, WorkerBuilder,
};

const SECOND: Duration = Duration::from_secs(1);

#[derive(Debug, Serialize, Deserialize)]
struct Step {
    n: u32,
}

impl Job for Step {
    const KIND: &'static str = "step";
}

fn step(n: u32) -> Enqueue {
    Enqueue::new(&Step { n }).unwrap()
}

fn worker(db: &TestDatabase) -> WorkerBuilder {
    Worker::builder(db.url()).queue("default", 4).shutdown_grace(SECOND).lease(3 * SECOND)
}

fn at_once() -> KindOptions {
    KindOptions::new().retry(RetryPolicy::fixed(Duration::ZERO))
}

async fn job(client: &Client, id: JobId) -> JobInfo {
    client.get(id).await.unwrap().expect("it was enqueued")
}

async fn until_status(client: &Client, id: JobId, status: State) {
    until("the job's status", async || {
        let seen = job(client, id).await;
        if seen.status == status { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
}

async fn only_error(client: &Client, id: JobId) -> AttemptError {
    let mut errors = client.attempt_errors(id).await.unwrap();
    assert_eq!(errors.len(), 1, "{errors:?}");
    errors.remove(0)
}

fn details(error: &AttemptError) -> Value {
    error.details.as_ref().expect("details").decode().expect("JSON")
}

/// A handler whose first attempt blocks a thread at the gate; what the thread saw when it went on.
#[derive(Clone, Default)]
struct Stuck {
    gate: Arc<Gate>,
    runs: Probe,
    was_told: Arc<AtomicBool>,
}

impl Stuck {
    async fn run(self, ctx: Context, _: Step) -> Result<u16, Fail> {
        let attempt = ctx.attempt();
        if attempt > 1 {
            let _run = self.runs.enter(ctx.job_id().get(), attempt.into());
            return Ok(attempt);
        }
        let inner = ctx.clone();
        let runtime = tokio::runtime::Handle::current();
        let blocked = move || {
            let _run = self.runs.enter(inner.job_id().get(), inner.attempt().into());
            runtime.block_on(self.gate.pass());
            self.was_told.store(inner.stop_reason() == Some(StopReason::TimedOut), SeqCst);
        };
        ctx.spawn_blocking(blocked).await;
        Ok(attempt)
    }

    async fn start(&self, builder: WorkerBuilder, options: KindOptions) -> RunningWorker {
        let stuck = self.clone();
        builder.handle_with(options, move |ctx: Context, job: Step| stuck.clone().run(ctx, job)).start().await.unwrap()
    }

    fn overlaps(&self) -> bool {
        let runs = self.runs.runs();
        runs.windows(2).any(|pair| pair[0].ended.is_none_or(|end| end > pair[1].started))
    }
}

/// Two heartbeats and some maintenance of another worker: time in which something wrong would have happened.
async fn time_passes(db: &TestDatabase) {
    let sql = db.sql().await;
    let turns = "select next_at::text from tenure.duty where name = 'tick'";
    for _ in 0..4 {
        let before: String = sql.query_one(turns, &[]).await.unwrap().get(0);
        until("a maintenance turn", async || {
            let now: String = sql.query_one(turns, &[]).await.unwrap().get(0);
            now != before
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_thread_keeps_its_job_past_the_timeout_and_it_starts_nowhere_else() {
    with_database(async |db| {
        let client = db.client().await;
        let stuck = Stuck::default();
        let holder = stuck.start(worker(db).name("holder"), at_once()).await;
        let id = client.enqueue(step(0).timeout(SECOND / 5)).await.unwrap();
        stuck.gate.arrived(1).await;
        let other = stuck.start(worker(db).name("other"), at_once()).await;
        until("the overrun to be seen", async || job(&client, id).await.overrun).await;
        time_passes(db).await;
        let seen = job(&client, id).await;
        assert_eq!((seen.status, seen.attempt, seen.worker.as_deref()), (State::Running, 1, Some("holder")));
        let workers = client.workers().await.unwrap();
        assert_eq!(
            workers.iter().map(|w| (w.name.as_str(), w.overruns)).collect::<Vec<_>>(),
            [("holder", 1), ("other", 0)]
        );
        assert_eq!((holder.stats().overruns, holder.stats().timeouts, other.stats().started), (1, 0, 0));

        stuck.gate.open();
        until_status(&client, id, State::Completed).await;
        assert!(stuck.was_told.load(SeqCst), "the thread can see that its time is up");
        assert!(!stuck.overlaps(), "{:?}", stuck.runs.runs());
        let error = only_error(&client, id).await;
        assert_eq!(
            (error.attempt, error.cause.as_str(), details(&error)["timeout_ms"].clone()),
            (1, "timeout", json!(200))
        );
        assert!(details(&error)["ran_ms"].as_u64().unwrap() > 1000, "{error:?}");
        until("the overrun to be over", async || client.workers().await.unwrap().iter().all(|w| w.overruns == 0)).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kind_that_is_taken_over_is_tried_again_at_its_timeout_and_the_old_copy_is_refused() {
    with_database(async |db| {
        let client = db.client().await;
        let stuck = Stuck::default();
        let mut worker = stuck.start(worker(db), at_once().take_over(true)).await;
        let id = client.enqueue(step(0).timeout(SECOND / 5)).await.unwrap();
        stuck.gate.arrived(1).await;
        until_status(&client, id, State::Completed).await;
        assert_eq!(job(&client, id).await.result.unwrap().get(), "2");
        assert!(stuck.overlaps(), "the old copy still runs");
        until("the overrun to be counted", async || worker.stats().overruns == 1).await;
        assert_eq!(worker.stats().taken_over, 1);
        stuck.gate.open();
        worker.shutdown();
        let summary = worker.join().await;
        assert!(summary.clean, "{summary:?}");
        assert_eq!((summary.stats.completed, summary.stats.timeouts), (1, 1));
        assert_eq!(only_error(&client, id).await.cause, "timeout");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_handler_that_blocks_the_runtimes_thread_is_taken_over_too_and_cannot_complete_late() {
    with_database(async |db| {
        let client = db.client().await;
        let (gate, refused) = (Arc::new(Gate::new()), Arc::new(AtomicBool::new(false)));
        let (at, was_refused) = (gate.clone(), refused.clone());
        let url = db.url().to_owned();
        let worker = worker(db)
            .handle_with(at_once().take_over(true), move |ctx: Context, _: Step| {
                let (at, was_refused, url) = (at.clone(), was_refused.clone(), url.clone());
                async move {
                    if ctx.attempt() == 1 {
                        // Dropped at its next await otherwise: all of it happens within one poll.
                        tokio::task::block_in_place(|| {
                            tokio::runtime::Handle::current().block_on(async {
                                at.pass().await;
                                let (mut own, connection) =
                                    tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
                                tokio::spawn(connection);
                                let mut tx = own.transaction().await.unwrap();
                                let late = ctx.complete_in(&mut tx, &"late").await;
                                was_refused.store(late.is_err_and(|error| error.is_lease_lost()), SeqCst);
                            });
                        });
                    }
                    Ok(ctx.attempt())
                }
            })
            .start()
            .await
            .unwrap();
        let id = client.enqueue(step(0).timeout(SECOND / 5)).await.unwrap();
        gate.arrived(1).await;
        until_status(&client, id, State::Completed).await;
        gate.open();
        until("the late end", async || worker.stats().late_ends == 1).await;
        assert!(refused.load(SeqCst));
        let seen = job(&client, id).await;
        assert_eq!((seen.attempt, seen.result.unwrap().get()), (2, "2"));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_worker_keeps_a_blocked_job_until_its_thread_returns() {
    with_database(async |db| {
        let client = db.client().await;
        let stuck = Stuck::default();
        let mut stopped = stuck.start(worker(db).name("stopped"), at_once()).await;
        let id = client.enqueue(step(0)).await.unwrap();
        stuck.gate.arrived(1).await;
        stopped.shutdown();
        let summary = stopped.join().await;
        assert_eq!((summary.clean, summary.overrunning.as_slice()), (false, [id].as_slice()));
        let _other = Worker::builder(db.url())
            .name("other")
            .queue("default", 4)
            .handle(|ctx: Context, _: Step| async move { Ok(ctx.attempt()) })
            .start()
            .await
            .unwrap();
        // Longer than the grace of a lock, and than the lease.
        for _ in 0..2 {
            time_passes(db).await;
        }
        let seen = job(&client, id).await;
        assert_eq!((seen.status, seen.worker.as_deref(), seen.overrun), (State::Running, Some("stopped"), true));
        stuck.gate.open();
        until_status(&client, id, State::Completed).await;
        let seen = job(&client, id).await;
        assert_eq!((seen.attempt, seen.worker.as_deref()), (1, Some("other")), "given back without using an attempt");
        assert!(client.attempt_errors(id).await.unwrap().is_empty());
        until("the stopped worker signed off", async || client.workers().await.unwrap().len() == 1).await;
    })
    .await;
}

#[test]
fn blocking_code_that_has_not_begun_when_its_attempt_ends_never_begins() {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).max_blocking_threads(1).enable_all().build().unwrap();
    runtime.block_on(with_database(async |db| {
        let client = db.client().await;
        let began = Arc::new(AtomicBool::new(false));
        let flag = began.clone();
        let mut worker = worker(db)
            .handle(move |ctx: Context, job: Step| {
                let flag = flag.clone();
                async move {
                    if job.n > 0 {
                        ctx.spawn_blocking(move || flag.store(true, SeqCst)).await;
                    }
                    Ok(())
                }
            })
            .start()
            .await
            .unwrap();
        // All connections stand before the only thread for blocking code, which also looks up names, is taken.
        let first = client.enqueue(step(0)).await.unwrap();
        until_status(&client, first, State::Completed).await;
        let busy = Arc::new(Gate::new());
        let (at, handle) = (busy.clone(), tokio::runtime::Handle::current());
        let occupied = tokio::task::spawn_blocking(move || handle.block_on(at.pass()));
        busy.arrived(1).await;
        let id = client.enqueue(step(1).timeout(SECOND / 5).max_attempts(1)).await.unwrap();
        until_status(&client, id, State::Dead).await;
        busy.open();
        occupied.await.unwrap();
        tokio::task::spawn_blocking(|| ()).await.unwrap(); // After all that waited in front of it.
        assert!(!began.load(SeqCst));
        worker.abort();
        assert_eq!(worker.join().await.stats.overruns, 0);
    }));
}

#[tokio::test]
async fn a_panic_in_a_blocking_thread_is_recorded_with_its_message_and_place() {
    with_database(async |db| {
        let client = db.client().await;
        let id = client.enqueue(step(0).max_attempts(1)).await.unwrap();
        let mut worker = worker(db)
            .handle(|ctx: Context, _: Step| async move {
                ctx.spawn_blocking(|| panic!("over there")).await;
                Ok(())
            })
            .drain(true)
            .start()
            .await
            .unwrap();
        assert_eq!(worker.join().await.stats.panics, 1);
        let error = only_error(&client, id).await;
        assert_eq!((error.cause.as_str(), error.message.as_str()), ("panic", "panic: over there"));
        assert!(details(&error)["location"].as_str().unwrap().contains("attempts.rs:"), "{error:?}");
    })
    .await;
}

#[tokio::test]
async fn a_retry_policy_that_panics_costs_neither_its_job_nor_its_slot() {
    with_database(async |db| {
        let client = db.client().await;
        let mut ids = Vec::new();
        for n in 0..6 {
            ids.push(client.enqueue(step(n)).await.unwrap());
        }
        let mut worker = worker(db)
            .handle_with(
                KindOptions::new().retry(RetryPolicy::custom(|_| panic!("no idea"))),
                |_: Context, _: Step| async move { Err::<(), _>(Fail::retry("not yet")) },
            )
            .drain(true)
            .start()
            .await
            .unwrap();
        let summary = tokio::time::timeout(30 * SECOND, worker.join()).await.expect("drained");
        assert_eq!(summary.stats.failed, 6);
        for id in ids {
            assert_eq!(job(&client, id).await.status, State::Retrying);
        }
    })
    .await;
}

#[tokio::test]
async fn what_retry_after_says_is_waited_for_and_a_little_more() {
    with_database(async |db| {
        let client = db.client().await;
        let mut ids = Vec::new();
        for n in 0..20 {
            ids.push(client.enqueue(step(n)).await.unwrap());
        }
        let mut worker = worker(db)
            .handle(|_: Context, _: Step| async move { tenure::classify::http_status(429, Some("1000")) })
            .drain(true)
            .start()
            .await
            .unwrap();
        worker.join().await;
        let mut delays = Vec::new();
        for id in ids {
            let error = only_error(&client, id).await;
            let delay = job(&client, id).await.run_at.duration_since(error.failed_at).unwrap();
            assert!(delay >= 1000 * SECOND && delay <= 1251 * SECOND, "{delay:?}");
            delays.push(delay);
        }
        delays.sort_unstable();
        assert!(delays[19] - delays[0] > 20 * SECOND, "they were refused together and come back spread: {delays:?}");
    })
    .await;
}

/// Every end that a handler can have, and what is kept of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_every_end_the_cause_the_message_the_place_the_worker_and_the_time_are_kept() {
    with_database(async |db| {
        let client = db.client().await;
        let mut ids = Vec::new();
        for n in 0..6 {
            ids.push(client.enqueue(step(n).max_attempts(1)).await.unwrap());
        }
        let bad = client.enqueue(Enqueue::raw("step", tenure::RawJson::parse(r#"{"m":1}"#).unwrap())).await.unwrap();
        let mut worker = worker(db)
            .name("clerk")
            .handle_with(KindOptions::new().timeout(SECOND / 5), |ctx: Context, job: Step| async move {
                ctx.detail("step", job.n);
                match job.n {
                    0 => Err(Fail::retry("plain").detail("exit_code", 3)),
                    1 => Err("x".parse::<u8>().unwrap_err().into()),
                    2 => Err(Fail::permanent("hopeless")),
                    3 => panic!("in the handler"),
                    4 => std::future::pending().await,
                    _ => Err::<(), _>(Fail::cancelled()),
                }
            })
            .drain(true)
            .start()
            .await
            .unwrap();
        worker.join().await;
        let expected = [
            ("error", "plain"),
            ("error", "invalid digit found in string"),
            ("error", "hopeless"),
            ("panic", "panic: in the handler"),
            ("timeout", "the handler was aborted after 200ms, its timeout"),
            ("cancelled", "the handler stopped because the job was cancelled"),
        ];
        for (n, (id, (cause, message))) in ids.iter().zip(expected).enumerate() {
            let error = only_error(&client, *id).await;
            assert_eq!((error.cause.as_str(), error.message.as_str()), (cause, message));
            assert_eq!((error.worker.as_deref(), error.attempt), (Some("clerk"), 1));
            let kept = details(&error);
            assert_eq!(kept["step"], json!(n), "what the handler noted on its way: {kept}");
            assert!(kept["ran_ms"].is_u64() && error.failed_at >= error.started_at, "{kept}");
            let place = kept["location"].as_str().unwrap_or_default();
            assert_eq!(place.contains("attempts.rs:"), n != 4, "{cause}: {place}");
        }
        assert_eq!(details(&only_error(&client, ids[0]).await)["exit_code"], json!(3));
        let error = only_error(&client, bad).await;
        assert_eq!(error.cause, "payload");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_lease_is_lost_a_blocked_thread_keeps_its_slot_and_its_end_is_refused() {
    with_database(async |db| {
        let client = db.client().await;
        let stuck = Stuck::default();
        let worker = stuck.start(worker(db).queue("other", 1), at_once()).await;
        let id = client.enqueue(step(0)).await.unwrap();
        stuck.gate.arrived(1).await;
        let first = worker.worker_id().unwrap();
        // Somebody declares it dead: it registers anew, gets the job back, and runs it beside the old copy.
        let sql = db.sql().await;
        let expire = "update tenure.worker set dead_at = clock_timestamp() where id = $1";
        sql.execute(expire, &[&first]).await.unwrap();
        until_within(20 * SECOND, "the job to be completed by its second attempt", async || {
            job(&client, id).await.status == State::Completed
        })
        .await;
        until("the overrun to be counted", async || worker.stats().overruns == 1).await;
        stuck.gate.open();
        until("the old copy to end", async || stuck.runs.runs().iter().all(|run| run.ended.is_some())).await;
        assert_eq!(job(&client, id).await.attempt, 2);
        assert_eq!(only_error(&client, id).await.cause, "worker_lost");
    })
    .await;
}

/// Of an error of the database the message says what it was, and failures of one cause stay one group.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_is_recorded_with_what_is_under_it_and_grouped_by_it() {
    with_database(async |db| {
        let (client, sql) = (db.client().await, Arc::new(db.sql().await));
        sql.batch_execute("create table seen (n text primary key); insert into seen values ('u1'), ('v2')")
            .await
            .unwrap();
        let inner = sql.clone();
        let options = KindOptions::new();
        let handler = move |_: Context, step: Step| {
            let sql = inner.clone();
            async move {
                match step.n {
                    1 => sql.execute("insert into seen values ('u1')", &[]).await?,
                    2 => sql.execute("insert into seen values ('v2')", &[]).await?,
                    _ => sql.execute("select 1 from missing", &[]).await?,
                };
                Ok::<_, Fail>(())
            }
        };
        let worker = worker(db).handle_with(options, handler).start().await.unwrap();
        let mut ids = Vec::new();
        for n in 1..=3 {
            ids.push(client.enqueue(step(n).max_attempts(1)).await.unwrap());
        }
        let mut letters = Vec::new();
        for id in &ids {
            until_status(&client, *id, State::Dead).await;
            letters.push(client.dead_letter(*id).await.unwrap().expect("a dead letter"));
        }
        assert_eq!(letters[0].message, "db error: ERROR: duplicate key value violates unique constraint \"seen_pkey\"");
        assert_eq!(letters[2].message, "db error: ERROR: relation \"missing\" does not exist");
        assert_eq!(job(&client, ids[2]).await.last_error.as_ref(), Some(&letters[2].message));
        assert_eq!(letters[0].fingerprint, letters[1].fingerprint, "they differ in a value only");
        assert_ne!(letters[0].fingerprint, letters[2].fingerprint);
        let chain = details(&only_error(&client, ids[0]).await)["chain"].to_string();
        assert!(chain.contains("DETAIL") && chain.contains("u1"), "{chain}");
        drop(worker);
    })
    .await;
}
