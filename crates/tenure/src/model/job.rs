use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::limits::{
    ATTEMPTS_DEFAULT, ATTEMPTS_MAX, DELAY_MAX, PAYLOAD_BYTES_MAX, PRIORITY_DEFAULT, PRIORITY_MAX, PRIORITY_MIN,
    QUEUE_DEFAULT, TIMEOUT_MAX,
};
use super::under::{Limits, Under};
use super::{RawJson, names};
use crate::Error;

/// A kind of job, as the type of its payload.
///
/// ```
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct SendMail {
///     to: String,
/// }
///
/// impl tenure::Job for SendMail {
///     const KIND: &'static str = "send_mail";
/// }
/// ```
pub trait Job: Serialize + DeserializeOwned + Send + 'static {
    /// The kind's name in the database, 1 to 128 bytes. Changing it leaves waiting jobs without a handler.
    const KIND: &'static str;
}

/// A job to enqueue: kind, payload and options.
///
/// ```
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct SendMail { to: String }
/// # impl tenure::Job for SendMail { const KIND: &'static str = "send_mail"; }
/// # fn main() -> Result<(), tenure::Error> {
/// use std::time::Duration;
/// use tenure::Enqueue;
///
/// let job = Enqueue::new(&SendMail { to: "ada@example.org".into() })?
///     .queue("mail")
///     .priority(1)
///     .delay(Duration::from_secs(60));
/// # assert_eq!(job.kind(), "send_mail");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Enqueue {
    kind: String,
    payload: RawJson,
    options: JobOptions,
}

impl Enqueue {
    /// A job of the payload's kind.
    ///
    /// # Errors
    /// `BadInput`: the payload has no JSON form, or one that PostgreSQL cannot store.
    pub fn new<J: Job>(payload: &J) -> Result<Self, Error> {
        Ok(Enqueue::raw(J::KIND, RawJson::of(payload)?))
    }

    /// A job of any kind with a payload that is JSON already.
    pub fn raw(kind: impl Into<String>, payload: RawJson) -> Self {
        Enqueue { kind: kind.into(), payload, options: JobOptions::default() }
    }

    /// Replaces all options.
    pub fn options(mut self, options: JobOptions) -> Self {
        self.options = options;
        self
    }

    /// See [`JobOptions::queue`].
    pub fn queue(self, queue: impl Into<String>) -> Self {
        self.with(|options| options.queue(queue))
    }

    /// See [`JobOptions::priority`].
    pub fn priority(self, priority: i16) -> Self {
        self.with(|options| options.priority(priority))
    }

    /// See [`JobOptions::delay`].
    pub fn delay(self, delay: Duration) -> Self {
        self.with(|options| options.delay(delay))
    }

    /// See [`JobOptions::run_at`].
    pub fn run_at(self, instant: SystemTime) -> Self {
        self.with(|options| options.run_at(instant))
    }

    /// See [`JobOptions::max_attempts`].
    pub fn max_attempts(self, attempts: i16) -> Self {
        self.with(|options| options.max_attempts(attempts))
    }

    /// See [`JobOptions::timeout`].
    pub fn timeout(self, timeout: Duration) -> Self {
        self.with(|options| options.timeout(timeout))
    }

    /// See [`JobOptions::under`].
    pub fn under(self, limit: impl Into<Under>) -> Self {
        self.with(|options| options.under(limit))
    }

    /// See [`JobOptions::fair`].
    pub fn fair(self, key: impl Into<String>, share: u16) -> Self {
        self.with(|options| options.fair(key, share))
    }

    /// See [`JobOptions::order`].
    pub fn order(self, key: impl Into<String>) -> Self {
        self.with(|options| options.order(key))
    }

    /// See [`JobOptions::steps_aside`].
    pub fn steps_aside(self) -> Self {
        self.with(JobOptions::steps_aside)
    }

    /// The kind.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The payload.
    pub fn payload(&self) -> &RawJson {
        &self.payload
    }

    pub(crate) fn job_options(&self) -> &JobOptions {
        &self.options
    }

    /// Checks all values. Enqueueing does it too; this is for those who want to know before.
    ///
    /// # Errors
    /// `BadInput`, naming the first wrong value.
    pub fn check(&self) -> Result<(), Error> {
        names::check_kind(&self.kind)?;
        check_payload(&self.payload)?;
        self.options.check()
    }

    fn with(mut self, change: impl FnOnce(JobOptions) -> JobOptions) -> Self {
        self.options = change(self.options);
        self
    }
}

