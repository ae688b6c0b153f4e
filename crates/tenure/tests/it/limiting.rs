//! Limits: never above them, whoever comes and goes; free again at once; turns, order, throttling.

use std::collections::HashMap;

use serde_json::{Value, json};
use tenure::{Enqueue, JobOptions, Limit, Rate, RawJson, Under};
use tenure_scenarios::protocol::{BAD_INPUT, Hand, Leased, Registration, sqlstate};
use tenure_scenarios::{Size, Stage, on_stage};

async fn hand(stage: &Stage) -> Hand {
    let kinds = vec!["act".to_owned(), "other".to_owned()];
    stage.hand(&Registration { kinds, ..Registration::default() }).await
}

async fn set(stage: &Stage, bounds: &str) {
    stage.count(&format!("select tenure.set_limit({bounds})::int::bigint"), &[]).await;
}

async fn enqueue(stage: &Stage, kind: &str, count: i32, limits: &Value) -> Vec<i64> {
    let text = "select id from tenure.enqueue_many_limited($1, array_fill('1'::json, array[$2::integer]), $3::text::json) as id";
    let rows = stage.sql.query(text, &[&kind, &count, &limits.to_string()]).await.expect("enqueued");
    rows.iter().map(|row| row.get(0)).collect()
}

async fn claim(hand: &mut Hand, want: i32) -> Vec<Leased> {
    hand.rewind();
    hand.claim(want).await.expect("claimed").0
}

fn ids(jobs: &[Leased]) -> Vec<i64> {
    jobs.iter().map(|job| job.job).collect()
}

fn under(limit: &str) -> Value {
    json!({ "under": [{ "limit": limit }] })
}

async fn reason(stage: &Stage, job: i64) -> (String, String) {
    let row =
        stage.sql.query_one("select reason, explained from tenure.waits_for($1)", &[&job]).await.expect("a reason");
    (row.get(0), row.get(1))
}

#[tokio::test]
async fn a_place_is_free_again_whatever_became_of_the_job_that_had_it() {
    on_stage(Size::Ci, async |stage| {
        set(stage, "'gpu', p_concurrency => 2").await;
        let jobs = enqueue(stage, "act", 9, &under("gpu")).await;
        let (mut one, mut other) = (hand(stage).await, hand(stage).await);
        let mut running = claim(&mut one, 5).await;
        assert_eq!(running.len(), 2);
        assert!(claim(&mut other, 5).await.is_empty());
        let (why, text) = reason(stage, jobs[8]).await;
        assert_eq!(why, "limit");
        assert!(
            text.contains("the limit gpu: 2 of 2 run") && text.contains("6 jobs of its line are before it"),
            "{text}"
        );

        one.complete(&running[..1]).await.unwrap();
        running.remove(0);
        let next = claim(&mut other, 5).await;
        assert_eq!(next.len(), 1, "completed");
        other.fail(&next[0], "retry", Some(3_600_000)).await.unwrap();
        let next = claim(&mut other, 5).await;
        assert_eq!(next.len(), 1, "failed");
        other.release(&next).await.unwrap();
        let again = claim(&mut one, 5).await;
        assert_eq!((ids(&again), again[0].attempt), (ids(&next), 1), "released, and first of its line");
        // Two run with one worker, which dies.
        stage.expire(one.worker).await;
        assert_eq!(stage.rescue().await, 2, "rescued");
        let again = claim(&mut other, 5).await;
        assert_eq!(again.len(), 2);
        assert!(again.iter().all(|job| job.attempt == 2), "what was rescued comes first: {again:?}");
        other.complete(&again).await.unwrap();
        assert_eq!(stage.count("select running from tenure.limits('gpu')", &[]).await, 0);
    })
    .await;
}

