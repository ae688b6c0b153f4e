//! Child processes of this program. Each has a pipe on its stdin and ends when that is closed, so that none outlives
//! its parent, however the parent went.

use std::env;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::connection::Connection;

/// How long a process may take to say its first line.
const FIRST_LINE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a process may take to end by itself before it is killed.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// What a process says, line by line.
pub type Said = Lines<BufReader<ChildStdout>>;

/// A process of ours.
#[derive(Debug)]
pub struct Process {
    /// What people call it.
    pub name: String,
    child: Child,
    stdin: Option<ChildStdin>,
}

/// Returns when stdin ends, which it does when the parent closes it or dies.
pub async fn stdin_closed() {
    let mut stdin = tokio::io::stdin();
    let mut sink = [0_u8; 64];
    while matches!(stdin.read(&mut sink).await, Ok(1..)) {}
}

impl Process {
    /// Starts this program with other arguments. The database's URL goes by the environment, where others cannot read it.
    ///
    /// # Errors
    /// The program cannot be started again.
    pub fn start(name: &str, arguments: &[&str], connection: Option<&Connection>) -> Result<Self> {
        let program = env::current_exe().context("where this program is")?;
        let mut command = Command::new(program);
        // A group of its own: Ctrl-C reaches the parent alone, which then ends its processes in order.
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0).kill_on_drop(true);
        if let Some(connection) = connection {
            command.env("DATABASE_URL", &connection.database_url).env("TENURE_SCHEMA", &connection.schema);
        }
        let mut child = command.spawn().with_context(|| format!("{name} cannot be started"))?;
        let stdin = child.stdin.take();
        Ok(Process { name: name.to_owned(), child, stdin })
    }

    /// What it says from now on; once.
    ///
    /// # Errors
    /// It was asked for before.
    pub fn said(&mut self) -> Result<Said> {
        let stdout = self.child.stdout.take().context("its output was read before")?;
        Ok(BufReader::new(stdout).lines())
    }

    /// Waits for the first line on its stdout, and reads no further.
    ///
    /// # Errors
    /// It ends or stays silent.
    pub async fn first_line(&mut self) -> Result<String> {
        let mut lines = self.said()?;
        match timeout(FIRST_LINE_TIMEOUT, lines.next_line()).await {
            Ok(Ok(Some(line))) => Ok(line),
            Ok(_) => bail!("{} ended before it was ready; its message is above", self.name),
            Err(_) => bail!("{} was not ready within {} s", self.name, FIRST_LINE_TIMEOUT.as_secs()),
        }
    }

    /// Writes a line to its stdin.
    ///
    /// # Errors
    /// It has ended, or its stdin was closed.
    pub async fn tell(&mut self, line: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("its stdin is closed")?;
        let told = stdin.write_all(format!("{line}\n").as_bytes()).await;
        told.with_context(|| format!("{} reads no more", self.name))
    }

    /// Asks it to end.
    pub fn close_stdin(&mut self) {
        drop(self.stdin.take());
    }

    /// Its process id; none once it has ended.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Kill -9, and waits until it is gone.
    ///
    /// # Errors
    /// It had ended before.
    pub async fn kill(mut self) -> Result<()> {
        self.child.kill().await.with_context(|| format!("{} cannot be killed", self.name))
    }

    /// Asks it to end and waits; kills it when it does not.
    pub async fn end(mut self) {
        self.close_stdin();
        if timeout(END_TIMEOUT, self.child.wait()).await.is_err() {
            let _ = self.child.kill().await; // it may have ended in between
        }
    }
}
