//! The model at the sizes of a test; `cargo run -p tenure-model` checks more.

use tenure_model::{Bundles, Flaw, Report, check, check_broken, unreached};

/// The first takes a clock that leaps, which it does with one job alone, the other two faults.
const BEYOND_ONE_FAULT: [&str; 2] = [
    "a worker's claims and reports are refused, although nobody was given its jobs",
    "a job is buried for its lost workers",
];

fn assert_holds(report: &Report) {
    assert!(report.holds(), "{:#?}", report.properties);
}

#[test]
fn the_protocol_holds_with_any_one_fault() {
    let report = check(Bundles::Single, 1);
    assert_holds(&report);
    assert_eq!(report.unreached().collect::<Vec<_>>(), BEYOND_ONE_FAULT);
}

#[test]
fn the_protocol_holds_for_one_job_with_any_two_faults() {
    let report = check(Bundles::One, 2);
    assert_holds(&report);
    assert_eq!(report.unreached().count(), 0, "{:#?}", report.properties);
}

#[test]
fn what_no_run_reaches_is_named() {
    let (one, two) = (check(Bundles::Single, 1), check(Bundles::One, 2));
    assert_eq!(unreached(std::slice::from_ref(&one)), BEYOND_ONE_FAULT);
    assert_eq!(unreached(&[one, two]), [""; 0]);
}

#[test]
fn bundles_are_cut_without_a_loss() {
    assert_holds(&check(Bundles::Cut, 0));
}

#[test]
fn every_broken_rule_is_caught() {
    for flaw in Flaw::ALL {
        let report = check_broken(flaw);
        let shown = report.counterexample();
        assert!(shown.is_some_and(|shown| shown.history.len() > 2), "{flaw:?} was not caught: {report:#?}");
    }
}
