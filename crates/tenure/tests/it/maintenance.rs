//! Maintenance: what one duty costs the others, and what it never makes wait.

use std::time::Duration;

use tenure_scenarios::protocol::{Hand, Registration, sqlstate};
use tenure_scenarios::{Act, Size, Stage, on_stage};

const ACT: Act = Act::Sleep { ms: 0 };

/// As if ids had been drawn all the time while no maintenance ran: the next one comes from the range behind the last that was made for use.
async fn use_up_all_ranges(stage: &Stage) {
    let beyond = "select setval('tenure.block_id', max(end_block)) from tenure.partition where end_block < 1000000000";
    stage.count(beyond, &[]).await;
}

/// Where the range of this job ends, in ids; none: it has no end.
async fn end_of_range(stage: &Stage, job: i64) -> Option<i64> {
    let end =
        "select end_block * 128 from tenure.partition where first_block * 128 <= $1 order by first_block desc limit 1";
    stage.one(end, &[&job]).await
}

#[tokio::test]
async fn after_an_outage_of_maintenance_nobody_reads_what_was_enqueued_meanwhile() {
    on_stage(Size::Ci, async |stage| {
        use_up_all_ranges(stage).await;
        let ids = stage.enqueue_many(&ACT, 250).await;
        let mut sql = stage.db.sql().await;
        let turn = sql.transaction().await.unwrap();
        turn.execute("select tenure.net('partitions')", &[]).await.unwrap();
        let read = "select coalesce(sum(seq_tup_read), 0)::bigint from pg_stat_xact_user_tables where schemaname = 'tenure' and relname ~ '^(job|outcome)_'";
        assert_eq!(turn.query_one(read, &[]).await.unwrap().get::<_, i64>(0), 0);
        turn.commit().await.unwrap();
        let used = end_of_range(stage, ids[0]).await.expect("it has an end");
        // From the next turn on ids come from behind it, so that it can go as a whole one day.
        stage.maintain().await;
        let later = stage.enqueue(&ACT).await;
        assert!(later > used, "{later}: the range in between ends at {used}");
        assert!(end_of_range(stage, later).await.is_some());
        let mut hand = stage.hand(&Registration::default()).await;
        let (jobs, _) = hand.claim(1_000).await.unwrap();
        assert_eq!(jobs.len(), 251);
        assert_eq!(hand.complete(&jobs).await.unwrap(), []);
        stage.maintain().await;
        assert!(stage.enqueue(&ACT).await < later + 1_000, "only once");
    })
    .await;
}

#[tokio::test]
async fn an_enqueue_never_lacks_a_range_and_one_without_end_that_is_used_is_left_alone() {
    on_stage(Size::Ci, async |stage| {
        let tail = "select setval('tenure.block_id', first_block + 1) from tenure.partition where end_block is null";
        stage.count(tail, &[]).await;
        let id = stage.enqueue(&ACT).await;
        let ranges = "select count(*) from tenure.partition";
        let before = stage.count(ranges, &[]).await;
        stage.maintain().await;
        assert_eq!(stage.count(ranges, &[]).await, before);
        assert_eq!(end_of_range(stage, id).await, None);
        let mut hand = stage.hand(&Registration::default()).await;
        let (jobs, _) = hand.claim(1).await.unwrap();
        assert_eq!(hand.complete(&jobs).await.unwrap(), []);
    })
    .await;
}

#[tokio::test]
async fn a_duty_that_takes_too_long_undoes_only_itself() {
    on_stage(Size::Ci, async |stage| {
        stage
            .sql
            .batch_execute(
                "create function slow() returns trigger language plpgsql as 'begin perform pg_sleep(60); return new; end';
                 set session_replication_role = replica; insert into tenure.inbox (kind, payload) values ('act', '{}');
                 set session_replication_role = origin",
            )
            .await
            .unwrap();
        let due: i64 = stage.one("select tenure.enqueue('act', '{}', p_delay_ms => 1)", &[]).await;
        stage.execute("create trigger slow before insert on tenure.job for each row execute function slow()", &[]).await;
        let sql = stage.db.sql().await;
        sql.batch_execute("select pg_sleep(0.01); update tenure.duty set next_at = '-infinity'").await.unwrap();
        use_up_all_ranges(stage).await;
        sql.batch_execute("set statement_timeout = '2s'").await.unwrap();
        sql.query("select tenure.tick(0)", &[]).await.unwrap();
        assert_eq!(stage.status(due).await, "available");
        assert_eq!(sqlstate(sql.query("select tenure.net('inbox')", &[]).await), "57014");
        let ranges = "select count(*) from tenure.partition";
        let before = stage.count(ranges, &[]).await;
        sql.query("select tenure.net('partitions')", &[]).await.unwrap();
        assert!(stage.count(ranges, &[]).await > before);
    })
    .await;
}

