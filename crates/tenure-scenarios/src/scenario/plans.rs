//! Plans that were made while the tables were empty must stay right when half a million rows have come: no sequential scan,
//! and as many buffers a call as before.

use std::collections::BTreeMap;

use serde_json::Value;
use tenure::testing::until;
use tokio_postgres::SimpleQueryMessage;

use crate::protocol::{Hand, Registration};
use crate::stage::text;
use crate::{Act, Bound, Measure, Stage, size};

/// Ranges of job and outcome.
const PARTITIONS: i64 = 64;
/// Tables that grow with the jobs: a sequential scan of one is a fault. Not `lease`, which holds what runs at the moment.
const GROWING: &str = "^(job|ready|later|held|outcome|dead_letter|attempt_error|progress|replacement|stat_delta|stat_minute|stat_worker)(_|$)";
/// A call that touches no more than this may double; below, a level of an index more is not growth.
const FEW: f64 = 60.0;

/// What one call cost.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    buffers: f64,
    rows_scanned: f64,
}

/// Every hot function, planned on empty tables, at a tenth and at all of the jobs.
pub async fn plans_stay_right(stage: &Stage) -> Vec<Measure> {
    let jobs = size::PLAN_JOBS.at(stage.size);
    make_partitions(stage, jobs).await;
    let mut hand = stage.hand(&patient("default")).await;
    // Often enough for every plan to have become the one that stays.
    for _ in 0..6 {
        round(stage, &mut hand).await;
    }
    fill(stage, jobs / 10).await;
    let small = settled(stage, &mut hand).await;
    fill(stage, jobs - jobs / 10).await;
    let large = settled(stage, &mut hand).await;
    report(jobs, &small, &large)
}

fn report(jobs: usize, small: &BTreeMap<&'static str, Cost>, large: &BTreeMap<&'static str, Cost>) -> Vec<Measure> {
    let growth = |name: &&'static str| large[name].buffers / f64::max(small[name].buffers, FEW);
    let scanned: f64 = large.values().map(|cost| cost.rows_scanned).sum();
    let mut lines = vec![
        Measure::new(
            format!("rows read by sequential scans in one call of each verb, {jobs} jobs"),
            Bound::Exactly(0.0),
            scanned,
            "",
        ),
        Measure::new(
            format!("buffers of a call at {jobs} jobs against a tenth of them, the worst verb"),
            Bound::AtMost(1.5),
            large.keys().map(growth).fold(0.0, f64::max),
            "x",
        ),
        Measure::new("buffers of a claim of 100", Bound::AtMost(200.0), large["claim 100"].buffers, ""),
    ];
    for (name, cost) in large {
        if cost.rows_scanned > 0.0 {
            eprintln!("{name} reads {} rows by a sequential scan", cost.rows_scanned);
        }
        lines.push(Measure::new(
            format!("buffers of {name}, was {}", small[name].buffers),
            Bound::Shown,
            cost.buffers,
            "",
        ));
    }
    lines
}

/// A worker whose lease lasts while the tables are filled: nobody renews it.
fn patient(queue: &str) -> Registration {
    Registration { queues: vec![queue.into()], lease_ms: 3_600_000, ..Registration::default() }
}

/// As many ranges as a large installation has, of a width that the jobs fill.
async fn make_partitions(stage: &Stage, jobs: usize) {
    let drop = "select string_agg(format('drop table tenure.%I', relname), ';') from pg_class
        where relnamespace = 'tenure'::regnamespace and relispartition and relkind = 'r'";
    let drop: String = stage.one(drop, &[]).await;
    stage.sql.batch_execute(&format!("{drop}; delete from tenure.partition")).await.expect("partitions dropped");
    // Blocks: full bundles for most of the jobs, one each for the rest, twice (waiting and completed), and room.
    let width = (jobs as i64 / 4 + 1_000) / (PARTITIONS - 2);
    let make = "select tenure.add_partition(n * $1, case when n < $2 - 1 then (n + 1) * $1 end) from generate_series(0, $2::bigint - 1) n";
    stage.sql.query(make, &[&width, &PARTITIONS]).await.expect("partitions made");
}

