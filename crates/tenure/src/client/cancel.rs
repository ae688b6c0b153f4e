//! Cancel of whole selections.

use std::time::{Duration, SystemTime};

use super::Client;
use super::jobs::column;
use super::queues::Clock;
use crate::Error;
use crate::lifecycle::State;
use crate::model::names;
use crate::store::operate::{CANCEL_MANY, COUNT_JOBS};

/// A selection is gone through again while jobs moved under it, at most so often: a job that fails and waits again all
/// the time is met by the next of them.
const PASSES_MAX: usize = 10;
/// What somebody is just changing is looked for again so often, and so long apart; a claim or a cancel takes
/// milliseconds, whoever takes longer has left a transaction open.
const LOOKS_MAX: usize = 20;
/// See [`LOOKS_MAX`].
const LOOK: Duration = Duration::from_millis(100);

/// Which unfinished jobs are meant: those that have all that is named.
///
/// A filter that names nothing is refused; every unfinished job is [`CancelFilter::all`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CancelFilter {
    queue: Option<String>,
    kind: Option<String>,
    created_before: Option<SystemTime>,
    older_than: Option<Duration>,
    statuses: Vec<State>,
    everything: bool,
}

/// How many jobs of a selection were cancelled, so far or in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CancelledMany {
    /// They waited and are cancelled.
    pub cancelled: u64,
    /// They run; their workers were asked to stop them.
    pub requested: u64,
    /// They were left as they are: when they were met last, somebody had just changed them, or asked for the same, and
    /// had not committed for 2 s. Calling again meets them. Only known when the call returns; 0: nobody was left out.
    pub busy: u64,
}

impl CancelledMany {
    fn done(&self) -> u64 {
        self.cancelled + self.requested
    }
}

impl CancelFilter {
    /// The states in which a job has not ended.
    pub const STATUSES: [State; 6] =
        [State::Available, State::Scheduled, State::Retrying, State::Snoozed, State::Held, State::Running];

    /// Names nothing yet.
    pub fn new() -> Self {
        CancelFilter::default()
    }

    /// Every unfinished job, said explicitly.
    pub fn all() -> Self {
        CancelFilter { everything: true, ..CancelFilter::default() }
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

    /// Only those that were enqueued before this instant of the database's clock; those enqueued after the call began
    /// are never among them.
    pub fn created_before(mut self, instant: SystemTime) -> Self {
        self.created_before = Some(instant);
        self
    }

    /// Only those that were enqueued longer ago than this, by the database's clock when the call begins. Ages above 1,000
    /// years count as 1,000 years.
    pub fn older_than(mut self, age: Duration) -> Self {
        self.older_than = Some(age);
        self
    }

    /// Only in this state; called again, also in that one. All of [`STATUSES`](Self::STATUSES) when not called.
    pub fn status(mut self, status: State) -> Self {
        self.statuses.push(status);
        self
    }

    fn check(&self) -> Result<(), Error> {
        if let Some(status) = self.statuses.iter().find(|status| !Self::STATUSES.contains(status)) {
            let names = Self::STATUSES.map(State::as_str).join(", ");
            return Err(Error::bad_input(
                format!("jobs that are {status} have ended and cannot be cancelled"),
                format!("name some of {names}"),
            ));
        }
        let named = self.queue.is_some() || self.kind.is_some();
        let aged = self.created_before.is_some() || self.older_than.is_some();
        if !named && !aged && self.statuses.is_empty() && !self.everything {
            return Err(Error::bad_input(
                "no filter is given, and cancel without one means every unfinished job",
                "name a queue, kind, age or state; or say so: CancelFilter::all()",
            ));
        }
        self.queue.as_deref().map(names::check_queue).transpose()?;
        self.kind.as_deref().map(names::check_kind).transpose()?;
        Ok(())
    }

    /// The earlier one of the instant that is named and the one of the age.
    fn before(&self, clock: &Clock) -> Option<SystemTime> {
        [self.created_before, clock.ago[0]].into_iter().flatten().min()
    }

    fn status_names(&self) -> Vec<&'static str> {
        let all = self.statuses.is_empty();
        Self::STATUSES.iter().filter(|status| all || self.statuses.contains(status)).map(|s| s.as_str()).collect()
    }
}

