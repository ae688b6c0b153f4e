//! A clock that all processes of this machine share, and what is read off it.

/// Nanoseconds of the machine's monotonic clock.
pub fn now_ns() -> u64 {
    // SAFETY: the call writes the time into `time`, which lives as long as the call.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time);
        time
    };
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Milliseconds from one instant to another, which may be before it: then 0.
pub fn ms_between(from_ns: u64, to_ns: u64) -> f64 {
    to_ns.saturating_sub(from_ns) as f64 / 1e6
}

/// Times in order.
#[derive(Debug)]
pub struct Times(Vec<f64>);

impl Times {
    /// Of these milliseconds.
    pub fn new(mut ms: Vec<f64>) -> Times {
        ms.sort_by(f64::total_cmp);
        Times(ms)
    }

    /// The value below which this part of them lies, in percent; none of nothing.
    pub fn percentile(&self, percent: usize) -> Option<f64> {
        let place = (self.0.len() * percent / 100).min(self.0.len().checked_sub(1)?);
        self.0.get(place).copied()
    }

    /// The largest.
    pub fn longest(&self) -> Option<f64> {
        self.0.last().copied()
    }
}

/// The middle of some values; none of nothing.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_and_medians_are_values_of_their_list() {
        let times = Times::new((1..=200).rev().map(f64::from).collect());
        assert_eq!(
            (times.percentile(50), times.percentile(99), times.longest()),
            (Some(101.0), Some(199.0), Some(200.0))
        );
        assert_eq!((Times::new(Vec::new()).percentile(50), Times::new(vec![4.0]).percentile(99)), (None, Some(4.0)));
        assert_eq!((median([]), median([3.0, 1.0, 2.0]), median([4.0, 1.0])), (None, Some(2.0), Some(2.5)));
    }

    #[test]
    fn the_clock_goes_forward_and_a_negative_time_is_none() {
        let (before, after) = (now_ns(), now_ns());
        assert!(after >= before);
        assert_eq!((ms_between(2_000_000, 5_500_000), ms_between(5, 2)), (3.5, 0.0));
    }
}
