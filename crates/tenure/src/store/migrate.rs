//! The migration: numbered files once each, then all functions anew and the rights on them, in one transaction.

use std::time::{Duration, Instant};

use tokio_postgres::Transaction;

use super::session::{Session, SessionOptions};
use super::template::for_schema;
use crate::model::limits::SERVER_MAJOR_MIN;
use crate::{Error, ErrorCode};

mod files {
    include!(concat!(env!("OUT_DIR"), "/sql_files.rs"));
}

const ROLES: &str = include_str!("../../sql/roles.sql");

/// A migration must not queue behind a long transaction with everybody else queueing behind it: it gives up and tries again.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
/// How long it goes on trying to get its locks.
const LOCK_PATIENCE: Duration = Duration::from_secs(60);
/// The longest statement of a migration: an index over a large table takes minutes.
const STATEMENT_MAX: Duration = Duration::from_secs(3600);

/// What a migration did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Migrated {
    /// The version before; 0 when there was no schema.
    pub from: i32,
    /// The version now.
    pub to: i32,
    /// The files that were applied, for example `0001_tables`. Functions are renewed every time.
    pub applied: Vec<String>,
}

/// The version of the schema that this program works with.
pub(crate) fn latest() -> i32 {
    files::MIGRATIONS.iter().map(|(name, _)| version_of(name)).max().unwrap_or(0)
}

/// Brings the schema up to date, or changes nothing.
pub(crate) async fn migrate(options: &SessionOptions, roles: bool) -> Result<Migrated, Error> {
    let mut options = options.clone();
    options.deadline = STATEMENT_MAX;
    let schema = options.texts.schema().to_owned();
    let mut session = Session::connect(&options, None).await.map_err(|e| Error::store("migrate", e))?;
    let started = Instant::now();
    loop {
        match attempt(&mut session, &schema, roles).await {
            Err(error) if is_worth_another_try(&error) && started.elapsed() < LOCK_PATIENCE => {
                tracing::info!(%error, "the migration tries again");
                tokio::time::sleep(Duration::from_millis(200 + fastrand::u64(0..300))).await;
            }
            end => return end,
        }
    }
}

fn is_worth_another_try(error: &Error) -> bool {
    // 23505 and 42P06: another first migration made the same schema or roles before ours saw it.
    matches!(error.sqlstate(), Some("55P03" | "40P01" | "40001" | "23505" | "42P06" | "42710" | "XX000"))
}

async fn attempt(session: &mut Session, schema: &str, roles: bool) -> Result<Migrated, Error> {
    let lost = |e| Error::postgres("migrate", e);
    let tx = session.client_mut().transaction().await.map_err(lost)?;
    refuse_unfit_server(&tx).await?;
    tx.batch_execute(&preamble(schema)).await.map_err(lost)?;
    let from = current_version(&tx, schema).await?;
    refuse_newer(from, schema)?;
    if from > 0 {
        refuse_other_texts(&tx, schema).await?;
    }
    let mut applied = Vec::new();
    if from == 0 {
        run(&tx, "create the schema", &birth(schema)).await?;
    }
    for (name, sql) in files::MIGRATIONS.iter().filter(|(name, _)| version_of(name) > from) {
        run(&tx, &format!("apply migration {name}"), &for_schema(sql, schema)).await?;
        run(&tx, "record the migration", &record(schema, name, sql)).await?;
        applied.push((*name).to_owned());
    }
    for (name, sql) in functions() {
        run(&tx, &format!("renew the functions of {name}.sql"), &for_schema(sql, schema)).await?;
    }
    run(&tx, "make the first partitions", &first_partitions(schema)).await?;
    run(&tx, "take the rights of PUBLIC away", &owner_only(schema)).await?;
    if roles || has_roles(&tx, schema).await? {
        run(&tx, "make the roles", &for_schema(ROLES, schema)).await?;
    }
    tx.commit().await.map_err(lost)?;
    Ok(Migrated { from, to: latest(), applied })
}

