//! `tenure schedule import`: schedules out of crontabs and pg_cron's entries.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tenure::{Client, CronJob, Enqueue, Error, JobOptions, RawJson, Rule, Schedule};

use super::crontab::{self, Line};
use super::enqueue_call;
use super::import_names::{Names, candidates};
use crate::connection::Connection;
use crate::exit::{Failure, Outcome};
use crate::{agree, output, when};

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
/// Lists what becomes a schedule, what is one already, and what cannot and why, before anything is done; all of the first are added, or none. Exit code 1 if something cannot, but for pg_cron's entry that calls tick().
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A crontab's commands become jobs of --kind, whose payload is {\"command\": …, \"env\": {…}, \"stdin\": …, \"user\": …}; a worker runs them by
  tenure work --queue default=4 --exec 'shell=jq -r .command | sh'
Of pg_cron, entries that do nothing but call tenure.enqueue with plain values move: the schedule is added and the entry is removed, in one transaction.

Examples:
  tenure schedule import --from pg_cron --dry-run
  tenure schedule import --from pg_cron --yes
  crontab -l | tenure schedule import --from crontab - --kind shell --zone Europe/Berlin --yes
  tenure schedule import --from crontab /etc/crontab --user-column --kind shell --zone Europe/Berlin --json")]
pub struct Import {
    /// pg_cron or crontab
    #[arg(long, value_name = "SOURCE")]
    from: Source,

    /// The crontab; - is standard input
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,

    /// Kind of the jobs that a crontab's commands become
    #[arg(long)]
    kind: Option<String>,

    /// Queue of a crontab's jobs
    #[arg(long, default_value = "default")]
    queue: String,

    /// Time zone of a crontab's lines without CRON_TZ, or of all of pg_cron's entries [default: pg_cron's cron.timezone] [env: TENURE_ZONE]
    #[arg(long, value_name = "ZONE")]
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

/// An entry, and what becomes of it.
struct Entry {
    /// Where it stands: `line 7`, `entry 3`.
    place: String,
    text: String,
    becomes: Becomes,
    /// Its id in pg_cron.
    id: Option<i64>,
}

/// What becomes of an entry.
enum Becomes {
    Schedule(Schedule),
    /// A former import made that schedule of it.
    Unchanged(Schedule),
    /// Nothing, and why.
    Stays(String),
    /// It calls tick(), and so is what fires schedules when no worker is up.
    Tick,
}

/// A schedule without the number that its name may need, or why there is none.
type Wish = Result<Schedule, String>;

/// Runs the verb.
pub async fn import(args: Import) -> Outcome {
    let client = args.connection.connect().await?;
    let wished = match args.from {
        Source::PgCron => of_pg_cron(&args, client.cron_jobs().await?)?,
        Source::Crontab => of_crontab(&args)?,
    };
    let entries = named(&client, &args, wished).await?;
    let moved: Vec<Schedule> = entries.iter().filter_map(Entry::new_schedule).cloned().collect();
    let ids: Vec<i64> = match args.keep_entries {
        true => Vec::new(),
        false => entries.iter().filter(|entry| entry.is_taken()).filter_map(|entry| entry.id).collect(),
    };
    if !args.json {
        print(&entries)?;
    }
    let mut done = false;
    let is_any = !moved.is_empty() || !ids.is_empty();
    if is_any && !args.dry_run {
        let deed = deed(moved.len(), ids.len());
        let nobody = format!("this would {deed}: look with --dry-run, then confirm with --yes");
        if args.yes || agree::agreed(&format!("{deed}?"), &nobody)? {
            match ids.is_empty() {
                true => client.add_schedules(&moved).await?,
                false => client.move_cron_jobs(&moved, &ids).await?,
            }
            done = true;
            eprintln!("{} schedules were added, {} entries of pg_cron removed", moved.len(), ids.len());
        } else {
            eprintln!("nothing was changed");
        }
    }
    if args.json {
        let shown: Vec<Value> = entries.iter().map(of_entry).collect();
        output::json(&json!({ "done": done, "entries": shown }))?;
    }
    Ok(u8::from(entries.iter().any(|entry| matches!(entry.becomes, Becomes::Stays(_)))))
}

impl Entry {
    fn new_schedule(&self) -> Option<&Schedule> {
        match &self.becomes {
            Becomes::Schedule(schedule) => Some(schedule),
            Becomes::Unchanged(_) | Becomes::Stays(_) | Becomes::Tick => None,
        }
    }

