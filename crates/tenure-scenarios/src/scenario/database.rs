//! Conditions of the database that are nobody's fault here: old snapshots, notifications, read-only times, large numbers.

use std::time::{Duration, Instant};

use tenure::testing::until_within;
use tenure_dev::{Options, Server, find_binaries};
use tokio_postgres::NoTls;

use super::outage::{CONNECTIONS, on_own_server};
use super::sweep_worker;
use crate::measure::{longest, p99, quickest};
use crate::protocol::{Registration, sqlstate};
use crate::stage::{on_stage_of, text};
use crate::{Act, Bound, Measure, Size, Stage, size};

const LIMIT: Duration = Duration::from_secs(60);

/// Sessions of somebody else that read for a long time: one holds its snapshot to the end, several take turns and always
/// leave an older one open.
struct Readers {
    sessions: Vec<tokio_postgres::Client>,
    /// When the oldest snapshot, that of the first session, is given up: after so long, and after so many looks at the
    /// latest. None: at the end.
    turn: Option<(Duration, usize)>,
    since: (Instant, usize),
}

impl Readers {
    const BEGIN: &str = "begin isolation level repeatable read; select count(*) from tenure.ready";

    async fn open(stage: &Stage, count: usize, turn: Option<(Duration, usize)>) -> Readers {
        let mut sessions = Vec::new();
        for _ in 0..count {
            let session = stage.db.sql().await;
            session.batch_execute(Readers::BEGIN).await.expect("a snapshot");
            sessions.push(session);
        }
        Readers { sessions, turn, since: (Instant::now(), 0) }
    }

    /// Whose time is over ends, and reads anew; how many did.
    async fn take_turns(&mut self) -> usize {
        let Some((time, looks)) = self.turn else { return 0 };
        self.since.1 += 1;
        if self.since.0.elapsed() < time && self.since.1 < looks {
            return 0;
        }
        self.since = (Instant::now(), 0);
        self.sessions[0].batch_execute("commit").await.expect("commit");
        self.sessions[0].batch_execute(Readers::BEGIN).await.expect("a snapshot");
        self.sessions.rotate_left(1);
        1
    }

    async fn close(self) {
        for session in self.sessions {
            session.batch_execute("commit").await.expect("commit");
        }
    }
}

/// Somebody's old snapshot keeps every dead row in place while very many jobs pass.
pub async fn old_snapshot(stage: &Stage) -> Vec<Measure> {
    pass_behind(stage, "an old snapshot", Readers::open(stage, 1, None).await).await
}

/// Three readers take turns: at no time is there none, and the oldest snapshot is never young.
pub async fn staggered_snapshots(stage: &Stage) -> Vec<Measure> {
    // Each of three reads for three turns.
    let turn = (size::READER.at(stage.size) / 3, size::READER_LOOKS.at(stage.size));
    let readers = Readers::open(stage, 3, Some(turn)).await;
    pass_behind(stage, "three staggered readers", readers).await
}

async fn pass_behind(stage: &Stage, whom: &str, mut readers: Readers) -> Vec<Measure> {
    let jobs = size::LONG_SNAPSHOT_JOBS.at(stage.size);
    let mut hand = stage.hand(&Registration { lease_ms: 3_600_000, ..Registration::default() }).await;
    let (mut times, mut buffers, mut passed, mut turns) = (Vec::new(), Vec::new(), 0, 0);
    while passed < jobs {
        turns += readers.take_turns().await;
        stage.enqueue_many(&Act::Sleep { ms: 0 }, 100).await;
        let start = Instant::now();
        let (claimed, _) = hand.claim(100).await.expect("claimed");
        times.push(start.elapsed().as_secs_f64() * 1_000.0);
        assert_eq!(claimed.len(), 100, "nothing waits for long");
        assert!(hand.complete(&claimed).await.expect("completed").is_empty());
        passed += claimed.len();
        if passed % (jobs / 10) < 100 {
            buffers.push(claim_buffers(&hand).await);
        }
    }
    let mut measures = Vec::new();
    if readers.turn.is_some() {
        measures.push(Measure::new(
            format!("{whom}: snapshots given up and taken anew"),
            Bound::AtLeast(1.0),
            turns as f64,
            "",
        ));
    }
    readers.close().await;
    let tenth = times.len() / 10;
    // Of so few the 99th hundredth is the longest, and beside other tests half of them are held up. What all claims have to walk over makes the quickest dearer too.
    let (name, of): (_, fn(&[f64]) -> f64) = if tenth < 100 { ("quickest", quickest) } else { ("p99", p99) };
    let (first, last) = (of(&times[..tenth]), of(&times[times.len() - tenth..]));
    let (least, most) = (buffers.iter().copied().fold(f64::MAX, f64::min), longest(&buffers));
    measures.extend([
        Measure::new(format!("jobs that passed behind {whom}"), Bound::Shown, passed as f64, ""),
        Measure::new(format!("{whom}: {name} of a claim of 100 in the first tenth"), Bound::Shown, first, "ms"),
        Measure::new(
            format!("{whom}: {name} in the last tenth against the first"),
            Bound::AtMost(3.0),
            last / first,
            "x",
        ),
        Measure::new(format!("buffers of an empty claim behind {whom}, at most"), Bound::AtMost(200.0), most, ""),
        Measure::new("the same, at least", Bound::Shown, least, ""),
    ]);
    measures
}

