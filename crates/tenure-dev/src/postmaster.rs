//! The server's process: started, watched, told to stop.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::home::Home;

/// How long a server may take until it accepts connections. After a crash it replays its log first.
const START_MAX: Duration = Duration::from_secs(300);
/// How long a fast stop may take (it writes everything down) before it becomes an immediate one.
const FAST_STOP_MAX: Duration = Duration::from_secs(60);
/// How long an immediate stop may take before the process is killed.
const IMMEDIATE_STOP_MAX: Duration = Duration::from_secs(10);
/// How often a file or a process that cannot be waited for is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Lines of the server's log in an error message.
const LOG_LINES: usize = 4;

/// How a server is told to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Connections are ended, everything is written down.
    Fast,
    /// At once, as if it had crashed; the next start replays the log.
    Immediate,
}

impl Stop {
    fn signal(self) -> i32 {
        match self {
            Stop::Fast => libc::SIGINT,
            Stop::Immediate => libc::SIGQUIT,
        }
    }
}

/// A server that is our child.
#[derive(Debug)]
pub(crate) struct Postmaster {
    pid: i32,
    ended: Arc<Ended>,
}

/// The end of the process. Its number is signalled only under the lock and before the end, so never another process.
#[derive(Debug, Default)]
struct Ended {
    status: Mutex<Option<ExitStatus>>,
    changed: Condvar,
}

impl Ended {
    fn lock(&self) -> MutexGuard<'_, Option<ExitStatus>> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Postmaster {
    /// Starts `command` as the server of `home` and waits until it accepts connections.
    ///
    /// # Errors
    /// It ended, with the end of its log; or it takes longer than five minutes, and is stopped then.
    pub(crate) fn start(command: Command, home: &Home) -> Result<Self> {
        let command = with_log(command, home)?;
        let ended = Arc::new(Ended::default());
        let pid = spawn_in_keeper(command, ended.clone())?;
        let postmaster = Postmaster { pid, ended };
        postmaster.wait_until_ready(home)?;
        Ok(postmaster)
    }

    fn wait_until_ready(&self, home: &Home) -> Result<()> {
        let begun = Instant::now();
        while !home.running().is_some_and(|running| running.pid == self.pid && running.ready) {
            if let Some(status) = self.wait(LOOK_EVERY) {
                bail!("the server ended while starting ({status}): {}", log_end(home));
            }
            if begun.elapsed() > START_MAX {
                self.stop(Stop::Immediate);
                bail!("the server was not ready after {} s: {}", START_MAX.as_secs(), log_end(home));
            }
        }
        Ok(())
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.lock().is_some()
    }

    /// Stops it, with more force after a while.
    pub(crate) fn stop(&self, how: Stop) {
        if how == Stop::Fast {
            self.signal(libc::SIGINT);
            if self.wait(FAST_STOP_MAX).is_some() {
                return;
            }
        }
        self.signal(Stop::Immediate.signal());
        if self.wait(IMMEDIATE_STOP_MAX).is_none() {
            self.signal(libc::SIGKILL);
            self.wait(IMMEDIATE_STOP_MAX);
        }
    }

    fn signal(&self, signal: i32) {
        let status = self.ended.lock();
        if status.is_none() {
            // SAFETY: no memory is involved. The process is our child and not yet reaped, so the number is its own.
            unsafe { libc::kill(self.pid, signal) };
        }
    }

    /// Waits for its end, at most `time`.
    fn wait(&self, time: Duration) -> Option<ExitStatus> {
        let running = |status: &mut Option<ExitStatus>| status.is_none();
        let waited = self.ended.changed.wait_timeout_while(self.ended.lock(), time, running);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Ends a server that is not our child, because the process that started it is dead.
pub(crate) fn end_orphan(home: &Home) -> Result<()> {
    for (signal, time) in
        [(libc::SIGINT, FAST_STOP_MAX), (libc::SIGQUIT, IMMEDIATE_STOP_MAX), (libc::SIGKILL, IMMEDIATE_STOP_MAX)]
    {
        let Some(running) = home.running() else { return Ok(()) };
        // SAFETY: no memory is involved; `running` has just made sure that the number is this folder's server.
        unsafe { libc::kill(running.pid, signal) };
        let begun = Instant::now();
        while home.running().is_some() && begun.elapsed() < time {
            // sleep: the server writes its state into a file and tells nobody.
            thread::sleep(LOOK_EVERY);
        }
    }
    match home.running() {
        None => Ok(()),
        Some(running) => bail!("the server in {} (process {}) does not stop", home.dir.display(), running.pid),
    }
}

fn with_log(mut command: Command, home: &Home) -> Result<Command> {
    let path = home.log();
    let _ = fs::rename(&path, home.dir.join("server.log.old"));
    let log = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(&path)
        .with_context(|| format!("cannot write {}", path.display()))?;
    home.account.give(&path)?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    // Not in the terminal's group: Ctrl-C is for us, and we stop the server.
    command.process_group(0);
    Ok(command)
}

/// Starts the process from a thread that lives as long as it: the kernel's signal at the parent's death is bound to
/// the thread that forked, not to the process.
fn spawn_in_keeper(mut command: Command, ended: Arc<Ended>) -> Result<i32> {
    let (sender, receiver) = mpsc::channel();
    let keep = move || {
        stop_with_parent(&mut command);
        match command.spawn() {
            Err(error) => drop(sender.send(Err(error))),
            Ok(child) => {
                // The message closes the channel; the parent is not needed any more.
                drop(sender.send(Ok(child.id() as i32)));
                keep_until_end(child, &ended);
            }
        }
    };
    thread::Builder::new().name("postgres".into()).spawn(keep).context("cannot start a thread")?;
    receiver.recv().context("the thread that starts the server ended")?.context("cannot start postgres")
}

/// Asks the kernel to stop the server when this process dies. `pre_exec` runs after the change of the user, which
/// would clear the wish.
#[cfg(target_os = "linux")]
fn stop_with_parent(command: &mut Command) {
    let parent = std::process::id();
    let wish = move || {
        // SAFETY: both calls are safe between fork and exec, and touch no memory.
        let (set, now) = unsafe { (libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGINT), libc::getppid()) };
        if set != 0 {
            return Err(std::io::Error::last_os_error());
        }
        // The parent died before the wish was made.
        if now != parent as i32 {
            return Err(std::io::Error::from_raw_os_error(libc::ESRCH));
        }
        Ok(())
    };
    // SAFETY: the closure allocates nothing and takes no lock.
    unsafe { command.pre_exec(wish) };
}

#[cfg(not(target_os = "linux"))]
fn stop_with_parent(_: &mut Command) {}

fn keep_until_end(mut child: Child, ended: &Ended) {
    // Waits without reaping, so that the number stays the child's own until the lock is held.
    loop {
        // SAFETY: `info` is written by the call and not read.
        let waited = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            libc::waitid(libc::P_PID, child.id(), &mut info, libc::WEXITED | libc::WNOWAIT)
        };
        if waited == 0 || std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
            break;
        }
    }
    let mut status = ended.lock();
    *status = child.wait().ok().or(Some(ExitStatus::default()));
    ended.changed.notify_all();
}

/// The last lines of the server's log, in one line.
fn log_end(home: &Home) -> String {
    let log = fs::read_to_string(home.log()).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    let end = lines[lines.len().saturating_sub(LOG_LINES)..].join("; ");
    format!("{end} (whole log: {})", home.log().display())
}
