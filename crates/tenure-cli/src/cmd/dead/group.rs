//! Dead letters by cause, and the line of jobs that a dead letter belongs to.

use std::time::SystemTime;

use serde_json::{Value, json};
use tenure::{DeadGroup, Error, LineJob};

use crate::output;
use crate::when::ShownZone;

/// The groups as a table, with their ages at `now`.
pub fn print_groups(groups: &[DeadGroup], now: SystemTime, none: &str) -> std::io::Result<()> {
    let row = |group: &DeadGroup| {
        vec![
            group.fingerprint.clone(),
            group.count.to_string(),
            group.cause.clone(),
            kinds(&group.kinds),
            output::relative(group.first_died_at, now),
            output::relative(group.last_died_at, now),
            group.example.to_string(),
            output::start_of(&group.message, 80),
        ]
    };
    let header = ["FINGERPRINT", "COUNT", "CAUSE", "KIND", "FIRST", "LAST", "EXAMPLE", "MESSAGE"];
    output::table(&header, groups.iter().map(row).collect(), none)
}

fn kinds(kinds: &[String]) -> String {
    match kinds {
        [kind] => kind.clone(),
        [first, rest @ ..] => format!("{first} and {} more", rest.len()),
        [] => String::new(),
    }
}

/// A group as JSON.
pub fn group_json(group: &DeadGroup) -> Value {
    json!({
        "fingerprint": group.fingerprint,
        "count": group.count,
        "cause": group.cause,
        "kinds": group.kinds,
        "first_died_at": output::instant(group.first_died_at),
        "last_died_at": output::instant(group.last_died_at),
        "example": group.example,
        "message": group.message,
    })
}

/// The line as a table under a free line; nothing for a job that was never requeued.
pub fn print_line(line: &[LineJob], shown: &ShownZone) -> anyhow::Result<()> {
    if line.len() < 2 {
        return Ok(());
    }
    output::line("")?;
    let row = |job: &LineJob| {
        Ok(vec![
            job.id.to_string(),
            job.status.map_or("gone", |status| status.as_str()).to_owned(),
            job.cause.clone().unwrap_or_default(),
            shown.instant_or_empty(job.created_at)?,
            shown.instant_or_empty(job.ended_at)?,
        ])
    };
    let rows = line.iter().map(row).collect::<Result<_, Error>>()?;
    Ok(output::table(&["LINE", "STATUS", "CAUSE", "CREATED AT", "ENDED AT"], rows, "")?)
}

/// The line as JSON.
pub fn line_json(line: &[LineJob]) -> Value {
    let entry = |job: &LineJob| {
        json!({
            "id": job.id,
            "status": job.status.map(|status| status.as_str()),
            "cause": job.cause,
            "created_at": job.created_at.map(output::instant),
            "ended_at": job.ended_at.map(output::instant),
        })
    };
    Value::Array(line.iter().map(entry).collect())
}