/// What a claim touches from the session's cursors on.
async fn claim_buffers(hand: &crate::protocol::Hand) -> f64 {
    // The first of two may plan anew, as it must after an analysis by autovacuum, and reads the catalogue for it.
    let first = claim_buffers_now(hand).await;
    first.min(claim_buffers_now(hand).await)
}

async fn claim_buffers_now(hand: &crate::protocol::Hand) -> f64 {
    let statement = format!("explain (analyze, buffers, timing off, format json) {}", hand.claim_text(100));
    let rows = hand.sql.simple_query(&statement).await.unwrap_or_else(|e| panic!("{statement}: {}", text(&e)));
    let plan: String = rows
        .iter()
        .filter_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        })
        .collect();
    let plan: serde_json::Value = serde_json::from_str(&plan).expect("a plan");
    let blocks = |key: &str| plan[0]["Plan"][key].as_f64().unwrap_or_default();
    blocks("Shared Hit Blocks") + blocks("Shared Read Blocks")
}

/// Many programs enqueue at the same time, each job in a transaction of its own: with a worker that wants to be told, and
/// with one that only polls.
pub async fn notifying(stage: &Stage) -> Vec<Measure> {
    stage.sql.batch_execute("create table app (n bigint, text text)").await.expect("the program's own table");
    let (mut with, mut without, mut waiting, mut samples) = (0.0, 0.0, 0.0, 0.0);
    for tells in [true, false, true, false] {
        let options = stage.worker(if tells { "told" } else { "polls" }).with(|o| o.pooler = !tells);
        let worker = stage.start(options).await;
        let (rate, waits) = enqueue_for(stage, &mut samples).await;
        if tells {
            with += rate;
            waiting += waits;
        } else {
            without += rate;
        }
        worker.shut_down().await;
    }
    let ratio = with / without;
    // Half of it is measured in seconds of a machine that does other things as well; the figure is that of the full size.
    let bound = if stage.size == Size::Full { Bound::AtLeast(0.8) } else { Bound::AtLeast(0.5) };
    vec![
        Measure::new(
            "enqueues that commit one by one while a worker sleeps on wake-ups",
            Bound::Shown,
            with / 2.0,
            "/s",
        ),
        Measure::new("the same while it only polls", Bound::Shown, without / 2.0, "/s"),
        Measure::new("with wake-ups against without", bound, ratio, "x"),
        Measure::new(
            "samples in which somebody waited for the lock of all notifications",
            Bound::AtMost(0.05),
            waiting / samples.max(1.0),
            "",
        ),
    ]
}

/// Enqueues a second, and samples with a session that waits for the lock on database 0.
async fn enqueue_for(stage: &Stage, samples: &mut f64) -> (f64, f64) {
    let (clients, time) = (size::NOTIFYING_CLIENTS.at(stage.size), size::NOTIFYING.at(stage.size));
    let begin = Instant::now();
    let one = async || {
        let mut sql = stage.db.sql().await;
        // As programs have it, whatever the server's default is.
        sql.batch_execute("set synchronous_commit = on").await.expect("set");
        let mut done = 0_u64;
        while begin.elapsed() < time {
            let tx = sql.transaction().await.expect("begin");
            tx.execute("insert into app values (1, repeat('x', 1000))", &[]).await.expect("a row");
            tx.query("select tenure.enqueue('act', '{\"do\": \"sleep\", \"ms\": 0}')", &[]).await.expect("enqueued");
            tx.commit().await.expect("commit");
            done += 1;
        }
        done
    };
    let all = futures_util::future::join_all((0..clients).map(|_| one()));
    let look = async {
        let waits = "select count(*) from pg_locks where locktype = 'object' and database = 0 and not granted";
        let mut waiting = 0.0;
        while begin.elapsed() < time {
            waiting += f64::from(stage.count(waits, &[]).await > 0);
            *samples += 1.0;
            tokio::time::sleep(Duration::from_millis(50)).await; // the pace of the samples
        }
        waiting
    };
    let (done, waiting) = tokio::join!(all, look);
    (done.iter().sum::<u64>() as f64 / begin.elapsed().as_secs_f64(), waiting)
}

