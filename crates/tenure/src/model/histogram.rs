//! A histogram of durations whose buckets grow with them: four to each doubling, from 0.1 ms to twenty days. Pure; what it takes and what it
//! costs does not depend on how many durations it has seen.

use std::fmt;
use std::time::Duration;

/// The first bucket ends here: shorter is all the same.
const SHORTEST: Duration = Duration::from_micros(100);
/// Doublings between the first and the last bucket: 0.1 ms * 2^34 are twenty days.
const OCTAVES: usize = 34;
const PER_OCTAVE: usize = 4;
/// One for what is shorter than [`SHORTEST`], one for what is longer than the doublings.
pub(crate) const BUCKETS: usize = 1 + OCTAVES * PER_OCTAVE + 1;
const LAST: usize = BUCKETS - 1;
/// A quarter of [`SHORTEST`], the width of the buckets of the first doubling.
const STEP_US: u64 = SHORTEST.as_micros() as u64 / PER_OCTAVE as u64;

/// Counted durations, in buckets.
///
/// Bucket 0 holds what is shorter than 0.1 ms. The buckets 1 to 136 divide each doubling from there on into four of equal width: 0.1 to 0.125 ms,
/// 0.125 to 0.15, 0.15 to 0.175, 0.175 to 0.2, 0.2 to 0.25, … So a bucket is at most a quarter as wide as its values are long. Bucket 137 holds what takes
/// 0.1 ms * 2^34 (19.9 days) or longer.
#[derive(Clone, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; BUCKETS],
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: [0; BUCKETS] }
    }
}

impl Histogram {
    /// Counts one duration.
    pub fn record(&mut self, duration: Duration) {
        self.add(bucket_of(duration), 1);
    }

    /// Adds what another one has counted.
    pub fn merge(&mut self, other: &Histogram) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count = count.saturating_add(*more);
        }
    }

    /// How many durations it has counted.
    pub fn total(&self) -> u64 {
        self.counts.iter().fold(0, |total, count| total.saturating_add(*count))
    }

    /// The part `part` of the durations, 0 to 1, took at most about so long: the middle of the bucket in which that one lies, so at most 12.5 % more or less
    /// than it really took. Below 0.1 ms it is 0.05 ms, and from 19.9 days on that. None: nothing was counted.
    pub fn percentile(&self, part: f64) -> Option<Duration> {
        let total = self.total();
        let rank = ((part * total as f64).ceil() as u64).clamp(1, total.max(1));
        let mut up_to = 0_u64;
        let reaches = |count: &u64| {
            up_to = up_to.saturating_add(*count);
            up_to >= rank
        };
        self.counts.iter().position(reaches).map(middle_of)
    }

    /// The buckets that are not empty, as lower bound, upper bound (none: there is no more) and count, the shortest first.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, Option<Duration>, u64)> + '_ {
        let filled = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        filled.map(|(bucket, count)| (lower_bound(bucket), (bucket < LAST).then(|| lower_bound(bucket + 1)), *count))
    }

    /// As it is stored: buckets and what they hold, side by side. Buckets that there are not are left out.
    pub(crate) fn from_sparse(buckets: &[i16], counts: &[i64]) -> Histogram {
        let mut histogram = Histogram::default();
        for (bucket, count) in buckets.iter().zip(counts) {
            if let (Ok(bucket), Ok(count)) = (usize::try_from(*bucket), u64::try_from(*count)) {
                histogram.add(bucket, count);
            }
        }
        histogram
    }

    fn add(&mut self, bucket: usize, count: u64) {
        if let Some(held) = self.counts.get_mut(bucket) {
            *held = held.saturating_add(count);
        }
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.buckets().map(|(from, _, count)| (from, count))).finish()
    }
}

/// The bucket of a duration.
pub(crate) fn bucket_of(duration: Duration) -> usize {
    let micros = duration.as_secs().saturating_mul(1_000_000).saturating_add(u64::from(duration.subsec_micros()));
    let steps = micros / STEP_US;
    if steps < PER_OCTAVE as u64 {
        return 0;
    }
    // A doubling has as many steps of its own width as the first one: its two leading bits tell which.
    let octave = steps.ilog2() as usize - PER_OCTAVE.ilog2() as usize;
    let quarter = (steps >> octave) as usize - PER_OCTAVE;
    (1 + octave * PER_OCTAVE + quarter).min(LAST)
}

/// The shortest duration of a bucket.
fn lower_bound(bucket: usize) -> Duration {
    match bucket.min(LAST).checked_sub(1) {
        None => Duration::ZERO,
        Some(place) => {
            Duration::from_micros(STEP_US * (PER_OCTAVE + place % PER_OCTAVE) as u64 * (1 << (place / PER_OCTAVE)))
        }
    }
}

