//! A worker spoken by hand: one session that calls the functions of the schema itself, so that a test decides when.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use tokio_postgres::error::SqlState;

/// SQLSTATE of "lease lost".
pub const LEASE_LOST: &str = "TN001";
/// SQLSTATE of refused input.
pub const BAD_INPUT: &str = "TN002";
/// SQLSTATE of a worker that is unknown or dead.
pub const WORKER_GONE: &str = "TN003";
/// SQLSTATE of something that does not exist.
pub const NOT_FOUND: &str = "TN004";
/// SQLSTATE of a verb refused in this state.
pub const REFUSED: &str = "TN005";

/// Lanes in their normal order.
pub const LANES: [i32; 6] = [-1, 0, 1, 2, 3, 4];

/// A registered worker on a session of its own.
#[derive(Debug)]
pub struct Hand {
    /// The session.
    pub sql: tokio_postgres::Client,
    /// Id of the worker.
    pub worker: i64,
    /// Its token.
    pub token: String,
    /// Kinds whose jobs get a lease row each.
    pub solo_kinds: Vec<String>,
    queues: Vec<String>,
    kinds: Vec<String>,
    after: Vec<i64>,
}

/// One job that a claim returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leased {
    /// Id of the lease row: the fence.
    pub lease: i64,
    /// Id of the job.
    pub job: i64,
    /// Its place in the lease's strip of bits.
    pub slot: i32,
    /// Bits of that strip.
    pub bits: i32,
    /// The attempt, from 1.
    pub attempt: i16,
    /// Its kind.
    pub kind: String,
    /// Its payload.
    pub payload: String,
}

/// The last row of a claim.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Trailer {
    /// New cursors.
    pub after: Vec<i64>,
    /// Ms until the next due row.
    pub next_due_ms: Option<f64>,
    /// Whether maintenance is due.
    #[serde(default)]
    pub tick_due: bool,
    /// Queues that are paused.
    #[serde(default)]
    pub paused: Vec<String>,
    /// Ms until there may be something under limits.
    #[serde(default)]
    pub look_ms: Option<i64>,
}

/// How a worker registers.
#[derive(Clone, Debug)]
pub struct Registration {
    /// Name shown to people.
    pub name: String,
    /// Queues it reads.
    pub queues: Vec<String>,
    /// Kinds it handles.
    pub kinds: Vec<String>,
    /// Lease.
    pub lease_ms: i32,
    /// Grace of the session lock.
    pub grace_ms: i32,
    /// Whether it takes the session lock.
    pub lock: bool,
}

impl Default for Registration {
    fn default() -> Self {
        Registration {
            name: "hand".into(),
            queues: vec!["default".into()],
            kinds: vec!["act".into()],
            lease_ms: 30_000,
            grace_ms: 1_000,
            lock: true,
        }
    }
}

/// A result of a database call whose error is the database's.
pub type Answer<T> = Result<T, tokio_postgres::Error>;

impl Hand {
    /// Registers a worker on this session.
    pub async fn register(sql: tokio_postgres::Client, r: &Registration) -> Answer<Hand> {
        let row = sql
            .query_one(
                "select worker_id, token::text from tenure.register_worker($1, 'test-host', 1, '0', $2, $3, $4, $5, $6)",
                &[&r.name, &r.queues, &r.kinds, &r.lease_ms, &r.grace_ms, &r.lock],
            )
            .await?;
        let after = vec![0; r.queues.len() * LANES.len()];
        Ok(Hand {
            sql,
            worker: row.get(0),
            token: row.get(1),
            solo_kinds: Vec::new(),
            queues: r.queues.clone(),
            kinds: r.kinds.clone(),
            after,
        })
    }

    /// Claims up to `want` jobs from each queue and remembers the cursors.
    pub async fn claim(&mut self, want: i32) -> Answer<(Vec<Leased>, Trailer)> {
        self.claim_at_most(want, None).await
    }

