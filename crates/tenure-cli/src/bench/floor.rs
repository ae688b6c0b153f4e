//! Floor: what the same server does by plain SQL, which no queue on it can beat. A notification that another session gets, a
//! durable commit of one row, a COPY into a table with a primary key.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use futures_util::SinkExt as _;

use super::clock::{Times, ms_between, now_ns};
use super::options::FloorOptions;
use super::payload::Payloads;
use super::place::Place;
use super::progress::say;
use super::report::{Figure, Run};

/// Two columns and a primary key.
const TABLES: &str = "
    create table floor_copy (id bigint primary key, payload json not null);
    create table floor_commit (id bigint primary key, payload json not null)";
/// Trips before those that count.
const WARM: u32 = 20;
/// Bytes that COPY sends at a time, about.
const PIECE: usize = 64 * 1024;

/// Measures all three.
///
/// # Errors
/// The database fails.
pub async fn run(place: &Place, options: &FloorOptions) -> Result<Vec<Run>> {
    let payloads = Payloads::new(options.payload)?;
    place.sql.batch_execute(TABLES).await?;
    let mut runs = Vec::new();
    for round in 1..=options.common.rounds {
        say(&format!("round {round}: {} notifications and commits, a COPY of {} rows", options.trips, options.rows));
        place.sql.batch_execute("truncate floor_copy, floor_commit").await?;
        place.checkpoint().await?;
        let notifications = notifications(place, options.trips).await?;
        let commits = commits(place, options.trips, &payloads).await?;
        let copied = copied(place, options, &payloads).await?;
        runs.push(run_of(options, &notifications, &commits, copied).in_round(round));
    }
    Ok(runs)
}

/// From the call of NOTIFY to its arrival in another session.
async fn notifications(place: &Place, trips: u32) -> Result<Times> {
    let (listener, mut heard) = place.listener().await?;
    listener.batch_execute("listen tenure_bench_floor").await?;
    let mut times = Vec::new();
    for n in 0..trips + WARM {
        let start = now_ns();
        let (sent, arrived) = tokio::join!(place.sql.batch_execute("notify tenure_bench_floor"), heard.recv());
        sent?;
        let arrived = arrived.context("the listening session was lost")?;
        if n >= WARM {
            times.push(ms_between(start, arrived));
        }
    }
    Ok(Times::new(times))
}

async fn commits(place: &Place, trips: u32, payloads: &Payloads) -> Result<Times> {
    let insert = place.sql.prepare("insert into floor_commit (id, payload) values ($1, $2::text::json)").await?;
    let mut times = Vec::new();
    for n in 0..trips + WARM {
        let payload = payloads.get(n as usize).get();
        let start = now_ns();
        place.sql.execute(&insert, &[&i64::from(n), &payload]).await?;
        if n >= WARM {
            times.push(ms_between(start, now_ns()));
        }
    }
    Ok(Times::new(times))
}

/// Rows a second.
async fn copied(place: &Place, options: &FloorOptions, payloads: &Payloads) -> Result<f64> {
    let rows = options.rows as usize;
    let start = Instant::now();
    let mut id = 0;
    while id < rows {
        let end = rows.min(id + options.batch as usize);
        let sink = place.sql.copy_in::<_, Bytes>("copy floor_copy (id, payload) from stdin").await?;
        let mut sink = std::pin::pin!(sink);
        while id < end {
            let mut piece = String::new();
            while id < end && piece.len() < PIECE {
                // Nothing in these payloads has to be escaped.
                piece.push_str(&format!("{id}\t{}\n", payloads.get(id).get()));
                id += 1;
            }
            sink.send(Bytes::from(piece)).await?;
        }
        sink.as_mut().finish().await?;
    }
    let rate = rows as f64 / start.elapsed().as_secs_f64();
    let stored: i64 = place.sql.query_one("select count(*) from floor_copy", &[]).await?.get(0);
    ensure!(stored == rows as i64, "{stored} rows are stored, {rows} were copied");
    Ok(rate)
}

fn run_of(options: &FloorOptions, notifications: &Times, commits: &Times, copied: f64) -> Run {
    Run::new()
        .figure(Figure::fine("notify_p50_ms", "NOTIFY p50 ms", notifications.percentile(50)))
        .figure(Figure::fine("notify_p99_ms", "p99", notifications.percentile(99)))
        .figure(Figure::fine("commit_p50_ms", "commit p50 ms", commits.percentile(50)))
        .figure(Figure::fine("commit_p99_ms", "p99", commits.percentile(99)))
        .figure(Figure::rate("copy_per_s", "COPY rows/s", copied))
        .more("trips", options.trips)
        .more("rows", options.rows)
}
