//! Statistics: they say what happened, once, whoever told it and however late.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tenure::testing::{TestDatabase, until, until_within, with_database};
use tenure::{
    CancelFilter, Client, Context, Enqueue, Fail, Histogram, Job, KindOptions, RetryPolicy, StatsBy, StatsFilter,
    StatsRow, Worker, WorkerBuilder,
};
use tenure_scenarios::protocol::{BAD_INPUT, Registration, sqlstate};
use tenure_scenarios::{Act, Size, Stage, on_stage};

use crate::old_snapshots::buffers;

const ACT: Act = Act::Sleep { ms: 0 };

/// How a job's attempts end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Part {
    Complete,
    FailOnce,
    FailForGood,
    SnoozeOnce,
}

impl Job for Part {
    const KIND: &'static str = "part";
}

fn worker(db: &TestDatabase) -> WorkerBuilder {
    let options = KindOptions::new().retry(RetryPolicy::fixed(Duration::from_millis(1)));
    Worker::builder(db.url()).queue("default", 4).handle_with(options, async |ctx: Context, part: Part| match part {
        Part::FailForGood => Err(Fail::permanent("as asked")),
        Part::FailOnce if ctx.attempt() == 1 => Err(Fail::retry("as asked")),
        Part::SnoozeOnce if !has_snoozed(&ctx) => Err(Fail::snooze(Duration::from_millis(1))),
        Part::Complete | Part::FailOnce | Part::SnoozeOnce => Ok(()),
    })
}

/// Each job snoozes once in this process.
fn has_snoozed(ctx: &Context) -> bool {
    static SNOOZED: std::sync::Mutex<Vec<i64>> = std::sync::Mutex::new(Vec::new());
    let mut snoozed = SNOOZED.lock().unwrap();
    let before = snoozed.contains(&ctx.job_id().get());
    snoozed.push(ctx.job_id().get());
    before
}

async fn drain(db: &TestDatabase) {
    let mut worker = worker(db).drain(true).start().await.unwrap();
    tokio::time::timeout(Duration::from_secs(30), worker.join()).await.expect("drained");
}

/// Turns of the statistics until there is nothing left to do for them.
async fn fold(sql: &tokio_postgres::Client) {
    fold_by(sql, 20_000).await;
}

/// Turns that count so many jobs each.
async fn fold_by(sql: &tokio_postgres::Client, jobs: i32) {
    loop {
        let turn: String = sql.query_one("select tenure.fold_stats($1)::text", &[&jobs]).await.unwrap().get(0);
        let turn: serde_json::Value = serde_json::from_str(&turn).unwrap();
        if turn["more"] == false && turn["ran"] == true {
            return;
        }
    }
}

async fn read(client: &Client) -> Vec<StatsRow> {
    client.stats(&StatsFilter::new()).await.unwrap().rows
}

/// Waits until so many jobs are counted as enqueued: other tests on this server have transactions open now and then.
async fn counted(sql: &tokio_postgres::Client, jobs: i64) {
    until("all enqueued jobs are counted", async || {
        fold(sql).await;
        let sum = "select coalesce(sum(enqueued), 0)::bigint from tenure.stat_minute";
        let seen: i64 = sql.query_one(sum, &[]).await.unwrap().get(0);
        if seen == jobs { Ok(()) } else { Err(format!("{seen}")) }
    })
    .await;
}

async fn tell(stage: &Stage, worker: i64, seq: i64, groups: &serde_json::Value) -> bool {
    let tell = "select tenure.record_stats($1, $2, clock_timestamp(), $3::text::json)";
    stage.one(tell, &[&worker, &seq, &groups.to_string()]).await
}

