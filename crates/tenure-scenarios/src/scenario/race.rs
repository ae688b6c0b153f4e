//! Two who want to decide about one job at the same moment: there is one winner, and the loser is told.

use std::time::Duration;

use crate::protocol::{Hand, Leased, Registration};
use crate::stage::rescue;
use crate::{Act, Bound, Measure, Stage, size};

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
    rescue(&rescuer).await;
    let ending = end(slow, job, leaves);
    let commit = async {
        // The end waits for the rescuer's row, or has been refused already.
        let waits =
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
        let _ = tokio::time::timeout(Duration::from_millis(300), async {
            while stage.count(waits, &[]).await == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await; // between two looks
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
