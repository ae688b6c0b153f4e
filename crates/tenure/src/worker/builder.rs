//! The settings of a worker, checked as a whole before anything is started.

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::context::Context;
use super::engine::Engine;
use super::kinds::{Handler, Kind, KindOptions, raw, typed};
use super::running::RunningWorker;
use super::shutdown::EndOnDrop;
use super::{claim, flush, heartbeat, link, panics, shutdown};
use crate::client::Client;
use crate::error::{Error, ErrorCode};
use crate::model::limits::{
    LEASE_DEFAULT, LEASE_MAX, LEASE_MIN, POLL_DEFAULT, RECONNECT_GRACE_DEFAULT, SCHEMA_DEFAULT, SHUTDOWN_GRACE_DEFAULT,
    SHUTDOWN_GRACE_MAX,
};
use crate::model::{Fail, Job, RawJson, Schedules, names};
use crate::store::{SessionOptions, Texts};

/// Slots of one queue, at most.
pub(super) const SLOTS_MAX: usize = 10_000;
/// The shortest grace: less than a few round trips would give up healthy workers.
const RECONNECT_GRACE_MIN: Duration = Duration::from_millis(100);
const POLL_MIN: Duration = Duration::from_millis(10);
const POLL_MAX: Duration = Duration::from_secs(60);
/// More heartbeats than this keep no lease any better, and leave a maintenance turn no time.
const HEARTBEAT_MIN: Duration = Duration::from_millis(200);
/// Of the lease, this part is between two heartbeats, at most: after one of them, a maintenance turn and an answer that
/// never comes, the lease still lives.
const HEARTBEAT_SHARE: u32 = 3;
/// A claim or flush without an answer for so long means that the connection is dead.
const WORK_DEADLINE: Duration = Duration::from_secs(10);
const CONTROL_DEADLINE_MIN: Duration = Duration::from_secs(1);
/// A maintenance turn may take a quarter of the lease: less than the control connection's deadline, and with a heartbeat's
/// period far less than the lease. At least this, which is more than its duties take when they are busy …
const TURN_MIN: Duration = Duration::from_millis(900);
/// … and at most this, for a cancel or a stop waits behind it.
const TURN_MAX: Duration = Duration::from_secs(5);

/// Settings of a [`Worker`](super::Worker): queues, handlers and times.
pub struct WorkerBuilder {
    url: String,
    schema: String,
    name: Option<String>,
    queues: Vec<(String, usize)>,
    kinds: Vec<(String, KindOptions, Handler)>,
    lease: Duration,
    heartbeat: Option<Duration>,
    reconnect_grace: Duration,
    shutdown_grace: Duration,
    poll: Duration,
    pooler: bool,
    drain: bool,
    schedules: Vec<Schedules>,
}

/// The checked settings of a running worker.
pub(super) struct Settings {
    pub(super) name: String,
    pub(super) host: String,
    pub(super) lease: Duration,
    pub(super) heartbeat: Duration,
    /// How long a maintenance turn may take.
    pub(super) turn_max: Duration,
    pub(super) reconnect_grace: Duration,
    pub(super) shutdown_grace: Duration,
    pub(super) poll: Duration,
    pub(super) pooler: bool,
    pub(super) drain: bool,
    pub(super) work_session: SessionOptions,
    pub(super) control_session: SessionOptions,
    /// For the handlers: they never borrow the worker's own connections.
    pub(super) client: Client,
}

impl WorkerBuilder {
    pub(super) fn new(url: String) -> WorkerBuilder {
        WorkerBuilder {
            url,
            schema: SCHEMA_DEFAULT.to_owned(),
            name: None,
            queues: Vec::new(),
            kinds: Vec::new(),
            lease: LEASE_DEFAULT,
            heartbeat: None,
            reconnect_grace: RECONNECT_GRACE_DEFAULT,
            shutdown_grace: SHUTDOWN_GRACE_DEFAULT,
            poll: POLL_DEFAULT,
            pooler: false,
            drain: false,
            schedules: Vec::new(),
        }
    }

    /// The schema of the queue; `tenure` when not given.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// A name for people; it identifies nothing. Default: the host's name. 1 to 128 bytes.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Takes jobs from this queue and runs up to `concurrency` of them at a time (1 to 10,000). Each queue has slots
    /// of its own, so that long jobs of one never hold up short ones of another.
    pub fn queue(mut self, name: impl Into<String>, concurrency: usize) -> Self {
        self.queues.push((name.into(), concurrency));
        self
    }

