//! File locks. The kernel gives one up when its process ends, however it ends, so there is no process id to mistrust.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result};

use crate::account::Account;

/// A lock that is held until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock, or none when another one holds it.
    pub(crate) fn try_take(path: &Path, account: Account) -> Result<Option<Self>> {
        let file = open(path, account)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Lock { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("cannot lock {}", path.display())),
        }
    }

    /// Takes the lock, waiting for the one who holds it.
    pub(crate) fn take(path: &Path, account: Account) -> Result<Self> {
        let file = open(path, account)?;
        file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
        Ok(Lock { _file: file })
    }
}

fn open(path: &Path, account: Account) -> Result<File> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("cannot open the lock {}", path.display()))?;
    // A lock file made by root must not shut out the folder's owner later.
    account.give(path)?;
    Ok(file)
}
