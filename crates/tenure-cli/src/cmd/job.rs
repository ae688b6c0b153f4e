//! `tenure job`: look at jobs, cancel them, and let them run at another time.

mod cancel;
mod reschedule;

use std::time::Duration;

use clap::Subcommand;
use serde::Serialize;
use tenure::lifecycle::State;
use tenure::{AttemptError, Error, JobFilter, JobId, JobInfo, RawJson, WaitReason};

use crate::connection::Connection;
use crate::exit::{Failure, Outcome};
use crate::when::ShownZone;
use crate::{number, output};

/// Look at jobs, cancel them, and let them run at another time
#[derive(Debug, Subcommand)]
pub enum Job {
    List(List),
    Show(Show),
    Cancel(cancel::Cancel),
    Reschedule(reschedule::Reschedule),
    Run(reschedule::Run),
}

/// List jobs, newest first
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tenure job list
  tenure job list --status running
  tenure job list --status retrying,snoozed
  tenure job list --kind send_mail --status dead --limit 20
  tenure job list --status scheduled --show-zone Europe/Berlin
  tenure job list --before 12800          the next page: older than the last id of this one")]
pub struct List {
    #[arg(long, value_name = "STATES", value_parser = state, value_delimiter = ',')]
    #[arg(help = format!("Only in these states: {} [default: all of them]", states(&State::ALL)))]
    status: Vec<State>,

    /// With --status dead: also those that were requeued, and are open no longer
    #[arg(long, requires = "status")]
    requeued: bool,

    /// Only of this queue
    #[arg(long)]
    queue: Option<String>,

    /// Only of this kind
    #[arg(long)]
    kind: Option<String>,

    /// Only older than this job
    #[arg(long, value_name = "ID")]
    before: Option<JobId>,

    /// How many: 1 to 1000
    #[arg(long, default_value_t = 50, value_parser = number::of::<usize>("write 1 to 1000"))]
    limit: usize,

    /// Show when jobs run as instants in this time zone [default: from now]; JSON is always in UTC
    #[arg(long, value_name = "ZONE", env = "TENURE_SHOW_ZONE", hide_env_values = true)]
    show_zone: Option<String>,

    /// Print a JSON array
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Show everything about a job, with its failed attempts
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  tenure job show 12800\n  tenure job show 12800 --json | jq .payload")]
pub struct Show {
    /// The job's id
    id: JobId,

    #[command(flatten)]
    shown: ShownZone,

