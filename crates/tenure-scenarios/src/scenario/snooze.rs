//! A job that says "not yet" very many times before it fails for the first time.

use std::time::{Duration, Instant};

use tenure::testing::until_within;

use crate::{Act, Bound, Measure, Stage, size};

const LIMIT: Duration = Duration::from_secs(60);
/// The longest time that one snooze may take on a slow machine: claimed, run, reported.
const SNOOZE_MAX: Duration = Duration::from_millis(200);
/// The first step of the default backoff: 2 s, and up to a quarter of it more.
const FIRST_STEP: (f64, f64) = (2.0, 2.5);

/// Three attempts, and snoozes before the first of them ends: then two failures, then success.
pub async fn snoozes_before_failures(stage: &Stage) -> Vec<Measure> {
    let snoozes = size::SNOOZES.at(stage.size);
    let worker = stage.start(stage.worker("a").with(|o| o.retry_delay = None)).await;
    let act = Act::SnoozeThenFail { snoozes, failures: 2 };
    let enqueue = "select tenure.enqueue('act', $1::text::json, p_max_attempts => 3)";
    let begin = Instant::now();
    let id: i64 = stage.one(enqueue, &[&act.json()]).await;
    let patience = LIMIT + SNOOZE_MAX * u32::try_from(snoozes).expect("a number of snoozes");
    let waits = "select extract(epoch from t.due_at - e.failed_at)::float8 from tenure.later t
        join tenure.attempt_error e on e.job_id = $1 and e.attempt = 1 where t.block = $1 >> 7 and t.reason = 'r' and t.attempt = 1";
    let first: f64 = until_within(patience, "the first failure", async || {
        stage.sql.query_opt(waits, &[&id]).await.expect("a look").map(|row| row.get(0)).ok_or(stage.status(id).await)
    })
    .await;
    let took = begin.elapsed();
    stage.completed(1, LIMIT).await;
    let counted = "select snoozes from tenure.jobs where id = $1";
    let attempt = "select attempt::bigint from tenure.outcome where job_id = $1 and state = 'c'";
    let failures = "select count(*) from tenure.attempt_error where job_id = $1 and message like '%really%'";
    let others = "select count(*) from tenure.attempt_error where job_id = $1 and message not like '%really%'";
    let complaints =
        worker.log().lines().filter(|line| line.contains("ERROR") || line.contains("out of range")).count();
    let measures = vec![
        Measure::count("snoozes that are counted", snoozes as usize, stage.count(counted, &[&id]).await as usize),
        Measure::count(
            "attempt of the job that snoozed and failed twice",
            3,
            stage.count(attempt, &[&id]).await as usize,
        ),
        Measure::count("failures that are kept", 2, stage.count(failures, &[&id]).await as usize),
        Measure::count(
            "other failures, and errors in the log",
            0,
            stage.count(others, &[&id]).await as usize + complaints,
        ),
        // Both bounds are the database's arithmetic: the slack that tests have for times is not for them.
        Measure::new("wait after the first failure", Bound::AtLeast(FIRST_STEP.0), first, "s"),
        Measure::new("the same, at most the first step", Bound::AtMost(FIRST_STEP.1), first, "seconds"),
        Measure::new("snoozes a second", Bound::Shown, snoozes as f64 / took.as_secs_f64(), "/s"),
    ];
    worker.shut_down().await;
    measures
}
