//! Finished jobs are removed: by whole ranges and row by row, under load, beside a long read, and for as long as it goes.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tenure::testing::until_within;

use crate::measure::{longest, p99};
use crate::protocol::Registration;
use crate::stage::text;
use crate::{Act, Bound, Measure, Size, Stage, size};

/// Jobs in one bundle of the past.
pub(super) const BUNDLE: usize = 100;
/// Blocks that are written in one statement.
const CHUNK: usize = 500;
/// Looks at the size of the tables, at least.
const LOOKS_MIN: usize = 9;
/// Ranges that the past fills.
const RANGES: usize = 8;
/// How often new jobs come.
const BEAT: Duration = Duration::from_millis(20);
/// How often an idle worker looks below its cursor, as real ones do.
const SWEEP: Duration = Duration::from_millis(250);
/// Nothing that waits is found any more: what has not run by then is lost.
pub(super) const LOST_AFTER: Duration = Duration::from_secs(30);
/// What S59 asks for.
pub(super) const ROWS_PER_SECOND: f64 = 10_000.0;

/// Ranges of so many blocks in place of those that a migration makes; the last one has no end. Only before the first job.
pub async fn narrow(stage: &Stage, width: i64, ranges: i64) {
    let drop = "select string_agg(format('drop table tenure.%I', relname), ';') from pg_class
        where relnamespace = 'tenure'::regnamespace and relispartition and relkind = 'r'";
    let drop: String = stage.one(drop, &[]).await;
    stage.sql.batch_execute(&format!("{drop}; delete from tenure.partition")).await.expect("partitions dropped");
    let make = "select tenure.add_partition(n * $1, case when n < $2 - 1 then (n + 1) * $1 end) from generate_series(0, $2::bigint - 1) n";
    stage.sql.query(make, &[&width, &ranges]).await.expect("partitions made");
}

/// `jobs` jobs in bundles that ended `days` ago, as if they had been run: one in a hundred cancelled, and one in a hundred with a
/// failed attempt and progress.
pub async fn ended(stage: &Stage, jobs: usize, days: i32) {
    const JOBS: &str = "
        insert into tenure.job (id, queue, kind, priority, max_attempts, created_at, payload)
        select b.block * 128 + n, 'default', 'act', 2, 5, clock_timestamp() - make_interval(days => $2), json_build_object('past', n)
        from unnest($1::bigint[]) as b(block) cross join generate_series(0, $3::int - 1) as n";
    const OUTCOMES: &str = "
        insert into tenure.outcome (job_id, state, attempt, worker_id, lease_id, started_at, finished_at)
        select b.block * 128 + n, case n when 1 then 'x' else 'c' end::\"char\", 1, 1, 0,
               clock_timestamp() - make_interval(days => $2), clock_timestamp() - make_interval(days => $2)
        from unnest($1::bigint[]) as b(block) cross join generate_series(0, $3::int - 1) as n";
    const ERRORS: &str = "
        insert into tenure.attempt_error (job_id, attempt, lease_id, cause, message, worker_id, started_at, failed_at)
        select b.block * 128, 1, 0, 'error', 'it failed', 1, clock_timestamp(), clock_timestamp() from unnest($1::bigint[]) as b(block)";
    const PROGRESS: &str = "
        insert into tenure.progress (job_id, lease_id, at, value)
        select b.block * 128, 0, clock_timestamp(), '1' from unnest($1::bigint[]) as b(block)";
    let mut left = jobs;
    while left > 0 {
        let bundle = BUNDLE.min(left);
        let count = CHUNK.min(left / bundle);
        let draw = "select array(select nextval('tenure.block_id') from generate_series(1, $1::bigint))";
        let blocks: Vec<i64> = stage.one(draw, &[&(count as i64)]).await;
        for statement in [JOBS, OUTCOMES] {
            stage.execute(statement, &[&blocks, &days, &(bundle as i32)]).await;
        }
        for statement in [ERRORS, PROGRESS] {
            stage.execute(statement, &[&blocks]).await;
        }
        left -= count * bundle;
    }
}

/// Steps of retention until nothing is left to do at once: how many jobs they removed, and their answers.
pub async fn retain_all(stage: &Stage) -> (i64, Vec<Value>) {
    let mut steps = Vec::new();
    loop {
        let answer: String = stage.one("select tenure.retain()::text", &[]).await;
        let step: Value = serde_json::from_str(&answer).expect("retain answers JSON");
        let more = step["more"] == true;
        steps.push(step);
        if !more {
            return (steps.iter().filter_map(|step| step["removed"].as_i64()).sum(), steps);
        }
    }
}

