//! The topic `speed`: how quick the queue is against plain SQL on the same server, what it costs, and that neither history nor
//! an old snapshot makes it slower. All of it is measured by `tenure bench`, in rounds in which everything takes its turn.

mod lines;
mod peers;
mod runs;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tenure_dev::{Options as ServerOptions, Server};
use tenure_scenarios::{Bound, Measure, Size, size};

use super::parts::{guarded, is_chosen, refuse_unknown};
use super::{Options, table};
use crate::{child, say, setup};
use runs::Run;

/// Large enough that no checkpoint falls into a measurement; the rest is what durability asks for, which is the default.
const SETTINGS: [&str; 7] = [
    "max_connections=200",
    "shared_buffers=1GB",
    "max_wal_size=8GB",
    "min_wal_size=2GB",
    "checkpoint_timeout=30min",
    "wal_compression=on",
    "autovacuum_naptime=10s",
];

/// What each run reported in one round. What failed is missing.
type Round = HashMap<Run, Value>;

/// A group of claims, the runs that they need, and how they are read off the rounds.
struct Part {
    name: &'static str,
    quick: bool,
    needs: &'static [Run],
    lines: fn(&[Round]) -> Result<Vec<Measure>>,
}

fn parts() -> Vec<Part> {
    let part = |name, needs, lines| Part { name, quick: true, needs, lines };
    vec![
        part("enqueue", &[Run::Floor, Run::Enqueue], lines::enqueue),
        part("work", &[Run::Work], lines::work),
        part("single", &[Run::Singles], lines::single),
        part("latency", &[Run::Latency], lines::latency),
        part("pinned", &[Run::Row, Run::Pinned, Run::SinglesRow, Run::SinglesPinned], lines::pinned),
        part("history", &[Run::Row, Run::History], lines::history),
        part("scheduled", &[Run::Row, Run::Scheduled], lines::scheduled),
        part("memory", &[Run::Memory], lines::memory),
        part("slow commit", &[Run::Late], lines::late),
        part("queues", &[Run::Queues], lines::queues),
        part("idle", &[Run::Idle], lines::idle),
        part("payloads", &[Run::Payload1K, Run::Payload64K], lines::payloads),
        part("statistics", &[Run::Statistics], lines::statistics),
        Part { quick: false, ..part("processes", &[Run::Processes], lines::processes) },
    ]
}

/// Runs what the chosen parts need and prints what came out.
pub(crate) fn run(options: &Options) -> Result<()> {
    let parts = parts();
    if options.list {
        parts.iter().for_each(|part| println!("{}", part.name));
        return Ok(());
    }
    refuse_unknown(options, "speed", &parts.iter().map(|part| part.name).collect::<Vec<_>>());
    let chosen: Vec<Part> = parts.into_iter().filter(|part| is_chosen(options, part.name, part.quick)).collect();
    let size = if options.quick { Size::Ci } else { Size::Full };
    let (rounds, mut lines) = measured(&chosen, size, options.peers)?;
    lines.extend(ended(&rounds));
    for part in &chosen {
        lines.extend(guarded(part.name, || (part.lines)(&whole(part, &rounds))).unwrap_or_else(|failed| vec![failed]));
    }
    if options.quick {
        lines.iter_mut().for_each(judge_no_speed);
    }
    table::print("speed", options.quick, options.json, &lines)
}

/// The rounds in which all ran that the part needs. What did not run has a line of its own; with no such round the part has one too.
fn whole(part: &Part, rounds: &[Round]) -> Vec<Round> {
    let whole: Vec<Round> =
        rounds.iter().filter(|round| part.needs.iter().all(|run| round.contains_key(run))).cloned().collect();
    if whole.is_empty() { rounds.to_vec() } else { whole }
}

/// Every job that was enqueued has ended: the one thing that a small run can show.
fn ended(rounds: &[Round]) -> Option<Measure> {
    let reports = rounds.iter().flat_map(|round| round.values());
    let runs: Vec<&Value> = reports.flat_map(|report| report["runs"].as_array()).flatten().collect();
    let runs: Vec<&Value> = runs.into_iter().filter(|run| run["completed"].is_u64()).collect();
    let whole = runs.iter().filter(|run| run["completed"] == run["jobs"]).count();
    let claim = "runs after which as many jobs had ended as were enqueued";
    (!runs.is_empty()).then(|| Measure::count(claim, runs.len(), whole))
}

