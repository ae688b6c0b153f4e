//! `tenure job reschedule` and `tenure job run`: jobs that wait, at another time.

use std::time::Duration;

use serde_json::json;
use tenure::lifecycle::State;
use tenure::{Client, Error, JobId, Moved};

use crate::connection::Connection;
use crate::exit::{Failure, Outcome};
use crate::output;
use crate::when::{self, ZoneOfInput};

/// Let jobs that wait be due at another time
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("when").required(true).args(["at", "delay"])), after_help = "\
Works on jobs that are scheduled, retrying, snoozed or available. Jobs themselves never change: only where they wait does.

Examples:
  tenure job reschedule 12800 --in 2h
  tenure job reschedule 12800 12928 --at '2027-03-29T02:30[Europe/Berlin]'")]
pub struct Reschedule {
    /// The jobs' ids
    #[arg(required = true)]
    ids: Vec<JobId>,

    /// Due at this instant: 2026-12-24T18:00:00Z, 2026-12-24T19:00[Europe/Berlin]
    #[arg(long, value_name = "INSTANT")]
    at: Option<String>,

    /// Due when this time has passed: 5s, 10m, 2h, 1d
    #[arg(long = "in", id = "delay", value_name = "TIME", value_parser = when::duration)]
    delay: Option<Duration>,

    #[command(flatten)]
    zone: ZoneOfInput,

    /// Print a JSON array
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Let jobs that wait for their time run now
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tenure job run 12800
  tenure job list --status scheduled --json | jq '.[].id' | xargs tenure job run")]
pub struct Run {
    /// The jobs' ids
    #[arg(required = true)]
    ids: Vec<JobId>,

    /// Print a JSON array
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Runs the verb.
pub async fn reschedule(args: Reschedule) -> Outcome {
    let moved = match (&args.at, args.delay) {
        (Some(at), None) => Moved::To(args.zone.read(at).map_err(|error| error.context("--at"))?),
        (None, Some(delay)) => Moved::By(delay),
        (_, _) => return Err(Failure::Usage("job reschedule: give one of --at and --in".to_owned())),
    };
    let client = args.connection.connect().await?;
    for_each(&client, &args.ids, args.json, async |client: &Client, id: JobId| client.reschedule(id, moved).await).await
}

/// Runs the verb.
pub async fn run_now(args: Run) -> Outcome {
    let client = args.connection.connect().await?;
    for_each(&client, &args.ids, args.json, async |client: &Client, id: JobId| client.run_now(id).await).await
}

/// What was done is said also when the rest could not be.
async fn for_each(
    client: &Client,
    ids: &[JobId],
    json: bool,
    verb: impl AsyncFn(&Client, JobId) -> Result<State, Error>,
) -> Outcome {
    let (mut done, mut failed) = (Vec::new(), None);
    for id in ids {
        match verb(client, *id).await {
            Ok(state) => done.push((*id, state)),
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    if json {
        let rows: Vec<_> = done.iter().map(|(id, state)| json!({ "id": id, "status": state.as_str() })).collect();
        output::json(&rows)?;
    } else {
        done.iter().try_for_each(|(id, state)| output::line(&format!("{id} {state}")))?;
    }
    match failed {
        Some(error) => Err(error.into()),
        None => Ok(0),
    }
}
