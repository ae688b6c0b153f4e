//! Where the next claim starts to read: a cursor per queue and lane, and an exact floor below it.
//!
//! A claim walks a lane in the order of ids. To start from zero each time would walk over everything that was taken
//! already and is not yet vacuumed away, so a worker starts behind what it saw last: the *cursor*. It is a hint only,
//! for a transaction that drew a low id may commit late, below the cursor. *Low passes* start from the *floor* and find
//! such rows. The floor is exact: nothing that can still appear lies below it.
//!
//! The floor moves up to a former cursor once every transaction that could write below that cursor has ended. Ids are
//! drawn after the drawer has a transaction id, so all of them have ids smaller than X, the id of a claim that began
//! after the scan which produced the cursor; when the oldest open transaction is above X, they have ended. What they
//! left is either visible to a plain read (and reported as `first`: the floor stays below it) or gone.

use std::time::{Duration, Instant};

use crate::store::Trailer;

/// Lanes in the usual order: isolated suspects, urgent (rescued and released), then the priorities 1 to 4.
const LANES: [i32; 6] = [-1, 0, 1, 2, 3, 4];
/// The order of every [`TURN_EVERY`]th pass, so that a steady stream of urgent work cannot starve the rest.
const LANES_TURNED: [i32; 6] = [-1, 0, 4, 3, 2, 1];
const TURN_EVERY: u64 = 8;
/// Low passes are at least this far apart …
const LOW_EVERY: Duration = Duration::from_millis(250);
/// … and this many times as long as the last one took, so that they take a tenth of the time …
const LOW_SHARE: u32 = 10;
/// … but not further than this, so that a late commit is found in time on a slow server too …
const LOW_EVERY_MAX: Duration = Duration::from_millis(500);
/// … unless they took so long that even then they would take more than a third of the time. A claim under full load takes long whatever it reads: what a low pass
/// reads beyond an ordinary one is little.
const LOW_SHARE_MIN: u32 = 2;
/// All floors go back to zero this often, plus up to a third.
const SWEEP_EVERY: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lane {
    cursor: i64,
    floor: i64,
    pending: Option<Pending>,
}

/// A cursor that the floor may move up to once everything older than `x` has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pending {
    cursor: i64,
    /// The transaction id of a later claim; not known yet when none of them needed one.
    x: Option<u64>,
}

/// The start of one pass.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pass {
    pub(super) lanes: [i32; 6],
    pub(super) after: Vec<i64>,
    pub(super) low: bool,
    turned: bool,
}

/// The cursors of one worker for one set of kinds.
pub(super) struct Cursors {
    /// `queues × LANES`, in the usual order of lanes.
    lanes: Vec<Lane>,
    passes: u64,
    low_next: Instant,
    sweep_next: Instant,
    /// The kinds that were paused at the last pass, with their queues: their jobs were passed over.
    paused: Vec<(String, Option<String>)>,
}

impl Cursors {
    pub(super) fn new(queues: usize, now: Instant) -> Cursors {
        let lanes = vec![Lane::default(); queues * LANES.len()];
        Cursors { lanes, passes: 0, low_next: now, sweep_next: now, paused: Vec::new() }
    }

    /// May a low pass start now?
    pub(super) fn low_due(&self, now: Instant) -> bool {
        now >= self.low_next
    }

    /// When the next low pass may start.
    pub(super) fn low_next(&self) -> Instant {
        self.low_next
    }

    /// Where to start. A wish for a low pass is granted only when one is due; a sweep is always low.
    pub(super) fn pass(&mut self, low_wanted: bool, now: Instant) -> Pass {
        let sweep = now >= self.sweep_next;
        if sweep {
            self.lanes.fill(Lane::default());
            self.sweep_next = now + SWEEP_EVERY + SWEEP_EVERY.mul_f64(fastrand::f64() / 3.0);
        }
        let low = sweep || (low_wanted && self.low_due(now));
        self.passes += 1;
        let turned = self.passes.is_multiple_of(TURN_EVERY);
        let lanes = if turned { LANES_TURNED } else { LANES };
        let start = |lane: &Lane| if low { lane.floor } else { lane.cursor };
        let after = places(self.lanes.len(), turned).map(|place| start(&self.lanes[place])).collect();
        Pass { lanes, after, low, turned }
    }

