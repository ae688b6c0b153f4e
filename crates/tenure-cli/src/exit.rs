//! How the program ends: 0 ok, 1 failed, 2 usage, 3 not found. A program started by `--exec` passes on its own code.

use std::process::ExitCode;

/// The exit code of a command that did what it could, or why it could not.
pub type Outcome = Result<u8, Failure>;

/// Why a command failed; it decides the exit code.
#[derive(Debug)]
pub enum Failure {
    /// Exit code 1: it was tried and did not work.
    Failed(anyhow::Error),
    /// Exit code 2: what was typed makes no sense; nothing was tried.
    Usage(String),
    /// Exit code 3: what was named does not exist.
    NotFound(String),
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::Failed(error.into())
    }
}

impl Failure {
    /// Prints the message to stderr and gives the exit code.
    pub fn report(self) -> ExitCode {
        if self.is_closed_stdout() {
            return ExitCode::SUCCESS;
        }
        let (message, code) = match self {
            Failure::Failed(error) => describe(&error),
            Failure::Usage(message) => (message, 2),
            Failure::NotFound(message) => (message, 3),
        };
        eprintln!("tenure: {message}");
        ExitCode::from(code)
    }

    /// Whoever read the output has seen enough, as `head` does.
    fn is_closed_stdout(&self) -> bool {
        let Failure::Failed(error) = self else { return false };
        let io = error.downcast_ref::<std::io::Error>();
        io.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
    }
}

/// What the library refused as wrong or missing was typed wrongly here. The way out goes on a line of its own.
fn describe(error: &anyhow::Error) -> (String, u8) {
    let Some(known) = error.downcast_ref::<tenure::Error>() else { return (format!("{error:#}"), 1) };
    let code = match known.code() {
        tenure::ErrorCode::BadInput => 2,
        tenure::ErrorCode::NotFound => 3,
        _ => 1,
    };
    let message = match known.help() {
        Some(help) => format!("{}\n        {help}", known.message()),
        None => known.message().to_owned(),
    };
    (message, code)
}