/// At small sizes rates and times are noise: they are printed, and hold nothing.
fn judge_no_speed(line: &mut Measure) {
    match line.bound {
        Bound::AtMost(_) | Bound::AtLeast(_) => line.bound = Bound::Shown,
        Bound::Exactly(_) | Bound::AimBelow(_) | Bound::Shown | Bound::Run => {}
    }
}

/// All rounds, and the lines of what failed, and of other queues.
fn measured(chosen: &[Part], size: Size, with_peers: bool) -> Result<(Vec<Round>, Vec<Measure>)> {
    let tenure = built()?;
    let server = Server::start(ServerOptions {
        ephemeral: true,
        bin_dir: Some(setup::binaries()?.dir),
        settings: SETTINGS.map(str::to_owned).to_vec(),
        say,
        ..ServerOptions::default()
    })?;
    let (count, runs) = (size::SPEED_ROUNDS.at(size), runs_of(chosen));
    say(&format!(
        "PostgreSQL {}, durable, {}; {count} rounds of {} runs",
        server.version(),
        SETTINGS.join(" "),
        runs.len()
    ));
    let (mut rounds, mut lines) = (Vec::new(), Vec::new());
    'rounds: for n in 1..=count {
        let mut round = Round::new();
        for (place, &run) in runs.iter().enumerate() {
            if child::caught().is_some() {
                rounds.push(round);
                break 'rounds;
            }
            let name = format!("round {n} of {count}, {run:?}");
            say(&format!("{name} ({} of {})", place + 1, runs.len()));
            let start = Instant::now();
            let _ = guarded(&name, || {
                let report = report(&tenure, &run.arguments(size), server.url())?;
                figures(&report).iter().for_each(|told| say(&format!("{name}: {told}")));
                round.insert(run, report);
                Ok(Vec::new())
            })
            .map_err(|line| lines.push(line));
            say(&format!("{name}: {:.0} s", start.elapsed().as_secs_f64()));
        }
        rounds.push(round);
    }
    if with_peers && child::caught().is_none() {
        lines
            .extend(guarded("other queues", || peers::lines(server.url(), size)).unwrap_or_else(|failed| vec![failed]));
    }
    lines.extend(guarded("the server stops", || server.stop().map(|()| Vec::new())).err());
    Ok((rounds, lines))
}

/// What each run of a report found, in a few words: who breaks off a proof of half an hour has seen something.
fn figures(report: &Value) -> Vec<String> {
    const TOLD: [&str; 13] = [
        "form",
        "producers",
        "concurrency",
        "workers",
        "copy_per_s",
        "jobs_per_s",
        "wal_bytes_per_job",
        "peak_mb",
        "p50_ms",
        "p99_ms",
        "queues",
        "statistics",
        "enqueue_per_s",
    ];
    let told = |run: &Value| {
        let known = TOLD.iter().filter(|name| !run[**name].is_null());
        known.map(|name| format!("{name} {}", rounded(&run[*name]))).collect::<Vec<_>>().join(", ")
    };
    report["runs"].as_array().into_iter().flatten().map(told).filter(|told| !told.is_empty()).collect()
}