/// How a job shall be run: queue, priority, time, attempts, timeout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobOptions {
    pub(crate) queue: String,
    pub(crate) priority: i16,
    pub(crate) start: Start,
    pub(crate) max_attempts: i16,
    pub(crate) timeout: Option<Duration>,
    pub(crate) limits: Limits,
}

/// When a job may first run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    Now,
    After(Duration),
    At(SystemTime),
}

impl Default for JobOptions {
    fn default() -> Self {
        JobOptions {
            queue: QUEUE_DEFAULT.to_owned(),
            priority: PRIORITY_DEFAULT,
            start: Start::Now,
            max_attempts: ATTEMPTS_DEFAULT,
            timeout: None,
            limits: Limits::default(),
        }
    }
}

impl JobOptions {
    /// The defaults: queue `default`, priority 2, at once, 5 attempts, the kind's timeout.
    pub fn new() -> Self {
        JobOptions::default()
    }

    /// The queue: 1 to 128 bytes; `default` when not given. A queue needs no declaration.
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queue = queue.into();
        self
    }

    /// 1 (most urgent) to 4; 2 when not given. A worker takes a more urgent job of a queue first.
    pub fn priority(mut self, priority: i16) -> Self {
        self.priority = priority;
        self
    }

    /// Not before this time has passed, by the database's clock; at most 10 years. Replaces [`run_at`](Self::run_at).
    pub fn delay(mut self, delay: Duration) -> Self {
        self.start = Start::After(delay);
        self
    }

    /// Not before this instant, by the database's clock; at once when it has passed. Replaces [`delay`](Self::delay).
    pub fn run_at(mut self, instant: SystemTime) -> Self {
        self.start = Start::At(instant);
        self
    }

    /// How often it may be tried, 1 to 1,000; 5 when not given. Then it is a dead letter.
    pub fn max_attempts(mut self, attempts: i16) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// How long one attempt may take, at most a year; the kind's own timeout when not given, no limit when zero.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// It stands under this limit too, eight at most: it runs when all of them let it. A name is enough for a limit without keys.
    pub fn under(mut self, limit: impl Into<Under>) -> Self {
        self.limits.under.push(limit.into());
        self
    }

    /// The keys of a queue (1 to 128 bytes) take turns, in proportion to their shares (1 to 1,000), however many jobs each of them has.
    pub fn fair(mut self, key: impl Into<String>, share: u16) -> Self {
        self.limits.fair = Some((key.into(), share));
        self
    }

    /// Jobs of a queue with this key (1 to 128 bytes) run one at a time, in the order in which they were enqueued. While one that failed waits for its retry those
    /// behind it wait too, until it has completed, is dead or is cancelled ([`steps_aside`](Self::steps_aside)). Priorities do not count among them.
    pub fn order(mut self, key: impl Into<String>) -> Self {
        self.limits.order = Some(key.into());
        self
    }

    /// Should it fail, those behind it in its [`order`](Self::order) go on while it waits for its retry. Without an order it is refused.
    pub fn steps_aside(mut self) -> Self {
        self.limits.steps_aside = true;
        self
    }

    /// Checks all values.
    ///
    /// # Errors
    /// `BadInput`, naming the first wrong value.
    pub fn check(&self) -> Result<(), Error> {
        self.limits.check()?;
        names::check_queue(&self.queue)?;
        check_range("priority", self.priority, PRIORITY_MIN, PRIORITY_MAX, "1 is the most urgent")?;
        check_range("max_attempts", self.max_attempts, 1, ATTEMPTS_MAX, "1 means never again")?;
        if let Start::After(delay) = self.start
            && delay > DELAY_MAX
        {
            return Err(Error::bad_input(
                format!("the delay of {} s is longer than 10 years", delay.as_secs()),
                "use a shorter delay, and a job that enqueues the next one",
            ));
        }
        if let Start::At(instant) = self.start {
            check_instant(instant)?;
        }
        match self.timeout {
            Some(timeout) if timeout > TIMEOUT_MAX => Err(Error::bad_input(
                format!("the timeout of {} s is longer than a year", timeout.as_secs()),
                "zero means no limit",
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// Milliseconds of the delay, rounded up.
    pub(crate) fn delay_ms(&self) -> Option<i64> {
        match self.start {
            Start::After(delay) => Some(millis_up(delay)),
            Start::Now | Start::At(_) => None,
        }
    }

    /// Microseconds since 1970 of the instant.
    pub(crate) fn run_at_micros(&self) -> Option<i64> {
        match self.start {
            Start::At(instant) => Some(micros(instant)),
            Start::Now | Start::After(_) => None,
        }
    }

    pub(crate) fn timeout_ms(&self) -> Option<i64> {
        self.timeout.map(millis_up)
    }
}

/// Milliseconds, rounded up so that a short time never becomes none.
pub(crate) fn millis_up(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}

/// Microseconds since 1970; those before it are negative.
pub(crate) fn micros(instant: SystemTime) -> i64 {
    match instant.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_micros()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_micros()).map_or(i64::MIN, |micros| -micros),
    }
}

/// The whole second that an instant lies in.
pub(crate) fn seconds_of(instant: SystemTime) -> i64 {
    micros(instant).div_euclid(1_000_000)
}

/// The first whole second that is not before an instant.
pub(crate) fn second_from(instant: SystemTime) -> i64 {
    -micros(instant).saturating_neg().div_euclid(1_000_000)
}

/// The instant at which a second begins.
pub(crate) fn system_time(second: i64) -> SystemTime {
    let away = std::time::Duration::from_secs(second.unsigned_abs());
    if second < 0 { SystemTime::UNIX_EPOCH - away } else { SystemTime::UNIX_EPOCH + away }
}

/// The database compares with its own clock; this only refuses what it could not even represent.
fn check_instant(instant: SystemTime) -> Result<(), Error> {
    const YEAR_9999: Duration = Duration::from_secs(253_402_300_799);
    match instant.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) if after > YEAR_9999 => {
            Err(Error::bad_input("run_at is after the year 9999", "run_at is at most 10 years ahead"))
        }
        Ok(_) => Ok(()),
        Err(_) => {
            Err(Error::bad_input("run_at is before 1970", "an instant in the past means at once: leave run_at out"))
        }
    }
}

