//! Which reports go to the database together, and what becomes of those that it did not take.
//!
//! Three troubles are told apart. One report may be bad, or its lease row locked: its group is halved until it is alone,
//! and is then written in a plainer form, or waits. A group may be too much for the server's or the network's time: all
//! groups become smaller, and grow again. Or the whole database is in trouble: the reports stay together, and one group at
//! a time is tried.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::backoff::Backoff;
use super::portion::Portion;
use super::report::{Report, Verb};
use super::stats::Counters;
use crate::store::{Registration, StoreError};

/// Reports in one statement, at most.
const GROUP_MAX: usize = 1000;
/// Bytes of results and error texts in one statement, at most, but for a single report: far below what one message may have.
const GROUP_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Trying what is known to be refused takes at most a fifth of the time.
const PAUSE_AFTER_KNOWN_BAD: u32 = 4;
/// However long one took.
const PAUSE_AFTER_KNOWN_BAD_MAX: Duration = Duration::from_secs(10);
/// What is refused so slowly is tried one by one: the claims and all other reports wait behind it.
const SLOW: Duration = Duration::from_millis(100);
/// Statements under way at once, at most: claims share the connection, and each has a deadline from when it was sent.
const GROUPS_AT_ONCE: usize = 32;

/// Reports of one registration for one statement.
pub(super) struct Group {
    pub(super) verb: Verb,
    pub(super) registration: Arc<Registration>,
    pub(super) reports: Vec<Report>,
    bytes: usize,
    not_before: Instant,
    backoff: Backoff,
    /// The database was asked whether the registration is good after all, and it is.
    pub(super) renewed: bool,
}

impl Group {
    /// A single report that was not taken before, on its own or as the one in a group: whatever becomes of it says nothing
    /// of the database.
    pub(super) fn is_known_bad(&self) -> bool {
        self.reports.len() == 1 && self.backoff.has_failed()
    }
}

/// What has to be sent once more; or the group that was not taken, and why.
pub(super) type Answer = Result<Option<Group>, (Group, StoreError)>;

/// What became of a group.
pub(super) struct Sent {
    pub(super) jobs: usize,
    /// Twice as much would have arrived in time as well.
    pub(super) quick: bool,
    /// See [`Group::is_known_bad`].
    pub(super) known_bad: bool,
    pub(super) took: Duration,
    pub(super) answer: Answer,
}

/// Reports of which the database has not said what became of them.
pub(super) struct Unsettled {
    /// They go together, as many at a time as the database takes.
    pool: Vec<Report>,
    pool_at: Instant,
    backoff: Backoff,
    portion: Portion,
    /// Parts of groups in which a bad report is looked for, and lone reports that wait.
    apart: Vec<Group>,
    /// Groups of the next round, at most.
    at_once: usize,
    /// Of these, what is known to be bad, at most, and not before.
    known_bad_at_once: usize,
    known_bad_at: Instant,
}

impl Unsettled {
    pub(super) fn new(now: Instant) -> Unsettled {
        Unsettled {
            pool: Vec::new(),
            pool_at: now,
            backoff: Backoff::default(),
            portion: Portion::default(),
            apart: Vec::new(),
            at_once: GROUPS_AT_ONCE,
            known_bad_at_once: GROUPS_AT_ONCE,
            known_bad_at: now,
        }
    }

    pub(super) fn add(&mut self, reports: Vec<Report>) {
        self.pool.extend(reports);
    }

    /// When there is something to send. None: nothing waits.
    pub(super) fn next_at(&self) -> Option<Instant> {
        let pool_at = (!self.pool.is_empty()).then_some(self.pool_at);
        self.apart.iter().map(|group| self.due_at(group)).chain(pool_at).min()
    }

    fn due_at(&self, group: &Group) -> Instant {
        if group.is_known_bad() { group.not_before.max(self.known_bad_at) } else { group.not_before }
    }

