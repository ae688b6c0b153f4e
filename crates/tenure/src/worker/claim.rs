//! Asks for work: as much as can start, no more often than it helps.
//!
//! A worker never claims more than it can start: free slots for kinds that are slow or unknown, and for quick kinds
//! what starts within a quarter of a second. Where a worker handles both, it asks twice, the second time for the quick
//! kinds alone. When there is nothing it registers as a sleeper, looks once more, and waits for a notification, for the
//! next job to become due, or for the poll interval, whichever comes first.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::audit::Audit;
use super::backoff::Backoff;
use super::cursors::Cursors;
use super::engine::{Engine, Phase, StopWish};
use super::lease::jobs_of;
use super::link::Attached;
use super::moment::at;
use super::pace::{NextTurn, Wants, ahead, look_after_turn, poll_interval, wants_of};
use super::portion::Portion;
use crate::store::{ASK_AFTER, ClaimRequest, Registration, Session, StoreError, Trailer};

/// Jobs that were claimed ahead and could not start within this time go back.
const WAITING_MAX: Duration = Duration::from_secs(1);
/// Payloads of jobs that wait for a slot, at most, per queue: what is claimed ahead is bounded in bytes too.
const AHEAD_BYTES_MAX: usize = 32 * 1024 * 1024;
/// What one claim brings of all queues together, at most: a worker of very many queues asks again, and holds no more than it can use soon.
const CLAIM_MAX: usize = 10_000;
/// Work that comes less often than this is worth a notification each.
const QUIET_AFTER: Duration = Duration::from_millis(100);
/// Whoever was about to commit when this worker went to sleep did not see it, and tells nobody: after so long most have ended. What comes still later is found
/// by a low pass.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// A worker that sleeps says so again after this time: what it said counts for a minute at least.
const SLEEP_AGAIN: Duration = Duration::from_secs(45);

/// Claims until the worker stops.
pub(super) async fn keep(engine: Arc<Engine>) {
    let _vital = engine.vital("claims");
    let mut claimer = Claimer::new(engine.clone());
    let mut backoff = Backoff::default();
    loop {
        let attached = tokio::select! {
            biased;
            () = engine.until(Phase::Stopping) => return,
            attached = engine.link.attached() => attached,
        };
        claimer.attach(&attached);
        let done = match claimer.round(&attached).await {
            Err(error) if error.is_worker_gone() => renew_or_give_up(&engine, &attached).await,
            done => done,
        };
        match done {
            Ok(()) => backoff.reset(),
            Err(error) if error.is_lost() => {}
            Err(error) => {
                let wait = backoff.next();
                if backoff.is_loud() {
                    tracing::warn!(%error, ?wait, "a claim failed, trying again");
                }
                tokio::time::sleep(wait).await;
            }
        }
    }
}

/// A claim was refused because the lease is over. That alone takes no job from us.
async fn renew_or_give_up(engine: &Engine, at: &Attached) -> Result<(), StoreError> {
    if engine.standing.current().as_ref() == Some(&at.registration) && !at.renew(engine, &at.registration).await? {
        engine.lost(&at.registration, "its lease was over, and its jobs were given to others");
    }
    Ok(())
}

/// A set of kinds, and where the next claim for them starts.
struct View {
    kinds: Vec<String>,
    solo: Vec<String>,
    cursors: Cursors,
}

impl View {
    fn of_kinds(&mut self, kinds: Vec<String>, now: Instant) {
        if self.kinds != kinds {
            // Cursors pass over rows of other kinds: they are good for this set alone.
            self.kinds = kinds;
            self.cursors.reset(now);
        }
    }
}

/// What one claim brought.
struct Passed {
    got: usize,
    /// Per queue: as much as was wanted, or the claim ended before it, so that there may be more.
    full: Vec<bool>,
    /// The claim brought all that one may, and may not have come to every queue.
    cut: bool,
    /// Others were about to commit something when it began.
    others_wrote: bool,
}

