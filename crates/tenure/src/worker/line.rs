//! The lines of a worker's queues: what was claimed and waits for a slot, and the slots, which run one job after the other.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::engine::Engine;
use super::lease::Job;
use super::report::Report;
use super::run::run;
use crate::model::JobId;

/// A runner lets others have the thread after this time of jobs that never wait.
const RUNNER_TURN: Duration = Duration::from_millis(2);

/// One named queue of this worker.
pub(super) struct Queue {
    pub(super) name: String,
    concurrency: AtomicUsize,
    line: Mutex<Line>,
}

/// The jobs of a queue that were claimed and have not started, and the slots in use.
#[derive(Default)]
struct Line {
    pending: VecDeque<Job>,
    /// Tasks that run one job after the other: the slots in use.
    runners: usize,
    /// Jobs of kinds that are not known to be quick.
    slow_pending: usize,
    slow_running: usize,
    low_water: usize,
}

/// What a claim needs to know of a line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) slots: usize,
    pub(super) idle: usize,
    pub(super) pending: usize,
    pub(super) slow_held: usize,
    pub(super) slow_running: usize,
}

enum Placed {
    Starts,
    Waits,
    GoesBack(Job),
}

impl Queue {
    pub(super) fn new(name: String, slots: usize) -> Queue {
        Queue { name, concurrency: AtomicUsize::new(slots), line: Mutex::default() }
    }

