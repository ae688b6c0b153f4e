//! What the tests share: folders, connections, and a process that can be killed.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tenure_dev::Options;
use tokio_postgres::{NoTls, SimpleQueryMessage};

/// A folder that is removed with what is in it.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tenure-dev-{name}-{}", std::process::id()));
        fs::create_dir(&path).expect("a new folder");
        // The server's account has to get through it.
        fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("an open folder");
        Folder(path)
    }

    /// Options of a kept cluster in this folder.
    pub fn kept(&self) -> Options {
        Options { data_dir: Some(self.0.join("pg")), ..Options::default() }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The first column of the first row.
pub fn query(url: &str, sql: &str) -> Result<String, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.map_err(said)?;
        tokio::spawn(connection);
        let messages = client.simple_query(sql).await.map_err(said)?;
        let first = messages.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or_default().to_string()),
            _ => None,
        });
        Ok(first.unwrap_or_default())
    })
}

fn said(error: tokio_postgres::Error) -> String {
    error.as_db_error().map_or_else(|| error.to_string(), |error| error.message().to_string())
}

/// Waits until something holds that nothing tells about; fails after 30 s.
pub fn eventually(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}: not within 30 s");
        // sleep: between two looks at processes of others, until a deadline.
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// True while the process exists and has not ended.
pub fn is_alive(pid: u32) -> bool {
    let output = Command::new("ps").args(["-o", "stat=", "-p", &pid.to_string()]).output().expect("ps runs");
    let state = String::from_utf8_lossy(&output.stdout).trim().to_string();
    !state.is_empty() && !state.starts_with('Z')
}

/// Another process that owns a server.
pub struct Holder {
    child: Child,
    pub home: PathBuf,
    pub pid: u32,
    pub url: String,
}

impl Holder {
    pub fn start(wanted: impl AsRef<Path>) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tenure-dev-hold"))
            .arg(wanted.as_ref())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the holder starts");
        let mut lines = BufReader::new(child.stdout.take().expect("its stdout")).lines();
        let mut line = || lines.next().expect("a line").expect("text");
        let (home, pid, url) = (line().into(), line().parse().expect("a process id"), line());
        Holder { child, home, pid, url }
    }

    /// Ends it as it wants to end: the server is stopped.
    pub fn finish(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().expect("it ends").success());
    }

    /// SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
    }
}
