//! A private server, from its options to its end.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::fetch::Consent;
use crate::find::{Binaries, named_by_environment, obtain_binaries};
use crate::home::{Cluster, Home, Running};
use crate::locks::Lock;
use crate::postmaster::{Postmaster, Stop, end_orphan};
use crate::{MAJOR_MAX, MAJOR_MIN, ephemeral, folders, initdb, standby};

/// Ports tried when one that was free is taken before the server has it.
const PORT_TRIES: u32 = 5;
/// How long a start waits for a server that another process is starting or restarting.
const GUEST_WAIT_MAX: Duration = Duration::from_secs(30);
/// Settings of every private server. Idle workers hold connections, and the usual 100 are few for a test of 100. The
/// usual search path begins with the schema that is named like the role: tables that a user makes without naming a
/// schema would land among the tables of tenure. After the crash of a backend a server takes nobody until all that came in
/// the middle of it have said who they are or have had this long to: a minute, usually, if one of them comes by a network
/// that stalls (seen on 15.18).
const SETTINGS: [&str; 5] = [
    "listen_addresses=127.0.0.1",
    "max_connections=300",
    "log_line_prefix=%m [%p] ",
    "search_path=public",
    "authentication_timeout=5s",
];
/// Settings of a server whose data need not survive a crash of the machine. What was committed still survives a crash
/// of the server, which tests provoke.
const NOT_DURABLE: [&str; 2] = ["fsync=off", "full_page_writes=off"];

/// Which server to start, and how. The default is the kept cluster of this user, durable, on its own port.
#[derive(Debug, Clone)]
pub struct Options {
    /// Folder of a kept cluster; made when missing. None: `pg/<major>` in the state folder of this user (root:
    /// `/var/lib/tenure`). Not with `ephemeral`.
    pub data_dir: Option<PathBuf>,
    /// Port on 127.0.0.1. None: the cluster's last one while that is free, else a free one.
    pub port: Option<u16>,
    /// A new cluster in a folder of its own, removed at the end. Default false.
    pub ephemeral: bool,
    /// False switches fsync off; allowed for ephemeral clusters only. Default true.
    pub durable: bool,
    /// Folder with `postgres` and `initdb`. None: see [`obtain_binaries`](crate::obtain_binaries).
    pub bin_dir: Option<PathBuf>,
    /// Major version, 15 to 18. None: that of the cluster, or the newest found.
    pub major: Option<u32>,
    /// Whether binaries may be fetched when none are found. Default no.
    pub fetch: Consent,
    /// Further server settings, `name=value` each. They win over those that this crate makes.
    pub settings: Vec<String>,
    /// Gets a line for everything that takes time or was repaired. Default: silence.
    pub say: fn(&str),
}

impl Default for Options {
    fn default() -> Self {
        Options {
            data_dir: None,
            port: None,
            ephemeral: false,
            durable: true,
            bin_dir: None,
            major: None,
            fetch: Consent::No,
            settings: Vec::new(),
            say: |_| {},
        }
    }
}

/// A running server. Dropped, it is stopped; what goes wrong then is lost, so call [`Server::stop`].
#[derive(Debug)]
pub struct Server {
    home: Home,
    binaries: Binaries,
    port: u16,
    url: String,
    settings: Vec<String>,
    role: Role,
}

/// What this process is to the server.
#[derive(Debug)]
enum Role {
    /// It started it and stops it.
    Owner { postmaster: Postmaster, _lock: Lock, ephemeral: bool },
    /// Another process did.
    Guest { pid: i32 },
}

impl Server {
    /// Starts a server and waits until it accepts connections. A kept cluster that another process of ours runs
    /// already is shared: whoever started it stops it.
    ///
    /// # Errors
    /// No binaries, a folder that cannot be used, a cluster of another version, a port in use: each with the value and
    /// what to do about it.
    pub fn start(options: Options) -> Result<Self> {
        ensure!(options.ephemeral || options.durable, "only an ephemeral server may run without fsync");
        ensure!(
            !options.ephemeral || options.data_dir.is_none(),
            "an ephemeral server makes its own folder: leave out either --ephemeral or --data-dir"
        );
        for setting in &options.settings {
            ensure!(setting.contains('='), "the server setting {setting:?} is not name=value");
        }
        if options.ephemeral { start_ephemeral(&options) } else { start_kept(&options) }
    }

