//! What can be typed: one variant per verb, each with the arguments that its module in `cmd` declares.

use clap::{Parser, Subcommand};

use crate::cmd;

/// Durable jobs on PostgreSQL.
#[derive(Debug, Parser)]
#[command(name = "tenure", version, arg_required_else_help = true)]
#[command(after_help = "Exit codes: 0 ok, 1 failed, 2 usage, 3 not found.")]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Command {
    Dev(cmd::dev::Dev),
    Migrate(cmd::migrate::Migrate),
    Enqueue(cmd::enqueue::EnqueueArgs),
    #[command(subcommand)]
    Job(cmd::job::Job),
    #[command(subcommand)]
    Queue(cmd::queue::Queue),
    #[command(subcommand)]
    Dead(cmd::dead::Dead),
    Prune(cmd::prune::Prune),
    Status(cmd::status::Status),
    Demo(cmd::demo::Demo),
    #[command(hide = true)]
    DemoWorker(cmd::demo::DemoWorker),
    Work(cmd::work::Work),
    #[command(subcommand)]
    Worker(cmd::worker::Worker),
    #[command(hide = true)]
    DemoModelServer(cmd::demo::DemoModelServer),
}
