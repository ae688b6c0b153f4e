//! Schedules of one run per second, fired by workers that are killed and frozen, over a restart of the database.

use std::time::{Duration, Instant};

use tenure::testing::until_within;

use super::outage::{Watch, on_own_server};
use crate::{Act, Bound, Measure, Size, WorkerProcess, size};

const LIMIT: Duration = Duration::from_secs(60);

/// No time is left out and none fires twice, whoever is killed.
pub async fn under_fire(size: Size) -> Vec<Measure> {
    on_own_server(size, async |stage, server| {
        let (schedules, schedulers) = (size::SCHEDULES.at(size), size::SCHEDULERS.at(size));
        let (time, pause) = (size::SCHEDULE_TIME.at(size), size::SCHEDULE_KILL_EVERY.at(size));
        let mut workers = Vec::new();
        for n in 0..schedulers {
            workers.push(stage.start(stage.worker(&format!("scheduler {n}"))).await);
        }
        let add = "select count(tenure.add_schedule('s' || n, '@every 1s', 'UTC', 'act', $2::text::json, p_missed => 'all', p_missed_max => 1000))
            from generate_series(1, $1::bigint) n";
        stage.count(add, &[&(schedules as i64), &Act::Sleep { ms: 0 }.json()]).await;
        let mut watch = Watch::new(stage).await;
        let behind = "select count(*) from tenure.schedule where next_at is null";
        until_within(LIMIT, "every schedule has begun", async || watch.count(behind).await == 0).await;

        let begin = Instant::now();
        let (mut kills, mut restarts) = (0, 0);
        while begin.elapsed() < time {
            tokio::time::sleep(pause).await; // the pace of the faults, nothing waits on it
            if begin.elapsed() > time / 2 && restarts == 0 {
                tokio::task::block_in_place(|| server.restart(true).expect("the server restarts"));
                watch.reconnect().await;
                restarts += 1;
            }
            let n = fastrand::usize(..schedulers);
            // Frozen first: with a decision in its hands, it may be one that wakes too late.
            workers[n].stop();
            tokio::time::sleep(pause / 4).await; // the time of the freeze
            workers[n].wake();
            if fastrand::bool() || kills == 0 {
                workers[n].kill();
                // Not waited for: the stage's own session is gone with a restart.
                workers[n] = WorkerProcess::spawn(&stage.worker(&format!("scheduler {n}")));
                kills += 1;
            }
        }
        let now = watch.count("select extract(epoch from clock_timestamp())::bigint").await;
        let reached = format!("select count(*) from tenure.schedule where next_at <= to_timestamp({now})");
        until_within(LIMIT, "every schedule has caught up", async || watch.count(&reached).await == 0).await;

        let times = watch.count("select count(*) from tenure.schedule_run").await;
        // From a schedule's anchor to before the first time that nothing was done about.
        let missing = "select coalesce(sum(extract(epoch from s.next_at)::bigint - floor(extract(epoch from s.anchor_at))::bigint - 1
              - (select count(*) from tenure.schedule_run r where r.schedule_id = s.id)), 0)::bigint
            from tenure.schedule s";
        let late = async |of: f64| {
            let late = format!("select (1000 * percentile_cont({of}) within group (order by extract(epoch from noted_at - logical_at)))::bigint from tenure.schedule_run");
            watch.count(&late).await as f64 / 1_000.0
        };
        let (p50, p99) = (late(0.5).await, late(0.99).await);
        let seconds = time.as_secs_f64();
        let measures = vec![
            Measure::new(
                format!("{schedules} schedules of one run per second, {schedulers} schedulers, {kills} kills, {restarts} restart: runs"),
                Bound::AtLeast(schedules as f64 * seconds),
                times as f64,
                "",
            ),
            Measure::new("fired after their time, p50", Bound::AtMost(0.25), p50, "s"),
            Measure::new("fired after their time, p99", Bound::AtMost(5.0), p99, "s"),
            Measure::count("of their times, missing", 0, watch.count(missing).await),
            Measure::count("left out", 0, watch.count("select coalesce(sum(left_out), 0)::bigint from tenure.schedule").await),
            Measure::count("fired twice", 0, watch.count("select (select count(*) from tenure.job) - (select count(*) from tenure.schedule_run)").await),
        ];
        // Some were started a moment ago, and do not know yet how to stop in order.
        workers.iter_mut().for_each(WorkerProcess::kill);
        measures
    })
    .await
}
