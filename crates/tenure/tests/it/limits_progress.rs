//! Under limits too everything comes to its turn: behind what has to wait, behind very many others, behind suspects, with a low priority.

use std::collections::HashMap;

use serde_json::{Value, json};
use tenure_scenarios::protocol::{Hand, Registration};
use tenure_scenarios::{Size, Stage, on_stage};

use crate::old_snapshots::buffers;

async fn hand(stage: &Stage, kinds: &[&str]) -> Hand {
    let kinds = kinds.iter().map(|kind| (*kind).to_owned()).collect();
    stage.hand(&Registration { kinds, lease_ms: 3_600_000, ..Registration::default() }).await
}

async fn set(stage: &Stage, bounds: &str) {
    stage.count(&format!("select tenure.set_limit({bounds})::int::bigint"), &[]).await;
}

/// Jobs of one call each, and so of a row each.
async fn enqueue(stage: &Stage, kind: &str, count: i64, limits: &Value) -> Vec<i64> {
    let one = "select tenure.enqueue_limited($3, '1', $1::text::json) from generate_series(1, $2::bigint)";
    let rows = stage.sql.query(one, &[&limits.to_string(), &count, &kind]).await.expect("enqueued");
    rows.iter().map(|row| row.get(0)).collect()
}

/// The jobs of a claim, and when to come again.
async fn claim(hand: &mut Hand, want: i32) -> (Vec<i64>, Option<i64>) {
    hand.rewind();
    let (jobs, trailer) = hand.claim(want).await.expect("claimed");
    (jobs.iter().map(|job| job.job).collect(), trailer.look_ms)
}

fn under(limit: &str) -> Value {
    json!({ "under": [{ "limit": limit }] })
}

#[tokio::test]
async fn jobs_behind_a_used_up_limit_delay_no_other_limited_job() {
    on_stage(Size::Ci, async |stage| {
        set(stage, "'none', p_concurrency => 0").await;
        set(stage, "'free', p_concurrency => 9").await;
        let mut hand = hand(stage, &["act"]).await;
        enqueue(stage, "act", 500, &under("none")).await;
        let free = enqueue(stage, "act", 1, &under("free")).await;
        assert_eq!(claim(&mut hand, 1).await.0, free);
        // More than one claim moves: the next comes at once.
        enqueue(stage, "act", 2_500, &under("none")).await;
        let free = enqueue(stage, "act", 1, &under("free")).await;
        let (none, look_ms) = claim(&mut hand, 1).await;
        assert!(none.is_empty() && look_ms.is_some_and(|ms| ms <= 20), "{none:?} {look_ms:?}");
        assert_eq!(claim(&mut hand, 1).await.0, free);
    })
    .await;
}

#[tokio::test]
async fn very_many_jobs_of_one_key_keep_no_other_from_its_line() {
    on_stage(Size::Ci, async |stage| {
        let mut hand = hand(stage, &["act"]).await;
        enqueue(stage, "act", 2_500, &json!({ "fair": "large" })).await;
        let small = enqueue(stage, "act", 1, &json!({ "fair": "small" })).await[0];
        let (jobs, _) = claim(&mut hand, 10).await;
        assert!(jobs.contains(&small), "{jobs:?}");
        // Each has a row of its own, whoever enqueues them together.
        let many = "select min(id) from tenure.enqueue_many_limited('act', array_fill('1'::json, array[2500]), '{\"order\": \"large\"}') as id";
        let ordered = stage.count(many, &[]).await;
        let small = enqueue(stage, "act", 1, &json!({ "order": "small" })).await[0];
        let (jobs, _) = claim(&mut hand, 1_000).await;
        assert!(jobs.contains(&ordered) && jobs.contains(&small), "{jobs:?}");
    })
    .await;
}

#[tokio::test]
async fn a_claim_that_left_something_out_says_when_to_come_again() {
    on_stage(Size::Ci, async |stage| {
        set(stage, "'none', p_concurrency => 0").await;
        let mut hand = hand(stage, &["act"]).await;
        enqueue(stage, "act", 1, &under("none")).await;
        assert_eq!(claim(&mut hand, 1).await, (vec![], None));
        let many = "insert into tenure.nudge (queue, look_at, buckets) select '', '-infinity', array[n] from generate_series(1000, 3500) n";
        stage.execute(many, &[]).await;
        let (none, look_ms) = claim(&mut hand, 1).await;
        assert!(none.is_empty() && look_ms.is_some_and(|ms| ms <= 20), "ends that were not looked at: {look_ms:?}");
        assert_eq!(claim(&mut hand, 1).await, (vec![], None));
    })
    .await;
}

#[tokio::test]
async fn the_lines_of_one_key_have_one_share_together() {
    on_stage(Size::Ci, async |stage| {
        let kinds = ["a0", "a1", "a2", "a3", "a4", "b"];
        let mut hand = hand(stage, &kinds).await;
        for kind in kinds {
            enqueue(stage, kind, 100, &json!({ "fair": kind[..1] })).await;
        }
        let mut had = HashMap::new();
        for _ in 0..16 {
            hand.rewind();
            for job in hand.claim(10).await.unwrap().0 {
                *had.entry(job.kind[..1].to_owned()).or_insert(0) += 1;
            }
        }
        assert!((75..=85).contains(&had["b"]), "{had:?}");
    })
    .await;
}

