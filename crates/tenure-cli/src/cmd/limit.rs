//! `tenure limit`: named limits on how many jobs run and start.

use clap::Subcommand;
use serde_json::{Value, json};
use tenure::{Client, LimitInfo, Rate};

use crate::connection::Connection;
use crate::exit::{Failure, Outcome};
use crate::{number, output, when};

/// Keys that `show` lists unless told otherwise.
const KEYS_SHOWN: u32 = 20;

/// Look at limits on how many jobs run and start, set and lift them
#[derive(Debug, Subcommand)]
pub enum Limit {
    Set(Set),
    List(List),
    Show(Show),
    Remove(Remove),
}

/// Set a limit: how many jobs that name it run at a time, and how many start in a time
#[derive(Debug, clap::Args)]
#[command(after_help = "\
It replaces what was set, and holds at once, also for jobs that wait. A rate is COUNT/TIME: 100/s, 60/min, 500/h, 10/500ms.
What is said of keys holds for each key that jobs name under the limit, a tenant for example.

Examples:
  tenure limit set gpu --concurrency 4
  tenure limit set provider --rate 100/s --burst 20 --key-concurrency 5
  tenure limit set mail --key-rate 60/min")]
pub struct Set {
    /// Its name, which jobs name
    name: String,

    /// Jobs that run at a time; 0: none
    #[arg(long, value_parser = number::of::<u32>("0 to 1000000"))]
    concurrency: Option<u32>,

    /// Jobs that start in a time, for example 100/s
    #[arg(long, value_parser = parse_rate, value_name = "COUNT/TIME")]
    rate: Option<Rate>,

    /// How many may start at once when fewer did before; what a tenth of a second brings when not given, at least 1
    #[arg(long, requires = "rate", value_parser = number::of::<u32>("1 to 1000000"))]
    burst: Option<u32>,

    /// Jobs of each key that run at a time
    #[arg(long, value_parser = number::of::<u32>("0 to 1000000"))]
    key_concurrency: Option<u32>,

    /// Jobs of each key that start in a time
    #[arg(long, value_parser = parse_rate, value_name = "COUNT/TIME")]
    key_rate: Option<Rate>,

    /// How many of each key may start at once
    #[arg(long, requires = "key_rate", value_parser = number::of::<u32>("1 to 1000000"))]
    key_burst: Option<u32>,

    /// Print a JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// List the limits, and how much of each is used now
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  tenure limit list")]
pub struct List {
    /// Print a JSON array
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Show a limit, and how much of it is used now, as a whole and by its keys
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  tenure limit show provider\n  tenure limit show provider --keys 1000 --json")]
pub struct Show {
    /// Its name
    name: String,

    /// How many of the keys that are in use are shown
    #[arg(long, default_value_t = KEYS_SHOWN)]
    keys: u32,

    /// Print a JSON array: the whole, then the keys
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Lift a limit: jobs that name it stand under it no longer
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  tenure limit remove provider")]
pub struct Remove {
    /// Its name
    name: String,

