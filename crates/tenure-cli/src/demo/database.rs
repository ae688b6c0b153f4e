//! Connections of the demo's own: handlers bring theirs, as an application would, and never borrow the worker's.

use std::env;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_postgres::{Client, Config, NoTls};

use crate::connection::Connection;

/// A server that does not answer for so long counts as unreachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

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
        let mut config: Config = connection.database_url.parse().context("the database URL cannot be read")?;
        complete(&mut config, |name| env::var(name).ok().filter(|value| !value.is_empty()))?;
        config.application_name("tenure demo");
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
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
        let (client, connection) = self.config.connect(NoTls).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection of the demo ended");
            }
        });
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

/// What the URL leaves open comes from the environment, as in all commands.
fn complete(config: &mut Config, environment: impl Fn(&str) -> Option<String>) -> Result<()> {
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        config.host(environment("PGHOST").unwrap_or_else(default_host));
    }
    if let (true, Some(port)) = (config.get_ports().is_empty(), environment("PGPORT")) {
        config.port(port.parse().with_context(|| format!("PGPORT={port:?} is not a port"))?);
    }
    if let (None, Some(user)) = (config.get_user(), environment("PGUSER")) {
        config.user(user);
    }
    if let (None, Some(password)) = (config.get_password(), environment("PGPASSWORD")) {
        config.password(password);
    }
    if let (None, Some(name)) = (config.get_dbname(), environment("PGDATABASE")) {
        config.dbname(name);
    }
    Ok(())
}

fn default_host() -> String {
    let sockets = "/var/run/postgresql";
    if Path::new(sockets).is_dir() { sockets.to_owned() } else { "localhost".to_owned() }
}

#[cfg(test)]
mod tests {
    use tokio_postgres::config::Host;

    use super::*;

    #[test]
    fn the_environment_fills_what_the_url_leaves_open() {
        let environment = |name: &str| {
            let value = match name {
                "PGHOST" => "db.internal",
                "PGPORT" => "6432",
                "PGUSER" => "app",
                "PGDATABASE" => "shop",
                _ => return None,
            };
            Some(value.to_owned())
        };
        let mut config: Config = "user=me".parse().unwrap();
        complete(&mut config, environment).unwrap();
        assert_eq!(config.get_hosts(), [Host::Tcp("db.internal".into())]);
        assert_eq!((config.get_ports(), config.get_user()), ([6432].as_slice(), Some("me")));
        assert_eq!(config.get_dbname(), Some("shop"));
    }
}
