//! Which logical times of a schedule had no job, and why: the times of its rule beside what is noted of them.

use std::collections::{BTreeMap, BTreeSet};

use super::due::LATE;
use super::limits::AUDIT_TIMES_MAX;
use super::{Gap, Rule, Times};

/// Why a logical time has no job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Absence {
    /// The schedule was paused.
    Paused,
    /// Nobody was there to fire it, and its policy for missed times left it out.
    Missed,
    /// The schedule was given another rhythm before it fired.
    Changed,
    /// The run before had not ended, and the policy for that left it out.
    Overlap,
    /// It waited for the end of the run before, and a later time took its place.
    Replaced,
    /// It waits for the end of the run before.
    Queued,
    /// The zone's clock leaves it out, and the policy for that as well.
    Gap,
    /// The schedule has come to its end.
    Ended,
    /// The schedule cannot fire; its error says why.
    Failing,
    /// It has come, and nobody has decided about it yet.
    Overdue,
    /// Nothing is noted of it.
    Unexplained,
}

impl Absence {
    /// All of them.
    pub const ALL: [Absence; 11] = [
        Absence::Paused,
        Absence::Missed,
        Absence::Changed,
        Absence::Overlap,
        Absence::Replaced,
        Absence::Queued,
        Absence::Gap,
        Absence::Ended,
        Absence::Failing,
        Absence::Overdue,
        Absence::Unexplained,
    ];

    /// Its name in JSON and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Absence::Paused => "paused",
            Absence::Missed => "missed",
            Absence::Changed => "changed",
            Absence::Overlap => "overlap",
            Absence::Replaced => "replaced",
            Absence::Queued => "queued",
            Absence::Gap => "gap",
            Absence::Ended => "ended",
            Absence::Failing => "failing",
            Absence::Overdue => "overdue",
            Absence::Unexplained => "unexplained",
        }
    }

    /// Was it decided that there is no job, by a policy or by somebody? Otherwise one is missing.
    pub fn is_decided(self) -> bool {
        !matches!(self, Absence::Failing | Absence::Overdue | Absence::Unexplained)
    }

    pub(crate) fn from_name(name: &str) -> Option<Absence> {
        Absence::ALL.into_iter().find(|absence| absence.as_str() == name)
    }
}

/// What is known of a schedule. All instants in seconds since 1970.
#[derive(Debug)]
pub(crate) struct Audit<'a> {
    pub(crate) times: Times<'a>,
    /// Since when its times are those of the rule.
    pub(crate) ruled_at: i64,
    /// What is noted begins here.
    pub(crate) forgotten_at: Option<i64>,
    pub(crate) paused_at: Option<i64>,
    /// The first time that nothing was decided about.
    pub(crate) next_at: Option<i64>,
    pub(crate) failing: bool,
    /// What is noted of single times; none: there is a job.
    pub(crate) runs: BTreeMap<i64, Option<Absence>>,
    /// What is noted of stretches.
    pub(crate) stretches: Vec<Stretch>,
}

/// Times in a row that have no job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) first: i64,
    pub(crate) last: i64,
    /// None: nobody counted them.
    pub(crate) times: Option<u32>,
    pub(crate) why: Absence,
    /// When it was decided.
    pub(crate) noted_at: Option<i64>,
}

/// The result of a comparison.
#[derive(Debug)]
pub(crate) struct Audited {
    /// The times of the rule are compared from here on; before it, only what is noted is listed.
    pub(crate) compared_from: i64,
    /// And up to here: there were too many.
    pub(crate) cut_at: Option<i64>,
    pub(crate) times: u32,
    pub(crate) with_job: u32,
    /// Oldest first.
    pub(crate) left_out: Vec<Stretch>,
}

