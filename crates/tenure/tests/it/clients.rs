//! The library's own verbs, on every client library: enqueue in the caller's transaction, bulk, wait, lists, dead letters.

use std::time::Duration;

use sqlx08::Connection as _;
use sqlx09::Connection as _;
use tenure::lifecycle::State;
use tenure::testing::{TestDatabase, until, with_database};
use tenure::{
    Cancelled, Client, DeadFilter, Ended, Enqueue, Error, ErrorCode, Executor, JobFilter, JobId, JobOptions, RawJson,
    RequeuePace,
};
use tenure_scenarios::protocol::{Hand, Registration};

fn job(n: u32) -> Enqueue {
    Enqueue::raw("act", RawJson::of(&n).unwrap())
}

fn jobs(count: u32) -> impl Iterator<Item = Enqueue> + Send {
    (0..count).map(job)
}

/// Every form of enqueue on one connection or transaction; gives the number of jobs.
async fn enqueue_each_way<E: Executor>(client: &Client, tx: &mut E) -> Result<usize, Error> {
    client.enqueue_in(tx, job(1)).await?;
    let many = client.enqueue_many_in(tx, "act", 0..250, JobOptions::new().queue("q")).await?;
    let delayed = jobs(150).map(|job| job.delay(Duration::from_secs(3600)));
    let copied = client.enqueue_copy_in(tx, delayed).await?;
    assert_eq!((many.len(), copied.len()), (250, 150));
    Ok(401)
}

