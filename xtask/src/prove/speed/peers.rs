//! Other queues on the same server, driven by `bench/peers/run.py`, and tenure's rates against theirs.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tenure_scenarios::{Bound, Measure, Size};

use super::lines;
use crate::{child, setup};

const TENURE: &str = "tenure";
/// Job queues with workers, retries and timeouts.
const JOB_QUEUES: [&str; 4] = ["graphile_worker", "apalis", "pg-boss", "awa"];
/// A message queue without any of that.
const MESSAGE_QUEUE: &str = "pgmq";

/// What is claimed of one kind of run: tenure's rate against that of the best job queue, and of the message queue.
struct Claim {
    what: &'static str,
    mode: &'static str,
    words: &'static str,
    of_best: f64,
    of_messages: Option<f64>,
}

const CLAIMS: [Claim; 3] = [
    Claim { what: "enqueue", mode: "bulk", words: "enqueued in bulk", of_best: 3.0, of_messages: Some(1.0) },
    Claim { what: "work", mode: "bulk", words: "worked off, enqueued in bulk", of_best: 2.5, of_messages: Some(1.5) },
    Claim { what: "work", mode: "single", words: "worked off, enqueued one by one", of_best: 1.5, of_messages: None },
];

/// Builds all, runs all of them in turns, and compares. Takes half an hour or more; some minutes at the small size.
pub(super) fn lines(url: &str, size: Size) -> Result<Vec<Measure>> {
    let run = child::workspace().join("bench/peers/run.py");
    let mut command = std::process::Command::new(run);
    command.env("DATABASE_URL", url).env("PG_BIN", setup::binaries()?.dir);
    if size == Size::Ci {
        command.arg("--quick");
    }
    let (printed, status) = child::output_and_status(&mut command)?;
    let text = String::from_utf8(printed).context("what it printed is not UTF-8")?;
    let seen = text.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>().context("no JSON lines")?;
    let seen = Seen(seen);
    ensure!(status.success() || !seen.failed().is_empty(), "run.py did not come to its end: {status}");
    seen.lines(size)
}

/// All that was printed; its form is told at the top of run.py.
struct Seen(Vec<Value>);

impl Seen {
    fn lines(&self, size: Size) -> Result<Vec<Measure>> {
        let mut lines = self.failed();
        lines.push(self.ended());
        for claim in CLAIMS {
            lines.extend(self.compared(&claim, size)?);
        }
        Ok(lines)
    }

    /// The rates of all, and how many times as quick tenure is as the best of them.
    fn compared(&self, claim: &Claim, size: Size) -> Result<Vec<Measure>> {
        // So few jobs measure nothing.
        let at_least = |bound| if size == Size::Full { Bound::AtLeast(bound) } else { Bound::Shown };
        let shown = |peer: &str, rate: f64, unit| {
            Measure::new(format!("{}: {}", claim.words, self.product(peer)), Bound::Shown, rate, unit)
        };
        let ours = self.rates(claim, TENURE);
        let middle = lines::median_of(ours.values().copied().collect());
        let middle = middle.with_context(|| format!("tenure has no {}, {}", claim.what, claim.mode))?;
        let mut lines = vec![shown(TENURE, middle, "jobs/s")];
        // How many times as quick, within each round; the median of them. None: it did not run.
        let mut against = |peer: &str, unit| {
            let theirs = self.rates(claim, peer);
            lines.push(shown(peer, lines::median_of(theirs.values().copied().collect())?, unit));
            lines::median_of(theirs.iter().filter_map(|(round, rate)| Some(ours.get(round)? / rate)).collect())
        };
        let of_jobs = JOB_QUEUES.iter().filter_map(|peer| against(peer, "jobs/s")).reduce(f64::min);
        let of_messages = against(MESSAGE_QUEUE, "messages/s");
        let of_jobs = of_jobs.context("no other job queue ran")?;
        let words = format!("{}: tenure against the best job queue", claim.words);
        lines.push(Measure::new(words, at_least(claim.of_best), of_jobs, "x"));
        if let Some(of_messages) = of_messages {
            let words = format!("{}: tenure against {}", claim.words, self.product(MESSAGE_QUEUE));
            lines.push(Measure::new(words, claim.of_messages.map_or(Bound::Shown, at_least), of_messages, "x"));
        }
        Ok(lines)
    }

