//! A job that is longer than the lease of its healthy worker runs once.

use std::time::Duration;

use tenure::testing::until_within;

use crate::{Act, Measure, Stage, size};

/// One worker runs the job, another one would take it; once waiting, once burning CPU.
pub async fn longer_than_its_lease(stage: &Stage) -> Vec<Measure> {
    let (time, lease) = (size::LONG_JOB.at(stage.size), size::LONG_JOB_LEASE.at(stage.size));
    let options = |name: &str| stage.worker(name).concurrency(2).lease(lease).with(|o| o.threads = 1);
    let workers = [stage.start(options("a")).await, stage.start(options("b")).await];
    let ms = time.as_millis() as u64;
    let waiting = stage.enqueue(&Act::Sleep { ms }).await;
    let burning = stage.enqueue(&Act::Burn { ms }).await;
    stage.started(2, Duration::from_secs(20)).await;
    let until = "select max(extract(epoch from lease_until))::float8 from tenure.worker";
    let first: f64 = stage.one(until, &[]).await;
    until_within(time, "the end of the lease keeps moving", async || stage.one::<f64>(until, &[]).await > first + 1.0)
        .await;
    stage.completed(2, time + Duration::from_secs(20)).await;
    let (s, l) = (time.as_secs(), lease.as_secs());
    let measures = vec![
        Measure::count(
            format!("starts of a {s} s job under a {l} s lease, waiting"),
            1,
            stage.starts(waiting).await as usize,
        ),
        Measure::count(
            format!("starts of a {s} s job under a {l} s lease, burning CPU"),
            1,
            stage.starts(burning).await as usize,
        ),
        Measure::count("of these, rescued", 0, stage.rescues().await as usize),
    ];
    for worker in workers {
        worker.shut_down().await;
    }
    measures
}
