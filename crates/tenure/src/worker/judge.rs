//! Turns what happened to an attempt into a value: what is written of it.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::context::StopReason;
use super::engine::OVERRUN_NOTICE;
use super::job_run::JobRun;
use super::panics::{Panic, caught};
use super::report::{Ending, Failure};
use crate::model::{Cause, Fail, RawJson, RetryPolicy, Verdict, micros};
use crate::store::NextRun;

/// At most this part is added to a delay that many jobs heard at once.
const SPREAD: f64 = 0.25;

/// In the protocol: a snooze that slows down a limit as well.
const THROTTLED: &str = "throttled";

/// How a handler stopped running.
pub(super) enum Finish {
    Returned(Result<Option<RawJson>, Fail>),
    Panicked(Panic),
    /// Dropped at its timeout.
    TimedOut,
    /// Dropped because its job was cancelled, its worker stops, or its lease was lost.
    Aborted,
}

/// [`judge`] of a handler that ended at `now`. The result of one that overran its timeout is refused: somebody chose the
/// time after which it is worth nothing. A failure stays what it is, for it says more than that it came late.
pub(super) fn judged(run: &JobRun, finish: Finish, now: Instant) -> Ending {
    if !is_late(run, now) {
        return judge(run, finish);
    }
    match finish {
        Finish::Returned(Ok(_)) => {
            run.engine.stats.late_ends.one();
            let (ran, limit) = (rounded(now - run.began), timeout_of(run));
            let text = format!("the handler returned a result after {ran:?}, past its timeout of {limit:?}: refused");
            timed_out(run, text)
        }
        Finish::Returned(Err(_)) | Finish::Panicked(_) => {
            run.engine.stats.late_ends.one();
            run.details().insert("timeout_ms".into(), json!(millis(timeout_of(run))));
            judge(run, finish)
        }
        Finish::TimedOut | Finish::Aborted => judge(run, finish),
    }
}

/// Within the notice it may as well be this worker that is late.
fn is_late(run: &JobRun, now: Instant) -> bool {
    match run.stop_reason() {
        Some(StopReason::TimedOut) => true,
        Some(StopReason::Cancelled) => false,
        Some(StopReason::Shutdown | StopReason::LeaseLost) | None => {
            run.must_end.is_some_and(|end| end + OVERRUN_NOTICE < now)
        }
    }
}

/// What was stopped because its worker stops or gave up goes back: that is no failed attempt. Of the latter a record is
/// kept, for the job may be the reason. When the lease is not this worker's any more, the database says so.
pub(super) fn judge(run: &JobRun, finish: Finish) -> Ending {
    if run.refused.load(Relaxed) {
        return Ending::Released;
    }
    let stop = run.stop_reason();
    match finish {
        Finish::Returned(Ok(_)) if run.completes_itself.load(Relaxed) => {
            let text = "the handler returned, but the transaction of complete_in did not commit";
            Ending::CompletedItself(failure(run, &Fail::retry(text).without_location()))
        }
        Finish::Returned(Ok(result)) => Ending::Completed(result),
        Finish::Returned(Err(fail)) => judge_failure(run, stop, &fail),
        Finish::Panicked(panic) => {
            run.engine.stats.panics.one();
            match stop {
                Some(StopReason::Cancelled) => cancelled(run),
                Some(StopReason::Shutdown | StopReason::TimedOut | StopReason::LeaseLost) | None => {
                    failed(run, &panic_failure(panic))
                }
            }
        }
        Finish::TimedOut => timed_out(run, timeout_text(run)),
        Finish::Aborted => match stop {
            Some(StopReason::Cancelled) => cancelled(run),
            Some(StopReason::TimedOut) => timed_out(run, timeout_text(run)),
            Some(StopReason::LeaseLost) => given_up(
                run,
                &Fail::retry("the worker gave up its registration and stopped the handler").without_location(),
            ),
            Some(StopReason::Shutdown) | None => Ending::Released,
        },
    }
}

fn judge_failure(run: &JobRun, stop: Option<StopReason>, fail: &Fail) -> Ending {
    match (stop, fail.verdict()) {
        (Some(StopReason::Cancelled), _) => cancelled(run),
        // It stopped because it was asked to.
        (Some(StopReason::Shutdown), Verdict::Retry | Verdict::Cancelled) => Ending::Released,
        (Some(StopReason::LeaseLost), Verdict::Retry | Verdict::Cancelled) => given_up(run, fail),
        (Some(StopReason::Shutdown | StopReason::TimedOut | StopReason::LeaseLost) | None, _) => failed(run, fail),
    }
}

