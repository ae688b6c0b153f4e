//! Tells the database what this worker counted: every ten seconds if it did something, and at its end.
//!
//! A report that was made stays as it is and is sent until the database has answered. It carries a number, by which the database knows one that it has
//! taken before; so nothing counts twice, and what is lost with a process that is killed is what it counted since its last report.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::engine::Engine;
use super::usage::Usage;
use crate::store::stats::{SelfStats, StatsReport};
use crate::store::{Registration, Session};

/// Between two reports.
pub(super) const RECORD_EVERY: Duration = Duration::from_secs(10);
/// How long a report is sent again and again. The database refuses one that counts for a minute more than an hour ago, when it may have forgotten
/// that it has taken it.
const REPORT_AGE_MAX: Duration = Duration::from_secs(1800);

/// What the worker told so far, and what it is about to.
pub(super) struct Recorder {
    state: Mutex<State>,
    usage: Usage,
}

struct State {
    /// Of the last report.
    seq: i64,
    /// When that was made.
    made_at: Instant,
    /// Made, and not known to have been taken.
    unsent: Option<(StatsReport, Instant)>,
    throttled: Option<Duration>,
}

impl Recorder {
    pub(super) fn new(now: Instant) -> Recorder {
        let usage = Usage::of_this_process();
        let state = State { seq: 0, made_at: now, unsent: None, throttled: usage.throttled() };
        Recorder { state: Mutex::new(state), usage }
    }

    /// Nothing that was made is still to be sent.
    pub(super) fn is_empty(&self) -> bool {
        self.state().unsent.is_none()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends the report that is still to be sent, or else one of what was counted since the last. True: that was all.
pub(super) async fn record(engine: &Engine, session: &Session, me: &Registration) -> bool {
    let now = Instant::now();
    let unsent = engine.recorder.state().unsent.take();
    let was_unsent = unsent.is_some();
    let Some((report, made_at)) = unsent.or_else(|| Some((make(engine, me, now)?, now))) else { return true };
    match session.record_stats(&report).await {
        Ok(()) => !was_unsent,
        Err(error) if error.is_about_values() || made_at + REPORT_AGE_MAX < now => {
            tracing::warn!(%error, made_s_ago = (now - made_at).as_secs(), "some statistics are given up");
            !was_unsent
        }
        Err(error) => {
            tracing::info!(%error, "statistics could not be told, trying again");
            engine.recorder.state().unsent = Some((report, made_at));
            false
        }
    }
}

/// A report of what was counted since the last one. None: nothing that is worth it.
fn make(engine: &Engine, me: &Registration, now: Instant) -> Option<StatsReport> {
    let tallies = &engine.tallies;
    let mut state = engine.recorder.state();
    let since = std::mem::replace(&mut state.made_at, now);
    let groups = tallies.take(&engine.queues, &engine.kinds);
    let is_worth_it = !groups.is_empty() || tallies.has_slow();
    let (claim_buckets, claim_counts) = tallies.claims.take();
    let (flush_buckets, flush_counts) = tallies.flushes.take();
    let throttled = engine.recorder.usage.throttled();
    let before = std::mem::replace(&mut state.throttled, throttled);
    if !is_worth_it {
        return None;
    }
    // The minute in which most of it happened.
    let minute = tallies.clock_at(since + (now - since) / 2)?;
    state.seq += 1;
    let own = SelfStats {
        claim_buckets,
        claim_counts,
        flush_buckets,
        flush_counts,
        memory_bytes: engine.recorder.usage.peak_memory(),
        group_memory_bytes: engine.recorder.usage.peak_group_memory(),
        throttled_ms: throttled.zip(before).map_or(0, |(now, before)| now.saturating_sub(before).as_millis() as u64),
    };
    let (groups, own) = (serde_json::to_string(&groups).ok()?, serde_json::to_string(&own).ok()?);
    Some(StatsReport { worker: me.worker, seq: state.seq, minute, groups, own })
}