struct Claimer {
    engine: Arc<Engine>,
    names: Vec<String>,
    all: View,
    quick: View,
    registration: Option<Arc<Registration>>,
    session: Option<Arc<Session>>,
    /// The queues for which this worker is registered as a sleeper.
    asleep: Vec<bool>,
    /// When it said so last.
    slept_at: Instant,
    /// It has said so, and not looked since.
    just_said: bool,
    /// Something may have been committed below the cursors.
    low_wanted: bool,
    /// A kind was resumed: all is to be looked through once more.
    resumed: bool,
    poll_at: Instant,
    due_at: Option<Instant>,
    /// When there may be something under limits, as the last claim said.
    limits_at: Option<Instant>,
    /// When maintenance was due, as seen at the last claim.
    turn: Option<NextTurn>,
    /// When to ask for a turn of maintenance although there is no room to claim for, and so no poll.
    turn_at: Option<Instant>,
    /// Size of a payload, as seen of late.
    payload_bytes: usize,
    portion: Portion,
    /// What one claim may bring of all queues together, by what there is room for.
    most: usize,
    /// When work was last found.
    found_at: Option<Instant>,
    audit: Audit,
}

/// One on average, so that many workers do not ask in step.
fn jitter() -> f64 {
    0.5 + fastrand::f64()
}

impl Claimer {
    fn new(engine: Arc<Engine>) -> Claimer {
        let (now, queues) = (Instant::now(), engine.queues.len());
        let view = || View { kinds: Vec::new(), solo: Vec::new(), cursors: Cursors::new(queues, now) };
        Claimer {
            names: engine.queues.iter().map(|queue| queue.name.clone()).collect(),
            all: view(),
            quick: view(),
            registration: None,
            session: None,
            asleep: vec![false; queues],
            slept_at: now,
            just_said: false,
            low_wanted: true,
            resumed: false,
            poll_at: now,
            due_at: None,
            limits_at: None,
            turn: None,
            turn_at: None,
            payload_bytes: 0,
            portion: Portion::default(),
            most: CLAIM_MAX,
            found_at: None,
            audit: Audit::new(engine.clone(), now),
            engine,
        }
    }

    /// A new connection starts from nothing: it may lead to a host that lacks the last moments before a failover, and draws
    /// ids anew that lie below the cursors.
    fn attach(&mut self, attached: &Attached) {
        let now = Instant::now();
        let same_session = self.session.as_ref().is_some_and(|session| Arc::ptr_eq(session, &attached.session));
        if same_session {
            return;
        }
        self.session = Some(attached.session.clone());
        self.poll_at = now;
        self.low_wanted = true;
        self.all.cursors.reset(now);
        self.quick.cursors.reset(now);
        if self.registration.as_ref() == Some(&attached.registration) {
            self.audit.after_reconnect(now);
        } else {
            let former = self.registration.replace(attached.registration.clone());
            self.asleep.fill(false);
            self.audit.after_registration(former, now);
        }
    }

    /// One look: claims, or waits for a reason to.
    async fn round(&mut self, at: &Attached) -> Result<(), StoreError> {
        self.audit.run_if_due(at).await?;
        self.sleep_on(at).await?;
        let wants = self.plan();
        let look = self.next_look(&wants);
        if look.is_none_or(|look| look > Instant::now()) {
            self.wait(look).await;
            return Ok(());
        }
        let low = self.low_wanted && self.all.cursors.low_due(Instant::now());
        let first = self.pass(at, false, &wants.all, low).await?;
        let mut got = first.got;
        if wants.quick.iter().any(|want| *want > 0) {
            // A queue that had less than was wanted of all kinds has no quick ones left either.
            let mut quick = self.plan().quick;
            quick.iter_mut().zip(&first.full).filter(|(_, full)| !**full).for_each(|(want, _)| *want = 0);
            got += self.pass(at, true, &quick, low).await?.got;
        }
        if low {
            self.low_wanted = false;
        }
        if std::mem::take(&mut self.resumed) {
            // This pass still started behind the jobs of the kind that was paused: look again before any sleep.
            self.low_wanted = true;
            self.poll_at = Instant::now();
            return Ok(());
        }
        // Whatever may start now is taken, and when something under a limit may be had is known.
        let short = first.full.iter().zip(&wants.all).all(|(full, want)| *want <= 0 || !full);
        let knows_when = short && self.limits_at.is_some();
        if got > 0 {
            self.found(at, knows_when, first.cut).await
        } else {
            self.nothing_found(at, &wants, low, first.others_wrote).await
        }
    }

