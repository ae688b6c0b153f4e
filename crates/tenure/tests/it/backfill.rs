//! Backfills: past times of a schedule run, a few at once, once each; and the audit of what did not run.

use std::time::{Duration, SystemTime};

use tenure::testing::{until_within, with_database};
use tenure::{
    Absence, Backfill, Context, Enqueue, ErrorCode, Fail, KindOptions, Overlap, RawJson, Rule, Schedule, Worker,
};
use tenure_scenarios::protocol::{BAD_INPUT, Hand, Registration, sqlstate};
use tenure_scenarios::{Size, Stage, on_stage};

const HOUR: Duration = Duration::from_secs(3_600);

/// An hourly schedule, which does not fire by itself: nobody computes its times.
async fn hourly(stage: &Stage) -> i64 {
    let add = "select tenure.add_schedule('hourly', '@hourly', 'UTC', 'act', '{\"Sleep\":{\"ms\":0}}')";
    stage.one(add, &[]).await
}

/// A backfill of the last so many full hours, oldest first.
async fn begin(stage: &Stage, hours: i32, at_once: i32, again: bool) -> i64 {
    let begin = "select tenure.add_backfill('hourly', array(select date_trunc('hour', clock_timestamp()) - n * interval '1 hour'
        from generate_series($1, 1, -1) n), $2, p_again => $3)";
    stage.one(begin, &[&hours, &at_once, &again]).await
}

/// What any worker does now and then, as if it were time.
async fn turn(stage: &Stage) {
    stage.execute("update tenure.schedule_backfill set look_at = clock_timestamp() where ended_at is null", &[]).await;
    stage.one::<String>("select tenure.due_schedules(true)::text", &[]).await;
}

async fn state(stage: &Stage, backfill: i64) -> String {
    let state = "select concat_ws(' ', state, done || '/' || times, enqueued, skipped, open) from tenure.backfills where id = $1";
    stage.one(state, &[&backfill]).await
}

async fn end_all(hand: &mut Hand, count: i32) -> usize {
    let (jobs, _) = hand.claim(count).await.unwrap();
    hand.complete(&jobs).await.unwrap();
    jobs.len()
}

#[tokio::test]
async fn a_backfill_has_so_many_jobs_at_once_and_skips_what_has_run() {
    on_stage(Size::Ci, async |stage| {
        let schedule = hourly(stage).await;
        let ran = "insert into tenure.schedule_run (schedule_id, logical_at, state, job_id)
            select $1, date_trunc('hour', clock_timestamp()) - interval '2 hours', 'fired', tenure.enqueue('act', '{\"Sleep\":{\"ms\":0}}')";
        stage.execute(ran, &[&schedule]).await;
        let mut hand = stage.hand(&Registration::default()).await;
        assert_eq!(end_all(&mut hand, 1).await, 1);
        let id = begin(stage, 5, 2, false).await;
        assert_eq!(state(stage, id).await, "active 0/5 0 0 0");
        for (ended, expected) in [
            (0, "active 2/5 2 0 2"),
            (0, "active 2/5 2 0 2"),
            (1, "active 3/5 3 0 2"),
            (2, "active 5/5 4 1 1"),
            (1, "completed 5/5 4 1 0"),
        ] {
            if ended > 0 {
                assert_eq!(end_all(&mut hand, ended).await, ended as usize);
            }
            turn(stage).await;
            assert_eq!(state(stage, id).await, expected);
        }
        assert_eq!(stage.count("select count(*) from tenure.job where priority = 4", &[]).await, 4);
        let order = "select count(*) from (select logical_at - lag(logical_at) over (order by job_id) as step from tenure.schedule_run where state = 'backfilled') s where step < '0 s'";
        assert_eq!(stage.count(order, &[]).await, 0, "oldest first");
        stage.db.check_invariants().await;
    })
    .await;
}

