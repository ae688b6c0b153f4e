//! How one job ended, as a value on its way to the database.

use std::sync::Arc;

use serde_json::{Value, json};

use super::job_run::JobRun;
use super::lease::{Job, Lease};
use super::result::refused_result;
use crate::model::{Cause, JobId, RawJson, Verdict};
use crate::store::{FailureRow, NextRun, Strip};

/// How an attempt ended.
#[derive(Clone, Debug)]
pub(super) enum Ending {
    Completed(Option<RawJson>),
    /// The handler's own transaction completed the job, if it committed; otherwise this is written.
    CompletedItself(Box<Failure>),
    Failed(Box<Failure>),
    /// Stopped because the worker gave up its registration: no attempt is used, and yet it is recorded.
    GivenUp(Box<Failure>),
    /// Not run, or not to its end, for no fault of the job's: no attempt is used.
    Released,
}

impl Ending {
    /// About what it takes on the wire.
    fn bytes(&self) -> usize {
        match self {
            Ending::Completed(Some(result)) => result.get().len(),
            Ending::Failed(failure) | Ending::GivenUp(failure) => {
                failure.message.len() + failure.details.to_string().len()
            }
            Ending::Completed(None) | Ending::CompletedItself(_) | Ending::Released => 0,
        }
    }
}

/// What is written of a failed attempt.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    /// Which kind of this worker's, and how many of its attempts are used; for the log.
    pub(super) kind: usize,
    pub(super) attempt: u16,
    pub(super) max_attempts: u16,
    pub(super) verdict: &'static str,
    /// The limit that a throttled one names.
    pub(super) limit: Option<String>,
    pub(super) next: NextRun,
    pub(super) cause: &'static str,
    pub(super) message: String,
    pub(super) details: Value,
}

/// How one job ended, on its way to the database.
#[derive(Clone, Debug)]
pub(super) struct Report {
    pub(super) job: JobId,
    pub(super) lease: Arc<Lease>,
    pub(super) slot: u32,
    /// Indexes of the worker's queue and kind.
    pub(super) queue: usize,
    pub(super) kind: usize,
    pub(super) ending: Ending,
    /// How often it was made plainer because the database refused it.
    plainer: u8,
    bytes: usize,
}

impl Report {
    pub(super) fn new(run: &JobRun, ending: Ending) -> Report {
        let (queue, kind, bytes) = (run.queue, run.kind, ending.bytes());
        Report { job: run.job(), lease: run.lease.clone(), slot: run.slot, queue, kind, bytes, ending, plainer: 0 }
    }

    pub(super) fn given_back(job: &Job) -> Report {
        let (queue, kind, ending) = (job.queue, job.kind, Ending::Released);
        Report { job: job.id, lease: job.lease.clone(), slot: job.slot, queue, kind, ending, plainer: 0, bytes: 0 }
    }

    /// Cancelled before its handler started.
    pub(super) fn cancelled(job: &Job) -> Report {
        let failure = Failure {
            kind: job.kind,
            attempt: u16::try_from(job.attempt).unwrap_or_default(),
            max_attempts: u16::try_from(job.max_attempts).unwrap_or_default(),
            verdict: Verdict::Cancelled.as_str(),
            limit: None,
            next: NextRun::default(),
            cause: Cause::Cancelled.as_str(),
            message: "the job was cancelled before its handler started".to_owned(),
            details: Value::Null,
        };
        let ending = Ending::Failed(Box::new(failure));
        Report { bytes: ending.bytes(), ending, ..Report::given_back(job) }
    }

