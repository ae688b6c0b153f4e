//! Very many jobs in every state, written in bulk as the functions would have left them, so that ten million take about a minute.

use crate::Stage;
use crate::protocol::Registration;
use crate::stage::text;

/// Ranges of job and outcome.
const PARTITIONS: i64 = 64;
/// Blocks of a range at least.
const WIDTH_MIN: i64 = 500;
/// Jobs of a full bundle, as `enqueue_many` makes them.
const BUNDLE: usize = 100;
/// What runs at a time does not grow with what there is.
const LEASES: usize = 100;
const WORKERS: usize = 10;
/// Of so many jobs one is dead.
const ONE_DEAD_OF: usize = 500;
/// Of so many one waits for its time, in a bundle of its own.
const ONE_LATER_OF: usize = 50;
/// Of so many one is ready in a bundle of its own, and as many in full bundles.
const ONE_READY_OF: usize = 50;
/// Of so many jobs there is one row of statistics, of a minute each.
const ONE_MINUTE_OF: usize = 200;
/// Those of 29 days: none is old enough to be removed.
const MINUTES_MAX: usize = 29 * 24 * 60;
/// Of so many there is one schedule, which rests until next year, and a backfill that has ended.
const ONE_SCHEDULE_OF: usize = 1_000;
/// What is noted of each.
const RUNS: i64 = 20;

/// The tables that grow with the jobs, or with what is noted about them.
pub(crate) const GROWING: &[&str] = &[
    "job",
    "ready",
    "later",
    "held",
    "outcome",
    "dead_letter",
    "attempt_error",
    "progress",
    "snooze",
    "replacement",
    "stat_delta",
    "stat_minute",
    "stat_worker",
    "schedule",
    "schedule_run",
    "schedule_backfill",
];

/// Blocks of ids, from the first one to before the last.
#[derive(Clone, Copy)]
struct Blocks {
    first: i64,
    end: i64,
}

/// So many ranges as a large installation has, of a width that the jobs fill.
pub(crate) async fn make_partitions(stage: &Stage, jobs: usize) {
    let drop = "select string_agg(format('drop table tenure.%I', relname), ';') from pg_class
        where relnamespace = 'tenure'::regnamespace and relispartition and relkind = 'r'";
    let drop: String = stage.one(drop, &[]).await;
    stage.sql.batch_execute(&format!("{drop}; delete from tenure.partition")).await.expect("partitions dropped");
    let width = (blocks_of(jobs) / (PARTITIONS - 2)).max(WIDTH_MIN);
    let make = "select tenure.add_partition(n * $1, case when n < $2 - 1 then (n + 1) * $1 end) from generate_series(0, $2::bigint - 1) n";
    stage.sql.query(make, &[&width, &PARTITIONS]).await.expect("partitions made");
}

/// Blocks that [`fill`] uses for so many jobs.
fn blocks_of(jobs: usize) -> i64 {
    (finished(jobs) / BUNDLE + jobs / ONE_LATER_OF + jobs / ONE_READY_OF * 2 + jobs / ONE_DEAD_OF + 2 * LEASES) as i64
}

fn finished(jobs: usize) -> usize {
    jobs - jobs / ONE_LATER_OF - 2 * (jobs / ONE_READY_OF) - jobs / ONE_DEAD_OF
}

