//! The steps, and which of them are possible in a state.

use crate::bounds::{OWN_GRACE, WORKERS};
use crate::flaw::Flaw;
use crate::state::{Fate, How, Process, RowId, Run, Server, Stage, State, Worker};

/// A worker's two connections, or both at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Side {
    Work,
    Control,
    Both,
}

/// One step. Workers, runs of a worker, and rows of `ready` are named by their numbers in the state before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// A claim looks at its worker and takes its snapshot.
    BeginClaim {
        worker: usize,
        row: RowId,
        whole: bool,
    },
    /// It picks, deletes or cuts, writes the lease and commits. If somebody is there to read the answer, the jobs start.
    CommitClaim {
        worker: usize,
    },
    End {
        worker: usize,
        run: usize,
        how: How,
    },
    /// The report of one run, and its answer. One that is refused is followed by a heartbeat, and is sent once more if that
    /// was taken. After the worker gave up: under the former registration, and all that goes back in one call.
    Report {
        worker: usize,
        run: usize,
    },
    /// A heartbeat at once: after a reconnect, because the worker was told that it was given up, or because a claim was
    /// refused.
    Renew {
        worker: usize,
    },
    GiveUp {
        worker: usize,
    },
    Reconnect {
        worker: usize,
    },
    /// The worker asks for leases that it does not know, and releases them; after it gave up, those of its former registration.
    Audit {
        worker: usize,
    },
    /// Maintenance looks at one worker: first sighting, second sighting, rescue.
    Maintain {
        worker: usize,
    },
    /// Time goes by. Heartbeats come every third of a lease, which is a tick: a worker that can renew has renewed.
    Tick,

    /// A job is aborted, as at the end of a graceful stop: its report says that it goes back.
    Abort {
        worker: usize,
        run: usize,
    },
    /// The report is carried out, its answer is lost with the connection.
    ReportUnanswered {
        worker: usize,
        run: usize,
    },
    /// The connection is lost while the report is on its way; it is carried out later.
    ReportDelayed {
        worker: usize,
        run: usize,
    },
    Arrive {
        worker: usize,
    },
    Cut {
        worker: usize,
        side: Side,
    },
    /// The server has lost both connections, the worker does not know.
    CutUnseen {
        worker: usize,
    },
    Notice {
        worker: usize,
    },
    Crash {
        worker: usize,
    },
    /// It crashes with a report on its way.
    CrashSending {
        worker: usize,
        run: usize,
    },
    /// It does nothing, and the server keeps its sessions. A frozen worker that never thaws is a machine that is gone.
    Freeze {
        worker: usize,
    },
    Thaw {
        worker: usize,
    },
    Stop {
        announced: bool,
    },
    Restart,
    /// The database's clock is set forward by more than a lease.
    ClockForward,

    /// The faults have ended.
    Calm,
    /// A worker that registered after the faults runs all that is ready.
    Newcomer,
}

impl Action {
    /// It uses up one of the faults.
    pub(crate) fn is_fault(&self) -> bool {
        match self {
            Action::ReportUnanswered { .. }
            | Action::ReportDelayed { .. }
            | Action::Cut { .. }
            | Action::CutUnseen { .. }
            | Action::Crash { .. }
            | Action::CrashSending { .. }
            | Action::Freeze { .. }
            | Action::Abort { .. }
            | Action::ClockForward
            | Action::End { how: How::Failed, .. }
            | Action::Stop { .. } => true,
            Action::BeginClaim { .. }
            | Action::CommitClaim { .. }
            | Action::End { how: How::Completed | How::Back | How::Lost, .. }
            | Action::Report { .. }
            | Action::Renew { .. }
            | Action::GiveUp { .. }
            | Action::Reconnect { .. }
            | Action::Audit { .. }
            | Action::Maintain { .. }
            | Action::Tick
            | Action::Arrive { .. }
            | Action::Notice { .. }
            | Action::Thaw { .. }
            | Action::Restart
            | Action::Calm
            | Action::Newcomer => false,
        }
    }

