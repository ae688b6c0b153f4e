//! awa with its queue storage: direct COPY to enqueue, no deadline. Done jobs go when their part of the storage is rotated
//! away, every ROTATION.
//!
//! PEER_PARTITIONS queues side by side share the concurrency, which is awa's max_workers; each claims up to
//! PEER_CLAIM_JOBS. awa itself reads AWA_COMPLETION_….

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use anyhow::Result;
use awa::{
    Client, InsertOpts, InsertParams, JobArgs, JobResult, PartitionedQueue, QueueConfig, QueueStorage,
    QueueStorageConfig, insert_with, migrations,
};
use sqlx08::postgres::{PgPool, PgPoolOptions};

use super::{Noop, QUEUE};
use crate::call::setting;
use crate::contract::{Driver, Load, Stop};
use crate::meter;

const CONNECTIONS_MIN: usize = 24;
const FULL_POLL: Duration = Duration::from_millis(50);
/// The library's default.
const IDLE_POLL: Duration = Duration::from_millis(200);
const ROTATION: Duration = Duration::from_secs(1);
const SHUTDOWN: Duration = Duration::from_secs(10);

pub(crate) struct Awa {
    pool: PgPool,
    queues: PartitionedQueue,
    storage: QueueStorage,
    /// Bulk calls so far: each goes to the next queue.
    calls: AtomicUsize,
}

impl JobArgs for Noop {
    fn kind() -> &'static str {
        "noop"
    }
}

impl Driver for Awa {
    async fn connect(url: &str, callers: usize) -> Result<Self> {
        let connections = u32::try_from(callers.max(CONNECTIONS_MIN))?;
        Ok(Awa {
            pool: PgPoolOptions::new().max_connections(connections).connect(url).await?,
            queues: PartitionedQueue::new(QUEUE, setting("PEER_PARTITIONS")?)?,
            storage: QueueStorage::new(QueueStorageConfig::default())?,
            calls: AtomicUsize::new(0),
        })
    }

    async fn setup(&self) -> Result<()> {
        migrations::run(&self.pool).await?;
        // The first start of a worker switches a new database to queue storage.
        self.start(Load::Idle, 1).await?.await
    }

    async fn enqueue_bulk(&self, jobs: Range<u64>) -> Result<()> {
        let queue = self.queues.queue_for_index(self.calls.fetch_add(1, Relaxed)).to_string();
        let params = |i| InsertParams {
            kind: Noop::kind().to_owned(),
            args: serde_json::json!({ "i": i }),
            opts: InsertOpts { queue: queue.clone(), ..Default::default() },
        };
        let jobs: Vec<InsertParams> = jobs.map(params).collect();
        self.storage.enqueue_params_copy(&self.pool, &jobs).await?;
        Ok(())
    }

    async fn enqueue_one(&self, _: usize, i: u64) -> Result<()> {
        let queue = self.queues.queue_for_index(i as usize).to_string();
        insert_with(&self.pool, &Noop { i }, InsertOpts { queue, ..Default::default() }).await?;
        Ok(())
    }

    async fn start(&self, load: Load, concurrency: usize) -> Result<Stop> {
        let workers = concurrency.div_ceil(setting("PEER_PARTITIONS")?);
        let config = QueueConfig {
            max_workers: u32::try_from(workers)?,
            claim_batch_size: setting("PEER_CLAIM_JOBS")?,
            poll_interval: if load == Load::Full { FULL_POLL } else { IDLE_POLL },
            deadline_duration: Duration::ZERO,
            ..Default::default()
        };
        let client = Client::builder(self.pool.clone())
            .partitioned_queue(&self.queues, config)
            .queue_storage(QueueStorageConfig::default(), ROTATION, ROTATION)
            .register::<Noop, _, _>(|_, _| async {
                meter::handled(1);
                Ok(JobResult::Completed)
            })
            .build()?;
        client.start().await?;
        Ok(Box::pin(async move {
            client.shutdown(SHUTDOWN).await;
            Ok(())
        }))
    }
}
