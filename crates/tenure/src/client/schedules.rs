//! Schedules: what is enqueued again and again.

use std::time::{Duration, SystemTime};

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::jobs::{column, page_size};
use super::pause::refuse_nul;
use super::{Client, ahead};
use crate::model::{Decided, StoredTimes, Times, micros, names, seconds_of, system_time};
use crate::store::Statement;
use crate::store::schedule::{
    ADD_SCHEDULE, EDIT_SCHEDULE, PAUSE_SCHEDULE, REMOVE_SCHEDULE, RESUME_SCHEDULE, RUN_SCHEDULE, SCHEDULE_RUNS,
    SCHEDULES,
};
use crate::{Enqueue, Error, ErrorCode, JobId, JobOptions, Missed, Overlap, RawJson, Rule, Schedule};

/// A schedule as it is stored.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ScheduleInfo {
    /// Its name.
    pub name: String,
    /// How often it was changed, and one.
    pub version: i64,
    /// Its rule, as it was written.
    pub rule: String,
    /// Its time zone.
    pub zone: String,
    /// From when `@every` counts.
    pub anchor_at: SystemTime,
    /// Not before this instant.
    pub starts_at: Option<SystemTime>,
    /// Not after this instant.
    pub ends_at: Option<SystemTime>,
    /// What becomes of times that do not exist: `next` or `skip`.
    pub gap: String,
    /// What becomes of times that come twice: `first`, `second` or `both`.
    pub twice: String,
    /// What becomes of missed times: `skip`, `latest` or `all`.
    pub missed: String,
    /// With `all`, how many of them at most.
    pub missed_max: u32,
    /// With `all`, how old they may be.
    pub missed_window: Duration,
    /// What becomes of a time at which the run before has not ended: `allow`, `skip`, `queue` or `cancel`.
    pub overlap: String,
    /// Each job waits for a random part of this.
    pub jitter: Duration,
    /// The kind of its jobs.
    pub kind: String,
    /// The template of their payload.
    pub payload: RawJson,
    /// Their queue.
    pub queue: String,
    /// Their priority.
    pub priority: i16,
    /// Their attempts.
    pub max_attempts: i16,
    /// How long an attempt may take; none: the kind's own timeout.
    pub timeout: Option<Duration>,
    /// When it was added.
    pub created_at: SystemTime,
    /// Since when its rule holds: when it was added, given another one, or resumed.
    pub changed_at: SystemTime,
    /// When it was paused.
    pub paused_at: Option<SystemTime>,
    /// Who paused it.
    pub paused_by: Option<String>,
    /// Why.
    pub pause_reason: Option<String>,
    /// `active`, `paused`, `failing` (see [`error`](Self::error)) or `ended`: it has no further time.
    pub state: String,
    /// The next logical time; none: it has none, or no worker has looked at it since it was added or changed.
    pub next_at: Option<SystemTime>,
    /// The latest logical time that was dealt with.
    pub last_at: Option<SystemTime>,
    /// The last job of its times. Jobs that were run by hand count for overlap beside it.
    pub last_job: Option<JobId>,
    /// The logical time of the run that waits for the end of the last job.
    pub queued_at: Option<SystemTime>,
    /// Jobs that it has enqueued.
    pub runs: i64,
    /// Times that had no job: missed, or met by the run before.
    pub left_out: i64,
    /// Why it cannot fire.
    pub error: Option<String>,
    /// Since when it cannot.
    pub error_at: Option<SystemTime>,
    /// Since when its times are those of this rule: when it was added, or given another rhythm.
    pub ruled_at: SystemTime,
    /// What is noted of its times begins here; none: nothing of it is gone.
    pub forgotten_at: Option<SystemTime>,
    /// Among whose declarations it is, see [`Client::sync_schedules`]; none: it was added by hand.
    pub declared_by: Option<String>,
    /// It has no further time, until it is given another rhythm or resumed; its last run may still wait for the end of the one before.
    pub ended: bool,
}

