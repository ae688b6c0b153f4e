//! `tenure schedule add` and `tenure schedule edit`.

use std::time::{Duration, SystemTime};

use serde_json::json;
use tenure::{Enqueue, Error, Gap, JobOptions, Missed, Overlap, RawJson, Rule, Schedule, ScheduleInfo, Twice, limits};

use super::{is_taken, no_such_schedule};
use crate::connection::Connection;
use crate::exit::{Failure, Outcome};
use crate::when::{self, ZoneOfRule};
use crate::{number, output};

/// Add a schedule
///
/// It runs from now on, as long as a worker of any queue lives to fire it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
RULE is a cron line of 5 fields, or of 6 with seconds first (L, W, #, names, lists, steps; both day fields restricted mean
either), @yearly, @monthly, @weekly, @daily, @hourly, '@every 90s', or '@at 2027-01-31T09:00, 2027-02-28T09:00'.
In JSON {{logical_time}}, {{logical_local}}, {{logical_date}}, {{logical_epoch}} and {{schedule}} are filled in.

Examples:
  tenure schedule add nightly '30 2 * * *' report '{\"day\": \"{{logical_date}}\"}' --zone Europe/Berlin
  tenure schedule add heartbeat '@every 90s' ping '{}' --overlap skip
  tenure schedule add ledger '0 * * * *' book '{\"at\": \"{{logical_time}}\"}' --zone UTC --missed all --missed-max 48 --missed-window 2d
  tenure schedule add payday '0 9 LW * *' pay '{}' --zone America/New_York --jitter 5m")]
pub struct Add {
    /// Its name: 1 to 128 bytes
    name: String,

    /// When: '30 2 * * *', @daily, '@every 90s'
    rule: String,

    /// Kind of its jobs
    kind: String,

    /// Payload of its jobs
    #[arg(value_name = "JSON", default_value = "{}")]
    payload: String,

    /// Do nothing when there is a schedule of that name
    #[arg(long)]
    if_missing: bool,

    #[command(flatten)]
    zone: ZoneOfRule,

    #[command(flatten)]
    details: Details,

    /// Print a JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Change a schedule; what is not named stays
///
/// Another rhythm holds from now on; what changes only the job holds for the next one. TENURE_ZONE changes nothing here.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tenure schedule edit nightly --rule '30 3 * * *'
  tenure schedule edit nightly --payload '{\"full\": true}' --queue slow
  tenure schedule edit nightly --end none --missed skip")]
pub struct Edit {
    /// The schedule's name
    name: String,

    /// When: '30 2 * * *', @daily, '@every 90s'
    #[arg(long)]
    rule: Option<String>,

    /// Kind of its jobs
    #[arg(long)]
    kind: Option<String>,

    /// Payload of its jobs
    #[arg(long, value_name = "JSON")]
    payload: Option<String>,

    /// Time zone of the rule, and of instants that name none
    #[arg(long, value_name = "ZONE")]
    zone: Option<String>,

    #[command(flatten)]
    details: Details,

    /// Print a JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// What a schedule has besides rule, zone, kind and payload.
#[derive(Debug, clap::Args)]
pub struct Details {
    /// Not before this instant, or none
    #[arg(long, value_name = "INSTANT")]
    start: Option<String>,

    /// Not after this instant, or none
    #[arg(long, value_name = "INSTANT")]
    end: Option<String>,

    /// Spread the jobs at random over so long after each time
    #[arg(long, value_name = "TIME", value_parser = when::duration)]
    jitter: Option<Duration>,

    #[command(flatten)]
    policies: Policies,

    /// Queue of its jobs [default: default]
    #[arg(long)]
    queue: Option<String>,

    /// Priority of its jobs: 1 (most urgent) to 4 [default: 2]
    #[arg(long, allow_negative_numbers = true, value_parser = number::of::<i16>("write 1 to 4"))]
    priority: Option<i16>,

    /// How often each may be tried: 1 to 1000 [default: 5]
    #[arg(long, allow_negative_numbers = true, value_parser = number::of::<i16>("write 1 to 1000"))]
    max_attempts: Option<i16>,

    /// How long one attempt may take; 0: no limit [default: the one of its kind]
    #[arg(long, value_name = "TIME", value_parser = when::duration)]
    timeout: Option<Duration>,
}

/// What becomes of times that are not like others.
#[derive(Debug, clap::Args)]
pub struct Policies {
    /// A time that the zone's clock leaves out: next (at the next one that exists) or skip [default: next]
    #[arg(long, value_name = "POLICY", value_parser = gap)]
    gap: Option<Gap>,

    /// A time that the zone's clock shows twice: first, second or both [default: first]
    #[arg(long, value_name = "POLICY", value_parser = twice)]
    twice: Option<Twice>,

    /// Times that nobody was there to fire: skip, latest or all [default: latest]
    #[arg(long, value_name = "POLICY", value_parser = ["skip", "latest", "all"])]
    missed: Option<String>,

