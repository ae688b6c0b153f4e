//! Schedules that do not fire although they should.

use std::time::SystemTime;

use super::Client;
use super::jobs::{column, page_size};
use crate::Error;
use crate::store::backfill::TROUBLED_SCHEDULES;

/// A schedule that cannot fire, or whose time came and nobody fired it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TroubledSchedule {
    /// Its name.
    pub name: String,
    /// `failing`: it cannot fire, see [`error`](Self::error). `overdue`: nobody looked at it for 10 s, as when no worker lives.
    pub state: String,
    /// Since when; of one that is overdue, the time that has not fired.
    pub since: SystemTime,
    /// Why it cannot fire.
    pub error: Option<String>,
}

impl Client {
    /// Schedules that cannot fire, and those that are overdue, the oldest troubles of each first; at most `limit`: 1 to 1,000, 100 when
    /// not given.
    ///
    /// # Errors
    /// `BadInput`: the limit.
    pub async fn troubled_schedules(&self, limit: Option<usize>) -> Result<Vec<TroubledSchedule>, Error> {
        let limit = page_size(limit)? as i32;
        let session = self.session().await?;
        let rows = session.query(&TROUBLED_SCHEDULES, &[&limit]).await;
        let read = |row: &tokio_postgres::Row| {
            Ok(TroubledSchedule {
                name: column(row, 0)?,
                state: column(row, 1)?,
                since: column(row, 2)?,
                error: column(row, 3)?,
            })
        };
        rows.map_err(|e| Error::store(TROUBLED_SCHEDULES.name, e))?.iter().map(read).collect()
    }
}