/// What all sessions under load share: the times that calls took, in the phase that is on.
#[derive(Debug)]
pub struct Load {
    over: AtomicBool,
    /// Nothing more is enqueued.
    enqueued_all: AtomicBool,
    enqueued: AtomicUsize,
    done: AtomicUsize,
    claims: Mutex<Vec<f64>>,
    enqueues: Mutex<Vec<f64>>,
    /// When the phase began, and how many had run then.
    began: Mutex<(Instant, usize)>,
    lost_after: Duration,
}

/// What one phase measured.
#[derive(Debug)]
pub struct Phase {
    /// The times of claims that found jobs, in ms.
    pub claims: Vec<f64>,
    /// The times of enqueues, in ms.
    pub enqueues: Vec<f64>,
    /// Jobs of the load that ran, a second.
    pub rate: f64,
}

impl Load {
    /// Begins now. A job that still has not run when nothing was found for `lost_after` after the end is lost.
    pub fn new(lost_after: Duration) -> Load {
        Load {
            over: AtomicBool::default(),
            enqueued_all: AtomicBool::default(),
            enqueued: AtomicUsize::default(),
            done: AtomicUsize::default(),
            claims: Mutex::default(),
            enqueues: Mutex::default(),
            began: Mutex::new((Instant::now(), 0)),
            lost_after,
        }
    }

    /// Enqueues into the queue `load` and runs what is there, by two sessions, until it is over and all that is not lost has run.
    pub async fn run(&self, stage: &Stage) {
        let per_beat = (size::RETENTION_LOAD.at(stage.size) as f64 * BEAT.as_secs_f64()).ceil() as usize;
        tokio::join!(self.enqueue(stage, per_beat), self.work(stage));
    }

    async fn enqueue(&self, stage: &Stage, per_beat: usize) {
        let sql = stage.db.sql().await;
        let mut beat = tokio::time::interval(BEAT);
        while !self.is_over() {
            beat.tick().await;
            let start = Instant::now();
            self.enqueued.fetch_add(per_beat, Ordering::SeqCst);
            crate::protocol::enqueue(&sql, "load", per_beat, &Act::Sleep { ms: 0 }.json()).await.expect("enqueued");
            self.enqueues.lock().expect("times").push(start.elapsed().as_secs_f64() * 1_000.0);
        }
        self.enqueued_all.store(true, Ordering::SeqCst);
    }

    async fn work(&self, stage: &Stage) {
        let mut hand = stage.hand(&Registration { queues: vec!["load".into()], ..Registration::default() }).await;
        let (mut renewed, mut found, mut swept) = (Instant::now(), Instant::now(), Instant::now());
        loop {
            if renewed.elapsed() > Duration::from_secs(5) {
                hand.heartbeat().await.expect("renewed");
                renewed = Instant::now();
            }
            let start = Instant::now();
            let (jobs, _) = hand.claim(100).await.expect("claimed");
            if !jobs.is_empty() {
                self.claims.lock().expect("times").push(start.elapsed().as_secs_f64() * 1_000.0);
                assert!(hand.complete(&jobs).await.expect("completed").is_empty());
                self.done.fetch_add(jobs.len(), Ordering::SeqCst);
                found = Instant::now();
                continue;
            }
            if self.enqueued_all.load(Ordering::SeqCst) && (self.left() == 0 || found.elapsed() > self.lost_after) {
                break;
            }
            if swept.elapsed() > SWEEP {
                // The rest of a bundle that somebody else cut lies below the cursor.
                hand.rewind();
                swept = Instant::now();
            }
            tokio::time::sleep(BEAT / 4).await; // until the next look
        }
    }

    /// Nothing more is enqueued; [`Load::run`] ends when all of it has run.
    pub fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Jobs that were enqueued and have not run.
    pub fn left(&self) -> usize {
        self.enqueued.load(Ordering::SeqCst) - self.done.load(Ordering::SeqCst)
    }

    /// Ends a phase: what it measured.
    pub fn phase(&self) -> Phase {
        let taken = |times: &Mutex<Vec<f64>>| std::mem::take(&mut *times.lock().expect("times"));
        let (now, done) = (Instant::now(), self.done.load(Ordering::SeqCst));
        let (since, before) = std::mem::replace(&mut *self.began.lock().expect("a phase"), (now, done));
        let rate = (done - before) as f64 / (now - since).as_secs_f64();
        Phase { claims: taken(&self.claims), enqueues: taken(&self.enqueues), rate }
    }
}

