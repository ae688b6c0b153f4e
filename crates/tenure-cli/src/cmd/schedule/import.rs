//! `tenure schedule import`: schedules out of crontabs and pg_cron's entries.

use std::collections::HashSet;
use std::path::PathBuf;

use serde_json::{Value, json};
use tenure::{CronJob, Enqueue, Error, JobOptions, RawJson, Rule, Schedule};

use super::crontab::{self, Line};
use super::enqueue_call;
use crate::connection::Connection;
use crate::exit::{Failure, Outcome};
use crate::{agree, output};

/// Of a name, so that a number has room behind it.
const NAME_START_BYTES: usize = 120;

/// Where entries come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Source {
    /// The entries of pg_cron in this database that enqueue
    #[value(name = "pg_cron")]
    PgCron,
    /// A crontab file
    Crontab,
}

/// Make schedules of crontabs or of pg_cron's entries
///
/// Lists what becomes a schedule, and what cannot and why, before anything is done; all of the former are added, or none.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A crontab's commands become jobs of --kind, whose payload is {\"command\": …, \"env\": {…}, \"stdin\": …, \"user\": …}; a worker runs them by
  tenure work --queue default=4 --exec 'shell=jq -r .command | sh'
Of pg_cron, entries that do nothing but call tenure.enqueue with plain values move: the schedule is added and the entry is removed, in one transaction.

Examples:
  tenure schedule import --from pg_cron --dry-run
  tenure schedule import --from pg_cron --yes
  crontab -l > mine; tenure schedule import --from crontab mine --kind shell --zone Europe/Berlin
  tenure schedule import --from crontab /etc/crontab --user-column --kind shell --zone Europe/Berlin --json")]
pub struct Import {
    /// pg_cron or crontab
    #[arg(long, value_name = "SOURCE")]
    from: Source,

    /// The crontab
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,

    /// Kind of the jobs that a crontab's commands become
    #[arg(long)]
    kind: Option<String>,

    /// Queue of a crontab's jobs
    #[arg(long, default_value = "default")]
    queue: String,

    /// Time zone of the entries [default: CRON_TZ in the crontab, pg_cron's cron.timezone]
    #[arg(long, value_name = "ZONE", env = "TENURE_ZONE", hide_env_values = true)]
    zone: Option<String>,

    /// A sixth column names the user, as in /etc/crontab and /etc/cron.d [default there]
    #[arg(long)]
    user_column: bool,

    /// Before the name of each schedule
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    prefix: String,

