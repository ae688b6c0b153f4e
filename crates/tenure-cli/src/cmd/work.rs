//! `tenure work`: a worker that runs a program per job.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tenure::{Context, KindOptions, RawJson, RunningWorker, Summary, Worker, limits};

use super::queue::unused;
use crate::connection::Connection;
use crate::exec;
use crate::exit::{Failure, Outcome};
use crate::signals::Signals;
use crate::{output, when};

/// Run jobs with programs
///
/// Each job of a kind starts its program with `sh -c`: the payload is on stdin, and TENURE_JOB_ID, TENURE_KIND,
/// TENURE_QUEUE, TENURE_ATTEMPT, TENURE_MAX_ATTEMPTS, TENURE_IDEMPOTENCY_KEY and TENURE_FENCE are in the environment.
/// JSON on stdout is stored as the result; of other text the end is kept as the job's progress.
///
/// SIGTERM or Ctrl-C stops in order: no more claims, what has not started goes back, what runs may end within --grace.
/// A second one stops at once.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes of a program:
  0          completed
  65         permanent: to the dead letters, no retry
  126, 127   the program cannot be run: the job goes back unharmed, and this worker takes no more of the kind
  others     retry with backoff (75 says so)

Examples:
  tenure work --queue default=4 --exec 'thumbnail=./thumbnail.sh'
  tenure work --queue mail=8 --queue reports=1 --exec send_mail=./send-mail --exec 'report=python3 report.py'
  tenure work --queue default=4 --exec 'echo=cat' --drain      run what there is, then end
  tenure work --exec 'echo=cat' --drain --json | jq .stats.failed")]
pub struct Work {
    /// Take jobs from this queue, N at a time [default: default=<cores>]; may be repeated
    #[arg(long = "queue", value_name = "NAME=N", value_parser = queue)]
    queues: Vec<(String, usize)>,

    /// Run jobs of this kind with this command; may be repeated
    #[arg(long = "exec", value_name = "KIND=COMMAND", value_parser = program, required = true)]
    programs: Vec<(String, String)>,

    /// Name of this worker, for people [default: the host's]
    #[arg(long)]
    name: Option<String>,

    /// How long the jobs stay this worker's own without a heartbeat: 2s to 1h
    #[arg(long, value_name = "TIME", value_parser = when::duration, default_value = "30s")]
    lease: Duration,

    /// How long this worker may be without its connections before its jobs go to others: 100ms to the lease. As long as a
    /// failover, its jobs run on over the death of a primary; when it is killed, they start elsewhere as much later
    #[arg(long, value_name = "TIME", value_parser = when::duration, default_value = "1s")]
    reconnect_grace: Duration,

    /// How long running jobs may go on after a stop was asked for
    #[arg(long, value_name = "TIME", value_parser = when::duration, default_value = "30s")]
    grace: Duration,

    /// How long a program may run, for jobs without a timeout of their own; 0: no limit
    #[arg(long, value_name = "TIME", value_parser = when::duration, default_value = "1h")]
    timeout: Duration,

    /// End when nothing is left to claim; jobs that are due later are not waited for
    #[arg(long)]
    drain: bool,

