//! When to try again: the delay before the next attempt.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::limits::{DELAY_MAX, RETRY_BASE, RETRY_CAP, RETRY_FACTOR, RETRY_JITTER};

/// How long to wait before the next attempt.
///
/// The default is exponential: 2 s after the first attempt, twice as long after each further one, at most an hour, plus
/// 0 to 25 % so that jobs that failed together do not come back together. A delay is never longer than ten years.
///
/// A delay is decided when an attempt fails: another policy counts from the next failure on, and jobs that wait already
/// keep their time. A function of [`custom`](RetryPolicy::custom) that panics is replaced by the default policy.
///
/// ```
/// use std::time::Duration;
/// use tenure::RetryPolicy;
///
/// let policy = RetryPolicy::exponential(Duration::from_secs(1), 3.0, Duration::from_secs(60));
/// assert_eq!(policy.delay(1, 0.0), Duration::from_secs(1));
/// assert_eq!(policy.delay(3, 0.0), Duration::from_secs(9));
/// assert_eq!(policy.delay(9, 0.0), Duration::from_secs(60));
/// ```
#[derive(Clone)]
pub struct RetryPolicy {
    shape: Shape,
    jitter: Jitter,
}

/// What chance does to a delay `d`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Jitter {
    /// Nothing.
    None,
    /// Adds up to this part of it: `d` to `d * (1 + part)`; 0.25 by default. Never earlier than `d`.
    Add(f64),
    /// Anything from zero to `d`.
    Full,
    /// Half of it is certain: `d / 2` to `d`.
    Equal,
}

type CustomDelay = Arc<dyn Fn(u16) -> Duration + Send + Sync>;

#[derive(Clone)]
enum Shape {
    Exponential { base: Duration, factor: f64, cap: Duration },
    Fixed(Duration),
    Linear { step: Duration, cap: Duration },
    List(Vec<Duration>),
    Custom(CustomDelay),
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy::exponential(RETRY_BASE, RETRY_FACTOR, RETRY_CAP)
    }
}

impl RetryPolicy {
    /// `base` after the first attempt, `factor` times as long after each further one, at most `cap` (before jitter).
    ///
    /// A factor below 1 or without end, or not a number, counts as 1.
    pub fn exponential(base: Duration, factor: f64, cap: Duration) -> Self {
        RetryPolicy::shaped(Shape::Exponential { base, factor, cap })
    }

    /// Always the same delay.
    pub fn fixed(delay: Duration) -> Self {
        RetryPolicy::shaped(Shape::Fixed(delay))
    }

    /// `step` after the first attempt, two steps after the second, and so on, at most `cap`.
    pub fn linear(step: Duration, cap: Duration) -> Self {
        RetryPolicy::shaped(Shape::Linear { step, cap })
    }

    /// The n-th delay after the n-th attempt; the last one from then on. An empty list means no delay.
    pub fn list(delays: impl IntoIterator<Item = Duration>) -> Self {
        RetryPolicy::shaped(Shape::List(delays.into_iter().collect()))
    }

    /// Whatever the function says for the number of the attempt that failed (1 is the first).
    pub fn custom(delay: impl Fn(u16) -> Duration + Send + Sync + 'static) -> Self {
        RetryPolicy::shaped(Shape::Custom(Arc::new(delay)))
    }

    /// Replaces the jitter.
    pub fn jitter(mut self, jitter: Jitter) -> Self {
        self.jitter = jitter;
        self
    }

    /// The delay after attempt number `attempt` (1 is the first) for a chance of 0 (earliest) to 1 (latest).
    pub fn delay(&self, attempt: u16, chance: f64) -> Duration {
        let chance = if chance.is_finite() { chance.clamp(0.0, 1.0) } else { 0.0 };
        let steps = attempt.max(1) - 1;
        let plain = seconds(match &self.shape {
            Shape::Exponential { base, factor, cap } => {
                let factor = if factor.is_finite() { factor.max(1.0) } else { 1.0 };
                (base.as_secs_f64() * factor.powi(i32::from(steps))).min(cap.as_secs_f64())
            }
            Shape::Fixed(delay) => delay.as_secs_f64(),
            Shape::Linear { step, cap } => (step.as_secs_f64() * (f64::from(steps) + 1.0)).min(cap.as_secs_f64()),
            Shape::List(delays) => delays.get(usize::from(steps)).or(delays.last()).map_or(0.0, Duration::as_secs_f64),
            Shape::Custom(delay) => delay(attempt).as_secs_f64(),
        });
        let seconds_plain = plain.as_secs_f64();
        match self.jitter {
            Jitter::None => plain,
            // Added to the exact value, so that rounding cannot make it earlier.
            Jitter::Add(part) if part.is_finite() && part > 0.0 => {
                plain.saturating_add(seconds(seconds_plain * part * chance)).min(DELAY_MAX)
            }
            Jitter::Add(_) => plain,
            Jitter::Full => seconds(seconds_plain * chance),
            Jitter::Equal => seconds(seconds_plain * (0.5 + 0.5 * chance)),
        }
    }

    fn shaped(shape: Shape) -> Self {
        RetryPolicy { shape, jitter: Jitter::Add(RETRY_JITTER) }
    }
}

/// Seconds as a duration between nothing and the limit, whatever the number.
fn seconds(value: f64) -> Duration {
    match value.is_nan() {
        true => Duration::ZERO,
        false => Duration::from_secs_f64(value.clamp(0.0, DELAY_MAX.as_secs_f64())),
    }
}

