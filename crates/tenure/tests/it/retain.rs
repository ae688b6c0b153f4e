//! Retention: what goes and when, what stays, and what is never waited for.

use std::time::Duration;

use serde_json::Value;
use tenure::testing::until_within;
use tenure_scenarios::protocol::{BAD_INPUT, Leased, NOT_FOUND, Registration, sqlstate};
use tenure_scenarios::scenario::backlog::everything_is_due;
use tenure_scenarios::scenario::retention::{
    Load, beside_a_long_read, ended, narrow, plateau, retain_all, row_by_row, whole_ranges_under_load,
};
use tenure_scenarios::stage::text;
use tenure_scenarios::{Act, Size, Stage, assert_held, on_stage};

const DAY_MS: i64 = 86_400_000;
/// Tables that say something about single jobs.
const TABLES: [&str; 6] = ["outcome", "dead_letter", "attempt_error", "progress", "replacement", "cancel_request"];

/// Lets everything that has happened lie back so many days.
async fn days_pass(stage: &Stage, days: i32) {
    let back = format!("make_interval(days => {days})");
    let sql = format!(
        "update tenure.job set created_at = created_at - {back};
         update tenure.outcome set started_at = started_at - {back}, finished_at = finished_at - {back};
         update tenure.dead_letter set died_at = died_at - {back};
         select tenure.walk_anew(false)"
    );
    stage.sql.batch_execute(&sql).await.expect("aged");
}

/// Retention does all that there is to do now; how many jobs it removed.
async fn retain(stage: &Stage) -> i64 {
    stage.sql.query("select tenure.walk_anew(false)", &[]).await.expect("anew");
    retain_all(stage).await.0
}

async fn keep(stage: &Stage, queue: Option<&str>, outcome: &str, ms: Option<i64>) {
    stage.sql.query("select tenure.set_keep($1, $2, $3)", &[&queue, &outcome, &ms]).await.expect("set");
}

/// Claims `count` jobs of a queue, by a worker of their own.
async fn claim(stage: &Stage, queue: &str, count: usize) -> (tenure_scenarios::protocol::Hand, Vec<Leased>) {
    let registration = Registration { queues: vec![queue.to_owned()], ..Registration::default() };
    let mut hand = stage.hand(&registration).await;
    let (jobs, _) = hand.claim(count as i32).await.expect("claimed");
    assert_eq!(jobs.len(), count);
    (hand, jobs)
}

/// One job of the queue that has completed.
async fn completed(stage: &Stage, queue: &str) -> i64 {
    stage.enqueue_to(queue, &Act::Sleep { ms: 0 }, 1).await;
    let (hand, jobs) = claim(stage, queue, 1).await;
    assert!(hand.complete(&jobs).await.expect("completed").is_empty());
    jobs[0].job
}

/// One job of the queue that is dead, after a failed attempt and some progress.
async fn dead(stage: &Stage, queue: &str) -> i64 {
    stage.enqueue_to(queue, &Act::Sleep { ms: 0 }, 1).await;
    let (hand, jobs) = claim(stage, queue, 1).await;
    stage.execute("select tenure.progress($1, $2, '1')", &[&jobs[0].job, &jobs[0].lease]).await;
    assert_eq!(hand.fail(&jobs[0], "permanent", None).await.expect("failed"), "dead");
    jobs[0].job
}

/// The tables that still say something about the job.
async fn traces(stage: &Stage, job: i64) -> Vec<&'static str> {
    let mut found = Vec::new();
    if stage.count("select count(*) from tenure.job where id = $1", &[&job]).await > 0 {
        found.push("job");
    }
    for table in TABLES {
        if stage.count(&format!("select count(*) from tenure.{table} where job_id = $1"), &[&job]).await > 0 {
            found.push(table);
        }
    }
    found
}

async fn in_range(stage: &Stage, first_block: i64) -> i64 {
    let count = format!(
        "select (select count(*) from tenure.job_{first_block}) + (select count(*) from tenure.outcome_{first_block})"
    );
    stage.count(&count, &[]).await
}