    /// The same, and so many of all queues together; none: as many as anybody gets.
    pub async fn claim_at_most(&mut self, want: i32, most: Option<i32>) -> Answer<(Vec<Leased>, Trailer)> {
        let wants = vec![want; self.queues.len()];
        let rows = self
            .sql
            .query(
                "select lease_id, job_id, attempt, kind, payload::text, slot \
                 from tenure.claim($1, $2::text::uuid, $3, $4, $5, $6, $7, $8, false, $9)",
                &[
                    &self.worker,
                    &self.token,
                    &self.queues,
                    &wants,
                    &self.kinds,
                    &self.solo_kinds,
                    &LANES.as_slice(),
                    &self.after,
                    &most,
                ],
            )
            .await?;
        let mut leased = Vec::with_capacity(rows.len());
        let mut trailer = Trailer::default();
        for row in rows {
            match row.get::<_, Option<i64>>(1) {
                Some(job) => leased.push(Leased {
                    lease: row.get(0),
                    job,
                    slot: row.get(5),
                    bits: 0,
                    attempt: row.get(2),
                    kind: row.get(3),
                    payload: row.get(4),
                }),
                None => {
                    let text: String = row.get(4);
                    trailer = serde_json::from_str(&text).unwrap_or_else(|e| panic!("trailer {text}: {e}"));
                }
            }
        }
        set_bits(&mut leased);
        self.after.clone_from(&trailer.after);
        Ok((leased, trailer))
    }

    /// The text of a claim with the session's cursors, for EXPLAIN.
    pub fn claim_text(&self, want: i32) -> String {
        let texts = |words: &[String]| {
            format!("array[{}]::text[]", words.iter().map(|w| format!("'{w}'")).collect::<Vec<_>>().join(","))
        };
        let numbers = |numbers: &[i64]| numbers.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
        let lanes = LANES.map(i64::from);
        format!(
            "select * from tenure.claim({}, '{}', {}, array_fill({want}, array[{}]), {}, {}, array[{}]::integer[], array[{}]::bigint[], false)",
            self.worker,
            self.token,
            texts(&self.queues),
            self.queues.len(),
            texts(&self.kinds),
            texts(&self.solo_kinds),
            numbers(&lanes),
            numbers(&self.after)
        )
    }

    /// Forgets the cursors, as the sweep does.
    pub fn rewind(&mut self) {
        self.after.fill(0);
    }

