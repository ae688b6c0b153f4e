//! `tenure queue`: what stands in the queues; pause, resume and drain; how long finished jobs are kept.

mod bound;
pub mod unused;

use std::time::{Duration, SystemTime};

use clap::Subcommand;
use serde_json::{Value, json};
use tenure::lifecycle::State;
use tenure::limits::KEEP_MAX;
use tenure::{Keep, KindPause, QueueInfo};

use crate::connection::Connection;
use crate::exit::{Failure, Outcome};
use crate::{output, when};

/// Look at queues, pause, resume and drain them, set what they keep
#[derive(Debug, Subcommand)]
pub enum Queue {
    List(List),
    Pause(Pause),
    Resume(Resume),
    Set(Set),
    Drain(Drain),
    Bound(bound::Bound),
    Unbound(bound::Unbound),
    Bounds(bound::Bounds),
}

/// List the queues and what stands in them; dead letters that were requeued do not count
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  tenure queue list\n  tenure queue list --json | jq '.queues[] | select(.paused_at)'"
)]
pub struct List {
    /// Print a JSON object: the queues, and the paused kinds
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Pause a queue, or a kind in one queue or in all: running jobs finish, nothing more is started
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Stored in the database: it holds for all workers, also for those that start later, until it is resumed.

Examples:
  tenure queue pause mail --reason 'the provider is down'
  tenure queue pause mail --kind newsletter
  tenure queue pause --kind newsletter            in every queue")]
pub struct Pause {
    /// The queue; it need not have been used yet
    #[arg(required_unless_present = "kind")]
    queue: Option<String>,

    /// Only this kind; without a queue, in every queue
    #[arg(long)]
    kind: Option<String>,

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

/// Resume a paused queue or kind
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Undoes the pause that was given with the same words, and no other.

Examples:
  tenure queue resume mail
  tenure queue resume mail --kind newsletter
  tenure queue resume --kind newsletter")]
pub struct Resume {
    /// The queue
    #[arg(required_unless_present = "kind")]
    queue: Option<String>,

    /// The kind that was paused, in this queue or in every queue
    #[arg(long)]
    kind: Option<String>,

    /// Print a JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Pause a queue and let what runs finish
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The queue stays paused afterwards: resume it when you are done. A worker drains on SIGTERM, or by `tenure worker drain`.

Examples:
  tenure queue drain mail --wait --reason maintenance
  tenure queue drain mail --wait --timeout 10m && deploy; tenure queue resume mail")]
pub struct Drain {
    /// The queue
    queue: String,

    /// Come back when nothing of it runs any more
    #[arg(long)]
    wait: bool,

