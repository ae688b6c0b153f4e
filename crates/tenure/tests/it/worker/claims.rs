//! What a worker claims, and when: for its slots, woken, at an instant, and never what it does not know of.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::SystemTime;

use tenure::lifecycle::State;
use tenure::testing::{Gate, until, with_database};
use tenure::{Context, Ended, Enqueue, KindOptions, RawJson, Worker};

use super::{SECOND, Step, enqueue, job, step, until_status, worker};

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