    /// `postgres://tenure:…@127.0.0.1:PORT/tenure`; the role is a superuser of this server.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The process id of the server.
    pub fn pid(&self) -> u32 {
        let pid = match &self.role {
            Role::Owner { postmaster, .. } => postmaster.pid(),
            Role::Guest { pid } => *pid,
        };
        pid.unsigned_abs()
    }

    /// The folder of the cluster: its data, log and notes.
    pub fn home(&self) -> &Path {
        &self.home.dir
    }

    /// PostgreSQL's data folder.
    pub fn data_dir(&self) -> PathBuf {
        self.home.data()
    }

    /// The folder of the server's socket, which asks for no password; none when its path would be too long.
    pub fn socket_dir(&self) -> Option<&Path> {
        self.home.socket_dir()
    }

    /// The folder of the server's programs.
    pub fn bin_dir(&self) -> &Path {
        &self.binaries.dir
    }

    /// The version of the server, for example "15.18".
    pub fn version(&self) -> &str {
        &self.binaries.version
    }

    /// The major version of the server, for example 15.
    pub fn major(&self) -> u32 {
        self.binaries.major
    }

    /// True when another process started the server and will stop it.
    pub fn is_shared(&self) -> bool {
        matches!(self.role, Role::Guest { .. })
    }

    /// False when the server has ended, by itself or by the process that started it.
    pub fn is_running(&self) -> bool {
        match &self.role {
            Role::Owner { postmaster, .. } => !postmaster.has_ended(),
            Role::Guest { pid } => self.home.running().is_some_and(|running| running.pid == *pid),
        }
    }

    /// Whether [`standby`](Self::standby) can make one: the programs that npm brings have no `pg_basebackup`.
    pub fn can_be_copied(&self) -> bool {
        self.binaries.dir.join("pg_basebackup").is_file()
    }

    /// Starts a standby: a new ephemeral server with a copy of this one's data, which streams what changes here and takes reads
    /// only, until it is promoted (`select pg_promote()`). Role, password and databases are this one's.
    ///
    /// # Errors
    /// This server cannot be copied, or the standby does not start.
    pub fn standby(&self, settings: &[String]) -> Result<Server> {
        let options = Options {
            ephemeral: true,
            durable: self.settings.iter().all(|setting| !NOT_DURABLE.contains(&setting.as_str())),
            settings: settings.to_vec(),
            ..Options::default()
        };
        let (home, lock) = ephemeral::make(options.say)?;
        let started = standby::copy(&self.url, &self.home, &home, &self.binaries)
            .and_then(|cluster| start_cluster(&options, &home, self.binaries.clone(), cluster, lock));
        if started.is_err() {
            ephemeral::remove(&home.dir)?;
        }
        started
    }

    /// Stops the server and starts it again on the same port: `immediate` as after a crash, otherwise orderly.
    ///
    /// # Errors
    /// The server is not ours, or it does not start again.
    pub fn restart(&mut self, immediate: bool) -> Result<()> {
        let command = self.command();
        let Role::Owner { postmaster, .. } = &mut self.role else {
            bail!("the server in {} was started by another process: restart it there", self.home.dir.display());
        };
        let _changes = self.home.lock_changes(|_| {})?;
        postmaster.stop(if immediate { Stop::Immediate } else { Stop::Fast });
        *postmaster = Postmaster::start(command, &self.home)?;
        Ok(())
    }

    /// Stops the server if this process started it, and removes the folder of an ephemeral one.
    ///
    /// # Errors
    /// The folder cannot be removed.
    pub fn stop(mut self) -> Result<()> {
        self.halt()
    }

    fn halt(&mut self) -> Result<()> {
        let Role::Owner { postmaster, ephemeral, .. } = &self.role else { return Ok(()) };
        if !self.home.dir.exists() {
            return Ok(());
        }
        let _changes = self.home.lock_changes(|_| {})?;
        // What is thrown away need not be written down first.
        postmaster.stop(if *ephemeral { Stop::Immediate } else { Stop::Fast });
        if *ephemeral { ephemeral::remove(&self.home.dir) } else { Ok(()) }
    }