    /// When to claim next if nobody tells: at once where there is room and we are not asleep. None: there is no room.
    fn next_look(&self, wants: &Wants) -> Option<Instant> {
        if wants.queues().any(|queue| !self.asleep[queue]) {
            return Some(Instant::now());
        }
        wants.queues().next()?;
        let low_at = self.low_wanted.then(|| self.all.cursors.low_next());
        Some(low_at.map_or(self.poll_at, |low_at| low_at.min(self.poll_at)))
    }

    async fn wait(&mut self, look: Option<Instant>) {
        let engine = self.engine.clone();
        let give_back = engine.has_waiting().then(|| Instant::now() + WAITING_MAX);
        tokio::select! {
            () = engine.until(Phase::Stopping) => {}
            () = engine.woken.notified() => {
                self.low_wanted = true;
                self.poll_at = Instant::now();
            }
            () = engine.room.notified() => {}
            () = at(self.due_at) => {
                // The maintenance turn moves what is due and tells us.
                self.due_at = None;
                engine.tick_wanted.notify_one();
            }
            () = at(self.limits_at.filter(|_| look.is_some())) => {
                self.limits_at = None;
                self.poll_at = Instant::now();
            }
            () = at(look) => self.low_wanted = true,
            () = at(self.turn_at.filter(|_| look.is_none())) => {
                self.turn_at = None;
                engine.tick_wanted.notify_one();
            }
            () = at(self.sleep_again_at()) => {}
            () = at(Some(self.audit.due_at())) => {}
            () = at(give_back) => {
                if let Some(before) = Instant::now().checked_sub(WAITING_MAX) {
                    engine.give_back_waiting(before);
                }
            }
        }
    }

    /// What each queue has room for, by what is known of the kinds now.
    fn plan(&mut self) -> Wants {
        let now = Instant::now();
        let looks: Vec<_> = self.engine.kinds.iter().map(|kind| (kind, kind.look())).collect();
        let open = || looks.iter().filter(|(_, look)| !look.refused);
        let quick_p95 = open().filter(|(_, look)| look.quick).map(|(_, look)| look.p95).max();
        let all_quick = open().all(|(_, look)| look.quick);
        let solo: Vec<_> = open().filter(|(_, look)| look.solo).map(|(kind, _)| kind.name.clone()).collect();
        let quick_kinds = open().filter(|(_, look)| look.quick).map(|(kind, _)| kind.name.clone()).collect();
        self.all.of_kinds(open().map(|(kind, _)| kind.name.clone()).collect(), now);
        self.quick.of_kinds(quick_kinds, now);
        self.quick.solo.clone_from(&solo);
        self.all.solo = solo;
        let mut wants = Wants::default();
        let mut idle = 0_usize;
        for queue in 0..self.names.len() {
            let room = self.engine.room_in(queue);
            let target = quick_p95.map_or(0, |p95| ahead(p95, room.slots.saturating_sub(room.slow_running)));
            let target = target.min(AHEAD_BYTES_MAX / self.payload_bytes.max(1));
            self.engine.set_low_water(queue, target.div_ceil(2));
            let (all, quick) = wants_of(room, target, all_quick);
            idle = idle.saturating_add(room.idle);
            wants.all.push(all);
            wants.quick.push(quick);
        }
        self.most = idle.max(AHEAD_BYTES_MAX / self.payload_bytes.max(1)).min(CLAIM_MAX);
        wants
    }

