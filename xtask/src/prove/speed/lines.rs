//! What is claimed, read off the rounds. Ratios are taken within a round, and the median of the rounds is the figure.

mod many;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tenure_scenarios::measure::longest;
use tenure_scenarios::{Bound, Measure};

use super::Round;
use super::runs::{CONCURRENCIES, CONCURRENCY, PROCESSES, PRODUCERS, Run};
pub(super) use many::{idle, payloads, queues, statistics};

/// Of a bare COPY of the same rows.
const BULK_OF_COPY: f64 = 0.5;
/// Of the best concurrency: nobody has to tune for speed.
const CONCURRENCY_OF_BEST: f64 = 0.6;
/// WAL from the enqueue to the outcome, payload 60 bytes.
const WAL_BULK: f64 = 600.0;
const WAL_SINGLE: f64 = 900.0;
const WAL_AIM: f64 = 400.0;
/// Beyond a notification and a durable commit, in ms; and what the slowest hundredth may take beyond that.
const LATENCY_P50_BEYOND: f64 = 0.5;
const LATENCY_P99_BEYOND: f64 = 5.0;
/// Of the first tenth of the jobs, and of the run without the snapshot.
const PINNED: f64 = 0.9;
const HISTORY: f64 = 0.9;
const SCHEDULED: f64 = 0.95;
const MEMORY_MB: f64 = 60.0;
const MANY_OF_BEST: f64 = 0.7;
/// From a late commit to the start of its job, in ms.
const LATE_MS: f64 = 1_000.0;

/// A figure of one round.
type Of<'a> = &'a dyn Fn(&Round) -> Result<f64>;

/// The median of all rounds.
fn median(rounds: &[Round], of: Of<'_>) -> Result<f64> {
    median_of(rounds.iter().map(of).collect::<Result<_>>()?).context("there was no round")
}

/// The middle one, or the mean of both; of none there is none.
pub(super) fn median_of(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    Some(if values.len() % 2 == 1 { upper } else { f64::midpoint(values[middle - 1], upper) })
}

fn line(rounds: &[Round], claim: impl Into<String>, bound: Bound, unit: &'static str, of: Of<'_>) -> Result<Measure> {
    Ok(Measure::new(claim, bound, median(rounds, of)?, unit))
}

/// The only run of a report that has these values under these names.
fn run<'a>(round: &'a Round, of: Run, keys: &[(&str, Value)]) -> Result<&'a Value> {
    let report = round.get(&of).with_context(|| format!("{of:?} did not run"))?;
    let runs = report["runs"].as_array().with_context(|| format!("{of:?} reports no runs"))?;
    let mut fitting = runs.iter().filter(|run| keys.iter().all(|(name, value)| run[*name] == *value));
    let found = fitting.next().with_context(|| format!("{of:?} has no run with {keys:?}"))?;
    ensure!(fitting.next().is_none(), "{of:?} has several runs with {keys:?}");
    Ok(found)
}

/// A figure that is missing or unknown is an error: nothing would be said by its line.
fn figure(run: &Value, name: &str) -> Result<f64> {
    run[name].as_f64().with_context(|| format!("{name} is unknown in {run}"))
}

fn rate(round: &Round, of: Run, keys: &[(&str, Value)]) -> Result<f64> {
    figure(run(round, of, keys)?, "jobs_per_s")
}

fn best(rates: impl Iterator<Item = Result<f64>>) -> Result<f64> {
    rates.collect::<Result<Vec<_>>>().map(|rates| rates.into_iter().fold(0.0, f64::max))
}

/// What the form with so many producers reached.
fn enqueued(round: &Round, form: &str, producers: u64) -> Result<f64> {
    rate(round, Run::Enqueue, &[("form", form.into()), ("producers", producers.into())])
}

