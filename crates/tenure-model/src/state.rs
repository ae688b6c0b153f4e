//! What the database and the workers know at one moment.
//!
//! Ids of leases and of rows in `ready` are compared for equality only. They are therefore numbered anew after every
//! step, so that two histories that differ in their numbers alone are one state.

use crate::bounds::{JOBS, LEASE, OWN_LEASE, WORKERS};

/// 0: none.
pub(crate) type LeaseId = u8;
/// 0: none.
pub(crate) type RowId = u8;

/// A set of jobs: the mask of a bundle or of a lease row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Jobs(u8);

impl Jobs {
    pub(crate) fn of(jobs: impl IntoIterator<Item = usize>) -> Jobs {
        Jobs(jobs.into_iter().fold(0, |mask, job| mask | 1 << job))
    }

    pub(crate) fn has(self, job: usize) -> bool {
        self.0 >> job & 1 == 1
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn without(self, other: Jobs) -> Jobs {
        Jobs(self.0 & !other.0)
    }

    /// The smallest alone: what a cut takes.
    pub(crate) fn first(self) -> Jobs {
        Jobs(self.0 & self.0.wrapping_neg())
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        (0..JOBS).filter(move |job| self.has(*job))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Server {
    Up,
    /// Announced: it told its clients that it goes down.
    Down {
        announced: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Process {
    Running,
    /// Stopped by a signal or not scheduled: it does nothing, its sessions live on.
    Frozen,
    Crashed,
    /// The process lives; this registration was given up, and its handlers were stopped. What has to be said of them is
    /// said over the connections of the next one.
    GaveUp,
}

/// How far a run has come, as its worker sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Stage {
    Running,
    /// The handler has returned; the report was not answered yet.
    Ended(How),
}

/// What a report says, or what a lease did with a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum How {
    Completed,
    Failed,
    /// Stopped before its end: it goes back, and the attempt is not used. Nothing notes which lease did that.
    Back,
    /// Buried by rescue: never in a report.
    Lost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Run {
    pub(crate) job: usize,
    pub(crate) stage: Stage,
    /// Its report was refused because the lease is over, and a heartbeat has extended it: it is sent once more.
    pub(crate) renewed: bool,
    pub(crate) lease: LeaseId,
}

impl Run {
    pub(crate) fn goes_back(&self) -> bool {
        self.stage == Stage::Ended(How::Back)
    }

    /// What its report says. Nobody should report a run that goes on; who does, says that it goes back.
    pub(crate) fn says(&self) -> How {
        match self.stage {
            Stage::Ended(how) => how,
            Stage::Running => How::Back,
        }
    }
}

/// A claim under way in the server: its worker was looked at, its snapshot is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Claim {
    /// The row that it will pick, and what that row held in the snapshot.
    pub(crate) seen: Jobs,
    pub(crate) whole: bool,
    /// Nobody reads its answer.
    pub(crate) orphan: bool,
    pub(crate) row: RowId,
}

/// A report whose sender has lost the connection, but that reaches the server all the same, some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Letter {
    pub(crate) job: usize,
    pub(crate) how: How,
    pub(crate) lease: LeaseId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Fate {
    Alive,
    Dead,
    /// The row was deleted.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Evidence {
    Lock,
    Time,
}

/// The worker's row in the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Row {
    pub(crate) fate: Fate,
    /// Ticks until the lease is over.
    pub(crate) left: u8,
    /// It took the session lock since the server started.
    pub(crate) locked: bool,
    /// The first sighting, and the ticks since.
    pub(crate) suspicion: Option<(Evidence, u8)>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Worker {
    pub(crate) process: Process,
    /// It was frozen beyond a moment at which it should have stopped its handlers: it cannot keep the rule.
    pub(crate) late: bool,
    /// The database's clock was set forward: its lease is over, or its time to come back, before it can know.
    pub(crate) early: bool,
    /// Sessions that the server has open, each with the session lock.
    pub(crate) work: bool,
    pub(crate) control: bool,
    /// It does not know yet that its sessions are gone.
    pub(crate) unaware: bool,
    /// The server said goodbye on the connection that was lost last.
    pub(crate) announced: bool,
    /// Ticks that count since both connections were lost.
    pub(crate) cut: u8,
    /// Ticks until it stops its handlers by itself, by its own clock.
    pub(crate) own_left: u8,
    /// It has given up, or breaks the rule that it asks again and again, and has to ask for leases that it does not know.
    pub(crate) audit: bool,
    pub(crate) row: Row,
    pub(crate) runs: Vec<Run>,
    pub(crate) claim: Option<Claim>,
    pub(crate) letter: Option<Letter>,
}

impl Worker {
    pub(crate) fn registered() -> Worker {
        Worker {
            process: Process::Running,
            late: false,
            early: false,
            work: true,
            control: true,
            unaware: false,
            announced: false,
            cut: 0,
            own_left: OWN_LEASE,
            audit: false,
            row: Row { fate: Fate::Alive, left: LEASE, locked: true, suspicion: None },
            runs: Vec::new(),
            claim: None,
            letter: None,
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.process == Process::Running
    }

    /// The database takes its writes: what every verb reads without a lock.
    pub(crate) fn is_alive(&self) -> bool {
        self.row.fate == Fate::Alive && self.row.left > 0
    }

    /// Its heartbeats arrive. One that is late gives up by its own clock before it sends one.
    pub(crate) fn renews(&self) -> bool {
        self.is_running() && self.control && !self.late
    }

    pub(crate) fn both_cut(&self) -> bool {
        !self.work && !self.control
    }

    pub(crate) fn reports(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(|run| matches!(run.stage, Stage::Ended(_)))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum End {
    Completed,
    Dead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Job {
    /// Attempts used, the one that is under way included.
    pub(crate) attempt: u8,
    /// The row of `ready` that holds it.
    pub(crate) ready: RowId,
    /// Its row in `outcome` or `dead_letter`.
    pub(crate) end: Option<End>,
    /// The first end that it ever had: not stored anywhere, only to check finality.
    pub(crate) first_end: Option<End>,
}

/// A row of `lease`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Lease {
    pub(crate) worker: usize,
    pub(crate) jobs: Jobs,
    pub(crate) id: LeaseId,
}

/// That a lease ended a job, and how: what `ended_by` reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ended {
    pub(crate) job: usize,
    pub(crate) how: How,
    pub(crate) lease: LeaseId,
}

/// What went wrong in a step, for the properties that speak of steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Blame {
    pub(crate) stale_write: bool,
    pub(crate) wrong_answer: bool,
    pub(crate) dropped: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) server: Server,
    pub(crate) workers: [Worker; WORKERS],
    pub(crate) jobs: [Job; JOBS],
    pub(crate) leases: Vec<Lease>,
    pub(crate) ended: Vec<Ended>,
    pub(crate) faults_left: u8,
    /// The database's clock was not set forward yet, and may be.
    pub(crate) may_leap: bool,
    /// The faults have ended, and everybody does what is due; ticks that are left to look on.
    pub(crate) calm: Option<u8>,
    pub(crate) blame: Blame,
}

impl State {
    pub(crate) fn first(bundles: &[RowId; JOBS], faults: u8, may_leap: bool) -> State {
        // A job that no bundle holds is one that was done before.
        let end = |ready: RowId| (ready == 0).then_some(End::Completed);
        let job = |ready: &RowId| Job { attempt: 0, ready: *ready, end: end(*ready), first_end: end(*ready) };
        let mut state = State {
            server: Server::Up,
            workers: std::array::from_fn(|_| Worker::registered()),
            jobs: std::array::from_fn(|n| job(&bundles[n])),
            leases: Vec::new(),
            ended: Vec::new(),
            faults_left: faults,
            may_leap,
            calm: None,
            blame: Blame::default(),
        };
        state.number_anew();
        state
    }

    /// The jobs that a row of `ready` holds.
    pub(crate) fn ready_in(&self, row: RowId) -> Jobs {
        Jobs::of((0..JOBS).filter(|job| row > 0 && self.jobs[*job].ready == row))
    }

    /// The rows of `ready`.
    pub(crate) fn ready_rows(&self) -> impl Iterator<Item = RowId> + '_ {
        (0..JOBS).filter_map(move |job| {
            let row = self.jobs[job].ready;
            let is_first = row > 0 && (0..job).all(|before| self.jobs[before].ready != row);
            is_first.then_some(row)
        })
    }

    pub(crate) fn lease_of(&self, worker: usize, lease: LeaseId, job: usize) -> Option<usize> {
        self.leases.iter().position(|row| row.id == lease && row.worker == worker && row.jobs.has(job))
    }

    pub(crate) fn holds_leases(&self, worker: usize) -> bool {
        self.leases.iter().any(|lease| lease.worker == worker)
    }

    /// A claim without an answer has left a lease that the worker does not know of, or it dropped a report.
    pub(crate) fn holds_unknown(&self, worker: usize) -> bool {
        self.leases.iter().any(|lease| lease.worker == worker && !self.knows(worker, lease.id))
    }

    pub(crate) fn all_ended(&self) -> bool {
        self.jobs.iter().all(|job| job.end.is_some())
    }

    /// Nobody is left who could write anything.
    pub(crate) fn is_over(&self) -> bool {
        let is_done = |worker: &Worker| worker.runs.is_empty() && worker.claim.is_none() && worker.letter.is_none();
        self.all_ended() && self.leases.is_empty() && self.workers.iter().all(is_done)
    }

    /// Runs that hold a valid lease: its row stands, and the database takes the worker's writes.
    pub(crate) fn has_valid_lease(&self, worker: usize, run: &Run) -> bool {
        self.workers[worker].is_alive() && self.lease_of(worker, run.lease, run.job).is_some()
    }

    pub(crate) fn fresh_row(&self) -> RowId {
        let claimed = self.workers.iter().filter_map(|worker| worker.claim.map(|claim| claim.row));
        1 + self.jobs.iter().map(|job| job.ready).chain(claimed).max().unwrap_or(0)
    }

    pub(crate) fn fresh_lease(&self) -> LeaseId {
        1 + self.leases.iter().map(|lease| lease.id).chain(self.named_leases()).max().unwrap_or(0)
    }

    /// The leases that some worker still speaks of.
    pub(crate) fn named_leases(&self) -> impl Iterator<Item = LeaseId> + '_ {
        self.workers.iter().flat_map(|worker| {
            worker.runs.iter().map(|run| run.lease).chain(worker.letter.iter().map(|letter| letter.lease))
        })
    }

    /// The database refuses a claim of a worker that takes itself for alive, and whose own clock says nothing else.
    pub(crate) fn is_claim_refused(&self, worker: usize) -> bool {
        let at = &self.workers[worker];
        let asks = at.is_running() && at.work && at.claim.is_none() && !at.late;
        asks && self.server == Server::Up && !at.is_alive()
    }

    /// The worker has a run or a report of this lease.
    pub(crate) fn knows(&self, worker: usize, lease: LeaseId) -> bool {
        self.workers[worker].runs.iter().any(|run| run.lease == lease)
    }
}
