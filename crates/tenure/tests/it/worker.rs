//! The worker in this process: how handlers end, what is claimed, and what a lost connection leaves.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tenure::lifecycle::State;
use tenure::testing::{Cut, Fault, Gate, Proxy, TestDatabase, until, until_within, with_database};
use tenure::{
    Client, Context, Ended, Enqueue, Fail, Job, JobId, JobInfo, KindOptions, RawJson, RetryPolicy, StopReason, Worker,
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
async fn the_heartbeat_goes_on_while_handlers_burn_the_only_thread() {
    with_database(async |db| {
        let client = db.client().await;
        let id = client.enqueue(step(0)).await.unwrap();
        let mut worker = worker(db)
            .lease(2 * SECOND)
            .handle(|_: Context, _: Step| async move {
                let end = Instant::now() + 5 * SECOND;
                while Instant::now() < end {
                    std::hint::spin_loop();
                }
                Ok(())
            })
            .drain(true)
            .start()
            .await
            .unwrap();
        let summary = worker.join().await;
        assert_eq!((summary.stats.completed, summary.stats.registrations_lost), (1, 0));
        assert_eq!(job(&client, id).await.attempt, 1);
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
async fn a_stop_lets_short_jobs_end_and_gives_the_others_back_unharmed() {
    with_database(async |db| {
        let client = db.client().await;
        let short = enqueue(&client, 2).await;
        let long = [client.enqueue(step(100)).await.unwrap(), client.enqueue(step(101)).await.unwrap()];
        let waiting = client.enqueue(step(102)).await.unwrap();
        let gate = Arc::new(Gate::new());
        let at = gate.clone();
        let mut worker = worker(db)
            .handle(move |_: Context, job: Step| {
                let at = at.clone();
                async move {
                    if job.n >= 100 {
                        std::future::pending::<()>().await;
                    }
                    at.pass().await;
                    Ok(())
                }
            })
            .start()
            .await
            .unwrap();
        gate.arrived(2).await;
        let began = Instant::now();
        worker.shutdown();
        gate.open();
        let summary = worker.join().await;
        assert!(summary.clean && began.elapsed() < 3 * SECOND, "{summary:?} after {:?}", began.elapsed());
        for id in short {
            assert_eq!(job(&client, id).await.status, State::Completed);
        }
        for id in long.into_iter().chain([waiting]) {
            let seen = job(&client, id).await;
            assert_eq!((seen.status, seen.attempt), (State::Available, 0));
        }
        assert!(client.workers().await.unwrap().is_empty(), "it signed off");
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
async fn a_sleeping_worker_is_told_of_new_jobs_and_wakes_for_due_ones() {
    with_database(async |db| {
        let client = db.client().await;
        let _worker =
            worker(db).poll(60 * SECOND).handle(|_: Context, _: Step| async move { Ok(()) }).start().await.unwrap();
        for _ in 0..3 {
            let id = client.enqueue(step(0)).await.unwrap();
            assert!(matches!(client.wait(id, 5 * SECOND).await.unwrap(), Ended::Completed { .. }));
        }
        let due = SystemTime::now() + SECOND * 3 / 2;
        let id = client.enqueue(step(1).run_at(due)).await.unwrap();
        // The worker learns of it with its next look at the latest: one more job makes it look now.
        client.enqueue(step(2)).await.unwrap();
        client.wait(id, 10 * SECOND).await.unwrap();
        let started = job(&client, id).await.started_at.expect("it ran");
        let late = started.duration_since(due).expect("not early");
        assert!(late < SECOND, "{late:?} late");
    })
    .await;
}

#[tokio::test]
async fn slow_jobs_of_a_queue_and_quick_ones_behind_them_do_not_wait_for_each_other() {
    const QUICK: usize = 500;
    with_database(async |db| {
        let client = Arc::new(db.client().await);
        for n in 0..QUICK {
            // Two of the four slots are taken at the beginning, and a third in the middle of the quick ones.
            if [0, 1, QUICK / 2].contains(&n) {
                client.enqueue(Enqueue::raw("slow", RawJson::null())).await.unwrap();
            }
            client.enqueue(Enqueue::raw("quick", RawJson::null())).await.unwrap();
        }
        let gate = Arc::new(Gate::new());
        let (enqueued, done) = (Arc::new(AtomicUsize::new(QUICK)), Arc::new(AtomicUsize::new(0)));
        let (at, seen, more, count) = (gate.clone(), gate.clone(), enqueued.clone(), done.clone());
        let mut worker = worker(db)
            .handle_raw("quick", KindOptions::new(), move |_, _| {
                let (client, seen, more, count) = (client.clone(), seen.clone(), more.clone(), count.clone());
                async move {
                    // Quick ones never end before the third slow one has its slot.
                    if seen.arrivals() < 3 {
                        more.fetch_add(1, SeqCst);
                        client.enqueue(Enqueue::raw("quick", RawJson::null())).await.unwrap();
                    }
                    count.fetch_add(1, SeqCst);
                    Ok(None)
                }
            })
            .handle_raw("slow", KindOptions::new(), move |_, _| {
                let at = at.clone();
                async move {
                    at.pass().await;
                    Ok(None)
                }
            })
            .drain(true)
            .start()
            .await
            .unwrap();
        gate.arrived(3).await;
        until("the quick jobs to run beside slow ones that hold their slots", async || {
            done.load(SeqCst) == enqueued.load(SeqCst)
        })
        .await;
        gate.open();
        let summary = tokio::time::timeout(30 * SECOND, worker.join()).await.expect("drained");
        let jobs = enqueued.load(SeqCst) as u64 + 3;
        assert_eq!((summary.stats.completed, summary.stats.failed), (jobs, 0));
    })
    .await;
}

#[tokio::test]
async fn concurrency_changes_while_the_worker_runs() {
    with_database(async |db| {
        let client = db.client().await;
        enqueue(&client, 6).await;
        let gate = Arc::new(Gate::new());
        let at = gate.clone();
        let worker = Worker::builder(db.url())
            .queue("default", 1)
            .handle(move |_: Context, _: Step| {
                let at = at.clone();
                async move {
                    at.pass().await;
                    Ok(())
                }
            })
            .start()
            .await
            .unwrap();
        gate.arrived(1).await;
        assert_eq!(gate.arrivals(), 1);
        worker.set_concurrency("default", 5).unwrap();
        gate.arrived(5).await;
        assert!(worker.set_concurrency("none", 5).is_err());
        gate.open();
        until("all to end", async || worker.stats().completed == 6).await;
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

#[test]
fn a_worker_whose_runtime_ends_is_not_kept_alive_by_its_heartbeat() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let outer = runtime();
    outer.block_on(with_database(async |db| {
        let client = db.client().await;
        let id = client.enqueue(step(0)).await.unwrap();
        let url = db.url().to_owned();
        let gate = Arc::new(Gate::new());
        let (at, inner) = (gate.clone(), runtime());
        inner.spawn(async move {
            let hanging = Worker::builder(url).queue("default", 4).handle(move |_: Context, _: Step| {
                let at = at.clone();
                async move {
                    at.pass().await;
                    Ok(())
                }
            });
            let mut hanging = hanging.start().await.unwrap();
            hanging.join().await
        });
        gate.arrived(1).await;
        inner.shutdown_background();
        drain_again(db, &client, id).await;
    }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_nobody_waits_for_any_more_leaves_no_worker_behind() {
    with_database(async |db| {
        let proxy = Proxy::start(db.url()).await;
        proxy.set(Fault::Stall);
        let builder = Worker::builder(proxy.url()).queue("default", 1);
        let start = builder.handle(|_: Context, _: Step| async move { Ok(()) }).start();
        tokio::select! {
            _ = start => panic!("the database does not answer"),
            () = until("it to connect", async || proxy.connections() == 1) => {}
        }
        proxy.set(Fault::None);
        until("the connection to be closed", async || proxy.connections() == 0).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_commits_long_after_its_worker_stopped_waiting_is_given_back() {
    with_database(async |db| {
        let (client, sql) = (db.client().await, db.sql().await);
        let worker = worker(db).lease(2 * SECOND).handle(|_: Context, _: Step| async move { Ok(()) });
        let worker = worker.start().await.unwrap();
        let id = worker.worker_id().unwrap();
        // A job that the worker does not see before the claim that it knows nothing of.
        sql.batch_execute("begin").await.unwrap();
        let job: i64 = sql.query_one("select tenure.enqueue('step', '{\"n\": 1}')", &[]).await.unwrap().get(0);
        let claimed = sql
            .query(
                "select c.job_id from tenure.worker w, \
                 tenure.claim(w.id, w.token, '{default}', '{1}', '{step}', '{}', '{-1,0,1,2,3,4}', '{0,0,0,0,0,0}', true) c \
                 where w.id = $1 and c.job_id is not null",
                &[&id],
            )
            .await
            .unwrap();
        assert_eq!(claimed.len(), 1);
        sql.batch_execute("commit").await.unwrap();
        until_status(&client, job.into(), State::Completed).await;
        assert_eq!(self::job(&client, job.into()).await.attempt, 1, "giving back uses no attempt");
    })
    .await;
}

/// Fails where a worker of this name says that it registered, from the second time on.
struct FailingLog {
    name: &'static str,
    seen: AtomicUsize,
}

impl tracing::Subscriber for FailingLog {
    fn enabled(&self, about: &tracing::Metadata<'_>) -> bool {
        about.is_event() && about.target() == "tenure::worker::heartbeat"
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Named<'a>(&'a str, bool);
        impl tracing::field::Visit for Named<'_> {
            fn record_str(&mut self, field: &tracing::field::Field, value: &str) {
                self.1 |= field.name() == "name" && value == self.0;
            }
            fn record_debug(&mut self, _: &tracing::field::Field, _: &dyn std::fmt::Debug) {}
        }
        let mut named = Named(self.name, false);
        event.record(&mut named);
        assert!(!named.1 || self.seen.fetch_add(1, SeqCst) == 0, "the log is full, as asked");
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_whose_heartbeat_fails_stops_instead_of_looking_alive() {
    with_database(async |db| {
        let log = FailingLog { name: "fails at its second registration", seen: AtomicUsize::new(0) };
        let name = log.name;
        tracing::subscriber::set_global_default(log).unwrap();
        let mut worker =
            worker(db).name(name).handle(|_: Context, _: Step| async move { Ok(()) }).start().await.unwrap();
        let id = worker.worker_id().unwrap();
        db.sql().await.execute("update tenure.worker set dead_at = now() where id = $1", &[&id]).await.unwrap();
        let summary = tokio::time::timeout(20 * SECOND, worker.join()).await.expect("it notices");
        assert!(!summary.clean);
        assert_eq!(summary.stats.registrations_lost, 1);
    })
    .await;
}

/// Another worker gets the job within seconds and completes it.
async fn drain_again(db: &TestDatabase, client: &Client, id: JobId) {
    let _other = worker(db).handle(|_: Context, _: Step| async move { Ok(()) }).start().await.unwrap();
    until("the job to be completed elsewhere", async || job(client, id).await.status == State::Completed).await;
    assert_eq!(job(client, id).await.attempt, 2);
}

/// Whatever answer is lost, no job is lost or ended twice, and the worker goes on. The numbers of the statements are
/// those of a short life: connect, register, claim, end, sleep.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_cut_at_any_statement_or_answer_loses_nothing() {
    with_database(async |db| {
        let client = db.client().await;
        let proxy = Proxy::start(db.url()).await;
        let mut worker = Worker::builder(proxy.url())
            .queue("default", 4)
            .lease(5 * SECOND)
            .handle(|_: Context, job: Step| async move {
                if job.n % 3 == 1 { Err(Fail::permanent("as asked")) } else { Ok(job.n) }
            })
            .start()
            .await
            .unwrap();
        for n in 1..=12 {
            for cut in [Cut::Statement(n), Cut::Answer(n)] {
                let cuts = proxy.cuts();
                proxy.cut_at(cut);
                let ids = enqueue(&client, 6).await;
                until_within(20 * SECOND, "all six to end", async || {
                    let mut open = Vec::new();
                    for id in &ids {
                        let seen = job(&client, *id).await;
                        if !matches!(seen.status, State::Completed | State::Dead) {
                            open.push(format!("{cut:?}: {} {:?}", seen.id, seen.status));
                        }
                    }
                    if open.is_empty() { Ok(()) } else { Err(open.join(", ")) }
                })
                .await;
                until("the cut", async || proxy.cuts() > cuts).await;
            }
        }
        worker.shutdown();
        assert!(worker.join().await.clean);
    })
    .await;
}
