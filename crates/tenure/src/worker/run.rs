//! Runs one handler and turns what happened into a value: the report of how the attempt ended.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Instant, SystemTime};

use serde_json::{Value, json};

use super::context::{Context, JobRun, StopReason};
use super::engine::Engine;
use super::flush::{Ending, Failure, Report};
use super::lease::Job;
use super::panics::{Caught, Panic};
use crate::model::{Cause, Fail, RawJson, Verdict};

/// How a handler stopped running.
enum Finish {
    Returned(Result<Option<RawJson>, Fail>),
    Panicked(Panic),
    TimedOut,
    Aborted,
}

/// Runs the job's handler to its end and leaves the report in the outbox.
pub(super) async fn run(engine: &Arc<Engine>, mut job: Job) {
    let run = Arc::new(JobRun::of(engine.clone(), &mut job));
    engine.running.add(&run);
    engine.stats.started.one();
    let finish = drive(&run, job.payload).await;
    if !matches!(finish, Finish::Aborted) {
        engine.kinds[run.kind].observe(run.began.elapsed());
    }
    if let Some(ending) = judge(&run, finish) {
        engine.outbox.put(Report::new(&run, ending));
    }
    engine.running.remove(&run);
}

/// A handler that returned in spite of a timeout or an abort has returned: what it did is done.
async fn drive(run: &Arc<JobRun>, payload: RawJson) -> Finish {
    let context = Context { run: run.clone() };
    let handler = &run.engine.kinds[run.kind].handler;
    let mut handler = match Caught::new(|| handler(context, payload)) {
        Ok(handler) => handler,
        Err(panic) => return Finish::Panicked(panic),
    };
    let timeout = async {
        match run.must_end {
            Some(at) => tokio::time::sleep_until(at.into()).await,
            None => std::future::pending().await,
        }
    };
    // In this order: most handlers are ready at once, and then nothing else is even looked at.
    tokio::select! {
        biased;
        answer = &mut handler => match answer {
            Ok(result) => Finish::Returned(result),
            Err(panic) => Finish::Panicked(panic),
        },
        () = run.until_aborted() => Finish::Aborted,
        () = timeout => Finish::TimedOut,
    }
}

/// None: nothing is reported, the job is not ours any more.
fn judge(run: &JobRun, finish: Finish) -> Option<Ending> {
    if run.refused.load(Relaxed) {
        return Some(Ending::Released);
    }
    let stop = run.stop_reason();
    match finish {
        Finish::Returned(Ok(_)) if run.completes_itself.load(Relaxed) => Some(Ending::CompletedItself),
        Finish::Returned(Ok(result)) => Some(Ending::Completed(result)),
        Finish::Returned(Err(fail)) => Some(judge_failure(run, stop, &fail)),
        Finish::Panicked(panic) => {
            run.engine.stats.panics.one();
            Some(match stop {
                Some(StopReason::Cancelled) => cancelled(run),
                Some(StopReason::Shutdown | StopReason::LeaseLost) | None => failed(run, &panic_failure(panic)),
            })
        }
        Finish::TimedOut => {
            run.engine.stats.timeouts.one();
            let limit = run.must_end.map(|end| end.saturating_duration_since(run.began)).unwrap_or_default();
            Some(failed(
                run,
                &Fail::retry(format!("the handler was aborted after {limit:?}, its timeout")).cause(Cause::Timeout),
            ))
        }
        Finish::Aborted => match stop {
            Some(StopReason::Cancelled) => Some(cancelled(run)),
            Some(StopReason::Shutdown) | None => Some(Ending::Released),
            Some(StopReason::LeaseLost) => {
                run.engine.stats.lease_lost.one();
                None
            }
        },
    }
}

fn judge_failure(run: &JobRun, stop: Option<StopReason>, fail: &Fail) -> Ending {
    match (stop, fail.verdict()) {
        (Some(StopReason::Cancelled), _) => cancelled(run),
        // It stopped because it was asked to: that is no failed attempt.
        (Some(StopReason::Shutdown), Verdict::Retry | Verdict::Cancelled) => Ending::Released,
        (Some(StopReason::Shutdown | StopReason::LeaseLost) | None, _) => failed(run, fail),
    }
}

fn panic_failure(panic: Panic) -> Fail {
    let fail = Fail::retry(format!("panic: {}", panic.message)).cause(Cause::Panic);
    match panic.location {
        Some(location) => fail.detail("panicked_at", location),
        None => fail,
    }
}

fn cancelled(run: &JobRun) -> Ending {
    failed(run, &Fail::cancelled())
}

fn failed(run: &JobRun, fail: &Fail) -> Ending {
    let verdict = fail.verdict();
    let asked = verdict.delay(SystemTime::now());
    let policy = run.engine.kinds[run.kind].options.retry.as_ref().filter(|_| verdict == Verdict::Retry);
    let delay = asked.or_else(|| policy.map(|policy| policy.delay(run.attempt, fastrand::f64())));
    let mut details = fail.details();
    if let Value::Object(fields) = &mut details {
        if fail.cause_kind() == Cause::Panic {
            // The place where we wrote it down says nothing; where it panicked does.
            fields.remove("location");
            if let Some(place) = fields.remove("panicked_at") {
                fields.insert("location".into(), place);
            }
        }
        let ran_ms = u64::try_from(Instant::now().duration_since(run.began).as_millis()).unwrap_or(u64::MAX);
        fields.insert("ran_ms".into(), json!(ran_ms));
    }
    Ending::Failed(Box::new(Failure {
        verdict: verdict.as_str(),
        delay_ms: delay.map(|delay| i64::try_from(delay.as_millis()).unwrap_or(i64::MAX)),
        cause: fail.cause_kind().as_str(),
        message: fail.message().to_owned(),
        details,
    }))
}