    /// With --missed all: so many at most, the latest of them; 1 to 1000 [default: 100]
    #[arg(long, value_name = "N", value_parser = number::of::<u32>("write 1 to 1000"))]
    missed_max: Option<u32>,

    /// With --missed all: no older than this [default: 1d]
    #[arg(long, value_name = "TIME", value_parser = when::duration)]
    missed_window: Option<Duration>,

    /// A time at which the run before has not ended: allow, skip, queue (one waits) or cancel (the one before) [default: allow]
    #[arg(long, value_name = "POLICY", value_parser = overlap)]
    overlap: Option<Overlap>,
}

fn gap(text: &str) -> Result<Gap, String> {
    Gap::from_name(text).ok_or_else(|| format!("{text:?} says nothing of times that do not exist: use next or skip"))
}

fn twice(text: &str) -> Result<Twice, String> {
    let found = Twice::from_name(text);
    found.ok_or_else(|| format!("{text:?} says nothing of times that come twice: use first, second or both"))
}

fn overlap(text: &str) -> Result<Overlap, String> {
    let found = Overlap::from_name(text);
    found.ok_or_else(|| format!("{text:?} says nothing of runs that overlap: use allow, skip, queue or cancel"))
}

impl Policies {
    /// Puts what was named in the place of what is there.
    pub fn apply(&self, schedule: Schedule) -> Result<Schedule, Error> {
        let mut rule = schedule.rule().clone();
        if let Some(gap) = self.gap {
            rule = rule.gap(gap);
        }
        if let Some(twice) = self.twice {
            rule = rule.twice(twice);
        }
        let missed = self.missed(schedule.missed_runs())?;
        let schedule = schedule.with_rule(rule).missed(missed);
        Ok(match self.overlap {
            Some(overlap) => schedule.overlap(overlap),
            None => schedule,
        })
    }

    /// Of `all` each bound stays that is not named.
    fn missed(&self, was: Missed) -> Result<Missed, Error> {
        let (max, window) = match was {
            Missed::All { max, window } => (max, window),
            Missed::Skip | Missed::Latest => (limits::SCHEDULE_MISSED_DEFAULT, limits::SCHEDULE_WINDOW_DEFAULT),
        };
        let all = Missed::All { max: self.missed_max.unwrap_or(max), window: self.missed_window.unwrap_or(window) };
        let is = match (self.missed.as_deref(), was) {
            (Some("skip"), _) => Missed::Skip,
            (Some("latest"), _) => Missed::Latest,
            (Some(_), _) | (None, Missed::All { .. }) => all,
            (None, Missed::Skip | Missed::Latest) => was,
        };
        match is {
            Missed::Skip | Missed::Latest if self.missed_max.is_some() || self.missed_window.is_some() => {
                Err(Error::bad_input(
                    "--missed-max and --missed-window say how many of all missed runs are made up for",
                    "write --missed all beside them, or leave them out",
                ))
            }
            is => Ok(is),
        }
    }
}

impl Details {
    fn job(&self, kind: &str, payload: RawJson, mut options: JobOptions) -> Enqueue {
        if let Some(queue) = &self.queue {
            options = options.queue(queue);
        }
        if let Some(priority) = self.priority {
            options = options.priority(priority);
        }
        if let Some(attempts) = self.max_attempts {
            options = options.max_attempts(attempts);
        }
        if let Some(timeout) = self.timeout {
            options = options.timeout(timeout);
        }
        Enqueue::raw(kind, payload).options(options)
    }

