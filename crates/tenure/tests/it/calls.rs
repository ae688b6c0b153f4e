//! Any client can call: integers need no cast, and JSON may come as json, jsonb, text, or a literal.

use tenure_scenarios::protocol::Registration;
use tenure_scenarios::{Size, on_stage};

/// What stands for the payload `{"n":  1.10}` in a statement, and what is stored of it: only jsonb changes its text.
const PAYLOADS: &[(&str, &str)] = &[
    (r#"'{"n":  1.10}'"#, r#"{"n":  1.10}"#),
    (r#"'{"n":  1.10}'::text"#, r#"{"n":  1.10}"#),
    (r#"'{"n":  1.10}'::varchar"#, r#"{"n":  1.10}"#),
    (r#"'{"n":  1.10}'::json"#, r#"{"n":  1.10}"#),
    (r#"'{"n":  1.10}'::jsonb"#, r#"{"n": 1.10}"#),
    ("json_build_object('n', 1)", r#"{"n" : 1}"#),
    ("jsonb_build_object('n', 1)", r#"{"n": 1}"#),
    ("format('{\"n\": %s}', 1)", r#"{"n": 1}"#),
];

#[tokio::test]
async fn a_payload_is_json_jsonb_text_or_a_literal_and_integers_are_plain() {
    on_stage(Size::Ci, async |stage| {
        for (payload, stored) in PAYLOADS {
            for rest in [
                "",
                ", 'default', 1, null, null, 3, 60000",
                ", p_priority => 1",
                ", p_delay_ms => 1000, p_max_attempts => 7",
                ", p_priority => 1::smallint, p_queue => 'other'",
            ] {
                let call = format!("select tenure.enqueue('act', {payload}{rest})");
                let id: i64 = stage.one(&call, &[]).await;
                let text: String = stage.one("select payload::text from tenure.job where id = $1", &[&id]).await;
                assert_eq!(text, *stored, "{call}");
            }
            let id: i64 =
                stage.one(&format!("select tenure.enqueue(p_payload => {payload}, p_kind => 'act')"), &[]).await;
            stage.execute("select tenure.cancel($1)", &[&id]).await;
            for call in [
                format!("select tenure.requeue($1, {payload})"),
                format!("select tenure.requeue($1, p_payload => {payload}, p_run_at => now())"),
            ] {
                let new: i64 = stage.one(&call, &[&id]).await;
                let text: String = stage.one("select payload::text from tenure.job where id = $1", &[&new]).await;
                assert_eq!(text, *stored, "{call}");
                stage.execute("delete from tenure.replacement where job_id = $1", &[&id]).await;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_parameter_without_a_type_takes_text() {
    on_stage(Size::Ci, async |stage| {
        let text = r#"{"n":  1.10}"#;
        let id: i64 = stage.one("select tenure.enqueue('act', $1, p_priority => $2)", &[&text, &1_i32]).await;
        assert_eq!(stage.one::<String>("select payload::text from tenure.job where id = $1", &[&id]).await, text);
        stage.execute("select tenure.cancel($1)", &[&id]).await;
        let id: i64 = stage.one("select tenure.requeue($1)", &[&id]).await;
        stage.execute("select tenure.cancel($1)", &[&id]).await;
        stage.one::<i64>("select tenure.requeue($1, p_run_at => now())", &[&id]).await;
    })
    .await;
}

#[tokio::test]
async fn progress_and_result_are_json_jsonb_text_a_literal_or_left_out() {
    on_stage(Size::Ci, async |stage| {
        let mut hand = stage.hand(&Registration::default()).await;
        let results = PAYLOADS.iter().map(|(result, stored)| (format!(", {result}"), Some(*stored)));
        for (result, stored) in results.chain([(String::new(), None), (", null".to_owned(), None)]) {
            stage.execute("select tenure.enqueue('act', '{}')", &[]).await;
            let (jobs, _) = hand.claim(1).await.unwrap();
            let (job, fence) = (jobs[0].job, jobs[0].lease);
            if stored.is_some() {
                let progress = format!("select tenure.progress($1, $2{result})");
                assert!(stage.one::<bool>(&progress, &[&job, &fence]).await);
            }
            stage.execute(&format!("select tenure.complete($1, $2{result})"), &[&job, &fence]).await;
            let kept = "select result::text from tenure.outcome where job_id = $1";
            assert_eq!(stage.one::<Option<String>>(kept, &[&job]).await.as_deref(), stored, "{result}");
        }
    })
    .await;
}

#[tokio::test]
async fn many_payloads_are_an_array_of_json_that_every_other_array_is_cast_to() {
    on_stage(Size::Ci, async |stage| {
        for payloads in [
            "array['{}', '[1]']::json[]",
            "array['{}', '[1]']::jsonb[]::json[]",
            "array['{}', '[1]']::text[]::json[]",
            "'{\"{}\",[1]}'",
            "array[json_build_object(), to_json(1)]",
        ] {
            let many = format!(
                "select count(*) from tenure.enqueue_many('act', {payloads}, p_priority => 1, p_max_attempts => 2)"
            );
            assert_eq!(stage.count(&many, &[]).await, 2, "{payloads}");
        }
    })
    .await;
}

#[tokio::test]
async fn lanes_of_a_claim_are_plain_integers() {
    on_stage(Size::Ci, async |stage| {
        stage.execute("select tenure.enqueue('act', '{}')", &[]).await;
        let hand = stage.hand(&Registration::default()).await;
        let claim = format!(
            "select count(job_id) from tenure.claim({}, '{}', array['default'], array[1], array['act'], '{{}}', array[1, 2], array[0, 0], false)",
            hand.worker, hand.token
        );
        // Cursors are bigint, and an array of integers is no array of those.
        let claim = claim.replace("array[0, 0]", "'{0,0}'");
        assert_eq!(stage.count(&claim, &[]).await, 1);
    })
    .await;
}

#[tokio::test]
async fn a_setting_is_set_again_and_again_within_its_range() {
    on_stage(Size::Ci, async |stage| {
        let big = "select tenure.enqueue('act', to_json(repeat('x', 70000)))";
        for value in ["100000", "200000"] {
            stage.execute(&format!("select tenure.set_setting('payload_bytes', {value})"), &[]).await;
            stage.one::<i64>(big, &[]).await;
        }
        stage.execute("select tenure.set_setting('payload_bytes', null)", &[]).await;
        assert_eq!(tenure_scenarios::protocol::sqlstate(stage.sql.query(big, &[]).await), "TN002");
        for wrong in
            ["'payload_bytes', 1", "'payload_bytes', 16777217", "'snapshot_warn_ms', 0", "'other', 1", "null, 1"]
        {
            let set = format!("select tenure.set_setting({wrong})");
            assert_eq!(tenure_scenarios::protocol::sqlstate(stage.sql.query(&set, &[]).await), "TN002", "{wrong}");
        }
    })
    .await;
}