    /// Print what was done as one JSON object, at the end
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Works until a signal, or until the queues are drained.
pub async fn run(args: Work) -> Outcome {
    let mut signals = Signals::listen()?;
    let mut worker = start(&args).await?;
    announce(&args, &worker);
    let queues = args.queues.iter().map(|(queue, _)| queue.as_str());
    let (summary, ()) =
        tokio::join!(until_stopped(&mut worker, &mut signals), unused::warn(args.connection.connect(), queues));
    report(&args, &summary)
}

async fn start(args: &Work) -> Result<RunningWorker, tenure::Error> {
    let mut builder = Worker::builder(&args.connection.database_url)
        .schema(&args.connection.schema)
        .pooler(args.connection.pooler)
        .lease(args.lease)
        .reconnect_grace(args.reconnect_grace)
        .shutdown_grace(args.grace)
        .drain(args.drain);
    if let Some(name) = &args.name {
        builder = builder.name(name);
    }
    if args.queues.is_empty() {
        builder = builder.queue(limits::QUEUE_DEFAULT, cores());
    }
    for (queue, slots) in &args.queues {
        builder = builder.queue(queue, *slots);
    }
    for (kind, command) in &args.programs {
        let command: Arc<str> = command.as_str().into();
        let options = KindOptions::new().timeout(args.timeout);
        builder = builder.handle_raw(kind, options, move |ctx: Context, payload: RawJson| {
            let command = command.clone();
            async move { exec::run(&command, ctx, payload).await }
        });
    }
    builder.start().await
}

/// The first signal stops in order, the second at once.
async fn until_stopped(worker: &mut RunningWorker, signals: &mut Signals) -> Summary {
    let mut asked = false;
    loop {
        tokio::select! {
            summary = worker.join() => return summary,
            _ = signals.next() => {
                if asked {
                    eprintln!("tenure: stopping at once");
                    worker.abort();
                } else {
                    eprintln!("tenure: stopping, running jobs may end (again: stop at once)");
                    worker.shutdown();
                }
                asked = true;
            }
        }
    }
}

fn announce(args: &Work, worker: &RunningWorker) {
    let id = worker.worker_id().map(|id| id.to_string()).unwrap_or_default();
    let kinds: Vec<_> = args.programs.iter().map(|(kind, _)| kind.as_str()).collect();
    let queues: Vec<_> = args.queues.iter().map(|(name, slots)| format!("{name}={slots}")).collect();
    let queues = if queues.is_empty() { format!("default={}", cores()) } else { queues.join(", ") };
    eprintln!("tenure: worker {id} runs {} from {queues}", kinds.join(", "));
}

fn report(args: &Work, summary: &Summary) -> Outcome {
    let stats = &summary.stats;
    if args.json {
        output::json(&json!({
            "clean": summary.clean, "overrunning": summary.overrunning, "refused_kinds": summary.refused_kinds, "stats": stats,
        }))?;
    }
    eprintln!(
        "tenure: {} completed, {} failed ({} dead), {} cancelled, {} given back",
        stats.completed, stats.failed, stats.dead, stats.cancelled, stats.released
    );
    if !summary.refused_kinds.is_empty() {
        let kinds = summary.refused_kinds.join(", ");
        return Err(Failure::Failed(anyhow::anyhow!(
            "the programs of these kinds cannot be run: {kinds}. Their jobs were given back; check --exec and PATH"
        )));
    }
    if !summary.clean {
        // Without a pooler the end of this process is noticed by the lock that it held.
        let when = match args.connection.pooler {
            true => format!("after the lease of {}", output::exact(args.lease)),
            false => "within a few seconds of this process's end".to_owned(),
        };
        return Err(Failure::Failed(anyhow::anyhow!(
            "not everything could be finished or given back in time; what is left runs elsewhere {when}"
        )));
    }
    Ok(0)
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn queue(text: &str) -> Result<(String, usize), String> {
    let Some((name, slots)) = text.rsplit_once('=') else { return Ok((text.to_owned(), cores())) };
    let slots = slots.parse().map_err(|_| format!("{slots:?} is not a number of jobs: write {name}=4"))?;
    Ok((name.to_owned(), slots))
}

fn program(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((kind, command)) if !command.trim().is_empty() => Ok((kind.to_owned(), command.to_owned())),
        Some(_) | None => Err(format!("{text:?} names no command: write send_mail=./send-mail.sh")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_and_programs_are_read() {
        assert_eq!(queue("mail=4"), Ok(("mail".into(), 4)));
        assert_eq!(queue("a=b=2"), Ok(("a=b".into(), 2)));
        assert_eq!(queue("mail").map(|(name, _)| name), Ok("mail".into()));
        assert!(queue("mail=x").unwrap_err().contains("\"x\" is not a number of jobs"));
        assert_eq!(program("k=a --b=c"), Ok(("k".into(), "a --b=c".into())));
        assert!(program("k").unwrap_err().contains("names no command"));
        assert!(program("k= ").is_err());
    }
}
