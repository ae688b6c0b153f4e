//! Development commands of tenure: `cargo xtask demo` and `cargo xtask test` are the two that a newcomer needs.

mod chaos;
mod child;
mod demo;
mod prove;
mod setup;
mod test;
mod tidy;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Development commands of tenure.
#[derive(Parser)]
#[command(name = "cargo xtask", arg_required_else_help = true)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install what is missing: a PostgreSQL server, by the system's package manager
    Setup,
    /// Run all tests, on PostgreSQL 15 and 18, on servers of their own
    Test(test::Test),
    /// Run the demo with chaos, on a server of its own
    Demo(demo::Demo),
    /// Reproduce the figures that the project claims
    #[command(disable_help_flag = true)]
    Prove(prove::Prove),
    /// Break everything at random under worker processes, and compare the accounts
    Chaos(chaos::Chaos),
    /// Check the sources for what must not be in them
    Tidy,
}

fn main() -> ExitCode {
    // The scenarios of `prove` start this program again as their worker processes.
    #[cfg(feature = "prove")]
    tenure_scenarios::process::run_if_asked();
    let done = match Args::parse().command {
        Command::Setup => setup::run(),
        Command::Test(test) => test::run(&test),
        Command::Demo(demo) => demo::run(&demo),
        Command::Prove(prove) => prove::run(&prove),
        Command::Chaos(chaos) => chaos::run(&chaos),
        Command::Tidy => tidy::run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Says what is going on, on stderr: stdout belongs to the programs that are run.
fn say(line: &str) {
    eprintln!("xtask: {line}");
}
