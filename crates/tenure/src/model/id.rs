use std::fmt;
use std::str::FromStr;

use bytes::BytesMut;
use postgres_types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize};

use super::limits::BLOCK_JOBS;
use crate::Error;

/// A job's number: positive, never used twice, not dense.
///
/// Reads from JSON as a number or as a string of digits; writes as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct JobId(i64);

impl JobId {
    /// The number.
    pub fn get(self) -> i64 {
        self.0
    }

    /// The id of the job in `slot` (0 to 127) of `block`.
    ///
    /// # Panics
    /// When the slot is not below 128.
    pub fn in_block(block: i64, slot: u8) -> Self {
        assert!(usize::from(slot) < BLOCK_JOBS, "slot {slot} is not below {BLOCK_JOBS}");
        JobId(block * BLOCK_JOBS as i64 + i64::from(slot))
    }

    /// The block that holds the job: jobs of a block are stored, claimed and finished together.
    pub fn block(self) -> i64 {
        self.0 >> 7
    }

    /// The job's place in its block, 0 to 127.
    pub fn slot(self) -> u8 {
        (self.0 & 127) as u8
    }
}

impl From<i64> for JobId {
    fn from(id: i64) -> Self {
        JobId(id)
    }
}

impl From<JobId> for i64 {
    fn from(id: JobId) -> Self {
        id.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for JobId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text.parse::<i64>() {
            Ok(id) if id > 0 => Ok(JobId(id)),
            Ok(_) | Err(_) => Err(Error::bad_input(
                format!("{text:?} is not a job id"),
                "a job id is a positive whole number, as printed by `tenure enqueue` and `tenure job list`",
            )),
        }
    }
}

impl<'de> Deserialize<'de> for JobId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberOrString;
        impl Visitor<'_> for NumberOrString {
            type Value = JobId;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a job id: a positive whole number or a string of digits")
            }

            fn visit_i64<E: de::Error>(self, id: i64) -> Result<JobId, E> {
                match id > 0 {
                    true => Ok(JobId(id)),
                    false => Err(E::invalid_value(de::Unexpected::Signed(id), &self)),
                }
            }

            fn visit_u64<E: de::Error>(self, id: u64) -> Result<JobId, E> {
                let id = i64::try_from(id).map_err(|_| E::invalid_value(de::Unexpected::Unsigned(id), &self))?;
                self.visit_i64(id)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<JobId, E> {
                text.parse().map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(NumberOrString)
    }
}

impl ToSql for JobId {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        self.0.to_sql(ty, out)
    }

    accepts!(INT8);
    to_sql_checked!();
}

impl<'a> FromSql<'a> for JobId {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        i64::from_sql(ty, raw).map(JobId)
    }

    accepts!(INT8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_names_its_block_and_slot() {
        let id = JobId::from(5 * 128 + 37);
        assert_eq!((id.block(), id.slot()), (5, 37));
        assert_eq!(JobId::in_block(5, 37), id);
    }

    #[test]
    fn an_id_reads_from_numbers_and_strings_and_nothing_else() {
        let read = |json: &str| serde_json::from_str::<JobId>(json).ok().map(JobId::get);
        assert_eq!(read("12"), Some(12));
        assert_eq!(read("\"12\""), Some(12));
        for bad in ["0", "-1", "1.5", "\"x\"", "null", "18446744073709551615"] {
            assert_eq!(read(bad), None, "{bad}");
        }
        assert!("12x".parse::<JobId>().unwrap_err().to_string().contains("\"12x\" is not a job id"));
    }
}
