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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory;
    use tenure::verbs::Verb;

    use super::Args;

    /// What is more than calls of a client.
    const NO_VERBS: [&str; 3] = ["demo", "dev", "work"];

    /// The paths of all commands that do something, those left out that are only for the program itself.
    fn commands(parent: &clap::Command, path: &str, found: &mut BTreeSet<String>) {
        for command in parent.get_subcommands().filter(|command| !command.is_hide_set()) {
            let path = format!("{path} {}", command.get_name()).trim().to_owned();
            if command.has_subcommands() {
                commands(command, &path, found);
            } else {
                found.insert(path);
            }
        }
    }

    #[test]
    fn every_command_leads_to_a_verb_and_every_verb_says_its_commands() {
        let mut typed = BTreeSet::new();
        commands(&Args::command(), "", &mut typed);
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
