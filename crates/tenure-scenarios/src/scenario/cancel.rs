//! Cancels at random moments of the life of many jobs: each job ends once, and the answer agrees with the end.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use tenure::testing::until_within;
use tenure::{Cancelled, Client, Fail, JobOptions, KindOptions, RawJson, RetryPolicy, Worker};

use crate::{Bound, Measure, Stage, size};

/// Cancels that are under way at once.
const CANCELS: usize = 16;
/// The longest time between the enqueue of a job and its cancel: most jobs have ended by then.
const AFTER_MAX: Duration = Duration::from_millis(400);
/// How long what is left may take.
const REST: Duration = Duration::from_secs(60);

/// What was answered, and when.
type Answers = HashMap<i64, (Cancelled, SystemTime)>;

/// Jobs that end at once, run a while, fail once, or fail always, each cancelled at a random moment.
pub async fn cancels_at_random(stage: &Stage) -> Vec<Measure> {
    let count = size::CANCELS.at(stage.size);
    let client = stage.db.client().await;
    let starts = Arc::new(Mutex::new(Vec::new()));
    let workers = [start(stage, &starts).await, start(stage, &starts).await];
    let answers = Mutex::new(Answers::new());
    let parts = (0..count.div_ceil(100)).map(|_| cancel_some(&client, &answers));
    futures_util::stream::iter(parts).buffer_unordered(4).collect::<Vec<()>>().await;
    let left = "select count(*) from tenure.jobs where status not in ('completed', 'cancelled', 'dead')";
    until_within(REST, "every job has ended", async || match stage.count(left, &[]).await {
        0 => Ok(()),
        left => Err(format!("{left} have not: {:?}", stage.statuses().await)),
    })
    .await;
    // Maintenance removes the requests whose jobs ended while it looked after them.
    let requests = "select count(*) from tenure.cancel_request";
    until_within(REST, "no request is left", async || stage.count(requests, &[]).await == 0).await;
    for mut worker in workers {
        worker.shutdown();
        worker.join().await;
    }
    let starts = std::mem::take(&mut *starts.lock().expect("starts"));
    report(stage, &answers.into_inner().expect("answers"), &starts).await
}

/// A worker whose handlers note when each attempt starts.
async fn start(stage: &Stage, starts: &Arc<Mutex<Vec<(i64, SystemTime)>>>) -> tenure::RunningWorker {
    let mut worker = Worker::builder(stage.url()).queue("default", 20);
    for (kind, delay) in [("later", 20), ("at_once", 0)] {
        let starts = starts.clone();
        let options = KindOptions::new().retry(RetryPolicy::fixed(Duration::from_millis(delay)));
        worker = worker.handle_raw(kind, options, move |ctx, payload: RawJson| {
            starts.lock().expect("starts").push((i64::from(ctx.job_id()), SystemTime::now()));
            async move {
                match (payload.get(), ctx.attempt()) {
                    ("0", _) => Ok(None),
                    ("1", _) => {
                        let run = Duration::from_millis(fastrand::u64(..40));
                        tokio::select! {
                            () = tokio::time::sleep(run) => Ok(None), // the handler's work
                            _ = ctx.cancelled() => Err(Fail::cancelled()),
                        }
                    }
                    ("2", 2..) => Ok(None),
                    (_, _) => Err(Fail::retry("not now")),
                }
            }
        });
    }
    worker.start().await.expect("a worker")
}

/// Enqueues a hundred jobs and cancels each after a time of its own.
async fn cancel_some(client: &Client, answers: &Mutex<Answers>) {
    let kind = if fastrand::bool() { "later" } else { "at_once" };
    let payloads: Vec<u8> = (0..100).map(|_| fastrand::u8(..4)).collect();
    let ids = client.enqueue_many(kind, payloads, JobOptions::new()).await.expect("enqueued");
    let cancels = ids.into_iter().map(|id| async move {
        tokio::time::sleep(AFTER_MAX.mul_f64(fastrand::f64())).await; // the random moment
        let answer = client.cancel(id).await.expect("an answer");
        answers.lock().expect("answers").insert(id.into(), (answer, SystemTime::now()));
    });
    futures_util::stream::iter(cancels).buffer_unordered(CANCELS).collect::<Vec<()>>().await;
}

async fn report(stage: &Stage, answers: &Answers, starts: &[(i64, SystemTime)]) -> Vec<Measure> {
    let ends = ends(stage).await;
    let claims = claims(stage).await;
    let of = |wanted: fn(&Cancelled) -> bool| answers.iter().filter(move |(_, (answer, _))| wanted(answer));
    let disagree =
        answers.iter().filter(|(id, (answer, _))| ends.get(id).is_none_or(|end| !agrees(*answer, end))).count();
    let after = |events: &[(i64, SystemTime)], wanted: fn(&Cancelled) -> bool| {
        events
            .iter()
            .filter(|(id, at)| answers.get(id).is_some_and(|(answer, said)| wanted(answer) && at > said))
            .count()
    };
    let line = |what: &str, n: usize| Measure::count(format!("cancels at random moments: {what}"), 0, n);
    let shown = |what: &str, n: usize| {
        Measure::new(format!("cancels at random moments: {what}"), Bound::AtLeast(1.0), n as f64, "")
    };
    vec![
        line("jobs without exactly one end", answers.len().abs_diff(ends.len())),
        line("answers that do not agree with the end", disagree),
        line("starts after the answer \"cancelled\"", after(starts, |answer| *answer == Cancelled::Now)),
        line(
            "attempts claimed after the answer \"requested\"",
            after(&claims, |answer| *answer == Cancelled::Requested),
        ),
        shown("jobs", answers.len()),
        shown("answered \"cancelled\"", of(|answer| *answer == Cancelled::Now).count()),
        shown("answered \"requested\"", of(|answer| *answer == Cancelled::Requested).count()),
        shown("answered \"completed\"", of(|answer| *answer == Cancelled::WasCompleted).count()),
        shown("answered \"dead\"", of(|answer| *answer == Cancelled::WasDead).count()),
    ]
}

/// A job that was asked for through its worker may still come to its own good end, but it is never buried, which would
/// be the last of its retries.
fn agrees(answer: Cancelled, end: &str) -> bool {
    match answer {
        Cancelled::Now | Cancelled::WasCancelled => end == "cancelled",
        Cancelled::Requested => end == "cancelled" || end == "completed",
        Cancelled::WasCompleted => end == "completed",
        Cancelled::WasDead => end == "dead",
    }
}

/// The final status of each job that has ended exactly once.
async fn ends(stage: &Stage) -> HashMap<i64, String> {
    let ends = "select id, min(status) from tenure.jobs group by id having count(*) = 1";
    stage.sql.query(ends, &[]).await.expect("ends").iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// When the attempts that are on record were claimed.
async fn claims(stage: &Stage) -> Vec<(i64, SystemTime)> {
    let claims = "select job_id, started_at from tenure.attempt_error
        union all select job_id, started_at from tenure.outcome where started_at is not null";
    stage.sql.query(claims, &[]).await.expect("claims").iter().map(|row| (row.get(0), row.get(1))).collect()
}
