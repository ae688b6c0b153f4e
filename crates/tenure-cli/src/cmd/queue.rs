//! `tenure queue`: what stands in the queues; pause and resume.

use std::time::SystemTime;

use clap::Subcommand;
use serde_json::{Value, json};
use tenure::QueueInfo;

use crate::connection::Connection;
use crate::exit::Outcome;
use crate::output;

/// Look at queues, pause and resume them
#[derive(Debug, Subcommand)]
pub enum Queue {
    List(List),
    Pause(Pause),
    Resume(Resume),
}

/// List the queues and what stands in them
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  tenure queue list\n  tenure queue list --json | jq '.[] | select(.paused_at)'")]
pub struct List {
    /// Print a JSON array
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Pause a queue: running jobs finish, nothing more is started from it
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  tenure queue pause mail --reason 'the provider is down'")]
pub struct Pause {
    /// The queue; it need not have been used yet
    queue: String,

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

/// Resume a paused queue
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  tenure queue resume mail")]
pub struct Resume {
    /// The queue
    queue: String,

    /// Print a JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Runs the verb.
pub async fn run(queue: Queue) -> Outcome {
    match queue {
        Queue::List(args) => list(args).await,
        Queue::Pause(args) => pause(args).await,
        Queue::Resume(args) => resume(args).await,
    }
}

async fn list(args: List) -> Outcome {
    let queues = args.connection.connect().await?.queues().await?;
    match args.json {
        true => output::json(&queues.iter().map(to_json).collect::<Vec<_>>())?,
        false => print(&queues)?,
    }
    Ok(0)
}

/// The queues as a table.
pub fn print(queues: &[QueueInfo]) -> std::io::Result<()> {
    let now = SystemTime::now();
    let row = |queue: &QueueInfo| {
        vec![
            queue.queue.clone(),
            queue.available.to_string(),
            queue.scheduled.to_string(),
            queue.held.to_string(),
            queue.running.to_string(),
            queue.dead.to_string(),
            queue.oldest_due_at.map(|at| output::relative(at, now)).unwrap_or_default(),
            paused(queue, now),
        ]
    };
    let header = ["QUEUE", "AVAILABLE", "SCHEDULED", "HELD", "RUNNING", "DEAD", "OLDEST DUE", "PAUSED"];
    output::table(&header, queues.iter().map(row).collect(), "no queues")
}

fn paused(queue: &QueueInfo, now: SystemTime) -> String {
    let Some(at) = queue.paused_at else { return String::new() };
    let by = queue.paused_by.as_deref().map(|by| format!(" by {by}")).unwrap_or_default();
    let reason =
        queue.pause_reason.as_deref().map(|why| format!(": {}", output::start_of(why, 60))).unwrap_or_default();
    format!("{}{by}{reason}", output::relative(at, now))
}

/// A queue as JSON.
pub fn to_json(queue: &QueueInfo) -> Value {
    json!({
        "queue": queue.queue,
        "available": queue.available,
        "scheduled": queue.scheduled,
        "held": queue.held,
        "running": queue.running,
        "dead": queue.dead,
        "oldest_due_at": queue.oldest_due_at.map(output::instant),
        "paused_at": queue.paused_at.map(output::instant),
        "paused_by": queue.paused_by,
        "pause_reason": queue.pause_reason,
    })
}

async fn pause(args: Pause) -> Outcome {
    let client = args.connection.connect().await?;
    let changed = client.pause(&args.queue, args.by.as_deref(), args.reason.as_deref()).await?;
    answer(args.json, &args.queue, changed, "paused", "was paused already")
}

async fn resume(args: Resume) -> Outcome {
    let changed = args.connection.connect().await?.resume(&args.queue).await?;
    answer(args.json, &args.queue, changed, "resumed", "was not paused")
}

fn answer(json: bool, queue: &str, changed: bool, done: &str, already: &str) -> Outcome {
    match json {
        true => output::json(&json!({ "queue": queue, "changed": changed }))?,
        false => output::line(&format!("{queue} {}", if changed { done } else { already }))?,
    }
    Ok(0)
}
