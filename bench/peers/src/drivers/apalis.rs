//! apalis with apalis-postgres. Done jobs are kept.
//!
//! A full worker polls every PEER_POLL_MS for up to PEER_BATCH_JOBS; an idle one listens.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Result, anyhow};
use apalis::prelude::{BackendExt, BoxDynError, TaskBuilder, WorkerBuilder, WorkerBuilderExt, WorkerError};
use apalis_postgres::{Config, PgPool, PgTask, PostgresStorage, queries::push_tasks};
use sqlx09::postgres::PgPoolOptions;
use tokio::sync::oneshot;

use super::{Noop, QUEUE};
use crate::call::setting;
use crate::contract::{Driver, Load, Stop};
use crate::meter;

/// The library's default; it fits single jobs.
const IDLE_BATCH_JOBS: usize = 10;
const CONNECTIONS_MIN: usize = 10;

pub(crate) struct Apalis {
    pool: PgPool,
}

impl Driver for Apalis {
    async fn connect(url: &str, callers: usize) -> Result<Self> {
        let connections = u32::try_from(callers.max(CONNECTIONS_MIN))?;
        Ok(Apalis { pool: PgPoolOptions::new().max_connections(connections).connect(url).await? })
    }

    async fn setup(&self) -> Result<()> {
        Ok(PostgresStorage::setup(&self.pool).await?)
    }

    async fn enqueue_bulk(&self, jobs: Range<u64>) -> Result<()> {
        let tasks = jobs.map(task).collect::<Result<Vec<_>>>()?;
        let mut connection = self.pool.acquire().await?;
        Ok(push_tasks(&mut *connection, QUEUE, tasks).await?)
    }

    async fn enqueue_one(&self, _: usize, i: u64) -> Result<()> {
        let mut connection = self.pool.acquire().await?;
        Ok(push_tasks(&mut *connection, QUEUE, vec![task(i)?]).await?)
    }

    async fn start(&self, load: Load, concurrency: usize) -> Result<Stop> {
        let storage: PostgresStorage<Noop> = PostgresStorage::new(&self.pool);
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async move {
            let _told_or_dropped = stopped.await;
            Ok::<(), WorkerError>(())
        };
        // Two of one name would be one worker that comes back.
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let worker = WorkerBuilder::new(format!("bench-worker-{}", STARTED.fetch_add(1, Relaxed)));
        let running = match load {
            Load::Full => {
                let (jobs, poll) = (setting("PEER_BATCH_JOBS")?, setting("PEER_POLL_MS")?);
                let storage = storage.with_config(Config::default().queue(QUEUE).batch_size(jobs));
                let storage = storage.poll_with_interval(Duration::from_millis(poll as u64));
                tokio::spawn(worker.backend(storage).concurrency(concurrency).build(noop).run_until(stopped))
            }
            Load::Idle => {
                let storage = storage.with_config(Config::default().queue(QUEUE).batch_size(IDLE_BATCH_JOBS));
                let storage = storage.with_pubsub();
                tokio::spawn(worker.backend(storage).concurrency(concurrency).build(noop).run_until(stopped))
            }
        };
        Ok(Box::pin(async move {
            stop.send(()).map_err(|()| anyhow!("the worker ended early"))?;
            Ok(running.await??)
        }))
    }
}

async fn noop(_: Noop) -> Result<(), BoxDynError> {
    meter::handled(1);
    Ok(())
}

fn task(i: u64) -> Result<PgTask> {
    Ok(TaskBuilder::new(serde_json::to_vec(&Noop { i })?).build())
}
