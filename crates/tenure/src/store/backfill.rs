//! Statements about backfills, and about what became of a schedule's past times.

use tokio_postgres::types::Type;

use super::statement::Statement;

/// The schedule's name, the times in the order in which they run, at once, priority, again, by whom.
pub(crate) const ADD_BACKFILL: Statement = Statement {
    name: "begin the backfill",
    sql: "select tenure.add_backfill($1, $2, $3, $4, $5, $6)",
    params: &[Type::TEXT, Type::TIMESTAMPTZ_ARRAY, Type::INT4, Type::INT4, Type::BOOL, Type::TEXT],
};

/// The id, and by whom.
pub(crate) const CANCEL_BACKFILL: Statement = Statement {
    name: "cancel the backfill",
    sql: "select tenure.cancel_backfill($1, $2)",
    params: &[Type::INT8, Type::TEXT],
};

/// The schedule's name, and times of it.
pub(crate) const RAN_OF: Statement = Statement {
    name: "look which times have run",
    sql: "select tenure.ran_of($1, $2)",
    params: &[Type::TEXT, Type::TIMESTAMPTZ_ARRAY],
};

/// The one of that id (null: all), of that schedule (null: of any), before this id (null: from the newest), how many.
pub(crate) const BACKFILLS: Statement = Statement {
    name: "list backfills",
    sql: "select b.id, b.schedule, b.state, b.first_at, b.last_at, b.newest_first, b.times, b.done, b.enqueued, b.skipped, b.dead, b.open, \
          b.at_once, b.priority, b.again, b.created_at, b.created_by, b.cancelled_at, b.cancelled_by, b.ended_at, b.error, b.error_at \
          from tenure.backfills b where ($1 is null or b.id = $1) and ($2 is null or b.schedule = $2) and ($3 is null or b.id < $3) \
          order by b.id desc limit $4",
    params: &[Type::INT8, Type::TEXT, Type::INT8, Type::INT8],
};

/// The schedule's name, from and until, how many: what is noted of its times, oldest first.
pub(crate) const NOTED_RUNS: Statement = Statement {
    name: "read what is noted of a schedule's times",
    sql: "select r.logical_at, r.last_at, r.times, r.state, r.job_id is not null, r.noted_at from tenure.schedule_runs r \
          where r.schedule = $1 and not r.removed and r.last_at >= $2 and r.logical_at <= $3 order by r.logical_at, r.state limit $4",
    params: &[Type::TEXT, Type::TIMESTAMPTZ, Type::TIMESTAMPTZ, Type::INT8],
};

#[cfg(test)]
pub(super) static STATEMENTS: &[&Statement] = &[&ADD_BACKFILL, &CANCEL_BACKFILL, &RAN_OF, &BACKFILLS, &NOTED_RUNS];
