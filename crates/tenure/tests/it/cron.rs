//! tick() in the place of workers: by the times that programs have computed before.

use std::time::Duration;

use serde_json::Value;
use tenure::testing::{TestDatabase, until, with_database};
use tenure::{Client, Context, Enqueue, Fail, KindOptions, Missed, RawJson, Rule, RunningWorker, Schedule, Worker};
use tenure_scenarios::scenario::pg_cron::in_the_place_of_workers;
use tenure_scenarios::{Size, assert_held, on_stage};

/// As pg_cron would.
async fn tick(db: &TestDatabase) -> Value {
    let row = db.sql().await.query_one("select tenure.tick()::text", &[]).await.unwrap();
    serde_json::from_str(row.get(0)).unwrap()
}

fn schedule(name: &str, rule: &str) -> Schedule {
    Schedule::new(name, Rule::new(rule, "UTC").unwrap(), Enqueue::raw("k", RawJson::parse("{}").unwrap()))
}

async fn worker(db: &TestDatabase) -> RunningWorker {
    let handler = |_: Context, _: RawJson| async { Ok::<_, Fail>(None) };
    let builder = Worker::builder(db.url()).queue("default", 1).handle_raw("k", KindOptions::new(), handler);
    builder.start().await.unwrap()
}

/// Adds a schedule of each minute that has times from so many minutes ago on, and up to so many ahead.
async fn with_times(db: &TestDatabase, client: &Client, schedule: &Schedule, ago: i32, ahead: i32) {
    client.add_schedule(schedule).await.unwrap();
    let times = "insert into tenure.schedule_ahead (schedule_id, version, times, complete, computed_at)
        select s.id, s.version, array(select date_trunc('second', now()) + n * interval '1 minute' from generate_series(-$2::int, $3::int) n order by n), false, now()
        from tenure.schedule s where s.name = $1
        on conflict (schedule_id) do update set times = excluded.times, complete = false";
    db.sql().await.execute(times, &[&schedule.name(), &ago, &ahead]).await.unwrap();
}

async fn runs(client: &Client, name: &str) -> (i64, i64, String) {
    let info = client.schedule(name).await.unwrap().unwrap();
    (info.runs, info.left_out, info.state)
}

#[tokio::test]
async fn with_no_worker_schedules_fire_by_the_times_ahead_and_jobs_become_ready() {
    with_database(async |db| {
        let client = db.client().await;
        assert_eq!(tick(db).await["ran"], true);
        // From now on somebody wants times.
        client.add_schedule(&schedule("each", "@every 1s")).await.unwrap();
        let ahead = "select cardinality(times) from tenure.schedule_ahead";
        let times: i32 = db.sql().await.query_one(ahead, &[]).await.unwrap().get(0);
        assert_eq!(times, 512);
        let later = client.enqueue(Enqueue::raw("k", RawJson::null()).delay(Duration::from_millis(300))).await.unwrap();
        until("it has fired twice", async || {
            tick(db).await;
            runs(&client, "each").await.0 >= 2
        })
        .await;
        until("the job is ready", async || {
            tick(db).await;
            client.get(later).await.unwrap().unwrap().status.as_str() == "available"
        })
        .await;
        let gaps = "select count(*) from (select logical_at - lag(logical_at) over (order by logical_at) as step from tenure.schedule_run) s where step <> '1 s'";
        assert_eq!(db.sql().await.query_one(gaps, &[]).await.unwrap().get::<_, i64>(0), 0);
        assert_eq!(runs(&client, "each").await.1, 0);
    })
    .await;
}

#[tokio::test]
async fn what_was_missed_follows_the_policy_also_without_a_worker() {
    with_database(async |db| {
        let client = db.client().await;
        let all = Missed::All { max: 3, window: Duration::from_secs(86_400) };
        let young = Missed::All { max: 1_000, window: Duration::from_secs(210) };
        for (name, missed, expected) in [
            // 0 to 6 minutes ago: the last one is only late.
            ("skip", Missed::Skip, (1, 6)),
            ("latest", Missed::Latest, (1, 6)),
            ("all", all, (4, 3)),
            ("young", young, (4, 3)),
        ] {
            with_times(db, &client, &schedule(name, "@every 1m").missed(missed), 6, 3).await;
            assert_eq!(tick(db).await["jobs"], expected.0, "{name}");
            let (fired, left_out, state) = runs(&client, name).await;
            assert_eq!(((fired, left_out), state.as_str()), (expected, "active"), "{name}");
            let again = tick(db).await;
            assert_eq!((&again["jobs"], &again["failed"]), (&0.into(), &0.into()), "{name}");
        }
    })
    .await;
}

