//! How long the jobs of a kind take, as observed, and what follows from it: how far a worker may run ahead of its
//! slots, and whether a kind's jobs get a lease row each.

use std::time::Duration;

/// Fewer observations than this say nothing.
const KNOWN_AFTER: u32 = 8;
/// At this number all counts are halved, so that the past is forgotten.
const FORGET_AT: u32 = 512;
/// Buckets per doubling of the run time: the p95 is at most 19 % too high.
const STEPS: f64 = 4.0;
/// 1 µs to 2^40 µs, about twelve days.
const BUCKETS: usize = 160;

/// A kind whose p95 is above this is claimed only for slots that are free.
const AHEAD_BELOW: Duration = Duration::from_millis(100);
/// What is claimed beyond the free slots starts within this time.
const AHEAD_WINDOW: Duration = Duration::from_millis(250);
/// What a worker holds unstarted, at most, per queue: also the largest claim.
pub(super) const AHEAD_MAX: usize = 1000;
/// A kind whose p95 is above this gets a lease row per job: its jobs may end in their handlers' own transactions
/// without waiting for each other.
const SOLO_ABOVE: Duration = Duration::from_millis(10);

/// The run times of one kind: counts in buckets of the logarithm.
pub(super) struct Pace {
    counts: [u32; BUCKETS],
    total: u32,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { counts: [0; BUCKETS], total: 0 }
    }
}

impl Pace {
    pub(super) fn observe(&mut self, ran: Duration) {
        if self.total >= FORGET_AT {
            self.total = 0;
            for count in &mut self.counts {
                *count /= 2;
                self.total += *count;
            }
        }
        self.counts[bucket(ran)] += 1;
        self.total += 1;
    }

    /// Ninety-five of a hundred jobs take at most this long. None: too few were seen.
    pub(super) fn p95(&self) -> Option<Duration> {
        if self.total < KNOWN_AFTER {
            return None;
        }
        let above_max = self.total / 20;
        let mut above = 0;
        let top = (0..BUCKETS).rev().find(|&bucket| {
            above += self.counts[bucket];
            above > above_max
        });
        top.map(upper_bound)
    }

    /// May jobs of this kind be claimed before a slot is free?
    pub(super) fn is_quick(&self) -> bool {
        self.p95().is_some_and(|p95| p95 <= AHEAD_BELOW)
    }

    /// Should each job have a lease row of its own?
    pub(super) fn wants_solo(&self) -> bool {
        self.p95().is_none_or(|p95| p95 > SOLO_ABOVE)
    }
}

/// Jobs beyond the free slots that start within the window when each takes `p95` and `slots` run at a time.
pub(super) fn ahead(p95: Duration, slots: usize) -> usize {
    let rounds = AHEAD_WINDOW.as_nanos() / p95.as_nanos().max(1);
    usize::try_from(rounds).unwrap_or(usize::MAX).saturating_mul(slots).min(AHEAD_MAX)
}

fn bucket(ran: Duration) -> usize {
    let micros = ran.as_secs_f64() * 1e6;
    let step = if micros <= 1.0 { 0.0 } else { (micros.log2() * STEPS).ceil() };
    (step as usize).min(BUCKETS - 1)
}

fn upper_bound(bucket: usize) -> Duration {
    Duration::from_secs_f64((bucket as f64 / STEPS).exp2() / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn pace(runs: impl IntoIterator<Item = Duration>) -> Pace {
        let mut pace = Pace::default();
        runs.into_iter().for_each(|ran| pace.observe(ran));
        pace
    }

    #[test]
    fn nothing_is_known_of_a_kind_at_first() {
        let new = pace([MS(1); 7]);
        assert_eq!((new.p95(), new.is_quick(), new.wants_solo()), (None, false, true));
    }

    #[test]
    fn the_p95_is_close_and_never_too_low() {
        for ms in [1, 3, 10, 99, 1000, 3_600_000] {
            let p95 = pace([MS(ms); 50]).p95().expect("known");
            assert!(p95 >= MS(ms).mul_f64(0.999) && p95 <= MS(ms).mul_f64(1.2), "{ms} ms: {p95:?}");
        }
        let mixed = pace((0..100).map(|n| if n < 96 { MS(1) } else { MS(1000) }));
        assert!(mixed.p95().expect("known") < MS(2));
    }

    #[test]
    fn a_kind_that_becomes_slow_is_noticed() {
        let mut pace = pace([Duration::from_micros(20); 5000]);
        assert!(pace.is_quick() && !pace.wants_solo());
        (0..40).for_each(|_| pace.observe(MS(500)));
        assert!(!pace.is_quick() && pace.wants_solo());
    }

    #[test]
    fn a_worker_runs_ahead_by_what_starts_within_the_window() {
        let check = |p95, slots, expected| assert_eq!(ahead(p95, slots), expected, "{p95:?} {slots}");
        check(MS(100), 4, 8);
        check(MS(10), 4, 100);
        check(Duration::from_micros(5), 4, 1000);
        check(Duration::ZERO, 1, 1000);
        check(MS(300), 4, 0);
    }
}
