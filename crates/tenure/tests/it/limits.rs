//! The limits of the library are the limits of the SQL functions: what one accepts, the other does too.

use std::time::{Duration, SystemTime};

use serde_json::json;
use tenure::limits::{
    ATTEMPTS_MAX, COST_MAX, DELAY_MAX, NAME_BYTES_MAX, PAYLOAD_BYTES_DEFAULT, PRIORITY_MAX, PRIORITY_MIN, SHARE_MAX,
    TIMEOUT_MAX, UNDER_MAX,
};
use tenure::testing::{TestDatabase, with_database};
use tenure::{Enqueue, RawJson, Under};

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

/// The same of what a job stands under.
async fn check_under(db: &TestDatabase, job: Enqueue, limits: serde_json::Value, accepted: bool) {
    assert_eq!(job.check().is_ok(), accepted, "the library: {limits}: {:?}", job.check());
    let enqueue = "select tenure.enqueue_limited('k', '1', $1::text::json)";
    let answer = db.sql().await.query(enqueue, &[&limits.to_string()]).await;
    assert_eq!(answer.is_ok(), accepted, "the database: {limits}: {answer:?}");
}

#[tokio::test]
async fn the_library_and_the_database_let_a_job_stand_under_the_same() {
    with_database(async |db| {
        let job = || Enqueue::raw("k", RawJson::null());
        let set = "select count(tenure.set_limit('l' || n, p_concurrency => 1)) from generate_series(1, 100) n";
        db.sql().await.query(set, &[]).await.unwrap();
        for (count, accepted) in [(1, true), (UNDER_MAX, true), (UNDER_MAX + 1, false)] {
            let names: Vec<String> = (1..=count).map(|n| format!("l{n}")).collect();
            let all = names.iter().fold(job(), |job, name| job.under(name));
            let limits: Vec<_> = names.iter().map(|name| json!({ "limit": name })).collect();
            check_under(db, all, json!({ "under": limits }), accepted).await;
        }
        for (cost, accepted) in [(0, false), (1, true), (COST_MAX, true), (COST_MAX + 1, false)] {
            let limits = json!({ "under": [{ "limit": "l1", "cost": cost }] });
            check_under(db, job().under(Under::limit("l1").cost(cost)), limits, accepted).await;
        }
        for (share, accepted) in [(0, false), (1, true), (SHARE_MAX, true), (SHARE_MAX + 1, false)] {
            check_under(db, job().fair("a", share), json!({ "fair": "a", "share": share }), accepted).await;
        }
        for (bytes, accepted) in [(0, false), (1, true), (NAME_BYTES_MAX, true), (NAME_BYTES_MAX + 1, false)] {
            let key = "x".repeat(bytes);
            check_under(db, job().fair(&key, 1), json!({ "fair": key }), accepted).await;
            check_under(db, job().order(&key), json!({ "order": key }), accepted).await;
            let limits = json!({ "under": [{ "limit": "l1", "key": key }] });
            check_under(db, job().under(Under::limit("l1").key(&key)), limits, accepted).await;
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

#[tokio::test]
async fn what_a_job_stands_under_is_named_by_strings_that_can_be_stored() {
    with_database(async |db| {
        let sql = db.sql().await;
        sql.query_one("select tenure.set_limit('1', 5)", &[]).await.unwrap();
        for (limits, expected) in [
            (r#"{"fair": {"a": 1}}"#, "the fair key {\"a\": 1} is no string"),
            (r#"{"order": 7}"#, "the order key 7 is no string"),
            (r#"{"under": [{"limit": 1}]}"#, "the limit 1 is no string"),
            (r#"{"under": [{"limit": "1", "key": [1]}]}"#, "the key [1] is no string"),
            (r#"{"order": "a\u0000"}"#, "the limits of the job hold text that PostgreSQL cannot store"),
        ] {
            let text = "select tenure.enqueue_limited('k', '1', $1::text::json)";
            let refused = sql.query_one(text, &[&limits]).await.unwrap_err();
            let refused = refused.as_db_error().expect("refused by the database");
            assert_eq!(refused.code().code(), "TN002", "{limits}");
            assert!(refused.message().contains(expected), "{limits}: {}", refused.message());
        }
    })
    .await;
}
