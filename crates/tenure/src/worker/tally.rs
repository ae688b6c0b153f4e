//! What a worker counts of each queue and kind between two of its reports. A job costs some additions to counters that lie side by side: nothing is
//! allocated, locked or sent for it.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use super::kinds::Kind;
use super::line::Queue;
use super::report::{Ending, Report};
use crate::model::Verdict;
use crate::model::histogram::{BUCKETS, bucket_of};
use crate::store::FailStatus;
use crate::store::stats::GroupStats;

/// A claim or a group of ends that takes this long is worth a report of a worker that does nothing else.
const SLOW: Duration = Duration::from_millis(100);

/// All that is counted.
pub(super) struct Tallies {
    kinds: usize,
    /// By queue and kind; made when the first job of both comes, since most workers handle each of their kinds in one queue.
    tallies: Box<[OnceLock<Box<Tally>>]>,
    /// From the sending of a claim to its answer.
    pub(super) claims: Times,
    /// The same of a group of ends.
    pub(super) flushes: Times,
    clock: Mutex<Option<(SystemTime, Instant)>>,
}

/// What is counted of one queue and kind.
#[derive(Default)]
pub(super) struct Tally {
    started: Count,
    completed: Count,
    failed: Count,
    retried: Count,
    dead: Count,
    cancelled: Count,
    snoozed: Count,
    released: Count,
    pub(super) overruns: Count,
    /// From the moment from which a job could run to its first start.
    wait: Times,
    /// Of each attempt.
    pub(super) run: Times,
}

/// A number that is taken away now and then.
#[derive(Default)]
pub(super) struct Count(AtomicU32);

/// Durations in the buckets of [`crate::model::Histogram`].
pub(super) struct Times([AtomicU32; BUCKETS]);

impl Count {
    pub(super) fn one(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    /// What stands there, which then begins anew. Most are zero, and a look is cheaper than an exchange.
    fn take(&self) -> u32 {
        if self.0.load(Relaxed) == 0 { 0 } else { self.0.swap(0, Relaxed) }
    }
}

impl Default for Times {
    fn default() -> Times {
        Times([const { AtomicU32::new(0) }; BUCKETS])
    }
}

impl Times {
    pub(super) fn record(&self, duration: Duration) {
        self.0[bucket_of(duration)].fetch_add(1, Relaxed);
    }

    fn has_slow(&self) -> bool {
        self.0[bucket_of(SLOW)..].iter().any(|count| count.load(Relaxed) > 0)
    }

    /// The buckets that are not empty, and what they held; they begin anew.
    pub(super) fn take(&self) -> (Vec<u8>, Vec<u32>) {
        let filled = self.0.iter().enumerate().filter(|(_, count)| count.load(Relaxed) > 0);
        filled.map(|(bucket, count)| (bucket as u8, count.swap(0, Relaxed))).unzip()
    }
}

impl Tallies {
    pub(super) fn new(queues: usize, kinds: usize) -> Tallies {
        let tallies = (0..queues * kinds).map(|_| OnceLock::new()).collect();
        Tallies { kinds, tallies, claims: Times::default(), flushes: Times::default(), clock: Mutex::new(None) }
    }

    /// None: the worker has no such kind.
    pub(super) fn of(&self, queue: usize, kind: usize) -> Option<&Tally> {
        let tally = self.tallies.get(queue * self.kinds + kind).filter(|_| kind < self.kinds)?;
        Some(tally.get_or_init(Box::default))
    }

    /// A handler starts. `waited`: since its job could run, if it never started before.
    pub(super) fn started(&self, queue: usize, kind: usize, waited: Option<Duration>) {
        if let Some(tally) = self.of(queue, kind) {
            tally.started.one();
            if let Some(waited) = waited {
                tally.wait.record(waited);
            }
        }
    }

    /// Jobs that the database says have completed; some of them `refused`.
    pub(super) fn completed(&self, reports: &[Report], refused: &[Report]) {
        self.each(reports, refused, |tally| tally.completed.one());
    }

    /// Jobs that went back unrun; some of them `refused`.
    pub(super) fn released(&self, reports: &[Report], refused: &[Report]) {
        self.each(reports, refused, |tally| tally.released.one());
    }

    fn each(&self, reports: &[Report], refused: &[Report], count: impl Fn(&Tally)) {
        let is_refused = |report: &Report| refused.iter().any(|other| other.is_of_the_same(report));
        for report in reports.iter().filter(|report| refused.is_empty() || !is_refused(report)) {
            if let Some(tally) = self.of(report.queue, report.kind) {
                count(tally);
            }
        }
    }

    /// The end of an attempt that was not reported as completed, as the database has it.
    pub(super) fn ended(&self, report: &Report, status: FailStatus) {
        let Some(tally) = self.of(report.queue, report.kind) else { return };
        match (&report.ending, status) {
            (Ending::CompletedItself(_), FailStatus::Already) => tally.completed.one(),
            (_, FailStatus::Retrying) => tally.failed_once(),
            (_, FailStatus::Dead) => tally.failed_for_good(),
            (_, FailStatus::Released) => tally.released.one(),
            (_, FailStatus::Snoozed) => tally.snoozed.one(),
            (_, FailStatus::Cancelled) => tally.cancelled.one(),
            // Recorded before, and the answer was lost: it was what was asked for.
            (_, FailStatus::Already) => tally.ended_as_asked(report),
            // Not the last word on it.
            (_, FailStatus::Lost) => {}
        }
    }