#[tokio::test]
async fn orphans_are_rescued_a_part_at_a_time_however_long_all_of_them_take() {
    on_stage(Size::Ci, async |stage| {
        const JOBS: usize = 100;
        stage.enqueue_many(&ACT, JOBS).await;
        let mut hand = stage.hand(&Registration::default()).await;
        hand.solo_kinds = vec!["act".into()];
        assert_eq!(hand.claim(JOBS as i32).await.unwrap().0.len(), JOBS);
        // All of them take two seconds, and a turn may take one.
        stage
            .sql
            .batch_execute(
                "create function slow() returns trigger language plpgsql as 'begin perform pg_sleep(0.02); return new; end';
                 create trigger slow before insert on tenure.attempt_error for each row execute function slow();
                 delete from tenure.worker; set statement_timeout = '1s'",
            )
            .await
            .unwrap();
        for turns in 1.. {
            stage.maintain().await;
            match stage.rescues().await {
                rescued if rescued == JOBS as i64 => break,
                rescued => assert!(turns < 50, "{rescued} after {turns} turns"),
            }
        }
        assert_eq!(stage.count("select count(*) from tenure.lease", &[]).await, 0);
    })
    .await;
}

#[tokio::test]
async fn a_worker_that_was_just_suspected_comes_back_while_maintenance_goes_on() {
    on_stage(Size::Ci, async |stage| {
        let mut hand = stage.hand(&Registration::default()).await;
        // Its connections are gone: the session lock is free.
        hand.sql.query("select pg_advisory_unlock_all()", &[]).await.unwrap();
        stage.execute("update tenure.duty set next_at = '-infinity'", &[]).await;
        let held = stage.db.sql().await;
        held.batch_execute("create table public.seen (at timestamptz)").await.unwrap();
        // Whatever tick does after the sighting is done with the row locked: it must be next to nothing.
        let order = "create function note() returns trigger language plpgsql as 'begin insert into public.seen values (clock_timestamp()); return new; end';
             create trigger note before update of suspected_at on tenure.worker for each row execute function note();
             create function promoted() returns trigger language plpgsql as 'begin if exists (select from public.seen) then raise exception ''a worker is locked meanwhile''; end if; return null; end';
             create trigger promoted after delete on tenure.later for each row execute function promoted()";
        held.batch_execute(order).await.unwrap();
        let due: i64 = stage.one("select tenure.enqueue('act', '{}', p_delay_ms => 1)", &[]).await;
        held.batch_execute("select pg_sleep(0.01)").await.unwrap();
        stage.maintain().await;
        assert_eq!(stage.count("select count(*) from seen", &[]).await, 1);
        assert_eq!(stage.status(due).await, "available");
        let sql = stage.db.sql().await;
        assert!(tokio::time::timeout(Duration::from_secs(5), hand.move_to(sql)).await.unwrap().unwrap());
    })
    .await;
}

/// Every verb of an operator that locks something, for a worker and two jobs that run and one that is dead.
fn operators_verbs(worker: i64, running: i64, dead: i64) -> Vec<String> {
    let verbs = [
        format!("drain_worker({worker})"),
        format!("drain_worker({worker}, false)"),
        "pause('default')".into(),
        "pause('a queue to come')".into(),
        "pause_kind('act')".into(),
        "resume('default')".into(),
        "resume_kind('act')".into(),
        "set_keep('default', 'completed', 1000)".into(),
        "set_keep(null, 'completed', 1000)".into(),
        "walk_anew(true)".into(),
        format!("cancel({running})"),
        "cancel_many(array['running'], null, null, null, 'lease')".into(),
        format!("requeue({dead})"),
        format!("discard({dead})"),
    ];
    verbs.into_iter().map(|verb| format!("select tenure.{verb}")).collect()
}

