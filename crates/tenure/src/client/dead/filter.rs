//! Which dead letters are meant.

use std::time::{Duration, SystemTime};

use tokio_postgres::types::ToSql;

use crate::Error;
use crate::client::queues::Clock;

/// Which dead letters are meant: those that have all that is named. Those that were requeued are open no longer, and not among
/// them; who only looks may ask for them too, by [`requeued`](DeadFilter::requeued).
///
/// A filter that names nothing lists all of them; what changes them refuses it and wants [`DeadFilter::all`].
///
/// Ages are counted back from the database's clock when the call begins; no clock of the caller's matters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadFilter {
    queue: Option<String>,
    kind: Option<String>,
    cause: Option<String>,
    before: Option<SystemTime>,
    since: Option<SystemTime>,
    older_than: Option<Duration>,
    within: Option<Duration>,
    fingerprint: Option<String>,
    requeued: bool,
    everything: bool,
}

impl DeadFilter {
    /// Names nothing yet.
    pub fn new() -> Self {
        DeadFilter::default()
    }

    /// All of them, said explicitly.
    pub fn all() -> Self {
        DeadFilter { everything: true, ..DeadFilter::default() }
    }

    /// Only of this queue.
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queue = Some(queue.into());
        self
    }

    /// Only of this kind.
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = Some(kind.into());
        self
    }

    /// Only with this cause: `error`, `timeout`, `worker_lost` …
    pub fn cause(mut self, cause: impl Into<String>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    /// Only those that died before this instant of the database's clock.
    pub fn before(mut self, instant: SystemTime) -> Self {
        self.before = Some(instant);
        self
    }

    /// Only those that died at this instant of the database's clock or after it.
    pub fn since(mut self, instant: SystemTime) -> Self {
        self.since = Some(instant);
        self
    }

    /// Only those that died longer ago than this. Ages above 1,000 years count as 1,000 years.
    pub fn older_than(mut self, age: Duration) -> Self {
        self.older_than = Some(age);
        self
    }

    /// Only those that died within this time: not longer ago. Ages above 1,000 years count as 1,000 years.
    pub fn within(mut self, age: Duration) -> Self {
        self.within = Some(age);
        self
    }

    /// Only those of this group: see [`DeadGroup`](crate::DeadGroup).
    pub fn fingerprint(mut self, fingerprint: impl Into<String>) -> Self {
        self.fingerprint = Some(fingerprint.into());
        self
    }

    /// Those that were requeued, too: to look at them. What changes dead letters refuses it, as these were dealt with.
    pub fn requeued(mut self) -> Self {
        self.requeued = true;
        self
    }

    fn is_empty(&self) -> bool {
        let texts = [&self.queue, &self.kind, &self.cause, &self.fingerprint];
        let instants = [self.before, self.since];
        texts.iter().all(|text| text.is_none())
            && instants.iter().all(Option::is_none)
            && self.ages().iter().all(Option::is_none)
    }

    /// What [`fixed`](Self::fixed) has to know the instants of.
    pub(super) fn ages(&self) -> [Option<Duration>; 2] {
        [self.older_than, self.within]
    }

    /// The same with instants in place of the ages.
    pub(super) fn fixed(&self, clock: &Clock) -> DeadFilter {
        let [older_than, within] = clock.ago;
        DeadFilter {
            before: [self.before, older_than].into_iter().flatten().min(),
            since: self.since.max(within),
            older_than: None,
            within: None,
            ..self.clone()
        }
    }

    /// The first parameters of every statement with a filter.
    pub(super) fn params(&self) -> Vec<&(dyn ToSql + Sync)> {
        assert_eq!(self.ages(), [None, None], "ages are fixed before a filter is sent");
        vec![&self.queue, &self.kind, &self.cause, &self.before, &self.since, &self.fingerprint, &self.requeued]
    }

    /// What dies from this instant on, perhaps again, is not part of a call that started before.
    pub(super) fn until(&self, now: SystemTime) -> DeadFilter {
        DeadFilter { before: Some(self.before.map_or(now, |before| before.min(now))), ..self.clone() }
    }

    pub(super) fn refuse_accident(&self, verb: &str) -> Result<(), Error> {
        if self.requeued {
            return Err(Error::bad_input(
                format!(
                    "{verb} is for dead letters that are open, and the filter asks for those that were requeued too"
                ),
                "leave DeadFilter::requeued() out",
            ));
        }
        match self.is_empty() && !self.everything {
            false => Ok(()),
            true => Err(Error::bad_input(
                format!("no filter is given, and {verb} without one means every dead letter"),
                "name a queue, kind, cause, fingerprint or time; or say so: DeadFilter::all()",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_filter_is_no_way_to_say_all() {
        let error = DeadFilter::default().refuse_accident("discard").unwrap_err();
        assert!(error.to_string().contains("DeadFilter::all()"), "{error}");
        let error = DeadFilter::all().requeued().refuse_accident("discard").unwrap_err();
        assert!(error.to_string().contains("leave DeadFilter::requeued() out"), "{error}");
        let hour = Duration::from_secs(3_600);
        for named in [
            DeadFilter::all(),
            DeadFilter::new().kind("k"),
            DeadFilter::new().older_than(hour),
            DeadFilter::new().within(hour),
        ] {
            assert!(named.refuse_accident("discard").is_ok(), "{named:?}");
        }
    }

    #[test]
    fn an_instant_and_an_age_hold_both() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let clock = Clock { now: at(100), ago: [Some(at(40)), Some(at(20))] };
        let age = Duration::from_secs(1);
        let both = DeadFilter::new().older_than(age).within(age);
        let fixed = both.clone().before(at(50)).since(at(10)).fixed(&clock);
        assert_eq!(fixed, DeadFilter::new().before(at(40)).since(at(20)));
        let fixed = both.before(at(30)).since(at(25)).fixed(&clock);
        assert_eq!(fixed, DeadFilter::new().before(at(30)).since(at(25)));
    }
}
