//! Where a scenario plays: a database of its own with the tables that handlers report to.

use std::collections::HashMap;
use std::time::Duration;

use tenure::testing::{TestDatabase, until_within};
use tokio_postgres::types::ToSql;

use crate::process::{WorkerOptions, WorkerProcess};
use crate::protocol::{self, Hand, Registration};
use crate::{Act, Size};

/// Connections of a worker that hold its session lock.
pub const CONNECTIONS: usize = 2;

/// The tables of the scenarios' own. `probe`: one row per run of a handler. `death`: when a worker process was killed, so
/// that runs without an end have one. `effect`: what handlers did.
const TABLES: &str = "
    create table probe (
        run bigint generated always as identity primary key, run_key bigint not null unique, job_id bigint not null, attempt int not null,
        fence bigint not null, pid int not null, worker text not null, key text not null,
        started_at timestamptz not null default clock_timestamp(), finished_at timestamptz, outcome text);
    create index on probe (job_id);
    create table death (pid int not null, died_at timestamptz not null default clock_timestamp());
    create table effect (job_id bigint not null, attempt int not null, at timestamptz not null default clock_timestamp());
    create table effect_plain (job_id bigint not null, fence bigint not null, at timestamptz not null default clock_timestamp());
    create table effect_once (job_id bigint not null, fence bigint not null, at timestamptz not null default clock_timestamp());
";

/// A scenario's database, and a session on it for looking.
#[derive(Debug)]
pub struct Stage {
    /// The database.
    pub db: TestDatabase,
    /// A session that is never cut.
    pub sql: tokio_postgres::Client,
    /// How large to play.
    pub size: Size,
}

/// Plays a scenario on a database of its own, on the server of `DATABASE_URL`, and checks the invariants afterwards.
///
/// # Panics
/// When the scenario does or an invariant is broken.
pub async fn on_stage<T>(size: Size, play: impl AsyncFnOnce(&Stage) -> T) -> T {
    let url = std::env::var("DATABASE_URL").expect("DATABASE_URL names the server for tests");
    on_stage_of(&url, size, play).await
}

/// [`on_stage`] on the server of this URL.
///
/// # Panics
/// As [`on_stage`].
pub async fn on_stage_of<T>(admin_url: &str, size: Size, play: impl AsyncFnOnce(&Stage) -> T) -> T {
    let db = TestDatabase::on(admin_url).await;
    let sql = db.sql().await;
    sql.batch_execute(TABLES).await.expect("the tables of the scenarios");
    let stage = Stage { db, sql, size };
    let value = play(&stage).await;
    stage.db.finish().await;
    value
}

impl Stage {
    /// URL of the database.
    pub fn url(&self) -> &str {
        self.db.url()
    }

    /// Options of a worker process on this stage.
    pub fn worker(&self, name: &str) -> WorkerOptions {
        WorkerOptions::new(name, self.url())
    }

    /// Starts a worker process and waits until it is registered.
    pub async fn start(&self, options: WorkerOptions) -> WorkerProcess {
        let mut worker = WorkerProcess::spawn(&options);
        until_within(Duration::from_secs(30), &format!("worker {} is registered", options.name), async || {
            worker.assert_runs();
            self.count(
                "select count(*) from tenure.worker where name = $1 and pid = $2",
                &[&options.name, &worker.pid()],
            )
            .await
                > 0
        })
        .await;
        worker
    }

    /// Kills a process as `kill -9` does, and notes when.
    pub async fn kill(&self, worker: &mut WorkerProcess) {
        worker.kill();
        self.execute("insert into death (pid) values ($1)", &[&worker.pid()]).await;
    }

    /// Registers a worker spoken by hand.
    pub async fn hand(&self, registration: &Registration) -> Hand {
        Hand::register(self.db.sql().await, registration).await.expect("registered")
    }

    /// Enqueues one job that does this.
    pub async fn enqueue(&self, act: &Act) -> i64 {
        self.enqueue_many(act, 1).await[0]
    }

    /// Enqueues `count` jobs that do this, in one call.
    pub async fn enqueue_many(&self, act: &Act, count: usize) -> Vec<i64> {
        self.enqueue_to("default", act, count).await
    }