/// Writes so many: most of them finished an hour ago, others ready, scheduled, running and dead, with what is noted about them.
pub(crate) async fn fill(stage: &Stage, jobs: usize) {
    let other = stage.db.sql().await;
    for sql in [&stage.sql, &other] {
        sql.batch_execute("set synchronous_commit = off").await.expect("set");
    }
    let ended = draw(stage, finished(jobs) / BUNDLE).await;
    let bundles = draw(stage, jobs / ONE_READY_OF / BUNDLE).await;
    let alone = draw(stage, jobs / ONE_READY_OF).await;
    let later = draw(stage, jobs / ONE_LATER_OF).await;
    let dead = draw(stage, jobs / ONE_DEAD_OF).await;
    let all = async {
        for (blocks, each, queue) in [
            (ended, BUNDLE, "done"),
            (bundles, BUNDLE, "default"),
            (alone, 1, "default"),
            (later, 1, "later"),
            (dead, 1, "dead"),
        ] {
            let each = each as i64;
            stage.sql.execute(JOBS, &[&blocks.first, &blocks.end, &each, &queue]).await?;
        }
        Ok::<_, tokio_postgres::Error>(())
    };
    let places = async {
        other.execute(OUTCOMES, &[&ended.first, &ended.end, &(BUNDLE as i64)]).await?;
        other.execute(READY, &[&bundles.first, &bundles.end, &(BUNDLE as i32)]).await?;
        other.execute(READY, &[&alone.first, &alone.end, &1_i32]).await?;
        other.execute(LATER, &[&later.first, &later.end]).await?;
        for statement in [DEAD, ERRORS, PROGRESS] {
            other.execute(statement, &[&dead.first, &dead.end]).await?;
        }
        let minutes = jobs / ONE_MINUTE_OF;
        other.execute(MINUTES, &[&(minutes.min(MINUTES_MAX) as i64)]).await?;
        other.execute(SCHEDULES, &[&((jobs / ONE_SCHEDULE_OF) as i64), &RUNS]).await?;
        other.execute(WORKER_MINUTES, &[&(minutes as i64)]).await
    };
    tokio::try_join!(all, places).unwrap_or_else(|e| panic!("{}", text(&e)));
    run_some(stage).await;
    stage.sql.batch_execute(COUNTED).await.expect("counted");
}

/// Ids that were drawn for nothing leave ranges without a job, which a turn of retention would remove: it lets them be.
pub(crate) async fn keep_empty_ranges(stage: &Stage) {
    stage.sql.batch_execute(KEPT).await.expect("ranges kept");
}

async fn draw(stage: &Stage, count: usize) -> Blocks {
    let first: i64 = stage.one("select nextval('tenure.block_id')", &[]).await;
    let end = first + count as i64;
    stage.execute("select setval('tenure.block_id', $1)", &[&end]).await;
    Blocks { first, end }
}

/// What runs, by workers whose lease lasts, through the functions.
async fn run_some(stage: &Stage) {
    let running: i64 = stage.one("select count(*) from tenure.lease", &[]).await;
    if running > 0 {
        return;
    }
    for n in 0..WORKERS {
        let registration = Registration {
            name: format!("w{n}"),
            queues: vec!["busy".into()],
            lease_ms: 3_600_000,
            lock: false,
            ..Registration::default()
        };
        let mut hand = stage.hand(&registration).await;
        hand.solo_kinds = vec!["act".into()];
        let count = LEASES / WORKERS;
        stage.enqueue_to("busy", &crate::Act::Sleep { ms: 0 }, count).await;
        let (claimed, _) = hand.claim(count as i32).await.expect("claimed");
        assert_eq!(claimed.len(), count);
    }
}

const JOBS: &str = "
    insert into tenure.job (id, queue, kind, priority, max_attempts, created_at, payload)
    select b.block * 128 + n, $4, 'act', 2, 5, clock_timestamp() - interval '1 hour', '{\"do\":\"sleep\",\"ms\":0,\"pad\":\"0123456789\"}'
    from generate_series($1::bigint, $2::bigint - 1) as b(block) cross join generate_series(0, $3::bigint - 1) as n";
const OUTCOMES: &str = "
    insert into tenure.outcome (job_id, state, attempt, worker_id, lease_id, started_at, finished_at)
    select b.block * 128 + n, 'c', 1, 1, 0, clock_timestamp() - interval '1 hour', clock_timestamp() - interval '1 hour'
    from generate_series($1::bigint, $2::bigint - 1) as b(block) cross join generate_series(0, $3::bigint - 1) as n";
const READY: &str = "
    insert into tenure.ready (queue, priority, id, kind, attempt, flags, block, mask)
    select 'default', 2, b.block, 'act', 0, 0, b.block, tenure.mask_fresh($3) from generate_series($1::bigint, $2::bigint - 1) as b(block)";
/// Due in a day, each at an instant of its own.
const LATER: &str = "
    insert into tenure.later (block, id, due_at, reason, queue, priority, kind, attempt, flags, mask)
    select b.block, b.block, clock_timestamp() + interval '1 day' + (b.block - $1) * interval '1 millisecond', 's', 'later', 2, 'act', 0, 0, tenure.mask_fresh(1)
    from generate_series($1::bigint, $2::bigint - 1) as b(block)";
