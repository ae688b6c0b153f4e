//! What is decided about times of schedules: beside jobs that were run by hand, before a worker has come, and when what is noted goes.

use tenure_scenarios::protocol::Registration;
use tenure_scenarios::{Size, on_stage};

use crate::schedules::{add, fire, past, states};

#[tokio::test]
async fn the_next_time_meets_the_last_job_and_the_one_that_was_run_by_hand() {
    on_stage(Size::Ci, async |stage| {
        for (overlap, expected) in
            [("allow", "fired fired fired"), ("skip", "fired overlap overlap"), ("queue", "fired queued overlap")]
        {
            let (id, t) = (add(stage, overlap).await, past(stage).await);
            fire(stage, id, None, &[t], Some(t + 1)).await;
            let fired: i64 = stage.one("select last_job_id from tenure.schedule where id = $1", &[&id]).await;
            let by_hand: i64 = stage.one("select tenure.run_schedule($1)", &[&overlap]).await;
            let mut hand = stage.hand(&Registration::default()).await;
            let (jobs, _) = hand.claim(2).await.unwrap();
            assert_eq!(jobs.len(), 2, "{overlap}");
            // One of them ends, and then the other one is what is met.
            let of = |id: i64| jobs.iter().position(|job| job.job == id).unwrap();
            let (ends, stays) = if overlap == "skip" { (fired, by_hand) } else { (by_hand, fired) };
            hand.complete(&jobs[of(ends)..=of(ends)]).await.unwrap();
            for n in 1..3 {
                fire(stage, id, Some(t + n), &[t + n], Some(t + n + 1)).await;
            }
            let of_the_rule = "select string_agg(state, ' ' order by logical_at) from tenure.schedule_run where schedule_id = $1 and state <> 'by hand'";
            assert_eq!(stage.one::<String>(of_the_rule, &[&id]).await, expected, "{overlap}");
            hand.complete(&jobs[of(stays)..=of(stays)]).await.unwrap();
            fire(stage, id, Some(t + 3), &[t + 3], Some(t + 4)).await;
            let left = "select cardinality(hand_jobs)::bigint from tenure.schedule where id = $1";
            assert_eq!(stage.count(left, &[&id]).await, 0, "{overlap}: nothing of it is left");
            stage.db.check_invariants().await;
            let (rest, _) = hand.claim(10).await.unwrap();
            hand.complete(&rest).await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn in_favour_of_the_next_time_the_last_job_and_the_one_run_by_hand_are_cancelled() {
    on_stage(Size::Ci, async |stage| {
        let (id, t) = (add(stage, "cancel").await, past(stage).await);
        fire(stage, id, None, &[t], Some(t + 1)).await;
        let by_hand: i64 = stage.one("select tenure.run_schedule('cancel')", &[]).await;
        fire(stage, id, Some(t + 1), &[t + 1], Some(t + 2)).await;
        let states = "select string_agg(status, ' ' order by id) from tenure.jobs";
        assert_eq!(stage.one::<String>(states, &[]).await, "cancelled cancelled available");
        let last: i64 = stage.one("select last_job_id from tenure.schedule", &[]).await;
        assert!(last > by_hand);
    })
    .await;
}

#[tokio::test]
async fn only_the_last_hundred_of_very_many_runs_by_hand_are_looked_at() {
    on_stage(Size::Ci, async |stage| {
        let id = add(stage, "skip").await;
        let many = "update tenure.schedule set hand_jobs = (select array_agg(j.id order by j.id) from tenure.enqueue_many('act', array_fill('{}'::json, array[150])) as j(id))";
        stage.execute(many, &[]).await;
        let newest: i64 = stage.one("select tenure.run_schedule('skip')", &[]).await;
        let kept: Vec<i64> = stage.one("select hand_jobs from tenure.schedule where id = $1", &[&id]).await;
        assert_eq!((kept.len(), kept.last()), (100, Some(&newest)));
    })
    .await;
}

#[tokio::test]
async fn what_came_before_a_worker_had_computed_a_time_is_noted_when_it_is_edited_or_paused() {
    on_stage(Size::Ci, async |stage| {
        for (name, verb, reason) in [
            ("paused", "select tenure.pause_schedule('paused')", "paused"),
            ("edited", "select tenure.edit_schedule('edited', 1, '@every 2s', 'UTC', 'act', '{}')", "changed"),
        ] {
            let add = "select tenure.add_schedule($1, '@every 1s', 'UTC', 'act', '{}')";
            let id: i64 = stage.one(add, &[&name]).await;
            let older = "update tenure.schedule set changed_at = '2026-01-01T00:00:00.5Z' where id = $1";
            stage.execute(older, &[&id]).await;
            stage.execute(verb, &[]).await;
            let noted = "select count(*) from tenure.schedule_gap where schedule_id = $1 and reason = $2 and first_at = '2026-01-01T00:00:01Z'
                and last_at > clock_timestamp() - interval '1 minute'";
            assert_eq!(stage.count(noted, &[&id, &reason]).await, 1, "{name}");
        }
        // Of one that has just been added no time can have come, and one that has ended has none.
        let gaps = "select count(*) from tenure.schedule_gap g join tenure.schedule s on s.id = g.schedule_id where s.name = $1";
        stage.one::<i64>("select tenure.add_schedule('new', '@every 1s', 'UTC', 'act', '{}')", &[]).await;
        let whole = "update tenure.schedule set changed_at = date_trunc('second', clock_timestamp()) + interval '0.999 seconds' where name = 'new'";
        stage.execute(whole, &[]).await;
        stage.one::<bool>("select tenure.pause_schedule('new')", &[]).await;
        assert_eq!(stage.count(gaps, &[&"new"]).await, 0);
        let (ended, t) = (add(stage, "allow").await, past(stage).await);
        stage.execute("update tenure.schedule set changed_at = '2026-01-01Z' where id = $1", &[&ended]).await;
        fire(stage, ended, None, &[t], None).await;
        stage.one::<bool>("select tenure.pause_schedule('allow')", &[]).await;
        assert_eq!(stage.count(gaps, &[&"allow"]).await, 0);
    })
    .await;
}

#[tokio::test]
async fn what_is_noted_of_a_schedule_that_only_overlaps_is_forgotten_as_well() {
    on_stage(Size::Ci, async |stage| {
        let (id, t) = (add(stage, "skip").await, past(stage).await);
        fire(stage, id, None, &[t], Some(t + 1)).await;
        let old = "insert into tenure.schedule_run (schedule_id, logical_at, state)
            select $1, timestamptz '2020-01-01Z' + n * interval '1 hour', 'overlap' from generate_series(1, 10500) n";
        stage.execute(old, &[&id]).await;
        // One turn of 200 looks whether there is something to forget.
        let turns = "do $$ declare v tenure.schedule; begin
             perform setseed(0.5);
             for n in 1 .. 2000 loop
               select s.* into v from tenure.schedule s where s.name = 'skip';
               perform tenure.fire(json_build_array(json_build_object('id', v.id, 'version', v.version, 'look_us', tenure.to_us(v.look_at), 'was_us', tenure.to_us(v.next_at),
                 'fire_us', array[tenure.to_us(v.next_at)], 'next_us', tenure.to_us(v.next_at + interval '1 second'), 'more', false)));
             end loop; end $$";
        stage.sql.batch_execute(turns).await.unwrap();
        let left = "select count(*) from tenure.schedule_run where logical_at < '2026-01-01Z' and schedule_id = $1";
        assert!(stage.count(left, &[&id]).await < 10_500);
        assert_eq!(stage.count("select left_out from tenure.schedule where id = $1", &[&id]).await, 2_000);
        assert!(states(stage, id).await.ends_with("overlap"));
    })
    .await;
}

#[tokio::test]
async fn a_clock_that_was_set_back_ends_no_schedule_that_is_edited_or_resumed() {
    on_stage(Size::Ci, async |stage| {
        for (name, verb) in [
            ("edited", "select tenure.edit_schedule('edited', 1, '@every 2s', 'UTC', 'act', '{}')"),
            ("resumed", "select tenure.pause_schedule('resumed') and tenure.resume_schedule('resumed')"),
        ] {
            let add = "select tenure.add_schedule($1, '@every 1s', 'UTC', 'act', '{}')";
            let id: i64 = stage.one(add, &[&name]).await;
            let t = past(stage).await;
            fire(stage, id, None, &[t], Some(t + 1)).await;
            let ahead = "update tenure.schedule set last_at = last_at + interval '2 min', next_at = next_at + interval '2 min', look_at = look_at + interval '2 min' where id = $1";
            stage.execute(ahead, &[&id]).await;
            assert!(stage.one::<bool>(verb, &[]).await, "{name}");
            let state = "select state from tenure.schedules where id = $1";
            assert_eq!(stage.one::<String>(state, &[&id]).await, "active", "{name}");
            let from = "select (d ->> 'from_us')::bigint from json_array_elements(tenure.due_schedules(true) -> 'schedules') as d where (d ->> 'id')::bigint = $1";
            assert!(stage.one::<Option<i64>>(from, &[&id]).await.is_some(), "{name}: a worker computes its times");
            assert_eq!(fire(stage, id, None, &[t + 1], Some(t + 2)).await["jobs"], 1, "{name}");
            // And what has no further time has ended, with its last one ahead or not.
            fire(stage, id, Some(t + 2), &[t + 2], None).await;
            assert_eq!(stage.one::<String>(state, &[&id]).await, "ended", "{name}");
        }
    })
    .await;
}

#[tokio::test]
async fn what_waits_starts_when_overlap_is_allowed_from_now_on() {
    on_stage(Size::Ci, async |stage| {
        let (id, t) = (add(stage, "queue").await, past(stage).await);
        fire(stage, id, None, &[t], Some(t + 1)).await;
        let mut hand = stage.hand(&Registration::default()).await;
        assert_eq!(hand.claim(1).await.unwrap().0.len(), 1);
        fire(stage, id, Some(t + 1), &[t + 1], Some(t + 2)).await;
        assert_eq!(states(stage, id).await, "fired queued");
        let edit = "select tenure.edit_schedule('queue', 1, '@every 1s', 'UTC', 'act', '{\"Sleep\":{\"ms\":0}}', p_overlap => 'allow')";
        assert!(stage.one::<bool>(edit, &[]).await);
        let due = "select count(*) from tenure.schedule where look_at <= clock_timestamp()";
        assert_eq!(stage.count(due, &[]).await, 1, "it is looked at at once");
        assert_eq!(fire(stage, id, Some(t + 2), &[], Some(t + 2)).await["jobs"], 1, "the first one still runs");
        assert_eq!(states(stage, id).await, "fired fired");
        stage.db.check_invariants().await;
    })
    .await;
}

/// PostgreSQL takes such a name for an offset that is the same all year.
#[tokio::test]
async fn local_times_are_those_of_the_zone_also_where_its_name_is_an_abbreviation() {
    on_stage(Size::Ci, async |stage| {
        let names = "select array_agg(distinct n.name) from pg_timezone_names n join pg_timezone_abbrevs a on a.abbrev = upper(n.name)";
        let names: Vec<String> = stage.one(names, &[]).await;
        assert!(["CET", "EET", "MET", "WET", "EST", "MST", "HST"].iter().all(|name| names.iter().any(|n| n == name)));
        let add = "select tenure.add_schedule($1, '@daily', $1, 'act', '[\"{{logical_local}}\", \"{{logical_date}}\"]')";
        let render = "select (tenure.render_payload(s, to_timestamp($2::bigint)) ->> $3::integer) from tenure.schedule s where s.name = $1";
        let mut summers = 0;
        for name in &names {
            stage.one::<i64>(add, &[name]).await;
            let zone = jiff::tz::TimeZone::get(name).unwrap();
            // Shortly before midnight in winter and in summer: an hour less is another day.
            for second in [1_768_602_600_i64, 1_784_240_999] {
                let at = jiff::Timestamp::from_second(second).unwrap().to_zoned(zone.clone()).datetime();
                let (local, date): (String, String) = (
                    stage.one(render, &[name, &second, &0_i32]).await,
                    stage.one(render, &[name, &second, &1_i32]).await,
                );
                assert_eq!((local, date), (at.to_string(), at.date().to_string()), "{name} {second}");
            }
            let offset = |second| zone.to_offset(jiff::Timestamp::from_second(second).unwrap()).seconds();
            summers += i32::from(offset(1_768_602_600) != offset(1_784_240_999));
        }
        assert!(summers >= 4, "CET, EET, MET and WET have a summer: {summers}");
        assert_ne!(stage.one::<String>("show timezone", &[]).await, *names.last().unwrap(), "it is set for nobody else");
    })
    .await;
}