    /// Print a JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

fn state(text: &str) -> Result<State, String> {
    State::from_name(text).ok_or_else(|| format!("{text:?} is no state of a job: use one of {}", states(&State::ALL)))
}

fn states(states: &[State]) -> String {
    states.iter().map(|state| state.as_str()).collect::<Vec<_>>().join(", ")
}

/// Runs the verb.
pub async fn run(job: Job) -> Outcome {
    match job {
        Job::List(args) => list(args).await,
        Job::Show(args) => show(args).await,
        Job::Cancel(args) => cancel::run(args).await,
        Job::Reschedule(args) => reschedule::reschedule(args).await,
        Job::Run(args) => reschedule::run_now(args).await,
    }
}

async fn list(args: List) -> Outcome {
    let filter = JobFilter {
        statuses: args.status,
        requeued: args.requeued,
        queue: args.queue,
        kind: args.kind,
        before: args.before,
        limit: Some(args.limit),
    };
    let client = args.connection.connect().await?;
    let jobs = client.list(&filter).await?;
    let page = output::Page { items: &jobs, limit: args.limit };
    if args.json {
        return page.json(JobJson::from);
    }
    let now = client.now().await?;
    let row = |job: &JobInfo| {
        Ok(vec![
            job.id.to_string(),
            short_status(job),
            job.kind.clone(),
            job.queue.clone(),
            job.priority.to_string(),
            format!("{}/{}", job.attempt, job.max_attempts),
            match &args.show_zone {
                Some(zone) => tenure::instant::show(job.run_at, zone)?,
                None => output::relative(job.run_at, now),
            },
            output::start_of(job.last_error.as_deref().unwrap_or_default(), 60),
        ])
    };
    let header = ["ID", "STATUS", "KIND", "QUEUE", "PRIO", "ATTEMPT", "RUN AT", "LAST ERROR"];
    page.table(&header, "no jobs", row, |last| format!("--before {}", last.id))
}

async fn show(args: Show) -> Outcome {
    let client = args.connection.connect().await?;
    let Some(job) = client.get(args.id).await? else { return Err(no_such_job(args.id)) };
    let attempts = client.attempt_errors(args.id).await?;
    let waits_for = client.waits_for(args.id).await?;
    if args.json {
        let attempts = attempts.iter().map(AttemptJson::from).collect();
        let waits_for = waits_for.as_ref().map(WaitJson::from);
        output::json(&JobJson { failed_attempts: Some(attempts), waits_for, ..JobJson::from(&job) })?;
        return Ok(0);
    }
    let optional = |value: Option<String>| value.unwrap_or_default();
    let (instant, maybe) = (|at| args.shown.instant(at), |at| args.shown.instant_or_empty(at));
    output::facts(&[
        ("id", job.id.to_string()),
        ("status", status_text(&job, waits_for.as_ref())),
        ("waits because", optional(waits_for.filter(|_| job.status != State::Running).map(|wait| wait.explained))),
        ("kind", job.kind.clone()),
        ("queue", job.queue.clone()),
        ("priority", job.priority.to_string()),
        ("attempt", format!("{} of {}", job.attempt, job.max_attempts)),
        ("snoozes", if job.snoozes > 0 { job.snoozes.to_string() } else { String::new() }),
        ("created at", instant(job.created_at)?),
        ("run at", instant(job.run_at)?),
        ("started at", maybe(job.started_at)?),
        ("finished at", maybe(job.finished_at)?),
        ("updated at", instant(job.updated_at)?),
        ("timeout", optional(job.timeout.map(limit))),
        ("worker", optional(job.worker.clone())),
        ("idempotency key", job.idempotency_key.clone()),
        ("requeued from", optional(job.replaces_id.map(|id| id.to_string()))),
        ("origin", optional(job.origin_id.map(|id| id.to_string()))),
        ("requeued as", optional(job.replaced_by.map(|id| id.to_string()))),
        ("progress", optional(job.progress.as_ref().map(RawJson::to_string))),
        ("result", optional(job.result.as_ref().map(RawJson::to_string))),
        ("last error", optional(job.last_error.clone())),
        ("payload", job.payload.to_string()),
    ])?;
    print_attempts(&attempts, &args.shown)?;
    Ok(0)
}

fn limit(timeout: Duration) -> String {
    if timeout.is_zero() { "none".to_owned() } else { output::exact(timeout) }
}

fn short_status(job: &JobInfo) -> String {
    match (job.overrun, job.replaced_by) {
        (true, _) => format!("{}, overrun", job.status),
        (false, Some(_)) => format!("{}, requeued", job.status),
        (false, None) => job.status.to_string(),
    }
}

/// The status, and of a job that runs what is wrong with that.
fn status_text(job: &JobInfo, waits_for: Option<&WaitReason>) -> String {
    match (job.overrun, waits_for) {
        (_, Some(wait)) if job.status == State::Running => format!("{}\n{}", job.status, wait.explained),
        (true, _) => format!("{} (overrun: it should have ended, and its handler does not stop)", job.status),
        (false, _) => job.status.to_string(),
    }
}

/// The failed attempts as a table, under a free line; then what the last program said.
pub fn print_attempts(attempts: &[AttemptError], shown: &ShownZone) -> anyhow::Result<()> {
    if attempts.is_empty() {
        return Ok(());
    }
    output::line("")?;
    let row = |attempt: &AttemptError| {
        Ok(vec![
            attempt.attempt.to_string(),
            attempt.cause.clone(),
            shown.instant(attempt.failed_at)?,
            attempt.worker.clone().unwrap_or_default(),
            output::start_of(&attempt.message, 80),
        ])
    };
    let rows = attempts.iter().map(row).collect::<Result<_, Error>>()?;
    output::table(&["ATTEMPT", "CAUSE", "FAILED AT", "WORKER", "MESSAGE"], rows, "")?;
    Ok(print_last_words(attempts)?)
}

/// What the program of the last attempt that said anything wrote at its end.
fn print_last_words(attempts: &[AttemptError]) -> std::io::Result<()> {
    for (key, what) in [("stdout", "standard output"), ("stderr", "standard error")] {
        let said = |attempt: &AttemptError| {
            let details: serde_json::Value = attempt.details.as_ref()?.decode().ok()?;
            Some((attempt.attempt, details.get(key)?.as_str()?.to_owned()))
        };
        if let Some((attempt, text)) = attempts.iter().rev().find_map(said) {
            output::last_lines(&format!("the end of {what} in attempt {attempt}"), &text)?;
        }
    }
    Ok(())
}

pub fn no_such_job(id: JobId) -> Failure {
    Failure::NotFound(format!("there is no job {id} in this schema and database"))
}

/// A job as JSON; instants in RFC 3339.
#[derive(Serialize)]
pub struct JobJson<'a> {
    id: JobId,
    kind: &'a str,
    queue: &'a str,
    status: &'static str,
    priority: i16,
    attempt: i16,
    max_attempts: i16,
    snoozes: i64,
    overrun: bool,
    run_at: String,
    created_at: String,
    started_at: Option<String>,
    finished_at: Option<String>,
    updated_at: String,
    timeout_ms: Option<u128>,
    worker: Option<&'a str>,
    last_error: Option<&'a str>,
    idempotency_key: &'a str,
    origin_id: Option<JobId>,
    replaces_id: Option<JobId>,
    replaced_by: Option<JobId>,
    payload: &'a RawJson,
    result: Option<&'a RawJson>,
    progress: Option<&'a RawJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failed_attempts: Option<Vec<AttemptJson<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waits_for: Option<WaitJson<'a>>,
}

/// Why a job does not run, as JSON.
#[derive(Serialize)]
pub struct WaitJson<'a> {
    reason: &'a str,
    explained: &'a str,
}

