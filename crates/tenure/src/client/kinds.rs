//! Kinds that wait for a worker which can run them.

use std::time::SystemTime;

use super::Client;
use super::jobs::column;
use crate::Error;
use crate::store::jobs::UNHANDLED_KINDS;

/// A kind of which jobs wait, and that no living worker of the queue can run; a drained one takes nothing new.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UnhandledKind {
    /// The queue in which they wait.
    pub queue: String,
    /// The kind.
    pub kind: String,
    /// How many could run now.
    pub available: i64,
    /// Since when the oldest could have run.
    pub oldest_due_at: Option<SystemTime>,
    /// Which living worker of the queue has a handler that cannot run, and why: `worker 3 (web-1) refuses it: …`; none: no
    /// worker knows the kind.
    pub refused: Option<String>,
}

impl Client {
    /// The kinds that wait and that no worker handles which takes new jobs, by queue and name: a program that is not deployed yet, or not any
    /// more, a name with a typing error, or one whose handler [cannot run](crate::Context::refuse_kind). Their jobs stay unharmed until a worker comes that knows them.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn unhandled_kinds(&self) -> Result<Vec<UnhandledKind>, Error> {
        let session = self.session().await?;
        let rows = session.query(&UNHANDLED_KINDS, &[]).await.map_err(|e| Error::store(UNHANDLED_KINDS.name, e))?;
        let read = |row: &tokio_postgres::Row| {
            Ok(UnhandledKind {
                queue: column(row, 0)?,
                kind: column(row, 1)?,
                available: column(row, 2)?,
                oldest_due_at: column(row, 3)?,
                refused: column(row, 4)?,
            })
        };
        rows.iter().map(read).collect()
    }
}
