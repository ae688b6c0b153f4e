//! The command line of tenure: arguments, environment, signals and logging. The work is in `cmd`.

mod agree;
mod args;
mod bench;
mod cmd;
mod connection;
mod demo;
#[cfg(test)]
mod documented;
mod exec;
mod exit;
mod number;
mod output;
mod plain_sql;
mod process;
mod signals;
mod when;

use std::io::IsTerminal;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args = args::parse();
    start_logging();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return exit::Failure::from(error).report(),
    };
    let outcome = runtime.block_on(cmd::run(args));
    // A blocking call may still be under way (a download, a read of stdin): the process ends without it.
    runtime.shutdown_background();
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(failure) => failure.report(),
    }
}

/// Logs go to stderr; `TENURE_LOG` (or `RUST_LOG`) takes the filters of tracing, for example `tenure=debug`.
fn start_logging() {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_env("TENURE_LOG")
        .or_else(|_| EnvFilter::try_from_default_env())
        .unwrap_or_else(|_| EnvFilter::new("warn"));
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr).init();
}
