//! Queues, workers and the server.

use std::time::{Duration, SystemTime};

use super::Client;
use super::jobs::column;
use super::pause::refuse_nul;
use super::retention::Keep;
use crate::model::limits::LIST_MAX;
use crate::model::names;
use crate::store::jobs::{CLOCK, PAUSE, QUEUES, RESUME, SERVER, WORKERS};
use crate::store::migrate::latest;
use crate::{Error, ErrorCode};

/// A queue and what stands in it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QueueInfo {
    /// Its name.
    pub queue: String,
    /// Jobs that can be claimed now.
    pub available: i64,
    /// Jobs that wait for their time: scheduled, retrying and snoozed.
    pub scheduled: i64,
    /// Jobs that workers hold.
    pub running: i64,
    /// Jobs that wait for something else.
    pub held: i64,
    /// Dead letters that were not requeued.
    pub dead: i64,
    /// Since when the oldest available job could have run.
    pub oldest_due_at: Option<SystemTime>,
    /// Since when it is paused.
    pub paused_at: Option<SystemTime>,
    /// Who paused it.
    pub paused_by: Option<String>,
    /// Why it is paused.
    pub pause_reason: Option<String>,
    /// How long its finished jobs are kept.
    pub keep: Keep,
    /// Whether it has an age of its own; false: all of them are the defaults.
    pub keep_own: bool,
}

/// A worker as it registered.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WorkerInfo {
    /// Its number, new at every start.
    pub id: i64,
    /// Its name.
    pub name: String,
    /// The machine it runs on.
    pub host: String,
    /// Its process there.
    pub pid: i32,
    /// Its version of tenure.
    pub version: String,
    /// The queues it takes from.
    pub queues: Vec<String>,
    /// The kinds it has handlers for.
    pub kinds: Vec<String>,
    /// When it registered.
    pub started_at: SystemTime,
    /// When it was last heard of.
    pub seen_at: SystemTime,
    /// Until when its leases hold.
    pub lease_until: SystemTime,
    /// Does it hold, at this moment, the lock by which a death is noticed at once?
    pub has_lock: bool,
    /// `alive`, `drained` (it finishes what it runs), `suspected` (its lock is free or its lease is over at this moment: it looks
    /// lost, and its jobs are given away as soon as another worker is there) or `dead` (they are being given away).
    pub state: String,
    /// Jobs that it holds.
    pub running: i64,
    /// Of these, jobs that should have ended and have not: blocking handlers past their timeout or their cancel.
    pub overruns: i64,
}

/// The server and the schema.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerInfo {
    /// PostgreSQL's version.
    pub version: String,
    /// The database's name.
    pub database: String,
    /// Its clock.
    pub now: SystemTime,
    /// The schema's version.
    pub schema_version: i32,
    /// The schema version that this program knows.
    pub schema_version_known: i32,
}

/// The database's clock at the begin of a call.
pub(super) struct Clock {
    pub(super) now: SystemTime,
    /// What it showed so long ago, for each age that was asked for.
    pub(super) ago: [Option<SystemTime>; 2],
}

