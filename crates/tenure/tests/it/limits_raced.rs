//! Limits while somebody else is at the same rows: an order is not broken, and who holds a row holds up nothing else.

use serde_json::{Value, json};
use tenure::testing::until;
use tenure_scenarios::protocol::{Hand, Leased, Registration};
use tenure_scenarios::{Size, Stage, on_stage};

async fn hand(stage: &Stage) -> Hand {
    stage.hand(&Registration::default()).await
}

/// Jobs of one call each, and so of a row each.
async fn enqueue(stage: &Stage, count: i64, limits: &Value) -> Vec<i64> {
    let one = "select tenure.enqueue_limited('act', '1', $1::text::json) from generate_series(1, $2::bigint)";
    let rows = stage.sql.query(one, &[&limits.to_string(), &count]).await.expect("enqueued");
    rows.iter().map(|row| row.get(0)).collect()
}

async fn claim(hand: &mut Hand, want: i32) -> Vec<i64> {
    hand.rewind();
    ids(&hand.claim(want).await.expect("claimed").0)
}

fn ids(jobs: &[Leased]) -> Vec<i64> {
    jobs.iter().map(|job| job.job).collect()
}

/// Somebody who has cancelled these jobs, and does not end his transaction.
async fn holder(stage: &Stage, jobs: &[i64]) -> tokio_postgres::Client {
    let sql = stage.db.sql().await;
    sql.batch_execute("begin").await.expect("begun");
    for job in jobs {
        sql.query_one("select tenure.cancel($1)", &[job]).await.expect("cancelled");
    }
    sql
}

/// A claim that stands still between lining up and giving out.
const STAND_STILL: &str = "
    alter function tenure.line_up(text, timestamptz) rename to line_up_at_once;
    create function tenure.line_up(p_queue text, p_now timestamptz) returns boolean language plpgsql as $$
    declare
      v_answer constant boolean := tenure.line_up_at_once(p_queue, p_now);
    begin
      perform pg_advisory_xact_lock(77);
      return v_answer;
    end $$";

#[tokio::test]
async fn a_head_that_fails_during_a_claim_is_not_overtaken() {
    on_stage(Size::Ci, async |stage| {
        let order = json!({ "order": "acct-7" });
        let first = enqueue(stage, 1, &order).await[0];
        let (mut one, mut other) = (hand(stage).await, hand(stage).await);
        one.rewind();
        let running = one.claim(5).await.unwrap().0;
        assert_eq!(ids(&running), [first]);
        enqueue(stage, 1, &order).await;
        assert!(claim(&mut other, 5).await.is_empty());
        enqueue(stage, 1, &order).await;
        stage.sql.batch_execute(STAND_STILL).await.unwrap();
        stage.execute("select pg_advisory_lock(77)", &[]).await;
        let claiming = tokio::spawn(async move { (claim(&mut other, 5).await, other) });
        until("the claim stands still", async || {
            stage
                .count("select count(*) from pg_locks where locktype = 'advisory' and objid = 77 and not granted", &[])
                .await
                == 1
        })
        .await;
        assert_eq!(one.fail(&running[0], "retry", Some(0)).await.unwrap(), "retrying");
        stage.execute("select pg_advisory_unlock(77)", &[]).await;
        let (given, mut other) = claiming.await.unwrap();
        assert!(given.is_empty(), "the first has come back, and is before {given:?}");
        assert_eq!(claim(&mut other, 5).await, [first]);
    })
    .await;
}

#[tokio::test]
async fn who_holds_a_job_that_has_just_come_holds_up_no_other() {
    on_stage(Size::Ci, async |stage| {
        stage.count("select tenure.set_limit('gpu', p_concurrency => 100)::int::bigint", &[]).await;
        let jobs = enqueue(stage, 3, &json!({ "under": [{ "limit": "gpu" }] })).await;
        let ordered = [
            enqueue(stage, 1, &json!({ "order": "x" })).await[0],
            enqueue(stage, 1, &json!({ "order": "y" })).await[0],
        ];
        let _holder = holder(stage, &[jobs[0], ordered[0]]).await;
        let mut hand = hand(stage).await;
        let mut given = claim(&mut hand, 1).await;
        given.extend(claim(&mut hand, 1).await);
        given.extend(claim(&mut hand, 1).await);
        given.sort_unstable();
        assert_eq!(given, [jobs[1], jobs[2], ordered[1]]);
        hand.rewind();
        let (none, trailer) = hand.claim(5).await.unwrap();
        assert!(none.is_empty());
        assert!(trailer.look_ms.is_some_and(|ms| ms <= 200), "what he holds is looked at again: {trailer:?}");
    })
    .await;
}

#[tokio::test]
async fn who_holds_a_job_that_waits_in_its_line_holds_up_no_other() {
    on_stage(Size::Ci, async |stage| {
        let mut hand = hand(stage).await;
        // In whichever order their turns come.
        for held in 0..3 {
            let keys = ["a", "b", "c"].map(|key| json!({ "fair": format!("{key} {held}") }));
            let mut firsts = Vec::new();
            for key in &keys {
                firsts.push(enqueue(stage, 2, key).await);
            }
            stage.execute("select tenure.line_up('default', clock_timestamp())", &[]).await;
            let holder = holder(stage, &firsts[held][..1]).await;
            let mut given = Vec::new();
            for _ in 0..5 {
                given.extend(claim(&mut hand, 1).await);
            }
            given.sort_unstable();
            let mut expected: Vec<i64> = firsts.concat();
            expected.retain(|job| *job != firsts[held][0]);
            assert_eq!(given, expected);
            holder.batch_execute("commit").await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn a_line_of_which_somebody_holds_all_is_looked_at_again_after_a_while() {
    on_stage(Size::Ci, async |stage| {
        let mut hand = hand(stage).await;
        let job = enqueue(stage, 1, &json!({ "fair": "key" })).await;
        stage.execute("select tenure.line_up('default', clock_timestamp())", &[]).await;
        let holder = holder(stage, &job).await;
        hand.rewind();
        let (none, trailer) = hand.claim(1).await.unwrap();
        assert!(none.is_empty() && trailer.look_ms.is_some_and(|ms| ms > 16), "{:?}", trailer.look_ms);
        holder.batch_execute("rollback").await.unwrap();
        assert_eq!(claim(&mut hand, 1).await, job);
    })
    .await;
}

#[tokio::test]
async fn an_instant_that_comes_during_a_claim_is_not_forgotten() {
    on_stage(Size::Ci, async |stage| {
        stage.count("select tenure.set_limit('none', p_concurrency => 0)::int::bigint", &[]).await;
        enqueue(stage, 1, &json!({ "under": [{ "limit": "none" }] })).await;
        assert!(claim(&mut hand(stage).await, 5).await.is_empty());
        let sql = stage.db.sql().await;
        // now() is when the claim began; another line waited for the same bucket until a moment later, which has passed when this one is shut.
        let text = "begin;
            update tenure.nudge set look_at = clock_timestamp() where bucket > 0;
            select tenure.shut_lines('default', array_agg(digest), array_agg(gate), array_agg(timestamptz 'infinity'), now()) from tenure.line;
            commit";
        sql.batch_execute(text).await.unwrap();
        assert_eq!(stage.count("select count(*) from tenure.nudge where bucket > 0 and look_at <= clock_timestamp()", &[]).await, 1);
    })
    .await;
}
