//! Floor: what the same server does by plain SQL, which no queue on it can beat. A notification that another session gets, a
//! durable commit of one row, a COPY into a table with a primary key.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use futures_util::SinkExt as _;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_postgres::Statement;

use super::clock::{Times, ms_between, now_ns};
use super::options::FloorOptions;
use super::payload::Payloads;
use super::place::Place;
use super::progress::say;
use super::report::{Figure, Run};

/// Two columns and a primary key.
const COPY_TABLE: &str = "create table floor_copy (id bigint primary key, payload json not null)";
const COMMIT_TABLE: &str = "create table if not exists floor_commit (id bigint primary key, payload json not null)";
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
    place.sql.batch_execute(COPY_TABLE).await?;
    let mut trips = Trips::new(place, &payloads).await?;
    let mut runs = Vec::new();
    for round in 1..=options.common.rounds {
        say(&format!("round {round}: {} notifications and commits, a COPY of {} rows", options.trips, options.rows));
        place.sql.batch_execute("truncate floor_copy").await?;
        place.checkpoint().await?;
        let (mut notifications, mut commits) = (Vec::new(), Vec::new());
        for n in 0..options.trips + WARM {
            let took = trips.notification().await?;
            notifications.extend((n >= WARM).then_some(took));
        }
        for n in 0..options.trips + WARM {
            let took = trips.commit().await?;
            commits.extend((n >= WARM).then_some(took));
        }
        let copied = copied(place, options, &payloads).await?;
        runs.push(run_of(options, &Times::new(notifications), &Times::new(commits), copied).in_round(round));
    }
    Ok(runs)
}

/// Notifications and commits, one at a time.
pub(super) struct Trips<'a> {
    place: &'a Place,
    /// Held, for it listens.
    _listener: tokio_postgres::Client,
    heard: UnboundedReceiver<u64>,
    insert: Statement,
    payloads: &'a Payloads,
    row: i64,
}

impl<'a> Trips<'a> {
    pub(super) async fn new(place: &'a Place, payloads: &'a Payloads) -> Result<Trips<'a>> {
        place.sql.batch_execute(COMMIT_TABLE).await?;
        place.sql.batch_execute("truncate floor_commit").await?;
        let (listener, heard) = place.listener().await?;
        listener.batch_execute("listen tenure_bench_floor").await?;
        let insert = place.sql.prepare("insert into floor_commit (id, payload) values ($1, $2::text::json)").await?;
        Ok(Trips { place, _listener: listener, heard, insert, payloads, row: 0 })
    }

    /// From the call of NOTIFY to its arrival in another session, in ms.
    pub(super) async fn notification(&mut self) -> Result<f64> {
        let start = now_ns();
        let notify = self.place.sql.batch_execute("notify tenure_bench_floor");
        let (sent, arrived) = tokio::join!(notify, self.heard.recv());
        sent?;
        Ok(ms_between(start, arrived.context("the listening session was lost")?))
    }

    /// An insert of one row, until its commit is known, in ms.
    pub(super) async fn commit(&mut self) -> Result<f64> {
        let payload = self.payloads.get(self.row as usize).get();
        self.row += 1;
        let start = now_ns();
        self.place.sql.execute(&self.insert, &[&self.row, &payload]).await?;
        Ok(ms_between(start, now_ns()))
    }
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
