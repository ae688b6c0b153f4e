//! What each step does: the server's functions and the worker's rules.

use crate::action::{Action, Side};
use crate::bounds::{ATTEMPTS, CALM, GRACE, LEASE, OWN_GRACE, OWN_LEASE, THIRD, WORKERS};
use crate::flaw::Flaw;
use crate::state::{
    Claim, End, Ended, Evidence, Fate, How, Jobs, Lease, LeaseId, Letter, Process, Run, Server, Stage, State,
};

/// What maintenance would do about a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sighting {
    /// Suspected from now on; None: a suspect no longer.
    Suspect(Option<Evidence>),
    Dead,
    /// It was dead before, and leases of it have turned up.
    Rescue,
}

/// What the server says of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Now,
    Before,
    Lost,
}

impl State {
    /// The state after a step.
    pub(crate) fn after(&self, action: Action, flaw: Option<Flaw>) -> State {
        let mut state = self.clone();
        state.apply(action, flaw);
        state.tidy();
        state
    }

    fn apply(&mut self, action: Action, flaw: Option<Flaw>) {
        if action.is_fault() {
            self.faults_left -= 1;
        }
        match action {
            Action::BeginClaim { worker, row, whole } => {
                let seen = self.ready_in(row);
                self.workers[worker].claim = Some(Claim { seen, whole, orphan: false, row });
            }
            Action::CommitClaim { worker } => self.commit_claim(worker, flaw),
            Action::End { worker, run, how } => self.workers[worker].runs[run].stage = Stage::Ended(how),
            Action::Report { worker, run } => {
                self.report(worker, run, flaw);
                self.workers[worker].runs.remove(run);
            }
            Action::ReportUnanswered { worker, run } => {
                self.report(worker, run, flaw);
                self.cut(worker, Side::Work);
            }
            Action::ReportDelayed { worker, run } => {
                self.post(worker, run);
                self.cut(worker, Side::Work);
            }
            Action::Arrive { worker } => {
                if let Some(letter) = self.workers[worker].letter.take() {
                    self.write(worker, letter.lease, letter.job, letter.how, flaw);
                }
            }
            Action::GiveBack { worker, run } => {
                let run = self.workers[worker].runs.remove(run);
                self.release(worker, run.lease, Jobs::of([run.job]));
            }
            Action::Renew { worker } => self.renew(worker, flaw),
            Action::GiveUp { worker } => self.give_up(worker),
            Action::Reconnect { worker } => self.reconnect(worker, flaw),
            Action::Audit { worker } => self.audit(worker, flaw),
            Action::Maintain { worker } => self.maintain(worker, flaw),
            Action::Tick => self.tick(flaw),
            Action::Cut { worker, side } => self.cut(worker, side),
            Action::CutUnseen { worker } => {
                self.cut(worker, Side::Both);
                self.workers[worker].unaware = true;
            }
            Action::Notice { worker } => {
                let at = &mut self.workers[worker];
                (at.unaware, at.cut) = (false, 0);
            }
            Action::Crash { worker } => self.crash(worker),
            Action::CrashSending { worker, run } => {
                self.post(worker, run);
                self.crash(worker);
            }
            Action::Freeze { worker } => self.workers[worker].process = Process::Frozen,
            Action::Thaw { worker } => self.thaw(worker),
            Action::Stop { announced } => self.stop(announced),
            Action::Restart => {
                self.server = Server::Up;
                // Whoever locks from now on has locked since the start.
                self.workers.iter_mut().for_each(|at| at.row.locked = false);
            }
            Action::Calm => (self.calm, self.faults_left) = (Some(CALM), 0),
            Action::Newcomer => {
                for job in &mut self.jobs {
                    if job.ready > 0 {
                        job.ready = 0;
                        job.end = Some(End::Completed);
                        job.first_end.get_or_insert(End::Completed);
                    }
                }
            }
        }
    }

