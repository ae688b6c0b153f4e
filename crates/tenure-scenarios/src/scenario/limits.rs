//! Limits: how exactly a rate is kept, what limits cost, whose turn it is, and what waits behind one that is used up.

use std::time::{Duration, Instant};

use tenure::{Enqueue, JobOptions, KindOptions, Limit, Rate, RawJson, RunningWorker, Under, Worker};

use crate::handlers::NOOP_KIND as NOOP;
use crate::measure::p99;
use crate::protocol::{Hand, Registration};
use crate::{Bound, Measure, Stage, size};

const PATIENCE: Duration = Duration::from_secs(600);

/// A rate of 100 a second with a burst of 50, and more jobs than it lets start, by eight workers in two processes.
pub async fn rate(stage: &Stage) -> Vec<Measure> {
    let (rate, burst, time) = (100_u32, 50_u32, size::RATE_TIME.at(stage.size));
    let allowed = f64::from(rate) * time.as_secs_f64() + f64::from(burst);
    let client = stage.db.client().await;
    let limit = Limit::new().rate(Rate { burst: Some(burst), ..Rate::per_second(rate) });
    client.set_limit("provider", limit).await.expect("set");
    let four = |name: &str| {
        stage.worker(name).with(|options| {
            options.workers = 4;
            options.kinds = vec![NOOP.to_owned()];
        })
    };
    let workers = [stage.start(four("one")).await, stage.start(four("two")).await];
    tenure::testing::until("eight workers are there", async || {
        stage.count("select count(*) from tenure.worker", &[]).await == 8
    })
    .await;
    let jobs = allowed as usize + 500;
    let options = JobOptions::new().under("provider");
    client.enqueue_many(NOOP, 0..jobs, options).await.expect("enqueued");
    // What starts is seen by the instants at which the database gave it out.
    let started = "select count(*) from (select started_at from tenure.outcome union all select leased_at from tenure.lease) s(at)
                   where at <= (select min(started_at) from tenure.outcome) + $1 * interval '1 second'";
    tokio::time::sleep(time + Duration::from_secs(2)).await; // sleep: what is measured, and a little more
    let started = stage.count(started, &[&time.as_secs_f64()]).await as f64;
    for worker in workers {
        worker.shut_down().await;
    }
    let at = "select extract(epoch from started_at)::float8 from tenure.outcome where state = 'c' order by started_at";
    let rows = stage.sql.query(at, &[]).await.expect("starts");
    let starts: Vec<f64> = rows.iter().map(|row| row.get(0)).collect();
    let excess = most_in_any_window(&starts, f64::from(rate)) - f64::from(burst);
    let first = starts.iter().filter(|at| **at <= starts[0]).count();
    vec![
        Measure::new(
            format!("started of what 100/s allows in {} s", time.as_secs()),
            Bound::AtLeast(size::RATE_PART.at(stage.size)),
            started / allowed,
            "",
        ),
        Measure::new("the same, not more than all of it", Bound::AtMost(1.0), started / allowed, ""),
        Measure::new(
            "starts above rate and burst, in whichever window they are most",
            Bound::AtMost(0.0),
            excess.max(0.0),
            "",
        ),
        Measure::new("starts at once at the beginning, burst 50", Bound::AtMost(f64::from(burst)), first as f64, ""),
    ]
}

/// A rate whose provider says again and again that it is too much: neither the rate nor a block is overstepped, and jobs go on.
pub async fn throttled(stage: &Stage) -> Vec<Measure> {
    const TIME: Duration = Duration::from_secs(4);
    const BLOCK_MS: i64 = 60;
    let (rate, burst) = (200_u32, 20_u32);
    let client = stage.db.client().await;
    let limit = Limit::new().rate(Rate { burst: Some(burst), ..Rate::per_second(rate) });
    client.set_limit("provider", limit).await.expect("set");
    client.enqueue_many(NOOP, 0..2_000, JobOptions::new().under("provider")).await.expect("enqueued");
    let mut hands = [hand(stage).await, hand(stage).await];
    let (begin, mut blocks) = (Instant::now(), Vec::new());
    while begin.elapsed() < TIME {
        for hand in &mut hands {
            let (jobs, _) = hand.claim(15).await.expect("claimed");
            hand.complete(&jobs).await.expect("completed");
        }
        if begin.elapsed().as_millis() > 300 * blocks.len() as u128 {
            let until = "select extract(epoch from tenure.throttle('provider', null, $1))::float8";
            let until: f64 = stage.one(until, &[&BLOCK_MS]).await;
            blocks.push((until - BLOCK_MS as f64 / 1_000.0, until));
        }
        tokio::time::sleep(Duration::from_millis(3)).await; // sleep: between two looks
    }
    let at = "select extract(epoch from started_at)::float8 from tenure.outcome order by started_at";
    let starts: Vec<f64> = stage.sql.query(at, &[]).await.expect("starts").iter().map(|row| row.get(0)).collect();
    let excess = most_in_any_window(&starts, f64::from(rate)) - f64::from(burst);
    let blocked = starts.iter().filter(|at| blocks.iter().any(|(from, until)| *from < **at && *at < until)).count();
    let after = starts.iter().filter(|at| **at >= blocks[0].1).count();
    vec![
        Measure::new("starts above rate and burst, throttled again and again", Bound::AtMost(0.0), excess.max(0.0), ""),
        Measure::new(format!("starts in {} blocks", blocks.len()), Bound::AtMost(0.0), blocked as f64, ""),
        Measure::new("starts after the first block", Bound::AtLeast(5.0), after as f64, ""),
    ]
}

