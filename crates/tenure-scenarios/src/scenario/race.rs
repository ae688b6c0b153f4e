//! Two who want to decide about one job at the same moment: there is one winner, and the loser is told.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tenure::testing::until_within;
use tenure::{Cancelled, Enqueue, Fail, KindOptions, RawJson, RetryPolicy, Worker};

use crate::protocol::{Hand, Leased, Registration};
use crate::{Act, Bound, Measure, Stage, size};

const LIMIT: Duration = Duration::from_secs(60);
/// Jobs of the same worker that are truly stuck.
const STUCK: usize = 20;

/// How a job leaves its lease at the moment in which it is rescued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaves {
    Completed,
    ClaimedByAnother,
    Cancelled,
}

/// A rescue that meets a job which completes, was claimed by another worker, or is cancelled; and twenty that are stuck.
pub async fn rescue_meets_ends(stage: &Stage) -> Vec<Measure> {
    let (mut changed, mut not_rescued, mut late_wins, mut rounds) = (0, 0, 0, 0);
    for _ in 0..size::RESCUE_RACES.at(stage.size) {
        for leaves in [Leaves::Completed, Leaves::ClaimedByAnother, Leaves::Cancelled] {
            for rescue_first in [false, true] {
                rounds += 1;
                let found = one_round(stage, leaves, rescue_first).await;
                changed += usize::from(found.changed);
                not_rescued += STUCK - found.rescued;
                late_wins += usize::from(found.late_wins);
            }
        }
    }
    vec![
        Measure::new("rescues that met the end of a job", Bound::Shown, rounds as f64, ""),
        Measure::count("of these, jobs that were changed after their end", 0, changed),
        Measure::count("stuck jobs beside them that were not rescued", 0, not_rescued),
        Measure::count("ends that were taken although the rescue was first", 0, late_wins),
    ]
}

struct Round {
    changed: bool,
    rescued: usize,
    late_wins: bool,
}

async fn one_round(stage: &Stage, leaves: Leaves, rescue_first: bool) -> Round {
    let queue = format!("q{:x}", fastrand::u64(..));
    let registration = Registration { queues: vec![queue.clone()], ..Registration::default() };
    let ids = stage.enqueue_to(&queue, &Act::Sleep { ms: 0 }, STUCK + 1).await;
    let mut slow = stage.hand(&registration).await;
    slow.solo_kinds = vec!["act".into()];
    let (jobs, _) = slow.claim(100).await.expect("claimed");
    let (job, stuck) = jobs.split_first().expect("jobs");
    assert_eq!((ids.len(), stuck.len()), (STUCK + 1, STUCK));
    if leaves == Leaves::Cancelled {
        stage.one::<String>("select tenure.cancel($1)", &[&job.job]).await;
    }
    let mut other = stage.hand(&registration).await;
    // Alive until its words are said, then dead to the rescuer.
    let late_wins = if rescue_first {
        stage.expire(slow.worker).await;
        rescue_then_end(stage, &slow, job, leaves).await
    } else {
        end_then_rescue(stage, &slow, &mut other, job, leaves).await;
        false
    };
    let before = stage.picture(job.job).await;
    stage.rescue().await;
    stage.rescue().await;
    let after = stage.picture(job.job).await;
    let rescued = "select count(*) from tenure.attempt_error where cause = 'worker_lost' and job_id = any($1)";
    let stuck: Vec<i64> = stuck.iter().map(|job| job.job).collect();
    let rescued = stage.count(rescued, &[&stuck]).await as usize;
    other.rewind();
    let (left, _) = other.claim(100).await.expect("claimed");
    other.complete(&left).await.expect("completed");
    Round { changed: before != after, rescued, late_wins }
}

/// The job's end is written and not yet committed when the rescuer comes; then it commits.
async fn end_then_rescue(stage: &Stage, slow: &Hand, other: &mut Hand, job: &Leased, leaves: Leaves) {
    match leaves {
        Leaves::Completed | Leaves::Cancelled => {
            slow.sql.batch_execute("begin").await.expect("begin");
            let gone = end(slow, job, leaves).await;
            assert!(gone, "a live worker ends its job");
            stage.expire(slow.worker).await;
            stage.rescue().await;
            slow.sql.batch_execute("commit").await.expect("commit");
        }
        // Another worker runs it when the rescuer comes once more.
        Leaves::ClaimedByAnother => {
            stage.expire(slow.worker).await;
            stage.rescue().await;
            let (again, _) = other.claim(100).await.expect("claimed");
            let again: Vec<_> = again.into_iter().filter(|other| other.job == job.job).collect();
            assert_eq!(again.len(), 1, "the rescued job is claimed");
        }
    }
}

