//! Enqueue: one, many, by COPY, in the caller's transaction, and what is refused.

use tenure_scenarios::protocol::{BAD_INPUT, Registration, sqlstate};
use tenure_scenarios::{Size, Stage, on_stage};
use tokio_postgres::types::ToSql;

#[tokio::test]
async fn an_enqueued_job_is_available_with_the_payload_as_it_was_written() {
    on_stage(Size::Ci, async |stage| {
        let payload = r#"{"id": 1970670598291982290,  "z": 1.10}"#;
        let id: i64 = stage.one("select tenure.enqueue('act', $1::text::json)", &[&payload]).await;
        let stored: String = stage.one("select payload::text from tenure.jobs where id = $1", &[&id]).await;
        assert_eq!((stage.status(id).await.as_str(), stored.as_str()), ("available", payload));
    })
    .await;
}

#[tokio::test]
async fn ids_come_in_the_order_of_the_payloads_by_arrays_and_by_copy() {
    on_stage(Size::Ci, async |stage| {
        let payloads: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
        let many = "select tenure.enqueue_many('act', $1::text[]::json[])";
        let ids: Vec<i64> = stage.sql.query(many, &[&payloads]).await.unwrap().iter().map(|row| row.get(0)).collect();
        check_order(stage, &ids, &payloads).await;

        let mut sql = stage.db.sql().await;
        let tx = sql.transaction().await.unwrap();
        for chunk in payloads.chunks(400) {
            let values: Vec<String> = chunk.iter().map(|n| format!("('act', '{n}')")).collect();
            tx.batch_execute(&format!("insert into tenure.inbox (kind, payload) values {}", values.join(",")))
                .await
                .unwrap();
        }
        let rows = tx.query("select tenure.enqueue_inbox()", &[]).await.unwrap();
        tx.commit().await.unwrap();
        check_order(stage, &rows.iter().map(|row| row.get(0)).collect::<Vec<_>>(), &payloads).await;
        assert_eq!(stage.count("select count(*) from tenure.inbox", &[]).await, 0);
    })
    .await;
}

async fn check_order(stage: &Stage, ids: &[i64], payloads: &[String]) {
    let stored = "select array_agg(j.payload::text order by u.o) from unnest($1::bigint[]) with ordinality u(id, o)
        join tenure.job j on j.id = u.id";
    assert_eq!(stage.one::<Vec<String>>(stored, &[&ids]).await, payloads);
}

#[tokio::test]
async fn a_rolled_back_enqueue_leaves_nothing() {
    on_stage(Size::Ci, async |stage| {
        let calls = [
            "select tenure.enqueue('act', '{}')",
            "select tenure.enqueue('act', '{}', p_delay_ms => 1000)",
            "select tenure.enqueue_many('act', array['1','2']::json[])",
            "insert into tenure.inbox (kind, payload) values ('act', '1'); select tenure.enqueue_inbox()",
        ];
        for call in calls {
            stage.sql.batch_execute(&format!("begin; {call}; rollback")).await.unwrap();
        }
        let left = "select (select count(*) from tenure.job) + (select count(*) from tenure.ready)
            + (select count(*) from tenure.later) + (select count(*) from tenure.inbox)";
        assert_eq!(stage.count(left, &[]).await, 0);
    })
    .await;
}

#[tokio::test]
async fn a_delayed_job_is_scheduled_and_runs_when_it_is_due() {
    on_stage(Size::Ci, async |stage| {
        let id: i64 = stage.one("select tenure.enqueue('act', '{}', p_delay_ms => 3600000)", &[]).await;
        assert_eq!(stage.status(id).await, "scheduled");
        stage.execute("select tenure.promote()", &[]).await;
        assert_eq!(stage.status(id).await, "scheduled");
        stage.execute("update tenure.later set due_at = clock_timestamp()", &[]).await;
        stage.execute("select tenure.promote()", &[]).await;
        assert_eq!(stage.status(id).await, "available");
    })
    .await;
}

