//! Where it is measured: a schema of the bench's own, made at the start and dropped at the end, however the end came.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use futures_util::future::poll_fn;
use serde::Serialize;
use tenure::{ClientBuilder, MigrateOptions};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::{AsyncMessage, Config, NoTls};

use super::clock::now_ns;
use super::options::{PlaceOptions, Scene};
use super::usage;
use crate::connection::Connection;
use crate::plain_sql;

/// The mark by which a later run knows that a schema is the bench's and may be dropped.
const MARK: &str = "made by: tenure bench";
/// One bench at a time in a database: they would disturb each other's figures.
const TRY_LOCK: &str = "select pg_try_advisory_lock(hashtextextended('tenure bench', 0))";
/// How long the sessions of a run that was stopped may take to end.
const END_MAX: Duration = Duration::from_secs(30);
/// How often it is looked whether they have.
const LOOK: Duration = Duration::from_millis(20);
/// Sessions of one worker: they stay as long as it does.
const WORKER_SESSIONS: i64 = 2;
/// What is emptied between measurements: all that holds jobs, and what was counted of them.
const EMPTY: &str = "truncate job, outcome, ready, later, lease, inbox, stat_delta, stat_minute, stat_worker";

/// The schema, and a session that looks at it.
pub struct Place {
    /// The bench's own session, whose search path is the schema.
    pub sql: tokio_postgres::Client,
    /// How workers and producers connect.
    pub connection: Connection,
    /// The name of all sessions of this run.
    pub name: String,
    /// Whether the server's processes are of this machine, so that their CPU time can be read.
    pub is_local: bool,
    /// What the server is set to.
    pub server: Server,
    config: Config,
}

/// The settings that decide about the figures.
#[derive(Debug, Clone, Serialize)]
pub struct Server {
    pub version: String,
    pub fsync: String,
    pub synchronous_commit: String,
    pub full_page_writes: String,
    pub wal_compression: String,
    pub shared_buffers: String,
    pub max_wal_size: String,
    pub max_connections: i64,
    /// Whether this role may ask for a checkpoint: otherwise one may fall into a measurement.
    pub may_checkpoint: bool,
}

impl Place {
    /// Connects, and refuses what must not be touched. The schema is not made yet: [`Place::make`].
    ///
    /// # Errors
    /// The server cannot be reached, another bench runs, or the schema is somebody else's.
    pub async fn find(options: &PlaceOptions) -> Result<Place> {
        let connection = options.connection();
        let name = format!("tenure bench {}", std::process::id());
        // Checks the name of the schema before anything is built from it, and names a server that cannot be reached.
        connection.builder().pool_size(1).application_name(&name).connect().await?;
        let config = config(&connection, &name)?;
        let sql = plain_sql::connect(&config).await.context("cannot connect for the bench")?;
        let schema = &connection.schema;
        sql.batch_execute("set statement_timeout = 0; set idle_session_timeout = 0; set jit = off").await?;
        if !sql.query_one(TRY_LOCK, &[]).await?.get::<_, bool>(0) {
            bail!("another `tenure bench` is running in this database; wait for its end or use another database");
        }
        if is_ours(&sql, schema).await? == Some(false) {
            bail!(
                "the schema {schema} of this database was not made by `tenure bench`: it may hold jobs of yours, and is left alone\n        \
                 measure in another one: --schema NAME makes it and drops it afterwards"
            );
        }
        let (is_local, server) = (is_local(&sql).await?, Server::of(&sql).await?);
        Ok(Place { sql, connection, name, is_local, server, config })
    }

    /// Makes the schema, in place of what a former bench left. The mark stands before the first table: however this ends, the
    /// schema is known to be ours, and [`Place::close`] drops it.
    ///
    /// # Errors
    /// The role may not make a schema, or somebody holds a table of the former one.
    pub async fn make(&self) -> Result<()> {
        let schema = &self.connection.schema;
        drop_ours(&self.sql, schema).await.context("what a former bench left behind cannot be dropped")?;
        let make = format!(
            "begin; create schema {schema}; comment on schema {schema} is '{MARK}'; commit; set search_path = {schema}"
        );
        self.sql.batch_execute(&make).await.with_context(|| {
            format!("the schema {schema} cannot be made; it needs the right to create one: grant create on database NAME to ROLE")
        })?;
        self.client(1).connect_lazy()?.migrate(MigrateOptions::default()).await?;
        Ok(())
    }

