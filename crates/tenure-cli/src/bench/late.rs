//! Late: jobs whose transactions took their ids long before they committed, while workers are as busy as they can be. The workers
//! have passed their places in the queue by then, and have to come back for them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tenure::{Client, Enqueue, JobOptions};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::clock::{Times, ms_between, now_ns};
use super::crew::{AtWork, Crew};
use super::options::LateOptions;
use super::payload::Payloads;
use super::place::Place;
use super::progress::Progress;
use super::report::{Figure, Run};
use super::rounds::in_turns;
use super::words::{Ran, Tell};
use super::{KIND, LATE_KIND, QUEUE};

/// Jobs that wait beside those that are committed late, about: more than workers complete between two words of theirs.
const BACKLOG: u64 = 20_000;
/// Jobs per transaction of those that keep the workers busy.
const BATCH: usize = 2_000;
/// A late job that has not started so long after its commit is lost: even the workers' rarest look at everything has passed.
const FOUND_MAX_MS: f64 = 60_000.0;

/// A job and the instant in which its commit returned.
type Committed = (i64, u64);

/// Those that were committed late.
#[derive(Debug, Default)]
struct Found {
    committed: HashMap<i64, u64>,
    started: HashMap<i64, u64>,
}

/// What one round brought.
struct Looked {
    waits: Vec<f64>,
    /// Of all jobs, while the late ones were waited for.
    jobs_per_s: f64,
}

/// Measures so many late commits.
///
/// # Errors
/// The database fails, a worker ends, or a job is not found within a minute.
pub async fn run(place: &Place, options: &LateOptions) -> Result<Vec<Run>> {
    let (LateOptions { hands, .. }, tell) = (options, Tell::Late);
    let crew =
        Crew { workers: hands.workers, concurrency: hands.concurrency, queues: 1, run_time: Duration::ZERO, tell };
    let turns = [(format!("{} jobs that commit after {:?}, under a full load", options.jobs, options.hold), crew)];
    in_turns(place, &options.scene, options.common.rounds, &turns, async |crew, payloads| {
        Ok(run_of(options, one(place, options, crew, payloads).await?))
    })
    .await
}

async fn one(place: &Place, options: &LateOptions, crew: Crew, payloads: &Arc<Payloads>) -> Result<Looked> {
    let mut at_work = crew.begin(place).await?;
    at_work.until_registered().await?;
    // They end with this set, in whatever they are.
    let mut tasks = JoinSet::new();
    let completed = keep_busy(&mut tasks, place, options, payloads).await?;
    let mut commits = commit_late(&mut tasks, place, options, payloads).await?;
    let (begun, mut found) = (now_ns(), Found::default());
    let mut progress = Progress::new("late jobs started", options.jobs.into());
    while !found.all(options.jobs) {
        tokio::select! {
            news = at_work.next_news() => found.hear(&mut at_work, news?, &completed),
            Some((job, at_ns)) = commits.recv() => { found.committed.insert(job, at_ns); }
            Some(ended) = tasks.join_next() => ended.context("a producer panicked")??,
        }
        found.refuse_lost(now_ns())?;
        progress.at(found.started.len() as u64);
    }
    let jobs_per_s = at_work.jobs() as f64 * 1_000.0 / ms_between(begun, now_ns());
    drop(tasks);
    at_work.stop().await?;
    Ok(Looked { waits: found.waits(), jobs_per_s })
}

/// Producers that enqueue whenever little waits. They learn what is completed by the channel that is returned.
async fn keep_busy(
    tasks: &mut JoinSet<Result<()>>,
    place: &Place,
    options: &LateOptions,
    payloads: &Arc<Payloads>,
) -> Result<watch::Sender<u64>> {
    let (told, completed) = watch::channel(0);
    let stored = Arc::new(AtomicU64::new(0));
    for _ in 0..options.producers {
        let client = place.client(1).connect().await?;
        tasks.spawn(feed(client, stored.clone(), completed.clone(), payloads.clone()));
    }
    Ok(told)
}

/// Until the task is dropped, or the channel closed.
async fn feed(
    client: Client,
    stored: Arc<AtomicU64>,
    mut completed: watch::Receiver<u64>,
    payloads: Arc<Payloads>,
) -> Result<()> {
    while completed.wait_for(|completed| stored.load(Ordering::Relaxed) < completed + BACKLOG).await.is_ok() {
        client.enqueue_many(KIND, payloads.take(BATCH), JobOptions::new().queue(QUEUE)).await?;
        stored.fetch_add(BATCH as u64, Ordering::Relaxed);
    }
    Ok(())
}