    /// Runs jobs of the type's kind by this function.
    ///
    /// A payload that does not fit the type is a permanent failure. The result is stored with the job; `()` stores
    /// none.
    pub fn handle<J, R, F, Fut>(self, handler: F) -> Self
    where
        J: Job,
        R: Serialize,
        F: Fn(Context, J) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, Fail>> + Send + 'static,
    {
        self.handle_with(KindOptions::default(), handler)
    }

    /// The same with options for the kind.
    pub fn handle_with<J, R, F, Fut>(mut self, options: KindOptions, handler: F) -> Self
    where
        J: Job,
        R: Serialize,
        F: Fn(Context, J) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, Fail>> + Send + 'static,
    {
        self.kinds.push((J::KIND.to_owned(), options, typed(handler)));
        self
    }

    /// Runs jobs of a kind that is known by name only. The handler gets the payload's JSON as it was enqueued.
    pub fn handle_raw<F, Fut>(mut self, kind: impl Into<String>, options: KindOptions, handler: F) -> Self
    where
        F: Fn(Context, RawJson) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Option<RawJson>, Fail>> + Send + 'static,
    {
        self.kinds.push((kind.into(), options, raw(handler)));
        self
    }

    /// How long the worker's jobs stay its own without a heartbeat: 2 s to 1 h, 30 s when not given. A frozen worker's
    /// jobs run elsewhere after this time and a third more.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How often the lease is extended: 200 ms to a third of the lease, which it is when not given.
    pub fn heartbeat(mut self, period: Duration) -> Self {
        self.heartbeat = Some(period);
        self
    }

    /// How long the worker may be without its connections before its jobs are given to others: 100 ms to the lease, 1 s
    /// when not given. Longer where a connection takes long to come back, as over the failover of a primary that died without
    /// a word, and running a job twice is dear; a killed worker's jobs then start elsewhere as much later.
    pub fn reconnect_grace(mut self, grace: Duration) -> Self {
        self.reconnect_grace = grace;
        self
    }

    /// How long running handlers may go on after a stop was asked for: 0 to 24 h, 30 s when not given. At its end they are
    /// asked to stop (for a fifth of it, 5 s at most), then aborted, and their jobs go back without using an attempt.
    /// Zero: they are aborted at once.
    pub fn shutdown_grace(mut self, grace: Duration) -> Self {
        self.shutdown_grace = grace;
        self
    }

    /// How often an idle worker looks for work that nobody told it of; 10 ms to 60 s, 1 s when not given. Where few workers live
    /// (two to four) one second is about 0.6 s, so that they notice soon when another dies.
    pub fn poll(mut self, interval: Duration) -> Self {
        self.poll = interval;
        self
    }

    /// There is a pooler in transaction mode between here and the server: no notifications and no session lock, so that
    /// the worker lives on polling and on its lease.
    pub fn pooler(mut self, pooler: bool) -> Self {
        self.pooler = pooler;
        self
    }

    /// Stop when nothing is left to claim. Jobs that are due later are not waited for.
    pub fn drain(mut self, drain: bool) -> Self {
        self.drain = drain;
        self
    }

    /// Before it works, makes the schedules of this owner what is declared here, see [`Client::sync_schedules`]. Of several programs that
    /// declare for one owner, as the old and the new one during a deployment, the one that started last is right.
    pub fn schedules(mut self, schedules: Schedules) -> Self {
        self.schedules.push(schedules);
        self
    }