/// The rescuer has taken the job and not yet committed when its worker comes with an end; true when that end counted.
async fn rescue_then_end(stage: &Stage, slow: &Hand, job: &Leased, leaves: Leaves) -> bool {
    let rescuer = stage.db.sql().await;
    rescuer.batch_execute("begin").await.expect("begin");
    rescuer.query("select tenure.rescue()", &[]).await.expect("rescued");
    let ending = end(slow, job, leaves);
    let commit = async {
        // The end waits for the rescuer's row, or has been refused already.
        let waits =
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
        let _ = tokio::time::timeout(Duration::from_millis(300), async {
            while stage.count(waits, &[]).await == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        rescuer.batch_execute("commit").await.expect("commit");
    };
    let (counted, ()) = tokio::join!(ending, commit);
    counted
}

async fn end(slow: &Hand, job: &Leased, leaves: Leaves) -> bool {
    match leaves {
        Leaves::Completed | Leaves::ClaimedByAnother => {
            slow.complete(std::slice::from_ref(job)).await.expect("answered").is_empty()
        }
        Leaves::Cancelled => slow.fail(job, "cancelled", None).await.expect("answered") == "cancelled",
    }
}

/// What a cancelled job's starts and its cancellation look like.
#[derive(Default)]
struct Seen {
    starts: Mutex<HashMap<i64, Vec<Instant>>>,
}

/// Jobs are cancelled while they are claimed, start, finish, fail and wait for a retry.
pub async fn cancel_meets_everything(stage: &Stage) -> Vec<Measure> {
    let client = stage.db.client().await;
    let seen = Arc::new(Seen::default());
    let record = seen.clone();
    let options = KindOptions::new().retry(RetryPolicy::fixed(Duration::from_millis(5)));
    let worker = Worker::builder(stage.url()).queue("default", 20).handle_raw("act", options, move |ctx, _| {
        record.starts.lock().expect("starts").entry(ctx.job_id().get()).or_default().push(Instant::now());
        async move {
            let fails = ctx.attempt() == 1 && ctx.job_id().get() % 4 == 0;
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(fastrand::u64(0..8))) => {}
                _ = ctx.cancelled() => return Err(Fail::cancelled()),
            }
            if fails { Err(Fail::retry("the first time")) } else { Ok(None) }
        }
    });
    let mut running = worker.start().await.expect("a worker");
    let mut answers: HashMap<i64, (Cancelled, Instant)> = HashMap::new();
    let jobs = size::CANCELLED_JOBS.at(stage.size);
    while answers.len() < jobs {
        let mut batch = Vec::new();
        for _ in 0..20 {
            batch.push(client.enqueue(Enqueue::raw("act", RawJson::null())).await.expect("enqueued"));
        }
        let cancels = batch.into_iter().map(|id| {
            let client = &client;
            async move {
                tokio::time::sleep(Duration::from_millis(fastrand::u64(0..40))).await; // the random offset
                (id.get(), client.cancel(id).await.expect("an answer"), Instant::now())
            }
        });
        for (id, answer, at) in futures_util::future::join_all(cancels).await {
            answers.insert(id, (answer, at));
        }
    }
    let left = "select (select count(*) from tenure.job) - (select count(*) from tenure.outcome) - (select count(*) from tenure.dead_letter)
        + (select count(*) from tenure.cancel_request)";
    until_within(LIMIT, "every job has ended and no request is left", async || {
        let left = stage.count(left, &[]).await;
        if left == 0 { Ok(()) } else { Err(format!("{left}")) }
    })
    .await;
    running.shutdown();
    running.join().await;
    let (mut wrong, mut requested_and_completed, mut counts) = (0, 0, HashMap::<&str, usize>::new());
    let mut run_after = 0;
    let starts = seen.starts.lock().expect("starts").clone();
    for (id, (answer, at)) in &answers {
        let end = stage.status(*id).await;
        *counts.entry(answer.as_str()).or_default() += 1;
        let fits = match answer {
            Cancelled::Now | Cancelled::WasCancelled => end == "cancelled",
            Cancelled::Requested => end == "cancelled" || end == "completed",
            Cancelled::WasCompleted => end == "completed",
            Cancelled::WasDead => end == "dead",
        };
        wrong += usize::from(!fits);
        requested_and_completed += usize::from(*answer == Cancelled::Requested && end == "completed");
        let started_after = starts.get(id).is_some_and(|starts| starts.iter().any(|start| start > at));
        run_after += usize::from(*answer == Cancelled::Now && started_after);
    }
    let count = |what: &str| counts.get(what).copied().unwrap_or_default();
    vec![
        Measure::new("jobs cancelled at a random moment", Bound::AtLeast(jobs as f64), answers.len() as f64, ""),
        Measure::new("of these, cancelled while they waited", Bound::AtLeast(1.0), count("cancelled") as f64, ""),
        Measure::new("of these, requested while they ran", Bound::AtLeast(1.0), count("requested") as f64, ""),
        Measure::new("of these, completed before", Bound::AtLeast(1.0), count("completed") as f64, ""),
        Measure::count("cancelled jobs whose end is not what the answer said", 0, wrong),
        Measure::count("jobs that started after they had been cancelled", 0, run_after),
        Measure::new("requests that came after the handler's end", Bound::Shown, requested_and_completed as f64, ""),
    ]
}
