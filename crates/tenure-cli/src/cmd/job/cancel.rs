//! `tenure job cancel`: single jobs by id, or a whole selection, counted first.

use serde_json::json;
use tenure::lifecycle::State;
use tenure::{CancelFilter, Cancelled, CancelledMany, Client, Error, ErrorCode, JobId};

use super::{no_such_job, state, states};
use crate::agree::agreed;
use crate::connection::Connection;
use crate::exit::{Failure, Outcome};
use crate::output;
use crate::when::{self, When};

/// Cancel jobs: at once when they wait, through their worker when they run
#[derive(Debug, clap::Args)]
#[command(after_help = "\
With ids, prints per job: cancelled, requested (it runs; its worker is told), or where it stood already: completed,
already cancelled, dead. A selection is counted first, and cancelled after a yes; exit code 1 when jobs were left that
somebody else is just changing.

Examples:
  tenure job cancel 12800
  tenure job cancel --queue reports --kind monthly --dry-run
  tenure job cancel --queue reports --older-than 2h --status available,retrying --yes")]
pub struct Cancel {
    /// The jobs' ids
    ids: Vec<JobId>,

    /// All unfinished jobs of this queue
    #[arg(long)]
    queue: Option<String>,

    /// All unfinished jobs of this kind
    #[arg(long)]
    kind: Option<String>,

    /// Only those enqueued longer ago than this, or before this instant: 2h, 2026-12-24T18:00:00Z
    #[arg(long, value_name = "WHEN", value_parser = when::instant_or_ago)]
    older_than: Option<When>,

    #[arg(long, value_name = "STATES", value_parser = state, value_delimiter = ',')]
    #[arg(help = format!("Only in these states: {} [default: all of them]", states(&CancelFilter::STATUSES)))]
    status: Vec<State>,

    /// Every unfinished job
    #[arg(long)]
    all: bool,

    /// Only count
    #[arg(long)]
    dry_run: bool,

    /// Cancel without asking; needed when there is no terminal to ask on
    #[arg(long)]
    yes: bool,

    /// Print JSON: an array for ids, an object for a selection
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

impl Cancel {
    /// None: ids are named.
    fn selection(&self) -> Result<Option<CancelFilter>, Failure> {
        let filtered =
            self.queue.is_some() || self.kind.is_some() || self.older_than.is_some() || !self.status.is_empty();
        match (self.ids.is_empty(), filtered, self.all) {
            (false, false, false) => Ok(None),
            (true, true, false) | (true, false, true) => Ok(Some(self.filter())),
            (true, false, false) => Err(Failure::Usage(
                "job cancel: nothing is named\n        name job ids, or a selection (--queue, --kind, --older-than, --status), or --all for every unfinished job".to_owned(),
            )),
            (_, _, _) => Err(Failure::Usage(
                "job cancel: job ids, a selection and --all exclude each other\n        give one of them".to_owned(),
            )),
        }
    }