impl Phase {
    /// That the load was the one that is claimed. Tests share their machine, so that there the figure is only shown.
    pub fn ran(&self, stage: &Stage, when: &str) -> Measure {
        let wanted = size::RETENTION_LOAD.at(stage.size) as f64;
        let bound = if stage.size == Size::Full { Bound::AtLeast(0.95 * wanted) } else { Bound::Shown };
        Measure::new(format!("jobs of the load that ran a second, {when}"), bound, self.rate, "/s")
    }
}

/// Bytes of all tables of the schema, with their indexes.
async fn megabytes(stage: &Stage) -> f64 {
    let bytes = "select sum(pg_total_relation_size(oid))::float8 from pg_class where relnamespace = 'tenure'::regnamespace and relkind = 'r'";
    stage.one::<f64>(bytes, &[]).await / 1e6
}

async fn keep(stage: &Stage, ms: Option<i64>) {
    for outcome in ["completed", "cancelled"] {
        stage.sql.query("select tenure.set_keep(null, $1, $2)", &[&outcome, &ms]).await.expect("set");
    }
}

/// Rows of the past that are left, in every table.
async fn left_of_the_past(stage: &Stage, last: i64) -> i64 {
    const LEFT: &str = "select (select count(*) from tenure.job where id <= $1) + (select count(*) from tenure.outcome where job_id <= $1)
        + (select count(*) from tenure.attempt_error where job_id <= $1) + (select count(*) from tenure.progress where job_id <= $1)";
    stage.count(LEFT, &[&last]).await
}

/// Many finished jobs are due at once, fill several ranges, and go while others are enqueued and run: by whole ranges, whose space is
/// given back at once, and without a claim that notices.
pub async fn whole_ranges_under_load(stage: &Stage) -> Vec<Measure> {
    let jobs = size::RETAINED_JOBS.at(stage.size);
    let blocks = jobs / BUNDLE;
    narrow(stage, (blocks / RANGES) as i64, RANGES as i64 + 1).await;
    keep(stage, Some(3_155_760_000_000)).await;
    ended(stage, jobs, 8).await;
    stage.sql.batch_execute("vacuum analyze").await.expect("vacuum");
    let last: i64 = stage.one("select max(id) from tenure.job", &[]).await;
    let maintainer = stage.start(stage.worker("maintainer")).await;
    let load = Load::new(LOST_AFTER);
    let play = async {
        tokio::time::sleep(size::RETENTION_PHASE.at(stage.size) / 4).await; // until plans and caches are warm
        drop(load.phase());
        let before_mb = megabytes(stage).await;
        tokio::time::sleep(size::RETENTION_PHASE.at(stage.size)).await; // what is measured
        let before = load.phase();
        let start = Instant::now();
        keep(stage, None).await;
        until_within(size::RETENTION_PATIENCE.at(stage.size), "the past is gone", async || {
            // The last of it shares its range with what is new, and is thinned.
            match stage.count("select sum(removed)::bigint from tenure.partition", &[]).await {
                removed if removed >= jobs as i64 => Ok(()),
                removed => Err(format!("{removed} of {jobs} removed")),
            }
        })
        .await;
        let took = start.elapsed();
        let during = load.phase();
        until_within(size::RETENTION_PATIENCE.at(stage.size), "nothing is left beside", async || {
            left_of_the_past(stage, last).await == 0
        })
        .await;
        let after_mb = megabytes(stage).await;
        tokio::time::sleep(size::RETENTION_PHASE.at(stage.size)).await; // what is measured
        let after = load.phase();
        load.end();
        (before_mb, before, took, during, after_mb, after)
    };
    let ((), (before_mb, before, took, during, after_mb, after)) = tokio::join!(load.run(stage), play);
    drop(maintainer);
    let by_rows = "select coalesce(sum(p.removed), 0)::bigint from tenure.partition p where p.drop_at is null";
    let by_rows = stage.count(by_rows, &[]).await;
    let mut lines = vec![
        Measure::count("jobs of the load that were lost while retention ran", 0, load.left()),
        Measure::new(format!("{jobs} finished jobs removed by retention in"), Bound::Shown, took.as_secs_f64(), "s"),
        Measure::new("of those removed row by row", Bound::AtMost(jobs as f64 / 100.0), by_rows as f64, ""),
        rate(stage, jobs as f64 / took.as_secs_f64()),
        Measure::new("tables and indexes before", Bound::Shown, before_mb, "MB"),
        Measure::new("tables and indexes right after", Bound::AtMost(before_mb / 4.0), after_mb, "MB"),
    ];
    for (name, phase) in [("before", &before), ("during", &during), ("after", &after)] {
        lines.push(phase.ran(stage, &format!("{name} the removal")));
        lines.push(Measure::new(format!("p99 of a claim {name} the removal"), Bound::Shown, p99(&phase.claims), "ms"));
        lines.push(Measure::new(
            format!("longest claim {name} the removal"),
            Bound::AtMost(1_000.0),
            longest(&phase.claims),
            "ms",
        ));
        lines.push(Measure::new(
            format!("p99 of an enqueue {name} the removal"),
            Bound::Shown,
            p99(&phase.enqueues),
            "ms",
        ));
    }
    lines
}

