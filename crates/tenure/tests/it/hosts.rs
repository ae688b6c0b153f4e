//! An address with several hosts: which one is found, and what becomes of those who go by it when the primary changes.

use std::time::{Duration, Instant};

use tenure::testing::{TestDatabase, until, with_database};
use tenure::{Cancelled, Client, Ended, Enqueue, ErrorCode, RawJson};
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
