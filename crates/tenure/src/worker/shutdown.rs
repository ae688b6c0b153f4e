//! The end of a worker: claims stop at once, what has not started goes back, what runs may end within the grace, then
//! it is asked to stop, then aborted and given back without using an attempt. A second wish skips the waiting.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use super::context::StopReason;
use super::engine::{Engine, Phase, StopWish};
use super::flush::settled_within;
use super::heartbeat::Control;
use super::run::give_up;

/// Of the grace, this part at its end is for handlers that were asked to stop …
const ASKED_SHARE: u32 = 5;
const ASKED_MAX: Duration = Duration::from_secs(5);
/// … and this part for writing down what was aborted.
const WRITING_SHARE: u32 = 20;
const WRITING_MAX: Duration = Duration::from_millis(500);
/// After a wish to stop at once.
const AT_ONCE: Duration = Duration::from_millis(500);
/// The last reports are written for at most this long beyond the grace.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Waits for the wish to stop and carries it out. True: nothing was left behind. `claims` ends by itself when the worker
/// stops; a claim that is under way until then may still bring jobs, which go back. `end` is dropped with it, also when the
/// program's runtime ends under us: the heartbeat must not go on for a worker that is not there.
pub(super) async fn supervise(engine: Arc<Engine>, control: Control, claims: JoinHandle<()>, end: EndOnDrop) -> bool {
    let mut wish = engine.stop_wish.subscribe();
    let _ = wish.wait_for(|wish| *wish > StopWish::None).await;
    tracing::info!(running = engine.running.all().len(), "stopping: no more claims");
    engine.phase.send_replace(Phase::Stopping);
    engine.give_back_waiting(Instant::now());

    let plan = Plan::from(Instant::now(), engine.settings.shutdown_grace);
    wait_for_handlers(&engine, plan.ask_at).await;
    let asked: Vec<_> = engine.running.all();
    asked.iter().for_each(|run| run.stop(StopReason::Shutdown));
    wait_for_handlers(&engine, plan.abort_at).await;
    let (all_ended, end_at) = abort_the_rest(&engine, plan.end_at).await;

    let last = end_at.max(Instant::now()) + LAST_WORDS;
    let all_answered = tokio::time::timeout_at(last.into(), claims).await.is_ok();
    let all_written = settled_within(&engine, last.saturating_duration_since(Instant::now())).await;
    // What an unanswered claim took would belong to nobody if the worker signed off: as a lost worker's it is found.
    engine.signs_off.store(all_answered, Relaxed);
    if !engine.running.holding().is_empty() {
        leave_but_for_the_rest(&engine).await;
        tokio::spawn(outlast(engine.clone(), end));
        return false;
    }
    engine.phase.send_replace(Phase::Ended);
    let left = control.ended.await.unwrap_or(false);
    all_ended && all_answered && all_written && left
}

/// Says so in the database: if the process ends now, as most do, its jobs go back without using an attempt.
async fn leave_but_for_the_rest(engine: &Engine) {
    let noted = engine.left_noted.notified();
    engine.left.store(true, Relaxed);
    engine.overruns_changed.notify_one();
    let _ = tokio::time::timeout(LAST_WORDS, noted).await;
}

/// Handlers that do not stop keep their jobs: the worker has ended for its program, but its lease is renewed and its
/// reports are written until the last one returns. If the process ends before, they are rescued as those of a dead one.
async fn outlast(engine: Arc<Engine>, _end: EndOnDrop) {
    engine.running.until_none_holds().await;
    settled_within(&engine, LAST_WORDS).await;
}

/// Ends the worker when whoever answers for it is gone.
pub(super) struct EndOnDrop {
    engine: Arc<Engine>,
    signs_off: bool,
}

impl EndOnDrop {
    /// For a worker that has not claimed anything yet: it signs off.
    pub(super) fn before_work(engine: &Arc<Engine>) -> EndOnDrop {
        EndOnDrop { engine: engine.clone(), signs_off: true }
    }

    /// From now on it may hold jobs: it is left to be found as a lost one.
    pub(super) fn at_work(mut self) -> EndOnDrop {
        self.signs_off = false;
        self
    }
}

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        if self.signs_off {
            self.engine.signs_off.store(true, Relaxed);
        }
        self.engine.phase.send_replace(Phase::Ended);
    }
}

/// The moments of a graceful stop.
struct Plan {
    ask_at: Instant,
    abort_at: Instant,
    end_at: Instant,
}

impl Plan {
    fn from(now: Instant, grace: Duration) -> Plan {
        let end_at = now + grace;
        let writing = (grace / WRITING_SHARE).min(WRITING_MAX);
        let asked = (grace / ASKED_SHARE).min(ASKED_MAX);
        Plan { ask_at: end_at - asked, abort_at: end_at - writing, end_at }
    }
}

/// Until all handlers have ended, the moment has come, or somebody cannot wait.
async fn wait_for_handlers(engine: &Engine, until: Instant) {
    let mut wish = engine.stop_wish.subscribe();
    tokio::select! {
        () = engine.running.until_empty() => {}
        () = tokio::time::sleep_until(until.into()) => {}
        _ = wish.wait_for(|wish| *wish == StopWish::AtOnce) => {}
    }
}

/// Aborts what still runs. Blocking code cannot be aborted, and while it runs its job must not run elsewhere: it stays
/// this worker's until the code returns or the process ends. Only kinds that are taken over go back all the same.
async fn abort_the_rest(engine: &Engine, end_at: Instant) -> (bool, Instant) {
    let runs = engine.running.all();
    if runs.is_empty() {
        return (true, end_at);
    }
    let at_once = *engine.stop_wish.borrow() == StopWish::AtOnce;
    let end_at = if at_once { Instant::now() + AT_ONCE } else { end_at };
    runs.iter().for_each(|run| {
        run.stop(StopReason::Shutdown);
        run.abort();
    });
    let _ = tokio::time::timeout_at(end_at.into(), engine.running.until_empty()).await;
    let blocked = engine.running.all();
    for run in &blocked {
        give_up(run);
        if run.holds_lease() {
            let kind = &engine.kinds[run.kind].name;
            tracing::warn!(job = %run.job(), kind, "the handler does not stop (blocking code?): its job starts elsewhere when it returns or this process ends");
        }
    }
    (blocked.is_empty(), end_at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handlers_are_asked_and_aborted_within_the_grace() {
        let now = Instant::now();
        let check = |grace_ms: u64, ask_ms: u64, abort_ms: u64| {
            let plan = Plan::from(now, Duration::from_millis(grace_ms));
            let ms = |at: Instant| (at - now).as_millis() as u64;
            assert_eq!((ms(plan.ask_at), ms(plan.abort_at), ms(plan.end_at)), (ask_ms, abort_ms, grace_ms));
        };
        check(30_000, 25_000, 29_500);
        check(10_000, 8_000, 9_500);
        check(1_000, 800, 950);
        check(0, 0, 0);
    }
}