    /// The groups of the next round.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Group> {
        let at_once = self.at_once;
        let mut groups = Vec::new();
        if self.pool_at <= now {
            let most = self.portion.most().min(GROUP_MAX);
            // However many come in, one of those that are apart has a place.
            let room = if self.apart.is_empty() { at_once } else { (at_once - 1).max(1) };
            (groups, self.pool) = grouped(std::mem::take(&mut self.pool), most, room);
        }
        let mut known_bad = 0;
        for group in std::mem::take(&mut self.apart) {
            let bad = group.is_known_bad();
            let fits = groups.len() < at_once && (!bad || known_bad < self.known_bad_at_once);
            if fits && self.due_at(&group) <= now {
                known_bad += usize::from(bad);
                groups.push(group);
            } else {
                self.apart.push(group);
            }
        }
        groups
    }

    /// After a round.
    pub(super) fn learn(&mut self, sent: Vec<Sent>, now: Instant, stats: &Counters) {
        let answered = sent.iter().any(|sent| sent.answer.is_ok());
        let a_reports_own = |sent: &Sent| sent.answer.as_ref().is_err_and(|(_, error)| is_a_reports_own(error));
        // The database answered nothing, for no reason of the reports'.
        let troubled = !answered && !sent.iter().any(|sent| !sent.known_bad && a_reports_own(sent));
        if answered || !sent.iter().all(|sent| sent.known_bad) {
            // After a trouble of the whole database as many more go at a time as were answered, while they grow in size again.
            self.at_once = if troubled { 1 } else { (self.at_once * 2).min(GROUPS_AT_ONCE) };
            self.pool_at = if troubled { now + self.backoff.next() } else { now };
        }
        let refused = |sent: &&Sent| sent.known_bad && sent.answer.as_ref().is_err_and(|(_, error)| !error.is_lost());
        if let Some(took) = sent.iter().filter(refused).map(|sent| sent.took).max() {
            self.known_bad_at = now + (took * PAUSE_AFTER_KNOWN_BAD).min(PAUSE_AFTER_KNOWN_BAD_MAX);
            self.known_bad_at_once = if took > SLOW { 1 } else { (self.known_bad_at_once * 2).min(GROUPS_AT_ONCE) };
        }
        let quick = sent.iter().filter(|sent| sent.quick && sent.answer.is_ok());
        quick.for_each(|sent| self.portion.grow(sent.jobs));
        let mut too_much: Option<(usize, StoreError)> = None;
        for Sent { answer, .. } in sent {
            match answer {
                Ok(again) => self.apart.extend(again),
                Err((group, error)) => {
                    let jobs = group.reports.len();
                    let back = self.not_taken(group, &error, answered, now, stats);
                    if back && too_much.as_ref().is_none_or(|(most, _)| *most < jobs) {
                        too_much = Some((jobs, error));
                    }
                }
            }
        }
        // Of those that failed together the largest may be the reason; if it was not, the next round tells.
        if let Some((jobs, error)) = too_much {
            self.portion.shrink(jobs);
            if answered || self.backoff.is_loud() {
                tracing::warn!(jobs, %error, most = self.portion.most(), "the ends of jobs could not be stored, trying again");
            }
        }
        if answered {
            self.backoff.reset();
        }
    }

    /// One bad report must be one bad report, and what is too much at once must not be sent at once for ever. True: it goes
    /// back to the others.
    fn not_taken(
        &mut self,
        mut group: Group,
        error: &StoreError,
        answered: bool,
        now: Instant,
        stats: &Counters,
    ) -> bool {
        let (job, jobs) = (group.reports[0].job, group.reports.len());
        if jobs == 1 && error.is_about_values() && group.reports[0].make_plainer(&error.to_string()) {
            tracing::warn!(%job, %error, "the end of a job could not be stored as it was");
            stats.sanitised.one();
            self.apart.push(group);
            return false;
        }
        let own = is_a_reports_own(error);
        // Others were answered at the same time: the reason is in this group, whatever it is.
        let in_this_group = own || answered && !error.is_lost() && !error.is_cut_off();
        if jobs > 1 && !in_this_group {
            self.pool.extend(group.reports);
            return true;
        }
        if jobs == 1 || !own {
            let wait = group.backoff.next();
            if group.backoff.is_loud() {
                tracing::warn!(%job, jobs, %error, ?wait, "the ends of jobs could not be stored, trying again");
            }
            group.not_before = now + wait;
        }
        self.apart.extend(halved(group));
        false
    }
}

/// A value or a lock is the reason, and so a single report: the database is well.
fn is_a_reports_own(error: &StoreError) -> bool {
    error.is_about_values() || error.is_lock_wait()
}

