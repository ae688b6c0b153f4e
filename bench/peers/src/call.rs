//! What the program is asked to do.

use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};

/// The arguments and DATABASE_URL.
pub(crate) struct Call {
    pub(crate) product: String,
    pub(crate) verb: Verb,
    pub(crate) url: String,
}

/// What to do with how many jobs.
pub(crate) enum Verb {
    Setup,
    Enqueue { jobs: u64, mode: Mode, concurrency: usize },
    Work { jobs: u64, concurrency: usize },
    Latency { jobs: u64 },
}

/// How jobs are enqueued.
#[derive(Clone, Copy)]
pub(crate) enum Mode {
    /// By the product's call for many jobs, one caller.
    Bulk,
    /// A call and a commit for every job, by several callers at a time.
    Single,
}

impl Call {
    pub(crate) fn read() -> Result<Call> {
        let mut words = std::env::args().skip(1);
        let product = words.next().context("name a product")?;
        let verb = words.next().context("name a verb: setup, enqueue, work or latency")?;
        let rest: Vec<String> = words.collect();
        let verb = match verb.as_str() {
            "setup" => Verb::Setup,
            "enqueue" => Verb::Enqueue {
                jobs: jobs(&rest)?,
                mode: option(&rest, "--mode")?.unwrap_or(Mode::Bulk),
                concurrency: option(&rest, "--concurrency")?.unwrap_or(1),
            },
            "work" => Verb::Work { jobs: jobs(&rest)?, concurrency: option(&rest, "--concurrency")?.unwrap_or(8) },
            "latency" => Verb::Latency { jobs: jobs(&rest)? },
            other => bail!("{other:?} is none of setup, enqueue, work, latency"),
        };
        let url = std::env::var("DATABASE_URL").context("set DATABASE_URL")?;
        Ok(Call { product, verb, url })
    }
}

impl FromStr for Mode {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Mode> {
        Ok(match text {
            "bulk" => Mode::Bulk,
            "single" => Mode::Single,
            other => bail!("{other:?} is none of bulk, single"),
        })
    }
}

/// A setting of the product, which the runner gives.
pub(crate) fn setting(name: &str) -> Result<usize> {
    let text = std::env::var(name).with_context(|| format!("set {name}"))?;
    text.parse().with_context(|| format!("{name}={text:?} is no number"))
}

fn jobs(words: &[String]) -> Result<u64> {
    let jobs = words.first().context("say how many jobs")?;
    let jobs = jobs.parse().with_context(|| format!("{jobs:?} is no number of jobs"))?;
    ensure!(jobs > 0, "one job at least");
    Ok(jobs)
}

fn option<T: FromStr<Err: std::fmt::Display>>(words: &[String], name: &str) -> Result<Option<T>> {
    let Some(at) = words.iter().position(|word| word == name) else { return Ok(None) };
    let value = words.get(at + 1).with_context(|| format!("{name} needs a value"))?;
    value.parse().map(Some).map_err(|error| anyhow::anyhow!("{name} {value}: {error}"))
}
