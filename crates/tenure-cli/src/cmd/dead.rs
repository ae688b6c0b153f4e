//! `tenure dead`: dead letters, and what becomes of them.

mod filter;
mod group;

use std::collections::HashSet;
use std::time::Duration;

use clap::Subcommand;
use serde::Serialize;
use serde_json::json;
use tenure::{Client, DeadLetter, JobId, RawJson, RequeuePace};

use self::filter::{Filter, Named, Which};
use super::job::print_attempts;
use crate::agree::agreed;
use crate::connection::Connection;
use crate::exit::{Failure, Outcome};
use crate::when::ShownZone;
use crate::{number, output, when};

/// Look at dead letters, run them again or remove them
#[derive(Debug, Subcommand)]
pub enum Dead {
    List(List),
    Show(Show),
    Requeue(Requeue),
    Discard(Discard),
}

/// List dead letters, longest dead first; those that were requeued are open no longer, and are left out
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tenure dead list
  tenure dead list --kind send_mail --cause timeout --limit 20
  tenure dead list --requeued             also those that were requeued, and as what
  tenure dead list --group                what they died of, the most frequent first
  tenure dead list --fingerprint 1f0c6e7a92b4")]
pub struct List {
    #[command(flatten)]
    filter: Filter,

    /// One line for all that died of the same: their messages differ in numbers, ids and quoted texts only
    #[arg(long, conflicts_with = "after")]
    group: bool,

    /// Those that were requeued, too
    #[arg(long)]
    requeued: bool,

    /// Only those after this one: the last of the page before
    #[arg(long, value_name = "ID")]
    after: Option<JobId>,

    /// How many: 1 to 1000
    #[arg(long, default_value_t = 50, value_parser = number::of::<usize>("write 1 to 1000"))]
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

    #[command(flatten)]
    shown: ShownZone,

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
  tenure dead requeue --fingerprint 1f0c6e7a92b4 --over 5m
  tenure dead requeue --all --per-second 10")]
pub struct Requeue {
    #[command(flatten)]
    which: Which,

    /// Another payload, for one job: the new job then has an idempotency key of its own
    #[arg(long, value_name = "JSON")]
    payload: Option<String>,

    /// Not more than so many per second [default: no limit]
    #[arg(long, value_name = "N", value_parser = number::within(1..=u32::MAX))]
    per_second: Option<u32>,

    /// Spread evenly over this time: the new jobs are scheduled, and the command does not wait for them
    #[arg(long, value_name = "TIME", value_parser = when::duration, conflicts_with = "per_second")]
    over: Option<Duration>,

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
  tenure dead discard --kind send_mail --before 30d     counts, then asks
  tenure dead discard --all --yes                       those that were requeued stay")]
pub struct Discard {
    #[command(flatten)]
    which: Which,

    /// Do not ask before a selection is removed
    #[arg(long)]
    yes: bool,

