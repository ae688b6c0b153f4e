//! An address with several hosts: which one is found, and what becomes of those who go by it when the primary changes.

use std::time::{Duration, Instant};

use tenure::testing::{Proxy, TestDatabase, until, with_database};
use tenure::{
    Cancelled, Client, Ended, Enqueue, ErrorCode, KindOptions, RawJson, RunningWorker, Worker, WorkerBuilder,
};
use tokio::net::TcpListener;

fn job(n: u32) -> Enqueue {
    Enqueue::raw("act", RawJson::of(&n).unwrap())
}

/// The URL with these hosts in front of its own.
fn behind(hosts: &[String], url: &str) -> String {
    let at = url.find('@').map_or("postgres://".len(), |at| at + 1);
    format!("{}{},{}", &url[..at], hosts.join(","), &url[at..])
}

/// A host that is there, and on which nobody listens.
async fn refusing() -> String {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string()
}

/// A host that takes connections and says nothing, as a primary that was frozen; as long as the listener lives.
async fn silent() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

async fn set_read_only(db: &TestDatabase, on: bool) {
    let (admin, connection) = tokio_postgres::connect(db.admin_url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let on = if on { "on" } else { "off" };
    let set = format!("alter database {} set default_transaction_read_only = {on}", db.name());
    admin.batch_execute(&set).await.unwrap();
}

#[tokio::test]
async fn a_host_that_does_not_answer_is_passed_over() {
    with_database(async |db| {
        let ((_silent, silent), refusing) = (silent().await, refusing().await);
        let begin = Instant::now();
        let client = Client::connect(&behind(&[refusing.clone(), silent], db.url())).await.unwrap();
        client.enqueue(job(1)).await.unwrap();
        assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
        // Nobody takes writes: both are named.
        let nobody =
            Client::connect(&format!("postgres://{refusing},{refusing}/x")).await.err().expect("no connection");
        assert_eq!(nobody.code(), ErrorCode::Unreachable, "{nobody}");
        assert_eq!(nobody.to_string().matches("Connection refused").count(), 2, "{nobody}");
    })
    .await;
}

/// The primary has died, and its standby takes no writes yet; or both are standbys for a moment, as at a switchover.
#[tokio::test]
async fn between_two_primaries_callers_are_told_to_try_again_and_a_wait_goes_on() {
    with_database(async |db| {
        let id = db.client().await.enqueue(job(1)).await.unwrap();
        let addresses = [
            (behind(&[refusing().await], db.url()), ErrorCode::Unreachable),
            (db.url().to_owned(), ErrorCode::ReadOnly),
        ];
        set_read_only(db, true).await;
        let mut clients = Vec::new();
        for (url, code) in addresses {
            let client = Client::builder(url).connect_lazy().unwrap();
            let error = client.enqueue(job(2)).await.unwrap_err();
            assert_eq!((error.code(), error.is_retryable()), (code, true), "{error}");
            let error = client.wait(id, Duration::from_millis(100)).await.unwrap_err();
            assert_eq!(error.code(), ErrorCode::Timeout, "{error}");
            clients.push(client);
        }
        let waits = clients
            .clone()
            .into_iter()
            .map(|client| tokio::spawn(async move { client.wait(id, Duration::from_secs(60)).await }));
        let waits: Vec<_> = waits.collect();
        set_read_only(db, false).await;
        until("writes are taken", async || clients[0].enqueue(job(3)).await.is_ok()).await;
        assert_eq!(clients[0].cancel(id).await.unwrap(), Cancelled::Now);
        for wait in waits {
            assert!(matches!(wait.await.unwrap().unwrap(), Ended::Cancelled { .. }));
        }
    })
    .await;
}

async fn start(builder: WorkerBuilder) -> RunningWorker {
    let nothing = |_, _| async { Ok(None) };
    builder.queue("default", 1).handle_raw("act", KindOptions::new(), nothing).start().await.unwrap()
}

async fn until_reconnected(worker: &RunningWorker, times: u64) {
    until("both connections stand again", async || {
        let now = worker.stats().reconnects;
        if now >= times { Ok(()) } else { Err(format!("{now} reconnects")) }
    })
    .await;
}

/// The former primaries are machines that are off: they stand first in the address, and say nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_with_a_short_lease_keeps_its_jobs_although_two_hosts_of_three_are_silent() {
    with_database(async |db| {
        let ((_one, one), (_other, other), proxy) = (silent().await, silent().await, Proxy::start(db.url()).await);
        let lease = Duration::from_secs(3);
        let builder = Worker::builder(behind(&[one, other], proxy.url())).lease(lease).reconnect_grace(lease);
        let worker = start(builder).await;
        // Once a job has run both connections stand.
        let client = db.client().await;
        let id = client.enqueue(job(1)).await.unwrap();
        client.wait(id, Duration::from_secs(20)).await.unwrap();
        for cut in 1..=3 {
            proxy.cut_all();
            until_reconnected(&worker, 2 * cut).await;
        }
        assert_eq!(worker.stats().registrations_lost, 0);
    })
    .await;
}

