//! Very many at once, and those that were neglected: nothing of it is late for the others' sake.

use std::time::Duration;

use tenure::testing::{until_within, with_database};
use tenure::{Context, Fail, KindOptions, RawJson, Worker};
use tenure_scenarios::protocol::Registration;
use tenure_scenarios::{Size, on_stage};

use crate::old_snapshots::buffers;
use crate::schedules::{add, fire, past};

#[tokio::test]
async fn those_that_are_due_at_the_same_instant_make_the_firing_of_one_no_dearer() {
    on_stage(Size::Ci, async |stage| {
        const FIRED: usize = 50;
        const OTHERS: i64 = 4_000;
        let add = "select count(tenure.add_schedule($2 || n, '@every 1s', 'UTC', 'act', '{}')) from generate_series(1, $1::bigint) n";
        stage.count(add, &[&(FIRED as i64), &"s"]).await;
        let due = "update tenure.schedule set look_at = '2026-01-01Z', next_at = '2026-01-01Z'";
        // Nothing has come: it is the search that counts.
        let plans = "select json_agg(json_build_object('id', s.id, 'version', s.version, 'look_us', tenure.to_us(s.look_at), 'was_us', tenure.to_us(s.next_at),
                'fire_us', '{}'::bigint[], 'next_us', tenure.to_us('2100-01-01Z'), 'more', false))::text from tenure.schedule s where s.name ~ '^s'";
        let cost = async || {
            let mut least = i64::MAX;
            for _ in 0..3 {
                stage.execute(due, &[]).await;
                stage.execute("vacuum analyze tenure.schedule", &[]).await;
                let plans: String = stage.one(plans, &[]).await;
                least = least.min(buffers(&stage.sql, &format!("select tenure.fire('{plans}')")).await);
            }
            least
        };
        let alone = cost().await;
        stage.count(add, &[&OTHERS, &"other"]).await;
        let among = cost().await;
        let due = "select count(*) from tenure.schedule where look_at = '2026-01-01Z'";
        assert_eq!(stage.count(due, &[]).await, OTHERS, "the others are still due, and these are not");
        // One walk over the others' entries, which has some tens of pages; one for each would have thousands.
        assert!(among < alone + 500, "{alone}, then {among}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_an_outage_more_schedules_than_one_turn_takes_are_caught_up_with_at_once() {
    with_database(async |db| {
        let sql = db.sql().await;
        // One more than a turn takes.
        let add = "select count(tenure.add_schedule('s' || n, '@every 1h', 'UTC', 'tick', '{}', 'ticks')) from generate_series(1, 1001) n";
        sql.query(add, &[]).await.unwrap();
        let neglect = "update tenure.schedule set anchor_at = h.at, changed_at = h.at, next_at = h.at, look_at = h.at
            from (select date_trunc('second', clock_timestamp()) - interval '55 minutes' as at) h";
        sql.execute(neglect, &[]).await.unwrap();
        let handler = |_: Context, _: RawJson| async { Ok::<_, Fail>(None) };
        let builder = Worker::builder(db.url()).queue("ticks", 4).handle_raw("tick", KindOptions::new(), handler);
        let _worker = builder.start().await.unwrap();
        // What is left alone comes with the next look for everything: half a minute later.
        until_within(Duration::from_secs(20), "all have fired", async || {
            let left = "select count(*) from tenure.schedule where runs = 0";
            sql.query_one(left, &[]).await.unwrap().get::<_, i64>(0) == 0
        })
        .await;
        let wrong = "select count(*) from tenure.schedule where runs <> 1 or next_at < clock_timestamp()";
        assert_eq!(sql.query_one(wrong, &[]).await.unwrap().get::<_, i64>(0), 0);
    })
    .await;
}

#[tokio::test]
async fn when_more_becomes_due_at_once_than_a_look_moves_the_next_look_is_asked_for_at_once() {
    on_stage(Size::Ci, async |stage| {
        let hand = stage.hand(&Registration::default()).await;
        let add = "select count(tenure.enqueue('act', '{}', p_delay_ms => 3600000)) from generate_series(1, 1001) n";
        assert_eq!(stage.count(add, &[]).await, 1_001);
        // Between two turns.
        stage.execute("select tenure.set_turn('tick', clock_timestamp() + interval '1900 ms')", &[]).await;
        stage.execute("update tenure.later set due_at = clock_timestamp()", &[]).await;
        let look = "select concat_ws(' ', t ->> 'ran', t ->> 'promoted', t ->> 'due_ms') from tenure.tick($1) as t";
        assert_eq!(stage.one::<String>(look, &[&hand.worker]).await, "false 1000 0");
        assert_eq!(stage.one::<String>(look, &[&hand.worker]).await, "false 1");
    })
    .await;
}

#[tokio::test]
async fn a_schedule_is_overdue_when_its_time_has_come_and_not_when_it_was_edited() {
    on_stage(Size::Ci, async |stage| {
        stage.count("select tenure.add_schedule('s', '@every 1h', 'UTC', 'act', '{}')", &[]).await;
        let state = "select coalesce(string_agg(state, ' '), 'none') from tenure.troubled_schedules()";
        for (next, queued, expected) in [
            ("1 hour", None, "none"),
            ("-5 seconds", None, "none"),
            ("-11 seconds", None, "overdue"),
            ("1 hour", Some("-1 hour"), "overdue"),
        ] {
            let set = "update tenure.schedule set next_at = clock_timestamp() + $1::text::interval, queued_at = clock_timestamp() + $2::text::interval,
                look_at = clock_timestamp() - interval '11 seconds'";
            stage.execute(set, &[&next, &queued]).await;
            assert_eq!(stage.one::<String>(state, &[]).await, expected, "{next} {queued:?}");
        }
        stage.execute("update tenure.schedule set queued_at = null", &[]).await;
    })
    .await;
}

#[tokio::test]
async fn a_rule_that_one_program_cannot_read_is_left_to_the_others_for_a_moment() {
    on_stage(Size::Ci, async |stage| {
        let add = "select count(tenure.add_schedule(n, '@every 1h', 'UTC', 'act', '{}')) from unnest('{one,two}'::text[]) n";
        stage.count(add, &[]).await;
        let unread = "select (tenure.fire((select json_agg(json_build_object('id', s.id, 'version', s.version, 'look_us', tenure.to_us(s.look_at),
                'was_us', tenure.to_us(s.next_at), 'fire_us', '{}'::bigint[], 'next_us', tenure.to_us(s.next_at), 'more', false, 'error', 'no such zone here', 'unread', true))
              from tenure.schedule s)) ->> 'failed')::bigint";
        let due = async |ago: &str| {
            let due = "update tenure.schedule set next_at = clock_timestamp() - $1::text::interval, look_at = clock_timestamp() - $1::text::interval";
            stage.execute(due, &[&ago]).await;
            stage.count(unread, &[]).await
        };
        let state = "select string_agg(concat_ws(' ', s.suspect, s.error is null, s.look_at <= clock_timestamp()), ', ') from tenure.schedule s";
        assert_eq!(due("1 second").await, 0);
        assert_eq!(stage.one::<String>(state, &[]).await, "t t t, t t t", "they are still due, after the others");
        assert_eq!(crate::failing::turn(stage).await["jobs"], 2, "another program reads them");
        assert_eq!(due("6 seconds").await, 2);
        assert_eq!(stage.one::<String>(state, &[]).await, "f f f, f f f");
        stage.db.check_invariants().await;
    })
    .await;
}

