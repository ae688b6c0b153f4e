//! What a scenario measured, and the bound that the claim sets.

use std::fmt;
use std::io::Write as _;

/// The bound of a claim.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// Holds when the measured value is not above.
    AtMost(f64),
    /// Holds when the measured value is not below.
    AtLeast(f64),
    /// Holds when the measured value is exactly this.
    Exactly(f64),
    /// Printed beside the measured value, never failed.
    AimBelow(f64),
    /// Printed only.
    Shown,
    /// Holds never: what was to be measured did not run, see [`Measure::did_not_run`].
    Run,
}

/// One line of the table: claim, bound, measured value.
#[derive(Clone, Debug)]
pub struct Measure {
    /// What is claimed, in the user's words.
    pub claim: String,
    /// The bound it sets.
    pub bound: Bound,
    /// What came out.
    pub measured: f64,
    /// Unit of both, empty for counts.
    pub unit: &'static str,
}

impl Measure {
    /// A line of the table.
    pub fn new(claim: impl Into<String>, bound: Bound, measured: f64, unit: &'static str) -> Measure {
        Measure { claim: claim.into(), bound, measured, unit }
    }

    /// A count that must be exactly `expected`.
    pub fn count(claim: impl Into<String>, expected: usize, measured: usize) -> Measure {
        Measure::new(claim, Bound::Exactly(expected as f64), measured as f64, "")
    }

    /// The line of a scenario that this machine cannot play, and why: it proves nothing, and so it does not hold.
    pub fn did_not_run(what: &str, why: &str) -> Measure {
        Measure::new(format!("{what}: did not run: {why}"), Bound::Run, 0.0, "")
    }

    fn with_slack(mut self) -> Measure {
        if let (Bound::AtMost(limit), "s") = (self.bound, self.unit) {
            self.bound = Bound::AtMost(limit * TIME_SLACK_OF_TESTS);
        }
        self
    }

    /// Whether the bound holds; `None` where there is nothing to hold.
    pub fn held(&self) -> Option<bool> {
        self.bound.held_by(self.measured)
    }

    /// What came out, with its unit, and with so many digits that a reader finds it on the same side of the bound: 0.896 is not
    /// rounded to the 0.90 that would have been enough.
    pub fn measured_in_words(&self) -> String {
        let longer = (1..=DIGITS_MAX).map(|digits| format!("{:.digits$}", self.measured));
        let mut texts = std::iter::once(Number(self.measured).to_string()).chain(longer);
        let is_true = |text: &String| text.parse().is_ok_and(|read| self.bound.held_by(read) == self.held());
        let text = texts.find(is_true).unwrap_or_else(|| self.measured.to_string());
        format!("{text} {}", self.unit).trim_end().to_owned()
    }
}

impl Bound {
    fn held_by(&self, measured: f64) -> Option<bool> {
        match self {
            Bound::AtMost(limit) => Some(measured <= *limit),
            Bound::AtLeast(limit) => Some(measured >= *limit),
            Bound::Exactly(value) => Some(measured == *value),
            Bound::Run => Some(false),
            Bound::AimBelow(_) | Bound::Shown => None,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::AtMost(limit) => write!(f, "at most {}", Number(*limit)),
            Bound::AtLeast(limit) => write!(f, "at least {}", Number(*limit)),
            Bound::Exactly(value) => write!(f, "{}", Number(*value)),
            Bound::AimBelow(limit) => write!(f, "aim: under {}", Number(*limit)),
            Bound::Run => write!(f, "runs"),
            Bound::Shown => Ok(()),
        }
    }
}

/// Digits behind the point that are tried until the side of the bound is seen.
const DIGITS_MAX: usize = 9;

/// Digits that a reader wants: none behind the point for large or whole numbers, otherwise two.
struct Number(f64);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.fract() == 0.0 || self.0.abs() >= 1000.0 {
            write!(f, "{:.0}", self.0)
        } else {
            write!(f, "{:.2}", self.0)
        }
    }
}