    /// Wait at most so long, then exit with 1 [default: for ever]
    #[arg(long, value_name = "TIME", value_parser = when::duration, requires = "wait")]
    timeout: Option<Duration>,

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
        Queue::Drain(args) => drain(args).await,
        Queue::Bound(args) => bound::bound(args).await,
        Queue::Unbound(args) => bound::unbound(args).await,
        Queue::Bounds(args) => bound::bounds(args).await,
    }
}

async fn list(args: List) -> Outcome {
    let client = args.connection.connect().await?;
    let (queues, kinds) = (client.queues().await?, client.paused_kinds().await?);
    match args.json {
        true => output::json(&json!({
            "queues": queues.iter().map(to_json).collect::<Vec<_>>(),
            "paused_kinds": kinds.iter().map(kind_json).collect::<Vec<_>>(),
        }))?,
        false => {
            let now = client.now().await?;
            print(&queues, now)?;
            print_kinds(&kinds, now)?;
        }
    }
    Ok(0)
}

/// The paused kinds as a table under a free line; nothing when there are none.
pub fn print_kinds(kinds: &[KindPause], now: SystemTime) -> std::io::Result<()> {
    if kinds.is_empty() {
        return Ok(());
    }
    output::line("")?;
    let row = |pause: &KindPause| {
        let queue = pause.queue.clone().unwrap_or_else(|| "every queue".to_owned());
        let paused = paused_text(pause.paused_at, Some(&pause.paused_by), pause.reason.as_deref(), now);
        vec![pause.kind.clone(), queue, paused]
    };
    output::table(&["PAUSED KIND", "IN", "PAUSED"], kinds.iter().map(row).collect(), "")
}

/// A paused kind as JSON; `queue` is null for every queue.
pub fn kind_json(pause: &KindPause) -> Value {
    json!({
        "kind": pause.kind,
        "queue": pause.queue,
        "paused_at": output::instant(pause.paused_at),
        "paused_by": pause.paused_by,
        "pause_reason": pause.reason,
    })
}

/// The queues as a table.
pub fn print(queues: &[QueueInfo], now: SystemTime) -> std::io::Result<()> {
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

/// An age as it is typed.
fn short(age: Duration) -> String {
    if age == KEEP_MAX { "forever".to_owned() } else { output::exact(age) }
}

fn paused(queue: &QueueInfo, now: SystemTime) -> String {
    let Some(at) = queue.paused_at else { return String::new() };
    paused_text(at, queue.paused_by.as_deref(), queue.pause_reason.as_deref(), now)
}

fn paused_text(at: SystemTime, by: Option<&str>, reason: Option<&str>, now: SystemTime) -> String {
    let by = by.map(|by| format!(" by {by}")).unwrap_or_default();
    let reason = reason.map(|why| format!(": {}", output::start_of(why, 60))).unwrap_or_default();
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
    unused::warn(async { Ok(client.clone()) }, args.queue.as_deref()).await;
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
    let (by, reason) = (args.by.as_deref(), args.reason.as_deref());
    let what = What { queue: args.queue.as_deref(), kind: args.kind.as_deref() };
    let changed = match (what.kind, what.queue) {
        (Some(kind), queue) => client.pause_kind(kind, queue, by, reason).await?,
        (None, Some(queue)) => client.pause(queue, by, reason).await?,
        (None, None) => return Err(nothing_named("pause")),
    };
    let code = answer(args.json, what, changed, "paused", "was paused already")?;
    unused::warn(async { Ok(client.clone()) }, what.queue).await;
    Ok(code)
}

async fn resume(args: Resume) -> Outcome {
    let client = args.connection.connect().await?;
    let what = What { queue: args.queue.as_deref(), kind: args.kind.as_deref() };
    let changed = match (what.kind, what.queue) {
        (Some(kind), queue) => client.resume_kind(kind, queue).await?,
        (None, Some(queue)) => client.resume(queue).await?,
        (None, None) => return Err(nothing_named("resume")),
    };
    if let Some(kind) = what.kind {
        for pause in client.paused_kinds().await?.iter().filter(|pause| pause.kind == kind) {
            let place =
                pause.queue.as_ref().map_or("in every queue".to_owned(), |queue| format!("in the queue {queue}"));
            eprintln!("{kind} is still paused {place}");
        }
    }
    let code = answer(args.json, what, changed, "resumed", "was not paused")?;
    unused::warn(async { Ok(client.clone()) }, what.queue).await;
    Ok(code)
}

async fn drain(args: Drain) -> Outcome {
    let client = args.connection.connect().await?;
    let reason = args.reason.as_deref().or(Some("drained"));
    let changed = client.pause(&args.queue, args.by.as_deref(), reason).await?;
    unused::warn(async { Ok(client.clone()) }, [args.queue.as_str()]).await;
    let left = if args.wait { Some(client.drained(&args.queue, args.timeout).await?) } else { None };
    match args.json {
        true => output::json(&json!({ "queue": args.queue, "changed": changed, "running": left }))?,
        false => match left {
            None => output::line(&format!("{} paused; what runs goes on to its end", args.queue))?,
            Some(0) => output::line(&format!("{} drained: paused, and nothing of it runs", args.queue))?,
            Some(left) => output::line(&format!("{} paused; {left} still run", args.queue))?,
        },
    }
    Ok(u8::from(left.is_some_and(|left| left > 0)))
}

/// What is paused or resumed.
#[derive(Clone, Copy)]
struct What<'a> {
    queue: Option<&'a str>,
    kind: Option<&'a str>,
}

fn nothing_named(verb: &str) -> Failure {
    Failure::Usage(format!("queue {verb}: nothing is named\n        name a queue, or a kind with --kind"))
}

fn answer(json: bool, what: What<'_>, changed: bool, done: &str, already: &str) -> Outcome {
    let name = match (what.kind, what.queue) {
        (Some(kind), Some(queue)) => format!("{kind} in {queue}"),
        (Some(kind), None) => format!("{kind} in every queue"),
        (None, queue) => queue.unwrap_or_default().to_owned(),
    };
    match (json, what.kind) {
        (true, None) => output::json(&json!({ "queue": what.queue, "changed": changed }))?,
        (true, Some(kind)) => output::json(&json!({ "kind": kind, "queue": what.queue, "changed": changed }))?,
        (false, _) => output::line(&format!("{name} {}", if changed { done } else { already }))?,
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
