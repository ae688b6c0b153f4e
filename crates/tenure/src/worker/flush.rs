//! Writes down how jobs ended, in groups: while one group is on its way to the database the next collects, and an idle
//! worker writes at once.
//!
//! A report stays here until the database said what became of it. When the answer to a group is lost with the
//! connection, the same group is sent again: the lease row tells "done now", "done before" and "lease lost" apart. When
//! a group is refused it is halved until the one bad report is alone; that one is then written in a plainer form.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::backoff::Backoff;
use super::engine::{Engine, Phase};
use super::job_run::JobRun;
use super::lease::{Job, Lease, Slots};
use super::link::Attached;
use super::result::refused_result;
use crate::model::{Cause, JobId, RawJson, Verdict};
use crate::store::{FailStatus, FailureRow, JsonText, NextRun, Registration, StoreError, Strip};

/// Reports in one statement, at most.
const GROUP_MAX: usize = 1000;
/// Bytes of results and error texts in one statement, at most, but for a single report: far below what one message may have.
const GROUP_BYTES_MAX: usize = 8 * 1024 * 1024;

/// How an attempt ended.
#[derive(Clone, Debug)]
pub(super) enum Ending {
    Completed(Option<RawJson>),
    /// The handler's own transaction completed the job, if it committed; otherwise this is written.
    CompletedItself(Box<Failure>),
    Failed(Box<Failure>),
    /// Not run, or not to its end, for no fault of the job's: no attempt is used.
    Released,
}

/// What is written of a failed attempt.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) verdict: &'static str,
    pub(super) next: NextRun,
    pub(super) cause: &'static str,
    pub(super) message: String,
    pub(super) details: Value,
}

/// How one job ended, on its way to the database.
#[derive(Clone, Debug)]
pub(super) struct Report {
    job: JobId,
    lease: Arc<Lease>,
    slot: u32,
    ending: Ending,
    /// How often it was made plainer because the database refused it.
    plainer: u8,
}

impl Report {
    pub(super) fn new(run: &JobRun, ending: Ending) -> Report {
        Report { job: run.job(), lease: run.lease.clone(), slot: run.slot, ending, plainer: 0 }
    }

    pub(super) fn given_back(job: &Job) -> Report {
        Report { job: job.id, lease: job.lease.clone(), slot: job.slot, ending: Ending::Released, plainer: 0 }
    }

    /// Cancelled before its handler started.
    pub(super) fn cancelled(job: &Job) -> Report {
        let failure = Failure {
            verdict: Verdict::Cancelled.as_str(),
            next: NextRun::default(),
            cause: Cause::Cancelled.as_str(),
            message: "the job was cancelled before its handler started".to_owned(),
            details: Value::Null,
        };
        Report { ending: Ending::Failed(Box::new(failure)), ..Report::given_back(job) }
    }

    /// About what it takes on the wire.
    fn bytes(&self) -> usize {
        match &self.ending {
            Ending::Completed(Some(result)) => result.get().len(),
            Ending::Failed(failure) => failure.message.len() + failure.details.to_string().len(),
            Ending::Completed(None) | Ending::CompletedItself(_) | Ending::Released => 0,
        }
    }

    fn verb(&self) -> Verb {
        match self.ending {
            Ending::Completed(_) => Verb::Complete,
            // "It did not complete" is refused as "already" when it did: the cheapest way to ask.
            Ending::CompletedItself(_) | Ending::Failed(_) => Verb::Fail,
            Ending::Released => Verb::Release,
        }
    }

    fn is_in(&self, slots: &[(i64, Strip)]) -> bool {
        slots.iter().any(|(lease, strip)| *lease == self.lease.id && strip.has(self.slot))
    }

    fn failure_row(&self) -> FailureRow {
        let failure = match &self.ending {
            Ending::Failed(failure) | Ending::CompletedItself(failure) => (**failure).clone(),
            Ending::Completed(_) | Ending::Released => unreachable!("only failures are written by fail"),
        };
        FailureRow {
            lease: self.lease.id,
            job: self.job.get(),
            verdict: failure.verdict,
            next: failure.next,
            cause: failure.cause,
            message: failure.message,
            details: failure.details,
        }
    }

