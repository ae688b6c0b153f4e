//! Worker processes that can be killed, stopped and woken. The program runs itself again: `main`, or a test named
//! `worker_process`, calls [`run_if_asked`] before anything else.

use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::testing::until_within;

/// The variable that makes this program a worker process; holds its options as JSON.
const ASKED: &str = "TENURE_SCENARIO_WORKER";

/// How a worker process starts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerOptions {
    /// Name of the worker.
    pub name: String,
    /// Where the worker connects.
    pub url: String,
    /// Where the handlers report; never cut.
    pub probe_url: String,
    /// Queues with their concurrency.
    pub queues: Vec<(String, usize)>,
    /// Kinds it handles, all alike.
    pub kinds: Vec<String>,
    /// Workers in the process, all alike; the first has the name.
    pub workers: usize,
    /// Lease.
    pub lease: Duration,
    /// Grace of the session lock; `None`: the default.
    pub reconnect_grace: Option<Duration>,
    /// Grace of a shutdown.
    pub shutdown_grace: Duration,
    /// Timeout of the kinds; `None`: the default.
    pub timeout: Option<Duration>,
    /// Delay before each retry; `None`: the default backoff.
    pub retry_delay: Option<Duration>,
    /// Whether `url` leads through a pooler in transaction mode.
    pub pooler: bool,
    /// Threads of the runtime.
    pub threads: usize,
    /// Size of the pool that all handlers share.
    pub pool: usize,
    /// Bytes of address space that the process may have (RLIMIT_AS); `None`: as it comes.
    pub address_space: Option<u64>,
    /// The [`MemoryGroup`](crate::MemoryGroup) that it joins; `None`: as it comes.
    pub memory_group: Option<PathBuf>,
    /// Bytes that a file of the process may have, its log among them (RLIMIT_FSIZE); `None`: as it comes.
    pub file_size: Option<u64>,
    /// A file that stands for /etc/hosts in this process alone; needs the right to mount.
    #[serde(skip)]
    pub hosts: Option<PathBuf>,
}

impl WorkerOptions {
    /// Eight jobs at a time of kind `act` from the queue `default`, lease 30 s.
    pub fn new(name: &str, url: &str) -> WorkerOptions {
        WorkerOptions {
            name: name.into(),
            url: url.into(),
            probe_url: url.into(),
            queues: vec![("default".into(), 8)],
            kinds: vec!["act".into()],
            workers: 1,
            lease: Duration::from_secs(30),
            reconnect_grace: None,
            shutdown_grace: Duration::from_secs(5),
            timeout: None,
            retry_delay: Some(Duration::from_millis(100)),
            pooler: false,
            threads: 2,
            pool: 5,
            address_space: None,
            memory_group: None,
            file_size: None,
            hosts: None,
        }
    }

    /// So many jobs at a time from the queue `default`.
    pub fn concurrency(mut self, jobs: usize) -> Self {
        self.queues = vec![("default".into(), jobs)];
        self
    }

    /// This lease.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// This address for the worker; the handlers still report directly.
    pub fn url(mut self, url: &str) -> Self {
        self.url = url.into();
        self
    }

    /// Any other change.
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

/// A running worker process; killed when dropped.
#[derive(Debug)]
pub struct WorkerProcess {
    child: Child,
    name: String,
    log: PathBuf,
    status: Option<ExitStatus>,
}

impl WorkerProcess {
    /// Starts the process; what it says goes to a file, see [`WorkerProcess::log`].
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn spawn(options: &WorkerOptions) -> WorkerProcess {
        let text = serde_json::to_string(options).expect("options are JSON");
        Self::spawn_with(&options.name, ASKED, &text, options.hosts.as_deref())
    }

    /// Starts this program again with one variable set, which tells it what to be.
    pub(crate) fn spawn_as(name: &str, variable: &str, options: &str) -> WorkerProcess {
        Self::spawn_with(name, variable, options, None)
    }

