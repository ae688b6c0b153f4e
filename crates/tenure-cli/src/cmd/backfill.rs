//! `tenure backfill`: those that were begun by `tenure schedule backfill`.

use std::io::IsTerminal as _;
use std::time::Duration;

use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use tenure::{BackfillInfo, Error};

use crate::connection::Connection;
use crate::exit::{Failure, Outcome};
use crate::when::ShownZone;
use crate::{number, output};

/// How often a backfill is looked at while its end is waited for.
const LOOK: Duration = Duration::from_millis(500);

/// Look after backfills: past times of schedules that run
#[derive(Debug, Subcommand)]
pub enum Backfill {
    List(List),
    Show(Show),
    Cancel(Cancel),
}

/// List backfills that go on, and those that ended in the last 7 days; newest first
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  tenure backfill list\n  tenure backfill list --schedule nightly --json | jq '.[] | select(.state == \"active\")'"
)]
pub struct List {
    /// Only those of this schedule
    #[arg(long, value_name = "NAME")]
    schedule: Option<String>,

    /// Only those before this number
    #[arg(long, value_name = "ID", value_parser = number::of::<i64>("write the last number of the page before"))]
    before: Option<i64>,

    /// How many: 1 to 1000
    #[arg(long, default_value_t = 100, value_parser = number::of::<usize>("write 1 to 1000"))]
    limit: usize,

    /// Print a JSON array
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Show how far a backfill is
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  tenure backfill show 3\n  tenure backfill show 3 --wait")]
pub struct Show {
    /// Its number
    #[arg(value_parser = number::of::<i64>("`tenure backfill list` shows them"))]
    id: i64,

    /// Wait until it has ended; exit code 1 when it was cancelled, or left dead letters
    #[arg(long)]
    wait: bool,

    #[command(flatten)]
    shown: ShownZone,

    /// Print a JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Cancel a backfill: what waits is cancelled, what runs ends
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Times whose job was cancelled count as not run: another backfill runs them.\n\nExamples:\n  tenure backfill cancel 3"
)]
pub struct Cancel {
    /// Its number
    #[arg(value_parser = number::of::<i64>("`tenure backfill list` shows them"))]
    id: i64,

    /// Who [default: the database's user]
    #[arg(long)]
    by: Option<String>,

