//! A handler that ends its job in its own transaction, on every client library.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sqlx08::Connection as _;
use sqlx09::Connection as _;
use tenure::testing::{TestDatabase, with_database};
use tenure::{Context, Ended, Enqueue, Fail, Job, JobId, KindOptions, RawJson, RetryPolicy, Worker};

const DEADLINE: Duration = Duration::from_secs(30);

/// Writes a row and enqueues a follow-up with its end; gives up before the commit at its first attempts.
#[derive(Clone, Serialize, Deserialize)]
struct Book {
    url: String,
    client: String,
    given_up: usize,
}

impl Job for Book {
    const KIND: &'static str = "book";
}

const WRITE: &str = "insert into booking default values";

fn follow_up() -> Enqueue {
    Enqueue::raw("follow_up", RawJson::null())
}

/// The handler, on the client library that the job names.
async fn book(ctx: Context, job: Book, commits: usize) -> Result<(), Fail> {
    let commit = commits >= job.given_up;
    match job.client.as_str() {
        "tokio-postgres" => {
            let (mut db, connection) = tokio_postgres::connect(&job.url, tokio_postgres::NoTls).await?;
            tokio::spawn(connection);
            let mut tx = db.transaction().await?;
            tx.batch_execute(WRITE).await?;
            ctx.client().enqueue_in(&mut tx, follow_up()).await?;
            ctx.complete_in(&mut tx, "booked").await?;
            if commit {
                tx.commit().await?;
            }
        }
        "sqlx 0.8" => {
            let mut db = sqlx08::PgConnection::connect(&job.url).await?;
            let mut tx = db.begin().await?;
            sqlx08::query(WRITE).execute(&mut *tx).await?;
            ctx.client().enqueue_in(&mut tx, follow_up()).await?;
            ctx.complete_in(&mut tx, "booked").await?;
            if commit {
                tx.commit().await?;
            }
        }
        "sqlx 0.9" => {
            let mut db = sqlx09::PgConnection::connect(&job.url).await?;
            let mut tx = db.begin().await?;
            sqlx09::query(WRITE).execute(&mut *tx).await?;
            ctx.client().enqueue_in(&mut *tx, follow_up()).await?;
            ctx.complete_in(&mut *tx, "booked").await?;
            if commit {
                tx.commit().await?;
            }
        }
        other => return Err(Fail::permanent(format!("there is no client {other:?}"))),
    }
    match commit {
        true => Ok(()),
        false => Err(Fail::retry("something else went wrong before the commit")),
    }
}

async fn count(db: &TestDatabase, sql: &str) -> i64 {
    db.sql().await.query_one(sql, &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_writes_the_end_and_the_follow_up_commit_together_or_not_at_all() {
    with_database(async |db| {
        db.sql().await.batch_execute("create table booking (at timestamptz default now())").await.unwrap();
        let client = db.client().await;
        let retry = RetryPolicy::fixed(Duration::from_millis(1));
        let attempts = Arc::new(AtomicUsize::new(0));
        let mut worker = Worker::builder(db.url())
            .queue("default", 1)
            .handle_with(KindOptions::new().retry(retry), {
                let attempts = attempts.clone();
                move |ctx: Context, job: Book| book(ctx, job, attempts.fetch_add(1, Ordering::SeqCst))
            })
            .start()
            .await
            .unwrap();
        for (n, library) in ["tokio-postgres", "sqlx 0.8", "sqlx 0.9"].into_iter().enumerate() {
            attempts.store(0, Ordering::SeqCst);
            let job = Book { url: db.url().to_owned(), client: library.to_owned(), given_up: 1 };
            let id: JobId = client.enqueue(Enqueue::new(&job).unwrap()).await.unwrap();
            match client.wait(id, DEADLINE).await.unwrap() {
                Ended::Completed { result, .. } => assert_eq!(result.get(), "\"booked\"", "{library}"),
                other => panic!("{library}: {other:?}"),
            }
            let done = n as i64 + 1;
            assert_eq!(count(db, "select count(*) from booking").await, done, "{library}");
            assert_eq!(count(db, "select count(*) from tenure.jobs where kind = 'follow_up'").await, done, "{library}");
            assert_eq!(client.get(id).await.unwrap().unwrap().attempt, 2, "{library}");
            assert_eq!(client.attempt_errors(id).await.unwrap().len(), 1, "{library}");
        }
        worker.shutdown();
        worker.join().await;
    })
    .await;
}