#[tokio::test]
async fn suspects_that_cannot_run_keep_no_line_from_its_turn() {
    on_stage(Size::Ci, async |stage| {
        let mut hand = hand(stage, &["act"]).await;
        for n in 0..10 {
            enqueue(stage, "act", 1, &json!({ "fair": n.to_string() })).await;
        }
        let suspect = "update tenure.limited set lane = -1, flags = flags | 1";
        stage.execute(suspect, &[]).await;
        let other = enqueue(stage, "act", 1, &json!({ "fair": "other" })).await;
        assert_eq!(claim(&mut hand, 1).await.0.len(), 1, "a suspect runs");
        assert_eq!(claim(&mut hand, 1).await.0, other);
        assert!(claim(&mut hand, 1).await.0.is_empty(), "no suspect beside another");
    })
    .await;
}

#[tokio::test]
async fn every_eighth_pass_begins_with_the_last_priority_under_limits_too() {
    on_stage(Size::Ci, async |stage| {
        set(stage, "'free', p_concurrency => 9").await;
        let mut hand = hand(stage, &["act"]).await;
        for limits in [under("free"), json!({ "fair": "a" })] {
            let one = "select tenure.enqueue_limited('act', '1', $1::text::json, p_priority => $2)";
            let mut last = 0;
            for priority in [1, 1, 4, 4, 3] {
                let id: i64 = stage.one(one, &[&limits.to_string(), &priority]).await;
                last = if priority == 4 && last == 0 { id } else { last };
            }
            hand.rewind();
            let turned = hand.claim_text(1).replace("array[-1,0,1,2,3,4]", "array[-1,0,4,3,2,1]");
            let row = stage.sql.query(&turned, &[]).await.unwrap();
            assert_eq!(row[0].get::<_, Option<i64>>(1), Some(last), "{limits}");
            assert_eq!(claim(&mut hand, 9).await.0.len(), 4);
        }
    })
    .await;
}

#[tokio::test]
async fn lines_that_wait_make_no_claim_for_another_kind_dearer() {
    on_stage(Size::Ci, async |stage| {
        set(stage, "'none', p_concurrency => 0").await;
        let (mut hand, other) = (hand(stage, &["act"]).await, hand(stage, &["other"]).await);
        enqueue(stage, "act", 1, &under("none")).await;
        assert!(claim(&mut hand, 1).await.0.is_empty());
        let text = other.claim_text(1);
        let cost = async || {
            let mut least = i64::MAX;
            for _ in 0..4 {
                least = least.min(buffers(&stage.sql, &text).await);
            }
            least
        };
        let before = cost().await;
        let many = "insert into tenure.nudge (queue, kind, look_at, bucket) select 'default', 'act', 'infinity', n from generate_series(1000, 10999) n";
        stage.execute(many, &[]).await;
        let after = cost().await;
        assert!(after <= before + 10, "{before} buffers, and {after} beside 10,000 gates of another kind");
    })
    .await;
}

#[tokio::test]
async fn a_bucket_that_is_missing_is_no_limit_that_is_lifted() {
    on_stage(Size::Ci, async |stage| {
        set(stage, "'one', p_concurrency => 1").await;
        let mut hand = hand(stage, &["act"]).await;
        enqueue(stage, "act", 1, &under("one")).await;
        let jobs = hand.claim(1).await.unwrap().0;
        hand.complete(&jobs).await.unwrap();
        stage.execute("delete from tenure.limit_bucket", &[]).await;
        enqueue(stage, "act", 3, &under("one")).await;
        hand.rewind();
        let refused = hand.claim(3).await.unwrap_err();
        let refused = refused.as_db_error().expect("the database's error").message();
        assert!(refused.contains("lines name the buckets"), "{refused}");
        // Whoever has mended it by removing the line goes on.
        stage.execute("delete from tenure.line", &[]).await;
        assert_eq!(claim(&mut hand, 3).await.0.len(), 1);
    })
    .await;
}

#[tokio::test]
async fn keys_that_nobody_uses_are_forgotten_however_many_are_in_use() {
    on_stage(Size::Ci, async |stage| {
        set(stage, "'keys', p_key_concurrency => 5").await;
        // Throttled of late, and so to be remembered.
        let busy = "insert into tenure.limit_bucket (limit_name, key, filled_at, pace, paced_at)
            select 'keys', 'busy ' || n, '2026-01-01', 0.5, clock_timestamp() + interval '1 day' from generate_series(1, 2500) n";
        stage.execute(busy, &[]).await;
        let unused = "insert into tenure.limit_bucket (limit_name, key, filled_at) select 'keys', 'unused ' || n, clock_timestamp() from generate_series(1, 10) n";
        stage.execute(unused, &[]).await;
        // A part of them each, from one on that chance names.
        for _ in 0..100 {
            stage.execute("select tenure.forget_slots()", &[]).await;
        }
        assert_eq!(stage.count("select count(*) from tenure.limit_bucket", &[]).await, 2_500);
    })
    .await;
}

