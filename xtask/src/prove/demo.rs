//! The demo over real files: with chaos, several runs in a row, and with a provider's limit.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tenure_scenarios::{Bound, Measure};

use crate::{child, say};

/// Files that a run has to index.
const FILES_MIN: usize = 300;
const FILES_QUICK: usize = 60;
/// Runs in a row.
const RUNS: usize = 5;
const RUNS_QUICK: usize = 1;

/// Runs the demo on the server of this URL; what must be zero is summed over all runs.
pub(crate) fn with_chaos(url: &str, quick: bool) -> Result<Vec<Measure>> {
    child::run(child::cargo(&["build", "--quiet", "--package", "tenure-cli"]).current_dir(child::workspace()))?;
    let tenure = std::env::current_exe()?.parent().context("this program is in no folder")?.join("tenure");
    let (runs, count) = if quick { (RUNS_QUICK, FILES_QUICK) } else { (RUNS, FILES_MIN) };
    let files = Files::collect(count)?;
    let mut reports = Vec::new();
    for n in 1..=runs {
        say(&format!("demo with chaos, run {n} of {runs}"));
        reports.push(report(&tenure, &files.0, url, &["--chaos"])?);
    }
    lines(&reports, count)
}

/// Requests a second that the model server of [`under_its_limit`] takes.
const PROVIDER_RATE: &str = "25";

/// The demo with a model that takes so many requests a second: with that declared as a limit, and without.
pub(crate) fn under_its_limit(url: &str, quick: bool) -> Result<Vec<Measure>> {
    child::run(child::cargo(&["build", "--quiet", "--package", "tenure-cli"]).current_dir(child::workspace()))?;
    let tenure = std::env::current_exe()?.parent().context("this program is in no folder")?.join("tenure");
    let files = Files::collect(if quick { FILES_QUICK } else { FILES_MIN })?;
    let rate = ["--provider-rate", PROVIDER_RATE];
    say("demo with a provider's limit, not declared");
    let without = report(&tenure, &files.0, url, &rate)?;
    say("demo with a provider's limit, declared");
    let declared = report(&tenure, &files.0, url, &[&rate[..], &["--declare-limit"]].concat())?;
    let refused = |report: &Value| {
        let requests =
            report["model_requests"].as_object().context("the report of tenure demo has no model_requests")?;
        // Those that were answered from store are among them in their own mood.
        let all: f64 = requests.iter().filter(|(mood, _)| *mood != "replayed").filter_map(|(_, n)| n.as_f64()).sum();
        Ok::<_, anyhow::Error>(requests.get("rate_limited").and_then(Value::as_f64).unwrap_or_default() / all * 100.0)
    };
    let number = |report: &Value, key: &str| report[key].as_f64().with_context(|| format!("the report has no {key}"));
    let line = |what: &str, bound, measured, unit| {
        Measure::new(format!("demo, provider's limit: {what}"), bound, measured, unit)
    };
    Ok(vec![
        line("calls answered 429, without", Bound::Shown, refused(&without)?, "%"),
        line("calls answered 429, declared", Bound::AtMost(1.0), refused(&declared)?, "%"),
        // Most of what is sent hears 429, and what heard it in each of its attempts is dead.
        line("chunks without a vector, without", Bound::Shown, number(&without, "lost")?, ""),
        line("lost, declared", Bound::Exactly(0.0), number(&declared, "lost")?, ""),
        line(
            "billed twice, in both",
            Bound::Exactly(0.0),
            number(&without, "billed_twice")? + number(&declared, "billed_twice")?,
            "",
        ),
        line("wall time without", Bound::Shown, number(&without, "wall_s")?, "s"),
        line("wall time, declared", Bound::Shown, number(&declared, "wall_s")?, "s"),
        line("of the time without", Bound::Shown, number(&declared, "wall_s")? / number(&without, "wall_s")?, ""),
    ])
}

