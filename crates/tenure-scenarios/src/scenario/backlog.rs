//! Retention is switched on when very much is due: every final state and every table beside, while jobs run and every
//! statement has a limit.

use std::time::{Duration, Instant};

use tenure::testing::until_within;

use super::retention::{BUNDLE, LOST_AFTER, Load, ROWS_PER_SECOND, narrow};
use crate::measure::{longest, p99};
use crate::{Bound, Measure, Size, Stage, size};

/// Blocks of the past that are written in one statement.
const CHUNK: usize = 500;
/// Ranges of the past; the last one still gets new jobs, so that its rows are deleted one by one.
const RANGES: usize = 5;
/// How long ago everything ended: longer than anything is kept by default.
const DAYS: i32 = 100;
/// As long as the past is made, everything is kept.
const FOR_EVER_MS: i64 = 3_155_760_000_000;
/// How often the server is looked at for statements that take long.
const LOOK: Duration = Duration::from_millis(20);
/// No statement takes longer, in seconds.
const STATEMENT_MAX: f64 = 1.0;
/// What the database ends.
const STATEMENT_TIMEOUT: &str = "5s";

/// Of each bundle: the 2nd was cancelled, the 3rd is dead and was requeued, the 4th had snoozed, the 1st had failed once and left
/// progress. Everything is consistent, as if it had been run.
async fn made(stage: &Stage, jobs: usize) -> i64 {
    const STATEMENTS: [&str; 7] = [
        "insert into tenure.job (id, queue, kind, priority, max_attempts, created_at, payload)
         select b.block * 128 + n, 'default', 'act', 2, 5, clock_timestamp() - make_interval(days => $2), json_build_object('past', n)
         from unnest($1::bigint[]) as b(block) cross join generate_series(0, 99) as n",
        "insert into tenure.outcome (job_id, state, attempt, worker_id, lease_id, started_at, finished_at, result)
         select b.block * 128 + n, case n when 1 then 'x' else 'c' end::\"char\", 1, 1, 0, clock_timestamp() - make_interval(days => $2),
                clock_timestamp() - make_interval(days => $2), case when n % 10 = 0 then json_build_object('done', n) end
         from unnest($1::bigint[]) as b(block) cross join generate_series(0, 99) as n where n <> 2",
        "insert into tenure.dead_letter (job_id, queue, kind, priority, max_attempts, created_at, idempotency_key, payload, attempt, cause, message,
                fingerprint, errors, worker_id, lease_id, started_at, died_at)
         select b.block * 128 + 2, 'default', 'act', 2, 5, t.at, (b.block * 128 + 2)::text, '{}', 5, 'error', 'it failed', 'f', '[]', 1, 0, t.at, t.at
         from unnest($1::bigint[]) as b(block) cross join (select clock_timestamp() - make_interval(days => $2)) as t(at)",
        "insert into tenure.attempt_error (job_id, attempt, lease_id, cause, message, worker_id, started_at, failed_at)
         select b.block * 128 + n, 1, 0, 'error', 'it failed', 1, clock_timestamp() - make_interval(days => $2), clock_timestamp() - make_interval(days => $2)
         from unnest($1::bigint[]) as b(block) cross join unnest(array[0, 2]) as n",
        "insert into tenure.progress (job_id, lease_id, at, value)
         select b.block * 128, 0, clock_timestamp() - make_interval(days => $2), '1' from unnest($1::bigint[]) as b(block)",
        "insert into tenure.snooze (job_id, snoozes, lease_id, last_at)
         select b.block * 128 + 3, 7, 0, clock_timestamp() - make_interval(days => $2) from unnest($1::bigint[]) as b(block)",
        "insert into tenure.replacement (job_id, new_id, replaced_at)
         select b.block * 128 + 2, b.block * 128 + 4, clock_timestamp() - make_interval(days => $2) from unnest($1::bigint[]) as b(block)",
    ];
    let mut left = jobs / BUNDLE;
    while left > 0 {
        let count = CHUNK.min(left);
        let draw = "select array(select nextval('tenure.block_id') from generate_series(1, $1::bigint))";
        let blocks: Vec<i64> = stage.one(draw, &[&(count as i64)]).await;
        for statement in STATEMENTS {
            stage.execute(statement, &[&blocks, &DAYS]).await;
        }
        left -= count;
    }
    stage.one("select max(id) from tenure.job", &[]).await
}

/// Rows of the past, by table.
async fn rows_of_the_past(stage: &Stage, last: i64) -> Vec<(String, i64)> {
    const TABLES: [(&str, &str); 7] = [
        ("job", "id"),
        ("outcome", "job_id"),
        ("dead_letter", "job_id"),
        ("attempt_error", "job_id"),
        ("progress", "job_id"),
        ("snooze", "job_id"),
        ("replacement", "job_id"),
    ];
    let mut rows = Vec::new();
    for (table, key) in TABLES {
        let count = format!("select count(*) from tenure.{table} where {key} <= $1");
        rows.push((table.to_owned(), stage.count(&count, &[&last]).await));
    }
    rows
}

fn sum(rows: &[(String, i64)]) -> i64 {
    rows.iter().map(|(_, rows)| rows).sum()
}

async fn keep(stage: &Stage, ms: Option<i64>) {
    for outcome in ["completed", "cancelled", "dead"] {
        stage.sql.query("select tenure.set_keep(null, $1, $2)", &[&outcome, &ms]).await.expect("set");
    }
}