pub(super) fn enqueue(rounds: &[Round]) -> Result<Vec<Measure>> {
    let copy = |round: &Round| figure(run(round, Run::Floor, &[])?, "copy_per_s");
    let quicker = |round: &Round| best(["arrays", "copy"].into_iter().map(|form| enqueued(round, form, 1)));
    let mut lines =
        vec![line(rounds, "a bare COPY into two columns with a primary key", Bound::Shown, "rows/s", &copy)?];
    for form in ["arrays", "copy"] {
        for producers in PRODUCERS {
            let claim = format!("enqueued by {form}, {producers} at a time");
            lines.push(line(rounds, claim, Bound::Shown, "jobs/s", &|round| enqueued(round, form, producers))?);
        }
    }
    let bound = Bound::AtLeast(BULK_OF_COPY);
    let claim = "the quicker form of one producer, against the COPY";
    lines.push(line(rounds, claim, bound, "", &|round| Ok(quicker(round)? / copy(round)?))?);
    Ok(lines)
}

fn worked(round: &Round, concurrency: u64) -> Result<f64> {
    rate(round, Run::Work, &[("concurrency", concurrency.into())])
}

pub(super) fn work(rounds: &[Round]) -> Result<Vec<Measure>> {
    let mut lines = Vec::new();
    for concurrency in CONCURRENCIES {
        let claim = format!("worked off at concurrency {concurrency}");
        lines.push(line(rounds, claim, Bound::Shown, "jobs/s", &|round| worked(round, concurrency))?);
    }
    let best = |round: &Round| best(CONCURRENCIES.into_iter().map(|concurrency| worked(round, concurrency)));
    for concurrency in CONCURRENCIES.into_iter().take(3) {
        let claim = format!("concurrency {concurrency} against the best");
        let share = |round: &Round| Ok(worked(round, concurrency)? / best(round)?);
        lines.push(line(rounds, claim, Bound::AtLeast(CONCURRENCY_OF_BEST), "", &share)?);
    }
    let of = |name: &'static str| {
        move |round: &Round| figure(run(round, Run::Work, &[("concurrency", CONCURRENCY.into())])?, name)
    };
    let wal = of("wal_bytes_per_job");
    lines.push(line(rounds, "WAL per job, bulk, enqueue to outcome", Bound::AtMost(WAL_BULK), "B", &wal)?);
    lines.push(line(rounds, "WAL per job, bulk", Bound::AimBelow(WAL_AIM), "B", &wal)?);
    let calls = of("calls_per_job");
    let claim = "claims and groups of ends of the worker per 1000 jobs";
    lines.push(line(rounds, claim, Bound::Shown, "", &|round| Ok(calls(round)? * 1_000.0))?);
    let shown = [
        ("CPU time of the worker per job", "worker_cpu_us_per_job", "us"),
        ("CPU time of the worker's sessions per job", "database_cpu_us_per_job", "us"),
    ];
    for (claim, name, unit) in shown {
        lines.push(line(rounds, claim, Bound::Shown, unit, &of(name))?);
    }
    Ok(lines)
}

pub(super) fn single(rounds: &[Round]) -> Result<Vec<Measure>> {
    let of = |name: &'static str| move |round: &Round| figure(run(round, Run::Singles, &[])?, name);
    let single = "enqueued one by one";
    let wal = of("wal_bytes_per_job");
    Ok(vec![
        line(rounds, format!("{single}, 16 at a time"), Bound::Shown, "jobs/s", &of("enqueue_per_s"))?,
        line(rounds, format!("{single}: worked off at concurrency 32"), Bound::Shown, "jobs/s", &of("jobs_per_s"))?,
        line(rounds, format!("{single}: WAL per job"), Bound::AtMost(WAL_SINGLE), "B", &wal)?,
    ])
}

