//! `cargo xtask test`: every test, on a server of its own per version of PostgreSQL.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use tenure_dev::{Binaries, Consent, FETCHED_MAJOR, MAJOR_MIN, Options, Server, find_binaries, obtain_binaries};

use crate::{child, say, setup};

#[derive(clap::Args)]
pub(crate) struct Test {
    /// Only this major version of PostgreSQL; may be given more than once [default: 15 or the newest found, and 18]
    #[arg(long, value_name = "MAJOR")]
    pg: Vec<u32>,

    /// For the test runner: names of tests, or its options behind --
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    runner: Vec<String>,
}

/// Runs the examples of the documentation, then the tests on each version.
pub(crate) fn run(test: &Test) -> Result<()> {
    let versions = versions(&test.pg)?;
    let pooler = setup::pooler();
    versions.iter().for_each(setup::pg_cron);
    let mut skipped = Vec::new();
    let names: Vec<&str> = versions.iter().map(|version| version.version.as_str()).collect();
    say(&format!("testing on PostgreSQL {}", names.join(" and ")));
    for (n, binaries) in versions.iter().enumerate() {
        run_on(binaries, n == 0, pooler, &test.runner, &mut skipped)
            .with_context(|| format!("on PostgreSQL {}", binaries.version))?;
    }
    skipped.iter().for_each(|line| say(line));
    if !pooler {
        say("the tests behind PgBouncer did not run: it is not installed (apt-get install pgbouncer)");
    }
    let majors: Vec<u32> = versions.iter().map(|version| version.major).collect();
    say(&format!("passed on PostgreSQL {}{}", names.join(" and "), not_run(&test.pg, &majors)));
    Ok(())
}

/// What a reader of the last line would otherwise believe: that the tests ran on what could not be had, too.
fn not_run(wanted: &[u32], majors: &[u32]) -> String {
    let expected = if wanted.is_empty() { &[MAJOR_MIN, FETCHED_MAJOR] } else { wanted };
    let missing: Vec<_> = expected.iter().filter(|major| !majors.contains(major)).map(u32::to_string).collect();
    if missing.is_empty() { String::new() } else { format!("; NOT on {}, which is not here", missing.join(" and ")) }
}

fn versions(wanted: &[u32]) -> Result<Vec<Binaries>> {
    if !wanted.is_empty() {
        return wanted.iter().map(|&major| obtain_binaries(Some(major), Consent::Yes, say)).collect();
    }
    let newest = setup::binaries()?;
    let oldest = find_binaries(Some(MAJOR_MIN)).unwrap_or_else(|_| newest.clone());
    if oldest.major != MAJOR_MIN {
        say(&format!("PostgreSQL {MAJOR_MIN} is not here, so the tests run on {}", oldest.version));
    }
    let mut versions = vec![oldest];
    match obtain_binaries(Some(FETCHED_MAJOR), Consent::Yes, say) {
        Ok(found) if found.major != versions[0].major => versions.push(found),
        Ok(_) => {}
        Err(error) => {
            let reason = format!("{error:#}");
            let reason = reason.lines().next().unwrap_or_default();
            say(&format!("the tests do not run on PostgreSQL {FETCHED_MAJOR}: {reason}"));
        }
    }
    Ok(versions)
}

/// The first version gets everything; a further one only what talks to the database.
fn run_on(binaries: &Binaries, first: bool, pooler: bool, runner: &[String], skipped: &mut Vec<String>) -> Result<()> {
    let options = Options {
        ephemeral: true,
        // The tests crash servers, never the machine.
        durable: false,
        bin_dir: Some(binaries.dir.clone()),
        say,
        ..Options::default()
    };
    let server = Server::start(options)?;
    // Tests of what this machine cannot do add a line each; without the file they fail.
    let file = std::env::temp_dir().join(format!("tenure-did-not-run-{}", std::process::id()));
    let on_server = |mut command: Command| {
        // Servers that tests start themselves are of the same version.
        command.env("DATABASE_URL", server.url()).env("TENURE_PG_BIN", &binaries.dir).current_dir(child::workspace());
        command.env("TENURE_DID_NOT_RUN", &file);
        if !pooler {
            command.env("TENURE_WITHOUT_POOLER", "1");
        }
        child::run(&mut command)
    };
    // The examples come first: the runner's summary is what should stand at the end.
    let done = match first && runner.is_empty() {
        true => on_server(child::cargo(&["test", "--quiet", "--workspace", "--doc"])),
        false => Ok(()),
    };
    let done = done.and_then(|()| on_server(tests(first, runner)?));
    let lines = std::fs::read_to_string(&file).unwrap_or_default();
    skipped.extend(lines.lines().map(|line| format!("on PostgreSQL {}: {line}", binaries.version)));
    let _ = std::fs::remove_file(&file);
    // The server is stopped whatever the tests say.
    let stopped = server.stop();
    done.and(stopped)
}

fn tests(first: bool, runner: &[String]) -> Result<Command> {
    let nextest = child::cargo(&["nextest", "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let (mut command, database_only): (_, &[&str]) = match nextest {
        Ok(status) if status.success() => (
            child::cargo(&["nextest", "run", "--workspace"]),
            &["--filterset", "not package(tenure-dev) and not package(xtask)"],
        ),
        Ok(_) => {
            (child::cargo(&["test", "--workspace", "--tests"]), &["--exclude", "tenure-dev", "--exclude", "xtask"])
        }
        Err(error) => bail!("cannot start cargo: {error}"),
    };
    // What is behind it has tests, too.
    command.args(["--features", "xtask/prove"]);
    if !first && runner.is_empty() {
        command.args(database_only);
    }
    command.args(runner);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_says_what_did_not_run() {
        let check = |wanted: &[u32], majors: &[u32], expected: &str| assert_eq!(not_run(wanted, majors), expected);
        check(&[], &[15, 18], "");
        check(&[], &[17, 18], "; NOT on 15, which is not here");
        check(&[], &[17], "; NOT on 15 and 18, which is not here");
        check(&[16], &[16], "");
    }
}
