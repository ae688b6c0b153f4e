//! Dead letters: jobs that will not be tried again, kept whole until somebody decides.

use std::time::{Duration, SystemTime};

use tokio_postgres::Row;

use super::Client;
use super::jobs::{column, page_size};
use crate::store::Statement;
use crate::store::jobs::{DISCARD, DISCARD_DEAD, GET_DEAD, LIST_DEAD, REQUEUE_DEAD};
use crate::{Error, ErrorCode, JobId, RawJson};

/// Dead letters moved in one transaction.
const CHUNK: i64 = 200;

/// A dead letter, with everything that is known.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The job's id.
    pub id: JobId,
    /// Its kind.
    pub kind: String,
    /// Its queue.
    pub queue: String,
    /// 1 (most urgent) to 4.
    pub priority: i16,
    /// Attempts used.
    pub attempt: i16,
    /// Attempts it had.
    pub max_attempts: i16,
    /// When it was enqueued.
    pub created_at: SystemTime,
    /// When its last attempt was claimed.
    pub started_at: Option<SystemTime>,
    /// When it died.
    pub died_at: SystemTime,
    /// Why its last attempt ended: `error`, `panic`, `timeout`, `worker_lost` …
    pub cause: String,
    /// The error's text.
    pub message: String,
    /// The recorded attempts, oldest first, as a JSON array.
    pub errors: RawJson,
    /// Its payload.
    pub payload: RawJson,
    /// The key for providers that accept one.
    pub idempotency_key: String,
    /// The first job of the line of requeues that it belongs to.
    pub origin_id: Option<JobId>,
    /// The job that it was made from.
    pub replaces_id: Option<JobId>,
    /// The job that was made from it.
    pub replaced_by: Option<JobId>,
}

/// Which dead letters are meant: those that have all that is named. Those that were requeued are never among them.
///
/// A filter that names nothing lists all of them; what changes them refuses it and wants [`DeadFilter::all`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadFilter {
    queue: Option<String>,
    kind: Option<String>,
    cause: Option<String>,
    before: Option<SystemTime>,
    everything: bool,
}

impl DeadFilter {
    /// Names nothing yet.
    pub fn new() -> Self {
        DeadFilter::default()
    }

    /// All of them, said explicitly.
    pub fn all() -> Self {
        DeadFilter { everything: true, ..DeadFilter::default() }
    }

    /// Only of this queue.
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queue = Some(queue.into());
        self
    }

    /// Only of this kind.
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = Some(kind.into());
        self
    }

    /// Only with this cause: `error`, `timeout`, `worker_lost` …
    pub fn cause(mut self, cause: impl Into<String>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    /// Only those that died before this instant of the database's clock.
    pub fn before(mut self, instant: SystemTime) -> Self {
        self.before = Some(instant);
        self
    }

    fn is_empty(&self) -> bool {
        self.queue.is_none() && self.kind.is_none() && self.cause.is_none() && self.before.is_none()
    }

    fn refuse_accident(&self, verb: &str) -> Result<(), Error> {
        match self.is_empty() && !self.everything {
            false => Ok(()),
            true => Err(Error::bad_input(
                format!("no filter is given, and {verb} without one means every dead letter"),
                "name a queue, kind, cause or time; or say so: DeadFilter::all()",
            )),
        }
    }
}

impl Client {
    /// Dead letters, longest dead first. `after` is the last of the page before; `limit` 1 to 1,000, 100 when not given.
    ///
    /// # Errors
    /// `BadInput`: the limit.
    pub async fn dead_letters(
        &self,
        filter: &DeadFilter,
        after: Option<&DeadLetter>,
        limit: Option<usize>,
    ) -> Result<Vec<DeadLetter>, Error> {
        let limit = page_size(limit)?;
        let (at, id) = (after.map(|last| last.died_at), after.map(|last| last.id));
        let session = self.session().await?;
        let rows = session
            .query(&LIST_DEAD, &[&filter.queue, &filter.kind, &filter.cause, &filter.before, &at, &id, &limit])
            .await
            .map_err(|e| Error::store(LIST_DEAD.name, e))?;
        rows.iter().map(read).collect()
    }

