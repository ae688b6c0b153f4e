//! The worker processes: what runs inside one, and how the demo keeps its set.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use tenure::{Context, KindOptions, Worker};
use tokio_postgres::Client;

use super::database::Database;
use super::model_client::ModelClient;
use super::pipeline::{Embed, Extract, Pipeline, Split, Stage, Store, retry_policy};
use super::store;
use crate::connection::Connection;
use crate::output;
use crate::process::{Process, stdin_closed};

/// What the hidden command `tenure demo-worker` is told.
#[derive(Debug, Clone)]
pub struct WorkerArgs {
    pub name: String,
    pub run: String,
    pub model_url: String,
    pub limited: bool,
    pub connection: Connection,
}

/// Runs one worker until stdin ends, then stops it in order.
///
/// # Errors
/// The database cannot be reached, or the worker ended by itself.
pub async fn run(args: WorkerArgs) -> Result<()> {
    let connections = Stage::ALL.iter().map(|stage| stage.concurrency()).sum();
    let pipeline = Arc::new(Pipeline {
        run: args.run,
        limited: args.limited,
        database: Database::new(&args.connection, connections)?,
        model: ModelClient::new(&args.model_url)?,
    });
    let mut running = worker(&args.connection, &args.name, &pipeline).start().await?;
    output::line("ready")?;
    stdin_closed().await;
    running.shutdown();
    running.join().await;
    Ok(())
}

fn worker(connection: &Connection, name: &str, pipeline: &Arc<Pipeline>) -> tenure::WorkerBuilder {
    let options = || KindOptions::new().retry(retry_policy()).timeout(Duration::from_secs(30));
    let (extract, split, embed, store) = (pipeline.clone(), pipeline.clone(), pipeline.clone(), pipeline.clone());
    let mut worker = Worker::builder(&connection.database_url)
        .schema(&connection.schema)
        .name(name)
        .shutdown_grace(Duration::from_secs(3));
    for stage in Stage::ALL {
        worker = worker.queue(stage.queue(), stage.concurrency());
    }
    worker
        .handle_with(options(), move |ctx: Context, job: Extract| extract.clone().extract(ctx, job))
        .handle_with(options(), move |ctx: Context, job: Split| split.clone().split(ctx, job))
        .handle_with(options(), move |ctx: Context, job: Embed| embed.clone().embed(ctx, job))
        .handle_with(options(), move |ctx: Context, job: Store| store.clone().store(ctx, job))
}

/// The worker processes of a run.
pub struct Workers {
    processes: Vec<Process>,
    started: usize,
    run: String,
    model_url: String,
    limited: bool,
    connection: Connection,
}

/// A worker that was killed, and what it was doing.
#[derive(Debug, Clone, Serialize)]
pub struct Killed {
    pub name: String,
    pub pid: u32,
    /// Jobs that stood in its leases when it was dead.
    pub jobs: u64,
    /// The worker that took its place.
    pub replacement: String,
}

impl Workers {
    /// None yet.
    pub fn new(run: &str, model_url: &str, limited: bool, connection: &Connection) -> Self {
        Workers {
            processes: Vec::new(),
            started: 0,
            run: run.to_owned(),
            model_url: model_url.to_owned(),
            limited,
            connection: connection.clone(),
        }
    }

    /// Starts one more and waits until it is ready. Returns its name.
    ///
    /// # Errors
    /// It ends at once, or is not ready in time.
    pub async fn start_one(&mut self) -> Result<String> {
        self.started += 1;
        let name = format!("demo-{}", self.started);
        let mut arguments = vec!["demo-worker", "--name", &name, "--run", &self.run, "--model-url", &self.model_url];
        if self.limited {
            arguments.push("--limited");
        }
        let mut process = Process::start(&name, &arguments, Some(&self.connection))?;
        process.first_line().await?;
        self.processes.push(process);
        Ok(name)
    }

    /// # Errors
    /// A worker ended although nobody asked it to.
    pub fn check_alive(&mut self) -> Result<()> {
        for process in &mut self.processes {
            if let Some(status) = process.ended() {
                bail!("worker {} ended by itself ({status}); its message is above", process.name);
            }
        }
        Ok(())
    }

    /// Kills -9 the worker that runs the most jobs at this moment by the database, and starts another in its place.
    /// None when no worker runs any. What it held is counted when it is dead: a job that it ended before the signal
    /// came is not counted.
    ///
    /// # Errors
    /// The database or the replacement fails.
    pub async fn kill_the_busiest(&mut self, client: &Client) -> Result<Option<Killed>> {
        let busiest = store::running_by_worker(client).await?.into_iter().next();
        let Some(place) = busiest.and_then(|(name, _)| self.processes.iter().position(|process| process.name == name))
        else {
            return Ok(None);
        };
        let process = self.processes.swap_remove(place);
        let (name, pid) = (process.name.clone(), process.pid().context("it was running a moment ago")?);
        process.kill().await?;
        let held = store::running_by_worker(client).await?.into_iter().find(|(worker, _)| *worker == name);
        let replacement = self.start_one().await?;
        Ok(Some(Killed { name, pid, jobs: held.map_or(0, |(_, jobs)| jobs), replacement }))
    }

    /// Ends all of them.
    pub async fn end(&mut self) {
        futures_util::future::join_all(self.processes.drain(..).map(Process::end)).await;
    }
}
