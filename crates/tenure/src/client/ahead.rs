//! Times ahead: what programs compute for pg_cron, which fires schedules where no worker is up and knows no rules of time
//! zones. See `sql/functions/ahead.sql`.

use std::time::{Duration, Instant};

use crate::Error;
use crate::store::{DueSchedule, Session, StoreError, TimesAhead};

/// Of one schedule, at most.
const TIMES: usize = 512;
/// Computing a list ends after so long: some dates are years apart. It is then shorter, and renewed sooner.
const LIST_MAX: Duration = Duration::from_millis(20);
/// Schedules of one turn, at most. A worker's heartbeat waits for that.
const BATCH: i32 = 10;
/// Turns after a change; the rest is left to workers.
const TURNS_MAX: usize = 100;

/// Computes the times that are wanted and stores them; whether there may be more of them. Where nobody uses pg_cron it is one
/// question.
pub(crate) async fn refresh(session: &Session) -> Result<bool, StoreError> {
    let wanted = session.times_wanted(BATCH).await?;
    if wanted.is_empty() {
        return Ok(false);
    }
    let lists: Vec<TimesAhead> = wanted.iter().map(compute).collect();
    session.set_times_ahead(&lists).await?;
    Ok(wanted.len() >= BATCH as usize)
}

/// The same until all have theirs, after schedules were changed. What was changed stays changed whatever becomes of this: a worker
/// does it otherwise, or the schedule says that it has no times ahead.
pub(crate) async fn refresh_all(session: &Session) {
    for _ in 0..TURNS_MAX {
        match refresh(session).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => return tracing::debug!(%error, "times ahead of schedules could not be stored"),
        }
    }
}

/// The list of one whose rule cannot be read is empty, and so not asked for again before the schedule is changed.
fn compute(schedule: &DueSchedule) -> TimesAhead {
    let (times, complete) = times_of(schedule).unwrap_or_else(|error| {
        tracing::debug!(%error, schedule = schedule.name, "a schedule has no times ahead");
        (Vec::new(), false)
    });
    let times_us = times.into_iter().map(|second| second * 1_000_000).collect();
    TimesAhead { id: schedule.id, version: schedule.version, times_us, complete }
}

fn times_of(schedule: &DueSchedule) -> Result<(Vec<i64>, bool), Error> {
    let start = Instant::now();
    let rule = schedule.rule()?;
    let times = schedule.times(&rule, None)?;
    let mut found = Vec::with_capacity(TIMES);
    let mut next = schedule.first(&times);
    // Two at least: the last one is never fired, as what follows it is not known.
    while let Some(at) = next.filter(|_| found.len() < TIMES && (found.len() < 2 || start.elapsed() < LIST_MAX)) {
        found.push(at);
        next = times.next_after(at);
    }
    Ok((found, next.is_none()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(rule: &str, ends_us: Option<i64>) -> DueSchedule {
        let value = serde_json::json!({
            "id": 1, "version": 3, "name": "n", "rule": rule, "zone": "Europe/Berlin", "gap": "next", "twice": "first",
            "missed": "latest", "missed_max": 1, "missed_window_ms": 1000, "anchor_us": 0, "ends_us": ends_us, "from_us": 0,
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn half_a_thousand_times_or_all_that_there_are() {
        let ahead = compute(&schedule("@every 1m", None));
        assert_eq!((ahead.times_us.len(), ahead.complete), (TIMES, false));
        assert_eq!(ahead.times_us[..2], [60_000_000, 120_000_000]);
        let ahead = compute(&schedule("@every 1m", Some(180_000_000)));
        assert_eq!((ahead.times_us, ahead.complete), (vec![60_000_000, 120_000_000, 180_000_000], true));
        let ahead = compute(&schedule("61 * * * *", None));
        assert_eq!((ahead.times_us, ahead.complete, ahead.version), (vec![], false, 3));
    }

    #[test]
    fn rare_dates_take_no_longer_than_common_ones() {
        let start = Instant::now();
        let ahead = compute(&schedule("0 0 29 2 MON", None));
        assert!(ahead.times_us.len() >= 2 && start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    }
}
