//! Statements that look at jobs, queues, dead letters and workers, and the operator's verbs on them.

use tokio_postgres::types::Type;

use super::statement::Statement;

macro_rules! job_columns {
    () => {
        "j.id, j.kind, j.queue, j.status, j.priority, j.attempt, j.max_attempts, j.run_at, j.created_at, j.started_at, \
         j.finished_at, j.updated_at, j.worker, j.last_error, j.payload, j.result, j.progress, j.timeout_ms, \
         j.idempotency_key, j.origin_id, j.replaces_id, j.replaced_by, j.overrun, j.snoozes"
    };
}

pub(crate) const GET_JOB: Statement = Statement {
    name: "look at the job",
    sql: concat!("select ", job_columns!(), " from tenure.jobs j where j.id = $1"),
    params: &[Type::INT8],
};

/// Statuses, queue and kind (null: any), below this id (null: from the newest), how many, and whether dead letters that were
/// requeued are among the dead. `offset 0` keeps the planner from
/// joining with all of the view: it looks up one id at a time.
pub(crate) const LIST_JOBS: Statement = Statement {
    name: "list jobs",
    sql: concat!(
        "select ",
        job_columns!(),
        " from tenure.pick_jobs($1, $2, $3, $4, $5::bigint::integer, $6) as p(id) \
         cross join lateral (select v.* from tenure.jobs v where v.id = p.id offset 0) j order by j.id desc"
    ),
    params: &[Type::TEXT_ARRAY, Type::TEXT, Type::TEXT, Type::INT8, Type::INT8, Type::BOOL],
};

pub(crate) const END_OF_JOB: Statement = Statement {
    name: "look for the end of the job",
    sql: "select e.status, e.result, e.cause, e.message, e.replaced_by from tenure.end_of($1) e",
    params: &[Type::INT8],
};

pub(crate) const ATTEMPT_ERRORS: Statement = Statement {
    name: "list the failed attempts",
    sql: "select e.attempt, e.cause, e.message, e.details, coalesce(e.worker_name, 'worker ' || e.worker_id || ' (left)'), e.started_at, e.failed_at \
          from tenure.attempt_error e where e.job_id = $1 order by e.attempt, e.lease_id limit $2",
    params: &[Type::INT8, Type::INT8],
};

pub(crate) const CANCEL: Statement =
    Statement { name: "cancel the job", sql: "select tenure.cancel($1)", params: &[Type::INT8] };

/// Microseconds since 1970 or milliseconds from now; both null: now.
pub(crate) const RESCHEDULE: Statement = Statement {
    name: "reschedule the job",
    sql: "select tenure.reschedule($1, timestamptz 'epoch' + $2 * interval '1 microsecond', $3)",
    params: &[Type::INT8, Type::INT8, Type::INT8],
};

pub(crate) const REQUEUE: Statement =
    Statement { name: "requeue the job", sql: "select tenure.requeue($1, $2)", params: &[Type::INT8, Type::JSON] };

pub(crate) const DISCARD: Statement =
    Statement { name: "discard the dead letter", sql: "select tenure.discard($1)", params: &[Type::INT8] };

macro_rules! dead_filter {
    () => {
        " from tenure.dead_letter d left join tenure.replacement x on x.job_id = d.job_id \
         where ($7 or x.job_id is null) and ($1 is null or d.queue = $1) and ($2 is null or d.kind = $2) \
         and ($3 is null or d.cause = $3) and ($4 is null or d.died_at < $4) and ($5 is null or d.died_at >= $5) \
         and ($6 is null or d.fingerprint = $6)"
    };
}

macro_rules! dead_columns {
    () => {
        "d.job_id, d.kind, d.queue, d.priority, d.attempt, d.max_attempts, d.created_at, d.started_at, d.died_at, d.cause, \
         d.message, d.errors, d.payload, d.idempotency_key, d.origin_id, d.replaces_id, x.new_id, d.fingerprint"
    };
}

/// The parameters of [`dead_filter`]: queue, kind, cause, died before, died since, fingerprint (null: any), and
/// whether those that were requeued are among them.
macro_rules! dead_filter_params {
    ($($more:expr),*) => {
        &[Type::TEXT, Type::TEXT, Type::TEXT, Type::TIMESTAMPTZ, Type::TIMESTAMPTZ, Type::TEXT, Type::BOOL, $($more),*]
    };
}

/// The filter, after this instant and id, how many. Oldest first.
pub(crate) const LIST_DEAD: Statement = Statement {
    name: "list dead letters",
    sql: concat!(
        "select ",
        dead_columns!(),
        dead_filter!(),
        " and ($8 is null or (d.died_at, d.job_id) > ($8, $9)) order by d.died_at, d.job_id limit $10"
    ),
    params: dead_filter_params![Type::TIMESTAMPTZ, Type::INT8, Type::INT8],
};

/// The filter, how many groups; the largest first. The example is the one that was enqueued last.
pub(crate) const GROUP_DEAD: Statement = Statement {
    name: "group dead letters",
    sql: concat!(
        "select g.fingerprint, g.letters, g.kinds, g.first_at, g.last_at, g.example, e.cause, tenure.outline(e.message) \
         from (select d.fingerprint, count(*) as letters, array_agg(distinct d.kind) as kinds, min(d.died_at) as first_at, \
         max(d.died_at) as last_at, max(d.job_id) as example",
        dead_filter!(),
        " group by d.fingerprint order by count(*) desc, d.fingerprint limit $8) g \
         join tenure.dead_letter e on e.job_id = g.example order by g.letters desc, g.fingerprint"
    ),
    params: dead_filter_params![Type::INT8],
};

