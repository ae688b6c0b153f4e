//! Equal states in one form, so that the checker meets each of them once.

use std::cmp::Ordering;

use crate::bounds::WORKERS;
use crate::state::{Ended, Fate, How, Job, Jobs, Process, Row, Stage, State, Worker};

impl State {
    fn is_asked_for(&self, ended: &Ended) -> bool {
        let same = |job, lease| job == ended.job && lease == ended.lease;
        self.workers.iter().any(|worker| {
            worker.runs.iter().any(|run| same(run.job, run.lease))
                || worker.letter.iter().any(|letter| same(letter.job, letter.lease))
        })
    }

    /// Brings equal states to one form: forgets what nobody can ask for, and numbers leases and rows in a fixed order.
    pub(crate) fn tidy(&mut self) {
        if !self.ended.is_empty() {
            let mut ended = std::mem::take(&mut self.ended);
            ended.retain(|ended| self.is_asked_for(ended));
            self.ended = ended;
        }
        for worker in 0..WORKERS {
            self.tidy_worker(worker);
        }
        self.number_anew();
    }

    /// A worker without work renews its lease for nothing: it is as good as one that registered just now. What it
    /// would do with an older lease, a worker does whose claim takes longer.
    fn tidy_worker(&mut self, worker: usize) {
        let holds = self.holds_leases(worker);
        let unknown = self.holds_unknown(worker);
        let at = &mut self.workers[worker];
        // There is nothing to be found by asking, now or later.
        at.audit &= unknown || at.claim.is_some_and(|claim| claim.orphan);
        at.early &= at.claim.is_some() || at.runs.iter().any(|run| run.stage == Stage::Running);
        let busy = holds || !at.runs.is_empty() || at.claim.is_some() || at.letter.is_some();
        let well = at.is_running() && at.work && at.control && !at.late && !at.audit;
        if !busy && well && at.row.fate == Fate::Alive {
            *at = Worker { announced: false, ..Worker::registered() };
        }
        if at.row.fate != Fate::Alive {
            at.row = Row { fate: at.row.fate, left: 0, locked: false, suspicion: None };
        }
        if matches!(at.process, Process::Crashed | Process::GaveUp) {
            (at.late, at.early, at.unaware, at.announced, at.cut, at.own_left) = (false, false, false, false, 0, 0);
            at.audit &= at.process == Process::GaveUp && at.row.fate == Fate::Alive;
            if !busy {
                // Nobody will ever hear of it again, nor does maintenance find anything.
                (at.process, at.row.fate) = (Process::Crashed, Fate::Dead);
            }
            if at.row.fate != Fate::Alive {
                at.row = Row { fate: at.row.fate, left: 0, locked: false, suspicion: None };
                // Refused for ever, without an effect and without anybody who asks what became of it.
                at.runs.retain(|run| run.stage != Stage::Ended(How::Back));
            }
            if at.row.fate != Fate::Alive || at.both_cut() {
                (at.work, at.control) = (false, false);
            }
        }
        at.runs.sort_unstable();
    }

    pub(crate) fn number_anew(&mut self) {
        self.leases.sort_unstable();
        let mut names = Names::default();
        self.leases.iter().for_each(|lease| names.add(lease.id));
        self.named_leases().for_each(|name| names.add(name));
        self.leases.iter_mut().for_each(|lease| lease.id = names.new_of(lease.id));
        self.ended.iter_mut().for_each(|ended| ended.lease = names.new_of(ended.lease));
        self.ended.sort_unstable();
        for worker in &mut self.workers {
            worker.runs.iter_mut().for_each(|run| run.lease = names.new_of(run.lease));
            worker.letter.iter_mut().for_each(|letter| letter.lease = names.new_of(letter.lease));
        }

        let mut rows = Names::default();
        self.jobs.iter().for_each(|job| rows.add(job.ready));
        self.jobs.iter_mut().for_each(|job| job.ready = rows.new_of(job.ready));
        for claim in self.workers.iter_mut().filter_map(|worker| worker.claim.as_mut()) {
            // A claim whose row is gone finds nothing, whichever row it was.
            claim.row = rows.new_of(claim.row);
            if claim.row == 0 {
                (claim.seen, claim.whole) = (Jobs::default(), false);
            }
        }
    }