fn rounded(value: &Value) -> String {
    match value {
        Value::Number(number) if number.is_f64() => format!("{:.2}", number.as_f64().unwrap_or_default()),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Each run once, in the order of the parts.
fn runs_of(chosen: &[Part]) -> Vec<Run> {
    let mut runs = Vec::new();
    for run in chosen.iter().flat_map(|part| part.needs) {
        if !runs.contains(run) {
            runs.push(*run);
        }
    }
    runs
}

/// The program as users have it: optimised.
fn built() -> Result<PathBuf> {
    say("building tenure for release");
    let build = ["build", "--quiet", "--release", "--package", "tenure-cli"];
    child::run(child::cargo(&build).current_dir(child::workspace()))?;
    let programs = std::env::current_exe()?;
    let target = programs.parent().and_then(Path::parent).context("this program is in no folder")?;
    Ok(target.join("release/tenure"))
}

fn report(tenure: &Path, arguments: &[String], url: &str) -> Result<Value> {
    let mut command = Command::new(tenure);
    command.arg("bench").args(arguments).arg("--json").env("DATABASE_URL", url);
    let report = serde_json::from_slice(&child::output(&mut command)?).context("what it printed is not JSON")?;
    refuse_unsafe(&report)?;
    Ok(report)
}

/// Only what a user gets is measured: an optimised program, on a server that loses nothing that it has confirmed.
fn refuse_unsafe(report: &Value) -> Result<()> {
    for setting in ["fsync", "synchronous_commit", "full_page_writes"] {
        let value = &report["server"][setting];
        ensure!(value == "on", "{setting} was {value} in a run, and has to be on");
    }
    ensure!(report["debug_build"] == false, "it was not a release build that ran");
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_run_that_two_parts_need_runs_once() {
        let all = runs_of(&parts());
        assert_eq!(all.iter().filter(|run| **run == Run::Floor).count(), 1);
        assert_eq!(all.iter().filter(|run| **run == Run::Row).count(), 1);
        assert_eq!(all.len(), 19, "{all:?}");
    }

    #[test]
    fn a_part_is_judged_by_the_rounds_in_which_all_of_it_ran() {
        let part = || parts().into_iter().find(|part| part.name == "enqueue").expect("it is there");
        let round = |runs: &[Run]| runs.iter().map(|run| (*run, json!({}))).collect::<Round>();
        let (both, half) = (round(&[Run::Floor, Run::Enqueue]), round(&[Run::Floor]));
        assert_eq!(whole(&part(), &[both.clone(), half.clone(), both]).len(), 2);
        assert_eq!(whole(&part(), &[half]).len(), 1, "it says what is missing");
    }

    #[test]
    fn figures_are_told_as_they_come() {
        let report = json!({ "runs": [{ "form": "copy", "jobs_per_s": 12_345.678, "slices": [1] }, { "p50_ms": 1 }] });
        assert_eq!(figures(&report), ["form copy, jobs_per_s 12345.68", "p50_ms 1"]);
    }

    #[test]
    fn every_part_can_be_chosen_alone_by_its_name() {
        let parts = parts();
        for part in &parts {
            let holding = parts.iter().filter(|other| other.name.contains(part.name)).count();
            assert_eq!(holding, 1, "--only {:?} chooses others as well", part.name);
        }
    }

    #[test]
    fn small_sizes_are_judged_by_the_jobs_that_ended_and_by_no_speed() {
        let report =
            |completed: u64| json!({ "runs": [{ "jobs": 50, "completed": completed }, { "jobs": 7, "p50_ms": 1.0 }] });
        let rounds = |completed| [Round::from([(Run::Work, report(completed)), (Run::Floor, json!({ "runs": [] }))])];
        let held = |completed| ended(&rounds(completed)).and_then(|line| line.held());
        assert_eq!((held(50), held(49)), (Some(true), Some(false)));
        for bound in [Bound::AtLeast(0.9), Bound::AtMost(0.5)] {
            let mut slow = Measure::new("a ratio", bound, 0.7, "");
            judge_no_speed(&mut slow);
            assert_eq!(slow.held(), None);
        }
        let mut failed = Measure::did_not_run("a run", "it was stuck");
        judge_no_speed(&mut failed);
        assert_eq!(failed.held(), Some(false));
    }

    #[test]
    fn a_run_that_would_lose_jobs_in_a_crash_or_was_not_optimised_is_refused() {
        let report = |fsync: &str, commit: &str, debug: bool| {
            let server = json!({ "fsync": fsync, "synchronous_commit": commit, "full_page_writes": "on" });
            refuse_unsafe(&json!({ "server": server, "debug_build": debug })).map_err(|error| error.to_string())
        };
        assert_eq!(report("on", "on", false), Ok(()));
        let check = |refused: Result<(), String>, words| assert!(refused.unwrap_err().contains(words), "{words}");
        check(report("off", "on", false), "fsync was \"off\"");
        check(report("on", "local", false), "synchronous_commit was \"local\"");
        check(report("on", "on", true), "release build");
        assert!(refuse_unsafe(&json!({})).is_err(), "nothing is known of it");
    }
}
