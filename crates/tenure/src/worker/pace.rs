//! How long the jobs of a kind take, as observed, and what follows from it: how far a worker may run ahead of its
//! slots, and whether a kind's jobs get a lease row each. And from that, how much to ask for, and how often.

use std::time::Duration;

use super::line::Room;

/// Fewer observations than this say nothing.
const KNOWN_AFTER: u32 = 8;
/// At this number all counts are halved, so that the past is forgotten.
const FORGET_AT: u32 = 512;
/// Buckets per doubling of the run time: the p95 is at most 19 % too high.
const STEPS: f64 = 4.0;
/// 1 µs to 2^40 µs, about twelve days.
const BUCKETS: usize = 160;

/// A kind whose p95 is above this is claimed only for slots that are free.
const AHEAD_BELOW: Duration = Duration::from_millis(100);
/// What is claimed beyond the free slots starts within this time.
const AHEAD_WINDOW: Duration = Duration::from_millis(250);
/// What a worker holds unstarted, at most, per queue: also the largest claim.
const AHEAD_MAX: usize = 1000;
/// How long after maintenance is due a poll looks whether it was done, on average.
const POLL_AFTER_TURN: Duration = Duration::from_millis(200);
/// From turn to turn of maintenance where few workers live (tick.sql).
const SHORT_TURN: Duration = Duration::from_millis(500);
/// A kind whose p95 is above this gets a lease row per job: its jobs may end in their handlers' own transactions
/// without waiting for each other.
const SOLO_ABOVE: Duration = Duration::from_millis(10);

/// The run times of one kind: counts in buckets of the logarithm.
pub(super) struct Pace {
    counts: [u32; BUCKETS],
    total: u32,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { counts: [0; BUCKETS], total: 0 }
    }
}

impl Pace {
    pub(super) fn observe(&mut self, ran: Duration) {
        if self.total >= FORGET_AT {
            self.total = 0;
            for count in &mut self.counts {
                *count /= 2;
                self.total += *count;
            }
        }
        self.counts[bucket(ran)] += 1;
        self.total += 1;
    }

    /// Ninety-five of a hundred jobs take at most this long. None: too few were seen.
    pub(super) fn p95(&self) -> Option<Duration> {
        if self.total < KNOWN_AFTER {
            return None;
        }
        let above_max = self.total / 20;
        let mut above = 0;
        let top = (0..BUCKETS).rev().find(|&bucket| {
            above += self.counts[bucket];
            above > above_max
        });
        top.map(upper_bound)
    }

    /// May jobs of this kind be claimed before a slot is free?
    pub(super) fn is_quick(&self) -> bool {
        self.p95().is_some_and(|p95| p95 <= AHEAD_BELOW)
    }

    /// Should each job have a lease row of its own?
    pub(super) fn wants_solo(&self) -> bool {
        self.p95().is_none_or(|p95| p95 > SOLO_ABOVE)
    }
}

/// Jobs beyond the free slots that start within the window when each takes `p95` and `slots` run at a time.
pub(super) fn ahead(p95: Duration, slots: usize) -> usize {
    let rounds = AHEAD_WINDOW.as_nanos() / p95.as_nanos().max(1);
    usize::try_from(rounds).unwrap_or(usize::MAX).saturating_mul(slots).min(AHEAD_MAX)
}

/// How many jobs to ask for, per queue.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Wants {
    /// Of all kinds.
    pub(super) all: Vec<i32>,
    /// Of the quick kinds alone.
    pub(super) quick: Vec<i32>,
}

impl Wants {
    pub(super) fn wants(&self, queue: usize) -> bool {
        self.all[queue] > 0 || self.quick[queue] > 0
    }

    /// The queues with room.
    pub(super) fn queues(&self) -> impl Iterator<Item = usize> {
        (0..self.all.len()).filter(|queue| self.wants(*queue))
    }
}

