//! A TOML file that declares schedules.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde::Deserialize;
use tenure::{Enqueue, Error, Gap, JobOptions, Missed, Overlap, RawJson, Schedule, Schedules, Twice, limits};
use toml::{Spanned, Value};

use super::declare;
use crate::when;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    owner: Option<String>,
    /// Of schedules that name none.
    zone: Option<String>,
    #[serde(default)]
    schedule: BTreeMap<String, Spanned<Entry>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    rule: String,
    zone: Option<String>,
    kind: String,
    payload: Option<Value>,
    queue: Option<String>,
    priority: Option<i16>,
    max_attempts: Option<i16>,
    timeout: Option<String>,
    start: Option<Value>,
    end: Option<Value>,
    jitter: Option<String>,
    missed: Option<String>,
    missed_max: Option<u32>,
    missed_window: Option<String>,
    overlap: Option<String>,
    gap: Option<String>,
    twice: Option<String>,
}

/// What a file declares. `owner` comes before the one that the file names.
pub fn read(path: &Path, owner: Option<&str>) -> Result<Schedules, Error> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Error::bad_input(format!("{}: {error}", path.display()), "name a TOML file that can be read")
    })?;
    declared(&text, owner).map_err(|(line, error)| match line {
        Some(line) => error.context(format!("{}:{line}", path.display())),
        None => error.context(path.display()),
    })
}

/// With an error, the line that is wrong.
fn declared(text: &str, owner: Option<&str>) -> Result<Schedules, (Option<usize>, Error)> {
    let file: File = toml::from_str(text).map_err(|error| {
        let line = error.span().map(|span| line_of(text, span.start));
        let help = "tables [schedule.NAME] with rule and kind; see docs/guide/schedule.md for all that they may have";
        (line, Error::bad_input(error.message().to_owned(), help))
    })?;
    let Some(owner) = owner.or(file.owner.as_deref()) else {
        let help = "write owner = \"…\" at its top, or give --owner: a sync only touches what this owner declared";
        return Err((None, Error::bad_input("the file names no owner", help)));
    };
    let mut schedules = Schedules::new(owner);
    for (name, entry) in &file.schedule {
        let line = line_of(text, entry.span().start);
        let schedule = schedule(name, entry.get_ref(), file.zone.as_deref());
        let schedule = schedule.and_then(|schedule| schedule.check().map(|()| schedule));
        schedules = schedules.add(schedule.map_err(|error| (Some(line), named(name, error)))?);
    }
    Ok(schedules)
}

/// An error of a schedule names it.
fn named(name: &str, error: Error) -> Error {
    match error.message().contains(&format!("{name:?}")) {
        true => error,
        false => error.context(format!("schedule {name:?}")),
    }
}

fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

fn schedule(name: &str, entry: &Entry, zone: Option<&str>) -> Result<Schedule, Error> {
    let mut rule = declare::rule(&entry.rule, entry.zone.as_deref(), zone).map_err(|error| {
        match error.message().ends_with("no time zone is given") {
            true => Error::bad_input(
                error.message().to_owned(),
                "write zone = \"Europe/Berlin\", for this schedule or at the file's top",
            ),
            false => error,
        }
    })?;
    if let Some(gap) = &entry.gap {
        rule = rule.gap(known(Gap::from_name(gap), "gap", gap, "next or skip")?);
    }
    if let Some(twice) = &entry.twice {
        rule = rule.twice(known(Twice::from_name(twice), "twice", twice, "first, second or both")?);
    }
    let payload = match &entry.payload {
        Some(value) => RawJson::of(&json(value)?)?,
        None => RawJson::parse("{}")?,
    };
    let bound =
        |value: &Option<Value>, key: &str| value.as_ref().map(|value| instant(value, key, rule.zone())).transpose();
    let (start, end) = (bound(&entry.start, "start")?, bound(&entry.end, "end")?);
    let jitter = duration(&entry.jitter, "jitter")?.unwrap_or_default();
    let job = Enqueue::raw(&entry.kind, payload).options(options(entry)?);
    let mut schedule =
        Schedule::new(name, rule, job).missed(missed(entry)?).jitter(jitter).starts_at(start).ends_at(end);
    if let Some(overlap) = &entry.overlap {
        let found = known(Overlap::from_name(overlap), "overlap", overlap, "allow, skip, queue or cancel")?;
        schedule = schedule.overlap(found);
    }
    Ok(schedule)
}

fn options(entry: &Entry) -> Result<JobOptions, Error> {
    let mut options = JobOptions::new();
    if let Some(queue) = &entry.queue {
        options = options.queue(queue);
    }
    if let Some(priority) = entry.priority {
        options = options.priority(priority);
    }
    if let Some(attempts) = entry.max_attempts {
        options = options.max_attempts(attempts);
    }
    Ok(match duration(&entry.timeout, "timeout")? {
        Some(timeout) => options.timeout(timeout),
        None => options,
    })
}

fn missed(entry: &Entry) -> Result<Missed, Error> {
    let window = duration(&entry.missed_window, "missed_window")?;
    let bounds = entry.missed_max.is_some() || window.is_some();
    match entry.missed.as_deref() {
        Some("all") => Ok(Missed::All {
            max: entry.missed_max.unwrap_or(limits::SCHEDULE_MISSED_DEFAULT),
            window: window.unwrap_or(limits::SCHEDULE_WINDOW_DEFAULT),
        }),
        _ if bounds => Err(Error::bad_input(
            "missed_max and missed_window say how many of all missed runs are made up for",
            "write missed = \"all\" beside them, or leave them out",
        )),
        Some("skip") => Ok(Missed::Skip),
        Some("latest") | None => Ok(Missed::Latest),
        Some(other) => known(None, "missed", other, "skip, latest or all"),
    }
}