/// What was decided for a logical time, or for several in a row that were left out.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ScheduleRun {
    /// The logical time, or the first one.
    pub logical_at: SystemTime,
    /// The last one.
    pub last_at: SystemTime,
    /// How many times these are; none: nobody counted them.
    pub times: Option<i64>,
    /// `fired`, `by hand`, `backfilled`, `queued` (waits for the run before), or why there was no job: `overlap`, `replaced`, `missed`, `changed`,
    /// `paused`.
    pub state: String,
    /// The job.
    pub job: Option<JobId>,
    /// When it was decided.
    pub noted_at: SystemTime,
}

impl ScheduleInfo {
    /// The rule, to compute times with.
    ///
    /// # Errors
    /// `BadInput`, with the schedule's name: it was stored by SQL, and is none, or its zone is unknown here.
    pub fn to_rule(&self) -> Result<Rule, Error> {
        self.read_rule().map_err(|error| error.context(format!("schedule {:?}", self.name)))
    }

    pub(super) fn read_rule(&self) -> Result<Rule, Error> {
        self.stored().rule()
    }

    pub(super) fn stored(&self) -> StoredTimes<'_> {
        StoredTimes {
            rule: &self.rule,
            zone: &self.zone,
            gap: &self.gap,
            twice: &self.twice,
            anchor_us: micros(self.anchor_at),
            starts_us: self.starts_at.map(micros),
            ends_us: self.ends_at.map(micros),
            missed: &self.missed,
            missed_max: self.missed_max,
            missed_window: self.missed_window,
        }
    }

    /// The declaration, to be changed and given to [`Client::edit_schedule`].
    ///
    /// # Errors
    /// As [`to_rule`](Self::to_rule).
    pub fn to_schedule(&self) -> Result<Schedule, Error> {
        self.to_schedule_by(self.to_rule()?)
    }

    /// The same by another rule: also of one whose own cannot be read. What becomes of times that do not exist or come twice stays.
    ///
    /// # Errors
    /// `BadInput`, with the schedule's name: a policy is unknown here.
    pub fn to_schedule_by(&self, rule: Rule) -> Result<Schedule, Error> {
        self.declared_by_rule(rule).map_err(|error| error.context(format!("schedule {:?}", self.name)))
    }

    fn declared_by_rule(&self, rule: Rule) -> Result<Schedule, Error> {
        let stored = self.stored();
        let overlap = Overlap::from_name(&self.overlap)
            .ok_or_else(|| Error::bad_input("its overlap is not known here", "use a newer program"))?;
        let job = Enqueue::raw(&self.kind, self.payload.clone()).options(self.job_options());
        Ok(Schedule::new(&self.name, stored.rule_as(rule)?, job)
            .missed(stored.missed()?)
            .overlap(overlap)
            .jitter(self.jitter)
            .starts_at(self.starts_at)
            .ends_at(self.ends_at))
    }

    /// The options of its jobs.
    pub fn job_options(&self) -> JobOptions {
        let options = JobOptions::new().queue(&self.queue).priority(self.priority).max_attempts(self.max_attempts);
        match self.timeout {
            Some(timeout) => options.timeout(timeout),
            None => options,
        }
    }

    /// The first logical time that nothing was decided about, as a worker would compute it now: [`next_at`](Self::next_at), or what the
    /// zone's rules of today have in its place; as long as no worker has looked at the schedule since it was added, changed or resumed, the
    /// first one after that. None: there is no further one, it is paused, or nobody has computed one and its rule cannot be read.
    pub fn next_time(&self) -> Option<SystemTime> {
        if self.paused_at.is_some() {
            return None;
        }
        let first = self.read_rule().and_then(|rule| Ok(self.stored().times(&rule)?.first(self.decided())));
        first.map_or(self.next_at, |first| first.map(system_time))
    }

    fn decided(&self) -> Decided {
        let changed_us = micros(self.changed_at);
        Decided {
            next_us: self.next_at.map(micros),
            from_us: (!self.ended).then_some(changed_us),
            last_us: self.last_at.map(micros).max(Some(changed_us)),
        }
    }

    /// Its next times after this instant, as many as there are, at most `count`.
    ///
    /// # Errors
    /// As [`to_rule`](Self::to_rule).
    pub fn next_times(&self, after: SystemTime, count: usize) -> Result<Vec<SystemTime>, Error> {
        Ok(times_of(self.to_rule()?, self.starts_at, self.ends_at, after).take(count).collect())
    }
}

