//! Statements about statistics: what a worker tells, what maintenance folds, what people read.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tokio_postgres::types::Type;

use super::wire::JsonText;
use super::{Session, Statement, StoreError};

static RECORD_STATS: Statement = Statement {
    name: "record statistics",
    sql: "select tenure.record_stats($1, $2, $3, $4, $5)",
    params: &[Type::INT8, Type::INT8, Type::TIMESTAMPTZ, Type::JSON, Type::JSON],
};

/// Since, until, queue, kind (null: the last hour, to now, any); by what; the step in minutes. In the order of time, queue and kind.
pub(crate) const STATS: Statement = Statement {
    name: "read statistics",
    sql: "select s.at, s.queue, s.kind, s.enqueued, s.started, s.completed, s.failed, s.retried, s.dead, s.cancelled, s.snoozed, s.released, s.rescued, \
          s.overruns, s.wait_buckets, s.wait_counts, s.run_buckets, s.run_counts \
          from tenure.stats($1, $2, $3, $4, $5, $6 * interval '1 minute') s",
    params: &[Type::TIMESTAMPTZ, Type::TIMESTAMPTZ, Type::TEXT, Type::TEXT, Type::TEXT_ARRAY, Type::FLOAT8],
};

pub(crate) const UNCOUNTED_SINCE: Statement =
    Statement { name: "look what is not counted yet", sql: "select tenure.uncounted_since()", params: &[] };

/// Since, until (null: the last hour, to now).
pub(crate) const WORKER_STATS: Statement = Statement {
    name: "read the workers' statistics",
    sql: "select s.worker_id, s.name, s.last_at, s.memory_bytes, s.group_memory_bytes, s.throttled_ms, s.claim_buckets, s.claim_counts, s.flush_buckets, s.flush_counts \
          from tenure.worker_stats($1, $2) s",
    params: &[Type::TIMESTAMPTZ, Type::TIMESTAMPTZ],
};

#[cfg(test)]
pub(super) static STATEMENTS: &[&Statement] = &[&RECORD_STATS, &STATS, &UNCOUNTED_SINCE, &WORKER_STATS];

/// What a worker counted of one queue and kind.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct GroupStats<'a> {
    pub(crate) queue: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) started: u32,
    pub(crate) completed: u32,
    pub(crate) failed: u32,
    pub(crate) retried: u32,
    pub(crate) dead: u32,
    pub(crate) cancelled: u32,
    pub(crate) snoozed: u32,
    pub(crate) released: u32,
    pub(crate) overruns: u32,
    pub(crate) wait_buckets: Vec<u8>,
    pub(crate) wait_counts: Vec<u32>,
    pub(crate) run_buckets: Vec<u8>,
    pub(crate) run_counts: Vec<u32>,
}

/// What a worker knows of itself; none: it cannot know.
#[derive(Debug, Default, Serialize)]
pub(crate) struct SelfStats {
    pub(crate) claim_buckets: Vec<u8>,
    pub(crate) claim_counts: Vec<u32>,
    pub(crate) flush_buckets: Vec<u8>,
    pub(crate) flush_counts: Vec<u32>,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) group_memory_bytes: Option<u64>,
    pub(crate) throttled_ms: u64,
}

/// A worker's report, which is the same however often it is sent.
#[derive(Debug)]
pub(crate) struct StatsReport {
    pub(crate) worker: i64,
    /// Grows from report to report.
    pub(crate) seq: i64,
    /// In the minute for which it counts, by the database's clock.
    pub(crate) minute: SystemTime,
    /// JSON of [`GroupStats`].
    pub(crate) groups: String,
    /// JSON of [`SelfStats`].
    pub(crate) own: String,
}

/// The answer to [`Session::fold_stats`].
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Folded {
    /// There is more to do at once.
    pub(crate) more: bool,
}

impl Session {
    /// Tells what a worker counted. A report that was taken before is not counted again.
    pub(crate) async fn record_stats(&self, report: &StatsReport) -> Result<(), StoreError> {
        let (groups, own) = (JsonText(&report.groups), JsonText(&report.own));
        self.query_opt(&RECORD_STATS, &[&report.worker, &report.seq, &report.minute, &groups, &own]).await.map(drop)
    }

    /// A turn of the statistics, within `limit` on the server.
    pub(crate) async fn fold_stats(&self, limit: Duration) -> Result<Folded, StoreError> {
        // As with tick: two commands, one trip, one transaction. It has no id before the second one.
        let (limit_ms, schema) = (limit.as_millis(), self.schema());
        let script = format!("set local statement_timeout = {limit_ms}; select {schema}.fold_stats()");
        let text = self.run_script(&script).await?;
        serde_json::from_str(&text.unwrap_or_default())
            .map_err(|error| StoreError::Protocol(format!("fold_stats returned what cannot be read: {error}")))
    }
}
