//! What is claimed of very many queues, of workers that idle together, of large payloads, and of the cost of statistics.

use anyhow::{Context, Result};
use serde_json::Value;
use tenure_scenarios::{Bound, Measure};

use super::super::Round;
use super::super::runs::Run;
use super::{figure, line, rate, run};

/// Of one queue in the same round; the bundles of many queues are smaller.
const QUEUES_OF_ONE: f64 = 0.5;
/// Notifications and claims for one job that idle workers get: one of them is woken, takes it, and looks twice before it sleeps again.
const WORDS_PER_JOB: f64 = 1.1;
const CLAIMS_PER_JOB: f64 = 4.0;
/// From the last end of a burst until all workers sleep, in s.
const ASLEEP_AGAIN: f64 = 5.0;
/// CPU of one core that an idle worker may use, in percent.
const IDLE_CPU: f64 = 0.5;
/// CPU of the database per job that statistics may add, in percent.
const STATISTICS_AIM: f64 = 10.0;

pub(in super::super) fn queues(rounds: &[Round]) -> Result<Vec<Measure>> {
    let many = rounds.first().and_then(|round| round.get(&Run::Queues)).and_then(|report| report["runs"].as_array());
    let many = many.into_iter().flatten().filter_map(|run| run["queues"].as_u64()).max();
    let many = many.filter(|many| *many > 1).context("Queues compares nothing")?;
    let of = |round: &Round, queues: u64| rate(round, Run::Queues, &[("queues", queues.into())]);
    let enqueued =
        |round: &Round, queues: u64| figure(run(round, Run::Queues, &[("queues", queues.into())])?, "enqueue_per_s");
    let mut lines = Vec::new();
    for queues in [1, many] {
        let claim = format!("copied into {queues} queues");
        lines.push(line(rounds, &claim, Bound::Shown, "jobs/s", &|round| enqueued(round, queues))?);
        lines.push(line(rounds, format!("{claim}: worked off"), Bound::Shown, "jobs/s", &|round| of(round, queues))?);
    }
    let share = |round: &Round| Ok(of(round, many)? / of(round, 1)?);
    lines.push(line(rounds, format!("{many} queues against one"), Bound::AtLeast(QUEUES_OF_ONE), "", &share)?);
    Ok(lines)
}

pub(in super::super) fn idle(rounds: &[Round]) -> Result<Vec<Measure>> {
    let of = |name: &'static str| move |round: &Round| figure(run(round, Run::Idle, &[])?, name);
    let workers = rounds.first().context("there was no round").and_then(of("workers"))?;
    let fleet = format!("{workers} idle workers");
    let shown = |words: &str, unit, name| line(rounds, format!("{fleet}: {words}"), Bound::Shown, unit, &of(name));
    Ok(vec![
        line(
            rounds,
            format!("{fleet}: CPU of one core"),
            Bound::AimBelow(IDLE_CPU * workers),
            "%",
            &of("idle_cpu_percent"),
        )?,
        shown("claims a second while nothing happens", "/s", "idle_claims_per_s")?,
        line(
            rounds,
            format!("{fleet}: notifications for one job"),
            Bound::AtMost(WORDS_PER_JOB),
            "",
            &of("words_per_job"),
        )?,
        line(rounds, format!("{fleet}: claims for one job"), Bound::AtMost(CLAIMS_PER_JOB), "", &of("claims_per_job"))?,
        shown("commit of an enqueue to the start of its handler, p50", "ms", "p50_ms")?,
        shown("notifications for a burst of jobs", "", "burst_words")?,
        shown("claims for it", "", "burst_claims")?,
        shown("from its enqueue to its last end", "s", "burst_s")?,
        line(
            rounds,
            format!("{fleet}: all sleep again after it"),
            Bound::AtMost(ASLEEP_AGAIN),
            "s",
            &of("asleep_again_s"),
        )?,
    ])
}

pub(in super::super) fn payloads(rounds: &[Round]) -> Result<Vec<Measure>> {
    let mut lines = Vec::new();
    for (of, size, bytes) in [(Run::Payload1K, "1 KB", 1_024.0), (Run::Payload64K, "64 KB", 65_536.0)] {
        let of = |name: &'static str| move |round: &Round| figure(run(round, of, &[])?, name);
        for (words, name) in [("enqueued in bulk", "enqueue_per_s"), ("worked off", "jobs_per_s")] {
            let claim = format!("payloads of {size}: {words}");
            let rate = of(name);
            lines.push(line(rounds, &claim, Bound::Shown, "jobs/s", &rate)?);
            lines.push(line(rounds, &claim, Bound::Shown, "MB/s", &|round| Ok(rate(round)? * bytes / 1e6))?);
        }
        lines.push(line(
            rounds,
            format!("payloads of {size}: WAL per job"),
            Bound::Shown,
            "B",
            &of("wal_bytes_per_job"),
        )?);
        lines.push(line(
            rounds,
            format!("payloads of {size}: peak memory of the worker"),
            Bound::Shown,
            "MB",
            &of("peak_mb"),
        )?);
    }
    Ok(lines)
}

