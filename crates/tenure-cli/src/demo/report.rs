//! What came of a run, asked of the database when everything has ended.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use tokio_postgres::Client;

use super::model_server::{Bill, Mood, REPLAYED};
use super::search::Hit;
use super::workers::Killed;

/// The figures of a run. The three that have to be 0 are `lost`, `stored_twice` and `billed_twice`.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    pub documents: u64,
    pub chunks: u64,
    pub jobs: u64,
    /// Times that a job was started.
    pub attempts: u64,
    /// Attempts that failed and were followed by another.
    pub retries: u64,
    /// Attempts that ended because their worker died.
    pub rescues: u64,
    /// Jobs that were given up: their files could not be read.
    pub dead: u64,
    /// The longest time that a job waited for its first start, in seconds.
    pub longest_wait_s: f64,
    /// Chunks of the split without a vector, documents without a split although their jobs are completed, and jobs
    /// without an end.
    pub lost: u64,
    /// Chunks with more than one row in the log.
    pub stored_twice: u64,
    /// Lines on the bill beyond one per (chunk, model).
    pub billed_twice: u64,
    pub wall_s: f64,
    /// The seed of the model server's misbehaviour.
    pub seed: u64,
    pub model_requests: BTreeMap<String, u64>,
    pub killed: Vec<Killed>,
    pub query: String,
    pub hits: Vec<Hit>,
}

impl Report {
    /// Fills in everything that the database knows, after the bill has been written into it.
    ///
    /// # Errors
    /// The database fails.
    pub async fn from_database(client: &mut Client, bill: &Bill) -> Result<Self, tokio_postgres::Error> {
        write_bill(client, bill).await?;
        let select = "
            with mine as (
              select e.job, e.document, j.status, j.attempt, j.created_at, j.started_at
              from tenure_demo.enqueued e left join jobs j on j.id = e.job
            ), errors as (
              select x.cause from attempt_error x join tenure_demo.enqueued e on e.job = x.job_id
            )
            select
              (select count(*) from tenure_demo.document),
              (select count(*) from tenure_demo.chunk),
              (select count(*) from mine),
              (select coalesce(sum(attempt), 0)::bigint from mine),
              (select count(*) from errors where cause not in ('worker_lost', 'given_up')) - (select count(*) from mine where status = 'dead'),
              (select count(*) from errors where cause = 'worker_lost'),
              (select count(*) from mine where status = 'dead'),
              (select coalesce(max(extract(epoch from started_at - created_at)), 0)::double precision
               from mine where attempt = 1),
              (select count(*) from tenure_demo.chunk c
               where not exists (select from tenure_demo.vector v where v.document = c.document and v.chunk = c.number))
              + (select count(*) from tenure_demo.document d
                 where d.chunks is null
                   and not exists (select from mine m where m.document = d.id and m.status is distinct from 'completed'))
              + (select count(*) from mine where status is null or status not in ('completed', 'cancelled', 'dead')),
              (select count(*) from (select from tenure_demo.vector_log
                                     group by document, chunk, model having count(*) > 1) as repeated),
              (select count(*) - count(distinct (chunk, model)) from tenure_demo.bill)";
        let row = client.query_one(select, &[]).await?;
        let count = |column| u64::try_from(row.get::<_, i64>(column)).unwrap_or_default();
        Ok(Report {
            documents: count(0),
            chunks: count(1),
            jobs: count(2),
            attempts: count(3),
            retries: count(4),
            rescues: count(5),
            dead: count(6),
            longest_wait_s: row.get(7),
            lost: count(8),
            stored_twice: count(9),
            billed_twice: count(10),
            model_requests: bill.requests.clone(),
            ..Report::default()
        })
    }

    /// Nothing was lost and nothing was done twice.
    pub fn holds(&self) -> bool {
        self.lost == 0 && self.stored_twice == 0 && self.billed_twice == 0
    }

    /// A worker was killed while it ran jobs.
    pub fn was_hurt(&self) -> bool {
        self.killed.iter().any(|killed| killed.jobs > 0)
    }

    /// The report for people.
    pub fn to_text(&self) -> String {
        let mut text = String::from("\nreport, from the database\n");
        let mut row = |name: &str, value: String, note: &str| {
            let _ = writeln!(text, "  {name:<14}{value:>8}   {note}");
        };
        row("documents", self.documents.to_string(), "");
        row("chunks", self.chunks.to_string(), "");
        row("jobs", self.jobs.to_string(), "extract, split, embed and store");
        row("attempts", self.attempts.to_string(), "times that a job was started");
        row("retries", self.retries.to_string(), &self.misbehaviour());
        row(
            "rescues",
            self.rescues.to_string(),
            "attempts that ended with their worker's death and ran again elsewhere",
        );
        if self.dead > 0 {
            row("dead", self.dead.to_string(), "given up: tenure dead list");
        }
        row("longest wait", format!("{:.1} s", self.longest_wait_s), "from enqueue to first start");
        row("lost", self.lost.to_string(), "chunks without a vector, jobs without an end");
        row("stored twice", self.stored_twice.to_string(), "chunks that the log names more than once");
        row("billed twice", self.billed_twice.to_string(), &self.replays());
        row("wall time", format!("{:.1} s", self.wall_s), "");
        let _ = writeln!(text, "\nsearch over what was indexed: {:?}", self.query);
        for hit in &self.hits {
            let _ = writeln!(text, "  {:.3}  {}\n         {}", hit.score, hit.file, hit.snippet);
        }
        let verdict = if self.holds() {
            "nothing lost, nothing done twice"
        } else {
            "THE PROMISE DOES NOT HOLD: see lost, stored twice, billed twice"
        };
        let _ = writeln!(text, "\n{verdict}");
        text
    }

    fn misbehaviour(&self) -> String {
        let told = [
            (Mood::RateLimited, "429"),
            (Mood::FailedBefore, "5xx"),
            (Mood::FailedAfter, "5xx after the work"),
            (Mood::DroppedBefore, "cut off"),
            (Mood::DroppedAfter, "cut off after the work"),
        ];
        let told = told.map(|(mood, words)| format!("{} {words}", self.requests(mood.name())));
        format!("the model server answered {}", told.join(", "))
    }

    fn replays(&self) -> String {
        format!("paid beyond once per chunk; {} repeated calls had their answer by their key", self.requests(REPLAYED))
    }

    fn requests(&self, what: &str) -> u64 {
        self.model_requests.get(what).copied().unwrap_or_default()
    }
}

async fn write_bill(client: &mut Client, bill: &Bill) -> Result<(), tokio_postgres::Error> {
    let keys: Vec<_> = bill.lines.iter().map(|line| line.key.as_str()).collect();
    let chunks: Vec<_> = bill.lines.iter().map(|line| line.chunk.as_str()).collect();
    let models: Vec<_> = bill.lines.iter().map(|line| line.model.as_str()).collect();
    let tx = client.transaction().await?;
    tx.execute("delete from tenure_demo.bill", &[]).await?;
    let insert = "insert into tenure_demo.bill (key, chunk, model)
                  select key, chunk, model from unnest($1::text[], $2::text[], $3::text[]) as line (key, chunk, model)";
    tx.execute(insert, &[&keys, &chunks, &models]).await?;
    tx.commit().await
}
