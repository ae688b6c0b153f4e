//! PGMQ, a bare message queue in SQL (installed without the extension). It has no worker, so here is the smallest:
//! every connection reads PEER_BATCH_JOBS, hands them to the no-op, and deletes them by their ids, or archives them when
//! PEER_ARCHIVE is 1. No retries, no timeouts, no dead letters.

use std::ops::Range;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_postgres::{AsyncMessage, Client, NoTls};

use super::QUEUE;
use crate::call::setting;
use crate::contract::{Driver, Load, Stop};
use crate::meter;

const IDLE_BATCH_JOBS: i32 = 10;
/// How long an empty queue is left alone.
const PAUSE: Duration = Duration::from_millis(5);
/// Nobody told of work: it is looked for all the same.
const IDLE_POLL: Duration = Duration::from_secs(1);
/// Others see a message again after so many seconds.
const READ: &str = "select msg_id, message from pgmq.read($1, 30, $2)";
const DELETE: &str = "select count(*) from pgmq.delete($1, $2::bigint[])";
const ARCHIVE: &str = "select count(*) from pgmq.archive($1, $2::bigint[])";

pub(crate) struct Pgmq {
    url: String,
    callers: Vec<Client>,
}

impl Driver for Pgmq {
    async fn connect(url: &str, callers: usize) -> Result<Self> {
        let mut pgmq = Pgmq { url: url.to_owned(), callers: Vec::new() };
        for _ in 0..callers {
            pgmq.callers.push(connect(url).await?);
        }
        Ok(pgmq)
    }

    async fn setup(&self) -> Result<()> {
        let pool = sqlx09::PgPool::connect(&self.url).await?;
        pgmq::install::install_sql_from_embedded(&pool).await?;
        self.callers[0].execute("select pgmq.create($1)", &[&QUEUE]).await?;
        Ok(())
    }

    async fn enqueue_bulk(&self, jobs: Range<u64>) -> Result<()> {
        let messages: Vec<Value> = jobs.map(|i| json!({ "i": i })).collect();
        let client = &self.callers[0];
        client.query("select count(*) from pgmq.send_batch($1, $2::jsonb[])", &[&QUEUE, &messages]).await?;
        Ok(())
    }

    async fn enqueue_one(&self, caller: usize, i: u64) -> Result<()> {
        self.callers[caller].query("select pgmq.send($1, $2::jsonb)", &[&QUEUE, &json!({ "i": i })]).await?;
        Ok(())
    }

    async fn start(&self, load: Load, concurrency: usize) -> Result<Stop> {
        let end = if setting("PEER_ARCHIVE")? == 1 { ARCHIVE } else { DELETE };
        let (stop, stopped) = watch::channel(false);
        let mut loops = JoinSet::new();
        match load {
            Load::Full => {
                let jobs = i32::try_from(setting("PEER_BATCH_JOBS")?)?;
                for _ in 0..concurrency {
                    let reader = Reader::connect(&self.url, end, jobs).await?;
                    loops.spawn(work(reader, stopped.clone()));
                }
            }
            Load::Idle => {
                let reader = Reader::connect(&self.url, end, IDLE_BATCH_JOBS).await?;
                let (listener, told) = listen(&self.url).await?;
                loops.spawn(wait_and_work(reader, listener, told, stopped));
            }
        }
        Ok(Box::pin(async move {
            stop.send_replace(true);
            while let Some(ended) = loops.join_next().await {
                ended??;
            }
            Ok(())
        }))
    }
}

/// A connection that reads and ends messages.
struct Reader {
    client: Client,
    read: tokio_postgres::Statement,
    end: tokio_postgres::Statement,
    jobs: i32,
}

impl Reader {
    async fn connect(url: &str, end: &str, jobs: i32) -> Result<Reader> {
        let client = connect(url).await?;
        let (read, end) = (client.prepare(READ).await?, client.prepare(end).await?);
        Ok(Reader { client, read, end, jobs })
    }

    /// Handles what one read gives, and writes its end; says how many they were.
    async fn once(&self) -> Result<u64> {
        let rows = self.client.query(&self.read, &[&QUEUE, &self.jobs]).await?;
        if rows.is_empty() {
            return Ok(0);
        }
        let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        let _messages: Vec<Value> = rows.iter().map(|row| row.get(1)).collect();
        let jobs = ids.len() as u64;
        meter::handled(jobs);
        self.client.query(&self.end, &[&QUEUE, &ids]).await?;
        Ok(jobs)
    }
}

async fn work(reader: Reader, stopped: watch::Receiver<bool>) -> Result<()> {
    while !*stopped.borrow() {
        if reader.once().await? == 0 {
            // sleep: PGMQ tells nobody of new messages.
            tokio::time::sleep(PAUSE).await;
        }
    }
    Ok(())
}

async fn wait_and_work(
    reader: Reader,
    _listener: Client,
    mut told: UnboundedReceiver<()>,
    stopped: watch::Receiver<bool>,
) -> Result<()> {
    while !*stopped.borrow() {
        let _told_or_not = tokio::time::timeout(IDLE_POLL, told.recv()).await;
        reader.once().await?;
    }
    Ok(())
}

/// A connection that listens for messages, and what it hears.
async fn listen(url: &str) -> Result<(Client, UnboundedReceiver<()>)> {
    let (client, mut connection) = tokio_postgres::connect(url, NoTls).await?;
    let (sender, receiver) = unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            if matches!(message, AsyncMessage::Notification(_)) && sender.send(()).is_err() {
                break;
            }
        }
    });
    // Only here: nobody else listens, and every send would pay for it. The second argument: for each message.
    client.execute("select pgmq.enable_notify_insert($1, 0)", &[&QUEUE]).await?;
    let channel = "select format('listen %I', 'pgmq.' || pgmq.format_table_name($1, 'q') || '.INSERT')";
    let listen: String = client.query_one(channel, &[&QUEUE]).await?.get(0);
    client.batch_execute(&listen).await?;
    Ok((client, receiver))
}

async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}
