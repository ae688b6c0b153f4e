//! Was an answer lost? When the network drops what the server sends and nothing else, no connection breaks, and a statement
//! is waited for until its deadline although the network may be back for long. So one that waits for more than a moment asks
//! on a short connection whether the server's process still has something to do for it.
//!
//! A worker's two sessions ask together, one at a time: a server that stalls is not flooded with questions. A server that
//! waits for its client may also still read a large statement, or have sent a large answer that is on its way. That looks the same,
//! so after each verdict the next one takes twice as long, and soon longer than any deadline; but for one that came after questions
//! which nobody answered: then the network was away.

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
/// A question that nobody answered says that the network is away, until so long after the next one could be put: whoever still
/// waits for an answer puts it by then. When nobody has, the answers had arrived.
const SILENCE_LASTS: Duration = Duration::from_secs(3);
/// Between a verdict and its consequence.
const LAST_CHANCE: Duration = Duration::from_millis(50);
/// Without a verdict for so long, the first patience is enough again.
const FORGET_AFTER: Duration = Duration::from_secs(60);

/// What the sessions of one worker know of their answers.
pub(super) struct Asking {
    /// The processes that serve them.
    backends: Mutex<Vec<i32>>,
    /// Held by whoever asks.
    turn: tokio::sync::Mutex<Pace>,
    said: watch::Sender<Said>,
    patience: Mutex<Patience>,
}

/// When the next question may be put, whoever has one.
#[derive(Debug)]
struct Pace {
    not_before: Instant,
    pause: Duration,
}

/// What the server said last.
#[derive(Clone, Debug)]
struct Said {
    asked_at: Instant,
    /// The question before it was not answered: the network was away.
    after_silence: bool,
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
        let now = Instant::now();
        Asking {
            backends: Mutex::default(),
            turn: tokio::sync::Mutex::new(Pace { not_before: now, pause: PAUSE }),
            said: watch::Sender::new(Said { asked_at: now, after_silence: false, idle: Vec::new() }),
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
        let mut next = due;
        loop {
            tokio::select! {
                // The sender lives as long as we do.
                _ = said.changed() => {
                    let said = said.borrow_and_update().clone();
                    if said.asked_at >= due && said.idle.contains(&backend) {
                        lock(&self.patience).verdict(&said);
                        // sleep: the answer may just have arrived, and nobody has read it yet.
                        return tokio::time::sleep(LAST_CHANCE).await;
                    }
                }
                // sleep: an answer that does not come gives no signal.
                () = tokio::time::sleep_until(next.into()) => next = self.ask(options).await,
            }
        }
    }

    /// Puts the question, if nobody else does or just has; when there may be the next one.
    async fn ask(&self, options: &SessionOptions) -> Instant {
        let asked_at = Instant::now();
        let Ok(mut pace) = self.turn.try_lock() else { return asked_at + PAUSE };
        if pace.not_before > asked_at {
            return pace.not_before;
        }
        let after_silence = pace.is_silent(asked_at);
        if !after_silence {
            pace.pause = PAUSE;
        }
        let backends = lock(&self.backends).clone();
        match tokio::time::timeout(LIMIT, idle_of(options.aside(LIMIT), backends)).await {
            Ok(Ok(idle)) => {
                self.said.send_replace(Said { asked_at, after_silence, idle });
                *pace = Pace { not_before: Instant::now() + ASK_AFTER, pause: PAUSE };
            }
            Ok(Err(_)) | Err(_) => {
                *pace = Pace { not_before: Instant::now() + pace.pause, pause: (pace.pause * 2).min(PAUSE_MAX) };
            }
        }
        pace.not_before
    }
}

impl Pace {
    /// The question before was not answered, and not long ago.
    fn is_silent(&self, now: Instant) -> bool {
        self.pause > PAUSE && now < self.not_before + SILENCE_LASTS
    }
}

impl Patience {
    fn after(&mut self, now: Instant) -> Duration {
        if self.last_verdict.is_some_and(|last| now.saturating_duration_since(last) > FORGET_AFTER) {
            *self = Patience { after: ASK_AFTER, last_verdict: None };
        }
        self.after
    }

    /// One for all statements that waited when the question was put. After a silence it is right: the network was away.
    fn verdict(&mut self, said: &Said) {
        if said.after_silence || self.last_verdict == Some(said.asked_at) {
            return;
        }
        self.after = self.after(said.asked_at) * 2;
        self.last_verdict = Some(said.asked_at);
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
        let said = |seconds, after_silence| Said {
            asked_at: now + Duration::from_secs(seconds),
            after_silence,
            idle: Vec::new(),
        };
        (0..5).for_each(|_| patience.verdict(&said(0, false)));
        assert_eq!(patience.after(now), ASK_AFTER * 2, "one question, one verdict");
        patience.verdict(&said(3, true));
        assert_eq!(patience.after(now), ASK_AFTER * 2, "after a silence it was right");
        [5, 10].into_iter().for_each(|seconds| patience.verdict(&said(seconds, false)));
        let last = now + Duration::from_secs(10);
        assert_eq!(patience.after(last + FORGET_AFTER), ASK_AFTER * 8, "longer than the deadline of 10 s");
        assert_eq!(patience.after(last + FORGET_AFTER + Duration::from_millis(1)), ASK_AFTER);
    }

    #[test]
    fn a_silence_of_long_ago_says_nothing_of_the_network_now() {
        let now = Instant::now();
        let pace = Pace { not_before: now, pause: PAUSE * 2 };
        assert!(pace.is_silent(now) && pace.is_silent(now + SILENCE_LASTS - Duration::from_millis(1)));
        assert!(!pace.is_silent(now + SILENCE_LASTS));
        assert!(!Pace { not_before: now, pause: PAUSE }.is_silent(now), "the last question was answered");
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