#[tokio::test]
async fn a_job_runs_when_all_its_limits_let_it_and_keys_are_apart() {
    on_stage(Size::Ci, async |stage| {
        set(stage, "'tenant', p_concurrency => 5, p_key_concurrency => 2").await;
        set(stage, "'gpu', p_concurrency => 3").await;
        for key in ["a", "b"] {
            let limits = json!({ "under": [{ "limit": "tenant", "key": key }, { "limit": "gpu" }] });
            enqueue(stage, "act", 6, &limits).await;
        }
        enqueue(stage, "other", 6, &json!({ "under": [{ "limit": "tenant", "key": "c" }] })).await;
        let mut hand = hand(stage).await;
        let jobs = claim(&mut hand, 50).await;
        let of_kind = |kind: &str| jobs.iter().filter(|job| job.kind == kind).count();
        assert_eq!((of_kind("act"), of_kind("other")), (3, 2), "{jobs:?}");
        // A bound that is raised holds at once, and one that is lifted bounds nothing.
        set(stage, "'gpu', p_concurrency => 4").await;
        assert!(claim(&mut hand, 50).await.is_empty(), "the tenants' limit is used up");
        set(stage, "'tenant', p_concurrency => 50, p_key_concurrency => 2").await;
        assert_eq!(claim(&mut hand, 50).await.len(), 1);
        stage.count("select tenure.remove_limit('tenant')::int::bigint", &[]).await;
        assert_eq!(claim(&mut hand, 50).await.len(), 4, "kind other is free, gpu is full");
    })
    .await;
}

#[tokio::test]
async fn no_more_start_than_the_rate_and_its_burst_let_and_costs_count() {
    on_stage(Size::Ci, async |stage| {
        set(stage, "'slow', p_rate => 1, p_period_ms => 60000, p_burst => 5").await;
        enqueue(stage, "act", 20, &under("slow")).await;
        enqueue(stage, "other", 4, &json!({ "under": [{ "limit": "slow", "cost": 2 }] })).await;
        let mut hand = hand(stage).await;
        let jobs = claim(&mut hand, 50).await;
        let cost: usize = jobs.iter().map(|job| if job.kind == "other" { 2 } else { 1 }).sum();
        assert!((4..=5).contains(&cost), "{jobs:?}");
        hand.complete(&jobs).await.unwrap();
        assert!(claim(&mut hand, 50).await.len() + cost <= 5, "an end gives no token back");
        stage.execute("update tenure.limit_bucket set filled_at = filled_at - interval '2 minutes'", &[]).await;
        stage.execute("update tenure.nudge set look_at = clock_timestamp() where bucket > 0", &[]).await;
        assert!((1..=3).contains(&claim(&mut hand, 50).await.len()), "two tokens came, and one may have been left");
    })
    .await;
}

#[tokio::test]
async fn a_throttled_limit_starts_nothing_until_then_and_then_runs_at_half_its_pace() {
    on_stage(Size::Ci, async |stage| {
        set(stage, "'provider', p_rate => 1000").await;
        enqueue(stage, "act", 20, &under("provider")).await;
        let mut hand = hand(stage).await;
        let job = claim(&mut hand, 1).await.remove(0);
        let failure = json!([{ "lease": job.lease, "job": job.job, "verdict": "throttled", "delay_ms": 60_000 }]);
        assert_eq!(hand.fail_with(&failure.to_string()).await.unwrap(), "snoozed");
        assert!(claim(&mut hand, 5).await.is_empty());
        let row = stage
            .sql
            .query_one("select pace, blocked_until > clock_timestamp() + interval '50 s' from tenure.limits()", &[])
            .await;
        let row = row.expect("the limit");
        assert_eq!((row.get::<_, f64>(0), row.get::<_, bool>(1)), (0.5, true));
        assert_eq!(stage.count("select attempt::bigint from tenure.jobs where id = $1", &[&job.job]).await, 0);
        // What fails before the block is over does not slow it down further, and what comes back counts from its end.
        let throttle = "select count(tenure.throttle('provider', null, 50000))";
        stage.count(throttle, &[]).await;
        assert!(claim(&mut hand, 5).await.is_empty());
        assert_eq!(pace_after(stage, "0 s").await, 0.5);
        assert_eq!(pace_after(stage, "60 s").await, 0.5);
        assert_eq!(pace_after(stage, "71 s").await, 0.6);
    })
    .await;
}

