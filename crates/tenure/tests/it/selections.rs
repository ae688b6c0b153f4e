//! Whole selections: cancel, dead letters by cause, pauses of queues and kinds, drains.

use std::time::Duration;

use tenure::lifecycle::State;
use tenure::testing::{until, until_within};
use tenure::{
    CancelFilter, Cancelled, Client, Context, DeadFilter, ErrorCode, Fail, JobId, JobOptions, KindOptions, RawJson,
    RequeuePace, Worker,
};
use tenure_scenarios::protocol::{Hand, Registration, sqlstate};
use tenure_scenarios::scenario::cancel::cancels_at_random;
use tenure_scenarios::scenario::pause::{paused_kind_is_passed_over_once, pauses_hold_everywhere, requeue_spread};
use tenure_scenarios::{Act, Size, Stage, assert_held, on_stage};

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_cancelled_at_any_moment_ends_once_and_as_it_was_answered() {
    on_stage(Size::from_env(), async |stage| assert_held(&cancels_at_random(stage).await)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_starts_anywhere_after_a_pause() {
    on_stage(Size::from_env(), async |stage| assert_held(&pauses_hold_everywhere(stage).await)).await;
}

#[tokio::test]
async fn dead_letters_come_back_evenly_over_the_time_that_is_given() {
    on_stage(Size::from_env(), async |stage| assert_held(&requeue_spread(stage).await)).await;
}

#[tokio::test]
async fn claims_pass_over_a_paused_kind_once_whatever_the_number_of_its_jobs() {
    on_stage(Size::from_env(), async |stage| assert_held(&paused_kind_is_passed_over_once(stage).await)).await;
}

async fn hand(stage: &Stage, kinds: &[&str]) -> Hand {
    let kinds = kinds.iter().map(|kind| (*kind).to_owned()).collect();
    stage.hand(&Registration { kinds, queues: vec!["default".into(), "mail".into()], ..Registration::default() }).await
}

async fn enqueue(client: &Client, queue: &str, kind: &str, count: usize, delay: Duration) -> Vec<JobId> {
    client.enqueue_many(kind, 0..count, JobOptions::new().queue(queue).delay(delay)).await.unwrap()
}

const NOW: Duration = Duration::ZERO;
const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn a_selection_is_counted_and_cancelled_and_nothing_beside_it_is_touched() {
    on_stage(Size::Ci, async |stage| {
        let client = stage.db.client().await;
        enqueue(&client, "mail", "act", 250, NOW).await;
        enqueue(&client, "mail", "act", 30, HOUR).await;
        enqueue(&client, "mail", "other", 20, NOW).await;
        enqueue(&client, "default", "act", 10, NOW).await;
        let mut hand = stage.hand(&Registration { queues: vec!["mail".into()], ..Registration::default() }).await;
        assert_eq!(hand.claim(7).await.unwrap().0.len(), 7);

        let filter = CancelFilter::new().queue("mail").kind("act");
        let counts = client.count_unfinished(&filter).await.unwrap();
        assert_eq!(counts, [(State::Available, 243), (State::Running, 7), (State::Scheduled, 30)]);
        let waiting = filter.clone().status(State::Available).status(State::Scheduled);
        assert_eq!(client.count_unfinished(&waiting).await.unwrap().len(), 2);
        let before: std::time::SystemTime = stage.one("select min(created_at) from tenure.job", &[]).await;
        assert_eq!(client.count_unfinished(&filter.clone().created_before(before)).await.unwrap(), []);

        let mut told = Vec::new();
        let sum = client.cancel_many(&filter, |sum| told.push(sum)).await.unwrap();
        assert_eq!((sum.cancelled, sum.requested), (273, 7));
        assert_eq!(told.last(), Some(&sum));
        assert_eq!(hand.heartbeat().await.unwrap().unwrap().1.len(), 7, "their worker hears of it");
        let statuses = stage.statuses().await;
        assert_eq!((statuses["cancelled"], statuses["running"], statuses["available"]), (273, 7, 30));
        let again = client.cancel_many(&filter, |_| {}).await.unwrap();
        assert_eq!((again.cancelled, again.requested), (0, 0));
    })
    .await;
}

#[tokio::test]
async fn a_selection_is_cancelled_by_age_whatever_shares_a_bundle() {
    on_stage(Size::Ci, async |stage| {
        let client = stage.db.client().await;
        let ids = enqueue(&client, "default", "act", 100, NOW).await;
        let old = "update tenure.job set created_at = created_at - interval '3 hours' where id = any($1)";
        let part: Vec<i64> = ids.iter().step_by(3).map(|id| i64::from(*id)).collect();
        stage.execute(old, &[&part]).await;
        let filter = CancelFilter::new().older_than(2 * HOUR);
        assert_eq!(client.count_unfinished(&filter).await.unwrap(), [(State::Available, 34)]);
        assert_eq!(client.cancel_many(&filter, |_| {}).await.unwrap().cancelled, 34);
        assert_eq!(stage.statuses().await["available"], 66);
    })
    .await;
}

#[tokio::test]
async fn cancelled_jobs_of_a_selection_that_somebody_holds_are_met_at_the_next_call() {
    on_stage(Size::Ci, async |stage| {
        let client = stage.db.client().await;
        enqueue(&client, "default", "act", 300, NOW).await;
        let mut other = stage.db.sql().await;
        let tx = other.transaction().await.unwrap();
        tx.execute("select from tenure.ready order by id limit 1 for update", &[]).await.unwrap();
        let first = client.cancel_many(&CancelFilter::all(), |_| {}).await.unwrap();
        assert_eq!((first.cancelled, first.busy), (200, 100));
        tx.rollback().await.unwrap();
        let second = client.cancel_many(&CancelFilter::all(), |_| {}).await.unwrap();
        assert_eq!((second.cancelled, second.busy), (100, 0));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_of_a_selection_meets_what_somebody_held_for_a_moment() {
    on_stage(Size::Ci, async |stage| {
        let client = stage.db.client().await;
        enqueue(&client, "default", "act", 100, NOW).await;
        let mut other = stage.db.sql().await;
        let tx = other.transaction().await.unwrap();
        tx.execute("select from tenure.ready for update", &[]).await.unwrap();
        let cancel = tokio::spawn(async move { client.cancel_many(&CancelFilter::all(), |_| {}).await });
        // The steps of one look follow each other at once.
        let asked = "select coalesce(max((extract(epoch from query_start) * 1000)::bigint), 0) from pg_stat_activity
            where datname = current_database() and query ~ '^select .* from tenure.cancel_many'";
        let mut first = 0;
        until("it looks again", async || {
            let asked = stage.count(asked, &[]).await;
            first = if first == 0 { asked } else { first };
            asked > first + 90
        })
        .await;
        tx.rollback().await.unwrap();
        let sum = cancel.await.unwrap().unwrap();
        assert_eq!((sum.cancelled, sum.busy), (100, 0));
    })
    .await;
}

#[tokio::test]
async fn a_selection_that_meets_nothing_among_very_many_jobs_is_gone_through_in_short_steps() {
    on_stage(Size::Ci, async |stage| {
        const ROWS: i64 = 150_000;
        let kept = "insert into tenure.later (block, id, due_at, reason, queue, priority, kind, attempt, flags, mask)
            select n, n, clock_timestamp() + interval '1 hour', 's', 'default', 2, 'other', 0, 0, tenure.mask_fresh(1) from generate_series(1, $1::bigint) n";
        stage.execute(kept, &[&ROWS]).await;
        let step = "select (b.after)[1]::bigint, b.place, b.cancelled from tenure.cancel_many(array['scheduled'], null, 'act', null) b";
        let row = stage.sql.query_one(step, &[]).await.unwrap();
        let (after, place, cancelled): (Option<i64>, String, i64) = (row.get(0), row.get(1), row.get(2));
        assert!(after.is_some_and(|after| after < ROWS), "the step ended at {after:?} of {ROWS}");
        assert_eq!((place.as_str(), cancelled), ("later", 0));
        stage.execute("delete from tenure.later", &[]).await;
    })
    .await;
}

#[tokio::test]
async fn whoever_asks_for_the_second_look_alone_is_not_told_of_a_request_that_nobody_made() {
    on_stage(Size::Ci, async |stage| {
        let id = stage.enqueue(&Act::Sleep { ms: 0 }).await;
        let mut hand = hand(stage, &["act"]).await;
        hand.claim(1).await.unwrap();
        let settled = "select tenure.cancel_settled($1)";
        let mut other = stage.db.sql().await;
        let tx = other.transaction().await.unwrap();
        tx.execute("select tenure.cancel($1)", &[&id]).await.unwrap();
        assert_eq!(sqlstate(stage.sql.query_one(settled, &[&id]).await), "TN005");
        tx.rollback().await.unwrap();
        assert_eq!(stage.count("select count(*) from tenure.cancel_request", &[]).await, 0);
        // The same for the lease: no request is there, and so nobody is told of one.
        let tx = other.transaction().await.unwrap();
        tx.execute("select from tenure.lease for update", &[]).await.unwrap();
        assert_eq!(sqlstate(stage.sql.query_one(settled, &[&id]).await), "TN005");
        let ours = "insert into tenure.cancel_request (job_id, worker_id) values ($1, $2)";
        stage.execute(ours, &[&id, &hand.worker]).await;
        assert_eq!(stage.one::<String>(settled, &[&id]).await, "requested");
        tx.rollback().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_job_whose_attempt_failed_while_it_was_cancelled_does_not_run_again() {
    on_stage(Size::Ci, async |stage| {
        let client = stage.db.client().await;
        let id = JobId::from(stage.enqueue(&Act::Sleep { ms: 0 }).await);
        let mut hand = hand(stage, &["act"]).await;
        let (jobs, _) = hand.claim(1).await.unwrap();
        let mut other = stage.db.sql().await;
        let tx = other.transaction().await.unwrap();
        tx.execute("select tenure.cancel($1)", &[&i64::from(id)]).await.unwrap();
        // Nobody sees the request yet.
        assert_eq!(hand.fail(&jobs[0], "retry", Some(0)).await.unwrap(), "retrying");
        tx.commit().await.unwrap();
        client.cancel(id).await.unwrap();
        assert_eq!(stage.status(id.into()).await, "cancelled");
        stage.execute("update tenure.duty set next_at = '-infinity'", &[]).await;
        stage.one::<String>("select tenure.tick(0)::text", &[]).await;
    })
    .await;
}

/// Sessions of this database that wait for somebody's lock.
const WAITING: &str =
    "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_waits_for_the_failure_that_cannot_see_it_and_ends_the_job() {
    on_stage(Size::Ci, async |stage| {
        let client = stage.db.client().await;
        let id = JobId::from(stage.enqueue(&Act::Sleep { ms: 0 }).await);
        let mut hand = hand(stage, &["act"]).await;
        let (jobs, _) = hand.claim(1).await.unwrap();
        hand.sql.batch_execute("begin").await.unwrap();
        assert_eq!(hand.fail(&jobs[0], "retry", Some(0)).await.unwrap(), "retrying");
        let cancel = tokio::spawn({
            let client = client.clone();
            async move { client.cancel(id).await }
        });
        until("the cancel waits", async || stage.count(WAITING, &[]).await == 1).await;
        hand.sql.batch_execute("commit").await.unwrap();
        assert_eq!(cancel.await.unwrap().unwrap(), Cancelled::Now);
        assert_eq!(stage.status(id.into()).await, "cancelled");
        stage.execute("update tenure.duty set next_at = '-infinity'", &[]).await;
        stage.one::<String>("select tenure.tick(0)::text", &[]).await;
        assert_eq!(stage.count("select count(*) from tenure.cancel_request", &[]).await, 0);
    })
    .await;
}

#[tokio::test]
async fn a_request_to_cancel_counts_also_while_somebody_holds_it() {
    on_stage(Size::Ci, async |stage| {
        let id = stage.enqueue(&Act::Sleep { ms: 0 }).await;
        let mut hand = hand(stage, &["act"]).await;
        let (jobs, _) = hand.claim(1).await.unwrap();
        assert_eq!(stage.one::<String>("select tenure.cancel($1)", &[&id]).await, "requested");
        let mut other = stage.db.sql().await;
        let holder = other.transaction().await.unwrap();
        holder.execute("select from tenure.cancel_request for update", &[]).await.unwrap();
        assert_eq!(hand.fail(&jobs[0], "retry", Some(0)).await.unwrap(), "cancelled");
        holder.rollback().await.unwrap();
        stage.execute("update tenure.duty set next_at = '-infinity'", &[]).await;
        stage.one::<String>("select tenure.tick(0)::text", &[]).await;
        assert_eq!(stage.count("select count(*) from tenure.cancel_request", &[]).await, 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_comes_back_when_no_claim_is_under_way_that_does_not_know_of_it() {
    on_stage(Size::Ci, async |stage| {
        let client = stage.db.client().await;
        stage.enqueue_many(&Act::Sleep { ms: 0 }, 10).await;
        let mut hand = hand(stage, &["act"]).await;
        hand.sql.batch_execute("begin").await.unwrap();
        let early = hand.claim(3).await.unwrap().0;
        let pause = tokio::spawn({
            let client = client.clone();
            async move { client.pause("default", None, None).await }
        });
        let paused = "select count(*) from tenure.queue where paused_at is not null";
        until("the pause is committed", async || stage.count(paused, &[]).await == 1).await;
        let settling = "select count(*) from pg_stat_activity where datname = current_database() and query ~ '^select tenure.settle_pause'";
        until("it waits for the claim", async || stage.count(settling, &[]).await == 1).await;
        assert!(!pause.is_finished());
        hand.sql.batch_execute("commit").await.unwrap();
        assert!(pause.await.unwrap().unwrap());
        assert_eq!(early.len(), 3);
        hand.rewind();
        assert_eq!(hand.claim(3).await.unwrap().0.len(), 0);
    })
    .await;
}

#[tokio::test]
async fn a_pause_says_when_a_claim_that_began_before_does_not_come_to_its_end() {
    on_stage(Size::Ci, async |stage| {
        let client = stage.db.client().await;
        stage.enqueue_many(&Act::Sleep { ms: 0 }, 3).await;
        // A dump reads everything, for hours, and is no claim.
        let dump = stage.db.sql().await;
        let read = "begin isolation level repeatable read; lock table tenure.kind_pause, tenure.dead_letter, tenure.ready in access share mode";
        dump.batch_execute(read).await.unwrap();
        assert!(client.pause("mail", None, None).await.unwrap());
        assert!(client.pause_kind("act", Some("mail"), None, None).await.unwrap());
        // Neither does an operator who has not committed yet, or a table that is just analyzed.
        let operator = stage.db.sql().await;
        let open = "begin; select tenure.pause_kind('other'); lock table tenure.kind_pause in share update exclusive mode";
        operator.batch_execute(open).await.unwrap();
        assert!(client.pause("reports", None, None).await.unwrap());
        operator.batch_execute("rollback").await.unwrap();
        let mut hand = hand(stage, &["act"]).await;
        hand.sql.batch_execute("begin").await.unwrap();
        assert_eq!(hand.claim(3).await.unwrap().0.len(), 3);
        let late = client.pause("default", None, None).await.unwrap_err();
        assert_eq!(late.code(), ErrorCode::Timeout, "{late}");
        let pid: i32 = hand.sql.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0);
        assert!(late.to_string().starts_with("paused, but"), "{late}");
        assert!(late.to_string().contains(&format!("process {pid} (user ")), "{late}");
        hand.sql.batch_execute("commit").await.unwrap();
        assert!(!client.pause("default", None, None).await.unwrap(), "it was paused");
    })
    .await;
}

#[tokio::test]
async fn a_pause_and_a_cancel_answer_within_a_short_statement_timeout() {
    on_stage(Size::Ci, async |stage| {
        let ids = stage.enqueue_many(&Act::Sleep { ms: 0 }, 2).await;
        let mut hand = hand(stage, &["act"]).await;
        hand.solo_kinds = vec!["act".into()];
        assert_eq!(hand.claim(1).await.unwrap().0.len(), 1);
        let running = ids[0];
        let brief = stage.db.sql().await;
        brief.batch_execute("set statement_timeout = '2s'").await.unwrap();
        brief.query("select tenure.cancel($1)", &[&running]).await.unwrap();
        // The handler's open transaction holds its lease, and a claim does not come to its end.
        hand.sql.batch_execute("begin; select from tenure.lease for update").await.unwrap();
        assert_eq!(hand.claim(1).await.unwrap().0.len(), 1);
        let settled = brief.query_one("select tenure.cancel_settled($1)", &[&running]).await.unwrap();
        assert_eq!(settled.get::<_, &str>(0), "requested");
        brief.query("select tenure.pause('default')", &[]).await.unwrap();
        let holders = brief.query_one("select tenure.settle_pause()", &[]).await.unwrap();
        assert!(holders.get::<_, &str>(0).starts_with("process "), "{holders:?}");
        hand.sql.batch_execute("commit").await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_selection_is_cancelled_past_a_job_that_somebody_is_just_cancelling() {
    on_stage(Size::Ci, async |stage| {
        let client = stage.db.client().await;
        stage.enqueue_many(&Act::Sleep { ms: 0 }, 3).await;
        let mut hand = hand(stage, &["act"]).await;
        hand.solo_kinds = vec!["act".into()];
        let (jobs, _) = hand.claim(3).await.unwrap();
        let mut other = stage.db.sql().await;
        let tx = other.transaction().await.unwrap();
        tx.execute("select tenure.cancel($1)", &[&jobs[1].job]).await.unwrap();
        let first = client.cancel_many(&CancelFilter::all(), |_| {}).await.unwrap();
        assert_eq!((first.requested, first.busy), (2, 1));
        tx.rollback().await.unwrap();
        let second = client.cancel_many(&CancelFilter::all(), |_| {}).await.unwrap();
        assert_eq!((second.requested, second.busy), (1, 0));
        assert_eq!(
            hand.heartbeat().await.unwrap().expect("alive").1,
            jobs.iter().map(|job| job.job).collect::<Vec<_>>()
        );
    })
    .await;
}

#[tokio::test]
async fn of_a_lease_with_many_jobs_only_the_one_that_somebody_is_just_cancelling_is_left() {
    on_stage(Size::Ci, async |stage| {
        let client = stage.db.client().await;
        stage.enqueue_many(&Act::Sleep { ms: 0 }, 300).await;
        let mut hand = hand(stage, &["act"]).await;
        let (jobs, _) = hand.claim(300).await.unwrap();
        assert_eq!(stage.count("select count(*) from tenure.lease", &[]).await, 1);
        let mut other = stage.db.sql().await;
        let tx = other.transaction().await.unwrap();
        tx.execute("select tenure.cancel($1)", &[&jobs[123].job]).await.unwrap();
        let first = client.cancel_many(&CancelFilter::all(), |_| {}).await.unwrap();
        assert_eq!((first.requested, first.busy), (299, 1));
        tx.commit().await.unwrap();
        let second = client.cancel_many(&CancelFilter::all(), |_| {}).await.unwrap();
        assert_eq!((second.requested, second.busy), (0, 0));
    })
    .await;
}

async fn bury(stage: &Stage, messages: &[&str]) -> Vec<JobId> {
    let mut hand = hand(stage, &["act"]).await;
    let mut ids = Vec::new();
    for message in messages {
        let id = stage.enqueue(&Act::Sleep { ms: 0 }).await;
        let (jobs, _) = hand.claim(1).await.unwrap();
        assert_eq!(jobs[0].job, id);
        let failure = serde_json::json!([{ "lease": jobs[0].lease, "job": id, "verdict": "permanent", "cause": "error", "message": message }]);
        assert_eq!(hand.fail_with(&failure.to_string()).await.unwrap(), "dead");
        ids.push(JobId::from(id));
    }
    ids
}

#[tokio::test]
async fn dead_letters_are_grouped_by_what_they_died_of() {
    on_stage(Size::Ci, async |stage| {
        let client = stage.db.client().await;
        let ids = bury(
            stage,
            &[
                "no answer from 10.0.0.1:5432 after 1.5 s",
                "no answer from 10.0.0.2:5432 after 30 s",
                "order \"a 1\" of 6fa459ea-ee8a-3ca4-894e-db77e160355e is unknown",
                "order \"b\" of 00000000-ee8a-3ca4-894e-db77e160355e is unknown",
                "order 'c' of 11111111-ee8a-3ca4-894e-db77e160355e is unknown",
                "can't parse 0xdeadbeef, won't retry",
            ],
        )
        .await;
        let groups = client.dead_groups(&DeadFilter::new(), None).await.unwrap();
        let seen: Vec<_> = groups.iter().map(|group| (group.count, group.message.as_str())).collect();
        assert_eq!(seen[0], (3, "order <text> of <id> is unknown"));
        assert_eq!(seen[1], (2, "no answer from <n> after <n> s"));
        assert_eq!(seen[2], (1, "can't parse <hex>, won't retry"));
        assert_eq!((groups[1].example, groups[1].kinds.as_slice()), (ids[1], ["act".to_owned()].as_slice()));
        assert!(groups[1].first_died_at < groups[1].last_died_at);

        let orders = DeadFilter::new().fingerprint(&groups[0].fingerprint);
        assert_eq!(client.count_dead(&orders).await.unwrap(), 3);
        let since = client.dead_letter(ids[4]).await.unwrap().unwrap().died_at;
        assert_eq!(client.count_dead(&orders.clone().since(since)).await.unwrap(), 1);
        assert_eq!(client.discard_dead(&orders.clone().since(since), |_| {}).await.unwrap(), 1);
        assert_eq!(client.requeue_dead(&orders, RequeuePace::AtOnce, |_| {}).await.unwrap(), 2);
        assert_eq!(client.count_dead(&DeadFilter::new()).await.unwrap(), 3);
    })
    .await;
}

#[tokio::test]
async fn the_line_of_a_job_that_dies_again_and_again_is_kept() {
    on_stage(Size::Ci, async |stage| {
        let client = stage.db.client().await;
        let first = bury(stage, &["one"]).await[0];
        let second = client.requeue(first, None).await.unwrap();
        let mut hand = hand(stage, &["act"]).await;
        let (jobs, _) = hand.claim(1).await.unwrap();
        hand.fail(&jobs[0], "permanent", None).await.unwrap();
        let third = client.requeue(second, Some(RawJson::of(&"edited").unwrap())).await.unwrap();
        for id in [first, second, third] {
            let line = client.line_of(id).await.unwrap();
            let seen: Vec<_> = line.iter().map(|job| (job.id, job.status, job.cause.is_some())).collect();
            let (dead, waits) = (Some(State::Dead), Some(State::Available));
            assert_eq!(seen, [(first, dead, true), (second, dead, true), (third, waits, false)]);
        }
        let letter = client.get(third).await.unwrap().unwrap();
        assert_eq!((letter.origin_id, letter.replaces_id), (Some(first), Some(second)));
        // A gap is shown, not hidden.
        assert!(client.discard(second).await.unwrap());
        let line = client.line_of(third).await.unwrap();
        assert_eq!((line[0].id, line[0].status), (second, None));
    })
    .await;
}

#[tokio::test]
async fn one_kind_is_paused_in_one_queue_or_in_all_and_the_reason_is_said() {
    on_stage(Size::Ci, async |stage| {
        let client = stage.db.client().await;
        let act = enqueue(&client, "default", "act", 3, NOW).await;
        let mail = enqueue(&client, "mail", "act", 3, NOW).await;
        let other = enqueue(&client, "default", "other", 2, NOW).await;
        let later = enqueue(&client, "default", "other", 1, HOUR).await;
        let mut hand = hand(stage, &["act", "other"]).await;
        let why = async |id: JobId| client.waits_for(id).await.unwrap().map(|why| why.reason);

        assert!(client.pause_kind("act", Some("mail"), Some("me"), Some("bad deploy")).await.unwrap());
        assert!(!client.pause_kind("act", Some("mail"), None, None).await.unwrap());
        let reason = client.waits_for(mail[0]).await.unwrap().unwrap();
        assert_eq!(reason.reason, "kind_paused");
        assert!(reason.explained.starts_with("the kind act in the queue mail is paused since "), "{reason:?}");
        assert!(reason.explained.ends_with(" by me: bad deploy"), "{reason:?}");
        assert_eq!(why(act[0]).await.as_deref(), Some("turn"));
        assert_eq!(why(later[0]).await.as_deref(), Some("not_due"));
        let (jobs, _) = hand.claim(10).await.unwrap();
        assert_eq!(jobs.len(), 5, "all but those in the queue mail");
        hand.complete(&jobs).await.unwrap();
        assert_eq!(why(act[0]).await, None);

        assert!(client.pause_kind("act", None, None, None).await.unwrap());
        assert_eq!(client.paused_kinds().await.unwrap().len(), 2);
        assert!(client.resume_kind("act", Some("mail")).await.unwrap());
        hand.rewind();
        assert_eq!(hand.claim(10).await.unwrap().0.len(), 0);
        assert!(client.resume_kind("act", None).await.unwrap());
        assert!(!client.resume_kind("act", None).await.unwrap());
        hand.rewind();
        assert_eq!(hand.claim(10).await.unwrap().0.len(), 3);
        drop(other);
        client.pause("default", None, None).await.unwrap();
        assert_eq!(why(later[0]).await.as_deref(), Some("queue_paused"));
        let stranger = enqueue(&client, "nobody", "act", 1, NOW).await;
        assert_eq!(why(stranger[0]).await.as_deref(), Some("no_worker"));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resumed_kind_runs_at_once_though_workers_have_passed_over_its_jobs() {
    on_stage(Size::Ci, async |stage| {
        let client = stage.db.client().await;
        client.pause_kind("act", None, None, None).await.unwrap();
        async fn end(_: Context, _: RawJson) -> Result<Option<RawJson>, Fail> {
            Ok(None)
        }
        let options = KindOptions::new;
        let worker = Worker::builder(stage.url()).queue("default", 4);
        let worker = worker.handle_raw("act", options(), end).handle_raw("other", options(), end);
        let mut worker = worker.start().await.unwrap();
        enqueue(&client, "default", "act", 500, NOW).await;
        enqueue(&client, "default", "other", 300, NOW).await;
        until("the others ran", async || stage.statuses().await.get("completed") == Some(&300)).await;
        client.resume_kind("act", None).await.unwrap();
        // Long before the next sweep of all lanes.
        let all = async || stage.statuses().await.get("completed") == Some(&800);
        until_within(Duration::from_secs(10), "the resumed ones ran", all).await;
        worker.shutdown();
        worker.join().await;
    })
    .await;
}

#[tokio::test]
async fn a_drained_worker_finishes_what_it_runs_and_gets_nothing_more() {
    on_stage(Size::Ci, async |stage| {
        let client = stage.db.client().await;
        let ids = enqueue(&client, "default", "act", 5, NOW).await;
        let mut hand = hand(stage, &["act"]).await;
        let (jobs, _) = hand.claim(2).await.unwrap();
        let why = async || {
            let wait = client.waits_for(ids[4]).await.unwrap().expect("it waits");
            (wait.reason, client.unhandled_kinds().await.unwrap().len())
        };
        assert_eq!(why().await, ("turn".to_owned(), 0));
        assert!(client.drain_worker(hand.worker, true).await.unwrap());
        assert_eq!(why().await, ("no_worker".to_owned(), 1));
        assert!(!client.drain_worker(9_999, true).await.unwrap());
        assert_eq!(hand.claim(2).await.unwrap().0.len(), 0);
        assert_eq!(client.workers().await.unwrap()[0].state, "drained");
        let short = Some(Duration::from_millis(1));
        assert_eq!(client.worker_drained(hand.worker, short).await.unwrap(), 2);
        assert_eq!(client.drained("default", short).await.unwrap(), 2);
        hand.complete(&jobs).await.unwrap();
        assert_eq!(client.worker_drained(hand.worker, None).await.unwrap(), 0);
        assert_eq!(client.drained("default", None).await.unwrap(), 0);
        assert!(client.drain_worker(hand.worker, false).await.unwrap());
        assert_eq!(why().await, ("turn".to_owned(), 0));
        hand.rewind();
        assert_eq!(hand.claim(2).await.unwrap().0.len(), 2);
    })
    .await;
}
