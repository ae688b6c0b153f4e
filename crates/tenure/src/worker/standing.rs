//! Is this worker's registration still good? What both connections and the heartbeat know of it, and the moment at
//! which the worker has to stop its own handlers because somebody else may take its jobs.
//!
//! Others take a worker's jobs when its lease is over, or when none of its connections held the session lock at two
//! sightings at least `grace` apart. So a worker that cannot renew its lease gives up a little before the lease ends,
//! and one that is cut off on both connections gives up after 0.8 of the grace. One exception: a server that announced
//! that it goes down, or takes no more writes, and then refuses connections or writers, does so to everybody. Nobody can
//! take anything, and after its start only the lease counts, for the locks of before do not: then the time without a
//! server is not counted.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};

use crate::store::{Loss, Registration};

/// The worker gives up this part of the lease before its end.
const LEASE_MARGIN: u32 = 10;
/// The part of the grace after which a worker without connections gives up.
const GRACE_SHARE: f64 = 0.8;

/// One of the two fixed connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Work,
    Control,
}

#[derive(Clone, Copy, Debug)]
struct Cut {
    at: Instant,
    /// The server said itself that it goes down.
    announced: bool,
}

/// What is known, and who wants to be told.
pub(super) struct Standing {
    current: watch::Sender<Option<Arc<Registration>>>,
    known: Mutex<Known>,
    changed: Notify,
    control_up: watch::Sender<bool>,
    lease: Duration,
    grace: Duration,
}

#[derive(Debug, Default)]
struct Known {
    /// None: there is no registration. Set and cleared together with `current`.
    lease_end: Option<Instant>,
    /// None: connected and holding the lock.
    work: Option<Cut>,
    control: Option<Cut>,
    /// The worker that this process was until it gave up.
    former: Option<i64>,
    /// There are session locks; not behind a pooler.
    locks: bool,
}

impl Standing {
    pub(super) fn new(lease: Duration, grace: Duration, locks: bool) -> Standing {
        let known = Known { locks, ..Known::default() };
        Standing {
            current: watch::Sender::new(None),
            known: Mutex::new(known),
            changed: Notify::new(),
            control_up: watch::Sender::new(false),
            lease,
            grace,
        }
    }

    pub(super) fn current(&self) -> Option<Arc<Registration>> {
        self.current.borrow().clone()
    }

    /// The worker that this process was before, when it gave up a registration: what was meant for that one is for the next.
    pub(super) fn former(&self) -> Option<i64> {
        self.known().former
    }

    /// Not given up, as far as is known.
    pub(super) fn is_current(&self, registration: &Registration) -> bool {
        self.current.borrow().as_deref() == Some(registration)
    }

    pub(super) fn watch(&self) -> watch::Receiver<Option<Arc<Registration>>> {
        self.current.subscribe()
    }

    /// A new registration, made on the control connection by a call that was sent at `sent`.
    pub(super) fn registered(&self, registration: Registration, sent: Instant) -> Arc<Registration> {
        let registration = Arc::new(registration);
        let mut known = self.known();
        known.lease_end = Some(sent + self.lease);
        known.control = None;
        known.work = Some(Cut { at: sent, announced: false });
        self.current.send_replace(Some(registration.clone()));
        drop(known);
        self.changed.notify_one();
        registration
    }

    /// The lease of this registration was extended by a call that was sent at `sent`. The answer may come late: a
    /// registration that was given up meanwhile stays given up.
    pub(super) fn renewed(&self, registration: &Registration, sent: Instant, left: Duration) {
        let mut known = self.known();
        if self.current.borrow().as_deref() == Some(registration) {
            known.lease_end = known.lease_end.max(Some(sent + left));
        }
    }

    /// A connection holds the lock (again).
    pub(super) fn connected(&self, side: Side) {
        *self.known().side(side) = None;
        if side == Side::Control {
            self.control_up.send_replace(true);
        }
    }

    /// Waits until the control connection stands: the other one follows it, so that a worker without a database knocks
    /// once at a time.
    pub(super) async fn until_control_up(&self) {
        let _ = self.control_up.subscribe().wait_for(|up| *up).await;
    }

    /// A connection was lost, or could not be made.
    pub(super) fn cut(&self, side: Side, loss: &Loss, now: Instant) {
        if side == Side::Control {
            self.control_up.send_replace(false);
        }
        {
            let mut known = self.known();
            let cut = known.side(side);
            match cut {
                None => *cut = Some(Cut { at: now, announced: loss.announced }),
                Some(cut) => {
                    cut.announced |= loss.announced;
                    if cut.announced && (loss.refused || loss.announced) {
                        cut.at = now;
                    }
                }
            }
        }
        self.changed.notify_one();
    }

    /// The registration is gone: by the database's word, or given up by ourselves. True for the first who says so.
    pub(super) fn gone(&self, registration: &Registration) -> bool {
        let mut known = self.known();
        let was = self.current.send_if_modified(|current| {
            let same = current.as_deref() == Some(registration);
            if same {
                *current = None;
            }
            same
        });
        if was {
            known.lease_end = None;
            known.former = Some(registration.worker);
            self.changed.notify_one();
        }
        was
    }

    /// Waits until the worker has to give up its registration: that one. Until it is [`gone`](Standing::gone) this
    /// answers at once.
    pub(super) async fn overdue(&self) -> Arc<Registration> {
        loop {
            match (self.deadline(), self.current()) {
                (Some(deadline), Some(registration)) if deadline <= Instant::now() => return registration,
                (Some(deadline), Some(_)) => {
                    let _ = tokio::time::timeout_at(deadline.into(), self.changed.notified()).await;
                }
                // Nothing to give up. Whoever registers says so; a loop without a wait would starve the heartbeat.
                (_, None) | (None, _) => self.changed.notified().await,
            }
        }
    }