/// Somebody listens and never reads, until the server can keep no more notifications; needs PostgreSQL 17, whose room for
/// them can be made small.
pub async fn full_notification_queue(size: Size) -> Vec<Measure> {
    let found = find_binaries(Some(18)).or_else(|_| find_binaries(None)).expect("a PostgreSQL");
    if found.major < 17 {
        let why = "the room for notifications can be made small from PostgreSQL 17 on";
        return vec![Measure::did_not_run("a full room for notifications", why)];
    }
    let settings = vec!["max_notify_queue_pages=64".to_owned()];
    let options = Options { ephemeral: true, durable: false, bin_dir: Some(found.dir), settings, ..Options::default() };
    let server =
        tokio::task::spawn_blocking(move || Server::start(options)).await.expect("no panic").expect("a server");
    let url = server.url().to_owned();
    let measures = on_stage_of(&url, size, async |stage| behind_a_full_queue(stage).await).await;
    tokio::task::spawn_blocking(move || server.stop()).await.expect("no panic").expect("the server has stopped");
    measures
}

async fn behind_a_full_queue(stage: &Stage) -> Vec<Measure> {
    let worker = stage.start(stage.worker("a")).await;
    let asleep = "select count(*) from tenure.sleeper";
    until_within(LIMIT, "the worker sleeps", async || stage.count(asleep, &[]).await > 0).await;
    let listener = stage.db.sql().await;
    listener.batch_execute("listen somebody").await.expect("listening");
    listener.batch_execute("begin; select 1").await.expect("and never reading");
    let pump = stage.db.sql().await;
    let much = "select pg_notify('somebody', repeat('x', 7000) || n) from generate_series(1, 20) n";
    let full = until_within(LIMIT, "the server keeps no more notifications", async || {
        pump.query(much, &[]).await.err().map(|error| text(&error))
    })
    .await;
    eprintln!("a program's own notification is refused: {full}");
    let (jobs, mut refused) = (50, 0);
    for _ in 0..jobs {
        let enqueue = "select tenure.enqueue('act', '{\"do\": \"sleep\", \"ms\": 1}')";
        refused += usize::from(stage.sql.query(enqueue, &[]).await.is_err());
    }
    let enqueued = Instant::now();
    stage.completed(jobs - refused, LIMIT).await;
    let took = enqueued.elapsed().as_secs_f64();
    listener.batch_execute("commit").await.expect("it reads again");
    worker.shut_down().await;
    vec![
        Measure::count("enqueues refused while the server keeps no more notifications", 0, refused),
        Measure::new("until they had all run, found by polling", Bound::AtMost(3.0), took, "s"),
    ]
}

