//! The hot calls, each as a statement that tells what it touched. All of it happens in one transaction that is rolled back, with a worker, a queue
//! and a kind that nobody else sees; what touches rows of others is undone at once.
//!
//! The buffers are those of EXPLAIN, which counts all that happens inside a function; which table was scanned is told by the counters of the transaction.

use tokio_postgres::types::Type;

use super::statement::Statement;

/// The name of the worker, its queue and its kind.
pub(crate) const DOCTOR: &str = "tenure doctor";

/// A hot call.
pub(crate) struct Call {
    pub(crate) name: &'static str,
    pub(crate) explain: Statement,
    /// Buffers that it touches at most beside any number of jobs, in 64 ranges of them; held by a test.
    usual: u64,
    pub(crate) scope: Scope,
    pub(crate) tables: &'static [&'static str],
}

/// What a row that a turn of maintenance writes may need: the way down its indexes, and the rows behind it.
const BUFFERS_PER_ROW: u64 = 40;

impl Call {
    /// Whether it is told what the worker holds at that moment.
    pub(crate) fn takes_leases(&self) -> bool {
        self.explain.sql.contains("$3")
    }

    /// What it may touch when it wrote so many rows. A turn does what there is to do, and that is not for the caller to choose.
    pub(crate) fn usual_for(&self, rows_written: u64) -> u64 {
        match self.scope {
            Scope::Own | Scope::Claims => self.usual,
            Scope::Everyone(_) => self.usual + BUFFERS_PER_ROW * rows_written,
        }
    }
}

/// Whose rows a call touches.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Those of the transaction alone.
    Own,
    /// The same, and what the worker holds is other than before.
    Claims,
    /// Those of others as well: it is undone at once. Only while nobody else does the duties of this lock; whoever fires takes none, so that
    /// `due_schedules` is made beside workers.
    Everyone(i32),
}

/// The locks of the duties, as the functions take them.
const TURN: Scope = Scope::Everyone(0);
const RETAIN: Scope = Scope::Everyone(-1);
const FOLD: Scope = Scope::Everyone(-3);

/// Worker, its token, its leases and their strips, jobs that it held after its last claim and the leases of these, the queue.
const PARAMS: &[Type] =
    &[Type::INT8, Type::TEXT, Type::INT8_ARRAY, Type::TEXT_ARRAY, Type::INT8_ARRAY, Type::INT8_ARRAY, Type::TEXT];

macro_rules! call {
    ($name:literal, $usual:literal, $scope:expr, $tables:expr, $sql:literal) => {
        Call {
            name: $name,
            explain: Statement {
                name: concat!("look at the plan of ", $name),
                sql: concat!("explain (analyze, buffers, timing off, format json) select ", $sql),
                params: PARAMS,
            },
            usual: $usual,
            scope: $scope,
            tables: $tables,
        }
    };
}

use Scope::{Claims, Own};

