//! tenure, through its library, with its defaults. Completed jobs are kept.

use std::ops::Range;

use anyhow::{Result, ensure};
use tenure::{Client, Enqueue, Fail, Job, JobOptions, MigrateOptions, Worker};

use super::{Noop, QUEUE};
use crate::contract::{Driver, Load, Stop};
use crate::meter;

pub(crate) struct Tenure {
    url: String,
    client: Client,
}

impl Job for Noop {
    const KIND: &'static str = "noop";
}

impl Driver for Tenure {
    async fn connect(url: &str, callers: usize) -> Result<Self> {
        let client = Client::builder(url).pool_size(callers).connect().await?;
        Ok(Tenure { url: url.to_owned(), client })
    }

    async fn setup(&self) -> Result<()> {
        self.client.migrate(MigrateOptions::default()).await?;
        Ok(())
    }

    async fn enqueue_bulk(&self, jobs: Range<u64>) -> Result<()> {
        let payloads = jobs.map(|i| Noop { i });
        self.client.enqueue_many(Noop::KIND, payloads, JobOptions::new().queue(QUEUE)).await?;
        Ok(())
    }

    async fn enqueue_one(&self, _: usize, i: u64) -> Result<()> {
        self.client.enqueue(Enqueue::new(&Noop { i })?.queue(QUEUE)).await?;
        Ok(())
    }

    async fn start(&self, _: Load, concurrency: usize) -> Result<Stop> {
        let handler = async |_, _: Noop| {
            meter::handled(1);
            Ok::<(), Fail>(())
        };
        let mut worker = Worker::builder(&self.url).queue(QUEUE, concurrency).handle(handler).start().await?;
        Ok(Box::pin(async move {
            worker.shutdown();
            ensure!(worker.join().await.clean, "the worker did not stop cleanly");
            Ok(())
        }))
    }
}