    /// Two rules meet here: the lease is built from what the delete or the cut returned, and a delete does not find
    /// a row that is newer than the snapshot.
    fn commit_claim(&mut self, worker: usize, flaw: Option<Flaw>) {
        let Some(claim) = self.workers[worker].claim.take() else { return };
        let there = self.ready_in(claim.row);
        let picked = if claim.whole { there } else { there.first() };
        let missed = picked == there && there != claim.seen;
        let returned = if missed { Jobs::default() } else { picked };
        returned.iter().for_each(|job| self.jobs[job].ready = 0);
        let jobs = if flaw == Some(Flaw::LeaseFromPicked) { picked } else { returned };
        if jobs.is_empty() {
            return;
        }
        let lease = self.fresh_lease();
        jobs.iter().for_each(|job| self.jobs[job].attempt += 1);
        self.leases.push(Lease { worker, jobs, id: lease });
        if !claim.orphan {
            let started = |job| Run { job, stage: Stage::Running, lease };
            self.workers[worker].runs.extend(jobs.iter().map(started));
        }
    }

    fn report(&mut self, worker: usize, run: usize, flaw: Option<Flaw>) {
        let run = self.workers[worker].runs[run];
        let Stage::Ended(how) = run.stage else { return };
        let answer = self.write(worker, run.lease, run.job, how, flaw);
        let truth = Ended { job: run.job, how, lease: run.lease };
        let is_true = (answer != Answer::Lost) == self.ended.contains(&truth);
        self.blame.wrong_answer |= !is_true;
    }

    /// What a report would be told now.
    pub(crate) fn answer_to(&self, worker: usize, run: usize, flaw: Option<Flaw>) -> Answer {
        let mut state = self.clone();
        let Run { job, lease, stage } = state.workers[worker].runs[run];
        let Stage::Ended(how) = stage else { return Answer::Lost };
        state.write(worker, lease, job, how, flaw)
    }

    /// `complete_many` and `fail`: the lease row is the arbiter. The worker's row is read to refuse early.
    fn write(&mut self, worker: usize, lease: LeaseId, job: usize, how: How, flaw: Option<Flaw>) -> Answer {
        let own = self.lease_of(worker, lease, job);
        let row = match flaw {
            Some(Flaw::CompleteByJob) if how == How::Completed => self.leases.iter().position(|row| row.jobs.has(job)),
            _ => own.filter(|_| self.workers[worker].is_alive()),
        };
        if let Some(row) = row {
            self.blame.stale_write |= own != Some(row);
            self.leave(row, Jobs::of([job]));
            self.finish(job, how, lease);
            return Answer::Now;
        }
        let counts = |ended: &&Ended| match ended.how {
            How::Completed | How::Failed => flaw != Some(Flaw::RepeatCountsAsLost),
            How::Lost => flaw == Some(Flaw::BurialCountsAsReport),
        };
        let before = self.ended.iter().filter(counts).any(|ended| ended.job == job && ended.lease == lease);
        if before { Answer::Before } else { Answer::Lost }
    }

    /// Where a job goes whose lease has let it go. A failure is tried again at once while attempts are left.
    fn finish(&mut self, job: usize, how: How, lease: LeaseId) {
        let again = self.fresh_row();
        let at = &mut self.jobs[job];
        match how {
            How::Completed => at.end = Some(End::Completed),
            How::Failed | How::Lost if at.attempt >= ATTEMPTS => at.end = Some(End::Dead),
            How::Failed | How::Lost => at.ready = again,
        }
        at.first_end = at.first_end.or(at.end);
        if how != How::Lost || at.end.is_some() {
            self.ended.push(Ended { job, how, lease });
        }
    }

    fn leave(&mut self, row: usize, jobs: Jobs) {
        let left = self.leases[row].jobs.without(jobs);
        if left.is_empty() {
            self.leases.remove(row);
        } else {
            self.leases[row].jobs = left;
        }
    }

    /// `release`: the attempt is not used.
    fn release(&mut self, worker: usize, lease: LeaseId, jobs: Jobs) {
        if !self.workers[worker].is_alive() {
            return;
        }
        let again = self.fresh_row();
        for job in jobs.iter() {
            if let Some(row) = self.lease_of(worker, lease, job) {
                self.leave(row, Jobs::of([job]));
                self.jobs[job].ready = again;
                self.jobs[job].attempt -= 1;
            }
        }
    }