/// What to ask for of all kinds, and then of the quick ones. `target` is how many jobs of quick kinds may wait.
pub(super) fn wants_of(room: Room, target: usize, all_quick: bool) -> (i32, i32) {
    if room.idle == 0 && room.pending >= target.div_ceil(2) {
        return (0, 0);
    }
    let ahead = (room.idle + target).saturating_sub(room.pending).min(AHEAD_MAX);
    if all_quick {
        return (jobs(ahead), 0);
    }
    let free = room.slots.saturating_sub(room.slow_held);
    if target == 0 {
        return (jobs(room.idle.saturating_sub(room.pending).min(free)), 0);
    }
    // Slots that are always busy with quick jobs are soon free: one other job at a time may wait for one of them.
    (jobs(room.idle.max(1).min(free)), jobs(ahead))
}

/// When somebody should do maintenance next.
#[derive(Clone, Copy)]
pub(super) struct NextTurn {
    /// From now.
    pub(super) due_in: Duration,
    /// So few workers live that each looks soon after every turn is due: the one that does it may be the one that dies.
    /// Where many live, one of them looks soon anyway.
    pub(super) few_workers: bool,
}

/// The time to the next poll. Jittered, so that many workers do not ask in step. One comes soon after maintenance is due: if
/// whoever did it last has died, somebody notices. For that alone, no more polls are made where many workers live.
pub(super) fn poll_interval(poll: Duration, turn: Option<NextTurn>, jitter: f64) -> Duration {
    let near = turn.and_then(|NextTurn { due_in, few_workers }| {
        let (nearest, after) =
            if few_workers { (poll / 4, POLL_AFTER_TURN / 2) } else { (poll * 3 / 4, POLL_AFTER_TURN) };
        let mut after_turn = due_in + after.mul_f64(jitter);
        if few_workers && after_turn < nearest {
            after_turn += SHORT_TURN; // that of the next turn
        }
        Some(after_turn).filter(|after_turn| (nearest..=poll * 3 / 2).contains(after_turn))
    });
    near.unwrap_or_else(|| poll.mul_f64(0.9 + jitter / 10.0))
}

/// When a worker without room, which does not poll, asks for maintenance: soon after it is due, where few workers live.
pub(super) fn look_after_turn(turn: NextTurn, jitter: f64) -> Option<Duration> {
    turn.few_workers.then(|| turn.due_in + POLL_AFTER_TURN.mul_f64(jitter) / 2)
}

fn jobs(count: usize) -> i32 {
    i32::try_from(count.min(AHEAD_MAX)).unwrap_or_default()
}

fn bucket(ran: Duration) -> usize {
    let micros = ran.as_secs_f64() * 1e6;
    let step = if micros <= 1.0 { 0.0 } else { (micros.log2() * STEPS).ceil() };
    (step as usize).min(BUCKETS - 1)
}

