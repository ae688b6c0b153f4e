//! What a job stands under: limits, turns with others, an order.

use serde_json::{Map, Value, json};

use super::limits::{COST_MAX, SHARE_MAX, UNDER_MAX};
use super::names;
use crate::Error;

/// A limit that a job stands under, by its name. See [`JobOptions::under`](super::JobOptions::under).
///
/// ```
/// use tenure::{JobOptions, Under};
///
/// let options = JobOptions::new().under("gpu").under(Under::limit("provider").key("acme").cost(3));
/// # assert!(options.check().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Under {
    limit: String,
    key: Option<String>,
    cost: u32,
}

impl Under {
    /// The limit of this name, which has to be set ([`Client::set_limit`](crate::Client::set_limit)).
    pub fn limit(name: impl Into<String>) -> Self {
        Under { limit: name.into(), key: None, cost: 1 }
    }

    /// Whose share of the limit it is: a tenant, an account, a model. 1 to 128 bytes. What the limit says of keys holds for each apart.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// How many tokens of the rate it takes, 1 to 1,000,000; 1 when not given.
    pub fn cost(mut self, tokens: u32) -> Self {
        self.cost = tokens;
        self
    }
}

impl<S: Into<String>> From<S> for Under {
    fn from(name: S) -> Self {
        Under::limit(name)
    }
}

/// All of it; nothing by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) under: Vec<Under>,
    pub(crate) fair: Option<(String, u16)>,
    pub(crate) order: Option<String>,
    /// Beside an order.
    pub(crate) steps_aside: bool,
}

impl Limits {
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.under.len() > UNDER_MAX {
            return Err(Error::bad_input(
                format!("the job stands under {} limits", self.under.len()),
                "a job stands under 8 limits at most",
            ));
        }
        for under in &self.under {
            names::check_what("limit", &under.limit)?;
            under.key.as_ref().map_or(Ok(()), |key| names::check_what("key", key))?;
            if !(1..=COST_MAX).contains(&under.cost) {
                return Err(Error::bad_input(
                    format!("the cost {} is outside 1 to {COST_MAX}", under.cost),
                    "it is the number of tokens that the job takes from the rate",
                ));
            }
        }
        if let Some((key, share)) = &self.fair {
            names::check_what("fair key", key)?;
            if !(1..=SHARE_MAX).contains(share) {
                return Err(Error::bad_input(
                    format!("the share {share} is outside 1 to {SHARE_MAX}"),
                    "keys have turns in proportion to it",
                ));
            }
        }
        if self.steps_aside && self.order.is_none() {
            return Err(Error::bad_input(
                "the job steps aside, and has no order key",
                "name the order with order(key), or leave steps_aside out",
            ));
        }
        self.order.as_ref().map_or(Ok(()), |key| names::check_what("order key", key))
    }

    /// As `tenure.enqueue_limited` wants it; none: the job stands under nothing.
    pub(crate) fn json(&self) -> Option<String> {
        let mut fields = Map::new();
        if !self.under.is_empty() {
            let under = |under: &Under| json!({ "limit": under.limit, "key": under.key, "cost": under.cost });
            fields.insert("under".into(), self.under.iter().map(under).collect());
        }
        if let Some((key, share)) = &self.fair {
            fields.insert("fair".into(), key.as_str().into());
            fields.insert("share".into(), (*share).into());
        }
        if let Some(key) = &self.order {
            fields.insert("order".into(), key.as_str().into());
            fields.insert("failing".into(), if self.steps_aside { "aside" } else { "block" }.into());
        }
        (!fields.is_empty()).then(|| Value::Object(fields).to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::JobOptions;

    #[test]
    fn what_a_job_stands_under_is_told_whole_or_not_at_all() {
        assert_eq!(JobOptions::new().limits.json(), None);
        let all = JobOptions::new().under(Under::limit("p").key("a").cost(2)).fair("t", 3).steps_aside().order("o");
        assert_eq!(
            all.limits.json().unwrap(),
            r#"{"failing":"aside","fair":"t","order":"o","share":3,"under":[{"cost":2,"key":"a","limit":"p"}]}"#
        );
    }

    #[test]
    fn wrong_values_are_named() {
        let check = |options: JobOptions, expected: &str| {
            assert!(options.check().unwrap_err().to_string().contains(expected), "{expected}: {:?}", options.check());
        };
        check(JobOptions::new().under(""), "the limit name is empty");
        check(JobOptions::new().under(Under::limit("a").cost(0)), "the cost 0 is outside 1 to 1000000");
        check(JobOptions::new().fair("a", 0), "the share 0 is outside 1 to 1000");
        check(JobOptions::new().steps_aside(), "steps aside, and has no order key");
        check(JobOptions::new().order("a\n"), "the order key name \"a\\n\" contains the control character");
        check((0..9).fold(JobOptions::new(), |options, n| options.under(n.to_string())), "stands under 9 limits");
    }
}
