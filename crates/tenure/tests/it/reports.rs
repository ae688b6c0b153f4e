//! Reports that the database does not take as they are sent: too much at once, or one among them that it cannot take.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::testing::{Gate, TestDatabase, until, until_within, with_database};
use tenure::{Context, Enqueue, Fail, Job, JobId, RunningWorker, Worker};

const JOBS: u32 = 40;

#[derive(Debug, Serialize, Deserialize)]
struct Step {
    n: u32,
}

impl Job for Step {
    const KIND: &'static str = "step";
}

async fn enqueue(db: &TestDatabase, count: u32) -> Vec<JobId> {
    let client = db.client().await;
    let mut ids = Vec::new();
    for n in 0..count {
        ids.push(client.enqueue(Enqueue::new(&Step { n }).unwrap()).await.unwrap());
    }
    ids
}

/// Runs all jobs at once, and lets them all end in the same moment: each goes to the dead letters.
async fn bury_together(db: &TestDatabase) -> RunningWorker {
    let gate = Gate::new();
    let at = gate.clone();
    let handler = move |_: Context, _: Step| {
        let gate = at.clone();
        async move {
            gate.pass().await;
            Err::<(), _>(Fail::permanent("no"))
        }
    };
    let worker = Worker::builder(db.url()).queue("default", JOBS as usize).handle(handler).start().await.unwrap();
    gate.arrived(JOBS as usize).await;
    gate.open();
    worker
}

async fn until_buried(db: &TestDatabase, jobs: i64) {
    until_buried_within(Duration::from_secs(20), db, jobs).await;
}

async fn until_buried_within(limit: Duration, db: &TestDatabase, jobs: i64) {
    let sql = db.sql().await;
    until_within(limit, "the dead letters", async || {
        let seen: i64 = sql.query_one("select count(*) from tenure.dead_letter", &[]).await.unwrap().get(0);
        if seen == jobs { Ok(()) } else { Err(format!("{seen} of {jobs}")) }
    })
    .await;
}

/// From now on this is looked at, and done, after each failed attempt that is written down.
async fn after_each_failure(db: &TestDatabase, body: &str) {
    let sql = format!(
        "create function public.look() returns trigger language plpgsql as $$ begin {body} return null; end $$; \
         create trigger look after insert on tenure.attempt_error for each row execute function public.look()"
    );
    db.sql().await.batch_execute(&sql).await.unwrap();
}

async fn takes_few_at_once(otherwise: &str) {
    with_database(async |db| {
        let written = "(select count(*) from tenure.attempt_error e where e.xmin = pg_current_xact_id()::xid)";
        after_each_failure(db, &format!("if {written} > 10 then {otherwise}; end if;")).await;
        enqueue(db, JOBS).await;
        let worker = bury_together(db).await;
        until_buried(db, JOBS.into()).await;
        assert_eq!(worker.stats().lease_lost, 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_that_take_longer_together_than_the_server_allows_are_written_in_parts() {
    takes_few_at_once("raise exception 'canceling statement due to statement timeout' using errcode = '57014'").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_that_cost_their_connection_together_are_written_in_parts() {
    takes_few_at_once("perform pg_terminate_backend(pg_backend_pid())").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_stay_together_while_the_database_takes_none() {
    with_database(async |db| {
        let sql = db.sql().await;
        // A sequence counts what was tried, for it does not roll back; each statement that is taken leaves a row.
        let full = "create sequence public.tries; create table public.taken (xact xid8 primary key); create table public.full_disk ()";
        sql.batch_execute(full).await.unwrap();
        let refuse = "perform nextval('public.tries'); \
             if to_regclass('public.full_disk') is not null then raise exception 'No space left on device' using errcode = '53100'; end if; \
             insert into public.taken values (pg_current_xact_id()) on conflict do nothing;";
        after_each_failure(db, refuse).await;
        enqueue(db, JOBS).await;
        let worker = bury_together(db).await;
        let tries = async || sql.query_one("select last_value from public.tries", &[]).await.unwrap().get::<_, i64>(0);
        until("ten tries in vain", async || tries().await >= 10).await;
        let (tried, rounds) = (tries().await as u64, worker.stats().flushes);
        assert!(tried <= rounds, "{tried} statements in {rounds} rounds: one is enough to see whether it is over");
        sql.batch_execute("drop table public.full_disk").await.unwrap();
        until_buried(db, JOBS.into()).await;
        let statements: i64 = sql.query_one("select count(*) from public.taken", &[]).await.unwrap().get(0);
        assert!(statements <= i64::from(JOBS) / 2, "{statements} statements for {JOBS} reports");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_that_the_database_cannot_take_keep_no_others_waiting() {
    with_database(async |db| {
        let ids = enqueue(db, JOBS).await;
        let (first, other, last) = (ids[0], ids[17], ids[39]);
        let refuse = format!(
            "if new.job_id in ({first}, {other}, {last}) then raise exception 'no row' using errcode = 'P0002'; end if;"
        );
        after_each_failure(db, &refuse).await;
        let _worker = bury_together(db).await;
        until_buried(db, i64::from(JOBS) - 3).await;
        // They wait for better times.
        db.sql().await.batch_execute("drop trigger look on tenure.attempt_error").await.unwrap();
        until_buried(db, JOBS.into()).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_role_or_a_database_sets_for_its_sessions_does_not_hold_for_a_workers() {
    with_database(async |db| {
        let settings = "current_setting('statement_timeout') || ', ' || current_setting('transaction_isolation')";
        after_each_failure(db, &format!("insert into public.seen values ({settings});")).await;
        let (sql, name) = (db.sql().await, db.name());
        let set = format!(
            "create table public.seen (settings text); alter database {name} set statement_timeout = '20s'; \
             alter database {name} set default_transaction_isolation = 'serializable'"
        );
        sql.batch_execute(&set).await.unwrap();
        enqueue(db, JOBS).await;
        let _worker = bury_together(db).await;
        until_buried(db, JOBS.into()).await;
        let seen = sql.query("select distinct settings from public.seen", &[]).await.unwrap();
        let seen: Vec<String> = seen.iter().map(|row| row.get(0)).collect();
        assert_eq!(seen, ["0, read committed"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_that_do_not_arrive_in_time_together_are_claimed_in_smaller_parts() {
    with_database(async |db| {
        let slow = "alter function tenure.claim(bigint, uuid, text[], integer[], text[], text[], integer[], bigint[], boolean, integer) rename to claim_in_time; \
             create function tenure.claim(p_worker bigint, p_token uuid, p_queues text[], p_wants integer[], p_kinds text[], p_solo_kinds text[], \
                                          p_lanes integer[], p_after bigint[], p_low boolean, p_most integer) \
             returns table (lease_id bigint, job_id bigint, slot integer, queue text, kind text, attempt smallint, max_attempts smallint, \
                            timeout_ms bigint, created_at timestamptz, due_at timestamptz, idempotency_key text, payload json) language plpgsql as $$ \
             begin \
               if least(p_wants[1], p_most) > 20 then perform pg_sleep(600); end if; \
               return query select c.* from tenure.claim_in_time(p_worker, p_token, p_queues, p_wants, p_kinds, p_solo_kinds, p_lanes, p_after, p_low, p_most) c; \
             end $$";
        db.sql().await.batch_execute(slow).await.unwrap();
        enqueue(db, JOBS).await;
        let _worker = bury_together(db).await;
        // What went with ease is followed by twice as much, which here costs ten seconds each time; ends that are reported meanwhile wait behind it.
        until_buried_within(Duration::from_secs(60), db, JOBS.into()).await;
    })
    .await;
}
