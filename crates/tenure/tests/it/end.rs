//! Complete, fail, release, progress: each done, repeated, and with the lease lost.

use std::slice::from_ref;
use std::time::Duration;

use tenure_scenarios::protocol::{BAD_INPUT, Hand, LEASE_LOST, Leased, Registration, sqlstate};
use tenure_scenarios::{Act, Size, Stage, on_stage};
use tokio_postgres::types::ToSql;

async fn hand(stage: &Stage) -> Hand {
    stage.hand(&Registration::default()).await
}

/// A worker that has claimed `count` jobs of one bundle.
async fn claimed(stage: &Stage, count: usize) -> (Hand, Vec<Leased>) {
    stage.enqueue_many(&Act::Sleep { ms: 0 }, count).await;
    let mut hand = hand(stage).await;
    let (jobs, _) = hand.claim(count as i32).await.unwrap();
    assert_eq!(jobs.len(), count);
    (hand, jobs)
}

/// The worker's jobs are given to another one, which has claimed them all.
async fn taken_over(stage: &Stage, from: &Hand) -> (Hand, Vec<Leased>) {
    stage.expire(from.worker).await;
    assert!(stage.rescue().await > 0);
    let mut other = hand(stage).await;
    let (jobs, _) = other.claim(100).await.unwrap();
    (other, jobs)
}

#[tokio::test]
async fn completed_jobs_are_completed_and_the_others_of_the_bundle_still_run() {
    on_stage(Size::Ci, async |stage| {
        let (hand, jobs) = claimed(stage, 10).await;
        assert_eq!(hand.complete(&jobs[3..6]).await.unwrap(), []);
        for (n, job) in jobs.iter().enumerate() {
            let expected = if (3..6).contains(&n) { "completed" } else { "running" };
            assert_eq!(stage.status(job.job).await, expected);
        }
    })
    .await;
}

#[tokio::test]
async fn a_repeated_report_is_told_that_it_was_done_and_changes_nothing() {
    on_stage(Size::Ci, async |stage| {
        let (hand, jobs) = claimed(stage, 4).await;
        hand.complete(&jobs[..2]).await.unwrap();
        let pictures = (stage.picture(jobs[0].job).await, stage.picture(jobs[1].job).await);
        let again = hand.complete(&jobs[..3]).await.unwrap();
        assert_eq!(again, [(jobs[0].job, "completed".to_owned()), (jobs[1].job, "completed".to_owned())]);
        assert_eq!(stage.status(jobs[2].job).await, "completed");
        assert_eq!((stage.picture(jobs[0].job).await, stage.picture(jobs[1].job).await), pictures);
        assert_eq!(hand.fail(&jobs[3], "retry", Some(60_000)).await.unwrap(), "retrying");
        assert_eq!(hand.fail(&jobs[3], "retry", Some(60_000)).await.unwrap(), "already");
    })
    .await;
}

#[tokio::test]
async fn a_late_worker_changes_nothing_and_is_told_that_it_lost_its_lease() {
    on_stage(Size::Ci, async |stage| {
        let (late, jobs) = claimed(stage, 1).await;
        let job = &jobs[0];
        let (other, again) = taken_over(stage, &late).await;
        assert_eq!(again.iter().map(|j| (j.job, j.attempt)).collect::<Vec<_>>(), [(job.job, 2)]);
        check_refused(stage, &late, job).await;
        assert_eq!(stage.status(job.job).await, "running");
        other.complete(&again).await.unwrap();
        check_refused(stage, &late, job).await;
        assert_eq!(stage.status(job.job).await, "completed");
    })
    .await;
}

