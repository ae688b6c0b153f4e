//! `tenure bench` as a person types it: what it prints, what it refuses, and that nothing of it stays.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tenure::testing::{TestDatabase, until, with_database};
use tenure::{Enqueue, RawJson};
use tokio_postgres::config::Host;

fn bench(db: &TestDatabase, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.arg("bench").args(args).env("DATABASE_URL", db.url()).stdin(Stdio::null());
    command
}

/// Exit code, and what it said.
fn ended(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The one JSON object that it prints.
fn measured(db: &TestDatabase, args: &[&str]) -> Value {
    let output = bench(db, args).arg("--json").output().expect("tenure starts");
    assert!(output.status.success(), "{args:?}: {:?}", ended(&output));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{args:?}: {error}: {output:?}"))
}

async fn count(db: &TestDatabase, query: &str) -> i64 {
    db.sql().await.query_one(query, &[]).await.expect("a count").get(0)
}

const SCHEMAS: &str = "select count(*) from pg_namespace where nspname like 'tenure\\_%'";
const SESSIONS: &str = "select count(*) from pg_stat_activity where application_name like 'tenure bench%' and datname = current_database()";

/// No schema, no session.
async fn check_nothing_left(db: &TestDatabase) {
    assert_eq!(count(db, SCHEMAS).await, 0, "schemas");
    assert_eq!(count(db, SESSIONS).await, 0, "sessions");
}

/// All figures of a run that must be there and above zero.
fn check_positive(run: &Value, names: &[&str]) {
    for name in names {
        assert!(run[name].as_f64().is_some_and(|value| value > 0.0), "{name}: {run}");
    }
}

/// The values under a name, of all runs.
fn of_runs<'a>(report: &'a Value, name: &str) -> Vec<&'a Value> {
    report["runs"].as_array().expect("runs").iter().map(|run| &run[name]).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn enqueue_measures_every_form_with_every_number_of_producers() {
    with_database(async |db| {
        let report =
            measured(db, &["enqueue", "--jobs", "330", "--producers", "1,3", "--batch", "100", "--payload", "200"]);
        assert_eq!(of_runs(&report, "form"), ["single", "single", "arrays", "arrays", "copy", "copy"]);
        assert_eq!(of_runs(&report, "producers"), [1, 3, 1, 3, 1, 3]);
        for run in report["runs"].as_array().expect("runs") {
            assert_eq!(run["jobs"], 330);
            check_positive(run, &["jobs_per_s", "wal_bytes_per_job", "transactions_per_job", "client_cpu_us_per_job"]);
            assert!(run["wal_bytes_per_job"].as_f64() > Some(200.0), "less than the payloads: {run}");
        }
        assert!(report["runs"][0]["transactions_per_job"].as_f64() >= Some(1.0), "a commit each: {report}");
        assert!(report["runs"][2]["transactions_per_job"].as_f64() < Some(0.5), "a commit for many: {report}");
        assert_eq!((&report["mode"], &report["settings"]["scene"]["payload"]), (&"enqueue".into(), &200.into()));
        check_nothing_left(db).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn work_counts_every_job_once_and_tells_its_cost() {
    with_database(async |db| {
        let args = ["work", "--jobs", "3000", "--concurrency", "1,32", "--workers", "1,2", "--rounds", "2"];
        let report = measured(db, &args);
        assert_eq!(of_runs(&report, "concurrency"), [1, 32, 1, 32, 1, 32, 1, 32]);
        assert_eq!(of_runs(&report, "workers"), [1, 1, 2, 2, 1, 1, 2, 2]);
        assert_eq!(of_runs(&report, "completed"), [3000; 8]);
        assert_eq!(report["medians"].as_array().map(Vec::len), Some(4));
        for run in report["runs"].as_array().expect("runs") {
            let names = ["jobs_per_s", "enqueue_per_s", "wal_enqueue_per_job", "wal_work_per_job", "seconds", "claims"];
            check_positive(run, &names);
            check_positive(run, &["worker_cpu_us_per_job", "peak_mb", "transactions_per_job", "calls_per_job"]);
            let sum = run["wal_enqueue_per_job"].as_f64().unwrap() + run["wal_work_per_job"].as_f64().unwrap();
            assert!((run["wal_bytes_per_job"].as_f64().unwrap() - sum).abs() < 0.01, "{run}");
        }
        check_positive(&report["medians"][0], &["jobs_per_s"]);
        assert!(report["server"]["version"].as_str().is_some_and(|version| !version.is_empty()));
        check_nothing_left(db).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn work_is_spread_over_queues_in_every_form() {
    with_database(async |db| {
        for form in ["single", "arrays", "copy"] {
            let args =
                ["work", "--jobs", "600", "--concurrency", "2", "--queues", "1,7", "--form", form, "--producers", "2"];
            let report = measured(db, &args);
            assert_eq!(of_runs(&report, "queues"), [1, 7], "{form}");
            assert_eq!(of_runs(&report, "completed"), [600, 600], "{form}");
        }
        check_nothing_left(db).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_workers_are_watched_woken_and_sleep_again() {
    with_database(async |db| {
        let args = ["idle", "--workers", "3", "--idle", "1s", "--jobs", "10", "--pause", "300ms", "--burst", "500"];
        let report = measured(db, &args);
        let run = &report["runs"][0];
        assert_eq!((&run["workers"], &run["jobs"], &run["completed"]), (&3.into(), &510.into(), &510.into()));
        check_positive(
            run,
            &["words_per_job", "p50_ms", "burst_claims", "burst_words", "burst_s", "idle_claims_per_s"],
        );
        assert!(run["words_per_job"].as_f64() <= Some(1.0), "one job wakes one worker: {run}");
        check_nothing_left(db).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_statistics_none_are_kept_and_with_them_all_are_counted() {
    with_database(async |db| {
        let args = ["work", "--jobs", "3000", "--concurrency", "8", "--statistics", "off,on,off", "--rounds", "2"];
        let report = measured(db, &args);
        assert_eq!(of_runs(&report, "statistics"), ["off", "on", "off", "off", "on", "off"]);
        assert_eq!(of_runs(&report, "completed"), [3000; 6]);
        // A turn that counts writes the row of its minute; one that does nothing does not.
        let counted: Vec<bool> = of_runs(&report, "counted").iter().map(|jobs| jobs.as_u64() == Some(3_000)).collect();
        assert_eq!(counted, [false, true, false, false, true, false], "{report}");
        check_nothing_left(db).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn work_goes_on_beside_finished_and_scheduled_jobs_and_an_old_snapshot() {
    with_database(async |db| {
        let scene = ["--history", "5000", "--scheduled", "300", "--pinned", "--form", "single", "--producers", "2"];
        let args = [&["work", "--jobs", "600", "--concurrency", "8", "--run-time", "1ms"][..], &scene].concat();
        let report = measured(db, &args);
        assert_eq!(of_runs(&report, "completed"), [600]);
        let scene = &report["settings"]["scene"];
        assert_eq!(
            (&scene["history"], &scene["scheduled"], &scene["pinned"]),
            (&5000.into(), &300.into(), &true.into())
        );
        check_nothing_left(db).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn latency_mixed_and_floor_give_times_in_order() {
    with_database(async |db| {
        let latency = measured(db, &["latency", "--jobs", "20", "--pause", "2ms"]);
        let run = &latency["runs"][0];
        assert_eq!(run["jobs"], 20);
        let ordered = |run: &Value, names: &[&str]| {
            let values: Vec<f64> = names.iter().map(|name| run[name].as_f64().expect(name)).collect();
            assert!(values.is_sorted() && values[0] >= 0.0, "{names:?}: {run}");
        };
        ordered(run, &["p50_ms", "p95_ms", "p99_ms", "max_ms"]);
        ordered(run, &["p50_ms", "call_p50_ms", "call_p99_ms"]);
        let mixed =
            measured(db, &["mixed", "--rate", "100", "--duration", "1s", "--run-time", "3ms", "--workers", "2"]);
        let run = &mixed["runs"][0];
        assert_eq!((&run["jobs"], &run["completed"]), (&100.into(), &100.into()));
        ordered(run, &["wait_p50_ms", "wait_p95_ms", "wait_p99_ms", "wait_max_ms"]);
        assert!(run["run_p50_ms"].as_f64() >= Some(3.0), "handlers that wait for 3 ms: {run}");
        check_positive(run, &["jobs_per_s", "enqueue_p50_ms", "wal_bytes_per_job", "peak_mb", "calls_per_job"]);
        let floor = measured(db, &["floor", "--rows", "1000", "--batch", "300", "--trips", "10"]);
        check_positive(&floor["runs"][0], &["notify_p50_ms", "commit_p50_ms", "copy_per_s"]);
        check_nothing_left(db).await;
    })
    .await;
}

/// A bench that finds the database by the variables of libpq alone: two hosts, and nobody listens at the first.
fn bench_of_two_hosts(db: &TestDatabase, args: &[&str]) -> Command {
    let config = tenure::connection_config(db.url()).expect("a URL");
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(name)) => name.clone(),
        Some(Host::Unix(folder)) => folder.display().to_string(),
        None => "localhost".to_owned(),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let mut command = bench(db, args);
    command.env_remove("DATABASE_URL").env("PGHOST", format!("127.0.0.1,{host}")).env("PGPORT", format!("1,{port}"));
    command.env("PGDATABASE", db.name()).env("PGUSER", config.get_user().unwrap_or_default());
    command.env("PGPASSWORD", String::from_utf8_lossy(config.get_password().unwrap_or_default()).as_ref());
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn the_database_may_be_one_of_several_hosts_that_the_environment_names() {
    with_database(async |db| {
        let args = ["floor", "--rows", "100", "--batch", "100", "--trips", "2"];
        let (code, said) = ended(&bench_of_two_hosts(db, &args).output().expect("tenure starts"));
        assert_eq!(code, Some(0), "{said}");
        check_nothing_left(db).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn late_finds_every_job_that_was_committed_after_others_had_passed_it() {
    with_database(async |db| {
        let report = measured(db, &["late", "--jobs", "5", "--hold", "300ms", "--at-once", "2", "--workers", "2"]);
        let run = &report["runs"][0];
        assert_eq!((&run["jobs"], &report["settings"]["hold_ms"]), (&5.into(), &300.0.into()));
        check_positive(run, &["max_ms", "jobs_per_s"]);
        assert!(run["p50_ms"].as_f64() <= run["max_ms"].as_f64(), "{run}");
        check_nothing_left(db).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_measurement_that_takes_longer_than_it_may_is_given_up_and_leaves_nothing() {
    with_database(async |db| {
        let args = ["mixed", "--rate", "20", "--duration", "1h", "--within", "1s", "--json"];
        let output = bench(db, &args).output().expect("tenure starts");
        let (code, said) = ended(&output);
        assert_eq!((code, output.stdout.len()), (Some(1), 0), "{said}");
        assert!(said.contains("the bench did not end within 1s"), "{said}");
        check_nothing_left(db).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_json_a_table_stands_alone_on_stdout() {
    with_database(async |db| {
        let output = bench(db, &["work", "--jobs", "200", "--concurrency", "2"]).output().expect("tenure starts");
        let (code, said) = ended(&output);
        assert_eq!(code, Some(0), "{said}");
        let out = String::from_utf8_lossy(&output.stdout);
        assert_eq!(out.lines().count(), 2, "{out}");
        assert!(out.starts_with("workers  concurrency  jobs/s"), "{out}");
        for words in ["round 1: 200 jobs", "PostgreSQL ", "fsync"] {
            assert!(said.contains(words), "{words}: {said}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_something_else_made_is_refused_and_left_alone() {
    with_database(async |db| {
        let client = db.client().await;
        let id = client.enqueue(Enqueue::raw("k", RawJson::parse("1").expect("JSON"))).await.expect("enqueued");
        for mode in ["work", "floor"] {
            let output = bench(db, &[mode, "--schema", "tenure"]).output().expect("tenure starts");
            let (code, said) = ended(&output);
            assert_eq!(code, Some(1), "{said}");
            assert!(said.contains("the schema tenure of this database was not made by `tenure bench`"), "{said}");
            assert!(said.contains("--schema NAME") && output.stdout.is_empty(), "{said}");
        }
        assert!(client.get(id).await.expect("an answer").is_some(), "the job is still there");
        check_nothing_left(db).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn values_that_make_no_sense_are_named_and_nothing_is_made() {
    with_database(async |db| {
        let cases: &[(&[&str], &[&str])] = &[
            (&["work", "--jobs", "0"], &["\"0\"", "--jobs", "1 to 100000000"]),
            (&["work", "--jobs", "-5"], &["\"-5\"", "--jobs", "1 to 100000000"]),
            (&["work", "--jobs", "99999999999999999999"], &["\"99999999999999999999\"", "1 to 100000000"]),
            (&["work", "--jobs", "1e6"], &["\"1e6\"", "1 to 100000000"]),
            (&["work", "--concurrency", "8,0"], &["\"0\"", "--concurrency", "1 to 10000"]),
            (&["work", "--concurrency", "8,"], &["\"\"", "--concurrency", "1 to 10000"]),
            (&["work", "--workers", "257"], &["\"257\"", "--workers", "1 to 256"]),
            (&["work", "--payload", "19"], &["\"19\"", "--payload", "20 to 65536"]),
            (&["work", "--queues", "0"], &["\"0\"", "--queues", "1 to 10000"]),
            (&["idle", "--burst", "0"], &["\"0\"", "--burst", "1 to 1000000"]),
            (&["work", "--history", "-1"], &["\"-1\"", "--history", "0 to 1000000000"]),
            (&["work", "--run-time", "2m"], &["2m", "0 to 1m"]),
            (&["work", "--run-time", "-5ms"], &["\"-5ms\"", "--run-time", "not negative"]),
            (&["work", "--form", "bulk"], &["'bulk'", "single, arrays, copy"]),
            (&["work", "--rounds", "many"], &["\"many\"", "--rounds", "1 to 100"]),
            (&["enqueue", "--producers", "201"], &["\"201\"", "1 to 200"]),
            (&["enqueue", "--batch", "0"], &["\"0\"", "--batch"]),
            (&["latency", "--pause", "5"], &["\"5\" is not a duration"]),
            (&["mixed", "--rate", "0"], &["\"0\"", "--rate", "1 to 100000"]),
            (&["mixed", "--duration", "500ms"], &["500ms", "1s to 1h"]),
            (&["mixed", "--rate", "100000", "--duration", "1h"], &["360000000 jobs", "lower --rate or --duration"]),
            (&["late", "--hold", "2m"], &["2m", "10ms to 1m"]),
            (&["late", "--at-once", "101"], &["\"101\"", "1 to 100"]),
            (&["floor", "--within", "25h"], &["25h", "1s to 24h"]),
            (&["floor", "--trips", "0"], &["\"0\"", "--trips"]),
            (&["floor", "--schema", "No"], &["\"No\" cannot be the schema", "lower case"]),
            (&["speed"], &["'speed'"]),
        ];
        for (args, words) in cases {
            let (code, said) = ended(&bench(db, args).output().expect("tenure starts"));
            assert_eq!(code, Some(2), "{args:?}: {said}");
            words.iter().for_each(|word| assert!(said.contains(word), "{args:?}: {word} is missing: {said}"));
        }
        check_nothing_left(db).await;
    })
    .await;
}

/// A measurement that goes on for long. It has said by then that it has begun.
fn begun(db: &TestDatabase) -> Child {
    let args = ["mixed", "--rate", "20", "--duration", "1h", "--workers", "2"];
    let mut child = bench(db, &args).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("tenure starts");
    let mut lines = BufReader::new(child.stderr.take().expect("its stderr")).lines();
    let begun = lines.by_ref().map_while(Result::ok).any(|line| line.contains("round 1"));
    assert!(begun, "it ended before it began");
    // So that the pipe never fills.
    std::thread::spawn(move || lines.for_each(drop));
    child
}

async fn until_jobs_run(db: &TestDatabase) {
    until("two workers run jobs", async || {
        let workers = count(db, "select count(*) from tenure_bench.worker").await;
        let ended = count(db, "select count(*) from tenure_bench.outcome").await;
        if workers == 2 && ended > 0 { Ok(()) } else { Err(format!("{workers} workers, {ended} ended")) }
    })
    .await;
}

#[test]
fn a_server_that_is_not_there_is_named_with_the_way_out() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.args(["bench", "work"]).env("DATABASE_URL", "postgres://u@127.0.0.1:1/none").stdin(Stdio::null());
    let (code, said) = ended(&command.output().expect("tenure starts"));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("u@127.0.0.1:1/none") && said.contains("is the server running"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn more_workers_than_the_server_takes_are_refused_before_anything_is_made() {
    with_database(async |db| {
        let max = count(db, "select current_setting('max_connections')::bigint").await;
        let workers = format!("1,{}", max / 2 + 1);
        let output = bench(db, &["work", "--workers", &workers]).output().expect("tenure starts");
        let (code, said) = ended(&output);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("lower --workers") && !said.contains("round 1"), "{said}");
        check_nothing_left(db).await;
    })
    .await;
}

fn interrupt(child: &Child) {
    // SAFETY: a signal to a process that this test started and has not waited for.
    unsafe { libc::kill(child.id().cast_signed(), libc::SIGINT) };
}

#[test]
fn ctrl_c_ends_it_also_while_the_server_does_not_answer() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("postgres://nobody@{}/none", silent.local_addr().expect("its address"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.args(["bench", "floor", "--json"]).env("DATABASE_URL", url).stdin(Stdio::null());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("tenure starts");
    let _connected = silent.accept().expect("it connects");
    interrupt(&child);
    let output = child.wait_with_output().expect("its end");
    let (code, said) = ended(&output);
    assert_eq!((code, output.stdout.len()), (Some(1), 0), "{said}");
    assert!(said.contains("the bench was stopped"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_leaves_nothing_and_a_kill_leaves_what_the_next_one_clears() {
    with_database(async |db| {
        let mut first = begun(db);
        until_jobs_run(db).await;
        let (code, said) = ended(&bench(db, &["floor"]).output().expect("tenure starts"));
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("another `tenure bench` is running"), "{said}");
        first.kill().expect("killed");
        first.wait().expect("its end");
        until("its workers have ended", async || count(db, SESSIONS).await == 0).await;
        assert_eq!(count(db, SCHEMAS).await, 1, "nobody was there to drop it");

        let mut second = begun(db);
        until_jobs_run(db).await;
        interrupt(&second);
        assert_eq!(second.wait().expect("its end").code(), Some(1));
        check_nothing_left(db).await;
    })
    .await;
}
