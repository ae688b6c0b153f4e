//! What the parts of one running worker share: its kinds and queues, what waits and what runs, and the news between them.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};

use super::builder::Settings;
use super::context::StopReason;
use super::failure_log::FailureLog;
use super::flush::Outbox;
use super::kinds::Kind;
use super::lease::{Held, Job, Running};
use super::link::Link;
use super::report::Report;
use super::run::{give_up, run};
use super::standing::Standing;
use super::stats::Counters;
use crate::model::JobId;
use crate::store::Registration;

/// How long the handlers of a lost lease may take to notice, before they are aborted.
const LOST_NOTICE: Duration = Duration::from_millis(50);
/// A runner lets others have the thread after this time of jobs that never wait.
const RUNNER_TURN: Duration = Duration::from_millis(2);
/// A handler that is still there so long after it had to stop has overrun.
pub(super) const OVERRUN_NOTICE: Duration = Duration::from_secs(1);

/// How far a worker is with its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    Working,
    /// Claims nothing; what runs may end.
    Stopping,
    /// Nothing is left to do but to leave.
    Ended,
}

/// How soon a worker was asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StopWish {
    None,
    Graceful,
    AtOnce,
}

/// One named queue of this worker.
pub(super) struct Queue {
    pub(super) name: String,
    concurrency: AtomicUsize,
    line: Mutex<Line>,
}

/// The jobs of a queue that were claimed and have not started, and the slots in use.
#[derive(Default)]
pub(super) struct Line {
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

pub(super) struct Engine {
    pub(super) settings: Settings,
    pub(super) kinds: Vec<Kind>,
    kind_index: HashMap<String, usize>,
    pub(super) queues: Vec<Queue>,
    pub(super) standing: Standing,
    pub(super) link: Link,
    pub(super) outbox: Outbox,
    pub(super) running: Running,
    pub(super) held: Held,
    pub(super) stats: Counters,
    pub(super) failure_log: FailureLog,
    /// A slot is free, or little is left to start.
    pub(super) room: Notify,
    /// There may be something to claim.
    pub(super) woken: Notify,
    /// Maintenance is due.
    pub(super) tick_wanted: Notify,
    /// Look again which handlers overrun.
    pub(super) overruns_changed: Notify,
    /// Tell the database which kinds are refused.
    pub(super) kinds_changed: Notify,
    /// The worker has stopped, but for handlers that do not.
    pub(super) left: AtomicBool,
    /// The database was told so.
    pub(super) left_noted: Notify,
    pub(super) phase: watch::Sender<Phase>,
    /// At its end the worker may tell the database that it holds nothing.
    pub(super) signs_off: AtomicBool,
    pub(super) stop_wish: watch::Sender<StopWish>,
}

impl Engine {
    pub(super) fn new(settings: Settings, kinds: Vec<Kind>, queues: Vec<(String, usize)>) -> Arc<Engine> {
        let queues = queues.into_iter().map(|(name, slots)| Queue {
            name,
            concurrency: AtomicUsize::new(slots),
            line: Mutex::default(),
        });
        Arc::new(Engine {
            kind_index: kinds.iter().enumerate().map(|(index, kind)| (kind.name.clone(), index)).collect(),
            standing: Standing::new(settings.lease, settings.reconnect_grace, !settings.pooler),
            queues: queues.collect(),
            kinds,
            settings,
            link: Link::default(),
            outbox: Outbox::default(),
            running: Running::default(),
            held: Held::default(),
            stats: Counters::default(),
            failure_log: FailureLog::default(),
            room: Notify::new(),
            woken: Notify::new(),
            tick_wanted: Notify::new(),
            overruns_changed: Notify::new(),
            kinds_changed: Notify::new(),
            left: AtomicBool::new(false),
            left_noted: Notify::new(),
            phase: watch::Sender::new(Phase::Working),
            signs_off: AtomicBool::new(false),
            stop_wish: watch::Sender::new(StopWish::None),
        })
    }

    pub(super) fn kind_named(&self, name: &str) -> Option<usize> {
        self.kind_index.get(name).copied()
    }

    pub(super) fn queue_named(&self, name: &str) -> Option<usize> {
        self.queues.iter().position(|queue| queue.name == name)
    }

    pub(super) fn is_working(&self) -> bool {
        *self.phase.borrow() == Phase::Working
    }

    /// Held by each task that the worker cannot do without.
    pub(super) fn vital(self: &Arc<Self>, what: &'static str) -> Vital {
        Vital { engine: self.clone(), what }
    }

    pub(super) async fn until(&self, phase: Phase) {
        let mut phases = self.phase.subscribe();
        let _ = phases.wait_for(|now| *now >= phase).await;
    }

    /// Until the worker has ended, and with it all handlers that hold a job. While one does not stop, others must not get
    /// its job: the worker's lease lives on with it, or ends with the process.
    pub(super) async fn until_gone(&self) {
        self.until(Phase::Ended).await;
        self.running.until_none_holds().await;
    }

    pub(super) fn wish_stop(&self, wish: StopWish) {
        self.stop_wish.send_if_modified(|now| {
            let more = wish > *now;
            *now = wish.max(*now);
            more
        });
    }

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