/// Every write that a worker can make, by one whose lease was given away.
async fn check_refused(stage: &Stage, late: &Hand, job: &Leased) {
    let picture = stage.picture(job.job).await;
    assert_eq!(late.complete(from_ref(job)).await.unwrap(), [(job.job, "lost".to_owned())]);
    assert_eq!(late.release(from_ref(job)).await.unwrap(), [job.job]);
    for verdict in ["retry", "permanent", "snooze", "cancelled"] {
        assert_eq!(late.fail(job, verdict, None).await.unwrap(), "lost", "{verdict}");
    }
    assert!(!stage.one::<bool>("select tenure.progress($1, $2, '1')", &[&job.job, &job.lease]).await);
    let complete = stage.sql.execute("select tenure.complete($1, $2)", &[&job.job, &job.lease]).await;
    assert_eq!(sqlstate(complete), LEASE_LOST);
    assert_eq!(late.heartbeat().await.unwrap(), None);
    assert_eq!(stage.picture(job.job).await, picture);
}

#[tokio::test]
async fn the_job_ends_with_the_handlers_own_writes_or_not_at_all() {
    on_stage(Size::Ci, async |stage| {
        stage.execute("create table mine (job bigint)", &[]).await;
        for isolation in ["read committed", "repeatable read", "serializable"] {
            for end in ["commit", "rollback"] {
                let (_hand, jobs) = claimed(stage, 2).await;
                let sql = stage.db.sql().await;
                let job = &jobs[1];
                sql.batch_execute(&format!("begin isolation level {isolation}")).await.unwrap();
                sql.execute("insert into mine values ($1)", &[&job.job]).await.unwrap();
                sql.execute("select tenure.complete($1, $2, '{\"a\": 1}')", &[&job.job, &job.lease]).await.unwrap();
                let child: i64 = sql.query_one("select tenure.enqueue('child', '{}')", &[]).await.unwrap().get(0);
                assert_eq!(stage.status(job.job).await, "running");
                sql.batch_execute(end).await.unwrap();
                let expected = if end == "commit" { ("completed", 1, "available") } else { ("running", 0, "unknown") };
                let found = (
                    stage.status(job.job).await,
                    stage.count("select count(*) from mine where job = $1", &[&job.job]).await,
                    stage.status(child).await,
                );
                assert_eq!((found.0.as_str(), found.1, found.2.as_str()), expected, "{isolation}, {end}");
                assert_eq!(stage.status(jobs[0].job).await, "running");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_transaction_whose_lease_was_lost_before_its_completion_cannot_commit() {
    on_stage(Size::Ci, async |stage| {
        stage.execute("create table mine (job bigint)", &[]).await;
        for isolation in ["read committed", "repeatable read", "serializable"] {
            let (late, jobs) = claimed(stage, 1).await;
            let job = &jobs[0];
            let sql = stage.db.sql().await;
            sql.batch_execute(&format!("begin isolation level {isolation}")).await.unwrap();
            // The snapshot is older than the loss.
            sql.execute("insert into mine values ($1)", &[&job.job]).await.unwrap();
            let (other, again) = taken_over(stage, &late).await;
            let refused = sql.execute("select tenure.complete($1, $2)", &[&job.job, &job.lease]).await;
            let state = sqlstate(refused);
            assert!(state == LEASE_LOST || (state == "40001" && isolation != "read committed"), "{isolation}: {state}");
            sql.batch_execute("commit").await.unwrap();
            assert_eq!(stage.count("select count(*) from mine", &[]).await, 0, "{isolation}");
            other.complete(&again).await.unwrap();
            assert_eq!(stage.status(job.job).await, "completed");
        }
    })
    .await;
}

#[tokio::test]
async fn two_completions_of_jobs_in_one_lease_do_not_lose_one_of_them() {
    on_stage(Size::Ci, async |stage| {
        for isolation in ["read committed", "repeatable read", "serializable"] {
            let (hand, jobs) = claimed(stage, 3).await;
            let (one, other) = (stage.db.sql().await, stage.db.sql().await);
            for sql in [&one, &other] {
                sql.batch_execute(&format!("begin isolation level {isolation}; select 1")).await.unwrap();
            }
            let call = "select tenure.complete($1, $2)";
            one.execute(call, &[&jobs[0].job, &jobs[0].lease]).await.unwrap();
            // The second waits for the first at most until the first ends.
            let params: [&(dyn ToSql + Sync); 2] = [&jobs[1].job, &jobs[1].lease];
            let second = other.execute(call, &params);
            let first_ends = one.batch_execute("commit");
            let (second, first) = tokio::join!(second, first_ends);
            first.unwrap();
            match second {
                Ok(_) => other.batch_execute("commit").await.unwrap(),
                Err(e) => {
                    assert!(
                        ["40001", "55P03"].contains(&e.code().expect("a database error").code()),
                        "{isolation}: {e:?}"
                    );
                    other.batch_execute("rollback").await.unwrap();
                    other.execute(call, &[&jobs[1].job, &jobs[1].lease]).await.unwrap();
                }
            }
            assert_eq!(hand.complete(&jobs[2..]).await.unwrap(), []);
            for job in &jobs {
                assert_eq!(stage.status(job.job).await, "completed", "{isolation}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_lease_that_a_handlers_transaction_holds_is_not_waited_for() {
    on_stage(Size::Ci, async |stage| {
        let (hand, jobs) = claimed(stage, 3).await;
        let handler = stage.db.sql().await;
        handler.batch_execute("begin").await.unwrap();
        handler.execute("select tenure.complete($1, $2)", &[&jobs[0].job, &jobs[0].lease]).await.unwrap();
        let report = tokio::time::timeout(Duration::from_millis(900), hand.complete(&jobs[1..])).await;
        assert_eq!(sqlstate(report.expect("answered while the transaction is open")), "55P03");
        handler.batch_execute("commit").await.unwrap();
        assert_eq!(hand.complete(&jobs[1..]).await.unwrap(), []);
    })
    .await;
}

#[tokio::test]
async fn a_failed_job_waits_and_is_tried_again_until_its_attempts_are_used() {
    on_stage(Size::Ci, async |stage| {
        let id: i64 = stage.one("select tenure.enqueue('act', '{}', p_max_attempts => 3)", &[]).await;
        let mut hand = hand(stage).await;
        for attempt in 1..=3 {
            let (jobs, _) = hand.claim(1).await.unwrap();
            assert_eq!((jobs[0].job, jobs[0].attempt), (id, attempt));
            let status = hand.fail(&jobs[0], "retry", Some(0)).await.unwrap();
            assert_eq!(status, if attempt < 3 { "retrying" } else { "dead" });
            stage.execute("update tenure.later set due_at = clock_timestamp()", &[]).await;
            stage.execute("select tenure.promote()", &[]).await;
            hand.rewind();
        }
        assert_eq!(stage.status(id).await, "dead");
        assert_eq!(stage.count("select count(*) from tenure.attempt_error where cause = 'error'", &[]).await, 3);
    })
    .await;
}

#[tokio::test]
async fn the_default_backoff_doubles_and_is_never_early() {
    on_stage(Size::Ci, async |stage| {
        let _: i64 = stage.one("select tenure.enqueue('act', '{}', p_max_attempts => 100)", &[]).await;
        let mut hand = hand(stage).await;
        for attempt in 1..=20 {
            let (jobs, _) = hand.claim(1).await.unwrap();
            hand.fail(&jobs[0], "retry", None).await.unwrap();
            let delay: f64 =
                stage.one("select extract(epoch from due_at - clock_timestamp())::float8 from tenure.later", &[]).await;
            let base = (2.0 * 2_f64.powi(attempt - 1)).min(3600.0);
            assert!(delay > base - 0.5 && delay <= base * 1.25 + 0.5, "attempt {attempt}: {delay} s, base {base} s");
            stage.execute("update tenure.later set due_at = clock_timestamp()", &[]).await;
            stage.execute("select tenure.promote()", &[]).await;
            hand.rewind();
        }
    })
    .await;
}

#[tokio::test]
async fn a_snooze_and_a_release_use_no_attempt() {
    on_stage(Size::Ci, async |stage| {
        let (mut hand, jobs) = claimed(stage, 2).await;
        assert_eq!(hand.fail(&jobs[0], "snooze", Some(3_600_000)).await.unwrap(), "snoozed");
        assert_eq!(stage.status(jobs[0].job).await, "snoozed");
        assert_eq!(hand.release(&jobs[1..]).await.unwrap(), [0_i64; 0]);
        stage.execute("update tenure.later set due_at = clock_timestamp()", &[]).await;
        stage.execute("select tenure.promote()", &[]).await;
        hand.rewind();
        let (again, _) = hand.claim(10).await.unwrap();
        assert_eq!(again.iter().map(|job| job.attempt).collect::<Vec<_>>(), [1, 1]);
        assert_eq!(stage.count("select count(*) from tenure.attempt_error", &[]).await, 0);
    })
    .await;
}

#[tokio::test]
async fn snoozes_are_counted_and_use_no_attempt_however_many() {
    on_stage(Size::Ci, async |stage| {
        let id: i64 = stage.one("select tenure.enqueue('act', '{}', p_max_attempts => 3)", &[]).await;
        let mut hand = hand(stage).await;
        let seen = "select snoozes from tenure.jobs where id = $1";
        let mut last = Vec::new();
        for n in 1..=5 {
            last = hand.claim(1).await.unwrap().0;
            assert_eq!(last[0].attempt, 1);
            assert_eq!(hand.fail(&last[0], "snooze", Some(0)).await.unwrap(), "snoozed");
            assert_eq!(stage.count(seen, &[&id]).await, n);
            hand.rewind();
        }
        // It waits for a worker again, and yet a repeated report is told that it was heard.
        assert_eq!(hand.fail(&last[0], "snooze", Some(0)).await.unwrap(), "already");
        // As after years of polling: no small number is near its end.
        stage.execute("update tenure.snooze set snoozes = 3000000000", &[]).await;
        let (jobs, _) = hand.claim(1).await.unwrap();
        hand.fail(&jobs[0], "snooze", Some(0)).await.unwrap();
        assert_eq!(stage.count(seen, &[&id]).await, 3_000_000_001);
        hand.rewind();
        let (jobs, _) = hand.claim(1).await.unwrap();
        hand.fail(&jobs[0], "retry", None).await.unwrap();
        let delay: f64 =
            stage.one("select extract(epoch from due_at - clock_timestamp())::float8 from tenure.later", &[]).await;
        assert!(delay <= 2.5, "the first failure waits as the first one: {delay} s");
    })
    .await;
}

#[tokio::test]
async fn of_many_failed_attempts_the_first_and_the_last_twenty_are_kept() {
    on_stage(Size::Ci, async |stage| {
        let id: i64 = stage.one("select tenure.enqueue('act', '{}', p_max_attempts => 100)", &[]).await;
        let mut hand = hand(stage).await;
        for attempt in 1..=100 {
            let (jobs, _) = hand.claim(1).await.unwrap();
            let status = hand.fail(&jobs[0], "retry", Some(0)).await.unwrap();
            assert_eq!(status, if attempt < 100 { "retrying" } else { "dead" });
            if attempt == 40 {
                assert_eq!(stage.count("select count(*) from tenure.attempt_error", &[]).await, 40);
                // Lost workers are counted, so they are kept.
                stage.execute("update tenure.attempt_error set cause = 'worker_lost' where attempt = 30", &[]).await;
            }
            hand.rewind();
        }
        let kept: Vec<i16> =
            stage.one("select array_agg(attempt order by attempt) from tenure.attempt_error", &[]).await;
        assert_eq!(kept, (1..=20).chain([30]).chain(81..=100).collect::<Vec<_>>());
        let buried = "select json_array_length(errors)::bigint from tenure.dead_letter where job_id = $1";
        assert_eq!(stage.count(buried, &[&id]).await, 41);
    })
    .await;
}

#[tokio::test]
async fn nonsense_delays_are_brought_into_bounds_and_a_thousand_backoffs_stay_within_theirs() {
    on_stage(Size::Ci, async |stage| {
        let due = "select coalesce(extract(epoch from max(due_at) - clock_timestamp())::float8, 0) from tenure.later";
        for (delay_ms, expected) in [(i64::MIN, 0.0), (-1, 0.0), (i64::MAX, 315_576_000.0)] {
            let (hand, jobs) = claimed(stage, 1).await;
            assert_eq!(hand.fail(&jobs[0], "retry", Some(delay_ms)).await.unwrap(), "retrying");
            let delay: f64 = stage.one(due, &[]).await;
            assert!((delay - expected).abs() < 60.0, "{delay_ms} ms: {delay} s");
            stage.execute("select tenure.cancel($1)", &[&jobs[0].job]).await;
        }
        let year: i64 = 365 * 86_400_000_000;
        for (run_at_us, spread, expected) in
            [(i64::MIN, 0.0, 0.0), (i64::MAX, 1e300, 315_576_000.0), (100 * year, 0.0, 315_576_000.0)]
        {
            let (hand, jobs) = claimed(stage, 1).await;
            let failure = serde_json::json!([{
                "lease": jobs[0].lease, "job": jobs[0].job, "verdict": "retry", "run_at_us": run_at_us, "spread": spread
            }]);
            assert_eq!(hand.fail_with(&failure.to_string()).await.unwrap(), "retrying");
            let delay: f64 = stage.one(due, &[]).await;
            assert!((delay - expected).abs() < 60.0, "{run_at_us} us: {delay} s");
            stage.execute("select tenure.cancel($1)", &[&jobs[0].job]).await;
        }
        let outside = "select count(*) from generate_series(1, 1000) n cross join lateral tenure.backoff_ms(n) b
            where b < least(3600000, 2000 * 2.0 ^ (n - 1)) or b > 1.25 * least(3600000, 2000 * 2.0 ^ (n - 1)) + 1";
        assert_eq!(stage.count(outside, &[]).await, 0);
    })
    .await;
}

/// Ten thousand jobs fail in one moment: their default backoffs spread them over a window that grows with the delay.
#[tokio::test]
async fn jobs_that_fail_together_do_not_come_back_together() {
    on_stage(Size::Ci, async |stage| {
        let busiest = "select max(jobs)::float8 / 10000 from (
            select count(*) as jobs from (select tenure.backoff_ms(6) as ms from generate_series(1, 10000)) w group by ms / 1000) s";
        let share: f64 = stage.one(busiest, &[]).await;
        // 64 s, spread over 16 s.
        assert!(share < 0.15, "the busiest second holds {share} of the wave");
    })
    .await;
}

#[tokio::test]
async fn what_a_worker_could_not_stop_goes_back_without_an_attempt_when_its_process_ends() {
    on_stage(Size::Ci, async |stage| {
        let (hand, jobs) = claimed(stage, 2).await;
        let stuck = jobs[0].job;
        let left = "select tenure.note_overruns($1, $2::text::uuid, array[$3::bigint], true)";
        assert!(stage.one::<bool>(left, &[&hand.worker, &hand.token, &stuck]).await);
        let overrun = "select count(*) from tenure.jobs where overrun and id = $1";
        assert_eq!(stage.count(overrun, &[&stuck]).await, 1);
        stage.expire(hand.worker).await;
        assert_eq!(stage.rescue().await, 2);
        let causes =
            "select coalesce(string_agg(cause, ',' order by job_id), '') from tenure.attempt_error where job_id = $1";
        assert_eq!(stage.one::<String>(causes, &[&stuck]).await, "");
        assert_eq!(stage.one::<String>(causes, &[&jobs[1].job]).await, "worker_lost");
        let message: String = stage.one("select message from tenure.attempt_error", &[]).await;
        assert!(message.contains("(\"hand\", process 1 on test-host) was lost"), "{message}");
        let mut other = self::hand(stage).await;
        let (again, _) = other.claim(10).await.unwrap();
        let attempts: Vec<_> = again.iter().map(|job| (job.job, job.attempt)).collect();
        assert!(attempts.contains(&(stuck, 1)) && attempts.contains(&(jobs[1].job, 2)), "{attempts:?}");
        assert!(!stage.one::<bool>(left, &[&hand.worker, &hand.token, &stuck]).await, "it was given up");
    })
    .await;
}

#[tokio::test]
async fn one_failed_job_of_a_bundle_leaves_the_others_alone() {
    on_stage(Size::Ci, async |stage| {
        let (hand, jobs) = claimed(stage, 100).await;
        assert_eq!(hand.fail(&jobs[50], "permanent", None).await.unwrap(), "dead");
        let others: Vec<Leased> = jobs.iter().filter(|job| job.job != jobs[50].job).cloned().collect();
        assert_eq!(hand.complete(&others).await.unwrap(), []);
        assert_eq!(stage.statuses().await, [("completed".to_owned(), 99), ("dead".to_owned(), 1)].into());
    })
    .await;
}

#[tokio::test]
async fn a_failure_that_cannot_be_stored_as_it_is_is_stored_cut_and_cleaned() {
    on_stage(Size::Ci, async |stage| {
        let (hand, jobs) = claimed(stage, 4).await;
        let texts = ["x".repeat(2_000_000), "€".repeat(700_000), "nul \\u0000 inside".into(), "lone \\ud800 half".into()];
        for (job, text) in jobs.iter().zip(&texts) {
            let failures = format!(
                r#"[{{"lease":{},"job":{},"verdict":"retry","delay_ms":60000,"cause":"error","message":"{text}","details":{{"k\u0000":"{text}"}}}}]"#,
                job.lease, job.job
            );
            assert_eq!(hand.fail_with(&failures).await.unwrap(), "retrying");
        }
        let longest = "select max(octet_length(message)) from tenure.attempt_error";
        assert!(stage.one::<i32>(longest, &[]).await <= 16 * 1024);
        assert_eq!(stage.count("select count(*) from tenure.attempt_error", &[]).await, 4);
    })
    .await;
}

#[tokio::test]
async fn progress_is_kept_while_the_job_runs() {
    on_stage(Size::Ci, async |stage| {
        let (hand, jobs) = claimed(stage, 1).await;
        let call = "select tenure.progress($1, $2, '{\"done\": 3}')";
        assert!(stage.one::<bool>(call, &[&jobs[0].job, &jobs[0].lease]).await);
        let seen: String = stage.one("select progress->>'done' from tenure.jobs where id = $1", &[&jobs[0].job]).await;
        assert_eq!(seen, "3");
        hand.complete(&jobs).await.unwrap();
        assert!(!stage.one::<bool>(call, &[&jobs[0].job, &jobs[0].lease]).await);
    })
    .await;
}

#[tokio::test]
async fn a_job_that_is_given_back_after_somebody_cancelled_it_is_cancelled() {
    on_stage(Size::Ci, async |stage| {
        let (hand, jobs) = claimed(stage, 3).await;
        assert_eq!(stage.one::<String>("select tenure.cancel($1)", &[&jobs[1].job]).await, "requested");
        assert_eq!(hand.release(&jobs).await.unwrap(), [0_i64; 0]);
        let mut statuses = Vec::new();
        for job in &jobs {
            statuses.push(stage.status(job.job).await);
        }
        assert_eq!(statuses, ["available", "cancelled", "available"]);
        assert_eq!(hand.release(&jobs[1..2]).await.unwrap(), [jobs[1].job], "once");
    })
    .await;
}

#[tokio::test]
async fn a_job_whose_worker_gives_up_again_and_again_leaves_a_trace_each_time_and_ends() {
    on_stage(Size::Ci, async |stage| {
        let enqueue = "select tenure.enqueue('act', '{}', p_max_attempts => 1, p_priority => 3)";
        let id: i64 = stage.one(enqueue, &[]).await;
        let mut hand = hand(stage).await;
        for _ in 0..10 {
            let (jobs, _) = hand.claim(1).await.unwrap();
            assert_eq!(jobs[0].attempt, 1, "none is used");
            assert_eq!(hand.fail(&jobs[0], "given_up", None).await.unwrap(), "released");
            assert_eq!(hand.fail(&jobs[0], "given_up", None).await.unwrap(), "already");
            assert_eq!(stage.count("select priority::bigint from tenure.ready", &[]).await, 3, "behind what is urgent");
        }
        let (jobs, _) = hand.claim(1).await.unwrap();
        assert_eq!(hand.fail(&jobs[0], "given_up", None).await.unwrap(), "dead");
        let traces = "select count(*) from tenure.attempt_error where job_id = $1 and cause = 'given_up'";
        assert_eq!(stage.count(traces, &[&id]).await, 11);
        assert_eq!(
            stage.one::<String>("select cause from tenure.dead_letter where job_id = $1", &[&id]).await,
            "given_up"
        );
    })
    .await;
}

#[tokio::test]
async fn a_handler_that_outlasts_its_first_lease_has_time_to_commit_under_every_isolation_level() {
    on_stage(Size::Ci, async |stage| {
        for isolation in ["read committed", "repeatable read", "serializable"] {
            let (hand, jobs) = claimed(stage, 1).await;
            // As if the transaction had begun a lease ago: what it sees of the worker is over.
            let over = "update tenure.worker set lease_until = clock_timestamp() - interval '1 s' where id = $1";
            stage.execute(over, &[&hand.worker]).await;
            let sql = stage.db.sql().await;
            sql.batch_execute(&format!("begin isolation level {isolation}; select from tenure.queue")).await.unwrap();
            hand.heartbeat().await.unwrap().expect("alive");
            sql.execute("select tenure.complete($1, $2)", &[&jobs[0].job, &jobs[0].lease]).await.unwrap();
            let idle = "select setting::bigint from pg_settings where name = 'idle_in_transaction_session_timeout'";
            let idle_ms: i64 = sql.query_one(idle, &[]).await.unwrap().get(0);
            assert!((29_000..=30_000).contains(&idle_ms), "{isolation}: {idle_ms} ms");
            sql.batch_execute("commit").await.unwrap();
            assert_eq!(stage.status(jobs[0].job).await, "completed");
        }
    })
    .await;
}

#[tokio::test]
async fn a_report_whose_arrays_do_not_fit_each_other_is_refused_and_ends_nothing() {
    on_stage(Size::Ci, async |stage| {
        let (hand, jobs) = claimed(stage, 2).await;
        let leases = [jobs[0].lease];
        for strips in ["null", "array[null]::varbit[]", "'{}'", "array[b'1', b'1']::varbit[]"] {
            for (verb, rest) in [("complete_many", ", '{}', '{}'"), ("release", "")] {
                let statement = format!("select tenure.{verb}($1, $2::text::uuid, $3, {strips}{rest})");
                let answer = hand.sql.query(statement.as_str(), &[&hand.worker, &hand.token, &leases.as_slice()]).await;
                assert_eq!(sqlstate(answer), BAD_INPUT, "{statement}");
            }
        }
        assert_eq!(stage.statuses().await.get("running"), Some(&2));
    })
    .await;
}

#[tokio::test]
async fn a_suspect_that_fails_in_the_ordinary_way_still_runs_with_no_other_suspect_beside_it() {
    on_stage(Size::Ci, async |stage| {
        let ids = stage.enqueue_many(&Act::Sleep { ms: 0 }, 2).await;
        for _ in 0..2 {
            let mut hand = hand(stage).await;
            assert_eq!(hand.claim(10).await.unwrap().0.len(), 2);
            stage.expire(hand.worker).await;
            stage.rescue().await;
        }
        for delay_ms in [0, 60_000] {
            let mut claimed = Vec::new();
            for _ in &ids {
                let mut hand = hand(stage).await;
                let (jobs, _) = hand.claim(10).await.unwrap();
                assert_eq!(jobs.len(), 1, "a suspect is claimed alone");
                assert_eq!(hand.claim(10).await.unwrap().0.len(), 0, "and by a worker that holds no other");
                claimed.push((hand, jobs));
            }
            for (hand, jobs) in &claimed {
                assert_eq!(hand.fail(&jobs[0], "retry", Some(delay_ms)).await.unwrap(), "retrying");
            }
            stage.execute("update tenure.later set due_at = clock_timestamp()", &[]).await;
            stage.execute("select tenure.promote()", &[]).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_clock_that_was_set_back_costs_no_result() {
    on_stage(Size::Ci, async |stage| {
        let (hand, jobs) = claimed(stage, 4).await;
        stage.execute("update tenure.lease set leased_at = clock_timestamp() + interval '5 s'", &[]).await;
        assert_eq!(hand.complete(&jobs[..1]).await.unwrap(), []);
        stage.execute("select tenure.complete($1, $2, '7')", &[&jobs[1].job, &jobs[1].lease]).await;
        assert_eq!(hand.fail(&jobs[2], "cancelled", None).await.unwrap(), "cancelled");
        assert_eq!(stage.one::<String>("select tenure.cancel($1)", &[&jobs[3].job]).await, "requested");
        assert_eq!(hand.release(&jobs[3..]).await.unwrap(), [0_i64; 0]);
        let ended = "select count(*) from tenure.outcome where finished_at = started_at";
        assert_eq!(stage.count(ended, &[]).await, 4, "as late as they started");
    })
    .await;
}

#[tokio::test]
async fn a_lease_that_is_named_twice_in_a_report_is_refused() {
    on_stage(Size::Ci, async |stage| {
        let (hand, jobs) = claimed(stage, 2).await;
        let leases = [jobs[0].lease, jobs[0].lease];
        let strips = "array[set_bit(repeat('0', 128)::varbit, 0, 1), set_bit(repeat('0', 128)::varbit, 1, 1)]";
        let call = format!("select tenure.complete_many($1, $2::text::uuid, $3, {strips}, '{{}}', '{{}}')");
        let answer = hand.sql.query(call.as_str(), &[&hand.worker, &hand.token, &leases.as_slice()]).await;
        assert_eq!(sqlstate(answer), BAD_INPUT);
        assert_eq!(stage.statuses().await.get("running"), Some(&2));
    })
    .await;
}

#[tokio::test]
async fn a_burial_of_a_lost_workers_job_does_not_count_as_its_report() {
    on_stage(Size::Ci, async |stage| {
        let enqueue = "select tenure.enqueue('act', '{}', p_max_attempts => 1)";
        stage.one::<i64>(enqueue, &[]).await;
        let mut hand = hand(stage).await;
        let (jobs, _) = hand.claim(1).await.unwrap();
        stage.expire(hand.worker).await;
        assert_eq!(stage.rescue().await, 1);
        assert_eq!(stage.status(jobs[0].job).await, "dead");
        assert_eq!(hand.complete(&jobs).await.unwrap(), [(jobs[0].job, "lost".to_owned())]);
        assert_eq!(hand.fail(&jobs[0], "permanent", None).await.unwrap(), "lost");
    })
    .await;
}