    fn failed(&self) -> Vec<Measure> {
        let failed = self.0.iter().filter(|line| line["what"] == "failed");
        failed
            .map(|line| {
                let word = |name: &str| line[name].as_str().unwrap_or("?");
                let run = format!("{}: {}, round {}", word("peer"), word("run"), line["round"]);
                Measure::did_not_run(&run, word("error"))
            })
            .collect()
    }

    /// Every job that was enqueued has ended: the one thing that a small run can show.
    fn ended(&self) -> Measure {
        let runs: Vec<&Value> = self.0.iter().filter(|line| line["what"] == "work").collect();
        let whole = runs.iter().filter(|run| run["jobs"].is_u64() && run["ended"] == run["jobs"]).count();
        let claim = "runs of all queues after which as many jobs had ended as were enqueued";
        Measure::count(claim, runs.len() + self.failed().len(), whole)
    }

    fn product<'a>(&'a self, peer: &'a str) -> &'a str {
        let known = self.0.iter().find(|line| line["what"] == "peer" && line["peer"] == peer);
        known.and_then(|line| line["product"].as_str()).unwrap_or(peer)
    }

    /// The rate of each round; round 0 only chose the settings.
    fn rates(&self, claim: &Claim, peer: &str) -> BTreeMap<u64, f64> {
        let fits = |line: &&Value| line["what"] == claim.what && line["mode"] == claim.mode && line["peer"] == peer;
        let rates =
            self.0.iter().filter(fits).filter_map(|line| Some((line["round"].as_u64()?, line["rate"].as_f64()?)));
        rates.filter(|(round, _)| *round > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(what: &str, peer: &str, round: u64, mode: &str, rate: f64) -> Value {
        json!({ "what": what, "peer": peer, "round": round, "mode": mode, "jobs": 50, "ended": 50, "rate": rate })
    }

    /// Of the same rate in everything.
    fn runs(peer: &str, round: u64, rate: f64) -> impl Iterator<Item = Value> {
        CLAIMS.into_iter().map(move |claim| run(claim.what, peer, round, claim.mode, rate))
    }

    fn broken(lines: &[Measure]) -> Vec<&str> {
        lines.iter().filter(|line| line.held() == Some(false)).map(|line| line.claim.as_str()).collect()
    }

    #[test]
    fn ratios_are_taken_within_a_round_and_the_first_one_does_not_count() {
        let mut all: Vec<Value> = runs("tenure", 0, 9_000.0).chain(runs("apalis", 0, 1.0)).collect();
        // The machine was slow in the second round, for all.
        for (round, ours, theirs) in [(1, 400.0, 100.0), (2, 40.0, 10.0), (3, 330.0, 110.0)] {
            all.extend(runs("tenure", round, ours).chain(runs("apalis", round, theirs)).chain(runs("awa", round, 5.0)));
        }
        let lines = Seen(all).lines(Size::Full).unwrap();
        let ratios: Vec<f64> = lines.iter().filter(|line| line.unit == "x").map(|line| line.measured).collect();
        assert_eq!(ratios, [4.0; 3], "the median of 4, 4 and 3");
        assert_eq!(broken(&lines), [""; 0]);
    }

    #[test]
    fn what_is_slower_than_claimed_or_failed_does_not_hold() {
        let mut all =
            vec![json!({ "what": "failed", "peer": "awa", "round": 0, "run": "bulk", "error": "it was stuck" })];
        for (peer, rate) in [("tenure", 100.0), ("apalis", 50.0), ("pgmq", 60.0)] {
            all.extend(runs(peer, 1, rate));
        }
        let seen = Seen(all);
        let (full, small) = (seen.lines(Size::Full).unwrap(), seen.lines(Size::Ci).unwrap());
        let full = broken(&full);
        assert_eq!(full.len(), 4, "{full:?}");
        assert!(full[0].contains("awa: bulk, round 0: did not run: it was stuck"), "{full:?}");
        assert!(full[2..].iter().all(|claim| claim.contains("against the best job queue")), "{full:?}");
        assert_eq!(broken(&small), full[..2], "small sizes say nothing of rates, only that it works");
    }

    #[test]
    fn a_run_that_left_jobs_does_not_hold_at_any_size() {
        let mut all: Vec<Value> = runs("tenure", 1, 100.0).chain(runs("apalis", 1, 10.0)).collect();
        all[1]["ended"] = json!(49);
        let lines = Seen(all).lines(Size::Ci).unwrap();
        assert_eq!(broken(&lines), ["runs of all queues after which as many jobs had ended as were enqueued"]);
    }
}
