//! The database restarts, connections are cut, the network stalls: workers come back and nothing is lost or run twice.

use std::time::{Duration, Instant};

use tenure::testing::{Fault, Proxy, Rejection, until_within};
use tenure_dev::{Options, Server};

use crate::protocol::Registration;
pub(super) use crate::stage::CONNECTIONS;
use crate::stage::on_stage_of;
use crate::{Act, Bound, Measure, Size, Stage, WorkerProcess, size};

/// How long a worker may need to work again once the database is back.
const BACK: Duration = Duration::from_secs(5);

/// Starts a private server that a scenario may restart, plays on it, and stops it.
pub async fn on_own_server<T>(size: Size, play: impl AsyncFnOnce(&Stage, &mut Server) -> T) -> T {
    let options = Options { ephemeral: true, durable: false, ..Options::default() };
    let mut server =
        tokio::task::spawn_blocking(move || Server::start(options)).await.expect("no panic").expect("a private server");
    let url = server.url().to_owned();
    let value = on_stage_of(&url, size, async |stage| play(stage, &mut server).await).await;
    tokio::task::spawn_blocking(move || server.stop())
        .await
        .expect("no panic")
        .expect("the private server has stopped");
    value
}

/// Every connection of a live worker is terminated, again and again; another worker would take its jobs.
pub async fn terminated_connections(stage: &Stage) -> Vec<Measure> {
    let times = size::TERMINATIONS.at(stage.size);
    let worker = stage.start(stage.worker("cut").concurrency(10)).await;
    let ids = stage.enqueue_many(&Act::Stubborn { ms: times as u64 * 1_200 + 1_000 }, 10).await;
    stage.started(ids.len(), Duration::from_secs(20)).await;
    let other = stage.start(stage.worker("other").concurrency(10)).await;
    let mut ended = 0;
    for _ in 0..times {
        stage.with_both_connections(&worker).await;
        ended += stage.terminate(&worker).await as usize;
        tokio::time::sleep(Duration::from_millis(1_000)).await; // the pace of the cuts, nothing waits on it
    }
    stage.completed(ids.len(), Duration::from_secs(60)).await;
    let measures = vec![
        Measure::count(
            format!("every connection terminated {times} times: connections ended"),
            times * CONNECTIONS,
            ended,
        ),
        Measure::count(
            format!("every connection terminated {times} times: jobs rescued"),
            0,
            stage.rescues().await as usize,
        ),
        Measure::count("jobs not started once, connections terminated", 0, stage.not_started_once().await as usize),
    ];
    worker.shut_down().await;
    other.shut_down().await;
    measures
}

/// The database restarts under running jobs.
pub async fn restarted_database(size: Size) -> Vec<Measure> {
    on_own_server(size, async |stage, server| {
        let (jobs, time, restarts) = (size::RESTART_JOBS.at(size), size::RESTART_JOB.at(size), size::RESTARTS.at(size));
        let worker = stage.start(stage.worker("steady").concurrency(jobs)).await;
        stage.enqueue_many(&Act::Stubborn { ms: time.as_millis() as u64 }, jobs).await;
        stage.started(jobs, Duration::from_secs(20)).await;
        let other = stage.start(stage.worker("other").concurrency(jobs)).await;
        let begin = Instant::now();
        let mut watch = Watch::new(stage).await;
        for n in 0..restarts {
            restart(server, n % 2 == 1);
            watch.reconnect().await;
            watch.wait_for_locks(&worker).await;
            let next = time.mul_f64((n + 1) as f64 / (restarts + 1) as f64);
            tokio::time::sleep(next.saturating_sub(begin.elapsed())).await; // spread over the jobs' time
        }
        watch.completed(jobs, time + Duration::from_secs(60)).await;
        let measures = vec![
            Measure::count(format!("{restarts} restarts under {jobs} running jobs: rescued"), 0, watch.rescues().await),
            Measure::count("jobs not started once, database restarted", 0, watch.not_started_once().await),
        ];
        worker.shut_down().await;
        other.shut_down().await;
        measures
    })
    .await
}

/// One backend of the database is killed, as when memory runs out: the server ends all others and recovers, without a
/// new start of its own.
pub async fn crashed_backend(size: Size) -> Vec<Measure> {
    on_own_server(size, async |stage, _server| {
        let (jobs, time) = (size::RESTART_JOBS.at(size), size::RESTART_JOB.at(size));
        let worker = stage.start(stage.worker("steady").concurrency(jobs)).await;
        stage.enqueue_many(&Act::Stubborn { ms: time.as_millis() as u64 }, jobs).await;
        stage.started(jobs, Duration::from_secs(20)).await;
        let other = stage.start(stage.worker("other").concurrency(jobs)).await;
        let mut watch = Watch::new(stage).await;
        let other_session = stage.db.sql().await;
        let backend = watch.count("select pg_backend_pid()::bigint").await;
        // SAFETY: a plain system call; the process is a backend of a server of our own.
        unsafe { libc::kill(backend as i32, libc::SIGKILL) };
        // Until the server has noticed, it still takes new sessions, and ends them then.
        until_within(Duration::from_secs(20), "the server ends the others", async || other_session.is_closed()).await;
        until_within(Duration::from_secs(20), "the database is back", async || {
            tokio_postgres::connect(stage.url(), tokio_postgres::NoTls).await.is_ok()
        })
        .await;
        watch.reconnect().await;
        watch.wait_for_locks(&worker).await;
        watch.completed(jobs, time + Duration::from_secs(60)).await;
        let measures = vec![
            Measure::count(format!("one backend killed under {jobs} running jobs: rescued"), 0, watch.rescues().await),
            Measure::count("jobs not started once, backend killed", 0, watch.not_started_once().await),
        ];
        worker.shut_down().await;
        other.shut_down().await;
        measures
    })
    .await
}

