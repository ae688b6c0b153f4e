//! Runs one handler to its end, with all threads that it started, and leaves the report in the outbox.

use std::sync::Arc;
use std::sync::atomic::Ordering::AcqRel;
use std::time::Instant;

use super::context::{Context, StopReason};
use super::engine::Engine;
use super::job_run::{JobRun, Presence};
use super::judge::{Finish, judge, judged};
use super::lease::Job;
use super::moment::at;
use super::panics::Caught;
use super::report::{Ending, Report};
use crate::model::RawJson;

/// Runs the job's handler to its end and leaves the report in the outbox.
pub(super) async fn run(engine: &Arc<Engine>, mut job: Job) {
    let run = Arc::new(JobRun::of(engine.clone(), &mut job));
    let _present = Presence::of_handler(&run);
    // From here on a loss of the registration finds this run. One that came before has not.
    if !engine.standing.is_current(&run.lease.registration) {
        return engine.outbox.put(Report::new(&run, Ending::Released));
    }
    engine.stats.started.one();
    engine.tallies.started(run.queue, run.kind, job.waited.map(|waited| waited + (run.began - job.claimed_at)));
    let finish = drive(&run, job.payload).await;
    if !run.is_alone() {
        outlast_threads(&run, &finish).await;
    }
    let now = Instant::now();
    if let Some(tally) = engine.tallies.of(run.queue, run.kind) {
        tally.run.record(now - run.began);
    }
    if !matches!(finish, Finish::Aborted) {
        engine.kinds[run.kind].observe(now - run.began);
    }
    report(&run, finish, now);
}

/// A handler that returned in spite of an abort has returned: what it did is done.
async fn drive(run: &Arc<JobRun>, payload: RawJson) -> Finish {
    let context = Context { run: run.clone() };
    let handler = &run.engine.kinds[run.kind].handler;
    let mut handler = match Caught::new(|| handler(context, payload)) {
        Ok(handler) => handler,
        Err(panic) => return Finish::Panicked(panic),
    };
    // In this order: most handlers are ready at once, and then nothing else is even looked at.
    tokio::select! {
        biased;
        answer = &mut handler => match answer {
            Ok(result) => Finish::Returned(result),
            Err(panic) => Finish::Panicked(panic),
        },
        () = run.until_aborted() => Finish::Aborted,
        () = at(run.must_end) => {
            // Before the handler is dropped: threads of it look at this.
            run.stop(StopReason::TimedOut);
            Finish::TimedOut
        }
    }
}

/// Threads that run code of the handler are a part of it, whatever became of the rest: the slot, the lease and the report
/// wait for them.
async fn outlast_threads(run: &JobRun, finish: &Finish) {
    match finish {
        Finish::Returned(_) | Finish::Panicked(_) => tokio::select! {
            () = run.until_alone() => return,
            () = run.until_aborted() => {}
            () = at(run.must_end) => run.stop(StopReason::TimedOut),
        },
        Finish::TimedOut | Finish::Aborted => {}
    }
    give_up(run);
    run.until_alone().await;
}

/// The attempt of a kind that is taken over ends when its time is up, although its handler runs.
pub(super) fn give_up(run: &JobRun) {
    if run.takes_over() && !run.reported.swap(true, AcqRel) {
        let finish = if run.is_aborted() { Finish::Aborted } else { Finish::TimedOut };
        run.engine.stats.taken_over.one();
        put(run, judge(run, finish));
    }
}

fn report(run: &JobRun, finish: Finish, now: Instant) {
    if !run.reported.swap(true, AcqRel) {
        put(run, judged(run, finish, now));
    } else if matches!(finish, Finish::Returned(_) | Finish::Panicked(_)) {
        run.engine.stats.late_ends.one();
        tracing::warn!(job = %run.job(), lease = run.fence(), "a handler returned after its attempt had been given up: refused");
    }
}

fn put(run: &JobRun, ending: Ending) {
    if matches!(ending, Ending::GivenUp(_)) {
        run.engine.stats.lease_lost.one();
    }
    run.engine.outbox.put(Report::new(run, ending));
}