#[tokio::test]
async fn a_cancelled_backfill_strands_nothing_and_its_times_can_run_later() {
    on_stage(Size::Ci, async |stage| {
        hourly(stage).await;
        let id = begin(stage, 10, 4, false).await;
        turn(stage).await;
        let mut hand = stage.hand(&Registration::default()).await;
        let (running, _) = hand.claim(2).await.unwrap();
        let cancel = "select tenure.cancel_backfill($1, 'me')";
        assert_eq!(stage.one::<Option<bool>>(cancel, &[&id]).await, Some(true));
        assert_eq!(stage.one::<Option<bool>>(cancel, &[&id]).await, Some(false));
        assert_eq!(stage.one::<Option<bool>>(cancel, &[&(id + 1)]).await, None);
        assert_eq!(state(stage, id).await, "cancelling 4/10 4 0 2");
        let jobs = "select string_agg(status, ' ' order by id) from tenure.jobs";
        assert_eq!(stage.one::<String>(jobs, &[]).await, "running running cancelled cancelled");
        // One ends; the other would be tried again, and is not.
        hand.complete(&running[..1]).await.unwrap();
        hand.fail(&running[1], "retry", Some(3_600_000)).await.unwrap();
        turn(stage).await;
        assert_eq!(state(stage, id).await, "cancelled 4/10 4 0 0");
        assert_eq!(stage.one::<String>(jobs, &[]).await, "completed cancelled cancelled cancelled");
        let anew = begin(stage, 10, 100, false).await;
        turn(stage).await;
        assert_eq!(state(stage, anew).await, "active 10/10 9 1 9", "only the one that ended has run");
        // With the schedule goes what was begun of it.
        stage.execute("select tenure.remove_schedule('hourly')", &[]).await;
        assert_eq!(state(stage, anew).await, "cancelled 10/10 9 1 0");
        assert_eq!(stage.count("select count(*) from tenure.ready", &[]).await, 0);
        stage.db.check_invariants().await;
    })
    .await;
}

#[tokio::test]
async fn what_runs_again_gets_a_new_job_with_a_new_key_and_a_run_that_waits_is_left_alone() {
    on_stage(Size::Ci, async |stage| {
        let schedule = hourly(stage).await;
        begin(stage, 3, 10, false).await;
        turn(stage).await;
        let queued = "update tenure.schedule_run set state = 'queued', job_id = null
            where logical_at = (select max(logical_at) from tenure.schedule_run) returning logical_at";
        let queued_at: SystemTime = stage.one(queued, &[]).await;
        stage
            .execute(
                "update tenure.schedule set queued_at = $1, look_at = 'infinity' where id = $2",
                &[&queued_at, &schedule],
            )
            .await;
        let before: Vec<i64> =
            stage.one("select array_agg(job_id) from tenure.schedule_run where job_id is not null", &[]).await;
        let again = begin(stage, 3, 10, true).await;
        turn(stage).await;
        assert_eq!(state(stage, again).await, "active 3/3 2 1 2");
        let kept = "select count(*) from tenure.schedule_run where job_id = any($1)";
        assert_eq!(stage.count(kept, &[&before]).await, 0);
        let keys = "select count(distinct idempotency_key) - count(*) from tenure.jobs";
        assert_eq!(stage.count(keys, &[]).await, 0);
        assert_eq!(stage.count("select count(*) from tenure.schedule_run where state = 'queued'", &[]).await, 1);
    })
    .await;
}

#[tokio::test]
async fn a_backfill_that_cannot_be_told_apart_from_what_ran_is_refused() {
    on_stage(Size::Ci, async |stage| {
        hourly(stage).await;
        for call in [
            "'hourly', null",
            "'hourly', '{}'",
            "'hourly', array[null::timestamptz]",
            "'hourly', array['2026-01-01Z', '2026-01-01Z']::timestamptz[]",
            "'hourly', array[clock_timestamp() + interval '1 hour']",
            "'hourly', array['-infinity'::timestamptz]",
            "'hourly', array['2026-01-01Z'::timestamptz], 0",
            "'hourly', array['2026-01-01Z'::timestamptz], 1001",
            "'hourly', array['2026-01-01Z'::timestamptz], 1, 5",
            "'hourly', array(select timestamptz '2026-01-01Z' + n * interval '1 second' from generate_series(0, 100000) n)",
        ] {
            let refused = stage.sql.query(&format!("select tenure.add_backfill({call})"), &[]).await;
            assert_eq!(sqlstate(refused), BAD_INPUT, "{call}");
        }
        stage.execute("update tenure.schedule set forgotten_at = '2026-01-02Z'", &[]).await;
        let first = "select tenure.add_backfill('hourly', array['2026-01-01Z', '2026-01-03Z']::timestamptz[])";
        assert_eq!(sqlstate(stage.sql.query(first, &[]).await), BAD_INPUT);
        let again = "select tenure.add_backfill('hourly', array['2026-01-01Z']::timestamptz[], p_again => true)";
        assert!(stage.one::<Option<i64>>(again, &[]).await.is_some());
        let none = "select tenure.add_backfill('none', array['2026-01-01Z']::timestamptz[])";
        assert_eq!(stage.one::<Option<i64>>(none, &[]).await, None);
    })
    .await;
}