    /// The dead letter of this job, if there is one; also when it was requeued.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn dead_letter(&self, id: JobId) -> Result<Option<DeadLetter>, Error> {
        let session = self.session().await?;
        let row = session.query_opt(&GET_DEAD, &[&id]).await.map_err(|e| Error::store(GET_DEAD.name, e))?;
        row.map(|row| read(&row)).transpose()
    }

    /// Runs all dead letters of the filter again, a few hundred per transaction, at most `per_second` when given.
    /// Gives the number. What is done stays done when it fails half way; calling again does the rest.
    ///
    /// `done` is told the old and new ids after each transaction.
    ///
    /// # Errors
    /// `BadInput`: the filter is empty and not [`DeadFilter::all`], or `per_second` is 0.
    pub async fn requeue_dead(
        &self,
        filter: &DeadFilter,
        per_second: Option<u32>,
        mut done: impl FnMut(&[(JobId, JobId)]),
    ) -> Result<usize, Error> {
        filter.refuse_accident("requeue")?;
        if per_second == Some(0) {
            return Err(Error::bad_input("per_second is 0", "give at least 1, or nothing for no limit"));
        }
        let filter = self.until_now(filter).await?;
        let chunk = per_second.map_or(CHUNK, |rate| CHUNK.min(rate.into()));
        let mut count = 0;
        loop {
            let rows = self.dead_chunk(&REQUEUE_DEAD, &filter, chunk).await?;
            let moved: Vec<(JobId, JobId)> =
                rows.iter().map(|row| Ok((column(row, 0)?, column(row, 1)?))).collect::<Result<_, Error>>()?;
            done(&moved);
            count += moved.len();
            if moved.len() < chunk as usize {
                return Ok(count);
            }
            if let Some(rate) = per_second {
                tokio::time::sleep(Duration::from_secs(1).mul_f64(moved.len() as f64 / f64::from(rate))).await;
            }
        }
    }

    /// Removes a dead letter and its job for good. False: there is no such dead letter.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn discard(&self, id: JobId) -> Result<bool, Error> {
        let session = self.session().await?;
        let row = session.query_opt(&DISCARD, &[&id]).await.map_err(|e| Error::store(DISCARD.name, e))?;
        row.map_or(Ok(false), |row| column(&row, 0))
    }

    /// Removes all dead letters of the filter for good, a few hundred per transaction. Gives the number.
    ///
    /// `done` is told the ids after each transaction.
    ///
    /// # Errors
    /// `BadInput`: the filter is empty and not [`DeadFilter::all`].
    pub async fn discard_dead(&self, filter: &DeadFilter, mut done: impl FnMut(&[JobId])) -> Result<usize, Error> {
        filter.refuse_accident("discard")?;
        let filter = self.until_now(filter).await?;
        let mut count = 0;
        loop {
            let rows = self.dead_chunk(&DISCARD_DEAD, &filter, CHUNK).await?;
            let mut gone = Vec::new();
            for row in &rows {
                if column(row, 1)? {
                    gone.push(column(row, 0)?);
                }
            }
            done(&gone);
            count += gone.len();
            if rows.len() < CHUNK as usize {
                return Ok(count);
            }
        }
    }

    /// What dies from now on, perhaps again, is not part of a call that started before.
    async fn until_now(&self, filter: &DeadFilter) -> Result<DeadFilter, Error> {
        let before = match filter.before {
            Some(before) => before,
            None => self.now().await?,
        };
        Ok(DeadFilter { before: Some(before), ..filter.clone() })
    }

    /// One chunk; tried again when somebody else took one of its dead letters at the same moment.
    async fn dead_chunk(&self, verb: &'static Statement, filter: &DeadFilter, chunk: i64) -> Result<Vec<Row>, Error> {
        const TRIES: usize = 5;
        let mut tries = 0;
        loop {
            let session = self.session().await?;
            let rows = session.query(verb, &[&filter.queue, &filter.kind, &filter.cause, &filter.before, &chunk]).await;
            match rows.map_err(|e| Error::store(verb.name, e)) {
                Err(error) if matches!(error.code(), ErrorCode::Refused | ErrorCode::Conflict) && tries < TRIES => {
                    tries += 1;
                }
                end => return end,
            }
        }
    }
}

fn read(row: &Row) -> Result<DeadLetter, Error> {
    Ok(DeadLetter {
        id: column(row, 0)?,
        kind: column(row, 1)?,
        queue: column(row, 2)?,
        priority: column(row, 3)?,
        attempt: column(row, 4)?,
        max_attempts: column(row, 5)?,
        created_at: column(row, 6)?,
        started_at: column(row, 7)?,
        died_at: column(row, 8)?,
        cause: column(row, 9)?,
        message: column(row, 10)?,
        errors: column(row, 11)?,
        payload: column(row, 12)?,
        idempotency_key: column(row, 13)?,
        origin_id: column(row, 14)?,
        replaces_id: column(row, 15)?,
        replaced_by: column(row, 16)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_filter_is_no_way_to_say_all() {
        let error = DeadFilter::default().refuse_accident("discard").unwrap_err();
        assert!(error.to_string().contains("DeadFilter::all()"), "{error}");
        assert!(DeadFilter::all().refuse_accident("discard").is_ok());
        assert!(DeadFilter::new().kind("k").refuse_accident("discard").is_ok());
    }
}
