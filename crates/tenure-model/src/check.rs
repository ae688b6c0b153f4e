//! Runs the checker, and hands back what it found as data.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model, Path, Property};

use crate::FAULTS;
use crate::action::{Action, possible};
use crate::bounds::{BUNDLES, JOBS, ONE, SINGLES, WORKERS};
use crate::flaw::Flaw;
use crate::narrate;
use crate::property as p;
use crate::state::State;

/// What stands in `ready` at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bundles {
    /// Jobs 1 and 2, which a claim may cut, and job 3.
    Cut,
    /// Job 1, and job 2.
    Single,
    /// Job 1 alone: enough for what most broken rules do. Here the database's clock may leap, once.
    One,
}

impl Bundles {
    fn rows(self) -> &'static [u8; JOBS] {
        match self {
            Bundles::Cut => &BUNDLES,
            Bundles::Single => &SINGLES,
            Bundles::One => &ONE,
        }
    }
}

/// What a check found.
#[derive(Clone, Debug)]
pub struct Report {
    /// The rule that was taken away; none: the protocol as built.
    pub flaw: Option<Flaw>,
    /// What stood in `ready` at the start.
    pub bundles: Bundles,
    /// Faults in one history, at most.
    pub faults: u8,
    /// Different states, workers taken as interchangeable; of a broken protocol, those seen until it was caught.
    pub states: usize,
    /// Steps tried.
    pub steps: usize,
    /// Steps of the longest of the shortest ways to a state.
    pub depth: usize,
    /// How long it took.
    pub took: Duration,
    /// What was looked at, in a fixed order.
    pub properties: Vec<Checked>,
}

/// One property and what became of it.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The property in words.
    pub name: &'static str,
    /// What was asked of it.
    pub asked: Asked,
    /// It held in every state, or was reached. Of a broken protocol, which is left at the first violation, this says
    /// nothing about the others.
    pub held: bool,
    /// A short history that ends where it is broken, in sentences. Empty where it holds.
    pub history: Vec<String>,
}

/// The kinds of properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// In every state.
    Always,
    /// In the end of every history.
    InTheEnd,
    /// In some state: otherwise the model would prove less than it seems to.
    Reachable,
}

impl Report {
    /// What must hold in every state or in the end, holds.
    pub fn holds(&self) -> bool {
        self.properties.iter().all(|property| property.held || property.asked == Asked::Reachable)
    }

    /// What was not reached: the bounds are too small to say anything about it.
    pub fn unreached(&self) -> impl Iterator<Item = &'static str> {
        self.properties.iter().filter(|property| !property.held && property.asked == Asked::Reachable).map(|it| it.name)
    }

    /// What the flaw was expected to break, with the history that shows it. None: no flaw, or not caught.
    pub fn counterexample(&self) -> Option<&Checked> {
        let expected = self.flaw?.breaks();
        self.properties.iter().find(|property| property.name == expected && !property.held)
    }
}

/// Checks the protocol as built, in every order of steps with at most `faults` faults (default: [`crate::FAULTS`]).
/// Time and memory grow fifty times and more with each further fault.
pub fn check(bundles: Bundles, faults: u8) -> Report {
    Protocol { flaw: None, bundles, faults }.run()
}

/// What none of these reports reached: what they say holds of a world in which nothing of that kind happens.
pub fn unreached(reports: &[Report]) -> Vec<&'static str> {
    let Some((first, others)) = reports.split_first() else { return Vec::new() };
    first.unreached().filter(|name| others.iter().all(|report| report.unreached().any(|it| it == *name))).collect()
}

/// Takes one rule away and searches for a history that breaks what it guards, with as few faults as do.
pub fn check_broken(flaw: Flaw) -> Report {
    let bundles = if flaw == Flaw::LeaseFromPicked { Bundles::Cut } else { Bundles::One };
    let search = |faults| Protocol { flaw: Some(flaw), bundles, faults }.run();
    let caught = (0..FAULTS).map(search).find(|report| report.counterexample().is_some());
    caught.unwrap_or_else(|| search(FAULTS))
}

#[derive(Clone)]
struct Protocol {
    flaw: Option<Flaw>,
    bundles: Bundles,
    faults: u8,
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.first()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        possible(state, self.flaw, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        Some(self.in_order(state.after(action, self.flaw)))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(p::CONSERVATION, |_, state| p::conserves(state)),
            Property::always(p::ONE_LEASE, |_, state| p::leases_once(state)),
            Property::always(p::FINALITY, |_, state| p::is_final(state)),
            Property::always(p::STALE_WRITE, |_, state: &State| !state.blame.stale_write),
            Property::always(p::NO_OVERLAP, |_, state| p::overlaps_nowhere(state)),
            Property::always(p::STOPPED, |_, state| p::has_stopped(state)),
            Property::always(p::BESIDE, |_, state| p::runs_alone(state)),
            Property::always(p::TOLD_APART, |_, state: &State| !state.blame.wrong_answer),
            Property::always(p::NOT_DROPPED, |_, state: &State| !state.blame.dropped),
            Property::eventually(p::ALL_END, |_, state: &State| state.all_ended()),
        ];
        if self.flaw.is_none() {
            properties.extend([
                Property::sometimes(p::LATE_CLAIM, |_, state| p::claims_late(state)),
                Property::sometimes(p::LATE_WRITE, |_, state| p::writes_late(state)),
                Property::sometimes(p::REPEAT, |_, state| p::repeats(state)),
                Property::sometimes(p::UNKNOWN_LEASE, |_, state| p::holds_unknown(state)),
                Property::sometimes(p::OVER, |_, state| p::is_over(state)),
                Property::sometimes(p::FORMER, |_, state| p::gives_back_renewed(state)),
                Property::sometimes(p::OVERSLEPT, |_, state| p::overslept(state)),
                Property::sometimes(p::BURIED, |_, state| p::buries(state)),
            ]);
        }
        properties
    }
}

