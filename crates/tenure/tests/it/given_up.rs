//! A worker that gives up its registration, or is about to: what becomes of the jobs that it runs.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::lifecycle::State;
use tenure::testing::{Fault, Gate, Probe, Proxy, TestDatabase, until, with_database};
use tenure::{
    Client, Context, Ended, Enqueue, Fail, Job, JobId, JobInfo, KindOptions, RunningWorker, Worker, WorkerBuilder,
};

const SECOND: Duration = Duration::from_secs(1);

#[derive(Debug, Serialize, Deserialize)]
struct Step {
    n: u32,
}

impl Job for Step {
    const KIND: &'static str = "step";
}

/// Handlers that wait at the gate.
#[derive(Clone, Default)]
struct Waiting {
    gate: Gate,
    runs: Probe,
}

impl Waiting {
    async fn start(&self, builder: WorkerBuilder) -> RunningWorker {
        let waiting = self.clone();
        let handler = move |ctx: Context, _: Step| {
            let Waiting { gate, runs } = waiting.clone();
            async move {
                let _run = runs.enter(ctx.job_id().get(), ctx.attempt().into());
                gate.pass().await;
                Ok(())
            }
        };
        builder.handle(handler).start().await.unwrap()
    }

    fn none_runs(&self) -> bool {
        self.runs.runs().iter().all(|run| run.ended.is_some())
    }
}

fn builder(url: &str) -> WorkerBuilder {
    Worker::builder(url).queue("default", 4).shutdown_grace(SECOND)
}

async fn enqueue(client: &Client, attempts: i16) -> JobId {
    client.enqueue(Enqueue::new(&Step { n: 0 }).unwrap().max_attempts(attempts)).await.unwrap()
}

async fn job(client: &Client, id: JobId) -> JobInfo {
    client.get(id).await.unwrap().expect("it was enqueued")
}

async fn causes(client: &Client, id: JobId) -> Vec<String> {
    client.attempt_errors(id).await.unwrap().into_iter().map(|error| error.cause).collect()
}