    pub(super) fn slots(&self) -> usize {
        self.concurrency.load(Relaxed)
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// Takes claimed jobs in: they start as slots allow. What may not wait for a slot goes back.
    pub(super) fn take_in(self: &Arc<Self>, jobs: Vec<Job>) {
        let mut back = Vec::new();
        for job in jobs {
            let index = job.queue;
            match self.place(job) {
                Placed::Waits => {}
                Placed::Starts => {
                    let engine = self.clone();
                    tokio::spawn(async move { engine.run_line(index).await });
                }
                Placed::GoesBack(job) => back.push(job),
            }
        }
        self.give_back(back);
    }

    fn place(&self, mut job: Job) -> Placed {
        let (kind, queue) = (&self.kinds[job.kind], &self.queues[job.queue]);
        let mut line = queue.line();
        let starts = line.runners < queue.slots();
        if job.max_attempts == 1 {
            kind.single_attempt.store(true, Relaxed);
        }
        // Had this worker crashed, a waiting job with one attempt would be dead without having run.
        let may_wait = job.max_attempts > 1;
        // Under the line's lock, as the look at the phase: whoever gives up a registration empties the lines afterwards.
        let is_ours = self.is_working() && self.standing.is_current(&job.lease.registration);
        if !is_ours || kind.refused.load(Relaxed) || !(starts || may_wait) {
            return Placed::GoesBack(job);
        }
        job.slow = !kind.quick.load(Relaxed);
        line.slow_pending += usize::from(job.slow);
        line.pending.push_back(job);
        if !starts {
            return Placed::Waits;
        }
        line.runners += 1;
        Placed::Starts
    }

    /// One slot: runs one job after the other while there are any.
    async fn run_line(self: Arc<Self>, queue: usize) {
        let mut turn = Instant::now();
        let mut was_slow = false;
        while let Some(job) = self.next_job(queue, was_slow) {
            was_slow = job.slow;
            run(&self, job).await;
            if turn.elapsed() > RUNNER_TURN {
                tokio::task::yield_now().await;
                turn = Instant::now();
            }
        }
    }

    /// The next job of a slot, or none: then the slot is free.
    fn next_job(&self, queue: usize, was_slow: bool) -> Option<Job> {
        let (mut back, queue) = (Vec::new(), &self.queues[queue]);
        let mut line = queue.line();
        line.slow_running -= usize::from(was_slow);
        let next = loop {
            let next = if line.runners > queue.slots() { None } else { line.pending.pop_front() };
            let Some(job) = next else { break None };
            line.slow_pending -= usize::from(job.slow);
            if !self.kinds[job.kind].refused.load(Relaxed) {
                break Some(job);
            }
            back.push(job);
        };
        match &next {
            Some(job) => line.slow_running += usize::from(job.slow),
            None => line.runners -= 1,
        }
        let hungry = next.is_none() || line.pending.len() < line.low_water;
        drop(line);
        if hungry {
            self.room.notify_one();
        }
        self.give_back(back);
        next
    }

    /// What a queue has room for.
    pub(super) fn room_in(&self, queue: usize) -> Room {
        let queue = &self.queues[queue];
        let (line, slots) = (queue.line(), queue.slots());
        Room {
            slots,
            idle: slots.saturating_sub(line.runners),
            pending: line.pending.len(),
            slow_held: line.slow_pending + line.slow_running,
            slow_running: line.slow_running,
        }
    }

    /// From so few waiting jobs on the claim loop wants to be told.
    pub(super) fn set_low_water(&self, queue: usize, jobs: usize) {
        self.queues[queue].line().low_water = jobs;
    }

    /// Gives back what was claimed before `before` and still waits: the slots turned out to be slower than thought.
    pub(super) fn give_back_waiting(&self, before: Instant) {
        for queue in &self.queues {
            let mut line = queue.line();
            let stale = line.pending.front().is_some_and(|job| job.claimed_at <= before);
            if stale {
                line.slow_pending = 0;
                let back = std::mem::take(&mut line.pending);
                drop(line);
                tracing::debug!(queue = queue.name, jobs = back.len(), "jobs that could not start in time go back");
                self.give_back(back);
            }
        }
    }

    pub(super) fn has_waiting(&self) -> bool {
        self.queues.iter().any(|queue| !queue.line().pending.is_empty())
    }

    pub(super) fn give_back(&self, jobs: impl IntoIterator<Item = Job>) {
        for job in jobs {
            self.outbox.put(Report::given_back(&job));
        }
    }

    /// Changes the number of slots of a queue. False: the worker has no such queue.
    pub(super) fn set_concurrency(&self, queue: &str, slots: usize) -> bool {
        let Some(index) = self.queue_named(queue) else { return false };
        self.queues[index].concurrency.store(slots, Relaxed);
        self.room.notify_one();
        true
    }

    /// What waits for a slot and is wanted cancelled never starts.
    pub(super) fn cancel_waiting(&self, job: JobId) {
        for queue in &self.queues {
            let mut line = queue.line();
            if let Some(place) = line.pending.iter().position(|waiting| waiting.id == job)
                && let Some(waiting) = line.pending.remove(place)
            {
                line.slow_pending -= usize::from(waiting.slow);
                self.outbox.put(Report::cancelled(&waiting));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::model::RawJson;
    use crate::store::Registration;
    use crate::worker::engine::tests::engine;
    use crate::worker::lease::Lease;
    use crate::worker::report::Ending;

    fn job(registration: &Arc<Registration>) -> Job {
        let lease = Lease { id: 7, slots: 128, registration: registration.clone() };
        Job {
            id: JobId::from(129),
            lease: Arc::new(lease),
            slot: 1,
            queue: 0,
            kind: 0,
            attempt: 1,
            max_attempts: 5,
            timeout: None,
            created_at: SystemTime::UNIX_EPOCH,
            idempotency_key: None,
            payload: RawJson::parse("null").expect("JSON"),
            claimed_at: Instant::now(),
            waited: None,
            slow: true,
        }
    }

    /// Of the jobs that were claimed and not run: how many go back.
    fn going_back(engine: &Engine) -> usize {
        assert_eq!(engine.stats.snapshot().started, 0);
        engine.outbox.take().iter().filter(|report| matches!(report.ending, Ending::Released)).count()
    }

    #[tokio::test]
    async fn jobs_whose_claim_is_answered_while_the_registration_is_given_up_never_start() {
        let engine = engine();
        let me = engine.standing.registered(Registration { worker: 1, token: "t".into() }, Instant::now());
        engine.lost(&me, "it could not be renewed, or its connections made again, in time");
        engine.take_in(vec![job(&me), job(&me)]);
        tokio::task::yield_now().await;
        assert_eq!(going_back(&engine), 2);
    }

    #[tokio::test]
    async fn a_job_that_a_slot_has_taken_when_the_registration_is_given_up_never_starts() {
        let engine = engine();
        let me = engine.standing.registered(Registration { worker: 1, token: "t".into() }, Instant::now());
        assert!(matches!(engine.place(job(&me)), Placed::Starts));
        let taken = engine.next_job(0, false).expect("it waits");
        engine.lost(&me, "it could not be renewed, or its connections made again, in time");
        run(&engine, taken).await;
        assert_eq!(going_back(&engine), 1);
        assert!(engine.running.is_empty());
    }
}