/// Stops and starts the server; blocks this thread meanwhile, the worker processes go on.
fn restart(server: &mut Server, immediate: bool) {
    tokio::task::block_in_place(|| server.restart(immediate).expect("the server restarts"));
}

/// Looks at a stage whose server restarts: its own session is gone each time.
pub(super) struct Watch<'a> {
    stage: &'a Stage,
    sql: tokio_postgres::Client,
}

impl<'a> Watch<'a> {
    pub(super) async fn new(stage: &'a Stage) -> Watch<'a> {
        Watch { stage, sql: stage.db.sql().await }
    }

    pub(super) async fn reconnect(&mut self) {
        self.sql = self.stage.db.sql().await;
    }

    pub(super) async fn count(&self, statement: &str) -> usize {
        self.sql.query_one(statement, &[]).await.unwrap_or_else(|e| panic!("{statement}: {e:?}")).get::<_, i64>(0)
            as usize
    }

    async fn wait_for_locks(&self, worker: &WorkerProcess) {
        let held = format!(
            "select count(*) from tenure.worker w join pg_locks l on l.locktype = 'advisory' and l.objid = w.id::oid
             and l.classid = 'tenure'::regnamespace::oid where w.pid = {}",
            worker.pid()
        );
        until_within(Duration::from_secs(20), "the worker is back", async || self.count(&held).await == CONNECTIONS)
            .await;
    }

    pub(super) async fn completed(&self, count: usize, within: Duration) {
        until_within(within, &format!("{count} jobs completed"), async || {
            let done = self.count("select count(*) from tenure.outcome where state = 'c'").await;
            if done >= count { Ok(()) } else { Err(format!("{done}")) }
        })
        .await;
    }

    pub(super) async fn rescues(&self) -> usize {
        self.count("select count(*) from tenure.attempt_error where cause = 'worker_lost'").await
    }

    pub(super) async fn not_started_once(&self) -> usize {
        self.count(
            "select count(*) from (select j.id from tenure.job j left join probe p on p.job_id = j.id
             group by j.id having count(p.run) <> 1) wrong",
        )
        .await
    }
}

/// Three workers under a steady load; the database restarts, connections end, the network is cut or stalls.
pub async fn outages(size: Size) -> Vec<Measure> {
    on_own_server(size, async |stage, server| {
        let proxy = Proxy::start(stage.url()).await;
        let mut workers = Vec::new();
        for name in ["a", "b", "c"] {
            workers.push(stage.start(stage.worker(name).url(proxy.url()).lease(Duration::from_secs(60))).await);
        }
        let mut watch = Watch::new(stage).await;
        let (mut slowest, mut jobs, mut missed) = (0.0_f64, 0, 0);
        // At the small size not each way is tried, but others each time.
        let first = fastrand::usize(..8);
        for cycle in first..first + size::OUTAGES.at(size) {
            jobs += steady_load(&watch, 25).await;
            let time = size::OUTAGE.at(size).mul_f64(fastrand::f64());
            match cycle % 8 {
                0 => restart(server, true),
                1 => {
                    for worker in &workers {
                        watch.reconnect().await;
                        watch.wait_for_locks(worker).await;
                        missed += CONNECTIONS.abs_diff(terminate(&watch, worker).await);
                    }
                }
                2 => proxy.cut_all(),
                3 => outage(&proxy, Fault::Stall, time).await,
                4 => outage(&proxy, Fault::LoseAnswers, time).await,
                5 | 6 => {
                    let why = if cycle % 8 == 5 { Rejection::TOO_MANY } else { Rejection::PASSWORD };
                    proxy.cut_all();
                    outage(&proxy, Fault::Reject(why), time).await;
                }
                _ => {
                    proxy.cut_all();
                    outage(&proxy, Fault::Refuse, time).await;
                }
            }
            watch.reconnect().await;
            let back = Instant::now();
            jobs += steady_load(&watch, 25).await;
            watch.completed(jobs, Duration::from_secs(60)).await;
            let took = back.elapsed().as_secs_f64();
            eprintln!("way {} for {:.1} s: all had ended {took:.2} s after it", cycle % 8, time.as_secs_f64());
            slowest = slowest.max(took);
        }
        for worker in &workers {
            watch.wait_for_locks(worker).await;
        }
        let connections = proxy.connections();
        let overlaps =
            "with run as (select run, job_id, started_at, coalesce(finished_at, 'infinity') as ended_at from probe)
            select count(*) from run a join run b on a.job_id = b.job_id and a.run < b.run
            where a.ended_at > b.started_at and b.ended_at > a.started_at";
        let measures = vec![
            Measure::new(
                "from the database's return to the end of all that waited",
                Bound::AtMost(BACK.as_secs_f64()),
                slowest,
                "s",
            ),
            Measure::count("connections of three workers after the outages", 3 * CONNECTIONS, connections),
            Measure::count("connections that were to be terminated and were not there", 0, missed),
            Measure::count("two runs of one job at a time, outages", 0, watch.count(overlaps).await),
            Measure::count("jobs lost, outages", 0, jobs - watch.count("select count(*) from tenure.outcome").await),
        ];
        for worker in workers {
            worker.shut_down().await;
        }
        measures
    })
    .await
}