/// The pace of the only bucket, so long from now.
async fn pace_after(stage: &Stage, time: &str) -> f64 {
    let pace = "select s.pace from tenure.bucket_states(array(select id from tenure.limit_bucket), clock_timestamp() + $1::text::interval) s";
    stage.one(pace, &[&time]).await
}

#[tokio::test]
async fn a_rate_that_was_throttled_recovers_however_seldom_it_is_used() {
    on_stage(Size::Ci, async |stage| {
        set(stage, "'provider', p_rate => 1, p_period_ms => 60000, p_burst => 1").await;
        enqueue(stage, "act", 2, &under("provider")).await;
        let mut hand = hand(stage).await;
        assert_eq!(claim(&mut hand, 5).await.len(), 1);
        stage.count("select count(tenure.throttle('provider', null, 0))", &[]).await;
        assert!(claim(&mut hand, 5).await.is_empty());
        // Ten seconds each at 0.5 to 0.9 of the rate, and from then on at all of it: 60 of 75 s.
        for (time, tokens) in [("10 s", 5.0 / 60.0), ("35 s", 22.0 / 60.0), ("50 s", 35.0 / 60.0), ("75 s", 1.0)] {
            let now = "select s.tokens from tenure.bucket_states(array(select id from tenure.limit_bucket), (select filled_at from tenure.limit_bucket) + $1::text::interval) s";
            let seen: f64 = stage.one(now, &[&time]).await;
            assert!((seen - tokens).abs() < 0.02, "{seen} after {time}, not {tokens}");
        }
    })
    .await;
}

#[tokio::test]
async fn what_was_throttled_under_a_limit_that_is_removed_can_run() {
    on_stage(Size::Ci, async |stage| {
        set(stage, "'provider', p_rate => 1000").await;
        let mut hand = hand(stage).await;
        stage.count("select count(tenure.throttle('provider', null, 3600000))", &[]).await;
        enqueue(stage, "act", 2, &under("provider")).await;
        assert!(claim(&mut hand, 5).await.is_empty());
        stage.count("select tenure.remove_limit('provider')::int::bigint", &[]).await;
        assert_eq!(claim(&mut hand, 5).await.len(), 2);
    })
    .await;
}

#[tokio::test]
async fn a_throttle_hands_out_no_token_and_forgives_no_debt() {
    on_stage(Size::Ci, async |stage| {
        set(stage, "'provider', p_rate => 1, p_period_ms => 60000, p_burst => 1").await;
        enqueue(stage, "act", 3, &json!({ "under": [{ "limit": "provider", "cost": 3 }] })).await;
        let mut hand = hand(stage).await;
        assert_eq!(claim(&mut hand, 5).await.len(), 1);
        stage.count("select count(tenure.throttle('provider', null, 0))", &[]).await;
        assert!(claim(&mut hand, 5).await.is_empty(), "two tokens are owed");
        let tokens: f64 = stage.one("select tokens from tenure.limit_bucket", &[]).await;
        assert!(tokens < -1.5, "{tokens}");
        // What has been saved is cut to one.
        set(stage, "'provider', p_rate => 1, p_period_ms => 60000, p_burst => 9").await;
        stage.execute("update tenure.limit_bucket set tokens = 8", &[]).await;
        stage.count("select count(tenure.throttle('provider', null, 0))", &[]).await;
        claim(&mut hand, 5).await;
        assert!(stage.one::<f64>("select tokens from tenure.limit_bucket", &[]).await <= 1.0);
    })
    .await;
}