    /// One claim.
    async fn pass(&mut self, at: &Attached, quick: bool, wants: &[i32], low: bool) -> Result<Passed, StoreError> {
        let view = if quick { &mut self.quick } else { &mut self.all };
        if view.kinds.is_empty() || wants.iter().all(|want| *want <= 0) {
            return Ok(Passed { got: 0, full: vec![true; wants.len()], cut: false, others_wrote: false });
        }
        let began = Instant::now();
        let pass = view.cursors.pass(low, began);
        let request = ClaimRequest {
            queues: &self.names,
            wants,
            kinds: &view.kinds,
            solo_kinds: &view.solo,
            lanes: &pass.lanes,
            after: &pass.after,
            low: pass.low,
            most: self.most.min(self.portion.most()),
        };
        let most = request.most;
        let asked = wants.iter().map(|want| usize::try_from(*want).unwrap_or_default()).sum::<usize>().min(most);
        let engine = &self.engine;
        let answer = at.session.claim(&at.registration, &request).await;
        let took = began.elapsed();
        let cut = answer.as_ref().is_err_and(|error| error.is_lost() || error.is_cut_off());
        let limit = engine.settings.work_session.deadline;
        size_next(&mut self.portion, asked, answer.is_ok(), cut, took, limit);
        let (rows, trailer) = answer?;
        engine.stats.claims.one();
        engine.tallies.claims.record(took);
        if let Some(now) = trailer.now() {
            engine.tallies.set_clock(now);
        }
        let got = rows.len();
        if let Some(mean) = rows.iter().map(|row| row.payload.get().len()).sum::<usize>().checked_div(got) {
            self.payload_bytes = mean.max((self.payload_bytes * 7 + mean) / 8);
        }
        let (jobs, strangers) = jobs_of(
            rows,
            trailer.now(),
            &at.registration,
            &engine.held,
            |name| engine.queue_named(name),
            |name| engine.kind_named(name),
        );
        let mut counts = vec![0; wants.len()];
        jobs.iter().for_each(|job| counts[job.queue] += 1);
        let cut = got >= most && asked >= most;
        let full: Vec<_> = counts.iter().zip(wants).map(|(count, want)| cut || *count >= *want).collect();
        view.cursors.learn(&pass, &trailer, began, Instant::now());
        let resumed = view.cursors.learn_pauses(&trailer, Instant::now());
        engine.take_in(jobs);
        engine.give_back(strangers);
        // While there is work, something may be committed below the cursor: where claims come short it is wanted at once, and where
        // they never do nothing else would look for it.
        self.low_wanted |= got > 0 && !pass.low;
        self.resumed |= resumed;
        self.note(&trailer);
        Ok(Passed { got, full, cut, others_wrote: trailer.others_wrote() })
    }

    fn note(&mut self, trailer: &Trailer) {
        let millis = |ms: i64| Duration::from_millis(u64::try_from(ms).unwrap_or_default());
        self.due_at = trailer.next_due_ms.map(|due| Instant::now() + millis(due));
        self.limits_at = trailer.look_ms.map(|look| Instant::now() + millis(look));
        let few_workers = trailer.few_workers;
        self.turn = trailer.tick_in_ms.map(|ms| NextTurn { due_in: millis(ms), few_workers });
        self.turn_at = self.turn.and_then(|turn| Some(Instant::now() + look_after_turn(turn, jitter())?));
        if trailer.tick_due {
            self.engine.tick_wanted.notify_one();
        }
    }

    /// Awake again. When work comes only now and then and there is still room, or when it is known at what instant there is more, the worker stays
    /// registered as a sleeper: being told of each job is then cheaper than to wake up and go to sleep for it.
    async fn found(&mut self, at: &Attached, knows_when: bool, cut: bool) -> Result<(), StoreError> {
        let now = Instant::now();
        let quiet = self.found_at.replace(now).is_none_or(|before| now - before > QUIET_AFTER);
        let room = self.plan();
        let dozing = !cut
            && (quiet || knows_when)
            && (0..self.asleep.len()).all(|queue| !self.asleep[queue] || room.wants(queue));
        if dozing || !self.asleep.contains(&true) {
            self.poll_at = now + self.poll_interval();
            return Ok(());
        }
        self.asleep.fill(false);
        if !self.engine.settings.pooler {
            at.session.wake(&at.registration).await?;
        }
        Ok(())
    }