/// So many groups at most, and the reports that fit into none of them.
fn grouped(reports: Vec<Report>, most: usize, groups_most: usize) -> (Vec<Group>, Vec<Report>) {
    let (mut groups, mut rest): (Vec<Group>, _) = (Vec::new(), Vec::new());
    for report in reports {
        let (verb, registration, bytes) = (report.verb(), &report.lease.registration, report.bytes());
        let place = groups.iter().rposition(|group| {
            let room = group.reports.len() < most && group.bytes + bytes <= GROUP_BYTES_MAX;
            room && group.verb == verb && group.registration == *registration
        });
        match place {
            Some(place) => {
                groups[place].bytes += bytes;
                groups[place].reports.push(report);
            }
            None if groups.len() >= groups_most => rest.push(report),
            None => groups.push(Group {
                verb,
                registration: registration.clone(),
                reports: vec![report],
                bytes,
                not_before: Instant::now(),
                backoff: Backoff::default(),
                renewed: false,
            }),
        }
    }
    (groups, rest)
}

/// The group in two parts, when it has more than one report.
fn halved(mut group: Group) -> Vec<Group> {
    if group.reports.len() == 1 {
        return vec![group];
    }
    let reports = group.reports.split_off(group.reports.len() / 2);
    let mut other =
        Group { reports, registration: group.registration.clone(), backoff: group.backoff.clone(), ..group };
    for half in [&mut group, &mut other] {
        // Which one it was is not known before each was sent alone.
        if half.reports.len() == 1 {
            half.backoff = Backoff::default();
        }
    }
    vec![group, other]
}

#[cfg(test)]
mod tests {
    use tokio_postgres::error::SqlState;

    use super::super::report::Ending;
    use super::super::report::tests::{a_failure, failure, report};
    use super::*;
    use crate::model::RawJson;

    #[test]
    fn a_group_holds_one_verb_of_one_registration() {
        let reports = vec![
            report(1, 0, 7, Ending::Completed(None)),
            report(1, 1, 7, failure()),
            report(1, 2, 7, Ending::Completed(None)),
            report(2, 0, 8, Ending::Completed(None)),
            report(1, 3, 7, Ending::CompletedItself(a_failure())),
        ];
        let (groups, _) = grouped(reports, GROUP_MAX, GROUPS_AT_ONCE);
        let shape: Vec<_> = groups.iter().map(|group| (group.verb, group.reports.len())).collect();
        assert_eq!(shape, [(Verb::Complete, 2), (Verb::Fail, 2), (Verb::Complete, 1)]);
        let reports = (0..2500).map(|n| report(n, 0, 7, Ending::Released)).collect();
        let (many, rest) = grouped(reports, GROUP_MAX, 2);
        assert_eq!(many.iter().map(|group| group.reports.len()).collect::<Vec<_>>(), [1000, 1000]);
        assert_eq!(rest.len(), 500);
    }

    #[test]
    fn a_group_fits_a_message() {
        let large = |n| report(n, 0, 7, Ending::Completed(Some(RawJson::of(&"x".repeat(1_000_000)).expect("JSON"))));
        let (groups, _) = grouped((1..=20).map(large).collect(), GROUP_MAX, GROUPS_AT_ONCE);
        assert_eq!(groups.iter().map(|group| group.reports.len()).collect::<Vec<_>>(), [8, 8, 4]);
    }

    fn refused(sqlstate: &str) -> StoreError {
        let sqlstate = SqlState::from_code(sqlstate);
        StoreError::Refused { sqlstate, message: "no".into(), detail: None, hint: None }
    }

    /// A database that takes a group or refuses it, asked until nothing is left or so many rounds have passed: the sizes of
    /// the groups of each round.
    fn rounds(
        unsettled: &mut Unsettled,
        most: usize,
        answer: impl Fn(&Group) -> Option<&'static str>,
    ) -> Vec<Vec<usize>> {
        let mut sizes = Vec::new();
        for _ in 0..most {
            let Some(now) = unsettled.next_at() else { break };
            let groups = unsettled.take_due(now);
            sizes.push(groups.iter().map(|group| group.reports.len()).collect());
            let sent = groups.into_iter().map(|group| Sent {
                jobs: group.reports.len(),
                quick: true,
                known_bad: group.is_known_bad(),
                took: Duration::from_millis(5),
                answer: match answer(&group) {
                    None => Ok(None),
                    Some(sqlstate) => Err((group, refused(sqlstate))),
                },
            });
            let sent = sent.collect();
            unsettled.learn(sent, now, &Counters::default());
        }
        sizes
    }

    fn unsettled(reports: i64) -> Unsettled {
        let mut unsettled = Unsettled::new(Instant::now());
        unsettled.add((0..reports).map(|n| report(n, 0, 7, Ending::Completed(None))).collect());
        unsettled
    }