#[tokio::test]
async fn a_job_of_the_load_that_never_runs_is_counted_as_lost() {
    on_stage(Size::Ci, async |stage| {
        // Long enough for all jobs but the one that is taken away.
        let load = Load::new(Duration::from_secs(3));
        let registration = Registration { queues: vec!["load".to_owned()], ..Registration::default() };
        let mut thief = stage.hand(&registration).await;
        let play = async {
            until_within(Duration::from_secs(20), "a job is taken away", async || {
                thief.claim(1).await.expect("claimed").0.len() == 1
            })
            .await;
            load.end();
        };
        tokio::join!(load.run(stage), play);
        assert_eq!(load.left(), 1);
        let phase = load.phase();
        assert!(phase.claims.len() <= phase.enqueues.len() * 2, "claims that found nothing were measured: {phase:?}");
        assert!(phase.rate > 0.0);
    })
    .await;
}

#[tokio::test]
async fn each_outcome_goes_at_its_own_age_with_all_that_was_noted() {
    on_stage(Size::Ci, async |stage| {
        let cancelled = stage.enqueue(&Act::Sleep { ms: 0 }).await;
        stage.execute("select tenure.cancel($1)", &[&cancelled]).await;
        let (done, buried) = (completed(stage, "default").await, dead(stage, "default").await);
        assert_eq!(traces(stage, buried).await, ["job", "dead_letter", "attempt_error", "progress"]);
        days_pass(stage, 6).await;
        assert_eq!(retain(stage).await, 0);
        days_pass(stage, 2).await;
        assert_eq!(retain(stage).await, 2);
        assert_eq!((traces(stage, done).await, traces(stage, cancelled).await), (vec![], vec![]));
        assert_eq!(stage.status(buried).await, "dead");
        days_pass(stage, 83).await;
        assert_eq!(retain(stage).await, 1);
        assert_eq!(traces(stage, buried).await, [""; 0]);
    })
    .await;
}

#[tokio::test]
async fn an_age_of_a_queue_holds_for_that_queue_and_what_ended_before() {
    on_stage(Size::Ci, async |stage| {
        let (short, long, plain) =
            (completed(stage, "short").await, completed(stage, "long").await, completed(stage, "default").await);
        let (short_dead, long_dead) = (dead(stage, "short").await, dead(stage, "long").await);
        for outcome in ["completed", "dead"] {
            keep(stage, Some("short"), outcome, Some(DAY_MS)).await;
            keep(stage, Some("long"), outcome, Some(400 * DAY_MS)).await;
        }
        days_pass(stage, 2).await;
        retain(stage).await;
        assert_eq!((stage.status(short).await, stage.status(short_dead).await), ("unknown".into(), "unknown".into()));
        assert_eq!(stage.status(plain).await, "completed");
        days_pass(stage, 300).await;
        retain(stage).await;
        assert_eq!((stage.status(long).await, stage.status(long_dead).await), ("completed".into(), "dead".into()));
        assert_eq!(stage.status(plain).await, "unknown");
        keep(stage, Some("long"), "completed", None).await;
        retain_all(stage).await;
        assert_eq!(stage.status(long).await, "unknown");
    })
    .await;
}

#[tokio::test]
async fn ages_that_mean_nothing_are_refused() {
    on_stage(Size::Ci, async |stage| {
        let refused = async |queue: Option<&str>, outcome: &str, ms: i64| {
            let set = stage.sql.query("select tenure.set_keep($1, $2, $3)", &[&queue, &outcome, &ms]).await;
            assert_eq!(sqlstate(set), BAD_INPUT);
        };
        refused(None, "completed", 0).await;
        refused(Some("q"), "dead", 999).await;
        refused(Some("q"), "cancelled", 3_155_760_000_001).await;
        refused(Some("q"), "running", DAY_MS).await;
        refused(Some(""), "dead", DAY_MS).await;
        // A setting that somebody wrote by hand never means "at once".
        stage.execute("insert into tenure.setting (name, value) values ('keep_completed_ms', '0')", &[]).await;
        let default: i64 = stage.one("select tenure.keep_default('completed')", &[]).await;
        assert_eq!(default, 1_000);
    })
    .await;
}

#[tokio::test]
async fn a_range_that_is_due_is_emptied_at_once_and_dropped_later() {
    on_stage(Size::Ci, async |stage| {
        narrow(stage, 20, 3).await;
        ended(stage, 4_000, 8).await;
        let (removed, steps) = retain_all(stage).await;
        assert_eq!(removed, 4_000);
        let emptied: i64 = steps.iter().filter_map(|step| step["emptied"].as_i64()).sum();
        assert_eq!((emptied, in_range(stage, 0).await, in_range(stage, 20).await), (2, 0, 0));
        let noted = "select (select count(*) from tenure.attempt_error) + (select count(*) from tenure.progress)";
        assert_eq!(stage.count(noted, &[]).await, 0);
        let attached = "select count(*) from tenure.partition";
        assert_eq!((retain(stage).await, stage.count(attached, &[]).await), (0, 3));
        stage.execute("update tenure.partition set drop_at = clock_timestamp() where drop_at is not null", &[]).await;
        retain(stage).await;
        assert_eq!(stage.count(attached, &[]).await, 1);
        completed(stage, "default").await;
    })
    .await;
}