    /// Puts start, end and jitter in the place of what is there. Instants without a zone are in the rule's.
    fn bound(&self, mut schedule: Schedule) -> Result<Schedule, Error> {
        let zone = schedule.rule().zone().to_owned();
        let read = |text: &str, option: &str| match text {
            "none" => Ok(None),
            text => when::instant_in(text, Some(&zone)).map(Some).map_err(|error| error.context(option)),
        };
        if let Some(start) = &self.start {
            schedule = schedule.starts_at(read(start, "--start")?);
        }
        if let Some(end) = &self.end {
            schedule = schedule.ends_at(read(end, "--end")?);
        }
        Ok(match self.jitter {
            Some(jitter) => schedule.jitter(jitter),
            None => schedule,
        })
    }
}

/// A rule as it was typed. `zone` was named for it; `otherwise` is for one that names none and needs one.
pub fn rule(text: &str, zone: Option<&str>, otherwise: Option<&str>) -> Result<Rule, Error> {
    let names_zone = text.trim_start().starts_with("CRON_TZ=") || text.trim_start().starts_with("TZ=");
    match (zone, otherwise) {
        // Where both name one, they have to name the same.
        (Some(zone), _) => Rule::new(text, zone),
        (None, _) if names_zone => Rule::new(text, ""),
        (None, Some(otherwise)) => Rule::new(text, otherwise),
        (None, None) if needs_no_zone(text) => Rule::new(text, "UTC"),
        (None, None) => {
            Rule::new(text, "UTC")?;
            Err(Error::bad_input(
                format!("{text:?}: no time zone is given"),
                "add --zone Europe/Berlin or --zone UTC, or set TENURE_ZONE",
            ))
        }
    }
}

/// An interval is the same in every zone, and so is a list of instants that name theirs.
fn needs_no_zone(text: &str) -> bool {
    let (word, rest) = text.trim().split_once(char::is_whitespace).unwrap_or((text.trim(), ""));
    let names_its_zone = |text: &str| text.is_empty() || tenure::instant::read(text, None).is_ok();
    match word.to_ascii_lowercase().as_str() {
        "@every" => true,
        "@at" => rest.split(',').all(|text| names_its_zone(text.trim())),
        _ => false,
    }
}

/// Runs the verb.
pub async fn add(args: Add) -> Outcome {
    let rule = rule(&args.rule, args.zone.zone.as_deref(), when::zone_of_environment().as_deref())?;
    let job = args.details.job(&args.kind, payload(&args.payload)?, JobOptions::new());
    let schedule = args.details.policies.apply(Schedule::new(&args.name, rule, job))?;
    let schedule = args.details.bound(schedule)?;
    schedule.check()?;
    let client = args.connection.connect().await?;
    match client.add_schedule(&schedule).await {
        Err(error) if args.if_missing && is_taken(&error) => {
            return super::said(&args.name, false, args.json, "", "is there already");
        }
        added => added?,
    }
    // As it is stored: an interval counts from then.
    let Some(info) = client.schedule(&args.name).await? else { return Err(no_such_schedule(&args.name)) };
    let first = info.next_time();
    match (args.json, first) {
        (true, _) => {
            output::json(&json!({ "schedule": args.name, "changed": true, "first_at": first.map(output::instant) }))?;
        }
        (false, Some(first)) => {
            let shown = tenure::instant::show(first, &info.zone)?;
            output::foreign_line(&format!("{} added, first at {shown}", args.name))?;
        }
        (false, None) => output::foreign_line(&format!("{} added", args.name))?,
    }
    warn_if_over(&info, client.now().await?);
    Ok(0)
}

/// One that has no further time is stored all the same: its owner may want to edit it.
fn warn_if_over(info: &ScheduleInfo, now: SystemTime) {
    if info.next_time().is_some() || info.paused_at.is_some() {
        return;
    }
    let why = match info.ends_at.filter(|end| *end < now) {
        Some(end) => format!("its end, {}, has passed", output::instant(end)),
        None => format!(
            "its rule, {}, has no time ahead{}",
            info.rule,
            if info.ends_at.is_some() { " before its end" } else { "" }
        ),
    };
    eprintln!("WARNING: {} will never run: {why}", info.name);
}

/// Runs the verb.
pub async fn edit(args: Edit) -> Outcome {
    let client = args.connection.connect().await?;
    let Some(info) = client.schedule(&args.name).await? else { return Err(no_such_schedule(&args.name)) };
    let schedule = edited(&args, &info)?;
    schedule.check()?;
    let changed = client.edit_schedule(info.version, &schedule).await?;
    let said = super::said(&args.name, changed, args.json, "changed", "was so already");
    if changed && let Some(now) = client.schedule(&args.name).await? {
        warn_if_over(&now, client.now().await?);
        super::hint_of_owner(&now, "sets that back: change it there, too");
    }
    said
}

fn edited(args: &Edit, info: &ScheduleInfo) -> Result<Schedule, Failure> {
    let typed = match (&args.rule, args.zone.as_deref()) {
        (Some(text), zone) => rule(text, zone, Some(&info.zone))?,
        (None, zone) => rule(&info.rule, zone, Some(&info.zone)).map_err(|error| {
            let message = format!("schedule {:?} cannot fire: {}", info.name, error.message());
            Error::bad_input(message, "give it another rule or zone, too: --rule, --zone")
        })?,
    };
    // The policies of one whose rule cannot be read are kept, too: an edit is how it is mended.
    let schedule = args.details.policies.apply(info.to_schedule_by(typed)?)?;
    let payload = args.payload.as_deref().map_or_else(|| Ok(info.payload.clone()), payload)?;
    let job = args.details.job(args.kind.as_deref().unwrap_or(&info.kind), payload, info.job_options());
    Ok(args.details.bound(schedule.with_job(job))?)
}

fn payload(text: &str) -> Result<RawJson, Error> {
    RawJson::parse(text).map_err(|error| error.context(format!("payload {}", output::start_of(text, 60))))
}

/// What becomes of times that are not like others, in words.
pub fn policies(schedule: &Result<Schedule, Error>) -> String {
    match schedule {
        Ok(schedule) => schedule.policies_in_words().join("\n"),
        Err(_) => String::new(),
    }
}