    /// Jobs 1 and 2, each in a bundle of its own, change names where that brings more states to one form.
    pub(crate) fn order_single_jobs(&mut self) {
        let key = |job: &Job| (job.attempt, job.end, job.first_end, job.ready > 0);
        if key(&self.jobs[0]) <= key(&self.jobs[1]) {
            return;
        }
        let other = |job: usize| if job < 2 { 1 - job } else { job };
        self.jobs.swap(0, 1);
        self.leases.iter_mut().for_each(|lease| lease.jobs = Jobs::of(lease.jobs.iter().map(other)));
        self.ended.iter_mut().for_each(|ended| ended.job = other(ended.job));
        for worker in &mut self.workers {
            worker.runs.iter_mut().for_each(|run| run.job = other(run.job));
            worker.runs.sort_unstable();
            worker.letter.iter_mut().for_each(|letter| letter.job = other(letter.job));
            worker.claim.iter_mut().for_each(|claim| claim.seen = Jobs::of(claim.seen.iter().map(other)));
        }
        self.number_anew();
    }

    /// The same state with its workers in a fixed order: no rule depends on which of them is which.
    pub(crate) fn with_workers_in_order(mut self) -> State {
        let mut order: [usize; WORKERS] = std::array::from_fn(|worker| worker);
        order.sort_by(|a, b| self.in_order(*a, *b));
        if order.is_sorted() {
            return self;
        }
        let mut place = [0; WORKERS];
        order.iter().enumerate().for_each(|(new, old)| place[*old] = new);
        self.workers = order.map(|old| std::mem::replace(&mut self.workers[old], Worker::registered()));
        self.leases.iter_mut().for_each(|lease| lease.worker = place[lease.worker]);
        self.number_anew();
        self
    }

    /// The order does not look at the numbers of leases, which are no more than names.
    fn in_order(&self, a: usize, b: usize) -> Ordering {
        let (one, two) = (&self.workers[a], &self.workers[b]);
        let runs =
            |worker: &Worker| worker.runs.iter().map(|run| (run.job, run.stage, run.renewed)).collect::<Vec<_>>();
        let masks = |worker| self.leases.iter().filter(move |lease| lease.worker == worker).map(|lease| lease.jobs);
        let letter = |worker: &Worker| worker.letter.map(|letter| (letter.job, letter.how));
        let flags = |worker: &Worker| {
            [worker.late, worker.early, worker.work, worker.control, worker.unaware, worker.announced, worker.audit]
        };
        (one.process.cmp(&two.process))
            .then_with(|| one.row.cmp(&two.row))
            .then_with(|| flags(one).cmp(&flags(two)))
            .then_with(|| (one.cut, one.own_left, one.claim).cmp(&(two.cut, two.own_left, two.claim)))
            .then_with(|| runs(one).cmp(&runs(two)))
            .then_with(|| letter(one).cmp(&letter(two)))
            .then_with(|| masks(a).cmp(masks(b)))
    }
}

/// New numbers for names, in the order in which the names were met.
#[derive(Default)]
struct Names {
    old: [u8; 32],
    count: usize,
}

impl Names {
    fn add(&mut self, name: u8) {
        if name > 0 && !self.old[..self.count].contains(&name) {
            self.old[self.count] = name;
            self.count += 1;
        }
    }

    /// 0 for a name that was not met.
    fn new_of(&self, name: u8) -> u8 {
        self.old[..self.count].iter().position(|old| *old == name).map_or(0, |at| at as u8 + 1)
    }
}
