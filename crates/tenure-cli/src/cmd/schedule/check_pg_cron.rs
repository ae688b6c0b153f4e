//! `tenure schedule check-pg-cron`: whether pg_cron can take the place of workers.

use serde_json::json;
use tenure::{Check, Finding};

use crate::connection::Connection;
use crate::exit::Outcome;
use crate::output;

/// Check whether pg_cron fires schedules and promotes jobs while no worker is up
///
/// Looks at the package, the library, the extension, rights, the time zone, the entry that calls tick(), and its last call; says what to do about what is not as it has to be. Ends with 1 if anything is wrong.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  tenure schedule check-pg-cron\n  tenure schedule check-pg-cron --json | jq '.[] | select(.finding == \"wrong\")'"
)]
pub struct CheckPgCron {
    /// Print a JSON array
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Runs the verb.
pub async fn check(args: CheckPgCron) -> Outcome {
    let checks = args.connection.connect().await?.check_pg_cron().await?;
    match args.json {
        true => output::json(&checks.iter().map(of_check).collect::<Vec<_>>())?,
        false => {
            let row = |check: &Check| {
                let way_out = check.way_out.clone().unwrap_or_default();
                vec![check.what.to_owned(), check.finding.as_str().to_owned(), check.found.clone(), way_out]
            };
            output::table(&["WHAT", "IS", "FOUND", "WHAT TO DO"], checks.iter().map(row).collect(), "")?;
        }
    }
    Ok(u8::from(checks.iter().any(|check| check.finding == Finding::Wrong)))
}

fn of_check(check: &Check) -> serde_json::Value {
    json!({ "what": check.what, "finding": check.finding.as_str(), "found": check.found, "way_out": check.way_out })
}
