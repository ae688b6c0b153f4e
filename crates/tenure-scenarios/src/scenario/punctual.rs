//! How late things are that have a time: very many schedules, and very many jobs that are due one by one.

use std::time::{Duration, Instant};

use tenure::testing::until_within;
use tenure::{Client, Error, ScheduleInfo};

use super::cost::{resident_mb, transactions_a_second};
use crate::{Act, Bound, Measure, Stage, size};

const LIMIT: Duration = Duration::from_secs(120);
/// From now to the first of very many times.
const LEAD: Duration = Duration::from_secs(5);
/// Calls of which the median is taken.
const CALLS: usize = 101;
/// Times of a rule that are shown at once, at most.
const SHOWN: usize = 1_000;

/// Very many schedules: what they cost while none is due, and how long all take that are due at the same instant. Each has a kind and a
/// payload of its own.
pub async fn many_schedules(stage: &Stage) -> Vec<Measure> {
    let schedules = size::MANY_SCHEDULES.at(stage.size);
    let worker = stage.start(stage.worker("alone")).await;
    let before = resident_mb(&worker);
    let without = look_ms(stage).await;
    let add = "select count(tenure.add_schedule(format('s%s', n), '0 0 1 1 *', 'Europe/Berlin', format('kind %s', n),
                   json_build_object('n', n, 'at', '{{logical_time}}'))) from generate_series(1, $1::bigint) n";
    stage.count(add, &[&(schedules as i64)]).await;
    let begun = "select count(*) from tenure.schedule where next_at is null";
    until_within(LIMIT, "every schedule has begun", async || stage.count(begun, &[]).await == 0).await;
    stage.execute("analyze tenure.schedule", &[]).await;
    let none_due = look_ms(stage).await;

    // A few seconds ahead, as if it were the turn of a year.
    let due = "update tenure.schedule set next_at = h.at, look_at = h.at, rule = to_char(h.at at time zone zone, 'FMSS FMMI FMHH24 FMDD FMMM') || ' *'
               from (select date_trunc('second', clock_timestamp()) + interval '4 seconds' as at) h";
    stage.execute(due, &[]).await;
    let fired = "select count(*) from tenure.schedule_run where state = 'fired'";
    until_within(LIMIT, "every schedule has fired", async || stage.count(fired, &[]).await as usize == schedules).await;
    // As we see it, with the commit of the last of them: what they note themselves is when their turn began.
    let last = "select max(extract(epoch from clock_timestamp() - logical_at))::float8 from tenure.schedule_run";
    let last: f64 = stage.one(last, &[]).await;
    let grown = (resident_mb(&worker) - before).max(0.0);

    let client = stage.db.client().await;
    let start = Instant::now();
    let listed = list(&client).await.expect("listed");
    let list_s = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let shown = listed[0].next_times(listed[0].created_at, SHOWN).expect("times").len();
    let preview_s = start.elapsed().as_secs_f64();
    worker.shut_down().await;
    vec![
        Measure::count(
            format!("{schedules} schedules due at one instant: jobs"),
            schedules,
            stage.count("select count(*) from tenure.job", &[]).await as usize,
        ),
        // As another session sees it, behind the commit of the last batch.
        Measure::new("the last of them fired after", size::MANY_FIRED.at(stage.size), last, "s"),
        Measure::new("the same", Bound::AimBelow(1.5), last, "s"),
        Measure::new("a look for due schedules, without any", Bound::Shown, without, "ms"),
        Measure::new(
            format!("a look for due schedules, {schedules} of which none is due"),
            Bound::AtMost(size::SCHEDULE_LOOK_MS.at(stage.size)),
            none_due,
            "ms",
        ),
        Measure::new("memory of the worker that fires them: more by", Bound::AtMost(64.0), grown, "MB"),
        Measure::count("schedules listed, by pages of 1,000", schedules, listed.len()),
        Measure::new("time to list them", Bound::AtMost(2.0), list_s, "s"),
        Measure::count("times of one of them shown", SHOWN, shown),
        Measure::new("time to compute those", Bound::AtMost(1.0), preview_s, "s"),
    ]
}

/// What each turn of maintenance asks about schedules: the median time of the call.
async fn look_ms(stage: &Stage) -> f64 {
    let mut times = Vec::new();
    for _ in 0..CALLS {
        let start = Instant::now();
        stage.one::<Option<i64>>("select tenure.fire_in_ms()", &[]).await;
        times.push(start.elapsed().as_secs_f64() * 1_000.0);
    }
    times.sort_by(f64::total_cmp);
    times[CALLS / 2]
}

async fn list(client: &Client) -> Result<Vec<ScheduleInfo>, Error> {
    let mut all: Vec<ScheduleInfo> = Vec::new();
    loop {
        let page = client.schedules(all.last().map(|last| last.name.as_str()), Some(1_000)).await?;
        let is_last = page.len() < 1_000;
        all.extend(page);
        if is_last {
            return Ok(all);
        }
    }
}

/// Jobs that are due at random instants, each enqueued for itself: how late an idle worker starts them, and that it does not poll for that.
pub async fn one_shots(stage: &Stage) -> Vec<Measure> {
    let (jobs, over) = (size::ONE_SHOTS.at(stage.size), size::ONE_SHOTS_OVER.at(stage.size));
    let worker = stage.start(stage.worker("alone").concurrency(20)).await;
    let enqueue =
        "select count(tenure.enqueue('act', $2::text::json, p_run_at => h.at + random() * make_interval(secs => $3)))
                   from (select clock_timestamp() + make_interval(secs => $4) as at) h, generate_series(1, $1::bigint) n";
    let act = Act::Sleep { ms: 0 }.json();
    stage.count(enqueue, &[&(jobs as i64), &act, &over.as_secs_f64(), &LEAD.as_secs_f64()]).await;
    // sleep: nobody looks while they become due, for that has its price too.
    tokio::time::sleep(LEAD + over).await;
    stage.completed(jobs, LIMIT).await;
    // As the handlers' first words say: the claim that brought a job began before it saw that it is due.
    let late = "select percentile_cont($1::float8) within group (order by greatest(0, extract(epoch from p.started_at - j.run_at))::float8)
                from probe p join tenure.job j on j.id = p.job_id";
    let percentile = async |of: f64| stage.one::<f64>(late, &[&of]).await;
    let (p50, p99, last) = (percentile(0.5).await, percentile(0.99).await, percentile(1.0).await);
    let early = "select count(*) from probe p join tenure.job j on j.id = p.job_id where p.started_at < j.run_at";
    let early = stage.count(early, &[]).await as usize;
    let (idle, idle_mean) = transactions_a_second(stage, &worker, size::IDLE.at(stage.size)).await;
    worker.shut_down().await;
    vec![
        Measure::new(
            format!("{jobs} jobs due at random within {} s: start late by, p50", over.as_secs()),
            Bound::AtMost(size::ONE_SHOT_P50.at(stage.size)),
            p50,
            "s",
        ),
        Measure::new("the same, p99", Bound::AtMost(size::ONE_SHOT_P99.at(stage.size)), p99, "s"),
        Measure::new("the same, the latest", Bound::Shown, last, "s"),
        Measure::count("started before their time", 0, early),
        Measure::new(
            "transactions a second of that worker when it is idle",
            Bound::AtMost(size::IDLE_TRANSACTIONS.at(stage.size)),
            idle,
            "/s",
        ),
        Measure::new("the same, with what comes now and then and after much work", Bound::Shown, idle_mean, "/s"),
    ]
}
