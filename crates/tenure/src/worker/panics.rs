//! Panics of handlers, caught with their message and place.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Once;
use std::task::{Context, Poll};

thread_local! {
    static CATCHING: Cell<bool> = const { Cell::new(false) };
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A panic that was caught.
#[derive(Debug)]
pub(super) struct Panic {
    pub(super) message: String,
    /// "file:line:column".
    pub(super) location: Option<String>,
}

/// From now on the place of a panic is remembered. The hook that was there before is still called.
pub(super) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if CATCHING.get() {
                PLACE.set(info.location().map(ToString::to_string));
            }
            before(info);
        }));
    });
}

/// Runs foreign code; a panic becomes a value.
pub(super) fn caught<T>(code: impl FnOnce() -> T) -> Result<T, Panic> {
    let outer = CATCHING.replace(true);
    let answer = catch_unwind(AssertUnwindSafe(code)).map_err(value_of);
    CATCHING.set(outer);
    answer
}

fn value_of(payload: Box<dyn Any + Send>) -> Panic {
    let location = PLACE.take();
    // One that was caught in another thread and is passed on keeps the place where it arose.
    let payload = match payload.downcast::<Panic>() {
        Ok(panic) => return *panic,
        Err(payload) => payload,
    };
    let message = text_of(payload.as_ref());
    // Foreign code once more: the destructor of what was panicked with may panic, and so may that of its panic.
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(again);
        PLACE.take();
    }
    Panic { message, location }
}

fn text_of(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic with a value that is no text".to_owned())
}

/// A future whose panics become values, also those while it is made or dropped.
pub(super) struct Caught<T> {
    future: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
}

impl<T> Caught<T> {
    pub(super) fn new(make: impl FnOnce() -> Pin<Box<dyn Future<Output = T> + Send>>) -> Result<Caught<T>, Panic> {
        caught(make).map(|future| Caught { future: Some(future) })
    }
}

impl<T> Future for Caught<T> {
    type Output = Result<T, Panic>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(future) = self.future.as_mut() else { return Poll::Pending };
        match caught(|| future.as_mut().poll(cx)) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    }
}

impl<T> Drop for Caught<T> {
    fn drop(&mut self) {
        let future = self.future.take();
        if let Err(panic) = caught(|| drop(future)) {
            tracing::warn!(message = panic.message, "a handler that was aborted panicked while it was dropped");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_value_with_its_place() {
        watch();
        let check = |code: fn(), message: &str| {
            let panic = caught(code).expect_err("panics");
            assert_eq!(panic.message, message);
            assert!(panic.location.expect("known").contains("panics.rs:"));
        };
        check(|| panic!("plain"), "plain");
        check(|| panic!("with {}", 1), "with 1");
        check(|| std::panic::panic_any(7), "a panic with a value that is no text");
    }

    #[test]
    fn a_panic_that_is_passed_on_from_another_thread_keeps_its_place() {
        watch();
        let there = std::thread::spawn(|| caught(|| panic!("there"))).join().expect("caught").expect_err("panics");
        let place = there.location.clone();
        let here = caught(|| std::panic::resume_unwind(Box::new(there))).expect_err("panics");
        assert_eq!((here.message.as_str(), &here.location), ("there", &place));
        assert!(place.is_some());
    }

    #[test]
    fn a_panic_with_a_value_that_panics_when_dropped_is_one_panic() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                std::panic::panic_any(Bomb);
            }
        }
        watch();
        let panic = caught(|| std::panic::panic_any(Bomb)).expect_err("panics");
        assert_eq!(panic.message, "a panic with a value that is no text");
        assert!(caught(|| ()).is_ok());
    }

    #[tokio::test]
    async fn a_future_may_panic_when_polled_and_when_dropped() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("dropped");
            }
        }
        let polled = Caught::<()>::new(|| Box::pin(async { panic!("polled") })).expect("made");
        assert_eq!(polled.await.expect_err("panics").message, "polled");
        let mut kept = Caught::<()>::new(|| {
            Box::pin(async {
                let _bomb = Bomb;
                std::future::pending().await
            })
        })
        .expect("made");
        assert!(futures_util::poll!(&mut kept).is_pending());
        drop(kept);
        assert!(Caught::<()>::new(|| panic!("made")).is_err());
    }
}