impl Schedule {
    /// Its next times after this instant, as many as there are. Nothing is asked of a database.
    pub fn next_times(&self, after: SystemTime) -> impl Iterator<Item = SystemTime> + use<> {
        let rule = match self.starts_at {
            Some(start) => self.rule.clone().anchor(start),
            None => self.rule.clone(),
        };
        times_of(rule, self.starts_at, self.ends_at, after)
    }
}

/// The start and the end are among them.
fn times_of(
    rule: Rule,
    start: Option<SystemTime>,
    end: Option<SystemTime>,
    after: SystemTime,
) -> impl Iterator<Item = SystemTime> + use<> {
    let (start, end) = (start.map(micros), end.map(micros));
    let next = move |at: i64| Times::within(&rule, start, end, Missed::default()).next_after(at);
    std::iter::successors(next(seconds_of(after)), move |at| next(*at)).map(system_time)
}

impl Client {
    /// Adds a schedule. It runs from now on; a worker computes its first time within a second.
    ///
    /// # Errors
    /// `BadInput`, naming the value. `Refused`: there is a schedule of that name.
    pub async fn add_schedule(&self, schedule: &Schedule) -> Result<(), Error> {
        schedule.check()?;
        let id: Option<i64> = self.with_definition(&ADD_SCHEDULE, &[&schedule.name], schedule).await?;
        id.map(drop).ok_or_else(|| {
            Error::new(ErrorCode::Refused, format!("there is a schedule {:?} already", schedule.name))
                .with_help("edit it, or remove it before")
        })
    }

    /// Gives the schedule of that name another definition, as a whole: read it with [`schedule`](Self::schedule), change what
    /// [`ScheduleInfo::to_schedule`] gives, and pass the version that was read. Another rhythm holds from now on; what changes only the
    /// job holds for the next one. True: it was changed; false: it was so already.
    ///
    /// # Errors
    /// `BadInput`, naming the value. `NotFound`: no such schedule. `Refused`: somebody changed it meanwhile.
    pub async fn edit_schedule(&self, version: i64, schedule: &Schedule) -> Result<bool, Error> {
        schedule.check()?;
        let changed: Option<bool> = self.with_definition(&EDIT_SCHEDULE, &[&schedule.name, &version], schedule).await?;
        match changed {
            Some(changed) => Ok(changed),
            None if self.schedule(&schedule.name).await?.is_none() => Err(no_such_schedule(&schedule.name)),
            None => Err(Error::new(
                ErrorCode::Refused,
                format!("schedule {:?} is not in version {version} any more: somebody changed it", schedule.name),
            )
            .with_help("read it again, and make your change to that")),
        }
    }

    /// Pauses a schedule: nothing is enqueued until it is resumed, and what falls into the pause is not made up for. True: it was not
    /// paused before. `by` is the database's user when not given.
    ///
    /// # Errors
    /// `NotFound`: no such schedule.
    pub async fn pause_schedule(&self, name: &str, by: Option<&str>, reason: Option<&str>) -> Result<bool, Error> {
        refuse_nul([by, reason])?;
        self.ask_of_schedule(&PAUSE_SCHEDULE, name, &[&name, &by, &reason]).await
    }

