//! No worker at all: pg_cron fires schedules and promotes jobs, in a private server that has it.

use std::time::Duration;

use tenure::testing::until_within;
use tenure::{Client, Enqueue, Finding, MigrateOptions, Missed, RawJson, Rule, Schedule};
use tenure_dev::{Options, Server, find_binaries};
use tokio_postgres::NoTls;

use crate::{Bound, Measure};

/// pg_cron comes at each full minute; its first one may come too soon for it.
const LIMIT: Duration = Duration::from_secs(180);
/// The page that says how to set it up: what it shows is what is done here.
const PAGE: &str = include_str!("../../../../docs/operate/pg_cron.md");

/// A schedule fires, a job is promoted and an entry of pg_cron's own enqueues once, and no worker ever lived.
pub async fn in_the_place_of_workers() -> Vec<Measure> {
    if !find_binaries(None).is_ok_and(|binaries| binaries.has_library("pg_cron")) {
        let why = "these programs of PostgreSQL have no pg_cron (Debian: apt-get install postgresql-15-cron)";
        return vec![Measure::did_not_run("schedules fired by pg_cron", why)];
    }
    let settings = ["shared_preload_libraries=pg_cron", "cron.database_name=tenure", "cron.use_background_workers=on"];
    let options = Options {
        ephemeral: true,
        durable: false,
        settings: settings.map(str::to_owned).to_vec(),
        ..Options::default()
    };
    let server =
        tokio::task::spawn_blocking(move || Server::start(options)).await.expect("no panic").expect("a private server");
    let measures = play(server.url()).await;
    let stopped = tokio::task::spawn_blocking(move || server.stop()).await;
    stopped.expect("no panic").expect("the private server has stopped");
    measures
}

/// The examples of the page with these words in them, as one script.
fn examples(word: &str) -> String {
    let blocks = PAGE.split("```").skip(1).step_by(2).filter_map(|block| block.strip_prefix("text\n"));
    let found: Vec<&str> = blocks.filter(|block| block.contains(word)).collect();
    assert!(!found.is_empty(), "docs/operate/pg_cron.md shows nothing with {word:?}");
    found.join("\n")
}

async fn play(url: &str) -> Vec<Measure> {
    let client = Client::connect(url).await.expect("a client");
    client.migrate(MigrateOptions::default()).await.expect("migrated");
    let (sql, connection) = tokio_postgres::connect(url, NoTls).await.expect("a session");
    tokio::spawn(connection);
    let count = async |query: &str| -> i64 { sql.query_one(query, &[]).await.expect("a count").get(0) };

    let before = wrong(&client).await;
    sql.batch_execute(&examples("create extension pg_cron")).await.expect("pg_cron's extension");
    let job = || Enqueue::raw("k", RawJson::parse(r#"{"at": "{{logical_time}}"}"#).expect("JSON"));
    let schedule =
        |name: &str, rule: &str| Schedule::new(name, Rule::new(rule, "Europe/Berlin").expect("a rule"), job());
    // Of what counts as missed nothing would run.
    client.add_schedule(&schedule("minute", "* * * * *").missed(Missed::Skip)).await.expect("added");
    let all = Missed::All { max: 1_000, window: Duration::from_secs(3_600) };
    client.add_schedule(&schedule("often", "@every 7s").missed(all)).await.expect("added");
    let later = client.enqueue(job().delay(Duration::from_millis(500))).await.expect("enqueued");
    sql.batch_execute(&examples("tenure.tick()")).await.expect("the entry that calls tick");
    // Twice in each minute, and for the day once.
    let plain = examples("on conflict");
    let entry = plain.replace("30 2 * * *", "* * * * *");
    sql.batch_execute(&entry).await.expect("an entry that enqueues");
    sql.batch_execute(&entry.replace("create table", "create table if not exists").replace("'nightly'", "'again'"))
        .await
        .expect("the same again");

    let fired = "select count(*) from tenure.schedule_run r join tenure.schedule s on s.id = r.schedule_id where s.name = 'minute' and r.state = 'fired'";
    let ready = "select count(*) from tenure.jobs where status = 'available'";
    until_within(LIMIT, "pg_cron has fired a schedule twice", async || count(fired).await >= 2).await;
    let promoted = client.get(later).await.expect("asked").expect("it is there").status.as_str() == "available";
    let gaps = "select count(*) from (select r.logical_at - lag(r.logical_at) over (order by r.logical_at) as step
        from tenure.schedule_run r join tenure.schedule s on s.id = r.schedule_id where s.name = 'often') x where x.step <> '7 s'";
    let late =
        "select coalesce(max(extract(epoch from r.noted_at - r.logical_at)), 1e6)::float8 from tenure.schedule_run r
        join tenure.schedule s on s.id = r.schedule_id where s.name = 'minute'";
    let late: f64 = sql.query_one(late, &[]).await.expect("a time").get(0);
    let twice = "select count(*) from (select job_id from tenure.schedule_run group by job_id having count(*) > 1) x";
    let moved = moved(&client, &count).await;
    vec![
        Measure::new(
            "without the extension: points of the check that are wrong",
            Bound::AtLeast(3.0),
            before.len() as f64,
            "",
        ),
        Measure::count("with it: points that are wrong", 0, wrong(&client).await.len()),
        Measure::new(
            "schedules fired by pg_cron with no worker: jobs that are ready",
            Bound::AtLeast(10.0),
            count(ready).await as f64,
            "",
        ),
        Measure::count("of their times, left out between two", 0, count(gaps).await as usize),
        Measure::count("jobs that stand for two times", 0, count(twice).await as usize),
        Measure::count("a job that was due later is ready", 1, usize::from(promoted)),
        Measure::new("latest run of a schedule of each minute", Bound::AtMost(30.0), late, "s"),
        Measure::count(
            "jobs of two entries of pg_cron for one day",
            1,
            count("select count(*) from tenure.job where kind = 'report'").await as usize,
        ),
        Measure::count("entries that have become schedules", 1, moved),
        Measure::count("workers", 0, count("select count(*) from tenure.worker").await as usize),
    ]
}

/// The points of the check that are wrong, with what to do.
async fn wrong(client: &Client) -> Vec<String> {
    let checks = client.check_pg_cron().await.expect("checked");
    let wrong = checks.iter().filter(|check| check.finding == Finding::Wrong);
    wrong
        .map(|check| format!("{}: {} ({:?})", check.what, check.found, check.way_out))
        .inspect(|wrong| eprintln!("{wrong}"))
        .collect()
}

/// Moves one entry: the schedule is there, the entry is not.
async fn moved(client: &Client, count: &impl AsyncFn(&str) -> i64) -> usize {
    let jobs = client.cron_jobs().await.expect("entries");
    let job = jobs.iter().find(|job| job.name.as_deref() == Some("again")).expect("an entry");
    assert_eq!((job.zone.as_deref(), job.is_here, job.active), (Some("GMT"), true, true));
    let schedule =
        Schedule::new("moved", Rule::new("@yearly", "UTC").expect("a rule"), Enqueue::raw("k", RawJson::null()));
    client.move_cron_jobs(&[schedule], &[job.id]).await.expect("moved");
    assert!(client.cron_jobs().await.expect("entries").iter().all(|other| other.id != job.id));
    count("select count(*) from tenure.schedules where name = 'moved'").await as usize
}
