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
use super::crew::{AtWork, Crew};
use super::ended::Ended;
use super::meter::{Cost, Meter};
use super::options::MixedOptions;
use super::payload::Payloads;
use super::place::Place;
use super::progress::{Progress, say};
use super::report::{Figure, Run};
use super::rounds::in_turns;
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
struct Loaded {
    sent: Vec<Sent>,
    ran: HashMap<i64, Ran>,
    seconds: f64,
    cost: Cost,
    ended: Ended,
}

/// Measures the load.
///
/// # Errors
/// The database fails, a worker ends, or a job does not run.
pub async fn run(place: &Place, options: &MixedOptions) -> Result<Vec<Run>> {
    if let Some(warning) = options.overload() {
        say(&warning);
    }
    let (MixedOptions { load, hands, .. }, tell) = (options, Tell::Each);
    let crew =
        Crew { workers: hands.workers, concurrency: hands.concurrency, queues: 1, run_time: load.run_time, tell };
    let turns = [(format!("{} jobs a second for {:?}", options.rate, options.duration), crew)];
    in_turns(place, &options.scene, options.common.rounds, &turns, async |crew, payloads| {
        Ok(run_of(options, &one(place, options, crew, payloads).await?))
    })
    .await
}

async fn one(place: &Place, options: &MixedOptions, crew: Crew, payloads: &Arc<Payloads>) -> Result<Loaded> {
    let mut at_work = crew.begin(place).await?;
    at_work.until_registered().await?;
    let mut clients = Vec::new();
    for _ in 0..options.load.producers {
        clients.push(place.client(1).connect().await?);
    }
    let meter = Meter::start(place).await?;
    let begun = now_ns();
    let (sent, ran) = tokio::try_join!(send(&clients, options, payloads), hear(&mut at_work, options))?;
    let seconds = ms_between(begun, now_ns()) / 1_000.0;
    let mut cost = meter.cost(place).await?;
    drop(clients);
    let ended = at_work.stop().await?;
    meter.settle(place, &mut cost).await?;
    Ok(Loaded { sent, ran, seconds, cost, ended })
}

/// All producers together keep the rate; each takes the next job whenever it is free.
async fn send(clients: &[Client], options: &MixedOptions, payloads: &Arc<Payloads>) -> Result<Vec<Sent>> {
    let (jobs, next) = (options.jobs(), Arc::new(AtomicU64::new(0)));
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
    let jobs = options.jobs();
    let mut progress = Progress::new("jobs run", jobs);
    let mut ran = HashMap::new();
    while (ran.len() as u64) < jobs {
        let runs = at_work.next_runs().await.with_context(|| format!("{} of {jobs} jobs ran", ran.len()))?;
        ran.extend(runs.into_iter().map(|run| (run.job, run)));
        progress.at(ran.len() as u64);
    }
    Ok(ran)
}

fn run_of(options: &MixedOptions, load: &Loaded) -> Run {
    let Loaded { sent, ran, seconds, cost, ended } = load;
    let jobs = sent.len() as f64;
    let times = |of: &dyn Fn(&Sent) -> Option<f64>| Times::new(sent.iter().filter_map(of).collect());
    let calls = times(&|sent| Some(ms_between(sent.called_ns, sent.committed_ns)));
    let waits = times(&|sent| Some(ms_between(sent.committed_ns, ran.get(&sent.job)?.started_ns)));
    let whole = times(&|sent| Some(ms_between(sent.due_ns, ran.get(&sent.job)?.started_ns)));
    let handlers = Times::new(ran.values().map(|run| run.took_ns as f64 / 1e6).collect());
    Run::new()
        .key("rate", options.rate)
        .key("workers", options.hands.workers)
        .key("concurrency", options.hands.concurrency)
        .figure(Figure::rate("jobs_per_s", "jobs/s", jobs / seconds))
        .figure(Figure::fine("enqueue_p50_ms", "enqueue p50 ms", calls.percentile(50)))
        .figure(Figure::fine("enqueue_p99_ms", "p99", calls.percentile(99)))
        .figure(Figure::fine("wait_p50_ms", "wait p50 ms", waits.percentile(50)))
        .figure(Figure::fine("wait_p95_ms", "p95", waits.percentile(95)))
        .figure(Figure::fine("wait_p99_ms", "p99", waits.percentile(99)))
        .figure(Figure::fine("wait_max_ms", "max", waits.longest()))
        .figure(Figure::fine("run_p50_ms", "run p50 ms", handlers.percentile(50)))
        .figure(Figure::fine("run_p99_ms", "p99", handlers.percentile(99)))
        .cost(cost, jobs)
        .workers(ended, jobs)
        .more("jobs", sent.len())
        .more("seconds", *seconds)
        .more("run_p95_ms", handlers.percentile(95))
        .more("run_max_ms", handlers.longest())
        .more("due_to_start_p50_ms", whole.percentile(50))
        .more("due_to_start_p99_ms", whole.percentile(99))
}
