//! `tenure dev`: a private PostgreSQL for development.

use std::path::PathBuf;

use crate::exit::Outcome;

/// Start a private PostgreSQL server for development.
#[derive(Debug, clap::Args)]
pub struct Dev {
    /// Folder of the cluster. Default: one per major version in the state folder of this user.
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}

/// Starts the server, prints its URL and waits for Ctrl-C.
pub async fn run(_dev: Dev) -> Outcome {
    let mut signals = crate::signals::Signals::listen()?;
    signals.next().await;
    Ok(0)
}
