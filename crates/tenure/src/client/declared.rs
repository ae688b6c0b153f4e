//! Schedules that are declared, or moved, together.

use serde::{Deserialize, Serialize};
use tokio_postgres::types::ToSql;

use super::jobs::column;
use super::{Client, ahead};
use crate::model::micros;
use crate::store::declared::{ADD_SCHEDULES, MOVE_CRON_JOBS, SYNC_SCHEDULES};
use crate::store::{JsonText, Statement};
use crate::{Error, RawJson, Schedule, ScheduleInfo, Schedules};

/// What a sync changes, or would.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ScheduleSync {
    /// New ones.
    pub added: Vec<String>,
    /// Those that are declared in another way than they are stored.
    pub changed: Vec<ScheduleChange>,
    /// Those that were added by hand, and are the owner's from now on.
    pub adopted: Vec<String>,
    /// Those that the owner does not declare any more.
    pub removed: Vec<String>,
    /// How many are as they were declared.
    pub unchanged: u64,
    /// The state of things that this was found in, for [`Client::sync_schedules_as_shown`].
    pub basis: String,
}

/// A schedule that is changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ScheduleChange {
    /// Its name.
    pub name: String,
    /// What is changed of it.
    pub fields: Vec<FieldChange>,
}

/// A value of a schedule that is changed. Names and units are those of the database: `rule`, `jitter_ms`, `starts_us` (microseconds since
/// 1970); the payload is JSON as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FieldChange {
    /// Which one.
    pub field: String,
    /// As it is stored.
    pub was: serde_json::Value,
    /// As it is declared.
    pub is: serde_json::Value,
}

impl ScheduleSync {
    /// Is everything as it was declared?
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.changed.is_empty() && self.adopted.is_empty() && self.removed.is_empty()
    }
}

/// As `sync_schedules` and `add_schedules` take one.
#[derive(PartialEq, Serialize)]
struct Definition<'a> {
    name: &'a str,
    rule: &'a str,
    zone: &'a str,
    kind: &'a str,
    payload: &'a RawJson,
    queue: &'a str,
    priority: i16,
    max_attempts: i16,
    timeout_ms: Option<i64>,
    starts_us: Option<i64>,
    ends_us: Option<i64>,
    jitter_ms: u64,
    missed: &'a str,
    missed_max: u32,
    missed_window_ms: u64,
    overlap: &'a str,
    gap: &'a str,
    twice: &'a str,
}

impl<'a> Definition<'a> {
    fn of(schedule: &'a Schedule) -> Definition<'a> {
        let options = schedule.job.job_options();
        let (missed_max, missed_window) = schedule.missed.bounds();
        let (gap, twice) = schedule.rule.policy_names();
        let ms = |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Definition {
            name: &schedule.name,
            rule: schedule.rule.text(),
            zone: schedule.rule.zone(),
            kind: schedule.job.kind(),
            payload: schedule.job.payload(),
            queue: &options.queue,
            priority: options.priority,
            max_attempts: options.max_attempts,
            timeout_ms: options.timeout_ms(),
            starts_us: schedule.starts_at.map(micros),
            ends_us: schedule.ends_at.map(micros),
            jitter_ms: ms(schedule.jitter),
            missed: schedule.missed.as_str(),
            missed_max,
            missed_window_ms: ms(missed_window),
            overlap: schedule.overlap.as_str(),
            gap,
            twice,
        }
    }
}

impl ScheduleInfo {
    /// Is it as that one declares it, whatever that one's name is? A pause does not matter.
    pub fn says(&self, declared: &Schedule) -> bool {
        self.to_schedule().is_ok_and(|stored| {
            let stored = stored.named(&declared.name);
            Definition::of(&stored) == Definition::of(declared)
        })
    }
}

fn definitions(schedules: &[Schedule]) -> Result<String, Error> {
    let definitions: Vec<_> = schedules.iter().map(Definition::of).collect();
    serde_json::to_string(&definitions)
        .map_err(|error| Error::internal(format!("schedules have no JSON form: {error}")))
}

impl Client {
    /// Makes the schedules of an owner what he declares: adds, changes and removes, in one transaction. Those of others and those that
    /// were added by hand stay as they are; so does a pause, and the next time of what is as it was declared.
    ///
    /// # Errors
    /// `BadInput`, naming schedule and value. `Refused`: a name belongs to somebody else. `Timeout`: another sync took its time.
    pub async fn sync_schedules(&self, schedules: &Schedules) -> Result<ScheduleSync, Error> {
        self.sync(schedules, false, None).await
    }

    /// The same, as long as that changes what [`sync_schedules_preview`](Self::sync_schedules_preview) has said.
    ///
    /// # Errors
    /// As [`sync_schedules`](Self::sync_schedules). `Refused`: somebody has changed schedules meanwhile.
    pub async fn sync_schedules_as_shown(&self, schedules: &Schedules, basis: &str) -> Result<ScheduleSync, Error> {
        self.sync(schedules, false, Some(basis)).await
    }

    /// What [`sync_schedules`](Self::sync_schedules) would change. Nothing is.
    ///
    /// # Errors
    /// As [`sync_schedules`](Self::sync_schedules).
    pub async fn sync_schedules_preview(&self, schedules: &Schedules) -> Result<ScheduleSync, Error> {
        self.sync(schedules, true, None).await
    }

    /// Adds schedules, all or none of them.
    ///
    /// # Errors
    /// `BadInput`, naming schedule and value. `Refused`: there is one of that name.
    pub async fn add_schedules(&self, schedules: &[Schedule]) -> Result<(), Error> {
        schedules.iter().try_for_each(Schedule::check)?;
        let text = definitions(schedules)?;
        self.with_definitions(&ADD_SCHEDULES, &[&JsonText(&text)]).await.map(drop)
    }

    /// Adds schedules in the place of entries of pg_cron, which go with it: all of that or nothing. `jobs` are the ids of
    /// [`CronJob`](crate::CronJob).
    ///
    /// # Errors
    /// As [`add_schedules`](Self::add_schedules). `Denied`, `Database`: pg_cron lets nobody remove the entries of others.
    pub async fn move_cron_jobs(&self, schedules: &[Schedule], jobs: &[i64]) -> Result<(), Error> {
        schedules.iter().try_for_each(Schedule::check)?;
        let text = definitions(schedules)?;
        self.with_definitions(&MOVE_CRON_JOBS, &[&JsonText(&text), &jobs]).await.map(drop)
    }

    async fn sync(&self, schedules: &Schedules, dry: bool, basis: Option<&str>) -> Result<ScheduleSync, Error> {
        schedules.check()?;
        let text = definitions(&schedules.schedules)?;
        let params: [&(dyn ToSql + Sync); 5] = [&schedules.owner, &JsonText(&text), &schedules.adopt, &dry, &basis];
        let row = self.with_definitions(&SYNC_SCHEDULES, &params).await?;
        let answer: RawJson = column(&row, 0)?;
        answer.decode()
    }

    async fn with_definitions(
        &self,
        statement: &'static Statement,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<tokio_postgres::Row, Error> {
        let session = self.session().await?;
        let row = session.query_opt(statement, params).await.map_err(|e| Error::store(statement.name, e))?;
        ahead::refresh_all(&session).await;
        row.ok_or_else(|| Error::internal(format!("{}: no row", statement.name)))
    }
}
