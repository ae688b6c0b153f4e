//! What the pipeline reads and writes in the demo's own tables.

use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, Transaction};

use super::model_server::MODEL;
use super::text::DIMENSIONS;

/// A run of neighbouring chunks of one document.
#[derive(Debug, Clone, Copy)]
pub struct Chunks {
    pub document: i64,
    pub first: i32,
    pub count: i32,
}

/// What the tables say about how far a run is.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    pub documents: u64,
    pub extracted: u64,
    pub split: u64,
    pub chunks: u64,
    pub embedded: u64,
    pub stored: u64,
}

pub async fn add_document(tx: &Transaction<'_>, path: &str, name: &str) -> Result<i64, Error> {
    let insert = "insert into tenure_demo.document (path, name) values ($1, $2) returning id";
    Ok(tx.query_one(insert, &[&path, &name]).await?.get(0))
}

/// Notes jobs that this transaction enqueued.
pub async fn note_enqueued(tx: &Transaction<'_>, stage: &str, document: i64, jobs: &[i64]) -> Result<(), Error> {
    let insert =
        "insert into tenure_demo.enqueued (job, stage, document) select job, $2, $3 from unnest($1::bigint[]) as job";
    tx.execute(insert, &[&jobs, &stage, &document]).await.map(drop)
}

/// The path of a document; none when this run does not know it.
pub async fn path_of(client: &Client, document: i64) -> Result<Option<String>, Error> {
    let row = client.query_opt("select path from tenure_demo.document where id = $1", &[&document]).await?;
    Ok(row.map(|row| row.get(0)))
}

pub async fn set_text(tx: &Transaction<'_>, document: i64, text: &str) -> Result<(), Error> {
    tx.execute("update tenure_demo.document set text = $2 where id = $1", &[&document, &text]).await.map(drop)
}

pub async fn text_of(client: &Client, document: i64) -> Result<Option<String>, Error> {
    let row = client.query_opt("select text from tenure_demo.document where id = $1", &[&document]).await?;
    Ok(row.and_then(|row| row.get(0)))
}

pub async fn add_chunks(tx: &Transaction<'_>, document: i64, chunks: &[&str]) -> Result<(), Error> {
    let insert = "insert into tenure_demo.chunk (document, number, text)
                  select $1, place - 1, text from unnest($2::text[]) with ordinality as given (text, place)";
    tx.execute(insert, &[&document, &chunks]).await?;
    let count = i32::try_from(chunks.len()).unwrap_or(i32::MAX);
    tx.execute("update tenure_demo.document set chunks = $2 where id = $1", &[&document, &count]).await.map(drop)
}

pub async fn texts_of(client: &Client, chunks: Chunks) -> Result<Vec<String>, Error> {
    let select = "select text from tenure_demo.chunk
                  where document = $1 and number >= $2 and number < $2 + $3 order by number";
    let rows = client.query(select, &[&chunks.document, &chunks.first, &chunks.count]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Keeps what the model answered for these chunks, in their order.
pub async fn add_answers(tx: &Transaction<'_>, chunks: Chunks, vectors: &[Vec<f32>]) -> Result<(), Error> {
    let insert = "
        insert into tenure_demo.answer (document, chunk, model, elements)
        select $1, $2 + n, $3, ($4::real[])[n * $5 + 1 : (n + 1) * $5] from generate_series(0, $6 - 1) as n
        on conflict (document, chunk, model) do update set elements = excluded.elements";
    let (dimensions, count) = (DIMENSIONS as i32, vectors.len() as i32);
    let parameters: [&(dyn ToSql + Sync); 6] =
        [&chunks.document, &chunks.first, &MODEL, &vectors.concat(), &dimensions, &count];
    tx.execute(insert, &parameters).await.map(drop)
}

/// Stores the vectors of these chunks from what the model answered, and writes the log. Returns how many there were.
/// Doing it twice is possible and leaves two lines in the log: nothing here hides what the report is to find.
pub async fn store_vectors(tx: &Transaction<'_>, chunks: Chunks, job: i64, attempt: i16) -> Result<u64, Error> {
    let store = "
        with stored as (
          insert into tenure_demo.vector (document, chunk, model, elements)
          select document, chunk, model, elements from tenure_demo.answer
          where document = $1 and chunk >= $2 and chunk < $2 + $3 and model = $4
          on conflict (document, chunk, model) do update set elements = excluded.elements
          returning document, chunk, model
        )
        insert into tenure_demo.vector_log (document, chunk, model, job, attempt)
        select document, chunk, model, $5, $6 from stored";
    tx.execute(store, &[&chunks.document, &chunks.first, &chunks.count, &MODEL, &job, &attempt]).await
}

/// How far the run is by the demo's own tables.
pub async fn progress(client: &Client) -> Result<Progress, Error> {
    let select = "
        select count(*), count(text), count(chunks), coalesce(sum(chunks), 0)::bigint,
               (select count(*) from tenure_demo.answer), (select count(*) from tenure_demo.vector)
        from tenure_demo.document";
    let row = client.query_one(select, &[]).await?;
    let count = |column| row.get::<_, i64>(column).unsigned_abs();
    Ok(Progress {
        documents: count(0),
        extracted: count(1),
        split: count(2),
        chunks: count(3),
        embedded: count(4),
        stored: count(5),
    })
}

/// How many jobs of this run have not ended, counted among those that were enqueued: a job that vanished is one.
pub async fn jobs_without_end(client: &Client) -> Result<u64, Error> {
    let select = "
        select count(*) from tenure_demo.enqueued e left join jobs j on j.id = e.job
        where j.status is null or j.status not in ('completed', 'cancelled', 'dead')";
    Ok(client.query_one(select, &[]).await?.get::<_, i64>(0).unsigned_abs())
}

/// How many jobs of this run each worker runs at this moment, by the worker's name.
pub async fn running_by_worker(client: &Client) -> Result<Vec<(String, u64)>, Error> {
    let select = "
        select j.worker, count(*) from jobs j join tenure_demo.enqueued e on e.job = j.id
        where j.status = 'running' and j.worker is not null group by j.worker order by count(*) desc, j.worker";
    let rows = client.query(select, &[]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get::<_, i64>(1).unsigned_abs())).collect())
}
