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
    /// Run all tests, on PostgreSQL 15 (or the newest found) and 18, on servers of their own
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// What the pages say to type: whole lines of examples, and words inside of sentences.
    fn commands(page: &str) -> impl Iterator<Item = &str> {
        let lines = page.lines().filter(|line| line.starts_with("cargo xtask "));
        let spans = page.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
        lines.chain(spans.filter(|span| span.starts_with("cargo xtask ")))
    }

    #[test]
    fn every_command_that_is_shown_can_be_typed() {
        let mut seen = 0;
        let pages = [
            "README.md",
            "ARCHITECTURE.md",
            "docs/guide/demo.md",
            "docs/design/scenarios.md",
            "docs/operate/performance.md",
        ];
        for name in pages {
            let page = fs::read_to_string(child::workspace().join(name)).expect("a page");
            for line in commands(&page) {
                let words = line.split_whitespace().skip(1).take_while(|word| !word.starts_with('#'));
                if let Err(error) = Args::try_parse_from(words) {
                    panic!("{name}: {line}: {error}");
                }
                seen += 1;
            }
        }
        assert!(seen >= 8, "{seen} commands were looked at");
    }
}
