//! The network takes what a worker sends and loses what the database answers.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tenure::testing::{Fault, Proxy, TestDatabase, until, until_within, with_database};
use tenure::{Context, Enqueue, Job, RunningWorker, Worker};

const SECOND: Duration = Duration::from_secs(1);

#[derive(Debug, Serialize, Deserialize)]
struct Step;

impl Job for Step {
    const KIND: &'static str = "step";
}

async fn worker(url: &str) -> RunningWorker {
    Worker::builder(url).queue("default", 4).handle(async |_: Context, _: Step| Ok(())).start().await.unwrap()
}

/// The number of a job that has ended.
async fn one_ends(db: &TestDatabase, within: Duration) {
    let (client, sql) = (db.client().await, db.sql().await);
    let id = client.enqueue(Enqueue::new(&Step).unwrap()).await.unwrap();
    until_within(within, "the job has ended", async || {
        sql.query_opt("select from tenure.outcome where job_id = $1", &[&id.get()]).await.unwrap().is_some()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_were_lost_are_noticed_long_before_a_statements_deadline() {
    with_database(async |db| {
        let proxy = Proxy::start(db.url()).await;
        let worker = worker(proxy.url()).await;
        one_ends(db, 10 * SECOND).await;
        let sql = db.sql().await;
        sql.batch_execute("create table public.fault as select clock_timestamp() as at").await.unwrap();
        proxy.set(Fault::LoseAnswers);
        let asked = "select coalesce(bool_or(a.query_start > f.at), false) from pg_stat_activity a, public.fault f
            where a.datname = current_database() and a.query like '%tenure.claim%' and a.pid <> pg_backend_pid()";
        until("a claim whose answer is lost", async || sql.query_one(asked, &[]).await.unwrap().get::<_, bool>(0))
            .await;
        // sleep: how long the network is away, longer than the time between two claims and far less than the deadline of 10 s.
        tokio::time::sleep(2 * SECOND).await;
        proxy.set(Fault::None);
        let back = Instant::now();
        one_ends(db, 5 * SECOND).await;
        assert!(back.elapsed() < 5 * SECOND, "{:?}", back.elapsed());
        assert!(worker.stats().reconnects >= 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_answer_is_waited_for() {
    with_database(async |db| {
        let worker = worker(db.url()).await;
        one_ends(db, 10 * SECOND).await;
        let sql = db.sql().await;
        let slow = "create table public.slow (ended timestamptz); \
             create function public.wait() returns trigger language plpgsql as $$ begin \
               perform pg_sleep(4); insert into public.slow values (clock_timestamp()); return null; end $$; \
             create trigger wait after insert on tenure.outcome for each row execute function public.wait()";
        sql.batch_execute(slow).await.unwrap();
        one_ends(db, 15 * SECOND).await;
        let times: i64 = sql.query_one("select count(*) from public.slow", &[]).await.unwrap().get(0);
        assert_eq!((times, worker.stats().reconnects), (1, 0));
    })
    .await;
}
