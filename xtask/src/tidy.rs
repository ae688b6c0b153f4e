//! `cargo xtask tidy`: what must not be in the sources.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{child, say};

/// Lines of a file of code. More is a sign that it holds more than one thing.
const LINES_MAX: usize = 600;

/// What must not be in a file, and why. Each is written in two parts so that this file passes.
const FORBIDDEN: [(&[&str], &str); 4] = [
    (&["tod", "o!("], "unfinished"),
    (&["unimplemen", "ted!("], "unfinished"),
    (&["#[ign", "ore"], "a test that does not run"),
    (&["db", "g!("], "left from a search for a fault"),
];

/// The names of tests have at least so many underscores; what has fewer may be anything else.
const UNDERSCORES_MIN: usize = 3;

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
    let names = String::from_utf8_lossy(&output.stdout).into_owned();
    // Binary files and files just removed are not text.
    let read = |name: &str| Some((name.to_owned(), fs::read_to_string(workspace.join(name)).ok()?));
    let files: Vec<(String, String)> = names.lines().filter_map(read).collect();
    let forbidden = forbidden(&places(workspace));
    let mut faults = Vec::new();
    for (name, text) in &files {
        check(name, text, &forbidden, &mut faults);
    }
    check_tests_named(&files, &mut faults);
    Ok(faults)
}

/// Where this copy of the sources lies, and whose it is: no file knows.
fn places(workspace: &Path) -> Vec<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let mut places: Vec<PathBuf> = workspace.parent().map(Path::to_owned).into_iter().chain(home).collect();
    // Folders that every machine has say nothing of this one.
    let everywhere = ["/tmp", "/var/tmp"].map(Path::new);
    places.retain(|place| place.is_absolute() && place.parent().is_some() && !everywhere.contains(&place.as_path()));
    places
}

fn forbidden(places: &[PathBuf]) -> Vec<(String, &'static str)> {
    let fixed = FORBIDDEN.iter().map(|(parts, reason)| (parts.concat(), *reason));
    let found = places.iter().map(|place| (format!("{}/", place.display()), "a path of this machine"));
    fixed.chain(found).collect()
}

/// What the pages call a test, is one: `file::name`, or a name behind its file (`src/file.rs`).
fn check_tests_named(files: &[(String, String)], faults: &mut Vec<String>) {
    for (page, text) in files.iter().filter(|(name, _)| name.ends_with(".md")) {
        for (n, line) in text.lines().enumerate() {
            let missing = tests_named(line).filter(|(file, test)| !has_test(files, file, test));
            faults.extend(missing.map(|(file, test)| format!("{page}:{}: there is no test {test} in {file}", n + 1)));
        }
    }
}

/// The tests that a line names, each with the end of its file's name.
fn tests_named(line: &str) -> impl Iterator<Item = (String, &str)> {
    let spans = line.split('`').skip(1).step_by(2);
    let named = spans.scan(String::new(), |file, span| match span.rsplit_once("::") {
        Some((file, test)) => Some((format!("{file}.rs"), test)),
        None => {
            if span.ends_with(".rs") {
                span.clone_into(file);
            }
            Some((file.clone(), span))
        }
    });
    named.filter(|(file, test)| !file.is_empty() && is_name_of_a_test(test))
}

fn has_test(files: &[(String, String)], file: &str, test: &str) -> bool {
    let mut there = files.iter().filter(|(name, _)| name.ends_with(&format!("/{file}")));
    there.any(|(_, text)| text.contains(&format!("fn {test}(")))
}

fn is_name_of_a_test(text: &str) -> bool {
    let letters = text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    letters && text.matches('_').count() >= UNDERSCORES_MIN
}

fn check(name: &str, text: &str, forbidden: &[(String, &str)], faults: &mut Vec<String>) {
    for (n, line) in text.lines().enumerate() {
        for (words, reason) in forbidden.iter().filter(|(words, _)| line.contains(words)) {
            faults.push(format!("{name}:{}: {words} ({reason})", n + 1));
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
        let forbidden = forbidden(&["/data/ada".into()]);
        check("a.rs", &format!("fine\n    {}()", ["tod", "o!("].concat()), &forbidden, &mut faults);
        assert_eq!(faults, [format!("a.rs:2: {}( (unfinished)", ["tod", "o!"].concat())]);
        faults.clear();
        check("b.md", "see /data/ada/tenure/b.md, not /data/adam", &forbidden, &mut faults);
        assert_eq!(faults, ["b.md:1: /data/ada/ (a path of this machine)"]);
    }

    #[test]
    fn the_folder_of_the_sources_and_the_home_are_found_where_they_are() {
        let places = places(Path::new("/data/ada/tenure"));
        assert_eq!(places.first(), Some(&PathBuf::from("/data/ada")));
        assert!(super::places(Path::new("/tenure")).iter().all(|place| place != Path::new("/")));
    }

    #[test]
    fn a_page_names_no_test_that_does_not_exist() {
        let file = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        let code = file("tests/it/end.rs", "async fn a_job_ends_once() {}");
        let text = "`end::a_job_ends_once`, `it/end.rs`: `a_job_ends_once`, `a_job_that_ends`\n\
                    `some_other_long_name`, `end::a_job_ends_twice`, `fire::a_job_ends_once`";
        let mut faults = Vec::new();
        check_tests_named(&[code, file("a.md", text)], &mut faults);
        let missing =
            ["1: there is no test a_job_that_ends in it/end.rs", "2: there is no test a_job_ends_twice in end.rs"];
        let last = "2: there is no test a_job_ends_once in fire.rs";
        assert_eq!(faults, [missing[0], missing[1], last].map(|fault| format!("a.md:{fault}")));
    }
}