/// By how many starts any window has more than the rate brings in it.
pub(super) fn most_in_any_window(starts: &[f64], rate: f64) -> f64 {
    let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
    for (n, at) in starts.iter().enumerate() {
        let above = n as f64 - rate * (at - starts[0]);
        least = least.min(above);
        most = most.max(above - least + 1.0);
    }
    // Instants are stored in whole microseconds.
    most - rate * 2e-6
}

/// How quickly jobs are worked off: plain ones, ones under a limit that never holds them back, and ones of 10,000 keys with such a limit each.
pub async fn throughput(stage: &Stage) -> Vec<Measure> {
    let (jobs, rounds) = (size::LIMIT_JOBS.at(stage.size), size::LIMIT_ROUNDS.at(stage.size));
    let client = stage.db.client().await;
    client.set_limit("wide", Limit::new().concurrency(1_000_000)).await.expect("set");
    client.set_limit("keys", Limit::new().key_concurrency(1_000_000)).await.expect("set");
    let workers = [noop_worker(stage, 500).await, noop_worker(stage, 500).await];
    let keyed = |n: usize| JobOptions::new().under(Under::limit("keys").key(format!("key {}", n % 10_000)));
    let (mut plain, mut wide, mut copied, mut keys) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    // One more than is counted: the first meets empty tables and plans that were never made.
    for round in 0..=rounds {
        let bulk = async |options| {
            client.enqueue_many(NOOP, 0..jobs, options).await.expect("enqueued");
        };
        let one_by_one = async |options: &(dyn Fn(usize) -> JobOptions + Sync)| {
            let job = |n| Enqueue::raw(NOOP, RawJson::parse("1").expect("JSON")).options(options(n));
            client.enqueue_copy((0..jobs).map(job)).await.expect("enqueued");
        };
        let times = [
            worked_off(stage, &workers, jobs, async || bulk(JobOptions::new()).await).await,
            worked_off(stage, &workers, jobs, async || bulk(JobOptions::new().under("wide")).await).await,
            worked_off(stage, &workers, jobs, async || one_by_one(&|_| JobOptions::new()).await).await,
            worked_off(stage, &workers, jobs, async || one_by_one(&keyed).await).await,
        ];
        if round > 0 {
            [&mut plain, &mut wide, &mut copied, &mut keys]
                .into_iter()
                .zip(times)
                .for_each(|(all, time)| all.push(time));
        }
    }
    for mut worker in workers {
        worker.shutdown();
        worker.join().await;
    }
    let rate = |times: &mut Vec<f64>| jobs as f64 / median(times);
    let (plain, wide, copied, keys) = (rate(&mut plain), rate(&mut wide), rate(&mut copied), rate(&mut keys));
    vec![
        Measure::new("plain jobs, enqueued in bulk", Bound::Shown, plain, "jobs/s"),
        Measure::new("under a limit that is not exhausted", Bound::Shown, wide, "jobs/s"),
        Measure::new("of the plain queue's throughput", size::LIMIT_WIDE.at(stage.size), wide / plain, ""),
        Measure::new("plain jobs, enqueued by COPY", Bound::Shown, copied, "jobs/s"),
        Measure::new("with 10,000 keys, enqueued by COPY", Bound::Shown, keys, "jobs/s"),
        Measure::new("of the plain queue's throughput", size::LIMIT_KEYS.at(stage.size), keys / copied, ""),
    ]
}

/// Seconds from when the jobs are there, paused, to the end of the last, as the workers count: looking into the tables would disturb what is measured.
async fn worked_off(stage: &Stage, workers: &[RunningWorker], jobs: usize, enqueue: impl AsyncFnOnce()) -> f64 {
    let client = stage.db.client().await;
    client.pause("default", None, None).await.expect("paused");
    let completed = || workers.iter().map(|worker| worker.stats().completed).sum::<u64>();
    let before = completed();
    enqueue().await;
    let start = Instant::now();
    client.resume("default").await.expect("resumed");
    while completed() < before + jobs as u64 {
        assert!(start.elapsed() < PATIENCE, "{} of {jobs} have ended", completed() - before);
        tokio::time::sleep(Duration::from_millis(2)).await; // sleep: between two looks
    }
    let took = start.elapsed().as_secs_f64();
    assert_eq!(completed() - before, jobs as u64, "every job has ended once");
    took
}