fn check_range(what: &str, value: i16, min: i16, max: i16, note: &str) -> Result<(), Error> {
    match (min..=max).contains(&value) {
        true => Ok(()),
        false => Err(Error::bad_input(format!("{what} {value} is outside {min} to {max}"), note)),
    }
}

/// The database knows the configured limit; this is the one above which nothing is sent at all.
pub(crate) fn check_payload(payload: &RawJson) -> Result<(), Error> {
    let bytes = payload.get().len();
    match bytes <= PAYLOAD_BYTES_MAX {
        true => Ok(()),
        false => Err(Error::bad_input(
            format!("the payload has {bytes} bytes, more than {PAYLOAD_BYTES_MAX}"),
            "store the document elsewhere and enqueue its id",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_values_are_named() {
        let job = || Enqueue::raw("k", RawJson::null());
        let check = |job: Enqueue, expected: &str| {
            assert!(job.check().unwrap_err().to_string().contains(expected), "{expected}: {:?}", job.check());
        };
        assert!(job().check().is_ok());
        check(Enqueue::raw("", RawJson::null()), "the kind name is empty");
        check(job().queue("a\0"), "the queue name \"a\\0\" contains the control character U+0000");
        check(job().priority(0), "priority 0 is outside 1 to 4");
        check(job().priority(5), "priority 5 is outside 1 to 4");
        check(job().max_attempts(0), "max_attempts 0 is outside 1 to 1000");
        check(job().delay(DELAY_MAX + Duration::from_secs(1)), "the delay of 315576001 s is longer than 10 years");
        check(job().run_at(SystemTime::UNIX_EPOCH - Duration::from_secs(1)), "run_at is before 1970");
        check(job().timeout(Duration::MAX), "is longer than a year");
        let large = RawJson::of(&"x".repeat(PAYLOAD_BYTES_MAX)).unwrap();
        check(Enqueue::raw("k", large), "the payload has 16777218 bytes, more than 16777216");
    }

    #[test]
    fn times_are_sent_as_whole_numbers_that_are_never_early() {
        assert_eq!(millis_up(Duration::from_nanos(1)), 1);
        assert_eq!(millis_up(Duration::from_millis(7)), 7);
        assert_eq!(millis_up(Duration::MAX), i64::MAX);
        assert_eq!(micros(SystemTime::UNIX_EPOCH + Duration::from_micros(5)), 5);
        assert_eq!(micros(SystemTime::UNIX_EPOCH - Duration::from_micros(5)), -5);
    }
}
