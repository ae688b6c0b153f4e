//! Idle: many workers that have nothing to do, what that costs, and how many of them wake for one job.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tenure::{Client, Enqueue, JobOptions};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::sleep;

use super::clock::{Times, ms_between, now_ns};
use super::crew::{AtWork, Crew};
use super::ended::Ended;
use super::options::IdleOptions;
use super::payload::Payloads;
use super::place::Place;
use super::progress::Progress;
use super::report::{Figure, Run};
use super::rounds::in_turns;
use super::words::{Counted, Tell};
use super::{KIND, QUEUE};

/// How long it may take until all sleep.
const ASLEEP_MAX: Duration = Duration::from_secs(60);
/// How often it is looked whether they do.
const LOOK: Duration = Duration::from_millis(20);
/// Those that said that they sleep, and have not taken it back.
const ASLEEP: &str = "select count(distinct s.worker_id) from sleeper s join worker w on w.id = s.worker_id";

/// What one step took and what it made workers do.
struct Step {
    seconds: f64,
    counted: Counted,
    /// Notifications to workers.
    words: u64,
}

/// What one round brought.
struct Watched {
    idle: Step,
    one_by_one: Step,
    waits: Times,
    burst: Step,
    /// From the last end of the burst until all sleep again.
    asleep_again_s: f64,
    ended: Ended,
}

/// Measures one fleet.
///
/// # Errors
/// The database fails, a worker ends, or one does not go to sleep.
pub async fn run(place: &Place, options: &IdleOptions) -> Result<Vec<Run>> {
    let IdleOptions { workers, concurrency, .. } = *options;
    let crew = Crew { workers, concurrency, queues: 1, run_time: Duration::ZERO, tell: Tell::Each };
    let turns =
        [(format!("{workers} idle workers, {} jobs one at a time, {} at once", options.jobs, options.burst), crew)];
    in_turns(place, &options.scene, options.common.rounds, &turns, async |crew, payloads| {
        Ok(run_of(options, &one(place, options, crew, payloads).await?))
    })
    .await
}

async fn one(place: &Place, options: &IdleOptions, crew: Crew, payloads: &Arc<Payloads>) -> Result<Watched> {
    let mut at_work = crew.begin(place).await?;
    at_work.until_registered().await?;
    let client = place.client(1).connect().await?;
    let mut fleet = Fleet::watch(place, options, &mut at_work).await?;
    // sleep: nothing happens, and that is what is measured.
    let (idle, ()) = fleet
        .step(async |_| {
            sleep(options.idle).await;
            Ok(())
        })
        .await?;
    let (one_by_one, waits) =
        fleet.step(async |at_work| each_alone(place, &client, at_work, options, payloads).await).await?;
    ensure!(one_by_one.words > 0, "no notification was heard, although jobs came to workers that slept");
    let (burst, asleep_again_s) =
        fleet.step(async |at_work| all_at_once(place, &client, at_work, options, payloads).await).await?;
    let ended = at_work.stop().await?;
    Ok(Watched { idle, one_by_one, waits: Times::new(waits), burst, asleep_again_s, ended })
}

/// The workers, and somebody who hears what they are told.
struct Fleet<'a> {
    place: &'a Place,
    workers: u16,
    at_work: &'a mut AtWork,
    words: UnboundedReceiver<u64>,
    _listener: tokio_postgres::Client,
}

impl<'a> Fleet<'a> {
    async fn watch(place: &'a Place, options: &IdleOptions, at_work: &'a mut AtWork) -> Result<Fleet<'a>> {
        let (listener, words) = place.listener().await?;
        let channels = "select string_agg(format('listen %I', current_schema() || '_' || w.id), ';') from worker w";
        let channels: String = place.sql.query_one(channels, &[]).await?.get(0);
        listener.batch_execute(&channels).await?;
        Ok(Fleet { place, workers: options.workers, at_work, words, _listener: listener })
    }

    /// From all asleep to all asleep.
    async fn step<T>(&mut self, act: impl AsyncFnOnce(&mut AtWork) -> Result<T>) -> Result<(Step, T)> {
        until_all_sleep(self.place, self.workers).await?;
        let (before, start) = (self.at_work.count().await?, Instant::now());
        while self.words.try_recv().is_ok() {}
        let value = act(self.at_work).await?;
        until_all_sleep(self.place, self.workers).await?;
        let (counted, seconds) = (self.at_work.count().await?.since(before), start.elapsed().as_secs_f64());
        let words = std::iter::from_fn(|| self.words.try_recv().ok()).count() as u64;
        Ok((Step { seconds, counted, words }, value))
    }
}