fn upper_bound(bucket: usize) -> Duration {
    Duration::from_secs_f64((bucket as f64 / STEPS).exp2() / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn pace(runs: impl IntoIterator<Item = Duration>) -> Pace {
        let mut pace = Pace::default();
        runs.into_iter().for_each(|ran| pace.observe(ran));
        pace
    }

    #[test]
    fn nothing_is_known_of_a_kind_at_first() {
        let new = pace([MS(1); 7]);
        assert_eq!((new.p95(), new.is_quick(), new.wants_solo()), (None, false, true));
    }

    #[test]
    fn the_p95_is_close_and_never_too_low() {
        for ms in [1, 3, 10, 99, 1000, 3_600_000] {
            let p95 = pace([MS(ms); 50]).p95().expect("known");
            assert!(p95 >= MS(ms).mul_f64(0.999) && p95 <= MS(ms).mul_f64(1.2), "{ms} ms: {p95:?}");
        }
        let mixed = pace((0..100).map(|n| if n < 96 { MS(1) } else { MS(1000) }));
        assert!(mixed.p95().expect("known") < MS(2));
    }

    #[test]
    fn a_kind_that_becomes_slow_is_noticed() {
        let mut pace = pace([Duration::from_micros(20); 5000]);
        assert!(pace.is_quick() && !pace.wants_solo());
        (0..40).for_each(|_| pace.observe(MS(500)));
        assert!(!pace.is_quick() && pace.wants_solo());
    }

    #[test]
    fn a_worker_runs_ahead_by_what_starts_within_the_window() {
        let check = |p95, slots, expected| assert_eq!(ahead(p95, slots), expected, "{p95:?} {slots}");
        check(MS(100), 4, 8);
        check(MS(10), 4, 100);
        check(Duration::from_micros(5), 4, 1000);
        check(Duration::ZERO, 1, 1000);
        check(MS(300), 4, 0);
    }

    fn room(slots: usize, idle: usize, pending: usize, slow_held: usize) -> Room {
        Room { slots, idle, pending, slow_held, slow_running: slow_held }
    }

    fn next_turn(due_in: u64, few_workers: bool) -> NextTurn {
        NextTurn { due_in: MS(due_in), few_workers }
    }

    #[test]
    fn where_many_workers_live_a_poll_comes_soon_after_maintenance_is_due_but_not_more_often() {
        let check = |poll: u64, due_in: Option<u64>, expected: u64| {
            let turn = due_in.map(|due_in| next_turn(due_in, false));
            assert_eq!(poll_interval(MS(poll), turn, 1.0), MS(expected), "{poll} {due_in:?}");
        };
        check(1000, None, 1000);
        check(1000, Some(900), 1100);
        check(1000, Some(600), 800);
        check(1000, Some(400), 1000);
        check(1000, Some(0), 1000);
        check(1000, Some(5000), 1000);
        check(60_000, Some(900), 60_000);
    }

    #[test]
    fn where_few_workers_live_a_poll_comes_soon_after_this_turn_or_the_next() {
        for due_in in 0..=500 {
            for jitter in [0.5, 1.0, 1.5] {
                let wait = poll_interval(MS(1000), Some(next_turn(due_in, true)), jitter);
                let after = wait.saturating_sub(MS(due_in)).as_millis() % 500;
                assert!((50..=150).contains(&after), "{due_in} {jitter}: {wait:?}");
                assert!((MS(250)..=MS(750)).contains(&wait), "{due_in} {jitter}: {wait:?}");
            }
        }
        // Without room there is no poll.
        assert_eq!(look_after_turn(next_turn(400, true), 1.0), Some(MS(500)));
        assert_eq!(look_after_turn(next_turn(400, false), 1.0), None);
        // Whoever wants to poll much more often or less does.
        assert_eq!(poll_interval(MS(100), Some(next_turn(300, true)), 1.0), MS(100));
        assert_eq!(poll_interval(MS(1000), Some(next_turn(5000, true)), 1.0), MS(1000));
        assert_eq!(poll_interval(MS(60_000), Some(next_turn(400, true)), 1.0), MS(60_000));
    }

    #[test]
    fn a_worker_never_asks_for_more_than_it_can_start() {
        let check =
            |room, target, all_quick, expected| assert_eq!(wants_of(room, target, all_quick), expected, "{room:?}");
        // Nothing is known, or all is slow: free slots.
        check(room(8, 8, 0, 0), 0, false, (8, 0));
        check(room(8, 3, 0, 5), 0, false, (3, 0));
        check(room(8, 0, 0, 8), 0, false, (0, 0));
        // All is quick: free slots and what starts within the window, asked for when half of it is used up.
        check(room(4, 4, 0, 0), 500, true, (504, 0));
        check(room(4, 0, 250, 0), 500, true, (0, 0));
        check(room(4, 0, 249, 0), 500, true, (251, 0));
        check(room(4, 4, 0, 0), 5000, true, (1000, 0));
        // Both: slots for the slow ones, the window for the quick ones.
        check(room(4, 2, 0, 2), 100, false, (2, 102));
        check(room(4, 0, 10, 1), 100, false, (1, 90));
        check(room(4, 0, 10, 4), 100, false, (0, 90));
        // More slots in use than allowed, after concurrency was lowered.
        check(room(2, 0, 0, 5), 0, false, (0, 0));
    }
}
