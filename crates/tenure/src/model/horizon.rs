//! Who holds back vacuum: open snapshots, prepared transactions, replication slots. Pure values; the database looks.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer};

/// What keeps vacuum from removing dead rows of this database, and how many the tables have that every claim passes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct VacuumHorizon {
    /// From this age on a snapshot counts as [`old`](Snapshot::old): 1 minute, unless the setting `snapshot_warn_ms` says otherwise.
    #[serde(rename = "warn_after_ms", deserialize_with = "milliseconds")]
    pub warn_after: Duration,
    /// The oldest first, 10 at most; empty when nobody holds vacuum back.
    pub snapshots: Vec<Snapshot>,
    /// Sessions of other roles on this database whose details the schema's owner may not read, so that an old snapshot of theirs
    /// is not seen. 0 when the owner is a member of `pg_read_all_stats`, or a superuser.
    pub hidden_sessions: u64,
    /// The hot tables, the one with the most dead rows first; as the server's statistics estimate them.
    pub dead_rows: Vec<DeadRows>,
}

/// Somebody who holds vacuum back.
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct Snapshot {
    /// What it is.
    pub holder: Holder,
    /// The name of a prepared transaction or a replication slot.
    pub name: Option<String>,
    /// The server's process: of a session, of one that reads from the slot, or of one that sends to the standby.
    pub pid: Option<i32>,
    /// The role.
    pub user: Option<String>,
    /// The `application_name` of a session or a standby.
    pub application: Option<String>,
    /// `active`, `idle in transaction`, … of a session; `active` or `inactive` of a slot.
    pub state: Option<String>,
    /// Since the transaction began; none for a slot or a standby, which have no time.
    #[serde(rename = "age_s", deserialize_with = "seconds")]
    pub age: Option<Duration>,
    /// Transactions that began on this server since then.
    pub transactions: u64,
    /// It is as old as [`VacuumHorizon::warn_after`], or 100,000 transactions old when it has no time.
    pub old: bool,
}

/// What holds a [`Snapshot`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Holder {
    /// A session with an open transaction.
    Session,
    /// A transaction that was prepared and has neither been committed nor rolled back.
    Prepared,
    /// A replication slot, for a standby with `hot_standby_feedback`.
    Slot,
    /// A standby with `hot_standby_feedback` that follows without a slot.
    Standby,
}

/// The dead rows of a table.
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct DeadRows {
    /// The table.
    pub table: String,
    /// Rows that are gone and not yet removed by vacuum.
    pub dead: u64,
    /// Rows that are there.
    pub live: u64,
}

impl VacuumHorizon {
    /// Those that are [`old`](Snapshot::old), the oldest first.
    pub fn old(&self) -> impl Iterator<Item = &Snapshot> {
        self.snapshots.iter().filter(|snapshot| snapshot.old)
    }

    /// The dead rows of all hot tables together.
    pub fn dead_rows_in_all(&self) -> u64 {
        self.dead_rows.iter().map(|table| table.dead).sum()
    }
}

impl Holder {
    /// The word in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Holder::Session => "session",
            Holder::Prepared => "prepared",
            Holder::Slot => "slot",
            Holder::Standby => "standby",
        }
    }
}

impl Snapshot {
    /// How to get rid of it, with the statement to run.
    pub fn way_out(&self) -> String {
        match (self.holder, self.pid) {
            (Holder::Session, Some(pid)) => {
                format!("end its transaction there, or: select pg_terminate_backend({pid})")
            }
            (Holder::Session, None) => "end its transaction".to_owned(),
            (Holder::Prepared, _) => {
                let gid = quoted(self.name.as_deref().unwrap_or_default());
                format!("ask its owner, then: commit prepared {gid}, or: rollback prepared {gid}")
            }
            (Holder::Standby, _) => {
                "end the long query on that standby, or set hot_standby_feedback = off there".to_owned()
            }
            (Holder::Slot, _) => {
                let slot = quoted(self.name.as_deref().unwrap_or_default());
                format!(
                    "end the long query on its standby; if there is no such standby any more: select pg_drop_replication_slot({slot})"
                )
            }
        }
    }
}

/// What it is and who: `session 4711 (user app, application psql, idle in transaction)`.
impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.as_deref().unwrap_or_default();
        match self.holder {
            Holder::Session => write!(f, "session {}", self.pid.unwrap_or_default())?,
            Holder::Prepared => write!(f, "prepared transaction {name:?}")?,
            Holder::Slot => write!(f, "replication slot {name:?}")?,
            Holder::Standby => write!(f, "standby of process {}", self.pid.unwrap_or_default())?,
        }
        let known = |word: &str, value: &Option<String>| {
            value.as_deref().filter(|value| !value.is_empty()).map(|value| format!("{word}{value}"))
        };
        let facts = [known("user ", &self.user), known("application ", &self.application), known("", &self.state)];
        let facts: Vec<String> = facts.into_iter().flatten().collect();
        if facts.is_empty() { Ok(()) } else { write!(f, " ({})", facts.join(", ")) }
    }
}

/// A text as SQL has it.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn milliseconds<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    u64::deserialize(from).map(Duration::from_millis)
}

/// Clocks of one machine can differ by a little between two processors: not below 0.
fn seconds<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let seconds = Option::<f64>::deserialize(from)?;
    Ok(seconds.map(|s| Duration::try_from_secs_f64(s.max(0.0)).unwrap_or(Duration::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Snapshot {
        serde_json::from_str(text).expect("a snapshot")
    }

    #[test]
    fn each_holder_is_named_with_the_way_out() {
        let check = |text: &str, shown: &str, way_out: &str| {
            let snapshot = read(text);
            assert_eq!(snapshot.to_string(), shown);
            assert!(snapshot.way_out().contains(way_out), "{}", snapshot.way_out());
        };
        check(
            r#"{"holder":"session","name":null,"pid":47,"user":"app","application":"psql","state":"idle in transaction","age_s":61.5,"transactions":9,"old":true}"#,
            "session 47 (user app, application psql, idle in transaction)",
            "pg_terminate_backend(47)",
        );
        check(
            r#"{"holder":"session","name":null,"pid":47,"user":"app","application":"","state":null,"age_s":-0.1,"transactions":9,"old":true}"#,
            "session 47 (user app)",
            "pg_terminate_backend(47)",
        );
        check(
            r#"{"holder":"prepared","name":"o'clock","pid":null,"user":"app","application":null,"state":null,"age_s":7,"transactions":9,"old":false}"#,
            "prepared transaction \"o'clock\" (user app)",
            "rollback prepared 'o''clock'",
        );
        check(
            r#"{"holder":"slot","name":"s1","pid":null,"user":null,"application":null,"state":"inactive","age_s":null,"transactions":200000,"old":true}"#,
            "replication slot \"s1\" (inactive)",
            "pg_drop_replication_slot('s1')",
        );
        check(
            r#"{"holder":"standby","name":null,"pid":48,"user":"replicator","application":"walreceiver","state":"active","age_s":null,"transactions":200000,"old":true}"#,
            "standby of process 48 (user replicator, application walreceiver, active)",
            "end the long query on that standby",
        );
    }
}
