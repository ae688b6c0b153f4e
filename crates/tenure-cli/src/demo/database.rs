//! Connections of the demo's own: handlers bring theirs, as an application would, and never borrow the worker's.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_postgres::{Client, Config};

use crate::connection::Connection;
use crate::plain_sql;

/// A pool with a limit. A connection that broke is not lent again.
pub struct Database {
    config: Config,
    schema: String,
    idle: Mutex<Vec<Client>>,
    permits: Semaphore,
}

/// A connection for as long as it is held.
pub struct Lent<'a> {
    client: Option<Client>,
    database: &'a Database,
    _permit: SemaphorePermit<'a>,
}

impl Database {
    /// At most `connections` at once. Connects when the first is needed.
    ///
    /// # Errors
    /// The URL cannot be read.
    pub fn new(connection: &Connection, connections: usize) -> Result<Self> {
        let config = plain_sql::config(&connection.database_url, "tenure demo")?;
        let schema = connection.schema.clone();
        Ok(Database { config, schema, idle: Mutex::default(), permits: Semaphore::new(connections) })
    }

    /// Waits for a free connection, or makes one.
    ///
    /// # Errors
    /// The server cannot be reached or refuses.
    pub async fn lend(&self) -> Result<Lent<'_>, tokio_postgres::Error> {
        let _permit = self.permits.acquire().await.expect("the semaphore is never closed");
        let idle = self.take_idle();
        let client = match idle {
            Some(client) => client,
            None => self.connect().await?,
        };
        Ok(Lent { client: Some(client), database: self, _permit })
    }

    async fn connect(&self) -> Result<Client, tokio_postgres::Error> {
        let client = plain_sql::connect(&self.config).await?;
        // `jobs` and `attempt_error` are the queue's, whatever its schema is called. The view `jobs` is a large query: on
        // tables without statistics its compilation takes 1.8 s of its 1.9 s.
        client.batch_execute(&format!("set search_path = {}; set jit = off", self.schema)).await?;
        Ok(client)
    }

    fn take_idle(&self) -> Option<Client> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|client| !client.is_closed());
        idle.pop()
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let Some(client) = self.client.take().filter(|client| !client.is_closed()) {
            // A transaction that was dropped half way has sent its rollback before whatever comes next.
            self.database.idle.lock().unwrap_or_else(PoisonError::into_inner).push(client);
        }
    }
}

impl Deref for Lent<'_> {
    type Target = Client;
    fn deref(&self) -> &Client {
        self.client.as_ref().expect("taken in drop only")
    }
}

impl DerefMut for Lent<'_> {
    fn deref_mut(&mut self) -> &mut Client {
        self.client.as_mut().expect("taken in drop only")
    }
}