    /// Resumes a schedule: it runs again from now on. True: it was paused.
    ///
    /// # Errors
    /// `NotFound`: no such schedule.
    pub async fn resume_schedule(&self, name: &str) -> Result<bool, Error> {
        let resumed = self.ask_of_schedule(&RESUME_SCHEDULE, name, &[&name]).await?;
        let session = self.session().await?;
        ahead::refresh_all(&session).await;
        Ok(resumed)
    }

    /// Removes a schedule; its name is free again. Jobs that it has enqueued stay as they are.
    ///
    /// # Errors
    /// `NotFound`: no such schedule.
    pub async fn remove_schedule(&self, name: &str) -> Result<(), Error> {
        match self.ask_of_schedule(&REMOVE_SCHEDULE, name, &[&name]).await? {
            true => Ok(()),
            false => Err(no_such_schedule(name)),
        }
    }

    /// Enqueues one more job of a schedule, now, whatever its times and policies; also of one that is paused. As long as that job has not
    /// ended, the schedule's overlap says what becomes of its next times.
    ///
    /// # Errors
    /// `NotFound`: no such schedule. `BadInput`: the job is refused, as an enqueue would refuse it; its payload may be too large once its places
    /// are filled in. `Refused`: it was run by hand in this second already.
    pub async fn run_schedule(&self, name: &str) -> Result<JobId, Error> {
        self.ask_of_schedule(&RUN_SCHEDULE, name, &[&name]).await
    }

    /// Schedules by name, after that name, at most `limit`: 1 to 1,000, 100 when not given.
    ///
    /// # Errors
    /// `BadInput`: the limit.
    pub async fn schedules(&self, after: Option<&str>, limit: Option<usize>) -> Result<Vec<ScheduleInfo>, Error> {
        refuse_nul([after, None])?;
        let limit = page_size(limit)?;
        let session = self.session().await?;
        let rows = session.query(&SCHEDULES, &[&None::<&str>, &after, &limit]).await;
        rows.map_err(|e| Error::store(SCHEDULES.name, e))?.iter().map(read_schedule).collect()
    }

    /// The schedule of that name, if there is one.
    ///
    /// # Errors
    /// `BadInput`: the name.
    pub async fn schedule(&self, name: &str) -> Result<Option<ScheduleInfo>, Error> {
        names::check_schedule(name)?;
        let session = self.session().await?;
        let row = session.query_opt(&SCHEDULES, &[&Some(name), &None::<&str>, &1_i64]).await;
        row.map_err(|e| Error::store(SCHEDULES.name, e))?.map(|row| read_schedule(&row)).transpose()
    }

    /// What was decided for the times of a schedule, newest first, before that instant; at most `limit`: 1 to 1,000, 100 when not
    /// given. All of 7 days are kept, and the last 10,000 in any case.
    ///
    /// # Errors
    /// `BadInput`: the name or the limit.
    pub async fn schedule_runs(
        &self,
        name: &str,
        before: Option<SystemTime>,
        limit: Option<usize>,
    ) -> Result<Vec<ScheduleRun>, Error> {
        names::check_schedule(name)?;
        let limit = page_size(limit)?;
        let session = self.session().await?;
        let rows = session.query(&SCHEDULE_RUNS, &[&name, &before, &limit]).await;
        rows.map_err(|e| Error::store(SCHEDULE_RUNS.name, e))?.iter().map(read_run).collect()
    }

