//! What has to be done about a schedule whose time has come: which times are fired, which are left out, and when it is
//! looked at next. Nothing here knows a clock: the database's instant is given.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::{Missed, Rule};

/// A time that is found so late counts as late, not as missed: a worker that died with the turn, or a database that was
/// restarted, leaves out no run of any policy.
pub(crate) const LATE: i64 = 10;
/// A zone may leave out a whole day: by no more than that its rules move a time.
const SHIFT_MAX: i64 = 86_400;
/// Times of one schedule that one turn goes through, at most. What is left comes with the next turn, at once.
const LOOK_MAX: usize = 2_000;
/// Answers of a rule that are kept: the stored time and the next one are asked for, and some schedules are late.
const RECENT_MAX: usize = 8;

/// A schedule as far as its times are concerned. All instants in seconds since 1970.
#[derive(Debug)]
pub(crate) struct Times<'a> {
    pub(crate) rule: &'a Rule,
    pub(crate) recent: Option<&'a Recent>,
    pub(crate) starts_at: Option<i64>,
    pub(crate) ends_at: Option<i64>,
    pub(crate) missed: Missed,
}

/// What was asked of a rule last: of many schedules of one rule that are due at the same instant the same is asked.
#[derive(Debug, Default)]
pub(crate) struct Recent(Mutex<Vec<(i64, Option<i64>)>>);

impl Recent {
    fn next_after(&self, rule: &Rule, after: i64) -> Option<i64> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, next)) = kept.iter().find(|(asked, _)| *asked == after) {
            return *next;
        }
        let next = rule.next_after(after);
        if kept.len() >= RECENT_MAX {
            kept.remove(0);
        }
        kept.push((after, next));
        next
    }
}

/// Times that are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeftOut {
    pub(crate) first: i64,
    pub(crate) last: i64,
    pub(crate) count: u32,
}

/// What to do.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Logical times to enqueue for, oldest first.
    pub(crate) fire: Vec<i64>,
    /// Missed, and left out by the policy: older than all of `fire`.
    pub(crate) left_out: Option<LeftOut>,
    /// The first time that is not dealt with; none: there is no further one.
    pub(crate) next: Option<i64>,
    /// That time has come as well: there were too many for one turn.
    pub(crate) more: bool,
}

impl Times<'_> {
    /// The first time after this instant, within start and end.
    pub(crate) fn next_after(&self, after: i64) -> Option<i64> {
        let after = self.starts_at.map_or(after, |start| after.max(start - 1));
        let next = match self.recent {
            Some(recent) => recent.next_after(self.rule, after),
            None => self.rule.next_after(after),
        };
        next.filter(|at| self.ends_at.is_none_or(|end| *at <= end))
    }

    /// `next`, which was computed before, if it is still a time; otherwise the one that is in its place by the zone's rules of today, after
    /// the `last` that something was decided for. Rules change with a few weeks' notice, and a program brings them along: one that was updated must
    /// not fire by those of the day on which the time was stored.
    pub(crate) fn still(&self, next: i64, last: Option<i64>) -> Option<i64> {
        match self.next_after(next - 1) {
            Some(at) if at == next => Some(next),
            // What is further back was decided, also where nothing of it is noted as the last time.
            _ => self.next_after(last.map_or(next - 1, |last| last.max(next - SHIFT_MAX))),
        }
    }

    /// What to do at `now`, when `next` is the first time that nothing was done about.
    pub(crate) fn plan(&self, next: i64, now: i64) -> Plan {
        let mut come = Vec::new();
        let mut ahead = Some(next);
        while let Some(at) = ahead.filter(|at| *at <= now && come.len() < LOOK_MAX) {
            come.push(at);
            ahead = self.next_after(at);
        }
        let more = ahead.is_some_and(|at| at <= now);
        let missed = come.partition_point(|at| *at < now - LATE);
        if more {
            // Which of them are the latest is not known yet. Those that cannot be are done with.
            let done = come.len().saturating_sub(self.may_run()).min(missed);
            return Plan {
                fire: Vec::new(),
                left_out: left_out(&come[..done]),
                next: come.get(done).copied().or(ahead),
                more,
            };
        }
        let run_from = match self.missed {
            Missed::Skip => missed,
            // Of times of which some are only late, the latest is no missed one.
            Missed::Latest if missed == come.len() => missed.saturating_sub(1),
            Missed::Latest => missed,
            Missed::All { max, window } => {
                let oldest = now - seconds(window);
                let too_old = come.partition_point(|at| *at < oldest);
                too_old.min(missed).max(missed.saturating_sub(max as usize))
            }
        };
        Plan { fire: come[run_from..].to_vec(), left_out: left_out(&come[..run_from]), next: ahead, more }
    }

    /// How many missed times run, at most.
    fn may_run(&self) -> usize {
        match self.missed {
            Missed::Skip => 0,
            Missed::Latest => 1,
            Missed::All { max, .. } => max as usize,
        }
    }
}