#[tokio::test]
async fn a_job_that_is_throttled_slows_down_the_bucket_that_has_the_rate() {
    on_stage(Size::Ci, async |stage| {
        set(stage, "'whole', p_rate => 100, p_key_concurrency => 5").await;
        set(stage, "'keys', p_concurrency => 100, p_key_rate => 100").await;
        set(stage, "'places', p_key_concurrency => 5").await;
        let limits = ["whole", "keys", "places"].map(|limit| json!({ "limit": limit, "key": "acme" }));
        let job = enqueue(stage, "act", 1, &json!({ "under": limits })).await[0];
        for limit in ["whole", "keys", "places"] {
            stage.count("select tenure.throttle_job($1, $2, 60000)::bigint", &[&job, &limit]).await;
        }
        let told = "select array(select (throttle ->> 'limit') || coalesce(' ' || (throttle ->> 'key'), '') from tenure.nudge where throttle is not null order by id)";
        assert_eq!(stage.one::<Vec<String>>(told, &[]).await, ["whole", "keys acme", "places acme"]);
    })
    .await;
}

#[tokio::test]
async fn keys_have_turns_in_proportion_to_their_shares() {
    on_stage(Size::Ci, async |stage| {
        for (key, share) in [("a", 1), ("b", 2), ("c", 4)] {
            enqueue(stage, "act", 400, &json!({ "fair": key, "share": share })).await;
        }
        let mut hand = hand(stage).await;
        for _ in 0..15 {
            claim(&mut hand, 28).await;
        }
        let rows = stage
            .sql
            .query("select j.limits ->> 'fair', count(*) from tenure.jobs x join tenure.job j using (id) where x.status = 'running' group by 1", &[])
            .await
            .expect("the shares");
        let had: HashMap<String, i64> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        for (key, share) in [("a", 60), ("b", 120), ("c", 240)] {
            assert!((had[key] - share).abs() * 20 <= share, "{key}: {had:?}");
        }
        let late = enqueue(stage, "act", 1, &json!({ "fair": "d" })).await;
        assert_eq!(ids(&claim(&mut hand, 1).await), late, "whoever comes anew does not wait behind the rest");
    })
    .await;
}

#[tokio::test]
async fn an_order_is_kept_across_kinds_and_failures_and_a_dead_head_frees_it() {
    on_stage(Size::Ci, async |stage| {
        let order = json!({ "order": "acct-7" });
        let first = enqueue(stage, "act", 2, &order).await;
        let third = enqueue(stage, "other", 1, &order).await[0];
        let mut hand = hand(stage).await;
        let head = claim(&mut hand, 10).await;
        assert_eq!(ids(&head), [first[0]]);
        assert!(claim(&mut hand, 10).await.is_empty(), "one at a time");
        assert_eq!(
            reason(stage, third).await.1,
            format!("jobs of the order key acct-7 run one at a time: it waits behind job {}, which runs", first[0])
        );
        assert_eq!(hand.fail(&head[0], "retry", Some(3_600_000)).await.unwrap(), "retrying");
        assert!(claim(&mut hand, 10).await.is_empty(), "a head that failed blocks");
        let (why, text) = reason(stage, first[1]).await;
        assert!(why == "order" && text.contains("whose attempt 1 failed"), "{why}: {text}");
        stage.execute("update tenure.limited set due_at = clock_timestamp() where due_at is not null", &[]).await;
        stage.execute("update tenure.nudge set look_at = clock_timestamp() where bucket > 0", &[]).await;
        let head = claim(&mut hand, 10).await;
        assert_eq!((ids(&head), head[0].attempt), (vec![first[0]], 2));
        assert_eq!(hand.fail(&head[0], "permanent", None).await.unwrap(), "dead");
        let next = claim(&mut hand, 10).await;
        assert_eq!(ids(&next), [first[1]]);
        hand.complete(&next).await.unwrap();
        let next = claim(&mut hand, 10).await;
        assert_eq!(ids(&next), [third]);
        hand.complete(&next).await.unwrap();
        assert_eq!(stage.count("select count(*) from tenure.line where gate <> -1", &[]).await, 0);
    })
    .await;
}