    /// The same end in a form that the database is more likely to take. False: there is none left.
    fn make_plainer(&mut self, why: &str) -> bool {
        self.plainer += 1;
        self.ending = match (&self.ending, self.plainer) {
            (Ending::Completed(Some(_)), 1) => Ending::Completed(Some(refused_result(why))),
            (Ending::Completed(Some(_)), 2) => Ending::Completed(None),
            (Ending::Failed(failure), 1) => Ending::Failed(Box::new(Failure {
                message: "the error text could not be stored".to_owned(),
                details: json!({ "refused": why.chars().take(200).collect::<String>() }),
                ..(**failure).clone()
            })),
            (Ending::Failed(failure), 2) => Ending::Failed(Box::new(Failure {
                message: String::new(),
                details: Value::Null,
                ..(**failure).clone()
            })),
            (Ending::CompletedItself(failure), 1) => Ending::CompletedItself(Box::new(Failure {
                message: "the transaction of complete_in did not commit".to_owned(),
                details: Value::Null,
                ..(**failure).clone()
            })),
            (Ending::Completed(_) | Ending::CompletedItself(_) | Ending::Failed(_) | Ending::Released, _) => {
                return false;
            }
        };
        true
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Complete,
    Fail,
    Release,
}

/// Reports that nobody has sent yet.
#[derive(Default)]
pub(super) struct Outbox {
    reports: Mutex<Vec<Report>>,
    filled: Notify,
    /// Also counts those that are on their way.
    unsettled: AtomicUsize,
    settled: Notify,
}

impl Outbox {
    pub(super) fn put(&self, report: Report) {
        self.unsettled.fetch_add(1, Ordering::AcqRel);
        self.reports.lock().unwrap_or_else(PoisonError::into_inner).push(report);
        self.filled.notify_one();
    }

    pub(super) fn is_settled(&self) -> bool {
        self.unsettled.load(Ordering::Acquire) == 0
    }

    /// Waits until the database has said what became of every report.
    pub(super) async fn until_settled(&self) {
        loop {
            let settled = self.settled.notified();
            if self.is_settled() {
                return;
            }
            settled.await;
        }
    }

    fn take(&self) -> Vec<Report> {
        std::mem::take(&mut *self.reports.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn settle(&self, reports: usize) {
        if self.unsettled.fetch_sub(reports, Ordering::AcqRel) == reports {
            self.settled.notify_waiters();
        }
    }
}

/// Reports of one registration for one statement.
struct Group {
    verb: Verb,
    registration: Arc<Registration>,
    reports: Vec<Report>,
    bytes: usize,
    not_before: Instant,
    backoff: Backoff,
}

/// Writes reports until the worker has ended.
pub(super) async fn keep(engine: Arc<Engine>) {
    let _vital = engine.vital("reports");
    tokio::select! {
        () = engine.until(Phase::Ended) => {}
        () = keep_writing(&engine) => {}
    }
}

async fn keep_writing(engine: &Arc<Engine>) {
    let mut waiting: Vec<Group> = Vec::new();
    loop {
        let next = waiting.iter().map(|group| group.not_before).min();
        tokio::select! {
            () = engine.outbox.filled.notified() => {}
            () = until(next) => {}
        }
        let attached = engine.link.attached().await;
        let now = Instant::now();
        let (due, later) = waiting.into_iter().partition(|group| group.not_before <= now);
        waiting = later;
        let mut groups: Vec<Group> = due;
        groups.extend(grouped(engine.outbox.take()));
        if groups.is_empty() {
            continue;
        }
        engine.stats.flushes.one();
        let again = join_all(groups.into_iter().map(|group| write(engine, &attached, group))).await;
        waiting.extend(again.into_iter().flatten());
    }
}

async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant.into()).await,
        None => std::future::pending().await,
    }
}

fn grouped(reports: Vec<Report>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for report in reports {
        let (verb, registration, bytes) = (report.verb(), &report.lease.registration, report.bytes());
        let place = groups.iter().rposition(|group| {
            let room = group.reports.len() < GROUP_MAX && group.bytes + bytes <= GROUP_BYTES_MAX;
            group.verb == verb && group.registration == *registration && room
        });
        match place {
            Some(place) => {
                groups[place].bytes += bytes;
                groups[place].reports.push(report);
            }
            None => groups.push(Group {
                verb,
                registration: registration.clone(),
                reports: vec![report],
                bytes,
                not_before: Instant::now(),
                backoff: Backoff::default(),
            }),
        }
    }
    groups
}

