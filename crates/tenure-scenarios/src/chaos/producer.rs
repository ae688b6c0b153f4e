//! A process that enqueues, in every way that there is, and keeps a record of what it was told: a file outside of the
//! database, and a table in the transactions of its own.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::{Client, Enqueue, JobOptions, RawJson};
use tokio_postgres::NoTls;

use crate::{Act, WorkerProcess};

/// The variable that makes this program a producer; holds its options as JSON.
const ASKED: &str = "TENURE_SCENARIO_PRODUCER";
/// Attempts of each job: more than any run of chaos uses.
const ATTEMPTS: i16 = 500;

/// How a producer starts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProducerOptions {
    /// Its name, and that of its record.
    pub name: String,
    /// Where it connects.
    pub url: String,
    /// The file to which it adds the ids that it was told, one a line.
    pub record: PathBuf,
    /// The seed of its choices.
    pub seed: u64,
    /// The pause after each call.
    pub pause: Duration,
}

impl ProducerOptions {
    /// Starts the process.
    pub fn spawn(&self) -> WorkerProcess {
        WorkerProcess::spawn_as(&self.name, ASKED, &serde_json::to_string(self).expect("options are JSON"))
    }
}

/// The ids of one record.
pub fn told(record: &Path) -> Vec<i64> {
    let text = std::fs::read_to_string(record).unwrap_or_default();
    // A killed producer may leave half a line: that one was not told to anybody.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Becomes a producer when this program was started as one, and then does not return.
pub(crate) fn run_if_asked() {
    let Ok(options) = std::env::var(ASKED) else { return };
    let options: ProducerOptions = serde_json::from_str(&options).expect("options of the producer");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(produce(&options));
}

async fn produce(options: &ProducerOptions) {
    let mut random = fastrand::Rng::with_seed(options.seed);
    let client = Client::builder(&options.url).connect_lazy().expect("the settings of a producer");
    let mut record = OpenOptions::new().create(true).append(true).open(&options.record).expect("the producer's record");
    loop {
        let made = match random.u8(..10) {
            0..=4 => one(&client, &mut random).await,
            5..=7 => many(&client, &mut random).await,
            _ => with_rows_of_its_own(&client, options, &mut random).await,
        };
        match made {
            Ok(ids) => write(&mut record, &ids),
            // Unknown whether it was done: nothing was told, so nothing is claimed.
            Err(error) => eprintln!("{error:#}"),
        }
        // sleep: the rate of the load, nothing waits on it.
        tokio::time::sleep(options.pause).await;
    }
}

fn write(record: &mut File, ids: &[i64]) {
    let lines: String = ids.iter().map(|id| format!("{id}\n")).collect();
    record.write_all(lines.as_bytes()).expect("the producer's record is written");
}

fn act(random: &mut fastrand::Rng) -> Act {
    let (after_ms, hold_ms) = (random.u64(0..400), random.u64(0..40));
    let twice = Act::EffectTwice { after_ms, hold_ms };
    match random.u8(..10) {
        0..=6 => twice,
        7..=8 => Act::EffectPlain { after_ms },
        _ => Act::Fail { text: crate::act::FailText::Plain("the first time".into()) }.first(twice),
    }
}

fn payload(random: &mut fastrand::Rng) -> RawJson {
    RawJson::of(&act(random)).expect("an act is JSON")
}

async fn one(client: &Client, random: &mut fastrand::Rng) -> anyhow::Result<Vec<i64>> {
    let job = Enqueue::raw("act", payload(random)).max_attempts(ATTEMPTS).priority(random.i16(1..=4));
    Ok(vec![client.enqueue(job).await?.get()])
}

async fn many(client: &Client, random: &mut fastrand::Rng) -> anyhow::Result<Vec<i64>> {
    let payloads: Vec<_> = (0..random.usize(2..8)).map(|_| act(random)).collect();
    let options = JobOptions::new().max_attempts(ATTEMPTS);
    Ok(client.enqueue_many("act", payloads, options).await?.into_iter().map(i64::from).collect())
}

/// In a transaction with a row that names the job: the row is there when, and only when, the job is.
async fn with_rows_of_its_own(
    client: &Client,
    options: &ProducerOptions,
    random: &mut fastrand::Rng,
) -> anyhow::Result<Vec<i64>> {
    let (mut sql, connection) = tokio_postgres::connect(&options.url, NoTls).await?;
    tokio::spawn(connection);
    let mut tx = sql.transaction().await?;
    let job = Enqueue::raw("act", payload(random)).max_attempts(ATTEMPTS);
    let id = client.enqueue_in(&mut tx, job).await?.get();
    tx.execute("insert into ledger (job_id) values ($1)", &[&id]).await?;
    if random.u8(..5) == 0 {
        tx.rollback().await?;
        return Ok(Vec::new());
    }
    tx.commit().await?;
    Ok(vec![id])
}