    /// Checks the settings, connects, registers, and starts to work.
    ///
    /// From then on the worker reconnects for ever. Dropping the future before it is ready leaves no worker behind.
    /// Needs a Tokio runtime with time and I/O; the heartbeat has a thread of its own.
    ///
    /// # Errors
    /// `BadInput`: all wrong settings, named together. `Unreachable`, `Denied`, `Schema`: the first registration failed. Those of
    /// [`Client::sync_schedules`].
    pub async fn start(self) -> Result<RunningWorker, Error> {
        let schedules = self.schedules.clone();
        let engine = self.engine()?;
        for declared in &schedules {
            declare(&engine.settings.client, declared).await?;
        }
        panics::watch();
        if engine.settings.pooler {
            tracing::warn!(
                "pooler mode: no notifications and no session lock; new jobs are found by polling, and a dead worker's jobs after its lease"
            );
        }
        let mut control = heartbeat::start(engine.clone())?;
        // When the caller gives up waiting for us, nobody else would ever end the heartbeat.
        let end = EndOnDrop::before_work(&engine);
        match (&mut control.started).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(error),
            Err(_) => return Err(Error::internal("the heartbeat's thread ended")),
        }
        let end = end.at_work();
        let _link = tokio::spawn(link::keep(engine.clone()));
        let _flush = tokio::spawn(flush::keep(engine.clone()));
        let claims = tokio::spawn(claim::keep(engine.clone()));
        let supervisor = tokio::spawn(shutdown::supervise(engine.clone(), control, claims, end));
        Ok(RunningWorker::new(engine, supervisor))
    }

    /// What the settings make, before anything is started.
    pub(super) fn engine(mut self) -> Result<Arc<Engine>, Error> {
        let kinds = std::mem::take(&mut self.kinds);
        let queues = std::mem::take(&mut self.queues);
        let settings = self.checked(&queues, &kinds)?;
        let kinds = kinds.into_iter().map(|(name, options, handler)| Kind::new(name, options, handler)).collect();
        Ok(Engine::new(settings, kinds, queues))
    }

    fn checked(self, queues: &[(String, usize)], kinds: &[(String, KindOptions, Handler)]) -> Result<Settings, Error> {
        let host = host_name();
        let name = self.name.clone().unwrap_or_else(|| host.clone());
        let mut problems = self.problems(&name, queues, kinds);
        let client =
            Client::builder(&self.url).schema(&self.schema).pooler(self.pooler).application_name(&name).connect_lazy();
        let options = SessionOptions::new(&self.url, Texts::new(&self.schema), &name);
        let (client, options) = match (client, options) {
            (Ok(client), Ok(options)) if problems.is_empty() => (client, options),
            (client, _) => {
                problems.extend(client.err().map(|error| error.to_string()));
                return Err(Error::new(
                    ErrorCode::BadInput,
                    format!("the worker cannot start: {}", problems.join("; ")),
                ));
            }
        };
        let control_deadline = (self.lease / 3).clamp(CONTROL_DEADLINE_MIN, WORK_DEADLINE);
        Ok(Settings {
            work_session: options.of_worker(self.pooler, WORK_DEADLINE),
            control_session: options.of_worker(self.pooler, control_deadline),
            heartbeat: self.heartbeat.unwrap_or(self.lease / HEARTBEAT_SHARE),
            turn_max: turn_max(self.lease),
            lease: self.lease,
            reconnect_grace: self.reconnect_grace,
            shutdown_grace: self.shutdown_grace,
            poll: self.poll,
            pooler: self.pooler,
            drain: self.drain,
            name,
            host,
            client,
        })
    }

    /// All that is wrong, in words.
    fn problems(
        &self,
        name: &str,
        queues: &[(String, usize)],
        kinds: &[(String, KindOptions, Handler)],
    ) -> Vec<String> {
        let mut checks = vec![names::check_worker(name).err().map(|error| error.to_string())];
        if queues.is_empty() {
            checks.push(Some("it has no queue: name at least one".to_owned()));
        }
        if kinds.is_empty() {
            checks.push(Some("it has no handler: add one for at least one kind".to_owned()));
        }
        for (queue, slots) in queues {
            checks.push(names::check_queue(queue).err().map(|error| error.to_string()));
            let wrong = !(1..=SLOTS_MAX).contains(slots);
            checks.push(wrong.then(|| format!("concurrency {slots} of queue {queue:?} is outside 1 to {SLOTS_MAX}")));
        }
        for (kind, _, _) in kinds {
            checks.push(names::check_kind(kind).err().map(|error| error.to_string()));
        }
        checks.extend(
            twice(queues.iter().map(|(name, _)| name)).map(|name| Some(format!("queue {name:?} is named twice"))),
        );
        checks.extend(
            twice(kinds.iter().map(|(name, ..)| name)).map(|name| Some(format!("kind {name:?} has two handlers"))),
        );
        checks.extend(self.schedules.iter().map(|declared| declared.check().err().map(|error| error.to_string())));
        checks.push(outside("lease", self.lease, LEASE_MIN, LEASE_MAX));
        checks.push(outside("reconnect grace", self.reconnect_grace, RECONNECT_GRACE_MIN, self.lease.max(LEASE_MIN)));
        checks.push(outside("shutdown grace", self.shutdown_grace, Duration::ZERO, SHUTDOWN_GRACE_MAX));
        checks.push(outside("poll interval", self.poll, POLL_MIN, POLL_MAX));
        let heartbeat_max = self.lease.max(LEASE_MIN) / HEARTBEAT_SHARE;
        checks.push(self.heartbeat.and_then(|period| outside("heartbeat", period, HEARTBEAT_MIN, heartbeat_max)));
        checks.into_iter().flatten().collect()
    }
}