fn known<T>(found: Option<T>, key: &str, value: &str, values: &str) -> Result<T, Error> {
    found.ok_or_else(|| Error::bad_input(format!("{key} = {value:?}"), format!("use {values}")))
}

fn duration(text: &Option<String>, key: &str) -> Result<Option<Duration>, Error> {
    text.as_deref().map(|text| tenure::duration::read(text).map_err(|error| error.context(key))).transpose()
}

/// TOML has instants, local ones too; a zone in brackets is a text.
fn instant(value: &Value, key: &str, zone: &str) -> Result<SystemTime, Error> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Datetime(at) => at.to_string(),
        other => {
            let what = format!("{key} is no instant but {}", other.type_str());
            return Err(Error::bad_input(what, "write 2027-01-31T09:00, or \"2027-01-31T09:00[Europe/Berlin]\""));
        }
    };
    when::instant_in(&text, Some(zone)).map_err(|error| error.context(key))
}

fn json(value: &Value) -> Result<serde_json::Value, Error> {
    Ok(match value {
        Value::String(text) => text.clone().into(),
        Value::Integer(number) => (*number).into(),
        Value::Float(number) => {
            serde_json::Number::from_f64(*number).map(serde_json::Value::Number).ok_or_else(|| {
                Error::bad_input(format!("payload: {number} has no JSON form"), "write another number, or a text")
            })?
        }
        Value::Boolean(yes) => (*yes).into(),
        Value::Datetime(at) => at.to_string().into(),
        Value::Array(values) => values.iter().map(json).collect::<Result<_, Error>>()?,
        Value::Table(table) => {
            let member = |(key, value): (&String, &Value)| Ok((key.clone(), json(value)?));
            serde_json::Value::Object(table.iter().map(member).collect::<Result<_, Error>>()?)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> (Option<usize>, String) {
        let (line, error) = declared(text, Some("o")).expect_err("refused");
        (line, error.to_string())
    }

    #[test]
    fn a_file_says_all_that_a_schedule_can_have() {
        let text = r#"
owner = "billing"
zone = "Europe/Berlin"

[schedule.nightly]
rule = "30 2 * * *"
kind = "report"
payload = { day = "{{logical_date}}", deep = { list = [1, 2.5, true] }, at = 2027-01-01 }
queue = "slow"
priority = 1
max_attempts = 3
timeout = "10m"
start = 2027-01-01T00:00:00
end = "2028-01-01T00:00[UTC]"
jitter = "5m"
missed = "all"
missed_max = 7
missed_window = "7d"
overlap = "queue"
gap = "skip"
twice = "both"

[schedule."each quarter"]
rule = "*/15 * * * *"
zone = "UTC"
kind = "k"
"#;
        let schedules = declared(text, None).expect("right");
        assert_eq!((schedules.owner(), schedules.len()), ("billing", 2));
        let shown = format!("{schedules:?}");
        for part in
            ["slow", "Queue", "max: 7", r#"{"at":"2027-01-01","day":"{{logical_date}}","deep":{"list":[1,2.5,true]}}"#]
        {
            assert!(shown.contains(part), "{part} in {shown}");
        }
        assert_eq!(declared(text, Some("other")).expect("right").owner(), "other");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let check = |text: &str, line: usize, part: &str| {
            let (found, message) = error(text);
            assert_eq!(found, Some(line), "{message}");
            assert!(message.contains(part), "{message}");
        };
        let entry = "[schedule.n]\nrule = \"@daily\"\nkind = \"k\"\n";
        check(&format!("{entry}quue = \"x\"\n"), 4, "unknown field `quue`");
        check(&format!("zoen = \"UTC\"\n{entry}"), 1, "unknown field `zoen`");
        check("[schedule.n]\nrule = \"@daily\"\n", 1, "missing field `kind`");
        check(entry, 1, "no time zone is given");
        check(&format!("zone = \"UTC\"\n\n{entry}gap = \"x\"\n"), 3, "schedule \"n\": gap = \"x\"");
        check(&format!("zone = \"UTC\"\n{entry}missed_max = 3\n"), 2, "missed = \"all\"");
        check(&format!("zone = \"UTC\"\n{entry}priority = 9\n"), 2, "priority 9");
        check(&format!("zone = \"UTC\"\n{entry}start = 5\n"), 2, "start is no instant");
        check(&format!("zone = \"UTC\"\n{entry}payload = {{ n = nan }}\n"), 2, "has no JSON form");
        let two_zones = "[schedule.n]\nrule = \"CRON_TZ=Asia/Tokyo @daily\"\nkind = \"k\"\nzone = \"UTC\"\n";
        check(two_zones, 1, "give one of them");
        check("zone = \"UTC\"\n[schedule.n]\nrule = \"61 * * * *\"\nkind = \"k\"\n", 2, "minute 61");
        check("zone = \"UTC\"\n[schedule.n]\nrule = 7\nkind = \"k\"\n", 3, "invalid type");
        check("x = [\n", 1, "unclosed array");
        let (line, message) =
            declared(entry, None).map_err(|(line, error)| (line, error.to_string())).expect_err("refused");
        assert!(line.is_none() && message.contains("--owner"), "{message}");
    }
}
