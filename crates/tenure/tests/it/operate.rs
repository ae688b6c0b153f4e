//! What people do to jobs and queues, and what maintenance does: cancel, pause, requeue, discard, rescue, promote.

use tenure::JobId;
use tenure::testing::until;
use tenure_scenarios::protocol::{BAD_INPUT, Hand, NOT_FOUND, REFUSED, Registration, sqlstate};
use tenure_scenarios::{Act, Size, Stage, on_stage};

async fn hand(stage: &Stage) -> Hand {
    stage.hand(&Registration::default()).await
}

fn act() -> Act {
    Act::Sleep { ms: 0 }
}

#[tokio::test]
async fn one_job_of_a_waiting_bundle_can_be_cancelled() {
    on_stage(Size::Ci, async |stage| {
        let ids = stage.enqueue_many(&act(), 10).await;
        let cancel = "select tenure.cancel($1)";
        assert_eq!(stage.one::<String>(cancel, &[&ids[4]]).await, "cancelled");
        assert_eq!(stage.one::<String>(cancel, &[&ids[4]]).await, "already cancelled");
        assert_eq!(stage.status(ids[4]).await, "cancelled");
        let (jobs, _) = hand(stage).await.claim(100).await.unwrap();
        assert_eq!(jobs.len(), 9);
        assert!(jobs.iter().all(|job| job.job != ids[4]));
        assert_eq!(stage.one::<Option<String>>(cancel, &[&999_999_999_i64]).await, None);
    })
    .await;
}

#[tokio::test]
async fn the_worker_of_a_running_job_hears_that_it_is_to_be_cancelled() {
    on_stage(Size::Ci, async |stage| {
        let id = stage.enqueue(&act()).await;
        let mut hand = hand(stage).await;
        let (jobs, _) = hand.claim(1).await.unwrap();
        assert_eq!(stage.one::<String>("select tenure.cancel($1)", &[&id]).await, "requested");
        assert_eq!(hand.heartbeat().await.unwrap().expect("alive").1, [id]);
        assert_eq!(hand.fail(&jobs[0], "cancelled", None).await.unwrap(), "cancelled");
        assert_eq!(hand.heartbeat().await.unwrap().expect("alive").1, [0_i64; 0]);
    })
    .await;
}

#[tokio::test]
async fn a_paused_queue_gives_nothing_until_it_is_resumed() {
    on_stage(Size::Ci, async |stage| {
        let id = stage.enqueue(&act()).await;
        let mut hand = hand(stage).await;
        let pause = "select tenure.pause('default', 'me', 'incident')";
        assert!(stage.one::<bool>(pause, &[]).await);
        assert!(!stage.one::<bool>(pause, &[]).await);
        let (jobs, trailer) = hand.claim(1).await.unwrap();
        assert!(jobs.is_empty());
        assert_eq!(trailer.paused, ["default"]);
        let who = "select paused_by || ': ' || pause_reason from tenure.queue where name = 'default'";
        assert_eq!(stage.one::<String>(who, &[]).await, "me: incident");
        assert!(stage.one::<bool>("select tenure.resume('default')", &[]).await);
        assert!(!stage.one::<bool>("select tenure.resume('default')", &[]).await);
        hand.rewind();
        assert_eq!(hand.claim(1).await.unwrap().0[0].job, id);
    })
    .await;
}