/// What must be refused: the changed argument, and a word that the message must hold.
const BAD: &[(&str, &str)] = &[
    ("p_kind => ''", "kind"),
    ("p_kind => repeat('k', 129)", "129"),
    ("p_kind => null", "kind"),
    ("p_queue => ''", "queue"),
    ("p_queue => repeat('ä', 65)", "130"),
    ("p_queue => null", "queue"),
    ("p_payload => null", "payload"),
    ("p_payload => to_json(repeat('x', 70000))", "70002"),
    (r#"p_payload => '"\u0000"'"#, "cannot store"),
    (r#"p_payload => '{"a\u0000b": 1}'"#, "cannot store"),
    (r#"p_payload => '"\ud800"'"#, "cannot store"),
    ("p_priority => 0", "priority 0"),
    ("p_priority => 5", "priority 5"),
    ("p_priority => null", "priority"),
    ("p_priority => 65538", "priority 65538"),
    ("p_delay_ms => -1", "-1"),
    ("p_delay_ms => 315576000001", "315576000001"),
    ("p_run_at => now() + interval '10 years 1 day'", "run_at"),
    ("p_run_at => 'infinity'", "run_at"),
    ("p_run_at => '-infinity'", "run_at"),
    ("p_max_attempts => 0", "max_attempts 0"),
    ("p_max_attempts => 1001", "1001"),
    ("p_max_attempts => 65537", "65537"),
    ("p_timeout_ms => -1", "timeout"),
];

#[tokio::test]
async fn bad_input_is_refused_with_the_value_and_the_way_out_and_nothing_half_done() {
    on_stage(Size::Ci, async |stage| {
        let mut wrong = Vec::new();
        for (argument, word) in BAD {
            let mut arguments = String::new();
            for default in ["p_kind => 'act'", "p_payload => '{}'"] {
                if !argument.starts_with(&default[..default.find(' ').unwrap()]) {
                    arguments += &format!("{default}, ");
                }
            }
            let none: &[&(dyn ToSql + Sync)] = &[];
            for name in ["enqueue", "enqueue_many"] {
                let arguments = match name {
                    "enqueue" => format!("{arguments}{argument}"),
                    _ => many_arguments(&format!("{arguments}{argument}")),
                };
                match stage.sql.query(&format!("select tenure.{name}({arguments})"), none).await {
                    Ok(_) => wrong.push(format!("{name}({arguments}) is accepted")),
                    Err(e) => {
                        let Some(db) = e.as_db_error() else { panic!("{name}({arguments}): {e}") };
                        if db.code().code() != BAD_INPUT || !db.message().contains(word) || db.hint().is_none() {
                            wrong.push(format!("{name}({arguments}): {} {db}, hint {:?}", db.code().code(), db.hint()));
                        }
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "\n  {}", wrong.join("\n  "));
        assert_eq!(stage.count("select count(*) from tenure.job", &[]).await, 0);
    })
    .await;
}

/// The same arguments for the verb that takes an array of payloads.
fn many_arguments(one: &str) -> String {
    let (before, rest) = one.split_once("p_payload => ").expect("a payload");
    let depth_aware_end = rest.char_indices().scan((0, false), |(depth, quoted), (at, c)| {
        match c {
            '\'' => *quoted = !*quoted,
            '(' if !*quoted => *depth += 1,
            ')' if !*quoted => *depth -= 1,
            _ => {}
        }
        Some((at, c == ',' && *depth == 0 && !*quoted))
    });
    let end = depth_aware_end.filter(|(_, ends)| *ends).map(|(at, _)| at).next().unwrap_or(rest.len());
    format!("{before}p_payloads => array[{}]::json[]{}", &rest[..end], &rest[end..])
}

#[tokio::test]
async fn an_inbox_row_is_checked_like_any_other_enqueue() {
    on_stage(Size::Ci, async |stage| {
        let rows = [
            "('', '{}', 'default', 2)",
            "('act', '{}', '', 2)",
            "('act', '{}', 'default', 9)",
            r#"('act', '"\u0000"', 'default', 2)"#,
        ];
        for row in rows {
            let mut sql = stage.db.sql().await;
            let tx = sql.transaction().await.unwrap();
            tx.batch_execute(&format!("insert into tenure.inbox (kind, payload, queue, priority) values {row}"))
                .await
                .unwrap();
            assert_eq!(sqlstate(tx.query("select tenure.enqueue_inbox()", &[]).await), BAD_INPUT, "{row}");
        }
        assert_eq!(stage.count("select count(*) from tenure.job", &[]).await, 0);
    })
    .await;
}

#[tokio::test]
async fn an_empty_bulk_enqueue_does_nothing() {
    on_stage(Size::Ci, async |stage| {
        assert!(stage.sql.query("select tenure.enqueue_many('act', '{}')", &[]).await.unwrap().is_empty());
        assert!(stage.sql.query("select tenure.enqueue_inbox()", &[]).await.unwrap().is_empty());
    })
    .await;
}

#[tokio::test]
async fn a_delay_beyond_all_reason_is_refused_by_its_value() {
    on_stage(Size::Ci, async |stage| {
        let enqueue = "select tenure.enqueue('act', '{}', p_delay_ms => $1)";
        let error = stage.sql.query(enqueue, &[&i64::MAX]).await.unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!(error.code().code(), "TN002");
        assert!(error.message().contains("delay 9223372036854775807 ms"), "{}", error.message());
    })
    .await;
}

#[tokio::test]
async fn a_session_with_odd_settings_can_enqueue_and_fail() {
    on_stage(Size::Ci, async |stage| {
        const ODD: &str = "set standard_conforming_strings = off; set escape_string_warning = off; set datestyle = 'SQL, DMY';
            set intervalstyle = 'sql_standard'; set timezone = 'Asia/Kathmandu'; set default_transaction_isolation = 'serializable';
            set search_path = ''; set transform_null_equals = on; set array_nulls = off; set extra_float_digits = -15; set bytea_output = escape";
        let mut hand = stage.hand(&Registration::default()).await;
        hand.sql.batch_execute(ODD).await.unwrap();
        let id: i64 = hand.sql.query_one("select tenure.enqueue('act', '{\"a\": \"\\u00e4\"}')", &[]).await.unwrap().get(0);
        let many = "select tenure.enqueue_many('act', array['1', '2']::json[], p_delay_ms => 86400000)";
        assert_eq!(hand.sql.query(many, &[]).await.unwrap().len(), 2);
        let (jobs, trailer) = hand.claim(5).await.unwrap();
        assert_eq!(jobs.iter().map(|job| job.job).collect::<Vec<_>>(), [id]);
        assert!((86_000_000.0..=86_400_000.0).contains(&trailer.next_due_ms.unwrap()), "{trailer:?}");
        let failure = format!(
            r#"[{{"lease": {}, "job": {id}, "verdict": "permanent", "message": "a\u0000b"}}]"#,
            jobs[0].lease
        );
        assert_eq!(hand.fail_with(&failure).await.unwrap(), "dead");
        assert_eq!(stage.one::<String>("select message from tenure.dead_letter", &[]).await, "a\u{fffd}b");
        hand.tick().await.unwrap();
    })
    .await;
}
