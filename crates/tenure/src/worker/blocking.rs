//! Code of a handler that blocks its thread: run elsewhere, and yet a part of the attempt.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::task::JoinHandle;

use super::job_run::{JobRun, Presence};
use super::panics::{Panic, caught};

/// What [`Context::spawn_blocking`](super::Context::spawn_blocking) gives: await it for what the code returns. When it is
/// dropped before, code that runs goes on, and code that has not begun never begins.
#[must_use = "the code runs by itself, but only await tells what it returned or that it panicked"]
pub struct Blocking<T> {
    thread: JoinHandle<Option<Result<T, Panic>>>,
    place: Place,
}

/// Where the code's presence waits until a thread takes it up, or nobody wants it any more.
type Place = Arc<Mutex<Option<Started>>>;

/// Code that a thread may begin. None: it is not a part of any attempt, for the handler has returned.
struct Started(#[allow(dead_code)] Option<Presence>);

impl<T: Send + 'static> Blocking<T> {
    pub(super) fn start(run: &Arc<JobRun>, code: impl FnOnce() -> T + Send + 'static) -> Blocking<T> {
        let place: Place = Arc::new(Mutex::new(Some(Started(Presence::of_thread(run)))));
        let here = place.clone();
        let thread = tokio::task::spawn_blocking(move || {
            let _present = take(&here)?;
            Some(caught(code))
        });
        Blocking { thread, place }
    }
}

fn take(place: &Place) -> Option<Started> {
    place.lock().unwrap_or_else(PoisonError::into_inner).take()
}

impl<T> Future for Blocking<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        match ready!(Pin::new(&mut self.thread).poll(cx)) {
            Ok(Some(Ok(value))) => Poll::Ready(value),
            // With its message and place, which a plain panic here would not have.
            Ok(Some(Err(panic))) => std::panic::resume_unwind(Box::new(panic)),
            Err(failed) if failed.is_panic() => std::panic::resume_unwind(failed.into_panic()),
            // The runtime ends, and the handler with it.
            Ok(None) | Err(_) => Poll::Pending,
        }
    }
}

impl<T> Drop for Blocking<T> {
    fn drop(&mut self) {
        drop(take(&self.place));
    }
}

impl<T> fmt::Debug for Blocking<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocking").finish_non_exhaustive()
    }
}
