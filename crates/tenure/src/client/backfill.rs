//! Backfills: times of the past of a schedule that are to run.

use std::time::SystemTime;

use tokio_postgres::Row;

use super::Client;
use super::jobs::{column, page_size};
use super::pause::refuse_nul;
use super::schedules::no_such_schedule;
use crate::model::limits::{BACKFILL_AT_ONCE_DEFAULT, BACKFILL_AT_ONCE_MAX, BACKFILL_TIMES_MAX};
use crate::model::{names, second_from, seconds_of, system_time};
use crate::store::backfill::{ADD_BACKFILL, BACKFILLS, CANCEL_BACKFILL, RAN_OF};
use crate::{Error, ErrorCode, Rule, ScheduleInfo, instant};

/// Which times of a schedule are to run, and how.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use tenure::Backfill;
///
/// let a_week = SystemTime::now() - Duration::from_secs(7 * 86_400);
/// let backfill = Backfill::new("nightly report", a_week).at_once(2).newest_first();
/// # let _ = backfill;
/// ```
#[derive(Clone, Debug)]
pub struct Backfill {
    schedule: String,
    from: SystemTime,
    until: Option<SystemTime>,
    newest_first: bool,
    at_once: u32,
    priority: i16,
    again: bool,
}

impl Backfill {
    /// All times of that schedule's rule from this instant on, itself included, up to now; the schedule's start and end do not count.
    /// What has run is left out; the oldest runs first, 10 at once, with the lowest priority.
    pub fn new(schedule: impl Into<String>, from: SystemTime) -> Backfill {
        Backfill {
            schedule: schedule.into(),
            from,
            until: None,
            newest_first: false,
            at_once: BACKFILL_AT_ONCE_DEFAULT,
            priority: 4,
            again: false,
        }
    }

    /// Up to this instant, itself included, which has to be past.
    pub fn until(mut self, instant: impl Into<Option<SystemTime>>) -> Backfill {
        self.until = instant.into();
        self
    }

    /// The newest runs first.
    pub fn newest_first(mut self) -> Backfill {
        self.newest_first = true;
        self
    }

    /// So many of its jobs have not ended at a time, at most: 1 to 1,000.
    pub fn at_once(mut self, jobs: u32) -> Backfill {
        self.at_once = jobs;
        self
    }

    /// The priority of its jobs: 1 (most urgent) to 4.
    pub fn priority(mut self, priority: i16) -> Backfill {
        self.priority = priority;
        self
    }

    /// Times that have run run again: each with a new job, and so with a new idempotency key.
    pub fn again(mut self) -> Backfill {
        self.again = true;
        self
    }

    fn check(&self) -> Result<(), Error> {
        names::check_schedule(&self.schedule)?;
        if !(1..=BACKFILL_AT_ONCE_MAX).contains(&self.at_once) {
            let text = format!("{} jobs at once is outside 1 to {BACKFILL_AT_ONCE_MAX}", self.at_once);
            return Err(Error::bad_input(text, "the default is 10"));
        }
        if !(1..=4).contains(&self.priority) {
            let text = format!("priority {} is outside 1 to 4", self.priority);
            return Err(Error::bad_input(text, "1 is the most urgent, 4 the least; the default is 4"));
        }
        Ok(())
    }

    /// Its times, in the order in which they run. Up to the second `before` the schedule has none.
    fn times(&self, rule: &Rule, before: i64, now: SystemTime) -> Result<Vec<SystemTime>, Error> {
        let until = self.until.unwrap_or(now);
        let show = |at| instant::show(at, rule.zone()).unwrap_or_default();
        if until > now {
            return Err(Error::bad_input(format!("{} lies ahead", show(until)), "end a backfill at a past instant"));
        }
        // An instant within a second begins with the next one.
        let first = rule.next_after((second_from(self.from) - 1).max(before));
        let last = seconds_of(until);
        let all = std::iter::successors(first, |at| rule.next_after(*at)).take_while(|at| *at <= last);
        let mut times: Vec<SystemTime> = all.take(BACKFILL_TIMES_MAX + 1).map(system_time).collect();
        if times.is_empty() {
            let text = format!("{:?} has no time from {} to {}", self.schedule, show(self.from), show(until));
            return Err(Error::bad_input(text, "`tenure schedule preview` shows the times of a rule"));
        }
        if let Some(over) = times.get(BACKFILL_TIMES_MAX) {
            let text = format!(
                "{:?} has more than {BACKFILL_TIMES_MAX} times from {} to {}",
                self.schedule,
                show(self.from),
                show(until)
            );
            return Err(Error::bad_input(
                text,
                format!("backfill it in parts, the first up to before {}", show(*over)),
            ));
        }
        if self.newest_first {
            times.reverse();
        }
        Ok(times)
    }
}