#[tokio::test]
async fn what_was_put_into_an_empty_range_keeps_it_from_being_dropped() {
    on_stage(Size::Ci, async |stage| {
        narrow(stage, 20, 3).await;
        ended(stage, 4_000, 8).await;
        retain_all(stage).await;
        // A transaction that had drawn its id long ago.
        let late = "with job as (insert into tenure.job (id, queue, kind, priority, max_attempts, created_at, payload)
                values (7 * 128, 'default', 'act', 2, 5, clock_timestamp(), '{\"sleep\":{\"ms\":0}}') returning id)
            insert into tenure.ready (queue, priority, id, kind, attempt, flags, block, mask)
            select 'default', 2, 7, 'act', 0, 0, 7, tenure.mask_fresh(1) from job";
        stage.execute(late, &[]).await;
        stage.execute("update tenure.partition set drop_at = clock_timestamp() where drop_at is not null", &[]).await;
        retain(stage).await;
        assert_eq!((stage.status(7 * 128).await.as_str(), in_range(stage, 0).await), ("available", 1));
        let (hand, jobs) = claim(stage, "default", 1).await;
        assert!(hand.complete(&jobs).await.unwrap().is_empty());
        days_pass(stage, 8).await;
        assert_eq!(retain(stage).await, 1);
    })
    .await;
}

#[tokio::test]
async fn jobs_that_have_not_ended_and_jobs_kept_longer_outlast_their_range() {
    on_stage(Size::Ci, async |stage| {
        narrow(stage, 200, 3).await;
        let act = Act::Sleep { ms: 0 };
        let longer = completed(stage, "longer").await;
        keep(stage, Some("longer"), "completed", Some(30 * DAY_MS)).await;
        let waiting = stage.enqueue_to("waiting", &act, 5).await;
        let buried = dead(stage, "default").await;
        let (hand, running) = {
            stage.enqueue_to("running", &act, 3).await;
            claim(stage, "running", 3).await
        };
        let scheduled: i64 =
            stage.one("select tenure.enqueue('act', '{}', 'waiting', p_delay_ms => 3600000)", &[]).await;
        days_pass(stage, 8).await;
        ended(stage, 20_000, 8).await;
        assert_eq!(retain(stage).await, 20_000);
        // 5 waiting, 3 running, 1 scheduled, and one with its outcome.
        assert_eq!(in_range(stage, 0).await, 11);
        assert_eq!(
            (stage.status(longer).await, stage.status(scheduled).await),
            ("completed".into(), "scheduled".into())
        );
        assert_eq!((stage.status(waiting[4]).await, stage.status(buried).await), ("available".into(), "dead".into()));
        assert!(hand.complete(&running).await.unwrap().is_empty());
        // The job's row went with its range; the dead letter is a full copy.
        let again: i64 = stage.one("select tenure.requeue($1)", &[&buried]).await;
        assert_eq!(stage.status(again).await, "available");
        let (waiters, jobs) = claim(stage, "waiting", 5).await;
        assert!(waiters.complete(&jobs).await.unwrap().is_empty());
        days_pass(stage, 8).await;
        assert_eq!(retain(stage).await, 8);
        days_pass(stage, 22).await;
        assert_eq!((retain(stage).await, in_range(stage, 0).await), (1, 1));
    })
    .await;
}

#[tokio::test]
async fn a_range_that_is_due_before_long_is_left_whole_unless_somebody_asks() {
    on_stage(Size::Ci, async |stage| {
        narrow(stage, 50, 3).await;
        ended(stage, 3_000, 8).await;
        ended(stage, 2_000, 6).await;
        assert_eq!(retain(stage).await, 0, "the other 2,000 are due in a day");
        stage.sql.query("select tenure.walk_anew(true)", &[]).await.unwrap();
        assert_eq!(retain_all(stage).await.0, 3_000);
        assert_eq!(stage.count("select count(*) from tenure.outcome", &[]).await, 2_000);
        days_pass(stage, 2).await;
        let (removed, steps) = retain_all(stage).await;
        assert_eq!(removed, 2_000);
        assert!(steps.iter().any(|step| step["emptied"] == 1));
    })
    .await;
}

