//! Statements about how long finished jobs are kept.

use tokio_postgres::types::Type;

use super::statement::Statement;

/// Queue (null: the default of all), outcome, milliseconds (null: as if never set).
pub(crate) const SET_KEEP: Statement = Statement {
    name: "set how long jobs are kept",
    sql: "select tenure.set_keep($1, $2, $3)",
    params: &[Type::TEXT, Type::TEXT, Type::INT8],
};

pub(crate) const KEEP_DEFAULTS: Statement = Statement {
    name: "look how long jobs are kept",
    sql: "select k.completed_ms, k.cancelled_ms, k.dead_ms from tenure.keeps() k where k.queue is null",
    params: &[],
};

/// Everything is looked at anew, and nothing waits for a range to become due as a whole.
pub(crate) const WALK_ANEW: Statement =
    Statement { name: "begin to prune", sql: "select tenure.walk_anew(true)", params: &[] };

/// After this job id (null: from the start); JSON.
pub(crate) const RETAIN_PREVIEW: Statement = Statement {
    name: "look what is due to be removed",
    sql: "select tenure.retain_preview($1)",
    params: &[Type::INT8],
};

#[cfg(test)]
pub(super) static STATEMENTS: &[&Statement] = &[&SET_KEEP, &KEEP_DEFAULTS, &WALK_ANEW, &RETAIN_PREVIEW];