    /// When the worker has to stop its handlers if nothing changes. None: it has no registration.
    fn deadline(&self) -> Option<Instant> {
        let known = self.known();
        let by_lease = known.lease_end? - self.lease / LEASE_MARGIN;
        let both_cut = known.work.zip(known.control).filter(|_| known.locks);
        let by_locks = both_cut.map(|(work, control)| work.at.max(control.at) + self.grace.mul_f64(GRACE_SHARE));
        Some(by_locks.map_or(by_lease, |by_locks| by_locks.min(by_lease)))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn side(&mut self, side: Side) -> &mut Option<Cut> {
        match side {
            Side::Work => &mut self.work,
            Side::Control => &mut self.control,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;
    const SILENT: fn() -> Loss = || Loss::silent("reset");

    fn loss(announced: bool, refused: bool) -> Loss {
        Loss { announced, refused, ..SILENT() }
    }

    /// A worker with a lease of 30 s and a grace of 1 s that registered now and has both connections.
    fn registered() -> (Standing, Instant) {
        let (standing, now) = (Standing::new(S(30), S(1), true), Instant::now());
        standing.registered(Registration { worker: 1, token: "t".into() }, now);
        standing.connected(Side::Work);
        (standing, now)
    }

    #[test]
    fn a_worker_gives_up_before_its_lease_ends() {
        let (standing, now) = registered();
        assert_eq!(standing.deadline(), Some(now + S(27)));
        let registration = standing.current().expect("registered");
        standing.renewed(&registration, now + S(10), S(30));
        assert_eq!(standing.deadline(), Some(now + S(37)));
        standing.renewed(&registration, now + S(5), S(30));
        assert_eq!(standing.deadline(), Some(now + S(37)), "a late answer does not shorten it");
    }

    #[test]
    fn one_connection_is_enough_to_be_alive() {
        let (standing, now) = registered();
        standing.cut(Side::Work, &SILENT(), now + S(1));
        assert_eq!(standing.deadline(), Some(now + S(27)));
    }

    #[test]
    fn a_worker_without_connections_gives_up_within_the_grace() {
        let (standing, now) = registered();
        standing.cut(Side::Work, &SILENT(), now + S(1));
        standing.cut(Side::Control, &SILENT(), now + S(2));
        standing.cut(Side::Control, &loss(false, true), now + S(3)); // refused, but nobody said that the server goes down
        assert_eq!(standing.deadline(), Some(now + Duration::from_millis(2800)));
        standing.connected(Side::Work);
        assert_eq!(standing.deadline(), Some(now + S(27)));
    }

    #[test]
    fn a_server_that_said_goodbye_and_refuses_everybody_stops_the_clock() {
        let (standing, now) = registered();
        standing.cut(Side::Work, &loss(true, false), now + S(1));
        standing.cut(Side::Control, &loss(true, false), now + S(1));
        standing.cut(Side::Control, &loss(false, true), now + S(4));
        assert_eq!(standing.deadline(), Some(now + Duration::from_millis(4800)));
        standing.cut(Side::Control, &SILENT(), now + S(6)); // no answer at all: the clock runs
        assert_eq!(standing.deadline(), Some(now + Duration::from_millis(4800)));
        standing.cut(Side::Control, &loss(true, false), now + S(40)); // starting up
        assert_eq!(standing.deadline(), Some(now + S(27)), "but never past the lease");
    }

    #[test]
    fn behind_a_pooler_only_the_lease_counts() {
        let (standing, now) = (Standing::new(S(30), S(1), false), Instant::now());
        standing.registered(Registration { worker: 1, token: "t".into() }, now);
        standing.cut(Side::Control, &SILENT(), now);
        assert_eq!(standing.deadline(), Some(now + S(27)));
    }

    #[test]
    fn a_registration_is_given_up_once() {
        let (standing, _) = registered();
        let registration = standing.current().expect("registered");
        assert!(standing.gone(&registration));
        assert!(!standing.gone(&registration));
        assert_eq!(standing.deadline(), None);
    }

    #[test]
    fn a_late_answer_to_a_heartbeat_does_not_revive_what_was_given_up() {
        let (standing, now) = registered();
        let former = standing.current().expect("registered");
        standing.gone(&former);
        standing.renewed(&former, now, S(30));
        assert_eq!(standing.deadline(), None);
        standing.registered(Registration { worker: 2, token: "u".into() }, now);
        standing.renewed(&former, now + S(10), S(30));
        assert_eq!(standing.deadline(), Some(now + S(27)), "nor does it lengthen the next one's lease");
    }

    #[tokio::test]
    async fn the_watchdog_waits_while_there_is_nothing_to_give_up() {
        let (standing, _) = registered();
        let former = standing.current().expect("registered");
        let long_ago = Instant::now().checked_sub(S(60)).expect("the machine runs for longer");
        standing.gone(&former);
        standing.renewed(&former, long_ago, S(30));
        // Without a wait inside, this timeout would never be looked at.
        let watching = tokio::time::timeout(Duration::from_millis(20), standing.overdue());
        assert!(watching.await.is_err());
        let next = standing.registered(Registration { worker: 2, token: "u".into() }, long_ago);
        assert_eq!(standing.overdue().await, next);
        assert!(standing.gone(&next), "whoever is told first gives it up");
    }
}
