//! Waiting on a condition instead of sleeping.

use std::time::Duration;

use tokio::time::Instant;

/// How long [`until`] waits before the test fails: 20 seconds.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// First and longest pause between two looks at a condition.
const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// What a condition may answer: `bool`, `Option<T>`, or `Result<T, String>` whose error says what was seen instead.
pub trait Seen {
    /// What [`until`] returns once the condition holds.
    type Found;
    /// The value when the condition holds, otherwise what was seen instead.
    fn found(self) -> Result<Self::Found, Option<String>>;
}

impl Seen for bool {
    type Found = ();
    fn found(self) -> Result<(), Option<String>> {
        if self { Ok(()) } else { Err(None) }
    }
}

impl<T> Seen for Option<T> {
    type Found = T;
    fn found(self) -> Result<T, Option<String>> {
        self.ok_or(None)
    }
}

impl<T> Seen for Result<T, String> {
    type Found = T;
    fn found(self) -> Result<T, Option<String>> {
        self.map_err(Some)
    }
}

/// Looks until the condition holds, for at most [`DEADLINE`].
///
/// # Panics
/// When the deadline passes: the message names `what` and, if the condition says it, what was seen last.
pub async fn until<S: Seen>(what: &str, look: impl AsyncFnMut() -> S) -> S::Found {
    until_within(DEADLINE, what, look).await
}

/// Looks until the condition holds, for at most `limit`.
///
/// # Panics
/// When the limit passes: the message names `what` and, if the condition says it, what was seen last.
pub async fn until_within<S: Seen>(limit: Duration, what: &str, mut look: impl AsyncFnMut() -> S) -> S::Found {
    let start = Instant::now();
    let mut pause = PAUSE_MIN;
    loop {
        let seen = match look().await.found() {
            Ok(found) => return found,
            Err(seen) => seen,
        };
        if start.elapsed() >= limit {
            let seen = seen.map(|seen| format!("; last seen: {seen}")).unwrap_or_default();
            panic!("not within {limit:?}: {what}{seen}");
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}
