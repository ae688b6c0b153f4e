//! How long finished jobs are kept, and their removal.

use std::time::Duration;

use serde::Deserialize;
use tokio_postgres::Row;

use super::Client;
use super::jobs::column;
use crate::lifecycle::State;
use crate::model::limits::{KEEP_MAX, KEEP_MIN};
use crate::model::names;
use crate::store::retention::{KEEP_DEFAULTS, RETAIN_PREVIEW, SET_KEEP, WALK_ANEW};
use crate::store::{JsonText, Statement};
use crate::{Error, ErrorCode};

/// Jobs that one step deletes one by one.
const STEP_ROWS: u32 = 2_000;
/// The longest step, on the server.
const STEP_MAX: Duration = Duration::from_secs(5);
/// Between two looks whether a worker has ended the step that it is at.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// So many looks: a step takes a second at most.
const LOOKS_MAX: usize = 600;

/// How long finished jobs are kept after their end, by how they ended. They may stay a while longer, never shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Keep {
    /// Completed ones; 7 days by default.
    pub completed: Duration,
    /// Cancelled ones; 7 days by default.
    pub cancelled: Duration,
    /// Dead letters, with their jobs; 90 days by default.
    pub dead: Duration,
}

/// Finished jobs of one queue and outcome that were kept long enough.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Prunable {
    /// The queue.
    pub queue: String,
    /// `completed`, `cancelled` or `dead`.
    pub outcome: State,
    /// How many.
    pub jobs: u64,
}

/// What [`Client::prune`] has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pruned {
    /// Jobs removed.
    pub jobs: u64,
    /// Of those: ranges of jobs that were removed as a whole, which gave their space on disk back at once.
    pub ranges: u64,
    /// Ranges that could not be emptied because somebody reads them. The workers try again once a minute.
    pub in_use: u64,
}

/// The answer of `retain_preview`.
#[derive(Deserialize)]
struct Preview {
    last: Option<i64>,
    due: Vec<DueCount>,
}

#[derive(Deserialize)]
struct DueCount {
    queue: String,
    outcome: String,
    jobs: u64,
}

impl Keep {
    /// Three columns of milliseconds, from this one on.
    pub(super) fn read(row: &Row, first: usize) -> Result<Keep, Error> {
        let age = |index| Ok::<_, Error>(Duration::from_millis(column::<i64>(row, index)?.unsigned_abs()));
        Ok(Keep { completed: age(first)?, cancelled: age(first + 1)?, dead: age(first + 2)? })
    }
}

impl Client {
    /// Sets how long finished jobs are kept: those of `queue`, or without one, of all queues that have no age of their own.
    /// `outcome` is `Completed`, `Cancelled` or `Dead`. `age` is 1 second to 100 years, which stands for ever; none takes the
    /// setting back, so that the default holds again.
    ///
    /// It holds for jobs that have ended already, too: a shorter age removes them soon.
    ///
    /// # Errors
    /// `BadInput`: the name, the age, or a state that is no outcome.
    pub async fn set_keep(&self, queue: Option<&str>, outcome: State, age: Option<Duration>) -> Result<(), Error> {
        if let Some(queue) = queue {
            names::check_queue(queue)?;
        }
        if !matches!(outcome, State::Completed | State::Cancelled | State::Dead) {
            return Err(Error::bad_input(
                format!("{} is no outcome that is kept", outcome.as_str()),
                "use completed, cancelled or dead",
            ));
        }
        if let Some(age) = age.filter(|age| !(KEEP_MIN..=KEEP_MAX).contains(age)) {
            return Err(Error::bad_input(
                format!("{} jobs cannot be kept for {age:?}", outcome.as_str()),
                "give 1 second to 100 years, which stands for ever",
            ));
        }
        let ms = age.map(|age| i64::try_from(age.as_millis()).unwrap_or(i64::MAX));
        let session = self.session().await?;
        let done = session.query(&SET_KEEP, &[&queue, &outcome.as_str(), &ms]).await;
        done.map(drop).map_err(|e| Error::store(SET_KEEP.name, e))
    }

    /// What queues without an age of their own keep. What a queue keeps is in [`QueueInfo`](crate::QueueInfo).
    ///
    /// # Errors
    /// Those of the database.
    pub async fn keep_defaults(&self) -> Result<Keep, Error> {
        Keep::read(&self.only_row(&KEEP_DEFAULTS, &[]).await?, 0)
    }

    /// Removes all finished jobs now that were kept long enough, in small steps. Workers do that by themselves; this does not wait
    /// for them, nor, as they do, for whole ranges of jobs to become due.
    ///
    /// `done` is told after each step what was done so far. What is done stays done when it fails half way; workers do the rest.
    ///
    /// # Errors
    /// `Timeout`: somebody else has been at a step for half a minute.
    pub async fn prune(&self, mut done: impl FnMut(Pruned)) -> Result<Pruned, Error> {
        const WHAT: &str = "prune";
        self.only_row(&WALK_ANEW, &[]).await?;
        let (mut total, mut looks) = (Pruned::default(), 0);
        loop {
            let step = self.session().await?.retain(STEP_ROWS, STEP_MAX).await.map_err(|e| Error::store(WHAT, e))?;
            if !step.ran {
                looks += 1;
                if looks > LOOKS_MAX {
                    return Err(Error::new(ErrorCode::Timeout, "somebody else has been removing jobs for too long")
                        .with_help("look for a session that hangs in tenure.retain"));
                }
                tokio::time::sleep(LOOK_AGAIN).await;
                continue;
            }
            looks = 0;
            let count = |n: i64| u64::try_from(n).unwrap_or_default();
            total.jobs += count(step.removed);
            total.ranges += count(step.emptied);
            total.in_use = count(step.in_use);
            done(total);
            if !step.more {
                return Ok(total);
            }
        }
    }

    /// What [`Client::prune`] would remove, by queue and outcome. Looks at every finished job that may be due, in small steps.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn prune_preview(&self) -> Result<Vec<Prunable>, Error> {
        let mut found: Vec<Prunable> = Vec::new();
        let mut after: Option<i64> = None;
        loop {
            let row = self.only_row(&RETAIN_PREVIEW, &[&after]).await?;
            let text = column::<JsonText<'_>>(&row, 0)?.0;
            let preview: Preview = serde_json::from_str(text)
                .map_err(|error| Error::internal(format!("retain_preview returned what cannot be read: {error}")))?;
            for due in preview.due {
                add(&mut found, due)?;
            }
            after = preview.last;
            if after.is_none() {
                found.sort_by(|a, b| (&a.queue, a.outcome.as_str()).cmp(&(&b.queue, b.outcome.as_str())));
                return Ok(found);
            }
        }
    }

    async fn only_row(
        &self,
        statement: &'static Statement,
        params: &[&(dyn tokio_postgres::types::ToSql + Sync)],
    ) -> Result<Row, Error> {
        let session = self.session().await?;
        let row = session.query_opt(statement, params).await.map_err(|e| Error::store(statement.name, e))?;
        row.ok_or_else(|| Error::internal(format!("{} returned no row", statement.name)))
    }
}

fn add(found: &mut Vec<Prunable>, due: DueCount) -> Result<(), Error> {
    let outcome = State::from_name(&due.outcome)
        .ok_or_else(|| Error::internal(format!("{:?} is no outcome of a job", due.outcome)))?;
    match found.iter_mut().find(|known| known.queue == due.queue && known.outcome == outcome) {
        Some(known) => known.jobs += due.jobs,
        None => found.push(Prunable { queue: due.queue, outcome, jobs: due.jobs }),
    }
    Ok(())
}