#[tokio::test]
async fn what_costs_more_than_is_left_of_a_rate_waits_for_the_limit() {
    on_stage(Size::Ci, async |stage| {
        set(stage, "'slow', p_rate => 1, p_period_ms => 60000, p_burst => 5").await;
        let mut hand = hand(stage, &["act"]).await;
        let jobs = enqueue(stage, "act", 3, &json!({ "under": [{ "limit": "slow", "cost": 3 }] })).await;
        assert_eq!(claim(&mut hand, 9).await.0.len(), 1, "two tokens are left");
        for (job, minutes) in [(jobs[1], 1.0), (jobs[2], 4.0)] {
            let waits = "select reason, explained, extract(epoch from substring(explained from 'at about (.*)$')::timestamptz - clock_timestamp())::float8 / 60 from tenure.waits_for($1)";
            let row = stage.sql.query_one(waits, &[&job]).await.expect("a reason");
            assert_eq!(row.get::<_, String>(0), "limit", "{}", row.get::<_, String>(1));
            let expected: f64 = row.get(2);
            assert!((expected - minutes).abs() < 0.5, "{expected} minutes: {}", row.get::<_, String>(1));
        }
    })
    .await;
}

#[tokio::test]
async fn tokens_are_saved_up_for_a_job_that_costs_more_than_there_are() {
    on_stage(Size::Ci, async |stage| {
        set(stage, "'provider', p_rate => 1, p_period_ms => 3600000, p_burst => 20").await;
        let mut hand = hand(stage, &["cheap", "costly"]).await;
        enqueue(stage, "cheap", 17, &under("provider")).await;
        assert_eq!(claim(&mut hand, 100).await.0.len(), 17);
        let costly = json!({ "under": [{ "limit": "provider", "cost": 10 }] });
        let costly = enqueue(stage, "costly", 1, &costly).await[0];
        assert!(claim(&mut hand, 100).await.0.is_empty(), "three tokens are left, and it wants ten");
        // Of the same kind, of another, and of one that comes in between: all stand behind it.
        enqueue(stage, "costly", 5, &under("provider")).await;
        enqueue(stage, "cheap", 4, &under("provider")).await;
        for n in 0..8 {
            if n == 4 {
                enqueue(stage, "cheap", 1, &json!({ "under": [{ "limit": "provider", "key": "new" }] })).await;
            }
            assert!(claim(&mut hand, 100).await.0.is_empty(), "they had tokens that it waits for");
            stage.execute("update tenure.nudge set look_at = '-infinity' where bucket > 0", &[]).await;
        }
        stage.execute("update tenure.limit_bucket set filled_at = filled_at - interval '8 hours'", &[]).await;
        let mut had = claim(&mut hand, 100).await.0;
        assert!(had.contains(&costly), "{had:?}");
        stage.execute("update tenure.limit_bucket set filled_at = filled_at - interval '20 hours'", &[]).await;
        stage.execute("update tenure.nudge set look_at = '-infinity' where bucket > 0", &[]).await;
        had.extend(claim(&mut hand, 100).await.0);
        assert_eq!(had.len(), 11, "and all of them run in the end");
    })
    .await;
}

#[tokio::test]
async fn a_kind_that_is_named_twice_gives_no_job_twice() {
    on_stage(Size::Ci, async |stage| {
        set(stage, "'free', p_concurrency => 9").await;
        let mut hand = hand(stage, &["act", "act"]).await;
        let mut jobs = enqueue(stage, "act", 2, &under("free")).await;
        jobs.extend(enqueue(stage, "act", 2, &json!({ "fair": "key" })).await);
        let (mut claimed, _) = claim(&mut hand, 10).await;
        claimed.sort_unstable();
        assert_eq!(claimed, jobs);
    })
    .await;
}

#[tokio::test]
async fn what_was_copied_keeps_its_order_whatever_its_kinds_and_priorities() {
    on_stage(Size::Ci, async |stage| {
        let rows = "insert into tenure.inbox (kind, payload, priority, limits)
            select (array['a', 'b'])[1 + n % 2], to_json(n), 1 + n % 3, '{\"order\": \"o\"}' from generate_series(1, 9) n";
        stage.sql.batch_execute("begin").await.unwrap();
        stage.execute(rows, &[]).await;
        stage.execute("select tenure.enqueue_inbox()", &[]).await;
        stage.sql.batch_execute("commit").await.unwrap();
        let mut hand = hand(stage, &["a", "b"]).await;
        let mut order = Vec::new();
        for _ in 0..9 {
            hand.rewind();
            let (head, _) = hand.claim(10).await.unwrap();
            order.extend(head.iter().map(|job| job.payload.clone()));
            hand.complete(&head).await.unwrap();
        }
        assert_eq!(order, (1..=9).map(|n| n.to_string()).collect::<Vec<_>>());
    })
    .await;
}
