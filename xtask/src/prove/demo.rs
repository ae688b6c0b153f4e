//! The demo with chaos over real files, several runs in a row.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
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
        reports.push(report(&tenure, &files.0, url)?);
    }
    let numbers = |key: &str| reports.iter().map(|report| report[key].as_f64().unwrap_or(f64::NAN)).collect::<Vec<_>>();
    let sum = |key: &str| numbers(key).iter().sum::<f64>();
    let least = |key: &str| numbers(key).iter().copied().fold(f64::INFINITY, f64::min);
    let most = |key: &str| numbers(key).iter().copied().fold(0.0, f64::max);
    let line = |what: &str, bound, measured, unit| {
        Measure::new(format!("demo with chaos, {runs} runs: {what}"), bound, measured, unit)
    };
    Ok(vec![
        line("documents of each", Bound::AtLeast(count as f64), least("documents"), ""),
        line("lost", Bound::Exactly(0.0), sum("lost"), ""),
        line("stored twice", Bound::Exactly(0.0), sum("stored_twice"), ""),
        line("billed twice", Bound::Exactly(0.0), sum("billed_twice"), ""),
        line("rescues of each", Bound::AtLeast(1.0), least("rescues"), ""),
        line("chunks of each", Bound::Shown, least("chunks"), ""),
        line("retries", Bound::Shown, sum("retries"), ""),
        line("the longest", Bound::AtMost(300.0), most("wall_s"), "s"),
    ])
}

fn report(tenure: &Path, files: &Path, url: &str) -> Result<Value> {
    let mut command = Command::new(tenure);
    command.args(["demo", "--chaos", "--json", "--path"]).arg(files).env("DATABASE_URL", url);
    let output = command.stderr(Stdio::inherit()).output().context("cannot start tenure demo")?;
    if !output.status.success() {
        bail!("tenure demo: {}", output.status);
    }
    serde_json::from_slice(&output.stdout).context("the report of tenure demo is not JSON")
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
        for part in ["crates", "docs", "xtask/src", "benches"] {
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
