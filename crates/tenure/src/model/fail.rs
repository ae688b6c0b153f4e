use std::error::Error as StdError;
use std::fmt;
use std::panic::Location;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value, json};

use super::limits::{DELAY_MAX, ERROR_TEXT_BYTES_MAX};
use super::storable;

/// How a handler ends when it does not succeed: what shall happen to the job, and why.
///
/// Any error becomes one by `?` and means "try again by the kind's retry policy". It is deliberately no
/// [`std::error::Error`] itself, so that this conversion can exist.
///
/// ```
/// use std::time::Duration;
/// use tenure::Fail;
///
/// fn check(amount: i64) -> Result<(), Fail> {
///     let rate: f64 = "0.07".parse()?; // any error: retried
///     if amount < 0 {
///         return Err(Fail::permanent("a negative amount never becomes right"));
///     }
///     if rate > 1.0 {
///         return Err(Fail::retry("the rate service is confused").after(Duration::from_secs(60)));
///     }
///     Ok(())
/// }
/// # check(1).unwrap();
/// ```
pub struct Fail {
    verdict: Verdict,
    cause: Cause,
    message: String,
    chain: Vec<String>,
    location: Option<&'static Location<'static>>,
    details: Map<String, Value>,
    spread: bool,
    throttle: Option<Box<Throttle>>,
}

/// The limit that is slowed down; none: those that the job stands under. In a box of its own, as few failures have it.
#[derive(Clone, Debug)]
struct Throttle(Option<String>);

/// What shall happen to a job whose attempt did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Run again, by the kind's retry policy; uses an attempt. Dead after the last one.
    Retry,
    /// Run again after this time; uses an attempt.
    RetryAfter(Duration),
    /// Run again at this instant of the database's clock; uses an attempt.
    RetryAt(SystemTime),
    /// Run again after this time without using an attempt.
    Snooze(Duration),
    /// Never run again: to the dead letters at once.
    Permanent,
    /// End as cancelled.
    Cancelled,
}

impl Verdict {
    /// Its name in the protocol: `retry`, `snooze`, `permanent` or `cancelled`.
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Retry | Verdict::RetryAfter(_) | Verdict::RetryAt(_) => "retry",
            Verdict::Snooze(_) => "snooze",
            Verdict::Permanent => "permanent",
            Verdict::Cancelled => "cancelled",
        }
    }

    /// The delay it asks for, at most ten years; none where an instant is named, the policy decides or nothing runs again.
    pub fn delay(self) -> Option<Duration> {
        match self {
            Verdict::RetryAfter(delay) | Verdict::Snooze(delay) => Some(delay.min(DELAY_MAX)),
            Verdict::RetryAt(_) | Verdict::Retry | Verdict::Permanent | Verdict::Cancelled => None,
        }
    }

    /// The instant it asks for.
    pub fn run_at(self) -> Option<SystemTime> {
        match self {
            Verdict::RetryAt(instant) => Some(instant),
            Verdict::RetryAfter(_) | Verdict::Snooze(_) | Verdict::Retry | Verdict::Permanent | Verdict::Cancelled => {
                None
            }
        }
    }
}

/// Why an attempt ended, as recorded with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The handler returned an error.
    Error,
    /// The handler panicked.
    Panic,
    /// The handler took longer than its timeout.
    Timeout,
    /// A program ended with this exit status.
    Exit,
    /// A program was ended by a signal.
    Signal,
    /// The worker's process died or lost its lease while the job ran.
    WorkerLost,
    /// The worker gave up its registration while the job ran, and gave the job back: that uses no attempt, but for a job that
    /// it happens to more than ten times.
    GivenUp,
    /// The lease on the job was gone when the attempt ended.
    LeaseLost,
    /// Somebody cancelled the job.
    Cancelled,
    /// The handler asked to be run later.
    Snooze,
    /// The payload does not fit the kind's type.
    Payload,
}

impl Cause {
    /// Every cause.
    pub const ALL: [Cause; 11] = [
        Cause::Error,
        Cause::Panic,
        Cause::Timeout,
        Cause::Exit,
        Cause::Signal,
        Cause::WorkerLost,
        Cause::GivenUp,
        Cause::LeaseLost,
        Cause::Cancelled,
        Cause::Snooze,
        Cause::Payload,
    ];

