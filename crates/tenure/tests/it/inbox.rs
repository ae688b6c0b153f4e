//! COPY into the inbox: how much it takes at once, and what becomes of rows that nobody asked to enqueue, or that a crash met.

use std::pin::pin;

use bytes::Bytes;
use futures_util::SinkExt as _;
use tenure_dev::Server;
use tenure_scenarios::protocol::{BAD_INPUT, sqlstate};
use tenure_scenarios::scenario::outage::on_own_server;
use tenure_scenarios::{Size, Stage, on_stage};

/// Far above what it takes (a second or two), far below what a join by the instants takes (minutes).
const SECONDS_MAX: u32 = 60;

#[tokio::test]
async fn fifty_thousand_instants_are_enqueued_in_seconds_whatever_the_planner_expects() {
    on_stage(Size::Ci, async |stage| {
        let limit = format!("set statement_timeout = '{SECONDS_MAX}s'");
        stage.sql.batch_execute(&limit).await.unwrap();
        // Statistics of an empty table are what autovacuum leaves, as a rule.
        stage.sql.batch_execute("vacuum analyze tenure.inbox").await.unwrap();
        let rows = "insert into tenure.inbox (kind, payload, run_at)
            select 'act', n::text::json, clock_timestamp() + (3600 + n) * interval '1 s' from generate_series(1, 50000) n";
        stage.sql.batch_execute(&format!("begin; {rows}; select tenure.enqueue_inbox(); commit")).await.unwrap();
        let one_each = "select count(*) from tenure.later l join tenure.job j on j.id = l.block * 128
            where l.due_at = j.run_at and l.mask = tenure.mask_fresh(1)";
        assert_eq!(stage.count(one_each, &[]).await, 50_000);

        let payloads: Vec<String> = (0..50_000).map(|n| n.to_string()).collect();
        let many = "select count(*) from tenure.enqueue_many('act', $1::text[]::json[])";
        assert_eq!(stage.count(many, &[&payloads]).await, 50_000);
        let alike = "insert into tenure.inbox (kind, payload) select 'act', n::text::json from generate_series(1, 50000) n";
        stage.sql.batch_execute(&format!("begin; {alike}; select tenure.enqueue_inbox(); commit")).await.unwrap();
        assert_eq!(stage.count("select count(*) from tenure.ready", &[]).await, 1_000);
    })
    .await;
}

#[tokio::test]
async fn copied_jobs_of_many_kinds_are_bundled_by_kind_and_claimed_in_the_order_of_their_first_rows() {
    on_stage(Size::Ci, async |stage| {
        let rows = "insert into tenure.inbox (kind, payload, queue)
            select 'k' || (9 - n % 3), n::text::json, 'q' || n % 2 from generate_series(0, 1999) n";
        stage.sql.batch_execute(&format!("begin; {rows}; select tenure.enqueue_inbox(); commit")).await.unwrap();
        let firsts = "select array_agg(j.payload::text::integer order by r.queue, r.id) from tenure.ready r
            join tenure.job j on j.id = r.block * 128";
        let firsts: Vec<i32> = stage.one(firsts, &[]).await;
        let half = firsts.len() / 2;
        assert!(firsts[..half].is_sorted() && firsts[half..].is_sorted(), "{firsts:?}");
        assert_eq!(firsts.len(), 6 * 4, "333 or 334 jobs of each kind and queue");
        let right = "select count(*) from tenure.job j join tenure.ready r on r.block = j.id >> 7
            where j.queue = r.queue and j.kind = r.kind and get_bit(r.mask, (j.id & 127)::integer) = 1
              and j.kind = 'k' || (9 - j.payload::text::integer % 3)";
        assert_eq!(stage.count(right, &[]).await, 2_000);
        assert_eq!(stage.count("select sum(bit_count(mask))::bigint from tenure.ready", &[]).await, 2_000);
    })
    .await;
}

