//! The primary ends and its standby takes over: workers and clients know both by one address.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use tenure::testing::{Fault, Proxy, until_within};
use tenure::{Client, Enqueue, JobId, RawJson};
use tenure_dev::{Options, Server};
use tokio_postgres::NoTls;

use super::outage::Watch;
use crate::stage::{on_stage_of, text};
use crate::{Act, Bound, Measure, Size, Stage, size};

const LIMIT: Duration = Duration::from_secs(60);
/// How long the lease lasts: a failover is shorter.
const LEASE: Duration = Duration::from_secs(120);
/// What S51 asks for.
const RESUMED: f64 = 10.0;
/// How often a program enqueues.
const BEAT: Duration = Duration::from_millis(50);

/// How the primary ends, and what its workers make of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Its server is ended as by a crash: it tells its sessions that it goes down.
    Goodbye,
    /// Its machine fails: all connections end without a word, and nobody is there any more. The workers' grace is as long as
    /// the failover.
    SilentWithinGrace,
    /// The same with the usual grace.
    Silent,
}

impl End {
    fn text(self) -> &'static str {
        match self {
            End::Goodbye => "failover",
            End::SilentWithinGrace => "failover without a word, long grace",
            End::Silent => "failover without a word",
        }
    }

    fn grace(self) -> Option<Duration> {
        match self {
            End::SilentWithinGrace => Some(LEASE / 2),
            End::Goodbye | End::Silent => None,
        }
    }
}

/// The primary takes its leave, and some time later its standby is promoted. Whatever was committed was with the standby
/// already: replication is synchronous.
pub async fn promoted_standby(size: Size) -> Vec<Measure> {
    fail_over(size, End::Goodbye).await
}

/// The same after a primary that died without a word, with workers whose grace is as long as a failover.
pub async fn silent_primary_within_the_grace(size: Size) -> Vec<Measure> {
    fail_over(size, End::SilentWithinGrace).await
}

/// The same with workers whose grace is the usual second: they stop their handlers.
pub async fn silent_primary(size: Size) -> Vec<Measure> {
    fail_over(size, End::Silent).await
}

async fn fail_over(size: Size, end: End) -> Vec<Measure> {
    let options = Options { ephemeral: true, durable: false, ..Options::default() };
    let primary = tokio::task::block_in_place(|| Server::start(options).expect("a private server"));
    if !primary.can_be_copied() {
        return no_standby(primary, end.text());
    }
    let standby = tokio::task::block_in_place(|| primary.standby(&[]).expect("its standby"));
    wait_for_each_commit(primary.url()).await;
    // A proxy that refuses is not the same as a server that is down: who hears the goodbye also hears that nobody is there.
    let proxy = if end == End::Goodbye { None } else { Some(Proxy::start(primary.url()).await) };
    let address = both(proxy.as_ref().map_or(primary.url(), Proxy::url), &standby);
    let pair = Pair { primary, proxy, standby: standby.url() };
    let measures = on_stage_of(&address, size, async |stage| play(stage, pair, end).await).await;
    tokio::task::block_in_place(|| standby.stop()).expect("the standby has stopped");
    measures
}

/// What a server says of which no standby can be made.
pub(super) fn no_standby(primary: Server, what: &str) -> Vec<Measure> {
    tokio::task::block_in_place(|| primary.stop()).expect("the server has stopped");
    vec![Measure::did_not_run(what, "these programs of PostgreSQL have no pg_basebackup")]
}

/// A primary, perhaps reached through a proxy, and the standby's address.
struct Pair<'a> {
    primary: Server,
    proxy: Option<Proxy>,
    standby: &'a str,
}