/// What a backfill would do.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BackfillPreview {
    /// Times in its range.
    pub times: usize,
    /// Those of them that have run, or wait for the end of the run before: they are skipped, unless it is to run them again.
    pub ran: usize,
    /// The first time of the range.
    pub first_at: SystemTime,
    /// The last one.
    pub last_at: SystemTime,
}

/// A backfill as it stands.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BackfillInfo {
    /// Its number.
    pub id: i64,
    /// The schedule's name; none: its rows are gone.
    pub schedule: Option<String>,
    /// `active`, `failing` (see [`error`](Self::error)), `cancelling` (what runs has not ended yet), `cancelled` or `completed`.
    pub state: String,
    /// Its first time.
    pub first_at: SystemTime,
    /// Its last time.
    pub last_at: SystemTime,
    /// The newest runs first.
    pub newest_first: bool,
    /// How many times it has.
    pub times: u32,
    /// Those that are dealt with: enqueued or skipped.
    pub done: u32,
    /// Those that have a job of it.
    pub enqueued: u32,
    /// Those that had run before.
    pub skipped: u32,
    /// Of its jobs, those that ended as dead letters.
    pub dead: u32,
    /// Of its jobs, those that have not ended.
    pub open: u32,
    /// How many of them there may be.
    pub at_once: u32,
    /// Their priority.
    pub priority: i16,
    /// Times that have run run again.
    pub again: bool,
    /// When it began.
    pub created_at: SystemTime,
    /// Who began it.
    pub created_by: String,
    /// When it was cancelled.
    pub cancelled_at: Option<SystemTime>,
    /// By whom.
    pub cancelled_by: Option<String>,
    /// When every time was dealt with and every job had ended.
    pub ended_at: Option<SystemTime>,
    /// Why it does not go on; it is tried again each minute.
    pub error: Option<String>,
    /// Since when.
    pub error_at: Option<SystemTime>,
}

impl Client {
    /// Begins a backfill; any worker moves it on. Its number is the answer.
    ///
    /// # Errors
    /// `BadInput`, naming the value: also when the range has no time, or more than 100,000, or when it cannot be told any more whether its
    /// oldest times have run. `NotFound`: no such schedule.
    pub async fn add_backfill(&self, backfill: &Backfill, by: Option<&str>) -> Result<i64, Error> {
        refuse_nul([by, None])?;
        let times = self.times_of(backfill).await?;
        let (at_once, priority) = (backfill.at_once as i32, i32::from(backfill.priority));
        let session = self.session().await?;
        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 6] =
            [&backfill.schedule, &times, &at_once, &priority, &backfill.again, &by];
        let row = session.query_opt(&ADD_BACKFILL, &params).await.map_err(|e| Error::store(ADD_BACKFILL.name, e))?;
        let id: Option<i64> = row.map(|row| column(&row, 0)).transpose()?.flatten();
        id.ok_or_else(|| no_such_schedule(&backfill.schedule))
    }

    /// What a backfill would do, if it were begun now.
    ///
    /// # Errors
    /// Those of [`add_backfill`](Self::add_backfill).
    pub async fn backfill_preview(&self, backfill: &Backfill) -> Result<BackfillPreview, Error> {
        let times = self.times_of(backfill).await?;
        let session = self.session().await?;
        let row = session.query_opt(&RAN_OF, &[&backfill.schedule, &times]).await;
        let ran: Option<i64> = row.map_err(|e| Error::store(RAN_OF.name, e))?.map(|row| column(&row, 0)).transpose()?;
        let (Some(first_at), Some(last_at)) = (times.iter().min().copied(), times.iter().max().copied()) else {
            return Err(Error::internal("a backfill without times"));
        };
        let ran = usize::try_from(ran.unwrap_or_default()).unwrap_or_default();
        Ok(BackfillPreview { times: times.len(), ran, first_at, last_at })
    }

    /// Backfills that go on, and those that ended in the last 7 days, newest first: of that schedule, or of all; before that number, at most
    /// `limit`: 1 to 1,000, 100 when not given.
    ///
    /// # Errors
    /// `BadInput`: the name or the limit.
    pub async fn backfills(
        &self,
        schedule: Option<&str>,
        before: Option<i64>,
        limit: Option<usize>,
    ) -> Result<Vec<BackfillInfo>, Error> {
        schedule.map_or(Ok(()), names::check_schedule)?;
        let limit = page_size(limit)?;
        let session = self.session().await?;
        let rows = session.query(&BACKFILLS, &[&None::<i64>, &schedule, &before, &limit]).await;
        rows.map_err(|e| Error::store(BACKFILLS.name, e))?.iter().map(read_backfill).collect()
    }

    /// The backfill of that number, if there is one.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn backfill(&self, id: i64) -> Result<Option<BackfillInfo>, Error> {
        let session = self.session().await?;
        let row = session.query_opt(&BACKFILLS, &[&Some(id), &None::<&str>, &None::<i64>, &1_i64]).await;
        row.map_err(|e| Error::store(BACKFILLS.name, e))?.map(|row| read_backfill(&row)).transpose()
    }

    /// Cancels a backfill: no further time runs, jobs of it that wait are cancelled, those that run end. True: it was not cancelled before,
    /// and had not ended. `by` is the database's user when not given.
    ///
    /// # Errors
    /// `NotFound`: no such backfill.
    pub async fn cancel_backfill(&self, id: i64, by: Option<&str>) -> Result<bool, Error> {
        refuse_nul([by, None])?;
        let session = self.session().await?;
        let row = session.query_opt(&CANCEL_BACKFILL, &[&id, &by]).await;
        let row = row.map_err(|e| Error::store(CANCEL_BACKFILL.name, e))?;
        let changed: Option<bool> = row.map(|row| column(&row, 0)).transpose()?.flatten();
        changed.ok_or_else(|| {
            Error::new(ErrorCode::NotFound, format!("there is no backfill {id}"))
                .with_help("`tenure backfill list` shows those that there are")
        })
    }

    async fn times_of(&self, backfill: &Backfill) -> Result<Vec<SystemTime>, Error> {
        backfill.check()?;
        let info = self.schedule(&backfill.schedule).await?.ok_or_else(|| no_such_schedule(&backfill.schedule))?;
        let now = self.now().await?;
        let rule = info.to_rule()?;
        backfill.times(&rule, without_times(&info, &rule), now)
    }
}

