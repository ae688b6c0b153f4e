//! Which logical times of a schedule had no job, and why.

use std::collections::BTreeMap;
use std::time::SystemTime;

use tokio_postgres::Row;

use super::Client;
use super::jobs::column;
use super::schedules::no_such_schedule;
use crate::model::{Audit, NotedStretch, micros, second_from, seconds_of, system_time};
use crate::store::backfill::NOTED_RUNS;
use crate::{Absence, Error, ScheduleInfo};

/// Notes that one audit reads, at most: two for each time that it compares.
const NOTES_MAX: usize = 200_000;

/// The logical times of a schedule beside what became of them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ScheduleAudit {
    /// The schedule's name.
    pub schedule: String,
    /// From here on the times of its rule are compared with what is noted: another rule held before, or what was noted is gone. Of times
    /// before that, what is noted is listed.
    pub compared_from: SystemTime,
    /// Up to here; earlier than asked for when there were more than 100,000 times, or notes of so many.
    pub compared_until: SystemTime,
    /// Whether it was cut there.
    pub cut: bool,
    /// Times that have come and were compared.
    pub times: u32,
    /// Those of them that have a job.
    pub with_job: u32,
    /// The others, oldest first: those that follow each other for the same reason together.
    pub left_out: Vec<LeftOut>,
}

/// Times in a row that have no job, for one reason.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LeftOut {
    /// The first of them.
    pub first_at: SystemTime,
    /// The last of them.
    pub last_at: SystemTime,
    /// How many; none: nobody counted them.
    pub times: Option<u32>,
    /// Why.
    pub why: Absence,
    /// When that was decided: of times that were missed, when somebody was there again.
    pub noted_at: Option<SystemTime>,
}

impl ScheduleAudit {
    /// Is there a time without a job about which nobody decided that it should have none?
    pub fn is_missing_any(&self) -> bool {
        self.left_out.iter().any(|out| !out.why.is_decided())
    }
}

impl Client {
    /// Compares the logical times of a schedule since that instant with what became of them; up to `until`, or now. A time that came less
    /// than 10 s ago is not missing yet.
    ///
    /// # Errors
    /// `NotFound`: no such schedule. `BadInput`: its rule cannot be read, which the message says with its name, or `until` is before
    /// `since`.
    pub async fn audit_schedule(
        &self,
        name: &str,
        since: SystemTime,
        until: Option<SystemTime>,
    ) -> Result<ScheduleAudit, Error> {
        let now = self.now().await?;
        let until = until.unwrap_or(now).min(now);
        if until < since {
            return Err(Error::bad_input("the audit ends before it begins", "name a later end, or an earlier begin"));
        }
        let info = self.schedule(name).await?.ok_or_else(|| no_such_schedule(name))?;
        let session = self.session().await?;
        let limit = NOTES_MAX as i64;
        let rows = session.query(&NOTED_RUNS, &[&name, &since, &until, &limit]).await;
        let notes = rows.map_err(|e| Error::store(NOTED_RUNS.name, e))?;
        compare(&info, &notes, since, until, now)
    }
}

fn compare(
    info: &ScheduleInfo,
    notes: &[Row],
    since: SystemTime,
    until: SystemTime,
    now: SystemTime,
) -> Result<ScheduleAudit, Error> {
    let rule = info.to_rule()?;
    let (mut runs, mut stretches) = (BTreeMap::new(), Vec::new());
    let mut last_read = None;
    for note in notes {
        let first: SystemTime = column(note, 0)?;
        last_read = Some(first);
        read_note(note, first, &mut runs, &mut stretches)?;
    }
    // Beyond the last note that was read nothing is known.
    let unread_from = last_read.filter(|_| notes.len() == NOTES_MAX);
    let read_until = unread_from.unwrap_or(until);
    let audit = Audit {
        times: info.stored().times(&rule)?,
        ruled_at: seconds_of(info.ruled_at),
        forgotten_at: info.forgotten_at.map(seconds_of),
        paused_at: info.paused_at.map(seconds_of),
        next_at: info.next_at.map(seconds_of),
        failing: info.error.is_some(),
        runs,
        stretches,
    };
    // The second that `since` lies in began before it, and what is noted of that was not read.
    let from = second_from(since);
    let audited = audit.compare(from, seconds_of(read_until), seconds_of(now));
    let left_out = |stretch: NotedStretch| LeftOut {
        first_at: system_time(stretch.first),
        last_at: system_time(stretch.last),
        times: stretch.times,
        why: stretch.why,
        noted_at: stretch.noted_at.map(system_time),
    };
    Ok(ScheduleAudit {
        schedule: info.name.clone(),
        compared_from: if audited.compared_from > from { system_time(audited.compared_from).min(until) } else { since },
        compared_until: audited.cut_at.map_or(read_until, system_time),
        cut: audited.cut_at.is_some() || unread_from.is_some(),
        times: audited.times,
        with_job: audited.with_job,
        left_out: audited.left_out.into_iter().map(left_out).collect(),
    })
}

/// What stands in one row of the view: a single time, or a stretch.
fn read_note(
    note: &Row,
    first: SystemTime,
    runs: &mut BTreeMap<i64, Option<Absence>>,
    stretches: &mut Vec<NotedStretch>,
) -> Result<(), Error> {
    let state: String = column(note, 3)?;
    let why = Absence::from_name(&state);
    if column::<bool>(note, 4)? {
        // One that was run by hand is no time of the rule, which has no fractions.
        if micros(first).rem_euclid(1_000_000) == 0 {
            runs.insert(seconds_of(first), None);
        }
        return Ok(());
    }
    let why = why.ok_or_else(|| Error::internal(format!("a time that is {state:?}")))?;
    match why {
        Absence::Overlap | Absence::Replaced | Absence::Queued => {
            runs.insert(seconds_of(first), Some(why));
        }
        _ => stretches.push(NotedStretch {
            first: seconds_of(first),
            last: seconds_of(column(note, 1)?),
            times: column::<Option<i64>>(note, 2)?.and_then(|times| u32::try_from(times).ok()),
            why,
            noted_at: Some(seconds_of(column(note, 5)?)),
        }),
    }
    Ok(())
}