#[tokio::test]
async fn the_last_ten_thousand_runs_are_kept_and_it_is_known_where_the_notes_begin() {
    on_stage(Size::Ci, async |stage| {
        let schedule = hourly(stage).await;
        let runs = "insert into tenure.schedule_run (schedule_id, logical_at, state)
            select $1, timestamptz '2020-01-01Z' + n * interval '1 hour', 'overlap' from generate_series(1, 10500) n";
        stage.execute(runs, &[&schedule]).await;
        stage.execute("select tenure.forget_runs($1, clock_timestamp())", &[&schedule]).await;
        assert_eq!(stage.count("select count(*) from tenure.schedule_run", &[]).await, 10_001);
        let begins = "select count(*) from tenure.schedule s where s.forgotten_at = (select min(r.logical_at) from tenure.schedule_run r)";
        assert_eq!(stage.count(begins, &[]).await, 1);
        stage.execute("select tenure.forget_runs($1, '2020-01-03Z')", &[&schedule]).await;
        assert_eq!(stage.count("select count(*) from tenure.schedule_run", &[]).await, 10_001, "they are young");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_moves_a_backfill_on_to_its_end() {
    with_database(async |db| {
        let client = db.client().await;
        let payload = RawJson::parse(r#"{"at": "{{logical_time}}"}"#).unwrap();
        let job = Enqueue::raw("tick", payload).queue("ticks");
        let schedule = Schedule::new("hourly", Rule::new("@hourly", "UTC").unwrap(), job).overlap(Overlap::Skip);
        client.add_schedule(&schedule).await.unwrap();
        let now = client.now().await.unwrap();
        let wanted = Backfill::new("hourly", now - 24 * HOUR).at_once(5).newest_first();
        let preview = client.backfill_preview(&wanted).await.unwrap();
        assert!((24..=25).contains(&preview.times) && preview.ran == 0, "{preview:?}");
        let handler = |_: Context, _: RawJson| async { Ok::<_, Fail>(None) };
        let worker = Worker::builder(db.url()).queue("ticks", 4).handle_raw("tick", KindOptions::new(), handler);
        let _worker = worker.start().await.unwrap();
        let id = client.add_backfill(&wanted, Some("tests")).await.unwrap();
        until_within(Duration::from_secs(30), "its end", async || {
            client.backfill(id).await.unwrap().unwrap().ended_at.is_some()
        })
        .await;
        let ended = client.backfill(id).await.unwrap().unwrap();
        assert_eq!((ended.state.as_str(), ended.enqueued as usize, ended.open), ("completed", preview.times, 0));
        assert_eq!((ended.created_by.as_str(), ended.newest_first, ended.priority), ("tests", true, 4));
        assert_eq!(client.backfill_preview(&wanted).await.unwrap().ran, preview.times);
        assert!(!client.cancel_backfill(id, None).await.unwrap());
        let error = client.add_backfill(&Backfill::new("none", now - HOUR), None).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::NotFound);
        assert_eq!(client.cancel_backfill(id + 1, None).await.unwrap_err().code(), ErrorCode::NotFound);
        assert_eq!(client.backfills(Some("hourly"), Some(id), None).await.unwrap().len(), 0);
    })
    .await;
}

#[tokio::test]
async fn an_interval_has_no_time_at_the_instant_at_which_it_was_added() {
    with_database(async |db| {
        let (client, sql) = (db.client().await, db.sql().await);
        let now = client.now().await.unwrap();
        let start = now - 7 * HOUR / 2;
        for (name, start) in [("added", None), ("started", Some(start))] {
            let job = Enqueue::raw("tick", RawJson::null());
            let schedule = Schedule::new(name, Rule::new("@every 1h", "UTC").unwrap(), job).starts_at(start);
            client.add_schedule(&schedule).await.unwrap();
        }
        let earlier = "update tenure.schedule set created_at = $1, changed_at = $1, ruled_at = $1, anchor_at = $1";
        sql.execute(earlier, &[&start]).await.unwrap();
        let preview = async |name: &str| client.backfill_preview(&Backfill::new(name, now - 24 * HOUR)).await.unwrap();
        let added = preview("added").await;
        assert_eq!(added.times, 3, "{added:?}");
        // Times are whole seconds.
        assert!(added.first_at <= start + HOUR && added.first_at > start + HOUR - Duration::from_secs(1), "{added:?}");
        let whole = "update tenure.schedule set starts_at = date_trunc('second', starts_at) where name = 'started'";
        sql.execute(whole, &[]).await.unwrap();
        let started = preview("started").await;
        assert!(started.times == 4 && started.first_at <= start, "an interval runs at its start: {started:?}");
        let within =
            "update tenure.schedule set starts_at = starts_at + interval '1 microsecond' where name = 'started'";
        sql.execute(within, &[]).await.unwrap();
        assert_eq!(preview("started").await.times, 3, "its second has begun before the start");
        let error = client.add_backfill(&Backfill::new("added", start - HOUR).until(start), None).await.unwrap_err();
        assert!(error.code() == ErrorCode::BadInput && error.message().contains("has no time"), "{error}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_audit_names_each_time_without_a_job_and_its_reason() {
    with_database(async |db| {
        let (client, sql) = (db.client().await, db.sql().await);
        let job = Enqueue::raw("tick", RawJson::null()).queue("ticks");
        client.add_schedule(&Schedule::new("hourly", Rule::new("@hourly", "UTC").unwrap(), job)).await.unwrap();
        // A day of it: it ran, was left out by the run before, was missed, was paused, ran, and one run is not known.
        let history = "update tenure.schedule set created_at = h.at - interval '24 hours', changed_at = h.at - interval '24 hours',
                ruled_at = h.at - interval '24 hours', anchor_at = h.at - interval '24 hours', next_at = h.at + interval '1 hour', look_at = h.at + interval '1 hour'
                from (select date_trunc('hour', clock_timestamp()) as at) h;
            insert into tenure.schedule_run (schedule_id, logical_at, state, job_id)
                select s.id, date_trunc('hour', clock_timestamp()) - n * interval '1 hour', case when n = 20 then 'overlap' else 'fired' end, case when n <> 20 then n end
                from tenure.schedule s, generate_series(0, 23) n where n not between 10 and 17 and n <> 3;
            insert into tenure.schedule_gap (schedule_id, first_at, last_at, times, reason)
                select s.id, date_trunc('hour', clock_timestamp()) - interval '17 hours', date_trunc('hour', clock_timestamp()) - interval '14 hours', 4, 'missed' from tenure.schedule s
                union all
                select s.id, date_trunc('hour', clock_timestamp()) - interval '13.5 hours', date_trunc('hour', clock_timestamp()) - interval '9.5 hours', null, 'paused' from tenure.schedule s";
        sql.batch_execute(history).await.unwrap();
        let now = client.now().await.unwrap();
        let audit = client.audit_schedule("hourly", now - 48 * HOUR, None).await.unwrap();
        let found: Vec<_> = audit.left_out.iter().map(|out| (out.why, out.times)).collect();
        let expected = [(Absence::Overlap, 1), (Absence::Missed, 4), (Absence::Paused, 4), (Absence::Unexplained, 1)];
        assert_eq!(found, expected.map(|(why, times)| (why, Some(times))));
        assert_eq!((audit.times, audit.with_job, audit.cut, audit.is_missing_any()), (24, 14, false, true));
        let decided = client.audit_schedule("hourly", now - 20 * HOUR, Some(now - 6 * HOUR)).await.unwrap();
        assert!(!decided.is_missing_any(), "{decided:?}");
        // A backfill is what explains it away.
        client.add_backfill(&Backfill::new("hourly", now - 5 * HOUR), None).await.unwrap();
        sql.execute("select tenure.due_schedules(true)", &[]).await.unwrap();
        let after = client.audit_schedule("hourly", now - 5 * HOUR, None).await.unwrap();
        assert_eq!((after.left_out.len(), after.is_missing_any()), (0, false), "{after:?}");
        sql.batch_execute("update tenure.schedule set next_at = date_trunc('hour', clock_timestamp()) - interval '1 hour', look_at = clock_timestamp() - interval '1 hour'; delete from tenure.schedule_run")
            .await
            .unwrap();
        let overdue = client.audit_schedule("hourly", now - 70 * Duration::from_secs(60), None).await.unwrap();
        assert!(overdue.left_out.iter().any(|out| out.why == Absence::Overdue), "{overdue:?}");
        let troubled = client.troubled_schedules(None).await.unwrap().schedules;
        assert_eq!((troubled[0].name.as_str(), troubled[0].state.as_str()), ("hourly", "overdue"));
        assert_eq!(client.audit_schedule("none", now - HOUR, None).await.unwrap_err().code(), ErrorCode::NotFound);
    })
    .await;
}

#[tokio::test]
async fn a_backfill_that_begins_while_its_schedule_is_removed_is_refused_or_goes_with_it() {
    on_stage(Size::Ci, async |stage| {
        hourly(stage).await;
        let (mut one, mut other) = (stage.db.sql().await, stage.db.sql().await);
        let (remove, begin) = (
            "select tenure.remove_schedule('hourly')",
            "select tenure.add_backfill('hourly', array['2026-01-01Z', '2026-01-02Z']::timestamptz[])",
        );
        let waits = async |what: &str| {
            until_within(Duration::from_secs(5), "it waits for the row", async || {
                let waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like '%' || $1 || '%'";
                stage.count(waiting, &[&what]).await == 1
            })
            .await;
        };
        // The backfill is first: the removal waits, and finds it.
        let tx = one.transaction().await.unwrap();
        let id: i64 = tx.query_one(begin, &[]).await.unwrap().get(0);
        let ((), removed) = tokio::join!(
            async {
                waits("remove_schedule").await;
                tx.commit().await.unwrap();
            },
            async { other.query_one(remove, &[]).await.unwrap().get::<_, bool>(0) }
        );
        assert!(removed);
        assert_eq!(state(stage, id).await, "cancelled 0/2 0 0 0");
        // The removal is first: there is nothing left to backfill.
        hourly(stage).await;
        let tx = other.transaction().await.unwrap();
        tx.query_one(remove, &[]).await.unwrap();
        let ((), begun) = tokio::join!(
            async {
                waits("add_backfill").await;
                tx.commit().await.unwrap();
            },
            async { one.query_one(begin, &[]).await.unwrap().get::<_, Option<i64>>(0) }
        );
        assert_eq!(begun, None);
    })
    .await;
}

#[tokio::test]
async fn a_backfill_without_its_schedule_ends_as_a_cancelled_one() {
    on_stage(Size::Ci, async |stage| {
        let schedule = hourly(stage).await;
        let (removed, gone) = (begin(stage, 5, 2, false).await, begin(stage, 5, 2, false).await);
        turn(stage).await;
        let strand = "update tenure.schedule_backfill set schedule_id = case when id = $1 then schedule_id else schedule_id + 1000 end";
        stage.execute(strand, &[&removed]).await;
        let remove = "update tenure.schedule set removed_at = clock_timestamp(), look_at = 'infinity' where id = $1";
        stage.execute(remove, &[&schedule]).await;
        turn(stage).await;
        assert_eq!(state(stage, removed).await, "cancelled 2/5 2 0 0");
        assert_eq!(state(stage, gone).await.split(' ').next(), Some("cancelled"));
        assert_eq!(stage.count("select count(*) from tenure.ready", &[]).await, 0);
        stage.db.check_invariants().await;
    })
    .await;
}

#[tokio::test]
async fn an_array_of_times_may_begin_anywhere() {
    on_stage(Size::Ci, async |stage| {
        hourly(stage).await;
        let mut hand = stage.hand(&Registration::default()).await;
        for times in
            ["[0:1]={2026-01-01Z,2026-01-02Z}", "[7:8]={2026-02-01Z,2026-02-02Z}", "{{2026-03-01Z,2026-03-02Z}}"]
        {
            let begin = format!("select tenure.add_backfill('hourly', '{times}')");
            let id: i64 = stage.one(&begin, &[]).await;
            turn(stage).await;
            assert_eq!(state(stage, id).await, "active 2/2 2 0 2", "{times}");
            let ran = format!("select tenure.ran_of('hourly', '{times}')");
            assert_eq!(stage.count(&ran, &[]).await, 2, "{times}");
            let ends =
                "select count(*) from tenure.backfills where id = $1 and first_at < last_at and not newest_first";
            assert_eq!(stage.count(ends, &[&id]).await, 1, "{times}");
            assert_eq!(end_all(&mut hand, 2).await, 2);
        }
    })
    .await;
}