/// Whatever the handler said last is kept.
fn given_up(run: &JobRun, fail: &Fail) -> Ending {
    let failure = failure(run, fail);
    let cause = Cause::GivenUp.as_str();
    Ending::GivenUp(Box::new(Failure { verdict: cause, cause, ..*failure }))
}

fn timed_out(run: &JobRun, text: String) -> Ending {
    run.engine.stats.timeouts.one();
    let fail = Fail::retry(text).cause(Cause::Timeout).without_location();
    let failure = failure(run, &fail.detail("timeout_ms", millis(timeout_of(run))));
    // When its own transaction committed all the same, then the job has completed.
    if run.completes_itself.load(Relaxed) { Ending::CompletedItself(failure) } else { Ending::Failed(failure) }
}

fn timeout_text(run: &JobRun) -> String {
    let (limit, ran) = (timeout_of(run), run.began.elapsed());
    if run.is_alone() && ran > limit + OVERRUN_NOTICE {
        return format!(
            "the handler was aborted at {limit:?}, its timeout, and went on for {:?}",
            rounded(ran - limit)
        );
    }
    format!("the handler was aborted after {limit:?}, its timeout")
}

fn timeout_of(run: &JobRun) -> Duration {
    run.must_end.map(|end| end.saturating_duration_since(run.began)).unwrap_or_default()
}

fn panic_failure(panic: Panic) -> Fail {
    let fail = Fail::retry(format!("panic: {}", panic.message)).cause(Cause::Panic).without_location();
    match panic.location {
        Some(location) => fail.detail("location", location),
        None => fail,
    }
}

fn cancelled(run: &JobRun) -> Ending {
    failed(run, &Fail::cancelled().without_location())
}

fn failed(run: &JobRun, fail: &Fail) -> Ending {
    Ending::Failed(failure(run, fail))
}

fn failure(run: &JobRun, fail: &Fail) -> Box<Failure> {
    Box::new(Failure {
        kind: run.kind,
        attempt: run.attempt,
        max_attempts: run.max_attempts,
        verdict: if fail.throttles() { THROTTLED } else { fail.verdict().as_str() },
        limit: fail.throttled_limit().map(str::to_owned),
        next: next_run(run, fail),
        cause: fail.cause_kind().as_str(),
        message: fail.message().to_owned(),
        details: details(run, fail),
    })
}

/// An instant is told as it was given: the worker's clock may be wrong.
fn next_run(run: &JobRun, fail: &Fail) -> NextRun {
    let verdict = fail.verdict();
    let spread = if fail.is_spread() { SPREAD * fastrand::f64() } else { 0.0 };
    let by_policy = || (verdict == Verdict::Retry).then(|| delay_by(run));
    let asked = verdict.delay().map(|delay| delay.saturating_add(delay.mul_f64(spread)));
    let delay = asked.or_else(by_policy);
    NextRun { delay_ms: delay.map(millis), run_at_us: verdict.run_at().map(micros), spread }
}

/// The user's own function may panic; its job is tried again all the same. Without a policy it is the default one, decided here as
/// well: what is logged is what happens.
fn delay_by(run: &JobRun) -> Duration {
    let chance = fastrand::f64();
    let Some(policy) = &run.engine.kinds[run.kind].options.retry else {
        return RetryPolicy::default().delay(run.attempt, chance);
    };
    caught(|| policy.delay(run.attempt, chance)).unwrap_or_else(|panic| {
        let kind = &run.engine.kinds[run.kind].name;
        tracing::error!(kind, panic = panic.message, "the retry policy panicked; the default one is used");
        RetryPolicy::default().delay(run.attempt, chance)
    })
}

/// What the handler noted on the way, what the failure says, and how long it took.
fn details(run: &JobRun, fail: &Fail) -> Value {
    let mut details: Map<String, Value> = std::mem::take(&mut *run.details());
    if let Value::Object(fields) = fail.details() {
        details.extend(fields);
    }
    details.insert("ran_ms".into(), json!(millis(run.began.elapsed())));
    Value::Object(details)
}

/// Rounded up: a delay is never shorter than was asked.
fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}

/// As people read it.
fn rounded(duration: Duration) -> Duration {
    Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}
