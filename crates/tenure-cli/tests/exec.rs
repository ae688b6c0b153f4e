//! Programs as handlers, whose ends are the worst: killed, aborted, hanging, and killing their worker.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tenure::lifecycle::State;
use tenure::testing::{TestDatabase, until_within, with_database};
use tenure::{Client, Enqueue, JobId, RawJson};

const LIMIT: Duration = Duration::from_secs(60);

/// A `tenure work` process; killed when dropped.
struct Working(Child);

impl Drop for Working {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn work(db: &TestDatabase, args: &[&str]) -> Working {
    let child = Command::new(env!("CARGO_BIN_EXE_tenure"))
        .arg("work")
        .args(args)
        .env("DATABASE_URL", db.url())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("tenure starts");
    Working(child)
}

async fn enqueue(client: &Client, kind: &str, attempts: i16) -> JobId {
    let job = Enqueue::raw(kind, RawJson::parse("{}").expect("JSON")).max_attempts(attempts);
    client.enqueue(job).await.expect("enqueued")
}

async fn until_dead(client: &Client, id: JobId) {
    until_within(LIMIT, "the job is dead", async || {
        let seen = client.get(id).await.expect("a look").expect("the job");
        if seen.status == State::Dead { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_program_the_exit_code_the_signal_and_the_end_of_stderr_are_kept_also_at_a_timeout() {
    with_database(async |db| {
        let client = db.client().await;
        let cases = [
            (
                "exits",
                "echo no such file >&2; exit 3",
                "exit",
                "exit code 3: no such file",
                ("exit_code", Value::from(3)),
            ),
            ("buries", "exit 65", "exit", "exit code 65", ("exit_code", 65.into())),
            ("aborts", "kill -ABRT $$", "signal", "SIGABRT (the program aborted)", ("signal", "SIGABRT".into())),
            (
                "killed",
                "echo big >&2; kill -9 $$",
                "signal",
                "SIGKILL (out of memory? see `dmesg`)",
                ("stderr", "big".into()),
            ),
            ("child", "sh -c 'kill -9 $$'; exit $?", "signal", "SIGKILL", ("signal", "SIGKILL".into())),
            (
                "hangs",
                "echo waiting for the lock >&2; sleep 600",
                "timeout",
                "after 1s",
                ("stderr", "waiting for the lock".into()),
            ),
        ];
        let programs: Vec<String> = cases.iter().map(|(kind, command, ..)| format!("{kind}={command}")).collect();
        let mut args = vec!["--queue", "default=8", "--timeout", "1s"];
        programs.iter().for_each(|program| args.extend(["--exec", program]));
        let _working = work(db, &args);
        for (kind, _, cause, message, (key, value)) in cases {
            let id = enqueue(&client, kind, 1).await;
            until_dead(&client, id).await;
            let error = client.attempt_errors(id).await.expect("errors").remove(0);
            assert_eq!(error.cause, cause, "{error:?}");
            assert!(error.message.contains(message), "{error:?}");
            let details: Value = error.details.expect("details").decode().expect("JSON");
            assert_eq!(details[key], value, "{kind}: {details}");
            assert!(details["ran_ms"].is_u64(), "{kind}: {details}");
        }
    })
    .await;
}

/// Three supervised workers, good programs, and one that kills its worker.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_kills_its_worker_is_buried_and_its_neighbours_complete() {
    with_database(async |db| {
        let client = db.client().await;
        let args = ["--queue", "default=5", "--exec", "good=sleep 0.1; cat", "--exec", "poison=kill -9 $PPID; sleep 9"];
        let mut good = Vec::new();
        let mut poison = None;
        for n in 0..40 {
            if n == 20 {
                poison = Some(enqueue(&client, "poison", 5).await);
            }
            good.push(enqueue(&client, "good", 5).await);
        }
        let mut workers: Vec<Working> = (0..3).map(|_| work(db, &args)).collect();
        let (poison, mut deaths) = (poison.expect("enqueued"), 0);
        until_within(LIMIT, "the good jobs complete and the poison is buried", async || {
            for worker in &mut workers {
                if worker.0.try_wait().expect("its status").is_some() {
                    deaths += 1;
                    *worker = work(db, &args);
                }
            }
            let mut open = 0;
            for id in &good {
                open +=
                    usize::from(client.get(*id).await.expect("a look").expect("the job").status != State::Completed);
            }
            let buried = client.get(poison).await.expect("a look").expect("the job").status == State::Dead;
            if open == 0 && buried { Ok(()) } else { Err(format!("{open} open, buried: {buried}, deaths: {deaths}")) }
        })
        .await;
        for worker in &mut workers {
            deaths += usize::from(worker.0.try_wait().expect("its status").is_some());
        }
        eprintln!("a program that kills its worker: {deaths} workers died");
        assert!(deaths <= 4, "{deaths}");
        let errors = client.attempt_errors(poison).await.expect("errors");
        assert_eq!(errors.iter().map(|error| error.cause.as_str()).collect::<Vec<_>>(), ["worker_lost"; 3]);
    })
    .await;
}

/// What may be opened from now on by a process: nothing more, or as much as before.
fn may_open(process: u32, files: bool) {
    let pid = libc::pid_t::try_from(process).expect("a process");
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both point to a limit of ours, or to nothing; the process is a child of ours that was not waited for.
    unsafe {
        assert_eq!(libc::prlimit(pid, libc::RLIMIT_NOFILE, std::ptr::null(), &raw mut limit), 0);
        limit.rlim_cur = if files { limit.rlim_max } else { 0 };
        assert_eq!(libc::prlimit(pid, libc::RLIMIT_NOFILE, &raw const limit, std::ptr::null_mut()), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_cannot_be_started_for_now_is_tried_again_and_uses_no_attempt() {
    with_database(async |db| {
        let (client, sql) = (db.client().await, db.sql().await);
        let worker = work(db, &["--exec", "fine=true"]);
        let locks = "select count(*) from pg_locks l join tenure.worker w on w.id::bigint = l.objid::bigint
            where l.locktype = 'advisory' and l.classid = 'tenure'::regnamespace::oid and l.granted
              and l.database = (select oid from pg_database where datname = current_database())";
        until_within(LIMIT, "the worker has its connections", async || {
            let held: i64 = sql.query_one(locks, &[]).await.expect("locks").get(0);
            if held == 2 { Ok(()) } else { Err(format!("{held}")) }
        })
        .await;
        may_open(worker.0.id(), false);
        let id = enqueue(&client, "fine", 1).await;
        until_within(LIMIT, "the job waits for a better moment", async || {
            let seen = client.get(id).await.expect("a look").expect("the job");
            if seen.snoozes > 0 { Ok(()) } else { Err(format!("{seen:?}")) }
        })
        .await;
        may_open(worker.0.id(), true);
        until_within(LIMIT, "the job has run", async || {
            let seen = client.get(id).await.expect("a look").expect("the job");
            if seen.status == State::Completed { Ok(()) } else { Err(format!("{seen:?}")) }
        })
        .await;
        assert_eq!(client.get(id).await.expect("a look").expect("the job").attempt, 1);
        assert_eq!(client.attempt_errors(id).await.expect("an answer").len(), 0);
        assert_eq!(client.workers().await.expect("an answer")[0].kinds, ["fine"], "it refuses nothing");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_was_throttled_slows_down_the_limit_and_uses_no_attempt() {
    with_database(async |db| {
        let client = db.client().await;
        client.set_limit("provider", tenure::Limit::new().rate(tenure::Rate::per_second(100))).await.expect("set");
        let job = Enqueue::raw("asks", RawJson::parse("{}").expect("JSON")).under("provider");
        let id = client.enqueue(job).await.expect("enqueued");
        let _working = work(db, &["--exec", "asks=echo 'Retry-After: 60' >&2; exit 79"]);
        until_within(LIMIT, "the job waits for the provider", async || {
            let seen = client.get(id).await.expect("a look").expect("the job");
            if seen.status == State::Snoozed { Ok(()) } else { Err(format!("{seen:?}")) }
        })
        .await;
        assert_eq!(client.get(id).await.expect("a look").expect("the job").attempt, 0);
        // Another one does not start, and the next claim finds what the first one said.
        let other = client.enqueue(Enqueue::raw("asks", RawJson::parse("{}").expect("JSON")).under("provider")).await;
        until_within(LIMIT, "the limit is slowed down", async || {
            let limit = client.limits(Some("provider"), 0).await.expect("limits").remove(0);
            if limit.blocked_until.is_some() && limit.pace <= 0.5 { Ok(()) } else { Err(format!("{limit:?}")) }
        })
        .await;
        let other = client.get(other.expect("enqueued")).await.expect("a look").expect("the job");
        assert_eq!((other.status, other.attempt), (State::Held, 0));
    })
    .await;
}