impl Client {
    /// All queues that hold something or were ever paused, by name.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn queues(&self) -> Result<Vec<QueueInfo>, Error> {
        let session = self.session().await?;
        let rows = session.query(&QUEUES, &[]).await.map_err(|e| Error::store(QUEUES.name, e))?;
        let read = |row: &tokio_postgres::Row| {
            Ok(QueueInfo {
                queue: column(row, 0)?,
                available: column(row, 1)?,
                scheduled: column(row, 2)?,
                running: column(row, 3)?,
                held: column(row, 4)?,
                dead: column(row, 5)?,
                oldest_due_at: column(row, 6)?,
                paused_at: column(row, 7)?,
                paused_by: column(row, 8)?,
                pause_reason: column(row, 9)?,
                keep: Keep::read(row, 10)?,
                keep_own: column(row, 13)?,
            })
        };
        rows.iter().map(read).collect()
    }

    /// Pauses a queue: running jobs finish, and nothing more is claimed from it by any worker once this has returned.
    /// True: it was not paused before.
    /// `by` is the database's user when not given.
    ///
    /// # Errors
    /// `BadInput`: the name. `Timeout`: it is paused, but a claim that began before has not come to its end within 2 s (a
    /// stalled disk, a frozen session); call it again to wait again.
    pub async fn pause(&self, queue: &str, by: Option<&str>, reason: Option<&str>) -> Result<bool, Error> {
        names::check_queue(queue)?;
        refuse_nul([by, reason])?;
        let session = self.session().await?;
        let row = session.query_opt(&PAUSE, &[&queue, &by, &reason]).await.map_err(|e| Error::store(PAUSE.name, e))?;
        drop(session);
        self.settle_pause().await?;
        row.map_or(Ok(false), |row| column(&row, 0))
    }

    /// Resumes a paused queue. True: it was paused.
    ///
    /// # Errors
    /// `BadInput`: the name.
    pub async fn resume(&self, queue: &str) -> Result<bool, Error> {
        names::check_queue(queue)?;
        let session = self.session().await?;
        let row = session.query_opt(&RESUME, &[&queue]).await.map_err(|e| Error::store(RESUME.name, e))?;
        row.map_or(Ok(false), |row| column(&row, 0))
    }

    /// The registered workers, at most 1,000, oldest first.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn workers(&self) -> Result<Vec<WorkerInfo>, Error> {
        let session = self.session().await?;
        let rows = session.query(&WORKERS, &[&(LIST_MAX as i64)]).await.map_err(|e| Error::store(WORKERS.name, e))?;
        let read = |row: &tokio_postgres::Row| {
            Ok(WorkerInfo {
                id: column(row, 0)?,
                name: column(row, 1)?,
                host: column(row, 2)?,
                pid: column(row, 3)?,
                version: column(row, 4)?,
                queues: column(row, 5)?,
                kinds: column(row, 6)?,
                started_at: column(row, 7)?,
                seen_at: column(row, 8)?,
                lease_until: column(row, 9)?,
                has_lock: column(row, 10)?,
                state: column(row, 11)?,
                running: column(row, 12)?,
                overruns: column(row, 13)?,
            })
        };
        rows.iter().map(read).collect()
    }

    /// The server and the version of the schema.
    ///
    /// # Errors
    /// `Schema`: there is no such schema.
    pub async fn server(&self) -> Result<ServerInfo, Error> {
        let session = self.session().await?;
        let row = session.query_opt(&SERVER, &[]).await.map_err(|e| Error::store(SERVER.name, e))?;
        let row = row.ok_or_else(|| Error::new(ErrorCode::Internal, "the server said nothing of itself"))?;
        Ok(ServerInfo {
            version: column(&row, 0)?,
            database: column(&row, 1)?,
            now: column(&row, 2)?,
            schema_version: column(&row, 3)?,
            schema_version_known: latest(),
        })
    }

    /// The database's clock: what every instant is compared with.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn now(&self) -> Result<SystemTime, Error> {
        Ok(self.clock([None, None]).await?.now)
    }

    /// The database's clock, and what it showed so long ago.
    pub(super) async fn clock(&self, ages: [Option<Duration>; 2]) -> Result<Clock, Error> {
        // No job is older; the database could not name instants much before.
        const AGE_MAX: Duration = Duration::from_secs(1_000 * 366 * 86_400);
        let [first, second] = ages.map(|age| age.map(|age| age.min(AGE_MAX).as_micros() as i64));
        let session = self.session().await?;
        let row = session.query_opt(&CLOCK, &[&first, &second]).await.map_err(|e| Error::store(CLOCK.name, e))?;
        let row = row.ok_or_else(|| Error::internal("the server has no clock"))?;
        Ok(Clock { now: column(&row, 0)?, ago: [column(&row, 1)?, column(&row, 2)?] })
    }
}
