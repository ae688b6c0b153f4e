//! Twenty limits while workers are killed, frozen and stopped and the database restarts: never above one of them, and every place is free in the end.

use std::time::{Duration, Instant};

use serde_json::json;
use tenure::testing::until_within;
use tokio_postgres::Client;

use super::limits::most_in_any_window;
use super::outage::on_own_server;
use crate::protocol::Registration;
use crate::{Act, Bound, Measure, Size, Stage, WorkerOptions, WorkerProcess, size};

/// Limits of each of four shapes: places, places of each key, a rate, a rate of each key.
const LIMITS: i32 = 20;
const KEYS: usize = 3;
const WORKERS: usize = 4;
const LEASE: Duration = Duration::from_secs(3);
const CALM: Duration = Duration::from_secs(300);

/// Every lease that is made is looked at in its own transaction, which is the only one that gives out: what is used then is noted with what
/// may be, and the instant of each start.
const INSTRUMENT: &str = "
    create table used (limit_name text not null, key text not null, running bigint not null, most integer not null);
    create table begun (limit_name text not null, key text not null, jobs bigint not null, at timestamptz not null);
    create function note_use() returns trigger language plpgsql as $$
    begin
      insert into public.used
        select b.limit_name, b.key, sum(tenure.bucket_use(l.buckets, l.strip, b.id)), case when b.key = '' then r.concurrency else r.key_concurrency end
        from (select distinct u.bucket from made m cross join lateral unnest(m.buckets) as u(bucket)) n
        join tenure.limit_bucket b on b.id = n.bucket join tenure.limit_rule r on r.name = b.limit_name
        join tenure.lease l on b.id = any(l.buckets)
        where case when b.key = '' then r.concurrency else r.key_concurrency end is not null
        group by b.limit_name, b.key, r.concurrency, r.key_concurrency;
      insert into public.begun
        select b.limit_name, b.key, sum(tenure.bucket_use(m.buckets, m.strip, b.id)), m.leased_at
        from made m join tenure.limit_bucket b on b.id = any(m.buckets) join tenure.limit_rule r on r.name = b.limit_name
        where case when b.key = '' then r.rate else r.key_rate end is not null
        group by b.limit_name, b.key, m.leased_at;
      return null;
    end $$;
    create trigger note_use after insert on tenure.lease referencing new table as made for each statement execute function note_use();
";

/// Plays it on a server of its own.
pub async fn twenty_limits(size: Size) -> Vec<Measure> {
    let time = size::LIMIT_CHAOS.at(size);
    on_own_server(size, async |stage, server| {
        stage.sql.batch_execute(INSTRUMENT).await.expect("the instrument");
        stage.execute(SET, &[&LIMITS]).await;
        let mut crew = Crew::start(stage);
        let begin = Instant::now();
        let (mut jobs, mut restarts) = (0, 0);
        while begin.elapsed() < time {
            jobs += enqueue(stage).await;
            crew.trouble();
            if fastrand::u8(..) < 8 {
                restarts += 1;
                let immediate = fastrand::bool();
                tokio::task::block_in_place(|| server.restart(immediate).expect("the server restarts"));
            }
            tokio::time::sleep(Duration::from_millis(400)).await; // sleep: the pace of what goes wrong
        }
        let troubles = crew.calm();
        let sql = session(stage).await;
        let left = "select (select count(*) from tenure.job) - (select count(*) from tenure.outcome) - (select count(*) from tenure.dead_letter)";
        until_within(CALM, "every job has ended", async || number(&sql, left).await == 0).await;
        crew.end().await;
        let mut lines = vec![
            Measure::new("limits, chaos: seconds", Bound::Shown, time.as_secs_f64(), "s"),
            Measure::new("jobs", Bound::AtLeast(1.0), jobs as f64, ""),
            Measure::new("workers killed, frozen, stopped", Bound::AtLeast(1.0), troubles as f64, ""),
            Measure::new("restarts of the database", Bound::Shown, f64::from(restarts), ""),
            Measure::new("jobs rescued", Bound::Shown, number(&sql, RESCUED).await as f64, ""),
        ];
        lines.extend(judge(&sql).await);
        lines.push(free_again(stage, &sql).await);
        lines
    })
    .await
}

