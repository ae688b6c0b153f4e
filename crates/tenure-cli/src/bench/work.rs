//! Work: so many jobs are there, and workers complete them. Finished jobs are kept.

use anyhow::{Result, ensure};

use super::crew::Crew;
use super::ended::Ended;
use super::enqueue::{Enqueued, Producers};
use super::meter::{Cost, Meter};
use super::options::WorkOptions;
use super::place::Place;
use super::report::{Figure, Run};
use super::rounds::in_turns;
use super::words::Tell;

/// Jobs per transaction of the bulk forms.
const BATCH: u32 = 10_000;
/// Parts of a run whose rates are told, to see whether it stays as fast as it began.
const PARTS: u64 = 10;

/// What working off took.
struct Worked {
    seconds: f64,
    cost: Cost,
    ended: Ended,
}

/// Measures every number of workers with every concurrency.
///
/// # Errors
/// The database fails, a worker ends, or a job is not completed.
pub async fn run(place: &Place, options: &WorkOptions) -> Result<Vec<Run>> {
    let mut turns = Vec::new();
    for &workers in &options.workers {
        for &concurrency in &options.concurrency {
            let crew = Crew { workers, concurrency, run_time: options.load.run_time, tell: Tell::Completed };
            let jobs = format!("{} jobs, {}", options.jobs, options.form.name());
            turns.push((format!("{jobs}; {workers} workers at concurrency {concurrency}"), crew));
        }
    }
    in_turns(place, &options.scene, options.common.rounds, &turns, async |crew, payloads| {
        let producers = Producers::connect(place, options.load.producers, options.form, BATCH, payloads).await?;
        let enqueued = producers.measure(place, options.jobs).await?;
        // As autovacuum would in time; a backlog is not made and worked off within a second otherwise.
        place.sql.batch_execute("analyze job; analyze ready").await?;
        let worked = work_off(place, crew, options.jobs).await?;
        let ended = "select count(*) from outcome where job_id > $1 and state = 'c'";
        let ended: i64 = place.sql.query_one(ended, &[&enqueued.before]).await?.get(0);
        ensure!(ended == i64::from(options.jobs), "{ended} of {} jobs are completed", options.jobs);
        Ok(run_of(crew, options, &enqueued, &worked))
    })
    .await
}

/// From the word to begin, before the workers connect, until the database has recorded the last end.
async fn work_off(place: &Place, crew: Crew, jobs: u32) -> Result<Worked> {
    let meter = Meter::start(place).await?;
    let mut at_work = crew.begin(place).await?;
    let last_ns = at_work.until_completed(jobs.into()).await?;
    let seconds = (last_ns - at_work.begun_ns) as f64 / 1e9;
    let mut cost = meter.cost(place).await?;
    let ended = at_work.stop().await?;
    meter.settle(place, &mut cost).await?;
    Ok(Worked { seconds, cost, ended })
}

fn run_of(crew: Crew, options: &WorkOptions, enqueued: &Enqueued, worked: &Worked) -> Run {
    let jobs = f64::from(options.jobs);
    let (wal_enqueue, wal_work) = (enqueued.cost.wal_bytes, worked.cost.wal_bytes);
    // The way of a job through both halves.
    let cost = Cost { wal_bytes: wal_enqueue + wal_work, ..worked.cost };
    Run::new()
        .key("workers", crew.workers)
        .key("concurrency", crew.concurrency)
        .figure(Figure::rate("jobs_per_s", "jobs/s", jobs / worked.seconds))
        .figure(Figure::rate("enqueue_per_s", "enqueued/s", jobs / enqueued.seconds))
        .figure(Figure::whole("wal_enqueue_per_job", "WAL B/job in", wal_enqueue / jobs))
        .figure(Figure::whole("wal_work_per_job", "WAL B/job out", wal_work / jobs))
        .cost(&cost, jobs)
        .workers(&worked.ended, jobs)
        .more("jobs", options.jobs)
        .more("seconds", worked.seconds)
        .more("slices", worked.ended.slices(options.jobs.into(), PARTS))
}
