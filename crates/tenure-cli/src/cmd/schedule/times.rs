//! `tenure schedule next` and `tenure schedule preview`: when it runs.

use std::time::SystemTime;

use serde_json::json;
use tenure::{Enqueue, Error, RawJson, Rule, Schedule};

use super::declare::{Policies, rule};
use super::no_such_schedule;
use crate::connection::Connection;
use crate::exit::Outcome;
use crate::when::{self, ShownZone, ZoneOfRule};
use crate::{number, output};

/// Show the next times of a schedule
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  tenure schedule next nightly\n  tenure schedule next nightly -n 20 --show-zone UTC --json"
)]
pub struct Next {
    /// The schedule's name
    name: String,

    #[command(flatten)]
    which: Which,

    /// Print a JSON array
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Show when a rule would run, before it is added; no database is asked
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tenure schedule preview '30 2 * * *' --zone Europe/Berlin --from 2027-03-27T00:00
  tenure schedule preview '*/15 * * * *' --zone Australia/Lord_Howe --from 2026-10-03T00:00 -n 100 --json
  tenure schedule preview '0 9 LW * *' --zone America/New_York --missed all --overlap queue")]
pub struct Preview {
    /// When: '30 2 * * *', @daily, '@every 90s'
    rule: String,

    #[command(flatten)]
    zone: ZoneOfRule,

    #[command(flatten)]
    policies: Policies,

    #[command(flatten)]
    which: Which,

    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// Which times are shown.
#[derive(Debug, clap::Args)]
pub struct Which {
    /// How many: 1 to 1000
    #[arg(short = 'n', long, default_value_t = 5, value_parser = number::within(1..=1000_usize))]
    count: usize,

    /// After this instant, in the rule's zone when it names none [default: now]
    #[arg(long, value_name = "INSTANT")]
    from: Option<String>,

    #[command(flatten)]
    shown: ShownZone,
}

impl Which {
    fn from(&self, zone: &str) -> Result<Option<SystemTime>, Error> {
        let read = |text: &String| when::instant_in(text, Some(zone)).map_err(|error| error.context("--from"));
        self.from.as_ref().map(read).transpose()
    }
}

/// Runs the verb.
pub async fn next(args: Next) -> Outcome {
    let client = args.connection.connect().await?;
    let Some(schedule) = client.schedule(&args.name).await? else { return Err(no_such_schedule(&args.name)) };
    if schedule.paused_at.is_some() {
        eprintln!("{} is paused: these would be its times", args.name);
    }
    let rule = schedule.to_rule()?;
    let from = match args.which.from(&schedule.zone)? {
        Some(from) => from,
        None => client.now().await?,
    };
    let times = schedule.next_times(from, args.which.count)?;
    match args.json {
        true => output::json(&rows(&rule, &times))?,
        false => print(&rule, &times, &args.which.shown)?,
    }
    Ok(0)
}

/// Runs the verb.
pub fn preview(args: &Preview) -> Outcome {
    let rule = rule(&args.rule, args.zone.zone.as_deref(), when::zone_of_environment().as_deref())?;
    // An interval counts from when its schedule is added: as if that were now.
    let from = args.which.from(rule.zone())?.unwrap_or_else(SystemTime::now);
    let schedule = Schedule::new("preview", rule.anchor(from), Enqueue::raw("preview", RawJson::null()));
    let schedule = args.policies.apply(schedule)?;
    schedule.check()?;
    let rule = schedule.rule().clone();
    let times: Vec<SystemTime> =
        std::iter::successors(rule.next(from), |at| rule.next(*at)).take(args.which.count).collect();
    if args.json {
        let value = json!({
            "rule": rule.text(), "zone": rule.zone(), "policies": schedule.policies_in_words(), "times": rows(&rule, &times),
        });
        output::json(&value)?;
        return Ok(0);
    }
    for words in schedule.policies_in_words() {
        eprintln!("{words}");
    }
    print(&rule, &times, &args.which.shown)?;
    Ok(0)
}

fn rows(rule: &Rule, times: &[SystemTime]) -> Vec<serde_json::Value> {
    let row = |at: &SystemTime| {
        let local = tenure::instant::show(*at, rule.zone()).unwrap_or_default();
        json!({ "at": output::instant(*at), "local": local, "remark": rule.remark(*at) })
    };
    times.iter().map(row).collect()
}

fn print(rule: &Rule, times: &[SystemTime], shown: &ShownZone) -> anyhow::Result<()> {
    if times.is_empty() {
        eprintln!("it has no time ahead");
    }
    for at in times {
        let local = shown.or(rule.zone(), *at)?;
        let remark = rule.remark(*at).map(|remark| format!("  {remark}")).unwrap_or_default();
        match shown.show_zone.as_deref().unwrap_or(rule.zone()) {
            "UTC" => output::line(&format!("{local}{remark}"))?,
            _ => output::line(&format!("{}  {local}{remark}", output::instant(*at)))?,
        }
    }
    Ok(())
}