/// Waiting, scheduled and completed jobs: some in full bundles, some alone.
async fn fill(stage: &Stage, jobs: usize) {
    let singles = jobs / 20;
    let act = Act::Sleep { ms: 0 };
    let alone = "select count(tenure.enqueue('act', '{}', $2)) from generate_series(1, $1::bigint)";
    for queue in ["default", "done"] {
        for chunk in chunks(jobs - singles, 10_000) {
            stage.enqueue_to(queue, &act, chunk).await;
        }
        stage.count(alone, &[&(singles as i64), &queue]).await;
    }
    let later = "select count(tenure.enqueue('act', '{}', 'default', p_delay_ms => 31536000000)) from generate_series(1, $1::bigint)";
    stage.count(later, &[&(singles as i64)]).await;
    let mut hand = stage.hand(&patient("done")).await;
    loop {
        let (jobs, _) = hand.claim(1000).await.expect("claimed");
        if jobs.is_empty() {
            break;
        }
        assert!(hand.complete(&jobs).await.expect("completed").is_empty());
    }
}

fn chunks(total: usize, most: usize) -> impl Iterator<Item = usize> {
    (0..total.div_ceil(most)).map(move |n| most.min(total - n * most))
}

/// What each call costs in the best of three rounds: one round may have to make a plan anew, because a table was analysed
/// in between, and reads the catalogue for it.
async fn settled(stage: &Stage, hand: &mut Hand) -> BTreeMap<&'static str, Cost> {
    // A turn of the statistics then finds what one round enqueued, and not what filled the tables.
    until("all that was enqueued is counted", async || {
        stage.one::<bool>("select (tenure.fold_stats(100000) ->> 'more')::bool", &[]).await;
        let left = "select count(*) from tenure.duty d cross join tenure.block_id s where d.name = 'enqueued' and d.place < s.last_value * 128";
        stage.count(left, &[]).await == 0
    })
    .await;
    let mut best = round(stage, hand).await;
    for _ in 0..2 {
        for (name, cost) in round(stage, hand).await {
            let known = best.entry(name).or_insert(cost);
            known.buffers = known.buffers.min(cost.buffers);
            known.rows_scanned = known.rows_scanned.max(cost.rows_scanned);
        }
    }
    best
}

