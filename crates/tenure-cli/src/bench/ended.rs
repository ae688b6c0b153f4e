//! What worker processes did, as each of them tells it at its end, and all of them together.

use serde::{Deserialize, Serialize};
use tenure::Stats;

/// What a worker process did, or several together.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Ended {
    /// When how many jobs were completed.
    pub points: Vec<(u64, u64)>,
    pub claims: u64,
    pub flushes: u64,
    pub completed: u64,
    /// CPU time from its beginning to work to the end, or to the last completed job where its parent has put that here.
    pub cpu_us: u64,
    /// The most memory that one process had resident; none where the system does not say.
    pub peak_mb: Option<f64>,
    /// All was recorded, and the worker has signed off.
    pub clean: bool,
}

impl Ended {
    /// From what a worker counted.
    pub fn of(stats: &Stats, clean: bool, points: Vec<(u64, u64)>, cpu_us: u64, peak_mb: Option<f64>) -> Ended {
        let Stats { claims, flushes, completed, .. } = *stats;
        Ended { points, claims, flushes, completed, cpu_us, peak_mb, clean }
    }

    /// Several processes as one.
    pub fn together(all: Vec<Ended>) -> Ended {
        let sum = |of: fn(&Ended) -> u64| all.iter().map(of).sum();
        Ended {
            points: in_order_of_time(&all),
            claims: sum(|end| end.claims),
            flushes: sum(|end| end.flushes),
            completed: sum(|end| end.completed),
            cpu_us: sum(|end| end.cpu_us),
            peak_mb: all.iter().filter_map(|end| end.peak_mb).reduce(f64::max),
            clean: all.iter().all(|end| end.clean),
        }
    }

    /// Jobs a second in each of so many equal parts of all jobs, from the first completed one on; empty when there are too few
    /// instants to tell.
    pub fn slices(&self, jobs: u64, parts: u64) -> Vec<f64> {
        let Some(&(mut from, mut before)) = self.points.first() else { return Vec::new() };
        let mut rates = Vec::new();
        for part in 1..=parts {
            let wanted = jobs * part / parts;
            match self.points.iter().find(|(_, sum)| *sum >= wanted) {
                Some(&(at, sum)) if at > from => {
                    rates.push((sum - before) as f64 * 1e9 / (at - from) as f64);
                    (from, before) = (at, sum);
                }
                _ => return Vec::new(),
            }
        }
        rates
    }
}

/// When how many jobs were completed by all of them.
fn in_order_of_time(all: &[Ended]) -> Vec<(u64, u64)> {
    let mut points = Vec::new();
    for (n, end) in all.iter().enumerate() {
        points.extend(end.points.iter().map(|(at, jobs)| (*at, n, *jobs)));
    }
    points.sort_unstable();
    let (mut of_each, mut sum) = (vec![0; all.len()], 0);
    let add = |(at, n, jobs): (u64, usize, u64)| {
        sum += jobs - std::mem::replace(&mut of_each[n], jobs);
        (at, sum)
    };
    points.into_iter().map(add).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(points: &[(u64, u64)], peak_mb: Option<f64>) -> Ended {
        Ended { points: points.to_vec(), claims: 2, flushes: 3, completed: 10, cpu_us: 400, peak_mb, clean: true }
    }

    #[test]
    fn several_workers_are_added_up_in_the_order_of_time() {
        let all = vec![ended(&[(10, 4), (30, 10)], None), ended(&[(20, 5), (40, 10)], Some(21.5))];
        let all = Ended::together(all);
        assert_eq!(all.points, [(10, 4), (20, 9), (30, 15), (40, 20)]);
        assert_eq!((all.claims, all.flushes, all.completed, all.cpu_us, all.peak_mb), (4, 6, 20, 800, Some(21.5)));
    }

    #[test]
    fn slices_are_rates_of_equal_parts() {
        let second = 1_000_000_000;
        let points = (0..=10).map(|n| (second * (10 + n * n), n * 100)).collect();
        let ended = Ended { points, ..Ended::default() };
        assert_eq!(ended.slices(1_000, 2), [500.0 / 25.0, 500.0 / 75.0]);
        assert_eq!(ended.slices(2_000, 2), [0.0; 0], "they were not all seen");
        assert_eq!(Ended::default().slices(10, 10), [0.0; 0]);
    }
}
