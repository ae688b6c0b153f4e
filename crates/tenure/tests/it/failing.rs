//! Schedules that fail, very many of them at once, beside one that does not.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tenure::testing::{until_within, with_database};
use tenure::{Context, Fail, KindOptions, RawJson, RunningWorker, Worker};
use tenure_scenarios::{Size, Stage, on_stage};

/// Fails by what is in the payload, which nothing but the attempt shows.
const REFUSE: &str = "
    create function refuse() returns trigger language plpgsql as $$ begin raise exception 'a bad one'; end $$;
    create trigger refuse before insert on tenure.job for each row when (new.payload::text like '%bad%') execute function refuse()";

/// What a worker would do about all that is due, each with the time for which it is due.
pub(crate) async fn turn(stage: &Stage) -> Value {
    let fire = "select coalesce((select tenure.fire(json_agg(json_build_object('id', d -> 'id', 'version', d -> 'version', 'look_us', d -> 'look_us', 'was_us', d -> 'next_us',
            'fire_us', json_build_array(d -> 'next_us'), 'out_us', null, 'next_us', (d ->> 'next_us')::bigint + 1000000000, 'more', false, 'error', null) order by n))
          from json_array_elements(tenure.due_schedules(true, 1000) -> 'schedules') with ordinality as due(d, n)), '{}')::text";
    serde_json::from_str(&stage.one::<String>(fire, &[]).await).unwrap()
}

pub(crate) async fn make_due(stage: &Stage) {
    let due = "update tenure.schedule set next_at = date_trunc('second', clock_timestamp()), look_at = date_trunc('second', clock_timestamp())";
    stage.execute(due, &[]).await;
}

#[tokio::test]
async fn those_that_may_fail_come_after_the_others_and_what_is_known_is_not_found_out_again() {
    on_stage(Size::Ci, async |stage| {
        stage.sql.batch_execute(REFUSE).await.unwrap();
        let add = "select count(tenure.add_schedule('s' || n, '@every 1s', 'UTC', 'act', case when n % 2 = 0 then '\"good\"' else '\"bad\"' end::json))
            from generate_series(1, 600) n";
        stage.count(add, &[]).await;
        make_due(stage).await;
        let first = turn(stage).await;
        assert_eq!(first["done"], 600, "all of them are fired, failed, or known to be suspect: {first}");
        let plain = "select count(*) from tenure.schedule where look_at <= clock_timestamp() and error is null and not suspect";
        assert_eq!(stage.count(plain, &[]).await, 0);
        // One that nobody suspects comes before all that are.
        stage.count("select tenure.add_schedule('new', '@every 1s', 'UTC', 'act', '\"good\"')", &[]).await;
        let order = "select tenure.due_schedules(true) -> 'schedules' -> 0 ->> 'name'";
        assert_eq!(stage.one::<String>(order, &[]).await, "new");
        stage.execute("select tenure.remove_schedule('new')", &[]).await;
        let mut turns = 1;
        while turn(stage).await["done"].as_i64().unwrap_or_default() > 0 {
            turns += 1;
            assert!(turns < 100);
        }
        let wrong = "select count(*) from tenure.schedule where removed_at is null
            and (payload::text = '\"good\"' and (runs <> 1 or suspect or error is not null) or payload::text <> '\"good\"' and (runs <> 0 or error <> 'a bad one'))";
        assert_eq!(stage.count(wrong, &[]).await, 0);
        // What failed, and was mended, is tried alone until it has fired.
        let mend = "select tenure.edit_schedule('s1', 1, '@every 1s', 'UTC', 'act', '\"mended\"')";
        assert!(stage.one::<bool>(mend, &[]).await);
        let state = "select (s.suspect, s.error is null, s.runs)::text from tenure.schedule s where s.name = 's1'";
        assert_eq!(stage.one::<String>(state, &[]).await, "(t,t,0)");
        make_due(stage).await;
        while stage.one::<String>(state, &[]).await != "(f,t,1)" {
            assert_ne!(turn(stage).await["done"], 0, "it has its turn");
        }
        stage.db.check_invariants().await;
    })
    .await;
}