impl Pair<'_> {
    /// Ends the primary, waits, and promotes the standby; the instants at the beginning and at the end.
    async fn fail_over(self, window: Duration) -> (SystemTime, SystemTime) {
        let Pair { primary, proxy, standby } = self;
        let ended = SystemTime::now();
        if let Some(proxy) = &proxy {
            proxy.set(Fault::Refuse);
            proxy.cut_all();
        }
        tokio::task::spawn_blocking(|| primary.stop()).await.expect("no panic").expect("the primary has stopped");
        tokio::time::sleep(window).await; // the time without a primary
        let promote = session(standby).await;
        let done: bool = promote.query_one("select pg_promote(true, 60)", &[]).await.expect("promoted").get(0);
        assert!(done, "the standby is the primary within a minute");
        (ended, SystemTime::now())
    }
}

/// One address for the two of them, as libpq has it.
fn both(primary: &str, standby: &Server) -> String {
    let (hosts, rest) = primary.rsplit_once('/').expect("a URL with a database");
    let mark = if rest.contains('?') { '&' } else { '?' };
    format!("{hosts},127.0.0.1:{}/{rest}{mark}target_session_attrs=read-write", standby.port())
}

/// Lets every commit of the primary wait for its standby.
async fn wait_for_each_commit(primary: &str) {
    let admin = session(primary).await;
    let wait = "alter system set synchronous_standby_names = '*'";
    admin.batch_execute(wait).await.expect("set");
    admin.batch_execute("select pg_reload_conf()").await.expect("reloaded");
    let synchronous = "select count(*) from pg_stat_replication where state = 'streaming' and sync_state = 'sync'";
    until_within(LIMIT, "the standby follows", async || {
        admin.query_one(synchronous, &[]).await.expect("the standbys").get::<_, i64>(0) == 1
    })
    .await;
}

pub(super) async fn session(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap_or_else(|e| panic!("{}", text(&e)));
    tokio::spawn(connection);
    client
}

/// A program that enqueues all the time, whatever the database does.
#[derive(Debug, Default)]
struct Producer {
    over: AtomicBool,
    told: Mutex<Vec<i64>>,
    refused: Mutex<usize>,
    /// Refusals that do not tell the program to try again.
    for_good: Mutex<Vec<String>>,
}

impl Producer {
    async fn run(&self, client: &Client) {
        let mut beat = tokio::time::interval(BEAT);
        while !self.over.load(Ordering::SeqCst) {
            beat.tick().await;
            let act = RawJson::of(&Act::Sleep { ms: 1 }).expect("an act is JSON");
            match client.enqueue(Enqueue::raw("act", act)).await {
                Ok(id) => self.told.lock().expect("ids").push(i64::from(id)),
                Err(error) => {
                    *self.refused.lock().expect("a count") += 1;
                    if !error.is_retryable() {
                        self.for_good.lock().expect("texts").push(error.to_string());
                    }
                }
            }
        }
    }
}