#[tokio::test]
async fn an_operator_who_has_not_committed_yet_makes_no_worker_wait() {
    on_stage(Size::Ci, async |stage| {
        const SOON: &str = "set statement_timeout = '1500ms'";
        let both = Registration { queues: vec!["default".into(), "a queue to come".into()], ..Registration::default() };
        let mut hand = stage.hand(&both).await;
        for sql in [&stage.sql, &hand.sql] {
            sql.batch_execute(SOON).await.unwrap();
        }
        let dead = stage.enqueue(&ACT).await;
        let (jobs, _) = hand.claim(1).await.unwrap();
        hand.bury(&jobs).await.unwrap();
        let running = stage.enqueue(&ACT).await;
        let held = hand.claim(1).await.unwrap().0;
        assert_eq!(held.len(), 1);
        stage.execute("delete from tenure.queue where name <> 'default'", &[]).await;
        stage.sql.batch_execute("select tenure.pause('default'); select tenure.pause_kind('act')").await.unwrap();
        for verb in operators_verbs(hand.worker, running, dead) {
            let operator = stage.db.sql().await;
            // Resumed for the worker's sake where it is not the verb itself.
            if !verb.contains("resume") {
                stage
                    .sql
                    .batch_execute("select tenure.resume('default'); select tenure.resume_kind('act')")
                    .await
                    .unwrap();
            }
            operator.batch_execute("begin").await.unwrap();
            operator.query(&verb, &[]).await.unwrap_or_else(|e| panic!("{verb}: {e:?}"));
            assert!(hand.heartbeat().await.unwrap_or_else(|e| panic!("heartbeat beside {verb}: {e:?}")).is_some());
            let sql = stage.db.sql().await;
            sql.batch_execute(SOON).await.unwrap();
            assert!(hand.move_to(sql).await.unwrap_or_else(|e| panic!("attach beside {verb}: {e:?}")));
            let sql = stage.db.sql().await;
            sql.batch_execute(SOON).await.unwrap();
            let mut dying =
                Hand::register(sql, &both).await.unwrap_or_else(|e| panic!("register beside {verb}: {e:?}"));
            let note = "select tenure.note_overruns($1, $2::text::uuid, '{}', false)";
            hand.sql.query(note, &[&hand.worker, &hand.token]).await.unwrap_or_else(|e| panic!("{verb}: {e:?}"));
            stage.enqueue_many(&ACT, 2).await;
            hand.rewind();
            let (some, _) = hand.claim(1).await.unwrap_or_else(|e| panic!("claim beside {verb}: {e:?}"));
            assert_eq!(hand.complete(&some).await.unwrap_or_else(|e| panic!("complete beside {verb}: {e:?}")), []);
            let lost = dying.claim(1).await.unwrap_or_else(|e| panic!("claim beside {verb}: {e:?}")).0.len() as i64;
            stage.expire(dying.worker).await;
            assert_eq!(stage.maintain().await["rescued"].as_i64(), Some(lost), "{verb}");
            stage.one::<String>("select tenure.retain()::text", &[]).await;
            operator.batch_execute("rollback").await.unwrap();
        }
        stage.sql.batch_execute("select tenure.resume('default'); select tenure.resume_kind('act')").await.unwrap();
        assert_eq!(hand.complete(&held).await.unwrap(), []);
    })
    .await;
}

