//! Names of queues, kinds and schemas: what is allowed, checked before anything is sent.

use super::limits::{NAME_BYTES_MAX, SCHEMA_BYTES_MAX};
use crate::Error;

/// Checks a queue's name: 1 to 128 bytes without control characters.
///
/// # Errors
/// `BadInput`, naming the value.
pub fn check_queue(name: &str) -> Result<(), Error> {
    check("queue", name)
}

/// Checks a kind's name: 1 to 128 bytes without control characters.
///
/// # Errors
/// `BadInput`, naming the value.
pub fn check_kind(name: &str) -> Result<(), Error> {
    check("kind", name)
}

/// Checks a worker's name: 1 to 128 bytes without control characters.
///
/// # Errors
/// `BadInput`, naming the value.
pub fn check_worker(name: &str) -> Result<(), Error> {
    check("worker", name)
}

/// Checks a schedule's name: 1 to 128 bytes without control characters.
///
/// # Errors
/// `BadInput`, naming the value.
pub fn check_schedule(name: &str) -> Result<(), Error> {
    check("schedule", name)
}

/// Checks the name of an owner of schedules: 1 to 128 bytes without control characters.
///
/// # Errors
/// `BadInput`, naming the value.
pub fn check_owner(name: &str) -> Result<(), Error> {
    check("owner", name)
}

/// The same of any other name.
pub(crate) fn check_what(what: &str, name: &str) -> Result<(), Error> {
    check(what, name)
}

fn check(what: &str, name: &str) -> Result<(), Error> {
    let bytes = name.len();
    if bytes == 0 {
        return Err(Error::bad_input(format!("the {what} name is empty"), range()));
    }
    if bytes > NAME_BYTES_MAX {
        return Err(Error::bad_input(format!("the {what} name {} is {bytes} bytes long", start_of(name)), range()));
    }
    match name.chars().find(|c| c.is_control()) {
        Some(c) => Err(Error::bad_input(
            format!("the {what} name {name:?} contains the control character U+{:04X}", u32::from(c)),
            range(),
        )),
        None => Ok(()),
    }
}

fn range() -> String {
    format!("a name has 1 to {NAME_BYTES_MAX} bytes and no control characters")
}

fn start_of(name: &str) -> String {
    format!("{:?}…", name.chars().take(32).collect::<String>())
}

/// Checks a schema's name: lower case letters, digits and `_`, not starting with a digit, at most 40 bytes.
///
/// # Errors
/// `BadInput`, naming the value.
pub fn check_schema(name: &str) -> Result<(), Error> {
    let starts_well = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
    let goes_on_well = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    let taken = name.starts_with("pg_") || ["information_schema", "public"].contains(&name);
    if is_key_word(name) {
        return Err(Error::bad_input(
            format!("{name:?} cannot be the schema of tenure: it is a key word of SQL"),
            format!("users would have to quote it everywhere; use for instance \"{name}_jobs\""),
        ));
    }
    if starts_well && goes_on_well && !taken && name.len() <= SCHEMA_BYTES_MAX {
        return Ok(());
    }
    let shown = if name.len() > NAME_BYTES_MAX { start_of(name) } else { format!("{name:?}") };
    Err(Error::bad_input(
        format!("{shown} cannot be the schema of tenure"),
        format!(
            "use lower case letters, digits and _, not starting with a digit or pg_, at most {SCHEMA_BYTES_MAX} bytes, and a schema of its own"
        ),
    ))
}

/// Words that PostgreSQL reserves, so that no schema can have their name without quotes: the columns "reserved" and
/// "reserved (can be function or type)" of its documentation's appendix C, for version 15 and later.
const KEY_WORDS: &str = "all analyse analyze and any array as asc asymmetric authorization binary both case cast check \
    collate collation column concurrently constraint create cross current_catalog current_date current_role \
    current_schema current_time current_timestamp current_user default deferrable desc distinct do else end except \
    false fetch for foreign freeze from full grant group having ilike in initially inner intersect into is isnull join \
    lateral leading left like limit localtime localtimestamp natural not notnull null offset on only or order outer \
    overlaps placing primary references returning right select session_user similar some symmetric system_user table \
    tablesample then to trailing true union unique user using variadic verbose when where window with";

fn is_key_word(name: &str) -> bool {
    KEY_WORDS.split_ascii_whitespace().any(|word| word == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_with_the_value_in_the_message() {
        let check = |name: &str, expected: Option<&str>| match (check_queue(name), expected) {
            (Ok(()), None) => {}
            (Err(error), Some(part)) => assert!(error.to_string().contains(part), "{error}"),
            (got, expected) => panic!("{name:?}: {got:?}, expected {expected:?}"),
        };
        check("mail", None);
        check("Größe 7/übrig", None);
        check(&"x".repeat(128), None);
        check("", Some("the queue name is empty (a name has 1 to 128 bytes"));
        check(&"x".repeat(129), Some("is 129 bytes long"));
        check(&"ü".repeat(65), Some("is 130 bytes long"));
        check("a\0b", Some("\"a\\0b\" contains the control character U+0000"));
        check("a\nb", Some("U+000A"));
    }

    #[test]
    fn schema_names_need_no_quoting() {
        for good in ["tenure", "_x", "jobs_2", &"a".repeat(40)] {
            assert!(check_schema(good).is_ok(), "{good}");
        }
        for bad in ["", "2x", "Jobs", "a-b", "pg_jobs", "public", "a\"b", "größe", "user", "with", &"a".repeat(41)] {
            assert!(check_schema(bad).is_err(), "{bad}");
        }
    }
}
