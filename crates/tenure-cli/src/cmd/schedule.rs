//! `tenure schedule`: what is enqueued again and again.

mod audit;
mod backfill;
mod check_pg_cron;
mod crontab;
mod declare;
mod enqueue_call;
mod file;
mod import;
mod import_names;
mod sync;
mod times;

use clap::Subcommand;
use serde_json::{Value, json};
use tenure::{Error, ErrorCode, ScheduleInfo, ScheduleRun};

use crate::connection::Connection;
use crate::exit::{Failure, Outcome};
use crate::when::ShownZone;
use crate::{number, output};

/// Enqueue jobs again and again: by cron lines, intervals, or lists of instants
#[derive(Debug, Subcommand)]
pub enum Schedule {
    Add(declare::Add),
    List(List),
    Show(Show),
    Edit(declare::Edit),
    Pause(Pause),
    Resume(Resume),
    Remove(Remove),
    Run(Run),
    Next(times::Next),
    Preview(times::Preview),
    Backfill(backfill::Backfill),
    Audit(audit::Audit),
    Sync(sync::Sync),
    Import(import::Import),
    CheckPgCron(check_pg_cron::CheckPgCron),
}

/// List the schedules, by name
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tenure schedule list
  tenure schedule list --json | jq '.[] | select(.state == \"failing\")'
  tenure schedule list --after nightly            the next page: behind the last name of this one")]
pub struct List {
    /// Only those behind this name
    #[arg(long, value_name = "NAME")]
    after: Option<String>,

    /// How many: 1 to 1000
    #[arg(long, default_value_t = 100, value_parser = number::of::<usize>("write 1 to 1000"))]
    limit: usize,

    #[command(flatten)]
    shown: ShownZone,

    /// Print a JSON array
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Show everything about a schedule, with its last runs
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  tenure schedule show nightly\n  tenure schedule show nightly --runs 100 --json | jq '.recent[] | select(.job == null)'"
)]
pub struct Show {
    /// The schedule's name
    name: String,

    /// How many of its last runs: 1 to 1000
    #[arg(long, default_value_t = 10, value_parser = number::of::<usize>("write 1 to 1000"))]
    runs: usize,

    #[command(flatten)]
    shown: ShownZone,

    /// Print a JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Pause a schedule: nothing is enqueued until it is resumed
#[derive(Debug, clap::Args)]
#[command(
    after_help = "What falls into the pause is not made up for.\n\nExamples:\n  tenure schedule pause nightly --reason 'the warehouse moves'"
)]
pub struct Pause {
    /// The schedule's name
    name: String,

    /// Why, for those who find it paused
    #[arg(long)]
    reason: Option<String>,

    /// Who [default: the database's user]
    #[arg(long)]
    by: Option<String>,

    /// Print a JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Resume a schedule: it runs again from now on
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  tenure schedule resume nightly")]
pub struct Resume {
    /// The schedule's name
    name: String,

    /// Print a JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Remove a schedule; jobs that it has enqueued stay
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  tenure schedule remove nightly")]
pub struct Remove {
    /// The schedule's name
    name: String,

    /// Print a JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Enqueue one more job of a schedule now, whatever its times
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Prints the job's id. Its logical time is this second. As long as the job has not ended, the schedule's\n--overlap says what becomes of its next times: with skip they are left out.\n\nExamples:\n  tenure schedule run nightly"
)]
pub struct Run {
    /// The schedule's name
    name: String,