async fn noop_worker(stage: &Stage, concurrency: usize) -> RunningWorker {
    let worker = Worker::builder(stage.url()).queue("default", concurrency);
    let worker = worker.handle_raw(NOOP, KindOptions::new(), |_ctx, _payload| async { Ok(None) });
    worker.start().await.expect("a worker")
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// One tenant with very many jobs and 99 with ten each, all there when four workers begin: how long the small ones wait, beside the large one and
/// without it.
pub async fn fairness(stage: &Stage) -> Vec<Measure> {
    let large = size::FAIR_JOBS.at(stage.size);
    let client = stage.db.client().await;
    let mut workers = Vec::new();
    for _ in 0..4 {
        workers.push(noop_worker(stage, 25).await);
    }
    // Workers have learnt how quick the jobs are, and every plan is made.
    small_ones(stage, "first", 0).await;
    let alone = small_ones(stage, "alone", 0).await;
    let beside = small_ones(stage, "beside", large).await;
    let before = "select count(*) from tenure.outcome o join tenure.job j on j.id = o.job_id
        where j.limits ->> 'fair' = 'large' and o.started_at < (select max(x.started_at) from tenure.outcome x join tenure.job y on y.id = x.job_id where y.limits ->> 'fair' like 'beside %')";
    let before = stage.count(before, &[]).await;
    // What is left of the large one is of no more use.
    client.cancel_many(&tenure::CancelFilter::all(), |_| ()).await.expect("cancelled");
    for mut worker in workers {
        worker.shutdown();
        worker.join().await;
    }
    vec![
        Measure::new(
            format!(
                "jobs of the large tenant, of {large}, that started before the last of the small ones, which have 10 each"
            ),
            Bound::AtMost(110.0),
            before as f64,
            "",
        ),
        Measure::new("p99 wait of the small ones in an empty queue", Bound::Shown, alone, "s"),
        Measure::new("p99 wait of the small ones beside the large one", Bound::Shown, beside, "s"),
        Measure::new("more than in an empty queue", Bound::AtMost(1.0), (beside - alone).max(0.0), "s"),
    ]
}

/// The p99 of the waits of 99 tenants with ten jobs each, from when the queue is resumed.
async fn small_ones(stage: &Stage, name: &str, large: usize) -> f64 {
    let client = stage.db.client().await;
    client.pause("default", None, None).await.expect("paused");
    if large > 0 {
        client.enqueue_many(NOOP, 0..large, JobOptions::new().fair("large", 1)).await.expect("enqueued");
    }
    for tenant in 0..99 {
        let options = JobOptions::new().fair(format!("{name} {tenant}"), 1);
        client.enqueue_many(NOOP, 0..10, options).await.expect("enqueued");
    }
    let resumed_at: f64 = stage.one("select extract(epoch from clock_timestamp())::float8", &[]).await;
    client.resume("default").await.expect("resumed");
    tenure::testing::until_within(PATIENCE, "the small ones have ended", async || {
        let ended = "select count(*) from tenure.outcome o join tenure.job j on j.id = o.job_id where j.limits ->> 'fair' like $1 || ' %'";
        stage.count(ended, &[&name]).await == 990
    })
    .await;
    let started =
        "select extract(epoch from o.started_at)::float8 from tenure.outcome o join tenure.job j on j.id = o.job_id
                   where j.limits ->> 'fair' like $1 || ' %'";
    let rows = stage.sql.query(started, &[&name]).await.expect("starts");
    p99(&rows.iter().map(|row| row.get::<_, f64>(0) - resumed_at).collect::<Vec<f64>>())
}

/// Three keys with shares 1, 2 and 4: their parts of what was given out while all of them had jobs.
pub async fn shares(stage: &Stage) -> Vec<Measure> {
    let each = size::SHARE_JOBS.at(stage.size);
    let client = stage.db.client().await;
    for (key, share) in [("a", 1), ("b", 2), ("c", 4)] {
        client.enqueue_many(NOOP, 0..each, JobOptions::new().fair(key, share)).await.expect("enqueued");
    }
    let mut hands = Vec::new();
    for _ in 0..4 {
        hands.push(hand(stage).await);
    }
    // As long as the one with the largest share has jobs left.
    let mut taken = 0;
    while taken < each * 7 / 5 {
        for hand in &mut hands {
            let (jobs, _) = hand.claim(50).await.expect("claimed");
            hand.complete(&jobs).await.expect("completed");
            taken += jobs.len();
        }
    }
    let had = "select j.limits ->> 'fair', count(*)::float8 from tenure.outcome o join tenure.job j on j.id = o.job_id group by 1 order by 1";
    let rows = stage.sql.query(had, &[]).await.expect("shares");
    let all: f64 = rows.iter().map(|row| row.get::<_, f64>(1)).sum();
    rows.iter()
        .zip([1.0, 2.0, 4.0])
        .map(|(row, share)| {
            let part = row.get::<_, f64>(1) / all / (share / 7.0);
            Measure::new(format!("share {share} of 7: off by"), Bound::AtMost(5.0), (part - 1.0).abs() * 100.0, "%")
        })
        .collect()
}

async fn hand(stage: &Stage) -> Hand {
    let kinds = vec![NOOP.to_owned(), "held".to_owned()];
    // Longer than what is enqueued in between takes.
    stage.hand(&Registration { kinds, lease_ms: 3_600_000, ..Registration::default() }).await
}

/// Very many jobs behind a limit that is used up, and a hundredth as many keys behind theirs: what a claim for another kind of the same queue costs beside them, and without.
pub async fn behind(stage: &Stage) -> Vec<Measure> {
    let (held, claims) = (size::HELD_JOBS.at(stage.size), size::HELD_CLAIMS.at(stage.size));
    let keys = held / 100;
    let client = stage.db.client().await;
    client.set_limit("used up", Limit::new().concurrency(0)).await.expect("set");
    client.set_limit("keys", Limit::new().key_concurrency(0)).await.expect("set");
    client.set_limit("free", Limit::new().concurrency(1_000_000)).await.expect("set");
    let mut hand = hand(stage).await;
    let (plain, free) = (JobOptions::new(), JobOptions::new().under("free"));
    // Of each the better of two: the machine does other things too.
    let without =
        claim_ms(stage, &mut hand, claims, &plain).await.min(claim_ms(stage, &mut hand, claims, &plain).await);
    let limited = claim_ms(stage, &mut hand, claims, &free).await.min(claim_ms(stage, &mut hand, claims, &free).await);
    client.enqueue_many("held", 0..held, JobOptions::new().under("used up")).await.expect("enqueued");
    let of_key = |n: usize| JobOptions::new().under(Under::limit("keys").key(format!("key {n}")));
    let job = |n| Enqueue::raw("held", RawJson::parse("1").expect("JSON")).options(of_key(n));
    client.enqueue_copy((0..keys).map(job)).await.expect("enqueued");
    // The first claims find out that they have to wait.
    tenure::testing::until_within(PATIENCE, "all of them wait", async || {
        hand.rewind();
        let (jobs, _) = hand.claim(100).await.expect("claimed");
        assert!(jobs.is_empty(), "the limits let none start");
        stage.count("select count(*) from tenure.limited where fresh > 0", &[]).await == 0
    })
    .await;
    let beside = claim_ms(stage, &mut hand, claims, &plain).await.min(claim_ms(stage, &mut hand, claims, &plain).await);
    let limited_beside =
        claim_ms(stage, &mut hand, claims, &free).await.min(claim_ms(stage, &mut hand, claims, &free).await);
    let job = stage.count("select max(id) from tenure.job where kind = 'held'", &[]).await;
    let why: String = stage.one("select explained from tenure.waits_for($1)", &[&job]).await;
    eprintln!("the last of them: {why}");
    vec![
        Measure::new("claim of 100 jobs of an unlimited kind, median", Bound::Shown, without, "ms"),
        Measure::new(
            format!("the same beside {held} jobs and {keys} keys behind limits that are used up"),
            Bound::Shown,
            beside,
            "ms",
        ),
        Measure::new("part of the speed that is left", size::HELD_PART.at(stage.size), without / beside, ""),
        Measure::new("claim of 100 jobs under a limit that is free, median", Bound::Shown, limited, "ms"),
        Measure::new("the same beside them", Bound::Shown, limited_beside, "ms"),
    ]
}

async fn claim_ms(stage: &Stage, hand: &mut Hand, claims: usize, options: &JobOptions) -> f64 {
    let client = stage.db.client().await;
    client.enqueue_many(NOOP, 0..claims * 100, options.clone()).await.expect("enqueued");
    hand.rewind();
    let mut times = Vec::new();
    for _ in 0..claims {
        let start = Instant::now();
        let (jobs, _) = hand.claim(100).await.expect("claimed");
        times.push(start.elapsed().as_secs_f64() * 1_000.0);
        assert_eq!(jobs.len(), 100, "all that is wanted is there");
        hand.complete(&jobs).await.expect("completed");
    }
    median(&mut times)
}