    /// A client with so many connections, by the name of this run.
    pub fn client(&self, connections: usize) -> ClientBuilder {
        self.connection.builder().pool_size(connections).application_name(&self.name)
    }

    /// A session that stands aside: nobody waits for its end, and what it costs is not counted.
    ///
    /// # Errors
    /// The server refuses.
    pub async fn bystander(&self) -> Result<tokio_postgres::Client> {
        let mut config = self.config.clone();
        config.application_name(bystander(&self.name));
        let sql = plain_sql::connect(&config).await.context("a further session of the bench")?;
        let schema = &self.connection.schema;
        sql.batch_execute(&format!(
            "set search_path = {schema}; set statement_timeout = 0; set idle_session_timeout = 0;
             set idle_in_transaction_session_timeout = 0"
        ))
        .await?;
        Ok(sql)
    }

    /// A session that tells when notifications arrive that it listens to.
    ///
    /// # Errors
    /// The server refuses.
    pub async fn listener(&self) -> Result<(tokio_postgres::Client, UnboundedReceiver<u64>)> {
        let mut config = self.config.clone();
        config.application_name(bystander(&self.name));
        let (client, mut connection) = config.connect(NoTls).await?;
        let (told, heard) = unbounded_channel();
        tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
                if matches!(message, AsyncMessage::Notification(_)) && told.send(now_ns()).is_err() {
                    return;
                }
            }
        });
        Ok((client, heard))
    }

    /// Makes all measurements begin alike. The tables are emptied, unless the scene asks for something in them: then what was
    /// done before stays with it. Where it is permitted a checkpoint is written, so that none falls into the measurement.
    ///
    /// # Errors
    /// The database fails.
    pub async fn prepare(&self, scene: &Scene) -> Result<()> {
        if scene.history + scene.scheduled == 0 {
            self.sql.batch_execute(EMPTY).await?;
        }
        self.checkpoint().await
    }

    /// See [`Place::prepare`].
    ///
    /// # Errors
    /// The database fails.
    pub async fn checkpoint(&self) -> Result<()> {
        if self.server.may_checkpoint {
            self.sql.batch_execute("checkpoint").await?;
        }
        Ok(())
    }

    /// How sessions of this run are made.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Waits until the other sessions of this run have ended, which is when the server has counted what they did.
    ///
    /// # Errors
    /// The database fails. Sessions that stay are not waited for for ever.
    pub async fn until_alone(&self) -> Result<()> {
        until_gone(&self.sql, &[&self.name]).await
    }

    /// Ends what is left of the run and drops the schema.
    ///
    /// # Errors
    /// The server cannot be reached or somebody holds a table of the schema. The next bench drops it then.
    pub async fn close(self) -> Result<()> {
        let Place { sql, connection, name, config, .. } = self;
        let schema = connection.schema;
        drop(sql);
        let dropped = async {
            // What the other session was told to do may still be under way.
            let sql = plain_sql::connect(&config).await?;
            let names = [&name[..], &bystander(&name)];
            let end = "select pg_terminate_backend(pid) from pg_stat_activity
                       where application_name = any($1) and datname = current_database() and pid <> pg_backend_pid()";
            sql.query(end, &[&&names[..]]).await?;
            until_gone(&sql, &names).await?;
            // A bench that came in between has dropped the schema itself.
            if sql.query_one(TRY_LOCK, &[]).await?.get::<_, bool>(0) {
                drop_ours(&sql, &schema).await?;
            }
            anyhow::Ok(())
        };
        dropped.await.with_context(|| format!("the schema {schema} is left behind; the next `tenure bench` drops it"))
    }
}

fn config(connection: &Connection, name: &str) -> Result<Config> {
    if tenure::connection_config(&connection.database_url)?.get_application_name().is_some() {
        bail!("leave application_name out of the URL: the bench knows its sessions by it");
    }
    Ok(plain_sql::config(&connection.database_url, name)?)
}

/// Whether the schema is the bench's own; none: there is no such schema. One that is not ours is never touched.
async fn is_ours(sql: &tokio_postgres::Client, schema: &str) -> Result<Option<bool>> {
    let comment = "select obj_description(oid, 'pg_namespace') from pg_namespace where nspname = $1";
    let found = sql.query_opt(comment, &[&schema]).await?;
    Ok(found.map(|row| row.get::<_, Option<&str>>(0) == Some(MARK)))
}

