//! The lease protocol as a model, checked in every order of steps, and broken rule by rule.

use tenure_model::{Bundles, FAULTS, Flaw, Report, check, check_broken, unreached};
use tenure_scenarios::{Bound, Measure, Size};

use crate::say;

/// The numbers of states that docs/design/model.md names. Fewer are a smaller protocol: what it no longer does is to be found,
/// and then the numbers there and here are new.
const STATES_SINGLE: usize = 4_862_506;
const STATES_CUT: usize = 3_462_019;
/// The same for one job, which a test's time allows.
const STATES_ONE: usize = 282_580;

/// The protocol as built, and each of its rules taken away. One counterexample is told in words.
pub(super) fn checked(_url: &str, size: Size) -> Vec<Measure> {
    let (runs, states) = match size {
        Size::Ci => (vec![check(Bundles::One, FAULTS)], vec![STATES_ONE]),
        Size::Full => (
            vec![check(Bundles::One, FAULTS), check(Bundles::Single, FAULTS), check(Bundles::Cut, FAULTS - 1)],
            vec![STATES_ONE, STATES_SINGLE, STATES_CUT],
        ),
    };
    let mut lines: Vec<Measure> =
        runs.iter().zip(states).flat_map(|(report, states)| as_built(report, states)).collect();
    let unreached = unreached(&runs);
    unreached.iter().for_each(|name| say(&format!("model: nothing reaches: {name}")));
    lines.push(Measure::count("model: what has to happen in it, and does not", 0, unreached.len()));
    let broken: Vec<Report> = Flaw::ALL.into_iter().map(check_broken).collect();
    let caught = broken.iter().filter(|report| report.counterexample().is_some()).count();
    lines.push(Measure::count("model: rules taken away, and the checker notices", Flaw::ALL.len(), caught));
    if let Some((flaw, found)) = broken.iter().find_map(|report| Some((report.flaw?, report.counterexample()?))) {
        say(&format!("model without its rules, for instance: {}. {} is broken:", flaw.in_words(), found.name));
        found.history.iter().enumerate().for_each(|(n, step)| say(&format!("  {}. {step}", n + 1)));
    }
    lines
}

fn as_built(report: &Report, states: usize) -> Vec<Measure> {
    for property in report.properties.iter().filter(|property| !property.held) {
        say(&format!("model: {:?} {}: {}", property.asked, property.name, property.history.join(" ")));
    }
    let run = format!("model, {:?}, at most {} faults", report.bundles, report.faults);
    vec![
        Measure::new(format!("{run}: states explored"), Bound::AtLeast(states as f64), report.states as f64, ""),
        Measure::new(format!("{run}: steps tried"), Bound::Shown, report.steps as f64, ""),
        Measure::new(format!("{run}: longest way"), Bound::Shown, report.depth as f64, "steps"),
        Measure::new(format!("{run}: took"), Bound::Shown, report.took.as_secs_f64(), "s"),
        Measure::count(format!("{run}: properties hold"), 1, usize::from(report.holds())),
    ]
}
