//! The fault sweep over a worker's whole life: registering, claiming, every way in which a handler ends, giving back,
//! signing off. Its connections are cut before the n-th message, for n = 1, 2, … until a life ends before that; once they
//! come back, and once the worker never does.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::json;
use tenure::testing::{Cut, Proxy, until_within};
use tenure::{Context, Fail, KindOptions, RawJson, RetryPolicy, StopReason, Worker, WorkerBuilder};
use tokio_postgres::NoTls;

use crate::{Bound, Measure, Stage, size};

const LIMIT: Duration = Duration::from_secs(40);
/// No life has this many messages.
const POINTS_MAX: u64 = 5_000;
/// A life's number of messages depends on who comes first: so many lives in a row that end before the cut are the end.
const NOT_REACHED: usize = 2;

/// What the jobs of a life do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Part {
    Return,
    FailOnce,
    FailForGood,
    SnoozeOnce,
    Progress,
    Effect,
    CancelItself,
    Enqueue,
}

const PARTS: [Part; 9] = [
    Part::Return,
    Part::Return,
    Part::FailOnce,
    Part::FailForGood,
    Part::SnoozeOnce,
    Part::Progress,
    Part::Effect,
    Part::CancelItself,
    Part::Enqueue,
];

/// What becomes of the worker whose connection was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// It goes on.
    ComesBack,
    /// It is gone.
    Dies,
}

/// What the sweep found.
#[derive(Default)]
struct Found {
    lives: usize,
    lost: usize,
    effects_wrong: usize,
    wrong_end: Vec<String>,
    /// Starts beyond the first that no record explains.
    unexplained: Vec<String>,
    /// Jobs of a worker that lived and that were rescued all the same.
    rescued_alive: usize,
    slowest: f64,
}

/// The worker comes back after each cut.
pub async fn worker_comes_back(stage: &Stage) -> Vec<Measure> {
    sweep(stage, Then::ComesBack).await
}

/// The worker is gone with each cut, and another one does the rest.
pub async fn worker_dies(stage: &Stage) -> Vec<Measure> {
    sweep(stage, Then::Dies).await
}

/// A life that nobody disturbs.
pub async fn undisturbed(stage: &Stage, what: &str) -> Vec<Measure> {
    let proxy = Proxy::start(stage.url()).await;
    let mut found = Found::default();
    life(stage, &proxy, Cut::ToServer(u64::MAX), Then::ComesBack, &mut found).await;
    stage.db.check_invariants().await;
    let wrong =
        found.lost + found.wrong_end.len() + found.effects_wrong + found.unexplained.len() + found.rescued_alive;
    vec![Measure::count(format!("{what}: jobs of a worker's whole life that did not end as they should"), 0, wrong)]
}

/// A life behind a pooler in transaction mode; the handlers' own transactions are direct. What did not end as it should.
pub async fn behind_a_pooler(stage: &Stage, url: &str) -> usize {
    let queue = format!("q{:x}", fastrand::u64(..));
    let jobs = enqueue(stage, &queue).await;
    let (starts, mut found) = (Starts::default(), Found::default());
    until_within(LIMIT, "all jobs end behind a pooler", async || {
        stage.one::<String>("select tenure.promote()::text", &[]).await;
        drain(worker(url, stage.url(), &queue, &starts).pooler(true)).await;
        ends(stage, &queue).await.values().all(Option::is_some)
    })
    .await;
    judge(stage, &queue, &jobs, &starts, (Cut::ToServer(u64::MAX), Then::ComesBack), &mut found).await;
    found.lost + found.wrong_end.len() + found.effects_wrong + found.unexplained.len() + found.rescued_alive
}

async fn sweep(stage: &Stage, then: Then) -> Vec<Measure> {
    let proxy = Proxy::start(stage.url()).await;
    let mut found = Found::default();
    for direction in [Cut::ToServer as fn(u64) -> Cut, Cut::FromServer] {
        let step = size::SWEEP_STEP.at(stage.size);
        let (mut n, mut not_reached) = (fastrand::u64(1..=step), 0);
        while not_reached < NOT_REACHED {
            assert!(n < POINTS_MAX, "{POINTS_MAX} messages and no end");
            let reached = life(stage, &proxy, direction(n), then, &mut found).await;
            stage.db.check_invariants().await;
            not_reached = if reached { 0 } else { not_reached + 1 };
            n += step;
        }
    }
    let name = match then {
        Then::ComesBack => "a worker's life cut at every message",
        Then::Dies => "a worker that dies at every message",
    };
    let list = |faults: &[String]| {
        faults.iter().for_each(|fault| eprintln!("{fault}"));
        faults.len()
    };
    let mut measures = vec![
        Measure::new(format!("{name}: lives"), Bound::AtLeast(8.0), found.lives as f64, ""),
        Measure::count(format!("{name}: jobs without an end"), 0, found.lost),
        Measure::count(format!("{name}: jobs that ended in another way than they should"), 0, list(&found.wrong_end)),
        Measure::count(
            format!("{name}: effects of complete_in that are not there exactly once"),
            0,
            found.effects_wrong,
        ),
        Measure::count(format!("{name}: starts that nothing recorded explains"), 0, list(&found.unexplained)),
        Measure::new(format!("{name}: the longest until all had ended"), Bound::AtMost(15.0), found.slowest, "s"),
    ];
    if then == Then::ComesBack {
        measures.push(Measure::count(format!("{name}: its jobs taken away although it lived"), 0, found.rescued_alive));
    }
    measures
}

