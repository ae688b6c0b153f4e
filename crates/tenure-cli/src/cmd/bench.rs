//! `tenure bench`: measure this queue on the database at hand.

use std::time::Duration;

use crate::bench::options::{
    EnqueueOptions, FloorOptions, IdleOptions, LateOptions, LatencyOptions, MixedOptions, WorkOptions,
};
use crate::bench::worker::WorkerArgs;
use crate::bench::{self, End, Mode};
use crate::exit::{Failure, Outcome};
use crate::signals::Signals;

/// Measure what this queue does on your database: rates, latency, and their cost
///
/// All of it goes through the client and the worker that every program gets, with everything on that makes it safe. A schema of
/// its own is made and dropped, also on Ctrl-C; workers are processes of their own, so that their CPU time and memory are theirs
/// alone. It loads the server as much as it can: measure where nobody is disturbed.
#[derive(Debug, clap::Subcommand)]
#[command(mut_subcommands(with_negative_values))]
pub enum Bench {
    /// How quickly jobs are enqueued: one by one, by arrays, by COPY
    #[command(after_help = "\
Examples:
  tenure bench enqueue
  tenure bench enqueue --form arrays,copy --producers 1,2,8 --rounds 3
  tenure bench enqueue --form copy --jobs 1000000 --payload 1024 --json | jq .medians")]
    Enqueue(EnqueueOptions),

    /// How quickly jobs are worked off, by handlers that do nothing
    ///
    /// The time runs from before the workers connect until the database has recorded the last end. Finished jobs are kept.
    #[command(after_help = "\
Examples:
  tenure bench work
  tenure bench work --jobs 1000000 --concurrency 32 --pinned --json | jq '.runs[].slices'
  tenure bench work --history 10000000 --concurrency 8,32
  tenure bench work --workers 1,4,16 --concurrency 8 --rounds 3
  tenure bench work --queues 1,1000 --concurrency 8 --rounds 3
  tenure bench work --form single --run-time 5ms --concurrency 128 --payload 1024")]
    Work(WorkOptions),

    /// How soon an idle worker starts a job, from the commit of its enqueue on
    #[command(after_help = "\
Examples:
  tenure bench latency
  tenure bench latency --jobs 1000 --pause 20ms --scheduled 1000000")]
    Latency(LatencyOptions),

    /// How long jobs wait and run under a steady load
    #[command(after_help = "\
Examples:
  tenure bench mixed --rate 1000 --duration 1m
  tenure bench mixed --rate 200 --run-time 20ms --concurrency 16 --workers 2")]
    Mixed(MixedOptions),

    /// What many workers cost that have nothing to do, and how many of them wake for one job
    ///
    /// They are watched while nothing happens, then while jobs come one at a time, then at a burst, after which they have to sleep again. What they are
    /// told is heard by a session that listens as they do.
    #[command(after_help = "\
Examples:
  tenure bench idle
  tenure bench idle --workers 10 --idle 1m --jobs 1000 --pause 20ms
  tenure bench idle --burst 100000 --json | jq '.runs[] | {words_per_job, burst_words}'")]
    Idle(IdleOptions),

    /// How soon a job is found whose transaction committed long after the enqueue, under a full load
    ///
    /// Workers have passed its place in the queue by then, and have to come back for it. Producers keep them as busy as they can be.
    #[command(after_help = "\
Examples:
  tenure bench late
  tenure bench late --jobs 100 --hold 10s --at-once 16 --workers 4 --within 10m")]
    Late(LateOptions),

    /// What the same server does by plain SQL: NOTIFY, a durable commit, COPY
    #[command(after_help = "\
Examples:
  tenure bench floor
  tenure bench floor --rows 1000000 --payload 1024 --rounds 3")]
    Floor(FloorOptions),
}

/// So that `--jobs -5` is a number outside of its range, and not an option that nobody knows.
fn with_negative_values(mode: clap::Command) -> clap::Command {
    mode.mut_args(|arg| match arg.get_action().takes_values() {
        true => arg.allow_hyphen_values(true),
        false => arg,
    })
}

/// Measures and prints. Ctrl-C ends it, and drops the schema.
pub async fn run(bench: Bench) -> Outcome {
    let mut signals = Signals::listen()?;
    let mode = match bench {
        Bench::Enqueue(options) => Mode::Enqueue(options),
        Bench::Work(options) => Mode::Work(options),
        Bench::Latency(options) => Mode::Latency(options),
        Bench::Mixed(options) => Mode::Mixed(options),
        Bench::Idle(options) => Mode::Idle(options),
        Bench::Late(options) => Mode::Late(options),
        Bench::Floor(options) => Mode::Floor(options),
    };
    if let Some(nonsense) = mode.nonsense() {
        return Err(Failure::Usage(nonsense));
    }
    match bench::run(&mode, stop(&mut signals, mode.common().within)).await? {
        End::Measured(report) => {
            report.print(mode.common().json)?;
            Ok(0)
        }
        End::Stopped(why) => {
            eprintln!("tenure: the bench {why}; its schema is gone and its processes have ended");
            Ok(1)
        }
    }
}

/// Waits for a reason to give up, and says it.
async fn stop(signals: &mut Signals, within: Option<Duration>) -> String {
    let passed = async {
        match within {
            // sleep: the limit that was asked for.
            Some(limit) => tokio::time::sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = signals.next() => "was stopped".to_owned(),
        () = passed => format!("did not end within {:?}", within.unwrap_or_default()),
    }
}

/// Works until stdin ends.
pub async fn worker(args: WorkerArgs) -> Outcome {
    bench::worker::run(args).await?;
    Ok(0)
}
