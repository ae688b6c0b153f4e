//! Work: so many jobs are there, and workers complete them. Finished jobs are kept.

use std::sync::Arc;

use anyhow::{Result, ensure};

use super::crew::{Crew, Done};
use super::enqueue::{Enqueued, Producers};
use super::meter::{Cost, Meter};
use super::options::WorkOptions;
use super::payload::Payloads;
use super::place::Place;
use super::population::{Pin, populate};
use super::progress::say;
use super::report::{Figure, Run};
use super::words::Tell;

/// Jobs per transaction of the bulk forms.
const BATCH: u32 = 10_000;
/// Parts of a run whose rates are told, to see whether it stays as fast as it began.
const PARTS: u64 = 10;

/// What working off took.
struct Worked {
    seconds: f64,
    cost: Cost,
    done: Done,
}

/// Measures every number of workers with every concurrency.
///
/// # Errors
/// The database fails, a worker ends, or a job is not completed.
pub async fn run(place: &Place, options: &WorkOptions) -> Result<Vec<Run>> {
    let payloads = Arc::new(Payloads::new(options.scene.payload)?);
    populate(place, &options.scene, &payloads).await?;
    let mut runs = Vec::new();
    for round in 1..=options.common.rounds {
        for &workers in &options.workers {
            for &concurrency in &options.concurrency {
                let crew = Crew { workers, concurrency, run_time: options.run_time, tell: Tell::Completed };
                say(&format!(
                    "round {round}: {} jobs, {}; {workers} workers at concurrency {concurrency}",
                    options.jobs,
                    options.form.name()
                ));
                let (enqueued, worked) = one(place, options, crew, &payloads).await?;
                runs.push(run_of(round, crew, options, &enqueued, &worked));
            }
        }
    }
    Ok(runs)
}

async fn one(place: &Place, options: &WorkOptions, crew: Crew, payloads: &Arc<Payloads>) -> Result<(Enqueued, Worked)> {
    place.prepare(&options.scene).await?;
    let pin = Pin::open(place, &options.scene).await?;
    let producers = Producers::connect(place, options.producers, options.form, BATCH, payloads).await?;
    let enqueued = producers.measure(place, options.jobs).await?;
    // As autovacuum would in time; a backlog is not made and worked off within a second otherwise.
    place.sql.batch_execute("analyze job; analyze ready").await?;
    let worked = work_off(place, crew, options.jobs).await?;
    pin.close().await?;
    let ended = "select count(*) from outcome where job_id > $1 and state = 'c'";
    let ended: i64 = place.sql.query_one(ended, &[&enqueued.before]).await?.get(0);
    ensure!(ended == i64::from(options.jobs), "{ended} of {} jobs are completed", options.jobs);
    Ok((enqueued, worked))
}

/// From the word to begin, before the workers connect, until the database has recorded the last end.
async fn work_off(place: &Place, crew: Crew, jobs: u32) -> Result<Worked> {
    let meter = Meter::start(place).await?;
    let mut at_work = crew.begin(place).await?;
    let last_ns = at_work.until_completed(jobs.into()).await?;
    let seconds = (last_ns - at_work.begun_ns) as f64 / 1e9;
    let mut cost = meter.cost(place).await?;
    let done = at_work.stop().await?;
    meter.settle(place, &mut cost).await?;
    Ok(Worked { seconds, cost, done })
}

fn run_of(round: u32, crew: Crew, options: &WorkOptions, enqueued: &Enqueued, worked: &Worked) -> Run {
    let jobs = f64::from(options.jobs);
    let (cost, done) = (&worked.cost, &worked.done);
    let wal_enqueue = enqueued.cost.wal_bytes / jobs;
    let wal_work = cost.wal_bytes / jobs;
    Run::new(round)
        .key("workers", crew.workers)
        .key("concurrency", crew.concurrency)
        .figure(Figure::rate("jobs_per_s", "jobs/s", jobs / worked.seconds))
        .figure(Figure::rate("enqueue_per_s", "enqueued/s", jobs / enqueued.seconds))
        .figure(Figure::whole("wal_enqueue_per_job", "WAL B/job in", wal_enqueue))
        .figure(Figure::whole("wal_work_per_job", "out", wal_work))
        .figure(Figure::whole("wal_bytes_per_job", "both", wal_enqueue + wal_work))
        .figure(Figure::fine("transactions_per_job", "tx/job", cost.transactions / jobs))
        .figure(Figure::fine("calls_per_job", "calls/job", (done.claims + done.flushes) as f64 / jobs))
        .figure(Figure::tenths("database_cpu_us_per_job", "db CPU us/job", cost.session_cpu_us.map(|cpu| cpu / jobs)))
        .figure(Figure::tenths(
            "background_cpu_us_per_job",
            "db own us/job",
            cost.background_cpu_us.map(|cpu| cpu / jobs),
        ))
        .figure(Figure::tenths("worker_cpu_us_per_job", "worker CPU us/job", done.cpu_us as f64 / jobs))
        .figure(Figure::tenths("peak_mb", "peak MB", done.peak_mb))
        .more("jobs", options.jobs)
        .more("completed", done.completed)
        .more("seconds", worked.seconds)
        .more("claims", done.claims)
        .more("flushes", done.flushes)
        .more("slices", done.slices(options.jobs.into(), PARTS))
        .more("page_images", cost.page_images)
}
