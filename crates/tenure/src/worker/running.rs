//! A worker that runs, as its program sees it.

use std::sync::Arc;

use tokio::task::JoinHandle;

use super::builder::SLOTS_MAX;
use super::engine::{Engine, StopWish};
use super::stats::Stats;
use crate::error::{Error, ErrorCode};
use crate::model::JobId;

/// A started worker. Dropping it stops the worker at once, without waiting for its handlers.
///
/// A handler that blocks its thread cannot be stopped. When the grace of a stop is over, its job stays this worker's: the
/// lease is renewed in the background until the handler returns or the process ends, see [`Summary::overrunning`].
pub struct RunningWorker {
    engine: Arc<Engine>,
    supervisor: Option<JoinHandle<bool>>,
}

/// What a worker did, at its end.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct Summary {
    /// All handlers ended or were stopped, all ends are recorded, and the worker signed off.
    pub clean: bool,
    /// Jobs whose handlers did not stop (blocking code). They stay this worker's, whose lease is renewed until they return or
    /// the process ends; then they run elsewhere.
    pub overrunning: Vec<JobId>,
    /// Kinds that this worker refused to run on, see [`Context::refuse_kind`](super::Context::refuse_kind).
    pub refused_kinds: Vec<String>,
    /// What it counted.
    pub stats: Stats,
}

impl RunningWorker {
    pub(super) fn new(engine: Arc<Engine>, supervisor: JoinHandle<bool>) -> RunningWorker {
        RunningWorker { engine, supervisor: Some(supervisor) }
    }

    /// The number under which the database knows it; none while it has no registration. It changes when the worker was
    /// given up and registers anew.
    pub fn worker_id(&self) -> Option<i64> {
        self.engine.standing.current().map(|registration| registration.worker)
    }

    /// Changes how many jobs of a queue run at a time (1 to 10,000). Jobs that run go on.
    ///
    /// # Errors
    /// `NotFound`: the worker has no such queue. `BadInput`: the number is out of range.
    pub fn set_concurrency(&self, queue: &str, concurrency: usize) -> Result<(), Error> {
        if !(1..=SLOTS_MAX).contains(&concurrency) {
            let text = format!("concurrency {concurrency} of queue {queue:?} is outside 1 to {SLOTS_MAX}");
            return Err(Error::bad_input(text, "pause the queue to run none of its jobs"));
        }
        if self.engine.set_concurrency(queue, concurrency) {
            return Ok(());
        }
        Err(Error::new(ErrorCode::NotFound, format!("this worker has no queue {queue:?}"))
            .with_help("queues are named when the worker is built"))
    }

    /// Stops in order: claims nothing more, gives back what has not started, and lets handlers end within the shutdown
    /// grace. Returns at once; [`join`](RunningWorker::join) waits. End the process afterwards: see [`RunningWorker`] for
    /// handlers that block.
    pub fn shutdown(&self) {
        self.engine.wish_stop(StopWish::Graceful);
    }

    /// Stops without waiting for handlers: they are aborted, and their jobs go back without using an attempt. A handler that
    /// blocks its thread cannot be aborted, see [`Summary::overrunning`].
    pub fn abort(&self) {
        self.engine.wish_stop(StopWish::AtOnce);
    }

    /// Waits for the worker's end: after [`shutdown`](RunningWorker::shutdown) or [`abort`](RunningWorker::abort), when
    /// it is drained, or when it refused its last kind. Cancel-safe.
    pub async fn join(&mut self) -> Summary {
        let clean = match &mut self.supervisor {
            Some(supervisor) => supervisor.await.unwrap_or(false),
            None => false,
        };
        self.supervisor = None;
        let refused = self.engine.kinds.iter().filter(|kind| kind.is_refused());
        Summary {
            clean,
            overrunning: self.engine.running.holding().iter().map(|run| run.job()).collect(),
            refused_kinds: refused.map(|kind| kind.name.clone()).collect(),
            stats: self.stats(),
        }
    }

    /// What it has counted so far.
    pub fn stats(&self) -> Stats {
        self.engine.stats.snapshot()
    }
}

impl Drop for RunningWorker {
    fn drop(&mut self) {
        self.abort();
    }
}