    #[test]
    fn while_the_database_takes_nothing_one_group_at_a_time_is_tried_and_then_they_grow_together_again() {
        let mut unsettled = unsettled(3000);
        let away = rounds(&mut unsettled, 40, |_| Some("53100"));
        assert!(away[1..].iter().all(|round| round.len() == 1), "{away:?}");
        let back = rounds(&mut unsettled, 1000, |_| None);
        let statements: usize = back.iter().map(Vec::len).sum();
        assert!(back.iter().all(|round| round.len() <= GROUPS_AT_ONCE), "{back:?}");
        assert!(statements < 300, "{statements} statements: {back:?}");
        assert_eq!(back.concat().iter().sum::<usize>(), 3000);
    }

    #[test]
    fn groups_that_take_too_long_become_smaller_for_all_that_follow() {
        let mut unsettled = unsettled(1000);
        let slow = |group: &Group| (group.reports.len() > 300).then_some("57014");
        let sizes = rounds(&mut unsettled, 100, slow).concat();
        assert_eq!(sizes[..3], [1000, 500, 250]);
        let too_much = sizes.iter().filter(|size| **size > 300).count();
        assert!(too_much <= 6, "{sizes:?}");
    }

    #[test]
    fn one_bad_report_ends_up_alone_whatever_the_reason_and_the_others_go_out() {
        for sqlstate in ["23514", "55P03", "P0001", "57014"] {
            let mut unsettled = unsettled(1000);
            let bad = |group: &Group| group.reports.iter().any(|report| report.lease.id == 617).then_some(sqlstate);
            let sizes = rounds(&mut unsettled, 60, bad);
            let left: Vec<_> = unsettled.apart.iter().flat_map(|group| &group.reports).chain(&unsettled.pool).collect();
            assert_eq!((left.len(), left[0].lease.id), (1, 617), "{sqlstate}: {sizes:?}");
        }
    }

    #[test]
    fn reports_that_are_refused_again_and_again_keep_no_other_waiting() {
        let mut unsettled = unsettled(8);
        let bad = |group: &Group| group.reports.iter().any(|report| report.lease.id < 8).then_some("P0001");
        let sizes = rounds(&mut unsettled, 300, bad);
        assert_eq!(unsettled.apart.len(), 8, "{sizes:?}");
        unsettled.add(vec![report(8, 0, 7, Ending::Completed(None))]);
        rounds(&mut unsettled, 1, bad);
        assert!(unsettled.pool.is_empty(), "it went out with the next of them");
    }

    #[test]
    fn what_is_refused_slowly_is_tried_one_at_a_time_and_a_fifth_of_the_time() {
        let mut unsettled = unsettled(4);
        rounds(&mut unsettled, 40, |_| Some("P0001"));
        assert_eq!(unsettled.apart.len(), 4);
        unsettled.at_once = GROUPS_AT_ONCE;
        let mut now = Instant::now() + Duration::from_secs(60);
        let slow = Duration::from_millis(2500);
        for round in 0..3 {
            let groups = unsettled.take_due(now);
            assert_eq!(groups.len(), if round == 0 { 4 } else { 1 }, "round {round}");
            let sent = groups.into_iter().map(|group| Sent {
                jobs: 1,
                quick: false,
                known_bad: group.is_known_bad(),
                took: slow,
                answer: Err((group, refused("P0001"))),
            });
            unsettled.learn(sent.collect(), now, &Counters::default());
            assert!(unsettled.take_due(now + slow * 4 - Duration::from_millis(1)).is_empty());
            now += slow * 4;
        }
    }

    #[test]
    fn of_groups_that_fail_together_the_largest_counts_and_what_went_with_ease_does_not_outdo_it() {
        let mut unsettled = Unsettled::new(Instant::now());
        let completed = |count: i64| (0..count).map(|n| report(n, 0, 7, Ending::Completed(None)));
        unsettled.add(completed(400).chain((400..600).map(|n| report(n, 0, 7, failure()))).collect());
        rounds(&mut unsettled, 1, |group| (group.reports.len() > 300).then_some("57014"));
        assert_eq!(unsettled.portion.most(), 200);
        unsettled.add((400..403).map(|n| report(n, 0, 7, failure())).collect());
        rounds(&mut unsettled, 1, |_| Some("57014"));
        assert_eq!(unsettled.portion.most(), 100);
    }
}
