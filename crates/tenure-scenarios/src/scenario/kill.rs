//! Workers that are killed: their jobs run elsewhere soon, however many others wait.

use std::time::Duration;

use tenure::testing::until_within;

use crate::{Act, Bound, Measure, Stage, WorkerProcess, size};

/// How long a started job of a killed worker may take to start again.
const SECOND_START: f64 = 3.0;

/// Seconds from the kill of a process to the next start of each job that it ran; null when one has not started again.
const SECOND_STARTS: &str = "
    select extract(epoch from n.started_at - d.died_at)::float8
    from death d join probe p on p.pid = d.pid and p.started_at < d.died_at and coalesce(p.finished_at > d.died_at, true)
    left join lateral (select started_at from probe n where n.job_id = p.job_id and n.started_at > d.died_at order by 1 limit 1) n on true";

/// The seconds of [`SECOND_STARTS`]; an endless one for a job that has not started again.
async fn second_starts(stage: &Stage) -> Vec<f64> {
    let rows = stage.sql.query(SECOND_STARTS, &[]).await.expect("second starts");
    rows.iter().map(|row| row.get::<_, Option<f64>>(0).unwrap_or(f64::INFINITY)).collect()
}

async fn all_started_again(stage: &Stage, within: Duration) {
    until_within(within, "every job of the killed worker has started again", async || {
        let starts = second_starts(stage).await;
        let waiting = starts.iter().filter(|s| s.is_infinite()).count();
        if waiting == 0 { Ok(()) } else { Err(format!("{waiting} have not, jobs: {:?}", stage.statuses().await)) }
    })
    .await;
}

/// The process that runs the most jobs now.
async fn busiest(stage: &Stage, workers: &[WorkerProcess]) -> usize {
    let running = "select pid from probe where finished_at is null group by pid order by count(*) desc";
    let rows = stage.sql.query(running, &[]).await.expect("probe");
    let pids: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
    let busy = pids.iter().find_map(|pid| workers.iter().position(|worker| worker.pid() == *pid));
    busy.expect("a worker that runs something")
}

/// The largest; without any there was nothing to measure, which holds no bound.
fn largest(values: &[f64]) -> f64 {
    values.iter().copied().reduce(f64::max).unwrap_or(f64::INFINITY)
}

/// A worker is killed while it runs jobs and another one is there, again and again.
pub async fn killed_workers(stage: &Stage) -> Vec<Measure> {
    let kills = size::KILLS.at(stage.size);
    let mut workers = vec![
        stage.start(stage.worker("a").concurrency(20)).await,
        stage.start(stage.worker("b").concurrency(20)).await,
    ];
    let mut started = 0;
    for n in 0..kills {
        stage.enqueue_many(&Act::Sleep { ms: 1_500 }, 10).await;
        stage.started(started + 10, Duration::from_secs(20)).await;
        let victim = busiest(stage, &workers).await;
        stage.kill(&mut workers[victim]).await;
        let spare = stage.start(stage.worker(&format!("spare-{n}")).concurrency(20));
        let ((), spare) = tokio::join!(all_started_again(stage, Duration::from_secs(30)), spare);
        workers[victim] = spare;
        stage.completed((n + 1) * 10, Duration::from_secs(30)).await;
        started = stage.count("select count(*) from probe", &[]).await as usize;
    }
    let starts = second_starts(stage).await;
    let claim = format!("from kill -9 of a worker to the second start of each of its jobs, {kills} kills");
    vec![
        Measure::new(claim, Bound::AtMost(SECOND_START), largest(&starts), "s"),
        Measure::new("the same, on average", Bound::Shown, starts.iter().sum::<f64>() / starts.len() as f64, "s"),
        Measure::new("jobs that killed workers ran", Bound::AtLeast(kills as f64), starts.len() as f64, ""),
        Measure::count("two runs of one job at a time, kill -9", 0, stage.overlaps().await as usize),
    ]
}

/// The same once, with very many jobs waiting in the same queue.
pub async fn killed_in_a_crowd(stage: &Stage) -> Vec<Measure> {
    let crowd = size::CROWD.at(stage.size);
    for start in (0..crowd).step_by(20_000) {
        stage.enqueue_many(&Act::Sleep { ms: 400 }, 20_000.min(crowd - start)).await;
    }
    let mut workers = vec![stage.start(stage.worker("a")).await, stage.start(stage.worker("b")).await];
    stage.started(30, Duration::from_secs(30)).await;
    let victim = busiest(stage, &workers).await;
    stage.kill(&mut workers[victim]).await;
    all_started_again(stage, Duration::from_secs(30)).await;
    let starts = second_starts(stage).await;
    for worker in workers.drain(..).enumerate().filter(|(n, _)| *n != victim).map(|(_, worker)| worker) {
        worker.shut_down().await;
    }
    vec![Measure::new(
        format!("from kill -9 to the second start with {crowd} jobs waiting"),
        Bound::AtMost(SECOND_START),
        largest(&starts),
        "s",
    )]
}

