//! The numbers that hold for the whole schema.

use super::Client;
use super::jobs::column;
use crate::Error;
use crate::store::operate::{SET_SETTING, SETTINGS};

/// A number that can be set for the whole schema.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Setting {
    /// Its name, which ends in its unit: `payload_bytes`, `snapshot_warn_ms`.
    pub name: String,
    /// What holds now.
    pub value: i64,
    /// The least that it can be set to.
    pub lowest: i64,
    /// And the most.
    pub highest: i64,
    /// What holds when it was never set.
    pub default_value: i64,
    /// Somebody has set it, be it to the default.
    pub is_set: bool,
}

impl Client {
    /// The numbers that can be set for the whole schema, by name. How long jobs are kept is not among them, see
    /// [`set_keep`](Client::set_keep).
    ///
    /// # Errors
    /// Those of the database.
    pub async fn settings(&self) -> Result<Vec<Setting>, Error> {
        let session = self.session().await?;
        let rows = session.query(&SETTINGS, &[]).await.map_err(|e| Error::store(SETTINGS.name, e))?;
        let read = |row: &tokio_postgres::Row| {
            Ok(Setting {
                name: column(row, 0)?,
                value: column(row, 1)?,
                lowest: column(row, 2)?,
                highest: column(row, 3)?,
                default_value: column(row, 4)?,
                is_set: column(row, 5)?,
            })
        };
        rows.iter().map(read).collect()
    }

    /// Sets one of them, for all programs on this schema; none sets it back to its default.
    ///
    /// # Errors
    /// `BadInput`: there is no such setting, or the value is out of its range. `Timeout`: somebody else has just changed it and
    /// has not committed.
    pub async fn set_setting(&self, name: &str, value: Option<i64>) -> Result<(), Error> {
        let session = self.session().await?;
        let done = session.query(&SET_SETTING, &[&name, &value]).await;
        done.map(drop).map_err(|e| Error::store(SET_SETTING.name, e))
    }
}