#[tokio::test]
async fn a_requeued_job_is_a_new_job_that_names_the_old_one() {
    on_stage(Size::Ci, async |stage| {
        let id = stage.enqueue(&act()).await;
        let requeue = "select tenure.requeue($1)";
        assert_eq!(sqlstate(stage.sql.query(requeue, &[&id]).await), REFUSED);
        assert_eq!(sqlstate(stage.sql.query(requeue, &[&999_999_999_i64]).await), NOT_FOUND);
        let mut hand = hand(stage).await;
        let (jobs, _) = hand.claim(1).await.unwrap();
        hand.fail(&jobs[0], "permanent", None).await.unwrap();
        let new: i64 = stage.one(requeue, &[&id]).await;
        assert_ne!(new, id);
        assert_eq!((stage.status(id).await.as_str(), stage.status(new).await.as_str()), ("dead", "available"));
        let line = "select origin_id = $1 and replaces_id = $1 from tenure.jobs where id = $2";
        assert!(stage.one::<bool>(line, &[&id, &new]).await);
        assert_eq!(stage.one::<i64>("select replaced_by from tenure.jobs where id = $1", &[&id]).await, new);
        // Twice by accident must not run it twice.
        assert_eq!(sqlstate(stage.sql.query(requeue, &[&id]).await), REFUSED);
    })
    .await;
}

