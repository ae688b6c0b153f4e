//! What people are told: by a worker's log, at its end, and by those who look.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};
use tenure::testing::{Fault, Proxy, until, with_database};
use tenure::{Enqueue, RawJson};

use super::{Folder, WAITING, Work, enqueue, job, shown, until_gone};

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
