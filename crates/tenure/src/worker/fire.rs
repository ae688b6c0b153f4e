//! Firing of schedules: what the database names as due is decided here, where the rules of time zones are known, and done
//! there in one transaction. Any worker may do it at any time; see `sql/functions/fire.sql` for why that is safe.

use std::time::{Duration, Instant};

use super::rules::Rules;
use crate::store::{Decision, DueSchedule, Session, StoreError};

/// When to come again after a turn that failed.
const AGAIN: Duration = Duration::from_secs(1);
/// Between two turns when one was not enough: whatever else of the control connection is due then comes first.
const BETWEEN: Duration = Duration::from_millis(1);
/// After a turn that did nothing although something is due: that is in somebody else's hands, and asking for it again at once, again and again, would
/// only take time from him. After each further one twice as long, up to half a second.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Deciding ends after so long, with what is decided by then; the rest has its turn next. Heartbeats share the connection.
const DECIDING_MAX: Duration = Duration::from_millis(200);

/// Between two warnings that schedules cannot fire: of one whose queue is full that is found each second.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// The firing that a control connection does.
#[derive(Debug, Default)]
pub(super) struct Firing {
    /// When the next turn is.
    at: Option<Instant>,
    /// Some may have been due long ago. It stays so until a turn found that none is left: no other would look for them, for half a minute.
    overdue: bool,
    pause: Pause,
    rules: Rules,
    warned_at: Option<Instant>,
}

/// How long the next turn is waited for when this one does nothing.
#[derive(Debug)]
struct Pause(Duration);

impl Default for Pause {
    fn default() -> Self {
        Pause(PAUSE)
    }
}

/// What is known after a turn.
#[derive(Clone, Copy, Debug)]
struct Turn {
    /// There were more than fit into it.
    more: bool,
    /// Something was done, if only that a failure was noted.
    done: bool,
    /// When something is to be done, as the database says: 0 when it is overdue, none when that is not soon.
    next_ms: Option<i64>,
    /// When something is to be done that is not overdue yet.
    then_ms: Option<i64>,
    took: Duration,
}

impl Firing {
    /// When the next turn is wanted, if that is soon.
    pub(super) fn at(&self) -> Option<Instant> {
        self.at
    }

    /// The database names a time in so many milliseconds; 0: it is overdue.
    pub(super) fn want(&mut self, ms: i64) {
        let at = Instant::now() + wait(ms);
        self.at = Some(if self.overdue { self.at.map_or(at, |other| other.min(at)) } else { at });
        self.overdue |= ms == 0;
    }

    /// One turn.
    pub(super) async fn turn(&mut self, session: &Session) {
        let start = Instant::now();
        let turn = self.fire(session).await;
        self.at = self.after(turn, start);
    }

    fn after(&mut self, turn: Result<Turn, StoreError>, start: Instant) -> Option<Instant> {
        match turn {
            Ok(turn) => {
                self.overdue &= turn.more;
                self.pause.after(turn).map(|next| Instant::now() + next)
            }
            Err(error) => {
                tracing::warn!(%error, "schedules could not be fired");
                Some(start + AGAIN)
            }
        }
    }

    async fn fire(&mut self, session: &Session) -> Result<Turn, StoreError> {
        let start = Instant::now();
        let due = session.due_schedules(self.overdue).await?;
        let (mut more, moved) = (due.more, due.moved > 0);
        if due.schedules.is_empty() {
            return Ok(Turn { more, done: moved, next_ms: due.next_ms, then_ms: due.then_ms, took: start.elapsed() });
        }
        let now = due.now_us.div_euclid(1_000_000);
        let decisions = decide_all(&mut self.rules, &due.schedules, now, DECIDING_MAX);
        let fired = session.fire(&decisions).await?;
        self.warn(fired.failed);
        tracing::debug!(jobs = fired.jobs, schedules = decisions.len(), "schedules were fired");
        more |= decisions.len() < due.schedules.len();
        // What there was no time for. Where nothing was done, it is in somebody else's hands.
        more |= self.overdue && fired.done > 0 && fired.done < decisions.len() as u64;
        let (next_ms, then_ms) = (fired.next_ms, fired.then_ms);
        Ok(Turn { more, done: moved || fired.done > 0, next_ms, then_ms, took: start.elapsed() })
    }

