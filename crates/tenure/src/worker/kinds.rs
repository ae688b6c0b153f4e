//! Kinds: the handler of each and its options, and what was learned of it.

use std::any::type_name;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::context::Context;
use super::pace::Pace;
use super::result::stored_form;
use crate::model::limits::{ERROR_TEXT_BYTES_MAX, TIMEOUT_DEFAULT};
use crate::model::{Cause, Fail, RawJson, RetryPolicy, storable};

/// How jobs of one kind are run.
#[derive(Clone, Debug)]
pub struct KindOptions {
    pub(super) retry: Option<RetryPolicy>,
    pub(super) timeout: Duration,
    pub(super) stop_grace: Duration,
    pub(super) take_over: bool,
}

impl Default for KindOptions {
    fn default() -> KindOptions {
        KindOptions { retry: None, timeout: TIMEOUT_DEFAULT, stop_grace: Duration::from_secs(5), take_over: false }
    }
}

impl KindOptions {
    /// The defaults: the default backoff, a timeout of an hour, 5 s to stop after a cancel.
    pub fn new() -> KindOptions {
        KindOptions::default()
    }

    /// The delays between attempts. Default: 2 s, 4 s … up to an hour, plus up to a quarter.
    pub fn retry(mut self, policy: RetryPolicy) -> KindOptions {
        self.retry = Some(policy);
        self
    }

    /// How long a handler may take before it is aborted and the attempt has failed; a job's own timeout goes before.
    /// Zero: no limit. Default: one hour.
    ///
    /// Aborting means that the handler's future is dropped, at its next await. What cannot be aborted is a handler that
    /// blocks its thread, and code that it runs by [`Context::spawn_blocking`]: such an attempt keeps its slot and its
    /// lease, is reported as an overrun, and starts nowhere else until it returns or the process ends
    /// ([`take_over`](KindOptions::take_over) changes that). A result that comes more than a second late is
    /// refused: the attempt has timed out. Code in other threads or tasks (a bare `tokio::task::spawn_blocking`, `tokio::spawn`) is not seen: it goes
    /// on by itself while the job is tried again.
    pub fn timeout(mut self, timeout: Duration) -> KindOptions {
        self.timeout = timeout;
        self
    }

    /// Whether an attempt ends at its timeout although its handler does not: the job is then tried again, here or
    /// elsewhere, while the old copy may still run. What the old copy still says, and its
    /// [`complete_in`](Context::complete_in), is refused. The same holds when a cancelled handler outlasts its stop grace,
    /// and at the end of a worker's shutdown. Default: false, a job never runs twice at a time.
    ///
    /// For handlers that may hang for ever (a call without a timeout of its own) and whose copies do no harm to each
    /// other. The slot stays in use until the old copy returns. A handler that blocks a thread of the runtime is noticed
    /// within a second.
    pub fn take_over(mut self, yes: bool) -> KindOptions {
        self.take_over = yes;
        self
    }

    /// How long a handler may go on after its job was cancelled, before it is aborted. Default: 5 s. Zero: it is aborted at
    /// once, at its next await; any other time will do.
    pub fn stop_grace(mut self, grace: Duration) -> KindOptions {
        self.stop_grace = grace;
        self
    }
}

/// What a handler returns, boxed: a result to store, or none.
pub(super) type HandlerFuture = Pin<Box<dyn Future<Output = Result<Option<RawJson>, Fail>> + Send>>;
pub(super) type Handler = Box<dyn Fn(Context, RawJson) -> HandlerFuture + Send + Sync>;

/// A kind that this worker handles.
pub(super) struct Kind {
    pub(super) name: String,
    pub(super) options: KindOptions,
    pub(super) handler: Handler,
    pace: Mutex<Pace>,
    /// Quick enough to be claimed ahead of a free slot, as of the last look.
    pub(super) quick: AtomicBool,
    /// A handler of it ended a job in its own transaction: its lease rows must not be shared.
    pub(super) completes_itself: AtomicBool,
    /// A job with a single attempt was seen: what is claimed must start at once.
    pub(super) single_attempt: AtomicBool,
    /// This process cannot run it.
    pub(super) refused: AtomicBool,
    /// Set before it is refused.
    refused_why: OnceLock<String>,
}

impl Kind {
    pub(super) fn new(name: String, options: KindOptions, handler: Handler) -> Kind {
        Kind {
            name,
            options,
            handler,
            pace: Mutex::default(),
            quick: AtomicBool::new(false),
            completes_itself: AtomicBool::new(false),
            single_attempt: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            refused_why: OnceLock::new(),
        }
    }

