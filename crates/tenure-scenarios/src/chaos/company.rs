//! The processes of a chaos run, and what is done to them.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use tenure::testing::{Fault, Proxy, until_within};
use tenure_dev::Server;
use tokio::task::AbortHandle;

use super::Chaos;
use super::action::Action;
use super::producer::{ProducerOptions, told};
use crate::measure::{Bound, Measure};
use crate::{Stage, WorkerOptions, WorkerProcess};

/// The lease of the workers.
const LEASE: Duration = Duration::from_secs(4);
/// How long a worker may take to end in order.
const STOP: Duration = Duration::from_secs(20);

/// One worker: its process, the network before it, and until when nothing else is done to it.
struct Worker {
    options: WorkerOptions,
    process: Option<WorkerProcess>,
    proxy: Proxy,
    busy_until: Instant,
    /// When it is to be started again, or its network is whole again.
    then: Option<(Instant, Then)>,
    /// Wakes it when it is frozen, whatever is done to others meanwhile.
    waking: Option<AbortHandle>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Start,
    Heal,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    kills: usize,
    freezes: usize,
    stops: usize,
    restarts: usize,
    crashes: usize,
    /// Connections, by `pg_terminate_backend`.
    terminations: usize,
    /// Times that all connections of a worker were cut; those at a point are counted by the network.
    cuts: usize,
    networks: usize,
    producers: usize,
}

/// What the accounts need to know of the workers: when each process registered, and when it was asked to stop.
const TABLES: &str = "
    create table ledger (job_id bigint primary key);
    create table asked_to_stop (pid int not null, at timestamptz not null);
    create table registered (pid int not null, at timestamptz not null default clock_timestamp());
    create function note_registration() returns trigger language plpgsql as $$
    begin
      insert into public.registered (pid) values (new.pid);
      return null;
    end $$;
    create trigger note_registration after insert on tenure.worker for each row execute function note_registration();
";

/// What was done, a line each; a run that ends by a panic prints it.
struct History {
    seed: u64,
    lines: Vec<String>,
}

impl Drop for History {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("chaos with seed {} did:\n{}", self.seed, self.lines.join("\n"));
        }
    }
}

/// Everybody who takes part.
pub(super) struct Company<'a> {
    stage: &'a Stage,
    workers: Vec<Worker>,
    producers: Vec<(ProducerOptions, WorkerProcess, Proxy)>,
    folder: PathBuf,
    begin: Instant,
    counts: Counts,
    history: History,
    /// Kills and ends that could not be written while the database was away.
    deaths: Vec<(i32, Instant)>,
    /// When processes were asked to stop, likewise.
    stops: Vec<(i32, Instant)>,
}

impl<'a> Company<'a> {
    pub(super) async fn start(stage: &'a Stage, chaos: &Chaos) -> Company<'a> {
        stage.sql.batch_execute(TABLES).await.expect("the tables of the accounts");
        let folder = std::env::temp_dir().join(format!("tenure-chaos-{}-{}", std::process::id(), chaos.seed));
        std::fs::create_dir_all(&folder).expect("a folder for the records");
        let mut workers = Vec::new();
        for n in 0..chaos.workers {
            let proxy = Proxy::start(stage.url()).await;
            let options = stage.worker(&format!("w{n}")).url(proxy.url()).lease(LEASE).concurrency(8);
            let process = Some(WorkerProcess::spawn(&options));
            workers.push(Worker { options, process, proxy, busy_until: Instant::now(), then: None, waking: None });
        }
        let mut producers = Vec::new();
        for n in 0..chaos.producers {
            let proxy = Proxy::start(stage.url()).await;
            let name = format!("p{n}");
            let record = folder.join(&name);
            let seed = chaos.seed.wrapping_mul(1_000).wrapping_add(n as u64);
            let options = ProducerOptions { name, url: proxy.url().to_owned(), record, seed, pause: chaos.pause };
            let process = options.spawn();
            producers.push((options, process, proxy));
        }
        Company {
            stage,
            workers,
            producers,
            folder,
            begin: Instant::now(),
            counts: Counts::default(),
            history: History { seed: chaos.seed, lines: Vec::new() },
            deaths: Vec::new(),
            stops: Vec::new(),
        }
    }

    /// Does one thing, and what has become due; nothing to a worker that something is being done to.
    pub(super) async fn play(&mut self, action: Action, server: &mut Server) {
        self.follow_up();
        let busy = |n: usize| self.workers[n].busy_until > Instant::now() || self.workers[n].process.is_none();
        if worker_of(action).is_some_and(busy) {
            return;
        }
        self.history.lines.push(format!("{:7.2} s  {action:?}", self.begin.elapsed().as_secs_f64()));
        match action {
            Action::Kill(n, pause) => self.kill(n, pause),
            Action::Freeze(n, time) => self.freeze(n, time),
            Action::Stop(n) => self.stop(n).await,
            Action::KillProducer(n) => self.kill_producer(n),
            Action::Restart { immediate } => {
                self.counts.restarts += 1;
                tokio::task::block_in_place(|| server.restart(immediate).expect("the server restarts"));
            }
            Action::CrashBackend => self.crash_backend().await,
            Action::Terminate(n) => {
                let pid = self.process(n).pid();
                let its = format!(
                    "pid in (select l.pid from tenure.worker w join pg_locks l on l.locktype = 'advisory' and l.objid = w.id::oid
                     and l.classid = 'tenure'::regnamespace::oid where w.pid = {pid})"
                );
                self.terminate(&its).await;
            }
            Action::TerminateAll => self.terminate("true").await,
            Action::CutAll(n) => {
                self.counts.cuts += 1;
                self.workers[n].proxy.cut_all();
            }
            Action::CutAt(n, cut) => self.workers[n].proxy.cut_at(cut),
            Action::CutProducer(n, cut) => self.producers[n].2.cut_at(cut),
            Action::Network(n, fault, time) => {
                self.counts.networks += 1;
                self.workers[n].proxy.set(fault);
                self.later(n, time, Then::Heal);
            }
        }
    }

