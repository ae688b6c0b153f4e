//! Maintenance: what one duty costs the others, and what it never makes wait.

use std::time::Duration;

use tenure_scenarios::protocol::{Registration, sqlstate};
use tenure_scenarios::{Act, Size, Stage, on_stage};

const ACT: Act = Act::Sleep { ms: 0 };

/// As if ids had been drawn all the time while no maintenance ran: the next one comes from the range behind the last that was made for use.
async fn use_up_all_ranges(stage: &Stage) {
    let beyond = "select setval('tenure.block_id', max(end_block)) from tenure.partition where end_block < 1000000000";
    stage.count(beyond, &[]).await;
}

/// Where the range of this job ends, in ids; none: it has no end.
async fn end_of_range(stage: &Stage, job: i64) -> Option<i64> {
    let end = "select end_block * 128 from tenure.partition where first_block * 128 <= $1 order by first_block desc limit 1";
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
                 insert into tenure.inbox (kind, payload) values ('act', '{}')",
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
        held.batch_execute("create table seen (at timestamptz)").await.unwrap();
        // Whatever tick does after the sighting is done with the row locked: it must be next to nothing.
        let order = "create function note() returns trigger language plpgsql as 'begin insert into seen values (clock_timestamp()); return new; end';
             create trigger note before update of suspected_at on tenure.worker for each row execute function note();
             create function promoted() returns trigger language plpgsql as 'begin if exists (select from seen) then raise exception ''a worker is locked meanwhile''; end if; return null; end';
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
