//! Runs the checker, and hands back what it found as data.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model, Path, Property};

use crate::action::{Action, possible};
use crate::FAULTS;
use crate::bounds::{BUNDLES, JOBS, SINGLES, WORKERS};
use crate::flaw::Flaw;
use crate::narrate;
use crate::property as p;
use crate::state::State;

/// What stands in `ready` at the start: two bundles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bundles {
    /// Jobs 1 and 2, which a claim may cut, and job 3.
    Cut,
    /// Job 1, and job 2.
    Single,
}

impl Bundles {
    fn rows(self) -> &'static [u8; JOBS] {
        match self {
            Bundles::Cut => &BUNDLES,
            Bundles::Single => &SINGLES,
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
    /// The shortest history that shows it reached, or broken; sentences. Empty when there is none to show.
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
    /// Everything that was asked holds.
    pub fn holds(&self) -> bool {
        self.properties.iter().all(|property| property.held)
    }

    /// What the flaw was expected to break, with the history that shows it. None: no flaw, or not caught.
    pub fn counterexample(&self) -> Option<&Checked> {
        let expected = self.flaw?.breaks();
        self.properties.iter().find(|property| property.name == expected && !property.held)
    }
}

/// Checks the protocol as built, in every order of steps with at most `faults` faults (default: [`crate::FAULTS`]).
/// Time and memory grow about tenfold with each further fault.
pub fn check(bundles: Bundles, faults: u8) -> Report {
    Protocol { flaw: None, bundles, faults, names_kept: false }.run()
}

/// Takes one rule away and searches for the shortest history that breaks what it guards.
pub fn check_broken(flaw: Flaw) -> Report {
    let bundles = if flaw == Flaw::LeaseFromPicked { Bundles::Cut } else { Bundles::Single };
    Protocol { flaw: Some(flaw), bundles, faults: FAULTS, names_kept: true }.run()
}

#[derive(Clone)]
struct Protocol {
    flaw: Option<Flaw>,
    bundles: Bundles,
    faults: u8,
    /// Workers keep their places, so that a history can be told; otherwise they are put in order to save states.
    names_kept: bool,
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::first(self.bundles.rows(), self.faults)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        possible(state, self.flaw, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let next = state.after(action, self.flaw);
        Some(if self.names_kept { next } else { next.with_workers_in_order() })
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(p::CONSERVATION, |_, state| p::conserves(state)),
            Property::always(p::ONE_LEASE, |_, state| p::leases_once(state)),
            Property::always(p::FINALITY, |_, state| p::is_final(state)),
            Property::always(p::STALE_WRITE, |_, state: &State| !state.blame.stale_write),
            Property::always(p::NO_OVERLAP, |_, state| p::overlaps_nowhere(state)),
            Property::always(p::STOPPED, |_, state| p::has_stopped(state)),
            Property::always(p::TOLD_APART, |_, state: &State| !state.blame.wrong_answer),
            Property::eventually(p::ALL_END, |_, state: &State| state.all_ended()),
        ];
        if self.flaw.is_none() {
            properties.extend([
                Property::sometimes(p::LATE_CLAIM, |_, state| p::claims_late(state)),
                Property::sometimes(p::LATE_WRITE, |_, state| p::writes_late(state)),
                Property::sometimes(p::REPEAT, |_, state| p::repeats(state)),
                Property::sometimes(p::UNKNOWN_LEASE, |_, state| p::holds_unknown(state)),
                Property::sometimes(p::OVERSLEPT, |_, state| p::overslept(state)),
                Property::sometimes(p::BURIED, |_, state| p::buries(state)),
            ]);
        }
        properties
    }
}

impl Protocol {
    fn run(self) -> Report {
        let began = Instant::now();
        let until = match self.flaw {
            Some(flaw) => HasDiscoveries::AllOf(BTreeSet::from([flaw.breaks()])),
            None => HasDiscoveries::AnyFailures,
        };
        // One thread: the search is then the same every time, and a history the shortest.
        let checker = self.clone().checker().threads(1).finish_when(until).spawn_bfs().join();
        let found = checker.discoveries();
        let checked = |property: &Property<Protocol>| {
            let (asked, wanted) = match property.expectation {
                stateright::Expectation::Always => (Asked::Always, false),
                stateright::Expectation::Eventually => (Asked::InTheEnd, false),
                stateright::Expectation::Sometimes => (Asked::Reachable, true),
            };
            let path = found.get(property.name);
            let history = path.filter(|_| !wanted).map(|path| self.history(path)).unwrap_or_default();
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

    fn history(&self, path: &Path<State, Action>) -> Vec<String> {
        let steps = path.clone().into_vec();
        let mut sentences: Vec<String> = steps
            .windows(2)
            .filter_map(|pair| {
                let action = pair[0].1?;
                Some(narrate::sentence(&pair[0].0, action, &pair[1].0, self.flaw))
            })
            .collect();
        sentences.extend(steps.last().map(|(state, _)| narrate::verdict(state)));
        sentences
    }
}

const _: () = assert!(WORKERS <= 26, "workers are named by letters");
