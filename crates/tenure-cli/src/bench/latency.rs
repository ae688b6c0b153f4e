//! Latency: an idle worker, and one job at a time. Between two jobs a notification and a commit of one row, each after a pause like that before a job: an idle machine
//! is slower with both than a busy one.

use std::time::Duration;

use anyhow::{Result, ensure};
use tenure::{Client, Enqueue};

use super::clock::{Times, ms_between, now_ns};
use super::crew::{AtWork, Crew};
use super::floor::Trips;
use super::options::LatencyOptions;
use super::payload::Payloads;
use super::place::Place;
use super::progress::Progress;
use super::report::{Figure, Run};
use super::rounds::in_turns;
use super::words::Tell;
use super::{KIND, QUEUE};

/// Jobs before those that count: the first ones pay for what happens once.
const WARM: u32 = 5;

/// Measures so many jobs.
///
/// # Errors
/// The database fails, or the worker ends.
pub async fn run(place: &Place, options: &LatencyOptions) -> Result<Vec<Run>> {
    let crew =
        Crew { workers: 1, concurrency: options.concurrency, queues: 1, run_time: Duration::ZERO, tell: Tell::Each };
    let turns = [(format!("{} jobs, one at a time, to an idle worker", options.jobs), crew)];
    in_turns(place, &options.scene, options.common.rounds, &turns, async |crew, payloads| {
        let mut at_work = crew.begin(place).await?;
        at_work.until_registered().await?;
        let client = place.client(1).connect().await?;
        let mut trips = Trips::new(place, payloads).await?;
        let seen = one_by_one(&client, &mut at_work, &mut trips, options, payloads).await?;
        at_work.stop().await?;
        Ok(run_of(options, seen))
    })
    .await
}

/// Times in ms.
#[derive(Default)]
struct Seen {
    /// From the call of an enqueue to the start of its handler.
    calls: Vec<f64>,
    /// From its commit.
    waits: Vec<f64>,
    notifications: Vec<f64>,
    commits: Vec<f64>,
}

async fn one_by_one(
    client: &Client,
    at_work: &mut AtWork,
    trips: &mut Trips<'_>,
    options: &LatencyOptions,
    payloads: &Payloads,
) -> Result<Seen> {
    let mut seen = Seen::default();
    let mut progress = Progress::new("jobs", options.jobs.into());
    // sleep: an idle worker shows by nothing that it is idle.
    let idle = || tokio::time::sleep(options.pause.mul_f64(0.5 + fastrand::f64()));
    for n in 0..options.jobs + WARM {
        idle().await;
        let job = Enqueue::raw(KIND, payloads.get(n as usize).clone()).queue(QUEUE);
        let called_ns = now_ns();
        let id = client.enqueue(job).await?;
        let committed_ns = now_ns();
        let runs = at_work.next_runs().await?;
        ensure!(runs.len() == 1 && runs[0].job == id.get(), "the worker ran {runs:?} when job {id} was enqueued");
        idle().await;
        let notification = trips.notification().await?;
        idle().await;
        let commit = trips.commit().await?;
        if n >= WARM {
            seen.calls.push(ms_between(called_ns, runs[0].started_ns));
            seen.waits.push(ms_between(committed_ns, runs[0].started_ns));
            seen.notifications.push(notification);
            seen.commits.push(commit);
        }
        progress.at(seen.calls.len() as u64);
    }
    Ok(seen)
}

fn run_of(options: &LatencyOptions, seen: Seen) -> Run {
    let (calls, waits) = (Times::new(seen.calls), Times::new(seen.waits));
    let (notifications, commits) = (Times::new(seen.notifications), Times::new(seen.commits));
    Run::new()
        .key("concurrency", options.concurrency)
        .figure(Figure::fine("p50_ms", "p50 ms", waits.percentile(50)))
        .figure(Figure::fine("p95_ms", "p95 ms", waits.percentile(95)))
        .figure(Figure::fine("p99_ms", "p99 ms", waits.percentile(99)))
        .figure(Figure::fine("max_ms", "max ms", waits.longest()))
        .figure(Figure::fine("call_p50_ms", "from the call: p50", calls.percentile(50)))
        .figure(Figure::fine("call_p99_ms", "p99", calls.percentile(99)))
        .figure(Figure::fine("notify_p50_ms", "a NOTIFY: p50", notifications.percentile(50)))
        .figure(Figure::fine("commit_p50_ms", "a commit: p50", commits.percentile(50)))
        .more("jobs", options.jobs)
}