/// One call of every hot function on the worker's session, which keeps its plans; what each cost.
async fn round(stage: &Stage, hand: &mut Hand) -> BTreeMap<&'static str, Cost> {
    let worker = hand.worker;
    let me = format!("{worker}, '{}'", hand.token);
    let mut costs = BTreeMap::new();
    let session = &*hand;
    let mut call = async |name: &'static str, statement: String| {
        let cost = cost(session, &statement).await;
        costs.insert(name, cost);
    };
    let claim = |want: u32, low: bool| {
        format!(
            "select * from tenure.claim({me}, array['default'], array[{want}], array['act'], '{{}}',
             array[-1,0,1,2,3,4], array_fill(0::bigint, array[6]), {low})"
        )
    };
    // On another session, so that it does not count.
    let held = async || -> Vec<(i64, i64)> {
        let jobs =
            "select l.id, n.job_id from tenure.lease l, tenure.jobs_in(l.blocks, l.strip) n where l.worker_id = $1
            order by l.id desc, n.job_id";
        let rows = stage.sql.query(jobs, &[&worker]).await.unwrap_or_else(|e| panic!("{jobs}: {}", text(&e)));
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    };
    let strips = async || -> String {
        let strips =
            "select format('%L::bigint[], %L::varbit[]', array_agg(id order by id), array_agg(strip order by id))
            from tenure.lease where worker_id = $1";
        stage.one(strips, &[&worker]).await
    };

    call("enqueue", "select tenure.enqueue('act', '{}')".into()).await;
    call("enqueue_many 100", "select tenure.enqueue_many('act', array_fill('{}'::json, array[100]))".into()).await;
    call("claim 100", claim(100, false)).await;
    call("complete_many 100", format!("select * from tenure.complete_many({me}, {}, '{{}}', '{{}}')", strips().await))
        .await;
    call("enqueue_many 100", "select tenure.enqueue_many('act', array_fill('{}'::json, array[100]))".into()).await;
    call("claim 7, from the floor", claim(7, true)).await;
    let jobs = held().await;
    let failure = |(lease, job): (i64, i64), verdict: &str| {
        format!(
            r#"select * from tenure.fail({me}, '[{{"lease":{lease},"job":{job},"verdict":"{verdict}","delay_ms":3600000,"cause":"error","message":"m"}}]')"#
        )
    };
    call("fail, to be retried", failure(jobs[0], "retry")).await;
    call("fail, for good", failure(jobs[1], "permanent")).await;
    call("progress", format!("select tenure.progress({}, {}, '1')", jobs[2].1, jobs[2].0)).await;
    call("complete", format!("select tenure.complete({}, {})", jobs[2].1, jobs[2].0)).await;
    call("cancel, running", format!("select tenure.cancel({})", jobs[3].1)).await;
    call("cancel, running, settled", format!("select tenure.cancel_settled({})", jobs[3].1)).await;
    call("fail, cancelled", failure(jobs[3], "cancelled")).await;
    call("release", format!("select * from tenure.release({me}, {})", strips().await)).await;
    call("ended_by", format!("select * from tenure.ended_by(array[{}], array[{}])", jobs[2].0, jobs[2].1)).await;
    call("cancel, waiting", format!("select tenure.cancel({})", jobs[4].1)).await;
    let none = "array['available'], 'none', 'none', null";
    call("cancel_many, none", format!("select * from tenure.cancel_many({none}, 'ready')")).await;
    call("requeue", format!("select tenure.requeue({})", jobs[1].1)).await;
    call("heartbeat", format!("select * from tenure.heartbeat({me})")).await;
    call("sleep", format!("select tenure.sleep({me}, array['default'])")).await;
    call("wake", format!("select tenure.wake({me})")).await;
    call("promote", "select tenure.promote()".into()).await;
    call("rescue", "select tenure.rescue()".into()).await;
    let told = r#"'[{"queue": "default", "kind": "act", "started": 1, "run_buckets": [9], "run_counts": [1]}]'"#;
    let seq = "(extract(epoch from clock_timestamp()) * 1000000)::bigint";
    call("record_stats", format!("select tenure.record_stats({worker}, {seq}, clock_timestamp(), {told})")).await;
    call("fold_stats", "select tenure.fold_stats()".into()).await;
    call("stats", "select * from tenure.stats()".into()).await;
    call("get", format!("select * from tenure.jobs where id = {}", jobs[5].1)).await;
    call("end_of", format!("select * from tenure.end_of({})", jobs[2].1)).await;
    // What was given back and the rest of the cut bundle, so that every round claims the same.
    let (rest, _) = hand.claim(95).await.expect("claimed");
    hand.complete(&rest).await.expect("completed");
    hand.rewind();
    costs
}

/// Runs the statement once, in a transaction of its own: the buffers that it touched, and the rows that it read by
/// sequential scans of tables that grow.
async fn cost(hand: &Hand, statement: &str) -> Cost {
    let scanned = format!(
        "select coalesce(sum(seq_tup_read), 0) from pg_stat_xact_user_tables where schemaname = 'tenure' and relname ~ '{GROWING}'"
    );
    // The session's counts go on until they are passed to the server, so what counts is the difference.
    let all =
        format!("begin; {scanned}; explain (analyze, buffers, timing off, format json) {statement}; {scanned}; commit");
    let answer = hand.sql.simple_query(&all).await.unwrap_or_else(|e| panic!("{statement}: {}", text(&e)));
    let cells: Vec<&str> = answer
        .iter()
        .filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        })
        .collect();
    let (first, rest) = cells.split_first().expect("the count before");
    let (last, plan) = rest.split_last().expect("the count after");
    let count = |cell: &str| cell.parse::<f64>().expect("a number");
    let plan: Value = serde_json::from_str(&plan.concat()).expect("a plan");
    let blocks = |key: &str| plan[0]["Plan"][key].as_f64().unwrap_or_default();
    Cost {
        buffers: blocks("Shared Hit Blocks") + blocks("Shared Read Blocks"),
        rows_scanned: count(last) - count(first),
    }
}