    /// Nothing to claim. Registers as a sleeper first and looks again; what was looked through twice is slept on.
    async fn nothing_found(
        &mut self,
        at: &Attached,
        wants: &Wants,
        was_low: bool,
        others_wrote: bool,
    ) -> Result<(), StoreError> {
        self.poll_at = Instant::now() + self.poll_interval();
        if self.engine.settings.drain && was_low && self.is_drained() {
            self.engine.wish_stop(StopWish::Graceful);
        }
        let fresh: Vec<_> = wants.queues().filter(|queue| !self.asleep[*queue]).collect();
        let just_said = std::mem::take(&mut self.just_said);
        if fresh.is_empty() {
            if just_said && others_wrote {
                self.poll_at = Instant::now() + LOOK_AGAIN;
            }
            return Ok(());
        }
        self.just_said = true;
        let all = (0..self.asleep.len()).filter(|queue| self.asleep[*queue] || fresh.contains(queue)).collect();
        self.say_asleep(at, all).await?;
        // Enqueued between our look and our registration: nobody told us.
        self.low_wanted = true;
        self.poll_at = Instant::now();
        Ok(())
    }

    /// What was said before counts for a minute at least; whether work is found meanwhile does not matter.
    async fn sleep_on(&mut self, at: &Attached) -> Result<(), StoreError> {
        if self.sleep_again_at().is_none_or(|again| again > Instant::now()) {
            return Ok(());
        }
        let asleep = (0..self.asleep.len()).filter(|queue| self.asleep[*queue]).collect();
        self.say_asleep(at, asleep).await
    }

    fn sleep_again_at(&self) -> Option<Instant> {
        let said = self.asleep.contains(&true) && !self.engine.settings.pooler;
        said.then(|| self.slept_at + SLEEP_AGAIN)
    }

    async fn say_asleep(&mut self, at: &Attached, queues: Vec<usize>) -> Result<(), StoreError> {
        if !self.engine.settings.pooler {
            let names: Vec<_> = queues.iter().map(|queue| self.names[*queue].clone()).collect();
            at.session.sleep(&at.registration, &names).await?;
        }
        self.slept_at = Instant::now();
        queues.into_iter().for_each(|queue| self.asleep[queue] = true);
        Ok(())
    }

    fn poll_interval(&self) -> Duration {
        poll_interval(self.engine.settings.poll, self.turn, jitter())
    }

    fn is_drained(&self) -> bool {
        self.engine.running.is_empty() && !self.engine.has_waiting() && self.engine.outbox.is_settled()
    }
}

/// What a claim that asked for so much, and took so long, says of the size of the next one: half of it when no answer came
/// within the limit, or none had come when the server was asked for it, twice as much when that would have arrived in half of it.
fn size_next(portion: &mut Portion, asked: usize, answered: bool, cut: bool, took: Duration, limit: Duration) {
    if answered && took < limit / 4 {
        portion.grow(asked);
    } else if cut && took >= limit.min(ASK_AFTER) {
        portion.shrink(asked);
        tracing::warn!(
            asked,
            ?took,
            most = portion.most(),
            "a claim did not arrive in time: the next one asks for less"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_claim_that_used_up_its_time_makes_the_next_one_smaller() {
        let check = |answered, took_ms, expected| {
            let mut portion = Portion::default();
            portion.shrink(1000);
            size_next(&mut portion, 500, answered, !answered, Duration::from_millis(took_ms), Duration::from_secs(1));
            assert_eq!(portion.most(), expected, "{answered} after {took_ms} ms");
        };
        check(true, 200, 1000);
        check(true, 800, 500); // twice as much would not arrive
        check(false, 1000, 250);
        check(false, 10, 500); // a connection that breaks says nothing of the claim
    }
}