/// S07: graphile/worker#254, #328.
#[tokio::test]
async fn a_head_that_is_lost_on_its_last_attempt_is_buried_and_those_behind_it_run_in_order() {
    on_stage(Size::Ci, async |stage| {
        let limits = r#"{"order": "acct-7"}"#;
        let once = "select tenure.enqueue_limited('act', '1', $1::text::json, p_max_attempts => 1)";
        let x: i64 = stage.one(once, &[&limits]).await;
        let behind = enqueue(stage, "act", 2, &json!({ "order": "acct-7" })).await;
        let (mut lost, mut other) = (hand(stage).await, hand(stage).await);
        assert_eq!(ids(&claim(&mut lost, 10).await), [x]);
        stage.expire(lost.worker).await;
        assert_eq!(stage.rescue().await, 1);
        assert_eq!(stage.status(x).await, "dead");
        for job in behind {
            let next = claim(&mut other, 10).await;
            assert_eq!(ids(&next), [job]);
            other.complete(&next).await.unwrap();
        }
        assert_eq!(
            stage.count("select count(*) from tenure.lease_slot t join tenure.lease l on l.id = t.lease_id", &[]).await,
            0
        );
    })
    .await;
}

/// S10: rails/solid_queue#761, hatchet-dev/hatchet#1052.
#[tokio::test]
async fn a_worker_that_comes_back_late_frees_no_place_twice() {
    on_stage(Size::Ci, async |stage| {
        set(stage, "'one', p_key_concurrency => 1").await;
        enqueue(stage, "act", 20, &json!({ "under": [{ "limit": "one", "key": "k" }] })).await;
        let mut late = hand(stage).await;
        for _ in 0..5 {
            let mut other = hand(stage).await;
            let held = claim(&mut late, 5).await;
            assert_eq!(held.len(), 1);
            stage.expire(late.worker).await;
            assert_eq!(stage.rescue().await, 1);
            let taken = claim(&mut other, 5).await;
            assert_eq!(ids(&taken), ids(&held), "the rescued one runs elsewhere");
            // Its worker comes back, and ends it once more.
            assert_eq!(late.complete(&held).await.unwrap().len(), 1, "the late end is refused");
            assert!(claim(&mut hand(stage).await, 5).await.is_empty(), "the place is taken");
            other.complete(&taken).await.unwrap();
            late = other;
        }
        assert_eq!(stage.count("select running from tenure.limits('one', 10) where key = 'k'", &[]).await, 0);
    })
    .await;
}

#[tokio::test]
async fn jobs_under_limits_come_in_by_every_way_and_wait_for_their_time() {
    on_stage(Size::Ci, async |stage| {
        let client = stage.db.client().await;
        let limit = Limit::new().concurrency(100).key_rate(Rate::per_second(1_000_000));
        assert!(client.set_limit("p", limit).await.unwrap());
        assert!(!client.set_limit("p", limit).await.unwrap(), "it was so before");
        let options = || JobOptions::new().under(Under::limit("p").key("a").cost(2));
        let job = || Enqueue::raw("act", RawJson::parse("1").unwrap()).options(options());
        client.enqueue(job()).await.unwrap();
        client.enqueue_many("act", 0..150, options()).await.unwrap();
        let plain = Enqueue::raw("act", RawJson::parse("1").unwrap());
        client.enqueue_copy([job(), plain, job(), job().order("o")]).await.unwrap();
        let later = client.enqueue(job().delay(std::time::Duration::from_secs(3600))).await.unwrap();
        assert_eq!(stage.status(later.get()).await, "scheduled");
        stage.execute("update tenure.later set due_at = clock_timestamp() - interval '1 s'", &[]).await;
        stage.execute("select tenure.promote()", &[]).await;
        assert_eq!(stage.status(later.get()).await, "held");
        assert_eq!(stage.statuses().await, HashMap::from([("held".to_owned(), 155), ("available".to_owned(), 1)]));
        let mut hand = hand(stage).await;
        let mut claimed = 0;
        for _ in 0..3 {
            let jobs = claim(&mut hand, 200).await;
            claimed += jobs.len();
            hand.complete(&jobs).await.unwrap();
        }
        assert_eq!(claimed, 156);
        let shown = client.limits(Some("p"), 10).await.unwrap();
        assert_eq!((shown.len(), shown[0].running, shown[1].key.as_deref()), (2, 0, Some("a")));
        assert!(client.remove_limit("p").await.unwrap());
        let refused = client.enqueue(job()).await.unwrap_err().to_string();
        assert!(refused.contains("there is no limit \"p\""), "{refused}");
    })
    .await;
}

