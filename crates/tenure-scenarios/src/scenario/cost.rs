//! What it costs: idle workers, and enqueuing in bulk.

use std::time::{Duration, Instant};

use sqlx08::Connection as _;
use sqlx09::Connection as _;
use tenure::{Client, Enqueue, Executor, JobOptions, RawJson};

use super::plans::keep_unanalysed;
use crate::{Act, Bound, Measure, Stage, WorkerProcess, size};

/// The transaction of the look at the counters, of which the second sees the first.
const LOOK: f64 = 1.0;

/// Of which the median is taken.
const WINDOW: Duration = Duration::from_secs(5);

/// CPU share, memory and transactions of one idle worker, and the transactions of very many. A worker's statements are a
/// transaction each while it is idle.
pub async fn idle_workers(stage: &Stage) -> Vec<Measure> {
    let time = size::IDLE.at(stage.size);
    let one = stage.start(stage.worker("idle")).await;
    let id = stage.enqueue(&Act::Sleep { ms: 1 }).await;
    tenure::testing::until("the first job has ended", async || stage.status(id).await == "completed").await;
    tokio::time::sleep(Duration::from_secs(2)).await; // from working to idle: pauses grow
    let (cpu, statements, took) = watch(stage, &one, time).await;
    let mut lines = vec![
        Measure::new("CPU share of an idle worker", Bound::AimBelow(1.0), 100.0 * cpu / took, "%"),
        Measure::new("resident memory of an idle worker", Bound::AimBelow(40.0), resident_mb(&one), "MB"),
        Measure::new("transactions a second of an idle worker", Bound::AimBelow(3.0), statements / took, "/s"),
        // Far above the aim: what a worker that does not idle at all would pass.
        Measure::new("the same, in any case", Bound::AtMost(8.0), statements / took, "/s"),
    ];
    let count = size::IDLE_WORKERS.at(stage.size);
    let mut many = vec![one];
    for n in 1..count {
        many.push(WorkerProcess::spawn(&stage.worker(&format!("idle-{n}")).with(|o| o.threads = 1)));
    }
    let registered = "select count(*) from tenure.worker";
    tenure::testing::until_within(Duration::from_secs(120), "all idle workers are registered", async || {
        stage.count(registered, &[]).await as usize >= count
    })
    .await;
    tokio::time::sleep(Duration::from_secs(3)).await; // from starting to idle
    let (_, statements, took) = watch(stage, &many[0], time).await;
    let limit = 1.5 * count as f64;
    lines.push(Measure::new(
        format!("transactions a second of {count} idle workers together"),
        Bound::AimBelow(limit),
        statements / took,
        "/s",
    ));
    lines
}

/// Transactions a second of a worker that has just had work: in the median of windows of five seconds, and the mean, in which what comes every half a minute or once
/// after much work (what is forgotten, folded and removed) has its part. Autovacuum, which comes behind the work with several transactions for each table, is kept
/// off the tables.
pub(super) async fn transactions_a_second(stage: &Stage, worker: &WorkerProcess, time: Duration) -> (f64, f64) {
    keep_unanalysed(stage).await;
    tokio::time::sleep(Duration::from_secs(2)).await; // from working to idle: pauses grow
    let mut rates = Vec::new();
    for _ in 0..time.div_duration_f64(WINDOW).round().max(1.0) as usize {
        let (_, transactions, took) = watch(stage, worker, time.min(WINDOW)).await;
        rates.push(transactions / took);
    }
    let mean = rates.iter().sum::<f64>() / rates.len() as f64;
    rates.sort_by(f64::total_cmp);
    (rates[rates.len() / 2], mean)
}

/// CPU seconds of the process, transactions of the database, and the seconds that passed.
async fn watch(stage: &Stage, worker: &WorkerProcess, time: Duration) -> (f64, f64, f64) {
    // Sessions report their counts once a second. The server's own processes count as well, and after work autovacuum comes, table by table: at least a
    // transaction for each that it vacuums or analyses, and that much is taken off. Tables of the whole cluster may have been the turn of another database.
    let count = "select d.xact_commit::float8 - (select coalesce(sum(t.autovacuum_count + t.autoanalyze_count), 0)::float8 from pg_stat_all_tables t
            join pg_class c on c.oid = t.relid and not c.relisshared)
        from pg_stat_database d where d.datname = current_database()";
    let before: f64 = stage.one(count, &[]).await;
    let (cpu, start) = (cpu_seconds(worker), Instant::now());
    tokio::time::sleep(time).await; // what is measured
    let after: f64 = stage.one(count, &[]).await;
    (cpu_seconds(worker) - cpu, (after - before - LOOK).max(0.0), start.elapsed().as_secs_f64())
}