    /// Print a JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Runs the verb.
pub async fn run(verb: Limit) -> Outcome {
    match verb {
        Limit::Set(args) => set(args).await,
        Limit::List(args) => show(&args.connection, None, 0, args.json).await,
        Limit::Show(args) => show(&args.connection, Some(&args.name), args.keys, args.json).await,
        Limit::Remove(args) => remove(args).await,
    }
}

async fn set(args: Set) -> Outcome {
    let with_burst = |rate: Option<Rate>, burst| rate.map(|rate| Rate { burst, ..rate });
    let mut limit = tenure::Limit::new();
    if let Some(jobs) = args.concurrency {
        limit = limit.concurrency(jobs);
    }
    if let Some(rate) = with_burst(args.rate, args.burst) {
        limit = limit.rate(rate);
    }
    if let Some(jobs) = args.key_concurrency {
        limit = limit.key_concurrency(jobs);
    }
    if let Some(rate) = with_burst(args.key_rate, args.key_burst) {
        limit = limit.key_rate(rate);
    }
    let client = args.connection.connect().await?;
    let changed = client.set_limit(&args.name, limit).await?;
    let set = named(&client, &args.name, 0).await?;
    match (args.json, changed) {
        (true, _) => output::json(&set.iter().map(to_json).next().unwrap_or_default())?,
        (false, true) => output::line(&format!("{} is set", args.name))?,
        (false, false) => output::line(&format!("{} was set so already", args.name))?,
    }
    Ok(0)
}

async fn show(connection: &Connection, name: Option<&str>, keys: u32, json: bool) -> Outcome {
    let client = connection.connect().await?;
    let limits = match name {
        None => client.limits(None, keys).await?,
        Some(name) => named(&client, name, keys).await?,
    };
    match json {
        true => output::json(&limits.iter().map(to_json).collect::<Vec<_>>())?,
        false => {
            let head = ["LIMIT", "KEY", "RUNNING", "OF", "RATE", "BURST", "TOKENS", "PACE", "BLOCKED UNTIL"];
            output::table(&head, limits.iter().map(row).collect(), "no limit is set")?;
        }
    }
    Ok(0)
}

async fn remove(args: Remove) -> Outcome {
    let client = args.connection.connect().await?;
    if !client.remove_limit(&args.name).await? {
        return Err(Failure::NotFound(format!("there is no limit {:?}", args.name)));
    }
    match args.json {
        true => output::json(&json!({ "removed": args.name }))?,
        false => output::line(&format!("{} is lifted", args.name))?,
    }
    Ok(0)
}

async fn named(client: &Client, name: &str, keys: u32) -> Result<Vec<LimitInfo>, Failure> {
    let found = client.limits(Some(name), keys).await?;
    match found.is_empty() {
        true => {
            Err(Failure::NotFound(format!("there is no limit {name:?}; `tenure limit list` shows those that are set")))
        }
        false => Ok(found),
    }
}

/// "100/s", "60/min", "10/500ms".
fn parse_rate(text: &str) -> Result<Rate, String> {
    let wrong = || format!("{text:?} is not COUNT/TIME, for example 100/s, 60/min or 10/500ms");
    let (count, time) = text.split_once('/').ok_or_else(wrong)?;
    let count = count.trim().parse().map_err(|_| wrong())?;
    let time = match time.trim() {
        "min" => "1m".to_owned(),
        unit if unit.starts_with(|c: char| c.is_ascii_digit()) => unit.to_owned(),
        unit => format!("1{unit}"),
    };
    let period = when::duration(&time).map_err(|_| wrong())?;
    Ok(Rate { count, period, burst: None })
}

fn row(limit: &LimitInfo) -> Vec<String> {
    let text = |number: Option<String>| number.unwrap_or_else(|| "-".to_owned());
    vec![
        limit.name.clone(),
        limit.key.clone().unwrap_or_else(|| "(all)".to_owned()),
        limit.running.to_string(),
        text(limit.concurrency.map(|jobs| jobs.to_string())),
        text(limit.rate.map(|rate| format!("{}/{:?}", rate.count, rate.period))),
        text(limit.rate.and_then(|rate| rate.burst).map(|burst| burst.to_string())),
        text(limit.rate.and(limit.tokens).map(|tokens| format!("{tokens:.1}"))),
        format!("{:.0} %", limit.pace * 100.0),
        text(limit.blocked_until.map(output::instant)),
    ]
}

fn to_json(limit: &LimitInfo) -> Value {
    json!({
        "name": limit.name,
        "key": limit.key,
        "running": limit.running,
        "concurrency": limit.concurrency,
        "rate": limit.rate.map(|rate| rate.count),
        "period_ms": limit.rate.map(|rate| rate.period.as_millis()),
        "burst": limit.rate.and_then(|rate| rate.burst),
        "tokens": limit.rate.and(limit.tokens),
        "pace": limit.pace,
        "blocked_until": limit.blocked_until.map(output::instant),
        "set_at": output::instant(limit.set_at),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn rates_are_read_as_people_write_them() {
        let check = |text: &str, count: u32, millis: u64| {
            let expected = Rate { count, period: Duration::from_millis(millis), burst: None };
            assert_eq!(parse_rate(text), Ok(expected), "{text}");
        };
        check("100/s", 100, 1_000);
        check("60/min", 60, 60_000);
        check("10/500ms", 10, 500);
        check("5/2h", 5, 7_200_000);
        for wrong in ["", "100", "x/s", "100/", "100/fortnight", "-1/s", "1/99999999999999999999s"] {
            assert!(parse_rate(wrong).is_err(), "{wrong}");
        }
    }
}
