//! The verbs, a file per noun. Data goes to stdout, everything else to stderr.

pub mod backfill;
pub mod bench;
pub mod dead;
pub mod demo;
pub mod dev;
pub mod doctor;
pub mod enqueue;
pub mod job;
pub mod limit;
pub mod migrate;
mod ndjson;
pub mod prune;
pub mod queue;
pub mod schedule;
pub mod setting;
pub mod stats;
pub mod status;
pub mod work;
pub mod worker;

use crate::args::{Args, Command};
use crate::exit::Outcome;

/// Runs the verb that was typed and gives the exit code.
pub async fn run(args: Args) -> Outcome {
    match args.command {
        Command::Dev(dev) => dev::run(dev).await,
        Command::Migrate(migrate) => migrate::run(migrate).await,
        Command::Enqueue(args) => enqueue::run(args).await,
        Command::Job(job) => job::run(job).await,
        Command::Queue(queue) => queue::run(queue).await,
        Command::Dead(dead) => dead::run(dead).await,
        Command::Schedule(schedule) => schedule::run(schedule).await,
        Command::Backfill(backfill) => backfill::run(backfill).await,
        Command::Setting(setting) => setting::run(setting).await,
        Command::Limit(limit) => limit::run(limit).await,
        Command::Prune(prune) => prune::run(prune).await,
        Command::Stats(stats) => stats::run(stats).await,
        Command::Status(status) => status::run(status).await,
        Command::Doctor(doctor) => doctor::run(doctor).await,
        Command::Demo(args) => demo::run(args).await,
        Command::DemoWorker(args) => demo::worker(args).await,
        Command::Bench(bench) => bench::run(bench).await,
        Command::BenchWorker(args) => bench::worker(args).await,
        Command::Work(args) => work::run(args).await,
        Command::Worker(worker) => worker::run(worker).await,
        Command::DemoModelServer(args) => demo::model_server(args).await,
    }
}
