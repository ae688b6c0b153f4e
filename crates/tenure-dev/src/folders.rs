//! Where clusters and fetched binaries live.
//!
//! | | root | others |
//! |---|---|---|
//! | clusters | `/var/lib/tenure/pg/<major>`, or `/var/tmp/tenure` where that cannot be written | `$XDG_STATE_HOME/tenure/pg/<major>`, by default `~/.local/state` |
//! | ephemeral clusters | `ephemeral/` beside them | `ephemeral/` beside them, or the temporary folder |
//! | fetched binaries | `binaries/` beside them | `$XDG_CACHE_HOME/tenure/pg`, by default `~/.cache` |
//!
//! Root's own folder is closed to the account that the server runs as, so root's clusters are not kept there. Ephemeral
//! clusters avoid the temporary folder because it is often memory: a benchmark of commits would measure nothing.

use std::fs::{DirBuilder, Permissions, set_permissions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::account;

/// The folder of the clusters that are kept, one folder per major version.
pub(crate) fn clusters() -> Result<PathBuf> {
    let base = if account::is_root() { root_base()? } else { xdg("XDG_STATE_HOME", ".local/state")? };
    let folder = base.join("tenure/pg");
    make(&folder)?;
    Ok(folder)
}

/// The folder of the ephemeral clusters of this user.
pub(crate) fn ephemeral() -> Result<PathBuf> {
    if let Ok(folder) = clusters().map(|clusters| clusters.join("ephemeral"))
        && make(&folder).is_ok()
    {
        return Ok(folder);
    }
    // A name in a folder that others write to: it must be ours, or somebody was there first.
    let folder = std::env::temp_dir().join(format!("tenure-pg-{}", account::user_id()));
    make(&folder)?;
    let found = folder.symlink_metadata()?;
    ensure!(
        found.is_dir() && found.uid() == account::user_id(),
        "{} belongs to somebody else; set XDG_STATE_HOME to a folder of your own",
        folder.display()
    );
    set_permissions(&folder, Permissions::from_mode(0o700))?;
    Ok(folder)
}

/// The folder of fetched binaries.
pub(crate) fn binaries() -> Result<PathBuf> {
    let folder = if account::is_root() {
        root_base()?.join("tenure/pg/binaries")
    } else {
        xdg("XDG_CACHE_HOME", ".cache")?.join("tenure/pg")
    };
    make(&folder)?;
    Ok(folder)
}

fn root_base() -> Result<PathBuf> {
    let bases = ["/var/lib", "/var/tmp"].map(PathBuf::from);
    let usable = |base: &PathBuf| make(&base.join("tenure/pg")).is_ok();
    bases.into_iter().find(usable).context("neither /var/lib/tenure nor /var/tmp/tenure can be written")
}

fn xdg(variable: &str, below_home: &str) -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os(variable).map(PathBuf::from).filter(|folder| folder.is_absolute()) {
        return Ok(folder);
    }
    match std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute()) {
        Some(home) => Ok(home.join(below_home)),
        None => bail!("neither {variable} nor HOME names a folder; choose one with --data-dir or set {variable}"),
    }
}

/// Makes a folder and those above it. Root's are open for entering, so that the server's account gets to its own.
pub(crate) fn make(folder: &Path) -> Result<()> {
    let mode = if account::is_root() { 0o755 } else { 0o700 };
    let missing: Vec<&Path> = folder.ancestors().take_while(|folder| !folder.exists()).collect();
    for folder in missing.into_iter().rev() {
        let made = DirBuilder::new().recursive(true).mode(mode).create(folder);
        // Once more, because a strict umask would close root's folders.
        made.and_then(|()| set_permissions(folder, Permissions::from_mode(mode))).with_context(|| {
            format!("cannot make the folder {}; choose another one with --data-dir or XDG_STATE_HOME", folder.display())
        })?;
    }
    writable(folder)
}

/// Says early and clearly that a folder cannot be written.
pub(crate) fn writable(folder: &Path) -> Result<()> {
    ensure!(folder.is_dir(), "{} is not a folder; choose another one with --data-dir", folder.display());
    let path = std::ffi::CString::new(std::os::unix::ffi::OsStrExt::as_bytes(folder.as_os_str()))?;
    // SAFETY: a valid C string goes in and nothing is kept.
    if unsafe { libc::access(path.as_ptr(), libc::W_OK | libc::X_OK) } != 0 {
        return Err(std::io::Error::last_os_error())
            .with_context(|| format!("cannot write to {}; choose another folder with --data-dir", folder.display()));
    }
    Ok(())
}
