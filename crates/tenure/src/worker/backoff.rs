//! The waits between tries to reach the database: growing, capped, jittered, for ever.

use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_millis(20);
const CAP: Duration = Duration::from_secs(2);
/// While there is something to lose by coming late.
const CAP_HURRIED: Duration = Duration::from_millis(200);

/// Counts failed tries.
#[derive(Clone, Default)]
pub(super) struct Backoff {
    tries: u32,
    failing_since: Option<Instant>,
}

impl Backoff {
    /// How long to wait before the next try: half to all of 20 ms, 40 ms … 2 s, so that a thousand workers do not come
    /// back in the same instant and none waits long after a short outage.
    pub(super) fn next(&mut self) -> Duration {
        self.up_to(CAP)
    }

    /// The same for a worker that still has a registration, and jobs, to lose: 200 ms at most.
    pub(super) fn next_hurried(&mut self) -> Duration {
        self.up_to(CAP_HURRIED)
    }

    fn up_to(&mut self, cap: Duration) -> Duration {
        let full = FIRST.saturating_mul(1 << self.tries.min(10)).min(cap);
        self.tries += 1;
        self.failing_since.get_or_insert_with(Instant::now);
        full.mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    pub(super) fn reset(&mut self) {
        self.tries = 0;
        self.failing_since = None;
    }

    pub(super) fn has_failed(&self) -> bool {
        self.tries > 0
    }

    /// It went well. Says for how long it did not, so that whoever was told of the failures also hears of their end.
    pub(super) fn recovered(&mut self) -> Option<Duration> {
        let failing_since = self.failing_since;
        self.reset();
        failing_since.map(|since| since.elapsed())
    }

    /// Worth a line in the log: the first tries and then ever fewer.
    pub(super) fn is_loud(&self) -> bool {
        self.tries.is_power_of_two()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_cap_and_stay_there() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..5_000).map(|_| backoff.next()).collect();
        assert!(waits[0] >= FIRST / 2 && waits[0] <= FIRST);
        assert!(waits[20..].iter().all(|wait| *wait >= CAP / 2 && *wait <= CAP));
        assert!(backoff.next_hurried() <= CAP_HURRIED);
    }

    #[test]
    fn only_what_failed_has_recovered() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.recovered(), None);
        backoff.next();
        assert!(backoff.recovered().is_some());
        assert_eq!(backoff.recovered(), None);
    }
}
