//! Claim: who gets which jobs, how many, in what order.

use std::collections::HashSet;

use tenure_scenarios::protocol::{BAD_INPUT, Hand, Registration, WORKER_GONE, sqlstate};
use tenure_scenarios::{Act, Size, Stage, on_stage};
use tokio_postgres::Row;

async fn hand(stage: &Stage) -> Hand {
    stage.hand(&Registration::default()).await
}

fn act() -> Act {
    Act::Sleep { ms: 0 }
}

#[tokio::test]
async fn a_claimed_job_is_running_and_nobody_else_gets_it() {
    on_stage(Size::Ci, async |stage| {
        let id = stage.enqueue(&act()).await;
        let (mut one, mut other) = (hand(stage).await, hand(stage).await);
        let (jobs, _) = one.claim(10).await.unwrap();
        assert_eq!(jobs.iter().map(|job| (job.job, job.attempt)).collect::<Vec<_>>(), [(id, 1)]);
        assert_eq!(jobs[0].payload, act().json());
        assert_eq!(stage.status(id).await, "running");
        other.rewind();
        assert!(other.claim(10).await.unwrap().0.is_empty());
    })
    .await;
}

#[tokio::test]
async fn a_claim_takes_no_more_than_it_wants_and_all_of_it_when_it_is_there() {
    on_stage(Size::Ci, async |stage| {
        for count in [1, 7, 93, 100, 250, 1] {
            stage.enqueue_many(&act(), count).await;
        }
        let mut hand = hand(stage).await;
        let mut seen = HashSet::new();
        for want in [1, 7, 17, 100, 1, 200, 100] {
            let (jobs, _) = hand.claim(want).await.unwrap();
            assert_eq!(jobs.len(), want as usize);
            hand.rewind();
            assert!(jobs.iter().all(|job| seen.insert(job.job)), "a job was claimed twice");
        }
        let (rest, _) = hand.claim(1000).await.unwrap();
        assert_eq!(seen.len() + rest.len(), 452);
    })
    .await;
}

#[tokio::test]
async fn a_claim_that_ends_with_a_bundle_leaves_the_next_one_whole() {
    on_stage(Size::Ci, async |stage| {
        let (first, second) = (stage.enqueue_many(&act(), 100).await, stage.enqueue_many(&act(), 100).await);
        let mut hand = hand(stage).await;
        let claimed = async |hand: &mut Hand, want| {
            hand.claim(want).await.unwrap().0.iter().map(|job| job.job).collect::<Vec<_>>()
        };
        assert_eq!(claimed(&mut hand, 100).await, first);
        let whole = "select count(*) from tenure.ready where bit_count(mask) = 100";
        assert_eq!(stage.count(whole, &[]).await, 1);
        assert_eq!(claimed(&mut hand, 100).await, second);
        let mut alone = Vec::new();
        for _ in 0..5 {
            alone.push(stage.enqueue(&act()).await);
        }
        assert_eq!(claimed(&mut hand, 3).await, alone[..3]);
        assert_eq!(claimed(&mut hand, 3).await, alone[3..]);
    })
    .await;
}

#[tokio::test]
async fn of_very_many_queues_those_with_jobs_are_claimed_from() {
    on_stage(Size::Ci, async |stage| {
        let queues: Vec<String> = (0..300).map(|n| format!("q{n}")).collect();
        let mut hand = stage.hand(&Registration { queues: queues.clone(), ..Registration::default() }).await;
        assert!(hand.claim(2).await.unwrap().0.is_empty());
        let (near, far) =
            (stage.enqueue_to(&queues[7], &act(), 3).await, stage.enqueue_to(&queues[299], &act(), 3).await);
        for expected in [vec![near[0], near[1], far[0], far[1]], vec![near[2], far[2]], vec![]] {
            // Which queue comes first is left to chance.
            let mut claimed: Vec<i64> = hand.claim(2).await.unwrap().0.iter().map(|job| job.job).collect();
            claimed.sort_unstable();
            assert_eq!(claimed, expected);
        }
    })
    .await;
}

