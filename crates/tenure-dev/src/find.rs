//! Finds the programs of a PostgreSQL server on this machine.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::fetch::{Consent, FETCHED_MAJOR};
use crate::{advice, archive, fetch, folders};

/// The oldest major version that is supported.
pub const MAJOR_MIN: u32 = 15;
/// The newest major version that is supported.
pub const MAJOR_MAX: u32 = 18;

/// The programs of one version of PostgreSQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binaries {
    /// The folder with `postgres` and `initdb`.
    pub dir: PathBuf,
    /// The major version, for example 15.
    pub major: u32,
    /// The whole version, for example "15.18".
    pub version: String,
}

impl Binaries {
    /// Looks at one folder.
    ///
    /// # Errors
    /// The folder has not both programs, `postgres` does not run, or its version is not supported.
    pub fn in_dir(dir: &Path) -> Result<Self> {
        let found = Self::unchecked(dir)?;
        ensure!(
            (MAJOR_MIN..=MAJOR_MAX).contains(&found.major),
            "{} holds PostgreSQL {}; supported are {MAJOR_MIN} to {MAJOR_MAX}",
            dir.display(),
            found.version
        );
        Ok(found)
    }

    /// Whether the server can load this library, for example `pg_cron`.
    pub fn has_library(&self, name: &str) -> bool {
        let beside = self.dir.parent().unwrap_or(&self.dir);
        ["lib", "lib/postgresql", "lib64"].iter().any(|lib| beside.join(lib).join(format!("{name}.so")).is_file())
    }

    fn unchecked(dir: &Path) -> Result<Self> {
        for program in ["postgres", "initdb"] {
            ensure!(dir.join(program).is_file(), "{} has no program {program}", dir.display());
        }
        let said = output_of(Command::new(dir.join("postgres")).arg("--version"))
            .with_context(|| format!("{} does not run", dir.join("postgres").display()))?;
        // "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)", "postgres (PostgreSQL) 19beta1".
        let version = said.split_whitespace().nth(2).unwrap_or_default().to_string();
        let digits: String = version.chars().take_while(char::is_ascii_digit).collect();
        let major = digits.parse().with_context(|| format!("{} says {said:?}", dir.join("postgres").display()))?;
        Ok(Binaries { dir: dir.to_path_buf(), major, version })
    }
}

fn output_of(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output()?;
    ensure!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_string())
}

/// The newest supported server on this machine, or the newest of one major version. Nothing is fetched.
///
/// `TENURE_PG_BIN` names the only folder that counts. Otherwise, the first one of equal majors wins: `pg_config
/// --bindir`, PATH, the usual folders of packages. When none of these has one: `TENURE_PG_ARCHIVE`, then what was fetched before.
///
/// # Errors
/// None is here, with what to do about it; or a variable names something that does not work.
pub fn find_binaries(major: Option<u32>) -> Result<Binaries> {
    obtain_binaries(major, Consent::No, |_| {})
}

/// Where PgBouncer is, the pooler behind which some tests run; `None` when it is not installed.
pub fn find_pgbouncer() -> Option<PathBuf> {
    ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "/usr/local/bin/pgbouncer", "/opt/homebrew/bin/pgbouncer"]
        .iter()
        .map(PathBuf::from)
        .find(|path| path.exists())
}

/// As [`find_binaries`], and fetches version [`FETCHED_MAJOR`] when none is here and `consent` allows it. `say` gets
/// a line when that begins.
///
/// # Errors
/// As [`find_binaries`]; or fetching failed.
pub fn obtain_binaries(major: Option<u32>, consent: Consent, say: fn(&str)) -> Result<Binaries> {
    let wanted = |found: &Binaries| major.is_none_or(|major| found.major == major);
    if let Some(dir) = std::env::var_os("TENURE_PG_BIN").filter(|dir| !dir.is_empty()) {
        let found = Binaries::in_dir(Path::new(&dir)).context("TENURE_PG_BIN")?;
        ensure!(
            wanted(&found),
            "TENURE_PG_BIN: {} holds PostgreSQL {}, wanted is {}",
            found.dir.display(),
            found.version,
            major.unwrap_or_default()
        );
        return Ok(found);
    }
    // What the system's packages installed gets its security fixes from them: it comes before what we fetched.
    if let Some(newest) = newest(installed(), wanted) {
        return Ok(newest);
    }
    if let Some(found) = from_archive()?.filter(wanted) {
        return Ok(found);
    }
    if let Some(newest) = newest(fetched(), wanted) {
        return Ok(newest);
    }
    if major.is_none_or(|major| major == FETCHED_MAJOR)
        && let Some(dir) = fetch::fetch(consent, say)?
    {
        return Binaries::in_dir(&dir);
    }
    bail!(advice::ways_out(&major.map(|major| format!(" of version {major}")).unwrap_or_default()))
}

