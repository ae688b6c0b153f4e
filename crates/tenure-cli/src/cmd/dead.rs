//! `tenure dead`: dead letters, and what becomes of them.

use std::time::SystemTime;

use clap::Subcommand;
use serde::Serialize;
use serde_json::json;
use tenure::{Cause, Client, DeadFilter, DeadLetter, JobId, RawJson};

use super::job::print_attempts;
use crate::connection::Connection;
use crate::exit::{Failure, Outcome};
use crate::{output, when};

/// Look at dead letters, run them again or remove them
#[derive(Debug, Subcommand)]
pub enum Dead {
    List(List),
    Show(Show),
    Requeue(Requeue),
    Discard(Discard),
}

/// Which dead letters; those that were requeued are never among them
#[derive(Debug, clap::Args)]
struct Filter {
    /// Only of this queue
    #[arg(long)]
    queue: Option<String>,

    /// Only of this kind
    #[arg(long)]
    kind: Option<String>,

    /// Only with this cause: error, panic, timeout, exit, signal, worker_lost, lease_lost, payload, or one that a
    /// program in SQL named
    #[arg(long)]
    cause: Option<String>,

    /// Only those that died before this instant, or longer ago than this: 2026-12-24T18:00:00Z, 2h
    #[arg(long, value_name = "WHEN", value_parser = when::instant_or_ago)]
    before: Option<SystemTime>,
}

impl Filter {
    fn is_empty(&self) -> bool {
        self.queue.is_none() && self.kind.is_none() && self.cause.is_none() && self.before.is_none()
    }

    /// What to say when it finds nothing. A cause may be any text, so that one with a slip in it cannot be refused.
    fn none(&self) -> String {
        let known: Vec<_> = Cause::ALL.iter().map(|cause| cause.as_str()).collect();
        match &self.cause {
            Some(cause) if !known.contains(&cause.as_str()) => {
                format!("no dead letters; {cause:?} is none of the causes that tenure names: {}", known.join(", "))
            }
            Some(_) | None => "no dead letters".to_owned(),
        }
    }

    /// Whether an empty one was meant is decided before.
    fn read(&self) -> DeadFilter {
        let mut filter = DeadFilter::all();
        if let Some(queue) = &self.queue {
            filter = filter.queue(queue);
        }
        if let Some(kind) = &self.kind {
            filter = filter.kind(kind);
        }
        if let Some(cause) = &self.cause {
            filter = filter.cause(cause);
        }
        match self.before {
            Some(instant) => filter.before(instant),
            None => filter,
        }
    }
}

/// List dead letters, longest dead first
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tenure dead list
  tenure dead list --kind send_mail --cause timeout --limit 20")]
pub struct List {
    #[command(flatten)]
    filter: Filter,

    /// Only those after this one: the last of the page before
    #[arg(long, value_name = "ID")]
    after: Option<JobId>,

    /// How many: 1 to 1000
    #[arg(long, default_value_t = 50)]
    limit: usize,

    /// Print a JSON array
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Show a dead letter: cause, every attempt, payload
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  tenure dead show 12800\n  tenure dead show 12800 --json | jq .payload > edited.json"
)]
pub struct Show {
    /// The job's id
    id: JobId,

    /// Print a JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Run dead letters again, each as a new job that names the old one
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tenure dead requeue 12800 12801
  tenure dead requeue 12800 --payload '{\"to\": \"right@example.org\"}'    with another payload and idempotency key
  tenure dead requeue --kind send_mail --cause timeout
  tenure dead requeue --all --per-second 10")]
pub struct Requeue {
    #[command(flatten)]
    which: Which,

    /// Another payload, for one job: the new job then has an idempotency key of its own
    #[arg(long, value_name = "JSON")]
    payload: Option<String>,

    /// Not more than so many per second [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    per_second: Option<u32>,

    /// Print a JSON array of old and new ids
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Remove dead letters and their jobs for good
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tenure dead discard 12800
  tenure dead discard --kind send_mail --before 30d
  tenure dead discard --all")]
pub struct Discard {
    #[command(flatten)]
    which: Which,

    /// Print a JSON array of ids
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Ids, a filter, or all: one of them, said explicitly
#[derive(Debug, clap::Args)]
struct Which {
    /// The jobs' ids
    ids: Vec<JobId>,

    #[command(flatten)]
    filter: Filter,

