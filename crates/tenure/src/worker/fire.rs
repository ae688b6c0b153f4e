//! Firing of schedules: what the database names as due is decided here, where the rules of time zones are known, and done
//! there in one transaction. Any worker may do it at any time; see `sql/functions/fire.sql` for why that is safe.

use std::time::{Duration, Instant};

use crate::Error;
use crate::model::Plan;
use crate::store::{Decision, DueSchedule, FIRE_BATCH, Session, StoreError};

/// When to come again after a turn that failed.
const AGAIN: Duration = Duration::from_secs(1);
/// Between two turns when one was not enough: whatever else of the control connection is due then comes first.
const BETWEEN: Duration = Duration::from_millis(1);

/// One turn: when the next one is wanted, if that is soon.
pub(super) async fn turn(session: &Session, overdue: bool) -> Option<Instant> {
    let start = Instant::now();
    match fire(session, overdue).await {
        Ok(next) => next.map(|next| Instant::now() + next),
        Err(error) => {
            tracing::warn!(%error, "schedules could not be fired");
            Some(start + AGAIN)
        }
    }
}

async fn fire(session: &Session, overdue: bool) -> Result<Option<Duration>, StoreError> {
    let start = Instant::now();
    let due = session.due_schedules(overdue).await?;
    if due.schedules.is_empty() {
        return Ok(due.next_ms.map(wait));
    }
    let now = due.now_us.div_euclid(1_000_000);
    let decisions: Vec<Decision> = due.schedules.iter().map(|schedule| decide(schedule, now)).collect();
    let fired = session.fire(&decisions).await?;
    if fired.failed > 0 {
        tracing::warn!(schedules = fired.failed, "schedules cannot fire: `tenure schedule list` says why");
    }
    tracing::debug!(jobs = fired.jobs, schedules = decisions.len(), "schedules were fired");
    Ok(match due.schedules.len() >= FIRE_BATCH {
        // Somebody else is at the same ones, and is not disturbed.
        true if fired.jobs == 0 => Some(start.elapsed()),
        true => Some(BETWEEN),
        false => fired.next_ms.map(wait),
    })
}

fn wait(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or_default())
}

/// What to do about one schedule; of one whose rule cannot be read only why.
fn decide(schedule: &DueSchedule, now: i64) -> Decision {
    let mut decision = Decision {
        id: schedule.id,
        version: schedule.version,
        was_us: schedule.next_us,
        fire_us: Vec::new(),
        out_us: None,
        next_us: schedule.next_us,
        more: false,
        error: None,
    };
    match plan(schedule, now) {
        Ok(Some(plan)) => {
            decision.fire_us = plan.fire.into_iter().map(micros).collect();
            decision.out_us = plan.left_out.map(|out| [micros(out.first), micros(out.last), out.count.into()]);
            decision.next_us = plan.next.map(micros);
            decision.more = plan.more;
        }
        Ok(None) => decision.next_us = None,
        Err(error) => {
            tracing::warn!(%error, schedule = schedule.name, "a schedule cannot fire");
            decision.error = Some(error.to_string());
        }
    }
    decision
}

/// None: it has no further time.
fn plan(schedule: &DueSchedule, now: i64) -> Result<Option<Plan>, Error> {
    let rule = schedule.rule()?;
    let times = schedule.times(&rule)?;
    Ok(schedule.first(&times).map(|first| times.plan(first, now)))
}

fn micros(second: i64) -> i64 {
    second * 1_000_000
}
