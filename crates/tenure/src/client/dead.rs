//! Dead letters: jobs that will not be tried again, kept whole until somebody decides.

mod filter;

use std::time::{Duration, SystemTime};

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

pub use self::filter::DeadFilter;
use super::Client;
use super::jobs::{column, page_size};
use crate::lifecycle::State;
use crate::store::Statement;
use crate::store::jobs::{COUNT_DEAD, DISCARD, DISCARD_DEAD, GET_DEAD, GROUP_DEAD, LIST_DEAD, REQUEUE_DEAD};
use crate::store::operate::LINE_OF;
use crate::{Error, ErrorCode, JobId, RawJson};

/// Dead letters moved in one transaction.
const CHUNK: i64 = 200;

/// How far a walk over dead letters has come, by the instant of death and the id. It starts behind the last chunk, as what was
/// requeued stays where it is; at its end it looks from the start once more, for those whose death was committed late.
#[derive(Default)]
struct Walk {
    after: Option<(SystemTime, JobId)>,
    is_done: bool,
}

impl Walk {
    fn passed(&mut self, rows: &[Row], chunk: i64) -> Result<(), Error> {
        if rows.len() < chunk as usize {
            self.is_done = self.after.take().is_none();
            return Ok(());
        }
        let places =
            rows.iter().map(|row| Ok((column(row, 2)?, column(row, 0)?))).collect::<Result<Vec<_>, Error>>()?;
        self.after = places.into_iter().max();
        Ok(())
    }
}

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
    /// The same for dead letters with one cause whose messages differ only in numbers, ids and quoted texts.
    pub fingerprint: String,
}

/// Dead letters with one cause: their messages differ only in numbers, ids and quoted texts.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeadGroup {
    /// Names the group in a [`DeadFilter`].
    pub fingerprint: String,
    /// How many there are.
    pub count: u64,
    /// Why their last attempts ended.
    pub cause: String,
    /// Their kinds, by name.
    pub kinds: Vec<String>,
    /// When the first of them died.
    pub first_died_at: SystemTime,
    /// When the last of them died.
    pub last_died_at: SystemTime,
    /// One of them, the one that was enqueued last.
    pub example: JobId,
    /// What their messages have in common: the example's start, with `<n>`, `<id>`, `<hex>` and `<text>` in place of
    /// what differs.
    pub message: String,
}

/// A job in the line of those that were made from one another by requeue.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LineJob {
    /// Its id.
    pub id: JobId,
    /// Where it stands; none: it is gone, discarded or removed by retention.
    pub status: Option<State>,
    /// Why it died, if it did.
    pub cause: Option<String>,
    /// When it was enqueued.
    pub created_at: Option<SystemTime>,
    /// When it ended.
    pub ended_at: Option<SystemTime>,
}

/// How fast dead letters come back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequeuePace {
    /// All at once.
    #[default]
    AtOnce,
    /// Not more than so many a second, at least 1; the call takes as long.
    PerSecond(u32),
    /// Evenly over this time, at most a day: the call is soon done, and the new jobs are scheduled, each a little off
    /// its place by chance.
    Over(Duration),
}

impl RequeuePace {
    fn check(self) -> Result<(), Error> {
        const OVER_MAX: Duration = Duration::from_secs(86_400);
        match self {
            RequeuePace::PerSecond(0) => Err(Error::bad_input("per_second is 0", "give at least 1, or AtOnce")),
            RequeuePace::Over(time) if time > OVER_MAX => {
                Err(Error::bad_input(format!("{time:?} is longer than a day"), "spread over at most a day"))
            }
            RequeuePace::AtOnce | RequeuePace::PerSecond(_) | RequeuePace::Over(_) => Ok(()),
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
        let filter = self.fixed_dead(filter).await?;
        let (at, id) = (after.map(|last| last.died_at), after.map(|last| last.id));
        let session = self.session().await?;
        let mut params = filter.params();
        params.extend([&at as &(dyn ToSql + Sync), &id, &limit]);
        let rows = session.query(&LIST_DEAD, &params).await.map_err(|e| Error::store(LIST_DEAD.name, e))?;
        rows.iter().map(read).collect()
    }

    /// The dead letters of the filter by cause and message, the most frequent first; `limit` as for
    /// [`dead_letters`](Self::dead_letters). Groups hold what differs in numbers, ids and quoted texts only.
    ///
    /// # Errors
    /// `BadInput`: the limit.
    pub async fn dead_groups(&self, filter: &DeadFilter, limit: Option<usize>) -> Result<Vec<DeadGroup>, Error> {
        let limit = page_size(limit)?;
        let filter = self.fixed_dead(filter).await?;
        let session = self.session().await?;
        let mut params = filter.params();
        params.push(&limit);
        let rows = session.query(&GROUP_DEAD, &params).await.map_err(|e| Error::store(GROUP_DEAD.name, e))?;
        let read = |row: &Row| {
            Ok(DeadGroup {
                fingerprint: column(row, 0)?,
                count: column::<i64>(row, 1)?.unsigned_abs(),
                kinds: column(row, 2)?,
                first_died_at: column(row, 3)?,
                last_died_at: column(row, 4)?,
                example: column(row, 5)?,
                cause: column(row, 6)?,
                message: column(row, 7)?,
            })
        };
        rows.iter().map(read).collect()
    }

    /// How many dead letters the filter names now.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn count_dead(&self, filter: &DeadFilter) -> Result<u64, Error> {
        let filter = self.fixed_dead(filter).await?;
        let session = self.session().await?;
        let row = session.query_opt(&COUNT_DEAD, &filter.params()).await;
        let row = row.map_err(|e| Error::store(COUNT_DEAD.name, e))?;
        row.map_or(Ok(0), |row| Ok(column::<i64>(&row, 0)?.unsigned_abs()))
    }

