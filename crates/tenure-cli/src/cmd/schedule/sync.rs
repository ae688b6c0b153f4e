//! `tenure schedule sync`: makes the schedules of an owner what a file declares.

use std::path::PathBuf;

use serde_json::{Value, json};
use tenure::{FieldChange, ScheduleSync};

use super::file;
use crate::connection::Connection;
use crate::exit::Outcome;
use crate::{agree, output};

/// Make schedules what a TOML file declares
///
/// Shows what is added, changed and removed before anything is. Only the schedules that this owner declared are touched; a pause stays.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The file:
  owner = \"billing\"
  zone = \"Europe/Berlin\"        # of schedules that name none

  [schedule.nightly]
  rule = \"30 2 * * *\"
  kind = \"report\"
  payload = { day = \"{{logical_date}}\" }
  # zone queue priority max_attempts timeout start end jitter missed missed_max missed_window overlap gap twice

Examples:
  tenure schedule sync schedules.toml --dry-run
  tenure schedule sync schedules.toml
  tenure schedule sync schedules.toml --yes --json      for a deployment")]
pub struct Sync {
    /// The file
    #[arg(value_name = "FILE.toml")]
    file: PathBuf,

    /// Whose schedules these are [default: the file's owner]
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,

    /// Take over schedules of the same names that were added by hand
    #[arg(long)]
    adopt: bool,

    /// A file without schedules removes all of this owner's
    #[arg(long)]
    allow_empty: bool,

    /// Only show what would be done
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,

    /// Do not ask
    #[arg(long)]
    yes: bool,

    /// Print a JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Runs the verb.
pub async fn sync(args: Sync) -> Outcome {
    let schedules = file::read(&args.file, args.owner.as_deref())?.adopt(args.adopt).may_be_empty(args.allow_empty);
    schedules.check()?;
    let client = args.connection.connect().await?;
    let sync = client.sync_schedules_preview(&schedules).await?;
    if !args.json {
        print(&sync)?;
    }
    let mut done = false;
    if !args.dry_run && !sync.is_empty() {
        let nobody = "schedules would change: look with --dry-run, then confirm with --yes";
        if args.yes || agree::agreed("do that?", nobody)? {
            client.sync_schedules_as_shown(&schedules, &sync.basis).await?;
            done = true;
            eprintln!("done");
        } else {
            eprintln!("nothing was changed");
        }
    }
    if args.json {
        output::json(&of_sync(schedules.owner(), &sync, done))?;
    }
    Ok(0)
}

fn print(sync: &ScheduleSync) -> anyhow::Result<()> {
    sync.added.iter().try_for_each(|name| output::foreign_line(&format!("+ {name}")))?;
    sync.adopted.iter().try_for_each(|name| output::foreign_line(&format!("~ {name}: taken over")))?;
    for change in &sync.changed {
        output::foreign_line(&format!("~ {}", change.name))?;
        for field in &change.fields {
            output::foreign_line(&format!("    {}", in_words(field)))?;
        }
    }
    sync.removed.iter().try_for_each(|name| output::foreign_line(&format!("- {name}")))?;
    eprintln!(
        "{} added, {} changed, {} removed, {} as declared",
        sync.added.len(),
        sync.changed.len() + sync.adopted.iter().filter(|name| sync.changed.iter().all(|c| c.name != **name)).count(),
        sync.removed.len(),
        sync.unchanged
    );
    Ok(())
}

/// `rule: @daily -> @hourly`, with instants and durations as they are typed.
fn in_words(field: &FieldChange) -> String {
    let (name, unit) = match field.field.rsplit_once('_') {
        Some((name, unit @ ("us" | "ms"))) => (name, unit),
        _ => (field.field.as_str(), ""),
    };
    let shown = |value: &Value| match (value, unit, value.as_u64()) {
        (Value::Null, _, _) => "none".to_owned(),
        (_, "us", Some(us)) => output::instant(std::time::UNIX_EPOCH + std::time::Duration::from_micros(us)),
        (_, "ms", Some(ms)) => output::exact(std::time::Duration::from_millis(ms)),
        (Value::String(text), _, _) => output::start_of(text, 200),
        (value, _, _) => value.to_string(),
    };
    format!("{name}: {} -> {}", shown(&field.was), shown(&field.is))
}

fn of_sync(owner: &str, sync: &ScheduleSync, done: bool) -> Value {
    json!({
        "owner": owner, "done": done, "added": sync.added, "changed": sync.changed, "adopted": sync.adopted,
        "removed": sync.removed, "unchanged": sync.unchanged,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_shown_in_the_units_in_which_it_is_typed() {
        let check = |field: &str, was: Value, is: Value, expected: &str| {
            let change = json!({ "field": field, "was": was, "is": is });
            let change: FieldChange = serde_json::from_value(change).expect("a change");
            assert_eq!(in_words(&change), expected);
        };
        check("rule", "@daily".into(), "@hourly".into(), "rule: @daily -> @hourly");
        check("jitter_ms", 0.into(), 300_000.into(), "jitter: 0ms -> 5m");
        check("starts_us", Value::Null, 86_400_000_000_i64.into(), "starts: none -> 1970-01-02T00:00:00.000Z");
        check("max_attempts", 5.into(), 3.into(), "max_attempts: 5 -> 3");
        check("timeout_ms", 1_000.into(), Value::Null, "timeout: 1s -> none");
    }
}