/// The longest statement of anybody but ourselves that was seen to run in this database, in seconds, and its beginning.
async fn longest_statement(stage: &Stage, load: &Load) -> (f64, String) {
    const SEEN: &str = "select extract(epoch from clock_timestamp() - a.query_start)::float8, left(a.query, 200) from pg_stat_activity a
        where a.datname = current_database() and a.state = 'active' and a.backend_type = 'client backend'
          and a.pid <> all(array[pg_backend_pid(), $1]) order by a.query_start limit 1";
    let ours: i32 = stage.one("select pg_backend_pid()", &[]).await;
    let sql = stage.db.sql().await;
    let (mut longest, mut text) = (0.0, String::new());
    while !load.is_over() {
        if let Some(row) = sql.query_opt(SEEN, &[&ours]).await.expect("a look")
            && row.get::<_, f64>(0) > longest
        {
            (longest, text) = (row.get(0), row.get(1));
        }
        tokio::time::sleep(LOOK).await; // the pace of the looks
    }
    (longest, text)
}

/// Everything that is due goes, by the retention of two running workers.
pub async fn everything_is_due(stage: &Stage) -> Vec<Measure> {
    let jobs = size::RETAINED_BACKLOG.at(stage.size);
    let blocks = jobs / BUNDLE;
    narrow(stage, (blocks / RANGES) as i64, RANGES as i64).await;
    keep(stage, Some(FOR_EVER_MS)).await;
    let begin = Instant::now();
    let last = made(stage, jobs).await;
    eprintln!("{jobs} finished jobs were made in {:.0} s", begin.elapsed().as_secs_f64());
    stage.sql.batch_execute("vacuum analyze").await.expect("vacuum");
    let before = rows_of_the_past(stage, last).await;
    eprintln!("rows: {before:?}");
    // For everybody who connects from now on: workers, load, and the looks. Our own counts take longer.
    let limit = format!("alter database {} set statement_timeout = '{STATEMENT_TIMEOUT}'", stage.db.name());
    stage.sql.batch_execute(&limit).await.expect("set");
    let workers = [stage.start(stage.worker("a")).await, stage.start(stage.worker("b")).await];
    let load = Load::new(LOST_AFTER);
    let patience = size::RETENTION_PATIENCE.at(stage.size) * 4;
    let play = async {
        tokio::time::sleep(size::RETENTION_PHASE.at(stage.size)).await; // until plans and caches are warm
        drop(load.phase());
        let start = Instant::now();
        keep(stage, None).await;
        let dead = blocks as i64;
        until_within(patience, "the past is gone", async || {
            let removed = stage.count("select sum(removed)::bigint from tenure.partition", &[]).await;
            if removed >= jobs as i64 - dead { Ok(()) } else { Err(format!("{removed} of {jobs} removed")) }
        })
        .await;
        let left = until_within(patience, "nothing is left beside", async || {
            let left = rows_of_the_past(stage, last).await;
            if sum(&left) == 0 { Ok(left) } else { Err(format!("{left:?}")) }
        })
        .await;
        let (took, during) = (start.elapsed().as_secs_f64(), load.phase());
        load.end();
        (took, left, during)
    };
    let ((), (took, left, during), (longest_seen, text)) =
        tokio::join!(load.run(stage), play, longest_statement(stage, &load));
    if longest_seen > STATEMENT_MAX {
        eprintln!("the longest statement: {text}");
    }
    let cancelled = |log: String| log.matches("statement timeout").count();
    let cancelled: usize = workers.iter().map(|worker| cancelled(worker.log())).sum();
    let by_rows = "select coalesce(sum(p.removed), 0)::bigint from tenure.partition p where p.drop_at is null";
    let by_rows = stage.count(by_rows, &[]).await;
    for worker in workers {
        worker.shut_down().await;
    }
    let (rows, full) = (sum(&before) as f64, stage.size == Size::Full);
    let rate = if full { Bound::AtLeast(ROWS_PER_SECOND) } else { Bound::Shown };
    let mut lines: Vec<Measure> = left
        .iter()
        .map(|(table, left)| Measure::count(format!("old rows left in {table}"), 0, *left as usize))
        .collect();
    lines.extend([
        Measure::new(format!("a backlog of {jobs} finished jobs: rows of all tables"), Bound::Shown, rows, ""),
        Measure::new("the same removed by two workers in", Bound::Shown, took, "s"),
        Measure::new("rows removed a second", rate, rows / took, "/s"),
        Measure::new("jobs removed a second", Bound::Shown, jobs as f64 / took, "/s"),
        Measure::new("jobs removed row by row", Bound::Shown, by_rows as f64, ""),
        Measure::new("longest statement of anybody meanwhile", Bound::AtMost(STATEMENT_MAX), longest_seen, "s"),
        Measure::count("statements that the database ended", 0, cancelled),
        Measure::count("jobs of the load that were lost meanwhile", 0, load.left()),
        during.ran(stage, "while the backlog goes"),
        Measure::new("p99 of a claim meanwhile", Bound::Shown, p99(&during.claims), "ms"),
        Measure::new("longest claim meanwhile", Bound::AtMost(1.0), longest(&during.claims) / 1_000.0, "s"),
    ]);
    lines
}