async fn declare(client: &Client, declared: &Schedules) -> Result<(), Error> {
    let sync = client.sync_schedules(declared).await?;
    if !sync.is_empty() {
        let changed = sync.changed.len() + sync.adopted.len();
        tracing::info!(owner = declared.owner(), added = ?sync.added, changed, removed = ?sync.removed, "schedules were synchronised");
    }
    Ok(())
}

fn turn_max(lease: Duration) -> Duration {
    (lease / 4).clamp(TURN_MIN, TURN_MAX)
}

fn outside(what: &str, value: Duration, min: Duration, max: Duration) -> Option<String> {
    (value < min || value > max).then(|| format!("{what} {value:?} is outside {min:?} to {max:?}"))
}

fn twice<'a>(names: impl Iterator<Item = &'a String>) -> impl Iterator<Item = &'a String> {
    let mut seen = HashSet::new();
    names.filter(move |name| !seen.insert(*name))
}

/// For people to see; any text will do.
fn host_name() -> String {
    let from_system =
        || std::fs::read_to_string("/proc/sys/kernel/hostname").or_else(|_| std::fs::read_to_string("/etc/hostname"));
    let name = from_system().ok().or_else(|| std::env::var("HOSTNAME").ok());
    let name = name.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
    name.unwrap_or_else(|| "unknown".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_wrong_settings_are_named_together() {
        let error = WorkerBuilder::new("postgres://h/d".into())
            .schema("Bad")
            .queue("", 0)
            .queue("mail", 4)
            .queue("mail", 4)
            .lease(Duration::from_secs(5))
            .heartbeat(Duration::from_secs(5))
            .reconnect_grace(Duration::from_secs(6))
            .shutdown_grace(Duration::MAX)
            .start()
            .await
            .err()
            .expect("refused");
        assert_eq!(error.code(), ErrorCode::BadInput);
        let text = error.to_string();
        for part in [
            "\"Bad\" cannot be the schema",
            "the queue name is empty",
            "concurrency 0",
            "queue \"mail\" is named twice",
            "no handler",
            "heartbeat 5s is outside 200ms to 1.66",
            "shutdown grace 18446744073709551615.999999999s is outside 0ns to 86400s",
            "reconnect grace 6s is outside 100ms to 5s",
        ] {
            assert!(text.contains(part), "{part:?} in {text}");
        }
    }

    #[test]
    fn a_heartbeat_that_waits_for_a_maintenance_turn_is_in_time() {
        let nothing = |_: Context, _: RawJson| async { Ok(None) };
        let check = |lease_ms: u64, turn_ms: u64| {
            let builder =
                WorkerBuilder::new("postgres://h/d".into()).queue("q", 1).lease(Duration::from_millis(lease_ms));
            let engine = builder.handle_raw("k", KindOptions::new(), nothing).engine().expect("the settings are right");
            let settings = &engine.settings;
            assert_eq!(settings.turn_max, Duration::from_millis(turn_ms), "a lease of {lease_ms} ms");
            assert!(settings.turn_max < settings.control_session.deadline, "the connection outlives a turn");
            // The watchdog gives up a tenth of the lease before its end.
            assert!(settings.heartbeat + settings.turn_max < settings.lease * 9 / 10);
        };
        check(2_000, 900);
        check(4_000, 1_000);
        check(30_000, 5_000);
        check(3_600_000, 5_000);
    }
}
