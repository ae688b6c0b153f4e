//! What every product does, and how it is timed.
//!
//! - `setup`: makes the product's tables and its queue in an empty database.
//! - `enqueue N [--mode bulk|single] [--concurrency C]`: enqueues N no-ops with the payload `{"i": …}`. Time: from the
//!   first call to the last commit; connections are open before.
//! - `work N [--concurrency C]`: one worker, or PEER_WORKERS of them, handle the N jobs that wait. Time: from before the worker is started until the end
//!   of the last job is recorded (`recorded.rs`), whatever the product thinks of it. Then the worker is stopped in order.
//! - `latency N`: an idle worker, and N single jobs one after another. Time: from the commit, and from before the call, to
//!   the start of the handler.
//!
//! Each prints one JSON object.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;

use crate::call::{Call, Mode, Verb, setting};
use crate::meter;
use crate::recorded::Recorded;

/// Jobs of one bulk call, for all products: what a loader would do that commits now and then.
const BULK_JOBS: u64 = 5_000;
/// Slots of the worker whose latency is measured.
const IDLE_CONCURRENCY: usize = 8;
/// A worker is idle so long after its start.
const SETTLED: Duration = Duration::from_millis(1_500);
/// The first jobs of a latency run prepare statements and open connections; they do not count.
const WARM_JOBS: u64 = 5;
/// A latency run ends after this time, with the jobs that it has: some products take a second for each.
const LATENCY_MAX: Duration = Duration::from_secs(45);
const START_MAX: Duration = Duration::from_secs(60);
const STOP_MAX: Duration = Duration::from_secs(20);

/// One product.
pub(crate) trait Driver: Sized + Send + Sync + 'static {
    /// Connects, for so many callers that enqueue at a time.
    async fn connect(url: &str, callers: usize) -> Result<Self>;

    /// Makes the tables and the queue.
    async fn setup(&self) -> Result<()>;

    /// Enqueues these jobs with one call for many, and commits.
    async fn enqueue_bulk(&self, jobs: Range<u64>) -> Result<()>;

    /// Enqueues one job and commits. Callers are numbered from 0, and are tasks of their own.
    fn enqueue_one(&self, caller: usize, job: u64) -> impl Future<Output = Result<()>> + Send;

    /// Starts a worker whose handlers call [`meter::handled`].
    async fn start(&self, load: Load, concurrency: usize) -> Result<Stop>;
}

/// What the worker is for: products have other settings for it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    /// Many jobs wait.
    Full,
    /// Single jobs come now and then.
    Idle,
}

/// Stops a worker in order, when awaited.
pub(crate) type Stop = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// Does what was asked, and gives the JSON to print.
pub(crate) async fn run<D: Driver>(call: &Call) -> Result<Value> {
    match call.verb {
        Verb::Setup => {
            D::connect(&call.url, 1).await?.setup().await?;
            Ok(json!({}))
        }
        Verb::Enqueue { jobs, mode, concurrency } => {
            let driver = D::connect(&call.url, concurrency).await?;
            let began = Instant::now();
            match mode {
                Mode::Bulk => in_bulk(jobs, |range| driver.enqueue_bulk(range)).await?,
                Mode::Single => singly(driver, jobs, concurrency).await?,
            }
            Ok(json!({ "seconds": began.elapsed().as_secs_f64() }))
        }
        Verb::Work { jobs, concurrency } => work::<D>(&call.url, jobs, concurrency).await,
        Verb::Latency { jobs } => latency::<D>(&call.url, jobs).await,
    }
}

async fn in_bulk<F: Future<Output = Result<()>>>(jobs: u64, enqueue: impl Fn(Range<u64>) -> F) -> Result<()> {
    let mut first = 0;
    while first < jobs {
        let next = jobs.min(first + BULK_JOBS);
        enqueue(first..next).await?;
        first = next;
    }
    Ok(())
}

