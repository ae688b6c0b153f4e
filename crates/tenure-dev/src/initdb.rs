//! Makes a cluster: `initdb`, who may connect, the role and the database `tenure`.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::find::Binaries;
use crate::home::{Cluster, Home};
use crate::password::{random_hex, scram_verifier};

/// Lets the socket in without a password, because the folder around it is closed, and the port with one.
const PG_HBA: &str = "\
local  all          all                trust
local  replication  all                trust
host   all          all  127.0.0.1/32  scram-sha-256
host   replication  all  127.0.0.1/32  scram-sha-256
";

/// Makes the cluster of `home`. A try that was interrupted is thrown away first; the data appear under their name only
/// when everything is done.
pub(crate) fn make(home: &Home, binaries: &Binaries, port: u16, sync: bool) -> Result<Cluster> {
    home.account.check_reach(&binaries.dir, &home.dir)?;
    let data = home.dir.join("data.new");
    if data.exists() {
        fs::remove_dir_all(&data).with_context(|| format!("cannot remove {}", data.display()))?;
    }
    initdb(home, binaries, &data, sync)?;
    fs::write(data.join("pg_hba.conf"), PG_HBA)?;
    let password = random_hex(16)?;
    let salt = random_hex(16)?;
    let verifier = scram_verifier(&password, salt.as_bytes());
    single_user(
        home,
        binaries,
        &data,
        &[&format!("alter role tenure password '{verifier}'"), "create database tenure"],
    )?;
    let cluster = Cluster { major: binaries.major, bin_dir: binaries.dir.clone(), port, password };
    home.note(&cluster)?;
    fs::rename(&data, home.data()).with_context(|| format!("cannot make {}", home.data().display()))?;
    Ok(cluster)
}

fn initdb(home: &Home, binaries: &Binaries, data: &Path, sync: bool) -> Result<()> {
    let mut command = home.account.command(&binaries.dir.join("initdb"), &home.dir);
    command.arg("--pgdata").arg(data).args(["--username=tenure", "--encoding=UTF8", "--no-locale"]);
    // Nothing can connect before pg_hba.conf is replaced below.
    command.args(["--auth=trust", "--no-instructions"]);
    if !sync {
        command.arg("--no-sync");
    }
    run(command, &[]).context("initdb")
}

/// Runs statements in the server's single-user mode: no port, no client, and the first error ends it.
fn single_user(home: &Home, binaries: &Binaries, data: &Path, statements: &[&str]) -> Result<()> {
    let mut command = home.account.command(&binaries.dir.join("postgres"), &home.dir);
    command.arg("--single").arg("-D").arg(data);
    // The server syncs everything at the next checkpoint; here only the statements' own commits count.
    command.args(["-c", "exit_on_error=true", "-c", "log_checkpoints=off", "postgres"]);
    run(command, statements).context("postgres --single")
}

fn run(mut command: Command, lines: &[&str]) -> Result<()> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        for line in lines {
            // One that ended early says why on stderr, which is more than the broken pipe does.
            let _ = writeln!(stdin, "{line}");
        }
    }
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    let last: Vec<&str> = said.trim().lines().rev().take(5).collect();
    let last: Vec<&str> = last.into_iter().rev().collect();
    ensure!(output.status.success(), "{}: {}", output.status, last.join("; "));
    Ok(())
}