async fn play(stage: &Stage, pair: Pair<'_>, end: End) -> Vec<Measure> {
    let (jobs, window) = (size::FAILOVER_JOBS.at(stage.size), size::FAILOVER.at(stage.size));
    let options = |name: &str| {
        let options = stage.worker(name).concurrency(jobs).lease(LEASE);
        options.with(|options| options.reconnect_grace = end.grace())
    };
    let (mut one, mut other) = (stage.start(options("a")).await, stage.start(options("b")).await);
    let half = (window / 2).as_millis() as u64;
    let early = stage.enqueue_many(&Act::Stubborn { ms: half }, jobs / 2).await;
    let late = stage.enqueue_many(&Act::Stubborn { ms: 5 * half }, jobs - jobs / 2).await;
    stage.started(jobs, LIMIT).await;

    let client = Client::connect(stage.url()).await.expect("a client");
    let producer = Producer::default();
    let failing_over = async {
        let some = async || producer.told.lock().expect("ids").len() > 10;
        until_within(LIMIT, "the program enqueues", some).await;
        let times = pair.fail_over(window).await;
        let before = producer.told.lock().expect("ids").len();
        let more = async || producer.told.lock().expect("ids").len() > before + 10;
        until_within(LIMIT, "the program enqueues again", more).await;
        producer.over.store(true, Ordering::SeqCst);
        times
    };
    let waiting = client.wait(JobId::from(late[0]), LIMIT + 5 * window);
    let ((), (ended, promoted), waited) = tokio::join!(producer.run(&client), failing_over, waiting);

    let told = producer.told.into_inner().expect("ids");
    let mut watch = Watch::new(stage).await;
    watch.completed(jobs + told.len(), LIMIT + window).await;
    watch.reconnect().await;
    one.assert_runs();
    other.assert_runs();
    let sql = stage.db.sql().await;
    let first = "select extract(epoch from min(started_at) - $1::timestamptz)::float8 from probe where started_at > $1";
    let resumed: f64 = sql.query_one(first, &[&promoted]).await.expect("the first start").get(0);
    let kept = "select count(*) from tenure.outcome where job_id = any($1) and state = 'c'";
    let kept: i64 = sql.query_one(kept, &[&told]).await.expect("outcomes").get(0);
    let for_good = producer.for_good.into_inner().expect("texts");
    for_good.iter().take(3).for_each(|text| eprintln!("not to be tried again: {text}"));
    let refused = producer.refused.into_inner().expect("a count");
    let what = |line: &str| format!("{}: {line}", end.text());
    let mut measures = match end {
        End::Goodbye | End::SilentWithinGrace => kept_running(&sql, &watch, end, &early, (ended, promoted)).await,
        End::Silent => started_anew(&sql, &watch, end, &late).await,
    };
    measures.extend([
        Measure::count(what("jobs whose enqueue was answered, and that are not there"), 0, told.len() - kept as usize),
        Measure::new(what("enqueues refused meanwhile, by one client"), Bound::Shown, refused as f64, ""),
        Measure::count(what("of them not to be tried again"), 0, for_good.len()),
        Measure::count(what("waits for a job's end that gave up"), 0, usize::from(waited.is_err())),
        Measure::new(what("from the promotion to the first claim"), Bound::AtMost(RESUMED), resumed, "s"),
    ]);
    one.shut_down().await;
    other.shut_down().await;
    measures
}

/// The lines of workers that kept all that they ran.
async fn kept_running(
    sql: &tokio_postgres::Client,
    watch: &Watch<'_>,
    end: End,
    early: &[i64],
    (ended, promoted): (SystemTime, SystemTime),
) -> Vec<Measure> {
    let inside = "select count(*) from probe where job_id = any($3) and finished_at > $1 and finished_at < $2 and outcome = 'ok'";
    let inside: i64 = sql.query_one(inside, &[&ended, &promoted, &early]).await.expect("ends").get(0);
    let again = "select count(*) from tenure.outcome where attempt <> 1";
    let what = |line: &str| format!("{}: {line}", end.text());
    vec![
        Measure::count(what("jobs that ended while there was no primary"), early.len(), inside as usize),
        Measure::count(what("jobs rescued"), 0, watch.rescues().await),
        Measure::count(what("jobs not started once"), 0, watch.not_started_once().await),
        Measure::count(what("jobs that needed another attempt"), 0, watch.count(again).await),
    ]
}

/// The lines of workers that gave up what they ran.
async fn started_anew(sql: &tokio_postgres::Client, watch: &Watch<'_>, end: End, late: &[i64]) -> Vec<Measure> {
    let dropped = "select count(distinct job_id) from probe where job_id = any($1) and outcome = 'dropped'";
    let dropped: i64 = sql.query_one(dropped, &[&late]).await.expect("ends").get(0);
    let twice = "select count(*) from (select job_id from probe where job_id = any($1) group by job_id having count(*) = 2) twice";
    let twice: i64 = sql.query_one(twice, &[&late]).await.expect("starts").get(0);
    let what = |line: &str| format!("{}: {line}", end.text());
    let lost = watch.rescues().await as f64;
    vec![
        Measure::count(what("long jobs whose handlers were stopped"), late.len(), dropped as usize),
        Measure::count(what("long jobs started twice"), late.len(), twice as usize),
        Measure::new(what("attempts that this cost"), Bound::Shown, lost, ""),
    ]
}
