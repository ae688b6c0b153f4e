//! Which account the server runs as. PostgreSQL refuses root, so as root another one is taken; no account is ever made.

use std::ffi::CString;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The account nobody on systems that do not list it.
const NOBODY: (u32, u32) = (65534, 65534);

/// The account of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Account {
    uid: u32,
    gid: u32,
    /// True when this process is root and has to change to the account.
    change: bool,
}

impl Account {
    /// The account for the cluster in `home`, which need not exist yet: our own, or, as root, the owner of the folder
    /// unless that is root, else `postgres`, else nobody.
    pub(crate) fn for_home(home: &Path) -> Result<Self> {
        let (uid, gid) = current();
        if uid != 0 {
            return Ok(Account { uid, gid, change: false });
        }
        let owner = home.metadata().ok().map(|m| (m.uid(), m.gid())).filter(|&(uid, _)| uid != 0);
        let (uid, gid) = owner.or_else(|| named("postgres")).or_else(|| named("nobody")).unwrap_or(NOBODY);
        ensure!(uid != 0, "the account postgres has the user id 0 here, and PostgreSQL refuses to run as root");
        Ok(Account { uid, gid, change: true })
    }

    /// A command that will run as this account in the folder `cwd`, without the caller's `PG…` variables.
    pub(crate) fn command(&self, program: &Path, cwd: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(cwd).env("LC_ALL", "C");
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PG")) {
            command.env_remove(name);
        }
        if self.change {
            // As root this also drops the supplementary groups.
            command.uid(self.uid).gid(self.gid);
        }
        command
    }

    /// Makes the account the owner of a file or folder that we made.
    pub(crate) fn give(&self, path: &Path) -> Result<()> {
        if self.change {
            std::os::unix::fs::chown(path, Some(self.uid), Some(self.gid))
                .with_context(|| format!("cannot give {} to user id {}", path.display(), self.uid))?;
        }
        Ok(())
    }

    /// Checks that the account can enter `home` and run the programs of `bin_dir`.
    pub(crate) fn check_reach(&self, bin_dir: &Path, home: &Path) -> Result<()> {
        let postgres = bin_dir.join("postgres");
        let runs_in = |cwd: &Path| self.command(&postgres, cwd).arg("--version").output();
        let Err(error) = runs_in(home) else { return Ok(()) };
        let (what, way_out) = match runs_in(Path::new("/")) {
            Ok(_) => (home, "choose another folder with --data-dir"),
            Err(_) => (bin_dir, "put the binaries where everybody may read them"),
        };
        Err(error).with_context(|| {
            format!(
                "{} cannot be used by user id {}, as which the server runs{}; {way_out}",
                what.display(),
                self.uid,
                if self.change { " because PostgreSQL refuses root" } else { "" },
            )
        })
    }
}

/// Effective user and group of this process.
fn current() -> (u32, u32) {
    // SAFETY: neither call has preconditions, and neither can fail.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// True when this process is root.
pub(crate) fn is_root() -> bool {
    current().0 == 0
}

/// The effective user id of this process.
pub(crate) fn user_id() -> u32 {
    current().0
}

/// User and group id of an account by name.
fn named(name: &str) -> Option<(u32, u32)> {
    let name = CString::new(name).ok()?;
    // SAFETY: a valid C string goes in. The answer points to static memory, is copied at once, and no other code of
    // this crate asks for accounts.
    let entry = unsafe { libc::getpwnam(name.as_ptr()).as_ref() }?;
    Some((entry.pw_uid, entry.pw_gid))
}