#[tokio::test]
async fn a_range_with_many_jobs_that_wait_is_thinned() {
    on_stage(Size::Ci, async |stage| {
        narrow(stage, 100, 3).await;
        stage.enqueue_many(&Act::Sleep { ms: 0 }, 2_500).await;
        days_pass(stage, 8).await;
        ended(stage, 9_000, 8).await;
        let (removed, steps) = retain_all(stage).await;
        assert_eq!(removed, 9_000);
        assert!(steps.iter().all(|step| step["emptied"] == 0));
        assert_eq!(stage.statuses().await.get("available"), Some(&2_500));
    })
    .await;
}

#[tokio::test]
async fn a_job_that_somebody_is_requeueing_is_left_alone() {
    on_stage(Size::Ci, async |stage| {
        for sealed in [false, true] {
            if sealed {
                stage.execute("select setval('tenure.block_id', 2000000)", &[]).await;
            }
            let job = completed(stage, "default").await;
            days_pass(stage, 8).await;
            if sealed {
                stage.execute("select setval('tenure.block_id', 9000000)", &[]).await;
            }
            let mut other = stage.db.sql().await;
            let tx = other.transaction().await.unwrap();
            let again: i64 = tx.query_one("select tenure.requeue($1)", &[&job]).await.unwrap().get(0);
            retain(stage).await;
            assert_eq!(stage.status(job).await, "completed");
            tx.commit().await.unwrap();
            assert_eq!(retain(stage).await, 1);
            assert_eq!((stage.status(again).await.as_str(), traces(stage, job).await), ("available", vec![]));
            assert_eq!(sqlstate(stage.sql.query("select tenure.requeue($1)", &[&job]).await), NOT_FOUND);
            claim(stage, "default", 1).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_session_that_cannot_see_what_has_just_been_committed_empties_no_range() {
    on_stage(Size::Ci, async |stage| {
        narrow(stage, 20, 3).await;
        ended(stage, 3_000, 8).await;
        let sql = stage.db.sql().await;
        sql.batch_execute("set default_transaction_isolation = 'repeatable read'").await.unwrap();
        let mut removed = 0;
        loop {
            let answer: String = sql.query_one("select tenure.retain()::text", &[]).await.unwrap().get(0);
            let step: Value = serde_json::from_str(&answer).unwrap();
            assert_eq!(step["emptied"], 0);
            removed += step["removed"].as_i64().unwrap();
            if step["more"] != true {
                break;
            }
        }
        assert_eq!(removed, 3_000, "row by row");
    })
    .await;
}

#[tokio::test]
async fn two_at_once_do_not_wait_for_each_other() {
    on_stage(Size::Ci, async |stage| {
        ended(stage, 3_000, 8).await;
        let mut other = stage.db.sql().await;
        let tx = other.transaction().await.unwrap();
        tx.query("select tenure.retain()", &[]).await.unwrap();
        let answer: String = stage.one("select tenure.retain()::text", &[]).await;
        let step: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!((step["ran"].as_bool(), step["removed"].as_i64()), (Some(false), Some(0)));
        tx.rollback().await.unwrap();
        assert_eq!(retain(stage).await, 3_000, "what was rolled back is done again");
    })
    .await;
}

/// Buffers that one step touches, in a session whose planner thinks that parallel workers cost nothing.
async fn step_cost(sql: &tokio_postgres::Client) -> f64 {
    let explain = "explain (analyze, buffers, timing off, format json) select tenure.retain()";
    let answer = sql.simple_query(explain).await.expect("a step");
    let text = answer.iter().find_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    let plan: Value = serde_json::from_str(text.expect("a plan")).expect("JSON");
    let blocks = |key: &str| plan[0]["Plan"][key].as_f64().unwrap_or_default();
    blocks("Shared Hit Blocks") + blocks("Shared Read Blocks")
}

#[tokio::test]
async fn a_look_at_a_large_range_reads_each_row_once() {
    on_stage(Size::Ci, async |stage| {
        let jobs = 60_000;
        narrow(stage, jobs / 100, 3).await;
        ended(stage, jobs as usize + 1_000, 8).await;
        stage.sql.batch_execute("vacuum analyze").await.unwrap();
        let sql = stage.db.sql().await;
        let cheap = "set parallel_setup_cost = 0; set parallel_tuple_cost = 0; set min_parallel_index_scan_size = 0; set min_parallel_table_scan_size = 0";
        sql.batch_execute(cheap).await.unwrap();
        let (mut cost, mut steps) = (0.0, 0);
        let walking = "select count(*) from tenure.partition where first_block = 0 and drop_at is null";
        while stage.count(walking, &[]).await == 1 {
            cost += step_cost(&sql).await;
            steps += 1;
        }
        assert!(cost < 4.0 * jobs as f64, "{cost} buffers in {steps} steps for {jobs} jobs");
    })
    .await;
}

#[tokio::test]
async fn workers_remove_what_is_due_by_themselves() {
    on_stage(Size::Ci, async |stage| {
        ended(stage, 5_000, 8).await;
        let waiting = stage.enqueue_to("nobody", &Act::Sleep { ms: 0 }, 1).await;
        let worker = stage.start(stage.worker("maintainer")).await;
        until_within(Duration::from_secs(20), "all that is due is gone", async || {
            stage.count("select count(*) from tenure.outcome", &[]).await == 0
        })
        .await;
        assert_eq!(stage.status(waiting[0]).await, "available");
        drop(worker);
    })
    .await;
}

#[tokio::test]
async fn old_ranges_go_as_a_whole_while_jobs_run() {
    on_stage(Size::from_env(), async |stage| assert_held(&whole_ranges_under_load(stage).await)).await;
}

#[tokio::test]
async fn rows_go_in_short_steps_that_are_taken_up_again() {
    on_stage(Size::from_env(), async |stage| assert_held(&row_by_row(stage).await)).await;
}

#[tokio::test]
async fn a_long_read_of_an_old_range_makes_nobody_wait() {
    on_stage(Size::from_env(), async |stage| assert_held(&beside_a_long_read(stage).await)).await;
}

#[tokio::test]
async fn tables_reach_a_size_and_stay_there() {
    on_stage(Size::from_env(), async |stage| assert_held(&plateau(stage).await)).await;
}

#[tokio::test]
async fn a_range_that_cannot_be_removed_does_not_keep_the_others() {
    on_stage(Size::Ci, async |stage| {
        narrow(stage, 20, 3).await;
        ended(stage, 4_000, 8).await;
        let mine =
            "create table mine (job_id bigint references tenure.job); insert into mine select min(id) from tenure.job";
        stage.sql.batch_execute(mine).await.unwrap();
        let buried = dead(stage, "default").await;
        stage.execute("update tenure.dead_letter set died_at = died_at - interval '100 days'", &[]).await;
        retain(stage).await;
        assert_eq!(stage.status(buried).await, "unknown");
        assert_eq!(in_range(stage, 20).await, 0);
        assert!(in_range(stage, 0).await > 0);
        // It goes when nothing points to it any more.
        stage.sql.batch_execute("drop table mine").await.unwrap();
        retain(stage).await;
        assert_eq!(in_range(stage, 0).await, 0);
    })
    .await;
}

#[tokio::test]
async fn an_age_that_is_being_set_lets_nobody_wait() {
    on_stage(Size::Ci, async |stage| {
        let beyond =
            "select setval('tenure.block_id', max(end_block)) from tenure.partition where end_block < 1000000000";
        stage.count(beyond, &[]).await;
        let buried = dead(stage, "default").await;
        stage.execute("update tenure.dead_letter set died_at = died_at - interval '100 days'", &[]).await;
        let mut other = stage.db.sql().await;
        let tx = other.transaction().await.unwrap();
        tx.execute("select tenure.set_keep(null, 'completed', 1000)", &[]).await.unwrap();
        // It gives up before it has locked anybody else out.
        let refused = stage.sql.query("select tenure.net('partitions')", &[]).await.unwrap_err();
        assert!(text(&refused).contains("could not obtain lock on row"), "{}", text(&refused));
        let step: String = stage.one("select tenure.retain()::text", &[]).await;
        assert!(step.contains("\"removed\" : 1") && step.contains("\"more\" : false"), "{step}");
        assert_eq!(stage.status(buried).await, "unknown");
        tx.commit().await.unwrap();
        stage.execute("select tenure.net('partitions')", &[]).await;
        assert!(stage.count("select count(*) from tenure.partition", &[]).await > 4);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_that_is_due_goes_from_every_table_in_short_statements() {
    on_stage(Size::from_env(), async |stage| assert_held(&everything_is_due(stage).await)).await;
}