/// User and system time so far, from /proc; not a number where there is none.
fn cpu_seconds(worker: &WorkerProcess) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", worker.pid())).unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let mut times = after_name.split_whitespace().skip(11).map(|ticks| ticks.parse().unwrap_or(f64::NAN));
    let ticks = times.next().unwrap_or(f64::NAN) + times.next().unwrap_or(f64::NAN);
    // SAFETY: a plain system call.
    ticks / unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64
}

pub(super) fn resident_mb(worker: &WorkerProcess) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", worker.pid())).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kb| kb.parse::<f64>().ok()).unwrap_or(f64::NAN) / 1024.0
}

/// Jobs by arrays, and by COPY.
pub async fn bulk_enqueue(stage: &Stage) -> Vec<Measure> {
    let jobs = size::BULK_JOBS.at(stage.size);
    let client = stage.db.client().await;
    let payload = RawJson::of(&serde_json::json!({ "doc": 12_345, "model": "v1" })).expect("JSON");
    let start = Instant::now();
    let by_arrays = client.enqueue_many("act", (0..jobs).map(|_| payload.clone()), JobOptions::default()).await;
    let arrays = jobs as f64 / start.elapsed().as_secs_f64();
    let start = Instant::now();
    let by_copy = client.enqueue_copy((0..jobs).map(|_| Enqueue::raw("act", payload.clone()))).await;
    let copy = jobs as f64 / start.elapsed().as_secs_f64();
    let stored = stage.count("select count(*) from tenure.job", &[]).await as usize;
    assert_eq!((by_arrays.expect("by arrays").len(), by_copy.expect("by COPY").len()), (jobs, jobs));
    vec![
        Measure::count(format!("{jobs} jobs by arrays and as many by COPY are there"), 2 * jobs, stored),
        Measure::new("enqueued by arrays", Bound::Shown, arrays, "jobs/s"),
        Measure::new("enqueued by COPY", Bound::Shown, copy, "jobs/s"),
    ]
}

/// An enqueue whose transaction is rolled back leaves nothing: by each client library, and by plain SQL.
pub async fn rolled_back(stage: &Stage) -> Vec<Measure> {
    let client: Client = stage.db.client().await;
    let mut enqueued = 0;
    let mut sql = stage.db.sql().await;
    let mut old = sqlx08::PgConnection::connect(stage.url()).await.expect("sqlx 0.8");
    let mut new = sqlx09::PgConnection::connect(stage.url()).await.expect("sqlx 0.9");
    for _ in 0..3 {
        let mut tx = sql.transaction().await.expect("begin");
        enqueued += each_way(&client, &mut tx).await;
        tx.rollback().await.expect("rollback");
        let mut tx = old.begin().await.expect("begin");
        enqueued += each_way(&client, &mut tx).await;
        tx.rollback().await.expect("rollback");
        let mut tx = new.begin().await.expect("begin");
        enqueued += each_way(&client, &mut tx).await;
        tx.rollback().await.expect("rollback");
        let tx = sql.transaction().await.expect("begin");
        enqueued += tx.query("select tenure.enqueue('act', '1')", &[]).await.expect("enqueued").len();
        let many = "select tenure.enqueue_many('act', array['1', '2']::json[])";
        enqueued += tx.query(many, &[]).await.expect("enqueued").len();
        tx.rollback().await.expect("rollback");
    }
    let left = "select (select count(*) from tenure.job) + (select count(*) from tenure.ready) + (select count(*) from tenure.later) + (select count(*) from tenure.inbox)";
    vec![
        Measure::count("jobs rolled back, by three client libraries and SQL", 45, enqueued),
        Measure::count("rows left by enqueues that were rolled back", 0, stage.count(left, &[]).await as usize),
    ]
}

/// Each form of enqueue in this transaction; how many jobs.
async fn each_way<E: Executor>(client: &Client, tx: &mut E) -> usize {
    let payload = RawJson::of(&1).expect("JSON");
    client.enqueue_in(tx, Enqueue::raw("act", payload.clone())).await.expect("enqueued");
    let many = client.enqueue_many_in(tx, "act", [1, 2], JobOptions::default()).await.expect("enqueued");
    let copied = client.enqueue_copy_in(tx, [Enqueue::raw("act", payload)]).await.expect("enqueued");
    1 + many.len() + copied.len()
}
