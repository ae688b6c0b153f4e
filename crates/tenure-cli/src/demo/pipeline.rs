//! The pipeline: extract -> split -> embed -> store.
//!
//! Every step ends in one transaction: its own writes, the follow-up jobs, and its own end. So a step that a crash
//! repeats finds nothing of its first try, and a step that ended has its follow-ups.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::{Client, Context, Enqueue, Fail, Job, RetryPolicy};
use tokio_postgres::Transaction;

use super::database::Database;
use super::model_client::ModelClient;
use super::store::{self, Chunks};
use super::text;

/// The limit that the jobs that ask the model stand under, where it is declared.
pub const MODEL_LIMIT: &str = "demo-model";

/// How many chunks go into one request to the model, and so into one job.
pub const CHUNKS_PER_REQUEST: usize = 8;

const ATTEMPTS_MAX: i16 = 15; // at one misbehaviour in six requests, a job that fails so often does not occur

/// The steps, each with its queue and its concurrency per worker process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Extract,
    Split,
    Embed,
    Store,
}

impl Stage {
    pub const ALL: [Stage; 4] = [Stage::Extract, Stage::Split, Stage::Embed, Stage::Store];

    pub fn name(self) -> &'static str {
        match self {
            Stage::Extract => "extract",
            Stage::Split => "split",
            Stage::Embed => "embed",
            Stage::Store => "store",
        }
    }

    pub fn queue(self) -> &'static str {
        match self {
            Stage::Extract => "demo-extract",
            Stage::Split => "demo-split",
            Stage::Embed => "demo-embed",
            Stage::Store => "demo-store",
        }
    }

    /// How many of its jobs one worker process runs at once: many where they wait for somebody else.
    pub fn concurrency(self) -> usize {
        match self {
            Stage::Extract | Stage::Split | Stage::Store => 2,
            Stage::Embed => 6,
        }
    }
}

/// Read the file of a document and keep its text.
#[derive(Debug, Serialize, Deserialize)]
pub struct Extract {
    pub run: String,
    pub document: i64,
}

/// Cut the text of a document into chunks.
#[derive(Debug, Serialize, Deserialize)]
pub struct Split {
    pub run: String,
    pub document: i64,
}

/// Ask the model for the vectors of some chunks.
#[derive(Debug, Serialize, Deserialize)]
pub struct Embed {
    pub run: String,
    pub document: i64,
    pub first: i32,
    pub count: i32,
}

/// Put the vectors of some chunks where the search finds them.
#[derive(Debug, Serialize, Deserialize)]
pub struct Store {
    pub run: String,
    pub document: i64,
    pub first: i32,
    pub count: i32,
}

impl Job for Extract {
    const KIND: &'static str = "demo.extract";
}

impl Job for Split {
    const KIND: &'static str = "demo.split";
}

impl Job for Embed {
    const KIND: &'static str = "demo.embed";
}

impl Job for Store {
    const KIND: &'static str = "demo.store";
}

/// What the handlers of one worker process share.
pub struct Pipeline {
    pub run: String,
    /// Whether jobs that ask the model stand under [`MODEL_LIMIT`].
    pub limited: bool,
    pub database: Database,
    pub model: ModelClient,
}

/// Takes a file in: the document's row and its first job, in one transaction.
pub async fn take_in(
    client: &Client,
    tx: &mut Transaction<'_>,
    run: &str,
    path: &str,
    name: &str,
) -> anyhow::Result<()> {
    let document = store::add_document(tx, path, name).await?;
    let job = Extract { run: run.to_owned(), document };
    enqueue(client, tx, Stage::Extract, document, false, &job)
        .await
        .map_err(|fail| anyhow::anyhow!("{path}: {}", fail.message()))
}

/// Waits double with every failure, but never long: this is a demo.
pub fn retry_policy() -> RetryPolicy {
    RetryPolicy::exponential(Duration::from_millis(250), 2.0, Duration::from_secs(4))
}

