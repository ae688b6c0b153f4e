//! Every default and limit, in one place. The SQL functions check the same numbers; a test compares them.

use std::time::Duration;

/// Bytes of a queue's, kind's or worker's name, at most. At least one.
pub const NAME_BYTES_MAX: usize = 128;
/// Bytes of the schema's name, at most: 40, so that a worker's channel name fits PostgreSQL's 63.
pub const SCHEMA_BYTES_MAX: usize = 40;
/// The schema when none is named.
pub const SCHEMA_DEFAULT: &str = "tenure";
/// The queue when none is named.
pub const QUEUE_DEFAULT: &str = "default";

/// Bytes of a payload, unless the database is configured otherwise: payloads carry identifiers, not documents.
pub const PAYLOAD_BYTES_DEFAULT: usize = 64 * 1024;
/// Bytes of a payload, whatever the configuration.
pub const PAYLOAD_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Levels of nesting in a JSON value: what serde_json's typed reader accepts.
pub const JSON_DEPTH_MAX: usize = 127;
/// Bytes of a stored result.
pub const RESULT_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of a stored error text; longer ones are cut and say so.
pub const ERROR_TEXT_BYTES_MAX: usize = 16 * 1024;

/// Priority when none is named.
pub const PRIORITY_DEFAULT: i16 = 2;
/// The most urgent priority.
pub const PRIORITY_MIN: i16 = 1;
/// The least urgent priority.
pub const PRIORITY_MAX: i16 = 4;

/// Attempts when none are named.
pub const ATTEMPTS_DEFAULT: i16 = 5;
/// Attempts, at most.
pub const ATTEMPTS_MAX: i16 = 1_000;

/// Limits that a job may stand under.
pub const UNDER_MAX: usize = 8;
/// Tokens that a job may take from a rate.
pub const COST_MAX: u32 = 1_000_000;
/// The share of a fair key, at most.
pub const SHARE_MAX: u16 = 1_000;

/// Time a handler may take when none is named. Zero means no limit.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(3600);
/// A timeout, at most.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(31_536_000);
/// A delay before the first run, before a retry or of a snooze: at most ten years (of 365.25 days).
pub const DELAY_MAX: Duration = Duration::from_secs(315_576_000);

/// Time before the second attempt.
pub const RETRY_BASE: Duration = Duration::from_secs(2);
/// Growth from one retry delay to the next.
pub const RETRY_FACTOR: f64 = 2.0;
/// The longest default retry delay, before jitter.
pub const RETRY_CAP: Duration = Duration::from_secs(3600);
/// The part of the delay that the default jitter may add.
pub const RETRY_JITTER: f64 = 0.25;

/// How long a worker's lease lasts without a heartbeat.
pub const LEASE_DEFAULT: Duration = Duration::from_secs(30);
/// The shortest lease.
pub const LEASE_MIN: Duration = Duration::from_secs(2);
/// The longest lease.
pub const LEASE_MAX: Duration = Duration::from_secs(3600);
/// How long a worker may be without its connections before its jobs are taken.
pub const RECONNECT_GRACE_DEFAULT: Duration = Duration::from_secs(1);
/// How often a worker with nothing to do asks for work.
pub const POLL_DEFAULT: Duration = Duration::from_secs(1);
/// How long running handlers may go on after a stop was asked for.
pub const SHUTDOWN_GRACE_DEFAULT: Duration = Duration::from_secs(30);
/// And at most: a day.
pub const SHUTDOWN_GRACE_MAX: Duration = Duration::from_secs(86_400);

/// Jobs that one claim asks for.
pub const CLAIM_DEFAULT: usize = 100;
/// Jobs that one claim may ask for.
pub const CLAIM_MAX: usize = 1_000;
/// Jobs of one block, and so the width of a mask.
pub const BLOCK_JOBS: usize = 128;

/// Payloads sent in one statement by the array form of bulk enqueue.
pub const ENQUEUE_CHUNK: usize = 10_000;
/// Bytes of payload sent in one statement by the array form of bulk enqueue: far below the protocol's 1 GiB.
pub const ENQUEUE_CHUNK_BYTES: usize = 32 * 1024 * 1024;
/// Bytes that COPY sends at a time, about.
pub const COPY_PIECE_BYTES: usize = 64 * 1024;
/// Rows of one page of a list.
pub const LIST_MAX: usize = 1_000;

/// How long completed and cancelled jobs are kept.
pub const KEEP_DEFAULT: Duration = Duration::from_secs(7 * 86_400);
/// How long dead letters are kept.
pub const KEEP_DEAD_DEFAULT: Duration = Duration::from_secs(90 * 86_400);
/// The shortest time for which finished jobs can be kept.
pub const KEEP_MIN: Duration = Duration::from_secs(1);
/// The longest: 100 years of 365.25 days stand for ever.
pub const KEEP_MAX: Duration = Duration::from_secs(3_155_760_000);

/// Statistics are kept by the minute.
pub const STATS_STEP_MIN: Duration = Duration::from_secs(60);
/// How long a schedule's jobs may be spread, at most.
pub const SCHEDULE_JITTER_MAX: Duration = Duration::from_secs(86_400);
/// Missed runs of a schedule that are made up for, when all are and no number is given.
pub const SCHEDULE_MISSED_DEFAULT: u32 = 100;
/// And at most.
pub const SCHEDULE_MISSED_MAX: u32 = 1_000;
/// How old a missed run may be that is made up for, when all are and no age is given.
pub const SCHEDULE_WINDOW_DEFAULT: Duration = Duration::from_secs(86_400);
/// And at most.
pub const SCHEDULE_WINDOW_MAX: Duration = Duration::from_secs(366 * 86_400);
/// Times of one backfill, at most.
pub const BACKFILL_TIMES_MAX: usize = 100_000;
/// Jobs of a backfill that have not ended, at a time.
pub const BACKFILL_AT_ONCE_DEFAULT: u32 = 10;
/// And at most.
pub const BACKFILL_AT_ONCE_MAX: u32 = 1_000;
/// Times of one schedule that one audit compares, at most.
pub const AUDIT_TIMES_MAX: usize = 100_000;
/// How long is kept at least which runs a schedule had; the last 10,000 are kept in any case.
pub const SCHEDULE_RUNS_KEEP: Duration = Duration::from_secs(7 * 86_400);

/// Connections of a client.
pub const POOL_SIZE_DEFAULT: usize = 4;
/// Connections of a client, at most.
pub const POOL_SIZE_MAX: usize = 1_000;
/// How long a client's call waits for a free connection.
pub const POOL_WAIT_DEFAULT: Duration = Duration::from_secs(30);

/// The oldest server that is supported, as in `server_version_num` divided by 10,000.
pub const SERVER_MAJOR_MIN: i32 = 15;
