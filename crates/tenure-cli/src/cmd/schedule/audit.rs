//! `tenure schedule audit`: logical times that had no job, and why.

use std::time::SystemTime;

use serde_json::{Value, json};
use tenure::{Absence, Client, Error, LeftOut, ScheduleAudit};

use crate::connection::Connection;
use crate::exit::Outcome;
use crate::when::{self, ShownZone};
use crate::{number, output};

/// Schedules that one audit goes through, at most.
const SCHEDULES_MAX: usize = 10_000;

/// List the logical times that had no job, with the reason
///
/// Exit code 1 if one is missing: nobody decided that it should have none.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reasons: paused, missed (by the policy, when somebody was there again), changed (another rhythm), overlap, replaced, queued (it
waits for the run before), gap (left out by the zone's clock and the policy), ended. Those by which one is missing: failing (the
schedule cannot fire), overdue (nobody has decided yet), unexplained.
Instants without a zone are in --zone; 7d means seven days ago.

Examples:
  tenure schedule audit
  tenure schedule audit nightly ledger --since 30d
  tenure schedule audit --since 2027-03-01T00:00Z --until 2027-04-01T00:00Z --json | jq '.[].left_out[] | select(.missing)'")]
pub struct Audit {
    /// The schedules' names [default: all]
    names: Vec<String>,

    /// From when on
    #[arg(long, value_name = "INSTANT", default_value = "1d")]
    since: String,

    /// Up to when [default: now]
    #[arg(long, value_name = "INSTANT")]
    until: Option<String>,

    #[command(flatten)]
    zone: when::ZoneOfInput,

    /// How many lines to show: 1 to 100000
    #[arg(long, default_value_t = 1_000, value_parser = number::within(1..=100_000_usize))]
    limit: usize,

    #[command(flatten)]
    shown: ShownZone,

    /// Print a JSON array
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Runs the verb.
pub async fn run(args: Audit) -> Outcome {
    let client = args.connection.connect().await?;
    let now = client.now().await?;
    let zone = args.zone.zone.as_deref().unwrap_or_default();
    let read = |text: &str, option: &str| when::past(text, zone, now).map_err(|error| error.context(option));
    let since = read(&args.since, "--since")?;
    let until = args.until.as_deref().map(|until| read(until, "--until")).transpose()?;
    let names = if args.names.is_empty() { all_names(&client).await? } else { args.names.clone() };
    let mut audits = Vec::new();
    let mut unread = Vec::new();
    for name in &names {
        match client.audit_schedule(name, since, until).await {
            Ok(audit) => audits.push(audit),
            // One whose rule cannot be read is no reason to say nothing of the others.
            Err(error) if args.names.is_empty() => unread.push((name.clone(), error)),
            Err(error) => return Err(error.into()),
        }
    }
    for (name, error) in &unread {
        eprintln!("{name:?} cannot be compared: {}", error.message());
    }
    audits.iter().for_each(say_what_was_cut);
    match args.json {
        true => output::json(&audits.iter().map(|audit| to_json(audit, args.limit)).collect::<Vec<_>>())?,
        false => print(&audits, &args)?,
    }
    Ok(u8::from(!unread.is_empty() || audits.iter().any(ScheduleAudit::is_missing_any)))
}

async fn all_names(client: &Client) -> Result<Vec<String>, Error> {
    let mut names: Vec<String> = Vec::new();
    while names.len() < SCHEDULES_MAX {
        let page = client.schedules(names.last().map(String::as_str), Some(1_000)).await?;
        let is_last = page.len() < 1_000;
        names.extend(page.into_iter().map(|schedule| schedule.name));
        if is_last {
            return Ok(names);
        }
    }
    eprintln!("only the first {SCHEDULES_MAX} schedules are looked at: name those that you mean");
    Ok(names)
}

fn say_what_was_cut(audit: &ScheduleAudit) {
    if audit.cut {
        eprintln!(
            "{:?} has too many times: only those up to {} were compared; begin there with --since for more",
            audit.schedule,
            output::instant(audit.compared_until)
        );
    }
}

fn print(audits: &[ScheduleAudit], args: &Audit) -> anyhow::Result<()> {
    let (times, with_job) = audits.iter().fold((0_u64, 0_u64), |(times, with_job), audit| {
        (times + u64::from(audit.times), with_job + u64::from(audit.with_job))
    });
    let all: Vec<_> = audits.iter().flat_map(|audit| audit.left_out.iter().map(move |out| (audit, out))).collect();
    let row = |(audit, out): &(&ScheduleAudit, &LeftOut)| {
        Ok(vec![
            audit.schedule.clone(),
            args.shown.instant(out.first_at)?,
            args.shown.instant(out.last_at)?,
            out.times.map(|times| times.to_string()).unwrap_or_default(),
            out.why.as_str().to_owned(),
            in_words(out, |at| args.shown.instant(at))?,
        ])
    };
    let rows = all.iter().take(args.limit).map(row).collect::<Result<Vec<_>, Error>>()?;
    let header = ["SCHEDULE", "FIRST", "LAST", "TIMES", "REASON", ""];
    output::table(&header, rows, "every time that was compared has its job")?;
    if all.len() > args.limit {
        eprintln!("{} more lines: --limit", all.len() - args.limit);
    }
    eprintln!("{} schedules, {times} times, {with_job} with a job", audits.len());
    Ok(())
}

/// The reason in a sentence.
fn in_words(out: &LeftOut, show: impl Fn(SystemTime) -> Result<String, Error>) -> Result<String, Error> {
    Ok(match (out.why, out.noted_at) {
        (Absence::Missed, Some(noted)) => format!("nobody was there to fire it until {}", show(noted)?),
        (Absence::Missed, None) => "nobody was there to fire it".to_owned(),
        (Absence::Paused, Some(noted)) => format!("paused until {}", show(noted)?),
        (Absence::Paused, None) => "it is paused".to_owned(),
        (Absence::Changed, _) => "it was given another rhythm".to_owned(),
        (Absence::Overlap, _) => "the run before had not ended".to_owned(),
        (Absence::Replaced, _) => "it waited for the run before, and a later time took its place".to_owned(),
        (Absence::Queued, _) => "it waits for the end of the run before".to_owned(),
        (Absence::Gap, _) => "the zone's clock leaves it out".to_owned(),
        (Absence::Ended, _) => "the schedule has come to its end".to_owned(),
        (Absence::Failing, _) => "the schedule cannot fire: `tenure schedule show` says why".to_owned(),
        (Absence::Overdue, _) => "nobody has fired it yet: does a worker live?".to_owned(),
        (Absence::Unexplained, _) => "nothing is noted of it".to_owned(),
    })
}

fn to_json(audit: &ScheduleAudit, limit: usize) -> Value {
    let left_out = |out: &LeftOut| {
        json!({
            "first_at": output::instant(out.first_at), "last_at": output::instant(out.last_at), "times": out.times,
            "reason": out.why.as_str(), "missing": !out.why.is_decided(), "noted_at": out.noted_at.map(output::instant),
        })
    };
    json!({
        "schedule": audit.schedule, "compared_from": output::instant(audit.compared_from),
        "compared_until": output::instant(audit.compared_until), "cut": audit.cut, "times": audit.times,
        "with_job": audit.with_job, "left_out": audit.left_out.iter().take(limit).map(left_out).collect::<Vec<_>>(),
        "more": audit.left_out.len().saturating_sub(limit),
    })
}
