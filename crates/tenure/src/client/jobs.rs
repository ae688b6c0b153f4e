//! Look at jobs, cancel them, run them again.

use std::time::{Duration, SystemTime};

use tokio_postgres::Row;

use super::Client;
use crate::lifecycle::State;
use crate::model::check_payload;
use crate::model::limits::LIST_MAX;
use crate::store::Statement;
use crate::store::jobs::{ATTEMPT_ERRORS, CANCEL, GET_JOB, LIST_JOBS, REQUEUE};
use crate::store::operate::CANCEL_SETTLED;
use crate::{Error, ErrorCode, JobId, RawJson};

/// A job as the view `jobs` shows it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct JobInfo {
    /// Its id.
    pub id: JobId,
    /// Its kind.
    pub kind: String,
    /// Its queue.
    pub queue: String,
    /// Where it stands.
    pub status: State,
    /// 1 (most urgent) to 4.
    pub priority: i16,
    /// Attempts used; the running one counts.
    pub attempt: i16,
    /// Attempts it has.
    pub max_attempts: i16,
    /// When it may run, or might for the first time.
    pub run_at: SystemTime,
    /// When it was enqueued.
    pub created_at: SystemTime,
    /// When its last attempt was claimed.
    pub started_at: Option<SystemTime>,
    /// When it ended.
    pub finished_at: Option<SystemTime>,
    /// When anything last happened to it.
    pub updated_at: SystemTime,
    /// Who runs it or ran it last: the worker's name; `worker 17 (left)` when it has gone for longer than 90 days.
    pub worker: Option<String>,
    /// The message of the last failed attempt.
    pub last_error: Option<String>,
    /// Its payload.
    pub payload: RawJson,
    /// What its handler returned.
    pub result: Option<RawJson>,
    /// What its handler last said of its progress.
    pub progress: Option<RawJson>,
    /// How long an attempt may take; none: the kind's own timeout.
    pub timeout: Option<Duration>,
    /// The key for providers that accept one, the same for all attempts.
    pub idempotency_key: String,
    /// The first job of the line of requeues that it belongs to.
    pub origin_id: Option<JobId>,
    /// The job that it was made from.
    pub replaces_id: Option<JobId>,
    /// The job that was made from it.
    pub replaced_by: Option<JobId>,
    /// It runs although it should have ended: its handler outlasts its timeout or its cancel.
    pub overrun: bool,
    /// How often its handler asked to be run later.
    pub snoozes: i64,
}

/// Which jobs to list; all of them by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobFilter {
    /// Only in one of these states; none: in any. Of the dead those are meant that are open: not requeued.
    pub statuses: Vec<State>,
    /// With [`State::Dead`] among the states: dead letters that were requeued, too. Without states they are listed anyhow.
    pub requeued: bool,
    /// Only of this queue.
    pub queue: Option<String>,
    /// Only of this kind.
    pub kind: Option<String>,
    /// Only older than this one: the last of the page before.
    pub before: Option<JobId>,
    /// How many, 1 to 1,000; 100 when not given.
    pub limit: Option<usize>,
}

/// A failed attempt.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AttemptError {
    /// Its number, from 1.
    pub attempt: i16,
    /// Why it ended: `error`, `panic`, `timeout`, `worker_lost` …
    pub cause: String,
    /// The error's text.
    pub message: String,
    /// What else was recorded: the chain of errors, where it arose, an exit code …
    pub details: Option<RawJson>,
    /// The worker.
    pub worker: Option<String>,
    /// When it was claimed.
    pub started_at: SystemTime,
    /// When it ended.
    pub failed_at: SystemTime,
}

/// What a cancel did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// It was waiting and is cancelled now.
    Now,
    /// It runs; its worker was asked to stop it.
    Requested,
    /// It had completed before.
    WasCompleted,
    /// It had been cancelled before.
    WasCancelled,
    /// It was dead before.
    WasDead,
}

impl Cancelled {
    /// Its name in JSON and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Cancelled::Now => "cancelled",
            Cancelled::Requested => "requested",
            Cancelled::WasCompleted => "completed",
            Cancelled::WasCancelled => "already cancelled",
            Cancelled::WasDead => "dead",
        }
    }
}

