//! `tenure work` as a real process: what its programs get and say, and what becomes of their jobs.

#[path = "work/programs.rs"]
mod programs;
#[path = "work/stop.rs"]
mod stop;
#[path = "work/told.rs"]
mod told;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tenure::testing::{TestDatabase, until, until_within};
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

/// Notes its number, and waits for the file `go`.
const WAITING: &str = "wait=echo $$ >$NOTES/shell; until [ -e $NOTES/go ]; do sleep 0.05; done; echo 1";

#[test]
fn a_process_that_is_there_is_not_taken_for_gone() {
    assert!(!is_gone(std::process::id()) && Path::new("/proc/self").exists());
    assert!(is_gone(u32::MAX));
}

/// What another `tenure` prints for people.
fn shown(db: &TestDatabase, args: &[&str]) -> String {
    let output =
        Command::new(env!("CARGO_BIN_EXE_tenure")).args(args).env("DATABASE_URL", db.url()).output().expect("it runs");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}
