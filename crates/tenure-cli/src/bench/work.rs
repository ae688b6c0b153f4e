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
use super::statistics::{Statistics, Switch, fold_all};
use super::words::Tell;

/// Jobs per transaction of the bulk forms, and bytes of their payloads.
const BATCH: u32 = 10_000;
const BATCH_BYTES: u32 = 32 * 1024 * 1024;
/// Parts of a run whose rates are told, to see whether it stays as fast as it began.
const PARTS: u64 = 10;

/// What is compared.
#[derive(Debug, Clone, Copy)]
struct Setting {
    crew: Crew,
    statistics: Statistics,
}

/// What working off took.
struct Worked {
    seconds: f64,
    cost: Cost,
    ended: Ended,
    /// Jobs that the statistics have counted; none: it was not asked for.
    counted: Option<i64>,
}

/// Measures every number of workers with every concurrency and every number of queues.
///
/// # Errors
/// The database fails, a worker ends, or a job is not completed.
pub async fn run(place: &Place, options: &WorkOptions) -> Result<Vec<Run>> {
    let switch = Switch::of(place).await?;
    let turns: Vec<_> = settings(options).into_iter().map(|setting| (setting.in_words(options), setting)).collect();
    in_turns(place, &options.scene, options.common.rounds, &turns, async |setting, payloads| {
        let Setting { crew, statistics } = setting;
        if Statistics::is_compared(&options.statistics) {
            switch.set(place, statistics).await?;
        }
        let batch = BATCH.min(BATCH_BYTES / options.scene.payload);
        let producers = options.load.producers;
        let producers = Producers::connect(place, producers, options.form, batch, payloads, crew.queues).await?;
        let enqueued = producers.measure(place, options.jobs).await?;
        // As autovacuum would in time; a backlog is not made and worked off within a second otherwise.
        place.sql.batch_execute("analyze job; analyze ready").await?;
        let worked = work_off(place, setting, options).await?;
        let ended = "select count(*) from outcome where job_id > $1 and state = 'c'";
        let ended: i64 = place.sql.query_one(ended, &[&enqueued.before]).await?.get(0);
        ensure!(ended == i64::from(options.jobs), "{ended} of {} jobs are completed", options.jobs);
        Ok(run_of(setting, options, &enqueued, &worked))
    })
    .await
}

/// Everything that was asked for, the one that differs last beside each other.
fn settings(options: &WorkOptions) -> Vec<Setting> {
    let mut settings = Vec::new();
    for &workers in &options.workers {
        for &concurrency in &options.concurrency {
            for &queues in &options.queues {
                let crew =
                    Crew { workers, concurrency, queues, run_time: options.load.run_time, tell: Tell::Completed };
                settings.extend(options.statistics.iter().map(|&statistics| Setting { crew, statistics }));
            }
        }
    }
    settings
}

impl Setting {
    fn in_words(self, options: &WorkOptions) -> String {
        let Crew { workers, concurrency, queues, .. } = self.crew;
        let mut words =
            format!("{} jobs, {}; {workers} workers at concurrency {concurrency}", options.jobs, options.form.name());
        if queues > 1 {
            words.push_str(&format!("; {queues} queues"));
        }
        if Statistics::is_compared(&options.statistics) {
            words.push_str(&format!("; statistics {}", self.statistics.name()));
        }
        words
    }
}

/// From the word to begin, before the workers connect, until the database has recorded the last end.
async fn work_off(place: &Place, setting: Setting, options: &WorkOptions) -> Result<Worked> {
    let Setting { crew, statistics } = setting;
    let meter = Meter::start(place).await?;
    let mut at_work = crew.begin(place).await?;
    let last_ns = at_work.until_completed(options.jobs.into()).await?;
    let seconds = (last_ns - at_work.begun_ns) as f64 / 1e9;
    let folded = match Statistics::is_compared(&options.statistics) {
        true => Some(fold_all(place, statistics).await?),
        false => None,
    };
    let mut cost = meter.cost(place).await?;
    let counted = folded.map(|folded| folded.counted);
    let ended = at_work.stop().await?;
    meter.settle(place, &mut cost).await?;
    Ok(Worked { seconds, cost, ended, counted })
}

fn run_of(setting: Setting, options: &WorkOptions, enqueued: &Enqueued, worked: &Worked) -> Run {
    let Setting { crew, statistics } = setting;
    let jobs = f64::from(options.jobs);
    let (wal_enqueue, wal_work) = (enqueued.cost.wal_bytes, worked.cost.wal_bytes);
    // The way of a job through both halves.
    let cost = Cost { wal_bytes: wal_enqueue + wal_work, ..worked.cost };
    let mut run = Run::new().key("workers", crew.workers).key("concurrency", crew.concurrency);
    if options.queues != [1] {
        run = run.key("queues", crew.queues);
    }
    if Statistics::is_compared(&options.statistics) {
        run = run.key("statistics", statistics.name());
    }
    run.figure(Figure::rate("jobs_per_s", "jobs/s", jobs / worked.seconds))
        .figure(Figure::rate("enqueue_per_s", "enqueued/s", jobs / enqueued.seconds))
        .figure(Figure::whole("wal_enqueue_per_job", "WAL B/job in", wal_enqueue / jobs))
        .figure(Figure::whole("wal_work_per_job", "WAL B/job out", wal_work / jobs))
        .cost(&cost, jobs)
        .workers(&worked.ended, jobs)
        .more("jobs", options.jobs)
        .more("seconds", worked.seconds)
        .more("enqueue_cpu_us_per_job", enqueued.cost.session_cpu_us.map(|cpu| cpu / jobs))
        .more("counted", worked.counted)
        .more("slices", worked.ended.slices(options.jobs.into(), PARTS))
}