pub(super) fn latency(rounds: &[Round]) -> Result<Vec<Measure>> {
    let of = |name: &'static str| move |round: &Round| figure(run(round, Run::Latency, &[])?, name);
    // Of the idle machine, between the jobs, and not of the busy one of the floor.
    let (notify, commit) = (of("notify_p50_ms"), of("commit_p50_ms"));
    let (p50, p99) = (of("p50_ms"), of("p99_ms"));
    let beyond = |round: &Round| Ok(p50(round)? - notify(round)? - commit(round)?);
    let slow = |round: &Round| Ok(p99(round)? - notify(round)? - commit(round)? - LATENCY_P50_BEYOND);
    let claim = "p99 beyond a notification, a durable commit and 0.5 ms";
    Ok(vec![
        line(rounds, "a notification, p50", Bound::Shown, "ms", &notify)?,
        line(rounds, "a durable commit of one row, p50", Bound::Shown, "ms", &commit)?,
        line(rounds, "commit of an enqueue to the start of its handler, worker idle, p50", Bound::Shown, "ms", &p50)?,
        line(
            rounds,
            "p50 beyond a notification and a durable commit",
            Bound::AtMost(LATENCY_P50_BEYOND),
            "ms",
            &beyond,
        )?,
        line(rounds, "commit to start, p99", Bound::Shown, "ms", &p99)?,
        line(rounds, claim, Bound::AtMost(LATENCY_P99_BEYOND), "ms", &slow)?,
    ])
}

fn in_a_row(round: &Round) -> Result<f64> {
    rate(round, Run::Row, &[])
}

/// The rate in the first and in the last tenth of a run.
fn tenths(round: &Round, of: Run) -> Result<(f64, f64)> {
    let slices = slices(round, of)?;
    Ok((slices[0], slices[9]))
}

/// The rates of all ten tenths.
fn slices(round: &Round, of: Run) -> Result<Vec<f64>> {
    let run = run(round, of, &[])?;
    let slices = run["slices"].as_array().filter(|slices| slices.len() == 10);
    let slices = slices.with_context(|| format!("{of:?} was too short to be cut into tenths"))?;
    slices.iter().map(|rate| rate.as_f64().context("a rate")).collect()
}

/// The rate between the first recorded end of a run and the last one: without the start of its worker, which the tenths of another
/// one do not hold either.
fn steady(round: &Round, of: Run) -> Result<f64> {
    let slices = slices(round, of)?;
    Ok(slices.len() as f64 / slices.iter().map(|rate| 1.0 / rate).sum::<f64>())
}

pub(super) fn pinned(rounds: &[Round]) -> Result<Vec<Measure>> {
    let mut lines = under_a_snapshot(rounds, "bulk", Run::Row, Run::Pinned)?;
    lines.extend(under_a_snapshot(rounds, "one by one", Run::SinglesRow, Run::SinglesPinned)?);
    Ok(lines)
}

/// A run under an old snapshot, against the same without it.
fn under_a_snapshot(rounds: &[Round], enqueued: &str, free: Run, under: Run) -> Result<Vec<Measure>> {
    let without = |round: &Round| steady(round, free);
    let last = |round: &Round| Ok(tenths(round, under)?.1);
    let of_first = |round: &Round| tenths(round, under).map(|(first, last)| last / first);
    let of_free = |round: &Round| Ok(last(round)? / without(round)?);
    let claim = |words: &str| format!("enqueued {enqueued}, old snapshot: {words}");
    let bound = Bound::AtLeast(PINNED);
    Ok(vec![
        line(rounds, format!("enqueued {enqueued}, very many in a row"), Bound::Shown, "jobs/s", &without)?,
        line(rounds, claim("the last tenth"), Bound::Shown, "jobs/s", &last)?,
        line(rounds, claim("the last tenth against the first"), bound, "", &of_first)?,
        line(rounds, claim("the last tenth against the rate without it"), bound, "", &of_free)?,
    ])
}

/// A run beside something, against the same without it.
fn beside(rounds: &[Round], of: Run, what: &str, bound: f64) -> Result<Vec<Measure>> {
    let share = |round: &Round| Ok(rate(round, of, &[])? / in_a_row(round)?);
    Ok(vec![
        line(rounds, format!("worked off beside {what}"), Bound::Shown, "jobs/s", &|round| rate(round, of, &[]))?,
        line(rounds, format!("beside {what}, against an empty database"), Bound::AtLeast(bound), "", &share)?,
    ])
}

pub(super) fn history(rounds: &[Round]) -> Result<Vec<Measure>> {
    beside(rounds, Run::History, &format!("{} finished jobs", present(rounds, Run::History, "history")?), HISTORY)
}

