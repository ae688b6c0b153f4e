//! Writes down how jobs ended, in groups: while one group is on its way to the database the next collects, and an idle
//! worker writes at once.
//!
//! A report stays here until the database said what became of it. When the answer to a group is lost with the
//! connection, the reports are sent again: the lease row tells "done now", "done before" and "lease lost" apart. A group
//! that was not taken is halved, until it is small enough or the one bad report is alone; that one is then written in a
//! plainer form, or waits.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::sync::Notify;

use super::backoff::Backoff;
use super::engine::{Engine, Phase};
use super::lease::Slots;
use super::link::Attached;
use super::moment::at;
use super::report::{Ending, Report, Verb};
use crate::store::{FailStatus, JsonText, Registration, StoreError, Strip};

/// Reports in one statement, at most.
const GROUP_MAX: usize = 1000;
/// Bytes of results and error texts in one statement, at most, but for a single report: far below what one message may have.
const GROUP_BYTES_MAX: usize = 8 * 1024 * 1024;

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

    pub(super) fn take(&self) -> Vec<Report> {
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
    /// The database was asked whether the registration is good after all, and it is.
    renewed: bool,
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
            () = at(next) => {}
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
                renewed: false,
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
    match sent {
        Ok(refused) => after_answer(engine, attached, group, refused).await,
        Err(error) if error.is_worker_gone() => {
            let refused = group.reports.clone();
            after_answer(engine, attached, group, refused).await
        }
        Err(error) => after_failure(engine, group, &error),
    }
}

/// What was refused because the lease was gone is sent once more if the registration is good after all.
async fn after_answer(engine: &Engine, attached: &Attached, group: Group, refused: Vec<Report>) -> Vec<Group> {
    engine.outbox.settle(group.reports.len() - refused.len());
    if refused.is_empty() {
        return Vec::new();
    }
    let group = Group { reports: refused, ..group };
    let renewed = if group.renewed { Ok(false) } else { attached.renew(engine, &group.registration).await };
    match renewed {
        Ok(true) => vec![Group { renewed: true, ..group }],
        Ok(false) => {
            lost(engine, &group.reports);
            engine.outbox.settle(group.reports.len());
            Vec::new()
        }
        Err(error) => after_failure(engine, group, &error),
    }
}

/// One bad report must be one bad report, and what is too much at once must not be sent at once for ever: a group is
/// halved, whatever the reason, a connection that was lost over it included. A lone report is made plainer when a value is
/// the reason; otherwise it waits and is tried again for as long as the worker lives. When neither a value nor a lock is
/// the reason, the halves wait too: the whole database may be in trouble.
fn after_failure(engine: &Engine, mut group: Group, error: &StoreError) -> Vec<Group> {
    let (job, jobs) = (group.reports[0].job, group.reports.len());
    // The next connection is waited for anyway.
    if error.is_lost() || jobs > 1 && (error.is_about_values() || error.is_lock_wait()) {
        return halved(group);
    }
    if jobs == 1 && error.is_about_values() && group.reports[0].make_plainer(&error.to_string()) {
        tracing::warn!(%job, %error, "the end of a job could not be stored as it was");
        engine.stats.sanitised.one();
        return vec![group];
    }
    let wait = group.backoff.next();
    if group.backoff.is_loud() {
        tracing::warn!(%job, jobs, %error, ?wait, "the ends of jobs could not be stored, trying again");
    }
    group.not_before = Instant::now() + wait;
    halved(group)
}

/// The group in two parts, when it has more than one report.
fn halved(mut group: Group) -> Vec<Group> {
    if group.reports.len() == 1 {
        return vec![group];
    }
    let reports = group.reports.split_off(group.reports.len() / 2);
    let other = Group { reports, registration: group.registration.clone(), backoff: group.backoff.clone(), ..group };
    vec![group, other]
}

/// The reports that were refused: their leases are gone.
async fn complete(engine: &Engine, attached: &Attached, group: &Group) -> Result<Vec<Report>, StoreError> {
    let slots = slots_of(&group.reports);
    let (mut jobs, mut results) = (Vec::new(), Vec::new());
    for report in &group.reports {
        if let Some((job, result)) = report.result() {
            jobs.push(job.get());
            results.push(JsonText(result.get()));
        }
    }
    let not_now =
        attached.session.complete_many(&group.registration, &slots.leases, &slots.strips, &jobs, &results).await?;
    let refused = refused_of(engine, attached, &group.reports, &not_now).await?;
    engine.stats.completed.add((group.reports.len() - refused.len()) as u64);
    Ok(refused)
}

/// Of what was not completed now: what this lease had completed before is fine, the rest is refused.
async fn refused_of(
    engine: &Engine,
    attached: &Attached,
    reports: &[Report],
    not_now: &[(i64, Strip)],
) -> Result<Vec<Report>, StoreError> {
    let asked: Vec<_> = reports.iter().filter(|report| report.is_in(not_now)).collect();
    if asked.is_empty() {
        return Ok(Vec::new());
    }
    let (leases, jobs): (Vec<_>, Vec<_>) = asked.iter().map(|report| (report.lease.id, report.job.get())).unzip();
    let ended = attached.session.ended_by(&leases, &jobs).await?;
    let refused: Vec<_> =
        asked.iter().zip(&ended).filter(|(_, ended)| !**ended).map(|(report, _)| (*report).clone()).collect();
    engine.stats.already.add((asked.len() - refused.len()) as u64);
    Ok(refused)
}

async fn release(engine: &Engine, attached: &Attached, group: &Group) -> Result<Vec<Report>, StoreError> {
    let slots = slots_of(&group.reports);
    let not_held = attached.session.release(&group.registration, &slots.leases, &slots.strips).await?;
    let refused: Vec<_> = group.reports.iter().filter(|report| report.is_in(&not_held)).cloned().collect();
    engine.stats.released.add((group.reports.len() - refused.len()) as u64);
    Ok(refused)
}

async fn fail(engine: &Engine, attached: &Attached, group: &Group) -> Result<Vec<Report>, StoreError> {
    let rows: Vec<_> = group.reports.iter().map(Report::failure_row).collect();
    let statuses = attached.session.fail(&group.registration, &rows).await?;
    if statuses.len() != rows.len() {
        return Err(StoreError::Protocol(format!("fail answered {} of {} failures", statuses.len(), rows.len())));
    }
    // The answers stand in the order of the question.
    let answered = group.reports.iter().zip(statuses.iter().map(|(_, status)| *status));
    answered.clone().for_each(|(report, status)| note_failed(engine, report, status));
    Ok(answered.filter(|(_, status)| *status == FailStatus::Lost).map(|(report, _)| report.clone()).collect())
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
        // Not the last word on it.
        (_, FailStatus::Lost) => {}
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
    use super::super::report::tests::{a_failure, failure, report};
    use super::*;
    use crate::model::RawJson;

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
        let many = grouped((0..2500).map(|n| report(n, 0, 7, Ending::Released)).collect());
        assert_eq!(many.iter().map(|group| group.reports.len()).collect::<Vec<_>>(), [1000, 1000, 500]);
    }

    #[test]
    fn a_group_fits_a_message() {
        let large = |n| report(n, 0, 7, Ending::Completed(Some(RawJson::of(&"x".repeat(1_000_000)).expect("JSON"))));
        let groups = grouped((1..=20).map(large).collect());
        assert_eq!(groups.iter().map(|group| group.reports.len()).collect::<Vec<_>>(), [8, 8, 4]);
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