#[tokio::test]
async fn what_waits_in_a_line_can_be_cancelled_and_requeued() {
    on_stage(Size::Ci, async |stage| {
        set(stage, "'none', p_concurrency => 0").await;
        let jobs = enqueue(stage, "act", 5, &under("none")).await;
        let mut hand = hand(stage).await;
        assert!(claim(&mut hand, 5).await.is_empty());
        assert_eq!(stage.one::<String>("select tenure.cancel($1)", &[&jobs[2]]).await, "cancelled");
        let many = "select cancelled from tenure.cancel_many(array['held'], null, null, null, 'limited')";
        assert_eq!(stage.count(many, &[]).await, 4);
        let again: i64 = stage.one("select tenure.requeue($1)", &[&jobs[0]]).await;
        assert_eq!(stage.status(again).await, "held");
        assert!(claim(&mut hand, 5).await.is_empty(), "the new one stands under the same limit");
    })
    .await;
}

#[tokio::test]
async fn retention_takes_no_job_that_waits_in_a_line() {
    on_stage(Size::Ci, async |stage| {
        set(stage, "'none', p_concurrency => 0").await;
        let mut jobs = enqueue(stage, "act", 3, &under("none")).await;
        jobs.extend(enqueue(stage, "act", 3, &json!({ "order": "a" })).await);
        let live: Vec<i64> =
            stage.one("select array(select j from unnest(tenure.live_in(0, 1000000, 100)) as j order by j)", &[]).await;
        assert_eq!(live, jobs);
    })
    .await;
}

#[tokio::test]
async fn what_is_no_limit_is_refused_and_named() {
    on_stage(Size::Ci, async |stage| {
        set(stage, "'keys', p_key_concurrency => 1").await;
        let refused = [
            (json!([]), "no JSON object"),
            (json!({}), "stands under no limit"),
            (json!({ "under": [{ "limit": "nobody" }] }), "there is no limit \"nobody\""),
            (json!({ "under": [{ "limit": "keys" }] }), "bounds keys alone"),
            (json!({ "under": [{ "limit": "keys", "key": "a", "cost": 0 }] }), "the cost 0"),
            (
                json!({ "under": [{ "limit": "keys", "key": "a" }, { "limit": "keys", "key": "b" }] }),
                "the limit \"keys\" twice",
            ),
            (json!({ "fair": "a", "share": -1 }), "the share -1"),
            (json!({ "order": "a", "failing": "explode" }), "\"explode\""),
            (json!({ "colour": "red" }), "\"colour\""),
        ];
        for (limits, expected) in refused {
            let answer = stage
                .sql
                .query("select tenure.enqueue_limited('act', '1', $1::text::json)", &[&limits.to_string()])
                .await;
            let text =
                answer.as_ref().err().and_then(|error| error.as_db_error()).map(|error| error.message().to_owned());
            assert!(text.as_ref().is_some_and(|text| text.contains(expected)), "{limits}: {text:?}");
            assert_eq!(sqlstate(answer), BAD_INPUT);
        }
    })
    .await;
}
