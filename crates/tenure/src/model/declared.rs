//! Schedules that are declared together, in code or in a file.

use std::collections::HashSet;

use super::{Schedule, names};
use crate::Error;

/// All schedules that one owner declares: a program, a service, a file. A sync makes those that are stored under his name these.
///
/// ```no_run
/// # async fn example(client: tenure::Client) -> Result<(), tenure::Error> {
/// use tenure::{Enqueue, RawJson, Rule, Schedule, Schedules};
///
/// let report = Enqueue::raw("report", RawJson::parse(r#"{"day": "{{logical_date}}"}"#)?);
/// let ours = Schedules::new("billing")
///     .add(Schedule::new("nightly report", Rule::new("30 2 * * *", "Europe/Berlin")?, report));
/// let sync = client.sync_schedules(&ours).await?;
/// println!("{} added, {} removed", sync.added.len(), sync.removed.len());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Schedules {
    pub(crate) owner: String,
    pub(crate) schedules: Vec<Schedule>,
    pub(crate) adopt: bool,
    pub(crate) may_be_empty: bool,
}

impl Schedules {
    /// None yet, of the owner of this name: 1 to 128 bytes.
    pub fn new(owner: impl Into<String>) -> Schedules {
        Schedules { owner: owner.into(), schedules: Vec::new(), adopt: false, may_be_empty: false }
    }

    /// One more.
    #[expect(clippy::should_implement_trait, reason = "nothing is summed up")]
    pub fn add(mut self, schedule: Schedule) -> Schedules {
        self.schedules.push(schedule);
        self
    }

    /// Whether schedules of the same names that were added by hand become this owner's. False when not given: a sync is then refused.
    pub fn adopt(mut self, adopt: bool) -> Schedules {
        self.adopt = adopt;
        self
    }

    /// Whether there may be none, so that a sync removes all that the owner ever declared. False when not given.
    pub fn may_be_empty(mut self, may_be_empty: bool) -> Schedules {
        self.may_be_empty = may_be_empty;
        self
    }

    /// Who declares them.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.schedules.len()
    }

    /// Are there none?
    pub fn is_empty(&self) -> bool {
        self.schedules.is_empty()
    }

    /// # Errors
    /// `BadInput`, naming owner, schedule and value.
    pub fn check(&self) -> Result<(), Error> {
        names::check_owner(&self.owner)?;
        if self.schedules.is_empty() && !self.may_be_empty {
            return Err(Error::bad_input(
                format!("{:?} declares no schedule, which would remove all of his", self.owner),
                "if that is meant, say so: --allow-empty, Schedules::may_be_empty",
            ));
        }
        let mut seen = HashSet::new();
        for schedule in &self.schedules {
            schedule.check()?;
            if !seen.insert(&schedule.name) {
                return Err(Error::bad_input(
                    format!("{:?} declares schedule {:?} twice", self.owner, schedule.name),
                    "leave one of them out, or give it another name",
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Enqueue, RawJson, Rule};

    #[test]
    fn wrong_declarations_are_named() {
        let schedule =
            |name: &str| Schedule::new(name, Rule::new("@daily", "UTC").unwrap(), Enqueue::raw("k", RawJson::null()));
        let check = |schedules: Schedules, part: &str| {
            let error = schedules.check().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        assert!(Schedules::new("o").add(schedule("a")).add(schedule("b")).check().is_ok());
        assert!(Schedules::new("o").may_be_empty(true).check().is_ok());
        check(Schedules::new("o"), "\"o\" declares no schedule");
        check(Schedules::new("").add(schedule("a")), "the owner name is empty");
        check(Schedules::new("o").add(schedule("a")).add(schedule("a")), "declares schedule \"a\" twice");
        check(Schedules::new("o").add(schedule("")), "the schedule name is empty");
    }
}