pub(in super::super) fn statistics(rounds: &[Round]) -> Result<Vec<Measure>> {
    let of = |round: &Round, on: &str, name: &str| {
        figure(run(round, Run::Statistics, &[("statistics", Value::from(on))])?, name)
    };
    let cpu = |round: &Round, on: &str| -> Result<f64> {
        Ok(of(round, on, "enqueue_cpu_us_per_job")? + of(round, on, "database_cpu_us_per_job")?)
    };
    let more = |with: f64, without: f64| 100.0 * (with - without) / without;
    let added = |round: &Round| Ok(more(cpu(round, "on")?, cpu(round, "off")?));
    let wal = |round: &Round| Ok(more(of(round, "on", "wal_bytes_per_job")?, of(round, "off", "wal_bytes_per_job")?));
    let rate = |round: &Round| Ok(of(round, "on", "jobs_per_s")? / of(round, "off", "jobs_per_s")?);
    let claim = "CPU of the database per job, enqueue to outcome";
    Ok(vec![
        line(rounds, format!("{claim}, statistics on"), Bound::Shown, "us", &|round| cpu(round, "on"))?,
        line(rounds, format!("{claim}, statistics left out"), Bound::Shown, "us", &|round| cpu(round, "off"))?,
        line(rounds, "statistics add to it", Bound::AimBelow(STATISTICS_AIM), "%", &added)?,
        line(rounds, "statistics add to the WAL per job", Bound::Shown, "%", &wal)?,
        line(rounds, "worked off with statistics, against without", Bound::Shown, "", &rate)?,
    ])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::{broken, rounds};
    use super::*;

    #[test]
    fn many_queues_are_judged_by_one_queue_in_the_same_round() {
        let report = |many: f64| {
            let run = |queues: u64, rate: f64| json!({ "queues": queues, "jobs_per_s": rate, "enqueue_per_s": 9.0 });
            json!({ "runs": [run(1, 100.0), run(1_000, many)] })
        };
        assert_eq!(broken(&queues(&rounds(Run::Queues, &[report(50.0)])).unwrap()), [""; 0]);
        assert_eq!(broken(&queues(&rounds(Run::Queues, &[report(49.0)])).unwrap()), ["1000 queues against one"]);
        assert!(queues(&rounds(Run::Queues, &[json!({ "runs": [] })])).is_err(), "nothing is compared");
    }

    #[test]
    fn a_herd_breaks_the_claim() {
        let report = |words: f64, claims: f64| {
            json!({ "runs": [{
                "workers": 50, "idle_cpu_percent": 3.0, "idle_claims_per_s": 50.0, "words_per_job": words, "claims_per_job": claims, "p50_ms": 1.0,
                "burst_words": 9.0, "burst_claims": 90.0, "burst_s": 0.5, "asleep_again_s": 1.0
            }] })
        };
        let judged = |words, claims| idle(&rounds(Run::Idle, &[report(words, claims)])).unwrap();
        assert_eq!(broken(&judged(1.0, 3.0)), [""; 0]);
        assert_eq!(broken(&judged(50.0, 3.0)), ["50 idle workers: notifications for one job"]);
        assert_eq!(broken(&judged(1.0, 50.0)), ["50 idle workers: claims for one job"]);
    }

    #[test]
    fn the_cost_of_statistics_is_that_of_both_halves() {
        let run = |on: &str, enqueue: f64, work: f64| {
            json!({
                "statistics": on, "enqueue_cpu_us_per_job": enqueue, "database_cpu_us_per_job": work, "wal_bytes_per_job": 400.0, "jobs_per_s": 9.0
            })
        };
        let lines =
            statistics(&rounds(Run::Statistics, &[json!({ "runs": [run("on", 5.0, 6.0), run("off", 4.0, 6.0)] })]));
        let added = lines.unwrap().into_iter().find(|line| line.claim == "statistics add to it").expect("a line");
        assert_eq!(added.measured_in_words(), "10 %");
    }
}
