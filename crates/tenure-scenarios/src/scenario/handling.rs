//! What handlers do to their worker: panic, overrun their time, fail with texts that cannot be stored, hold what all need.

use std::time::Duration;

use tenure::testing::until_within;

use crate::act::{FailText, PanicHow};
use crate::{Act, Bound, Measure, Stage, size};

const LIMIT: Duration = Duration::from_secs(60);

/// Panics of every sort, then as many normal jobs on the same slots.
pub async fn panics(stage: &Stage) -> Vec<Measure> {
    use PanicHow::{AfterAwait, Blocking, Drop, Str, String, Thread, Value, WithMutex};
    let worker = stage.start(stage.worker("panics").concurrency(4)).await;
    let count = size::PANICS.at(stage.size);
    let all = [Str, String, Value, AfterAwait, Blocking, Thread, Drop, WithMutex];
    for n in 0..count {
        let payload = Act::Panic { how: all[n % all.len()] }.json();
        stage.execute("select tenure.enqueue('act', $1::text::json, p_max_attempts => 1)", &[&payload]).await;
    }
    let dead = "select count(*) from tenure.dead_letter where cause = 'panic'";
    until_within(LIMIT, "every panic is recorded", async || {
        let n = stage.count(dead, &[]).await;
        if n as usize >= count { Ok(()) } else { Err(format!("{n}, {:?}", stage.statuses().await)) }
    })
    .await;
    stage.enqueue_many(&Act::Sleep { ms: 20 }, count).await;
    stage.completed(count, LIMIT).await;
    // All four slots at once.
    stage.enqueue_many(&Act::Sleep { ms: 1_000 }, 4).await;
    let at_once = "select count(*) from probe where finished_at is null";
    until_within(LIMIT, "four jobs run at once", async || stage.count(at_once, &[]).await >= 4).await;
    let placed = "select count(*) from tenure.attempt_error where cause = 'panic' and (details::text like '%.rs%' or message like '%.rs%')";
    // One sort comes from another thread, whose place is not the handler's.
    let elsewhere = count.div_ceil(all.len());
    let measures = vec![
        Measure::count("panics that are recorded", count, stage.count(dead, &[]).await as usize),
        Measure::new(
            "of these, with their place",
            Bound::AtLeast((count - elsewhere) as f64),
            stage.count(placed, &[]).await as f64,
            "",
        ),
        Measure::count(
            "jobs completed after them",
            count,
            stage.count("select count(*) from tenure.outcome where state = 'c'", &[]).await as usize,
        ),
    ];
    stage.completed(count + 4, LIMIT).await;
    worker.shut_down().await;
    measures
}

/// Errors whose text cannot be stored as it is.
pub async fn unstorable_failures(stage: &Stage) -> Vec<Measure> {
    let worker = stage.start(stage.worker("texts")).await;
    let cut = format!("{}€", "x".repeat(16 * 1024 - 1));
    let texts = [
        FailText::Long(size::ERROR_BYTES.at(stage.size)),
        FailText::Nul,
        FailText::NotUtf8,
        FailText::Chain(10_000),
        FailText::PanicsWhenShown,
        FailText::Plain(cut.repeat(2)),
    ];
    let count = texts.len();
    for text in texts {
        let payload = Act::Fail { text }.json();
        stage.execute("select tenure.enqueue('act', $1::text::json, p_max_attempts => 2)", &[&payload]).await;
    }
    until_within(LIMIT, "every job is dead after two attempts", async || {
        let statuses = stage.statuses().await;
        if statuses.get("dead") == Some(&(count as i64)) { Ok(()) } else { Err(format!("{statuses:?}")) }
    })
    .await;
    let longest = "select max(octet_length(message)) from tenure.attempt_error";
    let measures = vec![
        Measure::count(
            "failures stored, whatever their text",
            2 * count,
            stage.count("select count(*) from tenure.attempt_error", &[]).await as usize,
        ),
        Measure::new(
            "bytes of the longest stored text",
            Bound::AtMost(16.0 * 1024.0),
            f64::from(stage.one::<i32>(longest, &[]).await),
            "",
        ),
    ];
    stage.enqueue(&Act::Sleep { ms: 1 }).await;
    stage.completed(1, LIMIT).await;
    worker.shut_down().await;
    measures
}

