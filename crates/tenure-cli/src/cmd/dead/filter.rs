//! Which dead letters are meant, as it is typed.

use tenure::{Cause, DeadFilter, JobId};

use crate::exit::Failure;
use crate::when::{self, When};

/// Which dead letters
#[derive(Debug, clap::Args)]
pub struct Filter {
    /// Only of this queue
    #[arg(long)]
    queue: Option<String>,

    /// Only of this kind
    #[arg(long)]
    kind: Option<String>,

    #[arg(long, help = cause_help())]
    cause: Option<String>,

    /// Only those that died before this instant, or longer ago than this: 2026-12-24T18:00:00Z, 2h
    #[arg(long, value_name = "WHEN", value_parser = when::instant_or_ago)]
    before: Option<When>,

    /// Only those that died at this instant or later, or not longer ago than this: 2026-12-24T18:00:00Z, 2h
    #[arg(long, value_name = "WHEN", value_parser = when::instant_or_ago)]
    since: Option<When>,

    /// Only those of this group of `tenure dead list --group`
    #[arg(long, value_name = "GROUP")]
    fingerprint: Option<String>,
}

fn causes() -> String {
    Cause::ALL.map(Cause::as_str).join(", ")
}

fn cause_help() -> String {
    format!("Only with this cause: {}, or one that a program in SQL named", causes())
}

impl Filter {
    fn is_empty(&self) -> bool {
        let texts = [&self.queue, &self.kind, &self.cause, &self.fingerprint];
        texts.iter().all(|text| text.is_none()) && self.before.is_none() && self.since.is_none()
    }

    /// What to say when it finds nothing. A cause may be any text, so that one with a slip in it cannot be refused.
    pub fn none(&self) -> String {
        match &self.cause {
            Some(cause) if !Cause::ALL.iter().any(|known| known.as_str() == cause) => {
                format!("no dead letters; {cause:?} is none of the causes that tenure names: {}", causes())
            }
            Some(_) | None => "no dead letters".to_owned(),
        }
    }

    /// Whether an empty one was meant is decided before.
    pub fn read(&self) -> DeadFilter {
        let mut filter = DeadFilter::all();
        if let Some(queue) = &self.queue {
            filter = filter.queue(queue);
        }
        if let Some(kind) = &self.kind {
            filter = filter.kind(kind);
        }
        if let Some(cause) = &self.cause {
            filter = filter.cause(cause);
        }
        if let Some(fingerprint) = &self.fingerprint {
            filter = filter.fingerprint(fingerprint);
        }
        filter = match self.since {
            Some(When::At(instant)) => filter.since(instant),
            Some(When::Ago(age)) => filter.within(age),
            None => filter,
        };
        match self.before {
            Some(When::At(instant)) => filter.before(instant),
            Some(When::Ago(age)) => filter.older_than(age),
            None => filter,
        }
    }
}

/// Ids, a filter, or all: one of them, said explicitly
#[derive(Debug, clap::Args)]
pub struct Which {
    /// The jobs' ids
    ids: Vec<JobId>,

    #[command(flatten)]
    filter: Filter,

    /// Every dead letter
    #[arg(long)]
    all: bool,
}

/// What was named.
pub enum Named {
    Ids(Vec<JobId>),
    Filter(DeadFilter),
}

impl Which {
    pub fn read(self, verb: &str) -> Result<Named, Failure> {
        match (self.ids.is_empty(), self.filter.is_empty(), self.all) {
            (false, true, false) => Ok(Named::Ids(self.ids)),
            (true, false, false) | (true, true, true) => Ok(Named::Filter(self.filter.read())),
            (true, true, false) => Err(Failure::Usage(format!(
                "dead {verb}: nothing is named\n        name job ids, or a filter (--queue, --kind, --cause, --fingerprint, --before, --since), or --all for every dead letter"
            ))),
            (_, _, _) => Err(Failure::Usage(format!(
                "dead {verb}: job ids, a filter and --all exclude each other\n        give one of them"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_dead_letters_wants_to_be_told_which() {
        let which = |ids: &[i64], kind: Option<&str>, all: bool| Which {
            ids: ids.iter().copied().map(JobId::from).collect(),
            filter: Filter {
                queue: None,
                kind: kind.map(str::to_owned),
                cause: None,
                before: None,
                since: None,
                fingerprint: None,
            },
            all,
        };
        assert!(matches!(which(&[1], None, false).read("x"), Ok(Named::Ids(_))));
        assert!(matches!(which(&[], Some("k"), false).read("x"), Ok(Named::Filter(_))));
        assert!(matches!(which(&[], None, true).read("x"), Ok(Named::Filter(_))));
        for wrong in [which(&[], None, false), which(&[1], None, true), which(&[1], Some("k"), false)] {
            assert!(matches!(wrong.read("x"), Err(Failure::Usage(_))));
        }
    }
}