pub(super) fn scheduled(rounds: &[Round]) -> Result<Vec<Measure>> {
    let present = present(rounds, Run::Scheduled, "scheduled")?;
    beside(rounds, Run::Scheduled, &format!("{present} jobs for tomorrow"), SCHEDULED)
}

fn present(rounds: &[Round], of: Run, what: &str) -> Result<u64> {
    let report = rounds.first().and_then(|round| round.get(&of)).with_context(|| format!("{of:?} did not run"))?;
    report["settings"]["scene"][what].as_u64().with_context(|| format!("{of:?} does not say what was present"))
}

pub(super) fn memory(rounds: &[Round]) -> Result<Vec<Measure>> {
    let peak = |round: &Round| figure(run(round, Run::Memory, &[])?, "peak_mb");
    let claim = "peak memory of a worker, 128 jobs at a time with payloads of 1 KB";
    Ok(vec![line(rounds, claim, Bound::AtMost(MEMORY_MB), "MB", &peak)?])
}

pub(super) fn processes(rounds: &[Round]) -> Result<Vec<Measure>> {
    let of = |round: &Round, workers: u64| rate(round, Run::Processes, &[("workers", workers.into())]);
    let mut lines = Vec::new();
    for workers in PROCESSES {
        let claim = format!("worked off by {workers} worker processes together");
        lines.push(line(rounds, claim, Bound::Shown, "jobs/s", &|round| of(round, workers))?);
    }
    let share = |round: &Round| Ok(of(round, 64)? / best(PROCESSES.into_iter().map(|workers| of(round, workers)))?);
    lines.push(line(rounds, "64 workers against the best number", Bound::AtLeast(MANY_OF_BEST), "", &share)?);
    Ok(lines)
}

