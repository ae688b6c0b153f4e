//! When the end of the last job is recorded: the clock of all products stops here.
//!
//! PEER_RECORDED is a question to the product's tables that a session of its own asks again and again, once handlers have been
//! called for all jobs. What another session sees is committed; on a server with `synchronous_commit` it is on disk as well, and
//! no product here switches that off.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio_postgres::{Client, NoTls};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(2);
/// A product that has called all handlers and leaves ends open for so long is stuck.
const STUCK: Duration = Duration::from_secs(60);

pub(crate) struct Recorded {
    client: Client,
    question: String,
}

impl Recorded {
    pub(crate) async fn connect(url: &str) -> Result<Recorded> {
        let question = std::env::var("PEER_RECORDED").context("set PEER_RECORDED")?;
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        Ok(Recorded { client, question })
    }

    /// Waits for it. The instant is the beginning of the look that saw it, so that how long a look takes does not count.
    pub(crate) async fn wait(&self) -> Result<Instant> {
        let began = Instant::now();
        while began.elapsed() < STUCK {
            let look = Instant::now();
            if self.client.query_one(&self.question, &[]).await?.get(0) {
                return Ok(look);
            }
            // sleep: the server tells nobody when a table is empty.
            tokio::time::sleep(LOOK).await;
        }
        bail!("{} s after the last handler was called there are jobs whose end is not recorded", STUCK.as_secs())
    }
}