impl fmt::Debug for RetryPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.shape {
            Shape::Exponential { base, factor, cap } => write!(f, "exponential({base:?}, {factor}, {cap:?})")?,
            Shape::Fixed(delay) => write!(f, "fixed({delay:?})")?,
            Shape::Linear { step, cap } => write!(f, "linear({step:?}, {cap:?})")?,
            Shape::List(delays) => write!(f, "list({delays:?})")?,
            Shape::Custom(_) => write!(f, "custom")?,
        }
        write!(f, ".jitter({:?})", self.jitter)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn the_shapes_do_what_they_say() {
        let check = |policy: RetryPolicy, expected: [u64; 4]| {
            let policy = policy.jitter(Jitter::None);
            assert_eq!([1, 2, 3, 20].map(|n| policy.delay(n, 0.5)), expected.map(S), "{policy:?}");
        };
        check(RetryPolicy::default(), [2, 4, 8, 3600]);
        check(RetryPolicy::fixed(S(7)), [7, 7, 7, 7]);
        check(RetryPolicy::linear(S(10), S(60)), [10, 20, 30, 60]);
        check(RetryPolicy::list([S(1), S(5)]), [1, 5, 5, 5]);
        check(RetryPolicy::list([]), [0, 0, 0, 0]);
        check(RetryPolicy::custom(|attempt| S(u64::from(attempt) * 100)), [100, 200, 300, 2000]);
    }

    #[test]
    fn jitter_moves_a_delay_within_its_bounds() {
        let check = |jitter: Jitter, earliest: f64, latest: f64| {
            let policy = RetryPolicy::fixed(S(8)).jitter(jitter);
            assert_eq!((policy.delay(1, 0.0).as_secs_f64(), policy.delay(1, 1.0).as_secs_f64()), (earliest, latest));
        };
        check(Jitter::None, 8.0, 8.0);
        check(Jitter::Add(0.25), 8.0, 10.0);
        check(Jitter::Full, 0.0, 8.0);
        check(Jitter::Equal, 4.0, 8.0);
        check(Jitter::Add(f64::NAN), 8.0, 8.0);
    }

    /// The scenario's numbers: a thousand attempts, and bases and factors that make no sense.
    #[test]
    fn a_thousand_delays_grow_up_to_the_cap_and_nonsense_is_no_hot_loop() {
        let policy = RetryPolicy::exponential(S(15), 2.0, S(3600));
        let delays: Vec<_> = (1..=1000).map(|attempt| policy.delay(attempt, 0.0)).collect();
        assert!(delays.is_sorted() && delays[0] == S(15) && delays[999] == S(3600));
        let month = RetryPolicy::exponential(S(30 * 86_400), 2.0, Duration::MAX);
        assert_eq!(month.delay(u16::MAX, 1.0), DELAY_MAX);
        for factor in [0.5, 0.0, -2.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let policy = RetryPolicy::exponential(S(15), factor, S(3600));
            for attempt in [1, 2, 64, 1000] {
                assert!(policy.delay(attempt, 0.0) >= S(15), "factor {factor}, attempt {attempt}");
            }
        }
        assert_eq!(RetryPolicy::custom(|_| Duration::MAX).delay(1, 1.0), DELAY_MAX);
        assert_eq!(RetryPolicy::exponential(Duration::ZERO, 2.0, S(3600)).delay(1000, 1.0), Duration::ZERO, "as asked");
    }

    /// Ten thousand jobs fail in the same moment and wait a minute: the busiest second of their return.
    #[test]
    fn a_wave_of_failures_comes_back_spread_and_never_early() {
        let share = |jitter: Jitter| {
            let policy = RetryPolicy::fixed(S(60)).jitter(jitter);
            let mut seconds = std::collections::HashMap::new();
            for n in 0..10_000 {
                let delay = policy.delay(1, f64::from(n) / 10_000.0);
                assert!(delay >= S(60) || jitter != Jitter::Add(RETRY_JITTER));
                *seconds.entry(delay.as_secs()).or_insert(0) += 1;
            }
            f64::from(seconds.into_values().max().unwrap_or(0)) / 10_000.0
        };
        assert!(share(Jitter::Add(RETRY_JITTER)) < 0.07 && share(Jitter::Full) < 0.02 && share(Jitter::Equal) < 0.04);
    }

    proptest! {
        #[test]
        fn no_numbers_overflow_and_the_default_is_never_early(
            base: Duration, factor: f64, cap: Duration, attempt: u16, chance: f64, part: f64,
        ) {
            let policies = || [
                RetryPolicy::exponential(base, factor, cap), RetryPolicy::linear(base, cap), RetryPolicy::fixed(base),
                RetryPolicy::list([base, cap]), RetryPolicy::custom(move |_| base),
            ];
            for policy in policies() {
                let plain = policy.clone().jitter(Jitter::None).delay(attempt, chance);
                prop_assert!(plain <= DELAY_MAX);
                let at = |jitter| policy.clone().jitter(jitter).delay(attempt, chance);
                prop_assert!(at(Jitter::Add(part)) >= plain && at(Jitter::Add(part)) <= DELAY_MAX);
                // A microsecond for the rounding of numbers with a point.
                let slack = Duration::from_micros(1) + plain.mul_f64(1e-9);
                prop_assert!(at(Jitter::Full) <= plain + slack);
                prop_assert!(at(Jitter::Equal) + slack >= plain / 2 && at(Jitter::Equal) <= plain + slack);
            }
        }

        #[test]
        fn the_default_grows_up_to_its_cap(attempt in 1_u16..1_000, chance in 0.0..1.0_f64) {
            let policy = RetryPolicy::default();
            let delay = policy.delay(attempt, chance);
            prop_assert!(delay >= policy.delay(attempt, 0.0));
            prop_assert!(delay <= RETRY_CAP.mul_f64(1.25));
            prop_assert!(policy.delay(attempt + 1, 0.0) >= policy.delay(attempt, 0.0));
        }
    }
}
