//! Enqueue: one, many, by COPY, in the caller's transaction, and what is refused.

use tenure_scenarios::protocol::{BAD_INPUT, sqlstate};
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
    ("p_priority => 0::smallint", "priority 0"),
    ("p_priority => 5::smallint", "priority 5"),
    ("p_priority => null", "priority"),
    ("p_delay_ms => -1", "-1"),
    ("p_delay_ms => 315576000001", "315576000001"),
    ("p_run_at => now() + interval '10 years 1 day'", "run_at"),
    ("p_run_at => 'infinity'", "run_at"),
    ("p_max_attempts => 0::smallint", "max_attempts 0"),
    ("p_max_attempts => 1001::smallint", "1001"),
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
            "('', '{}', 'default', 2::smallint)",
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
