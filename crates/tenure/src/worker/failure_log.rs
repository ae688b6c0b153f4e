//! Says in the log how attempts failed, a line each, as long as that does not flood it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use super::engine::Engine;
use super::report::{Failure, Report};
use crate::store::{NextRun, Rescue, RescuedJob};

/// Lines of one sort in a second: enough to see what is wrong, few enough for any log. Those that follow are counted.
const LINES_MAX: u64 = 10;
/// After a line that was left out, this long until the sum is told.
const WINDOW: Duration = Duration::from_secs(1);
/// Of a message; the rest is kept with the attempt.
const CHARS_MAX: usize = 200;

/// The sorts of lines, each with a budget of its own: a sort that a log does not show takes no lines from the others.
#[derive(Default)]
pub(super) struct FailureLog {
    dead: Mutex<Budget>,
    retried: Mutex<Budget>,
    unharmed: Mutex<Budget>,
    lost: Mutex<Budget>,
}

impl FailureLog {
    /// An attempt failed and its job is in the dead letters.
    pub(super) fn dead(&self, engine: &Engine, report: &Report, failure: &Failure) {
        if take(&self.dead) {
            let (kind, attempt) = (&engine.kinds[failure.kind].name, attempt_of(failure));
            let (cause, text) = (failure.cause, first_line(&failure.message));
            tracing::warn!(job = %report.job, kind, attempt, cause, "a job is dead: {text}");
        }
    }

    /// An attempt failed and the job is tried again.
    pub(super) fn retried(&self, engine: &Engine, report: &Report, failure: &Failure) {
        if take(&self.retried) {
            let (kind, attempt) = (&engine.kinds[failure.kind].name, attempt_of(failure));
            let (cause, text) = (failure.cause, first_line(&failure.message));
            let again = again(&failure.next, SystemTime::now());
            tracing::info!(job = %report.job, kind, attempt, cause, again, "an attempt failed: {text}");
        }
    }

    /// The end of an attempt was refused: its lease is gone.
    pub(super) fn lost(&self, report: &Report) {
        if take(&self.lost) {
            tracing::warn!(job = %report.job, lease = report.lease.id, "lease lost: the end of this run was refused");
        }
    }

    /// Jobs were taken from lost workers; some of them by name.
    pub(super) fn rescued(&self, jobs: u64, named: &[RescuedJob]) {
        if jobs > 0 {
            tracing::warn!(jobs, "rescued jobs of workers that were lost");
        }
        named.iter().for_each(|job| self.rescued_one(job));
    }

    fn rescued_one(&self, rescued: &RescuedJob) {
        let RescuedJob { job, kind, attempt, .. } = rescued;
        let (cause, again, text) = ("worker_lost", "at once", rescue_text(rescued));
        let budget = match rescued.became() {
            Rescue::Buried => &self.dead,
            Rescue::Retried => &self.retried,
            Rescue::Cancelled | Rescue::Spared => &self.unharmed,
        };
        if !take(budget) {
            return;
        }
        match rescued.became() {
            Rescue::Buried => tracing::warn!(job, kind, attempt, cause, "{text}"),
            Rescue::Retried => tracing::info!(job, kind, attempt, cause, again, "{text}"),
            Rescue::Cancelled => tracing::info!(job, kind, attempt, "{text}"),
            Rescue::Spared => tracing::info!(job, kind, attempt, again, "{text}"),
        }
    }

    /// The last words of a worker that ends.
    pub(super) fn sum_up_all(&self) {
        self.sum_up(Instant::now() + WINDOW);
    }

    /// Tells how many lines were left out, once their second is over. Called now and then.
    pub(super) fn sum_up(&self, now: Instant) {
        let sum = |budget| with(budget, |budget: &mut Budget| budget.sum_up(now));
        if let Some(more) = sum(&self.dead) {
            tracing::warn!("and {more} more jobs are dead: see `tenure dead list --group`");
        }
        if let Some(more) = sum(&self.retried) {
            tracing::info!("and {more} more attempts failed");
        }
        if let Some(more) = sum(&self.unharmed) {
            tracing::info!("and {more} more jobs of lost workers were cancelled, or run again at no cost");
        }
        if let Some(more) = sum(&self.lost) {
            tracing::warn!("lease lost: and the ends of {more} more runs were refused");
        }
    }
}

/// How many lines were written lately, and how many were not.
#[derive(Default)]
struct Budget {
    began: Option<Instant>,
    lines: u64,
}

impl Budget {
    /// May one more line be written?
    fn take(&mut self, now: Instant) -> bool {
        // What was left out is told before a new second begins.
        if self.left_out() == 0 && self.is_over(now) {
            *self = Budget { began: Some(now), lines: 0 };
        }
        self.lines += 1;
        self.lines <= LINES_MAX
    }

    fn sum_up(&mut self, now: Instant) -> Option<u64> {
        let left_out = self.left_out();
        if left_out == 0 || !self.is_over(now) {
            return None;
        }
        *self = Budget::default();
        Some(left_out)
    }

    fn left_out(&self) -> u64 {
        self.lines.saturating_sub(LINES_MAX)
    }

    fn is_over(&self, now: Instant) -> bool {
        self.began.is_none_or(|began| now.saturating_duration_since(began) >= WINDOW)
    }
}

