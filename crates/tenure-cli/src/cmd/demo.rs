//! `tenure demo` and the processes that it starts.

use std::path::PathBuf;

use crate::connection::Connection;
use crate::demo::{self, Options, workers::WorkerArgs};
use crate::exit::{Failure, Outcome};
use crate::signals::Signals;
use crate::{number, output};

/// Index real files with a pipeline of jobs, and report what was lost or done twice
///
/// Per file: extract -> split -> embed -> store, by several worker processes, over a model server that misbehaves as
/// providers do. Ends with a report taken from the database and one search over what was indexed. Exit code 1 when a
/// chunk was lost, stored twice or billed twice, or when --chaos met no worker at work. Uses the schema tenure_demo for its own tables.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tenure dev --exec 'tenure demo --chaos'        on a private server
  tenure demo --path ~/notes --query tax         your own files and question
  tenure demo --provider-rate 40 --declare-limit   a model that takes 40 requests a second
  tenure demo --chaos --json | jq .rescues")]
pub struct Demo {
    /// A folder, or one file [default: this project's own files, filled up with the sources of its dependencies]
    #[arg(long, value_name = "DIR")]
    path: Option<PathBuf>,

    /// Worker processes, 1 to 16
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = number::within(1..=16_u8))]
    workers: u8,

    /// Kill -9 one of them in the middle
    #[arg(long)]
    chaos: bool,

    /// What to search for at the end
    #[arg(long, value_name = "TEXT", default_value = demo::search::QUERY)]
    query: String,

    /// What the model server's misbehaviour is drawn from
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = number::within(0..=u64::MAX))]
    seed: u64,

    /// Requests that the model server takes in each second; it answers 429 to more, and to no others [default: 429 at random]
    #[arg(long, value_name = "N", value_parser = number::within(1..=10_000_u32))]
    provider_rate: Option<u32>,

    /// Declare that as a limit: calls of the model start no faster than it takes them
    #[arg(long, requires = "provider_rate")]
    declare_limit: bool,

    /// Print the report as one JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// The model server of the demo, as its own process.
#[derive(Debug, clap::Args)]
pub struct DemoModelServer {
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[arg(long)]
    rate: Option<u32>,
}

/// One worker of the demo, as its own process.
#[derive(Debug, clap::Args)]
pub struct DemoWorker {
    #[arg(long)]
    name: String,
    #[arg(long)]
    run: String,
    #[arg(long)]
    model_url: String,
    #[arg(long)]
    limited: bool,
    #[command(flatten)]
    connection: Connection,
}

/// Runs the demo and prints its report. Ctrl-C ends it and its processes.
pub async fn run(demo: Demo) -> Outcome {
    if demo.connection.pooler {
        return Err(Failure::Usage(
            "--pooler: the demo keeps settings and a lock in its sessions\n        give it the server's own address"
                .into(),
        ));
    }
    let mut signals = Signals::listen()?;
    let chaos = demo.chaos;
    let options = Options {
        path: demo.path,
        workers: usize::from(demo.workers),
        chaos: demo.chaos,
        seed: demo.seed,
        query: demo.query,
        provider_rate: demo.provider_rate,
        declare_limit: demo.declare_limit,
        connection: demo.connection,
    };
    let Some(report) = demo::run(&options, async { _ = signals.next().await }).await? else {
        eprintln!("tenure: the demo was stopped; its processes have ended");
        return Ok(1);
    };
    if demo.json {
        output::json(&report)?;
    } else {
        output::text(&report.to_text())?;
    }
    // What was to be shown was not: a worker that dies with jobs in its hands.
    let spared = chaos && !report.was_hurt();
    if spared {
        eprintln!(
            "tenure: --chaos killed no worker that ran jobs: the run was over before\n        give it more files, by --path"
        );
    }
    Ok(u8::from(spared || !report.holds()))
}

/// Serves until stdin ends.
pub async fn model_server(args: DemoModelServer) -> Outcome {
    demo::model_server::run(args.seed, args.rate).await?;
    Ok(0)
}

/// Works until stdin ends.
pub async fn worker(args: DemoWorker) -> Outcome {
    let DemoWorker { name, run, model_url, limited, connection } = args;
    demo::workers::run(WorkerArgs { name, run, model_url, limited, connection }).await?;
    Ok(0)
}
