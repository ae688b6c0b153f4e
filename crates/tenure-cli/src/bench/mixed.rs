//! Mixed: jobs come at a steady rate while workers run them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tenure::{Client, Enqueue};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::clock::{Times, ms_between, now_ns};
use super::crew::{AtWork, Crew, Done};
use super::meter::{Cost, Meter};
use super::options::MixedOptions;
use super::payload::Payloads;
use super::place::Place;
use super::population::{Pin, populate};
use super::progress::{Progress, say};
use super::report::{Figure, Run};
use super::words::{Ran, Tell};
use super::{KIND, QUEUE};

/// One job as its producer saw it.
#[derive(Debug, Clone, Copy)]
struct Sent {
    job: i64,
    /// When the steady rate wanted it to be sent: a producer that is held up does not hide that others wait.
    due_ns: u64,
    called_ns: u64,
    committed_ns: u64,
}

/// What one round brought.
struct Load {
    sent: Vec<Sent>,
    ran: HashMap<i64, Ran>,
    seconds: f64,
    cost: Cost,
    done: Done,
}

/// Measures the load.
///
/// # Errors
/// The database fails, a worker ends, or a job does not run.
pub async fn run(place: &Place, options: &MixedOptions) -> Result<Vec<Run>> {
    let payloads = Arc::new(Payloads::new(options.scene.payload)?);
    populate(place, &options.scene, &payloads).await?;
    let mut runs = Vec::new();
    for round in 1..=options.common.rounds {
        say(&format!("round {round}: {} jobs a second for {:?}", options.rate, options.duration));
        place.prepare(&options.scene).await?;
        let pin = Pin::open(place, &options.scene).await?;
        let load = one(place, options, &payloads).await?;
        pin.close().await?;
        runs.push(run_of(round, options, &load));
    }
    Ok(runs)
}

async fn one(place: &Place, options: &MixedOptions, payloads: &Arc<Payloads>) -> Result<Load> {
    let MixedOptions { workers, concurrency, run_time, .. } = *options;
    let mut at_work = Crew { workers, concurrency, run_time, tell: Tell::Each }.begin(place).await?;
    at_work.until_registered().await?;
    let mut clients = Vec::new();
    for _ in 0..options.producers {
        clients.push(place.client(1).connect().await?);
    }
    let meter = Meter::start(place).await?;
    let begun = now_ns();
    let (sent, ran) = tokio::try_join!(send(&clients, options, payloads), hear(&mut at_work, options))?;
    let seconds = ms_between(begun, now_ns()) / 1_000.0;
    let mut cost = meter.cost(place).await?;
    drop(clients);
    let done = at_work.stop().await?;
    meter.settle(place, &mut cost).await?;
    Ok(Load { sent, ran, seconds, cost, done })
}

fn jobs_of(options: &MixedOptions) -> u64 {
    (f64::from(options.rate) * options.duration.as_secs_f64()).round() as u64
}

/// All producers together keep the rate; each takes the next job whenever it is free.
async fn send(clients: &[Client], options: &MixedOptions, payloads: &Arc<Payloads>) -> Result<Vec<Sent>> {
    let (jobs, next) = (jobs_of(options), Arc::new(AtomicU64::new(0)));
    let gap = Duration::from_secs_f64(1.0 / f64::from(options.rate));
    let (start, start_ns) = (Instant::now(), now_ns());
    let mut all = JoinSet::new();
    for client in clients {
        let (client, next, payloads) = (client.clone(), next.clone(), payloads.clone());
        all.spawn(async move {
            let mut sent = Vec::new();
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= jobs {
                    return anyhow::Ok(sent);
                }
                let after = gap.mul_f64(n as f64);
                // sleep: the steady rate.
                sleep_until(start + after).await;
                let job = Enqueue::raw(KIND, payloads.get(n as usize).clone()).queue(QUEUE);
                let called_ns = now_ns();
                let job = client.enqueue(job).await?.get();
                let due_ns = start_ns + after.as_nanos() as u64;
                sent.push(Sent { job, due_ns, called_ns, committed_ns: now_ns() });
            }
        });
    }
    let mut sent = Vec::new();
    while let Some(done) = all.join_next().await {
        sent.extend(done.context("a producer panicked")??);
    }
    Ok(sent)
}