    fn renew(&mut self, worker: usize, flaw: Option<Flaw>) {
        if !self.may_live_on(worker, flaw) {
            return self.give_up(worker);
        }
        self.workers[worker].row.left = LEASE;
        self.workers[worker].own_left = OWN_LEASE;
        self.forget_time(worker);
    }

    /// `dead_at` is final.
    fn may_live_on(&mut self, worker: usize, flaw: Option<Flaw>) -> bool {
        let row = &mut self.workers[worker].row;
        if flaw == Some(Flaw::DeadMayReturn) && row.fate == Fate::Dead {
            (row.fate, row.left) = (Fate::Alive, LEASE);
        }
        row.fate == Fate::Alive
    }

    fn forget_time(&mut self, worker: usize) {
        let row = &mut self.workers[worker].row;
        row.suspicion = row.suspicion.filter(|(by, _)| *by == Evidence::Lock);
    }

    /// Stops its handlers and closes its connections; reports wait for an answer all the same.
    fn give_up(&mut self, worker: usize) {
        self.cut(worker, Side::Both);
        let at = &mut self.workers[worker];
        at.process = Process::GaveUp;
        at.runs.retain(|run| matches!(run.stage, Stage::Ended(_)));
    }

    /// `attach_worker`: the lock is taken again, which clears the suspicion, unless the worker is dead.
    fn reconnect(&mut self, worker: usize, flaw: Option<Flaw>) {
        if !self.may_live_on(worker, flaw) {
            return self.give_up(worker);
        }
        let at = &mut self.workers[worker];
        at.audit |= !at.work;
        (at.work, at.control) = (true, true);
        (at.row.locked, at.row.suspicion) = (true, None);
        (at.cut, at.announced) = (0, false);
        at.late &= at.own_left == 0;
    }

    /// `leases_of` and `release`. Asked again until a claim of the lost connection has ended: the second question
    /// comes ten seconds later, and no claim takes that long.
    fn audit(&mut self, worker: usize, flaw: Option<Flaw>) {
        let is_unknown = |lease: &&Lease| lease.worker == worker && !self.knows(worker, lease.id);
        let unknown: Vec<Lease> = self.leases.iter().filter(is_unknown).copied().collect();
        unknown.iter().for_each(|lease| self.release(worker, lease.id, lease.jobs));
        let at = &mut self.workers[worker];
        at.audit = at.claim.is_some() && flaw != Some(Flaw::AuditOnce);
    }

    /// `sight_workers` and `declare_dead`, of one worker.
    pub(crate) fn sighting(&self, worker: usize, flaw: Option<Flaw>) -> Option<Sighting> {
        let (at, row) = (&self.workers[worker], &self.workers[worker].row);
        if row.fate != Fate::Alive {
            return (row.fate == Fate::Dead && self.holds_leases(worker)).then_some(Sighting::Rescue);
        }
        let lock_counts = row.locked || flaw == Some(Flaw::LocksOutliveRestart);
        let by = match (lock_counts && at.both_cut(), row.left == 0) {
            (true, _) => Some(Evidence::Lock),
            (false, true) => Some(Evidence::Time),
            (false, false) => None,
        };
        if flaw == Some(Flaw::OneSighting) && by.is_some() {
            return Some(Sighting::Dead);
        }
        match (row.suspicion, by) {
            (Some((before, ticks)), Some(now)) if before == now => {
                let enough = if now == Evidence::Lock { GRACE } else { THIRD };
                (ticks >= enough).then_some(Sighting::Dead)
            }
            (None, None) => None,
            _ => Some(Sighting::Suspect(by)),
        }
    }

    fn maintain(&mut self, worker: usize, flaw: Option<Flaw>) {
        match self.sighting(worker, flaw) {
            Some(Sighting::Suspect(by)) => self.workers[worker].row.suspicion = by.map(|by| (by, 0)),
            Some(Sighting::Dead) => {
                self.workers[worker].row.fate = Fate::Dead;
                self.rescue(worker);
            }
            Some(Sighting::Rescue) => self.rescue(worker),
            None => {}
        }
        let at = &mut self.workers[worker].row;
        if flaw == Some(Flaw::RowGoneAtOnce) && at.fate == Fate::Dead {
            at.fate = Fate::Gone;
        }
    }