/// In the order in which they are made: each finds what the ones before left.
pub(crate) static CALLS: &[Call] = &[
    call!("enqueue", 40, Own, &["job", "ready"], "tenure.enqueue('tenure doctor', '{}'::json, $7)"),
    call!(
        "enqueue_many 100",
        500,
        Own,
        &["job", "ready"],
        "tenure.enqueue_many('tenure doctor', array_fill('{}'::json, array[100]), $7)"
    ),
    call!("enqueue_inbox 100", 900, Own, &["inbox", "job", "ready"], "* from tenure.enqueue_inbox()"),
    call!(
        "claim 100",
        200,
        Claims,
        &["ready", "lease", "job", "later", "duty"],
        "* from tenure.claim($1, $2::text::uuid, array[$7], array[100], array['tenure doctor'], '{}', array[-1,0,1,2,3,4], array_fill(0::bigint, array[6]), false)"
    ),
    call!(
        "complete_many 100",
        600,
        Own,
        &["lease", "outcome"],
        "* from tenure.complete_many($1, $2::text::uuid, $3, $4::text[]::varbit[], '{}', '{}')"
    ),
    call!(
        "claim 7, from the floor",
        200,
        Claims,
        &["ready", "lease", "job", "later", "duty"],
        "* from tenure.claim($1, $2::text::uuid, array[$7], array[7], array['tenure doctor'], '{}', array[-1,0,1,2,3,4], array_fill(0::bigint, array[6]), true)"
    ),
    call!(
        "fail, to be retried",
        100,
        Own,
        &["lease", "job", "later", "attempt_error"],
        "* from tenure.fail($1, $2::text::uuid, json_build_array(json_build_object('lease', $6[1], 'job', $5[1], 'verdict', 'retry', 'delay_ms', 3600000, 'cause', 'error', 'message', 'm')))"
    ),
    call!(
        "fail, for good",
        120,
        Own,
        &["lease", "job", "dead_letter", "attempt_error"],
        "* from tenure.fail($1, $2::text::uuid, json_build_array(json_build_object('lease', $6[2], 'job', $5[2], 'verdict', 'permanent', 'cause', 'error', 'message', 'm')))"
    ),
    call!("progress", 40, Own, &["lease", "progress"], "tenure.progress($5[3], $6[3], '1'::json)"),
    call!("complete", 50, Own, &["lease", "outcome"], "tenure.complete($5[3], $6[3], null::json)"),
    call!("cancel, running", 300, Own, &["lease", "ready", "later", "cancel_request"], "tenure.cancel($5[4])"),
    call!("cancel, running, settled", 300, Own, &["lease", "outcome", "dead_letter"], "tenure.cancel_settled($5[4])"),
    call!(
        "fail, cancelled",
        100,
        Own,
        &["lease", "outcome", "attempt_error"],
        "* from tenure.fail($1, $2::text::uuid, json_build_array(json_build_object('lease', $6[4], 'job', $5[4], 'verdict', 'cancelled', 'cause', 'cancelled', 'message', 'm')))"
    ),
    call!(
        "release",
        100,
        Own,
        &["lease", "ready"],
        "* from tenure.release($1, $2::text::uuid, $3, $4::text[]::varbit[])"
    ),
    call!(
        "ended_by",
        40,
        Own,
        &["attempt_error", "outcome", "dead_letter", "later", "snooze"],
        "* from tenure.ended_by(array[$6[3]], array[$5[3]])"
    ),
    call!("cancel, waiting", 100, Own, &["ready", "later", "outcome"], "tenure.cancel($5[5])"),
    call!(
        "cancel_many, none",
        40,
        Own,
        &["ready"],
        "* from tenure.cancel_many(array['available'], $7, 'none', null, 'ready')"
    ),
    call!("requeue", 60, Own, &["dead_letter", "job", "ready", "replacement"], "tenure.requeue($5[2])"),
    call!("heartbeat", 40, Own, &["worker", "cancel_request"], "* from tenure.heartbeat($1, $2::text::uuid)"),
    call!("sleep", 50, Own, &["sleeper", "worker"], "tenure.sleep($1, $2::text::uuid, array[$7])"),
    call!("wake", 40, Own, &["sleeper", "worker"], "tenure.wake($1, $2::text::uuid)"),
    call!(
        "record_stats",
        60,
        Own,
        &["stat_worker", "stat_delta"],
        "tenure.record_stats($1, (extract(epoch from clock_timestamp()) * 1000000)::bigint, clock_timestamp(), json_build_array(json_build_object('queue', $7, 'kind', 'tenure doctor', 'started', 1, 'run_buckets', array[9], 'run_counts', array[1])))"
    ),
    call!(
        "add_schedule",
        60,
        Own,
        &["schedule"],
        "tenure.add_schedule('tenure doctor', '@every 1s', 'UTC', 'tenure doctor', '{}'::json, $7)"
    ),
    call!(
        "run_schedule",
        100,
        Own,
        &["schedule", "schedule_run", "job", "ready"],
        "tenure.run_schedule('tenure doctor')"
    ),
    call!(
        "fire 1",
        300,
        Own,
        &["schedule", "schedule_run", "job", "ready"],
        "tenure.fire(json_build_array(json_build_object('id', s.id, 'version', s.version, 'look_us', tenure.to_us(s.look_at), 'was_us', tenure.to_us(s.next_at), 'fire_us', array[tenure.to_us(s.look_at)], 'next_us', tenure.to_us(s.look_at + interval '1 minute'), 'more', false))) from tenure.schedule_named('tenure doctor') s"
    ),
    call!(
        "pause_schedule",
        60,
        Own,
        &["schedule", "schedule_gap", "schedule_run"],
        "tenure.pause_schedule('tenure doctor')"
    ),
    call!("resume_schedule", 60, Own, &["schedule", "schedule_gap"], "tenure.resume_schedule('tenure doctor')"),
    call!(
        "add_backfill",
        60,
        Own,
        &["schedule", "schedule_backfill"],
        "tenure.add_backfill('tenure doctor', array[timestamptz '2026-01-01Z'])"
    ),
    call!("remove_schedule", 150, Own, &["schedule", "schedule_backfill"], "tenure.remove_schedule('tenure doctor')"),
    call!("troubled_schedules", 60, Own, &["schedule"], "* from tenure.troubled_schedules(10)"),
    call!("due_schedules", 100, TURN, &["schedule", "schedule_backfill"], "tenure.due_schedules(true, 10)"),
    call!("promote", 40, TURN, &["later", "ready"], "tenure.promote()"),
    call!("rescue", 200, TURN, &["worker", "lease", "ready"], "tenure.rescue()"),
    call!("tick", 300, TURN, &["duty", "later", "worker", "lease", "cancel_request"], "tenure.tick($1)"),
    call!("net, orphans", 200, TURN, &["lease", "worker", "duty"], "tenure.net('orphans')"),
    call!("net, inbox", 60, TURN, &["inbox", "inbox_open", "duty"], "tenure.net('inbox')"),
    call!("net, sleepers", 100, TURN, &["sleeper", "worker", "duty"], "tenure.net('sleepers')"),
    call!("retain 10", 600, RETAIN, &["partition", "outcome", "job", "dead_letter"], "tenure.retain(10)"),
    call!("fold_stats", 400, FOLD, &["job", "stat_delta", "stat_minute", "stat_worker"], "tenure.fold_stats(1)"),
    call!("stats of an hour", 2000, Own, &["stat_minute", "stat_delta"], "* from tenure.stats(p_queue => $7)"),
    call!(
        "get",
        1500,
        Own,
        &["job", "ready", "later", "lease", "outcome", "dead_letter"],
        "* from tenure.jobs where id = $5[6]"
    ),
    call!("end_of", 40, Own, &["outcome", "dead_letter", "replacement"], "* from tenure.end_of($5[3])"),
];

