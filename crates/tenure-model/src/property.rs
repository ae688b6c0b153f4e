//! What must hold in every state, and what must be reachable for that to mean anything.

use crate::bounds::{JOBS, WORKERS};
use crate::state::{Fate, How, Process, Run, Stage, State};

pub(crate) const CONSERVATION: &str = "I1: every job stands in exactly one of ready, lease, outcome, dead_letter";
pub(crate) const ONE_LEASE: &str = "I2: no job in two leases, and every lease belongs to a worker's row";
pub(crate) const FINALITY: &str = "I3: an ended job stays as it ended";
pub(crate) const STALE_WRITE: &str = "a stale write changes nothing";
pub(crate) const NO_OVERLAP: &str = "no two runs of a job overlap under valid leases";
pub(crate) const STOPPED: &str = "who keeps the rules has stopped a handler before its job is given away";
pub(crate) const BESIDE: &str = "no run begins beside one of a worker that keeps the rules";
pub(crate) const TOLD_APART: &str = "a report is told truly whether its lease ended the job as it says";
pub(crate) const NOT_DROPPED: &str = "a report is dropped only when its job was given away, or a renewal did not help";
pub(crate) const ALL_END: &str = "once the faults have ended, every job ends";

pub(crate) const LATE_CLAIM: &str = "a claim commits after its worker was declared dead";
pub(crate) const LATE_WRITE: &str = "a report is on its way whose job is leased to another";
pub(crate) const REPEAT: &str = "a report waits for an answer that was given";
pub(crate) const UNKNOWN_LEASE: &str = "a live worker holds a lease that it does not know of";
pub(crate) const OVER: &str = "a worker's claims and reports are refused, although nobody was given its jobs";
pub(crate) const FORMER: &str = "a job goes back under a registration that was given up and renewed for it";
pub(crate) const OVERSLEPT: &str = "a thawed handler runs beside the one that took its job";
pub(crate) const BURIED: &str = "a job is buried for its lost workers";

/// Each job once: as a claim, an end and a give-back leave it.
pub(crate) fn conserves(state: &State) -> bool {
    (0..JOBS).all(|job| {
        let leases = state.leases.iter().filter(|lease| lease.jobs.has(job)).count();
        let at = &state.jobs[job];
        leases + usize::from(at.ready > 0) + usize::from(at.end.is_some()) == 1
    })
}

pub(crate) fn leases_once(state: &State) -> bool {
    let once = |job: usize| state.leases.iter().filter(|lease| lease.jobs.has(job)).count() <= 1;
    let known = state.leases.iter().all(|lease| state.workers[lease.worker].row.fate != Fate::Gone);
    (0..JOBS).all(once) && known
}

pub(crate) fn is_final(state: &State) -> bool {
    state.jobs.iter().all(|job| job.end == job.first_end)
}

/// Handlers that run now, with their workers.
fn handlers(state: &State) -> impl Iterator<Item = (usize, &Run)> {
    (0..WORKERS).flat_map(move |worker| {
        let runs = state.workers[worker].runs.iter();
        runs.filter(|run| run.stage == Stage::Running).map(move |run| (worker, run))
    })
}

pub(crate) fn overlaps_nowhere(state: &State) -> bool {
    (0..JOBS).all(|job| {
        let valid = |(worker, run): &(usize, &Run)| run.job == job && state.has_valid_lease(*worker, run);
        handlers(state).filter(valid).count() <= 1
    })
}

/// It could know when to stop: it was not frozen past that moment, and the database's clock did not leap.
fn could_know(state: &State, worker: usize) -> bool {
    !state.workers[worker].late && !state.workers[worker].early
}

/// Its lease row stands while a handler runs, so nobody else can have been given the job.
pub(crate) fn has_stopped(state: &State) -> bool {
    handlers(state)
        .all(|(worker, run)| !could_know(state, worker) || state.lease_of(worker, run.lease, run.job).is_some())
}

pub(crate) fn runs_alone(state: &State) -> bool {
    (0..JOBS).all(|job| {
        let by_the_rules = |(worker, run): &(usize, &Run)| run.job == job && could_know(state, *worker);
        handlers(state).filter(by_the_rules).count() <= 1
    })
}

pub(crate) fn claims_late(state: &State) -> bool {
    (0..WORKERS).any(|worker| state.workers[worker].row.fate == Fate::Dead && state.holds_leases(worker))
}

pub(crate) fn writes_late(state: &State) -> bool {
    let leased_elsewhere =
        |worker: usize, job: usize| state.leases.iter().any(|lease| lease.worker != worker && lease.jobs.has(job));
    (0..WORKERS).any(|worker| state.workers[worker].reports().any(|run| leased_elsewhere(worker, run.job)))
}

pub(crate) fn repeats(state: &State) -> bool {
    let answered = |run: &Run| {
        let by_it =
            |how| state.ended.iter().any(|ended| ended.lease == run.lease && ended.job == run.job && ended.how == how);
        by_it(How::Completed) || by_it(How::Failed)
    };
    state.workers.iter().any(|worker| worker.reports().any(answered))
}

pub(crate) fn holds_unknown(state: &State) -> bool {
    state.leases.iter().any(|lease| {
        let at = &state.workers[lease.worker];
        at.is_running() && at.work && at.runs.iter().all(|run| run.lease != lease.id)
    })
}

pub(crate) fn is_over(state: &State) -> bool {
    (0..WORKERS).any(|worker| state.is_claim_refused(worker) && state.workers[worker].row.fate == Fate::Alive)
}

pub(crate) fn gives_back_renewed(state: &State) -> bool {
    let goes_back = |run: &Run| run.renewed && run.stage == Stage::Ended(How::Back);
    state.workers.iter().any(|worker| worker.process == Process::GaveUp && worker.runs.iter().any(goes_back))
}

pub(crate) fn overslept(state: &State) -> bool {
    handlers(state).any(|(worker, run)| {
        state.workers[worker].late
            && state.workers[worker].is_running()
            && handlers(state).any(|(other, taken)| other != worker && taken.job == run.job)
    })
}

pub(crate) fn buries(state: &State) -> bool {
    state.ended.iter().any(|ended| ended.how == How::Lost)
}