/// Over all reports: sums of what must not be, the least or most of what each run must have. A figure that a report lacks is an
/// error: nothing would be said by its line.
fn lines(reports: &[Value], count: usize) -> Result<Vec<Measure>> {
    let numbers = |key: &str| {
        let number =
            |report: &Value| report[key].as_f64().with_context(|| format!("the report of tenure demo has no {key}"));
        reports.iter().map(number).collect::<Result<Vec<f64>>>()
    };
    let sum = |key: &str| numbers(key).map(|all| all.iter().sum::<f64>());
    let least = |key: &str| numbers(key).map(|all| all.into_iter().fold(f64::INFINITY, f64::min));
    let most = |key: &str| numbers(key).map(|all| all.into_iter().fold(0.0, f64::max));
    let runs = reports.len();
    let line = |what: &str, bound, measured, unit| {
        Measure::new(format!("demo with chaos, {runs} runs: {what}"), bound, measured, unit)
    };
    let (none, all) = (Bound::Exactly(0.0), Bound::AtLeast(count as f64));
    Ok(vec![
        line("documents of each", all, least("documents")?, ""),
        line("lost", none, sum("lost")?, ""),
        line("stored twice", none, sum("stored_twice")?, ""),
        line("billed twice", none, sum("billed_twice")?, ""),
        line("given up", none, sum("dead")?, ""),
        // Each file has one at the least.
        line("chunks of each", all, least("chunks")?, ""),
        line("rescues of each", Bound::AtLeast(1.0), least("rescues")?, ""),
        line("retries", Bound::Shown, sum("retries")?, ""),
        line("the longest", Bound::AtMost(300.0), most("wall_s")?, "s"),
    ])
}

/// The report of one run. A run that does not keep the promise says so by its exit code and in its figures: those are what is
/// asked for.
fn report(tenure: &Path, files: &Path, url: &str, options: &[&str]) -> Result<Value> {
    let mut command = Command::new(tenure);
    command.args(["demo", "--json", "--path"]).arg(files).args(options).env("DATABASE_URL", url);
    let output = command.stderr(Stdio::inherit()).output().context("cannot start tenure demo")?;
    read(&output.stdout).with_context(|| format!("tenure demo: {}", output.status))
}

fn read(stdout: &[u8]) -> Result<Value> {
    let report: Value = serde_json::from_slice(stdout).context("its report is not JSON")?;
    ensure!(report["lost"].is_number(), "what it printed is no report: {report}");
    Ok(report)
}

/// A folder with enough real files: the project's own, and sources that cargo has fetched to build it. Removed at the end.
struct Files(PathBuf);

impl Files {
    fn collect(count: usize) -> Result<Files> {
        let files = Files(std::env::temp_dir().join(format!("tenure-prove-{}", std::process::id())));
        fs::create_dir_all(&files.0)?;
        let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
        let home =
            home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo"))).context("no home folder")?;
        let mut found = Vec::new();
        for part in ["crates", "docs", "xtask/src", "bench/layout"] {
            walk(&child::workspace().join(part), count, &mut found);
        }
        walk(&home.join("registry/src"), count, &mut found);
        if found.len() < count {
            bail!("only {} text files are here to index; {count} are needed", found.len());
        }
        for (n, path) in found.iter().take(count).enumerate() {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            fs::copy(path, files.0.join(format!("{n:03}-{name}")))?;
        }
        Ok(files)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Text files below a folder, in the order of their names, until there are enough.
fn walk(folder: &Path, count: usize, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        if found.len() >= count {
            return;
        }
        let is_text =
            path.extension().is_some_and(|e| ["rs", "md", "sql", "toml", "py"].iter().any(|known| e == *known));
        if path.is_dir() {
            walk(&path, count, found);
        } else if is_text && path.metadata().is_ok_and(|m| (200..100_000).contains(&m.len())) {
            found.push(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn held(report: &Value) -> Vec<String> {
        let lines = lines(&[run(), report.clone()], 300).unwrap();
        lines.into_iter().filter(|line| line.held() == Some(false)).map(|line| line.claim).collect()
    }

    /// What a run reports that keeps the promise.
    fn run() -> Value {
        json!({
            "documents": 300, "lost": 0, "stored_twice": 0, "billed_twice": 0, "dead": 0, "chunks": 2_000, "rescues": 3,
            "retries": 40, "wall_s": 61.5
        })
    }

    #[test]
    fn a_run_that_lost_something_is_a_figure_and_no_error() {
        assert_eq!(held(&run()), [""; 0]);
        for (key, value, claim) in [
            ("lost", 2, "lost"),
            ("billed_twice", 1, "billed twice"),
            ("dead", 290, "given up"),
            ("chunks", 10, "chunks of each"),
            ("rescues", 0, "rescues of each"),
        ] {
            let mut report = run();
            report[key] = value.into();
            assert_eq!(held(&report), [format!("demo with chaos, 2 runs: {claim}")]);
        }
        read(run().to_string().as_bytes()).unwrap();
        read(br#"{"error": "no database"}"#).unwrap_err();
    }

    #[test]
    fn a_figure_that_is_missing_is_an_error() {
        let mut report = run();
        report.as_object_mut().unwrap().remove("rescues");
        let error = lines(&[run(), report], 300).unwrap_err().to_string();
        assert!(error.contains("rescues"), "{error}");
    }
}
