//! Statements about schedules: what operators do with them, and firing.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio_postgres::types::Type;

use super::statement::Statement;
use super::wire::JsonText;
use super::{Session, StoreError};
use crate::model::{Decided, Recent, StoredTimes, Times};
use crate::{Error, Rule};

/// Schedules that one turn of firing decides about, at most, and up to 150 that failed or may fail: a fraction of a second, for heartbeats share the
/// connection.
const FIRE_BATCH: usize = 1_000;

macro_rules! definition_params {
    ($($first:expr),*) => {
        &[
            $($first,)* Type::TEXT, Type::TEXT, Type::TEXT, Type::JSON, Type::TEXT, Type::INT4, Type::INT4, Type::INT8,
            Type::TIMESTAMPTZ, Type::TIMESTAMPTZ, Type::INT8, Type::TEXT, Type::INT4, Type::INT8, Type::TEXT, Type::TEXT, Type::TEXT,
        ]
    };
}

pub(crate) const ADD_SCHEDULE: Statement = Statement {
    name: "add the schedule",
    sql: "select tenure.add_schedule($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)",
    params: definition_params![Type::TEXT],
};

/// The name and the version that was read, then as in [`ADD_SCHEDULE`].
pub(crate) const EDIT_SCHEDULE: Statement = Statement {
    name: "edit the schedule",
    sql: "select tenure.edit_schedule($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)",
    params: definition_params![Type::TEXT, Type::INT8],
};

pub(crate) const PAUSE_SCHEDULE: Statement = Statement {
    name: "pause the schedule",
    sql: "select tenure.pause_schedule($1, $2, $3)",
    params: &[Type::TEXT, Type::TEXT, Type::TEXT],
};

pub(crate) const RESUME_SCHEDULE: Statement =
    Statement { name: "resume the schedule", sql: "select tenure.resume_schedule($1)", params: &[Type::TEXT] };

pub(crate) const REMOVE_SCHEDULE: Statement =
    Statement { name: "remove the schedule", sql: "select tenure.remove_schedule($1)", params: &[Type::TEXT] };

pub(crate) const RUN_SCHEDULE: Statement =
    Statement { name: "run the schedule", sql: "select tenure.run_schedule($1)", params: &[Type::TEXT] };

/// The columns of the view `schedules` that are read, in their order.
macro_rules! schedule_columns {
    () => {
        "s.name, s.version, s.rule, s.zone, s.anchor_at, s.starts_at, s.ends_at, s.gap, s.twice, s.missed, s.missed_max, \
         s.missed_window_ms, s.overlap, s.jitter_ms, s.kind, s.payload, s.queue, s.priority, s.max_attempts, s.timeout_ms, s.created_at, \
         s.changed_at, s.paused_at, s.paused_by, s.pause_reason, s.state, s.next_at, s.last_at, s.last_job_id, s.queued_at, s.runs, \
         s.left_out, s.error, s.error_at, s.ruled_at, s.forgotten_at, s.declared_by, s.ended"
    };
}
/// How many these are.
pub(crate) const SCHEDULE_COLUMNS: usize = 38;

/// One of that name (null: all), after this name (null: from the first), how many.
pub(crate) const SCHEDULES: Statement = Statement {
    name: "list schedules",
    sql: concat!(
        "select ",
        schedule_columns!(),
        " from tenure.schedules s where ($1 is null or s.name = $1) and ($2 is null or s.name > $2) order by s.name limit $3"
    ),
    params: &[Type::TEXT, Type::TEXT, Type::INT8],
};

/// How many of each state, at most, and which of those whose next time SQL does not know come before the page. Behind the columns of a schedule,
/// which are null but for these: what is wrong, and what time it is.
pub(crate) const TROUBLED_SCHEDULES: Statement = Statement {
    name: "look for schedules that do not fire",
    sql: concat!(
        "select ",
        schedule_columns!(),
        ", t.id, t.name, t.state, t.since, t.error, clock_timestamp() \
         from tenure.troubled_schedules($1, $2, $3) with ordinality as t(id, name, state, since, error, n) \
         left join tenure.schedules s on t.state = 'unplanned' and s.name = t.name order by t.n"
    ),
    params: &[Type::INT4, Type::TIMESTAMPTZ, Type::INT8],
};

/// The schedule's name, before this instant (null: up to now), how many; newest first.
pub(crate) const SCHEDULE_RUNS: Statement = Statement {
    name: "list the runs of the schedule",
    sql: "select r.logical_at, r.last_at, r.times, r.state, r.job_id, r.noted_at from tenure.schedule_runs r \
          where r.schedule = $1 and not r.removed and ($2 is null or r.logical_at < $2) order by r.logical_at desc, r.state limit $3",
    params: &[Type::TEXT, Type::TIMESTAMPTZ, Type::INT8],
};

static DUE_SCHEDULES: Statement = Statement {
    name: "look for due schedules",
    sql: "select tenure.due_schedules($1, $2)",
    params: &[Type::BOOL, Type::INT4],
};

static FIRE: Statement = Statement { name: "fire schedules", sql: "select tenure.fire($1)", params: &[Type::JSON] };

#[cfg(test)]
pub(super) static STATEMENTS: &[&Statement] = &[
    &ADD_SCHEDULE,
    &EDIT_SCHEDULE,
    &PAUSE_SCHEDULE,
    &RESUME_SCHEDULE,
    &REMOVE_SCHEDULE,
    &RUN_SCHEDULE,
    &SCHEDULES,
    &SCHEDULE_RUNS,
    &TROUBLED_SCHEDULES,
    &DUE_SCHEDULES,
    &FIRE,
];

