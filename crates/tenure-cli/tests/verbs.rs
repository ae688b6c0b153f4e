//! The verbs as a person types them: what goes to stdout and stderr, exit codes, and nothing half done.

#[path = "verbs/newcomer.rs"]
mod newcomer;

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;
use tenure::testing::{TestDatabase, with_database};

/// How a command ended.
#[derive(Debug)]
struct End {
    code: i32,
    out: String,
    said: String,
}

/// Runs `tenure` on the database, with this text on stdin.
fn tenure_with(db: &TestDatabase, args: &[&str], stdin: &str) -> End {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tenure"))
        .args(args)
        .env("DATABASE_URL", db.url())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("tenure starts");
    // A command that refuses its arguments does not read.
    let _ = child.stdin.take().expect("its stdin").write_all(stdin.as_bytes());
    let output = child.wait_with_output().expect("tenure ends");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    End { code: output.status.code().expect("an exit code"), out: text(output.stdout), said: text(output.stderr) }
}

fn tenure(db: &TestDatabase, args: &[&str]) -> End {
    tenure_with(db, args, "")
}

/// The JSON that a command that succeeds prints.
fn json(db: &TestDatabase, args: &[&str]) -> Value {
    let end = tenure(db, args);
    assert_eq!(end.code, 0, "{args:?}: {}", end.said);
    serde_json::from_str(&end.out).unwrap_or_else(|e| panic!("{args:?}: {e}: {}", end.out))
}

