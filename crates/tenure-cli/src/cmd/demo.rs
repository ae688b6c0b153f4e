//! `tenure demo` and the processes that it starts.

use crate::demo;
use crate::exit::Outcome;

/// The model server of the demo, as its own process.
#[derive(Debug, clap::Args)]
pub struct DemoModelServer {
    /// What the misbehaviour is drawn from.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Serves until stdin ends.
pub async fn model_server(args: DemoModelServer) -> Outcome {
    demo::model_server::run(args.seed).await?;
    Ok(0)
}