    pub(super) fn observe(&self, ran: Duration) {
        self.pace().observe(ran);
    }

    /// Looks anew whether the kind is quick.
    pub(super) fn look(&self) -> Look {
        let pace = self.pace();
        let quick = pace.is_quick() && !self.single_attempt.load(Relaxed);
        self.quick.store(quick, Relaxed);
        let solo = pace.wants_solo() || self.completes_itself.load(Relaxed);
        Look { refused: self.refused.load(Relaxed), quick, solo, p95: pace.p95().unwrap_or_default() }
    }

    pub(super) fn is_refused(&self) -> bool {
        self.refused.load(Relaxed)
    }

    /// False: it was refused before.
    pub(super) fn refuse(&self, why: &str) -> bool {
        let _ = self.refused_why.set(storable(why, ERROR_TEXT_BYTES_MAX).into_owned());
        !self.refused.swap(true, Relaxed)
    }

    /// Why this process cannot run it; none: it can.
    pub(super) fn refused_why(&self) -> Option<&str> {
        self.refused_why.get().map(String::as_str)
    }

    fn pace(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is known of a kind at one moment.
pub(super) struct Look {
    pub(super) refused: bool,
    pub(super) quick: bool,
    pub(super) solo: bool,
    pub(super) p95: Duration,
}

/// A handler of typed payloads and results as one of JSON.
pub(super) fn typed<J, R, F, Fut>(handler: F) -> Handler
where
    J: DeserializeOwned + Send + 'static,
    R: Serialize,
    F: Fn(Context, J) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R, Fail>> + Send + 'static,
{
    let handler = Arc::new(handler);
    Box::new(move |context, payload| {
        let handler = handler.clone();
        Box::pin(async move {
            let job = read::<J>(&payload)?;
            let result = handler(context, job).await?;
            Ok(stored_form(&result))
        })
    })
}

/// A payload that does not fit will not fit the next time either. The message does not quote it: it may be secret.
fn read<J: DeserializeOwned>(payload: &RawJson) -> Result<J, Fail> {
    serde_json::from_str(payload.get()).map_err(|error| {
        let (what, line, column) = (describe(&error), error.line(), error.column());
        Fail::permanent(format!("the payload does not fit {}: {what} at line {line} column {column}", type_name::<J>()))
            .cause(Cause::Payload)
    })
}

fn describe(error: &serde_json::Error) -> String {
    let text = error.to_string();
    // Field names come from the type, values from the payload; serde quotes names in backticks and values not.
    let named = ["missing field", "unknown field", "unknown variant", "duplicate field"];
    match named.iter().find(|start| text.starts_with(**start)) {
        Some(start) if *start == "missing field" => text.split(" at line").next().unwrap_or(&text).to_owned(),
        Some(start) => (*start).to_owned(),
        None => match text.split(", expected ").nth(1) {
            Some(expected) => format!("expected {}", expected.split(" at line").next().unwrap_or(expected)),
            None => "a value has the wrong type or range".to_owned(),
        },
    }
}

/// A handler of raw JSON, boxed.
pub(super) fn raw<F, Fut>(handler: F) -> Handler
where
    F: Fn(Context, RawJson) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Option<RawJson>, Fail>> + Send + 'static,
{
    let handler = Arc::new(handler);
    Box::new(move |context, payload| {
        let handler = handler.clone();
        // The call itself is inside the future, so that a panic in it is caught like any other.
        Box::pin(async move { handler(context, payload).await })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[allow(dead_code)]
    struct Mail {
        to: String,
        copies: u8,
    }

    #[test]
    fn a_payload_that_does_not_fit_is_permanent_and_not_quoted() {
        let check = |text: &str, says: &str| {
            let fail = read::<Mail>(&RawJson::parse(text).expect("JSON")).expect_err("does not fit");
            assert!(fail.message().contains(says), "{}", fail.message());
            assert!(!fail.message().contains("secret"), "{}", fail.message());
            assert_eq!((fail.verdict(), fail.cause_kind()), (crate::Verdict::Permanent, Cause::Payload));
        };
        check(r#"{"to":"secret"}"#, "missing field `copies`");
        check(r#"{"to":"x","copies":"secret"}"#, "expected u8");
        check(r#"{"to":"x","copies":300}"#, "expected u8");
        check(r#"["secret"]"#, "expected");
    }
}