async fn steady_load(watch: &Watch<'_>, count: usize) -> usize {
    for _ in 0..count {
        watch
            .sql
            .query("select tenure.enqueue('act', '{\"do\": \"sleep\", \"ms\": 10}')", &[])
            .await
            .expect("enqueued");
        tokio::time::sleep(Duration::from_millis(20)).await; // the rate: 50 a second
    }
    count
}

async fn terminate(watch: &Watch<'_>, worker: &WorkerProcess) -> usize {
    let statement = format!(
        "select count(*) filter (where pg_terminate_backend(l.pid)) from tenure.worker w join pg_locks l on l.locktype = 'advisory'
         and l.objid = w.id::oid and l.classid = 'tenure'::regnamespace::oid where w.pid = {}",
        worker.pid()
    );
    watch.count(&statement).await
}

async fn outage(proxy: &Proxy, fault: Fault, time: Duration) {
    proxy.set(fault);
    tokio::time::sleep(time).await; // the length of the outage
    proxy.set(Fault::None);
}

/// Each rescue of a job takes so long that a turn takes about ten, and all of them many turns.
const SLOW_RESCUE: &str = "
    create function public.be_slow() returns trigger language plpgsql as $$ begin perform pg_sleep(0.02); return new; end $$;
    create trigger slow_rescue before insert on tenure.attempt_error for each row when (new.cause = 'worker_lost')
        execute function public.be_slow()";

/// Orphans are rescued although the database restarts in the middle of it, again and again.
pub async fn restarted_during_rescue(size: Size) -> Vec<Measure> {
    on_own_server(size, async |stage, server| {
        let (orphans, restarts) = (size::ORPHANS.at(size), size::RESCUE_RESTARTS.at(size));
        stage.sql.batch_execute(SLOW_RESCUE).await.expect("a trigger");
        let ids = stage.enqueue_many(&Act::Sleep { ms: 5 }, orphans).await;
        // A lease row for each, so that there is something between the first and the last.
        let mut hand = stage.hand(&Registration { lease_ms: 2_000, grace_ms: 200, ..Registration::default() }).await;
        hand.solo_kinds = vec!["act".into()];
        let (claimed, _) = hand.claim(1_000).await.expect("claimed");
        assert_eq!(claimed.len(), ids.len());
        drop(hand);
        let workers = [stage.start(stage.worker("a")).await, stage.start(stage.worker("b")).await];
        let mut watch = Watch::new(stage).await;
        let mut left = orphans;
        for n in 0..restarts {
            // Some more than at the restart before, and never so many that none is left at the last one.
            let some = (n + 1) * orphans / (restarts + 2);
            until_within(Duration::from_secs(60), &format!("{some} orphans are rescued"), async || {
                let rescued = watch.rescues().await;
                if rescued >= some { Ok(()) } else { Err(format!("{rescued}")) }
            })
            .await;
            tokio::time::sleep(Duration::from_millis(fastrand::u64(..150))).await; // sleep: a random point of a turn
            left = orphans - watch.rescues().await;
            restart(server, n % 2 == 0);
            watch.reconnect().await;
        }
        let back = Instant::now();
        watch.completed(orphans, Duration::from_secs(60)).await;
        let took = back.elapsed().as_secs_f64();
        let over = "select count(*) from tenure.lease l join tenure.worker w on w.id = l.worker_id where w.lease_until < clock_timestamp()";
        let measures = vec![
            Measure::new("orphans not rescued yet at the last restart", Bound::AtLeast(1.0), left as f64, ""),
            Measure::new(
                format!("{orphans} orphans, {restarts} restarts during rescue: from the last one to the end of all"),
                Bound::AtMost(30.0),
                took,
                "s",
            ),
            Measure::count("leases that are over, restarts during rescue", 0, watch.count(over).await),
            Measure::count("orphans without an end", 0, orphans - watch.count("select count(*) from tenure.outcome").await),
        ];
        for worker in workers {
            worker.shut_down().await;
        }
        measures
    })
    .await
}
