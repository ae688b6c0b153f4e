//! `tenure schedule backfill`: past times of a schedule that are to run.

use serde_json::json;
use tenure::{Backfill as Wanted, limits};

use super::no_such_schedule;
use crate::cmd::backfill;
use crate::connection::Connection;
use crate::exit::{Failure, Outcome};
use crate::when::{self, ShownZone};
use crate::{number, output};

/// Run past times of a schedule, a few at once
///
/// Prints the backfill's number. Any worker moves it on, whatever becomes of this command. Times that have run are skipped.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Instants without a zone are in the schedule's; 7d means seven days ago. Both ends belong to the range.
`tenure backfill list`, `show` and `cancel` look after those that were begun.

Examples:
  tenure schedule backfill nightly --from 2027-01-01T00:00 --to 2027-01-31T23:59 --dry-run
  tenure schedule backfill nightly --from 30d --at-once 2 --newest-first --wait
  tenure schedule backfill nightly --from 2027-03-01T00:00 --to 2027-03-02T00:00 --again --priority 2")]
pub struct Backfill {
    /// The schedule's name
    name: String,

    /// The first time, or how long ago
    #[arg(long, value_name = "INSTANT")]
    from: String,

    /// The last time, or how long ago [default: now]
    #[arg(long, value_name = "INSTANT")]
    to: Option<String>,

    /// Only say how many times there are, the first and the last, and how many of them have run
    #[arg(long)]
    dry_run: bool,

    /// The newest time runs first
    #[arg(long)]
    newest_first: bool,

    /// So many jobs that have not ended at a time, at most: 1 to 1000
    #[arg(long, value_name = "N", default_value_t = limits::BACKFILL_AT_ONCE_DEFAULT,
          value_parser = number::within(1..=limits::BACKFILL_AT_ONCE_MAX))]
    at_once: u32,

    /// Priority of its jobs: 1 (most urgent) to 4
    #[arg(long, default_value_t = 4, value_parser = number::within(1..=4_i16))]
    priority: i16,

    /// Times that have run run again, each with a new job and a new idempotency key
    #[arg(long)]
    again: bool,

    /// Who [default: the database's user]
    #[arg(long)]
    by: Option<String>,

    /// Wait until it has ended; exit code 1 when it was cancelled, or left dead letters
    #[arg(long, conflicts_with = "dry_run")]
    wait: bool,

    #[command(flatten)]
    shown: ShownZone,

    /// Print a JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Runs the verb.
pub async fn run(args: Backfill) -> Outcome {
    let client = args.connection.connect().await?;
    let Some(schedule) = client.schedule(&args.name).await? else { return Err(no_such_schedule(&args.name)) };
    let now = client.now().await?;
    let read = |text: &str, option: &str| {
        when::past(text, &schedule.zone, now).map_err(|error| Failure::from(error.context(option)))
    };
    let mut wanted = Wanted::new(&args.name, read(&args.from, "--from")?).at_once(args.at_once).priority(args.priority);
    if let Some(to) = &args.to {
        wanted = wanted.until(read(to, "--to")?);
    }
    if args.newest_first {
        wanted = wanted.newest_first();
    }
    if args.again {
        wanted = wanted.again();
    }
    if args.dry_run {
        let preview = client.backfill_preview(&wanted).await?;
        let to_run = if args.again { preview.times } else { preview.times - preview.ran };
        if args.json {
            output::json(&json!({
                "schedule": args.name, "times": preview.times, "ran": preview.ran, "to_run": to_run,
                "first_at": output::instant(preview.first_at), "last_at": output::instant(preview.last_at),
            }))?;
            return Ok(0);
        }
        output::facts(&[
            ("times", preview.times.to_string()),
            ("first at", args.shown.or(&schedule.zone, preview.first_at)?),
            ("last at", args.shown.or(&schedule.zone, preview.last_at)?),
            ("have run", preview.ran.to_string()),
            ("would run", to_run.to_string()),
        ])?;
        return Ok(0);
    }
    let id = client.add_backfill(&wanted, args.by.as_deref()).await?;
    if args.wait {
        eprintln!("backfill {id}; `tenure backfill cancel {id}` stops it, an end of this command does not");
        let ended = backfill::until_ended(id, async || client.backfill(id).await).await?;
        match args.json {
            true => output::json(&backfill::to_json(&ended))?,
            false => output::foreign_line(&backfill::in_words(&ended))?,
        }
        return Ok(u8::from(ended.state != "completed" || ended.dead > 0));
    }
    match args.json {
        true => output::json(&json!({ "id": id, "schedule": args.name }))?,
        false => output::line(&id.to_string())?,
    }
    Ok(0)
}