/// The rate counts where the numbers are those of the claim.
fn rate(stage: &Stage, jobs_per_second: f64) -> Measure {
    let bound = if stage.size == Size::Full { Bound::AtLeast(ROWS_PER_SECOND) } else { Bound::Shown };
    Measure::new("finished jobs removed a second", bound, jobs_per_second, "/s")
}

/// The same in a range that is still being filled, where rows are deleted: in short steps, under a statement timeout, and from where it
/// was when the session that does it is cut.
pub async fn row_by_row(stage: &Stage) -> Vec<Measure> {
    let jobs = size::RETAINED_ROWS.at(stage.size);
    ended(stage, jobs, 8).await;
    stage.enqueue_many(&Act::Sleep { ms: 0 }, 50).await;
    stage.sql.batch_execute("vacuum analyze").await.expect("vacuum");
    let (mut removed, mut cuts, mut slowest, mut calls) = (0, 0, Duration::ZERO, 0);
    let mut sql = session(stage).await;
    let start = Instant::now();
    loop {
        calls += 1;
        let called = Instant::now();
        let answer =
            sql.query_one("select tenure.retain()::text", &[]).await.unwrap_or_else(|e| panic!("{}", text(&e)));
        slowest = slowest.max(called.elapsed());
        let step: Value = serde_json::from_str(answer.get(0)).expect("retain answers JSON");
        removed += step["removed"].as_i64().unwrap_or_default();
        if step["more"] != true {
            break;
        }
        if calls % 10 == 3 && cuts < 3 {
            cut_in_the_middle(stage, &sql).await;
            cuts += 1;
            sql = session(stage).await;
        }
    }
    let took = start.elapsed();
    let left = "select (select count(*) from tenure.outcome) + (select count(*) from tenure.attempt_error) + (select count(*) from tenure.progress)";
    vec![
        Measure::count("due rows that were left", 0, stage.count(left, &[]).await as usize),
        Measure::count("jobs that still wait", 50, stage.count("select count(*) from tenure.job", &[]).await as usize),
        Measure::count(format!("jobs reported as removed, {cuts} steps were cut off"), jobs, removed as usize),
        Measure::new("longest step", Bound::AtMost(1.0), slowest.as_secs_f64(), "s"),
        rate(stage, jobs as f64 / took.as_secs_f64()),
    ]
}

async fn session(stage: &Stage) -> tokio_postgres::Client {
    let sql = stage.db.sql().await;
    sql.batch_execute("set statement_timeout = '5s'").await.expect("set");
    sql
}

/// A step that is rolled back after all that it has done.
async fn cut_in_the_middle(stage: &Stage, sql: &tokio_postgres::Client) {
    sql.batch_execute("begin; select tenure.retain()").await.expect("a step");
    let pid: i32 = sql.query_one("select pg_backend_pid()", &[]).await.expect("its process").get(0);
    stage.execute("select pg_terminate_backend($1)", &[&pid]).await;
    until_within(Duration::from_secs(20), "the session is gone", async || {
        stage.count("select count(*) from pg_stat_activity where pid = $1", &[&pid]).await == 0
    })
    .await;
}