async fn started(stage: &Stage) -> i64 {
    stage.count("select coalesce(sum(started), 0)::bigint from tenure.stats()", &[]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_are_what_happened_after_retries_snoozes_cancels_and_deaths() {
    with_database(async |db| {
        let (client, sql) = (db.client().await, db.sql().await);
        let mut ids = Vec::new();
        for part in [
            Part::Complete,
            Part::Complete,
            Part::Complete,
            Part::FailOnce,
            Part::FailOnce,
            Part::FailForGood,
            Part::SnoozeOnce,
            Part::Complete,
        ] {
            ids.push(client.enqueue(Enqueue::new(&part).unwrap()).await.unwrap());
        }
        client.cancel(ids[7]).await.unwrap();
        until("all jobs have ended", async || {
            sql.query("select tenure.promote()", &[]).await.unwrap();
            drain(db).await;
            let left = "select count(*) from tenure.jobs where status not in ('completed', 'cancelled', 'dead')";
            sql.query_one(left, &[]).await.unwrap().get::<_, i64>(0) == 0
        })
        .await;
        for _ in 0..2 {
            counted(&sql, 8).await;
            let rows = read(&client).await;
            assert_eq!(rows.len(), 1, "{rows:?}");
            let row = &rows[0];
            assert_eq!((row.queue.as_deref(), row.kind.as_deref(), row.at), (Some("default"), Some("part"), None));
            assert_eq!((row.enqueued, row.started, row.completed, row.cancelled), (8, 10, 6, 1), "{row:?}");
            assert_eq!((row.failed, row.retried, row.dead, row.snoozed), (3, 2, 1, 1), "{row:?}");
            assert_eq!((row.released, row.rescued, row.overruns), (0, 0, 0), "{row:?}");
            // Each job waited once, however often it was started.
            assert_eq!((row.wait.total(), row.run.total()), (7, 10), "{row:?}");
        }
        let workers = client.worker_stats(Duration::from_secs(600)).await.unwrap();
        assert!(workers.iter().all(|worker| worker.claim.total() > 0 && worker.flush.total() > 0), "{workers:?}");
        assert!(workers.iter().all(|worker| worker.name.is_some() && worker.memory > Some(1_000_000)), "{workers:?}");
        let by_minute = client.stats(&StatsFilter::new().by(StatsBy::Minute)).await.unwrap().rows;
        assert_eq!(by_minute.iter().map(|row| row.completed).sum::<u64>(), 6);
        assert!(by_minute.iter().all(|row| row.at.is_some() && row.queue.is_none()), "{by_minute:?}");
        let nothing = client.stats(&StatsFilter::new().kind("another")).await.unwrap().rows;
        assert_eq!(nothing, []);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_tells_what_it_counted_while_it_works() {
    with_database(async |db| {
        let client = db.client().await;
        let mut worker = worker(db).start().await.unwrap();
        client.enqueue(Enqueue::new(&Part::Complete).unwrap()).await.unwrap();
        until_within(Duration::from_secs(30), "the job is in the statistics", async || {
            let rows = read(&client).await;
            if rows.iter().any(|row| row.completed == 1 && row.wait.total() == 1) {
                Ok(())
            } else {
                Err(format!("{rows:?}"))
            }
        })
        .await;
        worker.shutdown();
        worker.join().await;
    })
    .await;
}

#[tokio::test]
async fn a_report_whose_answer_was_lost_is_not_counted_twice() {
    on_stage(Size::Ci, async |stage| {
        let groups = json!([{ "queue": "q", "kind": "k", "started": 3, "run_buckets": [5, 9], "run_counts": [2, 1] }]);
        assert!(tell(stage, 7, 1, &groups).await);
        assert!(!tell(stage, 7, 1, &groups).await, "before it is folded");
        fold(&stage.sql).await;
        assert!(!tell(stage, 7, 1, &groups).await, "and after");
        assert_eq!(started(stage).await, 3);
        assert!(tell(stage, 7, 2, &groups).await, "the next one");
        assert!(tell(stage, 8, 1, &groups).await, "another worker's");
        assert_eq!(started(stage).await, 9);
        // The first call is still at it, and its answer was given up.
        let mut sql = stage.db.sql().await;
        let held = sql.transaction().await.unwrap();
        let call = "select tenure.record_stats(9, 1, $1::text::timestamptz, '[{\"queue\": \"q\", \"kind\": \"k\", \"started\": 100}]')";
        let now: String = stage.one("select clock_timestamp()::text", &[]).await;
        held.query(call, &[&now]).await.unwrap();
        assert_eq!(sqlstate(stage.sql.query_one(call, &[&now]).await), "55P03");
        held.commit().await.unwrap();
        assert!(!stage.one::<bool>(call, &[&now]).await);
        assert_eq!(started(stage).await, 109);
    })
    .await;
}

#[tokio::test]
async fn what_was_folded_is_not_folded_again_and_what_is_told_late_is_added() {
    on_stage(Size::Ci, async |stage| {
        let groups = json!([{ "queue": "q", "kind": "k", "started": 1, "wait_buckets": [3], "wait_counts": [1] }]);
        let mut sql = stage.db.sql().await;
        let late = sql.transaction().await.unwrap();
        let call = "select tenure.record_stats(1, 1, clock_timestamp(), $1::text::json)";
        late.query(call, &[&groups.to_string()]).await.unwrap();
        for seq in 1..=5 {
            tell(stage, 2, seq, &groups).await;
            fold(&stage.sql).await;
        }
        assert_eq!(started(stage).await, 5, "told, whether folded or not");
        late.commit().await.unwrap();
        assert_eq!(started(stage).await, 6);
        until("everything is folded", async || {
            fold(&stage.sql).await;
            stage.count("select count(*) from tenure.stat_delta", &[]).await == 0
        })
        .await;
        fold(&stage.sql).await;
        assert_eq!(started(stage).await, 6);
        let waits =
            "select coalesce(sum(n), 0)::bigint from tenure.stat_minute m cross join lateral unnest(m.wait_counts) n";
        assert_eq!(stage.count(waits, &[]).await, 6);
    })
    .await;
}

#[tokio::test]
async fn jobs_of_a_transaction_that_commits_late_are_counted_once_it_has() {
    on_stage(Size::Ci, async |stage| {
        let mut sql = stage.db.sql().await;
        let late = sql.transaction().await.unwrap();
        late.query("select tenure.enqueue('act', '{}')", &[]).await.unwrap();
        stage.enqueue_many(&ACT, 250).await;
        stage.execute("update tenure.job set created_at = created_at - interval '5 minutes'", &[]).await;
        for _ in 0..3 {
            fold(&stage.sql).await;
        }
        let enqueued = "select coalesce(sum(enqueued), 0)::bigint from tenure.stats()";
        assert_eq!(stage.count(enqueued, &[]).await, 0, "nobody knows yet what lies below");
        assert!(
            stage.one::<bool>("select tenure.uncounted_since() < clock_timestamp() - interval '4 minutes'", &[]).await
        );
        late.commit().await.unwrap();
        counted(&stage.sql, 251).await;
        assert!(stage.one::<bool>("select tenure.uncounted_since() is null", &[]).await);
        // A few at a time comes to the same.
        stage.enqueue_many(&ACT, 250).await;
        until("all are counted", async || {
            fold_by(&stage.sql, 7).await;
            stage.count(enqueued, &[]).await == 501
        })
        .await;
        counted(&stage.sql, 501).await;
    })
    .await;
}

#[tokio::test]
async fn a_mark_of_another_clusters_transactions_does_not_stop_the_count() {
    on_stage(Size::Ci, async |stage| {
        stage.enqueue_many(&ACT, 3).await;
        // As a dump leaves it that is restored where fewer transactions have been.
        let alien = "update tenure.duty set mark = (select last_value from tenure.block_id), mark_xid = '9000000000000000000' where name = 'enqueued'";
        stage.execute(alien, &[]).await;
        counted(&stage.sql, 3).await;
    })
    .await;
}

#[tokio::test]
async fn retention_of_jobs_takes_nothing_from_the_statistics() {
    on_stage(Size::Ci, async |stage| {
        stage.enqueue_many(&ACT, 30).await;
        let mut hand = stage.hand(&Registration::default()).await;
        let (jobs, _) = hand.claim(30).await.unwrap();
        hand.complete(&jobs).await.unwrap();
        counted(&stage.sql, 30).await;
        let old = "update tenure.outcome set started_at = started_at - interval '8 days', finished_at = finished_at - interval '8 days'";
        stage.execute(old, &[]).await;
        stage.db.client().await.prune(|_| ()).await.unwrap();
        assert_eq!(stage.count("select count(*) from tenure.job", &[]).await, 0);
        stage.enqueue_many(&ACT, 5).await;
        counted(&stage.sql, 35).await;
    })
    .await;
}

#[tokio::test]
async fn verbs_that_end_jobs_themselves_tell_of_it() {
    on_stage(Size::Ci, async |stage| {
        let client = stage.db.client().await;
        let many = stage.enqueue_to("mail", &ACT, 130).await;
        let later =
            "select count(tenure.enqueue('act', '{}', 'mail', p_delay_ms => 3600000)) from generate_series(1, 3)";
        stage.count(later, &[]).await;
        stage.one::<String>("select tenure.cancel($1)", &[&many[0]]).await;
        client.cancel_many(&CancelFilter::new().queue("mail"), |_| ()).await.unwrap();
        // A lost worker's: one that is cancelled, one that is buried, one that goes back.
        let last: i64 = stage.one("select tenure.enqueue('act', '{}', p_max_attempts => 1)", &[]).await;
        let jobs = stage.enqueue_many(&ACT, 2).await;
        let mut hand = stage.hand(&Registration::default()).await;
        assert_eq!(hand.claim(10).await.unwrap().0.len(), 3);
        stage.one::<String>("select tenure.cancel($1)", &[&jobs[0]]).await;
        stage.expire(hand.worker).await;
        assert_eq!(stage.rescue().await, 3);
        assert_eq!(stage.status(last).await, "dead");
        let rows = client.stats(&StatsFilter::new().by(StatsBy::Queue)).await.unwrap().rows;
        let of = |queue: &str| rows.iter().find(|row| row.queue.as_deref() == Some(queue)).expect(queue);
        let counts = |row: &StatsRow| (row.cancelled, row.rescued, row.dead, row.started);
        assert_eq!((counts(of("mail")), counts(of("default"))), ((133, 0, 0, 0), (1, 3, 1, 0)));
        let told = stage.count("select count(*) from tenure.stat_delta", &[]).await;
        assert!(told < 12, "{told} rows for 137 jobs");
    })
    .await;
}

#[tokio::test]
async fn statistics_are_removed_after_their_time_and_not_before() {
    on_stage(Size::Ci, async |stage| {
        let insert = "insert into tenure.stat_minute (minute, queue, kind, started)
            select date_bin('1 minute', clock_timestamp(), '1970-01-01') - make_interval(hours => h), 'q', 'k', 1 from generate_series(1, 900) h;
            insert into tenure.stat_worker (minute, worker_id, last_seq, claim_buckets, claim_counts, flush_buckets, flush_counts, throttled_ms)
            select date_bin('1 minute', clock_timestamp(), '1970-01-01') - make_interval(hours => h), 1, 1000 - h, '{}', '{}', '{}', '{}', 0 from generate_series(1, 40) h;
            update tenure.duty set next_at = '-infinity' where name = 'old_stats'";
        stage.sql.batch_execute(insert).await.unwrap();
        let left = async || {
            fold(&stage.sql).await;
            let minutes = stage.count("select count(*) from tenure.stat_minute", &[]).await;
            (minutes, stage.count("select count(*) from tenure.stat_worker", &[]).await)
        };
        // An hour more or less: the minute that is just over.
        let near = |(minutes, workers): (i64, i64), hours: i64, of_workers: i64| {
            assert!((hours - 1..=hours).contains(&minutes) && (of_workers - 1..=of_workers).contains(&workers), "{minutes} {workers}");
        };
        near(left().await, 720, 24);
        stage.sql.batch_execute("select tenure.set_setting('stats_keep_ms', 36000000), tenure.set_setting('worker_stats_keep_ms', 7200000)").await.unwrap();
        near(left().await, 720, 24);
        stage.execute("update tenure.duty set next_at = '-infinity' where name = 'old_stats'", &[]).await;
        near(left().await, 10, 2);
        assert_eq!(sqlstate(stage.sql.query("select tenure.set_setting('stats_keep_ms', 1000)", &[]).await), BAD_INPUT);
    })
    .await;
}

#[tokio::test]
async fn statistics_that_cannot_be_added_up_are_refused_with_their_names() {
    on_stage(Size::Ci, async |stage| {
        let refused = async |groups: &str| {
            let tell = "select tenure.record_stats(1, 1, clock_timestamp(), $1::text::json)";
            sqlstate(stage.sql.query(tell, &[&groups]).await)
        };
        let bad = [
            r#"[{"kind": "k", "started": 1}]"#,
            r#"[{"queue": "q", "kind": "", "started": 1}]"#,
            r#"[{"queue": "q", "kind": "k", "started": -1}]"#,
            r#"[{"queue": "q", "kind": "k", "run_buckets": [1, 2], "run_counts": [1]}]"#,
            r#"[{"queue": "q", "kind": "k", "run_buckets": [138], "run_counts": [1]}]"#,
            r#"[{"queue": "q", "kind": "k", "run_buckets": [1], "run_counts": [-1]}]"#,
        ];
        for groups in bad {
            assert_eq!(refused(groups).await, BAD_INPUT, "{groups}");
        }
        for call in [
            "record_stats(1, 1, clock_timestamp() - interval '61 minutes', '[]')",
            "record_stats(1, null, clock_timestamp(), '[]')",
            "record_stats(1, 1, clock_timestamp(), '[]', '{\"claim_buckets\": [1]}')",
            "stats(p_by => '{worker}')",
            "stats(p_step => '90 seconds')",
            "stats(clock_timestamp() - interval '30 days', p_by => '{minute}')",
        ] {
            assert_eq!(sqlstate(stage.sql.query(&format!("select tenure.{call}"), &[]).await), BAD_INPUT, "{call}");
        }
        assert_eq!(stage.count("select count(*) from tenure.stat_delta", &[]).await, 0);
    })
    .await;
}

#[tokio::test]
async fn percentiles_of_sql_are_those_of_the_library() {
    on_stage(Size::Ci, async |stage| {
        let mut all = Histogram::default();
        for seq in 1..=20 {
            let mut buckets: Vec<u8> = (0..138).filter(|_| fastrand::u8(..) < 30).collect();
            buckets.push(fastrand::u8(0..138));
            buckets.dedup();
            let counts: Vec<u32> = buckets.iter().map(|_| fastrand::u32(0..1_000)).collect();
            let groups =
                json!([{ "queue": "q", "kind": format!("k{seq}"), "run_buckets": buckets, "run_counts": counts }]);
            assert!(tell(stage, 1, seq, &groups).await);
        }
        let client = stage.db.client().await;
        let rows = client.stats(&StatsFilter::new().queue("q")).await.unwrap().rows;
        assert_eq!(rows.len(), 20);
        let in_sql = "select run_p50_ms, run_p95_ms, run_p99_ms from tenure.stats(p_by => $1) order by kind";
        let check = |row: &tokio_postgres::Row, run: &Histogram| {
            for (at, part) in [0.5, 0.95, 0.99].into_iter().enumerate() {
                let library = run.percentile(part).map(|time| time.as_secs_f64() * 1_000.0);
                let sql: Option<f64> = row.get(at);
                let near = sql.zip(library).map(|(sql, library)| (sql - library).abs() <= library * 1e-9);
                assert!(near.unwrap_or(sql == library), "{sql:?} {library:?} {run:?}");
            }
        };
        for (row, of_client) in stage.sql.query(in_sql, &[&vec!["kind"]]).await.unwrap().iter().zip(&rows) {
            check(row, &of_client.run);
            all.merge(&of_client.run);
        }
        check(&stage.sql.query_one(in_sql, &[&Vec::<&str>::new()]).await.unwrap(), &all);
    })
    .await;
}

#[tokio::test]
async fn a_turn_reads_nothing_of_what_earlier_turns_took_away() {
    on_stage(Size::Ci, async |stage| {
        // Somebody's old snapshot keeps all rows that are removed meanwhile.
        let mut old = stage.db.sql().await;
        let snapshot = old
            .build_transaction()
            .isolation_level(tokio_postgres::IsolationLevel::RepeatableRead)
            .start()
            .await
            .unwrap();
        snapshot.query("select count(*) from tenure.stat_delta", &[]).await.unwrap();
        let groups: Vec<_> = (0..40).map(|n| json!({ "queue": "q", "kind": format!("k{n}"), "started": 1 })).collect();
        let mut costs = Vec::new();
        for seq in 1..=59_i64 {
            // A minute each: a row of a minute has as many versions as turns add to it, which are six in reality.
            let tell = "select tenure.record_stats(1, $1, clock_timestamp() - (59 - $1::bigint) * interval '1 minute', $2::text::json)";
            assert!(stage.one::<bool>(tell, &[&seq, &json!(groups).to_string()]).await);
            until("it is folded", async || {
                let seen = buffers(&stage.sql, "select tenure.fold_stats()").await;
                // A turn that has to wait for another test's transaction folds nothing.
                let is_folded = stage.count("select count(*) from tenure.stat_delta", &[]).await == 0;
                costs.extend(is_folded.then_some(seen));
                is_folded
            })
            .await;
        }
        let median = |part: &[i64]| {
            let mut part = part.to_vec();
            part.sort_unstable();
            part[part.len() / 2]
        };
        let (early, late) = (median(&costs[5..20]), median(&costs[costs.len() - 15..]));
        assert!(late < 2 * early + 100, "{early} buffers a turn, and then {late}: {costs:?}");
        drop(snapshot);
    })
    .await;
}