    /// Learns from the trailer of the pass that started at `began`.
    pub(super) fn learn(&mut self, pass: &Pass, trailer: &Trailer, began: Instant, now: Instant) {
        if pass.low {
            let took = now.saturating_duration_since(began);
            let apart = (took * LOW_SHARE).clamp(LOW_EVERY, LOW_EVERY_MAX);
            self.low_next = now + apart.max(took * LOW_SHARE_MIN);
        }
        if trailer.after.len() != self.lanes.len() {
            return; // Not the shape that was asked for: nothing to learn.
        }
        let (xid, xmin) = (trailer.xid(), trailer.xmin());
        for (index, place) in places(self.lanes.len(), pass.turned).enumerate() {
            let first = trailer.first.as_ref().and_then(|first| first.get(index).copied().flatten());
            let lane = &mut self.lanes[place];
            // The scan of the pending cursor was an earlier statement, so this transaction's id is a valid X.
            if let Some(pending) = &mut lane.pending {
                pending.x = pending.x.or(xid);
            }
            if pass.low {
                lane.raise_floor(xmin, first);
            }
            let after = lane.cursor.max(trailer.after[index]);
            // A row that a low pass saw and left below the cursor (the rest of a bundle, more late rows than were
            // wanted, what somebody holds) is for the next ordinary passes: they go back to it.
            lane.cursor = match first {
                Some(first) if pass.low => after.min(first - 1),
                Some(_) | None => after,
            };
            if lane.pending.is_none() && lane.cursor > lane.floor {
                lane.pending = Some(Pending { cursor: lane.cursor, x: None });
            }
        }
    }

    /// Takes note of the kinds that were paused at a pass. True: one is paused no longer. What was passed over for it
    /// lies below the cursors and the floors, so that the next pass starts from zero.
    pub(super) fn learn_pauses(&mut self, trailer: &Trailer, now: Instant) -> bool {
        let paused = trailer.kind_pauses();
        let resumed = self.paused.iter().any(|pause| !paused.contains(pause));
        self.paused = paused;
        if resumed {
            self.reset(now);
        }
        resumed
    }

    /// Everything from the start: other kinds, or a database that may be another one.
    pub(super) fn reset(&mut self, now: Instant) {
        self.lanes.fill(Lane::default());
        self.low_next = now;
        self.sweep_next = now;
    }
}

impl Lane {
    fn raise_floor(&mut self, xmin: Option<u64>, first: Option<i64>) {
        let (Some(Pending { cursor, x: Some(x) }), Some(xmin)) = (self.pending, xmin) else { return };
        if xmin <= x {
            return;
        }
        let seen = first.map_or(i64::MAX, |first| first - 1);
        self.floor = self.floor.max(cursor.min(seen));
        self.pending = None;
    }
}

