//! Writes down how jobs ended, in groups: while one group is on its way to the database the next collects, and an idle
//! worker writes at once.
//!
//! A report stays here until the database said what became of it. When the answer to a group is lost with the
//! connection, the reports are sent again: the lease row tells "done now", "done before" and "lease lost" apart.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::sync::Notify;

use super::engine::{Engine, Phase};
use super::groups::{Answer, Group, Sent, Unsettled};
use super::lease::Slots;
use super::link::Attached;
use super::moment::at;
use super::report::{Ending, Report, Verb};
use crate::store::{FailStatus, JsonText, StoreError, Strip};

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

/// Writes reports until the worker has ended.
pub(super) async fn keep(engine: Arc<Engine>) {
    let _vital = engine.vital("reports");
    tokio::select! {
        () = engine.until(Phase::Ended) => {}
        () = keep_writing(&engine) => {}
    }
}

async fn keep_writing(engine: &Arc<Engine>) {
    let mut unsettled = Unsettled::new(Instant::now());
    loop {
        tokio::select! {
            () = engine.outbox.filled.notified() => {}
            () = at(unsettled.next_at()) => {}
        }
        let attached = engine.link.attached().await;
        unsettled.add(engine.outbox.take());
        let groups = unsettled.take_due(Instant::now());
        if groups.is_empty() {
            continue;
        }
        engine.stats.flushes.one();
        let sent = join_all(groups.into_iter().map(|group| send(engine, &attached, group))).await;
        unsettled.learn(sent, Instant::now(), &engine.stats);
    }
}

/// Sends one group.
async fn send(engine: &Engine, attached: &Attached, group: Group) -> Sent {
    let (jobs, known_bad, began) = (group.reports.len(), group.is_known_bad(), Instant::now());
    let answer = write(engine, attached, group).await;
    let took = began.elapsed();
    if answer.is_ok() {
        engine.tallies.flushes.record(took);
    }
    let quick = took < engine.settings.work_session.deadline / 4;
    Sent { jobs, quick, known_bad, took, answer }
}

async fn write(engine: &Engine, attached: &Attached, mut group: Group) -> Answer {
    let sent = match group.verb {
        Verb::Complete => complete(engine, attached, &group).await,
        Verb::Fail => fail(engine, attached, &group).await,
        Verb::Release => release(engine, attached, &group).await,
    };
    let refused = match sent {
        Ok(refused) => refused,
        Err(error) if error.is_worker_gone() => group.reports.clone(),
        Err(error) => return Err((group, error)),
    };
    engine.outbox.settle(group.reports.len() - refused.len());
    if refused.is_empty() {
        return Ok(None);
    }
    group.reports = refused;
    // Refused because the lease was gone: once more, if the registration is good after all.
    let renewed = if group.renewed { Ok(false) } else { attached.renew(engine, &group.registration).await };
    match renewed {
        Ok(true) => {
            group.renewed = true;
            Ok(Some(group))
        }
        Ok(false) => {
            lost(engine, &group.reports);
            engine.outbox.settle(group.reports.len());
            Ok(None)
        }
        Err(error) => Err((group, error)),
    }
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
    engine.tallies.completed(&group.reports, &refused);
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
    engine.tallies.released(&group.reports, &refused);
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
    engine.tallies.ended(report, status);
    match (report.failure(), status) {
        (Some(failure), FailStatus::Dead) => engine.failure_log.dead(engine, report, failure),
        (Some(failure), FailStatus::Retrying) => engine.failure_log.retried(engine, report, failure),
        (
            Some(_),
            FailStatus::Snoozed | FailStatus::Released | FailStatus::Cancelled | FailStatus::Already | FailStatus::Lost,
        )
        | (None, _) => {}
    }
    match (&report.ending, status) {
        (Ending::CompletedItself(_), FailStatus::Already) => stats.completed.one(),
        (_, FailStatus::Retrying) => stats.failed.one(),
        (_, FailStatus::Dead) => {
            stats.failed.one();
            stats.dead.one();
        }
        (_, FailStatus::Released) => stats.released.one(),
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
            Ending::Released | Ending::GivenUp(_) => {}
            Ending::Completed(_) | Ending::CompletedItself(_) | Ending::Failed(_) => {
                engine.stats.lease_lost.one();
                engine.failure_log.lost(report);
            }
        }
    }
}

/// The leases in the order of their ids, in which everybody locks them.
fn slots_of(reports: &[Report]) -> Slots {
    let mut slots = Slots::default();
    let mut ordered: Vec<&Report> = reports.iter().collect();
    ordered.sort_by_key(|report| report.lease.id);
    for report in ordered {
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
    use super::super::report::tests::report;
    use super::*;

    #[test]
    fn leases_are_reported_in_the_order_of_their_ids() {
        let reports =
            [(9, 0), (2, 1), (9, 3), (5, 0), (2, 0)].map(|(lease, slot)| report(lease, slot, 7, Ending::Released));
        let slots = slots_of(&reports);
        assert_eq!(slots.leases, [2, 5, 9]);
        assert!(slots.strips[0].has(1) && slots.strips[1].has(0) && slots.strips[2].has(3) && !slots.strips[0].has(3));
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
