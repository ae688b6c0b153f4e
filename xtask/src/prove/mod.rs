//! `cargo xtask prove TOPIC [--quick]`: reproduces the figures that the project claims.

#[cfg(feature = "prove")]
mod demo;
#[cfg(feature = "prove")]
mod engine;
#[cfg(feature = "prove")]
mod failures;
#[cfg(feature = "prove")]
mod layout;
#[cfg(feature = "prove")]
mod limits;
#[cfg(feature = "prove")]
mod model;
#[cfg(feature = "prove")]
mod parts;
#[cfg(feature = "prove")]
mod speed;
#[cfg(feature = "prove")]
pub(crate) mod table;
#[cfg(feature = "prove")]
mod time;

use anyhow::Result;

/// See `cargo xtask prove --help`.
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

/// Reproduces the figures that the project claims.
///
/// Prints a table of claim, bound, measured value, and whether the bound holds; exits 1 when one does not. Lines with "aim"
/// are printed only. Progress goes to stderr.
#[cfg(feature = "prove")]
#[derive(clap::Parser)]
#[command(name = "cargo xtask prove")]
struct Options {
    /// What to prove
    #[arg(value_enum)]
    topic: Topic,

    /// Small sizes: under two minutes after the build. Of `speed`, rates and times are then printed and not judged
    #[arg(long)]
    quick: bool,

    /// One JSON object on stdout in place of the table
    #[arg(long)]
    json: bool,

    /// Only the parts whose name holds one of these words, or with `=` before it is that word; --list names them
    #[arg(long, value_name = "WORD")]
    only: Vec<String>,

    /// Of `speed`: other queues as well, on the same server; builds them first
    #[arg(long)]
    peers: bool,

    /// Name the parts of the topic and end
    #[arg(long)]
    list: bool,
}

#[cfg(feature = "prove")]
#[derive(Clone, Copy, clap::ValueEnum)]
enum Topic {
    /// Nothing lost, nothing twice, quick to recover: the engine
    Engine,
    /// Every path on which something goes wrong: cuts, restarts, races, chaos
    Failures,
    /// Limits are kept exactly, and cost little
    Limits,
    /// How rows name their jobs: the ways compared
    Layout,
    /// How quick it is, against plain SQL on the same server, and that it stays so
    Speed,
    /// Schedules fire once per logical time, whoever dies, and what has a time is not late
    Time,
}

/// Runs one topic.
#[cfg(feature = "prove")]
pub(crate) fn run(prove: &Prove) -> Result<()> {
    use clap::Parser;
    let options =
        Options::parse_from(std::iter::once("cargo xtask prove".to_owned()).chain(prove.args.iter().cloned()));
    if options.peers && !matches!(options.topic, Topic::Speed) {
        crate::say("--peers is of the topic speed alone");
        std::process::exit(2);
    }
    match options.topic {
        Topic::Engine => engine::run(&options),
        Topic::Failures => failures::run(&options),
        Topic::Limits => limits::run(&options),
        Topic::Layout => layout::run(&options),
        Topic::Speed => speed::run(&options),
        Topic::Time => time::run(&options),
    }
}
