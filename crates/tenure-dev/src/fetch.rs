//! Fetches binaries through npm's own client: one package per platform, pinned by version and hash.

use std::fs;
use std::io::{IsTerminal, Write, stderr, stdin};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::archive::install_archive;
use crate::folders;
use crate::password::random_hex;

/// The major version that can be fetched.
pub const FETCHED_MAJOR: u32 = 18;

const VERSION: &str = "18.4.0-beta.17";

/// Platform as std names it, platform as npm does, hash of the package (`npm view … dist.integrity`, November 2026).
const PACKAGES: [(&str, &str, &str, &str); 4] = [
    (
        "linux",
        "x86_64",
        "linux-x64",
        "sha512-jVw/MdDtIX/vICH/DKIe6/mHpiCggdx6QVyza4vt/NbcZFsL0KhwglF6F1Koqx3gRBZ9XtN+vi63EsqSyqOSxA==",
    ),
    (
        "linux",
        "aarch64",
        "linux-arm64",
        "sha512-TIzjtGnDGSD/LbdW0OWCEcbI+YVT0WKSfSr20TCkkP4UR8zeKe+QCZbO0/CM4hS9EWyZ4cDebjRvpRc3iMi6wg==",
    ),
    (
        "macos",
        "aarch64",
        "darwin-arm64",
        "sha512-Kg1ZMNFzkVIJs3g4V2UYEc5X005km9rGinxFBH8R1sOU2Rblvz4pt2Uf93Pu8Rk273Ue9HIdrbMPpgUqwjUi0Q==",
    ),
    (
        "macos",
        "x86_64",
        "darwin-x64",
        "sha512-4tShSYWMxUQTSWoQAdLnHISvRj6L9gTch9/31ASJPg6wgyN64LDRwMcOINEWybM7N0ropJ3nTYhFT3UX1bKY5Q==",
    ),
];

/// Whether binaries may be fetched when none are found here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Consent {
    /// Never.
    #[default]
    No,
    /// Ask when there is a terminal to ask on; otherwise as [`Consent::No`].
    Ask,
    /// Without asking.
    Yes,
}

/// Fetches the binaries into the cache and gives their folder; none when that is not wanted or cannot be tried here.
pub(crate) fn fetch(consent: Consent, say: fn(&str)) -> Result<Option<PathBuf>> {
    let (os, cpu) = (std::env::consts::OS, std::env::consts::ARCH);
    let Some((_, _, platform, integrity)) = PACKAGES.iter().find(|package| (package.0, package.1) == (os, cpu)) else {
        return Ok(None);
    };
    let package = format!("@embedded-postgres/{platform}@{VERSION}");
    if !npm_is_here() || !agreed(consent, &package)? {
        return Ok(None);
    }
    say(&format!("fetching PostgreSQL {FETCHED_MAJOR} with npm ({package}, about 24 MB)"));
    let cache = folders::binaries()?;
    let scratch = cache.join(format!(".fetching-{}", random_hex(6)?));
    fs::create_dir(&scratch).with_context(|| format!("cannot make {}", scratch.display()))?;
    let installed = pack(&package, &scratch).and_then(|archive| install_archive(&archive, Some(integrity), &cache));
    let _ = fs::remove_dir_all(&scratch);
    installed.map(Some)
}

/// True when npm's client can be run.
pub(crate) fn npm_is_here() -> bool {
    Command::new("npm").arg("--version").stdin(Stdio::null()).output().is_ok_and(|output| output.status.success())
}

fn agreed(consent: Consent, package: &str) -> Result<bool> {
    match consent {
        Consent::Yes => Ok(true),
        Consent::No => Ok(false),
        Consent::Ask if !stdin().is_terminal() || !stderr().is_terminal() => Ok(false),
        Consent::Ask => {
            eprint!("No PostgreSQL server was found here. Fetch one with npm ({package}, about 24 MB)? [y/N] ");
            stderr().flush()?;
            let mut answer = String::new();
            stdin().read_line(&mut answer)?;
            Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
        }
    }
}

/// `npm pack` into `folder`; gives the archive.
fn pack(package: &str, folder: &Path) -> Result<PathBuf> {
    let output = Command::new("npm")
        .args(["pack", package, "--silent", "--pack-destination", "."])
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .context("cannot run npm")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "npm pack {package} failed: {}", said.trim());
    let mut files = fs::read_dir(folder)?.flatten().map(|entry| entry.path());
    match files.find(|path| path.extension().is_some_and(|extension| extension == "tgz")) {
        Some(archive) => Ok(archive),
        None => bail!("npm pack {package} left no archive: {}", said.trim()),
    }
}