    /// Its name in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Cause::Error => "error",
            Cause::Panic => "panic",
            Cause::Timeout => "timeout",
            Cause::Exit => "exit",
            Cause::Signal => "signal",
            Cause::WorkerLost => "worker_lost",
            Cause::GivenUp => "given_up",
            Cause::LeaseLost => "lease_lost",
            Cause::Cancelled => "cancelled",
            Cause::Snooze => "snooze",
            Cause::Payload => "payload",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Fail {
    /// Try again by the kind's retry policy (see [`after`](Fail::after) and [`at`](Fail::at)); uses an attempt.
    #[track_caller]
    pub fn retry(reason: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Fail::new(Verdict::Retry, reason.into().as_ref(), Location::caller())
    }

    /// Never try again: to the dead letters at once.
    #[track_caller]
    pub fn permanent(reason: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Fail::new(Verdict::Permanent, reason.into().as_ref(), Location::caller())
    }

    /// Run again after this time without using an attempt: not a failure, only not yet. At most ten years.
    #[track_caller]
    pub fn snooze(delay: Duration) -> Self {
        let reason: Box<dyn StdError + Send + Sync> = "snoozed by the handler".into();
        Fail::new(Verdict::Snooze(delay), reason.as_ref(), Location::caller()).cause(Cause::Snooze)
    }

    /// A provider said that it is too much (429, Retry-After): run again after this time without using an attempt, and let nothing start under
    /// the limit before, in the whole fleet. Its rate is halved, and grows by a tenth of what was set every 10 s. Of a limit that bounds keys
    /// it is the job's key that is slowed down. See [`throttled_by`](Fail::throttled_by) for jobs that stand under one limit only.
    #[track_caller]
    pub fn throttled(limit: impl Into<String>, wait: Duration) -> Self {
        Fail { throttle: Some(Box::new(Throttle(Some(limit.into())))), ..Fail::throttled_by(wait) }
    }

    /// As [`throttled`](Fail::throttled), of the limits that the job stands under and that have a rate; of all of them when none has one.
    #[track_caller]
    pub fn throttled_by(wait: Duration) -> Self {
        let reason: Box<dyn StdError + Send + Sync> = "the provider said that it is too much".into();
        let fail = Fail::new(Verdict::Snooze(wait), reason.as_ref(), Location::caller()).cause(Cause::Snooze);
        Fail { throttle: Some(Box::new(Throttle(None))), ..fail }
    }

    /// End the job as cancelled: what a handler returns after it noticed that it shall stop.
    #[track_caller]
    pub fn cancelled() -> Self {
        let reason: Box<dyn StdError + Send + Sync> = "the handler stopped because the job was cancelled".into();
        Fail::new(Verdict::Cancelled, reason.as_ref(), Location::caller()).cause(Cause::Cancelled)
    }

    /// Wait this long before the next attempt, instead of what the retry policy says. At most ten years.
    pub fn after(mut self, delay: Duration) -> Self {
        self.spread = false;
        self.verdict = match self.verdict {
            Verdict::Snooze(_) => Verdict::Snooze(delay),
            Verdict::Retry | Verdict::RetryAfter(_) | Verdict::RetryAt(_) => Verdict::RetryAfter(delay),
            Verdict::Permanent => Verdict::Permanent,
            Verdict::Cancelled => Verdict::Cancelled,
        };
        self
    }

    /// Try again at this instant of the database's clock; at once when it has passed, and in ten years at the latest. No
    /// effect on permanent failures.
    pub fn at(mut self, instant: SystemTime) -> Self {
        self.spread = false;
        self.verdict = match self.verdict {
            Verdict::Retry | Verdict::RetryAfter(_) | Verdict::RetryAt(_) => Verdict::RetryAt(instant),
            other @ (Verdict::Snooze(_) | Verdict::Permanent | Verdict::Cancelled) => other,
        };
        self
    }

    /// Records another cause than "error".
    pub fn cause(mut self, cause: Cause) -> Self {
        self.cause = cause;
        self
    }

    /// Records a further value with the attempt, for example an exit code. Text is cut at 16 KiB.
    pub fn detail(mut self, key: &str, value: impl Into<Value>) -> Self {
        let value = match value.into() {
            Value::String(text) => Value::String(storable(&text, ERROR_TEXT_BYTES_MAX).into_owned()),
            other => other,
        };
        self.details.insert(storable(key, 128).into_owned(), value);
        self
    }

    /// The delay was not chosen for this job alone: many that failed together heard the same. They come back one by one.
    pub(crate) fn spread(mut self) -> Self {
        self.spread = true;
        self
    }

    pub(crate) fn is_spread(&self) -> bool {
        self.spread
    }

    /// Does it slow down a limit?
    pub(crate) fn throttles(&self) -> bool {
        self.throttle.is_some()
    }

    pub(crate) fn throttled_limit(&self) -> Option<&str> {
        self.throttle.as_ref().and_then(|throttle| throttle.0.as_deref())
    }

    /// Where we wrote it down ourselves the place says nothing.
    pub(crate) fn without_location(mut self) -> Self {
        self.location = None;
        self
    }

    /// What shall happen to the job.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Why the attempt ended, in one word.
    pub fn cause_kind(&self) -> Cause {
        self.cause
    }

    /// Why the attempt ended, in a sentence: the error, and the first line of each error under it that the text does not contain
    /// yet (`db error: ERROR: relation "x" does not exist`); at most 16 KiB, without NUL.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// What is recorded beside the message: the chain of errors under it, where it arose, and what the handler added.
    pub fn details(&self) -> Value {
        let mut details = self.details.clone();
        if !self.chain.is_empty() {
            details.insert("chain".into(), json!(self.chain));
        }
        if let Some(location) = self.location {
            details.insert("location".into(), json!(location.to_string()));
        }
        Value::Object(details)
    }

    fn new(verdict: Verdict, reason: &(dyn StdError + 'static), location: &'static Location<'static>) -> Self {
        // Deeper chains than this are loops or noise.
        const CHAIN_MAX: usize = 16;
        let mut chain = Vec::new();
        let mut under = reason.source();
        while let Some(error) = under.filter(|_| chain.len() < CHAIN_MAX) {
            chain.push(storable(&error.to_string(), ERROR_TEXT_BYTES_MAX / CHAIN_MAX).into_owned());
            under = error.source();
        }
        Fail {
            verdict,
            cause: Cause::Error,
            message: storable(&with_sources(reason.to_string(), &chain), ERROR_TEXT_BYTES_MAX).into_owned(),
            chain,
            location: Some(location),
            details: Map::new(),
            spread: false,
            throttle: None,
        }
    }
}

/// "outer: inner: innermost": many errors say only with their sources what happened ("db error"). Some say that of their sources
/// themselves; it is not said twice. Of a source it is the first line: what follows (the DETAIL of a database's error, say) often
/// quotes values, by which failures of one cause would look like many. The chain keeps all of it.
fn with_sources(mut text: String, chain: &[String]) -> String {
    for source in chain {
        let line = source.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
        if text.trim().is_empty() {
            text = line.to_owned();
        } else if !text.contains(line) {
            text = format!("{}: {line}", text.trim_end().trim_end_matches(':'));
        }
    }
    text
}

impl<E: StdError + Send + Sync + 'static> From<E> for Fail {
    #[track_caller]
    fn from(error: E) -> Self {
        Fail::new(Verdict::Retry, &error, Location::caller())
    }
}

impl fmt::Debug for Fail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fail({:?}, {}: {:?}, {})", self.verdict, self.cause, self.message, self.details())
    }
}