    /// Print a JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Runs the verb.
pub async fn run(verb: Backfill) -> Outcome {
    match verb {
        Backfill::List(args) => list(args).await,
        Backfill::Show(args) => show(args).await,
        Backfill::Cancel(args) => cancel(args).await,
    }
}

fn no_such_backfill(id: i64) -> Failure {
    Failure::NotFound(format!("there is no backfill {id}\n        `tenure backfill list` shows those that there are"))
}

async fn list(args: List) -> Outcome {
    let client = args.connection.connect().await?;
    let backfills = client.backfills(args.schedule.as_deref(), args.before, Some(args.limit)).await?;
    let page = output::Page { items: &backfills, limit: args.limit };
    if args.json {
        return page.json(to_json);
    }
    let now = client.now().await?;
    let row = |backfill: &BackfillInfo| {
        Ok(vec![
            backfill.id.to_string(),
            backfill.schedule.clone().unwrap_or_default(),
            backfill.state.clone(),
            format!("{}/{}", backfill.done, backfill.times),
            backfill.open.to_string(),
            backfill.skipped.to_string(),
            backfill.dead.to_string(),
            output::instant(backfill.first_at),
            output::instant(backfill.last_at),
            output::relative(backfill.created_at, now),
            output::start_of(backfill.error.as_deref().unwrap_or_default(), 80),
        ])
    };
    let header = ["ID", "SCHEDULE", "STATE", "DONE", "OPEN", "SKIPPED", "DEAD", "FIRST", "LAST", "BEGUN", "ERROR"];
    page.table(&header, "no backfills", row, |last| format!("--before {}", last.id))
}

async fn show(args: Show) -> Outcome {
    let client = args.connection.connect().await?;
    let Some(mut backfill) = client.backfill(args.id).await? else { return Err(no_such_backfill(args.id)) };
    if args.wait {
        backfill = until_ended(args.id, async || client.backfill(args.id).await).await?;
    }
    let code = u8::from(args.wait && (backfill.state != "completed" || backfill.dead > 0));
    if args.json {
        output::json(&to_json(&backfill))?;
        return Ok(code);
    }
    let (instant, maybe) = (|at| args.shown.instant(at), |at| args.shown.instant_or_empty(at));
    output::facts(&[
        ("backfill", backfill.id.to_string()),
        ("schedule", backfill.schedule.clone().unwrap_or_default()),
        ("state", backfill.state.clone()),
        ("error", backfill.error.clone().unwrap_or_default()),
        ("failing since", maybe(backfill.error_at)?),
        ("times", backfill.times.to_string()),
        ("first at", instant(backfill.first_at)?),
        ("last at", instant(backfill.last_at)?),
        ("order", if backfill.newest_first { "newest first" } else { "oldest first" }.to_owned()),
        ("done", backfill.done.to_string()),
        ("enqueued", backfill.enqueued.to_string()),
        ("skipped", backfill.skipped.to_string()),
        ("not ended", backfill.open.to_string()),
        ("dead", backfill.dead.to_string()),
        ("at once", backfill.at_once.to_string()),
        ("priority", backfill.priority.to_string()),
        ("again", if backfill.again { "yes" } else { "" }.to_owned()),
        ("begun at", instant(backfill.created_at)?),
        ("begun by", backfill.created_by.clone()),
        ("cancelled at", maybe(backfill.cancelled_at)?),
        ("cancelled by", backfill.cancelled_by.clone().unwrap_or_default()),
        ("ended at", maybe(backfill.ended_at)?),
    ])?;
    Ok(code)
}

async fn cancel(args: Cancel) -> Outcome {
    let changed = args.connection.connect().await?.cancel_backfill(args.id, args.by.as_deref()).await?;
    match args.json {
        true => output::json(&json!({ "id": args.id, "changed": changed }))?,
        false => {
            output::line(&format!("backfill {} {}", args.id, if changed { "cancelled" } else { "had ended before" }))?
        }
    }
    Ok(0)
}

/// Looks until it has ended, with a bar on a terminal.
pub async fn until_ended(
    id: i64,
    look: impl AsyncFn() -> Result<Option<BackfillInfo>, Error>,
) -> Result<BackfillInfo, Failure> {
    let mut bar = None;
    loop {
        let Some(backfill) = look().await? else { return Err(no_such_backfill(id)) };
        if std::io::stderr().is_terminal() {
            let bar = bar.get_or_insert_with(|| progress_bar(backfill.times.into()));
            bar.set_position(u64::from(backfill.done.saturating_sub(backfill.open)));
            bar.set_message(backfill.error.clone().unwrap_or_else(|| format!("{} run", backfill.open)));
        }
        if backfill.ended_at.is_some() {
            if let Some(bar) = bar {
                bar.finish_and_clear();
            }
            return Ok(backfill);
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn progress_bar(times: u64) -> ProgressBar {
    let bar = ProgressBar::new(times);
    if let Ok(style) = ProgressStyle::with_template("backfill {bar:30} {human_pos}/{human_len} {eta} {msg}") {
        bar.set_style(style);
    }
    bar
}

/// One that has ended, in a sentence.
pub fn in_words(backfill: &BackfillInfo) -> String {
    let BackfillInfo { id, state, enqueued, skipped, dead, .. } = backfill;
    format!("backfill {id} {state}: {enqueued} jobs, {skipped} times skipped, {dead} dead")
}

/// A backfill as JSON.
pub fn to_json(backfill: &BackfillInfo) -> Value {
    json!({
        "id": backfill.id, "schedule": backfill.schedule, "state": backfill.state,
        "first_at": output::instant(backfill.first_at), "last_at": output::instant(backfill.last_at),
        "newest_first": backfill.newest_first, "times": backfill.times, "done": backfill.done,
        "enqueued": backfill.enqueued, "skipped": backfill.skipped, "dead": backfill.dead, "open": backfill.open,
        "at_once": backfill.at_once, "priority": backfill.priority, "again": backfill.again,
        "created_at": output::instant(backfill.created_at), "created_by": backfill.created_by,
        "cancelled_at": backfill.cancelled_at.map(output::instant), "cancelled_by": backfill.cancelled_by,
        "ended_at": backfill.ended_at.map(output::instant), "error": backfill.error,
        "error_at": backfill.error_at.map(output::instant),
    })
}