/// The start of a queue, lane by lane: what a claim from the floor passes.
pub(crate) static HEAD: Call = call!(
    "head of queue",
    60,
    Own,
    &["ready"],
    "l.lane, (select r.id from tenure.ready r where r.queue = $7 and r.priority = l.lane order by r.id limit 1) from generate_series(-1, 4) as l(lane)"
);

/// As the sessions of workers are, and with limits: nobody must wait for a look. No plan is asked for beyond that: what a function does not
/// ask for itself, it does not get from a worker either.
pub(crate) const SETTINGS: &str =
    "set local statement_timeout = '5s'; set local lock_timeout = '1s'; set local jit = off";

/// For the starts of queues, at the end of a round: as the functions ask for it.
pub(crate) const SETTINGS_OF_HEADS: &str = "set local enable_seqscan = off; set local enable_sort = off";

pub(crate) const REGISTER: Statement = Statement {
    name: "register the doctor",
    sql: "select r.worker_id, r.token::text from tenure.register_worker($1, 'doctor', 1, 'doctor', array[$1], array[$1], 60000, 1000, false) r",
    params: &[Type::TEXT],
};

/// Ninety-nine and one, as COPY would have brought them.
pub(crate) const COPIED: Statement = Statement {
    name: "copy some jobs",
    sql: "insert into tenure.inbox (kind, payload, queue) select $1, '{}', $1 from generate_series(1, 100)",
    params: &[Type::TEXT],
};

