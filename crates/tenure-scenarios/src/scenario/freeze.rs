//! Workers that are frozen and come back: their jobs run elsewhere, and what they say afterwards changes nothing.

use std::time::{Duration, Instant};

use tenure::testing::until_within;

use crate::protocol::{Hand, LEASE_LOST, Leased, Registration, sqlstate};
use crate::{Act, Bound, Measure, Stage, WorkerProcess};

/// The lease of the frozen worker.
const LEASE: Duration = Duration::from_secs(5);
/// A shorter one where the time is not what is measured.
const LEASE_SHORT: Duration = Duration::from_secs(2);

/// Freezes the worker while it runs `jobs`, and notes when.
async fn freeze(stage: &Stage, worker: &WorkerProcess) {
    worker.stop();
    stage
        .execute("create table if not exists frozen (pid int, at timestamptz not null default clock_timestamp())", &[])
        .await;
    stage.execute("insert into frozen (pid) values ($1)", &[&worker.pid()]).await;
}

async fn started_elsewhere(stage: &Stage, worker: &WorkerProcess, jobs: usize) -> f64 {
    let elsewhere = "select count(distinct p.job_id), max(extract(epoch from p.started_at - f.at))::float8
        from frozen f join probe p on p.pid <> f.pid and p.started_at > f.at where f.pid = $1";
    until_within(Duration::from_secs(30), "the frozen worker's jobs have started elsewhere", async || {
        let row = stage.sql.query_one(elsewhere, &[&worker.pid()]).await.expect("probe");
        let started: i64 = row.get(0);
        if started as usize >= jobs { Ok(row.get(1)) } else { Err(format!("{started} of {jobs}")) }
    })
    .await
}

/// A worker with a lease of 5 s is stopped and woken after its jobs were given away.
pub async fn frozen_worker(stage: &Stage) -> Vec<Measure> {
    let mut late = stage.start(stage.worker("late").lease(LEASE)).await;
    let ids = stage.enqueue_many(&Act::Sleep { ms: 2_500 }, 4).await;
    stage.started(4, Duration::from_secs(20)).await;
    freeze(stage, &late).await;
    let other = stage.start(stage.worker("other").lease(LEASE)).await;
    let second = started_elsewhere(stage, &late, 4).await;
    late.wake();
    stage.completed(4, Duration::from_secs(30)).await;
    late.assert_runs();
    until_within(Duration::from_secs(10), "the late worker has said that it lost its lease", async || {
        late.log().contains("lease lost")
    })
    .await;
    let by_other = "select count(*) from tenure.outcome where state = 'c' and attempt = 2 and job_id = any($1)";
    let measures = vec![
        Measure::new("from SIGSTOP with a 5 s lease to the second start of its jobs", Bound::AtMost(10.0), second, "s"),
        Measure::count("outcomes of the other worker that stand", 4, stage.count(by_other, &[&ids]).await as usize),
        Measure::count(
            "attempts recorded as lost, and nothing else",
            4,
            stage.count("select count(*) from tenure.attempt_error", &[]).await as usize,
        ),
    ];
    late.shut_down().await;
    other.shut_down().await;
    measures
}

/// Every write that a worker can make, by one whose lease was given away: before and after the other worker's end.
pub async fn late_writes(stage: &Stage) -> Vec<Measure> {
    let mut late = stage.hand(&Registration::default()).await;
    stage.enqueue(&Act::Sleep { ms: 0 }).await;
    let job = late.claim(1).await.expect("claimed").0.remove(0);
    stage.expire(late.worker).await;
    stage.rescue().await;
    let mut other = stage.hand(&Registration::default()).await;
    let (again, _) = other.claim(1).await.expect("claimed");
    let before = refusals(stage, &late, &job).await;
    other.complete(&again).await.expect("completed");
    let picture = stage.picture(job.job).await;
    let after = refusals(stage, &late, &job).await;
    vec![
        Measure::count("kinds of a late worker's writes refused as lease lost, other worker running", WRITES, before),
        Measure::count("the same after the other worker's end", WRITES, after),
        Measure::count("its outcome stands", 1, usize::from(stage.picture(job.job).await == picture)),
    ]
}

/// complete, release, four verdicts of fail, progress, and complete in a transaction under three isolation levels.
const WRITES: usize = 10;

