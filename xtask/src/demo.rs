//! `cargo xtask demo`: the demo with chaos, on a server of its own that is gone afterwards.

use std::process::Command;

use anyhow::{Context, Result};
use tenure_dev::{Options, Server};

use crate::{child, say, setup};

#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Demo {
    /// For `tenure demo`: see `cargo xtask demo --help`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    demo: Vec<String>,
}

/// Builds the program, starts a server, runs the demo, stops the server.
pub(crate) fn run(demo: &Demo) -> Result<()> {
    let binaries = setup::binaries()?;
    child::run(child::cargo(&["build", "--package", "tenure-cli"]).current_dir(child::workspace()))?;
    let programs = std::env::current_exe()?;
    let tenure = programs.parent().context("xtask is not in a folder")?.join("tenure");
    let options = Options { ephemeral: true, bin_dir: Some(binaries.dir), say, ..Options::default() };
    let server = Server::start(options)?;
    let mut command = Command::new(tenure);
    command.arg("demo").args(&demo.demo).env("DATABASE_URL", server.url());
    if !demo.demo.iter().any(|argument| argument == "--chaos") {
        command.arg("--chaos");
    }
    let done = child::run(&mut command);
    let stopped = server.stop();
    done.and(stopped)
}
