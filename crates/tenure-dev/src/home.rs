//! The folder of one cluster: the data, what we noted about it, its log and its locks.

use std::fs::{self, DirBuilder, OpenOptions, Permissions, set_permissions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::account::Account;
use crate::folders;
use crate::locks::Lock;

/// The names that we make in a cluster's folder, or their beginnings.
const OUR_NAMES: [&str; 5] = ["data", "cluster.json", "server.log", "lock.", ".s.PGSQL."];

/// The longest path of a socket: `sun_path` has 108 bytes on Linux and 104 elsewhere, and ends in a zero byte.
const SOCKET_PATH_MAX: usize = if cfg!(target_os = "linux") { 107 } else { 103 };

/// What is noted about a cluster when it is made, and its last port.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Cluster {
    pub(crate) major: u32,
    pub(crate) bin_dir: PathBuf,
    pub(crate) port: u16,
    pub(crate) password: String,
}

/// A server that the folder's `postmaster.pid` names and that exists.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Running {
    pub(crate) pid: i32,
    pub(crate) port: u16,
    /// False while it starts or stops.
    pub(crate) ready: bool,
}

/// The folder of one cluster.
#[derive(Debug, Clone)]
pub(crate) struct Home {
    pub(crate) dir: PathBuf,
    pub(crate) account: Account,
}

impl Home {
    /// Opens the folder, and makes it when it is missing.
    ///
    /// # Errors
    /// It cannot be made or written, or it holds something that is not a cluster of ours.
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        let account = Account::for_home(dir)?;
        let shown = dir.display();
        if let Some(parent) = dir.parent().filter(|_| !dir.exists()) {
            folders::make(parent)?;
            DirBuilder::new()
                .mode(0o700)
                .create(dir)
                .with_context(|| format!("cannot make the folder {shown}; choose another one with --data-dir"))?;
        }
        ensure!(dir.is_dir(), "{shown} is not a folder; choose another one with --data-dir");
        let home = Home { dir: dir.canonicalize()?, account };
        home.check_contents()?;
        account.give(&home.dir)?;
        folders::writable(&home.dir)?;
        set_permissions(&home.dir, Permissions::from_mode(0o700))
            .with_context(|| format!("cannot close {shown} to others, so no server is started in it"))?;
        Ok(home)
    }

    /// Refuses a folder in which there is anything that we did not make.
    fn check_contents(&self) -> Result<()> {
        if self.dir.join("cluster.json").exists() {
            return Ok(());
        }
        let dir = self.dir.display();
        ensure!(
            !self.dir.join("PG_VERSION").exists(),
            "{dir} is the data folder of a PostgreSQL server that tenure did not make; start that server yourself \
             and pass its URL in DATABASE_URL, or choose another folder with --data-dir"
        );
        let entries = fs::read_dir(&self.dir).with_context(|| format!("cannot read the folder {dir}"))?;
        for entry in entries {
            let name = entry?.file_name();
            let name = name.to_string_lossy();
            ensure!(
                OUR_NAMES.iter().any(|ours| name.starts_with(ours)),
                "{dir} is not a cluster of tenure and not empty (it holds {name:?}); choose an empty or new folder \
                 with --data-dir"
            );
        }
        Ok(())
    }

    /// Where PostgreSQL keeps the data.
    pub(crate) fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// The server's log of this run; the one before is beside it.
    pub(crate) fn log(&self) -> PathBuf {
        self.dir.join("server.log")
    }

    /// Held while a server is started or stopped.
    pub(crate) fn lock_changes(&self, say: fn(&str)) -> Result<Lock> {
        let path = self.dir.join("lock.changes");
        if let Some(lock) = Lock::try_take(&path, self.account)? {
            return Ok(lock);
        }
        say(&format!("waiting for another process that starts or stops the server in {}", self.dir.display()));
        Lock::take(&path, self.account)
    }

    /// Held by the process that started the server, for as long as it lives; none when another one holds it.
    pub(crate) fn own(&self) -> Result<Option<Lock>> {
        Lock::try_take(&self.dir.join("lock.owner"), self.account)
    }

    /// What was noted about the cluster; none when no cluster was made here, or not to its end.
    pub(crate) fn cluster(&self) -> Result<Option<Cluster>> {
        let path = self.dir.join("cluster.json");
        if !self.data().exists() {
            return Ok(None);
        }
        let Ok(text) = fs::read(&path) else {
            bail!("{} has data but no cluster.json; choose another folder with --data-dir", self.dir.display());
        };
        let cluster: Cluster = serde_json::from_slice(&text)
            .with_context(|| format!("{} is damaged; choose another folder with --data-dir", path.display()))?;
        let version = fs::read_to_string(self.data().join("PG_VERSION")).unwrap_or_default();
        ensure!(
            version.trim() == cluster.major.to_string(),
            "{} is no data folder of PostgreSQL {} (its PG_VERSION is {:?}); choose another folder with --data-dir",
            self.data().display(),
            cluster.major,
            version.trim()
        );
        Ok(Some(cluster))
    }

    /// Notes it, whole or not at all.
    pub(crate) fn note(&self, cluster: &Cluster) -> Result<()> {
        let (path, new) = (self.dir.join("cluster.json"), self.dir.join("cluster.json.new"));
        let write = || -> Result<()> {
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(&serde_json::to_vec_pretty(cluster)?)?;
            file.sync_all()?;
            self.account.give(&new)?;
            Ok(fs::rename(&new, &path)?)
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }

    /// The folder for the server's socket; none when the path would be too long, so that there is only the port.
    pub(crate) fn socket_dir(&self) -> Option<&Path> {
        let longest = self.dir.join(".s.PGSQL.65535");
        // A comma in the setting would separate two folders.
        let plain = !self.dir.to_string_lossy().contains([',', '"']);
        (plain && longest.as_os_str().len() <= SOCKET_PATH_MAX).then_some(self.dir.as_path())
    }

    /// The server of this folder, when one exists.
    pub(crate) fn running(&self) -> Option<Running> {
        let file = fs::read_to_string(self.data().join("postmaster.pid")).ok()?;
        let lines: Vec<&str> = file.lines().map(str::trim).collect();
        let pid = lines.first()?.parse().ok().filter(|&pid| pid > 1)?;
        let port = lines.get(3).and_then(|port| port.parse().ok()).unwrap_or(0);
        let ready = lines.get(7).is_some_and(|status| *status == "ready");
        self.is_postmaster(pid).then_some(Running { pid, port, ready })
    }

    /// Removes what a server that did not stop orderly left. The processes that its files name are not this cluster's
    /// server, but PostgreSQL would refuse to start while they exist: after a reboot the numbers are somebody else's.
    pub(crate) fn forget_dead_server(&self) -> Result<()> {
        let sockets = fs::read_dir(&self.dir)?.flatten().map(|entry| entry.path());
        let sockets =
            sockets.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(".s.PGSQL.")));
        for path in sockets.chain([self.data().join("postmaster.pid")]) {
            if path.symlink_metadata().is_ok() {
                fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
            }
        }
        Ok(())
    }

    /// A process id outlives its process and is given to another one: the file alone proves nothing.
    #[cfg(target_os = "linux")]
    fn is_postmaster(&self, pid: i32) -> bool {
        // A server works in its data folder.
        fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == self.data())
    }

    #[cfg(not(target_os = "linux"))]
    fn is_postmaster(&self, pid: i32) -> bool {
        let output = std::process::Command::new("ps").args(["-ww", "-o", "command=", "-p", &pid.to_string()]).output();
        let data = self.data().to_string_lossy().into_owned();
        output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(&data))
    }
}