/// The places of the lanes of all queues, in the order of a pass.
fn places(lanes: usize, turned: bool) -> impl Iterator<Item = usize> {
    let width = LANES.len();
    (0..lanes).map(move |index| {
        let (queue, lane) = (index / width, index % width);
        // Turned, the four priorities stand in opposite order behind the first two lanes.
        let lane = if turned && lane >= 2 { width + 1 - lane } else { lane };
        queue * width + lane
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trailer(after: i64, xid: Option<u64>, xmin: u64, first: Option<i64>) -> Trailer {
        Trailer {
            after: vec![0, 0, 0, after, 0, 0],
            first: Some(vec![None, None, None, first, None, None]),
            xid: xid.map(|xid| xid.to_string()),
            xmin: Some(xmin.to_string()),
            ..Trailer::default()
        }
    }

    /// A worker with one queue after its first sweep, and the time.
    fn started() -> (Cursors, Instant) {
        let now = Instant::now();
        let mut cursors = Cursors::new(1, now);
        assert!(cursors.pass(false, now).low, "the first pass is a sweep");
        (cursors, now)
    }

    fn run(cursors: &mut Cursors, now: Instant, low: bool, trailer: &Trailer) -> Pass {
        let pass = cursors.pass(low, now);
        cursors.learn(&pass, trailer, now, now);
        pass
    }

    #[test]
    fn an_ordinary_pass_starts_behind_the_last_one() {
        let (mut cursors, now) = started();
        run(&mut cursors, now, false, &trailer(100, Some(7), 7, None));
        assert_eq!(cursors.pass(false, now).after, [0, 0, 0, 100, 0, 0]);
    }

    #[test]
    fn a_low_pass_starts_from_the_floor_until_older_transactions_have_ended() {
        let (mut cursors, now) = started();
        let at = |n| now + LOW_EVERY * n;
        run(&mut cursors, at(1), false, &trailer(100, Some(7), 7, None));
        run(&mut cursors, at(1), false, &trailer(200, Some(9), 7, None)); // X of cursor 100 is 9
        let pass = run(&mut cursors, at(2), true, &trailer(200, None, 9, None)); // 9 itself is still open
        assert_eq!((pass.low, pass.after[3]), (true, 0));
        run(&mut cursors, at(3), true, &trailer(200, None, 10, None)); // all up to 9 have ended
        assert_eq!(cursors.pass(true, at(4)).after[3], 100);
    }

    #[test]
    fn the_floor_stays_below_a_row_that_is_still_seen() {
        let (mut cursors, now) = started();
        run(&mut cursors, now, false, &trailer(100, Some(7), 7, None));
        run(&mut cursors, now, false, &trailer(200, Some(9), 7, None));
        run(&mut cursors, now + LOW_EVERY, true, &trailer(200, None, 50, Some(41)));
        assert_eq!(cursors.pass(true, now + LOW_EVERY * 2).after[3], 40);
    }

    #[test]
    fn a_pass_without_a_transaction_id_proves_nothing() {
        let (mut cursors, now) = started();
        run(&mut cursors, now, false, &trailer(100, Some(7), 7, None));
        run(&mut cursors, now + LOW_EVERY, true, &trailer(100, None, 50, None));
        assert_eq!(cursors.pass(true, now + LOW_EVERY * 2).after[3], 0);
    }

    #[test]
    fn low_passes_are_bounded_in_number_and_in_time() {
        let (mut cursors, now) = started();
        let pass = cursors.pass(true, now);
        for (took, apart) in [(1, 250), (30, 300), (100, 500), (400, 800), (5_000, 10_000)] {
            let later = now + Duration::from_millis(took);
            cursors.learn(&pass, &trailer(0, None, 1, None), now, later);
            assert!(!cursors.low_due(later + Duration::from_millis(apart - 1)), "took {took} ms");
            assert!(cursors.low_due(later + Duration::from_millis(apart)), "took {took} ms");
            assert!(!cursors.pass(true, later).low, "not due: an ordinary pass instead");
        }
    }

    #[test]
    fn now_and_then_the_priorities_are_read_from_the_other_end() {
        let (mut cursors, now) = started();
        let mut full = trailer(0, None, 1, None);
        full.after = vec![10, 11, 12, 13, 14, 15];
        let pass = cursors.pass(false, now);
        cursors.learn(&pass, &full, now, now);
        let turned = (0..TURN_EVERY).map(|_| cursors.pass(false, now)).find(|pass| pass.lanes == LANES_TURNED);
        assert_eq!(turned.expect("one of eight").after, [10, 11, 15, 14, 13, 12]);
    }

    #[test]
    fn a_low_pass_moves_the_cursor_back_to_what_it_left() {
        let (mut cursors, now) = started();
        run(&mut cursors, now, false, &trailer(100, None, 7, None));
        run(&mut cursors, now, true, &trailer(30, None, 7, None));
        assert_eq!(cursors.lanes[3].cursor, 100, "it took all there was");
        run(&mut cursors, now + LOW_EVERY, true, &trailer(40, None, 7, Some(41)));
        assert_eq!(cursors.lanes[3].cursor, 40, "there is more behind");
        run(&mut cursors, now + LOW_EVERY * 2, true, &trailer(100, None, 7, Some(120)));
        assert_eq!(cursors.lanes[3].cursor, 100, "what is above the cursor is found anyway");
    }

    #[test]
    fn when_a_kind_is_resumed_the_next_pass_starts_from_zero() {
        let (mut cursors, now) = started();
        let pauses = |kinds: &[&str]| Trailer {
            paused_kinds: Some(kinds.iter().map(|kind| (*kind).to_owned()).collect()),
            paused_in: Some(vec![None; kinds.len()]),
            ..Trailer::default()
        };
        run(&mut cursors, now, false, &trailer(100, Some(7), 7, None));
        assert!(!cursors.learn_pauses(&pauses(&["a", "b"]), now));
        assert!(!cursors.learn_pauses(&pauses(&["b", "a", "c"]), now));
        assert_eq!(cursors.pass(false, now).after[3], 100, "another pause changes nothing");
        assert!(cursors.learn_pauses(&pauses(&["a", "c"]), now));
        let pass = cursors.pass(false, now);
        assert_eq!((pass.low, pass.after[3]), (true, 0));
        assert!(cursors.learn_pauses(&Trailer::default(), now));
    }

    #[test]
    fn every_half_minute_all_starts_from_zero() {
        let (mut cursors, now) = started();
        run(&mut cursors, now, false, &trailer(100, Some(7), 7, None));
        let pass = cursors.pass(false, now + SWEEP_EVERY * 2);
        assert_eq!((pass.low, pass.after), (true, vec![0; 6]));
    }
}