async fn until_all_sleep(place: &Place, workers: u16) -> Result<()> {
    let start = Instant::now();
    loop {
        let asleep: i64 = place.sql.query_one(ASLEEP, &[]).await?.get(0);
        if asleep == i64::from(workers) {
            return Ok(());
        }
        ensure!(start.elapsed() < ASLEEP_MAX, "{asleep} of {workers} workers sleep after {} s", ASLEEP_MAX.as_secs());
        // sleep: workers that go to sleep tell nobody.
        sleep(LOOK).await;
    }
}

/// How long each took from its commit to the start of the handler.
async fn each_alone(
    place: &Place,
    client: &Client,
    at_work: &mut AtWork,
    options: &IdleOptions,
    payloads: &Payloads,
) -> Result<Vec<f64>> {
    let mut waits = Vec::new();
    let mut progress = Progress::new("jobs", options.jobs.into());
    for n in 0..options.jobs as usize {
        // sleep: nothing happens, as was asked for.
        sleep(options.pause.mul_f64(0.5 + fastrand::f64())).await;
        until_all_sleep(place, options.workers).await?;
        let id = client.enqueue(Enqueue::raw(KIND, payloads.get(n).clone()).queue(QUEUE)).await?;
        let committed_ns = now_ns();
        let runs = at_work.next_runs().await?;
        ensure!(runs.len() == 1 && runs[0].job == id.get(), "the workers ran {runs:?} when job {id} was enqueued");
        waits.push(ms_between(committed_ns, runs[0].started_ns));
        progress.at(waits.len() as u64);
    }
    Ok(waits)
}

/// Seconds from the last end until all sleep.
async fn all_at_once(
    place: &Place,
    client: &Client,
    at_work: &mut AtWork,
    options: &IdleOptions,
    payloads: &Payloads,
) -> Result<f64> {
    let burst = options.burst as usize;
    client.enqueue_many(KIND, payloads.take(burst), JobOptions::new().queue(QUEUE)).await?;
    let mut ran = 0;
    while ran < burst {
        ran += at_work.next_runs().await.with_context(|| format!("{ran} of {burst} jobs ran"))?.len();
    }
    let last = Instant::now();
    until_all_sleep(place, options.workers).await?;
    Ok(last.elapsed().as_secs_f64())
}

fn run_of(options: &IdleOptions, watched: &Watched) -> Run {
    let Watched { idle, one_by_one, waits, burst, asleep_again_s, ended } = watched;
    let jobs = f64::from(options.jobs);
    let per_second = |of: fn(Counted) -> u64| of(idle.counted) as f64 / idle.seconds;
    let idle_claims = per_second(|counted| counted.claims);
    // Beyond those that come anyway.
    let claims = one_by_one.counted.claims as f64 - idle_claims * one_by_one.seconds;
    Run::new()
        .key("workers", options.workers)
        .figure(Figure::tenths("idle_cpu_percent", "idle CPU %", per_second(|counted| counted.cpu_us) / 10_000.0))
        .figure(Figure::tenths("idle_claims_per_s", "idle claims/s", idle_claims))
        .figure(Figure::fine("words_per_job", "NOTIFY/job", one_by_one.words as f64 / jobs))
        .figure(Figure::fine("claims_per_job", "claims/job", claims.max(0.0) / jobs))
        .figure(Figure::fine("p50_ms", "p50 ms", waits.percentile(50)))
        .figure(Figure::fine("p99_ms", "p99 ms", waits.percentile(99)))
        .figure(Figure::whole("burst_words", "burst NOTIFY", burst.words as f64))
        .figure(Figure::whole("burst_claims", "burst claims", burst.counted.claims as f64))
        .figure(Figure::fine("burst_s", "burst s", burst.seconds - asleep_again_s))
        .figure(Figure::fine("asleep_again_s", "asleep after s", *asleep_again_s))
        .figure(Figure::tenths("peak_mb", "peak MB", ended.peak_mb))
        .more("jobs", options.jobs + options.burst)
        .more("completed", ended.completed)
}