    /// The jobs that were made from one another by requeue, this one among them, oldest first, at most 1,000. A single
    /// job without a status: there is no such job.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn line_of(&self, id: JobId) -> Result<Vec<LineJob>, Error> {
        let session = self.session().await?;
        let rows = session.query(&LINE_OF, &[&id]).await.map_err(|e| Error::store(LINE_OF.name, e))?;
        let read = |row: &Row| {
            let status: Option<&str> = column(row, 1)?;
            Ok(LineJob {
                id: column(row, 0)?,
                status: status.and_then(State::from_name),
                cause: column(row, 2)?,
                created_at: column(row, 3)?,
                ended_at: column(row, 4)?,
            })
        };
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

    /// Runs all dead letters of the filter again, a few hundred per transaction, at this pace. Gives the number. What is
    /// done stays done when it fails half way; calling again does the rest.
    ///
    /// `done` is told the old and new ids after each transaction.
    ///
    /// # Errors
    /// `BadInput`: the filter is empty and not [`DeadFilter::all`], or the pace is outside its range.
    pub async fn requeue_dead(
        &self,
        filter: &DeadFilter,
        pace: RequeuePace,
        mut done: impl FnMut(&[(JobId, JobId)]),
    ) -> Result<usize, Error> {
        filter.refuse_accident("requeue")?;
        pace.check()?;
        let clock = self.clock(filter.ages()).await?;
        let (began, filter) = (clock.now, filter.fixed(&clock).until(clock.now));
        let chunk = if let RequeuePace::PerSecond(rate) = pace { CHUNK.min(rate.into()) } else { CHUNK };
        let step = match pace {
            RequeuePace::Over(time) => Some(time.div_f64(self.count_dead(&filter).await?.max(1) as f64)),
            RequeuePace::AtOnce | RequeuePace::PerSecond(_) => None,
        };
        let (mut count, mut walk) = (0, Walk::default());
        while !walk.is_done {
            // The place of each in the line is its time; without a step there is none, and all of them run at once.
            let from = step.map(|step| began + step.mul_f64(count as f64));
            let step_ms = step.map(|step| step.as_secs_f64() * 1_000.0);
            let rows = self.dead_chunk(&REQUEUE_DEAD, &filter, &mut walk, chunk, &[&from, &step_ms]).await?;
            let moved: Vec<(JobId, JobId)> =
                rows.iter().map(|row| Ok((column(row, 0)?, column(row, 1)?))).collect::<Result<_, Error>>()?;
            done(&moved);
            count += moved.len();
            if let RequeuePace::PerSecond(rate) = pace
                && !walk.is_done
            {
                // The pace that was asked for.
                tokio::time::sleep(Duration::from_secs(1).mul_f64(moved.len() as f64 / f64::from(rate))).await;
            }
        }
        Ok(count)
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
        let clock = self.clock(filter.ages()).await?;
        let filter = filter.fixed(&clock).until(clock.now);
        let (mut count, mut walk) = (0, Walk::default());
        while !walk.is_done {
            let rows = self.dead_chunk(&DISCARD_DEAD, &filter, &mut walk, CHUNK, &[]).await?;
            let mut gone = Vec::new();
            for row in &rows {
                if column(row, 1)? {
                    gone.push(column(row, 0)?);
                }
            }
            done(&gone);
            count += gone.len();
        }
        Ok(count)
    }

    /// Its ages become instants once per call, so that no job moves into a filter while it is worked off.
    async fn fixed_dead(&self, filter: &DeadFilter) -> Result<DeadFilter, Error> {
        match filter.ages() {
            [None, None] => Ok(filter.clone()),
            ages => Ok(filter.fixed(&self.clock(ages).await?)),
        }
    }

    /// One chunk; tried again when somebody else took one of its dead letters at the same moment.
    async fn dead_chunk(
        &self,
        verb: &'static Statement,
        filter: &DeadFilter,
        walk: &mut Walk,
        chunk: i64,
        more: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        const TRIES: usize = 5;
        let (at, id) = walk.after.unzip();
        let mut params = filter.params();
        params.extend([&at as &(dyn ToSql + Sync), &id, &chunk]);
        params.extend_from_slice(more);
        let mut tries = 0;
        loop {
            let session = self.session().await?;
            let rows = session.query(verb, &params).await;
            match rows.map_err(|e| Error::store(verb.name, e)) {
                Err(error) if matches!(error.code(), ErrorCode::Refused | ErrorCode::Conflict) && tries < TRIES => {
                    tries += 1;
                }
                Err(error) => return Err(error),
                Ok(rows) => {
                    walk.passed(&rows, chunk)?;
                    return Ok(rows);
                }
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
        fingerprint: column(row, 17)?,
    })
}