    /// Print a JSON array of ids
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
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
    let filter = if args.requeued { args.filter.read().requeued() } else { args.filter.read() };
    if args.group {
        let groups = client.dead_groups(&filter, Some(args.limit)).await?;
        match args.json {
            true => output::json(&groups.iter().map(group::group_json).collect::<Vec<_>>())?,
            false => group::print_groups(&groups, client.now().await?, &args.filter.none())?,
        }
        return Ok(0);
    }
    let after = match args.after {
        Some(id) => Some(client.dead_letter(id).await?.ok_or_else(|| no_such_dead_letter(id))?),
        None => None,
    };
    let letters = client.dead_letters(&filter, after.as_ref(), Some(args.limit)).await?;
    let page = output::Page { items: &letters, limit: args.limit };
    if args.json {
        return page.json(LetterJson::from);
    }
    let now = client.now().await?;
    let row = |letter: &DeadLetter| {
        Ok(vec![
            letter.id.to_string(),
            letter.kind.clone(),
            letter.queue.clone(),
            format!("{}/{}", letter.attempt, letter.max_attempts),
            output::relative(letter.died_at, now),
            match letter.replaced_by {
                Some(new) => format!("{}, requeued as {new}", letter.cause),
                None => letter.cause.clone(),
            },
            output::start_of(&letter.message, 80),
        ])
    };
    let header = ["ID", "KIND", "QUEUE", "ATTEMPT", "DIED", "CAUSE", "MESSAGE"];
    page.table(&header, &args.filter.none(), row, |last| format!("--after {}", last.id))
}

fn no_such_dead_letter(id: JobId) -> Failure {
    Failure::NotFound(format!("there is no dead letter {id}\n        `tenure job show {id}` says where the job stands"))
}

async fn show(args: Show) -> Outcome {
    let client = args.connection.connect().await?;
    let letter = client.dead_letter(args.id).await?.ok_or_else(|| no_such_dead_letter(args.id))?;
    let line = client.line_of(args.id).await?;
    if args.json {
        output::json(&LetterJson { line: Some(group::line_json(&line)), ..LetterJson::from(&letter) })?;
        return Ok(0);
    }
    let optional = |value: Option<JobId>| value.map(|id| id.to_string()).unwrap_or_default();
    output::facts(&[
        ("id", letter.id.to_string()),
        ("kind", letter.kind.clone()),
        ("queue", letter.queue.clone()),
        ("priority", letter.priority.to_string()),
        ("attempt", format!("{} of {}", letter.attempt, letter.max_attempts)),
        ("created at", args.shown.instant(letter.created_at)?),
        ("started at", args.shown.instant_or_empty(letter.started_at)?),
        ("died at", args.shown.instant(letter.died_at)?),
        ("cause", letter.cause.clone()),
        ("message", letter.message.clone()),
        ("fingerprint", letter.fingerprint.clone()),
        ("idempotency key", letter.idempotency_key.clone()),
        ("requeued from", optional(letter.replaces_id)),
        ("origin", optional(letter.origin_id)),
        ("requeued as", optional(letter.replaced_by)),
        ("payload", letter.payload.to_string()),
    ])?;
    print_attempts(&client.attempt_errors(args.id).await?, &args.shown)?;
    group::print_line(&line, &args.shown)?;
    Ok(0)
}

async fn requeue(args: Requeue) -> Outcome {
    let payload = args.payload.map(RawJson::parse).transpose().map_err(|e| e.context("--payload"))?;
    let named = args.which.read("requeue")?;
    if payload.is_some() && !matches!(&named, Named::Ids(ids) if ids.len() == 1) {
        return Err(Failure::Usage("dead requeue: --payload is for one job\n        name its id".to_owned()));
    }
    let pace = match (args.per_second, args.over) {
        (Some(rate), _) => RequeuePace::PerSecond(rate),
        (None, Some(time)) => RequeuePace::Over(time),
        (None, None) => RequeuePace::AtOnce,
    };
    if pace != RequeuePace::AtOnce && matches!(named, Named::Ids(_)) {
        return Err(Failure::Usage(
            "dead requeue: --per-second and --over are for a filter\n        ids are requeued at once".to_owned(),
        ));
    }
    let client = args.connection.connect().await?;
    let mut moved = Vec::new();
    let mut note = |chunk: &[(JobId, JobId)]| {
        moved.extend_from_slice(chunk);
        // A closed stdout is no reason to stop half way.
        let _ = print_unless(args.json, chunk.iter().map(|(old, new)| format!("{old} requeued as {new}")));
    };
    let done = match named {
        Named::Filter(filter) => client.requeue_dead(&filter, pace, &mut note).await.map(drop).map_err(Failure::from),
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
    let ids = each_once(ids);
    for letter in refuse_unknown(client, &ids).await? {
        if let Some(new) = letter.replaced_by {
            let id = letter.id;
            return Err(Failure::from(anyhow::anyhow!(
                "dead letter {id} was requeued as {new}; nothing was requeued\n        leave it out, or look at `tenure job show {new}`"
            )));
        }
    }
    for id in ids {
        note(&[(id, client.requeue(id, payload.clone()).await?)]);
    }
    Ok(())
}

async fn discard(args: Discard) -> Outcome {
    let named = args.which.read("discard")?;
    let client = args.connection.connect().await?;
    if let (Named::Filter(filter), false) = (&named, args.yes) {
        let question = format!("discard {} for good?", client.count_dead(filter).await?);
        let nobody = "dead discard: nobody can be asked, as this is no terminal\n        add --yes to remove them, or see them with `tenure dead list`";
        if !agreed(&question, nobody)? {
            eprintln!("nothing was discarded");
            return Ok(1);
        }
    }
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
    let ids = each_once(ids);
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
async fn refuse_unknown(client: &Client, ids: &[JobId]) -> Result<Vec<DeadLetter>, Failure> {
    let mut letters = Vec::new();
    for id in ids {
        letters.push(client.dead_letter(*id).await?.ok_or_else(|| no_such_dead_letter(*id))?);
    }
    Ok(letters)
}

fn each_once(mut ids: Vec<JobId>) -> Vec<JobId> {
    let mut seen = HashSet::new();
    ids.retain(|id| seen.insert(*id));
    ids
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
    fingerprint: &'a str,
    errors: &'a RawJson,
    payload: &'a RawJson,
    idempotency_key: &'a str,
    origin_id: Option<JobId>,
    replaces_id: Option<JobId>,
    replaced_by: Option<JobId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<serde_json::Value>,
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
            fingerprint: &letter.fingerprint,
            errors: &letter.errors,
            payload: &letter.payload,
            idempotency_key: &letter.idempotency_key,
            origin_id: letter.origin_id,
            replaces_id: letter.replaces_id,
            replaced_by: letter.replaced_by,
            line: None,
        }
    }
}