#[tokio::test]
async fn what_came_since_the_last_call_is_late_and_not_missed() {
    with_database(async |db| {
        let client = db.client().await;
        with_times(db, &client, &schedule("n", "@every 1m").missed(Missed::Skip), 1, 3).await;
        let called = "update tenure.duty set next_at = clock_timestamp() - interval '61 seconds' where name = 'cron'";
        db.sql().await.execute(called, &[]).await.unwrap();
        assert_eq!(tick(db).await["jobs"], 2, "of a minute ago, and of now");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_times_end_the_schedule_says_so_until_a_worker_comes() {
    with_database(async |db| {
        let client = db.client().await;
        let missed = Missed::All { max: 1_000, window: Duration::from_secs(3_600) };
        with_times(db, &client, &schedule("short", "@every 1m").missed(missed), 3, 0).await;
        let sql = db.sql().await;
        sql.execute("select tenure.add_schedule('none', '@every 1s', 'UTC', 'k', '{}')", &[]).await.unwrap();
        assert_eq!(tick(db).await["jobs"], 0, "which time follows the last one is not known");
        for name in ["short", "none"] {
            let info = client.schedule(name).await.unwrap().unwrap();
            assert_eq!((info.state.as_str(), info.runs), ("failing", 0), "{name}");
            assert!(info.error.as_deref().unwrap().starts_with("no times ahead: a worker has to come"), "{info:?}");
        }
        // Sooner than in a minute.
        sql.execute("update tenure.schedule set look_at = clock_timestamp()", &[]).await.unwrap();
        sql.execute("update tenure.duty set next_at = '-infinity' where name = 'net'", &[]).await.unwrap();
        let _worker = worker(db).await;
        until("a worker has mended them", async || {
            let [short, none] = [client.schedule("short").await.unwrap().unwrap(), client.schedule("none").await.unwrap().unwrap()];
            short.error.is_none() && short.next_at.is_some() && none.runs > 0
        })
        .await;
        let ahead = "select count(*) from tenure.schedule_ahead a join tenure.schedule s on s.id = a.schedule_id and s.version = a.version where cardinality(a.times) = 512";
        until("their times are known again", async || sql.query_one(ahead, &[]).await.unwrap().get::<_, i64>(0) == 2).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_lives_comes_first_and_no_time_has_two_jobs() {
    with_database(async |db| {
        let client = db.client().await;
        let _worker = worker(db).await;
        tick(db).await;
        client.add_schedule(&schedule("each", "@every 1s")).await.unwrap();
        let mut by_cron = 0;
        until("four runs", async || {
            by_cron += tick(db).await["jobs"].as_i64().unwrap();
            runs(&client, "each").await.0 >= 4
        })
        .await;
        assert_eq!(by_cron, 0, "nothing was overdue");
        let jobs = "select (select count(*) from tenure.job) - (select count(*) from tenure.schedule_run)";
        assert_eq!(db.sql().await.query_one(jobs, &[]).await.unwrap().get::<_, i64>(0), 0);
    })
    .await;
}

#[tokio::test]
async fn times_are_computed_only_where_somebody_asks_for_them_and_go_with_their_schedule() {
    on_stage(Size::Ci, async |stage| {
        let client = stage.db.client().await;
        client.add_schedule(&schedule("n", "@daily")).await.unwrap();
        let lists = "select count(*) from tenure.schedule_ahead";
        assert_eq!(stage.count(lists, &[]).await, 0);
        stage.execute("select tenure.tick()", &[]).await;
        assert!(client.pause_schedule("n", None, None).await.unwrap() && client.resume_schedule("n").await.unwrap());
        assert_eq!(stage.count(lists, &[]).await, 1);
        // Of a version that the schedule has no more, nothing is stored.
        let stale = "select tenure.set_times_ahead(json_build_array(json_build_object('id', id, 'version', version - 1, 'times_us', '[]'::json, 'complete', true))) from tenure.schedule";
        assert_eq!(stage.count(stale, &[]).await, 0);
        client.remove_schedule("n").await.unwrap();
        stage.execute("update tenure.duty set next_at = '-infinity' where name = 'cron all'", &[]).await;
        stage.execute("select tenure.tick()", &[]).await;
        assert_eq!(stage.count(lists, &[]).await, 0);
    })
    .await;
}

#[tokio::test]
async fn many_schedules_that_fail_keep_no_other_from_firing() {
    on_stage(Size::Ci, async |stage| {
        const FAILING: i64 = 450;
        const DUE: i64 = 300;
        stage.execute("select tenure.tick()", &[]).await;
        // More than two batches that have no times ahead, looked at before those that have some.
        let add = "select count(tenure.add_schedule(case when n > $1::bigint then 'due ' else 'no times ' end || n, '@every 1h', 'UTC', 'act', '{}')) from generate_series(1, $1::bigint + $2::bigint) n";
        stage.count(add, &[&FAILING, &DUE]).await;
        let times = "insert into tenure.schedule_ahead (schedule_id, version, times, complete, computed_at)
            select s.id, s.version, array[date_trunc('second', now()), date_trunc('second', now()) + interval '1 hour'], false, now() from tenure.schedule s where s.name like 'due%'";
        stage.execute(times, &[]).await;
        stage.execute("update tenure.schedule set look_at = now() - interval '1 minute' where name not like 'due%'", &[]).await;
        let done: String = stage.one("select tenure.tick()::text", &[]).await;
        let done: Value = serde_json::from_str(&done).unwrap();
        assert_eq!(done["jobs"], DUE, "{done}");
        let said = "select count(*) from tenure.schedule where error like 'no times ahead%'";
        assert_eq!(stage.count(said, &[]).await, FAILING);
    })
    .await;
}

#[tokio::test]
async fn an_entry_of_pg_cron_whose_role_is_gone_is_named_as_such() {
    with_database(async |db| {
        let entries = "create schema cron;
            create table cron.job (jobid bigint, jobname text, schedule text, command text, database text, username text, active boolean);
            create table cron.job_run_details (jobid bigint, runid bigint, status text, return_message text);
            insert into cron.job values (7, 'tenure', '* * * * *', 'select tenure.tick()', current_database(), 'nobody_of_this_name', true)";
        db.sql().await.batch_execute(entries).await.unwrap();
        let checks = db.client().await.check_pg_cron().await.unwrap();
        let named = checks.iter().find(|check| check.found.contains("there is no role \"nobody_of_this_name\" any more"));
        assert!(named.is_some_and(|check| check.way_out.as_deref().unwrap_or_default().contains("jobid = 7")), "{checks:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pg_cron_fires_schedules_and_promotes_jobs_with_no_worker() {
    assert_held(&in_the_place_of_workers().await);
}
