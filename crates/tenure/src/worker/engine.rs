//! What the parts of one running worker share: its kinds and queues, what runs, and the news between them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};

use super::builder::Settings;
use super::context::StopReason;
use super::failure_log::FailureLog;
use super::flush::Outbox;
use super::kinds::Kind;
use super::lease::{Held, Running};
use super::line::Queue;
use super::link::Link;
use super::record::Recorder;
use super::run::give_up;
use super::standing::Standing;
use super::stats::Counters;
use super::tally::Tallies;
use crate::model::JobId;
use crate::store::Registration;

/// How long the handlers of a lost lease may take to notice, before they are aborted.
const LOST_NOTICE: Duration = Duration::from_millis(50);
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
    /// What is told of it, by queue and kind.
    pub(super) tallies: Tallies,
    pub(super) recorder: Recorder,
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
        Arc::new(Engine {
            kind_index: kinds.iter().enumerate().map(|(index, kind)| (kind.name.clone(), index)).collect(),
            standing: Standing::new(settings.lease, settings.reconnect_grace, !settings.pooler),
            tallies: Tallies::new(queues.len(), kinds.len()),
            queues: queues.into_iter().map(|(name, slots)| Queue::new(name, slots)).collect(),
            kinds,
            settings,
            link: Link::default(),
            outbox: Outbox::default(),
            running: Running::default(),
            held: Held::default(),
            stats: Counters::default(),
            recorder: Recorder::new(Instant::now()),
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

    /// Somebody cancelled a job that may run here: its handler is asked to stop, and aborted a little later.
    pub(super) fn cancel(&self, job: JobId) {
        self.cancel_waiting(job);
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
                if let Some(tally) = self.tallies.of(run.queue, run.kind) {
                    tally.overruns.one();
                }
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::model::RawJson;
    use crate::worker::{Context, KindOptions, WorkerBuilder};

    /// Of a worker that has one slot, and no database.
    pub(in crate::worker) fn engine() -> Arc<Engine> {
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
