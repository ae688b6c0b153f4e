//! The control connection: registration, session lock, LISTEN, heartbeat and maintenance turns.
//!
//! It lives on a thread of its own with a runtime of its own, so that handlers that burn CPU on all threads of the
//! program's runtime cannot starve the heartbeat. A watchdog beside it stops the worker's handlers before anybody else
//! can take their jobs.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;
use tokio_postgres::Notification;

use super::backoff::Backoff;
use super::engine::Engine;
use super::fire::Firing;
use super::link::loss_of;
use super::moment::at;
use super::record::{RECORD_EVERY, record};
use super::standing::Side;
use crate::client::ahead;
use crate::error::Error;
use crate::model::JobId;
use crate::store::{Introduction, Registration, Session, StoreError};

/// Notifications are hints; more than this many unread ones are dropped.
const NOTIFICATIONS_MAX: usize = 1024;
/// Jobs that one step of retention deletes one by one, at most; fewer when a step takes too long.
const RETAIN_ROWS: u32 = 2_000;
/// And at least: even a very slow disk deletes so many within the limit.
const RETAIN_ROWS_MIN: u32 = 20;
/// After a step of retention that failed.
const RETAIN_AGAIN: Duration = Duration::from_secs(10);
/// From one look for jobs that become due to the next, at least: what is due by then moves together.
const PROMOTE_APART: Duration = Duration::from_millis(10);
/// Between two tries of a heartbeat that the database refused.
const BEAT_AGAIN: Duration = Duration::from_millis(500);
/// After a try to note which kinds are refused failed.
const REFUSE_AGAIN: Duration = Duration::from_secs(60);
/// How often handlers are looked at that should have ended.
const OVERRUN_LOOK: Duration = Duration::from_secs(1);
/// The last words of a worker take at most this long.
const LEAVE_MAX: Duration = Duration::from_secs(2);
/// Of that, its last statistics.
const LAST_STATS_MAX: Duration = Duration::from_millis(500);

/// Answers: registered (or why not), and later: ended, and whether it left in order.
pub(super) struct Control {
    pub(super) started: oneshot::Receiver<Result<(), Error>>,
    pub(super) ended: oneshot::Receiver<bool>,
}

/// Starts the thread.
pub(super) fn start(engine: Arc<Engine>) -> Result<Control, Error> {
    let (tell_started, started) = oneshot::channel();
    let (tell_ended, ended) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::internal(format!("no runtime for the heartbeat: {error}")))?;
    std::thread::Builder::new()
        .name("tenure-heartbeat".to_owned())
        .spawn(move || {
            let _vital = engine.vital("heartbeat");
            let left = runtime.block_on(async {
                let watchdog = tokio::spawn(watch(engine.clone()));
                let left = keep(&engine, tell_started).await;
                watchdog.abort();
                left
            });
            engine.failure_log.sum_up_all();
            let _ = tell_ended.send(left);
        })
        .map_err(|error| Error::internal(format!("no thread for the heartbeat: {error}")))?;
    Ok(Control { started, ended })
}

/// Stops the handlers in time when the lease cannot be renewed or the connections cannot be made again.
async fn watch(engine: Arc<Engine>) {
    let _vital = engine.vital("watchdog");
    loop {
        let registration = engine.standing.overdue().await;
        engine.lost(&registration, "it could not be renewed, or its connections made again, in time");
    }
}

/// Keeps the control connection until the worker has ended. True: it left in order.
async fn keep(engine: &Arc<Engine>, tell_started: oneshot::Sender<Result<(), Error>>) -> bool {
    // A worker that ends while the database is away for a moment still tries to sign off.
    let too_late = async {
        engine.until_gone().await;
        tokio::time::sleep(LEAVE_MAX).await;
    };
    tokio::select! {
        left = keep_connecting(engine, tell_started) => left,
        () = too_late => false,
    }
}