#[tokio::test]
async fn what_waits_for_the_end_of_a_job_is_looked_at_ever_more_seldom() {
    on_stage(Size::Ci, async |stage| {
        let (id, t) = (add(stage, "queue").await, past(stage).await);
        fire(stage, id, None, &[t], Some(t + 1)).await;
        let mut hand = stage.hand(&Registration::default()).await;
        assert_eq!(hand.claim(1).await.unwrap().0.len(), 1);
        let hour = t + 3_600;
        fire(stage, id, Some(t + 1), &[t + 1], Some(hour)).await;
        let look_ms = "select (extract(epoch from look_at - clock_timestamp()) * 1000)::bigint from tenure.schedule";
        let soon = stage.count(look_ms, &[]).await;
        assert!((500..=1_500).contains(&soon), "{soon}");
        for since in [
            "update tenure.schedule set queued_at = queued_at - interval '10 minutes'",
            "update tenure.schedule_run set logical_at = logical_at - interval '10 minutes' where state = 'queued'",
        ] {
            stage.execute(since, &[]).await;
        }
        fire(stage, id, Some(hour), &[], Some(hour)).await;
        let late = stage.count(look_ms, &[]).await;
        assert!((4_000..=5_000).contains(&late), "{late}");
        stage.db.check_invariants().await;
    })
    .await;
}

#[tokio::test]
async fn a_schedule_that_nobody_looks_at_though_it_has_not_ended_breaks_an_invariant() {
    on_stage(Size::Ci, async |stage| {
        let id = add(stage, "allow").await;
        for (ended, broken) in [(false, 1), (true, 0)] {
            let rest = "update tenure.schedule set look_at = null, next_at = null, ended = $2 where id = $1";
            stage.execute(rest, &[&id, &ended]).await;
            assert_eq!(stage.db.broken_invariants().await.len(), broken, "ended: {ended}");
        }
    })
    .await;
}

#[tokio::test]
async fn each_duty_of_the_net_is_one() {
    on_stage(Size::Ci, async |stage| {
        let duties: Vec<String> = stage.one("select tenure.net_duties()", &[]).await;
        assert!(duties.iter().any(|duty| duty == "limits"), "{duties:?}");
        for duty in duties {
            stage.execute("select tenure.net($1)", &[&duty]).await;
        }
    })
    .await;
}