pub(super) fn late(rounds: &[Round]) -> Result<Vec<Measure>> {
    let of = |name: &'static str| move |round: &Round| figure(run(round, Run::Late, &[])?, name);
    let slowest = rounds.iter().map(of("max_ms")).collect::<Result<Vec<f64>>>()?;
    let held = "the start of a job whose transaction committed 3 s after its enqueue, under a full load";
    Ok(vec![
        line(rounds, "jobs worked off while others commit late", Bound::Shown, "jobs/s", &of("jobs_per_s"))?,
        line(rounds, format!("{held}, p50"), Bound::Shown, "ms", &of("p50_ms"))?,
        // Of all rounds: no median hides one that was not found.
        Measure::new(format!("{held}, the slowest"), Bound::AtMost(LATE_MS), longest(&slowest), "ms"),
    ])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn floor(commit: f64) -> Value {
        json!({ "runs": [{ "round": 1, "notify_p50_ms": 0.1, "commit_p50_ms": commit, "copy_per_s": 400_000.0 }] })
    }

    pub(super) fn rounds(of: Run, reports: &[Value]) -> Vec<Round> {
        reports.iter().map(|report| Round::from([(of, report.clone()), (Run::Floor, floor(1.0))])).collect()
    }

    /// The claims whose bounds do not hold.
    pub(super) fn broken(lines: &[Measure]) -> Vec<&str> {
        lines.iter().filter(|line| line.held() == Some(false)).map(|line| line.claim.as_str()).collect()
    }

    #[test]
    fn latency_is_judged_by_the_notifications_and_commits_of_its_run() {
        let report = |p50: f64, p99: f64| json!({ "runs": [{ "p50_ms": p50, "p99_ms": p99, "notify_p50_ms": 0.3, "commit_p50_ms": 0.7 }] });
        let judged = |p50, p99| latency(&rounds(Run::Latency, &[report(p50, p99)])).unwrap();
        assert_eq!(broken(&judged(1.5, 6.5)), [""; 0]);
        assert_eq!(broken(&judged(1.7, 6.5)), ["p50 beyond a notification and a durable commit"]);
        assert_eq!(broken(&judged(1.5, 6.7)), ["p99 beyond a notification, a durable commit and 0.5 ms"]);
    }

    #[test]
    fn a_concurrency_is_judged_by_the_best_of_its_round() {
        let report = |first: f64| {
            let run = |concurrency: u64, rate: f64| {
                json!({
                    "concurrency": concurrency, "jobs_per_s": rate, "wal_bytes_per_job": 410.0, "calls_per_job": 0.01,
                    "worker_cpu_us_per_job": 3.0, "database_cpu_us_per_job": 9.0
                })
            };
            json!({ "runs": [run(1, first), run(8, 70.0), run(32, 100.0), run(128, 90.0)] })
        };
        assert_eq!(broken(&work(&rounds(Run::Work, &[report(60.0)])).unwrap()), [""; 0]);
        // The middle one of three rounds counts.
        let three = rounds(Run::Work, &[report(90.0), report(55.0), report(50.0)]);
        assert_eq!(broken(&work(&three).unwrap()), ["concurrency 1 against the best"]);
    }

    #[test]
    fn bulk_is_judged_by_the_quicker_form_of_one_producer() {
        let report = |arrays: f64, many: f64| {
            let run = |form: &str, producers: u64, rate: f64| json!({ "form": form, "producers": producers, "jobs_per_s": rate });
            json!({ "runs": [run("arrays", 1, arrays), run("arrays", 4, many), run("copy", 1, 90_000.0), run("copy", 4, many)] })
        };
        assert_eq!(broken(&enqueue(&rounds(Run::Enqueue, &[report(200_000.0, 1.0)])).unwrap()), [""; 0]);
        let lines = enqueue(&rounds(Run::Enqueue, &[report(190_000.0, 900_000.0)])).unwrap();
        assert_eq!(broken(&lines), ["the quicker form of one producer, against the COPY"]);
    }

    #[test]
    fn an_old_snapshot_is_judged_by_the_first_tenth_and_by_the_run_without_it() {
        let judged = |last: f64, free: f64| {
            let slices: Vec<f64> = (0..10).map(|n| if n == 9 { last } else { 100.0 }).collect();
            let mut rounds = rounds(Run::Pinned, &[json!({ "runs": [{ "slices": slices }] })]);
            let even = vec![free; 10];
            rounds[0].insert(Run::Row, json!({ "runs": [{ "slices": even }] }));
            under_a_snapshot(&rounds, "bulk", Run::Row, Run::Pinned).unwrap()
        };
        let claim = |words: &str| format!("enqueued bulk, old snapshot: the last tenth against {words}");
        assert_eq!(broken(&judged(95.0, 100.0)), [""; 0]);
        assert_eq!(broken(&judged(95.0, 110.0)), [claim("the rate without it")]);
        assert_eq!(broken(&judged(85.0, 90.0)), [claim("the first")]);
    }

    #[test]
    fn one_late_commit_of_any_round_that_is_not_found_within_a_second_breaks_the_claim() {
        let report = |max: f64| json!({ "runs": [{ "jobs_per_s": 90_000.0, "p50_ms": 150.0, "max_ms": max }] });
        let judged = |slowest: &[f64]| {
            let reports: Vec<Value> = slowest.iter().map(|max| report(*max)).collect();
            late(&rounds(Run::Late, &reports)).unwrap()
        };
        assert_eq!(broken(&judged(&[400.0, 990.0, 500.0])), [""; 0]);
        assert_eq!(broken(&judged(&[400.0, 1_010.0, 500.0])).len(), 1);
    }

    #[test]
    fn what_is_missing_or_unknown_is_an_error_that_names_it() {
        let check = |lines: Result<Vec<Measure>>, words: &str| {
            let error = lines.unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        check(memory(&rounds(Run::Work, &[json!({})])), "Memory did not run");
        check(memory(&rounds(Run::Memory, &[json!({ "runs": [{ "peak_mb": null }] })])), "peak_mb is unknown");
        check(
            processes(&rounds(Run::Processes, &[json!({ "runs": [{ "workers": 1, "jobs_per_s": 5.0 }] })])),
            "no run with",
        );
        check(memory(&[]), "there was no round");
    }
}