    fn command(&self) -> Command {
        server_command(&self.home, &self.binaries, self.port, &self.settings)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.halt();
    }
}

fn start_ephemeral(options: &Options) -> Result<Server> {
    let binaries = choose_binaries(options, None)?;
    let (home, lock) = ephemeral::make(options.say)?;
    let started = start_new(options, &home, binaries, lock);
    if started.is_err() {
        ephemeral::remove(&home.dir)?;
    }
    started
}

fn start_kept(options: &Options) -> Result<Server> {
    let dir = match &options.data_dir {
        Some(dir) => std::path::absolute(dir)?,
        None => default_dir(options)?,
    };
    let home = Home::open(&dir)?;
    let _changes = home.lock_changes(options.say)?;
    let cluster = home.cluster()?;
    let Some(lock) = home.own()? else { return join(options, home, cluster) };
    if let Some(running) = home.running() {
        (options.say)(&format!("ending server {}, which a process that died left running", running.pid));
        end_orphan(&home)?;
    }
    home.forget_dead_server()?;
    let binaries = choose_binaries(options, cluster.as_ref().map(|cluster| (cluster, home.dir.as_path())))?;
    match cluster {
        None => start_new(options, &home, binaries, lock),
        Some(cluster) => {
            home.account.check_reach(&binaries.dir, &home.dir)?;
            start_cluster(options, &home, binaries, cluster, lock)
        }
    }
}

fn start_new(options: &Options, home: &Home, binaries: Binaries, lock: Lock) -> Result<Server> {
    (options.say)(&format!("making a PostgreSQL {} cluster in {}", binaries.version, home.dir.display()));
    let port = free_port(options.port, None)?;
    let cluster = initdb::make(home, &binaries, port, !options.ephemeral)?;
    start_cluster(options, home, binaries, cluster, lock)
}

fn start_cluster(
    options: &Options,
    home: &Home,
    binaries: Binaries,
    mut cluster: Cluster,
    lock: Lock,
) -> Result<Server> {
    let mut settings: Vec<String> = SETTINGS.map(String::from).to_vec();
    if !options.durable {
        settings.extend(NOT_DURABLE.map(String::from));
    }
    settings.extend(options.settings.iter().cloned());
    let (port, postmaster) = start_on_free_port(options, home, &binaries, &settings, cluster.port)?;
    (cluster.port, cluster.bin_dir) = (port, binaries.dir.clone());
    home.note(&cluster)?;
    let role = Role::Owner { postmaster, _lock: lock, ephemeral: options.ephemeral };
    Ok(Server { home: home.clone(), binaries, port, url: url(&cluster), settings, role })
}

fn start_on_free_port(
    options: &Options,
    home: &Home,
    binaries: &Binaries,
    settings: &[String],
    last: u16,
) -> Result<(u16, Postmaster)> {
    let mut last = Some(last);
    for _ in 1..PORT_TRIES {
        let port = free_port(options.port, last.take())?;
        match Postmaster::start(server_command(home, binaries, port, settings), home) {
            Ok(postmaster) => return Ok((port, postmaster)),
            // Somebody took the port in between; the next round says so, or takes another one.
            Err(_) if TcpListener::bind(("127.0.0.1", port)).is_err() => {}
            Err(error) => return Err(error),
        }
    }
    let port = free_port(options.port, None)?;
    Ok((port, Postmaster::start(server_command(home, binaries, port, settings), home)?))
}

