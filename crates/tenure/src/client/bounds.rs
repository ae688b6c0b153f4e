//! Bounded queues: they take so many jobs that have not ended.

use std::time::{Duration, SystemTime};

use super::Client;
use super::jobs::column;
use crate::Error;
use crate::model::millis_up;
use crate::store::operate::{QUEUE_BOUNDS, REMOVE_QUEUE_BOUND, SET_QUEUE_BOUND};

/// What becomes of an enqueue into a queue that is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// It is refused with the code [`Full`](crate::ErrorCode::Full).
    Reject,
    /// It waits for room, 1 ms to 10 minutes, and is refused then. Its transaction is open meanwhile, and keeps others from the queue only by what it has
    /// enqueued before.
    Wait(Duration),
    /// The oldest jobs that wait are cancelled, as many as are needed; refused when too few wait, or are among the 10,000 oldest bundles.
    DropOldest,
}

/// How many jobs that have not ended a queue takes.
///
/// ```no_run
/// # async fn example(client: tenure::Client) -> Result<(), tenure::Error> {
/// use tenure::{QueueBound, WhenFull};
///
/// client.set_queue_bound("mail", QueueBound::new(WhenFull::Reject).jobs(100_000).key_jobs(1_000)).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct QueueBound {
    jobs: Option<u32>,
    key_jobs: Option<u32>,
    when_full: WhenFull,
}

impl QueueBound {
    /// Bounds nothing yet, and cannot be set so.
    pub fn new(when_full: WhenFull) -> Self {
        QueueBound { jobs: None, key_jobs: None, when_full }
    }

    /// So many jobs, 1 to 10,000,000: those that wait, for whatever, and those that run.
    pub fn jobs(mut self, jobs: u32) -> Self {
        self.jobs = Some(jobs);
        self
    }

    /// So many of each fair key ([`JobOptions::fair`](crate::JobOptions::fair)).
    pub fn key_jobs(mut self, jobs: u32) -> Self {
        self.key_jobs = Some(jobs);
        self
    }
}

/// A bound as it is set, and what came of it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QueueBoundInfo {
    /// The queue.
    pub queue: String,
    /// Jobs that it takes.
    pub jobs: Option<i64>,
    /// Jobs of each fair key.
    pub key_jobs: Option<i64>,
    /// What becomes of more.
    pub when_full: WhenFull,
    /// Jobs that are counted now. Those that have ended count until there is no room.
    pub counted: i64,
    /// Jobs that were refused since the bound was set first; of one call 1,000 are counted at most.
    pub refused: i64,
    /// Jobs that were cancelled to make room.
    pub dropped: i64,
    /// When it was set.
    pub set_at: SystemTime,
}

impl Client {
    /// Bounds a queue, or changes its bound, for enqueues from then on. Jobs that are there count. False: it was so before.
    ///
    /// # Errors
    /// `BadInput`: it bounds nothing, or a value is out of its range. `Timeout`: an enqueue into the queue has not committed for 5 s. `Refused`: somebody is
    /// just lifting it.
    pub async fn set_queue_bound(&self, queue: &str, bound: QueueBound) -> Result<bool, Error> {
        // What the database refuses with its range is not cut to it here.
        let whole = |jobs: Option<u32>| jobs.map(|jobs| i32::try_from(jobs).unwrap_or(i32::MAX));
        let (jobs, key_jobs) = (whole(bound.jobs), whole(bound.key_jobs));
        let (policy, wait_ms) = match bound.when_full {
            WhenFull::Reject => ("reject", None),
            WhenFull::Wait(time) => ("wait", Some(i32::try_from(millis_up(time)).unwrap_or(i32::MAX))),
            WhenFull::DropOldest => ("drop", None),
        };
        let session = self.session().await?;
        let rows = session.query(&SET_QUEUE_BOUND, &[&queue, &jobs, &key_jobs, &policy, &wait_ms]).await;
        let rows = rows.map_err(|e| Error::store(SET_QUEUE_BOUND.name, e))?;
        rows.first().map_or(Ok(false), |row| column(row, 0))
    }

    /// Lifts the bound of a queue. False: it had none.
    ///
    /// # Errors
    /// `Timeout`: an enqueue into the queue has not committed for 5 s.
    pub async fn remove_queue_bound(&self, queue: &str) -> Result<bool, Error> {
        let session = self.session().await?;
        let rows = session.query(&REMOVE_QUEUE_BOUND, &[&queue]).await;
        let rows = rows.map_err(|e| Error::store(REMOVE_QUEUE_BOUND.name, e))?;
        rows.first().map_or(Ok(false), |row| column(row, 0))
    }

    /// The bounds that are set, by queue.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn queue_bounds(&self) -> Result<Vec<QueueBoundInfo>, Error> {
        let session = self.session().await?;
        let rows = session.query(&QUEUE_BOUNDS, &[]).await.map_err(|e| Error::store(QUEUE_BOUNDS.name, e))?;
        rows.iter().map(bound_info).collect()
    }
}

fn bound_info(row: &tokio_postgres::Row) -> Result<QueueBoundInfo, Error> {
    let policy: String = column(row, 3)?;
    let wait_ms: Option<i64> = column(row, 4)?;
    let when_full = match (policy.as_str(), wait_ms) {
        ("wait", ms) => {
            WhenFull::Wait(Duration::from_millis(u64::try_from(ms.unwrap_or_default()).unwrap_or_default()))
        }
        ("drop", _) => WhenFull::DropOldest,
        ("reject", _) => WhenFull::Reject,
        _ => {
            return Err(Error::internal(format!(
                "the policy of a bound is {policy:?}, which this version does not know"
            )));
        }
    };
    Ok(QueueBoundInfo {
        queue: column(row, 0)?,
        jobs: column(row, 1)?,
        key_jobs: column(row, 2)?,
        when_full,
        counted: column(row, 5)?,
        refused: column(row, 6)?,
        dropped: column(row, 7)?,
        set_at: column(row, 8)?,
    })
}
