//! The life of a job: the one table of states and events. The docs are drawn from it, and a test applies every event
//! to every state through the real SQL and compares.

use std::fmt;

/// Where a job stands: the one table that holds its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// Can be claimed now.
    Available,
    /// Waits for its first run's time.
    Scheduled,
    /// Waits for the next attempt after a failed one.
    Retrying,
    /// Waits because its handler asked to be run later.
    Snoozed,
    /// Waits for something other than time, with the reason.
    Held,
    /// A worker has a lease on it.
    Running,
    /// Ended well.
    Completed,
    /// Ended because somebody or its handler cancelled it.
    Cancelled,
    /// Will not be tried again: a dead letter.
    Dead,
}

impl State {
    /// Every state, in the order of a life.
    pub const ALL: [State; 9] = [
        State::Available,
        State::Scheduled,
        State::Retrying,
        State::Snoozed,
        State::Held,
        State::Running,
        State::Completed,
        State::Cancelled,
        State::Dead,
    ];

    /// Its name in the view `jobs`, in JSON and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Available => "available",
            State::Scheduled => "scheduled",
            State::Retrying => "retrying",
            State::Snoozed => "snoozed",
            State::Held => "held",
            State::Running => "running",
            State::Completed => "completed",
            State::Cancelled => "cancelled",
            State::Dead => "dead",
        }
    }

    /// The state of that name.
    pub fn from_name(name: &str) -> Option<State> {
        State::ALL.into_iter().find(|state| state.as_str() == name)
    }

    /// Has the job ended?
    pub fn is_final(self) -> bool {
        match self {
            State::Completed | State::Cancelled | State::Dead => true,
            State::Available | State::Scheduled | State::Retrying | State::Snoozed | State::Held | State::Running => {
                false
            }
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What can happen to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Event {
    /// A worker takes it.
    Claim,
    /// Its worker reports success.
    Complete,
    /// Its worker reports a failure worth another attempt, and there is one left.
    FailRetry,
    /// The same, and the next attempt may begin at once.
    FailRetryNow,
    /// Its worker reports a failure worth another attempt, and none is left.
    FailLast,
    /// Its worker reports a permanent failure.
    FailPermanent,
    /// Its handler asks to be run later.
    Snooze,
    /// Its handler asks to be run again at once.
    SnoozeNow,
    /// Its handler ends as cancelled.
    EndCancelled,
    /// Its worker gives it back without having used an attempt.
    Release,
    /// Its worker gave up its registration, and gives it back.
    GiveUp,
    /// Its worker records progress.
    Progress,
    /// Its worker is dead, and the job may be tried again. What was claimed counts as started.
    Rescue,
    /// Its worker is dead, and too many were before.
    RescueLast,
    /// Its time has come.
    Promote,
    /// Somebody wants it to run later than now.
    Reschedule,
    /// Somebody wants it to run now.
    RunNow,
    /// Somebody cancels it.
    Cancel,
    /// Somebody runs it again as a new job.
    Requeue,
    /// Somebody removes the dead letter for good.
    Discard,
    /// Its end lies back as far as finished jobs are kept.
    Retain,
}

impl Event {
    /// Every event.
    pub const ALL: [Event; 21] = [
        Event::Claim,
        Event::Complete,
        Event::FailRetry,
        Event::FailRetryNow,
        Event::FailLast,
        Event::FailPermanent,
        Event::Snooze,
        Event::SnoozeNow,
        Event::EndCancelled,
        Event::Release,
        Event::GiveUp,
        Event::Progress,
        Event::Rescue,
        Event::RescueLast,
        Event::Promote,
        Event::Reschedule,
        Event::RunNow,
        Event::Cancel,
        Event::Requeue,
        Event::Discard,
        Event::Retain,
    ];

    /// Its name in the docs.
    pub fn as_str(self) -> &'static str {
        match self {
            Event::Claim => "claim",
            Event::Complete => "complete",
            Event::FailRetry => "fail, attempts left",
            Event::FailRetryNow => "fail, retry at once",
            Event::FailLast => "fail, last attempt",
            Event::FailPermanent => "fail, permanent",
            Event::Snooze => "snooze",
            Event::SnoozeNow => "snooze for no time",
            Event::EndCancelled => "end as cancelled",
            Event::Release => "release",
            Event::GiveUp => "given up by its worker",
            Event::Progress => "progress",
            Event::Rescue => "rescue",
            Event::RescueLast => "rescue, last time",
            Event::Promote => "promote",
            Event::Reschedule => "reschedule",
            Event::RunNow => "run now",
            Event::Cancel => "cancel",
            Event::Requeue => "requeue",
            Event::Discard => "discard",
            Event::Retain => "kept long enough",
        }
    }
}

/// What an event does to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The job goes to this state; what happens to the lease, and to the count of its attempts.
    Moves(State, Lease, Attempt),
    /// Accepted, and the job stays where it is.
    Stays,
    /// The job stays as it is, and a new job is available in its place.
    Succeeded,
    /// The job is removed for good.
    Gone,
    /// Refused: nothing changes, and the caller is told.
    Refused,
}