#[tokio::test]
async fn what_a_transaction_copied_and_forgot_is_enqueued_by_its_commit() {
    on_stage(Size::Ci, async |stage| {
        let row = "insert into tenure.inbox (kind, payload) values ('act', '1')";
        let calls = [
            (row.to_owned(), 1),
            (format!("begin; {row}; {row}; commit"), 2),
            (format!("begin; {row}; select tenure.enqueue_inbox(); {row}; commit"), 2),
            (format!("begin; savepoint a; {row}; rollback to a; {row}; commit"), 1),
            (format!("begin; savepoint a; {row}; rollback to a; commit"), 0),
            (format!("begin; set constraints all immediate; {row}; commit"), 1),
            (format!("begin; {row}; rollback"), 0),
        ];
        let mut expected = 0;
        for (call, jobs) in calls {
            stage.sql.batch_execute(&call).await.unwrap_or_else(|error| panic!("{call}: {error:?}"));
            expected += jobs;
            let waiting = "select coalesce(sum(bit_count(mask)), 0)::bigint from tenure.ready";
            assert_eq!(stage.count(waiting, &[]).await, expected, "{call}");
        }
        let left = "select (select count(*) from tenure.inbox) + (select count(*) from tenure.inbox_open)";
        assert_eq!(stage.count(left, &[]).await, 0);
    })
    .await;
}

/// Were the look at the commit done at once, the rows would be jobs before anybody asks for their ids.
#[tokio::test]
async fn whoever_wants_all_constraints_checked_at_once_still_learns_the_ids_of_copied_rows() {
    on_stage(Size::Ci, async |stage| {
        stage.sql.batch_execute("begin; set constraints all immediate").await.unwrap();
        for payload in ["1", "2"] {
            let row = format!("insert into tenure.inbox (kind, payload) values ('act', '{payload}')");
            stage.sql.batch_execute(&row).await.unwrap();
        }
        assert_eq!(stage.count("select count(*) from tenure.job", &[]).await, 0);
        let ids = stage.sql.query("select tenure.enqueue_inbox()", &[]).await.unwrap();
        stage.sql.batch_execute("commit").await.unwrap();
        let ids: Vec<i64> = ids.iter().map(|row| row.get(0)).collect();
        let stored: Vec<i64> = stage.one("select array_agg(id order by payload::text) from tenure.job", &[]).await;
        assert_eq!((ids.len(), ids), (2, stored));
    })
    .await;
}

/// The inbox is unlogged: a crash empties it. Nobody ever commits a row of it, so that no job is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_forgets_rows_that_were_not_committed_and_keeps_the_jobs_of_those_that_were() {
    on_own_server(Size::Ci, async |stage, server| {
        let counts =
            "select array[(select count(*) from tenure.job), (select sum(bit_count(mask))::bigint from tenure.ready),
            (select count(*) from tenure.inbox), (select count(*) from tenure.inbox_open)]";
        let committed = copying(stage).await;
        committed.batch_execute("commit").await.unwrap();
        let open = copying(stage).await;
        let rows: i64 = open.query_one("select count(*) from tenure.inbox", &[]).await.unwrap().get(0);
        assert_eq!(rows, COPIED, "the crash comes between COPY and the commit");
        crash(server);
        drop(open);

        let sql = stage.db.sql().await;
        let found: Vec<i64> = sql.query_one(counts, &[]).await.unwrap().get(0);
        assert_eq!(found, [COPIED, COPIED, 0, 0]);
        // It is there as before, for whoever copies again.
        copying(stage).await.batch_execute("commit").await.unwrap();
        crash(server);
        let sql = stage.db.sql().await;
        let found: Vec<i64> = sql.query_one(counts, &[]).await.unwrap().get(0);
        assert_eq!(found, [2 * COPIED, 2 * COPIED, 0, 0]);
    })
    .await;
}

const COPIED: i64 = 150;

/// A session whose transaction is open and has copied some rows.
async fn copying(stage: &Stage) -> tokio_postgres::Client {
    let sql = stage.db.sql().await;
    sql.batch_execute("begin").await.unwrap();
    let mut copy = pin!(sql.copy_in("copy tenure.inbox (kind, payload) from stdin").await.unwrap());
    let rows: String = (0..COPIED).map(|n| format!("act\t{n}\n")).collect();
    copy.send(Bytes::from(rows)).await.unwrap();
    assert_eq!(copy.finish().await.unwrap(), COPIED as u64);
    sql
}

/// As `pg_ctl stop -m immediate` and a start.
fn crash(server: &mut Server) {
    tokio::task::block_in_place(|| server.restart(true).unwrap());
}

#[tokio::test]
async fn a_commit_refuses_copied_rows_that_cannot_become_jobs() {
    on_stage(Size::Ci, async |stage| {
        let row = "insert into tenure.inbox (kind, payload) values ('act', '1'), ('', '1')";
        assert_eq!(sqlstate(stage.sql.query(row, &[]).await), BAD_INPUT);
        let all = "select (select count(*) from tenure.job) + (select count(*) from tenure.inbox)";
        assert_eq!(stage.count(all, &[]).await, 0);
    })
    .await;
}