/// What stands for all durations of a bucket.
fn middle_of(bucket: usize) -> Duration {
    if bucket >= LAST {
        return lower_bound(LAST);
    }
    (lower_bound(bucket) + lower_bound(bucket + 1)) / 2
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bounds_are_those_that_are_documented() {
        let check = |micros, bucket| assert_eq!(bucket_of(Duration::from_micros(micros)), bucket, "{micros} µs");
        check(0, 0);
        check(99, 0);
        for (micros, bucket) in [(100, 1), (125, 2), (150, 3), (175, 4), (200, 5), (250, 6), (399, 8), (400, 9)] {
            check(micros, bucket);
            assert_eq!(
                lower_bound(bucket_of(Duration::from_micros(micros))) == Duration::from_micros(micros),
                micros != 399
            );
        }
        assert_eq!((BUCKETS, lower_bound(LAST)), (138, Duration::from_micros(100 << 34)));
        check(100 << 34, LAST);
        check((100 << 34) - 1, LAST - 1);
        assert_eq!(bucket_of(Duration::MAX), LAST);
    }

    #[test]
    fn an_empty_one_has_no_percentiles() {
        assert_eq!(Histogram::default().percentile(0.5), None);
        assert_eq!(Histogram::default().buckets().count(), 0);
    }

    #[test]
    fn a_percentile_is_the_middle_of_its_bucket() {
        let mut histogram = Histogram::default();
        (0..95).for_each(|_| histogram.record(Duration::from_millis(10)));
        (0..5).for_each(|_| histogram.record(Duration::from_secs(10)));
        let ms = |part| histogram.percentile(part).expect("it has some").as_secs_f64() * 1_000.0;
        assert!((ms(0.0)..ms(0.96)).contains(&ms(0.95)), "the 95th of a hundred is a short one");
        assert!((8.8..11.3).contains(&ms(0.5)) && (8_800.0..11_300.0).contains(&ms(0.99)), "{} {}", ms(0.5), ms(0.99));
    }

    fn durations() -> impl Strategy<Value = Vec<Duration>> {
        // Of every length: as many in each doubling.
        let duration = (0_u32..45, 0.0..1.0_f64)
            .prop_map(|(octave, part)| Duration::from_micros(((1.0 + part) * 2_f64.powi(octave as i32)) as u64));
        prop::collection::vec(duration, 1..200)
    }

    fn of(durations: &[Duration]) -> Histogram {
        let mut histogram = Histogram::default();
        durations.iter().for_each(|duration| histogram.record(*duration));
        histogram
    }

    proptest! {
        #[test]
        fn every_duration_lies_within_the_bounds_of_its_bucket(micros in any::<u64>()) {
            let duration = Duration::from_micros(micros);
            let bucket = bucket_of(duration);
            prop_assert!(lower_bound(bucket) <= duration);
            prop_assert!(bucket == LAST || duration < lower_bound(bucket + 1));
        }

        #[test]
        fn a_percentile_is_as_near_to_the_real_one_as_it_says(mut seen in durations(), part in 0.0..=1.0_f64) {
            let found = of(&seen).percentile(part).expect("it has some").as_secs_f64();
            seen.sort_unstable();
            let rank = ((part * seen.len() as f64).ceil() as usize).max(1);
            let real = seen[rank - 1];
            if real < SHORTEST {
                prop_assert_eq!(found, SHORTEST.as_secs_f64() / 2.0);
            } else if real >= lower_bound(LAST) {
                prop_assert_eq!(found, lower_bound(LAST).as_secs_f64());
            } else {
                let real = real.as_secs_f64();
                prop_assert!((found - real).abs() <= real * 0.125 + 1e-9, "{found} for {real}");
            }
        }

        #[test]
        fn two_merged_are_one_that_saw_all(a in durations(), b in durations()) {
            let mut merged = of(&a);
            merged.merge(&of(&b));
            prop_assert_eq!(merged.total() as usize, a.len() + b.len());
            prop_assert_eq!(merged, of(&[a, b].concat()));
        }

        #[test]
        fn the_stored_form_loses_nothing(seen in durations()) {
            let histogram = of(&seen);
            let filled = histogram.counts.iter().enumerate().filter(|(_, count)| **count > 0);
            let (buckets, counts): (Vec<i16>, Vec<i64>) = filled.map(|(bucket, count)| (bucket as i16, *count as i64)).unzip();
            prop_assert_eq!(Histogram::from_sparse(&buckets, &counts), histogram);
        }
    }
}