impl Client {
    /// How many jobs [`cancel_many`](Self::cancel_many) would meet now, by state; states without any are left out.
    /// Cheap without an instant, otherwise every waiting job is looked at.
    ///
    /// # Errors
    /// `BadInput`: the filter is empty and not [`CancelFilter::all`], or names a state in which jobs have ended.
    pub async fn count_unfinished(&self, filter: &CancelFilter) -> Result<Vec<(State, u64)>, Error> {
        filter.check()?;
        let statuses = filter.status_names();
        let before = match filter.older_than {
            None => filter.created_before,
            Some(age) => filter.before(&self.clock([Some(age), None]).await?),
        };
        let session = self.session().await?;
        let rows = session
            .query(&COUNT_JOBS, &[&statuses, &filter.queue, &filter.kind, &before])
            .await
            .map_err(|e| Error::store(COUNT_JOBS.name, e))?;
        let mut counts = Vec::new();
        for row in &rows {
            let (status, count): (&str, i64) = (column(row, 0)?, column(row, 1)?);
            let status = State::from_name(status).ok_or_else(|| Error::internal(format!("jobs are {status:?}")))?;
            if count > 0 {
                counts.push((status, count.unsigned_abs()));
            }
        }
        Ok(counts)
    }

    /// Cancels all jobs of the filter that were enqueued before now, a few thousand per transaction: those that wait at
    /// once, those that run through their workers. What is done stays done when it fails half way; calling again does
    /// the rest. Jobs that somebody is just changing are looked for again for 2 s; how many were left after that is the
    /// answer's [`busy`](CancelledMany::busy). `done` is told after each transaction how many there were so far.
    ///
    /// # Errors
    /// `BadInput`: as [`count_unfinished`](Self::count_unfinished).
    pub async fn cancel_many(
        &self,
        filter: &CancelFilter,
        mut done: impl FnMut(CancelledMany),
    ) -> Result<CancelledMany, Error> {
        filter.check()?;
        let clock = self.clock([filter.older_than, None]).await?;
        let before = filter.before(&clock).map_or(clock.now, |instant| instant.min(clock.now));
        let filter = CancelFilter { created_before: Some(before), ..filter.clone() };
        let mut sum = CancelledMany::default();
        let (mut passes, mut looks) = (0, 0);
        loop {
            let before = sum.done();
            sum.busy = self.cancel_pass(&filter, &mut sum, &mut done).await?;
            if sum.done() > before {
                passes += 1;
                if passes == PASSES_MAX {
                    return Ok(sum);
                }
            } else if sum.busy == 0 || looks == LOOKS_MAX {
                return Ok(sum);
            } else {
                looks += 1;
                tokio::time::sleep(LOOK).await; // until who is in the way has committed
            }
        }
    }

    /// Once through all places where jobs stand. How many were busy.
    async fn cancel_pass(
        &self,
        filter: &CancelFilter,
        sum: &mut CancelledMany,
        done: &mut impl FnMut(CancelledMany),
    ) -> Result<u64, Error> {
        sum.busy = 0;
        let statuses = filter.status_names();
        let mut busy = 0;
        let (mut place, mut after) = (None::<String>, None::<Vec<String>>);
        loop {
            let session = self.session().await?;
            let row = session
                .query_opt(
                    &CANCEL_MANY,
                    &[&statuses, &filter.queue, &filter.kind, &filter.created_before, &place, &after],
                )
                .await
                .map_err(|e| Error::store(CANCEL_MANY.name, e))?
                .ok_or_else(|| Error::internal("cancel_many answered with no row"))?;
            let (cancelled, requested): (i64, i64) = (column(&row, 0)?, column(&row, 1)?);
            busy += column::<i64>(&row, 2)?.unsigned_abs();
            if cancelled + requested > 0 {
                sum.cancelled += cancelled.unsigned_abs();
                sum.requested += requested.unsigned_abs();
                done(*sum);
            }
            (place, after) = (column(&row, 3)?, column(&row, 4)?);
            if place.is_none() {
                return Ok(busy);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_filter_is_no_way_to_say_all() {
        let check = |filter: CancelFilter, expected: &str| {
            let error = filter.check().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(CancelFilter::new(), "CancelFilter::all()");
        check(CancelFilter::new().status(State::Dead), "jobs that are dead have ended");
        check(CancelFilter::new().queue(""), "queue name is empty");
        for good in [CancelFilter::all(), CancelFilter::new().kind("k"), CancelFilter::new().status(State::Held)] {
            good.check().unwrap();
        }
    }

    #[test]
    fn without_a_state_all_unfinished_ones_are_meant() {
        assert_eq!(CancelFilter::all().status_names().len(), 6);
        assert_eq!(CancelFilter::new().status(State::Held).status_names(), ["held"]);
    }
}