    fn filter(&self) -> CancelFilter {
        let mut filter = CancelFilter::all();
        if let Some(queue) = &self.queue {
            filter = filter.queue(queue);
        }
        if let Some(kind) = &self.kind {
            filter = filter.kind(kind);
        }
        filter = match self.older_than {
            Some(When::At(instant)) => filter.created_before(instant),
            Some(When::Ago(age)) => filter.older_than(age),
            None => filter,
        };
        self.status.iter().fold(filter, |filter, status| filter.status(*status))
    }
}

/// Runs the verb.
pub async fn run(args: Cancel) -> Outcome {
    match args.selection()? {
        Some(filter) => cancel_selection(args, filter).await,
        None => cancel_ids(args).await,
    }
}

async fn cancel_selection(args: Cancel, filter: CancelFilter) -> Outcome {
    let client = args.connection.connect().await?;
    let counts = client.count_unfinished(&filter).await?;
    let total: u64 = counts.iter().map(|(_, count)| count).sum();
    eprintln!("{}", counted(&counts, total));
    if args.dry_run || total == 0 {
        return conclude(&args, &counts, CancelledMany::default());
    }
    let nobody = "job cancel: nobody can be asked, as this is no terminal\n        add --yes to cancel them, or --dry-run to count only";
    if !args.yes && !agreed(&format!("cancel {total}?"), nobody)? {
        eprintln!("nothing was cancelled");
        return Ok(1);
    }
    let mut so_far = CancelledMany::default();
    let done = client
        .cancel_many(&filter, |sum| {
            so_far = sum;
            eprintln!("{} cancelled, {} asked of their workers", sum.cancelled, sum.requested);
        })
        .await;
    // What was done is said also when the rest could not be.
    conclude(&args, &counts, *done.as_ref().unwrap_or(&so_far))?;
    match done?.busy {
        0 => Ok(0),
        busy => {
            eprintln!("{busy} left, as somebody is just changing them: call again");
            Ok(1)
        }
    }
}

fn counted(counts: &[(State, u64)], total: u64) -> String {
    let parts: Vec<_> = counts.iter().map(|(status, count)| format!("{count} {status}")).collect();
    match total {
        0 => "no unfinished job is in this selection".to_owned(),
        1 => format!("1 job: {}", parts.join(", ")),
        total => format!("{total} jobs: {}", parts.join(", ")),
    }
}

fn conclude(args: &Cancel, counts: &[(State, u64)], sum: CancelledMany) -> Outcome {
    if args.json {
        let counts: serde_json::Map<_, _> =
            counts.iter().map(|(status, count)| (status.as_str().to_owned(), json!(count))).collect();
        output::json(&json!({
            "counted": counts, "dry_run": args.dry_run, "cancelled": sum.cancelled, "requested": sum.requested, "busy": sum.busy,
        }))?;
    } else if args.dry_run {
        for (status, count) in counts {
            output::line(&format!("{count} {status}"))?;
        }
    } else {
        output::line(&format!("{} cancelled, {} requested", sum.cancelled, sum.requested))?;
    }
    Ok(0)
}

async fn cancel_ids(args: Cancel) -> Outcome {
    if args.dry_run {
        return Err(Failure::Usage(
            "job cancel: --dry-run counts a selection\n        `tenure job show ID` says where a job stands".to_owned(),
        ));
    }
    let client = args.connection.connect().await?;
    let mut answers = Vec::new();
    let done = cancel_each(&client, &args.ids, |id, answer| answers.push((id, answer))).await;
    // What was done is said also when the rest could not be.
    if done.is_ok() || !answers.is_empty() {
        print_answers(&answers, args.json)?;
    }
    done?;
    match answers.iter().find(|(_, answer)| answer.is_none()) {
        Some((id, _)) => Err(no_such_job(*id)),
        None => Ok(0),
    }
}

async fn cancel_each(
    client: &Client,
    ids: &[JobId],
    mut note: impl FnMut(JobId, Option<Cancelled>),
) -> Result<(), Error> {
    for id in ids {
        note(*id, cancel_one(client, *id).await?);
    }
    Ok(())
}

fn print_answers(answers: &[(JobId, Option<Cancelled>)], json: bool) -> anyhow::Result<()> {
    let text = |answer: &Option<Cancelled>| answer.map_or("unknown", Cancelled::as_str);
    if json {
        let rows: Vec<_> = answers.iter().map(|(id, answer)| json!({ "id": id, "answer": text(answer) })).collect();
        return output::json(&rows);
    }
    answers.iter().try_for_each(|(id, answer)| Ok(output::line(&format!("{id} {}", text(answer)))?))
}

/// None: there is no such job.
async fn cancel_one(client: &Client, id: JobId) -> Result<Option<Cancelled>, Error> {
    match client.cancel(id).await {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.code() == ErrorCode::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
