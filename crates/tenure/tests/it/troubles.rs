//! Schedules that do not fire: which are in trouble, and which only wait for their time.

use std::time::{Duration, SystemTime};

use tenure::testing::with_database;
use tenure::{Client, Enqueue, RawJson, Rule, Schedule};

fn schedule(name: &str, rule: &str) -> Schedule {
    Schedule::new(name, Rule::new(rule, "UTC").unwrap(), Enqueue::raw("k", RawJson::null()))
}

async fn troubled(client: &Client) -> Vec<(String, String, SystemTime)> {
    let found = client.troubled_schedules(None).await.unwrap();
    assert!(!found.cut);
    found.schedules.into_iter().map(|found| (found.name, found.state, found.since)).collect()
}

#[tokio::test]
async fn what_nobody_has_looked_at_is_overdue_only_when_its_time_has_come() {
    with_database(async |db| {
        let (client, sql) = (db.client().await, db.sql().await);
        client.add_schedule(&schedule("far", "@at 2199-01-01T00:00")).await.unwrap();
        client.add_schedule(&schedule("minutely", "* * * * *")).await.unwrap();
        sql.execute("select tenure.add_schedule('bad', '61 * * * *', 'UTC', 'k', '{}')", &[]).await.unwrap();
        let older = "update tenure.schedule set changed_at = t.at, ruled_at = t.at, look_at = t.at
            from (select clock_timestamp() - interval '1 hour' as at) t";
        sql.execute(older, &[]).await.unwrap();
        let minutely = client.schedule("minutely").await.unwrap().unwrap();
        let since = minutely.next_time().unwrap();
        assert!(since > minutely.changed_at && since <= minutely.changed_at + Duration::from_secs(60));
        let found = troubled(&client).await;
        let states: Vec<_> = found.iter().map(|(name, state, _)| (name.as_str(), state.as_str())).collect();
        assert_eq!(states, [("bad", "failing"), ("minutely", "overdue")]);
        assert_eq!(found[1].2, since);
        let bad = &client.troubled_schedules(None).await.unwrap().schedules[0];
        assert!(bad.error.as_deref().unwrap().contains("minute 61"), "{bad:?}");
        assert_eq!(client.troubled_schedules(Some(1)).await.unwrap().schedules.len(), 2, "one of each state");
        // SQL knows no rules, and says so.
        let states = "select string_agg(distinct state, ' ') from tenure.troubled_schedules()";
        assert_eq!(sql.query_one(states, &[]).await.unwrap().get::<_, &str>(0), "unplanned");

        // What a worker has computed is known to SQL as well.
        let planned = "update tenure.schedule set next_at = date_trunc('minute', look_at) where name = 'minutely'";
        sql.execute(planned, &[]).await.unwrap();
        sql.execute("delete from tenure.schedule where name = 'bad'", &[]).await.unwrap();
        assert_eq!(troubled(&client).await[0].1, "overdue");
        let states = "select string_agg(name || ' ' || state, ', ' order by name) from tenure.troubled_schedules()";
        let states = sql.query_one(states, &[]).await.unwrap();
        assert_eq!(states.get::<_, &str>(0), "far unplanned, minutely overdue");
        // A run that waits for the end of the one before is looked for again and again, long before the next time.
        let waits = "with queued as (
                update tenure.schedule set next_at = clock_timestamp() + interval '1 day', queued_at = look_at
                where name = 'minutely' returning id, queued_at)
            insert into tenure.schedule_run (schedule_id, logical_at, state) select id, queued_at, 'queued' from queued";
        sql.execute(waits, &[]).await.unwrap();
        let now = client.now().await.unwrap();
        assert!(troubled(&client).await[0].2 < now, "since then, and not from the next time on");
    })
    .await;
}

#[tokio::test]
async fn many_of_one_sort_hide_none_of_another_and_what_was_cut_is_said() {
    with_database(async |db| {
        let (client, sql) = (db.client().await, db.sql().await);
        // Their time has not come, and only their rules say so: more than one page of them, with one behind that is overdue.
        let many = "select tenure.add_schedule('far ' || n, '@at 2199-01-01T00:00', 'UTC', 'k', '{}') from generate_series(1, 2500) n";
        sql.batch_execute(many).await.unwrap();
        client.add_schedule(&schedule("minutely", "* * * * *")).await.unwrap();
        client.add_schedule(&schedule("planned", "* * * * *")).await.unwrap();
        let older = "update tenure.schedule set changed_at = t.at, look_at = t.at from (select clock_timestamp() - interval '1 hour' as at) t;
            update tenure.schedule set next_at = look_at where name = 'planned'";
        sql.batch_execute(older).await.unwrap();
        let found = troubled(&client).await;
        let mut names: Vec<_> = found.iter().map(|(name, state, _)| (name.as_str(), state.as_str())).collect();
        names.sort_unstable();
        assert_eq!(names, [("minutely", "overdue"), ("planned", "overdue")]);
        assert!(client.troubled_schedules(Some(1)).await.unwrap().cut, "one of two");
        // Thousands that fail hide none of these.
        let fail = "update tenure.schedule set error = 'e', error_at = look_at where name like 'far %'";
        sql.execute(fail, &[]).await.unwrap();
        let found = client.troubled_schedules(Some(1_000)).await.unwrap();
        assert!(found.cut);
        let count = |state: &str| found.schedules.iter().filter(|schedule| schedule.state == state).count();
        assert_eq!((count("failing"), count("overdue")), (1_000, 2));
    })
    .await;
}

#[tokio::test]
async fn the_next_time_that_is_shown_is_the_one_that_a_worker_computes() {
    with_database(async |db| {
        let (client, sql) = (db.client().await, db.sql().await);
        client.add_schedule(&schedule("minutely", "* * * * *")).await.unwrap();
        let next = async || client.schedule("minutely").await.unwrap().unwrap().next_time();
        let since = client.schedule("minutely").await.unwrap().unwrap().changed_at;
        // The clock was set back: the last run lies ahead of the change, from which on a worker computes.
        sql.batch_execute("update tenure.schedule set last_at = clock_timestamp() + interval '1 day'").await.unwrap();
        let shown = next().await.unwrap();
        assert!(shown > since && shown <= since + Duration::from_secs(60), "{shown:?}");
        // One that has ended has none, also while its last run waits for the one before, and however the clock went.
        let ended = "update tenure.schedule set ended = true, last_at = changed_at - interval '1 day', queued_at = changed_at;
            insert into tenure.schedule_run (schedule_id, logical_at, state) select id, queued_at, 'queued' from tenure.schedule";
        sql.batch_execute(ended).await.unwrap();
        let info = client.schedule("minutely").await.unwrap().unwrap();
        assert_eq!((info.state.as_str(), info.ended, info.next_time()), ("active", true, None));
        // A time that the rule does not have any more gives way to the one in its place.
        let moved = "update tenure.schedule set ended = false, next_at = date_trunc('minute', changed_at) + interval '150 seconds'";
        sql.batch_execute(moved).await.unwrap();
        let info = client.schedule("minutely").await.unwrap().unwrap();
        assert!(info.next_time() < info.next_at && info.next_time() > Some(since), "{info:?}");
    })
    .await;
}