#[tokio::test]
async fn a_claim_brings_so_many_of_all_queues_together_and_the_next_ones_the_rest() {
    on_stage(Size::Ci, async |stage| {
        let queues: Vec<String> = (0..150).map(|n| format!("q{n}")).collect();
        let mut hand = stage.hand(&Registration { queues: queues.clone(), ..Registration::default() }).await;
        let mut waiting = Vec::new();
        for queue in &queues {
            waiting.extend(stage.enqueue_to(queue, &act(), 3).await);
        }
        let mut claimed = Vec::new();
        loop {
            let jobs = hand.claim_at_most(2, Some(5)).await.unwrap().0;
            // Of the last queues, two at a time.
            let most = if waiting.len() - claimed.len() > 10 { 5..=5 } else { 0..=5 };
            assert!(most.contains(&jobs.len()), "{} after {}", jobs.len(), claimed.len());
            if jobs.is_empty() {
                break;
            }
            claimed.extend(jobs.iter().map(|job| job.job));
        }
        claimed.sort_unstable();
        waiting.sort_unstable();
        assert_eq!(claimed, waiting);
    })
    .await;
}

#[tokio::test]
async fn a_queue_behind_others_that_never_run_empty_has_its_turn() {
    on_stage(Size::Ci, async |stage| {
        let queues: Vec<String> = (0..40).map(|n| format!("q{n}")).collect();
        let mut hand = stage.hand(&Registration { queues: queues.clone(), ..Registration::default() }).await;
        let refill = format!("select count(tenure.enqueue('act', '{}', q)) from unnest($1::text[]) as q", act().json());
        let last = stage.enqueue_to(&queues[39], &act(), 1).await[0];
        // A claim looks into three of forty queues: that it meets none but others 400 times has a chance of one in 10^13.
        for _ in 0..400 {
            stage.count(&refill, &[&&queues[..39]]).await;
            stage.count(&refill, &[&&queues[..39]]).await;
            let jobs = hand.claim_at_most(2, Some(5)).await.unwrap().0;
            if jobs.iter().any(|job| job.job == last) {
                return;
            }
            assert_eq!(jobs.len(), 5, "the others have enough");
        }
        panic!("the last queue was left out 400 times");
    })
    .await;
}

#[tokio::test]
async fn a_cut_bundle_leaves_its_rest_at_the_head_of_the_queue() {
    on_stage(Size::Ci, async |stage| {
        let ids = stage.enqueue_many(&act(), 100).await;
        stage.enqueue_many(&act(), 100).await;
        let mut hand = hand(stage).await;
        let first: Vec<i64> = hand.claim(7).await.unwrap().0.iter().map(|job| job.job).collect();
        let second: Vec<i64> = hand.claim(7).await.unwrap().0.iter().map(|job| job.job).collect();
        assert_eq!([first, second].concat(), ids[..14]);
    })
    .await;
}

#[tokio::test]
async fn jobs_of_other_kinds_and_queues_stay_where_they_are() {
    on_stage(Size::Ci, async |stage| {
        let other_kind: i64 = stage.one("select tenure.enqueue('other', '{}')", &[]).await;
        let other_queue = stage.enqueue_to("other", &act(), 1).await[0];
        let mine = stage.enqueue(&act()).await;
        let (jobs, _) = hand(stage).await.claim(10).await.unwrap();
        assert_eq!(jobs.iter().map(|job| job.job).collect::<Vec<_>>(), [mine]);
        for id in [other_kind, other_queue] {
            assert_eq!(stage.status(id).await, "available");
        }
    })
    .await;
}

#[tokio::test]
async fn urgent_jobs_come_first_and_equal_ones_in_the_order_of_their_enqueue() {
    on_stage(Size::Ci, async |stage| {
        let mut ids = Vec::new();
        for priority in [4, 2, 1, 3, 2] {
            let call = "select tenure.enqueue('act', '{}', p_priority => $1)";
            ids.push(stage.one::<i64>(call, &[&priority]).await);
        }
        let (jobs, _) = hand(stage).await.claim(10).await.unwrap();
        let order: Vec<i64> = jobs.iter().map(|job| job.job).collect();
        let claimed: Vec<i64> = {
            let mut by_lease: Vec<_> = jobs.iter().map(|job| (job.lease, job.slot, job.job)).collect();
            by_lease.sort();
            by_lease.into_iter().map(|(_, _, job)| job).collect()
        };
        assert_eq!(claimed, [ids[2], ids[1], ids[4], ids[3], ids[0]], "rows came as {order:?}");
    })
    .await;
}