/// What happens to the lease on the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// There was none and there is none.
    None,
    /// The claiming worker gets it.
    Taken,
    /// The job leaves it; the lease goes with its last job.
    Ended,
}

/// What happens to the number of attempts that count against `max_attempts`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// It stays: an attempt that was begun is used.
    Same,
    /// One more begins.
    Begins,
    /// The one that was begun does not count.
    GivenBack,
}

/// The table: what is not in it is refused.
pub const TRANSITIONS: &[(State, Event, Next)] = &[
    (State::Available, Event::Claim, Next::Moves(State::Running, Lease::Taken, Attempt::Begins)),
    (State::Scheduled, Event::Promote, Next::Moves(State::Available, Lease::None, Attempt::Same)),
    (State::Retrying, Event::Promote, Next::Moves(State::Available, Lease::None, Attempt::Same)),
    (State::Snoozed, Event::Promote, Next::Moves(State::Available, Lease::None, Attempt::Same)),
    (State::Running, Event::Complete, Next::Moves(State::Completed, Lease::Ended, Attempt::Same)),
    (State::Running, Event::FailRetry, Next::Moves(State::Retrying, Lease::Ended, Attempt::Same)),
    (State::Running, Event::FailRetryNow, Next::Moves(State::Available, Lease::Ended, Attempt::Same)),
    (State::Running, Event::FailLast, Next::Moves(State::Dead, Lease::Ended, Attempt::Same)),
    (State::Running, Event::FailPermanent, Next::Moves(State::Dead, Lease::Ended, Attempt::Same)),
    (State::Running, Event::Snooze, Next::Moves(State::Snoozed, Lease::Ended, Attempt::GivenBack)),
    (State::Running, Event::SnoozeNow, Next::Moves(State::Available, Lease::Ended, Attempt::GivenBack)),
    (State::Running, Event::EndCancelled, Next::Moves(State::Cancelled, Lease::Ended, Attempt::Same)),
    (State::Running, Event::Release, Next::Moves(State::Available, Lease::Ended, Attempt::GivenBack)),
    (State::Running, Event::GiveUp, Next::Moves(State::Available, Lease::Ended, Attempt::GivenBack)),
    (State::Running, Event::Progress, Next::Stays),
    (State::Running, Event::Rescue, Next::Moves(State::Available, Lease::Ended, Attempt::Same)),
    (State::Running, Event::RescueLast, Next::Moves(State::Dead, Lease::Ended, Attempt::Same)),
    (State::Available, Event::Reschedule, Next::Moves(State::Scheduled, Lease::None, Attempt::Same)),
    (State::Scheduled, Event::Reschedule, Next::Stays),
    (State::Retrying, Event::Reschedule, Next::Stays),
    (State::Snoozed, Event::Reschedule, Next::Stays),
    (State::Available, Event::RunNow, Next::Stays),
    (State::Scheduled, Event::RunNow, Next::Moves(State::Available, Lease::None, Attempt::Same)),
    (State::Retrying, Event::RunNow, Next::Moves(State::Available, Lease::None, Attempt::Same)),
    (State::Snoozed, Event::RunNow, Next::Moves(State::Available, Lease::None, Attempt::Same)),
    (State::Available, Event::Cancel, Next::Moves(State::Cancelled, Lease::None, Attempt::Same)),
    (State::Scheduled, Event::Cancel, Next::Moves(State::Cancelled, Lease::None, Attempt::Same)),
    (State::Retrying, Event::Cancel, Next::Moves(State::Cancelled, Lease::None, Attempt::Same)),
    (State::Snoozed, Event::Cancel, Next::Moves(State::Cancelled, Lease::None, Attempt::Same)),
    (State::Held, Event::Cancel, Next::Moves(State::Cancelled, Lease::None, Attempt::Same)),
    // Asked for, and passed on to the worker: the handler's end decides.
    (State::Running, Event::Cancel, Next::Stays),
    (State::Dead, Event::Requeue, Next::Succeeded),
    (State::Completed, Event::Requeue, Next::Succeeded),
    (State::Cancelled, Event::Requeue, Next::Succeeded),
    (State::Dead, Event::Discard, Next::Gone),
    (State::Completed, Event::Retain, Next::Gone),
    (State::Cancelled, Event::Retain, Next::Gone),
    (State::Dead, Event::Retain, Next::Gone),
];

