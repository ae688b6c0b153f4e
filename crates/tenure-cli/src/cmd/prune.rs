//! `tenure prune`: removes at once what retention would remove in its own time.

use serde_json::json;
use tenure::{Client, Prunable};

use crate::connection::Connection;
use crate::exit::Outcome;
use crate::output;

/// Remove finished jobs that were kept long enough, now
///
/// Workers do this by themselves, in small steps; a range of jobs that becomes due as a whole before long they leave until then, and this
/// does not. What is kept for how long: `tenure queue list`, `tenure queue set`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tenure prune --dry-run        count what is due, by queue and outcome; remove nothing
  tenure prune
  tenure prune --json | jq .removed")]
pub struct Prune {
    /// Only count what would be removed
    #[arg(long)]
    dry_run: bool,

    /// Print a JSON object; with --dry-run an array
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Runs the verb.
pub async fn run(args: Prune) -> Outcome {
    let client = args.connection.connect().await?;
    if args.dry_run {
        return dry_run(&client, args.json).await;
    }
    // So that one who looks on sees that it goes on.
    let mut shown = 0;
    let pruned = client
        .prune(|so_far| {
            if so_far.jobs >= shown + 100_000 {
                shown = so_far.jobs;
                eprintln!("removed {shown} so far");
            }
        })
        .await?;
    match args.json {
        true => output::json(
            &json!({ "removed": pruned.jobs, "ranges_emptied": pruned.ranges, "ranges_in_use": pruned.in_use }),
        )?,
        false => output::line(&format!("removed {} jobs, emptied {} ranges as a whole", pruned.jobs, pruned.ranges))?,
    }
    if pruned.in_use > 0 {
        eprintln!("{} ranges are due, and somebody reads them; the workers empty them once nobody does", pruned.in_use);
    }
    Ok(0)
}

async fn dry_run(client: &Client, json: bool) -> Outcome {
    let due = client.prune_preview().await?;
    if json {
        let value = |p: &Prunable| json!({ "queue": p.queue, "outcome": p.outcome.as_str(), "jobs": p.jobs });
        output::json(&due.iter().map(value).collect::<Vec<_>>())?;
        return Ok(0);
    }
    let row = |p: &Prunable| vec![p.queue.clone(), p.outcome.to_string(), p.jobs.to_string()];
    output::table(&["QUEUE", "OUTCOME", "JOBS"], due.iter().map(row).collect(), "nothing is due")?;
    Ok(0)
}