    fn warn(&mut self, failed: u64) {
        if failed > 0 && self.warned_at.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
            self.warned_at = Some(Instant::now());
            tracing::warn!(schedules = failed, "schedules cannot fire: `tenure schedule list` says why");
        }
    }
}

impl Pause {
    /// Until the next turn, if that is soon. One that did nothing was in vain, since somebody else is at the same ones: he is not disturbed, and while there
    /// is much to do for as long as it took; but what becomes due meanwhile does not wait for him.
    fn after(&mut self, turn: Turn) -> Option<Duration> {
        if turn.done || !turn.more && turn.next_ms != Some(0) {
            *self = Pause::default();
            return if turn.more { Some(BETWEEN) } else { turn.next_ms.map(wait) };
        }
        let in_vain = if turn.more { self.0.max(turn.took) } else { self.0 };
        self.0 = (self.0 * 2).min(PAUSE_MAX);
        Some(turn.then_ms.map_or(in_vain, |ms| wait(ms).max(BETWEEN).min(in_vain)))
    }
}

/// What to do about them, one at least, as far as the time goes.
fn decide_all(rules: &mut Rules, due: &[DueSchedule], now: i64, time: Duration) -> Vec<Decision> {
    let start = Instant::now();
    let mut decisions = Vec::with_capacity(due.len());
    for schedule in due {
        decisions.push(decide(rules, schedule, now));
        if start.elapsed() >= time {
            break;
        }
    }
    decisions
}

fn wait(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or_default())
}

/// What to do about one schedule; of one whose rule cannot be read only why.
fn decide(rules: &mut Rules, schedule: &DueSchedule, now: i64) -> Decision {
    let mut decision = Decision {
        id: schedule.id,
        version: schedule.version,
        look_us: schedule.look_us,
        was_us: schedule.next_us,
        fire_us: Vec::new(),
        out_us: None,
        next_us: schedule.next_us,
        more: false,
        error: None,
        unread: false,
    };
    match rules.plan(schedule, now) {
        Ok(Some(plan)) => {
            decision.fire_us = plan.fire.into_iter().map(micros).collect();
            decision.out_us = plan.left_out.map(|out| [micros(out.first), micros(out.last), out.count.into()]);
            decision.next_us = plan.next.map(micros);
            decision.more = plan.more;
        }
        Ok(None) => decision.next_us = None,
        Err(error) => {
            tracing::debug!(%error, schedule = schedule.name, "a schedule's rule cannot be read");
            decision.error = Some(error.to_string());
            decision.unread = true;
        }
    }
    decision
}

