//! `tenure schedule audit`: logical times that had no job, and why.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tenure::{Absence, Client, Error, ErrorCode, LeftOut, ScheduleAudit};

use crate::connection::Connection;
use crate::exit::Outcome;
use crate::when::{self, ShownZone};
use crate::{number, output};

/// Schedules that one audit goes through, at most.
const SCHEDULES_MAX: usize = 10_000;
/// Schedules that are said to be compared from later on than was asked for, at most: a screen of them.
const LATE_MAX: usize = 20;

/// List the logical times that had no job, with the reason
///
/// Exit code 1 if one is missing, for nobody decided that it should have none, and if not all that was asked for could be compared.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
What came before a schedule had its rule, or is noted no more, is not compared; it says from when on. Stretches before that in which it
was paused or changed, and whose times nobody can count any more, are only in the JSON.
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
    if until.unwrap_or(now).min(now) < since {
        return Err(Error::bad_input("the audit ends before it begins", "name a later end, or an earlier begin").into());
    }
    let are_named = !args.names.is_empty();
    let (names, are_all) = if are_named { (args.names.clone(), true) } else { all_names(&client).await? };
    let mut audits = Vec::new();
    let mut all_read = true;
    for name in &names {
        match client.audit_schedule(name, since, until).await {
            Ok(audit) => audits.push(audit),
            // One whose rule cannot be read is no reason to say nothing of the others.
            Err(error) if error.code() == ErrorCode::BadInput => {
                all_read = false;
                eprintln!("cannot be compared: {}", error.message());
            }
            // Removed since its name was read.
            Err(error) if error.code() == ErrorCode::NotFound && !are_named => {}
            Err(error) => return Err(error.into()),
        }
    }
    audits.iter().for_each(say_what_was_cut);
    say_from_when(&audits, since, &args.shown)?;
    match args.json {
        true => output::json(&audits.iter().map(|audit| to_json(audit, args.limit)).collect::<Vec<_>>())?,
        false => print(&audits, &args)?,
    }
    // Good news of a part would be taken for good news of all.
    let is_whole = are_all && all_read && !audits.iter().any(|audit| audit.cut);
    Ok(u8::from(!is_whole || audits.iter().any(ScheduleAudit::is_missing_any)))
}

/// By name, and whether there are no more.
async fn all_names(client: &Client) -> Result<(Vec<String>, bool), Error> {
    let mut names: Vec<String> = Vec::new();
    while names.len() < SCHEDULES_MAX {
        let page = client.schedules(names.last().map(String::as_str), Some(1_000)).await?;
        let is_last = page.len() < 1_000;
        names.extend(page.into_iter().map(|schedule| schedule.name));
        if is_last {
            return Ok((names, true));
        }
    }
    eprintln!("only the first {SCHEDULES_MAX} schedules are looked at, hence exit code 1: name those that you mean");
    Ok((names, false))
}

fn say_what_was_cut(audit: &ScheduleAudit) {
    if audit.cut {
        eprintln!(
            "{:?} has too many times: only those up to {} were compared, hence exit code 1; begin there with --since for the others",
            audit.schedule,
            output::instant(audit.compared_until)
        );
    }
}

/// Whose times are not compared from the instant on that was asked for.
fn say_from_when(audits: &[ScheduleAudit], since: SystemTime, shown: &ShownZone) -> Result<(), Error> {
    // Times are whole seconds: less than one is no difference.
    let is_late = |audit: &&ScheduleAudit| {
        audit.compared_from.duration_since(since).is_ok_and(|later| later >= Duration::from_secs(1))
    };
    let late: Vec<_> = audits.iter().filter(is_late).collect();
    for audit in late.iter().take(LATE_MAX) {
        let from = shown.instant(audit.compared_from)?;
        eprintln!(
            "{:?} is compared from {from} on: before that its rule did not hold, or its notes are gone",
            audit.schedule
        );
    }
    if late.len() > LATE_MAX {
        eprintln!("and {} more are not compared from --since on: --json says from when", late.len() - LATE_MAX);
    }
    Ok(())
}

/// Has that stretch a time for certain? The ends of what was missed are times; those of a pause or a change are when somebody did that, and
/// which times the former rule had in between is not known.
fn has_times(out: &LeftOut) -> bool {
    out.times.is_some() || !matches!(out.why, Absence::Paused | Absence::Changed)
}

fn print(audits: &[ScheduleAudit], args: &Audit) -> anyhow::Result<()> {
    let (times, with_job) = audits.iter().fold((0_u64, 0_u64), |(times, with_job), audit| {
        (times + u64::from(audit.times), with_job + u64::from(audit.with_job))
    });
    let all: Vec<_> = audits
        .iter()
        .flat_map(|audit| audit.left_out.iter().filter(|out| has_times(out)).map(move |out| (audit, out)))
        .collect();
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
    let none = if times == 0 { "no time was compared" } else { "every time that was compared has its job" };
    output::table(&header, rows, none)?;
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