    /// About what it takes on the wire.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn verb(&self) -> Verb {
        match self.ending {
            Ending::Completed(_) => Verb::Complete,
            // "It did not complete" is refused as "already" when it did: the cheapest way to ask.
            Ending::CompletedItself(_) | Ending::Failed(_) | Ending::GivenUp(_) => Verb::Fail,
            Ending::Released => Verb::Release,
        }
    }

    /// Why it did not complete, if it is known not to have.
    pub(super) fn failure(&self) -> Option<&Failure> {
        match &self.ending {
            Ending::Failed(failure) | Ending::GivenUp(failure) | Ending::CompletedItself(failure) => Some(failure),
            Ending::Completed(_) | Ending::Released => None,
        }
    }

    /// The result that is stored with the job.
    pub(super) fn result(&self) -> Option<(JobId, &RawJson)> {
        match &self.ending {
            Ending::Completed(Some(result)) => Some((self.job, result)),
            Ending::Completed(None)
            | Ending::CompletedItself(_)
            | Ending::Failed(_)
            | Ending::GivenUp(_)
            | Ending::Released => None,
        }
    }

    /// Of the same job under the same lease.
    pub(super) fn is_of_the_same(&self, other: &Report) -> bool {
        (self.lease.id, self.slot) == (other.lease.id, other.slot)
    }

    pub(super) fn is_in(&self, slots: &[(i64, Strip)]) -> bool {
        slots.iter().any(|(lease, strip)| *lease == self.lease.id && strip.has(self.slot))
    }

    pub(super) fn failure_row(&self) -> FailureRow {
        let failure = self.failure().expect("only failures are written by fail").clone();
        FailureRow {
            lease: self.lease.id,
            job: self.job.get(),
            verdict: failure.verdict,
            limit: failure.limit,
            next: failure.next,
            cause: failure.cause,
            message: failure.message,
            details: failure.details,
        }
    }

    /// The same end in a form that the database is more likely to take. False: there is none left.
    pub(super) fn make_plainer(&mut self, why: &str) -> bool {
        self.plainer += 1;
        match (&mut self.ending, self.plainer) {
            (Ending::Completed(result @ Some(_)), 1) => *result = Some(refused_result(why)),
            (Ending::Completed(result @ Some(_)), 2) => *result = None,
            (Ending::Failed(failure) | Ending::GivenUp(failure), 1) => {
                failure.message = "the error text could not be stored".to_owned();
                failure.details = json!({ "refused": why.chars().take(200).collect::<String>() });
            }
            (Ending::Failed(failure) | Ending::GivenUp(failure), 2) => {
                failure.message = String::new();
                failure.details = Value::Null;
            }
            (Ending::CompletedItself(failure), 1) => {
                failure.message = "the transaction of complete_in did not commit".to_owned();
                failure.details = Value::Null;
            }
            (
                Ending::Completed(_)
                | Ending::CompletedItself(_)
                | Ending::Failed(_)
                | Ending::GivenUp(_)
                | Ending::Released,
                _,
            ) => return false,
        }
        self.bytes = self.ending.bytes();
        true
    }
}

/// How a report is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Complete,
    Fail,
    Release,
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::store::Registration;

    pub(crate) fn report(lease: i64, slot: u32, worker: i64, ending: Ending) -> Report {
        let registration = Arc::new(Registration { worker, token: "t".into() });
        let lease = Arc::new(Lease { id: lease, slots: 128, registration });
        let job = JobId::from(lease.id * 128 + i64::from(slot));
        Report { job, lease, slot, queue: 0, kind: 0, bytes: ending.bytes(), ending, plainer: 0 }
    }

    pub(crate) fn a_failure() -> Box<Failure> {
        let details = Value::Null;
        let (kind, attempt, max_attempts, next) = (0, 1, 5, NextRun::default());
        let message = "m".into();
        let (verdict, limit, cause) = ("retry", None, "error");
        Box::new(Failure { kind, attempt, max_attempts, verdict, limit, next, cause, message, details })
    }

    pub(crate) fn failure() -> Ending {
        Ending::Failed(a_failure())
    }

    #[test]
    fn a_refused_report_becomes_plainer_until_nothing_can_be_refused() {
        let mut done = report(1, 0, 7, Ending::Completed(Some(RawJson::parse("[1]").expect("JSON"))));
        assert!(done.make_plainer("why"));
        assert!(matches!(&done.ending, Ending::Completed(Some(marked)) if marked.get().contains("why")));
        assert!(done.make_plainer("why"));
        assert!(matches!(done.ending, Ending::Completed(None)));
        assert!(!done.make_plainer("why"));
        let mut failed = report(1, 0, 7, failure());
        assert!(failed.make_plainer("why") && failed.make_plainer("why") && !failed.make_plainer("why"));
    }
}