/// True when `TENURE_PG_BIN` says where the programs are.
pub(crate) fn named_by_environment() -> bool {
    std::env::var_os("TENURE_PG_BIN").is_some_and(|dir| !dir.is_empty())
}

/// Of the supported servers in these folders that are wanted, the first one with the greatest major version.
fn newest(dirs: Vec<PathBuf>, wanted: impl Fn(&Binaries) -> bool) -> Option<Binaries> {
    let mut seen = HashSet::new();
    let dirs = dirs.into_iter().filter_map(|dir| dir.canonicalize().ok()).filter(|dir| seen.insert(dir.clone()));
    let found = dirs.filter_map(|dir| Binaries::in_dir(&dir).ok()).filter(wanted);
    found.reduce(|best, next| if next.major > best.major { next } else { best })
}

/// Folders of what was fetched before.
fn fetched() -> Vec<PathBuf> {
    let Ok(cache) = folders::binaries() else { return Vec::new() };
    names_in(&cache, "").into_iter().map(|name| name.join("bin")).collect()
}

/// Folders in which servers are installed, in the order in which they are preferred.
fn installed() -> Vec<PathBuf> {
    let mut dirs = Vec::new();
    dirs.extend(output_of(Command::new("pg_config").arg("--bindir")).ok().map(PathBuf::from));
    if let Some(path) = std::env::var_os("PATH") {
        dirs.extend(std::env::split_paths(&path).filter(|dir| dir.is_absolute()));
    }
    // Folder, beginning of the names in it, and what follows below each.
    let packages = [
        ("/usr/lib/postgresql", "", "bin"),                          // Debian, Ubuntu
        ("/usr/libexec", "postgresql", ""),                          // Alpine
        ("/usr", "pgsql-", "bin"),                                   // PostgreSQL's own RPMs
        ("/opt/homebrew/opt", "postgresql", "bin"),                  // Homebrew on Apple silicon
        ("/usr/local/opt", "postgresql", "bin"),                     // Homebrew on Intel
        ("/Applications/Postgres.app/Contents/Versions", "", "bin"), // Postgres.app
        ("/opt/local/lib", "postgresql", "bin"),                     // MacPorts
        ("/home/linuxbrew/.linuxbrew/opt", "postgresql", "bin"),     // Homebrew on Linux
        ("/nix/var/nix/profiles/default", "bin", ""),
        ("/run/current-system/sw", "bin", ""),
    ];
    for (folder, prefix, below) in packages {
        dirs.extend(names_in(Path::new(folder), prefix).into_iter().map(|name| name.join(below)));
    }
    dirs.extend(std::env::var_os("HOME").map(|home| Path::new(&home).join(".nix-profile/bin")));
    dirs
}

fn names_in(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.starts_with(prefix) && !name.starts_with('.')
        })
        .map(|entry| entry.path())
        .collect();
    paths.sort();
    paths
}

/// `TENURE_PG_ARCHIVE=/path/to.tgz`, with `#sha512-…` behind it when its hash is to be checked.
fn from_archive() -> Result<Option<Binaries>> {
    let Ok(value) = std::env::var("TENURE_PG_ARCHIVE") else { return Ok(None) };
    ensure!(
        !value.contains("://"),
        "TENURE_PG_ARCHIVE is {value:?}, but has to be a file; download it first, for example with curl -LO"
    );
    let (path, integrity) = match value.split_once('#') {
        Some((path, integrity)) => (path, Some(integrity)),
        None => (value.as_str(), None),
    };
    let dir = archive::install_archive(Path::new(path), integrity, &folders::binaries()?);
    Ok(Some(dir.and_then(|dir| Binaries::in_dir(&dir)).context("TENURE_PG_ARCHIVE")?))
}