    /// `rescue_lease`, of all leases of a dead worker.
    fn rescue(&mut self, worker: usize) {
        while let Some(row) = self.leases.iter().position(|lease| lease.worker == worker) {
            let lease = self.leases.remove(row);
            let again = self.fresh_row();
            for job in lease.jobs.iter() {
                self.finish(job, How::Lost, lease.id);
                if self.jobs[job].ready > 0 {
                    // Jobs of one lease share a row.
                    self.jobs[job].ready = again;
                }
            }
        }
    }

    fn cut(&mut self, worker: usize, side: Side) {
        let at = &mut self.workers[worker];
        let was_cut = at.both_cut();
        at.work &= side == Side::Control;
        at.control &= side == Side::Work;
        if !at.work
            && let Some(claim) = &mut at.claim
        {
            claim.orphan = true;
        }
        if at.both_cut() && !was_cut {
            (at.cut, at.announced) = (0, false);
            at.unaware = at.process == Process::Frozen;
        }
    }

    fn post(&mut self, worker: usize, run: usize) {
        let at = &mut self.workers[worker];
        let Run { job, lease, stage } = at.runs[run];
        if let Stage::Ended(how) = stage {
            at.letter = Some(Letter { job, how, lease });
        }
    }

    fn crash(&mut self, worker: usize) {
        self.cut(worker, Side::Both);
        let at = &mut self.workers[worker];
        at.process = Process::Crashed;
        at.runs.clear();
    }

    fn thaw(&mut self, worker: usize) {
        let at = &mut self.workers[worker];
        at.process = Process::Running;
        if at.unaware {
            // It counts from when it noticed: too late, if time has gone by.
            at.late |= at.cut > 0;
            (at.unaware, at.cut) = (false, 0);
        }
    }

    /// Sessions, what was under way in them, and what was on its way to them end with the server.
    fn stop(&mut self, announced: bool) {
        self.server = Server::Down { announced };
        for worker in 0..WORKERS {
            let was_connected = !self.workers[worker].both_cut();
            self.cut(worker, Side::Both);
            let at = &mut self.workers[worker];
            (at.claim, at.letter) = (None, None);
            at.announced |= announced && was_connected;
        }
    }

    fn tick(&mut self, flaw: Option<Flaw>) {
        if let Some(calm) = &mut self.calm {
            *calm -= 1;
        }
        let down = self.server != Server::Up;
        for worker in 0..WORKERS {
            if !down && self.workers[worker].renews() {
                self.renew(worker, flaw);
                continue;
            }
            let at = &mut self.workers[worker];
            at.row.left = at.row.left.saturating_sub(1);
            if let Some((by, ticks)) = &mut at.row.suspicion {
                *ticks = (*ticks + 1).min(if *by == Evidence::Lock { GRACE } else { THIRD });
            }
            let frozen = at.process == Process::Frozen;
            if !at.is_running() && !frozen {
                continue;
            }
            let sleeps = frozen && flaw == Some(Flaw::ClockSleeps);
            // While a server is away that said goodbye, nobody can take anything: that time does not count.
            let waits = down && at.announced;
            if at.both_cut() && !waits && (!at.unaware || frozen) {
                at.late |= frozen && at.cut >= OWN_GRACE;
                at.cut = (at.cut + 1).min(OWN_GRACE);
            }
            if !sleeps {
                at.late |= frozen && at.own_left == 0;
                at.own_left = at.own_left.saturating_sub(1);
            }
        }
    }
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
            | Action::GiveBack { .. }
            | Action::End { how: How::Failed, .. }
            | Action::Stop { .. } => true,
            Action::BeginClaim { .. }
            | Action::CommitClaim { .. }
            | Action::End { how: How::Completed | How::Lost, .. }
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
}