pub(crate) const LEASES: Statement = Statement {
    name: "look at the leases of the doctor",
    sql: "select coalesce(array_agg(l.id order by l.id), '{}'), coalesce(array_agg(l.strip::text order by l.id), '{}') from tenure.lease l where l.worker_id = $1",
    params: &[Type::INT8],
};

pub(crate) const JOBS: Statement = Statement {
    name: "look at the jobs of the doctor",
    sql: "select array_agg(n.job_id order by l.id desc, n.job_id), array_agg(l.id order by l.id desc, n.job_id) \
          from tenure.lease l cross join lateral tenure.jobs_in(l.blocks, l.strip) n where l.worker_id = $1",
    params: &[Type::INT8],
};

/// Of every table that this transaction touched: scans, rows read by them, rows written. The numbers of the session so far: differences count.
pub(crate) const COUNTS: Statement = Statement {
    name: "look what was touched",
    sql: "select coalesce(array_agg(c.name), '{}'), coalesce(array_agg(c.read), '{}'), coalesce(array_agg(c.written), '{}') from ( \
            select coalesce(p.relname, t.relname)::text as name, sum(t.seq_tup_read)::bigint as read, sum(t.n_tup_ins + t.n_tup_upd + t.n_tup_del)::bigint as written \
            from pg_stat_xact_all_tables t left join pg_inherits i on i.inhrelid = t.relid left join pg_class p on p.oid = i.inhparent \
            where t.schemaname = $1 and t.seq_tup_read + t.n_tup_ins + t.n_tup_upd + t.n_tup_del > 0 group by 1) c",
    params: &[Type::TEXT],
};

/// Takes the lock of some duties, and makes them due. False: somebody is at them.
pub(crate) const TAKE_DUTIES: Statement = Statement {
    name: "take the duties",
    sql: "select case when pg_try_advisory_xact_lock(tenure.lock_class(), $1) \
          then (select count(tenure.set_turn(d.name, '-infinity')) >= 0 from unnest(array['tick', 'net', 'overdue']) as d(name) where $1 = 0) else false end",
    params: &[Type::INT4],
};

/// Ranges of jobs that go as a whole at the next step, or may: it would lock one of them against its readers, and have all plans made anew.
pub(crate) const RANGES_GOING: Statement = Statement {
    name: "look for ranges that go",
    sql: "select exists (select from tenure.partition p where p.drop_at <= clock_timestamp() or p.walk_at <= clock_timestamp() and (p.walk in ('e', 's') or \
          tenure.can_be_emptied(p) and not exists (select from tenure.job j where j.id >= p.first_block * 128 and j.id < p.end_block * 128)))",
    params: &[],
};

pub(crate) const QUEUES: Statement = Statement {
    name: "look at the first queues",
    sql: "select q.name from tenure.queue q where q.name <> $1 order by q.name limit $2",
    params: &[Type::TEXT, Type::INT8],
};

pub(crate) const TABLES: Statement = Statement {
    name: "look at the tables and their indexes",
    sql: "select c.relname::text, case when c.reltuples >= 0 then c.reltuples::bigint end, coalesce(s.n_dead_tup, 0), \
                 coalesce((select sum(greatest(x.relpages, 0)) from pg_index i join pg_class x on x.oid = i.indexrelid \
                           where i.indrelid = c.oid or i.indrelid in (select h.inhrelid from pg_inherits h where h.inhparent = c.oid)), 0)::bigint, \
                 array(select x.relname::text from pg_index i join pg_class x on x.oid = i.indexrelid where i.indrelid = c.oid order by 1), \
                 array(select x.relname::text from pg_index i join pg_class x on x.oid = i.indexrelid where i.indrelid = c.oid and not i.indisvalid order by 1) \
          from pg_class c left join pg_stat_all_tables s on s.relid = c.oid \
          where c.relnamespace = $1::text::regnamespace and c.relkind in ('r', 'p') and not c.relispartition order by 1",
    params: &[Type::TEXT],
};

