//! Named limits: set, listed, lifted.

use std::time::{Duration, SystemTime};

use super::Client;
use super::jobs::column;
use crate::Error;
use crate::model::millis_up;
use crate::store::operate::{LIMITS, REMOVE_LIMIT, SET_LIMIT};

/// So many starts in each period, and how many may come at once after a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Starts in each period, 1 to 1,000,000.
    pub count: u32,
    /// The period, 1 ms to 31 days.
    pub period: Duration,
    /// How many may start at once when fewer did before; none: what a tenth of a second brings, at least 1. In any time the starts are at most this
    /// many more than what the rate brings in it.
    pub burst: Option<u32>,
}

impl Rate {
    /// So many a second.
    pub fn per_second(count: u32) -> Self {
        Rate { count, period: Duration::from_secs(1), burst: None }
    }
}

/// What a named limit bounds. Jobs name it with [`JobOptions::under`](crate::JobOptions::under).
///
/// ```no_run
/// # async fn example(client: tenure::Client) -> Result<(), tenure::Error> {
/// use tenure::{Limit, Rate};
///
/// client.set_limit("provider", Limit::new().rate(Rate::per_second(100)).key_concurrency(5)).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Limit {
    concurrency: Option<u32>,
    rate: Option<Rate>,
    key_concurrency: Option<u32>,
    key_rate: Option<Rate>,
}

impl Limit {
    /// Bounds nothing yet, and cannot be set so.
    pub fn new() -> Self {
        Limit::default()
    }

    /// So many jobs run at a time, 0 to 1,000,000; 0: none.
    pub fn concurrency(mut self, jobs: u32) -> Self {
        self.concurrency = Some(jobs);
        self
    }

    /// So many jobs start in a time.
    pub fn rate(mut self, rate: Rate) -> Self {
        self.rate = Some(rate);
        self
    }

    /// So many jobs of each key run at a time.
    pub fn key_concurrency(mut self, jobs: u32) -> Self {
        self.key_concurrency = Some(jobs);
        self
    }

    /// So many jobs of each key start in a time.
    pub fn key_rate(mut self, rate: Rate) -> Self {
        self.key_rate = Some(rate);
        self
    }
}

/// A limit as it is set, and how much of it is used now.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LimitInfo {
    /// Its name.
    pub name: String,
    /// The key whose part this is; none: the limit as a whole.
    pub key: Option<String>,
    /// Jobs that may run at a time.
    pub concurrency: Option<i64>,
    /// Jobs that run now.
    pub running: i64,
    /// Jobs that may start in each period.
    pub rate: Option<Rate>,
    /// How many could start now, as far as the rate goes; below 0 when a costly job took what was not there yet.
    pub tokens: Option<f64>,
    /// The part of the rate that holds, 0 to 1: less than 1 after somebody throttled it.
    pub pace: f64,
    /// Nothing starts before this instant.
    pub blocked_until: Option<SystemTime>,
    /// When it was set.
    pub set_at: SystemTime,
}

impl Client {
    /// Sets a named limit, or changes it. It holds from then on also for jobs that wait; those that run go on. False: it was so before.
    ///
    /// # Errors
    /// `BadInput`: it bounds nothing, or a value is out of its range. `Timeout`: somebody else has just changed it and has not committed.
    pub async fn set_limit(&self, name: &str, limit: Limit) -> Result<bool, Error> {
        let (concurrency, key_concurrency) = (whole(limit.concurrency), whole(limit.key_concurrency));
        let (rate, key_rate) = (parts(limit.rate), parts(limit.key_rate));
        let session = self.session().await?;
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 9] =
            [&name, &concurrency, &rate.0, &rate.1, &rate.2, &key_concurrency, &key_rate.0, &key_rate.1, &key_rate.2];
        let rows = session.query(&SET_LIMIT, &values).await.map_err(|e| Error::store(SET_LIMIT.name, e))?;
        rows.first().map_or(Ok(false), |row| column(row, 0))
    }

    /// Lifts a limit: jobs that name it stand under it no longer. False: there was none.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn remove_limit(&self, name: &str) -> Result<bool, Error> {
        let session = self.session().await?;
        let rows = session.query(&REMOVE_LIMIT, &[&name]).await.map_err(|e| Error::store(REMOVE_LIMIT.name, e))?;
        rows.first().map_or(Ok(false), |row| column(row, 0))
    }

    /// The limits that are set, by name, or the one of this name; and of each so many of the keys that are in use.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn limits(&self, name: Option<&str>, keys: u32) -> Result<Vec<LimitInfo>, Error> {
        let session = self.session().await?;
        let keys = i32::try_from(keys).unwrap_or(i32::MAX);
        let rows = session.query(&LIMITS, &[&name, &keys]).await.map_err(|e| Error::store(LIMITS.name, e))?;
        rows.iter().map(limit_info).collect()
    }
}

fn limit_info(row: &tokio_postgres::Row) -> Result<LimitInfo, Error> {
    let unsigned = |number: i64| u32::try_from(number).unwrap_or_default();
    let count: Option<i64> = column(row, 4)?;
    let period: Option<i64> = column(row, 5)?;
    let burst: Option<i64> = column(row, 6)?;
    let period = period.map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or_default()));
    Ok(LimitInfo {
        name: column(row, 0)?,
        key: column(row, 1)?,
        concurrency: column(row, 2)?,
        running: column(row, 3)?,
        rate: count.zip(period).map(|(count, period)| Rate {
            count: unsigned(count),
            period,
            burst: burst.map(unsigned),
        }),
        tokens: column(row, 7)?,
        pace: column(row, 8)?,
        blocked_until: column(row, 9)?,
        set_at: column(row, 10)?,
    })
}

/// What the database refuses with its range is not cut to it here.
fn whole(number: Option<u32>) -> Option<i32> {
    number.map(|number| i32::try_from(number).unwrap_or(i32::MAX))
}

fn parts(rate: Option<Rate>) -> (Option<i32>, Option<i64>, Option<i32>) {
    (
        whole(rate.map(|rate| rate.count)),
        rate.map(|rate| millis_up(rate.period)),
        whole(rate.and_then(|rate| rate.burst)),
    )
}
