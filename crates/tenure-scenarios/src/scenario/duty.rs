//! A worker's manners: it claims only what it knows, stops in order, and finds work that came late or was left.

use std::time::{Duration, Instant};

use tenure::testing::until_within;

use crate::protocol::Registration;
use crate::{Act, Bound, Measure, Stage, size};

const LIMIT: Duration = Duration::from_secs(60);

/// Jobs of a kind that only the newer worker knows wait for it, unharmed.
pub async fn unknown_kinds(stage: &Stage) -> Vec<Measure> {
    let jobs = size::UNKNOWN_KIND_JOBS.at(stage.size);
    let old = stage.start(stage.worker("old")).await;
    let payloads = vec![Act::Sleep { ms: 0 }.json(); jobs];
    let many = "select count(*) from tenure.enqueue_many('b', $1::text[]::json[])";
    stage.count(many, &[&payloads]).await;
    // The old worker goes on with what it knows, past all the others at the head of the queue.
    let begin = Instant::now();
    let mut slowest = 0.0_f64;
    while begin.elapsed() < size::UNKNOWN_KIND.at(stage.size) {
        let id = stage.enqueue(&Act::Sleep { ms: 1 }).await;
        let start = Instant::now();
        until_within(LIMIT, "a job of the known kind ends", async || stage.status(id).await == "completed").await;
        slowest = slowest.max(start.elapsed().as_secs_f64());
    }
    let waiting = "select count(*) from tenure.jobs where kind = 'b' and status = 'available' and attempt = 0";
    let unharmed = stage.count(waiting, &[]).await as usize;
    let client = stage.db.client().await;
    let named = client.unhandled_kinds().await.expect("the kinds that no worker handles");
    let named: Vec<_> = named.iter().map(|kind| (kind.queue.as_str(), kind.kind.as_str(), kind.available)).collect();
    let told = usize::from(named == [("default", "b", jobs as i64)]);
    let new = stage.start(stage.worker("new").with(|o| o.kinds.push("b".into()))).await;
    let first_try = "select count(*) from tenure.outcome o join tenure.job j on j.id = o.job_id where j.kind = 'b' and o.state = 'c' and o.attempt = 1";
    until_within(LIMIT, "every job of the new kind ends", async || stage.count(first_try, &[]).await as usize >= jobs)
        .await;
    let measures = vec![
        Measure::count("jobs of an unknown kind that wait unharmed", jobs, unharmed),
        Measure::count("the kind that no worker handles is named with its count", 1, told),
        Measure::count(
            "of these, completed at the first attempt by a worker that knows them",
            jobs,
            stage.count(first_try, &[]).await as usize,
        ),
        Measure::new("a job of a known kind behind them", Bound::AtMost(2.0), slowest, "s"),
    ];
    old.shut_down().await;
    new.shut_down().await;
    measures
}

/// SIGTERM with short, long, blocking and waiting jobs; another worker takes what is given back.
pub async fn shutdown(stage: &Stage) -> Vec<Measure> {
    let (long, grace) = (size::SHUTDOWN_JOB.at(stage.size), size::SHUTDOWN_GRACE.at(stage.size));
    let options = |name: &str| {
        stage.worker(name).concurrency(15).with(|o| {
            o.shutdown_grace = grace;
            o.threads = 8;
        })
    };
    let mut first = stage.start(options("first")).await;
    let short = stage.enqueue_many(&Act::Sleep { ms: 1_000 }, 5).await;
    let long_ms = long.as_millis() as u64;
    let cooperative = stage.enqueue_many(&Act::Sleep { ms: long_ms }, 5).await;
    let blocking = stage.enqueue_many(&Act::Block { ms: long_ms }, 5).await;
    stage.started(15, LIMIT).await;
    // Before its short jobs end: what is enqueued from now on is not for this worker, whatever slots become free.
    first.terminate();
    let asked = Instant::now();
    stage.enqueue_many(&Act::Sleep { ms: 10 }, 5).await;
    let mut other = stage.start(options("other")).await;
    let before = "select count(*) from probe where pid = $1";
    let status = first.ended(grace + Duration::from_secs(10)).await;
    let exit = asked.elapsed().as_secs_f64();
    // The runs that blocked to the end ended with their process.
    stage.execute("insert into death (pid) values ($1)", &[&first.pid()]).await;
    let ended: f64 = stage.one("select extract(epoch from clock_timestamp())::float8", &[]).await;
    stage.completed(10, LIMIT).await;
    stage.started(15 + 5 + 10, LIMIT).await;
    let by_first = stage.count(before, &[&first.pid()]).await as usize;
    let completed_short = "select count(*) from tenure.outcome where state = 'c' and attempt = 1 and job_id = any($1)";
    let second = "select coalesce(max(extract(epoch from started_at)), 0)::float8 - $2 from probe where job_id = any($1) and pid <> $3";
    let measures = vec![
        Measure::new(
            "from SIGTERM to the worker's end, above its grace",
            Bound::AtMost(2.0),
            exit - grace.as_secs_f64(),
            "s",
        ),
        Measure::count(
            "short jobs that end before the stop",
            5,
            stage.count(completed_short, &[&short]).await as usize,
        ),
        Measure::count("jobs that the stopping worker started", 15, by_first),
        Measure::new(
            "jobs given back start elsewhere after its end",
            Bound::AtMost(1.5),
            stage.one(second, &[&cooperative, &ended, &first.pid()]).await,
            "s",
        ),
        Measure::new(
            "jobs whose handlers block to the end, the same",
            Bound::AtMost(3.0),
            stage.one(second, &[&blocking, &ended, &first.pid()]).await,
            "s",
        ),
        Measure::count("two runs of one job at a time, stop", 0, stage.overlaps().await as usize),
        Measure::count(
            "attempts that a stop has used",
            0,
            stage.count("select count(*) from tenure.attempt_error", &[]).await as usize,
        ),
        Measure::new(
            "exit code of a worker that had to abort handlers",
            Bound::Shown,
            f64::from(status.code().unwrap_or(-1)),
            "",
        ),
    ];
    stage.kill(&mut other).await;
    measures
}