/// The new primary lacks the last moments of the old one: it draws ids again that workers have passed already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_whose_ids_were_drawn_before_are_found_at_once_after_a_failover() {
    with_database(async |db| {
        let (client, sql, proxy) = (db.client().await, db.sql().await, Proxy::start(db.url()).await);
        let draw_from = async |id: i64| {
            let sequence = "select setval('tenure.block_id', $1, false)";
            sql.query_one(sequence, &[&id]).await.unwrap();
        };
        draw_from(1_000).await;
        let worker = start(Worker::builder(proxy.url()).poll(Duration::from_millis(10))).await;
        for n in 0..3 {
            let id = client.enqueue(job(n)).await.unwrap();
            client.wait(id, Duration::from_secs(20)).await.unwrap();
        }
        // So many looks at an idle queue that the floor has followed the cursors.
        let before = worker.stats().claims;
        until("the worker to look again and again", async || worker.stats().claims > before + 200).await;
        draw_from(10).await;
        proxy.cut_all();
        until_reconnected(&worker, 2).await;
        let begin = Instant::now();
        let id = client.enqueue(job(9)).await.unwrap();
        client.wait(id, Duration::from_secs(60)).await.unwrap();
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
        draw_from(2_000).await; // for the invariants
    })
    .await;
}

/// As at a switchover, seen through a pooler: every host lets us connect, and none takes writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_pooler_hosts_that_take_no_writes_are_not_connected_to_without_a_pause() {
    with_database(async |db| {
        let proxy = Proxy::start(db.url()).await;
        let worker = start(Worker::builder(behind(&[proxy.address().to_string()], proxy.url())).pooler(true)).await;
        let client = db.client().await;
        let id = client.enqueue(job(1)).await.unwrap();
        client.wait(id, Duration::from_secs(20)).await.unwrap();
        set_read_only(db, true).await;
        let before = worker.stats().reconnects;
        proxy.cut_all();
        // sleep: so long no host takes writes; what is counted is what happens meanwhile.
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(worker.stats().reconnects, before, "it stands on a connection that is of no use");
        set_read_only(db, false).await;
        until_reconnected(&worker, before + 2).await;
        // The client's own sessions may still be of the time in which no writes were taken.
        let id = db.client().await.enqueue(job(2)).await.unwrap();
        client.wait(id, Duration::from_secs(20)).await.unwrap();
        assert_eq!(worker.stats().registrations_lost, 0);
    })
    .await;
}

#[tokio::test]
async fn a_limit_that_was_set_for_the_statements_of_a_role_holds_for_its_clients() {
    with_database(async |db| {
        let sql = db.sql().await;
        let limit = format!("alter database {} set statement_timeout = '100ms'", db.name());
        sql.batch_execute(&limit).await.unwrap();
        sql.batch_execute("begin; lock table tenure.job in access exclusive mode").await.unwrap();
        let client = Client::builder(db.url()).connect_lazy().unwrap();
        let error = client.enqueue(job(1)).await.unwrap_err();
        assert_eq!((error.code(), error.sqlstate()), (ErrorCode::Timeout, Some("57014")), "{error}");
        sql.batch_execute("rollback").await.unwrap();
    })
    .await;
}
