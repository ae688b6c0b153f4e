//! `tenure worker`: the workers that are registered; let one finish what it runs and get nothing more.

use std::time::Duration;

use clap::Subcommand;
use serde_json::json;

use super::status::{print_workers, worker_json};
use crate::connection::Connection;
use crate::exit::{Failure, Outcome};
use crate::{number, output, when};

/// Look at workers, drain one and let it work again
#[derive(Debug, Subcommand)]
pub enum Worker {
    List(List),
    Drain(Drain),
    Resume(Resume),
}

/// List the registered workers, oldest first
#[derive(Debug, clap::Args)]
#[command(after_help = "\
States: alive; drained: it finishes what it runs; suspected: it looks lost, and its jobs are given away as soon as another
worker is there to do that; dead: they are being given away.

Examples:
  tenure worker list
  tenure worker list --json | jq '.[] | select(.running > 0)'")]
pub struct List {
    /// Print a JSON array
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Let a worker finish what it runs, and give it nothing more
#[derive(Debug, clap::Args)]
#[command(after_help = "\
It lives on without work, and shows as drained, also when it was cut off and has to register anew. A process that is
started anew is another worker; SIGTERM drains and ends one.

Examples:
  tenure worker drain 17
  tenure worker drain 17 --wait --timeout 10m")]
pub struct Drain {
    /// Its number, from `tenure worker list`
    #[arg(value_parser = worker_number())]
    worker: i64,

    /// Come back when it runs nothing any more
    #[arg(long)]
    wait: bool,

    /// Wait at most so long, then exit with 1 [default: for ever]
    #[arg(long, value_name = "TIME", value_parser = when::duration, requires = "wait")]
    timeout: Option<Duration>,

    /// Print a JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Give a drained worker work again
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  tenure worker resume 17")]
pub struct Resume {
    /// Its number
    #[arg(value_parser = worker_number())]
    worker: i64,

    /// Print a JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

fn worker_number() -> impl Fn(&str) -> Result<i64, String> + Clone + Send + Sync + 'static {
    number::of("`tenure worker list` shows the workers' numbers")
}

/// Runs the verb.
pub async fn run(worker: Worker) -> Outcome {
    match worker {
        Worker::List(args) => list(args).await,
        Worker::Drain(args) => drain(args).await,
        Worker::Resume(args) => resume(args).await,
    }
}

async fn list(args: List) -> Outcome {
    let client = args.connection.connect().await?;
    let workers = client.workers().await?;
    match args.json {
        true => output::json(&workers.iter().map(worker_json).collect::<Vec<_>>())?,
        false => print_workers(&workers, client.now().await?)?,
    }
    Ok(0)
}

async fn drain(args: Drain) -> Outcome {
    let client = args.connection.connect().await?;
    if !client.drain_worker(args.worker, true).await? {
        return Err(no_such_worker(args.worker));
    }
    let left = if args.wait { Some(client.worker_drained(args.worker, args.timeout).await?) } else { None };
    match args.json {
        true => output::json(&json!({ "worker": args.worker, "running": left }))?,
        false => match left {
            None => output::line(&format!("{} gets nothing more; what it runs goes on to its end", args.worker))?,
            Some(0) => output::line(&format!("{} drained: it runs nothing", args.worker))?,
            Some(left) => output::line(&format!("{} gets nothing more; it still runs {left}", args.worker))?,
        },
    }
    Ok(u8::from(left.is_some_and(|left| left > 0)))
}

async fn resume(args: Resume) -> Outcome {
    if !args.connection.connect().await?.drain_worker(args.worker, false).await? {
        return Err(no_such_worker(args.worker));
    }
    match args.json {
        true => output::json(&json!({ "worker": args.worker }))?,
        false => output::line(&format!("{} gets work again", args.worker))?,
    }
    Ok(0)
}

fn no_such_worker(worker: i64) -> Failure {
    Failure::NotFound(format!("there is no live worker {worker}\n        `tenure worker list` shows their numbers"))
}