const DEAD: &str = "
    insert into tenure.dead_letter (job_id, queue, kind, priority, max_attempts, created_at, idempotency_key, payload, attempt, cause, message, fingerprint, errors, died_at)
    select b.block * 128, 'dead', 'act', 2, 5, clock_timestamp() - interval '1 hour', 'key ' || b.block, '{}', 5, 'error', 'it failed', 'f' || b.block % 50, '[]',
           clock_timestamp() - interval '1 hour'
    from generate_series($1::bigint, $2::bigint - 1) as b(block)";
const ERRORS: &str = "
    insert into tenure.attempt_error (job_id, attempt, lease_id, cause, message, worker_id, started_at, failed_at)
    select b.block * 128, a, 0, 'error', 'it failed', 1, clock_timestamp() - interval '2 hours', clock_timestamp() - interval '1 hour'
    from generate_series($1::bigint, $2::bigint - 1) as b(block) cross join generate_series(1, 5) as a";
const PROGRESS: &str = "
    with noted as (
      insert into tenure.progress (job_id, lease_id, at, value)
      select b.block * 128, 0, clock_timestamp(), '1' from generate_series($1::bigint, $2::bigint - 1) as b(block))
    insert into tenure.snooze (job_id, snoozes, lease_id, last_at)
    select b.block * 128, 1, 0, clock_timestamp() from generate_series($1::bigint, $2::bigint - 1) as b(block)";
const MINUTES: &str = "
    insert into tenure.stat_minute (minute, queue, kind, enqueued, started, completed, run_buckets, run_counts)
    select tenure.minute_of(clock_timestamp()) - (n + 1) * interval '1 minute', 'done', 'act', 10, 10, 10, '{9,10,11}', '{3,4,3}'
    from generate_series(0, $1::bigint - 1) as n
    on conflict do nothing";
/// Of the last day, by as many workers as it takes.
const WORKER_MINUTES: &str = "
    insert into tenure.stat_worker (minute, worker_id, last_seq, claim_buckets, claim_counts, flush_buckets, flush_counts, throttled_ms)
    select tenure.minute_of(clock_timestamp()) - (n % 1400 + 1) * interval '1 minute', n / 1400 + 1000000, 1, '{9}', '{3}', '{9}', '{3}', 0
    from generate_series(0, $1::bigint - 1) as n
    on conflict do nothing";
const SCHEDULES: &str = "
    with added as (
      insert into tenure.schedule (name, rule, zone, anchor_at, gap, twice, missed, missed_max, missed_window_ms, overlap, jitter_ms, kind, payload, queue, priority,
                                   max_attempts, next_at, look_at)
      select format('s%s of %s', n, (select count(*) from tenure.schedule)), '@yearly', 'UTC', clock_timestamp(), 'next', 'first', 'latest', 100, 86400000, 'skip', 0, 'act',
             '{}', 'default', 2, 5, clock_timestamp() + interval '1 year', clock_timestamp() + interval '1 year'
      from generate_series(1, $1::bigint) as n
      returning id),
    filled as (
      insert into tenure.schedule_backfill (schedule_id, times, at_once, priority, again, done, skipped, created_by, ended_at, look_at)
      select a.id, array[timestamptz '2026-01-01Z'], 1, 4, false, 1, 1, 'me', clock_timestamp(), clock_timestamp() + interval '7 days' from added a)
    insert into tenure.schedule_run (schedule_id, logical_at, state)
    select a.id, date_trunc('hour', clock_timestamp()) - n * interval '1 hour', 'overlap' from added a cross join generate_series(1, $2::bigint) as n";
/// The next turn of the statistics finds nothing of it.
const COUNTED: &str = "update tenure.duty set place = (select s.last_value * 128 + 127 from tenure.block_id s), mark = null, mark_xid = null where name = 'enqueued'";
const KEPT: &str = "
    update tenure.partition p set walk_at = case when exists (
      select from tenure.job j where j.id >= p.first_block * 128 and j.id < p.end_block * 128) then '-infinity' else 'infinity' end::timestamptz
    where p.end_block is not null";