async fn stored(db: &TestDatabase) -> i64 {
    db.sql().await.query_one("select count(*) from tenure.job", &[]).await.expect("a count").get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_is_named_with_the_way_out_and_nothing_is_enqueued() {
    let (long, large) = ("x".repeat(129), format!("\"{}\"", "x".repeat(70_000)));
    let cases: &[(&[&str], &[&str])] = &[
        (&["enqueue", "", "1"], &["kind name is empty", "1 to 128 bytes"]),
        (&["enqueue", &long, "1"], &["is 129 bytes long", "1 to 128 bytes"]),
        (&["enqueue", "a\nb", "1"], &["\"a\\nb\"", "U+000A"]),
        (&["enqueue", "k", "1", "--queue", ""], &["queue name is empty"]),
        (&["enqueue", "k", "1", "--queue", &long], &["is 129 bytes long"]),
        (&["enqueue", "k", "{oops"], &["payload {oops", "not JSON", "line 1 column 2"]),
        (&["enqueue", "k", ""], &["not JSON"]),
        (&["enqueue", "k", r#"{"a":["\u0000"]}"#], &[r"\u0000 at $.a[0]", "base64"]),
        (&["enqueue", "k", r#""\ud800""#], &[r"lone surrogate \ud800"]),
        (&["enqueue", "k", &large], &["70002 bytes", "65536", "enqueue its id"]),
        (&["enqueue", "k", "1", "--priority", "0"], &["priority 0 is outside 1 to 4"]),
        (&["enqueue", "k", "1", "--priority", "-1"], &["priority -1 is outside 1 to 4"]),
        (&["enqueue", "k", "1", "--priority", "high"], &["'high'"]),
        (&["enqueue", "k", "1", "--in", "-5s"], &["\"-5s\" is not a duration", "not negative"]),
        (&["enqueue", "k", "1", "--in", "3653d"], &["longer than 10 years"]),
        (&["enqueue", "k", "1", "--in", "5s", "--at", "2027-01-01T00:00:00Z"], &["cannot be used with"]),
        (&["enqueue", "k", "1", "--at", "tomorrow"], &["\"tomorrow\" is not an instant", "RFC 3339"]),
        (&["enqueue", "k", "1", "--at", "2099-01-01T00:00:00Z"], &["more than 10 years ahead"]),
        (&["enqueue", "k", "1", "--max-attempts", "0"], &["max_attempts 0 is outside 1 to 1000"]),
        (&["enqueue", "k", "1", "--max-attempts", "1001"], &["max_attempts 1001"]),
        (&["enqueue", "k", "1", "--timeout", "-1s"], &["\"-1s\" is not a duration"]),
        (&["enqueue", "k"], &["<JSON>"]),
        (&["enqueue", "--many", "/no/such/file"], &["/no/such/file", "file of JSON lines"]),
        (&["enqueue", "--many", "-", "--kind", ""], &["kind name is empty"]),
        (&["enqueue", "k", "1", "--schema", "No"], &["\"No\" cannot be the schema", "lower case"]),
        (&["job", "show", "x"], &["\"x\" is not a job id"]),
        (&["job", "list", "--status", "lost"], &["\"lost\" is no state", "available, scheduled"]),
        (&["job", "list", "--limit", "0"], &["limit 0 is outside 1 to 1000"]),
        (&["job", "list", "--limit", "many"], &["\"many\" is not such a number", "1 to 1000"]),
        (&["dead", "list", "--limit", "many"], &["\"many\" is not such a number", "1 to 1000"]),
        (&["dead", "requeue", "--all", "--per-second", "0"], &["\"0\" is not a number from 1 to"]),
        (&["enqueue", "k", "1", "--max-attempts", "x"], &["\"x\" is not such a number", "1 to 1000"]),
        (&["worker", "drain", "abc"], &["\"abc\" is not such a number", "tenure worker list"]),
        (&["worker", "resume", "abc"], &["\"abc\" is not such a number", "tenure worker list"]),
        (&["demo", "--workers", "17"], &["\"17\" is not a number from 1 to 16"]),
        (&["demo", "--seed", "x"], &["\"x\" is not a number from 0 to"]),
        (&["dev", "--port", "0"], &["\"0\" is not a number from 1 to 65535"]),
        (&["queue", "pause", ""], &["queue name is empty"]),
        (&["queue", "set", "q"], &["nothing is set", "--keep-dead"]),
        (&["queue", "set", "--keep-dead", "1d"], &["no queue is named", "--every"]),
        (&["queue", "set", "q", "--keep-completed", "0"], &["write 1s or forever"]),
        (&["queue", "set", "q", "--keep-completed", "10ms"], &["cannot be kept for 10ms", "1 second to 100 years"]),
        (&["queue", "set", "q", "--keep-completed", "x"], &["\"x\" is not a duration", "or forever"]),
        (&["queue", "pause"], &["<QUEUE>"]),
        (&["queue", "pause", "--kind", ""], &["kind name is empty"]),
        (&["queue", "drain", "q", "--timeout", "5s"], &["--wait"]),
        (&["job", "cancel"], &["nothing is named", "--all"]),
        (&["job", "cancel", "1", "--kind", "k"], &["exclude each other"]),
        (&["job", "cancel", "--all", "--kind", "k"], &["exclude each other"]),
        (&["job", "cancel", "1", "--dry-run"], &["--dry-run counts a selection"]),
        (&["job", "cancel", "--status", "dead"], &["jobs that are dead have ended", "available, scheduled"]),
        (&["job", "cancel", "--older-than", "x"], &["how long ago"]),
        (&["dead", "requeue", "1", "--over", "5m"], &["are for a filter"]),
        (&["dead", "requeue", "--all", "--over", "25h"], &["longer than a day"]),
        (&["dead", "requeue"], &["nothing is named", "--all"]),
        (&["dead", "discard"], &["nothing is named", "--all"]),
        (&["dead", "discard", "--all", "--kind", "k"], &["exclude each other"]),
        (&["dead", "requeue", "1", "2", "--payload", "1"], &["--payload is for one job"]),
        (&["dead", "list", "--before", "x"], &["how long ago"]),
    ];
    with_database(async |db| {
        for (args, parts) in cases {
            let end = tenure(db, args);
            assert_eq!((end.code, end.out.as_str()), (2, ""), "{args:?}: {end:?}");
            for part in *parts {
                assert!(end.said.contains(part), "{args:?} does not say {part:?}: {}", end.said);
            }
            assert!(
                !end.said.contains("invalid digit") && !end.said.contains("--database-url <"),
                "{args:?}: {}",
                end.said
            );
        }
        assert_eq!(stored(db).await, 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_line_of_a_file_is_named_by_its_number_and_nothing_is_enqueued() {
    with_database(async |db| {
        let good = "{\"kind\":\"k\",\"payload\":{\"n\":1}}\n";
        let large = format!("{{\"kind\":\"k\",\"payload\":\"{}\"}}", "x".repeat(70_000));
        let cases = [
            ("{\"kind\":\"k\",\"payload\":", "line 3: "),
            ("{\"kind\":\"k\",\"payload\":1,\"priority\":0}", "line 3: priority 0 is outside 1 to 4"),
            ("{\"kind\":\"k\",\"payload\":1,\"colour\":0}", "unknown field `colour`"),
            ("{\"kind\":\"k\",\"payload\":\"\\u0000\"}", "line 3: "),
            (large.as_str(), "70002 bytes; the limit is 65536"),
        ];
        let folder = std::env::temp_dir().join(format!("tenure-lines-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let file = folder.join("jobs.ndjson");
        for (line, expected) in cases {
            let text = format!("{good}{good}{line}\n{good}");
            std::fs::write(&file, &text).expect("a file");
            for end in [
                tenure(db, &["enqueue", "--many", file.to_str().expect("a path")]),
                tenure_with(db, &["enqueue", "--many", "-"], &text),
            ] {
                assert_eq!((end.code, end.out.as_str()), (2, ""), "{line}: {end:?}");
                assert!(end.said.contains(expected), "{line}: {}", end.said);
            }
        }
        std::fs::write(&file, &large).expect("a file");
        let end = tenure(db, &["enqueue", "--many", file.to_str().expect("a path")]);
        assert!(end.said.contains("line 1, the longest"), "{}", end.said);
        std::fs::remove_dir_all(&folder).expect("the folder");
        assert_eq!(stored(db).await, 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_are_enqueued_together_with_their_own_options() {
    with_database(async |db| {
        let lines = "{\"kind\":\"a\",\"payload\":[1, 2],\"queue\":\"q\",\"priority\":1,\"in\":\"1h\",\"max_attempts\":9,\"timeout\":\"5s\"}\n\n\
                     {\"kind\":\"b\",\"payload\":null}";
        let end = tenure_with(db, &["enqueue", "--many", "-", "--json", "--priority", "3"], lines);
        assert_eq!(end.code, 0, "{}", end.said);
        let answer: Value = serde_json::from_str(&end.out).expect("JSON");
        assert_eq!(answer["enqueued"], 2);
        let show = |n: usize| json(db, &["job", "show", &answer["ids"][n].to_string(), "--json"]);
        let (first, second) = (show(0), show(1));
        assert_eq!((&first["kind"], &first["queue"], &first["priority"]), (&"a".into(), &"q".into(), &1.into()));
        assert_eq!((&first["status"], &first["max_attempts"], &first["timeout_ms"]), (&"scheduled".into(), &9.into(), &5_000.into()));
        assert_eq!((&second["kind"], &second["queue"], &second["priority"]), (&"b".into(), &"default".into(), &3.into()));

        let end = tenure_with(db, &["enqueue", "--many", "-", "--kind", "c"], "{\"kind\":1}\n2\n");
        assert!(end.out.starts_with("enqueued 2 jobs, "), "{end:?}");
        assert_eq!(json(db, &["job", "list", "--kind", "c", "--json"])[1]["payload"]["kind"], 1);
        assert_eq!(tenure_with(db, &["enqueue", "--many", "-"], "").out, "enqueued 0 jobs\n");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_enqueued_listed_shown_and_cancelled() {
    with_database(async |db| {
        let end = tenure(db, &["enqueue", "send_mail", r#"{"to": "ada"}"#]);
        assert_eq!((end.code, end.said.as_str()), (0, ""));
        let id = end.out.trim().to_owned();
        assert_eq!(json(db, &["job", "list", "--json"])[0]["id"].to_string(), id);
        let table = tenure(db, &["job", "list", "--status", "available"]);
        assert!(table.out.starts_with("ID") && table.out.contains("send_mail"), "{}", table.out);
        let shown = json(db, &["job", "show", &id, "--json"]);
        assert_eq!((&shown["status"], &shown["payload"]["to"]), (&"available".into(), &"ada".into()));
        assert!(tenure(db, &["job", "show", &id]).out.contains("status           available"));
        assert_eq!(tenure(db, &["job", "cancel", &id]).out, format!("{id} cancelled\n"));
        assert_eq!(tenure(db, &["job", "cancel", &id]).out, format!("{id} already cancelled\n"));
        for (typed, shown) in [("500ms", "500ms"), ("90s", "90s"), ("1h", "1h"), ("0", "none")] {
            let id = tenure(db, &["enqueue", "k", "1", "--timeout", typed]).out.trim().to_owned();
            let facts = tenure(db, &["job", "show", &id]).out;
            assert!(facts.contains(&format!("timeout          {shown}\n")), "{typed}: {facts}");
        }
        let status = json(db, &["status", "--json"]);
        assert_eq!(status["schema_version"], status["schema_version_known"]);
        assert_eq!(tenure(db, &["status"]).code, 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_exist_ends_with_3() {
    with_database(async |db| {
        for args in [
            ["job", "show", "77"],
            ["job", "cancel", "77"],
            ["dead", "show", "77"],
            ["dead", "requeue", "77"],
            ["dead", "discard", "77"],
        ] {
            let end = tenure(db, &args);
            assert_eq!(end.code, 3, "{args:?}: {end:?}");
            assert!(end.said.contains("77"), "{args:?}: {}", end.said);
        }
        let id = tenure(db, &["enqueue", "k", "1"]).out.trim().to_owned();
        let end = tenure(db, &["job", "cancel", &id, "77"]);
        assert_eq!((end.code, end.out), (3, format!("{id} cancelled\n77 unknown\n")));
    })
    .await;
}

/// From now on the database refuses every end of this job.
async fn refuse_the_end_of(db: &TestDatabase, table: &str, job: &str) {
    let sql = format!(
        "create function public.refuse() returns trigger language plpgsql as \
         $$ begin if new.job_id = {job} then raise 'no room for it' using errcode = '53100'; end if; return new; end $$; \
         create trigger refuse before insert on tenure.{table} for each row execute function public.refuse()"
    );
    db.sql().await.batch_execute(&sql).await.expect("a trigger");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_done_before_an_error_is_said() {
    with_database(async |db| {
        let ids: Vec<_> = (0..3).map(|_| tenure(db, &["enqueue", "k", "1"]).out.trim().to_owned()).collect();
        let [first, second, third] = [&ids[0], &ids[1], &ids[2]];
        refuse_the_end_of(db, "outcome", second).await;
        let end = tenure(db, &["job", "cancel", first, second, third]);
        assert_eq!((end.code, end.out), (1, format!("{first} cancelled\n")));
        assert!(end.said.contains("no room for it"), "{}", end.said);
        let end = tenure(db, &["job", "cancel", first, second, "--json"]);
        let said = format!("[{{\"answer\":\"already cancelled\",\"id\":{first}}}]\n");
        assert_eq!((end.code, end.out), (1, said));
        assert_eq!(tenure(db, &["job", "cancel", third]).out, format!("{third} cancelled\n"));
        assert_eq!(tenure(db, &["job", "cancel", second]).out, "");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_that_were_dealt_with_before_an_error_are_named() {
    with_database(async |db| {
        let ids: Vec<_> = (0..3).map(|_| tenure(db, &["enqueue", "k", "1"]).out.trim().to_owned()).collect();
        let client = db.client().await;
        let mut worker = tenure::Worker::builder(db.url())
            .queue("default", 1)
            .handle_raw("k", tenure::KindOptions::new(), |_, _| async { Err(tenure::Fail::permanent("\u{1b}[2Jbad")) })
            .drain(true)
            .start()
            .await
            .expect("a worker");
        worker.join().await;
        let [first, second, third] = [&ids[0], &ids[1], &ids[2]];
        // The second was requeued by somebody else meanwhile.
        client.requeue(second.parse::<i64>().expect("an id").into(), None).await.expect("requeued");
        let end = tenure(db, &["dead", "requeue", first, second, third, "--json"]);
        let answer: Value = serde_json::from_str(&end.out).unwrap_or_else(|e| panic!("{e}: {end:?}"));
        assert_eq!(
            (end.code, answer[0]["id"].to_string(), answer.as_array().map(Vec::len)),
            (1, first.clone(), Some(1))
        );
        assert!(end.said.contains(second.as_str()), "{}", end.said);

        let shown = tenure(db, &["dead", "show", third]);
        assert!(shown.out.contains("message          \u{241b}[2Jbad"), "{}", shown.out);
        assert!(!shown.out.contains('\u{1b}') && !tenure(db, &["job", "show", third]).out.contains('\u{1b}'));
        assert!(!tenure(db, &["dead", "list"]).out.contains('\u{1b}'));
        let end = tenure(db, &["dead", "list", "--cause", "eror"]);
        assert!(
            end.said.contains("\"eror\" is none of the causes") && end.said.contains("error, panic"),
            "{}",
            end.said
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_that_never_ends_is_refused() {
    with_database(async |db| {
        let endless = std::fs::File::open("/dev/zero").expect("zeros");
        let output = Command::new(env!("CARGO_BIN_EXE_tenure"))
            .args(["enqueue", "k", "-"])
            .env("DATABASE_URL", db.url())
            .stdin(endless)
            .output()
            .expect("tenure ends");
        let said = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("longer than 16777216 bytes") && said.contains("enqueue its id"), "{said}");
        assert_eq!(stored(db).await, 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_are_paused_and_resumed() {
    with_database(async |db| {
        assert_eq!(tenure(db, &["queue", "pause", "mail", "--reason", "down", "--by", "me"]).out, "mail paused\n");
        assert_eq!(tenure(db, &["queue", "pause", "mail"]).out, "mail was paused already\n");
        let queue = &json(db, &["queue", "list", "--json"])["queues"][0];
        assert_eq!((&queue["paused_by"], &queue["pause_reason"]), (&"me".into(), &"down".into()));
        assert!(tenure(db, &["queue", "list"]).out.contains("by me: down"));
        assert_eq!(json(db, &["queue", "resume", "mail", "--json"])["changed"], true);
        assert_eq!(tenure(db, &["queue", "resume", "mail"]).out, "mail was not paused\n");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kinds_are_paused_and_the_reason_is_shown_everywhere() {
    with_database(async |db| {
        // While there is no queue yet, and in one that there is not.
        for pause in [&["--kind", "early"][..], &["nowhere", "--kind", "early"]] {
            assert_eq!(tenure(db, &[&["queue", "pause"], pause].concat()).code, 0);
        }
        let list = json(db, &["queue", "list", "--json"]);
        assert_eq!(list["queues"], serde_json::json!([]));
        let paused: Vec<_> =
            list["paused_kinds"].as_array().expect("kinds").iter().map(|kind| &kind["queue"]).collect();
        assert_eq!(paused, [&Value::Null, &"nowhere".into()]);
        for pause in [&["--kind", "early"][..], &["nowhere", "--kind", "early"]] {
            assert_eq!(tenure(db, &[&["queue", "resume"], pause].concat()).code, 0);
        }
        let id = tenure(db, &["enqueue", "k", "1", "--queue", "mail"]).out.trim().to_owned();
        let pause = ["queue", "pause", "mail", "--kind", "k", "--reason", "bad deploy", "--by", "me"];
        assert_eq!(tenure(db, &pause).out, "k in mail paused\n");
        assert_eq!(tenure(db, &pause).out, "k in mail was paused already\n");
        assert_eq!(tenure(db, &["queue", "pause", "--kind", "k", "--by", "me"]).out, "k in every queue paused\n");
        for verb in [&["queue", "list"][..], &["status"]] {
            let shown = tenure(db, verb).out;
            assert!(shown.contains("every queue") && shown.contains("by me: bad deploy"), "{verb:?}: {shown}");
        }
        assert_eq!(json(db, &["queue", "list", "--json"])["paused_kinds"].as_array().map(Vec::len), Some(2));
        assert_eq!(json(db, &["status", "--json"])["paused_kinds"][0]["queue"], Value::Null);
        let shown = tenure(db, &["job", "show", &id]).out;
        assert!(shown.contains("waits because    the kind k is paused since "), "{shown}");
        assert_eq!(json(db, &["job", "show", &id, "--json"])["waits_for"]["reason"], "kind_paused");

        let end = tenure(db, &["queue", "resume", "--kind", "k"]);
        assert_eq!(end.out, "k in every queue resumed\n");
        assert!(end.said.contains("k is still paused in the queue mail"), "{}", end.said);
        assert_eq!(json(db, &["queue", "resume", "mail", "--kind", "k", "--json"])["changed"], true);
        assert_eq!(tenure(db, &["queue", "resume", "mail", "--kind", "k"]).out, "k in mail was not paused\n");

        let end = tenure(db, &["queue", "drain", "mail", "--wait", "--timeout", "10s"]);
        assert_eq!((end.code, end.out.as_str()), (0, "mail drained: paused, and nothing of it runs\n"));
        assert_eq!(json(db, &["job", "show", &id, "--json"])["waits_for"]["reason"], "queue_paused");
        assert_eq!(tenure(db, &["worker", "drain", "77"]).code, 3);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_selection_is_counted_first_and_cancelled_only_after_a_yes() {
    with_database(async |db| {
        let client = db.client().await;
        client.enqueue_many("k", 0..120, tenure::JobOptions::new()).await.expect("enqueued");
        client.enqueue_many("other", 0..5, tenure::JobOptions::new()).await.expect("enqueued");
        let end = tenure(db, &["job", "cancel", "--kind", "k", "--dry-run"]);
        assert_eq!(
            (end.code, end.out.as_str(), end.said.as_str()),
            (0, "120 available\n", "120 jobs: 120 available\n")
        );
        let end = tenure(db, &["job", "cancel", "--kind", "k"]);
        assert_eq!((end.code, end.out.as_str()), (2, ""));
        assert!(end.said.contains("120 jobs") && end.said.contains("add --yes"), "{}", end.said);
        let none = json(db, &["job", "cancel", "--kind", "k", "--older-than", "1h", "--yes", "--json"]);
        assert_eq!((&none["cancelled"], &none["counted"]), (&0.into(), &serde_json::json!({})));
        let done = json(db, &["job", "cancel", "--kind", "k", "--status", "available,retrying", "--yes", "--json"]);
        assert_eq!((&done["cancelled"], &done["requested"]), (&120.into(), &0.into()));
        let mut other = db.sql().await;
        let tx = other.transaction().await.expect("begin");
        tx.execute("select from tenure.ready for update", &[]).await.expect("locked");
        let busy = tenure(db, &["job", "cancel", "--all", "--yes"]);
        assert_eq!((busy.code, busy.out.as_str()), (1, "0 cancelled, 0 requested\n"));
        assert!(busy.said.contains("5 left, as somebody is just changing them: call again"), "{}", busy.said);
        tx.rollback().await.expect("rolled back");
        let all = tenure(db, &["job", "cancel", "--all", "--yes"]);
        assert_eq!((all.code, all.out.as_str()), (0, "5 cancelled, 0 requested\n"));
    })
    .await;
}

/// From the next session on the database's clock is two days ahead of this machine's.
async fn be_two_days_ahead(db: &TestDatabase) {
    let sql = "create schema ahead;
         create function ahead.clock_timestamp() returns timestamptz language sql volatile as
             $$ select pg_catalog.clock_timestamp() + interval '2 days' $$;
         do $$ begin execute format('alter database %I set search_path = ahead, pg_catalog', current_database()); end $$";
    db.sql().await.batch_execute(sql).await.expect("another clock");
}

#[tokio::test(flavor = "multi_thread")]
async fn ages_are_counted_by_the_databases_clock_whatever_this_machines_says() {
    with_database(async |db| {
        be_two_days_ahead(db).await;
        for n in ["1", "2", "3"] {
            assert_eq!(tenure(db, &["enqueue", "k", n]).code, 0);
        }
        let cancel = |age| json(db, &["job", "cancel", "--kind", "k", "--older-than", age, "--yes", "--json"]);
        assert_eq!(cancel("3d")["cancelled"], 0);
        assert_eq!(cancel("1d")["counted"]["available"], 3);

        let client = db.client().await;
        client.enqueue_many("bad", 0..2, tenure::JobOptions::new()).await.expect("enqueued");
        let mut worker = tenure::Worker::builder(db.url())
            .queue("default", 1)
            .handle_raw("bad", tenure::KindOptions::new(), |_, _| async { Err(tenure::Fail::permanent("bad")) })
            .drain(true)
            .start()
            .await
            .expect("a worker");
        worker.join().await;
        let count = |option, age| json(db, &["dead", "list", option, age, "--json"]).as_array().map(Vec::len);
        assert_eq!([count("--before", "1d"), count("--before", "3d")], [Some(2), Some(0)]);
        assert_eq!([count("--since", "1d"), count("--since", "3d")], [Some(0), Some(2)]);
        assert_eq!(tenure(db, &["enqueue", "k", "4"]).code, 0);
        for table in [&["job", "list"][..], &["dead", "list"], &["dead", "list", "--group"], &["status"]] {
            let shown = tenure(db, table).out;
            assert!(shown.contains("2d 0h ago"), "{table:?}: {shown}");
        }
        let discard = |age| json(db, &["dead", "discard", "--before", age, "--json"]).as_array().map(Vec::len);
        assert_eq!([discard("3d"), discard("1d")], [Some(0), Some(2)]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_shown_by_cause_and_with_their_line() {
    with_database(async |db| {
        let client = db.client().await;
        client.enqueue_many("k", 0..4, tenure::JobOptions::new()).await.expect("enqueued");
        let die = async || {
            let mut worker = tenure::Worker::builder(db.url())
                .queue("default", 1)
                .handle_raw("k", tenure::KindOptions::new(), |ctx, _| async move {
                    Err(tenure::Fail::permanent(format!("no order {}", ctx.job_id())))
                })
                .drain(true)
                .start()
                .await
                .expect("a worker");
            worker.join().await;
        };
        die().await;
        let groups = json(db, &["dead", "list", "--group", "--json"]);
        assert_eq!((&groups[0]["count"], &groups[0]["message"]), (&4.into(), &"no order <n>".into()));
        let group = groups[0]["fingerprint"].as_str().expect("a name");
        let shown = tenure(db, &["dead", "list", "--group"]).out;
        assert!(shown.contains(group) && shown.contains("no order <n>"), "{shown}");
        assert_eq!(
            json(db, &["dead", "list", "--fingerprint", group, "--since", "1h", "--json"]).as_array().map(Vec::len),
            Some(4)
        );
        let moved = json(db, &["dead", "requeue", "--fingerprint", group, "--over", "1m", "--json"]);
        assert_eq!(moved.as_array().map(Vec::len), Some(4));
        db.sql().await.execute("update tenure.later set due_at = clock_timestamp()", &[]).await.expect("due");
        db.sql().await.query("select tenure.promote()", &[]).await.expect("moved");
        die().await;
        let again = moved[0]["new_id"].to_string();
        let line = &json(db, &["dead", "show", &again, "--json"])["line"];
        assert_eq!((&line[0]["id"], &line[0]["status"]), (&moved[0]["id"], &"dead".into()));
        let shown = tenure(db, &["dead", "show", &again]).out;
        assert!(shown.contains("LINE") && shown.contains(&moved[0]["id"].to_string()), "{shown}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_cannot_be_used_is_named_with_the_way_out() {
    with_database(async |db| {
        let (host, name) = db.url().rsplit_once('/').expect("a URL");
        let cases: &[(&[&str], &[&str])] = &[
            (&["--database-url", "postgres://127.0.0.1:1/x"], &["127.0.0.1:1/x", "refused", "is the server running"]),
            (
                &["--database-url", &format!("{host}/no_such_db")],
                &["\"no_such_db\" does not exist", "create the database"],
            ),
            (&["--schema", "nowhere"], &["nowhere", "run `tenure migrate`"]),
        ];
        for (options, parts) in cases {
            for verb in
                [&["status"][..], &["job", "list"], &["enqueue", "k", "1"], &["queue", "list"], &["dead", "list"]]
            {
                let end = tenure(db, &[verb, options].concat());
                assert_eq!((end.code, end.out.as_str()), (1, ""), "{verb:?} {options:?}: {end:?}");
                for part in *parts {
                    assert!(end.said.contains(part), "{verb:?} {options:?} does not say {part:?}: {}", end.said);
                }
            }
        }
        let wrong = tenure(db, &["status", "--database-url", "postgres://u:secret@h:port/x"]);
        assert_eq!(wrong.code, 2, "{wrong:?}");
        assert!(wrong.said.contains("no connection string") && !wrong.said.contains("secret"), "{}", wrong.said);
        assert_eq!(stored(db).await, 0, "{name}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn migrate_prints_migrates_and_refuses_a_newer_schema() {
    with_database(async |db| {
        let script = tenure(db, &["migrate", "--print", "--schema", "jobs"]);
        assert!(script.out.contains("create schema jobs;") && script.out.ends_with("commit;\n"));
        let first = json(db, &["migrate", "--schema", "jobs", "--json"]);
        assert_eq!((&first["from"], &first["applied"][0]), (&0.into(), &"0001_tables".into()));
        assert!(tenure(db, &["migrate", "--schema", "jobs"]).out.contains("functions renewed"));
        let sql = db.sql().await;
        sql.batch_execute("insert into jobs.migration (version, name, digest) values (9999, '9999_x', '')")
            .await
            .expect("a row");
        let end = tenure(db, &["migrate", "--schema", "jobs"]);
        assert_eq!(end.code, 1);
        assert!(end.said.contains("version 9999") && end.said.contains("newer program"), "{}", end.said);
    })
    .await;
}

/// Lets the ends of all jobs lie back so far.
async fn age(db: &TestDatabase, days: i32) {
    let back = format!("interval '{days} days'");
    let sql = format!(
        "update tenure.job set created_at = created_at - {back};
         update tenure.outcome set started_at = started_at - {back}, finished_at = finished_at - {back};
         update tenure.dead_letter set died_at = died_at - {back}"
    );
    db.sql().await.batch_execute(&sql).await.expect("aged");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_queue_keeps_is_set_shown_and_taken_back() {
    with_database(async |db| {
        let day: u64 = 86_400_000;
        let set = json(db, &["queue", "set", "mail", "--keep-completed", "1d", "--keep-dead", "forever", "--json"]);
        assert_eq!((set["keep_completed_ms"].as_u64(), set["keep_cancelled_ms"].as_u64()), (Some(day), Some(7 * day)));
        let every = tenure(db, &["queue", "set", "--every", "--keep-cancelled", "12h"]);
        assert!(every.out.contains("7d, cancelled ones for 12h, dead letters for 90d"), "{every:?}");
        let list = tenure(db, &["queue", "list"]);
        assert!(list.out.contains("KEEPS") && list.out.contains("1d/12h/forever"), "{}", list.out);
        let queue = &json(db, &["queue", "list", "--json"])["queues"][0];
        assert_eq!((queue["keep_cancelled_ms"].as_u64(), queue["keep_own"].as_bool()), (Some(day / 2), Some(true)));
        let back = ["queue", "set", "mail", "--keep-completed", "default", "--keep-dead", "default", "--json"];
        assert_eq!(json(db, &back)["keep_completed_ms"].as_u64(), Some(7 * day));
        assert_eq!(json(db, &["queue", "list", "--json"])["queues"][0]["keep_own"].as_bool(), Some(false));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_due_is_counted_first_and_then_removed() {
    with_database(async |db| {
        for _ in 0..3 {
            let id = tenure(db, &["enqueue", "k", "1"]).out.trim().to_owned();
            assert_eq!(tenure(db, &["job", "cancel", &id]).code, 0);
        }
        assert!(tenure(db, &["prune", "--dry-run"]).said.contains("nothing is due"));
        age(db, 8).await;
        let due = json(db, &["prune", "--dry-run", "--json"]);
        assert_eq!(due, serde_json::json!([{ "queue": "default", "outcome": "cancelled", "jobs": 3 }]));
        assert_eq!(stored(db).await, 3);
        let waits = tenure(db, &["enqueue", "k", "1"]).out.trim().to_owned();
        assert_eq!(json(db, &["prune", "--json"])["removed"].as_u64(), Some(3));
        assert_eq!(stored(db).await, 1);
        assert_eq!(tenure(db, &["job", "show", &waits]).code, 0);
        assert!(tenure(db, &["prune"]).out.starts_with("removed 0 jobs"));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn status_names_the_kinds_that_no_worker_handles_with_their_count_and_age() {
    with_database(async |db| {
        assert_eq!(json(db, &["status", "--json"])["unhandled_kinds"], serde_json::json!([]));
        for kind in ["mail", "mail", "male"] {
            assert_eq!(tenure(db, &["enqueue", kind, "1"]).code, 0);
        }
        let handles = "select tenure.register_worker('w', 'h', 1, '0', '{default}', '{male}', 30000, 1000, true)";
        let worker = db.sql().await;
        worker.query(handles, &[]).await.expect("registered");
        let kinds = &json(db, &["status", "--json"])["unhandled_kinds"];
        assert_eq!(kinds.as_array().map(Vec::len), Some(1), "{kinds}");
        let mail = (&kinds[0]["kind"], &kinds[0]["queue"], &kinds[0]["available"]);
        assert_eq!(mail, (&"mail".into(), &"default".into(), &2.into()));
        assert!(kinds[0]["oldest_due_at"].is_string(), "{kinds}");
        let shown = tenure(db, &["status"]).out;
        assert!(shown.contains("NO WORKER FOR") && shown.contains("mail"), "{shown}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn status_names_the_oldest_snapshot_and_warns_with_the_way_out_once_it_is_old() {
    with_database(async |db| {
        let sql = db.sql().await;
        sql.batch_execute("insert into tenure.setting values ('snapshot_warn_ms', '3600000')").await.expect("set");
        let forgotten = db.sql().await;
        forgotten
            .batch_execute("set application_name = 'psql\x1b[2J'; begin isolation level repeatable read; select 1")
            .await
            .expect("a snapshot");
        let pid: i32 = forgotten.query_one("select pg_backend_pid()", &[]).await.expect("its process").get(0);
        let oldest = |vacuum: &Value| {
            let mine = vacuum["snapshots"].as_array().expect("a list").iter().find(|s| s["pid"] == pid);
            mine.unwrap_or_else(|| panic!("{pid} in {vacuum}")).clone()
        };
        let young = oldest(&json(db, &["status", "--json"])["vacuum"]);
        assert_eq!((&young["holder"], &young["state"]), (&"session".into(), &"idle in transaction".into()), "{young}");
        assert!(young["age_s"].as_f64().is_some_and(|age| age > 0.0) && young["old"] == false, "{young}");
        let shown = tenure(db, &["status"]).out;
        assert!(shown.contains("oldest snapshot") && !shown.contains("WARNING"), "{shown}");

        sql.batch_execute("update tenure.setting set value = '0' where name = 'snapshot_warn_ms'").await.expect("set");
        let vacuum = &json(db, &["status", "--json"])["vacuum"];
        assert!(oldest(vacuum)["old"] == true && vacuum["dead_rows"][0]["dead"].is_u64(), "{vacuum}");
        let shown = tenure(db, &["status"]).out;
        let warning = format!("pg_terminate_backend({pid})");
        assert!(shown.contains("WARNING") && shown.contains(&warning) && !shown.contains('\x1b'), "{shown}");
        forgotten.batch_execute("commit").await.expect("commit");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_holds_for_the_whole_schema_is_listed_set_and_set_back() {
    with_database(async |db| {
        let list = tenure(db, &["setting", "list"]).out;
        assert!(list.starts_with("SETTING") && list.contains("65536 to 16777216"), "{list}");
        let large = format!("\"{}\"", "x".repeat(70_000));
        assert_eq!(tenure(db, &["enqueue", "k", &large]).code, 2);
        let end = tenure(db, &["setting", "set", "payload_bytes", "100000"]);
        assert_eq!((end.code, end.out.as_str()), (0, "payload_bytes is 100000\n"));
        assert_eq!(tenure(db, &["enqueue", "k", &large]).code, 0);
        let listed = &json(db, &["setting", "list", "--json"])[0];
        let facts = serde_json::json!([listed["name"], listed["value"], listed["default"], listed["set"]]);
        assert_eq!(facts, serde_json::json!(["payload_bytes", 100_000, 65_536, true]));
        let end = tenure(db, &["setting", "unset", "payload_bytes"]);
        assert_eq!((end.code, end.out.as_str()), (0, "payload_bytes is 65536, the default\n"));
        let again = json(db, &["setting", "unset", "payload_bytes", "--json"]);
        assert_eq!((&again["value"], &again["set"]), (&65_536.into(), &false.into()));
        let cases: &[(&[&str], &str)] = &[
            (&["set", "payload_bytes", "1"], "payload_bytes 1 is outside 65536 to 16777216"),
            (&["set", "payload_bytes", "-1"], "payload_bytes -1 is outside"),
            (&["set", "payload_bytes", "1MiB"], "\"1MiB\" is not such a number"),
            (&["set", "payload", "1"], "'payload' is no setting"),
            (&["unset", "payload"], "Use payload_bytes or snapshot_warn_ms"),
        ];
        for (args, words) in cases {
            let end = tenure(db, &[&["setting"], *args].concat());
            assert_eq!((end.code, end.out.as_str()), (2, ""), "{args:?}: {end:?}");
            assert!(end.said.contains(words), "{args:?}: {}", end.said);
        }
    })
    .await;
}
