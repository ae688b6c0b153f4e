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
    /// A report that was refused because the lease is over counts as lost, without a heartbeat and a second try.
    RefusedIsLost,
    /// A heartbeat revives a worker that was declared dead.
    RenewalRevives,
    /// A worker that gives up reports "goes back" at once, and not when the handler has ended.
    BackWhileRunning,
    /// A job starts without a look at its registration, which was given up while the claim was on its way.
    StartsAfterGivingUp,
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
    pub const ALL: [Flaw; 16] = [
        Flaw::CompleteByJob,
        Flaw::OneSighting,
        Flaw::LeaseFromPicked,
        Flaw::LocksOutliveRestart,
        Flaw::DeadMayReturn,
        Flaw::RowGoneAtOnce,
        Flaw::NoSelfStop,
        Flaw::AuditOnce,
        Flaw::RefusedIsLost,
        Flaw::RenewalRevives,
        Flaw::BackWhileRunning,
        Flaw::StartsAfterGivingUp,
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
            Flaw::RefusedIsLost => "a report that is refused because its lease is over is not sent again",
            Flaw::RenewalRevives => "a renewal revives a worker that was declared dead",
            Flaw::BackWhileRunning => "what was given up goes back while its handler runs",
            Flaw::StartsAfterGivingUp => "a job starts although its registration was given up meanwhile",
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
            | Flaw::RenewalRevives
            | Flaw::CutUnseen
            | Flaw::ClockSleeps => p::STOPPED,
            Flaw::BackWhileRunning | Flaw::StartsAfterGivingUp => p::BESIDE,
            Flaw::LeaseFromPicked => p::CONSERVATION,
            Flaw::RowGoneAtOnce => p::ONE_LEASE,
            Flaw::AuditOnce => p::ALL_END,
            Flaw::RefusedIsLost => p::NOT_DROPPED,
            Flaw::RepeatCountsAsLost | Flaw::BurialCountsAsReport => p::TOLD_APART,
        }
    }
}
