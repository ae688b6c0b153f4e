//! Counts the calls of handlers, whichever product makes them. One per process: products differ in what they let a handler
//! carry.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// A product that calls no handler for so long is stuck.
const STUCK: Duration = Duration::from_secs(60);

static WANTED: AtomicU64 = AtomicU64::new(u64::MAX);
static SEEN: AtomicU64 = AtomicU64::new(0);
static LAST: OnceLock<Instant> = OnceLock::new();
static REACHED: Notify = Notify::const_new();
static STARTS: OnceLock<UnboundedSender<Instant>> = OnceLock::new();

/// What every handler calls: so many jobs have been handled. All of the no-op's work.
pub(crate) fn handled(jobs: u64) {
    let before = SEEN.fetch_add(jobs, Relaxed);
    let wanted = WANTED.load(Relaxed);
    if before < wanted && before + jobs >= wanted {
        let _first = LAST.set(Instant::now());
        REACHED.notify_one();
    }
    if let Some(starts) = STARTS.get() {
        let _listened_to = starts.send(Instant::now());
    }
}

/// From now on the jobs are counted up to this one.
pub(crate) fn expect(jobs: u64) {
    WANTED.store(jobs, Relaxed);
}

/// Waits for the last job that is expected, and says when it was handled.
pub(crate) async fn reached() -> Result<Instant> {
    let mut seen = seen();
    loop {
        if tokio::time::timeout(STUCK, REACHED.notified()).await.is_ok() {
            return Ok(*LAST.get_or_init(Instant::now));
        }
        if seen == self::seen() {
            bail!("no job in {} s, after {seen}", STUCK.as_secs());
        }
        seen = self::seen();
    }
}

/// Jobs handled so far; more than were enqueued when some ran twice.
pub(crate) fn seen() -> u64 {
    SEEN.load(Relaxed)
}

/// From now on the instants at which handlers start can be received.
pub(crate) fn starts() -> UnboundedReceiver<Instant> {
    let (sender, receiver) = unbounded_channel();
    let _first = STARTS.set(sender);
    receiver
}