impl fmt::Display for Fail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_error_is_a_retry_that_remembers_its_chain_and_place() {
        fn handler() -> Result<(), Fail> {
            Err(crate::Error::bad_input("outer", "x").with_source("inner"))?
        }
        let fail = handler().unwrap_err();
        assert_eq!(
            (fail.verdict(), fail.cause_kind(), fail.message()),
            (Verdict::Retry, Cause::Error, "outer (x): inner")
        );
        let details = fail.details();
        assert_eq!(details["chain"], json!(["inner"]));
        assert!(details["location"].as_str().unwrap().contains("fail.rs:"), "{details}");
    }

    #[test]
    fn the_message_names_what_is_under_an_error_once_and_without_the_details() {
        let check = |text: &str, chain: &[&str], expected: &str| {
            let chain: Vec<String> = chain.iter().map(|text| (*text).to_owned()).collect();
            assert_eq!(with_sources(text.to_owned(), &chain), expected);
        };
        check("alone", &[], "alone");
        check("", &["inner"], "inner");
        check("db error", &["ERROR: a key exists\nDETAIL: Key (id)=(7) exists."], "db error: ERROR: a key exists");
        check("outer", &["middle", "inner"], "outer: middle: inner");
        check("outer: inner", &["inner"], "outer: inner");
        check("outer", &["middle: inner", "inner"], "outer: middle: inner");
        check("outer:\n", &["", "\n inner\n"], "outer: inner");
        let deep = Fail::retry(crate::Error::bad_input("x".repeat(20_000), "y").with_source("inner"));
        assert!(deep.message().len() <= ERROR_TEXT_BYTES_MAX);
    }

    #[test]
    fn delays_are_kept_where_they_mean_something() {
        let (at, minute) = (SystemTime::UNIX_EPOCH + DELAY_MAX, Duration::from_secs(60));
        let check = |fail: Fail, name: &str, delay: Option<Duration>| {
            assert_eq!((fail.verdict().as_str(), fail.verdict().delay()), (name, delay), "{fail:?}");
        };
        check(Fail::retry("x"), "retry", None);
        check(Fail::retry("x").after(minute), "retry", Some(minute));
        check(Fail::retry("x").at(at), "retry", None);
        assert_eq!(Fail::retry("x").after(minute).at(at).verdict().run_at(), Some(at), "whatever the clock here says");
        check(Fail::retry("x").after(Duration::MAX), "retry", Some(DELAY_MAX));
        check(Fail::snooze(minute), "snooze", Some(minute));
        check(Fail::permanent("x").after(minute), "permanent", None);
        check(Fail::cancelled(), "cancelled", None);
    }

    #[test]
    fn texts_that_the_database_cannot_store_are_changed_and_cut() {
        let fail = Fail::retry(format!("a\0{}", "x".repeat(20_000))).detail("stderr", "b\0");
        assert!(fail.message().len() <= ERROR_TEXT_BYTES_MAX && fail.message().starts_with("a\u{fffd}x"));
        assert_eq!(fail.details()["stderr"], json!("b\u{fffd}"));
    }
}
