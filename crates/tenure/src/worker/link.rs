//! The work connection: claims and ends of jobs go over it, pipelined. It is made again for ever, and the first thing
//! on a new one is to take the session lock.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;

use super::backoff::Backoff;
use super::engine::{Engine, Phase};
use super::heartbeat::carries;
use super::standing::Side;
use crate::store::{Loss, Registration, Session, StoreError};

/// A session on which the registration is attached.
#[derive(Clone)]
pub(super) struct Attached {
    pub(super) session: Arc<Session>,
    pub(super) registration: Arc<Registration>,
}

impl Attached {
    /// Is a registration good after all? Its lease is then extended: one that is over, as when the database's clock was set
    /// forward, is still this worker's as long as nobody was given what it holds. It may be one that this worker gave up.
    pub(super) async fn renew(&self, engine: &Engine, registration: &Registration) -> Result<bool, StoreError> {
        let sent = Instant::now();
        let Some(renewal) = self.session.heartbeat(registration).await? else { return Ok(false) };
        engine.standing.renewed(registration, sent, renewal.lease_left);
        Ok(true)
    }
}

/// Where the others find the work connection.
pub(super) struct Link {
    current: watch::Sender<Option<Attached>>,
}

impl Default for Link {
    fn default() -> Link {
        Link { current: watch::Sender::new(None) }
    }
}

impl Link {
    /// The work connection; waits until there is one.
    pub(super) async fn attached(&self) -> Attached {
        let mut current = self.current.subscribe();
        let usable = |attached: &Option<Attached>| attached.as_ref().is_some_and(|at| !at.session.is_closed());
        loop {
            // The sender lives as long as we do: there is no error to expect.
            let found = current.wait_for(usable).await.ok().and_then(|attached| attached.clone());
            if let Some(attached) = found {
                return attached;
            }
        }
    }
}

/// Keeps the work connection until the worker has ended.
pub(super) async fn keep(engine: Arc<Engine>) {
    let _vital = engine.vital("work connection");
    tokio::select! {
        () = engine.until(Phase::Ended) => {}
        () = keep_connecting(&engine) => {}
    }
    engine.link.current.send_replace(None);
}

async fn keep_connecting(engine: &Arc<Engine>) {
    let mut backoff = Backoff::default();
    let mut first = true;
    loop {
        let registration = registered(engine).await;
        engine.standing.until_control_up().await;
        match attach(engine, &registration).await {
            Ok(Some(session)) => {
                if let Some(after) = backoff.recovered() {
                    tracing::warn!("the work connection stands again after {:.1} s", after.as_secs_f64());
                }
                if !std::mem::take(&mut first) {
                    engine.stats.reconnects.one();
                }
                serve(engine, registration, Arc::new(session)).await;
            }
            Ok(None) => engine.lost(&registration, "the database does not know this worker any more"),
            Err(error) => {
                engine.standing.cut(Side::Work, &loss_of(&error), Instant::now());
                let wait = backoff.next_hurried();
                if backoff.is_loud() {
                    tracing::warn!(%error, ?wait, "no work connection, trying again");
                }
                tokio::time::sleep(wait).await;
            }
        }
    }
}

async fn registered(engine: &Engine) -> Arc<Registration> {
    let mut standing = engine.standing.watch();
    loop {
        if let Ok(registration) = standing.wait_for(Option::is_some).await
            && let Some(registration) = registration.clone()
        {
            return registration;
        }
    }
}

/// A new session that holds the lock, or behind a pooler has renewed the lease. None: the worker is gone.
async fn attach(engine: &Engine, registration: &Registration) -> Result<Option<Session>, StoreError> {
    let session = Session::connect(&engine.settings.work_session, None).await?;
    if engine.settings.pooler {
        return Ok(carries(engine, &session, registration).await?.then_some(session));
    }
    // In one trip. A server that cannot look for lost clients refuses the first; then the audits find what they left.
    let (watched, known, attached) =
        tokio::join!(session.end_with_its_client(), session.learn_backend(), carries(engine, &session, registration));
    known?;
    if let Err(error) = watched {
        tracing::debug!(%error, "the server does not look whether its clients are still there");
    }
    Ok(attached?.then_some(session))
}

/// Until the connection breaks or the registration changes: the lock of a former one must not live on.
async fn serve(engine: &Engine, registration: Arc<Registration>, session: Arc<Session>) {
    engine.standing.connected(Side::Work);
    let mut standing = engine.standing.watch();
    engine.link.current.send_replace(Some(Attached { session: session.clone(), registration: registration.clone() }));
    tokio::select! {
        loss = session.closed() => {
            tracing::info!(loss = loss.text, "the work connection was lost");
            engine.standing.cut(Side::Work, &loss, Instant::now());
        }
        _ = standing.wait_for(|now| now.as_deref() != Some(&*registration)) => {}
    }
    engine.link.current.send_replace(None);
}

/// A refusal while connecting or attaching is a connection that we do not have.
pub(super) fn loss_of(error: &StoreError) -> Loss {
    match error {
        StoreError::Lost(loss) => loss.clone(),
        StoreError::Refused { .. } | StoreError::Protocol(_) => Loss::silent(error.to_string()),
    }
}