    /// Enqueues into a named queue.
    pub async fn enqueue_to(&self, queue: &str, act: &Act, count: usize) -> Vec<i64> {
        protocol::enqueue(&self.sql, queue, count, &act.json()).await.expect("enqueued")
    }

    /// Runs a statement.
    ///
    /// # Panics
    /// When it fails.
    pub async fn execute(&self, statement: &str, params: &[&(dyn ToSql + Sync)]) -> u64 {
        self.sql.execute(statement, params).await.unwrap_or_else(|e| panic!("{statement}: {}", text(&e)))
    }

    /// The first column of the first row, a count.
    ///
    /// # Panics
    /// When the statement fails.
    pub async fn count(&self, statement: &str, params: &[&(dyn ToSql + Sync)]) -> i64 {
        self.one(statement, params).await
    }

    /// The first column of the only row.
    ///
    /// # Panics
    /// When the statement fails or has another number of rows.
    pub async fn one<T>(&self, statement: &str, params: &[&(dyn ToSql + Sync)]) -> T
    where
        T: for<'a> tokio_postgres::types::FromSql<'a>,
    {
        self.sql.query_one(statement, params).await.unwrap_or_else(|e| panic!("{statement}: {}", text(&e))).get(0)
    }

    /// The status of a job in the view `jobs`; "unknown" when it is not there.
    pub async fn status(&self, job: i64) -> String {
        let row = self.sql.query_opt("select status from tenure.jobs where id = $1", &[&job]).await;
        row.unwrap_or_else(|e| panic!("status of {job}: {}", text(&e))).map_or("unknown".into(), |row| row.get(0))
    }

    /// How many jobs have each status.
    pub async fn statuses(&self) -> HashMap<String, i64> {
        let rows = self.sql.query("select status, count(*) from tenure.jobs group by status", &[]).await;
        rows.expect("statuses").iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    /// Waits until this many jobs have completed.
    pub async fn completed(&self, count: usize, within: Duration) {
        until_within(within, &format!("{count} jobs completed"), async || {
            let done = self.count("select count(*) from tenure.outcome where state = 'c'", &[]).await;
            if done >= count as i64 {
                Ok(())
            } else {
                Err(format!("{done} completed, all: {:?}", self.statuses().await))
            }
        })
        .await;
    }

    /// Waits until this many runs of handlers have started in all.
    pub async fn started(&self, count: usize, within: Duration) {
        until_within(within, &format!("{count} runs started"), async || {
            let n = self.count("select count(*) from probe", &[]).await;
            if n >= count as i64 { Ok(()) } else { Err(format!("{n}, jobs: {:?}", self.statuses().await)) }
        })
        .await;
    }

    /// How often the job's handler was started.
    pub async fn starts(&self, job: i64) -> i64 {
        self.count("select count(*) from probe where job_id = $1", &[&job]).await
    }

    /// Jobs that were started more than once.
    pub async fn started_again(&self) -> i64 {
        self.count("select count(*) from (select job_id from probe group by job_id having count(*) > 1) again", &[])
            .await
    }

    /// Jobs that were started, or are still to be, more or less often than once.
    pub async fn not_started_once(&self) -> i64 {
        self.count(
            "select count(*) from (select j.id from tenure.job j left join probe p on p.job_id = j.id
             group by j.id having count(p.run) <> 1) wrong",
            &[],
        )
        .await
    }

