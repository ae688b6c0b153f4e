//! Who holds back vacuum is named before the tables have grown.

use std::time::{Duration, Instant};

use tenure::Holder;
use tenure::testing::until_within;
use tenure_dev::{Options, Server};

use super::failover::no_standby;
use super::failover::session;
use crate::stage::on_stage_of;
use crate::{Act, Bound, Measure, Size, Stage, size};

const LIMIT: Duration = Duration::from_secs(60);
/// Jobs that pass behind the old snapshot, and leave dead rows.
const JOBS: usize = 500;

/// Somebody forgets an open transaction: it is named before anything collapses, by the workers' log and by the look at vacuum.
pub async fn old_snapshot_is_reported(stage: &Stage) -> Vec<Measure> {
    let (old, watched) = (size::SNAPSHOT_OLD.at(stage.size), size::SNAPSHOT_WATCHED.at(stage.size));
    if stage.size == Size::Ci {
        let set = "insert into tenure.setting (name, value) values ('snapshot_warn_ms', $1)";
        stage.execute(set, &[&old.as_millis().to_string()]).await;
    }
    let client = stage.db.client().await;
    let horizon = async || client.vacuum_horizon().await.expect("a look at vacuum");
    let workers = [stage.start(stage.worker("a")).await, stage.start(stage.worker("b")).await];
    let forgotten = stage.db.sql().await;
    forgotten.batch_execute("set application_name = 'forgotten psql'").await.expect("a name");
    let begin = "begin isolation level repeatable read; select count(*) from tenure.ready";
    forgotten.batch_execute(begin).await.expect("a snapshot");
    let (opened, pid) = (Instant::now(), backend(&forgotten).await);
    let mine = |snapshot: &&tenure::Snapshot| snapshot.pid == Some(pid);
    let early = horizon().await.snapshots.iter().filter(mine).filter(|snapshot| snapshot.old).count();
    let pass = async {
        stage.enqueue_many(&Act::Sleep { ms: 1 }, JOBS).await;
        stage.completed(JOBS, LIMIT).await;
    };
    let named = until_within(old + LIMIT, "the snapshot counts as old", async || {
        horizon().await.snapshots.iter().find(mine).filter(|snapshot| snapshot.old).map(|_| opened.elapsed())
    });
    let ((), named) = tokio::join!(pass, named);
    if stage.size == Size::Ci {
        // Its turn comes once a minute; here it has just come.
        stage.execute("update tenure.duty set next_at = '-infinity' where name in ('horizon', 'net')", &[]).await;
    }
    let text = format!("session {pid} (user");
    let warnings = || workers.iter().map(|worker| worker.log().matches(&text).count()).sum::<usize>();
    let warned =
        until_within(2 * LIMIT, "a worker warns of it", async || (warnings() > 0).then(|| opened.elapsed())).await;
    tokio::time::sleep(watched).await; // in which further warnings would come
    let more = warnings();
    let looked = horizon().await;
    let seen = looked.snapshots.iter().find(mine).cloned();
    let dead = looked.dead_rows_in_all();
    forgotten.batch_execute("commit").await.expect("commit");
    let gone = horizon().await.snapshots.iter().filter(mine).count();
    for worker in workers {
        worker.shut_down().await;
    }
    let seen = seen.expect("the snapshot is named");
    let known = (seen.application.as_deref(), seen.state.as_deref());
    let most = (watched.as_secs() / 60 + 1) as f64;
    vec![
        Measure::count("old snapshot: warned of while it was young", 0, early),
        Measure::new("until it is shown as old", Bound::AtMost(old.as_secs_f64() + 2.0), named.as_secs_f64(), "s"),
        Measure::new("until a worker warns of it", Bound::AtMost(old.as_secs_f64() + 90.0), warned.as_secs_f64(), "s"),
        Measure::new("warnings of two workers, at most one a minute", Bound::AtMost(most), more as f64, ""),
        Measure::count(
            "named with its program and state",
            1,
            usize::from(known == (Some("forgotten psql"), Some("idle in transaction"))),
        ),
        Measure::new("dead rows of the hot tables that are reported", Bound::AtLeast(1.0), dead as f64, ""),
        Measure::count("named after its end", 0, gone),
    ]
}

async fn backend(sql: &tokio_postgres::Client) -> i32 {
    sql.query_one("select pg_backend_pid()", &[]).await.expect("its process").get(0)
}

