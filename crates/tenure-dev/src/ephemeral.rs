//! Folders of ephemeral clusters: made, and removed when their process is dead.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::account::Account;
use crate::folders;
use crate::home::Home;
use crate::locks::Lock;
use crate::password::random_hex;
use crate::postmaster::end_orphan;

/// Makes a folder of our own and takes its ownership. Removes those of dead processes first.
pub(crate) fn make(say: fn(&str)) -> Result<(Home, Lock)> {
    let base = folders::ephemeral()?;
    // Under this lock nobody is between making a folder and owning it.
    let _lock = Lock::take(&base.join(".lock"), Account::for_home(&base)?)?;
    for entry in fs::read_dir(&base)?.flatten() {
        if entry.path().is_dir()
            && let Err(error) = remove_if_dead(&entry.path(), say)
        {
            say(&format!("{} is left over and cannot be removed: {error:#}", entry.path().display()));
        }
    }
    let home = Home::open(&base.join(random_hex(4)?))?;
    let lock = home.own()?.context("a new folder has an owner already")?;
    Ok((home, lock))
}

fn remove_if_dead(dir: &Path, say: fn(&str)) -> Result<()> {
    let home = Home::open(dir)?;
    let Some(_lock) = home.own()? else { return Ok(()) };
    say(&format!("removing {}, which a process that died left over", dir.display()));
    end_orphan(&home)?;
    remove(&home.dir)
}

/// Removes a cluster's folder.
pub(crate) fn remove(dir: &PathBuf) -> Result<()> {
    fs::remove_dir_all(dir).with_context(|| format!("cannot remove {}", dir.display()))
}