/// For a while the database takes no writes, as one that is about to hand over to another.
pub async fn read_only(size: Size) -> Vec<Measure> {
    on_own_server(size, async |stage, _server| {
        let time = size::READ_ONLY.at(size);
        let options = |name: &str| stage.worker(name).concurrency(20).lease(Duration::from_secs(120));
        let mut worker = stage.start(options("a")).await;
        let half = (time / 2).as_millis() as u64;
        stage.enqueue_many(&Act::Stubborn { ms: half }, 5).await;
        stage.enqueue_many(&Act::Stubborn { ms: 3 * half }, 5).await;
        stage.started(10, LIMIT).await;
        let mut other = stage.start(options("b")).await;
        let admin = stage.db.sql().await;
        admin.batch_execute("set default_transaction_read_only = off").await.expect("the administrator may write");
        let set = async |value: &str| {
            admin
                .batch_execute(&format!("alter system set default_transaction_read_only = {value}"))
                .await
                .expect("set");
            admin.batch_execute("select pg_reload_conf()").await.expect("reloaded");
        };
        set("on").await;
        let refused = "select tenure.pause('nothing')";
        until_within(LIMIT, "writes are refused", async || stage.sql.query(refused, &[]).await.is_err()).await;
        tokio::time::sleep(time).await; // the time without writes
        let refused = usize::from(stage.sql.query(refused, &[]).await.is_err());
        set("off").await;
        let back = Instant::now();
        let writable = "select current_setting('default_transaction_read_only') = 'off'";
        until_within(LIMIT, "the database takes writes", async || {
            let session = stage.db.sql().await;
            session.query_one(writable, &[]).await.is_ok_and(|row| row.get(0))
        })
        .await;
        let fresh = stage.db.sql().await;
        let enqueue = "select tenure.enqueue('act', '{\"do\": \"sleep\", \"ms\": 1}')";
        let id: i64 = fresh.query_one(enqueue, &[]).await.expect("enqueued").get(0);
        until_within(LIMIT, "a new job ends", async || stage.status(id).await == "completed").await;
        let resumed = back.elapsed().as_secs_f64();
        stage.completed(11, LIMIT).await;
        worker.assert_runs();
        other.assert_runs();
        let measures = vec![
            Measure::count("no writes for a while: a write is refused", 1, refused),
            Measure::count("no writes for a while: jobs of live workers rescued", 0, stage.rescues().await as usize),
            Measure::count("no writes for a while: jobs not started once", 0, stage.not_started_once().await as usize),
            Measure::new("from the first write to the end of a new job", Bound::AtMost(10.0), resumed, "s"),
        ];
        worker.shut_down().await;
        other.shut_down().await;
        measures
    })
    .await
}

/// Where sequences and counters may come to.
const MARKS: [(&str, i64); 4] = [
    ("block_id", (1 << 31) - 3),
    // The ids of jobs pass 2^53 here, which is where a float no longer counts.
    ("block_id", (1 << 46) - 3),
    ("lease_id", (1 << 53) - 3),
    ("worker_id", (1 << 31) - 2),
];

/// Sequences just below the places where numbers of other systems end; a worker's whole life on each.
pub async fn large_numbers(stage: &Stage) -> Vec<Measure> {
    let mut measures = Vec::new();
    for (sequence, mark) in MARKS {
        stage.count(&format!("select setval('tenure.{sequence}', $1)"), &[&mark]).await;
        measures.extend(sweep_worker::undisturbed(stage, &format!("{sequence} at {mark}")).await);
    }
    let narrow = "select count(*) from pg_attribute a join pg_class c on c.oid = a.attrelid
        where c.relnamespace = 'tenure'::regnamespace and c.relkind in ('r', 'p') and a.attnum > 0 and not a.attisdropped
          and (a.attname like '%\\_id' or a.attname in ('id', 'block')) and a.atttypid not in ('int8'::regtype, 'oid'::regtype)";
    measures.push(Measure::count(
        "columns that hold an id and are narrower than 64 bits",
        0,
        stage.count(narrow, &[]).await as usize,
    ));
    // The very end is refused in words, and nothing is written.
    let before = stage.count("select count(*) from tenure.job", &[]).await;
    stage.count("select setval('tenure.block_id', $1)", &[&(1_i64 << 56)]).await;
    let refused = sqlstate(stage.sql.query("select tenure.enqueue('act', '{}')", &[]).await);
    let after = stage.count("select count(*) from tenure.job", &[]).await;
    measures.push(Measure::count("jobs made beyond the last id", 0, (after - before) as usize));
    measures.push(Measure::count(
        "an enqueue beyond the last id says \"out of range\"",
        1,
        usize::from(refused == "22003"),
    ));
    measures
}