    /// Somebody cancelled a job that may run here: its handler is asked to stop, and aborted a little later.
    pub(super) fn cancel(&self, job: JobId) {
        for queue in &self.queues {
            let mut line = queue.line();
            if let Some(place) = line.pending.iter().position(|waiting| waiting.id == job)
                && let Some(waiting) = line.pending.remove(place)
            {
                line.slow_pending -= usize::from(waiting.slow);
                self.outbox.put(Report::cancelled(&waiting));
            }
        }
        for run in self.running.of_job(job) {
            let first = run.stop_reason().is_none();
            run.stop(StopReason::Cancelled);
            if first {
                let grace = self.kinds[run.kind].options.stop_grace;
                tokio::spawn(async move {
                    tokio::time::sleep(grace).await;
                    run.abort();
                });
            }
        }
    }

    /// A registration is gone: what was claimed under it belongs to others now. Both connections and the watchdog may
    /// find out. Whatever is about to start meanwhile sees that the registration is gone (the lines refuse it, and a run looks
    /// once more when it can be found here), so that nothing runs on.
    pub(super) fn lost(&self, registration: &Arc<Registration>, why: &str) {
        let first = self.standing.gone(registration);
        let runs: Vec<_> =
            self.running.all().into_iter().filter(|run| run.lease.registration == *registration).collect();
        if first {
            self.stats.registrations_lost.one();
            let running = runs.len();
            tracing::warn!(worker = registration.worker, running, why, "lease lost: the handlers are stopped");
        }
        self.give_back_waiting(Instant::now());
        for run in &runs {
            run.stop(StopReason::LeaseLost);
        }
        self.running.notify();
        if !runs.is_empty() {
            tokio::spawn(async move {
                tokio::time::sleep(LOST_NOTICE).await;
                runs.iter().for_each(|run| run.abort());
            });
        }
    }

    /// This process cannot run a kind: no more of it is claimed, and with no kind left the worker stops.
    pub(super) fn refuse_kind(&self, kind: usize, why: &str) {
        if !self.kinds[kind].refuse(why) {
            return;
        }
        self.kinds_changed.notify_one();
        tracing::error!(kind = self.kinds[kind].name, why, "this worker claims no more jobs of this kind");
        if self.kinds.iter().all(|kind| kind.refused.load(Relaxed)) {
            self.wish_stop(StopWish::Graceful);
        }
    }

    /// Looks for handlers that should have ended and have not. Each is counted once; the attempt of a kind that is taken
    /// over ends. The jobs of the others, for people to see.
    pub(super) fn overruns(&self) -> Vec<JobId> {
        let now = Instant::now();
        let since = now.checked_sub(OVERRUN_NOTICE).unwrap_or(now);
        let mut jobs = Vec::new();
        for run in self.running.all() {
            if run.is_overdue(now) {
                give_up(&run);
            }
            let overruns = run.is_overdue(since) || (self.left.load(Relaxed) && run.holds_lease());
            if overruns && !run.overrun.swap(true, Relaxed) {
                self.stats.overruns.one();
                let kind = &self.kinds[run.kind].name;
                tracing::warn!(job = %run.job(), kind, "overrun: the handler does not stop (blocking code?); it keeps its slot");
            }
            if run.overrun.load(Relaxed) && run.holds_lease() {
                jobs.push(run.job());
            }
        }
        jobs.sort_unstable();
        jobs
    }
}

/// Ends the worker when the task that holds it ends by a panic: a worker that only looks alive would keep its jobs from
/// everybody.
pub(super) struct Vital {
    engine: Arc<Engine>,
    what: &'static str,
}

impl Drop for Vital {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!(part = self.what, "a part of the worker failed; the worker stops");
            self.engine.wish_stop(StopWish::AtOnce);
        }
    }
}

enum Placed {
    Starts,
    Waits,
    GoesBack(Job),
}

impl Queue {
    pub(super) fn slots(&self) -> usize {
        self.concurrency.load(Relaxed)
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::model::RawJson;
    use crate::worker::lease::Lease;
    use crate::worker::report::Ending;
    use crate::worker::{Context, KindOptions, WorkerBuilder};

    fn engine() -> Arc<Engine> {
        let nothing = |_: Context, _: RawJson| async { Ok(None) };
        let builder = WorkerBuilder::new("postgres://h/d".into()).queue("q", 1);
        builder.handle_raw("k", KindOptions::new(), nothing).engine().expect("the settings are right")
    }

    #[test]
    fn a_lost_registration_is_counted_once_whoever_finds_out() {
        let engine = engine();
        let me = engine.standing.registered(Registration { worker: 1, token: "t".into() }, Instant::now());
        engine.lost(&me, "its lease was over");
        engine.lost(&me, "its jobs were given to others");
        assert_eq!(engine.stats.snapshot().registrations_lost, 1);
    }

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

    #[tokio::test]
    async fn a_vital_part_that_panics_stops_the_worker_and_one_that_ends_does_not() {
        let engine = engine();
        let part = |fails: bool| {
            let vital = engine.vital("test");
            tokio::spawn(async move {
                let _vital = vital;
                assert!(!fails, "as asked");
            })
        };
        part(false).await.expect("it ends");
        assert_eq!(*engine.stop_wish.borrow(), StopWish::None);
        part(true).await.expect_err("it panics");
        assert_eq!(*engine.stop_wish.borrow(), StopWish::AtOnce);
    }
}
