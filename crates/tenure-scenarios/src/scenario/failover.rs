//! The primary ends and its standby takes over: workers and clients know both by one address.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use tenure::testing::until_within;
use tenure::{Client, Enqueue, RawJson};
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

/// The primary is ended as by a crash, and some time later its standby is promoted. Whatever was committed was with the standby
/// already: replication is synchronous.
pub async fn promoted_standby(size: Size) -> Vec<Measure> {
    let options = Options { ephemeral: true, durable: false, ..Options::default() };
    let primary = tokio::task::block_in_place(|| Server::start(options).expect("a private server"));
    if !primary.can_be_copied() {
        return no_standby(primary, "a failover to a standby");
    }
    let standby = tokio::task::block_in_place(|| primary.standby(&[]).expect("its standby"));
    wait_for_each_commit(primary.url()).await;
    let measures =
        on_stage_of(&both(&primary, &standby), size, async |stage| play(stage, primary, standby.url()).await).await;
    tokio::task::block_in_place(|| standby.stop()).expect("the standby has stopped");
    measures
}

/// What a server says of which no standby can be made.
pub(super) fn no_standby(primary: Server, what: &str) -> Vec<Measure> {
    tokio::task::block_in_place(|| primary.stop()).expect("the server has stopped");
    vec![Measure::did_not_run(what, "these programs of PostgreSQL have no pg_basebackup")]
}

/// One address for the two of them, as libpq has it.
fn both(primary: &Server, standby: &Server) -> String {
    let (one, other) = (format!(":{}/", primary.port()), format!(":{},127.0.0.1:{}/", primary.port(), standby.port()));
    format!("{}?target_session_attrs=read-write", primary.url().replacen(&one, &other, 1))
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
}

impl Producer {
    async fn run(&self, client: &Client) {
        let mut beat = tokio::time::interval(BEAT);
        while !self.over.load(Ordering::SeqCst) {
            beat.tick().await;
            let act = RawJson::of(&Act::Sleep { ms: 1 }).expect("an act is JSON");
            match client.enqueue(Enqueue::raw("act", act)).await {
                Ok(id) => self.told.lock().expect("ids").push(i64::from(id)),
                Err(_) => *self.refused.lock().expect("a count") += 1,
            }
        }
    }
}

async fn play(stage: &Stage, primary: Server, standby: &str) -> Vec<Measure> {
    let (jobs, window) = (size::FAILOVER_JOBS.at(stage.size), size::FAILOVER.at(stage.size));
    let options = |name: &str| stage.worker(name).concurrency(jobs).lease(LEASE);
    let (mut one, mut other) = (stage.start(options("a")).await, stage.start(options("b")).await);
    let half = (window / 2).as_millis() as u64;
    let early = stage.enqueue_many(&Act::Stubborn { ms: half }, jobs / 2).await;
    stage.enqueue_many(&Act::Stubborn { ms: 5 * half }, jobs - jobs / 2).await;
    stage.started(jobs, LIMIT).await;

    let client = Client::connect(stage.url()).await.expect("a client");
    let producer = Producer::default();
    let fail_over = async {
        let some = async || producer.told.lock().expect("ids").len() > 10;
        until_within(LIMIT, "the program enqueues", some).await;
        let ended = SystemTime::now();
        tokio::task::spawn_blocking(|| primary.stop()).await.expect("no panic").expect("the primary has stopped");
        tokio::time::sleep(window).await; // the time without a primary
        let promote = session(standby).await;
        let done: bool = promote.query_one("select pg_promote(true, 60)", &[]).await.expect("promoted").get(0);
        assert!(done, "the standby is the primary within a minute");
        let promoted = SystemTime::now();
        let before = producer.told.lock().expect("ids").len();
        let more = async || producer.told.lock().expect("ids").len() > before + 10;
        until_within(LIMIT, "the program enqueues again", more).await;
        producer.over.store(true, Ordering::SeqCst);
        (ended, promoted)
    };
    let ((), (ended, promoted)) = tokio::join!(producer.run(&client), fail_over);

    let told = producer.told.into_inner().expect("ids");
    let mut watch = Watch::new(stage).await;
    watch.completed(jobs + told.len(), LIMIT + window).await;
    watch.reconnect().await;
    one.assert_runs();
    other.assert_runs();
    let sql = stage.db.sql().await;
    let first = "select extract(epoch from min(started_at) - $1::timestamptz)::float8 from probe where started_at > $1";
    let resumed: f64 = sql.query_one(first, &[&promoted]).await.expect("the first start").get(0);
    let inside = "select count(*) from probe where job_id = any($3) and finished_at > $1 and finished_at < $2 and outcome = 'ok'";
    let inside: i64 = sql.query_one(inside, &[&ended, &promoted, &early]).await.expect("ends").get(0);
    let kept = "select count(*) from tenure.outcome where job_id = any($1) and state = 'c'";
    let kept: i64 = sql.query_one(kept, &[&told]).await.expect("outcomes").get(0);
    let again = "select count(*) from tenure.outcome where attempt <> 1";
    let measures = vec![
        Measure::count("failover: jobs that ended while there was no primary", early.len(), inside as usize),
        Measure::count("failover: jobs rescued", 0, watch.rescues().await),
        Measure::count("failover: jobs not started once", 0, watch.not_started_once().await),
        Measure::count("failover: jobs that needed another attempt", 0, watch.count(again).await),
        Measure::count(
            "failover: jobs whose enqueue was answered, and that are not there",
            0,
            told.len() - kept as usize,
        ),
        Measure::new(
            "failover: enqueues refused meanwhile, by one client",
            Bound::Shown,
            producer.refused.into_inner().expect("a count") as f64,
            "",
        ),
        Measure::new("from the promotion to the first claim", Bound::AtMost(RESUMED), resumed, "s"),
    ];
    one.shut_down().await;
    other.shut_down().await;
    measures
}