#[tokio::test]
async fn a_dead_workers_jobs_are_rescued_while_retention_is_at_work() {
    on_stage(Size::Ci, async |stage| {
        stage.enqueue_many(&ACT, 1).await;
        let mut hand = stage.hand(&Registration::default()).await;
        assert_eq!(hand.claim(1).await.unwrap().0.len(), 1);
        stage.expire(hand.worker).await;
        let _lives = stage.hand(&Registration::default()).await;
        let retention = stage.db.sql().await;
        retention.batch_execute("begin; select tenure.retain()").await.unwrap();
        let at_work = "select count(*) from pg_locks where locktype = 'advisory' and objid::bigint > 2147483647
            and database = (select d.oid from pg_database d where d.datname = current_database())";
        assert_eq!(stage.count(at_work, &[]).await, 1);
        assert_eq!(stage.rescue().await, 1);
        retention.batch_execute("commit").await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_drain_goes_a_day_after_its_worker() {
    on_stage(Size::Ci, async |stage| {
        let hand = stage.hand(&Registration::default()).await;
        stage.execute("select tenure.drain_worker($1)", &[&hand.worker]).await;
        stage.maintain().await;
        let drains = "select count(*) from tenure.worker_drain";
        assert_eq!(stage.count(drains, &[]).await, 1);
        stage.execute("select tenure.leave_worker($1, $2::text::uuid)", &[&hand.worker, &hand.token]).await;
        stage.maintain().await;
        assert_eq!(stage.count(drains, &[]).await, 1, "its process may only be cut off");
        let a_day = "update tenure.worker_drain set gone_at = gone_at - interval '24 hours'";
        stage.execute(a_day, &[]).await;
        stage.maintain().await;
        assert_eq!(stage.count(drains, &[]).await, 0);
    })
    .await;
}

#[tokio::test]
async fn requests_to_cancel_that_handlers_take_their_time_with_cost_maintenance_little() {
    on_stage(Size::Ci, async |stage| {
        const JOBS: usize = 1_500;
        let ids = stage.enqueue_many(&ACT, JOBS).await;
        let mut hand = stage.hand(&Registration::default()).await;
        hand.solo_kinds = vec!["act".into()];
        let mut jobs = hand.claim(1_000).await.unwrap().0;
        jobs.extend(hand.claim(1_000).await.unwrap().0);
        assert_eq!(jobs.len(), JOBS);
        // The last one fails while it is cancelled, and nobody sees the request yet.
        let mut other = stage.db.sql().await;
        let tx = other.transaction().await.unwrap();
        for id in &ids {
            tx.execute("insert into tenure.cancel_request (job_id, worker_id) values ($1, $2)", &[id, &hand.worker])
                .await
                .unwrap();
        }
        let last = jobs.iter().find(|job| job.job == ids[JOBS - 1]).unwrap();
        assert_eq!(hand.fail(last, "retry", Some(60_000)).await.unwrap(), "retrying");
        tx.commit().await.unwrap();
        stage.sql.batch_execute("set statement_timeout = '2s'").await.unwrap();
        for turns in 1.. {
            stage.maintain().await;
            if stage.status(last.job).await == "cancelled" {
                break;
            }
            assert!(turns < 100, "it is not met");
        }
        // What has completed all the same leaves its request behind, for one turn.
        assert_eq!(hand.complete(&jobs[..10]).await.unwrap(), []);
        for turns in 1.. {
            stage.maintain().await;
            if stage.count("select count(*) from tenure.cancel_request", &[]).await == JOBS as i64 - 11 {
                break;
            }
            assert!(turns < 100, "requests are left behind");
        }
    })
    .await;
}

#[tokio::test]
async fn a_cancel_of_what_has_ended_does_not_look_through_what_runs() {
    on_stage(Size::Ci, async |stage| {
        stage.enqueue_many(&ACT, 3).await;
        let mut hand = stage.hand(&Registration::default()).await;
        let (jobs, _) = hand.claim(3).await.unwrap();
        hand.complete(&jobs[..1]).await.unwrap();
        hand.bury(&jobs[1..2]).await.unwrap();
        let mut sql = stage.db.sql().await;
        let tx = sql.transaction().await.unwrap();
        let mut answers = Vec::new();
        for job in &jobs[..2] {
            answers.push(tx.query_one("select tenure.cancel($1)", &[&job.job]).await.unwrap().get::<_, String>(0));
        }
        assert_eq!(answers, ["completed", "dead"]);
        let scans = "select (coalesce(seq_scan, 0) + coalesce(idx_scan, 0))::bigint from pg_stat_xact_user_tables where relid = 'tenure.lease'::regclass";
        assert_eq!(tx.query_one(scans, &[]).await.unwrap().get::<_, i64>(0), 0);
    })
    .await;
}

#[tokio::test]
async fn leases_that_cannot_be_rescued_do_not_keep_those_behind_them() {
    on_stage(Size::Ci, async |stage| {
        let ids = stage.enqueue_many(&ACT, 5).await;
        let mut hand = stage.hand(&Registration::default()).await;
        hand.solo_kinds = vec!["act".into()];
        let (mut jobs, _) = hand.claim(5).await.unwrap();
        jobs.sort_by_key(|job| job.lease);
        let broken: Vec<i64> = jobs[..3].iter().map(|job| job.job).collect();
        stage
            .sql
            .batch_execute(
                "create table public.broken (job_id bigint);
                 create function refuse() returns trigger language plpgsql as
                   'begin if exists (select from public.broken b where b.job_id = new.job_id) then raise exception ''broken''; end if; return new; end';
                 create trigger refuse before insert on tenure.attempt_error for each row execute function refuse()",
            )
            .await
            .unwrap();
        stage.execute("insert into broken select unnest($1::bigint[])", &[&broken]).await;
        stage.expire(hand.worker).await;
        let rescue = "select (tenure.rescue(2) ->> 'rescued')::bigint";
        let mut rescued = Vec::new();
        for _ in 0..3 {
            rescued.push(stage.count(rescue, &[]).await);
        }
        assert_eq!(rescued, [0, 1, 1], "two at a time");
        // Those before are tried again, too.
        stage.execute("delete from broken", &[]).await;
        for _ in 0..3 {
            stage.count(rescue, &[]).await;
        }
        for id in ids {
            assert_eq!(stage.status(id).await, "available");
        }
    })
    .await;
}

#[tokio::test]
async fn leases_that_fail_and_take_their_time_do_not_make_turns_without_a_pause() {
    on_stage(Size::Ci, async |stage| {
        stage.enqueue_many(&ACT, 3).await;
        let mut hand = stage.hand(&Registration::default()).await;
        hand.solo_kinds = vec!["act".into()];
        let (mut jobs, _) = hand.claim(3).await.unwrap();
        jobs.sort_by_key(|job| job.lease);
        let slow = format!(
            "create function refuse() returns trigger language plpgsql as
               'begin if new.job_id <= {} then perform pg_sleep(0.25); raise exception ''broken''; end if; return new; end';
             create trigger refuse before insert on tenure.attempt_error for each row execute function refuse()",
            jobs[1].job
        );
        stage.sql.batch_execute(&slow).await.unwrap();
        stage.expire(hand.worker).await;
        let mut turns = Vec::new();
        while turns.len() < 10 && !stage.statuses().await.contains_key("available") {
            turns.push(stage.maintain().await["next_ms"].as_i64().unwrap());
        }
        assert!(turns.len() >= 3, "one lease a turn: {turns:?}");
        // The last one has rescued something, and may want to go on.
        assert!(turns[..turns.len() - 1].iter().all(|next_ms| *next_ms > 0), "{turns:?}");
        stage.sql.batch_execute("drop trigger refuse on tenure.attempt_error").await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn the_age_of_a_queue_counts_from_a_job_that_came_back() {
    on_stage(Size::Ci, async |stage| {
        let first = stage.enqueue(&ACT).await;
        stage.execute("update tenure.job set created_at = created_at - interval '1 hour'", &[]).await;
        let mut hand = stage.hand(&Registration::default()).await;
        let (jobs, _) = hand.claim(1).await.unwrap();
        stage.enqueue(&ACT).await;
        assert!(hand.release(&jobs).await.unwrap().is_empty());
        // Both are in the same lane: the older job stands behind the newer one.
        stage.execute("update tenure.ready set priority = 2", &[]).await;
        assert_eq!(stage.status(first).await, "available");
        let hours = "select round(extract(epoch from clock_timestamp() - oldest_due_at) / 3600)::bigint from tenure.queue_stats()";
        assert_eq!(stage.count(hours, &[]).await, 1);
    })
    .await;
}

#[tokio::test]
async fn maintenance_is_due_twice_a_second_where_workers_are_few_and_they_are_told() {
    on_stage(Size::Ci, async |stage| {
        let mut hands = Vec::new();
        for workers in 1..=5 {
            hands.push(stage.hand(&Registration::default()).await);
            stage.execute("update tenure.duty set next_at = '-infinity' where name = 'tick'", &[]).await;
            let turn = stage.maintain().await;
            let few = (2..=4).contains(&workers);
            assert_eq!(turn["next_ms"], if few { 500 } else { 1000 }, "{workers} workers");
            let claimed =
                format!("select (payload::json ->> 'few_workers')::boolean from ({}) c", hands[0].claim_text(1));
            assert_eq!(stage.one::<bool>(&claimed, &[]).await, few, "{workers} workers");
        }
    })
    .await;
}

#[tokio::test]
async fn a_turn_of_maintenance_is_waited_for_on_disk_only_if_it_ended_something() {
    on_stage(Size::Ci, async |stage| {
        let mut sql = stage.db.sql().await;
        let mut flushed = async || {
            let turn = sql.transaction().await.unwrap();
            turn.execute("update tenure.duty set next_at = '-infinity' where name = 'tick'", &[]).await.unwrap();
            turn.execute("select tenure.tick(0)", &[]).await.unwrap();
            let on: bool =
                turn.query_one("select current_setting('synchronous_commit') = 'on'", &[]).await.unwrap().get(0);
            turn.commit().await.unwrap();
            on
        };
        assert!(!flushed().await, "nothing to do");
        stage.enqueue(&ACT).await;
        let mut hand = stage.hand(&Registration::default()).await;
        let (jobs, _) = hand.claim(1).await.unwrap();
        assert!(!flushed().await, "nobody is dead");
        stage.expire(hand.worker).await;
        assert!(flushed().await, "a job is rescued");
        // A wish to cancel whose job waits again when maintenance looks.
        let wish = "insert into tenure.cancel_request (job_id, worker_id) values ($1, $2)";
        stage.execute(wish, &[&jobs[0].job, &hand.worker]).await;
        assert!(flushed().await, "a job is cancelled");
        assert_eq!(stage.status(jobs[0].job).await, "cancelled");
        assert!(!flushed().await, "nothing to do again");
        stage.one::<i64>("select tenure.enqueue('act', '{}', p_delay_ms => 1)", &[]).await;
        stage.execute("update tenure.later set due_at = clock_timestamp() - interval '1 second'", &[]).await;
        assert!(flushed().await, "a job is promoted");
        let idle = stage.hand(&Registration::default()).await;
        stage.expire(idle.worker).await;
        assert!(flushed().await, "a worker is dead");
        let broken =
            "create function broken() returns trigger language plpgsql as 'begin raise exception ''broken''; end';
             create trigger broken before update of dead_at on tenure.worker for each row execute function broken()";
        stage.sql.batch_execute(broken).await.unwrap();
        let idle = stage.hand(&Registration::default()).await;
        stage.expire(idle.worker).await;
        assert!(flushed().await, "nobody knows what rescue would have done");
        stage.sql.batch_execute("drop trigger broken on tenure.worker").await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_suspect_whose_row_somebody_holds_makes_no_turns_without_a_pause() {
    on_stage(Size::Ci, async |stage| {
        let hand = stage.hand(&Registration::default()).await;
        stage.expire(hand.worker).await;
        let mut holder = stage.db.sql().await;
        let held = holder.transaction().await.unwrap();
        held.query("select from tenure.worker for update", &[]).await.unwrap();
        for turn in 0..3 {
            let next: i64 = stage.maintain().await["next_ms"].as_i64().unwrap();
            assert!(next >= 100, "turn {turn}: again in {next} ms");
        }
        held.rollback().await.unwrap();
        stage.maintain().await;
        assert_eq!(stage.count("select count(*) from tenure.worker where dead_at is not null", &[]).await, 1);
    })
    .await;
}

#[tokio::test]
async fn a_clock_that_was_set_back_stops_no_maintenance() {
    on_stage(Size::Ci, async |stage| {
        let ahead = "update tenure.duty set next_at = clock_timestamp() + interval '1 hour' where next_at < 'infinity'";
        stage.execute(ahead, &[]).await;
        let hand = stage.hand(&Registration::default()).await;
        let claimed = format!("select (payload::json ->> 'tick_due')::boolean from ({}) c", hand.claim_text(1));
        assert!(stage.one::<bool>(&claimed, &[]).await, "a worker is asked to do it");
        let turn: String = stage.one("select tenure.tick(0)::text", &[]).await;
        let turn: serde_json::Value = serde_json::from_str(&turn).unwrap();
        assert_eq!((&turn["ran"], &turn["retain"], &turn["stats"]), (&true.into(), &true.into(), &true.into()), "{turn}");
        stage.one::<bool>("select (tenure.fold_stats() ->> 'ran')::bool", &[]).await;
        assert!(!turn["net"].as_array().unwrap().is_empty(), "{turn}");
        // The time of deltas says nothing, old statistics are looked for every ten minutes, and a worker has no part in the turns of pg_cron.
        let later = "select count(*) from tenure.duty where next_at > clock_timestamp() + interval '31 seconds' and next_at < 'infinity'
            and name not in ('deltas', 'old_stats', 'cron', 'cron all')";
        assert_eq!(stage.count(later, &[]).await, 2, "horizon, a minute ahead, and retain, which its own step sets");
    })
    .await;
}
