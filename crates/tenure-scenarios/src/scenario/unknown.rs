//! A flush whose answer is lost with the connection: nobody knows whether it was committed. It is sent again, and every
//! job is told apart.

use std::collections::HashMap;
use std::time::Duration;

use tenure::testing::{Cut, Proxy, until, until_within};
use tokio_postgres::NoTls;

use crate::protocol::{Answer, Hand, Leased, Registration};
use crate::stage::text;
use crate::{Act, Bound, Measure, Stage, size};

/// Jobs of one flush.
const FLUSH: usize = 8;
/// One in so many times the worker is given up before it can ask again.
const GIVEN_UP: u32 = 5;
/// Messages of one flush, each way; cuts beyond its end are not counted.
const MESSAGES: u64 = 9;
/// Flushes for each that is committed and unanswered, at most: the cut comes as often before the commit, or after the answer.
const ROUNDS: usize = 20;

/// What became of a job, as the repeated flush is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Told {
    DoneNow,
    DoneBefore,
    Lost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Complete,
    Fail,
}

/// Flushes of completions and of failures, cut at random, so often.
pub async fn unknown_commits(stage: &Stage) -> Vec<Measure> {
    let proxy = Proxy::start(stage.url()).await;
    let commits = size::UNKNOWN_COMMITS.at(stage.size);
    let mut hand = register(&proxy).await;
    let mut told: HashMap<Told, usize> = HashMap::new();
    let mut wrong = Vec::new();
    let (mut jobs_asked, mut unknown, mut unanswered, mut rounds) = (0, 0, 0, 0);
    while unknown < commits && rounds < commits * ROUNDS {
        rounds += 1;
        stage.enqueue_many(&Act::Sleep { ms: 0 }, FLUSH).await;
        // A cut may also have met the last words of the round before.
        assert!(hand.move_to(session(&proxy).await).await.expect("attached"), "the worker is known");
        hand.rewind();
        hand.solo_kinds = if fastrand::bool() { vec!["act".into()] } else { Vec::new() };
        let verb = if fastrand::bool() { Verb::Complete } else { Verb::Fail };
        let (jobs, _) = hand.claim(FLUSH as i32).await.expect("claimed");
        let first = proxy.cuts();
        proxy.cut_at(any_cut());
        let answer = flush(&hand, verb, &jobs).await;
        proxy.disarm();
        if proxy.cuts() == first {
            answer.expect("a flush that nobody cut");
            continue;
        }
        let done = done(stage, &jobs).await;
        unanswered += usize::from(answer.is_err());
        // Committed, and nobody was told.
        unknown += usize::from(answer.is_err() && done.values().all(|done| *done));
        let given_up = fastrand::u32(..GIVEN_UP) == 0;
        if given_up {
            give_up(stage, hand.worker).await;
        }
        let answers = ask_again(&proxy, &mut hand, verb, &jobs).await;
        jobs_asked += jobs.len();
        for (job, answer) in jobs.iter().zip(&answers) {
            let right = match (done[&job.job], given_up) {
                // Done by one of the flushes that were cut, the first or a later one.
                (true, _) => *answer == Told::DoneBefore,
                (false, true) => *answer == Told::Lost,
                (false, false) => matches!(answer, Told::DoneNow | Told::DoneBefore),
            };
            if !right {
                wrong.push(format!("{verb:?} {}: done {}, given up {given_up}: {answer:?}", job.job, done[&job.job]));
            }
            *told.entry(*answer).or_default() += 1;
        }
        if given_up {
            hand = register(&proxy).await;
        }
    }
    finish(stage, &mut hand).await;
    wrong.iter().for_each(|wrong| eprintln!("{wrong}"));
    let count = |what| told.get(&what).copied().unwrap_or_default();
    let no_end = "select count(*) from tenure.job j where (select count(*) from tenure.outcome o where o.job_id = j.id)
        + (select count(*) from tenure.dead_letter d where d.job_id = j.id) <> 1";
    let enough =
        |what: &str, n: usize| Measure::new(format!("flush unknown: {what}"), Bound::AtLeast(1.0), n as f64, "");
    vec![
        Measure::new("flushes cut before their answer", Bound::Shown, unanswered as f64, ""),
        Measure::new("of these, committed", Bound::AtLeast(commits as f64), unknown as f64, ""),
        Measure::new("flush unknown: jobs asked for again", Bound::Shown, jobs_asked as f64, ""),
        enough("of these, told that the lost flush had done it", count(Told::DoneBefore)),
        enough("done by the second", count(Told::DoneNow)),
        enough("told that the lease was lost", count(Told::Lost)),
        Measure::count("flush unknown: told wrongly", 0, wrong.len()),
        Measure::count("flush unknown: jobs without exactly one end", 0, stage.count(no_end, &[]).await as usize),
    ]
}