/// The filter; how many.
pub(crate) const COUNT_DEAD: Statement = Statement {
    name: "count dead letters",
    sql: concat!("select count(*)", dead_filter!()),
    params: dead_filter_params!(),
};

pub(crate) const GET_DEAD: Statement = Statement {
    name: "look at the dead letter",
    sql: concat!(
        "select ",
        dead_columns!(),
        " from tenure.dead_letter d left join tenure.replacement x on x.job_id = d.job_id where d.job_id = $1"
    ),
    params: &[Type::INT8],
};

/// The filter, after this instant and id, how many, when the first of them may run (null: at once), and how many
/// milliseconds lie between two; each row: the old id and the new one, and when it had died.
pub(crate) const REQUEUE_DEAD: Statement = Statement {
    name: "requeue dead letters",
    sql: concat!(
        "select d.job_id, tenure.requeue(d.job_id, null, $11 + (d.place - random()) * $12 * interval '1 millisecond'), d.died_at \
         from (select d.job_id, d.died_at, row_number() over (order by d.died_at, d.job_id) as place",
        dead_filter!(),
        " and ($8 is null or (d.died_at, d.job_id) > ($8, $9)) order by d.died_at, d.job_id limit $10) d"
    ),
    params: dead_filter_params![Type::TIMESTAMPTZ, Type::INT8, Type::INT8, Type::TIMESTAMPTZ, Type::FLOAT8],
};

/// The filter, after this instant and id, how many; each row: the id, whether it was still there, and when it had died.
pub(crate) const DISCARD_DEAD: Statement = Statement {
    name: "discard dead letters",
    sql: concat!(
        "select d.job_id, tenure.discard(d.job_id), d.died_at from (select d.job_id, d.died_at",
        dead_filter!(),
        " and ($8 is null or (d.died_at, d.job_id) > ($8, $9)) order by d.died_at, d.job_id limit $10) d"
    ),
    params: dead_filter_params![Type::TIMESTAMPTZ, Type::INT8, Type::INT8],
};

pub(crate) const QUEUES: Statement = Statement {
    name: "list queues",
    sql: "select q.queue, q.available, q.scheduled, q.running, q.held, q.dead, q.oldest_due_at, q.paused_at, q.paused_by, \
          q.pause_reason, coalesce(k.completed_ms, d.completed_ms), coalesce(k.cancelled_ms, d.cancelled_ms), coalesce(k.dead_ms, d.dead_ms), \
          k.queue is not null \
          from tenure.queue_stats() q left join tenure.keeps() k on k.queue = q.queue \
          cross join (select x.completed_ms, x.cancelled_ms, x.dead_ms from tenure.keeps() x where x.queue is null) d order by q.queue",
    params: &[],
};

pub(crate) const UNHANDLED_KINDS: Statement = Statement {
    name: "list the kinds that no worker handles",
    sql: "select k.queue, k.kind, k.available, k.oldest_due_at, k.refused from tenure.unhandled_kinds() k order by k.queue, k.kind",
    params: &[],
};

pub(crate) const PAUSE: Statement = Statement {
    name: "pause the queue",
    sql: "select tenure.pause($1, $2, $3)",
    params: &[Type::TEXT, Type::TEXT, Type::TEXT],
};

pub(crate) const RESUME: Statement =
    Statement { name: "resume the queue", sql: "select tenure.resume($1)", params: &[Type::TEXT] };

pub(crate) const WORKERS: Statement = Statement {
    name: "list workers",
    sql: "select w.id, w.name, w.host, w.pid, w.version, w.queues, w.kinds, w.started_at, w.seen_at, w.lease_until, w.has_lock, \
          w.state, w.running::bigint, w.overruns::bigint from tenure.worker_list w order by w.id limit $1",
    params: &[Type::INT8],
};

pub(crate) const SERVER: Statement = Statement {
    name: "look at the server",
    sql: "select current_setting('server_version'), current_database(), clock_timestamp(), \
          (select coalesce(max(m.version), 0) from tenure.migration m)",
    params: &[],
};

/// Two ages in microseconds (null: not asked for); the database's clock, and what it showed so long ago.
pub(crate) const CLOCK: Statement = Statement {
    name: "look at the database's clock",
    sql: "select n.now, n.now - $1 * interval '1 microsecond', n.now - $2 * interval '1 microsecond' \
          from (select clock_timestamp() as now) n",
    params: &[Type::INT8, Type::INT8],
};

#[cfg(test)]
pub(super) static STATEMENTS: &[&Statement] = &[
    &GET_JOB,
    &LIST_JOBS,
    &END_OF_JOB,
    &ATTEMPT_ERRORS,
    &CANCEL,
    &RESCHEDULE,
    &REQUEUE,
    &DISCARD,
    &LIST_DEAD,
    &GET_DEAD,
    &GROUP_DEAD,
    &COUNT_DEAD,
    &REQUEUE_DEAD,
    &DISCARD_DEAD,
    &QUEUES,
    &UNHANDLED_KINDS,
    &PAUSE,
    &RESUME,
    &WORKERS,
    &SERVER,
    &CLOCK,
];