    /// The order in which a calm world does what is due; None for what it does not do.
    fn rank(&self) -> Option<u8> {
        Some(match self {
            Action::Restart | Action::Notice { .. } => 0,
            Action::Arrive { .. } => 1,
            Action::CommitClaim { .. } => 2,
            Action::GiveUp { .. } => 3,
            Action::Reconnect { .. } => 4,
            Action::Audit { .. } => 5,
            Action::Renew { .. } => 6,
            Action::Report { .. } | Action::End { how: How::Completed, .. } => 7,
            Action::Maintain { .. } => 8,
            Action::Newcomer => 9,
            Action::Tick => 10,
            Action::End { .. }
            | Action::BeginClaim { .. }
            | Action::Abort { .. }
            | Action::ReportUnanswered { .. }
            | Action::ReportDelayed { .. }
            | Action::Cut { .. }
            | Action::CutUnseen { .. }
            | Action::Crash { .. }
            | Action::CrashSending { .. }
            | Action::Freeze { .. }
            | Action::Thaw { .. }
            | Action::Stop { .. }
            | Action::ClockForward
            | Action::Calm => return None,
        })
    }
}

/// All that can happen next.
pub(crate) fn possible(state: &State, flaw: Option<Flaw>, actions: &mut Vec<Action>) {
    if state.is_over() {
        return;
    }
    let from = actions.len();
    for worker in 0..WORKERS {
        of_process(state, worker, flaw, actions);
        of_server(state, worker, flaw, actions);
    }
    of_time(state, flaw, actions);
    match state.calm {
        None => {
            if state.faults_left > 0 {
                faults(state, flaw, actions);
            }
            actions.push(Action::Calm);
        }
        Some(_) => {
            if state.server == Server::Up && state.ready_rows().next().is_some() {
                actions.push(Action::Newcomer);
            }
            let due = actions.drain(from..).filter(|action| action.rank().is_some()).min_by_key(Action::rank);
            actions.extend(due);
        }
    }
}

/// It has to stop its handlers before any more time goes by.
pub(crate) fn must_stop(at: &Worker) -> bool {
    let cut_off = at.both_cut() && !at.unaware && at.cut >= OWN_GRACE;
    at.is_running() && (at.own_left == 0 || cut_off)
}

/// What a worker's process does.
fn of_process(state: &State, worker: usize, flaw: Option<Flaw>, actions: &mut Vec<Action>) {
    let (at, up) = (&state.workers[worker], state.server == Server::Up);
    let (running, gave_up) = (at.is_running(), at.process == Process::GaveUp);
    let sends = sends(state, worker);
    for (run, held) in at.runs.iter().enumerate() {
        if held.stage == Stage::Running && (running || gave_up) {
            actions.push(Action::End { worker, run, how: How::Completed });
        }
        let too_early = gave_up && flaw == Some(Flaw::BackWhileRunning);
        let goes_before = |first: &Run| gave_up && first.goes_back() && held.goes_back();
        let is_sent = at.runs[..run].iter().any(goes_before);
        if sends && !is_sent && (too_early || held.stage != Stage::Running) {
            actions.push(Action::Report { worker, run });
        }
    }
    if at.process == Process::Frozen {
        actions.push(Action::Thaw { worker });
    }
    // What it finds while its lease is over it cannot release: it asks again, and by then has renewed the lease.
    let answered = at.claim.is_none_or(|claim| claim.orphan) && (gave_up || at.is_alive());
    let asks = if gave_up || flaw == Some(Flaw::AuditOnce) { at.audit } else { state.holds_unknown(worker) };
    if sends && asks && answered {
        actions.push(Action::Audit { worker });
    }
    if !running {
        return;
    }
    if at.unaware {
        actions.push(Action::Notice { worker });
    }
    if !up || at.unaware {
        return;
    }
    if !at.control || !at.work {
        actions.push(Action::Reconnect { worker });
    }
    let beats = at.renews() && (at.own_left == 0 || at.row.fate != Fate::Alive);
    if beats || state.is_claim_refused(worker) {
        actions.push(Action::Renew { worker });
    }
    if at.work && at.claim.is_none() && at.is_alive() {
        for row in state.ready_rows() {
            actions.push(Action::BeginClaim { worker, row, whole: true });
            if state.ready_in(row).first() != state.ready_in(row) {
                actions.push(Action::BeginClaim { worker, row, whole: false });
            }
        }
    }
}

