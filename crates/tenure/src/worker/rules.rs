//! Rules of schedules that were read a moment ago: very many schedules share a few of them, and are due at the same instants. To read a cron line takes as
//! long as to find two of its times.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::model::{Plan, Recent};
use crate::store::DueSchedule;
use crate::{Error, Rule};

/// The machine's time zone data may change under us.
const KEPT_FOR: Duration = Duration::from_secs(60);
/// Then all are forgotten. A rule takes some kilobytes.
const KEPT_MAX: usize = 2_000;

#[derive(Debug, Default)]
pub(super) struct Rules {
    known: HashMap<String, (Rule, Recent)>,
    since: Option<Instant>,
}

impl Rules {
    /// What to do about a schedule at `now`; none: it has no further time.
    ///
    /// # Errors
    /// When its rule cannot be read: that is tried anew each time.
    pub(super) fn plan(&mut self, schedule: &DueSchedule, now: i64) -> Result<Option<Plan>, Error> {
        if self.known.len() >= KEPT_MAX || self.since.is_some_and(|since| since.elapsed() >= KEPT_FOR) {
            *self = Rules::default();
        }
        let key = [&*schedule.rule, &schedule.zone, &schedule.gap, &schedule.twice].join("\0");
        if let Some((rule, recent)) = self.known.get(&key) {
            return plan_by(schedule, rule, Some(recent), now);
        }
        let rule = schedule.rule()?;
        // It has an anchor of its own, and is quickly read.
        if rule.is_interval() {
            return plan_by(schedule, &rule, None, now);
        }
        self.since.get_or_insert_with(Instant::now);
        let (rule, recent) = self.known.entry(key).or_insert((rule, Recent::default()));
        plan_by(schedule, rule, Some(recent), now)
    }
}

fn plan_by(schedule: &DueSchedule, rule: &Rule, recent: Option<&Recent>, now: i64) -> Result<Option<Plan>, Error> {
    let times = schedule.times(rule, recent)?;
    Ok(schedule.first(&times).map(|first| times.plan(first, now)))
}
