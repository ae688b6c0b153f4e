//! What this worker holds: leases, the jobs in them, and the jobs whose handlers run.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::Notify;

use super::job_run::JobRun;
use crate::model::{JobId, RawJson};
use crate::store::{ClaimedRow, Registration, Strip};

/// One row of the table `lease`, shared by its jobs.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) id: i64,
    /// How many slots its strip has.
    pub(super) slots: u32,
    /// The registration that took it.
    pub(super) registration: Arc<Registration>,
}

/// A claimed job.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) id: JobId,
    pub(super) lease: Arc<Lease>,
    pub(super) slot: u32,
    /// Index of the worker's queue.
    pub(super) queue: usize,
    /// Index of the worker's kind.
    pub(super) kind: usize,
    pub(super) attempt: i16,
    pub(super) max_attempts: i16,
    /// The job's own limit; zero means none.
    pub(super) timeout: Option<Duration>,
    pub(super) created_at: SystemTime,
    pub(super) idempotency_key: Option<String>,
    pub(super) payload: RawJson,
    pub(super) claimed_at: Instant,
    /// For how long it could have run when it was claimed; none: it has been started before, or that is not known.
    pub(super) waited: Option<Duration>,
    /// Of a kind that was not known to be quick when the job was taken in.
    pub(super) slow: bool,
}

/// Groups the rows of one claim by lease. Rows of a queue or kind that was not asked for are a fault of the schema's
/// version; they are given back as they cannot be run. `now` is the database's clock at the end of the claim.
pub(super) fn jobs_of(
    rows: Vec<ClaimedRow>,
    now: Option<SystemTime>,
    registration: &Arc<Registration>,
    held: &Held,
    queue_of: impl Fn(&str) -> Option<usize>,
    kind_of: impl Fn(&str) -> Option<usize>,
) -> (Vec<Job>, Vec<Job>) {
    let mut slots: HashMap<i64, u32> = HashMap::new();
    for row in &rows {
        let highest = slots.entry(row.lease).or_default();
        *highest = (*highest).max(row.slot);
    }
    let leases: HashMap<i64, Arc<Lease>> = slots
        .into_iter()
        .map(|(id, highest)| {
            let slots = (highest / Strip::PIECE + 1) * Strip::PIECE;
            (id, Arc::new(Lease { id, slots, registration: registration.clone() }))
        })
        .collect();
    held.add(leases.values());
    let claimed_at = Instant::now();
    let mut strangers = Vec::new();
    let mut jobs = Vec::with_capacity(rows.len());
    for row in rows {
        let (queue, kind) = (queue_of(&row.queue), kind_of(&row.kind));
        let known = queue.is_some() && kind.is_some();
        let job = Job {
            id: row.job.into(),
            lease: leases[&row.lease].clone(),
            slot: row.slot,
            queue: queue.unwrap_or_default(),
            kind: kind.unwrap_or_default(),
            attempt: row.attempt,
            max_attempts: row.max_attempts,
            timeout: row.timeout_ms.map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or_default())),
            created_at: row.created_at,
            idempotency_key: row.idempotency_key,
            payload: row.payload,
            claimed_at,
            waited: row.due_at.zip(now).map(|(due, now)| now.duration_since(due).unwrap_or_default()),
            slow: true,
        };
        if known { &mut jobs } else { &mut strangers }.push(job);
    }
    (jobs, strangers)
}

/// The leases of which some job is not settled yet.
#[derive(Default)]
pub(super) struct Held {
    leases: Mutex<HashMap<i64, Weak<Lease>>>,
}

impl Held {
    fn add<'a>(&self, fresh: impl Iterator<Item = &'a Arc<Lease>>) {
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        leases.extend(fresh.map(|lease| (lease.id, Arc::downgrade(lease))));
        // Swept when half of the room is used up, so that a sweep costs little per lease.
        if leases.len() > leases.capacity() / 2 {
            leases.retain(|_, lease| lease.strong_count() > 0);
        }
    }

    pub(super) fn knows(&self, lease: i64) -> bool {
        let leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        leases.get(&lease).is_some_and(|lease| lease.strong_count() > 0)
    }
}

