//! Asks for leases that the database knows of and the worker does not: those of claims whose answer was lost. They go back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::engine::Engine;
use super::link::Attached;
use crate::store::{Registration, StoreError, Strip};

/// After a reconnect, and once more this much later, a worker asks for leases that it does not know: a claim whose
/// answer was lost may still be running in the server when the first question is asked.
const SECOND_AUDIT: Duration = Duration::from_secs(10);
/// Such a claim may be held up for longer than that. So a worker goes on asking, once in the time after which others
/// would take a lost worker's jobs, its lease, and at least this often.
const AUDIT_MAX: Duration = Duration::from_secs(30);

/// When to ask, and for whom.
pub(super) struct Audit {
    engine: Arc<Engine>,
    due_at: Instant,
    /// So many of the next ones come soon.
    soon: u8,
    /// The registration before, which may hold what a claim without an answer took.
    former: Option<Arc<Registration>>,
}

impl Audit {
    pub(super) fn new(engine: Arc<Engine>, now: Instant) -> Audit {
        Audit { engine, due_at: now, soon: 0, former: None }
    }

    pub(super) fn due_at(&self) -> Instant {
        self.due_at
    }

    /// The same registration on a new connection.
    pub(super) fn after_reconnect(&mut self, now: Instant) {
        (self.due_at, self.soon) = (now, 2);
    }

    /// A new registration, perhaps after another one.
    pub(super) fn after_registration(&mut self, former: Option<Arc<Registration>>, now: Instant) {
        let pause = if former.is_some() { Duration::ZERO } else { self.pause() };
        (self.due_at, self.soon) = (now + pause, 0);
        self.former = former;
    }

    /// No claim of this worker is under way meanwhile. Refused, it is done again a little later, and claims go on: the leases may be
    /// locked by somebody.
    pub(super) async fn run_if_due(&mut self, at: &Attached) -> Result<(), StoreError> {
        if self.due_at > Instant::now() {
            return Ok(());
        }
        match self.run(at).await {
            Ok(()) => {
                self.soon = self.soon.saturating_sub(1);
                let pause = if self.soon > 0 { SECOND_AUDIT } else { self.pause() };
                self.due_at = Instant::now() + pause;
            }
            Err(error) if error.is_lost() || error.is_worker_gone() => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "leases of lost claims cannot be given back now, trying again");
                self.due_at = Instant::now() + SECOND_AUDIT;
            }
        }
        Ok(())
    }

    /// How long none is needed when there was no reconnect.
    fn pause(&self) -> Duration {
        self.engine.settings.lease.min(AUDIT_MAX)
    }

    /// Gives back leases that the database knows of and we do not.
    async fn run(&mut self, at: &Attached) -> Result<(), StoreError> {
        if let Some(former) = &self.former {
            if at.renew(&self.engine, former).await? {
                self.give_back_unknown(at, former).await?;
            }
            self.former = None;
        }
        self.give_back_unknown(at, &at.registration).await
    }

    async fn give_back_unknown(&self, at: &Attached, registration: &Registration) -> Result<(), StoreError> {
        let unknown: Vec<_> = at
            .session
            .leases_of(registration)
            .await?
            .into_iter()
            .filter(|(lease, _)| !self.engine.held.knows(*lease))
            .collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let (leases, strips): (Vec<i64>, Vec<Strip>) = unknown.into_iter().unzip();
        // Those whose last job ended while we asked are among them and are gone already.
        let gone = at.session.release(registration, &leases, &strips).await?;
        if gone.len() < leases.len() {
            tracing::info!(leases = leases.len() - gone.len(), "leases of a claim whose answer was lost go back");
        }
        Ok(())
    }
}
