//! Who holds back vacuum, for those who operate the database.

use super::Client;
use super::jobs::column;
use crate::model::VacuumHorizon;
use crate::store::horizon::{self, VACUUM_HORIZON};
use crate::{Error, ErrorCode};

impl Client {
    /// What keeps vacuum from removing dead rows of this database: open snapshots, prepared transactions and replication
    /// slots, the oldest first; and the dead rows of the hot tables. Claims stay quick behind an old snapshot, but the
    /// tables grow for as long as it is open. It runs with the rights of the schema's owner, see
    /// [`VacuumHorizon::hidden_sessions`].
    ///
    /// # Errors
    /// Those of the database.
    pub async fn vacuum_horizon(&self) -> Result<VacuumHorizon, Error> {
        let session = self.session().await?;
        let row = session.query_opt(&VACUUM_HORIZON, &[]).await.map_err(|e| Error::store(VACUUM_HORIZON.name, e))?;
        let row = row.ok_or_else(|| Error::new(ErrorCode::Internal, "vacuum_horizon said nothing"))?;
        horizon::read(column(&row, 0)?).map_err(|e| Error::store(VACUUM_HORIZON.name, e))
    }
}