/// The whole SQL of a new schema as a script for psql.
pub(crate) fn script(schema: &str, roles: bool) -> String {
    let mut parts = vec![
        format!(
            "-- The schema {schema:?} of tenure {}, version {}.\n-- For a database without it: psql -v ON_ERROR_STOP=1 -f FILE\nbegin;",
            env!("CARGO_PKG_VERSION"),
            latest()
        ),
        preamble(schema),
        birth(schema),
    ];
    for (name, sql) in files::MIGRATIONS {
        parts.push(format!(
            "-- migration {name}\n{}\n{}",
            for_schema(sql, schema).trim_end(),
            record(schema, name, sql)
        ));
    }
    for (name, sql) in functions() {
        parts.push(format!("-- functions/{name}.sql\n{}", for_schema(sql, schema).trim_end()));
    }
    parts.push(first_partitions(schema));
    parts.push(owner_only(schema));
    if roles {
        parts.push(for_schema(ROLES, schema));
    }
    parts.push("commit;\n".to_owned());
    parts.join("\n\n")
}

async fn run(tx: &Transaction<'_>, what: &str, sql: &str) -> Result<(), Error> {
    tx.batch_execute(sql).await.map_err(|e| {
        let error = Error::postgres(what, e);
        if error.code() != ErrorCode::Denied {
            return error;
        }
        error.with_help(
            "a migration needs CREATE on the database the first time and the schema's owner later; --roles needs CREATEROLE as well",
        )
    })
}

/// Settings of the migration's transaction. One migration of a schema at a time; bodies are checked when they first run,
/// so that functions can stand in any order.
fn preamble(schema: &str) -> String {
    format!(
        "set local lock_timeout = '{}ms';\nset local statement_timeout = 0;\nset local check_function_bodies = off;\n\
         set local client_min_messages = warning;\n\
         select pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('tenure migration of {schema}', 0));",
        LOCK_TIMEOUT.as_millis()
    )
}

fn birth(schema: &str) -> String {
    format!(
        "do $$ begin if pg_catalog.to_regnamespace('{schema}') is null then create schema {schema}; end if; end $$;\n\
         create table if not exists {schema}.migration (\n  version    integer primary key,\n  name       text not null,\n  \
         digest     text not null,\n  applied_at timestamptz not null default clock_timestamp()\n);"
    )
}

fn record(schema: &str, name: &str, sql: &str) -> String {
    format!(
        "insert into {schema}.migration (version, name, digest) values ({}, '{name}', '{}');",
        version_of(name),
        digest(sql)
    )
}

/// FNV-1a with 64 bits (Fowler, Noll and Vo): tells one text of a migration from another, in the same way in every program.
fn digest(sql: &str) -> String {
    let hash = sql
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    format!("{hash:016x}")
}

fn first_partitions(schema: &str) -> String {
    format!(
        "do $first$ begin if not exists (select from {schema}.partition) then perform {schema}.partitions(); end if; end $first$;"
    )
}

/// What the roles may do is granted one by one; PUBLIC, which may call any new function by default, nothing.
fn owner_only(schema: &str) -> String {
    format!("revoke execute on all functions in schema {schema} from public;")
}

/// Once a schema has its roles, every migration grants them what is new.
async fn has_roles(tx: &Transaction<'_>, schema: &str) -> Result<bool, Error> {
    let sql = format!(
        "select coalesce(bool_or(has_schema_privilege(r.oid, '{schema}', 'usage')), false) from pg_catalog.pg_roles r \
         where r.rolname = '{schema}_worker'"
    );
    let row = tx.query_typed_one(&sql, &[]).await.map_err(|e| Error::postgres("look for the roles", e))?;
    Ok(row.get(0))
}

/// The files of functions; those of views last, since a view needs its functions when it is made. All say `create or replace`, so that
/// grants stay and calls under way are not disturbed.
fn functions() -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    let is_view = |sql: &str| sql.contains("create or replace view");
    let plain = files::FUNCTIONS.iter().filter(move |(_, sql)| !is_view(sql));
    plain.chain(files::FUNCTIONS.iter().filter(move |(_, sql)| is_view(sql)))
}

/// `0001_tables` is version 1.
fn version_of(name: &str) -> i32 {
    let digits = name.split('_').next().unwrap_or_default();
    digits.parse().unwrap_or_else(|_| panic!("the name of migration {name}.sql starts with its number"))
}

async fn refuse_unfit_server(tx: &Transaction<'_>) -> Result<(), Error> {
    const FACTS: &str = "select current_setting('server_version_num')::int / 10000, current_setting('server_version'), \
                         pg_is_in_recovery() or current_setting('transaction_read_only')::bool, \
                         current_setting('server_encoding')";
    let row = tx.query_typed_one(FACTS, &[]).await.map_err(|e| Error::postgres("ask the server for its version", e))?;
    let (major, version, read_only): (i32, String, bool) = (row.get(0), row.get(1), row.get(2));
    check_server(major, &version, read_only)?;
    check_encoding(row.get(3))
}