/// What `event` does to a job in `state`.
pub fn next(state: State, event: Event) -> Next {
    TRANSITIONS.iter().find(|(from, on, _)| (*from, *on) == (state, event)).map_or(Next::Refused, |(_, _, next)| *next)
}

/// What `event` does to a running job that somebody has asked to cancel: where it would wait again, or would if it had
/// attempts left, it ends as cancelled.
pub fn next_if_cancelled(event: Event) -> Next {
    let cancelled = Next::Moves(State::Cancelled, Lease::Ended, Attempt::Same);
    match (event, next(State::Running, event)) {
        (Event::FailLast | Event::RescueLast, _) => cancelled,
        (_, Next::Moves(to, Lease::Ended, _)) if !to.is_final() => cancelled,
        (_, other) => other,
    }
}

/// The table for the docs, in Markdown.
pub fn chart() -> String {
    let mut text = "| a job that is | and | becomes | attempts |\n|---|---|---|---|\n".to_owned();
    for (from, event, next) in TRANSITIONS {
        let (to, attempts) = match next {
            Next::Moves(to, _, Attempt::Same) => (to.as_str(), ""),
            Next::Moves(to, _, Attempt::Begins) => (to.as_str(), "+ 1"),
            Next::Moves(to, _, Attempt::GivenBack) => (to.as_str(), "- 1"),
            Next::Stays => (from.as_str(), ""),
            Next::Succeeded => ("the origin of a new job", ""),
            Next::Gone => ("removed", ""),
            Next::Refused => ("refused", ""),
        };
        text.push_str(&format!("| {from} | {} | {to} | {attempts} |\n", event.as_str()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_one_answer_for_each_state_and_event() {
        for (at, (state, event, _)) in TRANSITIONS.iter().enumerate() {
            let again = TRANSITIONS[at + 1..].iter().any(|(from, on, _)| (from, on) == (state, event));
            assert!(!again, "{state} / {} stands twice", event.as_str());
        }
    }

    #[test]
    fn only_running_jobs_hold_a_lease() {
        for (from, event, next) in TRANSITIONS {
            let Next::Moves(to, lease, _) = next else { continue };
            let expected = match (*from == State::Running, *to == State::Running) {
                (false, true) => Lease::Taken,
                (true, false) => Lease::Ended,
                (false, false) => Lease::None,
                (true, true) => panic!("{} keeps a job running", event.as_str()),
            };
            assert_eq!(*lease, expected, "{from} / {}", event.as_str());
        }
    }

    #[test]
    fn attempts_begin_with_a_claim_and_are_given_back_by_running_jobs_alone() {
        for (from, event, next) in TRANSITIONS {
            let Next::Moves(to, _, attempt) = next else { continue };
            assert_eq!(*attempt == Attempt::Begins, *to == State::Running, "{from} / {}", event.as_str());
            assert!(*attempt != Attempt::GivenBack || *from == State::Running, "{from} / {}", event.as_str());
        }
    }

    #[test]
    fn an_end_is_final_but_for_an_operator_and_until_it_was_kept_long_enough() {
        for state in State::ALL.into_iter().filter(|state| state.is_final()) {
            for event in Event::ALL {
                let operator = matches!(event, Event::Requeue | Event::Discard | Event::Retain);
                assert!(operator || next(state, event) == Next::Refused, "{state} / {}", event.as_str());
            }
        }
    }

    #[test]
    fn every_waiting_job_can_run_or_be_cancelled() {
        for state in State::ALL.into_iter().filter(|state| !state.is_final()) {
            assert_ne!(next(state, Event::Cancel), Next::Refused, "{state}");
        }
    }
}