/// The server of a living process: waits until it is ready and shares it.
fn join(options: &Options, home: Home, cluster: Option<Cluster>) -> Result<Server> {
    let begun = Instant::now();
    let running = loop {
        match home.running() {
            Some(Running { pid, port, ready: true }) => break (pid, port),
            _ if begun.elapsed() > GUEST_WAIT_MAX => bail!(
                "another process holds {}, but its server does not run; stop that process, or choose another \
                 folder with --data-dir",
                home.dir.display()
            ),
            // sleep: a lock on a file of another process has no signal; until a deadline.
            _ => thread::sleep(Duration::from_millis(20)),
        }
    };
    let (pid, port) = running;
    let mut cluster = cluster.with_context(|| format!("{} runs but has no notes", home.dir.display()))?;
    ensure!(
        options.port.is_none_or(|wanted| wanted == port),
        "the server in {} already runs on port {port}; leave out --port, or choose another folder with --data-dir",
        home.dir.display()
    );
    if !options.settings.is_empty() {
        (options.say)("the server runs already: its settings stay as they are");
    }
    cluster.port = port;
    let binaries = Binaries::in_dir(&cluster.bin_dir)?;
    Ok(Server { url: url(&cluster), home, binaries, port, settings: Vec::new(), role: Role::Guest { pid } })
}

fn url(cluster: &Cluster) -> String {
    format!("postgres://tenure:{}@127.0.0.1:{}/tenure", cluster.password, cluster.port)
}

fn server_command(home: &Home, binaries: &Binaries, port: u16, settings: &[String]) -> Command {
    let mut command = home.account.command(&binaries.dir.join("postgres"), &home.dir);
    let sockets = home.socket_dir().map(Path::display).map(|dir| dir.to_string()).unwrap_or_default();
    command.arg("-D").arg(home.data());
    command.args(["-c", &format!("port={port}"), "-c", &format!("unix_socket_directories={sockets}")]);
    for setting in settings {
        command.args(["-c", setting]);
    }
    command
}

/// The wanted port if it is free, else the last one if it is free, else any free one.
fn free_port(wanted: Option<u16>, last: Option<u16>) -> Result<u16> {
    if let Some(port) = wanted {
        TcpListener::bind(("127.0.0.1", port))
            .with_context(|| format!("port {port} is in use; leave out --port to get a free one"))?;
        return Ok(port);
    }
    if let Some(port) = last.filter(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok()) {
        return Ok(port);
    }
    let any = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    Ok(any.context("no free port on 127.0.0.1")?.port())
}

/// The kept cluster of this user with the newest version whose programs are here, else one of the newest programs.
fn default_dir(options: &Options) -> Result<PathBuf> {
    let clusters = folders::clusters()?;
    let named = options.bin_dir.is_some() || named_by_environment();
    if !named && options.major.is_none() {
        for major in (MAJOR_MIN..=MAJOR_MAX).rev() {
            let dir = clusters.join(major.to_string());
            if dir.join("cluster.json").exists() && obtain_binaries(Some(major), Consent::No, options.say).is_ok() {
                return Ok(dir);
            }
        }
    }
    Ok(clusters.join(choose_binaries(options, None)?.major.to_string()))
}

/// The programs for a cluster, or for one that is yet to be made.
fn choose_binaries(options: &Options, cluster: Option<(&Cluster, &Path)>) -> Result<Binaries> {
    let Some((cluster, dir)) = cluster else {
        let found = match &options.bin_dir {
            Some(bin_dir) => Binaries::in_dir(bin_dir)?,
            None => obtain_binaries(options.major, options.fetch, options.say)?,
        };
        ensure!(
            options.major.is_none_or(|major| major == found.major),
            "{} holds PostgreSQL {}, wanted is {}",
            found.dir.display(),
            found.version,
            options.major.unwrap_or_default()
        );
        return Ok(found);
    };
    let other = |version: &str| {
        format!(
            "{} is a cluster of PostgreSQL {}, not {version}; choose another folder with --data-dir, or give the \
             programs of PostgreSQL {} with --pg-bin",
            dir.display(),
            cluster.major,
            cluster.major
        )
    };
    if let Some(major) = options.major {
        ensure!(major == cluster.major, other(&major.to_string()));
    }
    if let Some(bin_dir) = &options.bin_dir {
        let found = Binaries::in_dir(bin_dir)?;
        ensure!(found.major == cluster.major, other(&found.version));
        return Ok(found);
    }
    match Binaries::in_dir(&cluster.bin_dir) {
        Ok(same) if same.major == cluster.major && !named_by_environment() => Ok(same),
        _ => obtain_binaries(Some(cluster.major), options.fetch, options.say)
            .with_context(|| format!("{} is a cluster of PostgreSQL {}", dir.display(), cluster.major)),
    }
}