/// Transactions that stay open after their enqueue, so many at a time, one shortly after the other.
async fn commit_late(
    tasks: &mut JoinSet<Result<()>>,
    place: &Place,
    options: &LateOptions,
    payloads: &Arc<Payloads>,
) -> Result<mpsc::UnboundedReceiver<Committed>> {
    let (told, commits) = mpsc::unbounded_channel();
    let client = place.client(1).connect().await?;
    let at_once = u32::from(options.at_once).min(options.jobs);
    for n in 0..at_once {
        let jobs = options.jobs / at_once + u32::from(n < options.jobs % at_once);
        let (after, hold) = (options.hold * n / at_once, options.hold);
        let (client, sql, payloads, told) = (client.clone(), place.bystander().await?, payloads.clone(), told.clone());
        tasks.spawn(async move {
            // sleep: so that they do not all commit together.
            sleep(after).await;
            one_after_another(&client, sql, jobs, hold, &payloads, &told).await
        });
    }
    Ok(commits)
}

async fn one_after_another(
    client: &Client,
    mut sql: tokio_postgres::Client,
    jobs: u32,
    hold: Duration,
    payloads: &Payloads,
    told: &mpsc::UnboundedSender<Committed>,
) -> Result<()> {
    for n in 0..jobs {
        let mut tx = sql.transaction().await?;
        let job = Enqueue::raw(LATE_KIND, payloads.get(n as usize).clone()).queue(QUEUE);
        let id = client.enqueue_in(&mut tx, job).await?;
        // sleep: the time in which the workers pass its id.
        sleep(hold).await;
        tx.commit().await?;
        if told.send((id.get(), now_ns())).is_err() {
            return Ok(());
        }
    }
    Ok(())
}

impl Found {
    /// Keeps what a worker said, and passes on how many jobs are completed.
    fn hear(&mut self, at_work: &mut AtWork, runs: Vec<Ran>, completed: &watch::Sender<u64>) {
        self.started.extend(runs.into_iter().map(|ran| (ran.job, ran.started_ns)));
        completed.send_replace(at_work.jobs());
    }

    fn all(&self, jobs: u32) -> bool {
        self.committed.len() == jobs as usize && self.committed.keys().all(|job| self.started.contains_key(job))
    }

    fn refuse_lost(&self, now_ns: u64) -> Result<()> {
        for (job, at_ns) in &self.committed {
            if !self.started.contains_key(job) && ms_between(*at_ns, now_ns) > FOUND_MAX_MS {
                bail!("job {job} was not started within {} s of its commit", FOUND_MAX_MS / 1_000.0);
            }
        }
        Ok(())
    }

    /// From each commit to the start of the handler, in ms.
    fn waits(&self) -> Vec<f64> {
        let wait = |(job, at_ns): (&i64, &u64)| self.started.get(job).map(|started| ms_between(*at_ns, *started));
        self.committed.iter().filter_map(wait).collect()
    }
}

fn run_of(options: &LateOptions, looked: Looked) -> Run {
    let waits = Times::new(looked.waits);
    Run::new()
        .key("workers", options.hands.workers)
        .key("concurrency", options.hands.concurrency)
        .figure(Figure::fine("p50_ms", "p50 ms", waits.percentile(50)))
        .figure(Figure::fine("p99_ms", "p99 ms", waits.percentile(99)))
        .figure(Figure::fine("max_ms", "max ms", waits.longest()))
        .figure(Figure::rate("jobs_per_s", "jobs/s meanwhile", looked.jobs_per_s))
        .more("jobs", options.jobs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_job_counts_once_it_is_committed_and_started_and_is_lost_after_a_minute() {
        let mut found = Found { started: HashMap::from([(7, 5_000_000_000)]), ..Found::default() };
        assert!(!found.all(1), "nothing is known of its commit");
        found.committed = HashMap::from([(7, 4_750_000_000), (8, 6_000_000_000)]);
        assert!(!found.all(2) && found.refuse_lost(66_000_000_000).is_ok());
        let lost = found.refuse_lost(66_100_000_000).unwrap_err().to_string();
        assert_eq!(lost, "job 8 was not started within 60 s of its commit");
        found.started.insert(8, 5_900_000_000);
        assert!(found.all(2));
        let waits = Times::new(found.waits());
        assert_eq!(
            (waits.percentile(0), waits.longest()),
            (Some(0.0), Some(250.0)),
            "one started before its commit was told"
        );
    }
}
