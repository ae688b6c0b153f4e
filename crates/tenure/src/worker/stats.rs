//! What a worker counts.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a worker has counted since its start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The counters behind [`Stats`].
        #[derive(Default)]
        pub(super) struct Counters {
            $(pub(super) $name: Counter,)*
        }

        impl Counters {
            pub(super) fn snapshot(&self) -> Stats {
                Stats { $($name: self.$name.get(),)* }
            }
        }
    };
}

counters! {
    /// Handlers started.
    started,
    /// Jobs recorded as completed.
    completed,
    /// Attempts recorded as failed; the job is retried or dead.
    failed,
    /// Of the failed: jobs that went to the dead letters.
    dead,
    /// Jobs that asked to be run later.
    snoozed,
    /// Jobs recorded as cancelled while they ran here.
    cancelled,
    /// Jobs given back without using an attempt.
    released,
    /// Handlers that panicked.
    panics,
    /// Attempts that took longer than their timeout.
    timeouts,
    /// Handlers that did not stop when they had to (blocking code); each is counted once and keeps its slot.
    overruns,
    /// Of the overruns of kinds that are taken over: attempts that ended while their handlers went on.
    taken_over,
    /// Handlers that returned more than a second after their timeout; their results were refused.
    late_ends,
    /// Ends that the database refused because the lease was gone, and handlers stopped for that reason.
    lease_lost,
    /// Reports that turned out to be recorded before: the answer to the first had been lost.
    already,
    /// Results and errors that could not be stored as they were.
    sanitised,
    /// Connections made again after a loss.
    reconnects,
    /// Registrations given up, by the worker itself or by the database.
    registrations_lost,
    /// Jobs of dead workers that this worker gave back to the queue on its maintenance turns.
    rescued,
    /// Due jobs that this worker moved to the queue on its maintenance turns.
    promoted,
    /// Finished jobs that this worker removed on its maintenance turns, because they were kept long enough.
    removed,
    /// Claims sent.
    claims,
    /// Groups of ends written.
    flushes,
}

/// One number that only grows.
#[derive(Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn one(&self) {
        self.add(1);
    }

    pub(super) fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
