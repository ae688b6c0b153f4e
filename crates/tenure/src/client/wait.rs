//! Wait for the end of a job.

use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::Client;
use super::jobs::{column, no_such_job};
use crate::lifecycle::State;
use crate::store::jobs::END_OF_JOB;
use crate::{Error, ErrorCode, JobId, RawJson};

/// The first look after this time, the next ones after ever longer ones.
const LOOK_FIRST: Duration = Duration::from_millis(10);
/// At least this often.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// Its handler succeeded.
    #[non_exhaustive]
    Completed {
        /// The job: the one waited for, or the last one of its line of requeues.
        id: JobId,
        /// What the handler returned; `null` when nothing.
        result: RawJson,
    },
    /// It was cancelled.
    #[non_exhaustive]
    Cancelled {
        /// The job.
        id: JobId,
    },
    /// It will not be tried again.
    #[non_exhaustive]
    Dead {
        /// The job.
        id: JobId,
        /// Why its last attempt ended: `error`, `panic`, `timeout`, `worker_lost` …
        cause: String,
        /// The error's text.
        message: String,
    },
}

impl Ended {
    /// The result of a completed job as a type.
    ///
    /// # Errors
    /// `Refused`: it did not complete; the message says how it ended. `BadInput`: the result does not fit the type.
    pub fn result<T: DeserializeOwned>(&self) -> Result<T, Error> {
        match self {
            Ended::Completed { result, .. } => result.decode(),
            Ended::Cancelled { id } => Err(Error::new(ErrorCode::Refused, format!("job {id} was cancelled"))),
            Ended::Dead { id, cause, message } => {
                Err(Error::new(ErrorCode::Refused, format!("job {id} is dead ({cause}): {message}")))
            }
        }
    }
}

/// One look at a job.
enum Look {
    Ended(Ended),
    MovedTo(JobId),
    NotYet,
}

impl Client {
    /// Waits until the job has ended, for at most `timeout`. A job that was requeued is followed to the new one.
    ///
    /// It polls, and goes on through an outage of the database and through a failover.
    ///
    /// # Errors
    /// `Timeout`: it has not ended by then. `NotFound`: there is no such job, or its dead letter was discarded.
    pub async fn wait(&self, id: JobId, timeout: Duration) -> Result<Ended, Error> {
        let deadline = Instant::now().checked_add(timeout);
        let (mut id, mut pause) = (id, LOOK_FIRST);
        loop {
            match self.look(id).await {
                Ok(Look::Ended(end)) => return Ok(end),
                Ok(Look::MovedTo(next)) => {
                    id = next;
                    continue;
                }
                Ok(Look::NotYet) => {}
                Err(error) if error.is_retryable() => tracing::debug!(%error, %id, "waiting goes on"),
                Err(error) => return Err(error),
            }
            let next = Instant::now() + pause;
            if deadline.is_some_and(|deadline| next > deadline) {
                return Err(Error::new(ErrorCode::Timeout, format!("job {id} has not ended within {timeout:?}"))
                    .with_help("wait longer, or look at it with `tenure job show`"));
            }
            tokio::time::sleep_until(next).await;
            pause = (pause * 2).min(LOOK_EVERY);
        }
    }

    async fn look(&self, id: JobId) -> Result<Look, Error> {
        let session = self.session().await?;
        let row = session.query_opt(&END_OF_JOB, &[&id]).await.map_err(|e| Error::store(END_OF_JOB.name, e))?;
        let row = row.ok_or_else(|| no_such_job(id))?;
        if let Some(next) = column::<Option<JobId>>(&row, 4)? {
            return Ok(Look::MovedTo(next));
        }
        let Some(status) = column::<Option<&str>>(&row, 0)? else {
            return Ok(Look::NotYet);
        };
        let end = match State::from_name(status) {
            Some(State::Completed) => {
                let result: Option<RawJson> = column(&row, 1)?;
                Ended::Completed { id, result: result.unwrap_or_else(RawJson::null) }
            }
            Some(State::Cancelled) => Ended::Cancelled { id },
            Some(State::Dead) => Ended::Dead { id, cause: column(&row, 2)?, message: column(&row, 3)? },
            Some(
                State::Available | State::Scheduled | State::Retrying | State::Snoozed | State::Held | State::Running,
            )
            | None => return Err(Error::internal(format!("job {id} ended as {status:?}"))),
        };
        Ok(Look::Ended(end))
    }
}
