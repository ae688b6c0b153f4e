//! A database of its own for every test, copied from a template that is migrated once per test run.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio_postgres::{NoTls, SimpleQueryMessage};

use super::until::until;
use crate::{Client, MigrateOptions, migration_sql};

/// The invariants, as shipped: queries that return the rows which break one.
const INVARIANTS: &str = include_str!("../../sql/invariants.sql");

/// Rows of one broken invariant that a report shows; the rest is counted.
const ROWS_SHOWN_MAX: usize = 10;

/// A database of its own on the server that `DATABASE_URL` names, migrated, and dropped by [`TestDatabase::finish`].
///
/// The first test of a run migrates a template, under an advisory lock, and names it after a hash of the schema; every
/// other one, in this process or another, copies that. Prefer [`with_database`], which cannot forget to finish.
#[derive(Debug)]
pub struct TestDatabase {
    name: String,
    admin_url: String,
    url: String,
    finished: bool,
}

/// An invariant with the rows that break it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Name of the invariant, as in `sql/invariants.sql`.
    pub invariant: String,
    /// The offending rows, as text, at most 10 of them.
    pub rows: Vec<String>,
    /// How many rows there are.
    pub count: usize,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} rows\n    {}", self.invariant, self.count, self.rows.join("\n    "))
    }
}

/// Runs a test on a database of its own, checks the invariants and drops the database.
///
/// # Panics
/// When the test does, when an invariant is broken, or when `DATABASE_URL` is missing. The database is then kept, and its
/// URL printed, to be looked at.
pub async fn with_database<T>(test: impl AsyncFnOnce(&TestDatabase) -> T) -> T {
    let db = TestDatabase::new().await;
    let value = test(&db).await;
    db.finish().await;
    value
}

impl TestDatabase {
    /// Makes the database, on the server of `DATABASE_URL`: the URL of a role that may create databases.
    ///
    /// # Panics
    /// When `DATABASE_URL` is not set, or the server cannot be reached or refuses.
    pub async fn new() -> TestDatabase {
        let url = std::env::var("DATABASE_URL").unwrap_or_else(|_| {
            panic!("DATABASE_URL is not set: it names the server for tests, by a role that may create databases")
        });
        Self::on(&url).await
    }

    /// Makes the database on the server of this URL.
    ///
    /// # Panics
    /// When the server cannot be reached or refuses.
    pub async fn on(admin_url: &str) -> TestDatabase {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let template = template(admin_url).await;
        let count = COUNT.fetch_add(1, Ordering::SeqCst);
        let name = format!("tenure_t{}_{count}_{:x}", std::process::id(), fastrand::u32(..));
        let admin = connect(admin_url).await;
        execute(&admin, &format!("create database {name} template {template}")).await;
        TestDatabase { url: with_dbname(admin_url, &name), name, admin_url: admin_url.to_owned(), finished: false }
    }

    /// The URL of the database.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The URL by which the database was made: the same server, another database.
    pub fn admin_url(&self) -> &str {
        &self.admin_url
    }

    /// Name of the database.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A client of tenure on this database.
    ///
    /// # Panics
    /// When it cannot connect.
    pub async fn client(&self) -> Client {
        Client::connect(&self.url).await.unwrap_or_else(|e| panic!("no client for {}: {e}", self.url))
    }

    /// A plain session on this database, for SQL.
    ///
    /// # Panics
    /// When it cannot connect.
    pub async fn sql(&self) -> tokio_postgres::Client {
        connect(&self.url).await
    }

    /// Runs every query of `sql/invariants.sql`; an empty answer means that all of them hold.
    ///
    /// # Panics
    /// When a query fails.
    pub async fn broken_invariants(&self) -> Vec<Broken> {
        let sql = self.sql().await;
        let mut broken = Vec::new();
        for (invariant, query) in invariants() {
            let answer =
                sql.simple_query(query).await.unwrap_or_else(|e| panic!("invariant {invariant}: {}", text(&e)));
            let mut rows: Vec<String> = answer.iter().filter_map(row_text).collect();
            let count = rows.len();
            rows.truncate(ROWS_SHOWN_MAX);
            if count > 0 {
                broken.push(Broken { invariant: invariant.to_owned(), rows, count });
            }
        }
        broken
    }

    /// Checks every invariant.
    ///
    /// # Panics
    /// When one is broken; the message names it and shows its rows.
    pub async fn check_invariants(&self) {
        let broken = self.broken_invariants().await;
        let report: Vec<String> = broken.iter().map(Broken::to_string).collect();
        assert!(broken.is_empty(), "broken invariants in {}:\n{}", self.url, report.join("\n"));
    }

    /// Checks the invariants and drops the database, with whoever is still connected to it.
    ///
    /// # Panics
    /// When an invariant is broken.
    pub async fn finish(mut self) {
        self.check_invariants().await;
        self.finished = true;
        let admin = connect(&self.admin_url).await;
        execute(&admin, &format!("drop database {} with (force)", self.name)).await;
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the test's database is kept: {}", self.url);
        } else if !self.finished {
            panic!("a TestDatabase was dropped without finish(): its invariants were not checked");
        }
    }
}

