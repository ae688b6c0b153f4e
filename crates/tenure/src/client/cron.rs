//! pg_cron: in the place of workers where none is up, and what its entries become.

use super::Client;
use super::jobs::column;
use crate::Error;
use crate::model::{Check, CronFacts, TickEntry};
use crate::store::declared::{CRON_JOBS, CRON_STATE};
use crate::store::{CronEntry, CronState};

/// An entry of pg_cron.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CronJob {
    /// Its id.
    pub id: i64,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// When it runs, in pg_cron's words.
    pub schedule: String,
    /// What it runs.
    pub command: String,
    /// It runs in this database.
    pub is_here: bool,
    /// The database in which it runs.
    pub database: String,
    /// The role as which it runs.
    pub role: String,
    /// It is not switched off.
    pub active: bool,
    /// The zone of pg_cron's times; none: the owner of the schema may not read it.
    pub zone: Option<String>,
}

impl Client {
    /// The entries of pg_cron that this role may see.
    ///
    /// # Errors
    /// `Refused`: this database has no pg_cron.
    pub async fn cron_jobs(&self) -> Result<Vec<CronJob>, Error> {
        let session = self.session().await?;
        let rows = session.query(&CRON_JOBS, &[]).await.map_err(|e| Error::store(CRON_JOBS.name, e))?;
        let read = |row: &tokio_postgres::Row| {
            Ok(CronJob {
                id: column(row, 0)?,
                name: column(row, 1)?,
                schedule: column(row, 2)?,
                command: column(row, 3)?,
                is_here: column(row, 4)?,
                database: column(row, 5)?,
                role: column(row, 6)?,
                active: column(row, 7)?,
                zone: column(row, 8)?,
            })
        };
        rows.iter().map(read).collect()
    }

    /// Whether pg_cron can take the place of workers here, point by point, each with the way out.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn check_pg_cron(&self) -> Result<Vec<Check>, Error> {
        let session = self.session().await?;
        let state = session.cron_state().await.map_err(|e| Error::store(CRON_STATE.name, e))?;
        Ok(facts(state, self.schema()).checks())
    }
}

fn facts(state: CronState, schema: &str) -> CronFacts {
    let entry = |entry: CronEntry| TickEntry {
        id: entry.id,
        schedule: entry.schedule,
        database: entry.database,
        role: entry.role,
        active: entry.active,
        role_exists: entry.role_exists,
        may_tick: entry.may_tick,
        status: entry.status,
        message: entry.message,
    };
    let server = state.server;
    CronFacts {
        schema: schema.to_owned(),
        database: state.database,
        role: state.role,
        available: state.available,
        installed: state.installed,
        may_use: state.may_use,
        may_schedule: state.may_schedule,
        loaded: server.loaded,
        cron_database: server.cron_database,
        zone: server.zone,
        seen_s_ago: server.seen_us.map(|seen| (server.now_us - seen) / 1_000_000),
        entries: state.entries.into_iter().map(entry).collect(),
    }
}
