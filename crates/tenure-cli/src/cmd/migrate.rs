//! `tenure migrate`: the schema, made or brought up to date.

use serde_json::json;
use tenure::MigrateOptions;

use crate::connection::Connection;
use crate::exit::Outcome;
use crate::output;

/// Make the schema, or bring it up to date
///
/// All of it in one transaction, or nothing. Running workers go on. Run it again at any time: what is there stays.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tenure migrate                          the schema `tenure` of the database in DATABASE_URL
  tenure migrate --roles                  also make the roles tenure_producer, _worker, _viewer and _admin
  tenure migrate --schema jobs            another schema
  tenure migrate --print | psql -v ON_ERROR_STOP=1    by hand, into a database that has no such schema yet")]
pub struct Migrate {
    /// Also make the four roles and grant them their verbs; needs CREATEROLE
    #[arg(long)]
    roles: bool,

    /// Print the SQL of a new schema instead of running anything; needs no database
    #[arg(long, conflicts_with = "json")]
    print: bool,

    /// Print what was done as one JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Migrates, or prints the SQL.
pub async fn run(args: Migrate) -> Outcome {
    let options = MigrateOptions { roles: args.roles };
    if args.print {
        output::text(&tenure::migration_sql(&args.connection.schema, options)?)?;
        return Ok(0);
    }
    let done = args.connection.connect().await?.migrate(options).await?;
    if args.json {
        output::json(
            &json!({ "schema": args.connection.schema, "from": done.from, "to": done.to, "applied": done.applied }),
        )?;
    } else if done.applied.is_empty() {
        output::line(&format!("schema {} is at version {}; functions renewed", args.connection.schema, done.to))?;
    } else {
        let applied = done.applied.join(", ");
        output::line(&format!("schema {}: version {} -> {} ({applied})", args.connection.schema, done.from, done.to))?;
    }
    Ok(0)
}
