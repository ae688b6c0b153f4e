//! Deliberate breaks of the protocol or of what it relies on. Each must be caught, or the model proves nothing.

/// One rule taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flaw {
    /// `complete` looks for the job and not for the lease.
    CompleteByJob,
    /// A worker is dead at the first sighting.
    OneSighting,
    /// A lease is built from what was picked, not from what the delete or the cut returned.
    LeaseFromPicked,
    /// A free session lock counts also for workers that have not locked since the server started.
    LocksOutliveRestart,
    /// A worker that was declared dead may come back.
    DeadMayReturn,
    /// A dead worker's row is deleted together with its last lease, not a minute later.
    RowGoneAtOnce,
    /// A worker does not stop its handlers by itself.
    NoSelfStop,
    /// After a reconnect a worker asks once for leases that it does not know, while a claim may still be under way.
    AuditOnce,
    /// A repeated report that finds no lease counts as lost, whoever ended the job.
    RepeatCountsAsLost,
    /// `ended_by` takes a burial by rescue for the worker's own report.
    BurialCountsAsReport,
    /// Not a rule but what it relies on: the server sees that the connections are gone, the worker does not.
    CutUnseen,
    /// Not a rule but what it relies on: a worker's clock stands still while its machine sleeps.
    ClockSleeps,
}

impl Flaw {
    /// All of them.
    pub const ALL: [Flaw; 12] = [
        Flaw::CompleteByJob,
        Flaw::OneSighting,
        Flaw::LeaseFromPicked,
        Flaw::LocksOutliveRestart,
        Flaw::DeadMayReturn,
        Flaw::RowGoneAtOnce,
        Flaw::NoSelfStop,
        Flaw::AuditOnce,
        Flaw::RepeatCountsAsLost,
        Flaw::BurialCountsAsReport,
        Flaw::CutUnseen,
        Flaw::ClockSleeps,
    ];

    /// What is broken, as a sentence without its full stop.
    pub fn in_words(self) -> &'static str {
        match self {
            Flaw::CompleteByJob => "complete looks for the job and not for the lease",
            Flaw::OneSighting => "a worker is dead at the first sighting",
            Flaw::LeaseFromPicked => "a lease is built from what was picked",
            Flaw::LocksOutliveRestart => "a free lock counts although the server was restarted since it was taken",
            Flaw::DeadMayReturn => "a worker that was declared dead may come back",
            Flaw::RowGoneAtOnce => "a dead worker's row goes with its last lease",
            Flaw::NoSelfStop => "a worker does not stop its handlers by itself",
            Flaw::AuditOnce => "after a reconnect a worker asks once for leases that it does not know",
            Flaw::RepeatCountsAsLost => "a repeated report that finds no lease counts as lost",
            Flaw::BurialCountsAsReport => "a burial by rescue is taken for the worker's own report",
            Flaw::CutUnseen => "the server sees that the connections are gone, the worker does not",
            Flaw::ClockSleeps => "a worker's clock stands still while its machine sleeps",
        }
    }

    /// The property that it breaks.
    pub fn breaks(self) -> &'static str {
        use crate::property as p;
        match self {
            Flaw::CompleteByJob => p::STALE_WRITE,
            Flaw::OneSighting
            | Flaw::LocksOutliveRestart
            | Flaw::DeadMayReturn
            | Flaw::NoSelfStop
            | Flaw::CutUnseen => p::STOPPED,
            Flaw::LeaseFromPicked => p::CONSERVATION,
            Flaw::RowGoneAtOnce => p::ONE_LEASE,
            Flaw::AuditOnce | Flaw::ClockSleeps => p::ALL_END,
            Flaw::RepeatCountsAsLost | Flaw::BurialCountsAsReport => p::TOLD_APART,
        }
    }
}
