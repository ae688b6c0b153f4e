//! Pauses hold for every worker from their commit on, and cost nothing while they last; dead letters come back evenly.

use std::time::{Duration, SystemTime};

use tenure::testing::until_within;
use tenure::{Client, DeadFilter, JobId, RequeuePace};

use crate::protocol::{Hand, Registration};
use crate::{Act, Bound, Measure, Stage, WorkerProcess, size};

/// How long jobs may take once they are let run.
const RUN: Duration = Duration::from_secs(60);

/// A queue is paused, then a kind, while workers run, restart and join, one of them without notifications; jobs are
/// enqueued, become due and are requeued meanwhile.
pub async fn pauses_hold_everywhere(stage: &Stage) -> Vec<Measure> {
    let client = stage.db.client().await;
    let mut workers = Vec::new();
    for name in ["a", "b", "deaf"] {
        workers.push(stage.start(stage.worker(name).with(|worker| worker.pooler = name == "deaf")).await);
    }
    let dead = size::PAUSED_DEAD.at(stage.size);
    stage.enqueue_many(&Act::FailForGood { text: "no such order".into() }, dead).await;
    until_within(RUN, "all are dead", async || stage.statuses().await.get("dead") == Some(&(dead as i64))).await;
    let mut measures = Vec::new();
    for what in ["queue", "kind"] {
        stage.enqueue_many(&Act::Sleep { ms: 300 }, 30).await;
        until_within(RUN, "some run", async || stage.statuses().await.contains_key("running")).await;
        let paused = match what {
            "queue" => client.pause("default", Some("me"), Some("incident")).await,
            _ => client.pause_kind("act", None, Some("me"), Some("incident")).await,
        };
        assert!(paused.expect("paused"));
        let from: SystemTime = stage.one("select clock_timestamp()", &[]).await;
        measures.push(meanwhile(stage, &client, &mut workers, what).await);
        let until: SystemTime = stage.one("select clock_timestamp()", &[]).await;
        let resumed = match what {
            "queue" => client.resume("default").await,
            _ => client.resume_kind("act", None).await,
        };
        assert!(resumed.expect("resumed"));
        let took = std::time::Instant::now();
        let left = "select count(*) from tenure.jobs where status not in ('completed', 'dead')";
        until_within(RUN, "all run after the resume", async || match stage.count(left, &[]).await {
            0 => Ok(()),
            left => Err(format!("{left} have not: {:?}", stage.statuses().await)),
        })
        .await;
        let line = |text: &str| format!("a paused {what}: {text}");
        measures.extend([
            Measure::count(line("jobs claimed after the pause committed"), 0, claimed(stage, from, until).await),
            Measure::new(
                line("seconds until all had run after the resume"),
                Bound::Shown,
                took.elapsed().as_secs_f64(),
                "s",
            ),
        ]);
    }
    measures.push(Measure::count("a pause: jobs not run once afterwards", 0, stage.not_started_once().await as usize));
    measures
}

/// All that could start a job in spite of a pause.
async fn meanwhile(stage: &Stage, client: &Client, workers: &mut Vec<WorkerProcess>, what: &str) -> Measure {
    let jobs = stage.enqueue_many(&Act::Sleep { ms: 0 }, size::PAUSED_JOBS.at(stage.size)).await;
    stage.one::<i64>("select tenure.enqueue('act', '{\"do\":\"sleep\",\"ms\":0}', p_delay_ms => 500)", &[]).await;
    let requeued = client.requeue_dead(&DeadFilter::all(), RequeuePace::AtOnce, |_| {}).await.expect("requeued");
    assert_eq!(requeued, size::PAUSED_DEAD.at(stage.size));
    let why = client.waits_for(JobId::from(jobs[0])).await.expect("an answer").expect("it waits");
    assert_eq!(why.reason, format!("{what}_paused"));
    assert!(why.explained.ends_with("by me: incident"), "{}", why.explained);
    for name in ["a", "b", "deaf"] {
        let old = workers.remove(0);
        old.shut_down().await;
        workers.push(stage.start(stage.worker(name).with(|worker| worker.pooler = name == "deaf")).await);
    }
    workers.push(stage.start(stage.worker(&format!("new-{what}"))).await);
    assert_eq!(client.drained("default", Some(RUN)).await.expect("drained"), 0);
    // Polls, sweeps and what became due in this time start nothing.
    tokio::time::sleep(size::PAUSED.at(stage.size)).await;
    let started = "select count(*) from probe where job_id = any($1)";
    let started = stage.count(started, &[&jobs]).await as usize;
    Measure::count(format!("a paused {what}: jobs enqueued meanwhile that started"), 0, started)
}

/// Attempts that were claimed between the two instants, as far as they are on record.
async fn claimed(stage: &Stage, from: SystemTime, until: SystemTime) -> usize {
    let claimed = "select count(*) from (
            select started_at from tenure.outcome union all select started_at from tenure.attempt_error
            union all select leased_at from tenure.lease) a
        where a.started_at > $1 and a.started_at < $2";
    stage.count(claimed, &[&from, &until]).await as usize
}