    /// Pairs of runs of one job that overlapped in time. A run without an end ended with its process, or has not.
    pub async fn overlaps(&self) -> i64 {
        self.count(
            "with run as (
                select p.run, p.job_id, p.started_at,
                       coalesce(p.finished_at, (select min(d.died_at) from death d where d.pid = p.pid and d.died_at >= p.started_at),
                                'infinity') as ended_at
                from probe p)
             select count(*) from run a join run b on a.job_id = b.job_id and a.run < b.run
             where a.ended_at > b.started_at and b.ended_at > a.started_at",
            &[],
        )
        .await
    }

    /// Rescues that were recorded: attempts that ended because their worker was lost.
    pub async fn rescues(&self) -> i64 {
        self.count("select count(*) from tenure.attempt_error where cause = 'worker_lost'", &[]).await
    }

    /// Jobs with more than one row in `effect`.
    pub async fn effects_twice(&self) -> i64 {
        self.count("select count(*) from (select job_id from effect group by job_id having count(*) > 1) twice", &[])
            .await
    }

    /// Moves a worker's clock: its lease is over, and was seen to be over long enough ago. The next rescue takes its jobs.
    pub async fn expire(&self, worker: i64) {
        self.execute(
            "update tenure.worker set lease_until = clock_timestamp() - interval '1 hour', suspected_by = 't',
                    suspected_at = clock_timestamp() - interval '1 hour' where id = $1",
            &[&worker],
        )
        .await;
    }

    /// Takes the jobs of dead workers now; how many.
    pub async fn rescue(&self) -> i64 {
        rescue(&self.sql).await
    }

    /// A whole maintenance turn now, with the net, as a worker does it; what tick answered.
    pub async fn maintain(&self) -> serde_json::Value {
        self.execute("update tenure.duty set next_at = '-infinity' where name in ('tick', 'net', 'overdue')", &[])
            .await;
        let answer: String = self.one("select tenure.tick(0)::text", &[]).await;
        let answer: serde_json::Value = serde_json::from_str(&answer).expect("tick answers JSON");
        for duty in answer["net"].as_array().expect("duties") {
            self.execute("select tenure.net($1)", &[&duty.as_str()]).await;
        }
        answer
    }

    /// Everything that the database says of a job, to compare byte by byte; without its worker's name, which goes with
    /// the worker's row.
    pub async fn picture(&self, job: i64) -> String {
        let picture = "select (to_jsonb(j) - 'worker')::text from tenure.jobs j where j.id = $1";
        let row = self.sql.query_opt(picture, &[&job]).await;
        row.unwrap_or_else(|e| panic!("job {job}: {}", text(&e))).map_or("nothing".into(), |row| row.get(0))
    }

    /// Connections of a worker process that hold its session lock.
    pub async fn session_locks(&self, worker: &WorkerProcess) -> i64 {
        self.count(
            "select count(*) from tenure.worker w join pg_locks l on l.locktype = 'advisory' and l.classid = 'tenure'::regnamespace::oid
                and l.objid = w.id::oid and l.database = (select oid from pg_database where datname = current_database())
             where w.pid = $1",
            &[&worker.pid()],
        )
        .await
    }

    /// Waits until a worker holds its session lock on both connections.
    pub async fn with_both_connections(&self, worker: &WorkerProcess) {
        until_within(Duration::from_secs(20), "the worker holds its session lock on both connections", async || {
            let n = self.session_locks(worker).await;
            if n == CONNECTIONS as i64 { Ok(()) } else { Err(format!("{n}")) }
        })
        .await;
    }

    /// Ends every connection of a worker process on the server, found by the session lock that each holds; how many.
    #[must_use = "a termination that met nobody proves nothing"]
    pub async fn terminate(&self, worker: &WorkerProcess) -> i64 {
        self.count(
            "select count(*) filter (where pg_terminate_backend(l.pid)) from tenure.worker w join pg_locks l
             on l.locktype = 'advisory' and l.classid = 'tenure'::regnamespace::oid and l.objid = w.id::oid
                and l.database = (select oid from pg_database where datname = current_database())
             where w.pid = $1",
            &[&worker.pid()],
        )
        .await
    }
}

/// The database's own words.
pub fn text(error: &tokio_postgres::Error) -> String {
    error.as_db_error().map_or_else(|| error.to_string(), |db| db.to_string())
}

/// Takes the jobs of dead workers now, on this session; how many. A call that took its time says that there is more, and is
/// repeated at once, as maintenance does it.
pub(crate) async fn rescue(sql: &tokio_postgres::Client) -> i64 {
    let mut rescued = 0;
    loop {
        let row = sql.query_one("select tenure.rescue()::text", &[]).await.expect("rescued");
        let answer: serde_json::Value = serde_json::from_str(row.get(0)).expect("rescue answers JSON");
        rescued += answer["rescued"].as_i64().unwrap_or_else(|| panic!("rescued in {answer}"));
        if answer["more"] != true {
            return rescued;
        }
    }
}