/// Makes the migrated template unless it is there; returns its name.
async fn template(admin_url: &str) -> String {
    let schema = migration_sql("tenure", MigrateOptions::default()).expect("the default schema's name is right");
    let name = format!("tenure_template_{:016x}", fnv1a(schema.as_bytes()));
    let admin = connect(admin_url).await;
    // The lock is this session's and goes with it, also when the process dies.
    execute(&admin, "select pg_advisory_lock(hashtext('tenure test template'))").await;
    let there = admin.query_opt("select 1 from pg_database where datname = $1", &[&name]).await.expect("pg_database");
    if there.is_none() {
        // Under a passing name first: a template that exists is complete.
        let unfinished = format!("{name}_unfinished");
        execute(&admin, &format!("drop database if exists {unfinished} with (force)")).await;
        execute(&admin, &format!("create database {unfinished}")).await;
        migrate(&with_dbname(admin_url, &unfinished)).await;
        execute(&admin, &format!("alter database {unfinished} with allow_connections false")).await;
        until("nobody is connected to the new template", async || sessions(&admin, &unfinished).await == 0).await;
        execute(&admin, &format!("alter database {unfinished} rename to {name}")).await;
    }
    name
}

async fn migrate(url: &str) {
    let client = Client::connect(url).await.unwrap_or_else(|e| panic!("no client for {url}: {e}"));
    client.migrate(MigrateOptions::default()).await.unwrap_or_else(|e| panic!("the template cannot be migrated: {e}"));
}

async fn sessions(admin: &tokio_postgres::Client, database: &str) -> i64 {
    let count = "select count(*) from pg_stat_activity where datname = $1";
    admin.query_one(count, &[&database]).await.expect("pg_stat_activity").get(0)
}

async fn connect(url: &str) -> tokio_postgres::Client {
    let mut config: tokio_postgres::Config = url.parse().unwrap_or_else(|e| panic!("not a connection URL: {e}"));
    // Compiling a plan takes longer than anything that a test looks at.
    config.options("-c jit=off");
    let (client, connection) =
        config.connect(NoTls).await.unwrap_or_else(|e| panic!("no connection to {url}: {}", text(&e)));
    tokio::spawn(connection);
    client
}

async fn execute(client: &tokio_postgres::Client, sql: &str) {
    if let Err(e) = client.batch_execute(sql).await {
        let shown: String = sql.chars().take(200).collect();
        panic!("{shown}: {}", text(&e));
    }
}

/// The same server and role, another database.
fn with_dbname(url: &str, database: &str) -> String {
    let (before, query) = url.split_once('?').map_or((url, None), |(before, query)| (before, Some(query)));
    let authority = before.find("://").map_or(0, |at| at + 3);
    let end = before[authority..].find('/').map_or(before.len(), |at| authority + at);
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    format!("{}/{database}{query}", &before[..end])
}

/// Name and text of each query in `sql/invariants.sql`: a query follows a line `-- name: …`.
fn invariants() -> impl Iterator<Item = (&'static str, &'static str)> {
    INVARIANTS
        .split("-- name: ")
        .skip(1)
        .filter_map(|part| part.split_once('\n'))
        .map(|(name, query)| (name, query.trim()))
}

fn row_text(message: &SimpleQueryMessage) -> Option<String> {
    let SimpleQueryMessage::Row(row) = message else { return None };
    let cells = (0..row.len()).map(|i| format!("{}={}", row.columns()[i].name(), row.get(i).unwrap_or("null")));
    Some(cells.collect::<Vec<_>>().join(" "))
}

/// The server's own words: the plain text of a tokio-postgres error says only "db error".
fn text(error: &tokio_postgres::Error) -> String {
    error.as_db_error().map_or_else(|| error.to_string(), |db| db.to_string())
}

/// FNV-1a: names a schema, protects nothing.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_database_of_a_url_is_replaced_and_the_rest_stays() {
        let check = |url: &str, expected: &str| assert_eq!(with_dbname(url, "x"), expected);
        check("postgres://u@h:1/db", "postgres://u@h:1/x");
        check("postgres://u:p@h", "postgres://u:p@h/x");
        check("postgres://u@h/db?sslmode=disable", "postgres://u@h/x?sslmode=disable");
        check("postgres:///db?host=/tmp/s&user=u", "postgres:///x?host=/tmp/s&user=u");
    }

    #[test]
    fn every_invariant_has_a_name() {
        for (name, query) in invariants() {
            assert!(!name.is_empty() && query.ends_with(';'), "{name}: {query}");
        }
        assert_eq!(invariants().count(), INVARIANTS.matches("-- name:").count());
        assert!(invariants().count() >= 5);
    }
}