#[tokio::test]
async fn what_is_alike_fails_apart_from_the_others() {
    on_stage(Size::Ci, async |stage| {
        stage.sql.batch_execute(REFUSE).await.unwrap();
        // By their kinds, and by payloads that cannot be put together: nothing but those is left of either.
        let add = "select count(tenure.add_schedule('s' || n, '@every 1s', 'UTC', case when n > 100 then 'other' else 'act' end, case when n > 100 then '\"bad\"' else '\"good\"' end::json))
            from generate_series(1, 200) n";
        stage.count(add, &[]).await;
        let large = "update tenure.schedule set payload = to_json(repeat('x', 70000)) where name in ('s7', 's17', 's77', 's87')";
        stage.execute(large, &[]).await;
        make_due(stage).await;
        assert_eq!(turn(stage).await["jobs"], 96, "all that can fire do, in the first turn");
    })
    .await;
}

#[tokio::test]
async fn schedules_that_somebody_has_are_neither_fired_nor_divided() {
    on_stage(Size::Ci, async |stage| {
        stage.sql.batch_execute(REFUSE).await.unwrap();
        let add = "select count(tenure.add_schedule('s' || n, '@every 1s', 'UTC', 'act', '\"bad\"')) from generate_series(1, 20) n";
        stage.count(add, &[]).await;
        make_due(stage).await;
        let mut other = stage.db.sql().await;
        let tx = other.transaction().await.unwrap();
        tx.query("select s.id from tenure.schedule s where s.name <> 's1' for update", &[]).await.unwrap();
        let done = turn(stage).await;
        assert_eq!((&done["failed"], &done["done"], &done["next_ms"]), (&json!(1), &json!(1), &json!(0)), "{done}");
        assert_eq!(turn(stage).await["done"], 0);
        tx.rollback().await.unwrap();
        assert_eq!(turn(stage).await["done"], 19);
    })
    .await;
}

async fn worker(url: &str) -> RunningWorker {
    let handler = |_: Context, _: RawJson| async { Ok::<_, Fail>(None) };
    Worker::builder(url).queue("ticks", 4).handle_raw("tick", KindOptions::new(), handler).start().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn very_many_that_fail_do_not_hold_up_one_that_does_not() {
    let failing: i64 = match Size::from_env() {
        Size::Ci => 300,
        Size::Full => 2_000,
    };
    with_database(async |db| {
        let sql = db.sql().await;
        sql.batch_execute(REFUSE).await.unwrap();
        let _workers = [worker(db.url()).await, worker(db.url()).await];
        let add = "select tenure.add_schedule('canary', '@every 1s', 'UTC', 'tick', '\"good\"', 'ticks', p_missed => 'all')";
        sql.query(add, &[]).await.unwrap();
        let runs = "select runs from tenure.schedule where name = 'canary'";
        until_within(Duration::from_secs(20), "it runs", async || {
            sql.query_one(runs, &[]).await.unwrap().get::<_, i64>(0) >= 2
        })
        .await;
        let add = "select count(tenure.add_schedule('s' || n, '@every 1s', 'UTC', 'tick', '\"bad!\"', 'ticks')) from generate_series(1, $1::bigint) n";
        sql.query(add, &[&failing]).await.unwrap();
        // As everybody sees it, who waits for the job.
        let look = "select (select count(*) from tenure.schedule where error is not null),
            (select greatest(0, 1000 * extract(epoch from clock_timestamp() - next_at))::bigint from tenure.schedule where name = 'canary')";
        let late_ms = AtomicU64::new(0);
        until_within(Duration::from_secs(60), "all have failed", async || {
            let row = sql.query_one(look, &[]).await.unwrap();
            late_ms.fetch_max(row.get::<_, i64>(1).unsigned_abs(), Ordering::Relaxed);
            row.get::<_, i64>(0) == failing
        })
        .await;
        let left_out = "select left_out from tenure.schedule where name = 'canary'";
        assert_eq!(sql.query_one(left_out, &[]).await.unwrap().get::<_, i64>(0), 0);
        let late_ms = late_ms.into_inner();
        eprintln!("{failing} that fail: the one that does not was {late_ms} ms late at most");
        assert!(late_ms < 5_000, "{late_ms} ms late");
    })
    .await;
}
