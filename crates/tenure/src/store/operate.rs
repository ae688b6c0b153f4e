//! Statements of the operator's verbs on whole selections and on the whole schema: cancel, pause of kinds, drain, groups of dead letters, settings.

use tokio_postgres::types::Type;

use super::statement::Statement;

/// States, queue, kind and instant of the enqueue (null: any), and where the batch before stopped (null: the start).
pub(crate) const CANCEL_MANY: Statement = Statement {
    name: "cancel jobs of a selection",
    sql: "select b.cancelled, b.requested, b.busy, b.place, b.after from tenure.cancel_many($1, $2, $3, $4, $5, $6) b",
    params: &[Type::TEXT_ARRAY, Type::TEXT, Type::TEXT, Type::TIMESTAMPTZ, Type::TEXT, Type::TEXT_ARRAY],
};

/// The selection as in [`CANCEL_MANY`]; each row: a state and a count.
pub(crate) const COUNT_JOBS: Statement = Statement {
    name: "count jobs of a selection",
    sql: "select c.status, c.jobs from tenure.count_jobs($1, $2, $3, $4) c order by c.status",
    params: &[Type::TEXT_ARRAY, Type::TEXT, Type::TEXT, Type::TIMESTAMPTZ],
};

pub(crate) const WAITS_FOR: Statement = Statement {
    name: "ask why the job does not run",
    sql: "select w.reason, w.explained from tenure.waits_for($1) w",
    params: &[Type::INT8],
};

pub(crate) const PAUSE_KIND: Statement = Statement {
    name: "pause the kind",
    sql: "select tenure.pause_kind($1, $2, $3, $4)",
    params: &[Type::TEXT, Type::TEXT, Type::TEXT, Type::TEXT],
};

pub(crate) const RESUME_KIND: Statement =
    Statement { name: "resume the kind", sql: "select tenure.resume_kind($1, $2)", params: &[Type::TEXT, Type::TEXT] };

pub(crate) const SETTLE_PAUSE: Statement =
    Statement { name: "wait for claims under way", sql: "select tenure.settle_pause()", params: &[] };

/// The second look at a job whose worker was asked to cancel it.
pub(crate) const CANCEL_SETTLED: Statement = Statement {
    name: "look at the cancelled job again",
    sql: "select tenure.cancel_settled($1)",
    params: &[Type::INT8],
};

pub(crate) const PAUSED_KINDS: Statement = Statement {
    name: "list paused kinds",
    sql: "select k.kind, k.queue, k.paused_at, k.paused_by, k.pause_reason from tenure.kind_pause k \
          order by k.kind, k.queue nulls first limit $1",
    params: &[Type::INT8],
};

pub(crate) const DRAIN_WORKER: Statement = Statement {
    name: "drain the worker",
    sql: "select tenure.drain_worker($1, $2)",
    params: &[Type::INT8, Type::BOOL],
};

pub(crate) const LINE_OF: Statement = Statement {
    name: "look at the line of the job",
    sql: "select l.job_id, l.status, l.cause, l.created_at, l.ended_at from tenure.line_of($1) l",
    params: &[Type::INT8],
};

pub(crate) const SETTINGS: Statement = Statement {
    name: "look at the settings",
    sql: "select s.name, s.value, s.lowest, s.highest, s.default_value, s.is_set from tenure.settings() s order by s.name",
    params: &[],
};

pub(crate) const SET_SETTING: Statement =
    Statement { name: "set the number", sql: "select tenure.set_setting($1, $2)", params: &[Type::TEXT, Type::INT8] };

/// Name, concurrency, rate, period and burst, and the same four of each key.
pub(crate) const SET_LIMIT: Statement = Statement {
    name: "set the limit",
    sql: "select tenure.set_limit($1, $2, $3, $4, $5, $6, $7, $8, $9)",
    params: &[
        Type::TEXT,
        Type::INT4,
        Type::INT4,
        Type::INT8,
        Type::INT4,
        Type::INT4,
        Type::INT4,
        Type::INT8,
        Type::INT4,
    ],
};

pub(crate) const REMOVE_LIMIT: Statement =
    Statement { name: "remove the limit", sql: "select tenure.remove_limit($1)", params: &[Type::TEXT] };

/// Of one name, or of all (null), with so many keys.
pub(crate) const LIMITS: Statement = Statement {
    name: "list the limits",
    sql: "select l.name, l.key, l.concurrency::bigint, l.running, l.rate::bigint, l.period_ms, l.burst::bigint, l.tokens, l.pace, l.blocked_until, l.set_at \
          from tenure.limits($1, $2) l order by l.name, l.key nulls first",
    params: &[Type::TEXT, Type::INT4],
};

/// Queue, jobs, jobs of each key, policy, and the time of "wait".
pub(crate) const SET_QUEUE_BOUND: Statement = Statement {
    name: "bound the queue",
    sql: "select tenure.set_queue_bound($1, $2, $3, $4, $5)",
    params: &[Type::TEXT, Type::INT4, Type::INT4, Type::TEXT, Type::INT4],
};

pub(crate) const REMOVE_QUEUE_BOUND: Statement = Statement {
    name: "lift the bound of the queue",
    sql: "select tenure.remove_queue_bound($1)",
    params: &[Type::TEXT],
};

pub(crate) const QUEUE_BOUNDS: Statement = Statement {
    name: "list the bounds of queues",
    sql: "select b.queue, b.jobs::bigint, b.key_jobs::bigint, b.policy, b.wait_ms::bigint, b.counted, b.refused, b.dropped, b.set_at \
          from tenure.queue_bounds() b order by b.queue",
    params: &[],
};

#[cfg(test)]
pub(super) static STATEMENTS: &[&Statement] = &[
    &CANCEL_MANY,
    &COUNT_JOBS,
    &WAITS_FOR,
    &PAUSE_KIND,
    &RESUME_KIND,
    &SETTLE_PAUSE,
    &CANCEL_SETTLED,
    &PAUSED_KINDS,
    &DRAIN_WORKER,
    &LINE_OF,
    &SETTINGS,
    &SET_SETTING,
    &SET_LIMIT,
    &SET_QUEUE_BOUND,
    &REMOVE_QUEUE_BOUND,
    &QUEUE_BOUNDS,
    &REMOVE_LIMIT,
    &LIMITS,
];