/// Until every job has run.
async fn hear(at_work: &mut AtWork, options: &MixedOptions) -> Result<HashMap<i64, Ran>> {
    let jobs = jobs_of(options);
    let mut progress = Progress::new("jobs run", jobs);
    let mut ran = HashMap::new();
    while (ran.len() as u64) < jobs {
        let runs = at_work.next_runs().await.with_context(|| format!("{} of {jobs} jobs ran", ran.len()))?;
        ran.extend(runs.into_iter().map(|run| (run.job, run)));
        progress.at(ran.len() as u64);
    }
    Ok(ran)
}

fn run_of(round: u32, options: &MixedOptions, load: &Load) -> Run {
    let Load { sent, ran, seconds, cost, done } = load;
    let jobs = sent.len() as f64;
    let times = |of: &dyn Fn(&Sent) -> Option<f64>| Times::new(sent.iter().filter_map(of).collect());
    let calls = times(&|sent| Some(ms_between(sent.called_ns, sent.committed_ns)));
    let waits = times(&|sent| Some(ms_between(sent.committed_ns, ran.get(&sent.job)?.started_ns)));
    let whole = times(&|sent| Some(ms_between(sent.due_ns, ran.get(&sent.job)?.started_ns)));
    let handlers = Times::new(ran.values().map(|run| run.took_ns as f64 / 1e6).collect());
    Run::new(round)
        .key("rate", options.rate)
        .key("workers", options.workers)
        .key("concurrency", options.concurrency)
        .figure(Figure::rate("jobs_per_s", "jobs/s", jobs / seconds))
        .figure(Figure::fine("enqueue_p50_ms", "enqueue p50 ms", calls.percentile(50)))
        .figure(Figure::fine("enqueue_p99_ms", "p99", calls.percentile(99)))
        .figure(Figure::fine("wait_p50_ms", "wait p50 ms", waits.percentile(50)))
        .figure(Figure::fine("wait_p95_ms", "p95", waits.percentile(95)))
        .figure(Figure::fine("wait_p99_ms", "p99", waits.percentile(99)))
        .figure(Figure::fine("wait_max_ms", "max", waits.longest()))
        .figure(Figure::fine("run_p50_ms", "run p50 ms", handlers.percentile(50)))
        .figure(Figure::fine("run_p99_ms", "p99", handlers.percentile(99)))
        .figure(Figure::whole("wal_bytes_per_job", "WAL B/job", cost.wal_bytes / jobs))
        .figure(Figure::fine("transactions_per_job", "tx/job", cost.transactions / jobs))
        .figure(Figure::tenths("database_cpu_us_per_job", "db CPU us/job", cost.session_cpu_us.map(|cpu| cpu / jobs)))
        .figure(Figure::tenths("worker_cpu_us_per_job", "worker CPU us/job", done.cpu_us as f64 / jobs))
        .figure(Figure::tenths("peak_mb", "peak MB", done.peak_mb))
        .more("jobs", sent.len())
        .more("completed", done.completed)
        .more("seconds", *seconds)
        .more("run_p95_ms", handlers.percentile(95))
        .more("run_max_ms", handlers.longest())
        .more("due_to_start_p50_ms", whole.percentile(50))
        .more("due_to_start_p99_ms", whole.percentile(99))
        .more("calls_per_job", (done.claims + done.flushes) as f64 / jobs)
        .more("background_cpu_us_per_job", cost.background_cpu_us.map(|cpu| cpu / jobs))
        .more("page_images", cost.page_images)
}
