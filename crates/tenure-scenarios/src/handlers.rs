//! The worker process of the scenarios.

use crate::process::WorkerOptions;

/// Runs the worker until SIGTERM; the exit code.
pub fn run(options: WorkerOptions) -> i32 {
    eprintln!("there is no worker to start as {} yet", options.name);
    1
}
