//! `tenure queue bound`, `unbound` and `bounds`: queues that take only so many jobs.

use serde_json::{Value, json};
use tenure::{QueueBound, QueueBoundInfo, WhenFull};

use crate::connection::Connection;
use crate::exit::{Failure, Outcome};
use crate::{number, output, when};

/// Let a queue take only so many jobs that have not ended
#[derive(Debug, clap::Args)]
#[command(after_help = "\
It replaces what was set, and holds for every enqueue from then on; jobs that are there count. A job counts from its enqueue until it has
completed, is dead or is cancelled.

Examples:
  tenure queue bound mail --jobs 100000
  tenure queue bound mail --jobs 100000 --key-jobs 1000 --when-full drop
  tenure queue bound import --jobs 500 --when-full 30s          an enqueue waits for room, so long at most")]
pub struct Bound {
    /// The queue; it need not have been used yet
    queue: String,

    /// Jobs of the queue
    #[arg(long, value_parser = number::of::<u32>("1 to 10000000"), required_unless_present = "key_jobs")]
    jobs: Option<u32>,

    /// Jobs of each fair key in it
    #[arg(long, value_parser = number::of::<u32>("1 to 10000000"))]
    key_jobs: Option<u32>,

    /// What becomes of more: reject, drop (the oldest that wait), or the time that an enqueue waits for room
    #[arg(long, value_name = "reject|drop|TIME", default_value = "reject", value_parser = when_full)]
    when_full: WhenFull,

    /// Print a JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Let a queue take what comes
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  tenure queue unbound mail")]
pub struct Unbound {
    /// The queue
    queue: String,

    /// Print a JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// List the queues that take only so many jobs, and how many were refused and dropped
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  tenure queue bounds")]
pub struct Bounds {
    /// Print a JSON array
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

fn when_full(text: &str) -> Result<WhenFull, String> {
    match text {
        "reject" => Ok(WhenFull::Reject),
        "drop" => Ok(WhenFull::DropOldest),
        time => when::duration(time).map(WhenFull::Wait).map_err(|error| format!("{error}; or reject, or drop")),
    }
}

pub(super) async fn bound(args: Bound) -> Outcome {
    let mut bound = QueueBound::new(args.when_full);
    if let Some(jobs) = args.jobs {
        bound = bound.jobs(jobs);
    }
    if let Some(jobs) = args.key_jobs {
        bound = bound.key_jobs(jobs);
    }
    let changed = args.connection.connect().await?.set_queue_bound(&args.queue, bound).await?;
    match (args.json, changed) {
        (true, _) => output::json(&json!({ "queue": args.queue, "changed": changed }))?,
        (false, true) => output::line(&format!("{} is bounded", args.queue))?,
        (false, false) => output::line(&format!("{} was bounded so already", args.queue))?,
    }
    Ok(0)
}

pub(super) async fn unbound(args: Unbound) -> Outcome {
    if !args.connection.connect().await?.remove_queue_bound(&args.queue).await? {
        return Err(Failure::NotFound(format!("the queue {:?} has no bound", args.queue)));
    }
    match args.json {
        true => output::json(&json!({ "queue": args.queue, "bounded": false }))?,
        false => output::line(&format!("{} takes what comes", args.queue))?,
    }
    Ok(0)
}

pub(super) async fn bounds(args: Bounds) -> Outcome {
    let bounds = args.connection.connect().await?.queue_bounds().await?;
    match args.json {
        true => output::json(&bounds.iter().map(to_json).collect::<Vec<_>>())?,
        false => {
            let head = ["QUEUE", "JOBS", "OF EACH KEY", "WHEN FULL", "COUNTED", "REFUSED", "DROPPED"];
            output::table(&head, bounds.iter().map(row).collect(), "no queue is bounded")?;
        }
    }
    Ok(0)
}

fn policy(bound: &QueueBoundInfo) -> String {
    match bound.when_full {
        WhenFull::Reject => "reject".to_owned(),
        WhenFull::DropOldest => "drop".to_owned(),
        WhenFull::Wait(time) => format!("{time:?}"),
    }
}

fn row(bound: &QueueBoundInfo) -> Vec<String> {
    let text = |jobs: Option<i64>| jobs.map_or_else(|| "-".to_owned(), |jobs| jobs.to_string());
    vec![
        bound.queue.clone(),
        text(bound.jobs),
        text(bound.key_jobs),
        policy(bound),
        bound.counted.to_string(),
        bound.refused.to_string(),
        bound.dropped.to_string(),
    ]
}

fn to_json(bound: &QueueBoundInfo) -> Value {
    json!({
        "queue": bound.queue,
        "jobs": bound.jobs,
        "key_jobs": bound.key_jobs,
        "when_full": policy(bound),
        "counted": bound.counted,
        "refused": bound.refused,
        "dropped": bound.dropped,
        "set_at": output::instant(bound.set_at),
    })
}