    /// Print a JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Runs the verb.
pub async fn run(schedule: Schedule) -> Outcome {
    match schedule {
        Schedule::Add(args) => declare::add(args).await,
        Schedule::List(args) => list(args).await,
        Schedule::Show(args) => show(args).await,
        Schedule::Edit(args) => declare::edit(args).await,
        Schedule::Pause(args) => pause(args).await,
        Schedule::Resume(args) => resume(args).await,
        Schedule::Remove(args) => remove(args).await,
        Schedule::Run(args) => run_one(args).await,
        Schedule::Next(args) => times::next(args).await,
        Schedule::Preview(args) => times::preview(&args),
        Schedule::Backfill(args) => backfill::run(args).await,
        Schedule::Audit(args) => audit::run(args).await,
        Schedule::Sync(args) => sync::sync(args).await,
        Schedule::Import(args) => import::import(args).await,
        Schedule::CheckPgCron(args) => check_pg_cron::check(args).await,
    }
}

fn no_such_schedule(name: &str) -> Failure {
    Failure::NotFound(format!(
        "there is no schedule {name:?}\n        `tenure schedule list` shows those that there are"
    ))
}

async fn list(args: List) -> Outcome {
    let client = args.connection.connect().await?;
    let schedules = client.schedules(args.after.as_deref(), Some(args.limit)).await?;
    let page = output::Page { items: &schedules, limit: args.limit };
    if args.json {
        return page.json(of_schedule);
    }
    let row = |schedule: &ScheduleInfo| {
        Ok(vec![
            schedule.name.clone(),
            output::start_of(&schedule.rule, 40),
            schedule.zone.clone(),
            schedule.kind.clone(),
            schedule.state.clone(),
            args.shown.instant_or_empty(schedule.next_time())?,
            args.shown.instant_or_empty(schedule.last_at)?,
            schedule.runs.to_string(),
            schedule.left_out.to_string(),
            schedule.declared_by.clone().unwrap_or_default(),
            output::start_of(schedule.error.as_deref().unwrap_or_default(), 80),
        ])
    };
    let header = ["NAME", "RULE", "ZONE", "KIND", "STATE", "NEXT", "LAST", "RUNS", "LEFT OUT", "DECLARED BY", "ERROR"];
    page.table(&header, "no schedules", row, |last| format!("--after {:?}", last.name))
}

async fn show(args: Show) -> Outcome {
    let client = args.connection.connect().await?;
    let Some(schedule) = client.schedule(&args.name).await? else { return Err(no_such_schedule(&args.name)) };
    let runs = client.schedule_runs(&args.name, None, Some(args.runs)).await?;
    if args.json {
        let mut value = of_schedule(&schedule);
        value["recent"] = runs.iter().map(of_run).collect();
        output::json(&value)?;
        return Ok(0);
    }
    let (instant, maybe) = (|at| args.shown.instant(at), |at| args.shown.instant_or_empty(at));
    output::facts(&[
        ("name", schedule.name.clone()),
        ("state", schedule.state.clone()),
        ("error", schedule.error.clone().unwrap_or_default()),
        ("failing since", maybe(schedule.error_at)?),
        ("rule", schedule.rule.clone()),
        ("zone", schedule.zone.clone()),
        ("policies", declare::policies(&schedule.to_schedule())),
        ("starts at", maybe(schedule.starts_at)?),
        ("ends at", maybe(schedule.ends_at)?),
        ("jitter", if schedule.jitter.is_zero() { String::new() } else { output::exact(schedule.jitter) }),
        ("next at", maybe(schedule.next_time())?),
        ("last at", maybe(schedule.last_at)?),
        ("last job", schedule.last_job.map(|id| id.to_string()).unwrap_or_default()),
        ("waits behind it", maybe(schedule.queued_at)?),
        ("runs", schedule.runs.to_string()),
        ("left out", schedule.left_out.to_string()),
        ("kind", schedule.kind.clone()),
        ("queue", schedule.queue.clone()),
        ("priority", schedule.priority.to_string()),
        ("attempts", schedule.max_attempts.to_string()),
        ("timeout", schedule.timeout.map(output::exact).unwrap_or_default()),
        ("added at", instant(schedule.created_at)?),
        ("holds since", instant(schedule.changed_at)?),
        ("version", schedule.version.to_string()),
        ("declared by", schedule.declared_by.clone().unwrap_or_default()),
        ("paused at", maybe(schedule.paused_at)?),
        ("paused by", schedule.paused_by.clone().unwrap_or_default()),
        ("because", schedule.pause_reason.clone().unwrap_or_default()),
        ("payload", schedule.payload.to_string()),
    ])?;
    print_runs(&runs, &args.shown)
}

fn print_runs(runs: &[ScheduleRun], shown: &ShownZone) -> Outcome {
    if runs.is_empty() {
        return Ok(0);
    }
    output::line("")?;
    let row = |run: &ScheduleRun| {
        let times = match run.times {
            Some(1) => String::new(),
            Some(times) => format!("and on, {times} times"),
            None => format!("to {}", shown.instant(run.last_at)?),
        };
        let job = run.job.map(|id| id.to_string()).unwrap_or_default();
        Ok(vec![shown.instant(run.logical_at)?, times, run.state.clone(), job, shown.instant(run.noted_at)?])
    };
    let rows = runs.iter().map(row).collect::<Result<_, Error>>()?;
    output::table(&["LOGICAL TIME", "", "STATE", "JOB", "DECIDED AT"], rows, "")?;
    Ok(0)
}

async fn pause(args: Pause) -> Outcome {
    let client = args.connection.connect().await?;
    let changed = client.pause_schedule(&args.name, args.by.as_deref(), args.reason.as_deref()).await?;
    said(&args.name, changed, args.json, "paused", "was paused before")
}

async fn resume(args: Resume) -> Outcome {
    let changed = args.connection.connect().await?.resume_schedule(&args.name).await?;
    said(&args.name, changed, args.json, "resumed", "was not paused")
}

async fn remove(args: Remove) -> Outcome {
    let client = args.connection.connect().await?;
    let Some(info) = client.schedule(&args.name).await? else { return Err(no_such_schedule(&args.name)) };
    client.remove_schedule(&args.name).await?;
    let said = said(&args.name, true, args.json, "removed", "");
    hint_of_owner(&info, "adds it again: remove it there, too");
    said
}

/// What a sync will make of a change by hand.
fn hint_of_owner(info: &ScheduleInfo, becomes: &str) {
    if let Some(owner) = &info.declared_by {
        eprintln!("{:?} is declared by {owner:?}, whose next sync {becomes}", info.name);
    }
}

async fn run_one(args: Run) -> Outcome {
    let id = args.connection.connect().await?.run_schedule(&args.name).await?;
    match args.json {
        true => output::json(&json!({ "id": id }))?,
        false => output::line(&id.to_string())?,
    }
    Ok(0)
}

/// What became of a schedule, in a word.
fn said(name: &str, changed: bool, as_json: bool, done: &str, nothing: &str) -> Outcome {
    match as_json {
        true => output::json(&json!({ "schedule": name, "changed": changed }))?,
        false => output::foreign_line(&format!("{name} {}", if changed { done } else { nothing }))?,
    }
    Ok(0)
}

/// Whether the name was free is the database's to say.
fn is_taken(error: &Error) -> bool {
    error.code() == ErrorCode::Refused
}

fn of_schedule(schedule: &ScheduleInfo) -> Value {
    let ms = |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    json!({
        "name": schedule.name, "state": schedule.state, "rule": schedule.rule, "zone": schedule.zone,
        "gap": schedule.gap, "twice": schedule.twice, "missed": schedule.missed, "missed_max": schedule.missed_max,
        "missed_window_ms": ms(schedule.missed_window), "overlap": schedule.overlap, "jitter_ms": ms(schedule.jitter),
        "anchor_at": output::instant(schedule.anchor_at), "starts_at": schedule.starts_at.map(output::instant),
        "ends_at": schedule.ends_at.map(output::instant), "kind": schedule.kind, "payload": schedule.payload,
        "queue": schedule.queue, "priority": schedule.priority, "max_attempts": schedule.max_attempts,
        "timeout_ms": schedule.timeout.map(ms), "created_at": output::instant(schedule.created_at),
        "changed_at": output::instant(schedule.changed_at), "version": schedule.version,
        "paused_at": schedule.paused_at.map(output::instant), "paused_by": schedule.paused_by,
        "pause_reason": schedule.pause_reason, "next_at": schedule.next_time().map(output::instant),
        "last_at": schedule.last_at.map(output::instant), "last_job": schedule.last_job,
        "queued_at": schedule.queued_at.map(output::instant), "runs": schedule.runs, "left_out": schedule.left_out,
        "error": schedule.error, "error_at": schedule.error_at.map(output::instant),
        "ruled_at": output::instant(schedule.ruled_at), "forgotten_at": schedule.forgotten_at.map(output::instant),
        "declared_by": schedule.declared_by,
    })
}

fn of_run(run: &ScheduleRun) -> Value {
    json!({
        "logical_at": output::instant(run.logical_at), "last_at": output::instant(run.last_at), "times": run.times,
        "state": run.state, "job": run.job, "noted_at": output::instant(run.noted_at),
    })
}