#[tokio::test]
async fn a_worker_that_is_unknown_or_over_its_lease_or_shows_another_token_claims_nothing() {
    on_stage(Size::Ci, async |stage| {
        let id = stage.enqueue(&act()).await;
        let mut hand = hand(stage).await;
        let (worker, token) = (hand.worker, hand.token.clone());
        hand.worker = 4711;
        let late = hand.claim(1).await.unwrap_err();
        let hint = late.as_db_error().unwrap().hint().unwrap();
        assert!(hint.starts_with("Call heartbeat"), "the way of a worker in any language: {hint}");
        assert_eq!(sqlstate(hand.claim(1).await), WORKER_GONE);
        hand.worker = worker;
        hand.token = "00000000-0000-0000-0000-000000000000".into();
        assert_eq!(sqlstate(hand.claim(1).await), WORKER_GONE);
        hand.token = token;
        stage.expire(worker).await;
        assert_eq!(sqlstate(hand.claim(1).await), WORKER_GONE);
        assert_eq!(stage.status(id).await, "available");
    })
    .await;
}

#[tokio::test]
async fn a_claim_that_rolls_back_leaves_the_jobs_to_others() {
    on_stage(Size::Ci, async |stage| {
        let ids = stage.enqueue_many(&act(), 20).await;
        let mut one = hand(stage).await;
        one.sql.batch_execute("begin").await.unwrap();
        assert_eq!(one.claim(7).await.unwrap().0.len(), 7);
        let mut other = hand(stage).await;
        // Locked rows are passed over, not waited for.
        assert!(other.claim(20).await.unwrap().0.is_empty());
        one.sql.batch_execute("rollback").await.unwrap();
        other.rewind();
        let (jobs, _) = other.claim(20).await.unwrap();
        assert_eq!(jobs.iter().map(|job| job.job).collect::<HashSet<_>>(), ids.into_iter().collect());
    })
    .await;
}

#[tokio::test]
async fn the_trailer_says_when_the_next_job_is_due() {
    on_stage(Size::Ci, async |stage| {
        let mut hand = hand(stage).await;
        assert_eq!(hand.claim(1).await.unwrap().1.next_due_ms, None);
        let _: i64 = stage.one("select tenure.enqueue('act', '{}', p_delay_ms => 60000)", &[]).await;
        let due = hand.claim(1).await.unwrap().1.next_due_ms.expect("a due time");
        assert!((50_000.0..=60_000.0).contains(&due), "{due} ms");
    })
    .await;
}

/// A claim by a client that is not ours: what it passes as arrays.
async fn claim_raw(stage: &Stage, arrays: &str, low: bool) -> Result<Vec<Row>, tokio_postgres::Error> {
    let hand = stage.hand(&Registration::default()).await;
    let claim = format!(
        "select job_id, payload::text from tenure.claim($1, $2::text::uuid, {arrays}, array[-1, 0, 1, 2, 3, 4],
         array[0, 0, 0, 0, 0, 0], {low})"
    );
    hand.sql.query(&claim, &[&hand.worker, &hand.token]).await
}

#[tokio::test]
async fn nulls_among_the_arguments_of_a_claim_lose_no_job() {
    on_stage(Size::Ci, async |stage| {
        for solo in ["null", "array['other', null]"] {
            stage.enqueue_many(&Act::Sleep { ms: 0 }, 10).await;
            let arrays = format!("array['default'], array[100], array['act'], {solo}");
            assert_eq!(claim_raw(stage, &arrays, false).await.unwrap().len(), 10 + 1, "{solo}");
            stage.db.check_invariants().await;
        }
        stage.enqueue_many(&Act::Sleep { ms: 0 }, 10).await;
        let none = "array['default'], array[null]::integer[], array['act'], '{}'";
        assert_eq!(claim_raw(stage, none, false).await.unwrap().len(), 1, "no number is none");
    })
    .await;
}

