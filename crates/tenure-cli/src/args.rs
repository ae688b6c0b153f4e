//! What can be typed: one variant per verb, each with the arguments that its module in `cmd` declares.

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

use crate::cmd;

/// Durable jobs on PostgreSQL.
#[derive(Debug, Parser)]
#[command(name = "tenure", version, arg_required_else_help = true)]
#[command(after_help = "Exit codes: 0 ok, 1 failed, 2 usage, 3 not found.")]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

/// What was typed. Says what is wrong with it, or the help that was asked for, and ends the process.
pub fn parse() -> Args {
    Args::try_parse().unwrap_or_else(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            error.exit()
        }
        // The usage line names what was given as if it had to be, and DATABASE_URL is given to every command.
        _ => match without_environment(Args::command()).try_get_matches() {
            Err(typed) => typed.exit(),
            // Then a variable of the environment is what is wrong.
            Ok(_) => error.exit(),
        },
    })
}

fn without_environment(command: clap::Command) -> clap::Command {
    command.mut_args(|arg| arg.env(None::<&'static str>)).mut_subcommands(without_environment)
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
    #[command(subcommand)]
    Schedule(cmd::schedule::Schedule),
    #[command(subcommand)]
    Backfill(cmd::backfill::Backfill),
    #[command(subcommand)]
    Limit(cmd::limit::Limit),
    Prune(cmd::prune::Prune),
    #[command(subcommand)]
    Setting(cmd::setting::Setting),
    Status(cmd::status::Status),
    Doctor(cmd::doctor::Doctor),
    Stats(cmd::stats::StatsArgs),
    Demo(cmd::demo::Demo),
    #[command(hide = true)]
    DemoWorker(cmd::demo::DemoWorker),
    #[command(subcommand)]
    Bench(cmd::bench::Bench),
    #[command(hide = true)]
    BenchWorker(crate::bench::worker::WorkerArgs),
    Work(cmd::work::Work),
    #[command(subcommand)]
    Worker(cmd::worker::Worker),
    #[command(hide = true)]
    DemoModelServer(cmd::demo::DemoModelServer),
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory;
    use tenure::lifecycle::State;
    use tenure::verbs::Verb;

    use super::*;

    /// What is more than calls of a client.
    const NO_VERBS: [&str; 11] = [
        "bench enqueue",
        "bench floor",
        "bench idle",
        "bench late",
        "bench latency",
        "bench mixed",
        "bench work",
        "demo",
        "dev",
        "schedule preview",
        "work",
    ];

    /// Every command that runs, by the words that call it; those left out that are only for the program itself.
    pub fn leaves(command: &clap::Command, path: &str, found: &mut Vec<(String, clap::Command)>) {
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            let path = format!("{path} {}", sub.get_name());
            match sub.has_subcommands() {
                true => leaves(sub, &path, found),
                false => found.push((path, sub.clone())),
            }
        }
    }

    #[test]
    fn help_names_every_state_and_every_cause() {
        let mut found = Vec::new();
        leaves(&Args::command(), "tenure", &mut found);
        let help = |path: &str, option: &str| {
            let (_, command) = found.iter().find(|(found, _)| found == path).expect("a command");
            let arg = command.get_arguments().find(|arg| arg.get_long() == Some(option)).expect("an option");
            arg.get_help().map(ToString::to_string).unwrap_or_default()
        };
        let names_all = |help: String, names: &[&str]| {
            names.iter().for_each(|name| assert!(help.contains(name), "{name} is missing: {help}"));
        };
        names_all(help("tenure dead list", "cause"), &tenure::Cause::ALL.map(tenure::Cause::as_str));
        names_all(help("tenure job list", "status"), &State::ALL.map(State::as_str));
        names_all(help("tenure job cancel", "status"), &tenure::CancelFilter::STATUSES.map(State::as_str));
    }

    #[test]
    fn every_command_shows_examples_and_speaks_json() {
        let mut found = Vec::new();
        leaves(&Args::command(), "tenure", &mut found);
        assert!(found.len() > 20, "{found:?}");
        for (path, command) in found {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:\n") && help.contains(&format!("  {path}")), "{path}: {help}");
            assert!(command.get_arguments().any(|arg| arg.get_long() == Some("json")), "{path} has no --json");
        }
    }

    #[test]
    fn every_command_leads_to_a_verb_and_every_verb_says_its_commands() {
        let mut found = Vec::new();
        leaves(&Args::command(), "", &mut found);
        let typed: BTreeSet<String> = found.into_iter().map(|(path, _)| path.trim().to_owned()).collect();
        let of_verbs = Verb::ALL.iter().flat_map(|verb| verb.commands()).copied();
        let table: BTreeSet<String> = of_verbs.chain(NO_VERBS).map(str::to_owned).collect();
        assert_eq!(typed, table);
    }

    #[test]
    fn the_verbs_of_a_command_are_called_by_its_module() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cmd");
        for verb in Verb::ALL {
            for command in verb.commands() {
                let noun = command.split(' ').next().expect("a command has a name");
                let mut text = std::fs::read_to_string(folder.join(noun).with_extension("rs")).expect(noun);
                let beside = std::fs::read_dir(folder.join(noun)).into_iter().flatten();
                // `enqueue` reads its lines in a module of its own.
                let beside = beside.map(|file| file.expect("a file").path()).chain([folder.join("ndjson.rs")]);
                beside.for_each(|file| text.push_str(&std::fs::read_to_string(file).expect("text")));
                assert!(text.contains(&format!(".{}(", verb.name())), "`{command}` does not call {}", verb.name());
            }
        }
    }
}