async fn until_completed(client: &Client, id: JobId) {
    until("the job to be completed", async || {
        let seen = job(client, id).await;
        if seen.status == State::Completed { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
}

/// Lets blocked threads go on however the test ends: the runtime waits for them.
struct OpensAtTheEnd(Gate);

impl Drop for OpensAtTheEnd {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// Cuts all connections until the worker has given up and its handlers have ended.
async fn cut_until_given_up(proxy: &Proxy, worker: &RunningWorker, ended: impl Fn() -> bool) {
    let before = worker.stats().registrations_lost;
    proxy.set(Fault::Refuse);
    proxy.cut_all();
    until("the worker to give up", async || worker.stats().registrations_lost > before).await;
    until("its handlers to end", async || ended()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_cuts_of_the_network_cost_a_long_job_no_attempt() {
    with_database(async |db| {
        let (client, proxy, jobs) = (db.client().await, Proxy::start(db.url()).await, Waiting::default());
        let id = enqueue(&client, 2).await;
        let worker = jobs.start(builder(proxy.url()).reconnect_grace(2 * SECOND)).await;
        for cut in 1..=3 {
            jobs.gate.arrived(cut).await;
            cut_until_given_up(&proxy, &worker, || jobs.none_runs()).await;
            proxy.set(Fault::None);
        }
        jobs.gate.arrived(4).await;
        jobs.gate.open();
        until_completed(&client, id).await;
        assert!(jobs.runs.runs().iter().all(|run| run.attempt == 1), "{:?}", jobs.runs.runs());
        assert_eq!(causes(&client, id).await, ["given_up"; 3], "a trace, and nobody is suspected");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_stops_because_its_worker_gave_up_has_not_failed() {
    with_database(async |db| {
        let (client, proxy, gate) = (db.client().await, Proxy::start(db.url()).await, Gate::new());
        let id = enqueue(&client, 1).await;
        let at = gate.clone();
        let handler = move |ctx: Context, _: Step| {
            let gate = at.clone();
            async move {
                tokio::select! {
                    () = gate.pass() => Ok(()),
                    reason = ctx.cancelled() => Err(Fail::retry(format!("asked to stop: {reason:?}"))),
                }
            }
        };
        let worker = builder(proxy.url()).reconnect_grace(2 * SECOND).handle(handler).start().await.unwrap();
        gate.arrived(1).await;
        cut_until_given_up(&proxy, &worker, || true).await;
        proxy.set(Fault::None);
        gate.arrived(2).await;
        gate.open();
        until_completed(&client, id).await;
        assert_eq!(job(&client, id).await.attempt, 1);
        let errors = client.attempt_errors(id).await.unwrap();
        assert_eq!((errors.len(), errors[0].cause.as_str()), (1, "given_up"));
        assert!(errors[0].message.contains("asked to stop"), "the handler's own words are kept: {}", errors[0].message);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_does_not_end_when_its_worker_gave_up_is_rescued_as_lost() {
    with_database(async |db| {
        let (client, proxy, gate) = (db.client().await, Proxy::start(db.url()).await, Gate::new());
        let _opens = OpensAtTheEnd(gate.clone());
        let id = enqueue(&client, 2).await;
        let at = gate.clone();
        let handler = move |ctx: Context, _: Step| {
            let (gate, runtime) = (at.clone(), tokio::runtime::Handle::current());
            async move {
                if ctx.attempt() == 1 {
                    ctx.spawn_blocking(move || runtime.block_on(gate.pass())).await;
                }
                Ok(())
            }
        };
        let worker = builder(proxy.url()).handle(handler).start().await.unwrap();
        gate.arrived(1).await;
        cut_until_given_up(&proxy, &worker, || true).await;
        proxy.set(Fault::None);
        until_completed(&client, id).await;
        assert_eq!(causes(&client, id).await, ["worker_lost"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_given_up_worker_claimed_without_hearing_of_it_costs_no_attempt() {
    with_database(async |db| {
        let (client, proxy, jobs) = (db.client().await, Proxy::start(db.url()).await, Waiting::default());
        let worker = jobs.start(builder(proxy.url()).reconnect_grace(2 * SECOND)).await;
        // In one transaction, so that the worker sees nothing of the job but the lease.
        let claim = "do $$ declare v_job bigint := tenure.enqueue('step', '{\"n\": 0}'); \
             begin perform from tenure.worker w, tenure.claim(w.id, w.token, '{default}', '{1}', '{step}', '{}', '{2}', '{0}', false); end $$";
        let sql = db.sql().await;
        sql.batch_execute(claim).await.unwrap();
        let id = JobId::from(sql.query_one("select id from tenure.job", &[]).await.unwrap().get::<_, i64>(0));
        assert_eq!(job(&client, id).await.status, State::Running);
        cut_until_given_up(&proxy, &worker, || true).await;
        proxy.set(Fault::None);
        jobs.gate.open();
        until_completed(&client, id).await;
        assert_eq!(job(&client, id).await.attempt, 1);
        assert_eq!(client.attempt_errors(id).await.unwrap().len(), 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_worker_that_has_to_register_anew_is_drained_still() {
    with_database(async |db| {
        let (client, proxy, jobs) = (db.client().await, Proxy::start(db.url()).await, Waiting::default());
        jobs.gate.open();
        let worker = jobs.start(builder(proxy.url())).await;
        let first = worker.worker_id().expect("registered");
        assert!(client.drain_worker(first, true).await.unwrap());
        cut_until_given_up(&proxy, &worker, || true).await;
        // So long that the database has forgotten the worker.
        let forget = "delete from tenure.worker; select tenure.adopt_orphans(); select tenure.adopt_orphans()";
        db.sql().await.batch_execute(forget).await.unwrap();
        proxy.set(Fault::None);
        let second = until("a new registration", async || worker.worker_id().filter(|id| *id != first)).await;
        let state = client.workers().await.unwrap().into_iter().find(|worker| worker.id == second).unwrap().state;
        assert_eq!(state, "drained");
        let id = enqueue(&client, 1).await;
        assert!(client.drain_worker(second, false).await.unwrap());
        until_completed(&client, id).await;
    })
    .await;
}

/// The database's clock goes forward by more than the lease, or another host with such a clock takes over.
async fn set_the_clock_forward(db: &TestDatabase, worker: &RunningWorker) {
    let over = "update tenure.worker set lease_until = clock_timestamp() - interval '1 second' where id = $1";
    let id = worker.worker_id().expect("registered");
    assert_eq!(db.sql().await.execute(over, &[&id]).await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_set_forward_stops_no_handler() {
    with_database(async |db| {
        let (client, jobs) = (db.client().await, Waiting::default());
        let worker = jobs.start(builder(db.url())).await;
        let first = enqueue(&client, 1).await;
        jobs.gate.arrived(1).await;
        set_the_clock_forward(db, &worker).await;
        let second = enqueue(&client, 1).await;
        jobs.gate.arrived(2).await;
        assert_eq!(worker.stats().registrations_lost, 0);
        jobs.gate.open();
        for id in [first, second] {
            until_completed(&client, id).await;
        }
        assert_eq!(jobs.runs.runs().len(), 2, "each ran once");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_set_forward_loses_no_end_of_a_job() {
    with_database(async |db| {
        let (client, jobs) = (db.client().await, Waiting::default());
        // One slot: nothing is claimed before the end is written.
        let worker = jobs.start(Worker::builder(db.url()).queue("default", 1)).await;
        let id = enqueue(&client, 1).await;
        jobs.gate.arrived(1).await;
        set_the_clock_forward(db, &worker).await;
        jobs.gate.open();
        until_completed(&client, id).await;
        assert_eq!((worker.stats().lease_lost, jobs.runs.runs().len()), (0, 1));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_set_forward_fails_no_handler_that_writes_to_the_database() {
    with_database(async |db| {
        let (client, gate, url) = (db.client().await, Gate::new(), db.url().to_owned());
        let at = gate.clone();
        let handler = move |ctx: Context, _: Step| {
            let (gate, url) = (at.clone(), url.clone());
            async move {
                gate.pass().await;
                ctx.progress("at the end").await?;
                let (mut sql, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
                tokio::spawn(connection);
                let mut tx = sql.transaction().await?;
                ctx.complete_in(&mut tx, "done").await?;
                tx.commit().await?;
                Ok::<_, Fail>(())
            }
        };
        let worker = Worker::builder(db.url()).queue("default", 1).handle(handler).start().await.unwrap();
        let id = enqueue(&client, 1).await;
        gate.arrived(1).await;
        set_the_clock_forward(db, &worker).await;
        gate.open();
        let ended = client.wait(id, 30 * SECOND).await.unwrap();
        assert!(matches!(ended, Ended::Completed { .. }), "{ended:?}");
        assert_eq!(client.attempt_errors(id).await.unwrap().len(), 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn between_a_long_maintenance_turn_and_the_look_at_the_horizon_is_a_heartbeat() {
    with_database(async |db| {
        // The turn takes longer than the time between two heartbeats, and less than it may.
        let slow = "create table public.step (n serial, what text); \
             alter function tenure.tick(bigint, boolean) rename to tick_now; alter function tenure.vacuum_horizon() rename to horizon_now; \
             alter function tenure.heartbeat(bigint, uuid) rename to heartbeat_now; \
             create function tenure.tick(p_worker bigint, p_busy boolean) returns json language sql as $$ \
               select pg_sleep(0.75); insert into public.step (what) values ('turn'); \
               select json_build_object('ran', true, 'next_ms', 0, 'promoted', 0, 'rescued', 0, 'retain', false, 'horizon', true) $$; \
             create function tenure.vacuum_horizon() returns json language sql as $$ \
               insert into public.step (what) values ('horizon'); select tenure.horizon_now() $$; \
             create function tenure.heartbeat(p_worker bigint, p_token uuid) returns table (lease_left_ms integer, cancel_jobs bigint[]) \
             language sql as $$ \
               insert into public.step (what) values ('heartbeat'); select * from tenure.heartbeat_now(p_worker, p_token) $$";
        let sql = db.sql().await;
        sql.batch_execute(slow).await.unwrap();
        let _worker = Waiting::default().start(builder(db.url()).lease(2 * SECOND)).await;
        let before = "select (select o.what from public.step o where o.n < s.n order by o.n desc limit 1) \
             from public.step s where s.what = 'horizon' order by s.n limit 1";
        until("a look at the horizon", async || sql.query_opt(before, &[]).await.unwrap().is_some()).await;
        assert_eq!(sql.query_one(before, &[]).await.unwrap().get::<_, &str>(0), "heartbeat");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_maintenance_has_no_end_overruns_are_seen_and_retention_goes_on() {
    with_database(async |db| {
        let (client, sql, gate) = (db.client().await, db.sql().await, Gate::new());
        let _opens = OpensAtTheEnd(gate.clone());
        // Each turn takes longer than the claim that it wakes, and that claim wants the next turn.
        let busy = "create table public.stepped (); \
             alter function tenure.tick(bigint, boolean) rename to tick_now; alter function tenure.retain(integer) rename to retain_now; \
             create function tenure.tick(p_worker bigint, p_busy boolean) returns json language sql as $$ \
               select pg_sleep(0.2); select json_build_object('ran', true, 'next_ms', 0, 'promoted', 1, 'rescued', 0, 'retain', true) $$; \
             create function tenure.retain(p_limit integer) returns json language sql as $$ \
               insert into public.stepped default values; select json_build_object('ran', true) $$";
        sql.batch_execute(busy).await.unwrap();
        let at = gate.clone();
        let handler = move |ctx: Context, _: Step| {
            let (gate, runtime) = (at.clone(), tokio::runtime::Handle::current());
            async move {
                ctx.spawn_blocking(move || runtime.block_on(gate.pass())).await;
                Ok(())
            }
        };
        let options = KindOptions::new().timeout(SECOND / 10);
        let worker = builder(db.url()).handle_with(options, handler).start().await.unwrap();
        enqueue(&client, 1).await;
        gate.arrived(1).await;
        until("the overrun", async || worker.stats().overruns == 1).await;
        until("a step of retention", async || {
            sql.query_one("select exists (select from public.stepped)", &[]).await.unwrap().get::<_, bool>(0)
        })
        .await;
    })
    .await;
}
