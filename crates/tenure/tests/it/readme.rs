//! The example of the README, compiled and run as it stands there. Below this line it is the README's, word for word.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use tenure::{Client, Context, Enqueue, Fail, Job, Worker};

#[derive(Serialize, Deserialize)]
struct Welcome {
    user: i64,
}

impl Job for Welcome {
    const KIND: &'static str = "welcome";
}

/// Runs in a worker. Its write and the end of the job commit together: run twice, it greets once.
async fn welcome(ctx: Context, job: Welcome) -> Result<(), Fail> {
    let mut db = connect().await?;
    let mut tx = db.transaction().await?;
    tx.execute("insert into greeting (user_id) values ($1)", &[&job.user]).await?;
    ctx.complete_in(&mut tx, &()).await?;
    tx.commit().await?;
    Ok(())
}

async fn shop(url: &str) -> Result<(), Box<dyn std::error::Error>> {
    // In the application: the account and its job commit together, or neither does.
    let client = Client::connect(url).await?;
    let mut db = connect().await?;
    let mut tx = db.transaction().await?;
    tx.execute("insert into account (id) values (7)", &[]).await?;
    let id = client.enqueue_in(&mut tx, Enqueue::new(&Welcome { user: 7 })?).await?;
    tx.commit().await?;

    // In any number of worker processes:
    let mut worker = Worker::builder(url).queue("default", 8).handle(welcome).start().await?;

    let ended = client.wait(id, Duration::from_secs(30)).await?;
    println!("{ended:?}");
    worker.shutdown();
    worker.join().await;
    Ok(())
}

// Up to here.

use std::sync::OnceLock;

static URL: OnceLock<String> = OnceLock::new();

async fn connect() -> Result<tokio_postgres::Client, tokio_postgres::Error> {
    let url = URL.get().expect("the test has set the URL");
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

#[tokio::test]
async fn the_example_of_the_readme_greets_once() {
    tenure::testing::with_database(async |test| {
        URL.set(test.url().to_owned()).expect("the URL is set once");
        let db = test.sql().await;
        db.batch_execute("create table account (id bigint); create table greeting (user_id bigint)").await.unwrap();
        shop(test.url()).await.unwrap();
        let greetings: i64 = db.query_one("select count(*) from greeting", &[]).await.unwrap().get(0);
        assert_eq!(greetings, 1);
    })
    .await;
}

#[test]
fn the_readme_shows_what_is_run_here() {
    let source = include_str!("readme.rs");
    let begin = source.find("use serde").expect("the example begins");
    let end = source.find("\n// Up to here.").expect("the example ends");
    let readme = include_str!("../../../../README.md");
    assert!(readme.contains(&source[begin..end]), "the README's example differs from tests/it/readme.rs");
}