#[tokio::test]
async fn a_claim_whose_arrays_do_not_fit_each_other_is_refused() {
    on_stage(Size::Ci, async |stage| {
        for arrays in [
            "array['default'], '{}', array['act'], '{}'",
            "array['default', 'other'], array[1, 1], array['act'], '{}'",
            "array['default'], array[1], null, '{}'",
        ] {
            assert_eq!(sqlstate(claim_raw(stage, arrays, false).await), BAD_INPUT, "{arrays}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_row_that_somebody_else_holds_is_reported_by_a_low_pass() {
    on_stage(Size::Ci, async |stage| {
        let held = stage.enqueue(&Act::Sleep { ms: 0 }).await;
        let taken = stage.enqueue(&Act::Sleep { ms: 0 }).await;
        let mut other = stage.db.sql().await;
        let tx = other.transaction().await.unwrap();
        tx.query("select from tenure.ready where block = $1 for update", &[&(held >> 7)]).await.unwrap();
        let rows = claim_raw(stage, "array['default'], array[100], array['act'], '{}'", true).await.unwrap();
        assert_eq!(rows[0].get::<_, i64>(0), taken);
        let trailer: serde_json::Value = serde_json::from_str(rows[1].get(1)).unwrap();
        assert_eq!(trailer["first"][3], held >> 7, "a floor must not pass it: {trailer}");
    })
    .await;
}

#[tokio::test]
async fn what_a_worker_cannot_run_is_passed_once_and_not_at_every_look() {
    on_stage(Size::Ci, async |stage| {
        let other: i64 =
            stage.one("select max(j) from tenure.enqueue_many('other', array['1', '2']::json[]) j", &[]).await;
        let mut hand = hand(stage).await;
        let (jobs, trailer) = hand.claim(5).await.unwrap();
        assert!(jobs.is_empty());
        assert_eq!(trailer.after[3], other >> 7, "the next look starts behind it");
        let id = stage.enqueue(&act()).await;
        assert_eq!(hand.claim(5).await.unwrap().0[0].job, id);
        // Who starts from the floor is told a transaction id, behind which the floor can follow.
        let rows = claim_raw(stage, "array['default'], array[5], array['act'], '{}'", true).await.unwrap();
        let trailer: serde_json::Value = serde_json::from_str(rows[0].get(1)).unwrap();
        assert!(trailer["xid"].is_string() && trailer["first"][3].is_null(), "{trailer}");
        let mut able = stage.hand(&Registration { kinds: vec!["other".into()], ..Registration::default() }).await;
        assert_eq!(able.claim(5).await.unwrap().0.len(), 2, "others can run it");
    })
    .await;
}

#[tokio::test]
async fn a_strip_names_its_jobs_whether_they_stand_side_by_side_or_apart() {
    on_stage(Size::Ci, async |stage| {
        // Of each length and place, whole and with one of its bits out, two pieces in a strip: as one bit after the other says.
        let wrong = "
            with masks as materialized (
              select (set_bit(((~ 0::bit(128)) << (128 - n)) >> (f % (129 - n)), (f * 7) % 128, f % 2)) as mask
              from generate_series(1, 128, 9) as n cross join generate_series(0, 127, 11) as f),
            strips as (select m.mask, m.mask || reverse(m.mask::text)::bit(128) as strip from masks m),
            named as (
              select s.strip, array(select x.job_id from tenure.jobs_in(array[5, 3]::bigint[], s.strip) x order by 1) as jobs,
                     array(select x.slot from tenure.jobs_in(array[5, 3]::bigint[], s.strip) x order by 1) as slots,
                     array(select (case when g < 128 then 5 else 3 end) * 128 + g % 128 from generate_series(0, 255) g where get_bit(s.strip, g) = 1 order by 1)::bigint[] as expected,
                     array(select g from generate_series(0, 255) g where get_bit(s.strip, g) = 1 order by 1) as bits,
                     (select bool_and(exists (select from tenure.pieces_of(array[5, 3]::bigint[], s.strip) p where j.job_id between p.first_job and p.last_job))
                      from tenure.jobs_in(array[5, 3]::bigint[], s.strip) j) as are_in_pieces
              from strips s)
            select count(*) from named n where n.jobs <> n.expected or n.slots <> n.bits or not n.are_in_pieces";
        assert_eq!(stage.count(wrong, &[]).await, 0);
        let tried = "select count(*) from tenure.jobs_in(array[5]::bigint[], 0::bit(128)::varbit)";
        assert_eq!(stage.count(tried, &[]).await, 0, "of none");
    })
    .await;
}

#[tokio::test]
async fn a_cut_takes_the_first_jobs_of_a_bundle_wherever_they_stand() {
    on_stage(Size::Ci, async |stage| {
        // Against a plain count of bits, over random masks of every density.
        let wrong = "select count(*) from generate_series(1, 400) n
            cross join lateral (select string_agg(case when random() < (n % 10 + 1) / 10.0 + k * 0 then '1' else '0' end, '')::bit(128) as mask
                                from generate_series(1, 128) k) m
            cross join lateral generate_series(1, bit_count(m.mask)::int) as c(count)
            where tenure.mask_first(m.mask, c.count) <>
                (select bit_or(set_bit(0::bit(128), i, 1)) from (select i from generate_series(0, 127) i where get_bit(m.mask, i) = 1 order by i limit c.count) q)";
        assert_eq!(stage.count(wrong, &[]).await, 0);
    })
    .await;
}
