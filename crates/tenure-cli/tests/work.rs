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
        Work::logging(url, folder, "warn", args)
    }

    /// With more in its log than people are shown.
    fn logging(url: &str, folder: &Folder, level: &str, args: &[&str]) -> Work {
        let log = folder.path("log");
        let child = Command::new(env!("CARGO_BIN_EXE_tenure"))
            .arg("work")
            .args(args)
            .env("DATABASE_URL", url)
            .env("NOTES", &folder.0)
            .env("TENURE_LOG", level)
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
        for part in ["the jobs that they hold (1) are given away as soon as another worker starts", "NO WORKER FOR"] {
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
            end.said.contains("no job is in the queue \"defualt\" now")
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

/// What another `tenure` prints for people.
fn shown(db: &TestDatabase, args: &[&str]) -> String {
    let output =
        Command::new(env!("CARGO_BIN_EXE_tenure")).args(args).env("DATABASE_URL", db.url()).output().expect("it runs");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_whose_program_cannot_be_run_is_named_wherever_one_looks_for_it() {
    with_database(async |db| {
        let (client, folder) = (db.client().await, Folder::new(db));
        let id = enqueue(&client, "mail").await;
        let work = Work::start(db.url(), &folder, &["--exec", "mail=./missing-program", "--exec", "other=true"]);
        let why = until("the job to say why it waits", async || {
            let wait = client.waits_for(id).await.expect("an answer")?;
            wait.explained.contains("refuses it").then_some(wait)
        })
        .await;
        assert_eq!(why.reason, "no_worker");
        assert!(why.explained.contains("no worker takes jobs of the kind mail"), "{}", why.explained);
        assert!(why.explained.contains("missing-program") && why.explained.contains("not found"), "{}", why.explained);
        assert!(shown(db, &["job", "show", &id.to_string()]).contains("refuses it"));
        let status = shown(db, &["status"]);
        assert!(status.contains("NO WORKER FOR") && status.contains("missing-program"), "{status}");
        let unhandled = client.unhandled_kinds().await.expect("an answer");
        assert_eq!(unhandled.len(), 1, "{unhandled:?}");
        assert!(unhandled[0].refused.as_ref().is_some_and(|why| why.contains("not found")), "{unhandled:?}");
        assert_eq!(client.workers().await.expect("an answer")[0].kinds, ["other"]);
        // A registration that it had to make anew does not bring the kind back.
        let worker = client.workers().await.expect("an answer")[0].id;
        let sql = db.sql().await;
        sql.execute("update tenure.worker set dead_at = now() where id = $1", &[&worker]).await.expect("given up");
        until("the new registration to refuse it too", async || {
            let workers = client.workers().await.expect("an answer");
            workers.iter().any(|w| w.id != worker && w.kinds == ["other"])
        })
        .await;
        assert_eq!(job(&client, id).await.attempt, 0);
        drop(work);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_failed_attempt_has_a_line_in_the_log_and_a_flood_of_them_is_summed_up() {
    with_database(async |db| {
        let (client, folder) = (db.client().await, Folder::new(db));
        let again = enqueue(&client, "again").await;
        let args = [
            "--queue",
            "default=4",
            "--drain",
            "--exec",
            "again=echo 'no \\033[2Jroute' >&2; exit 75",
            "--exec",
            "dies=exit 65",
        ];
        let end = Work::logging(db.url(), &folder, "info", &args).end().await;
        let line = end.said.lines().find(|line| line.contains("an attempt failed")).expect("its line").to_owned();
        let facts = [
            &format!("job={again}"),
            "kind=\"again\"",
            "attempt=\"1 of 5\"",
            "cause=\"exit\"",
            "exit code 75: no",
            "again=\"in ",
        ];
        assert!(line.contains(" INFO ") && facts.iter().all(|fact| line.contains(*fact)), "{line}");
        assert!(!line.contains("\u{1b}[2J"), "{line}");

        for _ in 0..60 {
            enqueue(&client, "dies").await;
        }
        let end = Work::logging(db.url(), &folder, "warn", &args).end().await;
        assert!(end.said.contains("60 failed (60 dead)"), "{}", end.said);
        let lines =
            end.said.lines().filter(|line| line.contains("a job is dead: the program ended with exit code 65")).count();
        let more = |line: &str| line.split("and ").nth(1)?.split(" more jobs are dead").next()?.parse::<usize>().ok();
        let left_out: usize = end.said.lines().filter_map(more).sum();
        assert_eq!(lines + left_out, 60, "{}", end.said);
        assert!(lines >= 10, "{}", end.said);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_jobs_of_a_lost_worker_are_named_by_the_one_that_rescues_them() {
    with_database(async |db| {
        let (client, folder) = (db.client().await, Folder::new(db));
        let job = Enqueue::raw("poison", RawJson::parse("{}").expect("JSON")).max_attempts(1);
        let id = client.enqueue(job).await.expect("enqueued");
        let lost = Work::start(db.url(), &folder, &["--exec", "poison=kill -9 $PPID; sleep 9"]);
        assert_eq!(lost.end().await.code, None, "killed");
        let rescuer = Work::start(db.url(), &folder, &["--exec", "poison=true"]);
        rescuer.until_said("rescued jobs of workers that were lost").await;
        rescuer.until_said("was lost while it ran").await;
        assert!(rescuer.said().contains(&format!("job={id}")), "{}", rescuer.said());
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
