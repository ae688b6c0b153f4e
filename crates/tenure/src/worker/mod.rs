//! The worker: claims jobs, runs their handlers, and writes down how they ended.
//!
//! It is a pipeline. [`claim`] asks for as much as can start, [`line`] keeps the jobs in front of the slots, [`run`]
//! runs a handler, [`judge`] turns its end into a [`report`], [`flush`] writes the reports in groups. Beside it [`heartbeat`] keeps the
//! lease on a thread of its own, [`link`] keeps the other connection, [`standing`] knows whether both are still good, and
//! [`shutdown`] ends it all. Handlers never borrow the two connections.

mod audit;
mod backoff;
mod blocking;
mod builder;
mod claim;
mod context;
mod cursors;
mod engine;
mod failure_log;
mod fire;
mod flush;
mod groups;
mod heartbeat;
mod job_run;
mod judge;
mod kinds;
mod lease;
mod line;
mod link;
mod moment;
mod pace;
mod panics;
mod portion;
mod record;
mod report;
mod result;
mod rules;
mod run;
mod running;
mod shutdown;
mod standing;
mod stats;
mod tally;
mod usage;

pub use blocking::Blocking;
pub use builder::WorkerBuilder;
pub use context::{Context, StopReason};
pub use kinds::KindOptions;
pub use running::{RunningWorker, Summary};
pub use stats::Stats;

/// Where a worker begins: [`Worker::builder`].
#[derive(Clone, Copy, Debug)]
pub struct Worker;

impl Worker {
    /// Settings of a worker for the database at `url`, a connection string of either form.
    pub fn builder(url: impl Into<String>) -> WorkerBuilder {
        WorkerBuilder::new(url.into())
    }
}
