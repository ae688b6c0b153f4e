//! What happened, from the statistics of each minute: never by counting jobs.

use std::time::{Duration, SystemTime};

use tokio_postgres::Row;

use super::Client;
use super::jobs::column;
use crate::model::limits::STATS_STEP_MIN;
use crate::model::{Histogram, names};
use crate::store::stats::{STATS, UNCOUNTED_SINCE, WORKER_STATS};
use crate::{Error, ErrorCode};

/// Which statistics [`Client::stats`] shall read, and what it shall add up.
#[derive(Clone, Debug)]
pub struct StatsFilter {
    since: Since,
    until: Option<SystemTime>,
    queue: Option<String>,
    kind: Option<String>,
    by: StatsBy,
    step: Duration,
}

/// Instants are those of the database's clock.
#[derive(Clone, Copy, Debug)]
enum Since {
    At(SystemTime),
    Ago(Duration),
}

/// What stands in a row of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StatsBy {
    /// Each kind of each queue.
    Kind,
    /// Each queue.
    Queue,
    /// Each step of time, all queues and kinds of the filter together.
    Minute,
}

/// What happened within a time, of one queue and kind, of one queue, or of all.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StatsRow {
    /// Where the step of time begins; none unless the rows are by minute.
    pub at: Option<SystemTime>,
    /// The queue; none: all that the filter takes.
    pub queue: Option<String>,
    /// The kind; none: all that the filter takes.
    pub kind: Option<String>,
    /// Jobs that were enqueued, requeued ones among them.
    pub enqueued: u64,
    /// Handlers that started.
    pub started: u64,
    /// Jobs that completed.
    pub completed: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Of the failed: those whose jobs are tried again.
    pub retried: u64,
    /// Jobs that went to the dead letters, those of lost workers among them.
    pub dead: u64,
    /// Jobs that were cancelled.
    pub cancelled: u64,
    /// Runs that asked for another one later.
    pub snoozed: u64,
    /// Jobs that workers gave back without using an attempt.
    pub released: u64,
    /// Jobs that were taken from lost workers, whatever became of them.
    pub rescued: u64,
    /// Handlers that did not stop when they had to.
    pub overruns: u64,
    /// How long jobs waited from the moment from which they could run to their first start.
    pub wait: Histogram,
    /// How long attempts ran.
    pub run: Histogram,
}

/// The answer to [`Client::stats`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Statistics {
    /// By time, then by queue and kind.
    pub rows: Vec<StatsRow>,
    /// Since when enqueued jobs are not counted yet, if that is more than a minute: somebody's transaction that has written something is open since then.
    pub uncounted_since: Option<SystemTime>,
}

/// What a worker measured of the database, and what its process used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerStats {
    /// The worker's number.
    pub worker: i64,
    /// Its name; none: it has gone long ago.
    pub name: Option<String>,
    /// The last minute in which it told something.
    pub last_at: SystemTime,
    /// From the sending of a claim to its answer.
    pub claim: Histogram,
    /// The same of a group of ends.
    pub flush: Histogram,
    /// The most memory that its process ever had resident, in bytes; none: its system does not tell.
    pub memory: Option<u64>,
    /// The most memory that its control group ever had, in bytes.
    pub group_memory: Option<u64>,
    /// For how long its control group had to wait for CPU.
    pub throttled: Duration,
}

impl Default for StatsFilter {
    fn default() -> StatsFilter {
        let since = Since::Ago(Duration::from_secs(3600));
        StatsFilter { since, until: None, queue: None, kind: None, by: StatsBy::Kind, step: STATS_STEP_MIN }
    }
}

impl StatsFilter {
    /// The last hour, of each kind of each queue.
    pub fn new() -> StatsFilter {
        StatsFilter::default()
    }

    /// From the minute of this instant on.
    pub fn since(mut self, at: SystemTime) -> StatsFilter {
        self.since = Since::At(at);
        self
    }

    /// From so long ago on, by the database's clock. Default: one hour.
    pub fn since_ago(mut self, ago: Duration) -> StatsFilter {
        self.since = Since::Ago(ago);
        self
    }

    /// Up to the minute of this instant, without it. Default: to now.
    pub fn until(mut self, at: SystemTime) -> StatsFilter {
        self.until = Some(at);
        self
    }

    /// Only this queue.
    pub fn queue(mut self, queue: impl Into<String>) -> StatsFilter {
        self.queue = Some(queue.into());
        self
    }

    /// Only this kind.
    pub fn kind(mut self, kind: impl Into<String>) -> StatsFilter {
        self.kind = Some(kind.into());
        self
    }

    /// What stands in a row of its own. Default: each kind of each queue.
    pub fn by(mut self, by: StatsBy) -> StatsFilter {
        self.by = by;
        self
    }

    /// By minute: so many whole minutes each. Default: 1 minute. At most 10,000 steps are read at a time.
    pub fn step(mut self, step: Duration) -> StatsFilter {
        self.step = step;
        self
    }