/// Up to this second a schedule has no times: an interval runs first at its start; without one it counts from when it was added, and runs
/// first when it has passed once.
fn without_times(info: &ScheduleInfo, rule: &Rule) -> i64 {
    match info.starts_at {
        _ if !rule.is_interval() => i64::MIN,
        Some(start) => second_from(start) - 1,
        None => seconds_of(info.anchor_at),
    }
}

fn read_backfill(row: &Row) -> Result<BackfillInfo, Error> {
    let count = |at: usize| column::<i32>(row, at).map(i32::unsigned_abs);
    Ok(BackfillInfo {
        id: column(row, 0)?,
        schedule: column(row, 1)?,
        state: column(row, 2)?,
        first_at: column(row, 3)?,
        last_at: column(row, 4)?,
        newest_first: column(row, 5)?,
        times: count(6)?,
        done: count(7)?,
        enqueued: count(8)?,
        skipped: count(9)?,
        dead: count(10)?,
        open: count(11)?,
        at_once: count(12)?,
        priority: column(row, 13)?,
        again: column(row, 14)?,
        created_at: column(row, 15)?,
        created_by: column(row, 16)?,
        cancelled_at: column(row, 17)?,
        cancelled_by: column(row, 18)?,
        ended_at: column(row, 19)?,
        error: column(row, 20)?,
        error_at: column(row, 21)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> SystemTime {
        system_time(second)
    }

    #[test]
    fn both_ends_of_the_range_are_in_it_and_the_order_is_the_asked_one() {
        let minutes = Rule::new("* * * * *", "UTC").unwrap();
        let check = |backfill: Backfill, expected: &[i64]| {
            let times: Vec<i64> =
                backfill.times(&minutes, i64::MIN, at(600)).unwrap().into_iter().map(seconds_of).collect();
            assert_eq!(times, expected);
        };
        check(Backfill::new("m", at(420)), &[420, 480, 540, 600]);
        check(Backfill::new("m", at(420) + std::time::Duration::from_millis(1)).until(at(599)), &[480, 540]);
        check(Backfill::new("m", at(420)).until(at(480)).newest_first(), &[480, 420]);
    }

    #[test]
    fn a_range_that_is_none_is_refused_with_the_way_out() {
        let check = |rule: &str, backfill: Backfill, words: &str| {
            let error = backfill.times(&Rule::new(rule, "UTC").unwrap(), i64::MIN, at(1_000_000)).unwrap_err();
            assert!(error.code() == ErrorCode::BadInput && error.to_string().contains(words), "{error}");
        };
        check("* * * * *", Backfill::new("m", at(0)).until(at(1_000_001)), "lies ahead");
        check("@yearly", Backfill::new("m", at(60)), "has no time");
        check("* * * * * *", Backfill::new("m", at(60)), "has more than 100000 times");
        let seconds = Rule::new("* * * * * *", "UTC").unwrap();
        let many = Backfill::new("m", at(1)).times(&seconds, i64::MIN, at(1_000_000)).unwrap_err();
        assert!(many.help().unwrap().contains("1970-01-02T03:46:41"), "{many:?}");
        assert!(Backfill::new("m", at(0)).at_once(0).check().unwrap_err().to_string().contains("outside 1 to 1000"));
        assert!(Backfill::new("m", at(0)).priority(5).check().unwrap_err().to_string().contains("priority 5"));
    }
}