/// Whether a name can be resolved, for a worker in a process of its own: its file of hosts, which nobody else sees.
pub async fn unresolvable_name(stage: &Stage) -> Vec<Measure> {
    const NAME: &str = "tenure-scenario-database";
    let hosts = std::env::temp_dir().join(format!("tenure-hosts-{}-{:x}", std::process::id(), fastrand::u32(..)));
    let write = |known: bool| {
        let line = if known { format!("127.0.0.1 {NAME}\n") } else { String::new() };
        std::fs::write(&hosts, format!("127.0.0.1 localhost\n{line}")).expect("a file of hosts");
    };
    write(true);
    let config: tokio_postgres::Config = stage.url().parse().expect("a URL");
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let password = config.get_password().map(|p| format!(":{}", String::from_utf8_lossy(p))).unwrap_or_default();
    let url = format!(
        "postgres://{}{password}@{NAME}:{port}/{}",
        config.get_user().unwrap_or("postgres"),
        config.get_dbname().expect("a database")
    );
    let options = stage.worker("resolver").url(&url).with(|o| o.hosts = Some(hosts.clone()));
    if !crate::process::can_have_own_hosts() {
        let why = "a file of hosts of one's own needs the right to mount";
        return vec![Measure::did_not_run("a name that is not resolved", why)];
    }
    let worker = stage.start(options).await;
    stage.enqueue(&Act::Sleep { ms: 1 }).await;
    stage.completed(1, LIMIT).await;
    stage.with_both_connections(&worker).await;
    write(false);
    let ended = stage.terminate(&worker).await;
    until_within(LIMIT, "its connections are gone", async || stage.session_locks(&worker).await == 0).await;
    let id = stage.enqueue(&Act::Sleep { ms: 1 }).await;
    tokio::time::sleep(size::OUTAGE.at(stage.size).min(Duration::from_secs(10))).await; // the length of the outage
    let waited = usize::from(stage.status(id).await == "available");
    let away = stage.session_locks(&worker).await == 0;
    write(true);
    let back = Instant::now();
    stage.completed(2, LIMIT).await;
    let took = back.elapsed().as_secs_f64();
    let _ = std::fs::remove_file(&hosts);
    // The words of the resolver, which no other end of a connection has.
    let said = usize::from(worker.log().contains("failed to lookup address"));
    worker.shut_down().await;
    vec![
        Measure::count("a name that is not resolved: connections ended before", CONNECTIONS, ended as usize),
        Measure::count("a name that is not resolved: the worker stays away", 1, usize::from(away)),
        Measure::count("a name that is not resolved: the job waits", 1, waited),
        Measure::count("a name that is not resolved: the worker says why", 1, said),
        Measure::new("from the name's return to the end of the job", Bound::AtMost(5.0), took, "s"),
    ]
}

/// The role may have no connection, or may not log in, for a while.
pub async fn refused_logins(size: Size) -> Vec<Measure> {
    on_own_server(size, async |stage, _server| {
        let role = "create role app login password 'app'; grant usage on schema tenure to app; grant execute on all functions in schema tenure to app;
            grant select on all tables in schema tenure to app";
        stage.sql.batch_execute(role).await.expect("a role");
        let config: tokio_postgres::Config = stage.url().parse().expect("a URL");
        let (port, database) = (config.get_ports()[0], config.get_dbname().expect("a database"));
        let url = format!("postgres://app:app@127.0.0.1:{port}/{database}");
        let worker = stage.start(stage.worker("a").url(&url)).await;
        let mut slowest = 0.0_f64;
        let (mut jobs, mut refusals, mut ended) = (0, 0, 0);
        for (refuse, allow, sqlstate) in [
            ("alter role app connection limit 0", "alter role app connection limit -1", "53300"),
            ("alter role app nologin", "alter role app login", "28000"),
        ] {
            stage.with_both_connections(&worker).await;
            stage.sql.batch_execute(refuse).await.expect("refused");
            let error = tokio_postgres::connect(&url, NoTls).await.err().expect("no connection");
            refusals += usize::from(error.code().is_some_and(|code| code.code() == sqlstate));
            ended += stage.terminate(&worker).await as usize;
            stage.enqueue_many(&Act::Sleep { ms: 1 }, 10).await;
            jobs += 10;
            tokio::time::sleep(size::OUTAGE.at(size).min(Duration::from_secs(20))).await; // the length of the outage
            stage.sql.batch_execute(allow).await.expect("allowed");
            let back = Instant::now();
            stage.completed(jobs, LIMIT).await;
            slowest = slowest.max(back.elapsed().as_secs_f64());
        }
        let connections = "select count(*) from pg_stat_activity where usename = 'app' and datname = current_database()";
        until_within(LIMIT, "the worker has its two connections", async || stage.count(connections, &[]).await == 2).await;
        worker.shut_down().await;
        vec![
            Measure::count("no connection left for the role, and no login: refusals as meant", 2, refusals),
            Measure::count("no connection left, and no login: connections ended", 2 * CONNECTIONS, ended),
            Measure::new("from the first login to the end of all that waited", Bound::AtMost(5.0), slowest, "s"),
        ]
    })
    .await
}
