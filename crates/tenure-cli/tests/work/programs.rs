//! What a program gets and says, and what becomes of its job.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};
use tenure::lifecycle::State;
use tenure::testing::with_database;
use tenure::{Enqueue, RawJson};

use super::{Folder, SECOND, Work, drain, enqueue, failure, job, shown, until_gone, value};

#[tokio::test(flavor = "multi_thread")]
async fn the_exit_code_of_a_program_decides_what_becomes_of_its_job() {
    with_database(async |db| {
        let (client, folder) = (db.client().await, Folder::new(db));
        let cases = [
            ("fine=exit 0", State::Completed, 0),
            ("later=echo first >&2; echo try again >&2; exit 75", State::Retrying, 75),
            ("other=echo partial; exit 3", State::Retrying, 3),
            ("never=echo 'no such customer' >&2; exit 65", State::Dead, 65),
        ];
        let mut ids = Vec::new();
        for (program, ..) in cases {
            ids.push(enqueue(&client, program.split('=').next().unwrap_or_default()).await);
        }
        let end = drain(db, &folder, &cases.map(|(program, ..)| program)).await;
        assert_eq!(end.code, Some(0), "{end:?}");
        assert!(end.said.contains("1 completed, 3 failed (1 dead), 0 cancelled, 0 given back"), "{}", end.said);
        for (id, (program, status, code)) in ids.iter().zip(cases) {
            let seen = job(&client, *id).await;
            assert_eq!((seen.status, seen.attempt), (status, 1), "{program}");
            if code > 0 {
                let (cause, message, details) = failure(&client, *id).await;
                assert_eq!((cause.as_str(), &details["exit_code"]), ("exit", &json!(code)), "{program}");
                assert!(message.contains(&format!("exit code {code}")), "{message}");
            }
        }
        let (_, message, details) = failure(&client, ids[1]).await;
        assert!(message.ends_with(": try again"), "{message}");
        assert_eq!(details["stderr"], "first\ntry again");
        assert_eq!(failure(&client, ids[2]).await.2["stdout"], "partial");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_cannot_be_run_harms_no_job_and_its_kind_is_left_to_others() {
    with_database(async |db| {
        let (client, folder) = (db.client().await, Folder::new(db));
        let locked = folder.path("locked");
        fs::write(&locked, "#!/bin/sh\n").expect("a file");
        fs::set_permissions(&locked, fs::Permissions::from_mode(0o644)).expect("no right to run it");
        let mut harmed = Vec::new();
        for _ in 0..3 {
            harmed.push(enqueue(&client, "missing").await);
            harmed.push(enqueue(&client, "locked").await);
        }
        let good = enqueue(&client, "good").await;
        let locked = format!("locked={}", locked.display());
        let end = drain(db, &folder, &["missing=/no/such/program", &locked, "good=true"]).await;
        assert_eq!(end.code, Some(1), "{end:?}");
        assert!(end.said.contains("cannot be run") && end.said.contains("missing"), "{}", end.said);
        assert!(end.said.contains("check --exec locked="), "{}", end.said);
        assert_eq!(job(&client, good).await.status, State::Completed);
        for id in harmed {
            let seen = job(&client, id).await;
            assert_eq!((seen.status, seen.attempt), (State::Available, 0), "{}", seen.kind);
            assert_eq!(client.attempt_errors(id).await.expect("an answer").len(), 0);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_ended_by_a_signal_is_recorded_by_its_name() {
    with_database(async |db| {
        let (client, folder) = (db.client().await, Folder::new(db));
        let (killed, crashed, inner) =
            (enqueue(&client, "killed").await, enqueue(&client, "crashed").await, enqueue(&client, "inner").await);
        let programs = ["killed=kill -KILL $$", "crashed=kill -SEGV $$", "inner=sh -c 'kill -TERM $$'; exit $?"];
        drain(db, &folder, &programs).await;
        for (id, name, hint) in
            [(killed, "SIGKILL", "out of memory?"), (crashed, "SIGSEGV", "crashed"), (inner, "SIGTERM", "SIGTERM")]
        {
            let (cause, message, details) = failure(&client, id).await;
            assert_eq!((cause.as_str(), &details["signal"]), ("signal", &json!(name)));
            assert!(message.contains(name) && message.contains(hint), "{message}");
            assert_eq!(job(&client, id).await.status, State::Retrying);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_exceeds_its_timeout_ends_with_all_that_it_started() {
    with_database(async |db| {
        let (client, folder) = (db.client().await, Folder::new(db));
        let payload = RawJson::parse("1").expect("JSON");
        let id = client.enqueue(Enqueue::raw("slow", payload).timeout(SECOND).max_attempts(1)).await.expect("enqueued");
        let program = "slow=sleep 60 & echo $! >$NOTES/child; echo $$ >$NOTES/shell; trap '' TERM; wait; sleep 60";
        let end = drain(db, &folder, &[program]).await;
        assert_eq!(end.code, Some(0), "{end:?}");
        assert_eq!((job(&client, id).await.status, failure(&client, id).await.0.as_str()), (State::Dead, "timeout"));
        until_gone(folder.process("shell").await).await;
        until_gone(folder.process("child").await).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn json_on_stdout_is_the_result_and_other_text_is_kept_as_progress() {
    with_database(async |db| {
        let (client, folder) = (db.client().await, Folder::new(db));
        let (echo, words, silent) =
            (enqueue(&client, "echo").await, enqueue(&client, "words").await, enqueue(&client, "silent").await);
        let end = drain(db, &folder, &["echo=cat", "words=echo 'done: 3 files'", "silent=cat >/dev/null"]).await;
        assert_eq!(end.code, Some(0), "{end:?}");
        let seen = job(&client, echo).await;
        assert_eq!((value(seen.result.as_ref()), value(seen.progress.as_ref())), (json!({"n": 1}), Value::Null));
        let seen = job(&client, words).await;
        assert_eq!(value(seen.result.as_ref()), Value::Null);
        assert_eq!(value(seen.progress.as_ref()), json!({"stdout": "done: 3 files"}));
        let seen = job(&client, silent).await;
        assert_eq!((seen.status, value(seen.result.as_ref())), (State::Completed, Value::Null));
        assert_eq!(value(seen.progress.as_ref()), Value::Null);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_a_result_may_hold_is_said_by_the_job_and_by_the_worker() {
    with_database(async |db| {
        let (client, folder) = (db.client().await, Folder::new(db));
        let id = enqueue(&client, "much").await;
        let end = drain(db, &folder, &["much=printf '\"'; head -c 1100000 /dev/zero | tr '\\0' x; printf '\"'"]).await;
        assert!(
            end.code == Some(0) && end.said.contains("no result: the program wrote more than 1048576 bytes"),
            "{end:?}"
        );
        let seen = job(&client, id).await;
        assert_eq!((seen.status, value(seen.result.as_ref())), (State::Completed, Value::Null));
        let said = value(seen.progress.as_ref());
        assert_eq!(said["result"], "no result: the program wrote more than 1048576 bytes");
        assert!(said["stdout"].as_str().is_some_and(|end| end.ends_with("x\"")), "{said}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_finds_its_job_in_its_environment() {
    with_database(async |db| {
        let (client, folder) = (db.client().await, Folder::new(db));
        let payload = RawJson::parse("null").expect("JSON");
        let id = client.enqueue(Enqueue::raw("env", payload).max_attempts(7)).await.expect("enqueued");
        let program = r#"env=printf '["%s","%s","%s","%s","%s","%s","%s"]' "$TENURE_JOB_ID" "$TENURE_KIND" "$TENURE_QUEUE" \
            "$TENURE_ATTEMPT" "$TENURE_MAX_ATTEMPTS" "$TENURE_IDEMPOTENCY_KEY" "$TENURE_FENCE""#;
        drain(db, &folder, &[program]).await;
        let seen = job(&client, id).await;
        let result = value(seen.result.as_ref());
        let expected = json!([id.to_string(), "env", "default", "1", "7", seen.idempotency_key]);
        assert_eq!(result.as_array().map(|all| &all[..6]), expected.as_array().map(|all| &all[..]));
        assert!(result[6].as_str().is_some_and(|fence| fence.parse::<i64>().is_ok()), "{result}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_program_leaves_behind_ends_before_its_last_words_are_stored() {
    with_database(async |db| {
        let (client, folder) = (db.client().await, Folder::new(db));
        let id = enqueue(&client, "leaves").await;
        let sql = db.sql().await;
        sql.batch_execute("begin; lock table tenure.progress in share row exclusive mode").await.expect("a lock");
        // Closes all of its pipes before it ends.
        let program = "leaves=sleep 60 </dev/null >/dev/null 2>&1 & echo $! >$NOTES/child; echo words; exec <&- >&- 2>&-; sleep 0.3";
        let work = Work::start(db.url(), &folder, &["--drain", "--exec", program]);
        until_gone(folder.process("child").await).await;
        assert_eq!(job(&client, id).await.status, State::Running, "its words are not stored yet");
        sql.batch_execute("rollback").await.expect("the lock is given up");
        assert_eq!(work.end().await.code, Some(0));
        assert_eq!(value(job(&client, id).await.progress.as_ref()), json!({"stdout": "words"}));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_ends_its_job_in_a_transaction_of_its_own_is_no_reason_to_warn() {
    with_database(async |db| {
        let (client, folder) = (db.client().await, Folder::new(db));
        let id = enqueue(&client, "own").await;
        // The program's own transaction is played here; what it prints is what a client of SQL prints.
        let own =
            "own=echo $TENURE_FENCE >$NOTES/fence; until [ -e $NOTES/committed ]; do sleep 0.05; done; echo '(1 row)'";
        let work = Work::start(db.url(), &folder, &["--drain", "--exec", own]);
        let fence = i64::from(folder.process("fence").await);
        let complete = "select tenure.complete($1, $2, '{\"pages\": 7}')";
        db.sql().await.query(complete, &[&id.get(), &fence]).await.expect("completed");
        fs::write(folder.path("committed"), "").expect("a note");
        let end = work.end().await;
        assert_eq!(end.code, Some(0), "{end:?}");
        assert!(end.said.contains("1 completed, 0 failed"), "{}", end.said);
        assert!(!end.said.contains("WARN") && !end.said.contains("others"), "{}", end.said);
        let seen = self::job(&client, id).await;
        assert_eq!((seen.status, value(seen.result.as_ref())), (State::Completed, json!({ "pages": 7 })));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_what_a_failed_program_said_is_shown_harmless_and_bounded() {
    with_database(async |db| {
        let (client, folder) = (db.client().await, Folder::new(db));
        let id = enqueue(&client, "talks").await.to_string();
        let talks = "talks=for n in $(seq 30); do echo line $n >&2; done; printf '\\033[31mred\\342\\200\\256exe.txt\\n' >&2; echo half a result; exit 65";
        drain(db, &folder, &[talks]).await;
        for verb in ["job", "dead"] {
            let text = shown(db, &[verb, "show", &id]);
            assert!(text.contains("the end of standard error in attempt 1 (the last 20 of 31 lines; --json has more)"), "{text}");
            assert!(text.contains("\n  line 12\n") && !text.contains("line 11\n"), "{text}");
            assert!(text.contains("\n  \u{241b}[31mred\u{fffd}exe.txt\n"), "{text}");
            assert!(text.contains("the end of standard output in attempt 1\n  half a result\n"), "{text}");
            assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}'), "{text}");
        }
    })
    .await;
}