/// Sends one group; what has to be sent again comes back.
async fn write(engine: &Engine, attached: &Attached, group: Group) -> Vec<Group> {
    let sent = match group.verb {
        Verb::Complete => complete(engine, attached, &group).await,
        Verb::Fail => fail(engine, attached, &group).await,
        Verb::Release => release(engine, attached, &group).await,
    };
    let Err(error) = sent else {
        engine.outbox.settle(group.reports.len());
        return Vec::new();
    };
    match error {
        error if error.is_lost() => vec![group],
        error if error.is_worker_gone() => {
            lost(engine, &group.reports);
            engine.outbox.settle(group.reports.len());
            Vec::new()
        }
        error => after_refusal(engine, group, &error),
    }
}

/// One bad report must be one bad report: when a value or a lock is the reason, the group is halved, and a lone report
/// is made plainer. Anything else is no fault of a report: the group waits and tries again for as long as the worker
/// lives.
fn after_refusal(engine: &Engine, mut group: Group, error: &StoreError) -> Vec<Group> {
    if group.reports.len() > 1 && (error.is_about_values() || error.is_lock_wait()) {
        let half = group.reports.split_off(group.reports.len() / 2);
        let other =
            Group { reports: half, registration: group.registration.clone(), backoff: Backoff::default(), ..group };
        return vec![group, other];
    }
    let job = group.reports[0].job;
    if error.is_about_values() && group.reports[0].make_plainer(&error.to_string()) {
        tracing::warn!(%job, %error, "the end of a job could not be stored as it was");
        engine.stats.sanitised.one();
        return vec![group];
    }
    let wait = group.backoff.next();
    if group.backoff.is_loud() {
        let jobs = group.reports.len();
        tracing::warn!(%job, jobs, %error, ?wait, "the ends of jobs could not be stored, trying again");
    }
    group.not_before = Instant::now() + wait;
    vec![group]
}

async fn complete(engine: &Engine, attached: &Attached, group: &Group) -> Result<(), StoreError> {
    let slots = slots_of(&group.reports);
    let (mut jobs, mut results) = (Vec::new(), Vec::new());
    for report in &group.reports {
        if let Ending::Completed(Some(result)) = &report.ending {
            jobs.push(report.job.get());
            results.push(JsonText(result.get()));
        }
    }
    let not_now =
        attached.session.complete_many(&group.registration, &slots.leases, &slots.strips, &jobs, &results).await?;
    let lost = refused_of(engine, attached, &group.reports, &not_now).await?;
    engine.stats.completed.add((group.reports.len() - lost) as u64);
    Ok(())
}

/// Of what was not completed now: what this lease had completed before is fine, the rest is lost; how many.
async fn refused_of(
    engine: &Engine,
    attached: &Attached,
    reports: &[Report],
    not_now: &[(i64, Strip)],
) -> Result<usize, StoreError> {
    let asked: Vec<_> = reports.iter().filter(|report| report.is_in(not_now)).collect();
    if asked.is_empty() {
        return Ok(0);
    }
    let (leases, jobs): (Vec<_>, Vec<_>) = asked.iter().map(|report| (report.lease.id, report.job.get())).unzip();
    let ended = attached.session.ended_by(&leases, &jobs).await?;
    let refused: Vec<_> = asked.iter().zip(&ended).filter(|(_, ended)| !**ended).map(|(report, _)| *report).collect();
    refused.iter().for_each(|report| lost(engine, std::slice::from_ref(*report)));
    engine.stats.already.add((asked.len() - refused.len()) as u64);
    Ok(refused.len())
}

async fn release(engine: &Engine, attached: &Attached, group: &Group) -> Result<(), StoreError> {
    let slots = slots_of(&group.reports);
    let not_held = attached.session.release(&group.registration, &slots.leases, &slots.strips).await?;
    let held = group.reports.iter().filter(|report| !report.is_in(&not_held));
    engine.stats.released.add(held.count() as u64);
    Ok(())
}

async fn fail(engine: &Engine, attached: &Attached, group: &Group) -> Result<(), StoreError> {
    let rows: Vec<_> = group.reports.iter().map(Report::failure_row).collect();
    let statuses = attached.session.fail(&group.registration, &rows).await?;
    if statuses.len() != rows.len() {
        return Err(StoreError::Protocol(format!("fail answered {} of {} failures", statuses.len(), rows.len())));
    }
    // The answers stand in the order of the question.
    for (report, (_, status)) in group.reports.iter().zip(statuses) {
        note_failed(engine, report, status);
    }
    Ok(())
}