fn left_out(times: &[i64]) -> Option<LeftOut> {
    let count = u32::try_from(times.len()).unwrap_or(u32::MAX);
    times.first().zip(times.last()).map(|(first, last)| LeftOut { first: *first, last: *last, count })
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3600;

    /// A minute's schedule that was to run first at 0, looked at `late` seconds later.
    fn plan(missed: Missed, every: &str, late: i64) -> Plan {
        let rule = Rule::new(every, "UTC").unwrap();
        Times { rule: &rule, recent: None, starts_at: None, ends_at: None, missed }.plan(0, late)
    }

    fn all(max: u32, window: i64) -> Missed {
        Missed::All { max, window: Duration::from_secs(window as u64) }
    }

    #[test]
    fn a_time_that_is_none_any_more_gives_way_to_the_one_in_its_place() {
        let rule = Rule::new("30 2 * * *", "Europe/Berlin").unwrap();
        let times = Times { rule: &rule, recent: None, starts_at: None, ends_at: None, missed: Missed::Latest };
        // 02:30 in Berlin on 5 and 6 March 2027; the zone is an hour ahead of UTC.
        let (last, next) = (1_804_210_200, 1_804_296_600);
        assert_eq!(times.next_after(last), Some(next), "the numbers are those of the rule");
        assert_eq!(times.still(next, Some(last)), Some(next));
        // Stored when the zone was thought to be two hours ahead, or none: it comes by its own clock.
        assert_eq!(times.still(next - HOUR, Some(last)), Some(next));
        assert_eq!(times.still(next + HOUR, Some(last)), Some(next), "late, and not left out");
        assert_eq!(times.still(next + HOUR, Some(next)), Some(next + 24 * HOUR), "it has run by now");
        // What was decided long ago is not decided again.
        assert_eq!(times.still(next + HOUR, Some(last - 30 * 24 * HOUR)), Some(next));
    }

    #[test]
    fn in_time_one_is_fired_whatever_the_policy() {
        for missed in [Missed::Skip, Missed::Latest, all(1, 60)] {
            let expected = Plan { fire: vec![0], left_out: None, next: Some(60), more: false };
            assert_eq!(plan(missed, "* * * * *", 0), expected);
            assert_eq!(plan(missed, "* * * * *", 10), expected, "late, not missed");
        }
        let each = plan(Missed::Skip, "@every 1s", 3);
        assert_eq!((each.fire, each.next), (vec![0, 1, 2, 3], Some(4)));
    }

    #[test]
    fn what_was_missed_in_six_hours_follows_the_policy() {
        let check = |missed: Missed, fire: &[i64], left_out: u32| {
            let plan = plan(missed, "* * * * *", 6 * HOUR - 1);
            assert_eq!(plan.fire, fire, "{missed:?}");
            assert_eq!(plan.left_out.as_ref().map_or(0, |left| left.count), left_out, "{missed:?}");
            assert_eq!((plan.next, plan.more), (Some(6 * HOUR), false));
        };
        let minutes = |from: i64| (from..360).map(|minute| minute * 60).collect::<Vec<_>>();
        check(Missed::Skip, &[], 360);
        check(Missed::Latest, &minutes(359), 359);
        check(all(1000, 24 * HOUR), &minutes(0), 0);
        check(all(3, 24 * HOUR), &minutes(357), 357);
        check(all(1000, 299), &minutes(355), 355);
    }

    #[test]
    fn what_is_only_late_is_the_latest_run() {
        // Every 20 s: 0 to 60 missed, 80 only late at 85.
        let plan = plan(Missed::Latest, "@every 20s", 85);
        assert_eq!(plan.fire, [80]);
        assert_eq!(plan.left_out, Some(LeftOut { first: 0, last: 60, count: 4 }));
    }

    #[test]
    fn a_long_outage_is_gone_through_in_pieces_and_ends_like_a_short_one() {
        for (missed, fired) in [(Missed::Skip, 10), (Missed::Latest, 10), (all(100, 1_000_000), 110)] {
            let rule = Rule::new("@every 1s", "UTC").unwrap();
            let times = Times { rule: &rule, recent: None, starts_at: None, ends_at: None, missed };
            let (now, mut next, mut left_out, mut fire) = (100_000, 0, 0, Vec::new());
            let mut turns = 0;
            loop {
                let plan = times.plan(next, now);
                left_out += plan.left_out.map_or(0, |left| left.count);
                fire.extend(plan.fire);
                let ahead = plan.next.unwrap();
                assert!(ahead > next, "{missed:?}");
                next = ahead;
                turns += 1;
                if !plan.more {
                    break;
                }
            }
            assert_eq!(fire, (now - fired..=now).collect::<Vec<_>>(), "{missed:?}");
            assert_eq!((i64::from(left_out), next), (now - fired, now + 1), "{missed:?}");
            assert!(turns < 120, "{turns}");
        }
    }

    #[test]
    fn nothing_runs_before_the_start_or_after_the_end() {
        let rule = Rule::new("* * * * *", "UTC").unwrap();
        let times =
            Times { rule: &rule, recent: None, starts_at: Some(600), ends_at: Some(720), missed: Missed::Latest };
        assert_eq!(times.next_after(0), Some(600));
        assert_eq!(times.next_after(600), Some(660));
        assert_eq!(times.plan(720, 721), Plan { fire: vec![720], left_out: None, next: None, more: false });
    }
}
