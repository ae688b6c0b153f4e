//! `tenure status`: one look at the server, the queues and the workers.

use std::time::SystemTime;

use serde_json::{Value, json};
use tenure::{DeadRows, Snapshot, TroubledSchedule, TroubledSchedules, UnhandledKind, VacuumHorizon, WorkerInfo};

use super::queue;
use crate::connection::Connection;
use crate::exit::Outcome;
use crate::output;

/// Show the server, who holds back vacuum, the queues, what no worker can run, schedules that do not fire, and the workers
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  tenure status\n  tenure status --json | jq '.queues[].available'")]
pub struct Status {
    /// Print a JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Schedules that do not fire, of each state at most; more of them have one cause.
const TROUBLED_MAX: usize = 20;

/// Looks once and prints.
pub async fn run(args: Status) -> Outcome {
    let client = args.connection.connect().await?;
    let (server, queues, workers) = (client.server().await?, client.queues().await?, client.workers().await?);
    let unhandled = client.unhandled_kinds().await?;
    let kinds = client.paused_kinds().await?;
    let troubled = client.troubled_schedules(Some(TROUBLED_MAX)).await?;
    let horizon = client.vacuum_horizon().await?;
    if args.json {
        output::json(&json!({
            "server_version": server.version,
            "database": server.database,
            "now": output::instant(server.now),
            "schema": args.connection.schema,
            "schema_version": server.schema_version,
            "schema_version_known": server.schema_version_known,
            "vacuum": horizon_json(&horizon),
            "queues": queues.iter().map(queue::to_json).collect::<Vec<_>>(),
            "unhandled_kinds": unhandled.iter().map(unhandled_json).collect::<Vec<_>>(),
            "troubled_schedules": troubled.schedules.iter().map(troubled_json).collect::<Vec<_>>(),
            "more_troubled_schedules": troubled.cut,
            "paused_kinds": kinds.iter().map(queue::kind_json).collect::<Vec<_>>(),
            "workers": workers.iter().map(worker_json).collect::<Vec<_>>(),
        }))?;
        return Ok(0);
    }
    let schema = match server.schema_version == server.schema_version_known {
        true => format!("{} at version {}", args.connection.schema, server.schema_version),
        false => format!(
            "{} at version {}; this program knows {}",
            args.connection.schema, server.schema_version, server.schema_version_known
        ),
    };
    output::facts(&[
        ("server", format!("PostgreSQL {}", server.version)),
        ("database", server.database),
        ("schema", schema),
        ("oldest snapshot", oldest(&horizon)),
        ("dead rows", dead_rows(&horizon)),
    ])?;
    for snapshot in horizon.old() {
        output::foreign_line(&format!(
            "WARNING: {snapshot} keeps vacuum from removing dead rows: {}",
            snapshot.way_out()
        ))?;
    }
    output::line("")?;
    queue::print(&queues, server.now)?;
    queue::print_kinds(&kinds, server.now)?;
    output::line("")?;
    if !unhandled.is_empty() {
        print_unhandled(&unhandled, server.now)?;
        output::line("")?;
    }
    if !troubled.schedules.is_empty() || troubled.cut {
        print_troubled(&troubled, server.now)?;
        output::line("")?;
    }
    print_workers(&workers, server.now)?;
    Ok(0)
}

/// Who holds back vacuum for the longest, and what cannot be seen of it.
fn oldest(horizon: &VacuumHorizon) -> String {
    let oldest = match horizon.snapshots.first() {
        Some(snapshot) => format!("{}, {snapshot}", age(snapshot)),
        None => "none".to_owned(),
    };
    match horizon.hidden_sessions {
        0 => oldest,
        hidden => format!(
            "{oldest}\n{hidden} sessions of other roles cannot be seen: grant pg_read_all_stats to the owner of the schema"
        ),
    }
}

fn age(snapshot: &Snapshot) -> String {
    match snapshot.age {
        Some(age) => output::rough(age),
        None => format!("{} transactions", snapshot.transactions),
    }
}

/// Of the tables that every claim passes; those that have none are left out.
fn dead_rows(horizon: &VacuumHorizon) -> String {
    let some = horizon.dead_rows.iter().filter(|table| table.dead > 0);
    let some: Vec<String> = some.map(|table| format!("{} {}", table.table, table.dead)).collect();
    if some.is_empty() { "none".to_owned() } else { some.join(", ") }
}

fn horizon_json(horizon: &VacuumHorizon) -> Value {
    let snapshot = |snapshot: &Snapshot| {
        json!({
            "holder": snapshot.holder.as_str(),
            "name": snapshot.name,
            "pid": snapshot.pid,
            "user": snapshot.user,
            "application": snapshot.application,
            "state": snapshot.state,
            "age_s": snapshot.age.map(|age| age.as_secs_f64()),
            "transactions": snapshot.transactions,
            "old": snapshot.old,
            "way_out": snapshot.way_out(),
        })
    };
    let table = |table: &DeadRows| json!({ "table": table.table, "dead": table.dead, "live": table.live });
    json!({
        "warn_after_s": horizon.warn_after.as_secs_f64(),
        "snapshots": horizon.snapshots.iter().map(snapshot).collect::<Vec<_>>(),
        "hidden_sessions": horizon.hidden_sessions,
        "dead_rows": horizon.dead_rows.iter().map(table).collect::<Vec<_>>(),
    })
}

/// What waits for a worker that is not there: a program that is not deployed or cannot be run, or a misspelt kind.
fn print_unhandled(unhandled: &[UnhandledKind], now: SystemTime) -> std::io::Result<()> {
    let row = |kind: &UnhandledKind| {
        let since = kind.oldest_due_at.map(|at| output::relative(at, now)).unwrap_or_default();
        let why = kind.refused.as_deref().unwrap_or("no worker has a handler for it");
        vec![kind.kind.clone(), kind.queue.clone(), kind.available.to_string(), since, output::start_of(why, 160)]
    };
    output::table(&["NO WORKER FOR", "QUEUE", "AVAILABLE", "OLDEST", "WHY"], unhandled.iter().map(row).collect(), "")
}

fn unhandled_json(kind: &UnhandledKind) -> Value {
    json!({
        "queue": kind.queue,
        "kind": kind.kind,
        "available": kind.available,
        "oldest_due_at": kind.oldest_due_at.map(output::instant),
        "refused": kind.refused,
    })
}

/// Schedules that cannot fire, or whose time came and nobody fired them.
fn print_troubled(troubled: &TroubledSchedules, now: SystemTime) -> std::io::Result<()> {
    let row = |schedule: &TroubledSchedule| {
        let why = schedule.error.as_deref().unwrap_or("nobody has fired it: does a worker live?");
        let since = output::relative(schedule.since, now);
        vec![schedule.name.clone(), schedule.state.clone(), since, output::start_of(why, 160)]
    };
    output::table(&["SCHEDULE", "STATE", "SINCE", "WHY"], troubled.schedules.iter().map(row).collect(), "")?;
    match troubled.cut {
        true => output::line("and more: `tenure schedule list` shows all"),
        false => Ok(()),
    }
}

fn troubled_json(schedule: &TroubledSchedule) -> Value {
    json!({
        "name": schedule.name, "state": schedule.state, "since": output::instant(schedule.since), "error": schedule.error,
    })
}

/// The workers as a table.
pub fn print_workers(workers: &[WorkerInfo], now: SystemTime) -> std::io::Result<()> {
    let row = |worker: &WorkerInfo| {
        vec![
            worker.id.to_string(),
            worker.name.clone(),
            worker.state.clone(),
            format!("{}:{}", worker.host, worker.pid),
            running(worker),
            worker.queues.join(","),
            output::relative(worker.seen_at, now),
            output::relative(worker.started_at, now),
        ]
    };
    let header = ["WORKER", "NAME", "STATE", "PROCESS", "RUNNING", "QUEUES", "SEEN", "STARTED"];
    output::table(&header, workers.iter().map(row).collect(), "no workers")?;
    match stranded(workers) {
        0 => Ok(()),
        jobs => output::line(&format!(
            "\nWARNING: all workers look lost; the jobs that they hold ({jobs}) are given away as soon as another worker starts"
        )),
    }
}

/// Jobs of workers that look lost, while nobody is there who would give them away.
fn stranded(workers: &[WorkerInfo]) -> i64 {
    let is_lost = |worker: &&WorkerInfo| matches!(worker.state.as_str(), "suspected" | "dead");
    match workers.iter().all(|worker| is_lost(&worker)) {
        true => workers.iter().map(|worker| worker.running).sum(),
        false => 0,
    }
}

/// What overruns is a part of what runs.
fn running(worker: &WorkerInfo) -> String {
    match worker.overruns {
        0 => worker.running.to_string(),
        overruns => format!("{}, {overruns} overrun", worker.running),
    }
}

/// A worker as JSON.
pub fn worker_json(worker: &WorkerInfo) -> Value {
    json!({
        "id": worker.id,
        "name": worker.name,
        "state": worker.state,
        "host": worker.host,
        "pid": worker.pid,
        "version": worker.version,
        "queues": worker.queues,
        "kinds": worker.kinds,
        "running": worker.running,
        "overruns": worker.overruns,
        "has_lock": worker.has_lock,
        "started_at": output::instant(worker.started_at),
        "seen_at": output::instant(worker.seen_at),
        "lease_until": output::instant(worker.lease_until),
    })
}