/// The value below which 99 of 100 lie. Of nothing that was measured it is infinite: it keeps no bound.
pub fn p99(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get((sorted.len() * 99 / 100).min(sorted.len().saturating_sub(1))).copied().unwrap_or(f64::INFINITY)
}

/// The smallest value. Of nothing that was measured it is infinite: it keeps no bound.
pub fn quickest(times: &[f64]) -> f64 {
    times.iter().copied().min_by(f64::total_cmp).unwrap_or(f64::INFINITY)
}

/// The largest value. Of nothing that was measured it is infinite: it keeps no bound.
pub fn longest(times: &[f64]) -> f64 {
    times.iter().copied().max_by(f64::total_cmp).unwrap_or(f64::INFINITY)
}

/// Tests run beside each other on a machine that does other things as well, so their time limits are this much wider. The
/// figures themselves are `prove`'s, which plays alone.
const TIME_SLACK_OF_TESTS: f64 = 2.0;

/// The file to which a test adds what this machine cannot play. `cargo xtask test` names it, and prints it in the end; without
/// it, such a test fails.
const DID_NOT_RUN: &str = "TENURE_DID_NOT_RUN";

/// Whether what did not run is told to whoever started the tests.
fn is_told(measure: &Measure) -> bool {
    let Some(file) = std::env::var_os(DID_NOT_RUN) else { return false };
    let line = format!("{}\n", measure.claim);
    let file = std::fs::OpenOptions::new().create(true).append(true).open(file);
    file.and_then(|mut file| file.write_all(line.as_bytes())).is_ok()
}

/// Fails the test with every bound that does not hold.
///
/// # Panics
/// When one does not hold, or nothing was measured.
pub fn assert_held(measures: &[Measure]) {
    assert!(!measures.is_empty(), "nothing was measured");
    let ran = |measure: &&Measure| measure.bound != Bound::Run || !is_told(measure);
    let measures: Vec<Measure> = measures.iter().filter(ran).cloned().map(Measure::with_slack).collect();
    let measures = measures.as_slice();
    for m in measures {
        eprintln!("{}: {} (bound: {})", m.claim, m.measured_in_words(), m.bound);
    }
    let broken: Vec<String> = measures
        .iter()
        .filter(|m| m.held() == Some(false))
        .map(|m| format!("{}: {}, bound {}", m.claim, m.measured_in_words(), m.bound))
        .collect();
    assert!(broken.is_empty(), "bounds that do not hold:\n  {}", broken.join("\n  "));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_keeps_no_bound() {
        for of_nothing in [longest(&[]), p99(&[]), quickest(&[])] {
            assert_eq!(Measure::new("nobody looked", Bound::AtMost(1.0), of_nothing, "s").held(), Some(false));
        }
        let times: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!((longest(&times), p99(&times), quickest(&times)), (200.0, 199.0, 1.0));
    }

    #[test]
    fn what_is_printed_lies_on_the_same_side_of_the_bound_as_what_was_measured() {
        let check = |bound, measured, unit, expected: &str| {
            assert_eq!(Measure::new("claimed", bound, measured, unit).measured_in_words(), expected);
        };
        check(Bound::AtLeast(0.9), 0.896, "", "0.896");
        check(Bound::AtLeast(0.9), 0.904, "", "0.90");
        check(Bound::AtLeast(0.9), 0.899_999_6, "x", "0.8999996 x");
        check(Bound::AtMost(1_000.0), 1_000.3, "ms", "1000.3 ms");
        check(Bound::AtMost(1_000.0), 1_234.3, "ms", "1234 ms");
        check(Bound::AtMost(0.5), 0.504, "ms", "0.504 ms");
        check(Bound::AtMost(1.0), f64::INFINITY, "s", "inf s");
        check(Bound::AtLeast(0.9), 0.9 - f64::EPSILON, "", &(0.9 - f64::EPSILON).to_string());
        check(Bound::Shown, 0.896, "", "0.90");
        check(Bound::Exactly(3.0), 3.0, "", "3");
    }
}