/// Somebody reads an old range for long: nobody waits, neither for the reader nor behind the removal, and the range goes once it is free.
pub async fn beside_a_long_read(stage: &Stage) -> Vec<Measure> {
    narrow(stage, 20, 3).await;
    ended(stage, BUNDLE * 40, 8).await;
    // The first block is 1: the last one lies in a range that still gets new jobs, and is not what this is about.
    let old = BUNDLE * 39;
    let mut reader = stage.db.sql().await;
    let read = reader.transaction().await.expect("begin");
    // What an analyst does: every partition of both tables stays locked until the end.
    let seen: i64 = read
        .query_one("select count(*) from tenure.job j join tenure.outcome o on o.job_id = j.id", &[])
        .await
        .expect("read")
        .get(0);
    let load = Load::new(LOST_AFTER);
    let play = async {
        let (start, mut tries) = (Instant::now(), 0);
        while start.elapsed() < size::RETENTION_READ.at(stage.size) {
            stage.sql.query("select tenure.walk_anew(false)", &[]).await.expect("anew");
            retain_all(stage).await;
            tries += 1;
        }
        let left = stage.count("select count(*) from tenure.outcome where job_id < 40 * 128", &[]).await;
        let times = load.phase();
        load.end();
        (tries, left, times)
    };
    let ((), (tries, left, times)) = tokio::join!(load.run(stage), play);
    read.commit().await.expect("commit");
    stage.sql.query("select tenure.walk_anew(false)", &[]).await.expect("anew");
    retain_all(stage).await;
    let after = stage.count("select count(*) from tenure.outcome where job_id < 40 * 128", &[]).await;
    vec![
        Measure::count("jobs that the reader saw", BUNDLE * 40, seen as usize),
        Measure::count(format!("jobs of old ranges still there after {tries} tries to empty them"), old, left as usize),
        Measure::count("jobs of the load that were lost beside the read", 0, load.left()),
        times.ran(stage, "beside the read"),
        Measure::new("longest enqueue meanwhile", Bound::AtMost(1.0), longest(&times.enqueues) / 1_000.0, "s"),
        Measure::new("longest claim meanwhile", Bound::AtMost(1.0), longest(&times.claims) / 1_000.0, "s"),
        Measure::new("p99 of a claim meanwhile", Bound::Shown, p99(&times.claims), "ms"),
        Measure::count("due jobs left once the reader was gone", 0, after as usize),
    ]
}

/// Jobs come and go for as long as it lasts: the tables reach a size and stay there.
pub async fn plateau(stage: &Stage) -> Vec<Measure> {
    let (time, kept) = (size::RETENTION_DAY.at(stage.size), size::RETENTION_KEEP.at(stage.size));
    // Each beat is a bundle, that is a block; a range lasts as long as jobs are kept.
    let width = (kept.as_secs_f64() / BEAT.as_secs_f64()).ceil() as i64;
    let ranges = (time.as_secs_f64() / BEAT.as_secs_f64()) as i64 / width + 20;
    narrow(stage, width, ranges).await;
    keep(stage, Some(kept.as_millis() as i64)).await;
    let load = Load::new(LOST_AFTER);
    let play = async {
        let (start, mut sizes) = (Instant::now(), Vec::new());
        while start.elapsed() < time || sizes.len() < LOOKS_MIN {
            // Its minute has passed: the clock that matters here is the jobs' age.
            stage.sql.query("select tenure.walk_anew(false)", &[]).await.expect("anew");
            retain_all(stage).await;
            stage
                .execute("update tenure.partition set drop_at = clock_timestamp() where drop_at is not null", &[])
                .await;
            sizes.push(used(stage).await);
            tokio::time::sleep(Duration::from_millis(300)).await; // until the next look
        }
        let times = load.phase();
        load.end();
        (sizes, times)
    };
    let ((), (sizes, times)) = tokio::join!(load.run(stage), play);
    let third = sizes.len() / 3;
    let (middle, end) = (longest(&sizes[third..2 * third]), longest(&sizes[2 * third..]));
    let dropped = ranges - stage.count("select count(*) from tenure.partition", &[]).await;
    vec![
        Measure::new(
            format!("jobs that ran through, each kept for {} s", kept.as_secs()),
            Bound::Shown,
            load.done.load(Ordering::SeqCst) as f64,
            "",
        ),
        Measure::count("jobs that were lost of those that run through", 0, load.left()),
        times.ran(stage, "while they run through"),
        Measure::new("largest size of jobs and outcomes in the second third", Bound::Shown, middle, "MB"),
        Measure::new("largest in the last third", Bound::AtMost(middle * 1.25), end, "MB"),
        Measure::new("ranges dropped", Bound::AtLeast(1.0), dropped as f64, ""),
    ]
}

/// Megabytes of those ranges of job and outcome that hold something: an empty one costs 100 kB until it is dropped.
async fn used(stage: &Stage) -> f64 {
    let bytes = "select coalesce(sum(pg_total_relation_size(c.oid)), 0)::float8 from pg_class c
        where c.relnamespace = 'tenure'::regnamespace and c.relispartition and c.relkind = 'r' and pg_relation_size(c.oid) > 0";
    stage.one::<f64>(bytes, &[]).await / 1e6
}
