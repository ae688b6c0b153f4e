//! `cargo xtask prove TOPIC [--quick]`: reproduces the figures that the project claims.

use anyhow::Result;

#[derive(clap::Args)]
pub(crate) struct Prove {
    /// The topic and its options
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// Builds this program once more with what `prove` needs, and runs it.
#[cfg(not(feature = "prove"))]
pub(crate) fn run(prove: &Prove) -> Result<()> {
    let mut cargo =
        crate::child::cargo(&["run", "--quiet", "--package", "xtask", "--features", "prove", "--", "prove"]);
    crate::child::run(cargo.args(&prove.args))
}

/// Runs one topic.
#[cfg(feature = "prove")]
pub(crate) fn run(prove: &Prove) -> Result<()> {
    anyhow::bail!("there is no topic {:?} yet", prove.args.join(" "))
}
