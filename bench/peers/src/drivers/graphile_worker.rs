//! graphile_worker for Rust. It deletes a job when it is done.
//!
//! PEER_LOCAL_QUEUES queues in the worker's memory fetch up to PEER_LOCAL_QUEUE_JOBS at a time; ends are written together
//! every PEER_BATCH_MS. An idle worker has neither: they cost a single job time.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, TaskHandler, Worker, WorkerContext, WorkerOptions, WorkerUtils,
};

use super::Noop;
use crate::call::setting;
use crate::contract::{Driver, Load, Stop};
use crate::meter;

/// Connections for others than the running jobs.
const SPARE_CONNECTIONS: usize = 2;
const CONNECTIONS_MIN: usize = 10;

pub(crate) struct GraphileWorker {
    url: String,
    utils: WorkerUtils,
}

impl TaskHandler for Noop {
    const IDENTIFIER: &'static str = "noop";

    async fn run(self, _: WorkerContext) -> impl IntoTaskHandlerResult {
        meter::handled(1);
        Ok::<(), String>(())
    }
}

impl Driver for GraphileWorker {
    /// Makes the tables as well: the library does so whenever it starts.
    async fn connect(url: &str, callers: usize) -> Result<Self> {
        let utils = options(url, callers).init().await?.create_utils();
        Ok(GraphileWorker { url: url.to_owned(), utils })
    }

    async fn setup(&self) -> Result<()> {
        Ok(())
    }

    async fn enqueue_bulk(&self, jobs: Range<u64>) -> Result<()> {
        let spec = JobSpec::default();
        let jobs: Vec<_> = jobs.map(|i| (Noop { i }, &spec)).collect();
        self.utils.add_jobs::<Noop>(&jobs).await?;
        Ok(())
    }

    async fn enqueue_one(&self, _: usize, i: u64) -> Result<()> {
        self.utils.add_job(Noop { i }, JobSpec::default()).await?;
        Ok(())
    }

    async fn start(&self, load: Load, concurrency: usize) -> Result<Stop> {
        let options = options(&self.url, concurrency);
        let options = if load == Load::Full { tuned(options)? } else { options };
        let worker = Arc::new(options.init().await?);
        let running = tokio::spawn(run(worker.clone()));
        Ok(Box::pin(async move {
            worker.request_shutdown();
            running.await?
        }))
    }
}

async fn run(worker: Arc<Worker>) -> Result<()> {
    Ok(worker.run().await?)
}

fn options(url: &str, concurrency: usize) -> WorkerOptions {
    let connections = (concurrency + SPARE_CONNECTIONS).max(CONNECTIONS_MIN);
    WorkerOptions::default()
        .concurrency(concurrency)
        .database_url(url)
        .max_pg_conn(u32::try_from(connections).unwrap_or(u32::MAX))
        .listen_os_shutdown_signals(false)
        .define_job::<Noop>()
}

fn tuned(options: WorkerOptions) -> Result<WorkerOptions> {
    let (queues, jobs) = (setting("PEER_LOCAL_QUEUES")?, setting("PEER_LOCAL_QUEUE_JOBS")?);
    let delay = Duration::from_millis(setting("PEER_BATCH_MS")? as u64);
    Ok(options
        .local_queue(LocalQueueConfig::default().with_size(jobs).with_queue_count(queues))
        .complete_job_batch_delay(delay)
        .fail_job_batch_delay(delay))
}