impl Pipeline {
    pub async fn extract(self: Arc<Self>, ctx: Context, job: Extract) -> Result<(), Fail> {
        self.refuse_former_run(&job.run)?;
        let mut connection = self.database.lend().await?;
        let path = store::path_of(&connection, job.document).await?.ok_or_else(|| unknown(job.document))?;
        let bytes = tokio::fs::read(&path).await.map_err(|error| Fail::permanent(format!("{path}: {error}")))?;
        let text = text::extract(&path, &bytes);

        let mut tx = connection.transaction().await?;
        store::set_text(&tx, job.document, &text).await?;
        let split = Split { run: job.run, document: job.document };
        enqueue(ctx.client(), &mut tx, Stage::Split, job.document, false, &split).await?;
        ctx.complete_in(&mut tx, &()).await?;
        Ok(tx.commit().await?)
    }

    pub async fn split(self: Arc<Self>, ctx: Context, job: Split) -> Result<(), Fail> {
        self.refuse_former_run(&job.run)?;
        let mut connection = self.database.lend().await?;
        let text = store::text_of(&connection, job.document).await?.ok_or_else(|| unknown(job.document))?;
        let chunks = text::split(&text);

        let mut tx = connection.transaction().await?;
        store::add_chunks(&tx, job.document, &chunks).await?;
        for first in (0..chunks.len()).step_by(CHUNKS_PER_REQUEST) {
            let count = CHUNKS_PER_REQUEST.min(chunks.len() - first);
            let embed =
                Embed { run: job.run.clone(), document: job.document, first: first as i32, count: count as i32 };
            enqueue(ctx.client(), &mut tx, Stage::Embed, job.document, self.limited, &embed).await?;
        }
        ctx.complete_in(&mut tx, &()).await?;
        Ok(tx.commit().await?)
    }

    pub async fn embed(self: Arc<Self>, ctx: Context, job: Embed) -> Result<(), Fail> {
        self.refuse_former_run(&job.run)?;
        let chunks = Chunks { document: job.document, first: job.first, count: job.count };
        let texts = store::texts_of(&*self.database.lend().await?, chunks).await?;
        let names = (job.first..job.first + job.count).map(|number| format!("{}:{number}", job.document)).collect();
        // The key is the same for every attempt of this job: work that was done and billed before a crash, a 500 or a
        // broken connection is answered from the provider's memory. No connection is held while we wait.
        let vectors = self.model.embed(ctx.idempotency_key(), texts, names, self.limited).await?;

        let mut connection = self.database.lend().await?;
        let mut tx = connection.transaction().await?;
        store::add_answers(&tx, chunks, &vectors).await?;
        let next = Store { run: job.run, document: job.document, first: job.first, count: job.count };
        enqueue(ctx.client(), &mut tx, Stage::Store, job.document, false, &next).await?;
        ctx.complete_in(&mut tx, &()).await?;
        Ok(tx.commit().await?)
    }

    pub async fn store(self: Arc<Self>, ctx: Context, job: Store) -> Result<(), Fail> {
        self.refuse_former_run(&job.run)?;
        let chunks = Chunks { document: job.document, first: job.first, count: job.count };
        let mut connection = self.database.lend().await?;
        let mut tx = connection.transaction().await?;
        let stored = store::store_vectors(&tx, chunks, ctx.job_id().get(), ctx.attempt() as i16).await?;
        if stored != u64::from(job.count.unsigned_abs()) {
            return Err(Fail::permanent(format!("{stored} answers for {} chunks", job.count)));
        }
        ctx.complete_in(&mut tx, &()).await?;
        Ok(tx.commit().await?)
    }

    /// A job that an interrupted run left behind, and that was running when this run began, ends here.
    fn refuse_former_run(&self, run: &str) -> Result<(), Fail> {
        if run == self.run { Ok(()) } else { Err(Fail::cancelled()) }
    }
}

fn unknown(document: i64) -> Fail {
    Fail::permanent(format!("document {document} has no row"))
}

/// Enqueues a job of this stage, under the model's limit or not, and notes it in the demo's own table, in the caller's transaction.
async fn enqueue<J: Job>(
    client: &Client,
    tx: &mut Transaction<'_>,
    stage: Stage,
    document: i64,
    limited: bool,
    job: &J,
) -> Result<(), Fail> {
    let enqueue = Enqueue::new(job)?.queue(stage.queue()).max_attempts(ATTEMPTS_MAX);
    let enqueue = if limited { enqueue.under(MODEL_LIMIT) } else { enqueue };
    let id = client.enqueue_in(tx, enqueue).await?;
    store::note_enqueued(tx, stage.name(), document, &[id.get()]).await?;
    Ok(())
}