#[cfg(test)]
pub(super) static STATEMENTS: &[&Statement] =
    &[&REGISTER, &COPIED, &LEASES, &JOBS, &COUNTS, &TAKE_DUTIES, &RANGES_GOING, &QUEUES, &TABLES];

/// The indexes that migrations make, by table; held by a test.
pub(crate) const INDEXES: &[(&str, &[&str])] = &[
    ("attempt_error", &["attempt_error_pkey"]),
    ("cancel_request", &["cancel_request_pkey", "cancel_request_worker"]),
    ("dead_letter", &["dead_letter_died", "dead_letter_fingerprint", "dead_letter_pkey", "dead_letter_queue"]),
    ("duty", &["duty_pkey"]),
    ("former_worker", &["former_worker_gone", "former_worker_pkey"]),
    ("held", &["held_pkey"]),
    ("inbox", &["inbox_pkey"]),
    ("inbox_open", &["inbox_open_pkey"]),
    ("job", &["job_pkey"]),
    ("kind_pause", &["kind_pause_key"]),
    ("later", &["later_due", "later_pkey"]),
    ("lease", &["lease_pkey", "lease_worker"]),
    ("lease_slot", &["lease_slot_pkey"]),
    ("limit_bucket", &["limit_bucket_name", "limit_bucket_pkey"]),
    ("limit_rule", &["limit_rule_pkey"]),
    (
        "limited",
        &[
            "limited_fresh",
            "limited_line",
            "limited_ordered",
            "limited_pkey",
            "limited_returned",
            "limited_suspect",
            "limited_unlined",
        ],
    ),
    ("limited_queue", &["limited_queue_pkey"]),
    ("line", &["line_fair", "line_idle", "line_order", "line_pkey", "line_turn"]),
    ("line_clock", &["line_clock_pkey"]),
    ("migration", &["migration_pkey"]),
    ("nudge", &["nudge_due", "nudge_gate", "nudge_pkey"]),
    ("outcome", &["outcome_pkey"]),
    ("partition", &["partition_pkey"]),
    ("progress", &["progress_pkey"]),
    ("queue", &["queue_pkey"]),
    ("queue_bound", &["queue_bound_pkey"]),
    ("queue_member", &["queue_member_block", "queue_member_pkey"]),
    ("queue_room", &["queue_room_pkey"]),
    ("ready", &["ready_pkey", "ready_returned"]),
    ("replacement", &["replacement_pkey"]),
    ("schedule", &["schedule_alone", "schedule_failing", "schedule_look", "schedule_name", "schedule_pkey"]),
    ("schedule_ahead", &["schedule_ahead_pkey"]),
    ("schedule_backfill", &["schedule_backfill_look", "schedule_backfill_pkey", "schedule_backfill_schedule"]),
    ("schedule_gap", &["schedule_gap_pkey"]),
    ("schedule_run", &["schedule_run_pkey"]),
    ("setting", &["setting_pkey"]),
    ("sleeper", &["sleeper_pkey", "sleeper_worker"]),
    ("snooze", &["snooze_pkey"]),
    ("stat_delta", &["stat_delta_pkey"]),
    ("stat_minute", &["stat_minute_pkey"]),
    ("stat_worker", &["stat_worker_pkey"]),
    ("worker", &["worker_pkey"]),
    ("worker_drain", &["worker_drain_pkey"]),
];

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use crate::testing::with_database;

    #[tokio::test]
    async fn every_index_that_a_migration_makes_is_in_the_list() {
        with_database(async |db| {
            let rows = db.sql().await.query(TABLES.sql, &[&"tenure"]).await.expect("tables");
            let made: Vec<(String, Vec<String>)> = rows.iter().map(|row| (row.get(0), row.get(4))).collect();
            let made: Vec<(&str, Vec<&str>)> =
                made.iter().map(|(table, indexes)| (&**table, indexes.iter().map(String::as_str).collect())).collect();
            let listed: Vec<(&str, Vec<&str>)> =
                INDEXES.iter().map(|(table, indexes)| (*table, indexes.to_vec())).collect();
            assert_eq!(made, listed);
        })
        .await;
    }
}
