//! Statements about schedules that are declared or moved together, and about pg_cron in the place of workers.

use serde::{Deserialize, Serialize};
use tokio_postgres::types::Type;

use super::schedule::{DueSchedule, read};
use super::statement::Statement;
use super::wire::JsonText;
use super::{Session, StoreError};

/// The owner, the definitions, whether to take over what was added by hand, whether only to look, and for which state of things.
pub(crate) const SYNC_SCHEDULES: Statement = Statement {
    name: "synchronise the schedules",
    sql: "select tenure.sync_schedules($1, $2, $3, $4, $5)",
    params: &[Type::TEXT, Type::JSON, Type::BOOL, Type::BOOL, Type::TEXT],
};

pub(crate) const ADD_SCHEDULES: Statement =
    Statement { name: "add the schedules", sql: "select tenure.add_schedules($1)", params: &[Type::JSON] };

/// The definitions, and the entries of pg_cron that go.
pub(crate) const MOVE_CRON_JOBS: Statement = Statement {
    name: "move entries of pg_cron",
    sql: "select tenure.move_cron_jobs($1, $2)",
    params: &[Type::JSON, Type::INT8_ARRAY],
};

pub(crate) const CRON_JOBS: Statement = Statement {
    name: "list the entries of pg_cron",
    sql: "select c.id, c.name, c.schedule, c.command, c.database = current_database(), c.database, c.role, c.active, c.zone from tenure.cron_jobs() c order by c.id",
    params: &[],
};

pub(crate) const CRON_STATE: Statement =
    Statement { name: "look at pg_cron", sql: "select tenure.cron_state()", params: &[] };

static TIMES_WANTED: Statement = Statement {
    name: "look for schedules without times ahead",
    sql: "select tenure.times_wanted($1)",
    params: &[Type::INT4],
};

static SET_TIMES_AHEAD: Statement =
    Statement { name: "store times ahead", sql: "select tenure.set_times_ahead($1)", params: &[Type::JSON] };

#[cfg(test)]
pub(super) static STATEMENTS: &[&Statement] =
    &[&SYNC_SCHEDULES, &ADD_SCHEDULES, &MOVE_CRON_JOBS, &CRON_JOBS, &CRON_STATE, &TIMES_WANTED, &SET_TIMES_AHEAD];

/// The next times of a schedule, for [`Session::set_times_ahead`].
#[derive(Debug, Serialize)]
pub(crate) struct TimesAhead {
    pub(crate) id: i64,
    pub(crate) version: i64,
    pub(crate) times_us: Vec<i64>,
    /// There are no further ones.
    pub(crate) complete: bool,
}

/// What there is to know about pg_cron, by [`CRON_STATE`].
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct CronState {
    pub(crate) database: String,
    pub(crate) role: String,
    pub(crate) available: Option<String>,
    pub(crate) installed: Option<String>,
    pub(crate) may_use: bool,
    pub(crate) may_schedule: bool,
    pub(crate) server: CronServer,
    pub(crate) entries: Vec<CronEntry>,
}

/// Null: the owner of the schema may not read it.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct CronServer {
    pub(crate) loaded: Option<bool>,
    pub(crate) cron_database: Option<String>,
    pub(crate) zone: Option<String>,
    pub(crate) seen_us: Option<i64>,
    pub(crate) now_us: i64,
}

/// An entry that calls tick.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct CronEntry {
    pub(crate) id: i64,
    pub(crate) schedule: String,
    pub(crate) database: String,
    pub(crate) role: String,
    pub(crate) active: bool,
    pub(crate) role_exists: bool,
    pub(crate) may_tick: bool,
    pub(crate) status: Option<String>,
    pub(crate) message: Option<String>,
}

impl Session {
    /// Schedules whose next times somebody needs; none where nobody does.
    pub(crate) async fn times_wanted(&self, limit: i32) -> Result<Vec<DueSchedule>, StoreError> {
        let row = self.query_opt(&TIMES_WANTED, &[&limit]).await?;
        read(TIMES_WANTED.name, row)
    }

    /// Stores those next times.
    pub(crate) async fn set_times_ahead(&self, lists: &[TimesAhead]) -> Result<(), StoreError> {
        let text = serde_json::to_string(lists)
            .map_err(|error| StoreError::Protocol(format!("times have no JSON form: {error}")))?;
        self.query_opt(&SET_TIMES_AHEAD, &[&JsonText(&text)]).await.map(drop)
    }

    /// What there is to know about pg_cron.
    pub(crate) async fn cron_state(&self) -> Result<CronState, StoreError> {
        let row = self.query_opt(&CRON_STATE, &[]).await?;
        read(CRON_STATE.name, row)
    }
}