/// One life; true when the cut was reached.
async fn life(stage: &Stage, proxy: &Proxy, cut: Cut, then: Then, found: &mut Found) -> bool {
    let queue = format!("q{:x}", fastrand::u64(..));
    let jobs = enqueue(stage, &queue).await;
    let (starts, began, cuts) = (Starts::default(), Instant::now(), proxy.cuts());
    match then {
        Then::ComesBack => proxy.cut_at(cut),
        Then::Dies => proxy.cut_off_at(cut),
    }
    let first = worker(proxy.url(), proxy.url(), &queue, &starts);
    match then {
        Then::ComesBack => work_again(first, proxy, &queue, &starts).await,
        Then::Dies => work_and_die(stage, first, proxy, &queue).await,
    }
    proxy.disarm();
    let reached = proxy.cuts() > cuts;
    // Whatever is left is done by a worker that nobody disturbs.
    until_within(LIMIT, &format!("all jobs end, {cut:?}, {then:?}"), async || {
        // Retries wait for a millisecond; a worker that drains does not wait for them.
        stage.one::<String>("select tenure.promote()::text", &[]).await;
        drain(worker(stage.url(), stage.url(), &queue, &starts)).await;
        let left = ends(stage, &queue).await.into_iter().filter(|(_, end)| end.is_none()).count();
        if left == 0 { Ok(()) } else { Err(format!("{left} are left: {:?}", stage.statuses().await)) }
    })
    .await;
    found.slowest = found.slowest.max(began.elapsed().as_secs_f64());
    found.lives += 1;
    judge(stage, &queue, &jobs, &starts, (cut, then), found).await;
    reached
}

async fn enqueue(stage: &Stage, queue: &str) -> HashMap<i64, Part> {
    let mut jobs = HashMap::new();
    for part in PARTS {
        let payload = json!({ "part": part }).to_string();
        let enqueue = "select tenure.enqueue('part', $1::text::json, $2, 2, null, 20)";
        jobs.insert(stage.one::<i64>(enqueue, &[&payload, &queue]).await, part);
    }
    jobs
}

async fn work_again(first: WorkerBuilder, proxy: &Proxy, queue: &str, starts: &Starts) {
    // The first registration is the program's to repeat.
    let mut running = match first.start().await {
        Ok(running) => running,
        Err(error) => {
            assert!(error.is_retryable(), "a start that was cut says {error:?}");
            worker(proxy.url(), proxy.url(), queue, starts).start().await.expect("it starts at the second try")
        }
    };
    tokio::time::timeout(LIMIT, running.join()).await.expect("it drains its queue although it was cut");
}

/// The worker runs on a runtime of its own, which ends when the cut is reached: nothing of it is left.
async fn work_and_die(stage: &Stage, first: WorkerBuilder, proxy: &Proxy, queue: &str) {
    let cuts = proxy.cuts();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let ended = runtime.spawn(async move {
        if let Ok(mut running) = first.start().await {
            running.join().await;
        }
    });
    until_within(LIMIT, "the worker is cut off or has drained", async || proxy.cuts() > cuts || ended.is_finished())
        .await;
    runtime.shutdown_background();
    proxy.disarm();
    proxy.set(tenure::testing::Fault::None);
    let mine = "select id from tenure.worker where $1 = any(queues)";
    for row in stage.sql.query(mine, &[&queue]).await.expect("workers") {
        stage.expire(row.get(0)).await;
    }
    stage.rescue().await;
}

async fn drain(worker: WorkerBuilder) {
    let mut running = worker.start().await.expect("an undisturbed worker");
    tokio::time::timeout(LIMIT, running.join()).await.expect("it drains its queue");
}

/// How often each job was started.
type Starts = Arc<Mutex<HashMap<i64, usize>>>;

fn worker(url: &str, of_handlers: &str, queue: &str, starts: &Starts) -> WorkerBuilder {
    let (of_handlers, starts) = (of_handlers.to_owned(), starts.clone());
    let options = KindOptions::new().retry(RetryPolicy::fixed(Duration::from_millis(1)));
    Worker::builder(url)
        .queue(queue, 3)
        .lease(Duration::from_secs(20))
        .shutdown_grace(Duration::from_secs(2))
        .drain(true)
        .handle_raw("part", options, move |ctx, payload| {
            *starts.lock().expect("starts").entry(ctx.job_id().get()).or_default() += 1;
            let url = of_handlers.clone();
            async move { act(&ctx, &url, &payload).await }
        })
        .handle_raw("child", KindOptions::new(), |_, _| async { Ok(None) })
}