async fn keep_connecting(engine: &Arc<Engine>, tell_started: oneshot::Sender<Result<(), Error>>) -> bool {
    let mut tell_started = Some(tell_started);
    let mut backoff = Backoff::default();
    loop {
        let (sender, notifications) = mpsc::channel(NOTIFICATIONS_MAX);
        match connect(engine, sender).await {
            Ok((session, registration)) => {
                if let Some(after) = backoff.recovered() {
                    tracing::warn!("the control connection stands again after {:.1} s", after.as_secs_f64());
                }
                match tell_started.take() {
                    Some(tell) => drop(tell.send(Ok(()))),
                    None => engine.stats.reconnects.one(),
                }
                let control = Controlled::new(engine, session, registration, notifications);
                if let Served::Left(left) = control.serve().await {
                    return left;
                }
            }
            Err(error) => {
                if let Some(tell) = tell_started.take() {
                    let _ = tell.send(Err(Error::store("start the worker", error)));
                    return false;
                }
                after_failure(engine, &mut backoff, &error).await;
            }
        }
    }
}

async fn after_failure(engine: &Engine, backoff: &mut Backoff, error: &StoreError) {
    engine.standing.cut(Side::Control, &loss_of(error), Instant::now());
    let held = engine.standing.current().is_some();
    let wait = if held { backoff.next_hurried() } else { backoff.next() };
    if backoff.is_loud() {
        tracing::warn!(%error, ?wait, "no control connection, trying again");
    }
    tokio::time::sleep(wait).await;
}

/// A new session with the lock of the registration that we have, or of a new one.
async fn connect(
    engine: &Arc<Engine>,
    notifications: mpsc::Sender<Notification>,
) -> Result<(Session, Arc<Registration>), StoreError> {
    let session = Session::connect(&engine.settings.control_session, Some(notifications)).await?;
    if let Some(registration) = engine.standing.current() {
        if carries(engine, &session, &registration).await? {
            return listening(engine, session, registration).await;
        }
        engine.lost(&registration, "the database does not know this worker any more");
    }
    let registration = register(engine, &session).await?;
    listening(engine, session, registration).await
}

/// Does a new session carry a registration? Behind a pooler a server that takes no writes lets us connect all the same: what
/// renews no lease there is no connection, and the next try waits like that after any other failure.
pub(super) async fn carries(
    engine: &Engine,
    session: &Session,
    registration: &Registration,
) -> Result<bool, StoreError> {
    if !engine.settings.pooler {
        return session.attach_worker(registration).await;
    }
    Ok(session.heartbeat(registration).await?.is_some())
}

async fn register(engine: &Engine, session: &Session) -> Result<Arc<Registration>, StoreError> {
    let settings = &engine.settings;
    let queues: Vec<_> = engine.queues.iter().map(|queue| queue.name.clone()).collect();
    let kinds: Vec<_> = engine.kinds.iter().map(|kind| kind.name.clone()).collect();
    let sent = Instant::now();
    let registration = session
        .register_worker(&Introduction {
            name: &settings.name,
            host: &settings.host,
            pid: i32::try_from(std::process::id()).unwrap_or_default(),
            queues: &queues,
            kinds: &kinds,
            lease: settings.lease,
            grace: settings.reconnect_grace,
            lock: !settings.pooler,
            former: engine.standing.former(),
        })
        .await?;
    tracing::info!(worker = registration.worker, name = settings.name, "registered");
    Ok(engine.standing.registered(registration, sent))
}

/// Ready to be told: LISTEN, where the connection is our own.
async fn listening(
    engine: &Engine,
    session: Session,
    registration: Arc<Registration>,
) -> Result<(Session, Arc<Registration>), StoreError> {
    if !engine.settings.pooler {
        let (listens, known) = tokio::join!(session.listen(&registration), session.learn_backend());
        listens?;
        known?;
    }
    engine.standing.connected(Side::Control);
    // Whatever was told while nobody listened is found by looking.
    engine.woken.notify_one();
    Ok((session, registration))
}

/// How serving a connection came to its end.
enum Served {
    /// The connection or the registration is gone: make a new one.
    Gone,
    /// The worker has ended; true: in order.
    Left(bool),
}

