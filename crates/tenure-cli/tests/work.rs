//! `tenure work` as a real process: what its programs get and say, and what becomes of their jobs.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tenure::lifecycle::State;
use tenure::testing::{Fault, Proxy, TestDatabase, until, until_within, with_database};
use tenure::{Client, Enqueue, JobId, JobInfo, RawJson};

const SECOND: Duration = Duration::from_secs(1);
/// A worker has ended by then, however slow the machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A folder for one test: programs leave notes in it.
struct Folder(PathBuf);

impl Folder {
    fn new(db: &TestDatabase) -> Folder {
        let path = std::env::temp_dir().join(format!("{}-programs", db.name()));
        fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The process whose number a program left in a file of this name.
    async fn process(&self, name: &str) -> u32 {
        let path = self.path(name);
        until("the program's note", async || fs::read_to_string(&path).ok()?.trim().parse().ok()).await
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A `tenure work` that runs.
struct Work {
    child: Child,
    log: PathBuf,
}

/// How it ended.
#[derive(Debug)]
struct End {
    code: Option<i32>,
    said: String,
}

impl Work {
    fn start(url: &str, folder: &Folder, args: &[&str]) -> Work {
        let log = folder.path("log");
        let child = Command::new(env!("CARGO_BIN_EXE_tenure"))
            .arg("work")
            .args(args)
            .env("DATABASE_URL", url)
            .env("NOTES", &folder.0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).expect("a file"))
            .spawn()
            .expect("tenure starts");
        Work { child, log }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).expect("its words")
    }

    async fn until_said(&self, words: &str) {
        until(words, async || if self.said().contains(words) { Ok(()) } else { Err(self.said()) }).await;
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.child.id().to_string()]).status().expect("kill runs");
        assert!(sent.success());
    }

    async fn end(mut self) -> End {
        let status = until_within(LIMIT, "the worker's end", async || self.child.try_wait().expect("its state")).await;
        End { code: status.code(), said: self.said() }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs these programs until nothing is left.
async fn drain(db: &TestDatabase, folder: &Folder, programs: &[&str]) -> End {
    let mut args = vec!["--queue", "default=4", "--drain"];
    programs.iter().for_each(|program| args.extend(["--exec", program]));
    Work::start(db.url(), folder, &args).end().await
}

async fn enqueue(client: &Client, kind: &str) -> JobId {
    client.enqueue(Enqueue::raw(kind, RawJson::parse(r#"{"n": 1}"#).expect("JSON"))).await.expect("enqueued")
}

async fn job(client: &Client, id: JobId) -> JobInfo {
    client.get(id).await.expect("an answer").expect("it was enqueued")
}

/// Cause, message and details of the last failed attempt.
async fn failure(client: &Client, id: JobId) -> (String, String, Value) {
    let last = client.attempt_errors(id).await.expect("an answer").pop().expect("a failed attempt");
    let details = last.details.map_or(Value::Null, |details| serde_json::from_str(details.get()).expect("JSON"));
    (last.cause, last.message, details)
}

fn value(json: Option<&RawJson>) -> Value {
    json.map_or(Value::Null, |json| serde_json::from_str(json.get()).expect("JSON"))
}

/// Ended, also when nobody has waited for it yet.
fn is_gone(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
}

async fn until_gone(process: u32) {
    until("the program's end", async || is_gone(process)).await;
}

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

/// Notes its number, and waits for the file `go`.
const WAITING: &str = "wait=echo $$ >$NOTES/shell; until [ -e $NOTES/go ]; do sleep 0.05; done; echo 1";

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_lets_running_programs_end_and_gives_back_what_has_not_started() {
    with_database(async |db| {
        let (client, folder) = (db.client().await, Folder::new(db));
        let (first, second) = (enqueue(&client, "wait").await, enqueue(&client, "wait").await);
        let work = Work::start(db.url(), &folder, &["--queue", "default=1", "--exec", WAITING]);
        folder.process("shell").await;
        work.signal("-TERM");
        work.until_said("stopping, running jobs may end").await;
        fs::write(folder.path("go"), "").expect("a file");
        let end = work.end().await;
        assert_eq!(end.code, Some(0), "{end:?}");
        let (done, left) = (job(&client, first).await, job(&client, second).await);
        assert_eq!((done.status, left.status, left.attempt), (State::Completed, State::Available, 0));
        assert_eq!(client.workers().await.expect("an answer").len(), 0, "it signed off");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_grace_is_over_programs_get_sigterm_and_their_jobs_go_back_unharmed() {
    with_database(async |db| {
        let (client, folder) = (db.client().await, Folder::new(db));
        let (asked, deaf) = (enqueue(&client, "asked").await, enqueue(&client, "deaf").await);
        let asks =
            "asked=trap 'echo asked >$NOTES/told; exit 1' TERM; echo $$ >$NOTES/asked; while :; do sleep 0.05; done";
        let ignores = "deaf=trap '' TERM; echo $$ >$NOTES/deaf; while :; do sleep 0.05; done";
        let args = ["--queue", "default=2", "--grace", "5s", "--exec", asks, "--exec", ignores];
        let work = Work::start(db.url(), &folder, &args);
        let programs = [folder.process("asked").await, folder.process("deaf").await];
        work.signal("-TERM");
        let end = work.end().await;
        assert_eq!(end.code, Some(0), "{end:?}");
        assert!(folder.path("told").exists(), "SIGTERM came before SIGKILL");
        for (id, program) in [asked, deaf].into_iter().zip(programs) {
            until_gone(program).await;
            let seen = job(&client, id).await;
            assert_eq!((seen.status, seen.attempt), (State::Available, 0), "{}", seen.kind);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_only_worker_is_killed_everybody_who_looks_is_told() {
    with_database(async |db| {
        let (client, folder) = (db.client().await, Folder::new(db));
        let (first, second) = (enqueue(&client, "wait").await, enqueue(&client, "wait").await);
        let work = Work::start(db.url(), &folder, &["--queue", "default=1", "--exec", WAITING]);
        let program = folder.process("shell").await;
        work.signal("-KILL");
        work.end().await;
        let shown = |args: &[&str]| {
            let output = Command::new(env!("CARGO_BIN_EXE_tenure")).args(args).env("DATABASE_URL", db.url()).output();
            String::from_utf8(output.expect("tenure ends").stdout).expect("text")
        };
        let status = until("the lock to be free", async || {
            let status = shown(&["status"]);
            if status.contains("suspected") { Ok(status) } else { Err(status) }
        })
        .await;
        for part in ["the jobs that they hold (1) are given away as soon as another starts", "NO WORKER FOR"] {
            assert!(status.contains(part), "{part}: {status}");
        }
        assert!(shown(&["worker", "list"]).contains("suspected"));
        let job = shown(&["job", "show", &first.to_string()]);
        assert!(job.contains("looks lost") && job.contains("given away as soon as one starts"), "{job}");
        let job = shown(&["job", "show", &second.to_string()]);
        assert!(job.contains("no worker takes jobs of the kind wait"), "{job}");
        fs::write(folder.path("go"), "").expect("a file");
        until_gone(program).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_nobody_has_used_is_named_by_the_worker_that_reads_it() {
    with_database(async |db| {
        let (client, folder) = (db.client().await, Folder::new(db));
        let args = ["--queue", "defualt=1", "--queue", "default=1", "--drain", "--exec", "none=true"];
        enqueue(&client, "other").await;
        let end = Work::start(db.url(), &folder, &args).end().await;
        assert_eq!(end.code, Some(0), "{end:?}");
        assert!(
            end.said.contains("no job was ever in the queue \"defualt\"")
                && end.said.contains("queues with jobs: \"default\""),
            "{end:?}"
        );
        assert!(!end.said.contains("in the queue \"default\""), "{end:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_stops_at_once() {
    with_database(async |db| {
        let (client, folder) = (db.client().await, Folder::new(db));
        let id = enqueue(&client, "wait").await;
        let work = Work::start(db.url(), &folder, &["--grace", "1h", "--exec", WAITING]);
        let program = folder.process("shell").await;
        work.signal("-TERM");
        work.until_said("stopping, running jobs may end").await;
        work.signal("-INT");
        let end = work.end().await;
        assert_eq!(end.code, Some(0), "{end:?}");
        assert!(end.said.contains("stopping at once") && end.said.contains("1 given back"), "{}", end.said);
        until_gone(program).await;
        assert_eq!(job(&client, id).await.status, State::Available);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_may_be_cut_off_for_as_long_as_it_was_told() {
    with_database(async |db| {
        let (folder, sql) = (Folder::new(db), db.sql().await);
        let args = |lease, grace| ["--lease", lease, "--reconnect-grace", grace, "--exec", "none=true"];
        let work = Work::start(db.url(), &folder, &args("60s", "40s"));
        let grace = until("the worker to be registered", async || {
            let row = sql.query_opt("select grace_ms from tenure.worker", &[]).await.expect("an answer");
            row.map(|row| row.get::<_, i32>(0))
        })
        .await;
        assert_eq!(grace, 40_000);
        work.signal("-TERM");
        work.end().await;
        let end = Work::start(db.url(), &folder, &args("5s", "6s")).end().await;
        assert!(end.said.contains("reconnect grace 6s is outside 100ms to 5s"), "{end:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_jobs_program_is_asked_to_stop() {
    with_database(async |db| {
        let (client, folder) = (db.client().await, Folder::new(db));
        let id = enqueue(&client, "asked").await;
        let program = "asked=trap 'exit 1' TERM; echo $$ >$NOTES/shell; while :; do sleep 0.05; done";
        let work = Work::start(db.url(), &folder, &["--exec", program]);
        let process = folder.process("shell").await;
        client.cancel(id).await.expect("a request");
        until("the cancel", async || job(&client, id).await.status == State::Cancelled).await;
        until_gone(process).await;
        work.signal("-TERM");
        assert!(work.end().await.said.contains("1 cancelled"));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_does_not_wait_for_what_is_due_later() {
    with_database(async |db| {
        let (client, folder) = (db.client().await, Folder::new(db));
        let (now, payload) = (enqueue(&client, "k").await, RawJson::parse("1").expect("JSON"));
        let later = client.enqueue(Enqueue::raw("k", payload).delay(3_600 * SECOND)).await.expect("enqueued");
        let end = drain(db, &folder, &["k=true"]).await;
        assert_eq!(end.code, Some(0), "{end:?}");
        assert!(end.said.contains("1 completed, 0 failed"), "{}", end.said);
        assert_eq!(
            (job(&client, now).await.status, job(&client, later).await.status),
            (State::Completed, State::Scheduled)
        );
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
async fn the_end_of_an_outage_is_told_like_its_beginning() {
    with_database(async |db| {
        let folder = Folder::new(db);
        let proxy = Proxy::start(db.url()).await;
        let work = Work::start(proxy.url(), &folder, &["--exec", "k=true"]);
        work.until_said("runs k from").await;
        until("both connections", async || proxy.connections() == 2).await;
        proxy.set(Fault::Refuse);
        proxy.cut_all();
        work.until_said("no control connection, trying again").await;
        proxy.set(Fault::None);
        work.until_said("the control connection stands again after").await;
        work.signal("-TERM");
        assert_eq!(work.end().await.code, Some(0));
    })
    .await;
}

#[test]
fn a_process_that_is_there_is_not_taken_for_gone() {
    assert!(!is_gone(std::process::id()) && Path::new("/proc/self").exists());
    assert!(is_gone(u32::MAX));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_done_is_printed_as_json_at_the_end() {
    with_database(async |db| {
        let client = db.client().await;
        for kind in ["good", "good", "bad"] {
            client.enqueue(Enqueue::raw(kind, RawJson::null())).await.expect("enqueued");
        }
        let output = Command::new(env!("CARGO_BIN_EXE_tenure"))
            .args(["work", "--exec", "good=true", "--exec", "bad=exit 65", "--drain", "--json"])
            .env("DATABASE_URL", db.url())
            .output()
            .expect("tenure ends");
        let done: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
        assert_eq!(
            (&done["clean"], &done["refused_kinds"], &done["overrunning"]),
            (&json!(true), &json!([]), &json!([]))
        );
        let stats = &done["stats"];
        assert_eq!((&stats["completed"], &stats["failed"], &stats["dead"]), (&json!(2), &json!(1), &json!(1)));
    })
    .await;
}