    /// Leave pg_cron's entries as they are: both they and the schedules enqueue then
    #[arg(long)]
    keep_entries: bool,

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

/// What becomes of an entry.
struct Entry {
    /// Where it stands: `line 7`, `entry 3`.
    place: String,
    text: String,
    becomes: Result<Schedule, String>,
    /// Its id in pg_cron.
    id: Option<i64>,
}

/// Runs the verb.
pub async fn import(args: Import) -> Outcome {
    let client = args.connection.connect().await?;
    let entries = match args.from {
        Source::PgCron => of_pg_cron(&args, client.cron_jobs().await?)?,
        Source::Crontab => of_crontab(&args)?,
    };
    let moved: Vec<Schedule> = entries.iter().filter_map(|entry| entry.becomes.clone().ok()).collect();
    let ids: Vec<i64> = entries.iter().filter(|entry| entry.becomes.is_ok()).filter_map(|entry| entry.id).collect();
    if !args.json {
        print(&entries)?;
    }
    let mut done = false;
    if !args.dry_run && !moved.is_empty() {
        let nobody = "schedules would be added: look with --dry-run, then confirm with --yes";
        if args.yes || agree::agreed("add them?", nobody)? {
            match ids.is_empty() || args.keep_entries {
                true => client.add_schedules(&moved).await?,
                false => client.move_cron_jobs(&moved, &ids).await?,
            }
            done = true;
            eprintln!("{} schedules were added", moved.len());
        } else {
            eprintln!("nothing was changed");
        }
    }
    if args.json {
        let entries: Vec<Value> = entries.iter().map(of_entry).collect();
        output::json(&json!({ "done": done, "entries": entries }))?;
    }
    Ok(0)
}

fn print(entries: &[Entry]) -> anyhow::Result<()> {
    for entry in entries {
        let becomes = match &entry.becomes {
            Ok(schedule) => format!("+ {} ({}): {}", schedule.name(), entry.place, schedule.rule()),
            Err(why) => format!("! {} stays: {why}: {}", entry.place, output::start_of(&entry.text, 100)),
        };
        output::foreign_line(&becomes)?;
    }
    let moved = entries.iter().filter(|entry| entry.becomes.is_ok()).count();
    eprintln!("{moved} become schedules, {} stay as they are", entries.len() - moved);
    Ok(())
}

fn of_entry(entry: &Entry) -> Value {
    let mut value = json!({ "place": entry.place, "entry": entry.text });
    match &entry.becomes {
        Ok(schedule) => {
            value["schedule"] =
                json!({ "name": schedule.name(), "rule": schedule.rule().text(), "zone": schedule.rule().zone() });
        }
        Err(why) => value["stays_because"] = why.as_str().into(),
    }
    value
}

/// Names that are not there twice.
#[derive(Default)]
struct Names(HashSet<String>);

impl Names {
    /// The wish, cut to what a name may have, with a number when it is taken.
    fn free(&mut self, prefix: &str, wish: &str) -> String {
        let mut start = String::new();
        for c in prefix.chars().chain(wish.chars()).filter(|c| !c.is_control()) {
            if start.len() + c.len_utf8() > NAME_START_BYTES {
                break;
            }
            start.push(c);
        }
        let (mut name, mut n) = (start.clone(), 1);
        while !self.0.insert(name.clone()) {
            n += 1;
            name = format!("{start}-{n}");
        }
        name
    }
}

fn of_crontab(args: &Import) -> Result<Vec<Entry>, Failure> {
    let Some(file) = &args.file else {
        return Err(Failure::Usage("--from crontab reads a file: name it behind the options".to_owned()));
    };
    let Some(kind) = &args.kind else {
        return Err(Failure::Usage(
            "--from crontab needs --kind: the kind of the jobs that its commands become".to_owned(),
        ));
    };
    let text = std::fs::read_to_string(file)
        .map_err(|error| Error::bad_input(format!("{}: {error}", file.display()), "name a crontab that can be read"))?;
    let with_user = args.user_column || file.starts_with("/etc/cron.d") || file == std::path::Path::new("/etc/crontab");
    let mut names = Names::default();
    let mut entries = Vec::new();
    for line in crontab::lines(&text, with_user) {
        let place = format!("line {}", line.number);
        let becomes = match line.is {
            Line::Command(command) => {
                let zone = command.zone.as_deref().or(args.zone.as_deref()).ok_or_else(|| {
                    Failure::Usage("a crontab's times are in its machine's zone: name that by --zone".to_owned())
                })?;
                rule(&command.rule, zone).and_then(|rule| {
                    let payload = RawJson::of(&command.payload()).map_err(one_line)?;
                    let job = Enqueue::raw(kind, escaped(payload)?).options(JobOptions::new().queue(&args.queue));
                    let schedule = Schedule::new(names.free(&args.prefix, &command.name()), rule, job);
                    schedule.check().map(|()| schedule).map_err(one_line)
                })
            }
            Line::Setting => continue,
            Line::Other(why) => Err(why),
        };
        entries.push(Entry { place, text: line.text, becomes, id: None });
    }
    Ok(entries)
}

fn of_pg_cron(args: &Import, jobs: Vec<CronJob>) -> Result<Vec<Entry>, Failure> {
    if args.file.is_some() || args.kind.is_some() {
        return Err(Failure::Usage("--from pg_cron reads no file, and its entries name their kinds".to_owned()));
    }
    let mut names = Names::default();
    let mut entries = Vec::new();
    for job in jobs {
        let zone = args.zone.as_deref().or(job.zone.as_deref()).ok_or_else(|| {
            Failure::Usage("the zone of pg_cron's times, cron.timezone, is not readable: name it by --zone".to_owned())
        })?;
        let becomes = of_cron_job(&job, zone, args, &mut names);
        entries.push(Entry { place: format!("entry {}", job.id), text: job.command, becomes, id: Some(job.id) });
    }
    Ok(entries)
}

fn of_cron_job(job: &CronJob, zone: &str, args: &Import, names: &mut Names) -> Result<Schedule, String> {
    if !job.is_here {
        return Err(format!("it runs in database {:?}: import it there", job.database));
    }
    if !job.active {
        return Err("it is switched off".to_owned());
    }
    let call = enqueue_call::read(&job.command, &args.connection.schema)?;
    let rule = rule(&enqueue_call::rule(&job.schedule), zone)?;
    let enqueue = Enqueue::raw(&call.kind, escaped(call.payload)?).options(call.options);
    let wish = job.name.clone().unwrap_or_else(|| format!("pg_cron-{}", job.id));
    let schedule = Schedule::new(names.free(&args.prefix, &wish), rule, enqueue);
    schedule.check().map(|()| schedule).map_err(one_line)
}

fn rule(text: &str, zone: &str) -> Result<Rule, String> {
    // GMT is what pg_cron calls it.
    Rule::new(text, if zone == "GMT" { "UTC" } else { zone }).map_err(one_line)
}

/// A schedule's payload is a template: braces that were there before are meant as such.
fn escaped(payload: RawJson) -> Result<RawJson, String> {
    RawJson::parse(payload.get().replace("{{", "{{{{")).map_err(one_line)
}

fn one_line(error: Error) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_short() {
        let mut names = Names::default();
        assert_eq!(names.free("c-", "backup"), "c-backup");
        assert_eq!(names.free("c-", "backup"), "c-backup-2");
        assert_eq!(names.free("c-", "backup"), "c-backup-3");
        assert_eq!(names.free("", &"ä".repeat(200)).len(), NAME_START_BYTES);
    }

    #[test]
    fn braces_that_were_there_before_stay_what_they_are() {
        let payload = RawJson::parse(r#"{"command": "echo {{x}}"}"#).expect("JSON");
        assert_eq!(escaped(payload).expect("JSON").get(), r#"{"command": "echo {{{{x}}"}"#);
    }
}
