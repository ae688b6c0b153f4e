//! Pause of kinds, drain, and why a job does not run.

use std::time::{Duration, Instant, SystemTime};

use super::Client;
use super::jobs::column;
use crate::model::limits::LIST_MAX;
use crate::model::names;
use crate::store::operate::{DRAIN_WORKER, PAUSE_KIND, PAUSED_KINDS, RESUME_KIND, SETTLE_PAUSE, WAITS_FOR};
use crate::{CancelFilter, Error, ErrorCode, JobId, lifecycle::State};

/// How often a drain looks.
const DRAIN_LOOK: Duration = Duration::from_millis(250);
/// A claim that began before the pause may still be under way when nothing runs: it is over for good when nothing runs
/// at two looks this far apart. Claims take milliseconds.
const DRAIN_SETTLE: Duration = Duration::from_secs(1);

/// A kind that is paused, in one queue or in all.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KindPause {
    /// The kind.
    pub kind: String,
    /// The queue in which it is paused; none: in every queue.
    pub queue: Option<String>,
    /// Since when.
    pub paused_at: SystemTime,
    /// Who paused it.
    pub paused_by: String,
    /// Why.
    pub reason: Option<String>,
}

/// Why a job does not run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitReason {
    /// For programs: `queue_paused`, `kind_paused`, `not_due`, `held`, `no_worker`, `suspect`, `being_moved`, `turn`,
    /// or of a job that runs: `worker_suspected`, its worker looks lost.
    pub reason: String,
    /// For people: a sentence with the names and instants.
    pub explained: String,
}

impl Client {
    /// Pauses a kind, in one queue or in all: running jobs finish, and nothing more of it is claimed by any worker once
    /// this has returned. True: it was not paused so before. `by` is the database's user when not given.
    ///
    /// # Errors
    /// `BadInput`: a name. `Timeout`: it is paused, but a claim that began before has not come to its end within 2 s (a
    /// stalled disk, a frozen session); call it again to wait again.
    pub async fn pause_kind(
        &self,
        kind: &str,
        queue: Option<&str>,
        by: Option<&str>,
        reason: Option<&str>,
    ) -> Result<bool, Error> {
        names::check_kind(kind)?;
        queue.map(names::check_queue).transpose()?;
        refuse_nul([by, reason])?;
        let session = self.session().await?;
        let row = session.query_opt(&PAUSE_KIND, &[&kind, &queue, &by, &reason]).await;
        let row = row.map_err(|e| Error::store(PAUSE_KIND.name, e))?;
        drop(session);
        self.settle_pause().await?;
        row.map_or(Ok(false), |row| column(&row, 0))
    }

    /// Claims that began before a pause was committed do not know of it: they are waited for, two seconds at most, which
    /// is many times what a claim takes.
    pub(super) async fn settle_pause(&self) -> Result<(), Error> {
        let session = self.session().await?;
        let row = session.query_opt(&SETTLE_PAUSE, &[]).await.map_err(|e| Error::store(SETTLE_PAUSE.name, e))?;
        let row = row.ok_or_else(|| Error::internal("settle_pause answered with no row"))?;
        let Some(holders) = column::<Option<String>>(&row, 0)? else { return Ok(()) };
        let late = format!(
            "paused, but this began before and is still under way after 2 s; if it is a worker's claim, it may start jobs: {holders}"
        );
        Err(Error::new(ErrorCode::Timeout, late)
            .with_help("pause again, which waits for it again, before you rely on it; or end that process"))
    }

    /// Undoes the [`pause_kind`](Self::pause_kind) of the same kind and queue, and no other. True: there was one.
    ///
    /// # Errors
    /// `BadInput`: a name.
    pub async fn resume_kind(&self, kind: &str, queue: Option<&str>) -> Result<bool, Error> {
        names::check_kind(kind)?;
        queue.map(names::check_queue).transpose()?;
        let session = self.session().await?;
        let row = session.query_opt(&RESUME_KIND, &[&kind, &queue]).await;
        let row = row.map_err(|e| Error::store(RESUME_KIND.name, e))?;
        row.map_or(Ok(false), |row| column(&row, 0))
    }

