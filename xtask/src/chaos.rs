//! `cargo xtask chaos`: worker processes and producers while everything breaks at random, and the accounts afterwards.

/// See `cargo xtask chaos --help`.
#[derive(clap::Args)]
pub(crate) struct Chaos {
    /// How long things break, at least 0.1
    #[arg(long, default_value_t = 10.0, value_parser = minutes, allow_negative_numbers = true)]
    pub(crate) minutes: f64,

    /// The seed of everything that is chosen; given again, the same is drawn in the same order. What it meets depends on the
    /// machine's speed: nothing is done to a worker to which something is being done [default: random]
    #[arg(long)]
    pub(crate) seed: Option<u64>,

    /// One JSON object on stdout in place of the table
    #[arg(long)]
    pub(crate) json: bool,

    /// Write what was done to this file, also when everything held
    #[arg(long, value_name = "FILE")]
    pub(crate) history: Option<std::path::PathBuf>,
}

fn minutes(text: &str) -> Result<f64, String> {
    let minutes: f64 = text.parse().map_err(|_| "it is a number of minutes, for example 10 or 0.5".to_owned())?;
    match (0.1..=10_000.0).contains(&minutes) {
        true => Ok(minutes),
        false => Err("in less than 0.1 minutes nothing breaks; give 0.1 to 10000".to_owned()),
    }
}

/// Builds this program once more with what it needs, and runs it.
#[cfg(not(feature = "prove"))]
pub(crate) fn run(chaos: &Chaos) -> anyhow::Result<()> {
    let mut cargo =
        crate::child::cargo(&["run", "--quiet", "--package", "xtask", "--features", "prove", "--", "chaos"]);
    cargo.arg("--minutes").arg(chaos.minutes.to_string());
    if let Some(seed) = chaos.seed {
        cargo.arg("--seed").arg(seed.to_string());
    }
    if chaos.json {
        cargo.arg("--json");
    }
    if let Some(file) = &chaos.history {
        cargo.arg("--history").arg(file);
    }
    crate::child::run(&mut cargo)
}

/// Plays it and prints the table; a failure prints the seed, what was done, and what does not fit.
#[cfg(feature = "prove")]
pub(crate) fn run(chaos: &Chaos) -> anyhow::Result<()> {
    let seed = chaos.seed.unwrap_or_else(|| fastrand::u64(1..1_000_000));
    let report = play(chaos.minutes, seed)?;
    if let Some(file) = &chaos.history {
        std::fs::write(file, report.history.join("\n") + "\n")?;
    }
    print_faults(seed, &report);
    crate::prove::table::print(&format!("chaos, seed {seed}"), false, chaos.json, &report.measures)
}

/// One run with this seed.
#[cfg(feature = "prove")]
pub(crate) fn play(minutes: f64, seed: u64) -> anyhow::Result<tenure_scenarios::chaos::Report> {
    use std::time::Duration;

    use crate::{say, setup};

    let time = Duration::try_from_secs_f64(minutes * 60.0)?;
    say(&format!("chaos for {minutes} minutes, seed {seed}"));
    let mut chaos = tenure_scenarios::chaos::Chaos::new(time, seed);
    chaos.bin_dir = Some(setup::binaries()?.dir);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    Ok(runtime
        .block_on(tenure_scenarios::chaos::run(&chaos, |progress| say(&format!("chaos, seed {seed}, {progress}")))))
}

/// What does not fit, with the seed and everything that was done.
#[cfg(feature = "prove")]
pub(crate) fn print_faults(seed: u64, report: &tenure_scenarios::chaos::Report) {
    if !report.faults.is_empty() {
        let (history, faults) = (report.history.join("\n"), report.faults.join("\n"));
        eprintln!("seed {seed} did:\n{history}\n\nand this does not fit:\n{faults}");
    }
}