#[tokio::test]
async fn a_job_is_not_requeued_for_an_instant_that_nobody_can_wait_for() {
    on_stage(Size::Ci, async |stage| {
        let id = stage.enqueue(&act()).await;
        let mut hand = hand(stage).await;
        let (jobs, _) = hand.claim(1).await.unwrap();
        hand.fail(&jobs[0], "permanent", None).await.unwrap();
        for instant in ["'infinity'", "'-infinity'", "now() + interval '10 years 1 day'"] {
            let requeue = format!("select tenure.requeue($1, null::json, {instant})");
            assert_eq!(sqlstate(stage.sql.query(&requeue, &[&id]).await), BAD_INPUT, "{instant}");
        }
        let new: i64 = stage.one("select tenure.requeue($1, null::json, now() + interval '9 years')", &[&id]).await;
        assert_eq!(stage.status(new).await, "scheduled");
        // Claims reckon with the job that is due next, whatever its instant.
        stage.enqueue(&act()).await;
        assert_eq!(hand.claim(1).await.unwrap().0.len(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_discarded_dead_letter_is_gone() {
    on_stage(Size::Ci, async |stage| {
        let id = stage.enqueue(&act()).await;
        let mut hand = hand(stage).await;
        let (jobs, _) = hand.claim(1).await.unwrap();
        hand.fail(&jobs[0], "permanent", None).await.unwrap();
        assert!(stage.one::<bool>("select tenure.discard($1)", &[&id]).await);
        assert_eq!(stage.status(id).await, "unknown");
    })
    .await;
}

#[tokio::test]
async fn a_live_worker_keeps_its_jobs_and_a_dead_one_loses_them_all() {
    on_stage(Size::Ci, async |stage| {
        stage.enqueue_many(&act(), 10).await;
        let (mut live, mut dead) = (hand(stage).await, hand(stage).await);
        let kept = live.claim(5).await.unwrap().0;
        let lost = dead.claim(5).await.unwrap().0;
        stage.expire(dead.worker).await;
        assert_eq!(stage.rescue().await, 5);
        assert_eq!(stage.rescue().await, 0);
        assert_eq!(live.complete(&kept).await.unwrap(), []);
        for job in &lost {
            assert_ne!(stage.status(job.job).await, "running");
        }
        assert_eq!(stage.rescues().await, 5);
    })
    .await;
}

#[tokio::test]
async fn orphans_are_rescued_whatever_happened_to_the_row_of_their_worker() {
    on_stage(Size::Ci, async |stage| {
        stage.enqueue_many(&act(), 5).await;
        let mut hand = hand(stage).await;
        hand.claim(5).await.unwrap();
        stage.execute("delete from tenure.worker", &[]).await;
        stage.maintain().await;
        assert_eq!(stage.rescue().await, 5);
        assert_eq!(stage.count("select count(*) from tenure.lease", &[]).await, 0);
    })
    .await;
}

#[tokio::test]
async fn a_rescued_job_on_its_last_attempt_is_dead_with_the_reason() {
    on_stage(Size::Ci, async |stage| {
        let id: i64 = stage.one("select tenure.enqueue('act', '{}', p_max_attempts => 1)", &[]).await;
        let mut hand = hand(stage).await;
        hand.claim(1).await.unwrap();
        stage.expire(hand.worker).await;
        stage.rescue().await;
        assert_eq!(stage.status(id).await, "dead");
        assert_eq!(stage.one::<String>("select cause from tenure.dead_letter", &[]).await, "worker_lost");
    })
    .await;
}

#[tokio::test]
async fn a_rescue_tells_failed_attempts_from_cancelled_jobs_and_from_those_that_go_back_at_no_cost() {
    on_stage(Size::Ci, async |stage| {
        let ids = stage.enqueue_many(&act(), 3).await;
        let last: i64 = stage.one("select tenure.enqueue('act', '{}', p_max_attempts => 1)", &[]).await;
        let mut hand = hand(stage).await;
        assert_eq!(hand.claim(10).await.unwrap().0.len(), 4);
        assert_eq!(stage.one::<String>("select tenure.cancel($1)", &[&ids[1]]).await, "requested");
        let stuck = "select tenure.note_overruns($1, $2::text::uuid, array[$3::bigint], true)";
        assert!(stage.one::<bool>(stuck, &[&hand.worker, &hand.token, &ids[2]]).await);
        stage.expire(hand.worker).await;
        let answer: String = stage.one("select tenure.rescue()::text", &[]).await;
        let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
        let told = |id: i64| {
            let job = answer["jobs"].as_array().unwrap().iter().find(|job| job["job"] == id).expect("it is named");
            ["dead", "cancelled", "spared"].map(|what| job[what] == true)
        };
        assert_eq!(told(ids[0]), [false, false, false], "{answer}");
        assert_eq!(told(ids[1]), [false, true, false], "{answer}");
        assert_eq!(told(ids[2]), [false, false, true], "{answer}");
        assert_eq!(told(last), [true, false, false], "{answer}");
    })
    .await;
}

#[tokio::test]
async fn after_two_lost_workers_a_job_runs_apart_and_after_three_it_is_buried() {
    on_stage(Size::Ci, async |stage| {
        let ids = stage.enqueue_many(&act(), 3).await;
        for round in 1..=3 {
            let mut claimed = 0;
            for _ in 0..ids.len() {
                let mut hand = hand(stage).await;
                let got = hand.claim(10).await.unwrap().0.len();
                claimed += got;
                if round > 2 {
                    assert!(got <= 1, "a suspect runs with no other suspect beside it");
                }
                stage.expire(hand.worker).await;
                stage.rescue().await;
                if claimed >= ids.len() {
                    break;
                }
            }
            assert_eq!(claimed, ids.len(), "round {round}");
        }
        for id in ids {
            assert_eq!(stage.status(id).await, "dead");
        }
    })
    .await;
}

#[tokio::test]
async fn a_heartbeat_extends_the_lease() {
    on_stage(Size::Ci, async |stage| {
        let hand = hand(stage).await;
        let until = "select extract(epoch from lease_until)::float8 from tenure.worker";
        let before: f64 = stage.one(until, &[]).await;
        let (left, _) = hand.heartbeat().await.unwrap().expect("alive");
        assert!((29_000..=30_000).contains(&left), "{left} ms");
        assert!(stage.one::<f64>(until, &[]).await > before);
    })
    .await;
}

#[tokio::test]
async fn a_worker_that_is_gone_is_suspected_by_whoever_looks_although_nobody_maintains() {
    on_stage(Size::Ci, async |stage| {
        let client = stage.db.client().await;
        let (taken, waiting) = (JobId::from(stage.enqueue(&act()).await), JobId::from(stage.enqueue(&act()).await));
        let mut only = hand(stage).await;
        only.claim(1).await.unwrap();
        let look = async || {
            let worker = client.workers().await.unwrap().remove(0);
            (worker.state, worker.has_lock)
        };
        let why = async |job| client.waits_for(job).await.unwrap().map(|wait| (wait.reason, wait.explained));
        assert_eq!((look().await, why(taken).await), (("alive".to_owned(), true), None));
        assert!(client.unhandled_kinds().await.unwrap().is_empty());

        drop(only);
        until("its lock to be free", async || (!look().await.1).then_some(())).await;
        assert_eq!(look().await.0, "suspected");
        let (reason, explained) = why(taken).await.expect("it does not run");
        assert_eq!(reason, "worker_suspected");
        assert!(explained.contains("looks lost") && explained.contains("as soon as one starts"), "{explained}");
        assert_eq!(why(waiting).await.expect("a reason").0, "no_worker");
        assert_eq!(client.unhandled_kinds().await.unwrap().len(), 1);

        let other = hand(stage).await;
        let (_, explained) = why(taken).await.expect("it does not run");
        assert!(explained.contains("Another worker gives the job away"), "{explained}");
        assert_eq!(why(waiting).await.expect("a reason").0, "turn");
        // One that is frozen holds its lock for as long as its connections live.
        let over = "update tenure.worker set lease_until = clock_timestamp() - interval '1 s' where id = $1";
        stage.execute(over, &[&other.worker]).await;
        let frozen = client.workers().await.unwrap().remove(1);
        assert_eq!((frozen.state.as_str(), frozen.has_lock), ("suspected", true));
        other.heartbeat().await.unwrap().expect("alive");
        assert_eq!(client.workers().await.unwrap().remove(1).state, "alive");
    })
    .await;
}

#[tokio::test]
async fn a_worker_is_shown_by_its_name_after_it_has_gone_in_whichever_way() {
    on_stage(Size::Ci, async |stage| {
        let (first, second) = (stage.enqueue(&act()).await, stage.enqueue(&act()).await);
        let name =
            async |job: i64| stage.one::<Option<String>>("select worker from tenure.jobs where id = $1", &[&job]).await;
        let registered = |name: &str| Registration { name: name.into(), ..Registration::default() };
        let mut leaves = stage.hand(&registered("leaves")).await;
        let jobs = leaves.claim(1).await.unwrap().0;
        leaves.complete(&jobs).await.unwrap();
        let leave = "select tenure.leave_worker($1, $2::text::uuid)";
        assert!(stage.one::<bool>(leave, &[&leaves.worker, &leaves.token]).await);
        assert_eq!(name(first).await.as_deref(), Some("leaves"));

        let mut dies = stage.hand(&registered("dies")).await;
        let jobs = dies.claim(1).await.unwrap().0;
        dies.complete(&jobs).await.unwrap();
        let dead = "update tenure.worker set dead_at = clock_timestamp() - interval '1 hour' where id = $1";
        stage.execute(dead, &[&dies.worker]).await;
        stage.rescue().await;
        assert_eq!(stage.count("select count(*) from tenure.worker", &[]).await, 0);
        assert_eq!(name(second).await.as_deref(), Some("dies"));

        stage.execute("update tenure.former_worker set gone_at = clock_timestamp() - interval '91 days'", &[]).await;
        stage.execute("select tenure.adopt_orphans()", &[]).await;
        assert_eq!(name(second).await, Some(format!("worker {} (left)", dies.worker)));
    })
    .await;
}

#[tokio::test]
async fn a_worker_with_no_jobs_left_can_leave() {
    on_stage(Size::Ci, async |stage| {
        stage.enqueue(&act()).await;
        let mut hand = hand(stage).await;
        let (jobs, _) = hand.claim(1).await.unwrap();
        let leave = "select tenure.leave_worker($1, $2::text::uuid)";
        assert!(!stage.one::<bool>(leave, &[&hand.worker, &hand.token]).await);
        hand.complete(&jobs).await.unwrap();
        assert!(stage.one::<bool>(leave, &[&hand.worker, &hand.token]).await);
        assert_eq!(stage.count("select count(*) from tenure.worker", &[]).await, 0);
    })
    .await;
}

#[tokio::test]
async fn a_cancel_that_meets_the_end_of_an_attempt_still_cancels() {
    on_stage(Size::Ci, async |stage| {
        for restarted in [false, true] {
            let id = stage.enqueue(&act()).await;
            let (mut first, mut second) = (hand(stage).await, hand(stage).await);
            let (jobs, _) = first.claim(1).await.unwrap();
            let mut other = stage.db.sql().await;
            let tx = other.transaction().await.unwrap();
            let answer: String = tx.query_one("select tenure.cancel($1)", &[&id]).await.unwrap().get(0);
            assert_eq!(answer, "requested");
            // Meanwhile the attempt fails, and nobody sees the request yet.
            assert_eq!(first.fail(&jobs[0], "retry", Some(0)).await.unwrap(), "retrying");
            let again = if restarted { second.claim(1).await.unwrap().0 } else { Vec::new() };
            tx.commit().await.unwrap();
            stage.maintain().await;
            if restarted {
                assert_eq!(second.heartbeat().await.unwrap().expect("alive").1, [id], "its new worker hears of it");
                assert_eq!(second.fail(&again[0], "retry", None).await.unwrap(), "cancelled");
            }
            assert_eq!(stage.status(id).await, "cancelled");
            assert_eq!(stage.count("select count(*) from tenure.cancel_request", &[]).await, 0);
        }
    })
    .await;
}

#[tokio::test]
async fn rows_left_in_the_inbox_become_jobs_whatever_was_left_beside_them() {
    on_stage(Size::Ci, async |stage| {
        // As a subscription of logical replication writes: the commit does not look.
        stage.execute("set session_replication_role = replica", &[]).await;
        for kind in ["", "act", "", "act", "act"] {
            stage.execute("insert into tenure.inbox (kind, payload) values ($1, '{}')", &[&kind]).await;
        }
        stage.maintain().await;
        assert_eq!(stage.statuses().await["available"], 3);
        assert_eq!(stage.count("select count(*) from tenure.inbox where kind = ''", &[]).await, 2);
    })
    .await;
}

#[tokio::test]
async fn maintenance_goes_on_however_much_was_left_in_the_inbox() {
    on_stage(Size::Ci, async |stage| {
        const ROWS: i64 = 5_000;
        let copy = "insert into tenure.inbox (kind, payload) select 'act', '{}' from generate_series(1, $1::bigint)";
        stage.execute("set session_replication_role = replica", &[]).await;
        stage.execute(copy, &[&ROWS]).await;
        for turns in 1.. {
            stage.maintain().await;
            match stage.count("select count(*) from tenure.job", &[]).await {
                ROWS => break,
                _ if turns > 10 => panic!("not all became jobs"),
                some => assert_eq!(some % 2_000, 0, "a part at a time"),
            }
        }
        assert_eq!(stage.count("select count(*) from tenure.ready", &[]).await, ROWS / 100);
    })
    .await;
}

#[tokio::test]
async fn what_became_due_long_ago_is_promoted_without_a_pause_until_nothing_is_left() {
    on_stage(Size::Ci, async |stage| {
        let many = "insert into tenure.inbox (kind, payload, run_at) select 'act', '{}', clock_timestamp() + n * interval '1 s'
            from generate_series(1, 2500) n";
        stage.sql.batch_execute(&format!("begin; {many}; select tenure.enqueue_inbox(); commit")).await.unwrap();
        stage.execute("update tenure.later set due_at = clock_timestamp() - interval '1 hour'", &[]).await;
        stage.execute("update tenure.duty set next_at = '-infinity'", &[]).await;
        for turn in 1..=3 {
            let next_ms: i64 = stage.one("select (tenure.tick(0) ->> 'next_ms')::bigint", &[]).await;
            assert_eq!(next_ms == 0, turn < 3, "turn {turn}: {next_ms} ms");
        }
        assert_eq!(stage.count("select count(*) from tenure.later", &[]).await, 0);
    })
    .await;
}

#[tokio::test]
async fn pages_of_waiting_jobs_leave_none_out_however_their_block_was_split() {
    on_stage(Size::Ci, async |stage| {
        let ids = stage.enqueue_many(&act(), 100).await;
        let mut hand = hand(stage).await;
        let (jobs, _) = hand.claim(100).await.unwrap();
        for job in jobs.iter().rev() {
            assert_eq!(hand.fail(job, "retry", Some(0)).await.unwrap(), "retrying");
        }
        let page = "select array_agg(id) from (select tenure.pick_jobs('{available}', null, null, $1, 7) as id) p";
        let (mut seen, mut before) = (Vec::new(), None::<i64>);
        while let Some(page) = stage.one::<Option<Vec<i64>>>(page, &[&before]).await {
            before = page.last().copied();
            seen.extend(page);
        }
        seen.reverse();
        assert_eq!(seen, ids);
    })
    .await;
}

#[tokio::test]
async fn a_job_that_becomes_due_between_two_maintenance_turns_does_not_wait_for_the_next() {
    on_stage(Size::Ci, async |stage| {
        stage.one::<String>("select tenure.tick(0)::text", &[]).await;
        // The next turn is far away; the job is due before.
        stage
            .sql
            .batch_execute("update tenure.duty set next_at = clock_timestamp() + interval '1.9 seconds'")
            .await
            .unwrap();
        let id: i64 = stage.one("select tenure.enqueue('act', '{}', p_delay_ms => 20)", &[]).await;
        until("the job is due and moved", async || {
            stage.one::<String>("select tenure.tick(0)::text", &[]).await;
            stage.status(id).await == "available"
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn a_claim_that_commits_after_its_worker_was_given_up_is_undone_by_the_next_rescue() {
    on_stage(Size::Ci, async |stage| {
        stage.enqueue_many(&act(), 5).await;
        let hand = hand(stage).await;
        let mut other = stage.db.sql().await;
        let tx = other.transaction().await.unwrap();
        let claim = format!(
            "select count(job_id) from tenure.claim({}, '{}', array['default'], array[5], array['act'], '{{}}', array[2], array[0]::bigint[], false)",
            hand.worker, hand.token
        );
        assert_eq!(tx.query_one(&claim, &[]).await.unwrap().get::<_, i64>(0), 5);
        stage.expire(hand.worker).await;
        assert_eq!(stage.rescue().await, 0, "its leases cannot be seen yet");
        tx.commit().await.unwrap();
        assert_eq!(stage.rescue().await, 5);
    })
    .await;
}

#[tokio::test]
async fn requests_to_cancel_that_somebody_holds_keep_no_dead_workers_jobs_from_being_rescued() {
    on_stage(Size::Ci, async |stage| {
        let ids = stage.enqueue_many(&act(), 3).await;
        let registration = Registration::default();
        let mut hand = stage.hand(&registration).await;
        hand.solo_kinds = vec!["act".into()];
        assert_eq!(hand.claim(3).await.unwrap().0.len(), 3);
        let holder = stage.db.sql().await;
        holder.batch_execute("begin").await.unwrap();
        for id in &ids[..2] {
            holder.query("select tenure.cancel($1)", &[id]).await.unwrap();
        }
        stage.expire(hand.worker).await;
        assert_eq!(stage.rescue().await, 3);
        holder.batch_execute("commit").await.unwrap();
        stage.maintain().await;
        let mut statuses = Vec::new();
        for id in &ids {
            statuses.push(stage.status(*id).await);
        }
        assert_eq!(statuses, ["cancelled", "cancelled", "available"]);
    })
    .await;
}