/// Three workers run jobs and one is killed; then three run others, and all are killed.
pub async fn all_workers_killed(stage: &Stage) -> Vec<Measure> {
    let (jobs, lease) = (size::KILLED_JOBS.at(stage.size), size::KILLED_LEASE.at(stage.size));
    let options = |name: &str| stage.worker(name).concurrency(jobs).lease(lease);
    let mut workers = Vec::new();
    for name in ["a", "b", "c"] {
        workers.push(stage.start(options(name)).await);
    }
    stage.enqueue_many(&Act::Sleep { ms: 3_000 }, jobs).await;
    stage.started(jobs, Duration::from_secs(20)).await;
    let victim = busiest(stage, &workers).await;
    stage.kill(&mut workers[victim]).await;
    stage.completed(jobs, Duration::from_secs(60)).await;
    workers[victim] = stage.start(options("d")).await;
    let before = stage.count("select count(*) from probe", &[]).await as usize;
    stage.enqueue_many(&Act::Sleep { ms: 3_000 }, jobs).await;
    stage.started(before + jobs, Duration::from_secs(20)).await;
    for worker in &mut workers {
        stage.kill(worker).await;
    }
    let lost = "select count(distinct p.job_id) from probe p join death d on d.pid = p.pid and p.started_at < d.died_at
        where p.finished_at is null or p.finished_at > d.died_at";
    let lost = stage.count(lost, &[]).await;
    let fresh = stage.start(options("e")).await;
    stage.completed(2 * jobs, Duration::from_secs(60)).await;
    let over = "select count(*) from tenure.lease l left join tenure.worker w on w.id = l.worker_id
        where w.id is null or w.lease_until < clock_timestamp()";
    let measures = vec![
        Measure::new(
            "one of three workers killed, then all: from each kill to the second start of its jobs",
            Bound::AtMost(2.0 * lease.as_secs_f64()),
            largest(&second_starts(stage).await),
            "s",
        ),
        Measure::count("all workers killed: jobs rescued and recorded", lost as usize, stage.rescues().await as usize),
        Measure::count("all workers killed: leases that are over", 0, stage.count(over, &[]).await as usize),
    ];
    fresh.shut_down().await;
    measures
}

/// A worker is killed and started again at once under the same name.
pub async fn restarted_under_the_same_name(stage: &Stage) -> Vec<Measure> {
    let mut first = stage.start(stage.worker("web-1")).await;
    stage.enqueue_many(&Act::Sleep { ms: 3_000 }, 3).await;
    stage.started(3, Duration::from_secs(20)).await;
    stage.kill(&mut first).await;
    let second = stage.start(stage.worker("web-1")).await;
    let incarnations = stage.count("select count(distinct id) from tenure.worker where name = 'web-1'", &[]).await;
    stage.completed(3, Duration::from_secs(30)).await;
    let starts = second_starts(stage).await;
    let measures = vec![
        Measure::count("incarnations of a restarted worker's name", 2, incarnations as usize),
        Measure::new("its orphans start again", Bound::AtMost(SECOND_START), largest(&starts), "s"),
        Measure::count("its orphans that were rescued", 3, stage.rescues().await as usize),
        Measure::count("two runs of one job at a time, same name", 0, stage.overlaps().await as usize),
    ];
    second.shut_down().await;
    measures
}

/// A worker is killed and its row in the registry goes before its jobs are rescued: by hand, and as in a restored dump.
pub async fn killed_and_unregistered(stage: &Stage) -> Vec<Measure> {
    let other = stage.start(stage.worker("other").concurrency(10)).await;
    let mut slowest = 0.0_f64;
    for n in 0..2 {
        let mut victim = stage.start(stage.worker("victim").with(|o| o.queues = vec![("doomed".into(), 5)])).await;
        stage.enqueue_to("doomed", &Act::Sleep { ms: 60_000 }.first(Act::Sleep { ms: 1 }), 5).await;
        stage.started(n * 10 + 5, Duration::from_secs(20)).await;
        if n == 0 {
            // Its row first, while it lives; then the process.
            stage.execute("delete from tenure.worker where pid = $1", &[&victim.pid()]).await;
        }
        stage.kill(&mut victim).await;
        if n == 1 {
            stage.execute("delete from tenure.worker where pid = $1", &[&victim.pid()]).await;
        }
        let heir = stage.start(stage.worker("heir").with(|o| o.queues = vec![("doomed".into(), 5)])).await;
        let gone = std::time::Instant::now();
        if stage.size == crate::Size::Ci {
            // Orphans are looked for every 30 s; the small size does not wait for that.
            stage.execute("update tenure.duty set next_at = clock_timestamp() where name = 'net'", &[]).await;
        }
        stage.completed((n + 1) * 5, Duration::from_secs(60)).await;
        slowest = slowest.max(gone.elapsed().as_secs_f64());
        heir.shut_down().await;
    }
    let measures = vec![
        Measure::count("killed and no longer registered: jobs rescued", 10, stage.rescues().await as usize),
        Measure::new("until they had ended elsewhere", Bound::AtMost(45.0), slowest, "s"),
        Measure::count("two runs of one job at a time, not registered", 0, stage.overlaps().await as usize),
    ];
    other.shut_down().await;
    measures
}
