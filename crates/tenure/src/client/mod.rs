//! The verbs of an application: enqueue, look, wait, cancel, pause, requeue, migrate.

pub(crate) mod ahead;
pub(crate) mod audit;
pub(crate) mod backfill;
pub(crate) mod bounds;
mod bulk;
pub(crate) mod cancel;
pub(crate) mod cron;
pub(crate) mod dead;
pub(crate) mod declared;
pub(crate) mod enqueue;
pub(crate) mod executor;
mod horizon;
pub(crate) mod jobs;
pub(crate) mod kinds;
pub(crate) mod limits;
pub(crate) mod pause;
mod plans;
mod pool;
pub(crate) mod queues;
pub(crate) mod reschedule;
pub(crate) mod retention;
pub(crate) mod schedules;
pub(crate) mod settings;
pub(crate) mod stats;
pub(crate) mod troubles;
pub mod verbs;
pub(crate) mod wait;

use std::sync::Arc;
use std::time::Duration;

use crate::model::limits::{POOL_SIZE_DEFAULT, POOL_SIZE_MAX, POOL_WAIT_DEFAULT, SCHEMA_DEFAULT};
use crate::model::names;
use crate::store::migrate::{self, Migrated};
use crate::store::{SessionOptions, StoreError, Texts, address};
use crate::{Error, ErrorCode};
use pool::{Pool, Pooled};

/// Access to the queue: cheap to clone, all clones share a few connections.
///
/// Connections are made when they are needed and replaced when they break; a statement that fails is not repeated, as
/// nobody knows whether it was done. See [`Error::is_retryable`].
///
/// ```no_run
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct SendMail { to: String }
/// # impl tenure::Job for SendMail { const KIND: &'static str = "send_mail"; }
/// # async fn example() -> Result<(), tenure::Error> {
/// use tenure::{Client, Enqueue};
///
/// let client = Client::connect("postgres://localhost/shop").await?;
/// let id = client.enqueue(Enqueue::new(&SendMail { to: "ada@example.org".into() })?).await?;
/// println!("job {id}");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Client {
    pool: Arc<Pool>,
    texts: Arc<Texts>,
}

/// Settings of a [`Client`].
#[derive(Clone, Debug)]
pub struct ClientBuilder {
    url: String,
    schema: String,
    pool_size: usize,
    pool_wait: Duration,
    pooler: bool,
    application_name: String,
}

/// What [`Client::migrate`] shall do beside the migration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MigrateOptions {
    /// Also make the roles `tenure_producer`, `tenure_worker`, `tenure_viewer` and `tenure_admin` (named for the
    /// schema) and grant them their verbs. Needs CREATEROLE. Everything works without them as the schema's owner.
    pub roles: bool,
}

impl Client {
    /// Connects with the defaults: schema `tenure`, 4 connections, no pooler in between.
    ///
    /// `url` is `postgres://user:password@host:port/database?sslmode=require` or `host=… dbname=…`; what it leaves open
    /// comes from PGHOST, PGPORT, PGUSER, PGPASSWORD, PGDATABASE and PGSSLMODE, so that `""` means "the environment".
    ///
    /// # Errors
    /// `BadInput`: the text is no connection string. `Unreachable`, `Denied`: no connection could be made.
    pub async fn connect(url: &str) -> Result<Client, Error> {
        Client::builder(url).connect().await
    }

    /// Settings other than the defaults.
    pub fn builder(url: impl Into<String>) -> ClientBuilder {
        ClientBuilder {
            url: url.into(),
            schema: SCHEMA_DEFAULT.to_owned(),
            pool_size: POOL_SIZE_DEFAULT,
            pool_wait: POOL_WAIT_DEFAULT,
            pooler: false,
            application_name: "tenure".to_owned(),
        }
    }

    /// The schema in which the queue lives.
    pub fn schema(&self) -> &str {
        self.texts.schema()
    }

    /// Makes the schema or brings it up to date, in one transaction: all of it or nothing. Running workers go on.
    ///
    /// # Errors
    /// `Schema`: the server is older than PostgreSQL 15, or the schema newer than this program. `ReadOnly`, `Denied`:
    /// the server or the role allows no changes. `Timeout`: somebody held a lock for longer than a minute.
    pub async fn migrate(&self, options: MigrateOptions) -> Result<Migrated, Error> {
        migrate::migrate(self.pool.options(), options.roles).await
    }