fn micros(second: i64) -> i64 {
    second * 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn turn(more: bool, done: bool, next_ms: Option<i64>) -> Turn {
        Turn { more, done, next_ms, then_ms: None, took: MS(90) }
    }

    #[test]
    fn a_turn_that_did_nothing_is_not_repeated_at_once() {
        for (more, done, next_ms, expected) in [
            (false, false, Some(0), Some(MS(20))),
            (false, false, Some(3), Some(MS(3))),
            (false, false, None, None),
            (false, true, Some(0), Some(MS(0))),
            (true, false, Some(0), Some(MS(90))),
            (true, true, None, Some(MS(1))),
        ] {
            assert_eq!(Pause::default().after(turn(more, done, next_ms)), expected, "{more} {done} {next_ms:?}");
        }
    }

    #[test]
    fn what_is_overdue_is_looked_for_until_nothing_of_it_is_left() {
        let lost = || Err(StoreError::Protocol("no answer".to_owned()));
        let mut firing = Firing::default();
        firing.want(0);
        for (result, overdue) in [
            (Ok(turn(true, true, None)), true),
            (lost(), true),
            (Ok(turn(true, false, None)), true),
            (Ok(turn(false, true, None)), false),
        ] {
            let next = firing.after(result, Instant::now());
            assert_eq!((firing.overdue, next.is_some()), (overdue, overdue));
        }
    }

    #[test]
    fn turns_in_vain_come_ever_more_seldom_and_what_becomes_due_is_not_late_for_them() {
        let mut pause = Pause::default();
        let in_vain = turn(false, false, Some(0));
        let pauses: Vec<_> = (0..7).map(|_| pause.after(in_vain)).collect();
        assert_eq!(pauses, [20, 40, 80, 160, 320, 500, 500].map(|ms| Some(MS(ms))));
        assert_eq!(pause.after(Turn { then_ms: Some(7), ..in_vain }), Some(MS(7)));
        assert_eq!(pause.after(Turn { then_ms: Some(1_200), ..in_vain }), Some(MS(500)));
        assert_eq!(pause.after(turn(false, true, Some(0))), Some(MS(0)));
        assert_eq!(pause.after(in_vain), Some(MS(20)), "something was done meanwhile");
    }

    #[test]
    fn deciding_ends_in_time_and_one_is_decided_in_any_case() {
        let schedule = |id: i64| {
            let value = serde_json::json!({
                "id": id, "version": 1, "name": "n", "rule": "@every 1s", "zone": "UTC", "gap": "next", "twice": "first",
                "missed": "latest", "missed_max": 1, "missed_window_ms": 1000, "anchor_us": 0, "from_us": 0,
            });
            serde_json::from_value(value).unwrap()
        };
        let due: Vec<DueSchedule> = (0..50).map(schedule).collect();
        let ids = |time| {
            decide_all(&mut Rules::default(), &due, 1_000_000, time)
                .iter()
                .map(|decision| decision.id)
                .collect::<Vec<_>>()
        };
        assert_eq!(ids(Duration::ZERO), [0]);
        assert_eq!(ids(Duration::from_secs(60)), (0..50).collect::<Vec<_>>());
    }

    #[test]
    fn schedules_that_share_a_rule_are_decided_as_if_each_had_its_own() {
        let schedule = |id: i64, rule: &str, anchor: i64, next: i64, policy: &str| -> DueSchedule {
            let value = serde_json::json!({
                "id": id, "version": 1, "name": "n", "rule": rule, "zone": "Europe/Berlin", "gap": "next", "twice": policy,
                "missed": "latest", "missed_max": 1, "missed_window_ms": 1000, "anchor_us": anchor, "next_us": next * 1_000_000, "last_us": 0,
            });
            serde_json::from_value(value).unwrap()
        };
        // Around the hour that comes twice, late and in time, and by anchors of their own.
        let (hour, now) = (3_600, 1_792_892_000);
        let due: Vec<DueSchedule> = (0..200)
            .map(|n| {
                let rule = ["30 2 * * *", "0 * * * *", "@every 1h", "@every 90m"][n as usize % 4];
                let policy = ["first", "second", "both"][n as usize / 4 % 3];
                schedule(n, rule, n * 1_000_000, now - n % 13 * hour, policy)
            })
            .collect();
        let mut rules = Rules::default();
        for due in &due {
            let told = |decision: Decision| serde_json::to_string(&decision).unwrap();
            assert_eq!(told(decide(&mut rules, due, now)), told(decide(&mut Rules::default(), due, now)), "{due:?}");
        }
    }

    #[test]
    fn a_rule_that_many_share_is_read_once() {
        let schedule = |id: i64| -> DueSchedule {
            let value = serde_json::json!({
                "id": id, "version": 1, "name": "n", "rule": "30 12 1 12 *", "zone": "Europe/Berlin", "gap": "next", "twice": "first",
                "missed": "latest", "missed_max": 1, "missed_window_ms": 1000, "anchor_us": id, "next_us": 1_796_124_600_000_000_i64, "last_us": id,
            });
            serde_json::from_value(value).unwrap()
        };
        let took = |due: &[DueSchedule]| {
            let start = Instant::now();
            assert_eq!(decide_all(&mut Rules::default(), due, 1_796_124_600, Duration::from_secs(60)).len(), due.len());
            start.elapsed()
        };
        // The least of some: others use the machine as well.
        let least = |of: usize| (0..5).map(|_| took(&(0..of as i64).map(schedule).collect::<Vec<_>>())).min().unwrap();
        let (one, many) = (least(1), least(1_000));
        assert!(many < one * 200, "{one:?} for one, {many:?} for 1,000");
    }
}
