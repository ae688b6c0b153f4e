//! Names are data: whatever stands in one, it is refused or taken literally.

use std::time::Instant;

use tenure::{Client, Enqueue, ErrorCode, JobOptions, RawJson};

use crate::protocol::{BAD_INPUT, Hand, Registration, sqlstate};
use crate::{Bound, Measure, Stage};

const NAMES: &[&str] = &[
    "'; DROP TABLE canary; --",
    "'); DELETE FROM canary; --",
    "\" || pg_sleep(5) || \"",
    "' || pg_sleep(5)::text || '",
    "data.id' OR '1'='1",
    "%s",
    "%I",
    "$1",
    "$$; select pg_sleep(5); $$",
    "\\",
    "\\'; DROP TABLE canary; --",
    "foo\".\"bar",
    "a\nb",
    "a\tb",
    "\\N",
    "{a,b}",
    "null",
];

/// Every text that can reach SQL, with every nasty name.
pub async fn nasty_names(stage: &Stage) -> Vec<Measure> {
    stage
        .sql
        .batch_execute("create table canary (x int); insert into canary select generate_series(1, 100)")
        .await
        .expect("canary");
    let client = stage.db.client().await;
    let mut longest = 0.0_f64;
    let mut literal = 0;
    for name in NAMES {
        let start = Instant::now();
        literal += usize::from(through_everything(stage, &client, name).await);
        longest = longest.max(start.elapsed().as_secs_f64());
    }
    let megabyte = "x".repeat(1_000_000);
    let payload = RawJson::of(&1).expect("JSON");
    let refused = client.enqueue(Enqueue::raw(&megabyte, payload)).await.is_err();
    let mut schemas = 0;
    for name in NAMES {
        schemas += usize::from(Client::builder(stage.url()).schema(*name).connect_lazy().is_ok());
    }
    let canary = stage
        .count("select count(*) + (select count(*) from pg_tables where tablename = 'canary') - 1 from canary", &[])
        .await;
    vec![
        Measure::count("nasty names that are refused everywhere or taken literally everywhere", NAMES.len(), literal),
        Measure::count("a name of 1 MB is refused", 1, usize::from(refused)),
        Measure::count("nasty names accepted as a schema", 0, schemas),
        Measure::count("rows of somebody else's table", 100, canary as usize),
        // Less than the five seconds that some of the names would sleep for, if anything ran them.
        Measure::new("all calls with one name, the longest", Bound::AtMost(2.0), longest, "s"),
    ]
}

/// The name in every place. True when each place refuses it as bad input, or each gives it back as it was.
async fn through_everything(stage: &Stage, client: &Client, name: &str) -> bool {
    let payload = RawJson::of(&serde_json::json!({ name: name })).expect("JSON");
    let job = Enqueue::raw(name, payload.clone()).queue(name);
    let one = match client.enqueue(job.clone()).await {
        Ok(id) => id,
        Err(e) => return e.code() == ErrorCode::BadInput && refused_everywhere(stage, client, name, job).await,
    };
    let many = client.enqueue_many(name, [&payload], JobOptions::default().queue(name)).await.expect("enqueued");
    let copied = client.enqueue_copy([job]).await.expect("enqueued");
    let stored = "select kind = $2 and queue = $2 and payload ->> $2 = $2 from tenure.jobs where id = $1";
    let mut same = true;
    for id in [one, many[0], copied[0]] {
        same &= stage.one::<bool>(stored, &[&i64::from(id), &name]).await;
    }
    same && paused(stage, name).await && worked_on(stage, name).await
}

/// By the client in bulk, by plain SQL, and as what a worker registers for.
async fn refused_everywhere(stage: &Stage, client: &Client, name: &str, job: Enqueue) -> bool {
    let by_sql = stage.sql.execute("select tenure.enqueue($1, '{}')", &[&name]).await;
    let queue = stage.sql.execute("select tenure.enqueue('act', '{}', $1)", &[&name]).await;
    let worker = Hand::register(stage.db.sql().await, &registration(name)).await.map(drop);
    client.enqueue_many(name, [1], JobOptions::default()).await.is_err()
        && client.enqueue_copy([job]).await.is_err()
        && [sqlstate(by_sql), sqlstate(queue), sqlstate(worker)].iter().all(|state| state == BAD_INPUT)
}

async fn paused(stage: &Stage, name: &str) -> bool {
    stage.execute("select tenure.pause($1, $1, $1)", &[&name]).await;
    let by = "select paused_by = $1 and pause_reason = $1 from tenure.queue where name = $1";
    let same = stage.one::<bool>(by, &[&name]).await;
    stage.execute("select tenure.resume($1)", &[&name]).await;
    same
}

fn registration(name: &str) -> Registration {
    Registration { name: name.into(), queues: vec![name.into()], kinds: vec![name.into()], ..Default::default() }
}

/// Three jobs wait: one is failed with the name as its cause and text, the others are completed.
async fn worked_on(stage: &Stage, name: &str) -> bool {
    let mut hand = stage.hand(&registration(name)).await;
    let sleep = "select tenure.sleep($1, $2::text::uuid, $3)";
    hand.sql.execute(sleep, &[&hand.worker, &hand.token, &vec![name]]).await.expect("asleep");
    let (jobs, _) = hand.claim(10).await.expect("claimed");
    let failure = serde_json::json!([{
        "lease": jobs[0].lease, "job": jobs[0].job, "verdict": "permanent", "cause": name, "message": name, "details": { name: name }
    }]);
    hand.fail_with(&failure.to_string()).await.expect("failed");
    hand.complete(&jobs[1..]).await.expect("completed");
    let message = "select message = $2 from tenure.dead_letter where job_id = $1";
    jobs.len() == 3 && jobs.iter().all(|job| job.kind == name) && stage.one(message, &[&jobs[0].job, &name]).await
}