    /// Every dead letter
    #[arg(long)]
    all: bool,
}

/// What was named.
enum Named {
    Ids(Vec<JobId>),
    Filter(DeadFilter),
}

impl Which {
    fn read(self, verb: &str) -> Result<Named, Failure> {
        match (self.ids.is_empty(), self.filter.is_empty(), self.all) {
            (false, true, false) => Ok(Named::Ids(self.ids)),
            (true, false, false) | (true, true, true) => Ok(Named::Filter(self.filter.read())),
            (true, true, false) => Err(Failure::Usage(format!(
                "dead {verb}: nothing is named\n        name job ids, or a filter (--queue, --kind, --cause, --before), or --all for every dead letter"
            ))),
            (_, _, _) => Err(Failure::Usage(format!(
                "dead {verb}: job ids, a filter and --all exclude each other\n        give one of them"
            ))),
        }
    }
}

/// Runs the verb.
pub async fn run(dead: Dead) -> Outcome {
    match dead {
        Dead::List(args) => list(args).await,
        Dead::Show(args) => show(args).await,
        Dead::Requeue(args) => requeue(args).await,
        Dead::Discard(args) => discard(args).await,
    }
}

async fn list(args: List) -> Outcome {
    let client = args.connection.connect().await?;
    let after = match args.after {
        Some(id) => Some(client.dead_letter(id).await?.ok_or_else(|| no_such_dead_letter(id))?),
        None => None,
    };
    let letters = client.dead_letters(&args.filter.read(), after.as_ref(), Some(args.limit)).await?;
    if args.json {
        output::json(&letters.iter().map(LetterJson::from).collect::<Vec<_>>())?;
        return Ok(0);
    }
    let now = SystemTime::now();
    let row = |letter: &DeadLetter| {
        vec![
            letter.id.to_string(),
            letter.kind.clone(),
            letter.queue.clone(),
            format!("{}/{}", letter.attempt, letter.max_attempts),
            output::relative(letter.died_at, now),
            letter.cause.clone(),
            output::start_of(&letter.message, 80),
        ]
    };
    let header = ["ID", "KIND", "QUEUE", "ATTEMPT", "DIED", "CAUSE", "MESSAGE"];
    output::table(&header, letters.iter().map(row).collect(), &args.filter.none())?;
    if letters.len() == args.limit
        && let Some(last) = letters.last()
    {
        eprintln!("there may be more: --after {}", last.id);
    }
    Ok(0)
}

fn no_such_dead_letter(id: JobId) -> Failure {
    Failure::NotFound(format!("there is no dead letter {id}\n        `tenure job show {id}` says where the job stands"))
}

async fn show(args: Show) -> Outcome {
    let client = args.connection.connect().await?;
    let letter = client.dead_letter(args.id).await?.ok_or_else(|| no_such_dead_letter(args.id))?;
    if args.json {
        output::json(&LetterJson::from(&letter))?;
        return Ok(0);
    }
    let optional = |value: Option<JobId>| value.map(|id| id.to_string()).unwrap_or_default();
    output::facts(&[
        ("id", letter.id.to_string()),
        ("kind", letter.kind.clone()),
        ("queue", letter.queue.clone()),
        ("priority", letter.priority.to_string()),
        ("attempt", format!("{} of {}", letter.attempt, letter.max_attempts)),
        ("created at", output::instant(letter.created_at)),
        ("started at", output::instant_or_empty(letter.started_at)),
        ("died at", output::instant(letter.died_at)),
        ("cause", letter.cause.clone()),
        ("message", letter.message.clone()),
        ("idempotency key", letter.idempotency_key.clone()),
        ("requeued from", optional(letter.replaces_id)),
        ("origin", optional(letter.origin_id)),
        ("requeued as", optional(letter.replaced_by)),
        ("payload", letter.payload.to_string()),
    ])?;
    print_attempts(&client.attempt_errors(args.id).await?)?;
    Ok(0)
}

async fn requeue(args: Requeue) -> Outcome {
    let payload = args.payload.map(RawJson::parse).transpose().map_err(|e| e.context("--payload"))?;
    let named = args.which.read("requeue")?;
    if payload.is_some() && !matches!(&named, Named::Ids(ids) if ids.len() == 1) {
        return Err(Failure::Usage("dead requeue: --payload is for one job\n        name its id".to_owned()));
    }
    let client = args.connection.connect().await?;
    let mut moved = Vec::new();
    let mut note = |chunk: &[(JobId, JobId)]| {
        moved.extend_from_slice(chunk);
        // A closed stdout is no reason to stop half way.
        let _ = print_unless(args.json, chunk.iter().map(|(old, new)| format!("{old} requeued as {new}")));
    };
    let done = match named {
        Named::Filter(filter) => {
            client.requeue_dead(&filter, args.per_second, &mut note).await.map(drop).map_err(Failure::from)
        }
        Named::Ids(ids) => requeue_each(&client, ids, payload, &mut note).await,
    };
    conclude(done, "requeued", args.json, moved.iter().map(|(old, new)| json!({ "id": old, "new_id": new })).collect())
}

async fn requeue_each(
    client: &Client,
    ids: Vec<JobId>,
    payload: Option<RawJson>,
    mut note: impl FnMut(&[(JobId, JobId)]),
) -> Result<(), Failure> {
    refuse_unknown(client, &ids).await?;
    for id in ids {
        note(&[(id, client.requeue(id, payload.clone()).await?)]);
    }
    Ok(())
}

async fn discard(args: Discard) -> Outcome {
    let named = args.which.read("discard")?;
    let client = args.connection.connect().await?;
    let mut gone = Vec::new();
    let mut note = |chunk: &[JobId]| {
        gone.extend_from_slice(chunk);
        let _ = print_unless(args.json, chunk.iter().map(|id| format!("{id} discarded")));
    };
    let done = match named {
        Named::Filter(filter) => client.discard_dead(&filter, &mut note).await.map(drop).map_err(Failure::from),
        Named::Ids(ids) => discard_each(&client, ids, &mut note).await,
    };
    conclude(done, "discarded", args.json, gone.iter().map(|id| json!(id)).collect())
}

async fn discard_each(client: &Client, ids: Vec<JobId>, mut note: impl FnMut(&[JobId])) -> Result<(), Failure> {
    refuse_unknown(client, &ids).await?;
    for id in ids {
        if client.discard(id).await? {
            note(&[id]);
        }
    }
    Ok(())
}

/// Says what was done, also when the rest could not be.
fn conclude(done: Result<(), Failure>, verb: &str, json: bool, rows: Vec<serde_json::Value>) -> Outcome {
    if done.is_ok() || !rows.is_empty() {
        match json {
            true => output::json(&rows)?,
            false => eprintln!("{verb} {}", rows.len()),
        }
    }
    done.map(|()| 0)
}

fn print_unless(json: bool, mut lines: impl Iterator<Item = String>) -> std::io::Result<()> {
    if json { Ok(()) } else { lines.try_for_each(|line| output::line(&line)) }
}

/// All of them are there before the first one is touched.
async fn refuse_unknown(client: &Client, ids: &[JobId]) -> Result<(), Failure> {
    for id in ids {
        client.dead_letter(*id).await?.ok_or_else(|| no_such_dead_letter(*id))?;
    }
    Ok(())
}

/// A dead letter as JSON.
#[derive(Serialize)]
struct LetterJson<'a> {
    id: JobId,
    kind: &'a str,
    queue: &'a str,
    priority: i16,
    attempt: i16,
    max_attempts: i16,
    created_at: String,
    started_at: Option<String>,
    died_at: String,
    cause: &'a str,
    message: &'a str,
    errors: &'a RawJson,
    payload: &'a RawJson,
    idempotency_key: &'a str,
    origin_id: Option<JobId>,
    replaces_id: Option<JobId>,
    replaced_by: Option<JobId>,
}

impl<'a> From<&'a DeadLetter> for LetterJson<'a> {
    fn from(letter: &'a DeadLetter) -> Self {
        LetterJson {
            id: letter.id,
            kind: &letter.kind,
            queue: &letter.queue,
            priority: letter.priority,
            attempt: letter.attempt,
            max_attempts: letter.max_attempts,
            created_at: output::instant(letter.created_at),
            started_at: letter.started_at.map(output::instant),
            died_at: output::instant(letter.died_at),
            cause: &letter.cause,
            message: &letter.message,
            errors: &letter.errors,
            payload: &letter.payload,
            idempotency_key: &letter.idempotency_key,
            origin_id: letter.origin_id,
            replaces_id: letter.replaces_id,
            replaced_by: letter.replaced_by,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_dead_letters_wants_to_be_told_which() {
        let which = |ids: &[i64], kind: Option<&str>, all: bool| Which {
            ids: ids.iter().copied().map(JobId::from).collect(),
            filter: Filter { queue: None, kind: kind.map(str::to_owned), cause: None, before: None },
            all,
        };
        assert!(matches!(which(&[1], None, false).read("x"), Ok(Named::Ids(_))));
        assert!(matches!(which(&[], Some("k"), false).read("x"), Ok(Named::Filter(_))));
        assert!(matches!(which(&[], None, true).read("x"), Ok(Named::Filter(_))));
        for wrong in [which(&[], None, false), which(&[1], None, true), which(&[1], Some("k"), false)] {
            assert!(matches!(wrong.read("x"), Err(Failure::Usage(_))));
        }
    }
}