impl Client {
    /// The job with this id, if there is one.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn get(&self, id: JobId) -> Result<Option<JobInfo>, Error> {
        let session = self.session().await?;
        let row = session.query_opt(&GET_JOB, &[&id]).await.map_err(|e| Error::store(GET_JOB.name, e))?;
        row.map(|row| read_job(&row)).transpose()
    }

    /// Jobs, newest first.
    ///
    /// # Errors
    /// `BadInput`: the limit is outside 1 to 1,000.
    pub async fn list(&self, filter: &JobFilter) -> Result<Vec<JobInfo>, Error> {
        let limit = page_size(filter.limit)?;
        let statuses: Vec<&str> = filter.statuses.iter().map(|state| state.as_str()).collect();
        let session = self.session().await?;
        let rows = session
            .query(&LIST_JOBS, &[&statuses, &filter.queue, &filter.kind, &filter.before, &limit, &filter.requeued])
            .await
            .map_err(|e| Error::store(LIST_JOBS.name, e))?;
        rows.iter().map(read_job).collect()
    }

    /// The failed attempts of a job, oldest first. Kept are the first and the last 20 of them, and those whose workers were
    /// lost.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn attempt_errors(&self, id: JobId) -> Result<Vec<AttemptError>, Error> {
        let session = self.session().await?;
        let rows = session
            .query(&ATTEMPT_ERRORS, &[&id, &(LIST_MAX as i64)])
            .await
            .map_err(|e| Error::store(ATTEMPT_ERRORS.name, e))?;
        rows.iter().map(read_attempt).collect()
    }

    /// Cancels a job: at once when it waits, through its worker when it runs. An end stays as it is. After
    /// [`Cancelled::Requested`] no further attempt of the job begins: it ends as cancelled, or as its handler ends it.
    ///
    /// # Errors
    /// `NotFound`: no such job.
    pub async fn cancel(&self, id: JobId) -> Result<Cancelled, Error> {
        match self.cancel_by(&CANCEL, id).await? {
            // Its attempt may just have failed, and not have seen the request. Now everybody sees it: a second look
            // waits for that end and finds the job waiting, or nothing can bring it back.
            Cancelled::Requested => match self.cancel_by(&CANCEL_SETTLED, id).await? {
                Cancelled::WasCancelled => Ok(Cancelled::Requested),
                answer => Ok(answer),
            },
            answer => Ok(answer),
        }
    }

    async fn cancel_by(&self, verb: &'static Statement, id: JobId) -> Result<Cancelled, Error> {
        let session = self.session().await?;
        let row = session.query_opt(verb, &[&id]).await.map_err(|e| Error::store(verb.name, e))?;
        let answer: Option<String> = row.map(|row| column(&row, 0)).transpose()?.flatten();
        match answer.as_deref() {
            Some("cancelled") => Ok(Cancelled::Now),
            Some("requested") => Ok(Cancelled::Requested),
            Some("completed") => Ok(Cancelled::WasCompleted),
            Some("already cancelled") => Ok(Cancelled::WasCancelled),
            Some("dead") => Ok(Cancelled::WasDead),
            Some(other) => Err(Error::internal(format!("cancel answered {other:?}"))),
            None => Err(no_such_job(id)),
        }
    }

    /// Runs an ended job again, as a new job that names it; [`wait`](Self::wait) on the old id follows. With a payload
    /// the new job gets that one and an idempotency key of its own, otherwise it keeps both.
    ///
    /// # Errors
    /// `NotFound`: no such job. `Refused`: it has not ended, or was requeued before. `BadInput`: the payload.
    pub async fn requeue(&self, id: JobId, payload: Option<RawJson>) -> Result<JobId, Error> {
        payload.as_ref().map(check_payload).transpose()?;
        let session = self.session().await?;
        let row = session.query_opt(&REQUEUE, &[&id, &payload]).await.map_err(|e| Error::store(REQUEUE.name, e))?;
        let row = row.ok_or_else(|| Error::internal("requeue answered with no row"))?;
        column(&row, 0)
    }
}

pub(super) fn no_such_job(id: JobId) -> Error {
    Error::new(ErrorCode::NotFound, format!("there is no job {id}"))
        .with_help("it may be of another schema or database, or have been removed by retention")
}

pub(super) fn page_size(limit: Option<usize>) -> Result<i64, Error> {
    const LIMIT_DEFAULT: usize = 100;
    let limit = limit.unwrap_or(LIMIT_DEFAULT);
    match (1..=LIST_MAX).contains(&limit) {
        true => Ok(limit as i64),
        false => Err(Error::bad_input(
            format!("the limit {limit} is outside 1 to {LIST_MAX}"),
            "ask for the next page with the last id of this one",
        )),
    }
}

/// The value of a column; another type than expected means another version of the schema.
pub(super) fn column<'a, T: tokio_postgres::types::FromSql<'a>>(row: &'a Row, at: usize) -> Result<T, Error> {
    row.try_get(at).map_err(|e| {
        Error::new(ErrorCode::Schema, format!("column {at} is not what this program expects: {e}"))
            .with_help("run `tenure migrate` with this version's program")
    })
}

fn read_job(row: &Row) -> Result<JobInfo, Error> {
    let status: &str = column(row, 3)?;
    Ok(JobInfo {
        id: column(row, 0)?,
        kind: column(row, 1)?,
        queue: column(row, 2)?,
        status: State::from_name(status).ok_or_else(|| Error::internal(format!("a job is {status:?}")))?,
        priority: column(row, 4)?,
        attempt: column(row, 5)?,
        max_attempts: column(row, 6)?,
        run_at: column(row, 7)?,
        created_at: column(row, 8)?,
        started_at: column(row, 9)?,
        finished_at: column(row, 10)?,
        updated_at: column(row, 11)?,
        worker: column(row, 12)?,
        last_error: column(row, 13)?,
        payload: column(row, 14)?,
        result: column(row, 15)?,
        progress: column(row, 16)?,
        timeout: column::<Option<i64>>(row, 17)?.map(|ms| Duration::from_millis(ms.unsigned_abs())),
        idempotency_key: column(row, 18)?,
        origin_id: column(row, 19)?,
        replaces_id: column(row, 20)?,
        replaced_by: column(row, 21)?,
        overrun: column(row, 22)?,
        snoozes: column(row, 23)?,
    })
}

fn read_attempt(row: &Row) -> Result<AttemptError, Error> {
    Ok(AttemptError {
        attempt: column(row, 0)?,
        cause: column(row, 1)?,
        message: column(row, 2)?,
        details: column(row, 3)?,
        worker: column(row, 4)?,
        started_at: column(row, 5)?,
        failed_at: column(row, 6)?,
    })
}