const RESCUED: &str = "select count(*) from tenure.attempt_error where cause = 'worker_lost'";

/// Four shapes in turns, each of them larger than the one before.
const SET: &str = "
    select tenure.set_limit(format('l%s', n),
      p_concurrency => case when n % 4 = 0 then 1 + n / 4 end, p_key_concurrency => case when n % 4 = 1 then 1 + n / 8 end,
      p_rate => case when n % 4 = 2 then 5 + n end, p_burst => case when n % 4 = 2 then 1 + n / 4 end,
      p_key_rate => case when n % 4 = 3 then 3 + n / 2 end, p_key_burst => case when n % 4 = 3 then 1 + n / 8 end)
    from generate_series(0, $1 - 1) n";

/// A few jobs under one limit or two; none while the database is away.
async fn enqueue(stage: &Stage) -> usize {
    let Ok((sql, connection)) = tokio_postgres::connect(stage.url(), tokio_postgres::NoTls).await else { return 0 };
    tokio::spawn(connection);
    let mut done = 0;
    for _ in 0..10 {
        let first = fastrand::i32(0..LIMITS);
        let second = (first + 1 + fastrand::i32(0..LIMITS - 1)) % LIMITS;
        let under = |n: i32| json!({ "limit": format!("l{n}"), "key": format!("k{}", fastrand::usize(..KEYS)) });
        let under = if fastrand::bool() { vec![under(first)] } else { vec![under(first), under(second)] };
        let limits = json!({ "under": under }).to_string();
        let count = fastrand::i32(1..4);
        let act = Act::Sleep { ms: fastrand::u64(1..300) }.json();
        let many = "select count(*) from tenure.enqueue_many_limited('act', array_fill($1::text::json, array[$2::integer]), $3::text::json, p_max_attempts => 50)";
        let Ok(row) = sql.query_one(many, &[&act, &count, &limits]).await else { return done };
        done += row.get::<_, i64>(0) as usize;
    }
    done
}

struct Crew {
    workers: Vec<(WorkerOptions, WorkerProcess, bool)>,
    troubles: usize,
}

impl Crew {
    fn start(stage: &Stage) -> Crew {
        let one = |n: usize| {
            let options = stage.worker(&format!("w{n}")).lease(LEASE);
            let process = WorkerProcess::spawn(&options);
            (options, process, false)
        };
        Crew { workers: (0..WORKERS).map(one).collect(), troubles: 0 }
    }

    /// Something happens to one of them, or not; whoever has ended is started again.
    fn trouble(&mut self) {
        for (options, process, frozen) in &mut self.workers {
            if std::mem::take(frozen) && fastrand::bool() {
                process.wake();
            }
            if process.status().is_some() {
                *process = WorkerProcess::spawn(options);
            }
        }
        let (options, process, frozen) = &mut self.workers[fastrand::usize(..WORKERS)];
        match fastrand::u8(..8) {
            0 | 1 => {
                process.kill();
                *process = WorkerProcess::spawn(options);
            }
            2 => {
                process.stop();
                *frozen = true;
            }
            3 => process.terminate(),
            _ => return,
        }
        self.troubles += 1;
    }

    /// Nobody is frozen and everybody runs.
    fn calm(&mut self) -> usize {
        for (options, process, _) in &mut self.workers {
            process.wake();
            process.kill();
            *process = WorkerProcess::spawn(options);
        }
        self.troubles
    }

    async fn end(self) {
        for (_, process, _) in self.workers {
            process.shut_down().await;
        }
    }
}

async fn session(stage: &Stage) -> Client {
    let mut session = None;
    until_within(Duration::from_secs(60), "the database is back", async || {
        session = tokio_postgres::connect(stage.url(), tokio_postgres::NoTls).await.ok();
        session.is_some()
    })
    .await;
    let (sql, connection) = session.expect("a session");
    tokio::spawn(connection);
    sql
}