/// Handlers that listen to their timeout, and some that do not.
pub async fn timeouts(stage: &Stage) -> Vec<Measure> {
    let overrun = size::OVERRUN.at(stage.size).as_millis() as u64;
    let options = |name: &str| {
        stage.worker(name).concurrency(4).with(|o| {
            o.timeout = Some(Duration::from_secs(2));
            o.retry_delay = Some(Duration::ZERO);
            o.threads = 8; // one is blocked, the others go on
        })
    };
    let workers = [stage.start(options("a")).await, stage.start(options("b")).await];
    let quick = || Act::Sleep { ms: 1 };
    let ids = [
        stage.enqueue(&Act::Sleep { ms: 60_000 }.first(quick())).await,
        stage.enqueue(&Act::Block { ms: overrun }.first(quick())).await,
        stage.enqueue(&Act::Stubborn { ms: overrun }.first(quick())).await,
        stage.enqueue(&Act::Thread { ms: overrun }.first(quick())).await,
    ];
    stage.started(ids.len(), Duration::from_secs(20)).await;
    stage.enqueue_many(&quick(), 20).await;
    // The two that block a thread, each in its own way.
    let seen = "select count(*) from tenure.jobs where overrun and id = any($1)";
    let mut overruns = 0;
    until_within(LIMIT, "both overruns are seen", async || {
        overruns = stage.count(seen, &[&ids.as_slice()]).await as usize;
        overruns == 2
    })
    .await;
    stage.completed(20 + ids.len(), LIMIT).await;
    let recorded = "select count(*) from tenure.attempt_error where cause = 'timeout' and job_id = any($1)";
    let second = "select count(*) from tenure.outcome where attempt = 2 and state = 'c' and job_id = any($1)";
    let ids = ids.as_slice();
    let measures = vec![
        Measure::count("handlers that block a thread and are seen as overrun", 2, overruns),
        Measure::count("two runs of one job at a time, timeouts", 0, stage.overlaps().await as usize),
        Measure::count("attempts recorded as timed out", ids.len(), stage.count(recorded, &[&ids]).await as usize),
        Measure::count("second attempts that completed", ids.len(), stage.count(second, &[&ids]).await as usize),
    ];
    for worker in workers {
        worker.shut_down().await;
    }
    measures
}

/// Handlers hold every connection of the pool that they share, and enqueue children on another.
pub async fn exhausted_pool(stage: &Stage) -> Vec<Measure> {
    let hold = size::POOL_HOLD.at(stage.size);
    let options = stage.worker("pool").lease(Duration::from_secs(2)).with(|o| {
        o.queues = vec![("default".into(), 20), ("children".into(), 5)];
        o.pool = 5;
    });
    let worker = stage.start(options).await;
    stage.enqueue_many(&Act::Child { hold_ms: hold.as_millis() as u64 }, 20).await;
    stage.completed(40, 4 * hold + Duration::from_secs(20)).await;
    let measures = vec![
        Measure::count("jobs rescued while the handlers' pool was exhausted", 0, stage.rescues().await as usize),
        Measure::count("jobs not started once, pool exhausted", 0, stage.not_started_once().await as usize),
    ];
    worker.shut_down().await;
    measures
}

/// A handler returns U+0000; a payload with large numbers comes back as it was.
pub async fn odd_values(stage: &Stage) -> Vec<Measure> {
    let worker = stage.start(stage.worker("values").with(|o| o.kinds.extend(["echo".into(), "nul".into()]))).await;
    let nul: i64 = stage.one("select tenure.enqueue('nul', '{}')", &[]).await;
    let payload = r#"{"id": 1970670598291982290, "u": 18446744073709551615, "d": 0.1, "z": 1.10, "e": 1e400, "n": -0}"#;
    let echo: i64 = stage.one("select tenure.enqueue('echo', $1::text::json)", &[&payload]).await;
    stage.completed(2, LIMIT).await;
    let again: i64 = stage.one("select tenure.requeue($1)", &[&echo]).await;
    stage.completed(3, LIMIT).await;
    let result = "select result::text from tenure.jobs where id = $1";
    let mut same = 0;
    for id in [echo, again] {
        let result: String = stage.one(result, &[&id]).await;
        same += usize::from(result == payload);
        if result != payload {
            eprintln!("{payload} came back as {result}");
        }
    }
    let readable: Option<String> = stage.one(result, &[&nul]).await;
    let measures = vec![
        Measure::count("payloads with large numbers that come back unchanged", 2, same),
        Measure::count(
            "attempts of a job that returns U+0000",
            1,
            stage.one::<i16>("select attempt from tenure.outcome where job_id = $1", &[&nul]).await as usize,
        ),
        Measure::count("its result is there", 1, usize::from(readable.is_some_and(|text| text.contains('a')))),
    ];
    worker.shut_down().await;
    measures
}