/// A transaction that holds a low id commits late, while so much waits that no claim comes back short; its job is found within a second.
pub async fn late_commit(stage: &Stage) -> Vec<Measure> {
    let worker = stage.start(stage.worker("a").concurrency(50)).await;
    let mut late = stage.db.sql().await;
    let tx = late.transaction().await.expect("begin");
    let payload = Act::Sleep { ms: 1 }.json();
    let id: i64 =
        tx.query_one("select tenure.enqueue('act', $1::text::json)", &[&payload]).await.expect("enqueued").get(0);
    for _ in 0..30 {
        stage.enqueue_many(&Act::Sleep { ms: 1 }, 4_000).await;
    }
    stage.completed(1_000, LIMIT).await;
    tx.commit().await.expect("commit");
    let committed = Instant::now();
    until_within(LIMIT, "the late job ends", async || stage.status(id).await == "completed").await;
    let took = committed.elapsed().as_secs_f64();
    let waiting = stage.count("select coalesce(sum(bit_count(mask)), 0)::bigint from tenure.ready", &[]).await;
    worker.shut_down().await;
    vec![
        Measure::new("from a late commit with a low id to the end of its job", Bound::AtMost(1.5), took, "s"),
        Measure::new("jobs that still waited then", Bound::AtLeast(1.0), waiting as f64, ""),
    ]
}

/// The rest of a bundle that a worker cut and that others passed meanwhile is claimed when that worker stops.
pub async fn cut_bundle(stage: &Stage) -> Vec<Measure> {
    let ids = stage.enqueue_many(&Act::Sleep { ms: 1 }, 100).await;
    let mut cutter = stage.hand(&Registration { grace_ms: 200, ..Registration::default() }).await;
    cutter.sql.batch_execute("begin").await.expect("begin");
    let (taken, _) = cutter.claim(7).await.expect("claimed");
    assert_eq!(taken.len(), 7);
    let worker = stage.start(stage.worker("a").concurrency(200)).await;
    // The others go past the locked bundle.
    stage.enqueue_many(&Act::Sleep { ms: 1 }, 300).await;
    stage.completed(300, LIMIT).await;
    cutter.sql.batch_execute("commit").await.expect("commit");
    drop(cutter);
    let stopped = Instant::now();
    let rest = "select coalesce(sum(bit_count(mask)), 0)::bigint from tenure.ready where block = $1";
    until_within(LIMIT, "the rest of the cut bundle is claimed", async || {
        let n = stage.count(rest, &[&(ids[0] >> 7)]).await;
        if n == 0 { Ok(()) } else { Err(format!("{n} of 93 are not")) }
    })
    .await;
    let took = stopped.elapsed().as_secs_f64();
    stage.completed(400, LIMIT).await;
    worker.shut_down().await;
    vec![Measure::new(
        "the rest of a cut bundle is claimed once the worker that cut it stops",
        Bound::AtMost(2.0),
        took,
        "s",
    )]
}

/// The answer to a claim is lost; the job runs soon all the same.
pub async fn lost_answer(stage: &Stage) -> Vec<Measure> {
    use tenure::testing::{Cut, Proxy};
    let proxy = Proxy::start(stage.url()).await;
    let worker = stage.start(stage.worker("a").url(proxy.url())).await;
    // Its start is over once it works: a connection that is cut during the start is refused, not made again.
    stage.enqueue(&Act::Sleep { ms: 1 }).await;
    stage.completed(1, LIMIT).await;
    until_within(LIMIT, "both connections of the worker are there", async || proxy.connections() == 2).await;
    let mut slowest = 0.0_f64;
    let rounds = 12;
    for n in 0..rounds {
        proxy.cut_at(Cut::Answer(n % 6 + 1));
        let id = stage.enqueue(&Act::Sleep { ms: 1 }).await;
        let start = Instant::now();
        until_within(LIMIT, "the job ends", async || {
            let status = stage.status(id).await;
            if status == "completed" { Ok(()) } else { Err(status) }
        })
        .await;
        slowest = slowest.max(start.elapsed().as_secs_f64());
        until_within(LIMIT, "the cut was reached", async || proxy.cuts() > n).await;
    }
    let measures = vec![
        Measure::new(
            "a job whose claim or end was answered into a cut connection ends",
            Bound::AtMost(5.0),
            slowest,
            "s",
        ),
        Measure::count("of these, started more than once", 0, stage.started_again().await as usize),
    ];
    until_within(LIMIT, "both connections of the worker are back", async || proxy.connections() == 2).await;
    worker.shut_down().await;
    measures
}