    /// The paused kinds, by name, at most 1,000.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn paused_kinds(&self) -> Result<Vec<KindPause>, Error> {
        let session = self.session().await?;
        let rows = session.query(&PAUSED_KINDS, &[&(LIST_MAX as i64)]).await;
        let rows = rows.map_err(|e| Error::store(PAUSED_KINDS.name, e))?;
        let read = |row: &tokio_postgres::Row| {
            Ok(KindPause {
                kind: column(row, 0)?,
                queue: column(row, 1)?,
                paused_at: column(row, 2)?,
                paused_by: column(row, 3)?,
                reason: column(row, 4)?,
            })
        };
        rows.iter().map(read).collect()
    }

    /// Why this job does not run, or runs on a worker that looks lost: the one reason to look at first. None: it runs, has
    /// ended, or does not exist.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn waits_for(&self, id: JobId) -> Result<Option<WaitReason>, Error> {
        let session = self.session().await?;
        let row = session.query_opt(&WAITS_FOR, &[&id]).await.map_err(|e| Error::store(WAITS_FOR.name, e))?;
        row.map(|row| Ok(WaitReason { reason: column(&row, 0)?, explained: column(&row, 1)? })).transpose()
    }

    /// Waits until nothing of a queue runs, for at most `timeout` (none: for ever), and gives the number of jobs that
    /// still run. [`pause`](Self::pause) the queue first: this only looks.
    ///
    /// # Errors
    /// `BadInput`: the name.
    pub async fn drained(&self, queue: &str, timeout: Option<Duration>) -> Result<u64, Error> {
        let running = CancelFilter::new().queue(queue).status(State::Running);
        wait_for_none(timeout, async || Ok(self.count_unfinished(&running).await?.iter().map(|(_, count)| count).sum()))
            .await
    }

    /// A worker finishes what it runs and gets nothing more (`on`), or is let work again. A worker that is started anew
    /// is another worker; a process that had to register anew because it was cut off is drained under its new number too,
    /// for a day after the database forgot the former one. False: there is no such live worker.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn drain_worker(&self, worker: i64, on: bool) -> Result<bool, Error> {
        let session = self.session().await?;
        let row = session.query_opt(&DRAIN_WORKER, &[&worker, &on]).await;
        let row = row.map_err(|e| Error::store(DRAIN_WORKER.name, e))?;
        row.map_or(Ok(false), |row| column(&row, 0))
    }

    /// Waits until a worker runs nothing, or is gone, as [`drained`](Self::drained) does for a queue.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn worker_drained(&self, worker: i64, timeout: Option<Duration>) -> Result<u64, Error> {
        wait_for_none(timeout, async || {
            let workers = self.workers().await?;
            Ok(workers.iter().filter(|w| w.id == worker).map(|w| w.running.unsigned_abs()).sum())
        })
        .await
    }
}

pub(super) fn refuse_nul(texts: [Option<&str>; 2]) -> Result<(), Error> {
    match texts.into_iter().flatten().find(|text| text.contains('\0')) {
        Some(text) => Err(Error::bad_input(format!("{text:?} contains the character NUL"), "leave it out")),
        None => Ok(()),
    }
}

async fn wait_for_none(timeout: Option<Duration>, look: impl AsyncFn() -> Result<u64, Error>) -> Result<u64, Error> {
    // A time that no clock shows is no limit.
    let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let mut none_since = None;
    loop {
        let left = look().await?;
        none_since = (left == 0).then(|| none_since.unwrap_or_else(Instant::now));
        let settled = none_since.is_some_and(|since| since.elapsed() >= DRAIN_SETTLE);
        if settled || until.is_some_and(|until| Instant::now() >= until) {
            return Ok(left);
        }
        tokio::time::sleep(DRAIN_LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_wait_of_any_length_is_a_wait() {
        let nothing = async || Ok(0);
        assert_eq!(wait_for_none(Some(Duration::MAX), nothing).await.expect("no error"), 0);
        assert_eq!(wait_for_none(Some(Duration::ZERO), async || Ok(3)).await.expect("no error"), 3);
    }
}