fn any_cut() -> Cut {
    let n = fastrand::u64(1..=MESSAGES);
    if fastrand::bool() { Cut::ToServer(n) } else { Cut::FromServer(n) }
}

async fn session(proxy: &Proxy) -> tokio_postgres::Client {
    let (sql, connection) = tokio_postgres::connect(proxy.url(), NoTls).await.expect("a session");
    tokio::spawn(connection);
    sql
}

async fn register(proxy: &Proxy) -> Hand {
    let registration = Registration { lease_ms: 3_600_000, grace_ms: 100, ..Registration::default() };
    Hand::register(session(proxy).await, &registration).await.expect("registered")
}

async fn flush(hand: &Hand, verb: Verb, jobs: &[Leased]) -> Answer<Vec<Told>> {
    match verb {
        Verb::Complete => {
            let refused: HashMap<i64, String> = hand.complete(jobs).await?.into_iter().collect();
            let told = |job: &Leased| match refused.get(&job.job).map(String::as_str) {
                None => Told::DoneNow,
                Some("completed") => Told::DoneBefore,
                Some(_) => Told::Lost,
            };
            Ok(jobs.iter().map(told).collect())
        }
        Verb::Fail => {
            let told = |status: String| match status.as_str() {
                "dead" => Told::DoneNow,
                "already" => Told::DoneBefore,
                _ => Told::Lost,
            };
            Ok(hand.bury(jobs).await?.into_iter().map(told).collect())
        }
    }
}

/// The worker is dead, by its lock or by its time, and its jobs are given away.
async fn give_up(stage: &Stage, worker: i64) {
    stage.expire(worker).await;
    let dead = "select count(*) from tenure.worker where id = $1 and dead_at is not null";
    until("the worker is given up", async || {
        stage.rescue().await;
        stage.count(dead, &[&worker]).await > 0
    })
    .await;
}

/// Until there is an answer; the repetition is cut now and then, too.
async fn ask_again(proxy: &Proxy, hand: &mut Hand, verb: Verb, jobs: &[Leased]) -> Vec<Told> {
    loop {
        // Whether the database still knows the worker is what the flush will tell.
        hand.move_to(session(proxy).await).await.expect("asked");
        if fastrand::u8(..4) == 0 {
            proxy.cut_at(any_cut());
        }
        let answer = flush(hand, verb, jobs).await;
        proxy.disarm();
        if let Ok(told) = answer {
            return told;
        }
    }
}

/// Which of these jobs this lease has ended.
async fn done(stage: &Stage, jobs: &[Leased]) -> HashMap<i64, bool> {
    let ended = "select l.job, exists (select from tenure.outcome o where o.job_id = l.job and o.lease_id = l.lease)
            or exists (select from tenure.dead_letter d where d.job_id = l.job and d.lease_id = l.lease)
        from unnest($1::bigint[], $2::bigint[]) l(job, lease)";
    let (ids, leases): (Vec<i64>, Vec<i64>) = jobs.iter().map(|job| (job.job, job.lease)).unzip();
    let rows = stage.sql.query(ended, &[&ids, &leases]).await.unwrap_or_else(|e| panic!("{ended}: {}", text(&e)));
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// What was given away by then is done.
async fn finish(stage: &Stage, hand: &mut Hand) {
    hand.move_to(stage.db.sql().await).await.expect("attached");
    const LEFT: &str = "select (select count(*) from tenure.lease) + (select count(*) from tenure.ready)";
    until_within(Duration::from_secs(60), "every job has ended", async || {
        // A flush that was cut may hold its leases until the server has noticed; what was given up meanwhile is rescued then.
        stage.rescue().await;
        // Suspects come one by one.
        hand.rewind();
        let (jobs, _) = hand.claim(1_000).await.expect("claimed");
        hand.complete(&jobs).await.expect("completed");
        stage.count(LEFT, &[]).await == 0
    })
    .await;
}