async fn stored(db: &TestDatabase) -> i64 {
    db.sql().await.query_one("select count(*) from tenure.job", &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn jobs_of_a_tokio_postgres_transaction_exist_when_it_commits_and_only_then() {
    with_database(async |db| {
        let (client, mut sql) = (db.client().await, db.sql().await);
        for commits in [false, true] {
            let mut tx = sql.transaction().await.unwrap();
            enqueue_each_way(&client, &mut tx).await.unwrap();
            assert_eq!(stored(db).await, 0);
            let mut shared = &tx;
            client.enqueue_in(&mut shared, job(2)).await.unwrap();
            match commits {
                true => tx.commit().await.unwrap(),
                false => tx.rollback().await.unwrap(),
            }
            assert_eq!(stored(db).await, if commits { 402 } else { 0 });
        }
        client.enqueue_in(&mut sql, job(3)).await.unwrap();
        assert_eq!(stored(db).await, 403);
        let error = client.enqueue_copy_in(&mut sql, jobs(3)).await.unwrap_err();
        assert!(error.to_string().contains("outside of a transaction (begin one"), "{error}");
    })
    .await;
}

#[tokio::test]
async fn jobs_of_an_sqlx_08_transaction_exist_when_it_commits_and_only_then() {
    with_database(async |db| {
        let client = db.client().await;
        let mut connection = sqlx08::PgConnection::connect(db.url()).await.unwrap();
        for commits in [false, true] {
            let mut tx = connection.begin().await.unwrap();
            enqueue_each_way(&client, &mut tx).await.unwrap();
            assert_eq!(stored(db).await, 0);
            match commits {
                true => tx.commit().await.unwrap(),
                false => tx.rollback().await.unwrap(),
            }
            assert_eq!(stored(db).await, if commits { 401 } else { 0 });
        }
        client.enqueue_in(&mut connection, job(3)).await.unwrap();
        assert_eq!(stored(db).await, 402);
    })
    .await;
}

#[tokio::test]
async fn jobs_of_an_sqlx_09_transaction_exist_when_it_commits_and_only_then() {
    with_database(async |db| {
        let client = db.client().await;
        let mut connection = sqlx09::PgConnection::connect(db.url()).await.unwrap();
        for commits in [false, true] {
            let mut tx = connection.begin().await.unwrap();
            enqueue_each_way(&client, &mut tx).await.unwrap();
            assert_eq!(stored(db).await, 0);
            match commits {
                true => tx.commit().await.unwrap(),
                false => tx.rollback().await.unwrap(),
            }
            assert_eq!(stored(db).await, if commits { 401 } else { 0 });
        }
        client.enqueue_in(&mut connection, job(3)).await.unwrap();
        assert_eq!(stored(db).await, 402);
    })
    .await;
}

/// A payload that the database refuses, above its limit and below ours.
fn too_large() -> Enqueue {
    Enqueue::raw("act", RawJson::of(&"x".repeat(70_000)).unwrap())
}

#[tokio::test]
async fn every_client_library_tells_the_same_error() {
    with_database(async |db| {
        let client = db.client().await;
        let mut sql = db.sql().await;
        let mut old = sqlx08::PgConnection::connect(db.url()).await.unwrap();
        let mut new = sqlx09::PgConnection::connect(db.url()).await.unwrap();
        let errors = [
            client.enqueue(too_large()).await.unwrap_err(),
            client.enqueue_in(&mut sql, too_large()).await.unwrap_err(),
            client.enqueue_in(&mut old, too_large()).await.unwrap_err(),
            client.enqueue_in(&mut new, too_large()).await.unwrap_err(),
            client.enqueue_copy([job(1), too_large()]).await.unwrap_err(),
            client.enqueue_many("act", ["x".repeat(70_000)], JobOptions::new()).await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!((error.code(), error.sqlstate()), (ErrorCode::BadInput, Some("TN002")), "{error}");
            assert_eq!(error.message(), "the payload has 70002 bytes; the limit is 65536");
            assert!(error.help().unwrap().contains("enqueue its id"), "{error}");
        }
        assert_eq!(stored(db).await, 0);
    })
    .await;
}

#[tokio::test]
async fn a_wrong_value_is_refused_before_anything_is_sent() {
    with_database(async |db| {
        let client = db.client().await;
        assert_eq!(client.enqueue(job(1).priority(5)).await.unwrap_err().sqlstate(), None);
        let second_is_wrong = [job(1), job(2).queue("")];
        let error = client.enqueue_copy(second_is_wrong).await.unwrap_err();
        assert!(error.message().starts_with("job 2: the queue name is empty"), "{error}");
        let error = client.enqueue_many("act", ["a", "b\0"], JobOptions::new()).await.unwrap_err();
        assert!(error.message().starts_with("payload 2: \\u0000 at $"), "{error}");
        // The connection of the refused calls is as good as before.
        client.enqueue(job(3)).await.unwrap();
        assert_eq!(stored(db).await, 1);
    })
    .await;
}

#[tokio::test]
async fn ids_come_in_the_order_of_what_was_given() {
    with_database(async |db| {
        let client = db.client().await;
        let many = client.enqueue_many("act", 0..25_000_u32, JobOptions::new()).await.unwrap();
        let mixed: Vec<Enqueue> = jobs(2_000)
            .enumerate()
            .map(|(n, job)| job.queue(format!("q{}", n % 3)).priority((n % 4 + 1) as i16))
            .collect();
        let copied = client.enqueue_copy(mixed).await.unwrap();
        let sql = db.sql().await;
        for ids in [many, copied] {
            let ids: Vec<i64> = ids.into_iter().map(JobId::get).collect();
            let wrong = "select count(*) from unnest($1::bigint[]) with ordinality u(id, o)
                left join tenure.job j on j.id = u.id where j.payload::text is distinct from (u.o - 1)::text";
            assert_eq!(sql.query_one(wrong, &[&ids]).await.unwrap().get::<_, i64>(0), 0);
        }
    })
    .await;
}

#[tokio::test]
async fn copied_jobs_keep_every_option_and_every_character() {
    with_database(async |db| {
        let client = db.client().await;
        let text = "tab\tline\nreturn\rback\\slash \"quoted\" \\. \u{1f600} \\N";
        let whole = Enqueue::raw("ki\\nd", RawJson::of(text).unwrap())
            .queue("q\\t ü")
            .priority(4)
            .max_attempts(7)
            .delay(Duration::from_secs(3600))
            .timeout(Duration::from_millis(1_500));
        let id = client.enqueue_copy([whole]).await.unwrap()[0];
        let info = client.get(id).await.unwrap().unwrap();
        assert_eq!((info.kind.as_str(), info.queue.as_str()), ("ki\\nd", "q\\t ü"));
        assert_eq!((info.priority, info.max_attempts, info.status), (4, 7, State::Scheduled));
        assert_eq!(info.timeout, Some(Duration::from_millis(1_500)));
        assert_eq!(info.payload.decode::<String>().unwrap(), text);
        let wait = info.run_at.duration_since(info.created_at).unwrap();
        assert!((3_590..=3_600).contains(&wait.as_secs()), "{wait:?}");
    })
    .await;
}

async fn hand(db: &TestDatabase) -> Hand {
    Hand::register(db.sql().await, &Registration::default()).await.unwrap()
}

/// Makes dead letters of these kinds; gives their ids.
async fn bury(db: &TestDatabase, client: &Client, count: u32) -> Vec<JobId> {
    client.enqueue_copy(jobs(count)).await.unwrap();
    let mut hand = hand(db).await;
    let (claimed, _) = hand.claim(count as i32).await.unwrap();
    for job in &claimed {
        assert_eq!(hand.fail(job, "permanent", None).await.unwrap(), "dead");
    }
    assert_eq!(claimed.len(), count as usize);
    claimed.iter().map(|job| JobId::from(job.job)).collect()
}

#[tokio::test]
async fn wait_tells_every_end_and_follows_a_requeued_job() {
    with_database(async |db| {
        let client = db.client().await;
        let short = Duration::from_millis(200);
        let unknown = client.wait(JobId::from(77), short).await.unwrap_err();
        assert_eq!(unknown.code(), ErrorCode::NotFound);

        let dead = bury(db, &client, 1).await[0];
        match client.wait(dead, short).await.unwrap() {
            Ended::Dead { id, cause, .. } => assert_eq!((id, cause.as_str()), (dead, "error")),
            other => panic!("{other:?}"),
        }
        let again = client.requeue(dead, None).await.unwrap();
        assert_eq!(client.wait(dead, short).await.unwrap_err().code(), ErrorCode::Timeout);
        assert_eq!(client.requeue(dead, None).await.unwrap_err().code(), ErrorCode::Refused);
        assert_eq!(client.cancel(again).await.unwrap(), Cancelled::Now);
        match client.wait(dead, short).await.unwrap() {
            Ended::Cancelled { id, .. } => assert_eq!(id, again),
            other => panic!("{other:?}"),
        }
    })
    .await;
}

#[tokio::test]
async fn wait_returns_the_result_while_it_waits() {
    with_database(async |db| {
        let client = db.client().await;
        let id = client.enqueue(job(1)).await.unwrap();
        let waiting = tokio::spawn({
            let client = client.clone();
            async move { client.wait(id, Duration::from_secs(30)).await }
        });
        let mut hand = hand(db).await;
        let (claimed, _) = hand.claim(1).await.unwrap();
        let complete = "select tenure.complete($1, $2, '{\"n\": 7}')";
        db.sql().await.execute(complete, &[&claimed[0].job, &claimed[0].lease]).await.unwrap();
        let end = waiting.await.unwrap().unwrap();
        let result: std::collections::HashMap<String, i32> = end.result().unwrap();
        assert_eq!(result["n"], 7);
    })
    .await;
}

#[tokio::test]
async fn lists_find_jobs_by_state_queue_and_kind_newest_first() {
    with_database(async |db| {
        let client = db.client().await;
        let ready = client.enqueue_many("act", 0..300, JobOptions::new()).await.unwrap();
        let later = client.enqueue_copy(jobs(3).map(|j| j.queue("q").delay(Duration::from_secs(60)))).await.unwrap();
        client.cancel(ready[0]).await.unwrap();

        let ids = async |filter: JobFilter| -> Vec<JobId> {
            client.list(&filter).await.unwrap().into_iter().map(|job| job.id).collect()
        };
        let newest: Vec<JobId> = ready.iter().rev().take(120).copied().collect();
        let available = JobFilter { statuses: vec![State::Available], limit: Some(120), ..JobFilter::default() };
        assert_eq!(ids(available.clone()).await, newest);
        let page = JobFilter { before: newest.last().copied(), ..available };
        assert_eq!(ids(page).await, ready.iter().rev().skip(120).take(120).copied().collect::<Vec<_>>());
        let scheduled = JobFilter { statuses: vec![State::Scheduled], ..JobFilter::default() };
        assert_eq!(ids(scheduled).await, later.iter().rev().copied().collect::<Vec<_>>());
        assert_eq!(ids(JobFilter { queue: Some("q".into()), ..JobFilter::default() }).await.len(), 3);
        assert_eq!(ids(JobFilter { kind: Some("other".into()), ..JobFilter::default() }).await, []);
        let cancelled = JobFilter { statuses: vec![State::Cancelled], ..JobFilter::default() };
        assert_eq!(ids(cancelled).await, [ready[0]]);
        assert_eq!(ids(JobFilter { limit: Some(1_000), ..JobFilter::default() }).await.len(), 303);
        for limit in [0, 1_001] {
            let error = client.list(&JobFilter { limit: Some(limit), ..JobFilter::default() }).await.unwrap_err();
            assert_eq!(error.code(), ErrorCode::BadInput);
        }
    })
    .await;
}

#[tokio::test]
async fn dead_letters_are_requeued_and_discarded_by_filter_but_never_by_accident() {
    with_database(async |db| {
        let client = db.client().await;
        let dead = bury(db, &client, 250).await;
        for error in [
            client.requeue_dead(&DeadFilter::new(), RequeuePace::AtOnce, |_| {}).await.unwrap_err(),
            client.discard_dead(&DeadFilter::new(), |_| {}).await.unwrap_err(),
        ] {
            assert!(error.to_string().contains("DeadFilter::all()"), "{error}");
        }
        let none = DeadFilter::new().cause("timeout");
        assert_eq!(client.requeue_dead(&none, RequeuePace::AtOnce, |_| {}).await.unwrap(), 0);

        let first = client.dead_letters(&DeadFilter::new(), None, Some(100)).await.unwrap();
        let second = client.dead_letters(&DeadFilter::new(), first.last(), Some(1_000)).await.unwrap();
        assert_eq!((first.len(), second.len()), (100, 150));
        assert!(client.discard(dead[0]).await.unwrap());
        assert!(!client.discard(dead[0]).await.unwrap());

        let errors = DeadFilter::new().cause("error").kind("act");
        let mut told = Vec::new();
        let count =
            client.requeue_dead(&errors, RequeuePace::AtOnce, |chunk| told.extend_from_slice(chunk)).await.unwrap();
        assert_eq!((count, told.len()), (249, 249));
        assert_eq!(client.dead_letters(&DeadFilter::new(), None, None).await.unwrap().len(), 0);
        assert_eq!(client.discard_dead(&DeadFilter::all(), |_| {}).await.unwrap(), 0);
        let letter = client.dead_letter(dead[1]).await.unwrap().unwrap();
        assert!(letter.replaced_by.is_some());
    })
    .await;
}

#[tokio::test]
async fn a_client_survives_the_loss_of_its_connections() {
    with_database(async |db| {
        let client = db.client().await;
        client.enqueue(job(1)).await.unwrap();
        let sql = db.sql().await;
        let cut = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'tenure'
            and datname = current_database()";
        assert!(!sql.query(cut, &[]).await.unwrap().is_empty());
        until("the client has a new connection", async || client.enqueue(job(2)).await.is_ok()).await;
    })
    .await;
}

#[tokio::test]
async fn a_full_pool_says_so() {
    with_database(async |db| {
        let client =
            Client::builder(db.url()).pool_size(1).pool_wait(Duration::from_millis(100)).connect().await.unwrap();
        let sql = db.sql().await;
        sql.batch_execute("begin; lock table tenure.job in access exclusive mode").await.unwrap();
        let blocked = tokio::spawn({
            let client = client.clone();
            async move { client.enqueue(job(1)).await }
        });
        until("the enqueue waits for its lock", async || {
            let waiting = "select count(*) from pg_locks where not granted and database = (select oid from pg_database where datname = current_database())";
            sql.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) > 0
        })
        .await;
        let error = client.enqueue(job(2)).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Timeout);
        assert!(error.to_string().contains("all 1 are in use (raise pool_size"), "{error}");
        sql.batch_execute("commit").await.unwrap();
        blocked.await.unwrap().unwrap();
    })
    .await;
}

#[tokio::test]
async fn in_pooler_mode_every_verb_works_without_prepared_statements() {
    with_database(async |db| {
        let client = Client::builder(db.url()).pooler(true).pool_size(1).connect().await.unwrap();
        let id = client.enqueue(job(1)).await.unwrap();
        client.enqueue_many("act", 0..10, JobOptions::new()).await.unwrap();
        client.enqueue_copy(jobs(10)).await.unwrap();
        assert_eq!(client.list(&JobFilter::default()).await.unwrap().len(), 21);
        assert!(client.pause("default", Some("me"), None).await.unwrap());
        assert_eq!(client.queues().await.unwrap()[0].paused_by.as_deref(), Some("me"));
        assert!(client.resume("default").await.unwrap());
        assert_eq!(client.cancel(id).await.unwrap(), Cancelled::Now);
        assert!(client.workers().await.unwrap().is_empty());
        assert!(client.server().await.unwrap().schema_version > 0);
    })
    .await;
}