fn with<T>(budget: &Mutex<Budget>, act: impl FnOnce(&mut Budget) -> T) -> T {
    act(&mut budget.lock().unwrap_or_else(PoisonError::into_inner))
}

fn take(budget: &Mutex<Budget>) -> bool {
    with(budget, |budget| budget.take(Instant::now()))
}

/// What became of a job whose worker was lost.
fn rescue_text(rescued: &RescuedJob) -> String {
    let worker = format!("worker {} ({})", rescued.worker_id, rescued.worker);
    match rescued.became() {
        Rescue::Buried => format!("a job is dead: {worker} was lost while it ran"),
        Rescue::Cancelled => format!("a job is cancelled, as was wanted: {worker} was lost before it had stopped it"),
        Rescue::Spared => format!("a job goes back at no cost: {worker} had stopped, but for the job's handler"),
        Rescue::Retried => format!("an attempt failed: {worker} was lost"),
    }
}

fn attempt_of(failure: &Failure) -> String {
    format!("{} of {}", failure.attempt, failure.max_attempts)
}

/// When it is tried again, seen from here; an instant of the database's clock only about.
fn again(next: &NextRun, now: SystemTime) -> String {
    let tenths = |delay: Duration| format!("{:.1} s", delay.as_secs_f64());
    if let Some(at_us) = next.run_at_us {
        let at = SystemTime::UNIX_EPOCH + Duration::from_micros(u64::try_from(at_us).unwrap_or_default());
        let wait = at.duration_since(now).unwrap_or_default();
        return format!("in about {}", tenths(wait.mul_f64(1.0 + next.spread)));
    }
    match next.delay_ms.map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or_default())) {
        Some(Duration::ZERO) => "at once".to_owned(),
        Some(delay) => format!("in {}", tenths(delay)),
        None => "after the default backoff".to_owned(),
    }
}

/// The first line of a text from elsewhere that says something, without what a terminal would obey.
fn first_line(text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("(no message)");
    let obeyed = |c: char| {
        c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut shown: String =
        line.chars().take(CHARS_MAX).map(|c| if obeyed(c) { char::REPLACEMENT_CHARACTER } else { c }).collect();
    if line.chars().nth(CHARS_MAX).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_lines_a_second_are_written_and_the_rest_is_counted_once() {
        let (mut budget, start) = (Budget::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let written = |budget: &mut Budget, now| (0..25).filter(|_| budget.take(now)).count();
        assert_eq!(written(&mut budget, at(0)), 10);
        assert_eq!(budget.sum_up(at(500)), None, "the second is not over");
        assert_eq!(written(&mut budget, at(1_000)), 0, "the sum comes first");
        assert_eq!(budget.sum_up(at(1_000)), Some(40));
        assert_eq!(budget.sum_up(at(3_000)), None);
        assert_eq!(written(&mut budget, at(3_000)), 10);
        assert_eq!(budget.sum_up(at(9_000)), Some(15));
        let spread = (0..25).filter(|n| budget.take(at(10_000 + n * 1_000))).count();
        assert_eq!((spread, budget.sum_up(at(99_000))), (25, None));
    }

    #[test]
    fn only_attempts_that_count_are_told_as_failed() {
        let check = |became: &str, expected: &str| {
            let json =
                format!(r#"{{"job":1,"kind":"k","attempt":2,"worker":"web","worker_id":3,"dead":false{became}}}"#);
            let rescued: RescuedJob = serde_json::from_str(&json).expect("as rescue answers");
            assert!(rescue_text(&rescued).starts_with(expected), "{}", rescue_text(&rescued));
        };
        check("", "an attempt failed: worker 3 (web)");
        check(r#","cancelled":false,"spared":false"#, "an attempt failed: worker 3 (web)");
        check(r#","cancelled":true,"spared":false"#, "a job is cancelled, as was wanted: worker 3 (web)");
        check(r#","cancelled":true,"spared":true"#, "a job is cancelled, as was wanted: worker 3 (web)");
        check(r#","cancelled":false,"spared":true"#, "a job goes back at no cost: worker 3 (web)");
    }

    #[test]
    fn a_message_is_one_short_harmless_line() {
        let check = |text: &str, expected: &str| assert_eq!(first_line(text), expected);
        check("\n  one\ntwo", "one");
        check("", "(no message)");
        check("a\x1b[2J\u{202e}b", "a\u{fffd}[2J\u{fffd}b");
        assert_eq!(first_line(&"é".repeat(300)).chars().count(), CHARS_MAX + 1);
    }

    #[test]
    fn it_is_said_when_a_job_is_tried_again() {
        let check = |next: NextRun, expected: &str| {
            assert_eq!(again(&next, SystemTime::UNIX_EPOCH + Duration::from_secs(100)), expected);
        };
        let next = NextRun::default;
        check(NextRun { delay_ms: Some(2_345), ..next() }, "in 2.3 s");
        check(NextRun { delay_ms: Some(0), ..next() }, "at once");
        check(NextRun { run_at_us: Some(104_000_000), spread: 0.25, ..next() }, "in about 5.0 s");
        check(NextRun { run_at_us: Some(1), ..next() }, "in about 0.0 s");
        check(next(), "after the default backoff");
    }
}