/// Enqueues so many jobs and lets them die by hand, each with a message of its own.
async fn bury(stage: &Stage, count: usize) {
    stage.execute("select tenure.enqueue_many('act', array_fill('{\"do\":\"sleep\",\"ms\":0}'::json, array[$1::bigint::int]), 'aside')", &[&(count as i64)]).await;
    let mut hand = stage.hand(&Registration { queues: vec!["aside".into()], ..Registration::default() }).await;
    loop {
        let jobs = hand.claim(1_000).await.expect("claimed").0;
        if jobs.is_empty() {
            break;
        }
        let failures: Vec<_> = jobs
            .iter()
            .map(|job| {
                serde_json::json!({
                    "lease": job.lease, "job": job.job, "verdict": "permanent", "cause": "error",
                    "message": format!("no answer from 10.0.0.{} for order {}", job.slot, job.job),
                })
            })
            .collect();
        let failures = serde_json::Value::from(failures).to_string();
        let fail = "select status from tenure.fail($1, $2::text::uuid, $3::text::json)";
        hand.sql.query(fail, &[&hand.worker, &hand.token, &failures]).await.expect("buried");
    }
    leave(&hand).await;
}

async fn leave(hand: &Hand) {
    let leave = "select tenure.leave_worker($1, $2::text::uuid)";
    hand.sql.execute(leave, &[&hand.worker, &hand.token]).await.expect("left");
}

/// Very many dead letters come back over five minutes.
pub async fn requeue_spread(stage: &Stage) -> Vec<Measure> {
    const MINUTES: u64 = 5;
    let count = size::SPREAD.at(stage.size);
    bury(stage, count).await;
    let client = stage.db.client().await;
    let pace = RequeuePace::Over(Duration::from_secs(MINUTES * 60));
    let requeued = client.requeue_dead(&DeadFilter::all(), pace, |_| {}).await.expect("requeued");
    // Minutes count from the first; one that was due at once has no time of its own.
    let minutes = "select count(*) from (
            select floor(extract(epoch from due - min(due) over ()) / 60) as minute
            from (select coalesce(run_at, created_at) as due from tenure.jobs where replaces_id is not null) j) m
        group by minute order by minute";
    let rows = stage.sql.query(minutes, &[]).await.expect("minutes");
    let minutes: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    let (least, most) = (minutes.iter().min().copied().unwrap_or(0), minutes.iter().max().copied().unwrap_or(0));
    vec![
        Measure::count("dead letters requeued over 5 minutes", count, requeued),
        Measure::count("requeued over 5 minutes: minutes with jobs", MINUTES as usize, minutes.len()),
        Measure::new(
            "requeued over 5 minutes: the fullest minute to the emptiest",
            Bound::AtMost(2.0),
            most as f64 / least.max(1) as f64,
            "",
        ),
    ]
}

/// What claims cost beside very many jobs of a paused kind: pages read by the first, which passes over them, and by the
/// others.
pub async fn paused_kind_is_passed_over_once(stage: &Stage) -> Vec<Measure> {
    let jobs = size::PAUSED_CROWD.at(stage.size);
    let one_by_one = "select count(tenure.enqueue('act', '{}')) from generate_series(1, $1::bigint)";
    stage.count(one_by_one, &[&(jobs as i64)]).await;
    let client = stage.db.client().await;
    let kinds = vec!["act".to_owned(), "other".to_owned()];
    let mut hand = stage.hand(&Registration { kinds, ..Registration::default() }).await;
    client.pause_kind("act", None, None, None).await.expect("paused");
    let first = claim_beside(stage, &mut hand).await;
    let mut most = 0.0_f64;
    for _ in 0..20 {
        most = most.max(claim_beside(stage, &mut hand).await);
    }
    let line = |what: &str| format!("beside {jobs} jobs of a paused kind: {what}");
    vec![
        Measure::new(line("pages read by the first claim"), Bound::Shown, first, ""),
        Measure::new(line("pages read by the dearest of 20 more"), Bound::AtMost(100.0), most, ""),
    ]
}

/// Enqueues a job that is not paused and claims it; pages of the table that the claim looked at, as the server counts them.
async fn claim_beside(stage: &Stage, hand: &mut Hand) -> f64 {
    let id: i64 = stage.one("select tenure.enqueue('other', '{}')", &[]).await;
    let before = pages(hand).await;
    let jobs = hand.claim(10).await.expect("claimed").0;
    let read = pages(hand).await - before;
    assert_eq!(jobs.iter().map(|job| job.job).collect::<Vec<_>>(), [id]);
    hand.complete(&jobs).await.expect("completed");
    read as f64
}

/// Pages of `ready` and its key that all sessions have asked for so far; nobody else is at work.
async fn pages(hand: &Hand) -> i64 {
    const PAGES: &str = "select sum(pg_stat_get_blocks_fetched(c.oid))::bigint from pg_class c
        where c.oid in ('tenure.ready'::regclass, 'tenure.ready_pkey'::regclass)";
    hand.sql.batch_execute("select pg_stat_force_next_flush()").await.expect("flushed");
    hand.sql.query_one(PAGES, &[]).await.expect("pages").get(0)
}