async fn singly<D: Driver>(driver: D, jobs: u64, callers: usize) -> Result<()> {
    let (driver, next) = (Arc::new(driver), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for caller in 0..callers {
        let (driver, next) = (driver.clone(), next.clone());
        tasks.spawn(async move {
            loop {
                let job = next.fetch_add(1, Relaxed);
                if job >= jobs {
                    return Ok(());
                }
                driver.enqueue_one(caller, job).await?;
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(anyhow::Error::from).and_then(|result: Result<()>| result)?;
    }
    Ok(())
}

async fn work<D: Driver>(url: &str, jobs: u64, concurrency: usize) -> Result<Value> {
    let (driver, recorded) = (D::connect(url, 1).await?, Recorded::connect(url).await?);
    meter::expect(jobs);
    let began = Instant::now();
    let mut stops = Vec::new();
    for _ in 0..workers()? {
        stops.push(driver.start(Load::Full, concurrency).await?);
    }
    let handled = meter::reached().await?;
    let recorded = recorded.wait().await?;
    for stop in stops {
        stop_in_time(stop).await?;
    }
    let seconds = |until: Instant| (until - began).as_secs_f64();
    Ok(json!({ "seconds": seconds(recorded), "handled_seconds": seconds(handled), "handled": meter::seen() }))
}

/// So many workers share the program, whatever the product: one, unless its setting says otherwise.
fn workers() -> Result<usize> {
    if std::env::var_os("PEER_WORKERS").is_none() { Ok(1) } else { setting("PEER_WORKERS") }
}

async fn latency<D: Driver>(url: &str, jobs: u64) -> Result<Value> {
    let driver = D::connect(url, 1).await?;
    let mut starts = meter::starts();
    let stop = driver.start(Load::Idle, IDLE_CONCURRENCY).await?;
    // sleep: an idle worker shows by nothing that it is idle.
    tokio::time::sleep(SETTLED).await;
    let (mut from_commit, mut from_call) = (Vec::new(), Vec::new());
    let began = Instant::now();
    for job in 0..jobs + WARM_JOBS {
        if began.elapsed() > LATENCY_MAX {
            break;
        }
        let (called, committed, started) = one_job(&driver, &mut starts, job).await?;
        if job >= WARM_JOBS {
            from_commit.push(milliseconds(started.saturating_duration_since(committed)));
            from_call.push(milliseconds(started - called));
        }
        // sleep: 10 to 30 ms, not in step with anybody's poll, so that the worker is idle again.
        tokio::time::sleep(Duration::from_millis(10 + job * 7_919 % 21)).await;
    }
    stop_in_time(stop).await?;
    Ok(json!({
        "jobs": from_commit.len(),
        "p50_ms": percentile(&mut from_commit, 50)?,
        "p99_ms": percentile(&mut from_commit, 99)?,
        "call_p50_ms": percentile(&mut from_call, 50)?,
        "call_p99_ms": percentile(&mut from_call, 99)?,
    }))
}

/// When it was called for, when it was committed, and when its handler started.
async fn one_job<D: Driver>(
    driver: &D,
    starts: &mut UnboundedReceiver<Instant>,
    job: u64,
) -> Result<(Instant, Instant, Instant)> {
    if starts.try_recv().is_ok() {
        bail!("a job ran twice");
    }
    let called = Instant::now();
    driver.enqueue_one(0, job).await?;
    let committed = Instant::now();
    let started = tokio::time::timeout(START_MAX, starts.recv()).await;
    let started = started.with_context(|| format!("no handler in {} s", START_MAX.as_secs()))?;
    Ok((called, committed, started.context("the meter is gone")?))
}

async fn stop_in_time(stop: Stop) -> Result<()> {
    match tokio::time::timeout(STOP_MAX, stop).await {
        Ok(stopped) => stopped,
        Err(_) => Err(anyhow!("the worker did not stop within {} s", STOP_MAX.as_secs())),
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The smallest value that is not below so many percent of all.
fn percentile(values: &mut [f64], percent: usize) -> Result<f64> {
    values.sort_by(f64::total_cmp);
    let at = (values.len() * percent).div_ceil(100).max(1) - 1;
    values.get(at).copied().context("no job was measured")
}
