//! Statements that put jobs in. Their parameters are text and bigint only, so that every client library sends them alike.
//! A statement's name completes "cannot …" in messages.

use tokio_postgres::types::Type;

use super::statement::Statement;

pub(crate) const ENQUEUE: Statement = Statement {
    name: "enqueue the job",
    sql: "select tenure.enqueue($1::text, $2::text::json, $3::text, $4::bigint::integer, \
          timestamptz 'epoch' + $5::bigint * interval '1 microsecond', $6::bigint, $7::bigint::integer, $8::bigint)",
    params: &[Type::TEXT, Type::TEXT, Type::TEXT, Type::INT8, Type::INT8, Type::INT8, Type::INT8, Type::INT8],
};

/// Of each bundle, in the order of the payloads, the first id and the number of jobs: their ids follow one another.
pub(crate) const ENQUEUE_BUNDLES: Statement = Statement {
    name: "enqueue the jobs",
    sql: "select unnest(array[b.first_job, b.jobs]) \
          from tenure.enqueue_bundles($1::text, $2::text[]::json[], $3::text, $4::bigint::integer, \
          timestamptz 'epoch' + $5::bigint * interval '1 microsecond', $6::bigint, $7::bigint::integer, $8::bigint) b",
    params: &[Type::TEXT, Type::TEXT_ARRAY, Type::TEXT, Type::INT8, Type::INT8, Type::INT8, Type::INT8, Type::INT8],
};

/// As [`ENQUEUE`], and what the job stands under.
pub(crate) const ENQUEUE_LIMITED: Statement = Statement {
    name: "enqueue the job under its limits",
    sql: "select tenure.enqueue_limited($1::text, $2::text::json, $9::text::json, $3::text, $4::bigint::integer, \
          timestamptz 'epoch' + $5::bigint * interval '1 microsecond', $6::bigint, $7::bigint::integer, $8::bigint)",
    params: &[
        Type::TEXT,
        Type::TEXT,
        Type::TEXT,
        Type::INT8,
        Type::INT8,
        Type::INT8,
        Type::INT8,
        Type::INT8,
        Type::TEXT,
    ],
};

/// Many jobs of one kind, and what they stand under. Gives their ids.
pub(crate) const ENQUEUE_MANY_LIMITED: Statement = Statement {
    name: "enqueue the jobs under their limits",
    sql: "select id from tenure.enqueue_many_limited($1::text, $2::text[]::json[], $9::text::json, $3::text, $4::bigint::integer, \
          timestamptz 'epoch' + $5::bigint * interval '1 microsecond', $6::bigint, $7::bigint::integer, $8::bigint) as id",
    params: &[
        Type::TEXT,
        Type::TEXT_ARRAY,
        Type::TEXT,
        Type::INT8,
        Type::INT8,
        Type::INT8,
        Type::INT8,
        Type::INT8,
        Type::TEXT,
    ],
};

/// COPY in its text form; `run_at` is the text of a timestamptz.
pub(crate) const COPY_INBOX: Statement = Statement {
    name: "copy the jobs",
    sql: "copy tenure.inbox (kind, payload, queue, priority, run_at, max_attempts, timeout_ms, limits) from stdin",
    params: &[],
};

pub(crate) const ENQUEUE_INBOX: Statement =
    Statement { name: "enqueue the copied jobs", sql: "select id from tenure.enqueue_inbox() as id", params: &[] };

pub(crate) const TRANSACTION: Statement =
    Statement { name: "look at the transaction", sql: "select pg_current_xact_id()::text::bigint", params: &[] };

/// Everything that could refuse the COPY when it starts; the rows are the transaction and microseconds since 1970 by the
/// database's clock. A COPY that is refused at its start leaves the connection of tokio-postgres 0.7.18 one answer behind
/// (the Sync after its CopyFail is answered too), so the rights, the lock and the existence of the table are found out before.
pub(crate) const BEFORE_COPY: Statement = Statement {
    name: "prepare to copy the jobs",
    sql: "with tried as (insert into tenure.inbox (kind, payload) select 'x', 'null'::json where false) \
          select unnest(array[pg_current_xact_id()::text::bigint, (extract(epoch from clock_timestamp()) * 1000000)::bigint])",
    params: &[],
};

/// Raises TN001 when the lease is lost, so that the caller's transaction cannot commit.
pub(crate) const COMPLETE: Statement = Statement {
    name: "complete the job",
    sql: "select 1::bigint from tenure.complete($1::bigint, $2::bigint, $3::text::json)",
    params: &[Type::INT8, Type::INT8, Type::TEXT],
};

#[cfg(test)]
pub(super) static STATEMENTS: &[&Statement] = &[
    &ENQUEUE,
    &ENQUEUE_BUNDLES,
    &ENQUEUE_LIMITED,
    &ENQUEUE_MANY_LIMITED,
    &COPY_INBOX,
    &ENQUEUE_INBOX,
    &TRANSACTION,
    &BEFORE_COPY,
    &COMPLETE,
];