    fn freeze(&mut self, n: usize, time: Duration) {
        self.counts.freezes += 1;
        self.process(n).stop();
        let pid = self.process(n).pid();
        let waking = tokio::spawn(async move {
            tokio::time::sleep(time).await; // sleep: as long as it is frozen
            // SAFETY: a plain system call; nothing ends a process that is frozen but what aborts this task first.
            unsafe { libc::kill(pid, libc::SIGCONT) };
        });
        self.workers[n].waking = Some(waking.abort_handle());
        self.workers[n].busy_until = Instant::now() + time;
    }

    fn kill_producer(&mut self, n: usize) {
        self.counts.producers += 1;
        self.producers[n].1.kill();
        // Another sequence of choices, and the same one for the same seed.
        self.producers[n].0.seed = self.producers[n].0.seed.wrapping_add(7_919);
        self.producers[n].1 = self.producers[n].0.spawn();
    }

    fn kill(&mut self, n: usize, pause: Duration) {
        self.counts.kills += 1;
        let mut process = self.workers[n].process.take().expect("it runs");
        process.kill();
        self.deaths.push((process.pid(), Instant::now()));
        self.later(n, pause, Then::Start);
    }

    async fn stop(&mut self, n: usize) {
        self.counts.stops += 1;
        let mut process = self.workers[n].process.take().expect("it runs");
        self.stops.push((process.pid(), Instant::now()));
        process.terminate();
        process.ended(STOP).await;
        self.deaths.push((process.pid(), Instant::now()));
        self.later(n, Duration::ZERO, Then::Start);
    }

    fn process(&self, n: usize) -> &WorkerProcess {
        self.workers[n].process.as_ref().expect("it runs")
    }

    fn later(&mut self, n: usize, time: Duration, then: Then) {
        let at = Instant::now() + time;
        self.workers[n].busy_until = at;
        self.workers[n].then = Some((at, then));
    }

    fn follow_up(&mut self) {
        let now = Instant::now();
        for worker in &mut self.workers {
            // One that could not start while the database was away is started by its supervisor.
            if worker.process.as_mut().is_some_and(|process| process.status().is_some()) {
                worker.process = Some(WorkerProcess::spawn(&worker.options));
            }
            match worker.then {
                Some((at, then)) if at <= now => {
                    worker.then = None;
                    match then {
                        Then::Start => worker.process = Some(WorkerProcess::spawn(&worker.options)),
                        Then::Heal => worker.proxy.set(Fault::None),
                    }
                }
                Some(_) | None => {}
            }
        }
    }

    /// A session for one look; none while the database is away.
    async fn look(&self) -> Option<tokio_postgres::Client> {
        let (client, connection) = tokio_postgres::connect(self.stage.url(), tokio_postgres::NoTls).await.ok()?;
        tokio::spawn(connection);
        Some(client)
    }

    async fn terminate(&mut self, which: &str) {
        let Some(sql) = self.look().await else { return };
        let terminate = format!(
            "select count(*) filter (where pg_terminate_backend(pid)) from pg_stat_activity
             where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend' and ({which})"
        );
        // The server may go down meanwhile.
        let ended = sql.query_one(&terminate, &[]).await.map_or(0, |row| row.get::<_, i64>(0));
        self.counts.terminations += ended as usize;
    }