/// Slots of several leases, as `complete_many` and `release` want them: each lease once.
#[derive(Debug, Default)]
pub(super) struct Slots {
    pub(super) leases: Vec<i64>,
    pub(super) strips: Vec<Strip>,
    places: HashMap<i64, usize>,
}

impl Slots {
    pub(super) fn add(&mut self, lease: &Lease, slot: u32) {
        let place = *self.places.entry(lease.id).or_insert_with(|| {
            self.leases.push(lease.id);
            self.strips.push(Strip::empty(lease.slots));
            self.leases.len() - 1
        });
        self.strips[place].set(slot);
    }
}

/// The jobs whose handlers run. A job can run twice here for a while: when a handler that does not stop lost its lease
/// and the job came back.
#[derive(Default)]
pub(super) struct Running {
    runs: Mutex<HashMap<(i64, JobId), Arc<JobRun>>>,
    /// None is left, or one that overran is gone.
    changed: Notify,
}

impl Running {
    pub(super) fn add(&self, run: &Arc<JobRun>) {
        self.runs().insert((run.fence(), run.job()), run.clone());
    }

    pub(super) fn remove(&self, run: &JobRun) {
        let mut runs = self.runs();
        runs.remove(&(run.fence(), run.job()));
        if runs.is_empty() || run.overrun.load(Relaxed) {
            drop(runs);
            self.changed.notify_waiters();
        }
    }

    /// Leases of some of them are gone.
    pub(super) fn notify(&self) {
        self.changed.notify_waiters();
    }

    /// Waits until no handler runs.
    pub(super) async fn until_empty(&self) {
        self.until(Self::is_empty).await;
    }

    /// Waits until no handler runs whose job is this worker's.
    pub(super) async fn until_none_holds(&self) {
        self.until(|runs| runs.holding().is_empty()).await;
    }

    async fn until(&self, done: impl Fn(&Running) -> bool) {
        loop {
            let changed = self.changed.notified();
            if done(self) {
                return;
            }
            changed.await;
        }
    }

    /// Those whose jobs are this worker's.
    pub(super) fn holding(&self) -> Vec<Arc<JobRun>> {
        self.runs().values().filter(|run| run.holds_lease()).cloned().collect()
    }

    pub(super) fn of_job(&self, job: JobId) -> Vec<Arc<JobRun>> {
        self.runs().values().filter(|run| run.job() == job).cloned().collect()
    }

    pub(super) fn all(&self) -> Vec<Arc<JobRun>> {
        self.runs().values().cloned().collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.runs().is_empty()
    }

    fn runs(&self) -> MutexGuard<'_, HashMap<(i64, JobId), Arc<JobRun>>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(lease: i64, job: i64, slot: u32, kind: &str) -> ClaimedRow {
        ClaimedRow {
            lease,
            job,
            slot,
            queue: "q".into(),
            kind: kind.into(),
            attempt: 1,
            max_attempts: 5,
            timeout_ms: None,
            created_at: SystemTime::UNIX_EPOCH,
            due_at: Some(SystemTime::UNIX_EPOCH),
            idempotency_key: None,
            payload: RawJson::null(),
        }
    }

    #[test]
    fn a_lease_is_as_long_as_its_highest_slot_needs() {
        let me = Arc::new(Registration { worker: 1, token: "t".into() });
        let held = Held::default();
        let rows = vec![row(9, 300, 127, "a"), row(9, 301, 128, "a"), row(10, 400, 3, "b")];
        let now = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(3));
        let (jobs, strangers) = jobs_of(rows, now, &me, &held, |_| Some(0), |kind| (kind == "a").then_some(0));
        assert_eq!(jobs[0].waited, Some(Duration::from_secs(3)));
        let slots: Vec<_> = jobs.iter().map(|job| job.lease.slots).collect();
        assert_eq!((slots, strangers.len(), strangers[0].lease.slots), (vec![256, 256], 1, 128));
        let mut done = Slots::default();
        jobs.iter().for_each(|job| done.add(&job.lease, job.slot));
        assert_eq!(done.leases, [9], "each lease occurs once");
        assert!(done.strips[0].has(127) && done.strips[0].has(128) && !done.strips[0].has(126));
        drop(strangers);
        assert!(held.knows(9) && !held.knows(10) && !held.knows(11), "known while one of its jobs is not settled");
    }
}
