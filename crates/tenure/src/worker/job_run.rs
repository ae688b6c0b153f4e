//! One run of one job: what is known of it while its handler runs, and who takes part in it.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Instant, SystemTime};

use serde_json::{Map, Value};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::context::{NOT_ASKED, StopReason};
use super::engine::Engine;
use super::lease::{Job, Lease};
use crate::model::JobId;

/// One run of one job.
pub(super) struct JobRun {
    pub(super) engine: Arc<Engine>,
    job: JobId,
    pub(super) lease: Arc<Lease>,
    pub(super) slot: u32,
    pub(super) queue: usize,
    pub(super) kind: usize,
    pub(super) attempt: u16,
    pub(super) max_attempts: u16,
    pub(super) created_at: SystemTime,
    pub(super) key: OnceLock<String>,
    pub(super) began: Instant,
    /// When it must have ended; none: no limit.
    pub(super) must_end: Option<Instant>,
    /// The handler, and each thread that runs code of it: while there are any, the job stays in its slot.
    present: AtomicUsize,
    /// The attempt's end was reported; what comes later is refused.
    pub(super) reported: AtomicBool,
    details: Mutex<Map<String, Value>>,
    /// [`NOT_ASKED`], or the code of the [`StopReason`].
    stop: AtomicU8,
    aborted_at: OnceLock<Instant>,
    pub(super) told: Notify,
    pub(super) token: OnceLock<CancellationToken>,
    /// The handler called `complete_in`: its own transaction ends the job.
    pub(super) completes_itself: AtomicBool,
    pub(super) refused: AtomicBool,
    pub(super) overrun: AtomicBool,
}

impl JobRun {
    pub(super) fn of(engine: Arc<Engine>, job: &mut Job) -> JobRun {
        let began = Instant::now();
        let timeout = job.timeout.unwrap_or(engine.kinds[job.kind].options.timeout);
        let key = OnceLock::new();
        if let Some(given) = job.idempotency_key.take() {
            let _ = key.set(given);
        }
        JobRun {
            job: job.id,
            lease: job.lease.clone(),
            slot: job.slot,
            queue: job.queue,
            kind: job.kind,
            attempt: u16::try_from(job.attempt).unwrap_or_default(),
            max_attempts: u16::try_from(job.max_attempts).unwrap_or_default(),
            created_at: job.created_at,
            key,
            began,
            must_end: if timeout.is_zero() { None } else { began.checked_add(timeout) },
            present: AtomicUsize::new(0),
            reported: AtomicBool::new(false),
            details: Mutex::default(),
            stop: AtomicU8::new(NOT_ASKED),
            aborted_at: OnceLock::new(),
            told: Notify::new(),
            token: OnceLock::new(),
            completes_itself: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            overrun: AtomicBool::new(false),
            engine,
        }
    }

    pub(super) fn job(&self) -> JobId {
        self.job
    }

    pub(super) fn fence(&self) -> i64 {
        self.lease.id
    }

    pub(super) fn stop_reason(&self) -> Option<StopReason> {
        StopReason::with_code(self.stop.load(Ordering::Acquire))
    }

    /// Asks the handler to stop. The loss of the lease replaces any other reason, otherwise the first one stands.
    pub(super) fn stop(&self, reason: StopReason) {
        let code = reason.code();
        if reason == StopReason::LeaseLost {
            self.stop.store(code, Ordering::Release);
        } else {
            let _ = self.stop.compare_exchange(NOT_ASKED, code, Ordering::AcqRel, Ordering::Acquire);
        }
        if let Some(token) = self.token.get() {
            token.cancel();
        }
        self.told.notify_waiters();
    }

    /// Ends the handler at its next await.
    pub(super) fn abort(&self) {
        let _ = self.aborted_at.set(Instant::now());
        self.told.notify_waiters();
    }

    pub(super) async fn until_aborted(&self) {
        loop {
            let told = self.told.notified();
            if self.aborted_at.get().is_some() {
                return;
            }
            told.await;
        }
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.aborted_at.get().is_some()
    }

    /// Should have ended and has not: blocking code in the handler.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        let aborted_at = self.aborted_at.get().copied();
        [aborted_at, self.must_end].into_iter().flatten().any(|end| end <= now)
    }

    /// The job is this worker's as far as it knows, and has not ended.
    pub(super) fn holds_lease(&self) -> bool {
        !self.reported.load(Ordering::Acquire) && self.stop_reason() != Some(StopReason::LeaseLost)
    }

    pub(super) fn takes_over(&self) -> bool {
        self.engine.kinds[self.kind].options.take_over
    }

    /// No thread runs code of the handler.
    pub(super) fn is_alone(&self) -> bool {
        self.present.load(Ordering::Acquire) == 1
    }

    pub(super) async fn until_alone(&self) {
        loop {
            let told = self.told.notified();
            if self.is_alone() {
                return;
            }
            told.await;
        }
    }

    pub(super) fn details(&self) -> MutexGuard<'_, Map<String, Value>> {
        self.details.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody who runs code of a handler. With the last one the job leaves its slot and the list of what runs, however the
/// code ended: also when the program's runtime is dropped under it.
pub(super) struct Presence(Arc<JobRun>);

impl Presence {
    /// The handler itself.
    pub(super) fn of_handler(run: &Arc<JobRun>) -> Presence {
        run.present.store(1, Ordering::Release);
        run.engine.running.add(run);
        Presence(run.clone())
    }

    /// A thread that the handler starts; none when the handler is gone.
    pub(super) fn of_thread(run: &Arc<JobRun>) -> Option<Presence> {
        let more = |present| (present > 0).then_some(present + 1);
        run.present.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Presence(run.clone()))
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        let run = &self.0;
        if run.present.fetch_sub(1, Ordering::AcqRel) > 1 {
            run.told.notify_waiters();
            return;
        }
        run.engine.running.remove(run);
        if run.overrun.load(Ordering::Relaxed) {
            run.engine.overruns_changed.notify_one();
        }
    }
}

impl fmt::Debug for JobRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobRun({} under lease {})", self.job, self.lease.id)
    }
}