async fn refusals(stage: &Stage, late: &Hand, job: &Leased) -> usize {
    let one = std::slice::from_ref(job);
    let mut refused = usize::from(late.complete(one).await.is_ok_and(|r| r == [(job.job, "lost".to_owned())]));
    refused += usize::from(late.release(one).await.is_ok_and(|r| r == [job.job]));
    for verdict in ["retry", "permanent", "snooze", "cancelled"] {
        refused += usize::from(late.fail(job, verdict, None).await.is_ok_and(|status| status == "lost"));
    }
    let progress = "select tenure.progress($1, $2, '1')";
    refused += usize::from(!stage.one::<bool>(progress, &[&job.job, &job.lease]).await);
    for isolation in ["read committed", "repeatable read", "serializable"] {
        let sql = stage.db.sql().await;
        sql.batch_execute(&format!("begin isolation level {isolation}; select 1")).await.expect("begin");
        let complete = sql.execute("select tenure.complete($1, $2)", &[&job.job, &job.lease]).await;
        refused += usize::from(sqlstate(complete) == LEASE_LOST);
    }
    refused
}

/// What the late worker's handler does after it was woken, one job each; the other worker completes them all.
pub async fn late_reports(stage: &Stage) -> Vec<Measure> {
    let late = stage.start(stage.worker("late").lease(LEASE_SHORT)).await;
    let wait = || Act::Stubborn { ms: 2_000 };
    let fail = Act::Fail { text: crate::act::FailText::Plain("late".into()) };
    let reports = [
        Act::Sleep { ms: 0 },
        fail,
        Act::FailForGood { text: "late".into() },
        Act::Snooze { ms: 60_000 },
        Act::Return { bytes: 900_000 },
    ];
    let count = reports.len();
    for report in reports {
        stage.enqueue(&Act::Then { acts: vec![wait(), report] }.first(Act::Sleep { ms: 1_000 })).await;
    }
    stage.started(count, Duration::from_secs(20)).await;
    freeze(stage, &late).await;
    let other = stage.start(stage.worker("other").lease(LEASE_SHORT)).await;
    started_elsewhere(stage, &late, count).await;
    late.wake();
    stage.completed(count, Duration::from_secs(30)).await;
    let by_other = "select count(*) from tenure.outcome where state = 'c' and attempt = 2 and result is null";
    let from_late = "select count(*) from tenure.attempt_error where message like '%late%' and cause <> 'worker_lost'";
    let measures = vec![
        Measure::count(
            "late complete, fail, permanent, snooze, large result: outcomes of the other worker",
            count,
            stage.count(by_other, &[]).await as usize,
        ),
        Measure::count("errors from the late worker", 0, stage.count(from_late, &[]).await as usize),
    ];
    late.shut_down().await;
    other.shut_down().await;
    measures
}

/// A worker is stopped between its completion in the handler's transaction and the commit.
pub async fn frozen_before_commit(stage: &Stage) -> Vec<Measure> {
    let late = stage.start(stage.worker("late").lease(LEASE_SHORT)).await;
    let act = Act::EffectOnce { after_ms: 0, hold_ms: 1_000 };
    let once = stage.enqueue(&act.first(Act::EffectOnce { after_ms: 0, hold_ms: 0 })).await;
    let beside = stage.enqueue(&Act::Stubborn { ms: 1_500 }).await;
    stage.started(2, Duration::from_secs(20)).await;
    let idle =
        "select count(*) from pg_stat_activity where datname = current_database() and state = 'idle in transaction'";
    until_within(Duration::from_secs(10), "the handler has completed and not committed", async || {
        stage.count(idle, &[]).await > 0
    })
    .await;
    freeze(stage, &late).await;
    let other = stage.start(stage.worker("other").lease(LEASE_SHORT)).await;
    let mut longest = 0.0_f64;
    until_within(Duration::from_secs(60), "both jobs have started again", async || {
        let start = Instant::now();
        stage.execute("select tenure.rescue()", &[]).await;
        longest = longest.max(start.elapsed().as_secs_f64());
        stage.starts(once).await >= 2 && stage.starts(beside).await >= 2
    })
    .await;
    late.wake();
    stage.completed(2, Duration::from_secs(30)).await;
    let attempt = "select attempt::int from tenure.outcome where job_id = $1";
    let measures = vec![
        Measure::new(
            "a rescue beside a transaction that is frozen before its commit",
            Bound::AtMost(1.0),
            longest,
            "s",
        ),
        Measure::count(
            "its effects",
            1,
            stage.count("select count(*) from effect where job_id = $1", &[&once]).await as usize,
        ),
        Measure::count("the attempt that stands", 2, stage.one::<i32>(attempt, &[&once]).await as usize),
    ];
    late.shut_down().await;
    other.shut_down().await;
    measures
}