impl Audit<'_> {
    /// Compares the times from `from` to `until`, both included, at `now`.
    pub(crate) fn compare(&self, from: i64, until: i64, now: i64) -> Audited {
        // A rule begins after the second in which it was set.
        let known_from = (self.ruled_at + 1).max(self.forgotten_at.unwrap_or(i64::MIN));
        let compared_from = from.max(known_from).min(until.saturating_add(1));
        let mut audited =
            Audited { compared_from, cut_at: None, times: 0, with_job: 0, left_out: self.noted(from, compared_from) };
        let gaps = self.gaps(compared_from, until);
        let mut due: Vec<i64> = self.due(&self.times, compared_from, until).collect();
        if due.len() > AUDIT_TIMES_MAX {
            audited.cut_at = due.pop();
        }
        let last = audited.cut_at.unwrap_or(i64::MAX);
        let mut all: Vec<(i64, bool)> = due.into_iter().map(|at| (at, false)).collect();
        all.extend(gaps.into_iter().filter(|at| *at < last).map(|at| (at, true)));
        all.sort_unstable();
        for (at, is_gap) in all {
            let why = if is_gap { Some((Absence::Gap, None)) } else { self.why(at, now) };
            if !is_gap {
                audited.times += 1;
            }
            match why {
                None if self.runs.contains_key(&at) => audited.with_job += 1,
                // It may just be fired.
                None => audited.times -= 1,
                Some((why, noted_at)) => append(&mut audited.left_out, at, why, noted_at),
            }
        }
        if let Some(end) = self.times.ends_at.filter(|end| (compared_from..until).contains(end)) {
            let after = Times { ends_at: None, ..self.times };
            if after.next_after(end).is_some_and(|at| at <= until) && audited.cut_at.is_none() {
                let ended = Stretch { first: end, last: until, times: None, why: Absence::Ended, noted_at: None };
                audited.left_out.push(ended);
            }
        }
        audited
    }

    fn due<'b>(&self, times: &'b Times<'_>, from: i64, until: i64) -> impl Iterator<Item = i64> + use<'b> {
        let first = times.next_after(from.saturating_sub(1));
        std::iter::successors(first, move |at| times.next_after(*at))
            .take_while(move |at| *at <= until)
            .take(AUDIT_TIMES_MAX + 1)
    }

    /// Times that the rule has only if it makes up for what the clock leaves out.
    fn gaps(&self, from: i64, until: i64) -> Vec<i64> {
        if self.times.rule.policies().0 == Gap::Next || !self.times.rule.names_hours() {
            return Vec::new();
        }
        let rule: Rule = self.times.rule.clone().gap(Gap::Next);
        let with = Times { rule: &rule, recent: None, ..self.times };
        let without: BTreeSet<i64> = self.due(&self.times, from, until).collect();
        self.due(&with, from, until).filter(|at| !without.contains(at)).collect()
    }

    /// Why that time has no job. None: it has one, or may just get it.
    fn why(&self, at: i64, now: i64) -> Option<(Absence, Option<i64>)> {
        if let Some(noted) = self.runs.get(&at) {
            return noted.map(|why| (why, None));
        }
        if let Some(stretch) = self.stretches.iter().find(|stretch| (stretch.first..=stretch.last).contains(&at)) {
            return Some((stretch.why, stretch.noted_at));
        }
        if self.paused_at.is_some_and(|paused| paused <= at) {
            return Some((Absence::Paused, None));
        }
        match self.next_at {
            Some(next) if at < next => Some((Absence::Unexplained, None)),
            _ if at >= now - LATE && !self.failing => None,
            _ if self.failing => Some((Absence::Failing, None)),
            _ => Some((Absence::Overdue, None)),
        }
    }

    /// What is noted of times before those that are compared.
    fn noted(&self, from: i64, before: i64) -> Vec<Stretch> {
        let mut noted: Vec<Stretch> =
            self.stretches.iter().filter(|stretch| stretch.last >= from && stretch.first < before).cloned().collect();
        for stretch in &mut noted {
            if stretch.first < from || stretch.last >= before {
                (stretch.first, stretch.last) = (stretch.first.max(from), stretch.last.min(before - 1));
                stretch.times = None;
            }
        }
        let single = self.runs.range(from..before.max(from)).filter_map(|(at, why)| Some((*at, (*why)?)));
        single.for_each(|(at, why)| append(&mut noted, at, why, None));
        noted.sort_by_key(|stretch| stretch.first);
        noted
    }
}

