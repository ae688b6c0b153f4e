//! Which database and schema a command works on.

use tenure::{Client, ClientBuilder};

/// The options that all commands with a database share.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Database")]
pub struct Connection {
    /// postgres://user:password@host:port/database or 'host=… dbname=…', with several hosts (a,b) the first that takes
    /// writes; PGHOST, PGPORT, PGUSER, PGPASSWORD, PGDATABASE
    /// and PGSSLMODE fill what it leaves open
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, default_value = "", hide_default_value = true)]
    pub database_url: String,

    /// Schema of the queue
    #[arg(long, env = "TENURE_SCHEMA", default_value = "tenure", hide_env_values = true)]
    pub schema: String,

    /// There is a pooler in transaction mode (PgBouncer) in between
    #[arg(long, env = "TENURE_POOLER", hide_env_values = true)]
    pub pooler: bool,
}

impl Connection {
    /// A client with one connection, as a command needs no more.
    pub async fn connect(&self) -> Result<Client, tenure::Error> {
        self.builder().connect().await
    }

    /// The settings, for those who need others beside.
    pub fn builder(&self) -> ClientBuilder {
        Client::builder(&self.database_url)
            .schema(&self.schema)
            .pooler(self.pooler)
            .pool_size(1)
            .application_name("tenure cli")
    }
}