    /// Completes these jobs without results; returns (job, status) of those that were not completed now: `completed` when
    /// this lease had done it before, otherwise what became of it, or `lost`.
    pub async fn complete(&self, jobs: &[Leased]) -> Answer<Vec<(i64, String)>> {
        const COMPLETE: &str = "select lease_id, strip::text \
            from tenure.complete_many($1, $2::text::uuid, $3, $4::text[]::varbit[], '{}', '{}')";
        let refused = self.strips(COMPLETE, jobs).await?;
        if refused.is_empty() {
            return Ok(Vec::new());
        }
        let (leases, ids): (Vec<i64>, Vec<i64>) = refused.into_iter().unzip();
        let rows = self.sql.query("select job_id, status from tenure.ended_by($1, $2)", &[&leases, &ids]).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    /// Gives these jobs back; returns those that the lease no longer held.
    pub async fn release(&self, jobs: &[Leased]) -> Answer<Vec<i64>> {
        const RELEASE: &str =
            "select lease_id, strip::text from tenure.release($1, $2::text::uuid, $3, $4::text[]::varbit[])";
        Ok(self.strips(RELEASE, jobs).await?.into_iter().map(|(_, job)| job).collect())
    }

    /// Calls a verb that takes leases and strips; the (lease, job) pairs that it answers with.
    async fn strips(&self, statement: &str, jobs: &[Leased]) -> Answer<Vec<(i64, i64)>> {
        let (leases, strips) = strips(jobs);
        let rows = self.sql.query(statement, &[&self.worker, &self.token, &leases, &strips]).await?;
        let mut refused = Vec::new();
        for row in rows {
            let (lease, strip): (i64, String) = (row.get(0), row.get(1));
            let of_it = jobs.iter().filter(|job| job.lease == lease && strip.as_bytes()[job.slot as usize] == b'1');
            refused.extend(of_it.map(|job| (lease, job.job)));
        }
        Ok(refused)
    }

    /// Ends one job's attempt by a verdict; returns its status.
    pub async fn fail(&self, job: &Leased, verdict: &str, delay_ms: Option<i64>) -> Answer<String> {
        let failures = serde_json::json!([{
            "lease": job.lease, "job": job.job, "verdict": verdict, "delay_ms": delay_ms,
            "cause": "error", "message": "it failed", "details": {}
        }]);
        self.fail_with(&failures.to_string()).await
    }

    /// Ends the attempts of these jobs for good; their statuses, in order.
    pub async fn bury(&self, jobs: &[Leased]) -> Answer<Vec<String>> {
        let failure = |job: &Leased| serde_json::json!({ "lease": job.lease, "job": job.job, "verdict": "permanent" });
        let failures = serde_json::Value::from(jobs.iter().map(failure).collect::<Vec<_>>()).to_string();
        let fail = "select status from tenure.fail($1, $2::text::uuid, $3::text::json)";
        let rows = self.sql.query(fail, &[&self.worker, &self.token, &failures]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Goes on over another session; whether the database still knows this worker.
    pub async fn move_to(&mut self, sql: tokio_postgres::Client) -> Answer<bool> {
        self.sql = sql;
        let attach = "select tenure.attach_worker($1, $2::text::uuid)";
        Ok(self.sql.query_one(attach, &[&self.worker, &self.token]).await?.get(0))
    }

    /// Calls `fail` with this JSON; returns the status of the first job.
    pub async fn fail_with(&self, failures: &str) -> Answer<String> {
        let row = self
            .sql
            .query_one(
                "select status from tenure.fail($1, $2::text::uuid, $3::text::json)",
                &[&self.worker, &self.token, &failures],
            )
            .await?;
        Ok(row.get(0))
    }

    /// Renews the lease: what is left of it, and the jobs to cancel; `None` when the worker is gone.
    pub async fn heartbeat(&self) -> Answer<Option<(i32, Vec<i64>)>> {
        let row = self
            .sql
            .query_opt(
                "select lease_left_ms, cancel_jobs from tenure.heartbeat($1, $2::text::uuid)",
                &[&self.worker, &self.token],
            )
            .await?;
        Ok(row.map(|row| (row.get(0), row.get::<_, Option<Vec<i64>>>(1).unwrap_or_default())))
    }

    /// Runs the duties that are due.
    pub async fn tick(&self) -> Answer<()> {
        self.sql.execute("select tenure.tick($1)", &[&self.worker]).await.map(drop)
    }
}

/// A lease's strip is as long as its last piece needs.
fn set_bits(jobs: &mut [Leased]) {
    let mut last: HashMap<i64, i32> = HashMap::new();
    for job in jobs.iter() {
        let slot = last.entry(job.lease).or_default();
        *slot = (*slot).max(job.slot);
    }
    for job in jobs {
        job.bits = (last[&job.lease] / 128 + 1) * 128;
    }
}

/// Jobs as leases and the strips of their slots.
fn strips(jobs: &[Leased]) -> (Vec<i64>, Vec<String>) {
    let mut strips: BTreeMap<i64, Vec<u8>> = BTreeMap::new();
    for job in jobs {
        let strip = strips.entry(job.lease).or_insert_with(|| vec![b'0'; job.bits as usize]);
        strip[job.slot as usize] = b'1';
    }
    let text = |strip| String::from_utf8(strip).expect("ones and zeros");
    strips.into_iter().map(|(lease, strip)| (lease, text(strip))).unzip()
}

/// The SQLSTATE of a refused call.
///
/// # Panics
/// When the call was not refused by the database.
pub fn sqlstate<T: std::fmt::Debug>(answer: Answer<T>) -> String {
    match answer {
        Ok(value) => panic!("not refused: {value:?}"),
        Err(e) => e.code().map(SqlState::code).unwrap_or_else(|| panic!("not the database's error: {e}")).to_owned(),
    }
}

/// Enqueues `count` jobs of kind `act` in one call; their ids.
pub async fn enqueue(sql: &tokio_postgres::Client, queue: &str, count: usize, payload: &str) -> Answer<Vec<i64>> {
    let payloads = vec![payload; count];
    let rows = sql
        .query(
            "select tenure.enqueue_many('act', $1::text[]::json[], $2, 2, null, null, 5, null)",
            &[&payloads, &queue],
        )
        .await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}
