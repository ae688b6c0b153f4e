//! The verbs, a file per noun. Data goes to stdout, everything else to stderr.

pub mod demo;
pub mod dev;
pub mod migrate;

use crate::args::{Args, Command};
use crate::exit::Outcome;

/// Runs the verb that was typed and gives the exit code.
pub async fn run(args: Args) -> Outcome {
    match args.command {
        Command::Dev(dev) => dev::run(dev).await,
        Command::Migrate(migrate) => migrate::run(migrate).await,
        Command::DemoModelServer(args) => demo::model_server(args).await,
    }
}