    async fn with_definition<T: for<'a> tokio_postgres::types::FromSql<'a>>(
        &self,
        statement: &'static Statement,
        first: &[&(dyn ToSql + Sync)],
        schedule: &Schedule,
    ) -> Result<Option<T>, Error> {
        let options = schedule.job.job_options();
        let (missed_max, missed_window) = schedule.missed.bounds();
        let (missed_max, missed_window_ms) = (missed_max as i32, missed_window.as_millis() as i64);
        let jitter_ms = schedule.jitter.as_millis() as i64;
        let (priority, attempts) = (i32::from(options.priority), i32::from(options.max_attempts));
        let (missed, overlap) = (schedule.missed.as_str(), schedule.overlap.as_str());
        let (gap, twice) = schedule.rule.policy_names();
        let (rule, zone, kind) = (schedule.rule.text(), schedule.rule.zone(), schedule.job.kind());
        let (payload, timeout_ms) = (schedule.job.payload(), options.timeout_ms());
        let mut params = first.to_vec();
        params.extend([
            &rule as &(dyn ToSql + Sync),
            &zone,
            &kind,
            payload,
            &options.queue,
            &priority,
            &attempts,
            &timeout_ms,
            &schedule.starts_at,
            &schedule.ends_at,
            &jitter_ms,
            &missed,
            &missed_max,
            &missed_window_ms,
            &overlap,
            &gap,
            &twice,
        ]);
        let session = self.session().await?;
        let row = session.query_opt(statement, &params).await.map_err(|e| Error::store(statement.name, e))?;
        ahead::refresh_all(&session).await;
        row.map(|row| column(&row, 0)).transpose().map(Option::flatten)
    }

    /// The answer of a verb that answers null when there is no such schedule.
    async fn ask_of_schedule<T: for<'a> tokio_postgres::types::FromSql<'a>>(
        &self,
        statement: &'static Statement,
        name: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<T, Error> {
        names::check_schedule(name)?;
        let session = self.session().await?;
        let row = session.query_opt(statement, params).await.map_err(|e| Error::store(statement.name, e))?;
        let answer: Option<T> = row.map(|row| column(&row, 0)).transpose()?.flatten();
        answer.ok_or_else(|| no_such_schedule(name))
    }
}

pub(super) fn no_such_schedule(name: &str) -> Error {
    Error::new(ErrorCode::NotFound, format!("there is no schedule {name:?}"))
        .with_help("`tenure schedule list` shows those that there are")
}

pub(super) fn read_schedule(row: &Row) -> Result<ScheduleInfo, Error> {
    let millis = |ms: i64| Duration::from_millis(ms.unsigned_abs());
    Ok(ScheduleInfo {
        name: column(row, 0)?,
        version: column(row, 1)?,
        rule: column(row, 2)?,
        zone: column(row, 3)?,
        anchor_at: column(row, 4)?,
        starts_at: column(row, 5)?,
        ends_at: column(row, 6)?,
        gap: column(row, 7)?,
        twice: column(row, 8)?,
        missed: column(row, 9)?,
        missed_max: column::<i32>(row, 10)?.unsigned_abs(),
        missed_window: millis(column(row, 11)?),
        overlap: column(row, 12)?,
        jitter: millis(column(row, 13)?),
        kind: column(row, 14)?,
        payload: column(row, 15)?,
        queue: column(row, 16)?,
        priority: column(row, 17)?,
        max_attempts: column(row, 18)?,
        timeout: column::<Option<i64>>(row, 19)?.map(millis),
        created_at: column(row, 20)?,
        changed_at: column(row, 21)?,
        paused_at: column(row, 22)?,
        paused_by: column(row, 23)?,
        pause_reason: column(row, 24)?,
        state: column(row, 25)?,
        next_at: column(row, 26)?,
        last_at: column(row, 27)?,
        last_job: column(row, 28)?,
        queued_at: column(row, 29)?,
        runs: column(row, 30)?,
        left_out: column(row, 31)?,
        error: column(row, 32)?,
        error_at: column(row, 33)?,
        ruled_at: column(row, 34)?,
        forgotten_at: column(row, 35)?,
        declared_by: column(row, 36)?,
        ended: column(row, 37)?,
    })
}

fn read_run(row: &Row) -> Result<ScheduleRun, Error> {
    Ok(ScheduleRun {
        logical_at: column(row, 0)?,
        last_at: column(row, 1)?,
        times: column(row, 2)?,
        state: column(row, 3)?,
        job: column(row, 4)?,
        noted_at: column(row, 5)?,
    })
}