/// A prepared transaction that nobody ended, a slot whose standby was read when it went away, and a healthy standby without a slot.
pub async fn prepared_and_slot_are_reported(size: Size) -> Vec<Measure> {
    let options = |settings: &[&str]| settings.iter().map(|setting| setting.to_string()).collect::<Vec<_>>();
    let start = || {
        let settings = options(&["max_prepared_transactions=2"]);
        Server::start(Options { ephemeral: true, durable: false, settings, ..Options::default() }).expect("a server")
    };
    let primary = tokio::task::block_in_place(start);
    if !primary.can_be_copied() {
        return no_standby(primary, "a slot whose standby is gone");
    }
    const FEEDBACK: [&str; 3] =
        ["max_prepared_transactions=2", "hot_standby_feedback=on", "wal_receiver_status_interval=1"];
    let follow_without_slot = || primary.standby(&options(&FEEDBACK)).expect("a standby");
    let follow = || {
        let settings = [&FEEDBACK[..], &["primary_slot_name=gone"]].concat();
        primary.standby(&options(&settings)).expect("a standby")
    };
    let url = primary.url().to_owned();
    let measures = on_stage_of(&url, size, async |stage| {
        let client = stage.db.client().await;
        let horizon = async || client.vacuum_horizon().await.expect("a look at vacuum");
        let prepare = "create table app (n int); begin; insert into app values (1); prepare transaction 'forgotten'";
        stage.sql.batch_execute(prepare).await.expect("prepared");
        let prepared = horizon().await.snapshots;
        let prepared =
            prepared.iter().filter(|s| s.holder == Holder::Prepared && s.name.as_deref() == Some("forgotten"));
        let prepared = prepared.filter(|s| s.age.is_some() && !s.old).count();
        stage.sql.batch_execute("rollback prepared 'forgotten'").await.expect("rolled back");

        stage.sql.batch_execute("select pg_create_physical_replication_slot('gone')").await.expect("a slot");
        let standby = tokio::task::block_in_place(follow);
        let reader = session(standby.url()).await;
        reader.batch_execute("begin isolation level repeatable read; select 1").await.expect("a snapshot there");
        let known = "select count(*) from pg_replication_slots where xmin is not null";
        until_within(LIMIT, "the standby said what it reads", async || stage.count(known, &[]).await == 1).await;
        tokio::task::block_in_place(|| standby.stop()).expect("the standby has stopped");
        let idle = "select count(*) from pg_replication_slots where not active";
        until_within(LIMIT, "the slot is left", async || stage.count(idle, &[]).await == 1).await;
        let slots = horizon().await.snapshots;
        let slot = slots.iter().filter(|s| s.holder == Holder::Slot && s.state.as_deref() == Some("inactive"));
        let slot = slot.filter(|s| s.age.is_none() && s.way_out().contains("pg_drop_replication_slot('gone')")).count();
        stage.sql.batch_execute("select pg_drop_replication_slot('gone')").await.expect("dropped");

        // A standby that does nothing but follow, without a slot. Whatever has a time is old from now on.
        let set = "insert into tenure.setting (name, value) values ('snapshot_warn_ms', '0')";
        stage.execute(set, &[]).await;
        let standby = tokio::task::block_in_place(follow_without_slot);
        let known = "select count(*) from pg_stat_replication where backend_xmin is not null";
        until_within(LIMIT, "the standby said what it keeps", async || stage.count(known, &[]).await == 1).await;
        let idle = horizon().await.snapshots;
        tokio::task::block_in_place(|| standby.stop()).expect("the standby has stopped");
        let left = "select count(*) from pg_stat_replication";
        until_within(LIMIT, "the standby is gone", async || stage.count(left, &[]).await == 0).await;
        let old = idle.iter().filter(|s| s.old).count();
        let standby = idle.iter().filter(|s| s.holder == Holder::Standby && s.age.is_none());
        let standby = standby.filter(|s| s.way_out().contains("on that standby")).count();
        vec![
            Measure::count("a standby without a slot is named, without a time", 1, standby),
            Measure::count("old because a standby without a slot follows for long", 0, old),
            Measure::count("a prepared transaction that holds back vacuum is named", 1, prepared),
            Measure::count("a slot that holds back vacuum is named, without a time", 1, slot),
            Measure::count("named after their end", 0, horizon().await.snapshots.len()),
        ]
    })
    .await;
    tokio::task::block_in_place(|| primary.stop()).expect("the server has stopped");
    measures
}
