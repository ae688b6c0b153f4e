//! `cargo xtask tidy`: what must not be in the sources.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{child, say};

/// Lines of a file of code. More is a sign that it holds more than one thing.
const LINES_MAX: usize = 600;

/// What must not be in a file, and why. Each is written in two parts so that this file passes.
const FORBIDDEN: [(&[&str], &str); 6] = [
    (&["/wor", "k/"], "a path of somebody's machine"),
    (&["/home/", "user"], "a path of somebody's machine"),
    (&["tod", "o!("], "unfinished"),
    (&["unimplemen", "ted!("], "unfinished"),
    (&["#[ign", "ore"], "a test that does not run"),
    (&["db", "g!("], "left from a search for a fault"),
];

/// Checks all files of the repository.
pub(crate) fn run() -> Result<()> {
    let faults = faults(&child::workspace())?;
    ensure!(faults.is_empty(), "not tidy:\n  {}", faults.join("\n  "));
    say("tidy");
    Ok(())
}

fn faults(workspace: &Path) -> Result<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(workspace)
        .output()
        .context("cannot run git")?;
    ensure!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim());
    let mut faults = Vec::new();
    for name in String::from_utf8_lossy(&output.stdout).lines() {
        // Binary files and files just removed are not text.
        if let Ok(text) = fs::read_to_string(workspace.join(name)) {
            check(name, &text, &mut faults);
        }
    }
    Ok(faults)
}

fn check(name: &str, text: &str, faults: &mut Vec<String>) {
    for (n, line) in text.lines().enumerate() {
        for (parts, reason) in FORBIDDEN.iter().filter(|(parts, _)| line.contains(&parts.concat())) {
            faults.push(format!("{name}:{}: {} ({reason})", n + 1, parts.concat()));
        }
    }
    let is_code = (name.contains("src/") && name.ends_with(".rs")) || name.ends_with(".sql");
    let lines = text.lines().count();
    // The dump of the schema is made by a program and read in pieces.
    if is_code && lines > LINES_MAX && !name.ends_with("schema.sql") {
        faults.push(format!("{name}: {lines} lines, at most {LINES_MAX}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sources_are_tidy() {
        assert_eq!(faults(&child::workspace()).expect("git is here"), Vec::<String>::new());
    }

    #[test]
    fn what_is_forbidden_is_found_with_its_line() {
        let mut faults = Vec::new();
        check("a.rs", &format!("fine\n    {}()", ["tod", "o!("].concat()), &mut faults);
        assert_eq!(faults, [format!("a.rs:2: {}( (unfinished)", ["tod", "o!"].concat())]);
    }
}