    /// There is a schedule in its place, or will be.
    fn is_taken(&self) -> bool {
        matches!(self.becomes, Becomes::Schedule(_) | Becomes::Unchanged(_))
    }
}

/// What is done when somebody agrees.
fn deed(schedules: usize, entries: usize) -> String {
    let counted = |count: usize, one: &str, many: &str| format!("{count} {}", if count == 1 { one } else { many });
    let added = (schedules > 0).then(|| format!("add {}", counted(schedules, "schedule", "schedules")));
    let removed = (entries > 0).then(|| format!("remove {} of pg_cron", counted(entries, "entry", "entries")));
    added.into_iter().chain(removed).collect::<Vec<_>>().join(" and ")
}

const TICK: &str = "it calls tick(), and is what fires schedules when no worker is up";

fn print(entries: &[Entry]) -> anyhow::Result<()> {
    let (mut moved, mut unchanged) = (0, 0);
    for entry in entries {
        let start = || output::start_of(&entry.text, 100);
        output::foreign_line(&match &entry.becomes {
            Becomes::Schedule(schedule) => {
                moved += 1;
                format!("+ {} ({}): {}", schedule.name(), entry.place, schedule.rule())
            }
            Becomes::Unchanged(schedule) => {
                unchanged += 1;
                format!("= {} ({}): {}", schedule.name(), entry.place, schedule.rule())
            }
            Becomes::Stays(why) => format!("! {} stays: {why}: {}", entry.place, start()),
            Becomes::Tick => format!("! {} stays: {TICK}", entry.place),
        })?;
    }
    let stay = entries.len() - moved - unchanged;
    eprintln!("{moved} become schedules, {unchanged} are schedules already, {stay} stay as they are");
    Ok(())
}

fn of_entry(entry: &Entry) -> Value {
    let of = |schedule: &Schedule| json!({ "name": schedule.name(), "rule": schedule.rule().text(), "zone": schedule.rule().zone() });
    let mut value = json!({ "place": entry.place, "entry": entry.text, "unchanged": false });
    match &entry.becomes {
        Becomes::Schedule(schedule) => value["schedule"] = of(schedule),
        Becomes::Unchanged(schedule) => {
            value["schedule"] = of(schedule);
            value["unchanged"] = true.into();
        }
        Becomes::Stays(why) => value["stays_because"] = why.as_str().into(),
        Becomes::Tick => value["stays_because"] = TICK.into(),
    }
    value
}

/// An entry whose schedule, if it becomes one, has no name for certain yet.
struct Wished {
    place: String,
    text: String,
    wish: Option<Wish>,
    id: Option<i64>,
}

/// Gives each its name. What a former import made of the same entry is found first, whatever number it has: then a line that was added, or
/// taken out, changes nothing for the others.
async fn named(client: &Client, args: &Import, wished: Vec<Wished>) -> Result<Vec<Entry>, Error> {
    let prefix = &args.prefix;
    let wishes: Vec<Option<&Schedule>> = wished.iter().map(|entry| entry.wish.as_ref()?.as_ref().ok()).collect();
    let named: Vec<&Schedule> = wishes.iter().copied().flatten().collect();
    let mut names = Names::read(client, prefix, &named).await?;
    let found: Vec<_> = wishes.iter().map(|wish| names.made_before(prefix, (*wish)?)).collect();
    let mut entries = Vec::with_capacity(wished.len());
    for (Wished { place, text, wish, id }, found) in wished.into_iter().zip(found) {
        let becomes = match (wish, found) {
            (None, _) => Becomes::Tick,
            (Some(Err(why)), _) => Becomes::Stays(why),
            // The entry would go, and nothing would do its work.
            (Some(Ok(_)), Some(name))
                if id.is_some()
                    && !args.keep_entries
                    && names.stored(&name).is_some_and(|info| info.paused_at.is_some()) =>
            {
                Becomes::Stays(format!(
                    "its schedule {name:?} is paused: resume that and import again, or remove the entry"
                ))
            }
            (Some(Ok(schedule)), Some(name)) => Becomes::Unchanged(schedule.named(name)),
            (Some(Ok(schedule)), None) => {
                let name = names.free(prefix, schedule.name());
                match names.stored(&name) {
                    Some(_) => Becomes::Stays(format!(
                        "there is a schedule {name:?} that says something else: edit or remove that one, or give --prefix"
                    )),
                    None => Becomes::Schedule(schedule.named(name)),
                }
            }
        };
        entries.push(Entry { place, text, becomes, id });
    }
    Ok(entries)
}

/// The crontab's text; `-` is standard input.
fn text_of(file: &Path) -> Result<String, Error> {
    let read = match file == Path::new("-") {
        true => std::io::read_to_string(std::io::stdin().lock()),
        false => std::fs::read_to_string(file),
    };
    read.map_err(|error| Error::bad_input(format!("{}: {error}", file.display()), "name a crontab that can be read"))
}

fn of_crontab(args: &Import) -> Result<Vec<Wished>, Failure> {
    let Some(file) = &args.file else {
        return Err(Failure::Usage(
            "--from crontab reads a file: name it behind the options, or - for standard input".to_owned(),
        ));
    };
    let Some(kind) = &args.kind else {
        return Err(Failure::Usage(
            "--from crontab needs --kind: the kind of the jobs that its commands become".to_owned(),
        ));
    };
    let text = text_of(file)?;
    let with_user = args.user_column || file.starts_with("/etc/cron.d") || file == Path::new("/etc/crontab");
    let zone_of_others = args.zone.clone().or_else(when::zone_of_environment);
    let mut entries = Vec::new();
    for line in crontab::lines(&text, with_user) {
        let place = format!("line {}", line.number);
        let wish = match line.is {
            Line::Command(command) => {
                let zone = command.zone.as_deref().or(zone_of_others.as_deref()).ok_or_else(|| {
                    Failure::Usage("a crontab's times are in its machine's zone: name that by --zone".to_owned())
                })?;
                rule(&command.rule, zone).and_then(|rule| {
                    let payload = RawJson::of(&command.payload()).map_err(one_line)?;
                    let job = Enqueue::raw(kind, escaped(payload)?).options(JobOptions::new().queue(&args.queue));
                    checked(&args.prefix, Schedule::new(command.name(), rule, job))
                })
            }
            Line::Setting => continue,
            Line::Other(why) => Err(why),
        };
        entries.push(Wished { place, text: line.text, wish: Some(wish), id: None });
    }
    Ok(entries)
}

fn of_pg_cron(args: &Import, jobs: Vec<CronJob>) -> Result<Vec<Wished>, Failure> {
    if args.file.is_some() || args.kind.is_some() {
        return Err(Failure::Usage("--from pg_cron reads no file, and its entries name their kinds".to_owned()));
    }
    let otherwise = when::zone_of_environment();
    let mut entries = Vec::new();
    for job in jobs {
        let zone = args.zone.as_deref().or(job.zone.as_deref()).or(otherwise.as_deref()).ok_or_else(|| {
            Failure::Usage("the zone of pg_cron's times, cron.timezone, is not readable: name it by --zone".to_owned())
        })?;
        let is_tick = enqueue_call::is_tick(&job.command, &args.connection.schema);
        let wish = (!is_tick).then(|| of_cron_job(&job, zone, args));
        entries.push(Wished { place: format!("entry {}", job.id), text: job.command, wish, id: Some(job.id) });
    }
    Ok(entries)
}

fn of_cron_job(job: &CronJob, zone: &str, args: &Import) -> Wish {
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
    checked(&args.prefix, Schedule::new(wish, rule, enqueue))
}

/// With the name as it was wished for: numbers do not make one wrong.
fn checked(prefix: &str, schedule: Schedule) -> Wish {
    let named = schedule.clone().named(candidates(prefix, schedule.name()).next().unwrap_or_default());
    named.check().map(|()| schedule).map_err(one_line)
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
    fn who_is_asked_is_told_all_that_is_done() {
        assert_eq!(deed(2, 3), "add 2 schedules and remove 3 entries of pg_cron");
        assert_eq!(deed(1, 0), "add 1 schedule");
        assert_eq!(deed(0, 1), "remove 1 entry of pg_cron");
    }

    #[test]
    fn braces_that_were_there_before_stay_what_they_are() {
        let payload = RawJson::parse(r#"{"command": "echo {{x}}"}"#).expect("JSON");
        assert_eq!(escaped(payload).expect("JSON").get(), r#"{"command": "echo {{{{x}}"}"#);
    }
}
