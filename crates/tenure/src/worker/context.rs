//! What a handler knows of its job, and how it is told to stop.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::blocking::Blocking;
use super::job_run::JobRun;
use super::result::stored_form;
use crate::client::Client;
use crate::client::enqueue::complete_on;
use crate::client::executor::Executor;
use crate::error::{Error, ErrorCode};
use crate::model::limits::ERROR_TEXT_BYTES_MAX;
use crate::model::{JobId, RawJson, storable};

/// Why a handler should stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// Somebody cancelled the job.
    Cancelled,
    /// The worker stops; the job is given back without using an attempt.
    Shutdown,
    /// The attempt took longer than its timeout. Only code in [`Context::spawn_blocking`] lives to see it: the rest of the
    /// handler is aborted in the same moment.
    TimedOut,
    /// The job may be given to another worker from now on, so that what the handler does may happen twice. Its end is still
    /// taken as long as nobody was given the job.
    LeaseLost,
}

/// Code of a run that nobody asked to stop.
pub(super) const NOT_ASKED: u8 = 0;

impl StopReason {
    const ALL: [StopReason; 4] =
        [StopReason::Cancelled, StopReason::Shutdown, StopReason::TimedOut, StopReason::LeaseLost];

    /// How an atomic holds it; never [`NOT_ASKED`].
    pub(super) fn code(self) -> u8 {
        match self {
            StopReason::Cancelled => 1,
            StopReason::Shutdown => 2,
            StopReason::TimedOut => 3,
            StopReason::LeaseLost => 4,
        }
    }

    pub(super) fn with_code(code: u8) -> Option<StopReason> {
        StopReason::ALL.into_iter().find(|reason| reason.code() == code)
    }
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StopReason::Cancelled => "cancelled",
            StopReason::Shutdown => "shutdown",
            StopReason::TimedOut => "timed out",
            StopReason::LeaseLost => "lease lost",
        })
    }
}

/// A handler's view of its job. Cheap to clone.
#[derive(Clone)]
pub struct Context {
    pub(super) run: Arc<JobRun>,
}

impl Context {
    /// The job's number.
    pub fn job_id(&self) -> JobId {
        self.run.job()
    }

    /// The job's kind.
    pub fn kind(&self) -> &str {
        &self.run.engine.kinds[self.run.kind].name
    }

    /// The queue that it came from.
    pub fn queue(&self) -> &str {
        &self.run.engine.queues[self.run.queue].name
    }

    /// The number of this attempt; the first is 1.
    pub fn attempt(&self) -> u16 {
        self.run.attempt
    }

    /// After so many failed attempts the job goes to the dead letters.
    pub fn max_attempts(&self) -> u16 {
        self.run.max_attempts
    }

    /// Text that is the same for every attempt of this job and for no other job: pass it to a provider that accepts
    /// one, so that an attempt that is repeated is not billed twice.
    pub fn idempotency_key(&self) -> &str {
        self.run.key.get_or_init(|| default_key(self.run.job(), self.run.created_at))
    }

    /// A number that is larger in every later attempt: a system that remembers the largest it saw can refuse a late
    /// attempt. It is the number of the lease, and what `tenure.complete` in SQL wants as `fence`.
    pub fn fence(&self) -> i64 {
        self.run.lease.id
    }

    /// Waits until the handler should stop, and says why. A handler that goes on is aborted a little later.
    pub async fn cancelled(&self) -> StopReason {
        loop {
            let told = self.run.told.notified();
            if let Some(reason) = self.run.stop_reason() {
                return reason;
            }
            told.await;
        }
    }

    /// Should the handler stop? For loops that do not wait.
    pub fn is_cancelled(&self) -> bool {
        self.run.stop_reason().is_some()
    }

