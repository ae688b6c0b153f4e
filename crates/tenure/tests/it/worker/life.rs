//! How a worker lives and ends: its heartbeat, a stop, a start that was given up, and connections that break.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Instant;

use tenure::lifecycle::State;
use tenure::testing::{Cut, Fault, Gate, Proxy, TestDatabase, until, until_within, with_database};
use tenure::{Client, Context, Fail, JobId, Worker};

use super::{SECOND, Step, enqueue, job, step, worker};

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