    fn spawn_with(name: &str, variable: &str, options: &str, hosts: Option<&Path>) -> WorkerProcess {
        let file = format!("tenure-{name}-{}-{:x}.log", std::process::id(), fastrand::u32(..));
        let log = std::env::temp_dir().join(file);
        let out = File::create(&log).expect("a file for the worker's log");
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        // For the test harness: run this one test, and show what it prints.
        command.args(["worker_process", "--exact", "--nocapture"]);
        command.env(variable, options);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(out);
        #[cfg(target_os = "linux")]
        // SAFETY: prctl is async-signal-safe and touches only the new process.
        unsafe {
            command.pre_exec(|| {
                // Dies with its test, also when it is stopped and the test is killed.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        #[cfg(target_os = "linux")]
        if let Some(hosts) = hosts {
            own_hosts(&mut command, hosts);
        }
        #[cfg(not(target_os = "linux"))]
        assert!(hosts.is_none(), "a file of hosts of its own is known on Linux only");
        let child = command.spawn().expect("a worker process");
        WorkerProcess { child, name: name.to_owned(), log, status: None }
    }

    /// Its process id, as the worker table has it.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        self.status = Some(self.child.wait().expect("the killed process"));
    }

    /// SIGSTOP: frozen, connections stay open.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
    }

    /// SIGCONT: goes on.
    pub fn wake(&self) {
        self.signal(libc::SIGCONT);
    }

    /// SIGTERM: please shut down.
    pub fn terminate(&self) {
        self.signal(libc::SIGTERM);
    }

    /// Waits until it has ended; its exit status.
    ///
    /// # Panics
    /// When it has not within the limit.
    pub async fn ended(&mut self, within: Duration) -> ExitStatus {
        until_within(within, &format!("worker {} has ended", self.name), async || {
            self.status().map(Ok).unwrap_or(Err("it runs".to_owned()))
        })
        .await
    }

    /// SIGTERM, then waits.
    ///
    /// # Panics
    /// When it does not end within 30 s, or not by exit code 0.
    pub async fn shut_down(mut self) {
        self.terminate();
        let status = self.ended(Duration::from_secs(30)).await;
        assert!(status.success(), "worker {} ended by {status}:\n{}", self.name, self.log());
    }

    /// Its exit status once it has ended.
    pub fn status(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().expect("the process");
        }
        self.status
    }

    /// # Panics
    /// When it has ended, with what it said.
    pub fn assert_runs(&mut self) {
        if let Some(status) = self.status() {
            panic!("worker {} ended by {status} (signal {:?}):\n{}", self.name, status.signal(), self.log());
        }
    }

    /// What it has said on stderr so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    fn signal(&self, signal: i32) {
        if self.status.is_none() {
            // SAFETY: plain system call; the process is ours and not yet waited for, so its id is not another's.
            unsafe { libc::kill(self.pid(), signal) };
        }
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        if self.status().is_none() {
            self.kill();
        }
        if std::thread::panicking() {
            eprintln!("--- worker {} said:\n{}---", self.name, self.log());
        }
        let _ = std::fs::remove_file(&self.log);
    }
}

/// Whether a process may have a file of hosts of its own: the right to mount, which root has in most places.
pub fn can_have_own_hosts() -> bool {
    let mut command = Command::new("true");
    #[cfg(target_os = "linux")]
    own_hosts(&mut command, Path::new("/etc/hosts"));
    cfg!(target_os = "linux") && command.status().is_ok_and(|status| status.success())
}

/// Mounts the file over /etc/hosts where only the new process sees it.
#[cfg(target_os = "linux")]
fn own_hosts(command: &mut Command, hosts: &Path) {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    let hosts = CString::new(hosts.as_os_str().as_bytes()).expect("a path");
    let mount = |from: &std::ffi::CStr, to: &std::ffi::CStr, flags: libc::c_ulong| {
        // SAFETY: a plain system call with texts that end in NUL.
        match unsafe { libc::mount(from.as_ptr(), to.as_ptr(), std::ptr::null(), flags, std::ptr::null()) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: only system calls, in the new process.
    unsafe {
        command.pre_exec(move || {
            if libc::unshare(libc::CLONE_NEWNS) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            mount(c"none", c"/", libc::MS_REC | libc::MS_PRIVATE)?;
            mount(&hosts, c"/etc/hosts", libc::MS_BIND)
        });
    }
}

/// Becomes a worker process when this program was started as one, and then does not return. Call it first.
pub fn run_if_asked() {
    if let Ok(options) = std::env::var(ASKED) {
        let options: WorkerOptions = serde_json::from_str(&options).expect("options of the worker process");
        std::process::exit(crate::handlers::run(options));
    }
    crate::chaos::producer::run_if_asked();
}
