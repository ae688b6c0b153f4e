//! When a schedule runs, as it is stored: names and numbers, of which a later version may know more. Whoever fires, shows or edits one reads it here.

use std::time::Duration;

use super::{Gap, Missed, Rule, Times, Twice};
use crate::Error;

/// What is stored. Instants in microseconds since 1970.
#[derive(Debug)]
pub(crate) struct StoredTimes<'a> {
    pub(crate) rule: &'a str,
    pub(crate) zone: &'a str,
    pub(crate) gap: &'a str,
    pub(crate) twice: &'a str,
    pub(crate) anchor_us: i64,
    pub(crate) starts_us: Option<i64>,
    pub(crate) ends_us: Option<i64>,
    pub(crate) missed: &'a str,
    pub(crate) missed_max: u32,
    pub(crate) missed_window: Duration,
}

/// How far somebody has decided about a schedule's times. In microseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decided {
    /// The first time that nothing was decided about, as it was computed then.
    pub(crate) next_us: Option<i64>,
    /// When nobody has computed one yet: from when on. None: it has no further one.
    pub(crate) from_us: Option<i64>,
    /// The last time that something was decided for, or since when it runs by this rule.
    pub(crate) last_us: Option<i64>,
}

impl StoredTimes<'_> {
    /// The rule that is written there.
    pub(crate) fn rule(&self) -> Result<Rule, Error> {
        self.rule_as(Rule::new(self.rule, self.zone)?)
    }

    /// Another rule in its place: with its policies, and counted from its anchor.
    pub(crate) fn rule_as(&self, rule: Rule) -> Result<Rule, Error> {
        Ok(rule
            .gap(Gap::from_name(self.gap).ok_or_else(|| unknown(self.gap))?)
            .twice(Twice::from_name(self.twice).ok_or_else(|| unknown(self.twice))?)
            .anchor_second(second(self.anchor_us)))
    }

    /// What becomes of times that were missed.
    pub(crate) fn missed(&self) -> Result<Missed, Error> {
        Missed::of(self.missed, self.missed_max, self.missed_window)
    }

    /// A rule, that of [`rule`](Self::rule) as a rule, with what bounds it.
    pub(crate) fn times<'r>(&self, rule: &'r Rule) -> Result<Times<'r>, Error> {
        Ok(Times::within(rule, self.starts_us, self.ends_us, self.missed()?))
    }
}

impl<'a> Times<'a> {
    /// A start within a second is reached with the next one, an end within a second with the one before.
    pub(crate) fn within(rule: &'a Rule, starts_us: Option<i64>, ends_us: Option<i64>, missed: Missed) -> Times<'a> {
        let starts_at = starts_us.map(|us| -us.saturating_neg().div_euclid(1_000_000));
        Times { rule, recent: None, starts_at, ends_at: ends_us.map(second), missed }
    }

    /// The first time that nothing was decided about; none: there is no further one.
    pub(crate) fn first(&self, decided: Decided) -> Option<i64> {
        match decided.next_us {
            Some(next) => self.still(second(next), decided.last_us.map(second)),
            None => self.next_after(second(decided.from_us?)),
        }
    }
}

fn second(us: i64) -> i64 {
    us.div_euclid(1_000_000)
}

fn unknown(policy: &str) -> Error {
    Error::bad_input(format!("this program does not know the policy {policy:?}"), "update it to the schema's version")
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORED: StoredTimes<'_> = StoredTimes {
        rule: "@every 10s",
        zone: "UTC",
        gap: "skip",
        twice: "both",
        anchor_us: 5_999_999,
        starts_us: Some(15_000_001),
        ends_us: Some(44_999_999),
        missed: "all",
        missed_max: 3,
        missed_window: Duration::from_secs(60),
    };

    #[test]
    fn the_start_and_the_end_are_among_its_times_to_the_second() {
        let rule = STORED.rule().unwrap();
        assert_eq!(rule.policies(), (Gap::Skip, Twice::Both));
        let times = STORED.times(&rule).unwrap();
        let all: Vec<i64> = std::iter::successors(times.next_after(0), |at| times.next_after(*at)).collect();
        assert_eq!(all, [25, 35], "15 comes before the start");
        let whole = StoredTimes { starts_us: Some(15_000_000), ends_us: Some(45_000_000), ..STORED };
        let times = whole.times(&rule).unwrap();
        let all: Vec<i64> = std::iter::successors(times.next_after(0), |at| times.next_after(*at)).collect();
        assert_eq!(all, [15, 25, 35, 45]);
        assert_eq!(times.missed, Missed::All { max: 3, window: Duration::from_secs(60) });
    }

    #[test]
    fn the_first_time_is_that_of_who_decided_before_or_the_one_after_the_change() {
        let rule = STORED.rule().unwrap();
        let times = STORED.times(&rule).unwrap();
        let decided = |next_us, from_us| Decided { next_us, from_us, last_us: Some(60_000_000) };
        assert_eq!(times.first(decided(Some(35_000_000), Some(0))), Some(35));
        // A clock that was set back: the last run lies after the change, and does not keep it from running.
        assert_eq!(times.first(decided(None, Some(26_000_000))), Some(35));
        assert_eq!(times.first(decided(None, None)), None, "it has ended");
    }

    #[test]
    fn a_policy_of_a_later_version_is_named() {
        for stored in [StoredTimes { gap: "mend", ..STORED }, StoredTimes { twice: "mend", ..STORED }] {
            let error = stored.rule().unwrap_err().to_string();
            assert!(error.contains("does not know the policy \"mend\""), "{error}");
        }
        let stored = StoredTimes { missed: "mend", ..STORED };
        assert!(stored.times(&stored.rule().unwrap()).unwrap_err().to_string().contains("\"mend\""));
    }
}