    /// The database's clock, as just heard.
    pub(super) fn set_clock(&self, now: SystemTime) {
        *self.clock.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, Instant::now()));
    }

    /// What the database's clock showed at that time. None: it was never heard.
    pub(super) fn clock_at(&self, at: Instant) -> Option<SystemTime> {
        let (now, heard) = (*self.clock.lock().unwrap_or_else(PoisonError::into_inner))?;
        match at.checked_duration_since(heard) {
            Some(later) => now.checked_add(later),
            None => now.checked_sub(heard - at),
        }
    }

    /// Whether claims or groups of ends were slow.
    pub(super) fn has_slow(&self) -> bool {
        self.claims.has_slow() || self.flushes.has_slow()
    }

    /// What was counted since the last time, of those of which something was.
    pub(super) fn take<'a>(&self, queues: &'a [Queue], kinds: &'a [Kind]) -> Vec<GroupStats<'a>> {
        let mut groups = Vec::new();
        for (place, tally) in self.tallies.iter().enumerate() {
            let Some(tally) = tally.get() else { continue };
            let (queue, kind) = (&queues[place / self.kinds].name, &kinds[place % self.kinds].name);
            let names = || GroupStats { queue, kind, ..GroupStats::default() };
            let group = tally.take(names());
            if group != names() {
                groups.push(group);
            }
        }
        groups
    }
}

impl Tally {
    fn failed_once(&self) {
        self.failed.one();
        self.retried.one();
    }

    fn failed_for_good(&self) {
        self.failed.one();
        self.dead.one();
    }

    fn ended_as_asked(&self, report: &Report) {
        let Some(failure) = report.failure() else { return };
        let is = |verdict: Verdict| failure.verdict == verdict.as_str();
        if matches!(report.ending, Ending::GivenUp(_)) {
            self.released.one();
        } else if is(Verdict::Cancelled) {
            self.cancelled.one();
        } else if is(Verdict::Permanent) || is(Verdict::Retry) && failure.attempt >= failure.max_attempts {
            self.failed_for_good();
        } else if is(Verdict::Retry) {
            self.failed_once();
        } else {
            self.snoozed.one();
        }
    }

    fn take<'a>(&self, names: GroupStats<'a>) -> GroupStats<'a> {
        let ((wait_buckets, wait_counts), (run_buckets, run_counts)) = (self.wait.take(), self.run.take());
        GroupStats {
            started: self.started.take(),
            completed: self.completed.take(),
            failed: self.failed.take(),
            retried: self.retried.take(),
            dead: self.dead.take(),
            cancelled: self.cancelled.take(),
            snoozed: self.snoozed.take(),
            released: self.released.take(),
            overruns: self.overruns.take(),
            wait_buckets,
            wait_counts,
            run_buckets,
            run_counts,
            ..names
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Failure;
    use super::super::report::tests::{a_failure, failure, report};
    use super::*;

    fn only(tallies: &Tallies) -> GroupStats<'static> {
        tallies.of(0, 0).expect("a tally").take(GroupStats::default())
    }

    #[test]
    fn what_was_taken_is_not_taken_again() {
        let tallies = Tallies::new(1, 1);
        tallies.started(0, 0, Some(Duration::from_millis(3)));
        tallies.started(0, 0, None);
        let reports = [report(1, 0, 7, Ending::Completed(None)), report(1, 1, 7, Ending::Completed(None))];
        tallies.completed(&reports, &reports[1..]);
        let taken = only(&tallies);
        assert_eq!((taken.started, taken.completed, taken.wait_counts), (2, 1, vec![1]));
        assert_eq!(taken.wait_buckets, [bucket_of(Duration::from_millis(3)) as u8]);
        assert_eq!(only(&tallies), GroupStats::default());
    }

    #[test]
    fn a_queue_or_kind_that_the_worker_does_not_have_is_not_counted_as_another() {
        let tallies = Tallies::new(2, 3);
        assert!(tallies.of(1, 2).is_some() && tallies.of(0, 3).is_none() && tallies.of(2, 0).is_none());
    }

    #[test]
    fn an_end_that_was_recorded_before_counts_as_what_was_asked_for() {
        let check = |ending: Ending, expected: [u32; 6]| {
            let tallies = Tallies::new(1, 1);
            tallies.ended(&report(1, 0, 7, ending.clone()), FailStatus::Already);
            let t = only(&tallies);
            assert_eq!([t.completed, t.retried, t.dead, t.cancelled, t.snoozed, t.released], expected, "{ending:?}");
            assert_eq!(t.failed, t.retried + t.dead);
        };
        let with = |verdict, attempt| Ending::Failed(Box::new(Failure { verdict, attempt, ..*a_failure() }));
        check(failure(), [0, 1, 0, 0, 0, 0]);
        check(with("retry", 5), [0, 0, 1, 0, 0, 0]);
        check(with("permanent", 1), [0, 0, 1, 0, 0, 0]);
        check(with("cancelled", 1), [0, 0, 0, 1, 0, 0]);
        check(with("snooze", 1), [0, 0, 0, 0, 1, 0]);
        check(Ending::GivenUp(a_failure()), [0, 0, 0, 0, 0, 1]);
        check(Ending::CompletedItself(a_failure()), [1, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn the_databases_clock_is_carried_on_by_ours() {
        let tallies = Tallies::new(1, 1);
        assert_eq!(tallies.clock_at(Instant::now()), None);
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        tallies.set_clock(at);
        let later = tallies.clock_at(Instant::now() + Duration::from_secs(60)).expect("it was heard");
        assert!((at + Duration::from_secs(60)..at + Duration::from_secs(70)).contains(&later), "{later:?}");
    }
}
