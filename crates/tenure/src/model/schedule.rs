//! A schedule: a rule, what to enqueue at each of its times, and what becomes of times that were missed or that meet the
//! run before them.

use std::time::{Duration, SystemTime};

use super::limits::{
    SCHEDULE_JITTER_MAX, SCHEDULE_MISSED_DEFAULT, SCHEDULE_MISSED_MAX, SCHEDULE_WINDOW_DEFAULT, SCHEDULE_WINDOW_MAX,
};
use super::{Enqueue, Gap, Rule, Start, Twice, duration, names};
use crate::Error;

/// What becomes of times at which nothing could be enqueued: no worker lived, or the database was down. A time that is
/// found within 10 s is late, not missed, and runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Missed {
    /// None of them runs.
    Skip,
    /// The latest runs, once.
    #[default]
    Latest,
    /// The latest `max` of them run, 1 to 1,000, that are no older than `window`, at most 366 days.
    All {
        /// How many at most.
        max: u32,
        /// How old at most.
        window: Duration,
    },
}

/// What becomes of a time at which the job of the time before has not ended yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overlap {
    /// Both run.
    #[default]
    Allow,
    /// The new one does not run.
    Skip,
    /// The new one runs when the other has ended; one waits so, further ones do not run.
    Queue,
    /// The other is cancelled, and the new one runs when it has ended.
    Cancel,
}

impl Missed {
    /// Its name in the database, in JSON and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Missed::Skip => "skip",
            Missed::Latest => "latest",
            Missed::All { .. } => "all",
        }
    }

    /// The policy of that name; the numbers count for `all`.
    pub(crate) fn of(name: &str, max: u32, window: Duration) -> Result<Missed, Error> {
        match name {
            "skip" => Ok(Missed::Skip),
            "latest" => Ok(Missed::Latest),
            "all" => Ok(Missed::All { max, window }),
            other => Err(Error::bad_input(format!("{other:?} says nothing of missed runs"), "use skip, latest or all")),
        }
    }

    /// At most so many, and so old.
    pub(crate) fn bounds(self) -> (u32, Duration) {
        match self {
            Missed::All { max, window } => (max, window),
            Missed::Skip | Missed::Latest => (SCHEDULE_MISSED_DEFAULT, SCHEDULE_WINDOW_DEFAULT),
        }
    }
}

impl Overlap {
    /// All four.
    pub const ALL: [Overlap; 4] = [Overlap::Allow, Overlap::Skip, Overlap::Queue, Overlap::Cancel];

    /// The policy of that name.
    pub fn from_name(name: &str) -> Option<Overlap> {
        Overlap::ALL.into_iter().find(|overlap| overlap.as_str() == name)
    }

    /// Its name in the database, in JSON and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Overlap::Allow => "allow",
            Overlap::Skip => "skip",
            Overlap::Queue => "queue",
            Overlap::Cancel => "cancel",
        }
    }
}

/// A schedule as it is declared.
///
/// ```
/// # fn main() -> Result<(), tenure::Error> {
/// use tenure::{Enqueue, Missed, RawJson, Rule, Schedule};
///
/// let report = Enqueue::raw("report", RawJson::parse(r#"{"day": "{{logical_date}}"}"#)?).queue("slow");
/// let nightly = Schedule::new("nightly report", Rule::new("30 2 * * *", "Europe/Berlin")?, report)
///     .missed(Missed::Latest);
/// # nightly.check()?;
/// # Ok(()) }
/// ```
///
/// The payload is a template: `{{logical_time}}` becomes the planned instant (`2027-03-28T01:00:00Z`), `{{logical_local}}` what the
/// zone's clock shows then (`2027-03-28T03:00:00`), `{{logical_date}}` its date, `{{logical_epoch}}` the seconds since 1970, and
/// `{{schedule}}` the schedule's name. `{{{{` stands for `{{`.
#[derive(Clone, Debug)]
pub struct Schedule {
    pub(crate) name: String,
    pub(crate) rule: Rule,
    pub(crate) job: Enqueue,
    pub(crate) starts_at: Option<SystemTime>,
    pub(crate) ends_at: Option<SystemTime>,
    pub(crate) jitter: Duration,
    pub(crate) missed: Missed,
    pub(crate) overlap: Overlap,
}

impl Schedule {
    /// At each time of the rule such a job is enqueued. Of the job's options all hold but its delay and instant.
    pub fn new(name: impl Into<String>, rule: Rule, job: Enqueue) -> Schedule {
        Schedule {
            name: name.into(),
            rule,
            job,
            starts_at: None,
            ends_at: None,
            jitter: Duration::ZERO,
            missed: Missed::default(),
            overlap: Overlap::default(),
        }
    }

    /// Not before this instant, itself included; from now on when not given. `@every` counts from it.
    pub fn starts_at(mut self, instant: impl Into<Option<SystemTime>>) -> Schedule {
        self.starts_at = instant.into();
        self
    }

    /// Not after this instant, itself included; for ever when not given.
    pub fn ends_at(mut self, instant: impl Into<Option<SystemTime>>) -> Schedule {
        self.ends_at = instant.into();
        self
    }

    /// Each job waits for a random part of this, at most a day; none when not given. Logical times stay as they are.
    pub fn jitter(mut self, jitter: Duration) -> Schedule {
        self.jitter = jitter;
        self
    }