/// Drops the schema if it is ours.
async fn drop_ours(sql: &tokio_postgres::Client, schema: &str) -> Result<()> {
    if is_ours(sql, schema).await? == Some(true) {
        let drop = format!("set client_min_messages = warning; set lock_timeout = '10s'; drop schema {schema} cascade");
        sql.batch_execute(&drop).await?;
    }
    Ok(())
}

/// The name of a session that stands aside.
fn bystander(name: &str) -> String {
    format!("{name} aside")
}

/// Waits until everybody of these names but the asking session is gone, and not for ever.
async fn until_gone(sql: &tokio_postgres::Client, names: &[&str]) -> Result<()> {
    let others = "select count(*) from pg_stat_activity
                  where application_name = any($1) and datname = current_database() and pid <> pg_backend_pid()";
    let start = Instant::now();
    while start.elapsed() < END_MAX {
        if sql.query_one(others, &[&names]).await?.get::<_, i64>(0) == 0 {
            break;
        }
        // sleep: a session that ends gives no signal to others.
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

async fn is_local(sql: &tokio_postgres::Client) -> Result<bool> {
    let row = sql.query_one("select pg_backend_pid(), inet_client_port()", &[]).await?;
    Ok(usage::is_our_session(row.get(0), row.get(1)))
}

impl Server {
    async fn of(sql: &tokio_postgres::Client) -> Result<Server> {
        const SETTINGS: &str = "
            select current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit'),
                   current_setting('full_page_writes'), current_setting('wal_compression'), current_setting('shared_buffers'),
                   current_setting('max_wal_size'), current_setting('max_connections')::bigint, pg_has_role('pg_checkpoint', 'usage')";
        let row = sql.query_one(SETTINGS, &[]).await?;
        let server = Server {
            version: row.get(0),
            fsync: row.get(1),
            synchronous_commit: row.get(2),
            full_page_writes: row.get(3),
            wal_compression: row.get(4),
            shared_buffers: row.get(5),
            max_wal_size: row.get(6),
            max_connections: row.get(7),
            may_checkpoint: row.get(8),
        };
        server.warn();
        Ok(server)
    }

    /// Rather at once and in plain words than by the one worker that finds no place.
    ///
    /// # Errors
    /// The server takes fewer sessions than so many workers need.
    pub fn refuse_crowd(&self, workers: u16) -> Result<()> {
        let (needed, there) = (i64::from(workers) * WORKER_SESSIONS, self.max_connections);
        ensure!(
            needed <= there,
            "{workers} workers need {needed} connections, and the server takes {there} in all: lower --workers, or raise \
             max_connections"
        );
        Ok(())
    }

    /// Figures that are not those of a durable queue say so.
    fn warn(&self) {
        for (name, value) in [("fsync", &self.fsync), ("synchronous_commit", &self.synchronous_commit)] {
            if value == "off" {
                eprintln!("tenure bench: {name} is off: what is measured here would not survive a crash");
            }
        }
        if !self.may_checkpoint {
            eprintln!(
                "tenure bench: this role may not checkpoint: one may fall into a measurement (grant pg_checkpoint to ROLE)"
            );
        }
    }

    #[cfg(test)]
    pub fn unknown() -> Server {
        let text = String::new;
        Server {
            version: text(),
            fsync: text(),
            synchronous_commit: text(),
            full_page_writes: text(),
            wal_compression: text(),
            shared_buffers: text(),
            max_wal_size: text(),
            max_connections: 100,
            may_checkpoint: false,
        }
    }

    /// In one line.
    pub fn in_words(&self) -> String {
        format!(
            "PostgreSQL {}, fsync {}, synchronous_commit {}, full_page_writes {}, wal_compression {}, shared_buffers {}, max_wal_size {}",
            self.version,
            self.fsync,
            self.synchronous_commit,
            self.full_page_writes,
            self.wal_compression,
            self.shared_buffers,
            self.max_wal_size
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_workers_than_the_server_has_places_for_are_refused_with_the_way_out() {
        let server = Server { max_connections: 100, ..Server::unknown() };
        assert!(server.refuse_crowd(50).is_ok());
        let said = server.refuse_crowd(64).unwrap_err().to_string();
        assert!(said.contains("64 workers need 128") && said.contains("takes 100"), "{said}");
        assert!(said.contains("lower --workers, or raise max_connections"), "{said}");
    }
}