    /// Why the handler should stop; none: it should not.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.run.stop_reason()
    }

    /// The same as a token, to hand to code that takes one.
    pub fn cancellation_token(&self) -> CancellationToken {
        let token = self.run.token.get_or_init(CancellationToken::new).clone();
        if self.is_cancelled() {
            token.cancel();
        }
        token
    }

    /// Runs code that blocks its thread (a computation, a library without async, a large file) on a thread for such code,
    /// as a part of this handler. Await it for what the code returns; a panic in it is a panic of the handler.
    ///
    /// The attempt lasts as long as the code runs, also when nobody awaits it: the job keeps its slot and its lease, and
    /// starts nowhere else ([`KindOptions::take_over`](super::KindOptions::take_over) changes that). A thread cannot be
    /// aborted, so let long code look at [`is_cancelled`](Context::is_cancelled) now and then: it says so when the job was
    /// cancelled, the worker stops, the attempt timed out, or the lease was lost. Code that has not begun when the handler
    /// is aborted never begins.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    ///
    /// # Example
    /// ```no_run
    /// # async fn example(ctx: tenure::Context) -> Result<usize, tenure::Fail> {
    /// let inner = ctx.clone();
    /// let primes = ctx.spawn_blocking(move || {
    ///     (2..10_000_000_u64).take_while(|_| !inner.is_cancelled()).filter(|n| (2..*n).all(|d| n % d > 0)).count()
    /// });
    /// Ok(primes.await)
    /// # }
    /// ```
    pub fn spawn_blocking<T, F>(&self, code: F) -> Blocking<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        Blocking::start(&self.run, code)
    }

    /// Records a value with this attempt should it fail, however it fails: also by a timeout or a panic, when the handler
    /// has no last word. A later value of the same key replaces the one before. Text is cut at 16 KiB; all details
    /// together should stay below 64 KiB, above which they are left out.
    pub fn detail(&self, key: &str, value: impl Into<Value>) {
        let value = match value.into() {
            Value::String(text) => Value::String(storable(&text, ERROR_TEXT_BYTES_MAX).into_owned()),
            other => other,
        };
        self.run.details().insert(storable(key, 128).into_owned(), value);
    }

    /// Stores how far the job is, for people to see. At most 64 KiB of JSON; the newest value replaces the one before.
    ///
    /// # Errors
    /// `LeaseLost`: the job is not this worker's any more, or has ended in a transaction of the handler's own. `BadInput`: the value cannot be stored. Otherwise as every
    /// call to the database; a handler may well ignore it.
    pub async fn progress(&self, value: &(impl Serialize + Sync + ?Sized)) -> Result<(), Error> {
        let value = RawJson::of(value)?;
        let session = self.client().session().await?;
        let stored = session.progress(self.run.job().get(), self.fence(), value.get()).await;
        match stored.map_err(|error| Error::store("store the progress", error))? {
            true => Ok(()),
            false => Err(self.lease_lost()),
        }
    }

    /// A provider said that it is too much, and the handler goes on: nothing more starts under the limit before this time has passed, in the whole
    /// fleet, and its rate is halved for a while. None: the limits that the job stands under. A handler that gives up returns
    /// [`Fail::throttled`](crate::Fail::throttled) instead. False: there is no such limit.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn throttle(&self, limit: Option<&str>, wait: Duration) -> Result<bool, Error> {
        let session = self.client().session().await?;
        let done = session.throttle_job(self.run.job().get(), limit, wait).await;
        done.map_err(|error| Error::store("throttle the limit", error))
    }

    /// Completes the job in the handler's own transaction: its writes, the end of the job and what it enqueues commit
    /// together or not at all. After it the handler commits and returns `Ok`; what it returns is not stored.
    ///
    /// Works on every [`Executor`]. Write first, call this last: until the commit it holds the job's lease, and the
    /// server ends the transaction if it idles until the lease is over.
    ///
    /// # Errors
    /// `LeaseLost`: the job belongs to others now, and the transaction cannot commit. `Conflict`: under repeatable read
    /// or serializable, run the whole transaction again.
    ///
    /// # Example
    /// ```no_run
    /// # async fn example(ctx: tenure::Context, mut db: tokio_postgres::Client) -> Result<(), tenure::Fail> {
    /// let mut tx = db.transaction().await?;
    /// tx.execute("update account set balance = balance - 5 where id = 7", &[]).await?;
    /// ctx.complete_in(&mut tx, &"charged").await?;
    /// tx.commit().await?;
    /// # Ok(()) }
    /// ```
    pub async fn complete_in<E: Executor + ?Sized>(
        &self,
        tx: &mut E,
        result: &(impl Serialize + Sync + ?Sized),
    ) -> Result<(), Error> {
        let engine = &self.run.engine;
        // From now on its jobs get a lease row each, so that this transaction holds up no sibling.
        engine.kinds[self.run.kind].completes_itself.store(true, Ordering::Relaxed);
        let result = stored_form(result);
        let texts = &engine.settings.work_session.texts;
        complete_on(tx, texts, self.run.job(), self.fence(), result.as_ref()).await?;
        self.run.completes_itself.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// A client for what a handler enqueues, cancels or looks up. All handlers of the worker share its few connections,
    /// which are not those that the worker itself needs.
    pub fn client(&self) -> &Client {
        &self.run.engine.settings.client
    }

    fn lease_lost(&self) -> Error {
        let text = format!(
            "the lease {} on job {} is lost: the job has ended, or belongs to others now",
            self.fence(),
            self.run.job()
        );
        Error::new(ErrorCode::LeaseLost, text)
    }

    /// This process cannot run jobs of this kind (its program is missing, for example): the job goes back without using
    /// an attempt, whatever the handler returns, and this worker claims no more of the kind until it is started again.
    /// When no kind is left the worker stops. Meanwhile jobs that wait for the kind say so, with this reason
    /// ([`Client::waits_for`], [`Client::unhandled_kinds`]).
    pub fn refuse_kind(&self, why: &str) {
        self.run.refused.store(true, Ordering::Relaxed);
        self.run.engine.refuse_kind(self.run.kind, why);
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("job_id", &self.job_id())
            .field("kind", &self.kind())
            .field("queue", &self.queue())
            .field("attempt", &self.attempt())
            .finish_non_exhaustive()
    }
}

/// "<job id>-<created_at in microseconds, hexadecimal>", as the database derives it too: the time keeps ids apart that a
/// restored backup hands out again.
fn default_key(job: JobId, created_at: SystemTime) -> String {
    let micros = created_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_micros();
    format!("{job}-{micros:x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_to_stop_is_read_back_as_itself() {
        for reason in StopReason::ALL {
            assert_eq!(StopReason::with_code(reason.code()), Some(reason));
        }
        assert_eq!(StopReason::with_code(NOT_ASKED), None);
    }

    #[test]
    fn the_default_key_is_the_id_and_the_time() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_micros(0x1af);
        assert_eq!(default_key(JobId::from(42), at), "42-1af");
    }
}