impl<'a> From<&'a WaitReason> for WaitJson<'a> {
    fn from(wait: &'a WaitReason) -> Self {
        WaitJson { reason: &wait.reason, explained: &wait.explained }
    }
}

impl<'a> From<&'a JobInfo> for JobJson<'a> {
    fn from(job: &'a JobInfo) -> Self {
        JobJson {
            id: job.id,
            kind: &job.kind,
            queue: &job.queue,
            status: job.status.as_str(),
            priority: job.priority,
            attempt: job.attempt,
            max_attempts: job.max_attempts,
            snoozes: job.snoozes,
            overrun: job.overrun,
            run_at: output::instant(job.run_at),
            created_at: output::instant(job.created_at),
            started_at: job.started_at.map(output::instant),
            finished_at: job.finished_at.map(output::instant),
            updated_at: output::instant(job.updated_at),
            timeout_ms: job.timeout.map(|timeout| timeout.as_millis()),
            worker: job.worker.as_deref(),
            last_error: job.last_error.as_deref(),
            idempotency_key: &job.idempotency_key,
            origin_id: job.origin_id,
            replaces_id: job.replaces_id,
            replaced_by: job.replaced_by,
            payload: &job.payload,
            result: job.result.as_ref(),
            progress: job.progress.as_ref(),
            failed_attempts: None,
            waits_for: None,
        }
    }
}

/// A failed attempt as JSON.
#[derive(Serialize)]
pub struct AttemptJson<'a> {
    attempt: i16,
    cause: &'a str,
    message: &'a str,
    details: Option<&'a RawJson>,
    worker: Option<&'a str>,
    started_at: String,
    failed_at: String,
}

impl<'a> From<&'a AttemptError> for AttemptJson<'a> {
    fn from(attempt: &'a AttemptError) -> Self {
        AttemptJson {
            attempt: attempt.attempt,
            cause: &attempt.cause,
            message: &attempt.message,
            details: attempt.details.as_ref(),
            worker: attempt.worker.as_deref(),
            started_at: output::instant(attempt.started_at),
            failed_at: output::instant(attempt.failed_at),
        }
    }
}