    /// What becomes of missed times; [`Missed::Latest`] when not given.
    pub fn missed(mut self, missed: Missed) -> Schedule {
        self.missed = missed;
        self
    }

    /// What becomes of a time at which the run before has not ended; [`Overlap::Allow`] when not given.
    pub fn overlap(mut self, overlap: Overlap) -> Schedule {
        self.overlap = overlap;
        self
    }

    /// What becomes of times that are not like others, in a sentence each.
    pub fn policies_in_words(&self) -> Vec<String> {
        let (gap, twice) = self.rule.policies();
        let clock = match self.rule.names_hours() {
            true => format!(
                "a time that the clock leaves out: {}; one that it shows twice: {}",
                match gap {
                    Gap::Next => "runs at the next that exists",
                    Gap::Skip => "does not run",
                },
                match twice {
                    Twice::First => "runs the first time",
                    Twice::Second => "runs the second time",
                    Twice::Both => "runs both times",
                }
            ),
            false => "it follows the clock, or its interval, through hours that are left out or come twice".to_owned(),
        };
        let missed = match self.missed {
            Missed::Skip => "missed times: none runs".to_owned(),
            Missed::Latest => "missed times: the latest runs".to_owned(),
            Missed::All { max, window } => {
                format!("missed times: the latest {max} run that are no older than {}", duration::show(window))
            }
        };
        let overlap = match self.overlap {
            Overlap::Allow => "a run that has not ended: the next one runs beside it",
            Overlap::Skip => "a run that has not ended: the next one is left out",
            Overlap::Queue => "a run that has not ended: the next one waits for its end, further ones are left out",
            Overlap::Cancel => "a run that has not ended: it is cancelled, and the next one runs when it has ended",
        };
        vec![clock, missed, overlap.to_owned()]
    }

    /// The same under another name.
    pub fn named(mut self, name: impl Into<String>) -> Schedule {
        self.name = name.into();
        self
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The same by another rule.
    pub fn with_rule(mut self, rule: Rule) -> Schedule {
        self.rule = rule;
        self
    }

    /// The same with another job.
    pub fn with_job(mut self, job: Enqueue) -> Schedule {
        self.job = job;
        self
    }

    /// What becomes of its missed times.
    pub fn missed_runs(&self) -> Missed {
        self.missed
    }

    /// Its rule.
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// Checks all values. Adding it does so too.
    ///
    /// # Errors
    /// `BadInput`, naming the first wrong value.
    pub fn check(&self) -> Result<(), Error> {
        names::check_schedule(&self.name)?;
        let named = |error: Error| error.context(format!("schedule {:?}", self.name));
        self.check_values().map_err(named)
    }

    fn check_values(&self) -> Result<(), Error> {
        self.job.check()?;
        if self.job.job_options().start != Start::Now {
            return Err(Error::bad_input(
                "its job has a delay or an instant of its own",
                "a schedule's jobs are due at its times; starts_at and jitter move those",
            ));
        }
        if self.jitter > SCHEDULE_JITTER_MAX {
            return Err(Error::bad_input(
                format!("the jitter of {} s is longer than a day", self.jitter.as_secs()),
                "use a shorter one",
            ));
        }
        if let Missed::All { max, window } = self.missed
            && !((1..=SCHEDULE_MISSED_MAX).contains(&max) && window <= SCHEDULE_WINDOW_MAX && !window.is_zero())
        {
            return Err(Error::bad_input(
                format!("{max} missed runs within {} is out of range", duration::show(window)),
                format!("at most {SCHEDULE_MISSED_MAX} runs within 366 days, and at least one"),
            ));
        }
        match (self.starts_at, self.ends_at) {
            (Some(start), Some(end)) if end < start => {
                Err(Error::bad_input("it ends before it starts", "write starts_at before ends_at"))
            }
            (_, _) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RawJson;

    fn schedule() -> Schedule {
        Schedule::new("nightly", Rule::new("@daily", "UTC").unwrap(), Enqueue::raw("k", RawJson::null()))
    }

    #[test]
    fn wrong_values_are_named_with_the_schedule() {
        let check = |schedule: Schedule, part: &str| {
            let error = schedule.check().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        assert!(schedule().check().is_ok());
        check(schedule().jitter(Duration::from_secs(90_000)), "schedule \"nightly\": the jitter of 90000 s");
        check(schedule().missed(Missed::All { max: 0, window: Duration::from_secs(60) }), "0 missed runs");
        check(schedule().missed(Missed::All { max: 1_001, window: Duration::from_secs(60) }), "at most 1000 runs");
        check(schedule().missed(Missed::All { max: 1, window: Duration::ZERO }), "at least one");
        let early = SystemTime::UNIX_EPOCH;
        check(schedule().starts_at(early + Duration::from_secs(1)).ends_at(early), "it ends before it starts");
        let delayed = Enqueue::raw("k", RawJson::null()).delay(Duration::from_secs(1));
        check(Schedule::new("n", Rule::new("@daily", "UTC").unwrap(), delayed), "has a delay");
        check(Schedule::new("", Rule::new("@daily", "UTC").unwrap(), Enqueue::raw("k", RawJson::null())), "is empty");
    }
}