/// One more time: it goes on with the last stretch, or begins one.
fn append(left_out: &mut Vec<Stretch>, at: i64, why: Absence, noted_at: Option<i64>) {
    match left_out.last_mut() {
        Some(last) if last.why == why && last.noted_at == noted_at && last.times.is_some() => {
            last.last = at;
            last.times = last.times.map(|times| times + 1);
        }
        _ => left_out.push(Stretch { first: at, last: at, times: Some(1), why, noted_at }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Missed;

    fn audit(rule: &Rule) -> Audit<'_> {
        Audit {
            times: Times { rule, recent: None, starts_at: None, ends_at: None, missed: Missed::Latest },
            ruled_at: 0,
            forgotten_at: None,
            paused_at: None,
            next_at: Some(i64::MAX),
            failing: false,
            runs: BTreeMap::new(),
            stretches: Vec::new(),
        }
    }

    fn stretch(first: i64, last: i64, why: Absence) -> Stretch {
        Stretch { first, last, times: None, why, noted_at: Some(last) }
    }

    fn found(audited: &Audited) -> Vec<(i64, i64, Option<u32>, &'static str)> {
        audited.left_out.iter().map(|out| (out.first, out.last, out.times, out.why.as_str())).collect()
    }

    #[test]
    fn every_time_without_a_job_has_its_reason_and_what_follows_in_a_row_is_one_line() {
        let minutes = Rule::new("* * * * *", "UTC").unwrap();
        let mut audit = audit(&minutes);
        audit.runs = [(60, None), (120, Some(Absence::Overlap)), (180, Some(Absence::Overlap)), (240, None)].into();
        audit.stretches = vec![stretch(300, 420, Absence::Missed), stretch(500, 600, Absence::Paused)];
        audit.next_at = Some(900);
        let audited = audit.compare(0, 2_000, 2_000);
        assert_eq!(
            found(&audited),
            [
                (120, 180, Some(2), "overlap"),
                (300, 420, Some(3), "missed"),
                (480, 480, Some(1), "unexplained"),
                (540, 600, Some(2), "paused"),
                (660, 840, Some(4), "unexplained"),
                (900, 1980, Some(19), "overdue"),
            ]
        );
        assert_eq!((audited.times, audited.with_job, audited.cut_at), (33, 2, None));
        assert!(Absence::Missed.is_decided() && !Absence::Overdue.is_decided());
    }

    #[test]
    fn what_has_just_come_is_not_missing_yet_and_a_schedule_that_is_paused_or_failing_says_so() {
        let minutes = Rule::new("* * * * *", "UTC").unwrap();
        let mut audit = audit(&minutes);
        audit.next_at = Some(120);
        audit.runs = [(60, None)].into();
        let audited = audit.compare(0, 125, 125);
        assert_eq!((found(&audited).len(), audited.times), (0, 1));
        assert_eq!(found(&audit.compare(0, 131, 131)), [(120, 120, Some(1), "overdue")]);
        audit.failing = true;
        assert_eq!(found(&audit.compare(0, 131, 131)), [(120, 120, Some(1), "failing")]);
        (audit.paused_at, audit.next_at) = (Some(100), None);
        assert_eq!(found(&audit.compare(0, 185, 185)), [(120, 180, Some(2), "paused")]);
    }

    #[test]
    fn before_the_rule_held_and_where_runs_are_forgotten_only_what_is_noted_is_listed() {
        let minutes = Rule::new("* * * * *", "UTC").unwrap();
        let mut audit = audit(&minutes);
        audit.ruled_at = 600;
        audit.stretches = vec![stretch(100, 700, Absence::Paused)];
        audit.runs = [(30, Some(Absence::Overlap)), (720, None)].into();
        let audited = audit.compare(0, 720, 5_000);
        assert_eq!(
            found(&audited),
            [(30, 30, Some(1), "overlap"), (100, 600, None, "paused"), (660, 660, Some(1), "paused")]
        );
        assert_eq!(audited.compared_from, 601);
        audit.forgotten_at = Some(720);
        assert_eq!(audit.compare(0, 720, 5_000).compared_from, 720);
    }

    #[test]
    fn what_the_clock_leaves_out_and_what_comes_after_the_end_is_no_mystery() {
        let daily = Rule::new("30 2 * * *", "Europe/Berlin").unwrap().gap(Gap::Skip);
        let march = 1_805_932_800; // 2027-03-25
        let mut audit = audit(&daily);
        audit.runs = daily_runs(&daily, march, march + 7 * 86_400);
        let audited = audit.compare(march, march + 7 * 86_400, march + 8 * 86_400);
        assert_eq!(found(&audited), [(1_806_195_600, 1_806_195_600, Some(1), "gap")]);
        assert_eq!(audited.times, audited.with_job);
        audit.times.ends_at = Some(march + 86_400);
        let audited = audit.compare(march, march + 3 * 86_400, march + 8 * 86_400);
        assert_eq!(found(&audited), [(march + 86_400, march + 3 * 86_400, None, "ended")]);
    }

    fn daily_runs(rule: &Rule, from: i64, until: i64) -> BTreeMap<i64, Option<Absence>> {
        std::iter::successors(rule.next_after(from), |at| rule.next_after(*at))
            .take_while(|at| *at <= until)
            .map(|at| (at, None))
            .collect()
    }

    #[test]
    fn too_many_times_are_cut_where_it_says() {
        let seconds = Rule::new("* * * * * *", "UTC").unwrap();
        let audited = audit(&seconds).compare(1, 1_000_000, 1_000_000);
        assert_eq!((audited.times, audited.cut_at), (100_000, Some(100_001)));
        assert_eq!(found(&audited), [(1, 100_000, Some(100_000), "unexplained")]);
    }
}