    fn check(&self) -> Result<(), Error> {
        if let Some(queue) = &self.queue {
            names::check_queue(queue)?;
        }
        if let Some(kind) = &self.kind {
            names::check_kind(kind)?;
        }
        let step_s = self.step.as_secs();
        if self.step.subsec_nanos() > 0 || step_s == 0 || !step_s.is_multiple_of(STATS_STEP_MIN.as_secs()) {
            let message = format!("statistics in steps of {:?} are not kept", self.step);
            return Err(Error::bad_input(message, "use whole minutes"));
        }
        Ok(())
    }
}

impl StatsBy {
    /// As the SQL function names it.
    fn columns(self) -> &'static [&'static str] {
        match self {
            StatsBy::Kind => &["queue", "kind"],
            StatsBy::Queue => &["queue"],
            StatsBy::Minute => &["minute"],
        }
    }
}

impl Client {
    /// What happened in the last hour, or in the time that the filter names: how many jobs were enqueued, started and ended, and how long they waited and ran.
    /// It adds up rows of minutes, which workers tell every ten seconds and which are kept for 30 days, and reads no jobs: with millions of them it takes
    /// as long as with none. Ends that a program reports by SQL itself are not in it; see `record_stats` there.
    ///
    /// # Errors
    /// `BadInput`: a name, a step that is no whole number of minutes, or more than 10,000 steps.
    pub async fn stats(&self, filter: &StatsFilter) -> Result<Statistics, Error> {
        filter.check()?;
        let since = self.stats_since(filter.since).await?;
        let step = (filter.step.as_secs() / STATS_STEP_MIN.as_secs()) as f64;
        let (by, session) = (filter.by.columns(), self.session().await?);
        let rows = session
            .query(&STATS, &[&since, &filter.until, &filter.queue, &filter.kind, &by, &step])
            .await
            .map_err(|e| Error::store(STATS.name, e))?;
        let uncounted = session.query_opt(&UNCOUNTED_SINCE, &[]).await;
        let uncounted = uncounted.map_err(|e| Error::store(UNCOUNTED_SINCE.name, e))?;
        let uncounted_since = uncounted.map(|row| column(&row, 0)).transpose()?.flatten();
        Ok(Statistics { rows: rows.iter().map(read_row).collect::<Result<_, _>>()?, uncounted_since })
    }

    /// What each worker measured of the database since so long ago, and what its process used, by their numbers. Claims and groups of ends that take long
    /// beside short runs of handlers mean a slow database, or a slow way there. A worker that runs nothing tells nothing. Kept for a day.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn worker_stats(&self, since_ago: Duration) -> Result<Vec<WorkerStats>, Error> {
        let since = self.stats_since(Since::Ago(since_ago)).await?;
        let (until, session): (Option<SystemTime>, _) = (None, self.session().await?);
        let rows = session.query(&WORKER_STATS, &[&since, &until]).await;
        rows.map_err(|e| Error::store(WORKER_STATS.name, e))?.iter().map(read_worker).collect()
    }

    async fn stats_since(&self, since: Since) -> Result<SystemTime, Error> {
        match since {
            Since::At(at) => Ok(at),
            Since::Ago(ago) => {
                let clock = self.clock([Some(ago), None]).await?;
                clock.ago[0].ok_or_else(|| Error::new(ErrorCode::Internal, "the server did not say when that was"))
            }
        }
    }
}

fn read_row(row: &Row) -> Result<StatsRow, Error> {
    let count = |at| Ok::<_, Error>(column::<i64>(row, at)?.unsigned_abs());
    Ok(StatsRow {
        at: column(row, 0)?,
        queue: column(row, 1)?,
        kind: column(row, 2)?,
        enqueued: count(3)?,
        started: count(4)?,
        completed: count(5)?,
        failed: count(6)?,
        retried: count(7)?,
        dead: count(8)?,
        cancelled: count(9)?,
        snoozed: count(10)?,
        released: count(11)?,
        rescued: count(12)?,
        overruns: count(13)?,
        wait: read_histogram(row, 14)?,
        run: read_histogram(row, 16)?,
    })
}

fn read_worker(row: &Row) -> Result<WorkerStats, Error> {
    let bytes = |at| Ok::<_, Error>(column::<Option<i64>>(row, at)?.map(i64::unsigned_abs));
    Ok(WorkerStats {
        worker: column(row, 0)?,
        name: column(row, 1)?,
        last_at: column(row, 2)?,
        memory: bytes(3)?,
        group_memory: bytes(4)?,
        throttled: Duration::from_millis(column::<i64>(row, 5)?.unsigned_abs()),
        claim: read_histogram(row, 6)?,
        flush: read_histogram(row, 8)?,
    })
}

/// Two columns, from this one on.
fn read_histogram(row: &Row, first: usize) -> Result<Histogram, Error> {
    let (buckets, counts): (Vec<i16>, Vec<i64>) = (column(row, first)?, column(row, first + 1)?);
    Ok(Histogram::from_sparse(&buckets, &counts))
}
