//! What is typed, piped and read from files: taken whole, or refused with its place and the way out.

use std::process::Command;

use serde_json::Value;
use tenure::testing::with_database;

use super::{json, stored, tenure, tenure_with};

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
        (&["stats", "--since", "x"], &["how long ago"]),
        (&["stats", "--step", "1h"], &["--by minute"]),
        (&["stats", "--by", "minute", "--step", "90s"], &["in steps of 90s", "whole minutes"]),
        (&["stats", "--by", "minute", "--since", "30d"], &["more than 10000 rows", "longer steps"]),
        (&["stats", "--by", "worker"], &["'worker'", "minute"]),
        (&["stats", "--queue", ""], &["queue name is empty"]),
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
