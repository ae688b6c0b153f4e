//! The steps, and which of them are possible in a state.

use crate::bounds::{OWN_GRACE, WORKERS};
use crate::flaw::Flaw;
use crate::state::{Fate, How, Process, RowId, Server, Stage, State, Worker};

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
    /// The report of one run, and its answer. After the worker gave up: a late write.
    Report {
        worker: usize,
        run: usize,
    },
    /// A heartbeat at once, after a reconnect or because the worker was told that it was given up.
    Renew {
        worker: usize,
    },
    GiveUp {
        worker: usize,
    },
    Reconnect {
        worker: usize,
    },
    /// The worker asks for leases that it does not know, and releases them.
    Audit {
        worker: usize,
    },
    /// Maintenance looks at one worker: first sighting, second sighting, rescue.
    Maintain {
        worker: usize,
    },
    /// Time goes by. Heartbeats come every third of a lease, which is a tick: a worker that can renew has renewed.
    Tick,

    /// A job is aborted and goes back without using an attempt, as at the end of a graceful stop.
    GiveBack {
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

    /// The faults have ended.
    Calm,
    /// A worker that registered after the faults runs all that is ready.
    Newcomer,
}

impl Action {
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
            | Action::GiveBack { .. }
            | Action::ReportUnanswered { .. }
            | Action::ReportDelayed { .. }
            | Action::Cut { .. }
            | Action::CutUnseen { .. }
            | Action::Crash { .. }
            | Action::CrashSending { .. }
            | Action::Freeze { .. }
            | Action::Thaw { .. }
            | Action::Stop { .. }
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
        of_process(state, worker, actions);
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
fn of_process(state: &State, worker: usize, actions: &mut Vec<Action>) {
    let (at, up) = (&state.workers[worker], state.server == Server::Up);
    let running = at.is_running();
    let sends = up && if running { at.work } else { at.process == Process::GaveUp };
    for (run, held) in at.runs.iter().enumerate() {
        match held.stage {
            Stage::Running if running => actions.push(Action::End { worker, run, how: How::Completed }),
            Stage::Ended(_) if sends => actions.push(Action::Report { worker, run }),
            Stage::Running | Stage::Ended(_) => {}
        }
    }
    if at.process == Process::Frozen {
        actions.push(Action::Thaw { worker });
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
    if at.renews() && (at.own_left == 0 || at.row.fate != Fate::Alive) {
        actions.push(Action::Renew { worker });
    }
    if at.work && at.audit && at.claim.is_none_or(|claim| claim.orphan) {
        actions.push(Action::Audit { worker });
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
    if !overdue && state.calm != Some(0) {
        actions.push(Action::Tick);
    }
}

fn faults(state: &State, flaw: Option<Flaw>, actions: &mut Vec<Action>) {
    for worker in 0..WORKERS {
        let at = &state.workers[worker];
        let (up, running) = (state.server == Server::Up, at.is_running());
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
        for (run, held) in at.runs.iter().enumerate() {
            match held.stage {
                Stage::Running => {
                    actions.push(Action::End { worker, run, how: How::Failed });
                    if up && at.work {
                        actions.push(Action::GiveBack { worker, run });
                    }
                }
                Stage::Ended(_) if up && at.work => {
                    actions.push(Action::ReportUnanswered { worker, run });
                    if at.letter.is_none() {
                        actions.push(Action::ReportDelayed { worker, run });
                        actions.push(Action::CrashSending { worker, run });
                    }
                }
                Stage::Ended(_) => {}
            }
        }
    }
    if state.server == Server::Up {
        actions.push(Action::Stop { announced: true });
        actions.push(Action::Stop { announced: false });
    }
}
