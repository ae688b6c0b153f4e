//! Other queues on the same server, driven by `bench/peers/run.py`, and tenure's rates against theirs.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tenure_scenarios::{Bound, Measure, Size};

use super::lines;
use crate::{child, setup};

/// Job queues with workers, retries and timeouts.
const JOB_QUEUES: [&str; 5] = ["graphile_worker", "apalis", "pg-boss", "awa", "awa-8192"];
/// A message queue without any of that.
const MESSAGE_QUEUE: &str = "pgmq";
/// Jobs that were enqueued in bulk are worked off so many times as quickly as by the best job queue, and by the message queue.
const WORK_OF_BEST: f64 = 2.5;
const WORK_OF_MESSAGES: f64 = 1.5;
/// The same for jobs that were enqueued one by one.
const SINGLE_OF_BEST: f64 = 1.5;
const ENQUEUE_OF_BEST: f64 = 3.0;
const ENQUEUE_OF_MESSAGES: f64 = 1.0;

/// Builds all, runs all of them in turns, and compares. Takes half an hour; a few minutes at the small size.
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
        // A tenth of the jobs measures little.
        let at_least = |bound| if size == Size::Full { Bound::AtLeast(bound) } else { Bound::Shown };
        let mut lines = self.failed();
        for (what, mode, of_best, of_messages) in [
            ("enqueue", "bulk", ENQUEUE_OF_BEST, Some(ENQUEUE_OF_MESSAGES)),
            ("work", "bulk", WORK_OF_BEST, Some(WORK_OF_MESSAGES)),
            ("work", "single", SINGLE_OF_BEST, None),
        ] {
            let claim = match (what, mode) {
                ("enqueue", _) => "enqueued in bulk".to_owned(),
                _ => format!("worked off, enqueued {mode}"),
            };
            let rate = |peer| self.best(what, mode, peer);
            let ours = rate("tenure").with_context(|| format!("tenure has no {what}, {mode}"))?;
            lines.push(Measure::new(format!("{claim}: tenure"), Bound::Shown, ours, "jobs/s"));
            let theirs: Vec<(&str, f64)> = JOB_QUEUES.iter().filter_map(|peer| Some((*peer, rate(peer)?))).collect();
            for (peer, rate) in &theirs {
                lines.push(Measure::new(format!("{claim}: {}", self.product(peer)), Bound::Shown, *rate, "jobs/s"));
            }
            let best = theirs.iter().map(|(_, rate)| *rate).reduce(f64::max).context("no job queue ran")?;
            let against = format!("{claim}: tenure against the best job queue");
            lines.push(Measure::new(against, at_least(of_best), ours / best, "x"));
            if let Some(messages) = rate(MESSAGE_QUEUE) {
                let product = self.product(MESSAGE_QUEUE);
                lines.push(Measure::new(format!("{claim}: {product}"), Bound::Shown, messages, "messages/s"));
                let bound = of_messages.map_or(Bound::Shown, at_least);
                lines.push(Measure::new(format!("{claim}: tenure against {product}"), bound, ours / messages, "x"));
            }
        }
        Ok(lines)
    }

    fn failed(&self) -> Vec<Measure> {
        let failed = self.0.iter().filter(|line| line["what"] == "failed");
        failed
            .map(|line| {
                let run = format!("{} {}", line["peer"].as_str().unwrap_or("?"), line["run"]);
                Measure::did_not_run(&run, line["error"].as_str().unwrap_or("it gives no reason"))
            })
            .collect()
    }

    fn product<'a>(&'a self, peer: &'a str) -> &'a str {
        let known = self.0.iter().find(|line| line["what"] == "peer" && line["peer"] == peer);
        known.and_then(|line| line["product"].as_str()).unwrap_or(peer)
    }

    /// The median rate of its rounds at its best setting; none: it did not run. COPY is a call for many as well.
    fn best(&self, what: &str, mode: &str, peer: &str) -> Option<f64> {
        let fits = |line: &&Value| {
            let mode_fits = line["mode"] == mode || mode == "bulk" && line["mode"] == "copy";
            line["what"] == what && line["peer"] == peer && mode_fits
        };
        let runs: Vec<&Value> = self.0.iter().filter(fits).collect();
        let settings = runs.iter().map(|run| (&run["mode"], &run["concurrency"]));
        settings
            .filter_map(|setting| median(runs.iter().filter(|run| (&run["mode"], &run["concurrency"]) == setting)))
            .reduce(f64::max)
    }
}

fn median<'a>(runs: impl Iterator<Item = &'a &'a Value>) -> Option<f64> {
    lines::median_of(runs.filter_map(|run| run["rate"].as_f64()).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(what: &str, peer: &str, mode: &str, concurrency: u32, rate: f64) -> Value {
        json!({ "what": what, "peer": peer, "mode": mode, "concurrency": concurrency, "rate": rate })
    }

    #[test]
    fn the_best_setting_counts_by_the_median_of_its_rounds() {
        let seen = Seen(vec![
            run("work", "tenure", "bulk", 8, 10.0),
            run("work", "tenure", "bulk", 8, 90.0),
            run("work", "tenure", "bulk", 8, 20.0),
            run("work", "tenure", "bulk", 32, 30.0),
            run("work", "tenure", "single", 32, 99.0),
            run("enqueue", "tenure", "bulk", 1, 5.0),
            run("enqueue", "tenure", "copy", 1, 7.0),
        ]);
        assert_eq!(seen.best("work", "bulk", "tenure"), Some(30.0));
        assert_eq!(seen.best("enqueue", "bulk", "tenure"), Some(7.0));
        assert_eq!(seen.best("work", "bulk", "pgmq"), None);
    }

    #[test]
    fn what_is_slower_than_claimed_or_failed_does_not_hold() {
        let mut all = vec![json!({ "what": "failed", "peer": "awa", "run": ["work"], "error": "it was stuck" })];
        for (peer, rate) in [("tenure", 100.0), ("apalis", 50.0), ("pgmq", 60.0)] {
            for (what, mode) in [("enqueue", "bulk"), ("work", "bulk"), ("work", "single")] {
                all.push(run(what, peer, mode, 8, rate));
            }
        }
        let lines = Seen(all).lines(Size::Full).unwrap();
        let broken: Vec<&str> =
            lines.iter().filter(|line| line.held() == Some(false)).map(|line| line.claim.as_str()).collect();
        assert_eq!(broken.len(), 3, "{broken:?}");
        assert!(broken[0].contains("it was stuck"), "{broken:?}");
        assert!(broken[1..].iter().all(|claim| claim.contains("against the best job queue")), "{broken:?}");
    }
}