    async fn crash_backend(&mut self) {
        let Some(sql) = self.look().await else { return };
        if let Ok(row) = sql.query_one("select pg_backend_pid()", &[]).await {
            self.counts.crashes += 1;
            // SAFETY: a plain system call; the process is a backend of a server of our own.
            unsafe { libc::kill(row.get::<_, i32>(0), libc::SIGKILL) };
        }
    }

    /// Everything is whole again: every network, every process; the producers have ended.
    pub(super) async fn calm(&mut self) {
        for (_, process, _) in &mut self.producers {
            process.kill();
        }
        for worker in &mut self.workers {
            worker.proxy.disarm();
            worker.proxy.set(Fault::None);
            worker.waking.iter().for_each(AbortHandle::abort);
            worker.process.iter().for_each(WorkerProcess::wake);
            worker.then = worker.then.map(|(_, then)| (Instant::now(), then));
        }
        self.follow_up();
        let mut session = None;
        until_within(Duration::from_secs(60), "the database is back", async || {
            session = self.look().await;
            session.is_some()
        })
        .await;
        let sql = session.expect("a session");
        for (table, times) in [("death", &mut self.deaths), ("asked_to_stop", &mut self.stops)] {
            let note = format!("insert into {table} values ($1, clock_timestamp() - $2 * interval '1 second')");
            for (pid, at) in times.drain(..) {
                sql.execute(&note, &[&pid, &at.elapsed().as_secs_f64()]).await.expect("it is noted");
            }
        }
        // A worker that could not start while the database was away is started again.
        self.follow_up();
    }

    /// Ends the workers in order.
    pub(super) async fn end(mut self) {
        for worker in &mut self.workers {
            if let Some(mut process) = worker.process.take() {
                process.terminate();
                process.ended(STOP).await;
            }
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }

    /// The ids that producers were told.
    pub(super) fn told(&self) -> Vec<i64> {
        self.producers.iter().flat_map(|(options, _, _)| told(&options.record)).collect()
    }

    pub(super) fn history(&self) -> Vec<String> {
        self.history.lines.clone()
    }

    /// Cuts of the network, those at a point that was come to included.
    fn cuts(&self) -> usize {
        let workers = self.workers.iter().map(|worker| worker.proxy.cuts());
        let all: u64 = workers.chain(self.producers.iter().map(|(_, _, proxy)| proxy.cuts())).sum();
        self.counts.cuts + all as usize
    }

    pub(super) fn summary(&self) -> String {
        let c = self.counts;
        format!(
            "{} kills, {} freezes, {} stops, {} restarts, {} crashes, {} terminations, {} cuts, {} bad networks, {} producers killed",
            c.kills,
            c.freezes,
            c.stops,
            c.restarts,
            c.crashes,
            c.terminations,
            self.cuts(),
            c.networks,
            c.producers
        )
    }

    /// What was done. Each of it at least once in a run of minutes; in a short one, anything.
    pub(super) fn measures(&self, each: Bound) -> Vec<Measure> {
        let c = self.counts;
        let done = [
            ("workers killed by kill -9", c.kills),
            ("workers frozen for 0.3 to 9 s, lease 4 s", c.freezes),
            ("workers stopped in order", c.stops),
            ("producers killed", c.producers),
            ("restarts of the database", c.restarts),
            ("backends killed", c.crashes),
            ("connections terminated", c.terminations),
            ("cuts of the network", self.cuts()),
            ("networks that stalled, lost, refused or delayed", c.networks),
        ];
        let all = done.iter().map(|(_, n)| *n).sum::<usize>();
        let line = |what: &str, bound, n: usize| Measure::new(format!("chaos: {what}"), bound, n as f64, "");
        let mut lines: Vec<Measure> = done.into_iter().map(|(what, n)| line(what, each, n)).collect();
        lines.push(line("faults in all", Bound::AtLeast(1.0), all));
        lines
    }
}

/// The worker to which this is done.
fn worker_of(action: Action) -> Option<usize> {
    match action {
        Action::Kill(n, _)
        | Action::Freeze(n, _)
        | Action::Stop(n)
        | Action::Terminate(n)
        | Action::CutAll(n)
        | Action::CutAt(n, _)
        | Action::Network(n, _, _) => Some(n),
        Action::KillProducer(_)
        | Action::CutProducer(..)
        | Action::Restart { .. }
        | Action::CrashBackend
        | Action::TerminateAll => None,
    }
}
