//! The limits of the library are the limits of the SQL functions: what one accepts, the other does too.

use std::time::{Duration, SystemTime};

use tenure::limits::{
    ATTEMPTS_MAX, DELAY_MAX, NAME_BYTES_MAX, PAYLOAD_BYTES_DEFAULT, PRIORITY_MAX, PRIORITY_MIN, TIMEOUT_MAX,
};
use tenure::testing::{TestDatabase, with_database};
use tenure::{Enqueue, RawJson};

const MS: Duration = Duration::from_millis(1);

/// Both the library's check and the database, by a call that the library's check is not part of, say the same; where
/// both name a number and its range, in the same words.
async fn check(db: &TestDatabase, job: Enqueue, argument: &str, accepted: bool) {
    assert_eq!(job.check().is_ok(), accepted, "the library: {argument}: {:?}", job.check());
    let mut arguments = String::new();
    for (name, value) in [("p_kind", "'k'"), ("p_payload", "'1'")] {
        if !argument.starts_with(name) {
            arguments.push_str(&format!("{name} => {value}, "));
        }
    }
    let answer = db.sql().await.query(&format!("select tenure.enqueue({arguments}{argument})"), &[]).await;
    assert_eq!(answer.is_ok(), accepted, "the database: {argument}: {answer:?}");
    if let (Err(library), Err(database)) = (job.check(), answer)
        && library.message().contains(" is outside 1 to ")
    {
        assert_eq!(database.as_db_error().map(|error| error.message()), Some(library.message()));
    }
}

#[tokio::test]
async fn the_library_and_the_database_draw_the_same_lines() {
    with_database(async |db| {
        let job = || Enqueue::raw("k", RawJson::null());
        for (bytes, accepted) in [(0, false), (1, true), (NAME_BYTES_MAX, true), (NAME_BYTES_MAX + 1, false)] {
            let name = "x".repeat(bytes);
            check(db, Enqueue::raw(&name, RawJson::null()), &format!("p_kind => '{name}'"), accepted).await;
            check(db, job().queue(&name), &format!("p_queue => '{name}'"), accepted).await;
        }
        for (priority, accepted) in
            [(PRIORITY_MIN - 1, false), (PRIORITY_MIN, true), (PRIORITY_MAX, true), (PRIORITY_MAX + 1, false)]
        {
            check(db, job().priority(priority), &format!("p_priority => {priority}"), accepted).await;
        }
        for (attempts, accepted) in [(0, false), (1, true), (ATTEMPTS_MAX, true), (ATTEMPTS_MAX + 1, false)] {
            check(db, job().max_attempts(attempts), &format!("p_max_attempts => {attempts}"), accepted).await;
        }
        for (delay, accepted) in [(Duration::ZERO, true), (DELAY_MAX, true), (DELAY_MAX + MS, false)] {
            check(db, job().delay(delay), &format!("p_delay_ms => {}", delay.as_millis()), accepted).await;
        }
        for (timeout, accepted) in [(Duration::ZERO, true), (TIMEOUT_MAX, true), (TIMEOUT_MAX + MS, false)] {
            check(db, job().timeout(timeout), &format!("p_timeout_ms => {}", timeout.as_millis()), accepted).await;
        }
    })
    .await;
}

#[tokio::test]
async fn an_instant_in_the_past_means_at_once_and_one_far_ahead_is_refused() {
    with_database(async |db| {
        let client = db.client().await;
        let job = || Enqueue::raw("k", RawJson::null());
        let past = client.enqueue(job().run_at(SystemTime::UNIX_EPOCH)).await.unwrap();
        assert_eq!(client.get(past).await.unwrap().unwrap().status.as_str(), "available");
        let error = client.enqueue(job().run_at(SystemTime::now() + DELAY_MAX * 2)).await.unwrap_err();
        assert!(error.to_string().contains("more than 10 years ahead"), "{error}");
        let soon = SystemTime::now() + Duration::from_secs(3_600);
        let id = client.enqueue(job().run_at(soon)).await.unwrap();
        let stored = client.get(id).await.unwrap().unwrap().run_at;
        let apart = stored.duration_since(soon).or_else(|_| soon.duration_since(stored)).unwrap();
        assert!(apart < Duration::from_micros(2), "{apart:?}");
    })
    .await;
}

#[tokio::test]
async fn a_payload_has_64_kib_unless_the_database_is_configured_otherwise() {
    with_database(async |db| {
        let client = db.client().await;
        let job = |bytes: usize| Enqueue::raw("k", RawJson::of(&"x".repeat(bytes - 2)).unwrap());
        client.enqueue(job(PAYLOAD_BYTES_DEFAULT)).await.unwrap();
        client.enqueue(job(PAYLOAD_BYTES_DEFAULT + 1)).await.unwrap_err();
        let raise = "insert into tenure.setting (name, value) values ('payload_bytes', '100000')";
        db.sql().await.batch_execute(raise).await.unwrap();
        client.enqueue(job(100_000)).await.unwrap();
        client.enqueue_copy([job(100_000)]).await.unwrap();
        let error = client.enqueue(job(100_001)).await.unwrap_err();
        assert!(error.to_string().contains("100001 bytes; the limit is 100000"), "{error}");
    })
    .await;
}