async fn number(sql: &Client, query: &str) -> i64 {
    sql.query_one(query, &[]).await.unwrap_or_else(|e| panic!("{query}: {e:?}")).get(0)
}

/// The highest that was seen of each limit and key, against what is set.
async fn judge(sql: &Client) -> Vec<Measure> {
    let rows = sql
        .query(
            "select limit_name, key, max(running)::float8, max(most)::float8 from used group by 1, 2 order by 1, 2",
            &[],
        )
        .await
        .expect("uses");
    let (mut above, mut full) = (0, 0);
    for row in &rows {
        let (name, key, running, most): (String, String, f64, f64) = (row.get(0), row.get(1), row.get(2), row.get(3));
        eprintln!("{name} {key}: at most {running} of {most} ran at a time");
        above += usize::from(running > most);
        full += usize::from(running == most);
    }
    let starts = "select r.name, b.key, array_agg(extract(epoch from b.at)::float8 order by b.at), max(case when b.key = '' then r.rate else r.key_rate end)::float8,
                         max(case when b.key = '' then r.burst else r.key_burst end)::float8
                  from begun b cross join lateral generate_series(1, b.jobs) join tenure.limit_rule r on r.name = b.limit_name group by 1, 2 order by 1, 2";
    let starts = sql.query(starts, &[]).await.expect("starts");
    let (mut early, mut used) = (0, 0);
    for row in &starts {
        let (name, key, at): (String, String, Vec<f64>) = (row.get(0), row.get(1), row.get(2));
        let (rate, burst): (f64, f64) = (row.get(3), row.get(4));
        let most = most_in_any_window(&at, rate);
        eprintln!(
            "{name} {key}: {} starts, at most {most:.2} more than {rate}/s brings in any window, burst {burst}",
            at.len()
        );
        early += usize::from(most > burst);
        used += usize::from(most > burst / 2.0);
    }
    vec![
        Measure::count("limits and keys whose places were ever exceeded", 0, above),
        Measure::new("of so many", Bound::AtLeast(1.0), rows.len() as f64, ""),
        Measure::new("of these, used to the last place at some time", Bound::AtLeast(1.0), full as f64, ""),
        Measure::count("limits and keys whose rate was ever exceeded, in any window", 0, early),
        Measure::new("of so many", Bound::AtLeast(1.0), starts.len() as f64, ""),
        Measure::new("of these, whose burst was used by more than half", Bound::AtLeast(1.0), used as f64, ""),
    ]
}

/// Limits of places that let fewer jobs start in the end than they say: places that were lost on the way.
async fn free_again(stage: &Stage, sql: &Client) -> Measure {
    let mut lost = 0;
    let hand_sql = session(stage).await;
    let mut hand = crate::protocol::Hand::register(hand_sql, &Registration::default()).await.expect("registered");
    for n in (0..LIMITS).filter(|n| n % 4 < 2) {
        let most = if n % 4 == 0 { 1 + n / 4 } else { 1 + n / 8 };
        let limits = json!({ "under": [{ "limit": format!("l{n}"), "key": "k0" }] }).to_string();
        let many = "select count(*) from tenure.enqueue_many_limited('act', array_fill('1'::json, array[$1::integer]), $2::text::json)";
        sql.query_one(many, &[&(most + 2), &limits]).await.expect("enqueued");
        hand.rewind();
        let (jobs, _) = hand.claim(100).await.expect("claimed");
        lost += usize::from(jobs.len() != most as usize);
        while number(sql, "select count(*) from tenure.lease").await > 0 {
            hand.complete(&jobs).await.expect("completed");
        }
        sql.query("select tenure.cancel(j.id) from tenure.jobs j where j.status = 'held'", &[])
            .await
            .expect("cancelled");
    }
    Measure::count("limits that do not let as many jobs run in the end as they say", 0, lost)
}