/// The answer to [`Session::due_schedules`]. Instants are microseconds since 1970.
#[derive(Debug, Deserialize)]
pub(crate) struct DueSchedules {
    pub(crate) now_us: i64,
    pub(crate) schedules: Vec<DueSchedule>,
    /// Backfills that were moved on.
    #[serde(default)]
    pub(crate) moved: u64,
    /// There are more, of either.
    #[serde(default)]
    pub(crate) more: bool,
    /// When to come again, when there is none; 0: at once, for something is overdue.
    pub(crate) next_ms: Option<i64>,
    /// The same for what is not overdue.
    #[serde(default)]
    pub(crate) then_ms: Option<i64>,
}

/// A schedule that wants a decision.
#[derive(Debug, Deserialize)]
pub(crate) struct DueSchedule {
    pub(crate) id: i64,
    pub(crate) version: i64,
    pub(crate) name: String,
    pub(crate) rule: String,
    pub(crate) zone: String,
    pub(crate) gap: String,
    pub(crate) twice: String,
    pub(crate) missed: String,
    pub(crate) missed_max: u32,
    pub(crate) missed_window_ms: u64,
    pub(crate) anchor_us: i64,
    pub(crate) starts_us: Option<i64>,
    pub(crate) ends_us: Option<i64>,
    pub(crate) next_us: Option<i64>,
    /// When nobody has computed a time yet: from when on.
    pub(crate) from_us: Option<i64>,
    /// The last time that something was decided for, or since when it runs by this rule.
    pub(crate) last_us: Option<i64>,
    /// When it wanted to be looked at: by that its row is found.
    pub(crate) look_us: Option<i64>,
}

impl DueSchedule {
    /// When it runs.
    pub(crate) fn rule(&self) -> Result<Rule, Error> {
        self.stored().rule()
    }

    /// The same with what bounds it, and what becomes of times that were missed.
    pub(crate) fn times<'a>(&self, rule: &'a Rule, recent: Option<&'a Recent>) -> Result<Times<'a>, Error> {
        Ok(Times { recent, ..self.stored().times(rule)? })
    }

    /// The first time that nothing was done about; none: it has no further one.
    pub(crate) fn first(&self, times: &Times<'_>) -> Option<i64> {
        times.first(Decided { next_us: self.next_us, from_us: self.from_us, last_us: self.last_us })
    }

    fn stored(&self) -> StoredTimes<'_> {
        StoredTimes {
            rule: &self.rule,
            zone: &self.zone,
            gap: &self.gap,
            twice: &self.twice,
            anchor_us: self.anchor_us,
            starts_us: self.starts_us,
            ends_us: self.ends_us,
            missed: &self.missed,
            missed_max: self.missed_max,
            missed_window: Duration::from_millis(self.missed_window_ms),
        }
    }
}

/// What was decided about one, for [`Session::fire`].
#[derive(Debug, Serialize)]
pub(crate) struct Decision {
    pub(crate) id: i64,
    pub(crate) version: i64,
    /// As it was read: where its row is found.
    pub(crate) look_us: Option<i64>,
    /// The next time as it was read: the decision holds for no other.
    pub(crate) was_us: Option<i64>,
    pub(crate) fire_us: Vec<i64>,
    /// First, last and number of the times that are left out.
    pub(crate) out_us: Option<[i64; 3]>,
    pub(crate) next_us: Option<i64>,
    /// The next time has come already.
    pub(crate) more: bool,
    pub(crate) error: Option<String>,
    /// Only this program cannot read the rule: others have a few seconds to do so before that is an error.
    pub(crate) unread: bool,
}

/// The answer to [`Session::fire`].
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Fired {
    pub(crate) jobs: u64,
    /// Schedules that could not fire.
    pub(crate) failed: u64,
    /// Schedules about which something was done, if only that they failed.
    pub(crate) done: u64,
    /// When to come again, if that is soon; 0: at once, for something is overdue.
    pub(crate) next_ms: Option<i64>,
    /// The same for what is not overdue.
    pub(crate) then_ms: Option<i64>,
}

impl Session {
    /// What there is to decide; `all` also what was due long ago.
    pub(crate) async fn due_schedules(&self, all: bool) -> Result<DueSchedules, StoreError> {
        let limit = FIRE_BATCH as i32;
        let row = self.query_opt(&DUE_SCHEDULES, &[&all, &limit]).await?;
        read(DUE_SCHEDULES.name, row)
    }

    /// Does what was decided.
    pub(crate) async fn fire(&self, decisions: &[Decision]) -> Result<Fired, StoreError> {
        let text = serde_json::to_string(decisions)
            .map_err(|error| StoreError::Protocol(format!("decisions have no JSON form: {error}")))?;
        let row = self.query_opt(&FIRE, &[&JsonText(&text)]).await?;
        read(FIRE.name, row)
    }
}

pub(super) fn read<T: serde::de::DeserializeOwned>(
    what: &str,
    row: Option<tokio_postgres::Row>,
) -> Result<T, StoreError> {
    let row = row.ok_or_else(|| StoreError::Protocol(format!("{what}: no row")))?;
    let text: JsonText<'_> = row.try_get(0)?;
    serde_json::from_str(text.0).map_err(|error| StoreError::Protocol(format!("{what}: what cannot be read: {error}")))
}