fn note_failed(engine: &Engine, report: &Report, status: FailStatus) {
    let stats = &engine.stats;
    match (&report.ending, status) {
        (Ending::CompletedItself(_), FailStatus::Already) => stats.completed.one(),
        (_, FailStatus::Retrying) => stats.failed.one(),
        (_, FailStatus::Dead) => {
            stats.failed.one();
            stats.dead.one();
        }
        (_, FailStatus::Snoozed) => stats.snoozed.one(),
        (_, FailStatus::Cancelled) => stats.cancelled.one(),
        (_, FailStatus::Already) => stats.already.one(),
        (_, FailStatus::Lost) => lost(engine, std::slice::from_ref(report)),
    }
}

fn lost(engine: &Engine, reports: &[Report]) {
    for report in reports {
        match report.ending {
            // A job that goes back anyway is not missed.
            Ending::Released => {}
            Ending::Completed(_) | Ending::CompletedItself(_) | Ending::Failed(_) => {
                engine.stats.lease_lost.one();
                tracing::warn!(job = %report.job, lease = report.lease.id, "lease lost: the end of this run was refused");
            }
        }
    }
}

fn slots_of(reports: &[Report]) -> Slots {
    let mut slots = Slots::default();
    for report in reports {
        slots.add(&report.lease, report.slot);
    }
    slots
}

/// Used while the worker's last reports are written.
pub(super) async fn settled_within(engine: &Engine, limit: Duration) -> bool {
    tokio::time::timeout(limit, engine.outbox.until_settled()).await.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(lease: i64, slot: u32, worker: i64, ending: Ending) -> Report {
        let registration = Arc::new(Registration { worker, token: "t".into() });
        let lease = Arc::new(Lease { id: lease, slots: 128, registration });
        Report { job: JobId::from(lease.id * 128 + i64::from(slot)), lease, slot, ending, plainer: 0 }
    }

    fn a_failure() -> Box<Failure> {
        let details = Value::Null;
        Box::new(Failure { verdict: "retry", next: NextRun::default(), cause: "error", message: "m".into(), details })
    }

    fn failure() -> Ending {
        Ending::Failed(a_failure())
    }

    #[test]
    fn a_group_holds_one_verb_of_one_registration() {
        let reports = vec![
            report(1, 0, 7, Ending::Completed(None)),
            report(1, 1, 7, failure()),
            report(1, 2, 7, Ending::Completed(None)),
            report(2, 0, 8, Ending::Completed(None)),
            report(1, 3, 7, Ending::CompletedItself(a_failure())),
        ];
        let groups = grouped(reports);
        let shape: Vec<_> = groups.iter().map(|group| (group.verb, group.reports.len())).collect();
        assert_eq!(shape, [(Verb::Complete, 2), (Verb::Fail, 2), (Verb::Complete, 1)]);
        let many = grouped(
            (0..2500)
                .map(|n| report(n, 0, 7, Ending::Released))
                .map(|mut report| {
                    report.lease = Arc::new(Lease {
                        id: report.lease.id,
                        slots: 128,
                        registration: Arc::new(Registration { worker: 7, token: "t".into() }),
                    });
                    report
                })
                .collect(),
        );
        assert_eq!(many.iter().map(|group| group.reports.len()).collect::<Vec<_>>(), [1000, 1000, 500]);
    }

    #[test]
    fn a_group_fits_a_message() {
        let me = Arc::new(Registration { worker: 7, token: "t".into() });
        let large = |n: i64| Report {
            job: JobId::from(n),
            lease: Arc::new(Lease { id: n, slots: 128, registration: me.clone() }),
            slot: 0,
            ending: Ending::Completed(Some(RawJson::of(&"x".repeat(1_000_000)).expect("JSON"))),
            plainer: 0,
        };
        let groups = grouped((1..=20).map(large).collect());
        assert_eq!(groups.iter().map(|group| group.reports.len()).collect::<Vec<_>>(), [8, 8, 4]);
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

    #[test]
    fn an_outbox_is_settled_when_all_is_known() {
        let outbox = Outbox::default();
        outbox.put(report(1, 0, 7, Ending::Released));
        outbox.put(report(1, 1, 7, Ending::Released));
        assert_eq!(outbox.take().len(), 2);
        assert!(!outbox.is_settled(), "on their way");
        outbox.settle(2);
        assert!(outbox.is_settled());
    }
}