#[derive(Deserialize)]
struct Payload {
    part: Part,
}

async fn act(ctx: &Context, url: &str, payload: &RawJson) -> Result<Option<RawJson>, Fail> {
    let first = ctx.attempt() == 1;
    match payload.decode::<Payload>()?.part {
        Part::FailOnce if first => Err(Fail::retry("the first time")),
        Part::FailForGood => Err(Fail::permanent("as asked")),
        // A snooze uses no attempt: the clock ends it.
        Part::SnoozeOnce if is_young(ctx).await? => Err(Fail::snooze(Duration::from_millis(1))),
        Part::Return | Part::FailOnce | Part::SnoozeOnce => Ok(Some(RawJson::of(&"done")?)),
        Part::Progress => {
            ctx.progress(&1).await?;
            Ok(None)
        }
        Part::Effect => {
            effect(ctx, url).await?;
            Ok(None)
        }
        Part::CancelItself => {
            ctx.client().cancel(ctx.job_id()).await?;
            match ctx.cancelled().await {
                StopReason::Cancelled => Err(Fail::cancelled()),
                other => Err(Fail::retry(format!("stopped: {other:?}"))),
            }
        }
        Part::Enqueue => {
            let child = tenure::Enqueue::raw("child", RawJson::null()).queue(ctx.queue());
            ctx.client().enqueue(child).await?;
            Ok(None)
        }
    }
}

/// The first run of a job asks for another one: none has left a progress yet.
async fn is_young(ctx: &Context) -> Result<bool, Fail> {
    let job = ctx.client().get(ctx.job_id()).await?;
    let young = job.is_some_and(|job| job.progress.is_none());
    if young {
        ctx.progress(&"snoozed").await?;
    }
    Ok(young)
}

async fn effect(ctx: &Context, url: &str) -> Result<(), Fail> {
    let (mut sql, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    let mut tx = sql.transaction().await?;
    let insert = "insert into effect (job_id, attempt) values ($1, $2)";
    tx.execute(insert, &[&ctx.job_id().get(), &i32::from(ctx.attempt())]).await?;
    ctx.complete_in(&mut tx, &"stored").await?;
    tx.commit().await?;
    Ok(())
}

/// Every job of the queue and how it ended, children included.
async fn ends(stage: &Stage, queue: &str) -> HashMap<i64, Option<String>> {
    let ends = "select j.id, case o.state when 'c' then 'completed' when 'x' then 'cancelled' end, d.cause
        from tenure.job j left join tenure.outcome o on o.job_id = j.id left join tenure.dead_letter d on d.job_id = j.id
        where j.queue = $1";
    let rows = stage.sql.query(ends, &[&queue]).await.expect("ends");
    let end = |row: &tokio_postgres::Row| {
        row.get::<_, Option<String>>(1).or(row.get::<_, Option<String>>(2).map(|cause| format!("dead: {cause}")))
    };
    rows.iter().map(|row| (row.get(0), end(row))).collect()
}

async fn judge(
    stage: &Stage,
    queue: &str,
    jobs: &HashMap<i64, Part>,
    starts: &Starts,
    at: (Cut, Then),
    found: &mut Found,
) {
    let ends = ends(stage, queue).await;
    let starts = starts.lock().expect("starts").clone();
    for (job, part) in jobs {
        let Some(end) = ends.get(job).cloned().flatten() else {
            found.lost += 1;
            continue;
        };
        let expected = match part {
            Part::FailForGood => "dead: error",
            Part::CancelItself => "cancelled",
            Part::Return | Part::FailOnce | Part::SnoozeOnce | Part::Progress | Part::Effect | Part::Enqueue => {
                "completed"
            }
        };
        if end != expected {
            found.wrong_end.push(format!("{at:?}: {part:?} {job} ended as {end}"));
        }
        let recorded: i64 = stage.one("select count(*) from tenure.attempt_error where job_id = $1", &[job]).await;
        let last = usize::from(matches!(expected, "completed"));
        let snoozes = usize::from(*part == Part::SnoozeOnce);
        let count = starts.get(job).copied().unwrap_or_default();
        if count > recorded as usize + last + snoozes {
            found.unexplained.push(format!("{at:?}: {part:?} {job} started {count} times, {recorded} recorded"));
        }
        if *part == Part::Effect {
            let effects = stage.count("select count(*) from effect where job_id = $1", &[job]).await;
            found.effects_wrong += usize::from(effects != 1);
        }
    }
    let rescued = "select count(*) from tenure.attempt_error e join tenure.job j on j.id = e.job_id
        where j.queue = $1 and e.cause = 'worker_lost'";
    found.rescued_alive += stage.count(rescued, &[&queue]).await as usize;
}