/// Its reports reach the server; those of a registration that was given up go over the connections of the next one.
fn sends(state: &State, worker: usize) -> bool {
    let at = &state.workers[worker];
    state.server == Server::Up && if at.is_running() { at.work } else { at.process == Process::GaveUp }
}

/// What the server does by itself or for anybody.
fn of_server(state: &State, worker: usize, flaw: Option<Flaw>, actions: &mut Vec<Action>) {
    if state.server != Server::Up {
        return;
    }
    let at = &state.workers[worker];
    if at.claim.is_some() {
        actions.push(Action::CommitClaim { worker });
    }
    if at.letter.is_some() {
        actions.push(Action::Arrive { worker });
    }
    if state.sighting(worker, flaw).is_some() {
        actions.push(Action::Maintain { worker });
    }
}

fn of_time(state: &State, flaw: Option<Flaw>, actions: &mut Vec<Action>) {
    if state.server != Server::Up {
        actions.push(Action::Restart);
    }
    let mut overdue = false;
    if flaw != Some(Flaw::NoSelfStop) {
        for worker in (0..WORKERS).filter(|worker| must_stop(&state.workers[*worker])) {
            overdue = true;
            actions.push(Action::GiveUp { worker });
        }
    }
    // What was refused is sent again at once, behind the heartbeat.
    let again = |worker: &usize| sends(state, *worker) && state.workers[*worker].runs.iter().any(|run| run.renewed);
    overdue |= (0..WORKERS).any(|worker| again(&worker));
    if !overdue && state.calm != Some(0) {
        actions.push(Action::Tick);
    }
}

fn faults(state: &State, flaw: Option<Flaw>, actions: &mut Vec<Action>) {
    for worker in 0..WORKERS {
        let at = &state.workers[worker];
        let running = at.is_running();
        faults_of_reports(state, worker, actions);
        if at.process == Process::GaveUp && !at.runs.is_empty() {
            actions.push(Action::Crash { worker });
        }
        if !running && at.process != Process::Frozen {
            continue;
        }
        if at.work {
            actions.push(Action::Cut { worker, side: Side::Work });
        }
        if at.control {
            actions.push(Action::Cut { worker, side: Side::Control });
        }
        if at.work && at.control {
            actions.push(Action::Cut { worker, side: Side::Both });
            if flaw == Some(Flaw::CutUnseen) && running {
                actions.push(Action::CutUnseen { worker });
            }
        }
        actions.push(Action::Crash { worker });
        if !running {
            continue;
        }
        actions.push(Action::Freeze { worker });
        for (run, _) in at.runs.iter().enumerate().filter(|(_, held)| held.stage == Stage::Running) {
            actions.push(Action::End { worker, run, how: How::Failed });
            actions.push(Action::Abort { worker, run });
        }
    }
    if state.server == Server::Up {
        actions.push(Action::Stop { announced: true });
        actions.push(Action::Stop { announced: false });
        if state.may_leap && !state.leases.is_empty() {
            actions.push(Action::ClockForward);
        }
    }
}

fn faults_of_reports(state: &State, worker: usize, actions: &mut Vec<Action>) {
    let at = &state.workers[worker];
    if !sends(state, worker) {
        return;
    }
    for (run, _) in at.runs.iter().enumerate().filter(|(_, held)| held.stage != Stage::Running) {
        actions.push(Action::ReportUnanswered { worker, run });
        if at.letter.is_none() {
            actions.push(Action::ReportDelayed { worker, run });
            actions.push(Action::CrashSending { worker, run });
        }
    }
}
