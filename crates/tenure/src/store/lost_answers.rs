//! Was an answer lost? When the network drops what the server sends and nothing else, no connection breaks, and a statement
//! is waited for until its deadline although the network may be back for long. So one that waits for more than a moment asks
//! on a short connection whether the server's process still has something to do for it.
//!
//! A worker's two sessions ask together, one at a time: a server that stalls is not flooded with questions. A server that
//! waits for its client may also still read a large statement, or have sent a large answer that is on its way. That looks the same,
//! so after each verdict the next one takes twice as long, and soon longer than any deadline.

use std::future::pending;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::failure::StoreError;
use super::session::{Session, SessionOptions};

/// After so long without an answer the server is asked, as long as no verdict was wrong before.
pub(crate) const ASK_AFTER: Duration = Duration::from_millis(1500);
/// How long a question may take.
const LIMIT: Duration = Duration::from_millis(1500);
/// Between two questions that nobody answered: the network is away, or the server stalls.
const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Without a verdict for so long, the first patience is enough again.
const FORGET_AFTER: Duration = Duration::from_secs(60);

/// What the sessions of one worker know of their answers.
pub(super) struct Asking {
    /// The processes that serve them.
    backends: Mutex<Vec<i32>>,
    /// Held by whoever asks.
    turn: tokio::sync::Mutex<()>,
    said: watch::Sender<Said>,
    patience: Mutex<Patience>,
}

/// What the server said last.
#[derive(Clone, Debug)]
struct Said {
    asked_at: Instant,
    /// The processes that wait for their client, and have for a second, or are gone.
    idle: Vec<i32>,
}

#[derive(Debug)]
struct Patience {
    after: Duration,
    /// When the question was put that led to the last verdict.
    last_verdict: Option<Instant>,
}

impl Asking {
    pub(super) fn new() -> Asking {
        Asking {
            backends: Mutex::default(),
            turn: tokio::sync::Mutex::new(()),
            said: watch::Sender::new(Said { asked_at: Instant::now(), idle: Vec::new() }),
            patience: Mutex::new(Patience { after: ASK_AFTER, last_verdict: None }),
        }
    }

    pub(super) fn add(&self, backend: i32) {
        lock(&self.backends).push(backend);
    }

    pub(super) fn remove(&self, backend: i32) {
        let mut backends = lock(&self.backends);
        if let Some(place) = backends.iter().position(|known| *known == backend) {
            backends.swap_remove(place);
        }
    }

    /// Returns when the answer to a statement that this process got was lost.
    pub(super) async fn lost(&self, backend: Option<i32>, options: &SessionOptions) {
        let Some(backend) = backend else { return pending().await };
        let due = Instant::now() + lock(&self.patience).after(Instant::now());
        let mut said = self.said.subscribe();
        let mut pause = PAUSE;
        let mut next = due;
        loop {
            tokio::select! {
                // The sender lives as long as we do.
                _ = said.changed() => {
                    let said = said.borrow_and_update();
                    if said.asked_at >= due && said.idle.contains(&backend) {
                        return lock(&self.patience).verdict(said.asked_at);
                    }
                }
                // sleep: an answer that does not come gives no signal.
                () = tokio::time::sleep_until(next.into()) => {
                    let answered = self.ask(options).await;
                    next = Instant::now() + if answered { ASK_AFTER } else { pause };
                    pause = if answered { PAUSE } else { (pause * 2).min(PAUSE_MAX) };
                }
            }
        }
    }

    /// Puts the question, if nobody else does. True: it was answered, to all who wait.
    async fn ask(&self, options: &SessionOptions) -> bool {
        let Ok(_turn) = self.turn.try_lock() else { return false };
        let (asked_at, backends) = (Instant::now(), lock(&self.backends).clone());
        match tokio::time::timeout(LIMIT, idle_of(options.aside(LIMIT), backends)).await {
            Ok(Ok(idle)) => {
                self.said.send_replace(Said { asked_at, idle });
                true
            }
            Ok(Err(_)) | Err(_) => false,
        }
    }
}

impl Patience {
    fn after(&mut self, now: Instant) -> Duration {
        if self.last_verdict.is_some_and(|last| now.duration_since(last) > FORGET_AFTER) {
            *self = Patience { after: ASK_AFTER, last_verdict: None };
        }
        self.after
    }

    /// One for all statements that waited when the question was put.
    fn verdict(&mut self, asked_at: Instant) {
        if self.last_verdict == Some(asked_at) {
            return;
        }
        self.after = self.after(asked_at) * 2;
        self.last_verdict = Some(asked_at);
        tracing::warn!(next_after = ?self.after, "the server is done with a statement whose answer did not arrive");
    }
}

/// Those of these processes that wait for their client. The session that asks is another one, and nobody asks for it.
fn idle_of(
    aside: SessionOptions,
    backends: Vec<i32>,
) -> std::pin::Pin<Box<dyn Future<Output = Result<Vec<i32>, StoreError>> + Send>> {
    Box::pin(async move {
        let session = Session::connect(&aside, None).await?;
        let list: Vec<String> = backends.iter().map(i32::to_string).collect();
        let ask = format!(
            "select coalesce(string_agg(b.pid::text, ' '), '') from unnest('{{{}}}'::int[]) b (pid) \
             left join pg_stat_activity a on a.pid = b.pid \
             where a.pid is null or a.state = 'idle' and a.state_change < clock_timestamp() - interval '1 second'",
            list.join(",")
        );
        let idle = session.run_script(&ask).await?.unwrap_or_default();
        Ok(idle.split_whitespace().filter_map(|pid| pid.parse().ok()).collect())
    })
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_verdict_makes_the_next_one_take_twice_as_long_until_a_minute_has_passed() {
        let (mut patience, now) = (Patience { after: ASK_AFTER, last_verdict: None }, Instant::now());
        assert_eq!(patience.after(now), ASK_AFTER);
        (0..5).for_each(|_| patience.verdict(now));
        assert_eq!(patience.after(now), ASK_AFTER * 2, "one question, one verdict");
        let later = now + Duration::from_secs(10);
        patience.verdict(now + Duration::from_secs(5));
        patience.verdict(later);
        assert_eq!(patience.after(later + FORGET_AFTER), ASK_AFTER * 8, "longer than the deadline of 10 s");
        assert_eq!(patience.after(later + FORGET_AFTER + Duration::from_millis(1)), ASK_AFTER);
    }

    #[test]
    fn a_process_that_is_known_twice_is_forgotten_once() {
        let asking = Asking::new();
        [7, 8, 7].into_iter().for_each(|backend| asking.add(backend));
        asking.remove(7);
        asking.remove(9);
        assert_eq!(lock(&asking.backends).len(), 2);
    }
}
