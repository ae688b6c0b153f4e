//! Waiting for an instant that may never come.

use std::time::Instant;

/// Sleeps until then; for ever when there is no such instant.
pub(super) async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant.into()).await,
        None => std::future::pending().await,
    }
}
