//! `tenure queue`: what stands in the queues; pause and resume; how long finished jobs are kept.

use std::time::{Duration, SystemTime};

use clap::Subcommand;
use serde_json::{Value, json};
use tenure::lifecycle::State;
use tenure::limits::KEEP_MAX;
use tenure::{Keep, QueueInfo};

use crate::connection::Connection;
use crate::exit::{Failure, Outcome};
use crate::{output, when};

/// Look at queues, pause and resume them, set what they keep
#[derive(Debug, Subcommand)]
pub enum Queue {
    List(List),
    Pause(Pause),
    Resume(Resume),
    Set(Set),
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

/// Set how long finished jobs of a queue are kept
///
/// They are kept for at least this long after their end, then removed with all that was noted about them. It holds for jobs that
/// have ended already, too.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tenure queue set mail --keep-completed 1d --keep-dead 180d
  tenure queue set audit --keep-completed forever
  tenure queue set mail --keep-completed default      as all queues do again
  tenure queue set --every --keep-cancelled 1d        all queues that have no age of their own")]
pub struct Set {
    /// The queue; it need not have been used yet
    queue: Option<String>,

    /// All queues that have no age of their own
    #[arg(long, conflicts_with = "queue")]
    every: bool,

    /// Completed jobs: 12h, 7d, forever, or default [default: 7d]
    #[arg(long, value_name = "AGE", value_parser = age)]
    keep_completed: Option<Age>,

    /// Cancelled jobs [default: 7d]
    #[arg(long, value_name = "AGE", value_parser = age)]
    keep_cancelled: Option<Age>,

    /// Dead letters, with their jobs [default: 90d]
    #[arg(long, value_name = "AGE", value_parser = age)]
    keep_dead: Option<Age>,

    /// Print a JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// An age as it is typed; none: as if it had never been set.
#[derive(Clone, Copy, Debug)]
struct Age(Option<Duration>);

fn age(text: &str) -> Result<Age, String> {
    match text {
        "forever" => Ok(Age(Some(KEEP_MAX))),
        "default" => Ok(Age(None)),
        "0" => Err("0 would mean \"at once\" to one and \"for ever\" to another: write 1s or forever".to_owned()),
        _ => when::duration(text).map(|age| Age(Some(age))).map_err(|error| format!("{error}; or forever, or default")),
    }
}

/// Runs the verb.
pub async fn run(queue: Queue) -> Outcome {
    match queue {
        Queue::List(args) => list(args).await,
        Queue::Pause(args) => pause(args).await,
        Queue::Resume(args) => resume(args).await,
        Queue::Set(args) => set(args).await,
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
            ages(&queue.keep),
            paused(queue, now),
        ]
    };
    let header = ["QUEUE", "AVAILABLE", "SCHEDULED", "HELD", "RUNNING", "DEAD", "OLDEST DUE", "KEEPS", "PAUSED"];
    output::table(&header, queues.iter().map(row).collect(), "no queues")
}

/// Completed, cancelled and dead: `7d/7d/90d`.
fn ages(keep: &Keep) -> String {
    [keep.completed, keep.cancelled, keep.dead].map(short).join("/")
}

/// An age in its largest whole unit.
fn short(age: Duration) -> String {
    if age == KEEP_MAX {
        return "forever".to_owned();
    }
    let ms = age.as_millis();
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")];
    let whole = units.into_iter().find(|(unit, _)| ms.is_multiple_of(*unit));
    whole.map_or_else(|| format!("{ms}ms"), |(unit, name)| format!("{}{name}", ms / unit))
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
        "keep_completed_ms": milliseconds(queue.keep.completed),
        "keep_cancelled_ms": milliseconds(queue.keep.cancelled),
        "keep_dead_ms": milliseconds(queue.keep.dead),
        "keep_own": queue.keep_own,
    })
}

fn milliseconds(age: Duration) -> u64 {
    u64::try_from(age.as_millis()).unwrap_or(u64::MAX)
}

async fn set(args: Set) -> Outcome {
    let ages = [
        (State::Completed, args.keep_completed),
        (State::Cancelled, args.keep_cancelled),
        (State::Dead, args.keep_dead),
    ];
    if ages.iter().all(|(_, age)| age.is_none()) {
        return Err(Failure::Usage(
            "queue set: nothing is set\n        give --keep-completed, --keep-cancelled or --keep-dead".to_owned(),
        ));
    }
    if args.queue.is_none() && !args.every {
        return Err(Failure::Usage(
            "queue set: no queue is named\n        name one, or say --every for all that have no age of their own"
                .to_owned(),
        ));
    }
    let client = args.connection.connect().await?;
    for (outcome, age) in ages {
        if let Some(Age(age)) = age {
            client.set_keep(args.queue.as_deref(), outcome, age).await?;
        }
    }
    let keep = match &args.queue {
        None => client.keep_defaults().await?,
        Some(name) => {
            let queues = client.queues().await?;
            let found = queues.iter().find(|queue| queue.queue == *name);
            found.map(|queue| queue.keep).ok_or_else(|| Failure::NotFound(format!("the queue {name:?} is gone")))?
        }
    };
    match args.json {
        true => output::json(&json!({
            "queue": args.queue,
            "keep_completed_ms": milliseconds(keep.completed),
            "keep_cancelled_ms": milliseconds(keep.cancelled),
            "keep_dead_ms": milliseconds(keep.dead),
        }))?,
        false => output::line(&format!(
            "{} completed jobs for {}, cancelled ones for {}, dead letters for {}",
            args.queue
                .map_or_else(|| "queues without an age of their own keep".to_owned(), |name| format!("{name} keeps")),
            short(keep.completed),
            short(keep.cancelled),
            short(keep.dead),
        ))?,
    }
    Ok(0)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_shown_as_they_are_typed() {
        for text in ["1s", "90m", "36h", "7d", "1500ms", "forever"] {
            let Age(Some(read)) = age(text).unwrap() else { panic!("{text}") };
            assert_eq!(short(read), text);
        }
        assert!(age("default").unwrap().0.is_none());
        assert!(age("0").unwrap_err().contains("forever"));
        assert!(age("x").unwrap_err().contains("or forever"));
    }
}
