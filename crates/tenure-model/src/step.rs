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
            Action::Report { worker, run } => self.report_all(worker, run, flaw),
            Action::ReportUnanswered { worker, run } => {
                self.send(worker, run, flaw);
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
            Action::Abort { worker, run } => self.workers[worker].runs[run].stage = Stage::Ended(How::Back),
            Action::Renew { worker } => self.renew(worker, flaw),
            Action::GiveUp { worker } => self.give_up(worker, flaw),
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
            Action::ClockForward => self.leap(),
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
            // A run looks, once it is known as running, whether its registration was given up in between.
            let at = &mut self.workers[worker];
            let starts = at.process != Process::GaveUp || flaw == Some(Flaw::StartsAfterGivingUp);
            let stage = if starts { Stage::Running } else { Stage::Ended(How::Back) };
            at.runs.extend(jobs.iter().map(|job| Run { job, stage, renewed: false, lease }));
        }
    }

    /// What goes back after giving up goes in one call.
    fn report_all(&mut self, worker: usize, run: usize, flaw: Option<Flaw>) {
        let at = &self.workers[worker];
        if at.process != Process::GaveUp || !at.runs[run].goes_back() {
            return self.report(worker, run, flaw);
        }
        let shared = self.fresh_row();
        for run in (0..at.runs.len()).rev() {
            let held = self.workers[worker].runs[run];
            if held.goes_back() {
                self.report(worker, run, flaw);
                if self.jobs[held.job].ready >= shared {
                    // Jobs that come back together share a row.
                    self.jobs[held.job].ready = shared;
                }
            }
        }
    }

    /// A report and its answer. What is refused is followed by a heartbeat, also under a former registration, and is sent
    /// once more when that was taken. Both are one step: a refusal changes nothing, so that it may as well come when the
    /// heartbeat does.
    fn report(&mut self, worker: usize, run: usize, flaw: Option<Flaw>) {
        let refused = self.send(worker, run, flaw) == Answer::Lost;
        let held = self.workers[worker].runs[run];
        if held.stage == Stage::Running {
            return;
        }
        let renews = refused && !held.renewed && flaw != Some(Flaw::RefusedIsLost);
        if renews && self.extend(worker, flaw) && self.lease_of(worker, held.lease, held.job).is_some() {
            self.workers[worker].runs[run].renewed = true;
            return;
        }
        let is_held = self.lease_of(worker, held.lease, held.job).is_some();
        self.blame.dropped |= is_held && !held.renewed && self.workers[worker].row.fate == Fate::Alive;
        self.workers[worker].runs.remove(run);
    }

    fn send(&mut self, worker: usize, run: usize, flaw: Option<Flaw>) -> Answer {
        let run = self.workers[worker].runs[run];
        let how = run.says();
        let answer = self.write(worker, run.lease, run.job, how, flaw);
        let truth = Ended { job: run.job, how, lease: run.lease };
        let is_true = how == How::Back || (answer != Answer::Lost) == self.ended.contains(&truth);
        self.blame.wrong_answer |= !is_true;
        answer
    }

    /// What a report would be told now.
    pub(crate) fn answer_to(&self, worker: usize, run: usize, flaw: Option<Flaw>) -> Answer {
        self.clone().send(worker, run, flaw)
    }

    /// `complete_many`, `fail` and `release`: the lease row is the arbiter. The worker's row is read to refuse early.
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
            How::Back => false,
        };
        let before = self.ended.iter().filter(counts).any(|ended| ended.job == job && ended.lease == lease);
        if before { Answer::Before } else { Answer::Lost }
    }

    /// Where a job goes whose lease has let it go. A failure is tried again at once while attempts are left; what goes back
    /// has used none.
    fn finish(&mut self, job: usize, how: How, lease: LeaseId) {
        let again = self.fresh_row();
        let at = &mut self.jobs[job];
        match how {
            How::Completed => at.end = Some(End::Completed),
            How::Failed | How::Lost if at.attempt >= ATTEMPTS => at.end = Some(End::Dead),
            How::Failed | How::Lost => at.ready = again,
            How::Back => (at.ready, at.attempt) = (again, at.attempt - 1),
        }
        at.first_end = at.first_end.or(at.end);
        let is_noted = match how {
            How::Completed | How::Failed => true,
            How::Lost => at.end.is_some(),
            How::Back => false,
        };
        if is_noted {
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

    /// `release` of a lease that the worker does not know of: the attempt is not used.
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
        if !self.extend(worker, flaw) {
            self.give_up(worker, flaw);
        }
    }

    /// `heartbeat`. A lease that is over is extended too, as long as nobody was given what it holds, and that of a
    /// registration that its worker gave up. `dead_at` is final: false.
    fn extend(&mut self, worker: usize, flaw: Option<Flaw>) -> bool {
        let at = &mut self.workers[worker];
        if flaw == Some(Flaw::RenewalRevives) && at.row.fate == Fate::Dead {
            at.row.fate = Fate::Alive;
        }
        if at.row.fate != Fate::Alive {
            return false;
        }
        at.row.left = LEASE;
        at.row.suspicion = at.row.suspicion.filter(|(by, _)| *by == Evidence::Lock);
        if at.is_running() {
            (at.own_left, at.late, at.early) = (OWN_LEASE, false, false);
        }
        true
    }

    /// Stops its handlers and closes its connections. What was stopped goes back, by a report under this registration, as
    /// does what a claim brings whose answer is still read.
    fn give_up(&mut self, worker: usize, flaw: Option<Flaw>) {
        let at = &self.workers[worker];
        let is_read = at.work && at.claim.is_some_and(|claim| !claim.orphan);
        self.cut(worker, Side::Both);
        let at = &mut self.workers[worker];
        (at.process, at.audit) = (Process::GaveUp, true);
        at.claim.iter_mut().for_each(|claim| claim.orphan = !is_read);
        if flaw != Some(Flaw::BackWhileRunning) {
            let stopped = at.runs.iter_mut().filter(|run| run.stage == Stage::Running);
            stopped.for_each(|run| run.stage = Stage::Ended(How::Back));
        }
    }

    /// `attach_worker`: the lock is taken again, which clears the suspicion, unless the worker is dead.
    fn reconnect(&mut self, worker: usize, flaw: Option<Flaw>) {
        let row = &mut self.workers[worker].row;
        if flaw == Some(Flaw::DeadMayReturn) && row.fate == Fate::Dead {
            (row.fate, row.left) = (Fate::Alive, LEASE);
        }
        if row.fate != Fate::Alive {
            return self.give_up(worker, flaw);
        }
        let at = &mut self.workers[worker];
        at.audit |= !at.work && flaw == Some(Flaw::AuditOnce);
        (at.work, at.control) = (true, true);
        (at.row.locked, at.row.suspicion) = (true, None);
        (at.cut, at.announced) = (0, false);
        at.late &= at.own_left == 0;
    }

    /// `leases_of` and `release`. Asked again and again, for a claim of a lost connection may end at any time; of a former
    /// registration once, after a heartbeat.
    fn audit(&mut self, worker: usize, flaw: Option<Flaw>) {
        let is_unknown = |lease: &&Lease| lease.worker == worker && !self.knows(worker, lease.id);
        let unknown: Vec<Lease> = self.leases.iter().filter(is_unknown).copied().collect();
        let is_former = self.workers[worker].process == Process::GaveUp;
        if !is_former || self.extend(worker, flaw) {
            unknown.iter().for_each(|lease| self.release(worker, lease.id, lease.jobs));
        }
        let at = &mut self.workers[worker];
        at.audit = false;
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
        let run = at.runs[run];
        at.letter = Some(Letter { job: run.job, how: run.says(), lease: run.lease });
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

    /// All leases are over at once, and what waits for a second sighting has waited for long enough. Only a heartbeat tells
    /// a worker of it.
    fn leap(&mut self) {
        self.may_leap = false;
        for at in &mut self.workers {
            (at.row.left, at.early) = (0, true);
            if let Some((by, ticks)) = &mut at.row.suspicion {
                *ticks = if *by == Evidence::Lock { GRACE } else { THIRD };
            }
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
