//! The topic `layout`: the ways in which rows can name their jobs, compared by `bench/layout/run.py`.

use std::process::Command;

use anyhow::Result;
use tenure_dev::{Options as ServerOptions, Server};

use super::{Options, parts};
use crate::{child, say, setup};

/// The comparison is one piece: it is the only part.
const PART: &str = "layout";

/// Starts a server, runs the comparison, stops the server.
pub(crate) fn run(options: &Options) -> Result<()> {
    if options.list {
        println!("{PART}");
        return Ok(());
    }
    parts::refuse_unknown(options, PART, &[PART]);
    let server = Server::start(ServerOptions {
        ephemeral: true,
        bin_dir: Some(setup::binaries()?.dir),
        say,
        ..ServerOptions::default()
    })?;
    let mut command = Command::new("python3");
    command.arg(child::workspace().join("bench/layout/run.py"));
    command.env("DATABASE_URL", server.url()).env("PG_BIN", server.bin_dir());
    if options.quick {
        command.args(["--quick", "--rounds", "1"]);
    }
    if options.json {
        command.arg("--json");
    }
    let done = child::run(&mut command);
    let stopped = server.stop();
    done.and(stopped)
}
