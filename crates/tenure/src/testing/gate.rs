//! Handlers under the test's control: where they wait, how often they started, whether two ran at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use tokio::sync::watch;

use super::until::{DEADLINE, until_within};

/// A place where handlers wait until the test lets them go on.
#[derive(Clone, Debug)]
pub struct Gate {
    open: Arc<watch::Sender<bool>>,
    arrived: Arc<watch::Sender<usize>>,
}

impl Default for Gate {
    fn default() -> Self {
        Gate { open: Arc::new(watch::Sender::new(false)), arrived: Arc::new(watch::Sender::new(0)) }
    }
}

impl Gate {
    /// A closed gate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Called by the handler: counts the arrival and waits until the gate is open.
    pub async fn pass(&self) {
        self.arrived.send_modify(|n| *n += 1);
        let mut open = self.open.subscribe();
        // The sender lives in `self`, so waiting cannot fail.
        let _ = open.wait_for(|open| *open).await;
    }

    /// Lets everybody through, now and later.
    pub fn open(&self) {
        self.open.send_replace(true);
    }

    /// How many handlers have arrived so far, those that went on included.
    pub fn arrivals(&self) -> usize {
        *self.arrived.borrow()
    }

    /// Waits until `n` handlers have arrived.
    ///
    /// # Panics
    /// When they have not within [`DEADLINE`].
    pub async fn arrived(&self, n: usize) {
        let what = format!("{n} handlers at the gate");
        until_within(
            DEADLINE,
            &what,
            async || {
                if self.arrivals() >= n { Ok(()) } else { Err(format!("{}", self.arrivals())) }
            },
        )
        .await;
    }
}

/// One run of a job's handler, as the [`Probe`] saw it.
#[derive(Clone, Debug)]
pub struct Run {
    /// The job.
    pub job: i64,
    /// The attempt that the handler was told.
    pub attempt: i32,
    /// When the handler began.
    pub started: Instant,
    /// When it returned, panicked or was dropped; `None` while it runs.
    pub ended: Option<Instant>,
}

/// Records every run of the handlers in this process that enter it.
#[derive(Clone, Debug, Default)]
pub struct Probe {
    runs: Arc<Mutex<Vec<Run>>>,
}

impl Probe {
    /// An empty record.
    pub fn new() -> Self {
        Self::default()
    }

    /// Called by the handler; the run lasts until the returned guard is dropped.
    #[must_use = "the run ends when the guard is dropped"]
    pub fn enter(&self, job: i64, attempt: i32) -> impl Drop + Send + use<> {
        let mut runs = self.lock();
        runs.push(Run { job, attempt, started: Instant::now(), ended: None });
        Running { probe: self.clone(), index: runs.len() - 1 }
    }

    /// Every run so far, in the order of their starts.
    pub fn runs(&self) -> Vec<Run> {
        self.lock().clone()
    }

    /// How often the job was started.
    pub fn starts(&self, job: i64) -> usize {
        self.lock().iter().filter(|run| run.job == job).count()
    }

    /// Jobs of which two runs overlapped in time.
    pub fn overlaps(&self) -> Vec<i64> {
        let mut last: HashMap<i64, Option<Instant>> = HashMap::new();
        let mut found = Vec::new();
        for run in self.lock().iter() {
            if let Some(end) = last.insert(run.job, run.ended)
                && end.is_none_or(|end| end > run.started)
            {
                found.push(run.job);
            }
        }
        found
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Run>> {
        self.runs.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

struct Running {
    probe: Probe,
    index: usize,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.probe.lock()[self.index].ended = Some(Instant::now());
    }
}
