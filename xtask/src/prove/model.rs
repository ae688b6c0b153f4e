//! The lease protocol as a model, checked in every order of steps, and broken rule by rule.

use tenure_model::{Bundles, FAULTS, Flaw, Report, check, check_broken};
use tenure_scenarios::{Bound, Measure, Size};

use crate::say;

/// The protocol as built, and each of its rules taken away. One counterexample is told in words.
pub(super) fn checked(_url: &str, size: Size) -> Vec<Measure> {
    let runs = match size {
        Size::Ci => vec![check(Bundles::One, FAULTS)],
        Size::Full => vec![check(Bundles::Single, FAULTS), check(Bundles::Cut, FAULTS - 1)],
    };
    let mut lines: Vec<Measure> = runs.iter().flat_map(as_built).collect();
    let broken: Vec<Report> = Flaw::ALL.into_iter().map(check_broken).collect();
    let caught = broken.iter().filter(|report| report.counterexample().is_some()).count();
    lines.push(Measure::count("model: rules taken away, and the checker notices", Flaw::ALL.len(), caught));
    if let Some((flaw, found)) = broken.iter().find_map(|report| Some((report.flaw?, report.counterexample()?))) {
        say(&format!("model without its rules, for instance: {}. {} is broken:", flaw.in_words(), found.name));
        found.history.iter().enumerate().for_each(|(n, step)| say(&format!("  {}. {step}", n + 1)));
    }
    lines
}

fn as_built(report: &Report) -> Vec<Measure> {
    for property in report.properties.iter().filter(|property| !property.held) {
        say(&format!("model: {:?} {}: {}", property.asked, property.name, property.history.join(" ")));
    }
    let run = format!("model, {:?}, at most {} faults", report.bundles, report.faults);
    vec![
        Measure::new(format!("{run}: states explored"), Bound::AtLeast(1.0), report.states as f64, ""),
        Measure::new(format!("{run}: steps tried"), Bound::Shown, report.steps as f64, ""),
        Measure::new(format!("{run}: longest way"), Bound::Shown, report.depth as f64, "steps"),
        Measure::new(format!("{run}: took"), Bound::Shown, report.took.as_secs_f64(), "s"),
        Measure::count(format!("{run}: properties hold"), 1, usize::from(report.holds())),
    ]
}
