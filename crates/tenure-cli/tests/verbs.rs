//! The verbs as a person types them: what goes to stdout and stderr, exit codes, and nothing half done.

#[path = "verbs/dead.rs"]
mod dead;
#[path = "verbs/declared.rs"]
mod declared;
#[path = "verbs/doctor.rs"]
mod doctor;
#[path = "verbs/input.rs"]
mod input;
#[path = "verbs/limit.rs"]
mod limit;
#[path = "verbs/newcomer.rs"]
mod newcomer;
#[path = "verbs/queue.rs"]
mod queue;
#[path = "verbs/schedule.rs"]
mod schedule;
#[path = "verbs/schema.rs"]
mod schema;
#[path = "verbs/stats.rs"]
mod stats;
#[path = "verbs/time.rs"]
mod time;

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
    run(db, &[], args, stdin)
}

/// Runs `tenure` on the database, with these variables.
fn tenure_in(db: &TestDatabase, variables: &[(&str, &str)], args: &[&str]) -> End {
    run(db, variables, args, "")
}

fn run(db: &TestDatabase, variables: &[(&str, &str)], args: &[&str], stdin: &str) -> End {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tenure"))
        .args(args)
        .env("DATABASE_URL", db.url())
        .envs(variables.iter().copied())
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
        let discard = |age| json(db, &["dead", "discard", "--before", age, "--yes", "--json"]).as_array().map(Vec::len);
        assert_eq!([discard("3d"), discard("1d")], [Some(0), Some(2)]);
    })
    .await;
}