/// Elsewhere the text of some failures could not be stored.
fn check_encoding(encoding: &str) -> Result<(), Error> {
    if encoding == "UTF8" {
        return Ok(());
    }
    Err(Error::new(ErrorCode::Schema, format!("the encoding of this database is {encoding}"))
        .with_help("tenure needs UTF8: create database … encoding 'UTF8' template template0"))
}

fn check_server(major: i32, version: &str, read_only: bool) -> Result<(), Error> {
    if major < SERVER_MAJOR_MIN {
        return Err(Error::new(ErrorCode::Schema, format!("the server is PostgreSQL {version}, which is too old"))
            .with_help(format!("tenure needs PostgreSQL {SERVER_MAJOR_MIN} or newer")));
    }
    if read_only {
        return Err(Error::new(ErrorCode::ReadOnly, "cannot migrate: this server or session is read-only")
            .with_help("connect to the primary, not to a standby, and check default_transaction_read_only"));
    }
    Ok(())
}

async fn current_version(tx: &Transaction<'_>, schema: &str) -> Result<i32, Error> {
    let failed = |e| Error::postgres("read the version of the schema", e);
    let known = format!("select pg_catalog.to_regclass('{schema}.migration') is not null");
    if !tx.query_typed_one(&known, &[]).await.map_err(failed)?.get::<_, bool>(0) {
        return Ok(0);
    }
    let version = format!("select coalesce(max(version), 0) from {schema}.migration");
    Ok(tx.query_typed_one(&version, &[]).await.map_err(failed)?.get(0))
}

fn refuse_newer(version: i32, schema: &str) -> Result<(), Error> {
    if version <= latest() {
        return Ok(());
    }
    Err(Error::new(
        ErrorCode::Schema,
        format!("the schema {schema:?} has version {version}, this program knows versions up to {}", latest()),
    )
    .with_help("use the newer program; a migration never goes back"))
}

/// A migration that was released never changes. Before, one may: the tables are then those of another build, and
/// functions made for ours would fail on them one by one.
async fn refuse_other_texts(tx: &Transaction<'_>, schema: &str) -> Result<(), Error> {
    // By way of JSON: the tables of an early build have no such column.
    let known = format!("select m.version, to_json(m) ->> 'digest' from {schema}.migration m order by m.version");
    let rows = tx.query_typed(&known, &[]).await.map_err(|e| Error::postgres("read the migrations", e))?;
    for row in rows {
        let (version, known): (i32, Option<String>) = (row.get(0), row.get(1));
        let ours = files::MIGRATIONS.iter().find(|(name, _)| version_of(name) == version);
        if let Some((name, sql)) = ours
            && known.as_ref() != Some(&digest(sql))
        {
            let message = format!("the schema {schema:?} was made by a build with another migration {name}");
            return Err(Error::new(ErrorCode::Schema, message).with_help(format!(
                "migrations may change until 0.1.0 is released: migrate into another schema, or give up what is in this one (drop schema {schema} cascade)"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrations_are_numbered_from_one_without_gaps() {
        let versions: Vec<i32> = files::MIGRATIONS.iter().map(|(name, _)| version_of(name)).collect();
        assert_eq!(versions, (1..=versions.len() as i32).collect::<Vec<_>>());
    }

    #[test]
    fn the_script_names_only_the_chosen_schema() {
        let script = script("jobs_2", true);
        for line in script.lines().filter(|line| !line.trim_start().starts_with("--")) {
            assert!(!line.contains("tenure."), "{line}");
            assert!(!line.contains("tenure_"), "{line}");
        }
    }

    #[test]
    fn an_unfit_server_is_refused_with_its_version() {
        assert!(check_server(15, "15.4", false).is_ok());
        let old = check_server(14, "14.11", false).unwrap_err();
        assert_eq!(
            old.to_string(),
            "the server is PostgreSQL 14.11, which is too old (tenure needs PostgreSQL 15 or newer)"
        );
        assert_eq!(check_server(18, "18.1", true).unwrap_err().code(), ErrorCode::ReadOnly);
    }

    #[test]
    fn a_newer_schema_is_refused_with_both_versions() {
        let error = refuse_newer(latest() + 1, "tenure").unwrap_err();
        assert_eq!(error.code(), ErrorCode::Schema);
        assert!(error.to_string().contains(&format!("has version {}", latest() + 1)), "{error}");
    }
}