struct Controlled<'a> {
    engine: &'a Arc<Engine>,
    session: Session,
    registration: Arc<Registration>,
    notifications: mpsc::Receiver<Notification>,
    /// What the database was told on this connection.
    overruns_told: Option<(Vec<i64>, bool)>,
    /// So many refused kinds the database knows by this connection; the registration may be a new one.
    refused_told: usize,
    /// When to tell it again after it was refused.
    refuse_at: Instant,
    /// When we were asked to do the next maintenance turn.
    tick_at: Option<Instant>,
    /// When the next job becomes due.
    promote_at: Option<Instant>,
    /// No turn was asked for yet on this connection.
    fresh: bool,
    /// Duties that the last turn has left to be done, each for itself.
    net: Vec<String>,
    /// The database asked for a look who holds back vacuum.
    horizon_wanted: bool,
    /// Somebody may need times of schedules, see `client/ahead.rs`.
    ahead_wanted: bool,
    /// When to do the next step of retention.
    retain_at: Option<Instant>,
    retain_rows: u32,
    /// When to do the next turn of the statistics.
    fold_at: Option<Instant>,
    /// When to tell what was counted.
    record_at: Instant,
    firing: Firing,
}

impl<'a> Controlled<'a> {
    fn new(
        engine: &'a Arc<Engine>,
        session: Session,
        registration: Arc<Registration>,
        notifications: mpsc::Receiver<Notification>,
    ) -> Controlled<'a> {
        Controlled {
            engine,
            session,
            registration,
            notifications,
            overruns_told: None,
            refused_told: 0,
            refuse_at: Instant::now(),
            // Whoever did maintenance may be the one whose place this worker takes.
            tick_at: Some(Instant::now()),
            promote_at: None,
            fresh: true,
            net: Vec::new(),
            horizon_wanted: false,
            ahead_wanted: false,
            retain_at: None,
            retain_rows: RETAIN_ROWS,
            fold_at: None,
            // So that many workers that start together do not tell together.
            record_at: Instant::now() + RECORD_EVERY.mul_f64(0.5 + fastrand::f64() / 2.0),
            firing: Firing::default(),
        }
    }

    async fn serve(mut self) -> Served {
        let mut standing = self.engine.standing.watch();
        let mut beat_at = Instant::now();
        let mut overruns = tokio::time::interval(OVERRUN_LOOK);
        overruns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let registration = self.registration.clone();
        loop {
            // What ends this first, then the heartbeat: nothing else may come before it when it is due.
            let done = tokio::select! {
                biased;
                loss = self.session.closed() => {
                    tracing::info!(loss = loss.text, "the control connection was lost");
                    self.engine.standing.cut(Side::Control, &loss, Instant::now());
                    Err(Served::Gone)
                }
                _ = standing.wait_for(|now| now.as_deref() != Some(&*registration)) => Err(Served::Gone),
                () = self.engine.until_gone() => Err(Served::Left(self.leave().await)),
                () = tokio::time::sleep_until(beat_at.into()) => match self.beat().await {
                    Ok(next) => { beat_at = next; Ok(()) }
                    Err(gone) => Err(gone),
                },
                // Nothing that comes again and again may keep these two waiting: neither news, nor turns without end.
                _ = overruns.tick() => { self.look_around().await; Ok(()) }
                () = self.engine.overruns_changed.notified() => { self.note_overruns().await; Ok(()) }
                () = self.engine.kinds_changed.notified() => { self.refuse_kinds().await; Ok(()) }
                Some(notification) = self.notifications.recv() => {
                    if self.hear(notification.payload()) {
                        beat_at = Instant::now();
                    }
                    Ok(())
                }
                () = at(self.firing.at()) => { self.firing.turn(&self.session).await; Ok(()) }
                // Before the turns, for it pauses by itself after each step.
                () = at(self.retain_at) => { self.retain().await; Ok(()) }
                () = at(self.fold_at) => { self.fold_stats().await; Ok(()) }
                () = at(Some(self.record_at)) => { self.record().await; Ok(()) }
                () = std::future::ready(()), if !self.net.is_empty() => { self.net().await; Ok(()) }
                () = std::future::ready(()), if self.horizon_wanted => { self.look_at_horizon().await; Ok(()) }
                () = std::future::ready(()), if self.ahead_wanted => { self.compute_ahead().await; Ok(()) }
                () = self.engine.tick_wanted.notified() => { self.tick().await; Ok(()) }
                () = at(self.tick_at) => { self.tick().await; Ok(()) }
                () = at(self.promote_at) => { self.tick().await; Ok(()) }
            };
            if let Err(end) = done {
                return end;
            }
        }
    }

    /// Extends the lease; when the next one is due.
    async fn beat(&self) -> Result<Instant, Served> {
        let sent = Instant::now();
        match self.session.heartbeat(&self.registration).await {
            Ok(Some(renewal)) => {
                self.engine.standing.renewed(&self.registration, sent, renewal.lease_left);
                for job in renewal.cancel_jobs {
                    self.engine.cancel(job.into());
                }
                Ok(sent + self.engine.settings.heartbeat)
            }
            Ok(None) => {
                self.engine.lost(&self.registration, "its jobs were given to others");
                Err(Served::Gone)
            }
            Err(error) => {
                tracing::warn!(%error, "a heartbeat failed");
                // From now: what is refused slowly must leave time for the rest.
                Ok(Instant::now() + BEAT_AGAIN)
            }
        }
    }

    /// True: a heartbeat should look what happened.
    fn hear(&self, payload: &str) -> bool {
        let mut words = payload.split(' ');
        match words.next() {
            Some("work") => self.engine.woken.notify_one(),
            Some("rescued") => return true,
            Some("cancel") => {
                if let Some(Ok(job)) = words.next().map(str::parse::<i64>) {
                    self.engine.cancel(job.into());
                }
            }
            // A later version may say more; all of it is hints.
            Some(_) | None => {}
        }
        false
    }

    /// Once a second.
    async fn look_around(&mut self) {
        self.engine.failure_log.sum_up(Instant::now());
        self.refuse_kinds().await;
        self.note_overruns().await;
    }

    /// Tells the database which of our jobs overrun, when that has changed.
    async fn note_overruns(&mut self) {
        let left = self.engine.left.load(Relaxed);
        let jobs: Vec<i64> = self.engine.overruns().into_iter().map(JobId::get).collect();
        if self.overruns_told.as_ref().is_some_and(|(told, told_left)| *told == jobs && *told_left == left) {
            return;
        }
        match self.session.note_overruns(&self.registration, &jobs, left).await {
            Ok(()) => {
                self.overruns_told = Some((jobs, left));
                if left {
                    self.engine.left_noted.notify_waiters();
                }
            }
            Err(error) => tracing::warn!(%error, "overruns could not be noted"),
        }
    }

    /// Tells the database which kinds this process cannot run, when there are more of them.
    async fn refuse_kinds(&mut self) {
        let refused = self.engine.kinds.iter().filter_map(|kind| Some((kind.name.as_str(), kind.refused_why()?)));
        let (kinds, reasons): (Vec<_>, Vec<_>) = refused.unzip();
        if kinds.len() == self.refused_told || self.refuse_at > Instant::now() {
            return;
        }
        match self.session.refuse_kinds(&self.registration, &kinds, &reasons).await {
            Ok(()) => self.refused_told = kinds.len(),
            // It is for people alone.
            Err(error) => {
                tracing::warn!(%error, "refused kinds could not be noted");
                self.refuse_at = Instant::now() + REFUSE_AGAIN;
            }
        }
    }

    /// A maintenance turn.
    async fn tick(&mut self) {
        // A look between two turns leaves this worker's own next turn as it is.
        let own_turn = self.tick_at.take().filter(|at| *at > Instant::now());
        let fresh = std::mem::take(&mut self.fresh);
        let busy = !self.engine.running.is_empty();
        let start = Instant::now();
        self.promote_at = None;
        match self.session.tick(&self.registration, busy, self.engine.settings.turn_max).await {
            Ok(ticked) => {
                let count = |n: i64| u64::try_from(n).unwrap_or_default();
                self.engine.stats.rescued.add(count(ticked.rescued));
                self.engine.failure_log.rescued(count(ticked.rescued), &ticked.rescued_jobs.unwrap_or_default());
                self.engine.stats.promoted.add(count(ticked.promoted));
                if ticked.rescued + ticked.promoted > 0 {
                    self.engine.woken.notify_one();
                }
                let from_now = |ms: i64| Instant::now() + Duration::from_millis(count(ms));
                self.tick_at = ticked.next_ms.filter(|_| ticked.ran || fresh).map(from_now).or(own_turn);
                self.promote_at = ticked.due_ms.map(|ms| from_now(ms).max(start + PROMOTE_APART));
                self.ahead_wanted |= !ticked.net.is_empty();
                self.net.extend(ticked.net);
                if ticked.retain && self.retain_at.is_none() {
                    self.retain_at = Some(Instant::now());
                }
                if ticked.stats && self.fold_at.is_none() {
                    self.fold_at = Some(Instant::now());
                }
                self.horizon_wanted |= ticked.horizon;
                if let Some(ms) = ticked.fire_ms {
                    self.firing.want(ms);
                }
            }
            Err(error) => tracing::warn!(%error, "a maintenance turn failed"),
        }
    }

    /// Times of schedules for pg_cron, where it is in use; a few at a time, with each net.
    async fn compute_ahead(&mut self) {
        self.ahead_wanted = match ahead::refresh(&self.session).await {
            Ok(more) => more,
            Err(error) => {
                tracing::warn!(%error, "times ahead of schedules could not be stored");
                false
            }
        };
    }

    /// One duty of the net. It comes again with the next net when it fails.
    async fn net(&mut self) {
        if let Some(duty) = self.net.pop()
            && let Err(error) = self.session.net(&duty, self.engine.settings.turn_max).await
        {
            tracing::warn!(%error, duty, "a maintenance duty failed");
        }
    }

    /// Says who holds back vacuum, as long as somebody does; the database asks one worker a minute for it.
    async fn look_at_horizon(&mut self) {
        self.horizon_wanted = false;
        match self.session.vacuum_horizon(self.engine.settings.turn_max / 2).await {
            Ok(horizon) => {
                if let Some(oldest) = horizon.old().next() {
                    let dead_rows = horizon.dead_rows_in_all();
                    let way_out = oldest.way_out();
                    match oldest.age {
                        Some(age) => tracing::warn!(
                            dead_rows,
                            "{oldest} has kept vacuum from removing dead rows for {} s: {way_out}",
                            age.as_secs()
                        ),
                        None => tracing::warn!(
                            dead_rows,
                            "{oldest} has kept vacuum from removing dead rows for {} transactions: {way_out}",
                            oldest.transactions
                        ),
                    }
                }
            }
            Err(error) => tracing::info!(%error, "nobody could look who holds back vacuum"),
        }
    }

    /// One step of retention. Between two of them is as long a pause as the first one took, so that they use half of this
    /// connection's time at most; heartbeats and maintenance turns come between them.
    async fn retain(&mut self) {
        let start = Instant::now();
        // A cancel or a stop waits behind it.
        let limit = self.engine.settings.turn_max / 2;
        self.retain_at = match self.session.retain(self.retain_rows, limit).await {
            Ok(step) => {
                self.engine.stats.removed.add(u64::try_from(step.removed).unwrap_or_default());
                self.retain_rows = (self.retain_rows * 2).min(RETAIN_ROWS);
                step.more.then(|| Instant::now() + start.elapsed())
            }
            Err(error) => {
                tracing::warn!(%error, rows = self.retain_rows, "a step of retention failed");
                self.retain_rows = (self.retain_rows / 2).max(RETAIN_ROWS_MIN);
                Some(Instant::now() + RETAIN_AGAIN)
            }
        };
    }

    /// A turn of the statistics, with pauses between several as between steps of retention. It comes again with a later turn of maintenance when it fails.
    async fn fold_stats(&mut self) {
        let start = Instant::now();
        self.fold_at = match self.session.fold_stats(self.engine.settings.turn_max / 2).await {
            Ok(folded) => folded.more.then(|| Instant::now() + start.elapsed()),
            Err(error) => {
                tracing::warn!(%error, "a turn of the statistics failed");
                None
            }
        };
    }

    /// Tells what this worker counted. After a report that had to wait, what was counted meanwhile comes at once.
    async fn record(&mut self) {
        self.record_at = Instant::now() + RECORD_EVERY;
        let all_told = record(self.engine, &self.session, &self.registration).await;
        if !all_told && self.engine.recorder.is_empty() {
            self.record_at = Instant::now();
        }
    }

    /// Nobody waits for longer than [`LEAVE_MAX`] for this.
    async fn leave(&self) -> bool {
        let left = self.engine.signs_off.load(Relaxed)
            && matches!(self.session.leave_worker(&self.registration).await, Ok(true));
        let last_words = async {
            while !record(self.engine, &self.session, &self.registration).await && self.engine.recorder.is_empty() {}
        };
        let _ = tokio::time::timeout(LAST_STATS_MAX, last_words).await;
        left
    }
}