    pub(crate) fn with(options: SessionOptions, pool_size: usize, pool_wait: Duration) -> Client {
        let texts = options.texts.clone();
        Client { pool: Arc::new(Pool::new(options, pool_size, pool_wait)), texts }
    }

    pub(crate) async fn session(&self) -> Result<Pooled<'_>, Error> {
        self.pool.get().await
    }
}

impl ClientBuilder {
    /// The schema of the queue; `tenure` when not given. Lower case letters, digits and `_`, at most 40 bytes.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// Connections at most, 1 to 1,000; 4 when not given.
    pub fn pool_size(mut self, connections: usize) -> Self {
        self.pool_size = connections;
        self
    }

    /// How long a call waits for a free connection before it fails with `Timeout`; 30 s when not given.
    pub fn pool_wait(mut self, wait: Duration) -> Self {
        self.pool_wait = wait;
        self
    }

    /// There is a pooler in transaction mode (PgBouncer) between here and the server: no prepared statements.
    pub fn pooler(mut self, pooler: bool) -> Self {
        self.pooler = pooler;
        self
    }

    /// The name that `pg_stat_activity` shows; `tenure` when not given.
    pub fn application_name(mut self, name: impl Into<String>) -> Self {
        self.application_name = name.into();
        self
    }

    /// Checks the settings and makes the first connection.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn connect(self) -> Result<Client, Error> {
        let client = self.connect_lazy()?;
        client.session().await?;
        Ok(client)
    }

    /// Checks the settings; the first verb makes the first connection.
    ///
    /// # Errors
    /// `BadInput`, naming the wrong setting.
    pub fn connect_lazy(self) -> Result<Client, Error> {
        names::check_schema(&self.schema)?;
        if !(1..=POOL_SIZE_MAX).contains(&self.pool_size) {
            return Err(Error::bad_input(
                format!("pool_size {} is outside 1 to {POOL_SIZE_MAX}", self.pool_size),
                format!("{POOL_SIZE_DEFAULT} is enough for most programs"),
            ));
        }
        let mut options = SessionOptions::new(&self.url, Texts::new(&self.schema), &self.application_name)
            .map_err(not_a_connection_string)?;
        options.pooler = self.pooler;
        Ok(Client::with(options, self.pool_size, self.pool_wait))
    }
}

/// The text itself is not repeated: there may be a password in it.
fn not_a_connection_string(error: StoreError) -> Error {
    Error::new(ErrorCode::BadInput, format!("this is no connection string: {error}"))
        .with_help("write postgres://user:password@host:5432/database or host=… dbname=…, or leave it out and set PGHOST, PGUSER and so on")
}

/// The database that a [`Client`] with this connection string uses, for sessions of the program's own beside it: what the text
/// leaves open is read from the environment, see [`Client::connect`]. Of several hosts the first that takes writes is the one.
/// Of `sslmode=verify-full` only `require` is left: how a certificate is checked is up to whoever makes the TLS connection.
///
/// # Errors
/// `BadInput`: the text is no connection string, or a variable of the environment does not fit.
pub fn connection_config(url: &str) -> Result<tokio_postgres::Config, Error> {
    address::read(url).map(|(config, _)| config).map_err(not_a_connection_string)
}

/// The SQL of a new schema of that name as a script for psql, for those who do not let programs change their database.
///
/// # Errors
/// `BadInput`: the name cannot be a schema of tenure.
pub fn migration_sql(schema: &str, options: MigrateOptions) -> Result<String, Error> {
    names::check_schema(schema)?;
    Ok(migrate::script(schema, options.roles))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_checked_before_anything_is_tried() {
        let check = |builder: ClientBuilder, expected: &str| {
            let error = builder.connect_lazy().err().unwrap();
            assert_eq!(error.code(), ErrorCode::BadInput);
            assert!(error.to_string().contains(expected), "{error}");
        };
        check(Client::builder("postgres://h/d").schema("Jobs"), "\"Jobs\" cannot be the schema of tenure");
        check(Client::builder("postgres://h/d").pool_size(0), "pool_size 0 is outside 1 to 1000");
        check(Client::builder("postgres://u:secret@h:x/d"), "this is no connection string");
        let error = Client::builder("postgres://u:secret@h:x/d").connect_lazy().err().unwrap();
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