impl Protocol {
    /// The clock leaps in runs with one job alone: it meets all workers at once, and has nothing to do with cuts.
    fn first(&self) -> State {
        State::first(self.bundles.rows(), self.faults, self.bundles == Bundles::One)
    }

    fn run(self) -> Report {
        let began = Instant::now();
        let until = match self.flaw {
            Some(flaw) => HasDiscoveries::AllOf(BTreeSet::from([flaw.breaks()])),
            None => HasDiscoveries::AnyFailures,
        };
        // One thread: the search is then the same every time.
        let checker = self.clone().checker().threads(1).finish_when(until).spawn_bfs().join();
        let found = checker.discoveries();
        let checked = |property: &Property<Protocol>| {
            let (asked, wanted) = match property.expectation {
                stateright::Expectation::Always => (Asked::Always, false),
                stateright::Expectation::Eventually => (Asked::InTheEnd, false),
                stateright::Expectation::Sometimes => (Asked::Reachable, true),
            };
            let path = found.get(property.name);
            let history = path.filter(|_| !wanted).map(|path| self.history(property, path)).unwrap_or_default();
            Checked { name: property.name, asked, held: path.is_some() == wanted, history }
        };
        Report {
            flaw: self.flaw,
            bundles: self.bundles,
            faults: self.faults,
            states: checker.unique_state_count(),
            steps: checker.state_count(),
            depth: checker.max_depth(),
            took: began.elapsed(),
            properties: self.properties().iter().map(checked).collect(),
        }
    }

    /// The way to a violation in sentences, without the steps that it does not need.
    fn history(&self, property: &Property<Protocol>, path: &Path<State, Action>) -> Vec<String> {
        let actions = self.shortened(property, self.with_names(path));
        let states = self.replay(&actions).unwrap_or_default();
        let mut sentences: Vec<String> = Vec::new();
        let mut ticks = 0;
        for (pair, action) in states.windows(2).zip(&actions) {
            if *action != Action::Tick {
                ticks = 0;
            } else {
                ticks += 1;
                if ticks > 1 {
                    sentences.pop();
                    sentences.push(format!("{ticks} ticks go by."));
                    continue;
                }
            }
            sentences.push(narrate::sentence(&pair[0], *action, &pair[1], self.flaw));
        }
        let jobs = self.bundles.rows().iter().filter(|row| **row > 0).count();
        sentences.extend(states.last().map(|state| narrate::verdict(state, jobs)));
        sentences
    }

    /// One of the states that differ in the names of workers alone; of single jobs, too.
    fn in_order(&self, mut state: State) -> State {
        if self.bundles == Bundles::Single {
            state.order_single_jobs();
        }
        state.with_workers_in_order()
    }

    /// The checker's states have their workers in order; here workers keep their names from step to step.
    fn with_names(&self, path: &Path<State, Action>) -> Vec<Action> {
        let mut state = self.first();
        let (mut taken, mut actions) = (Vec::new(), Vec::new());
        for wanted in path.clone().into_states().iter().skip(1) {
            possible(&state, self.flaw, &mut actions);
            let step = actions.drain(..).find_map(|action| {
                let next = state.after(action, self.flaw);
                (self.in_order(next.clone()) == *wanted).then_some((action, next))
            });
            let Some((action, next)) = step else { break };
            taken.push(action);
            state = next;
        }
        taken
    }

    /// The checker notes the last violation of those that it finds together, which need not be the shortest: steps
    /// go, one or two at a time, while the rest still leads to a violation.
    fn shortened(&self, property: &Property<Protocol>, mut actions: Vec<Action>) -> Vec<Action> {
        let leads = |actions: &[Action]| {
            self.replay(actions).is_some_and(|states| states.last().is_some_and(|last| self.breaks(property, last)))
        };
        'again: loop {
            for first in 0..actions.len() {
                for second in first..actions.len() {
                    let is_kept = |(n, _): &(usize, &Action)| *n != first && *n != second;
                    let fewer: Vec<_> = actions.iter().enumerate().filter(is_kept).map(|(_, action)| *action).collect();
                    if leads(&fewer) {
                        actions = fewer;
                        continue 'again;
                    }
                }
            }
            return actions;
        }
    }

    fn breaks(&self, property: &Property<Protocol>, state: &State) -> bool {
        let mut actions = Vec::new();
        possible(state, self.flaw, &mut actions);
        let in_the_end = property.expectation == stateright::Expectation::Eventually;
        !(property.condition)(self, state) && (!in_the_end || actions.is_empty())
    }

    /// The states along these steps; None where one of them is not possible.
    fn replay(&self, actions: &[Action]) -> Option<Vec<State>> {
        let mut states = vec![self.first()];
        let mut possible_now = Vec::new();
        for action in actions {
            let state = states.last()?;
            possible_now.clear();
            possible(state, self.flaw, &mut possible_now);
            let next = possible_now.contains(action).then(|| state.after(*action, self.flaw))?;
            states.push(next);
        }
        Some(states)
    }
}

const _: () = assert!(WORKERS <= 26, "workers are named by letters");
