//! The verbs of a worker's life: register, attach, heartbeat, sleep, claim, tick, leave.

use std::time::{Duration, SystemTime};

use serde::Deserialize;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::wire::JsonText;
use super::{Session, Statement, StoreError};
use crate::model::{RawJson, VacuumHorizon};

static REGISTER: Statement = Statement {
    name: "register_worker",
    sql: "select worker_id, token::text from tenure.register_worker($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
    params: &[
        Type::TEXT,
        Type::TEXT,
        Type::INT4,
        Type::TEXT,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::INT4,
        Type::INT4,
        Type::BOOL,
        Type::INT8,
    ],
};
static ATTACH: Statement = Statement {
    name: "attach_worker",
    sql: "select tenure.attach_worker($1, $2::text::uuid)",
    params: &[Type::INT8, Type::TEXT],
};
static HEARTBEAT: Statement = Statement {
    name: "heartbeat",
    sql: "select lease_left_ms, cancel_jobs from tenure.heartbeat($1, $2::text::uuid)",
    params: &[Type::INT8, Type::TEXT],
};
static NOTE_OVERRUNS: Statement = Statement {
    name: "note_overruns",
    sql: "select tenure.note_overruns($1, $2::text::uuid, $3, $4)",
    params: &[Type::INT8, Type::TEXT, Type::INT8_ARRAY, Type::BOOL],
};
static REFUSE_KINDS: Statement = Statement {
    name: "refuse_kinds",
    sql: "select tenure.refuse_kinds($1, $2::text::uuid, $3, $4)",
    params: &[Type::INT8, Type::TEXT, Type::TEXT_ARRAY, Type::TEXT_ARRAY],
};
static LEAVE: Statement = Statement {
    name: "leave_worker",
    sql: "select tenure.leave_worker($1, $2::text::uuid)",
    params: &[Type::INT8, Type::TEXT],
};
static SLEEP: Statement = Statement {
    name: "sleep",
    sql: "select tenure.sleep($1, $2::text::uuid, $3)",
    params: &[Type::INT8, Type::TEXT, Type::TEXT_ARRAY],
};
static WAKE: Statement =
    Statement { name: "wake", sql: "select tenure.wake($1, $2::text::uuid)", params: &[Type::INT8, Type::TEXT] };
static CLAIM: Statement = Statement {
    name: "claim",
    sql: "select lease_id, job_id, slot, queue, kind, attempt, max_attempts, timeout_ms, created_at, due_at, idempotency_key, payload \
          from tenure.claim($1, $2::text::uuid, $3, $4, $5, $6, $7, $8, $9, $10)",
    params: &[
        Type::INT8,
        Type::TEXT,
        Type::TEXT_ARRAY,
        Type::INT4_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::INT4_ARRAY,
        Type::INT8_ARRAY,
        Type::BOOL,
        Type::INT4,
    ],
};
static PROGRESS: Statement = Statement {
    name: "progress",
    sql: "select tenure.progress($1, $2, $3)",
    params: &[Type::INT8, Type::INT8, Type::JSON],
};

static THROTTLE_JOB: Statement = Statement {
    name: "throttle the limit",
    sql: "select tenure.throttle_job($1, $2, $3) > 0",
    params: &[Type::INT8, Type::TEXT, Type::INT8],
};

#[cfg(test)]
pub(super) static STATEMENTS: &[&Statement] = &[
    &REGISTER,
    &ATTACH,
    &HEARTBEAT,
    &NOTE_OVERRUNS,
    &REFUSE_KINDS,
    &LEAVE,
    &SLEEP,
    &WAKE,
    &CLAIM,
    &PROGRESS,
    &THROTTLE_JOB,
];

/// One registration of a worker: the number and the secret that every later verb shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Registration {
    pub(crate) worker: i64,
    pub(crate) token: String,
}

/// What a worker says of itself when it registers.
pub(crate) struct Introduction<'a> {
    pub(crate) name: &'a str,
    pub(crate) host: &'a str,
    pub(crate) pid: i32,
    pub(crate) queues: &'a [String],
    pub(crate) kinds: &'a [String],
    pub(crate) lease: Duration,
    pub(crate) grace: Duration,
    /// Take the shared session lock on this connection; not behind a pooler.
    pub(crate) lock: bool,
    /// The worker as which this process was registered before.
    pub(crate) former: Option<i64>,
}

/// The answer to a heartbeat.
pub(crate) struct Renewal {
    pub(crate) lease_left: Duration,
    /// Running jobs of this worker that somebody wants cancelled.
    pub(crate) cancel_jobs: Vec<i64>,
}

/// What one claim asks for. The arrays are those of the SQL function.
pub(crate) struct ClaimRequest<'a> {
    pub(crate) queues: &'a [String],
    pub(crate) wants: &'a [i32],
    pub(crate) kinds: &'a [String],
    pub(crate) solo_kinds: &'a [String],
    pub(crate) lanes: &'a [i32],
    pub(crate) after: &'a [i64],
    pub(crate) low: bool,
    /// Of all queues together.
    pub(crate) most: usize,
}

/// A job as it comes out of a claim.
pub(crate) struct ClaimedRow {
    pub(crate) lease: i64,
    pub(crate) job: i64,
    pub(crate) slot: u32,
    pub(crate) queue: String,
    pub(crate) kind: String,
    pub(crate) attempt: i16,
    pub(crate) max_attempts: i16,
    pub(crate) timeout_ms: Option<i64>,
    pub(crate) created_at: SystemTime,
    /// Since when it could run; none: it has been started before.
    pub(crate) due_at: Option<SystemTime>,
    pub(crate) idempotency_key: Option<String>,
    pub(crate) payload: RawJson,
}

/// The last row of every claim.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Trailer {
    /// The database's clock when the jobs were about to be sent, in microseconds since 1970.
    pub(crate) now_us: Option<u64>,
    /// The new cursors, in the shape of `after`.
    pub(crate) after: Vec<i64>,
    /// Low passes only: the smallest id that a plain read still sees, per lane.
    pub(crate) first: Option<Vec<Option<i64>>>,
    /// The claim's own transaction id, when it needed one. A string, because JSON readers round large numbers.
    pub(crate) xid: Option<String>,
    /// The oldest transaction that was open when the claim began.
    pub(crate) xmin: Option<String>,
    /// The first transaction that had not begun then.
    #[serde(default)]
    pub(crate) xmax: Option<String>,
    /// Time to the next job that becomes due; 0: overdue.
    pub(crate) next_due_ms: Option<i64>,
    /// Time until something under limits may be had.
    #[serde(default)]
    pub(crate) look_ms: Option<i64>,
    /// Maintenance is due: somebody should call tick.
    pub(crate) tick_due: bool,
    /// Time until maintenance is due.
    pub(crate) tick_in_ms: Option<i64>,
    /// So few workers live that each polls soon after maintenance is due: the one that does it may be the one that dies.
    pub(crate) few_workers: bool,
    /// Those of the asked queues that are paused.
    pub(crate) paused: Vec<String>,
    /// Those of the asked kinds that are paused in some of the asked queues; beside them the queue, none: in all.
    pub(crate) paused_kinds: Option<Vec<String>>,
    /// See [`paused_kinds`](Self::paused_kinds).
    pub(crate) paused_in: Option<Vec<Option<String>>>,
}

impl Trailer {
    /// The database's clock when the jobs were about to be sent.
    pub(crate) fn now(&self) -> Option<SystemTime> {
        Some(SystemTime::UNIX_EPOCH + Duration::from_micros(self.now_us?))
    }

    /// The paused kinds, each with its queue.
    pub(crate) fn kind_pauses(&self) -> Vec<(String, Option<String>)> {
        let kinds = self.paused_kinds.iter().flatten().cloned();
        kinds.zip(self.paused_in.iter().flatten().cloned()).collect()
    }

    pub(crate) fn xid(&self) -> Option<u64> {
        self.xid.as_deref()?.parse().ok()
    }

    pub(crate) fn xmin(&self) -> Option<u64> {
        self.xmin.as_deref()?.parse().ok()
    }

    /// Were others about to commit something when the claim began?
    pub(crate) fn others_wrote(&self) -> bool {
        self.xmin != self.xmax
    }
}

/// The answer to [`Session::tick`].
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Ticked {
    /// This call did the work; false: another worker's did, or it is not time yet.
    pub(crate) ran: bool,
    pub(crate) next_ms: Option<i64>,
    pub(crate) rescued: i64,
    /// Some of the rescued, to be named.
    pub(crate) rescued_jobs: Option<Vec<RescuedJob>>,
    pub(crate) promoted: i64,
    /// Duties to be run one by one, each by a [`Session::net`] of its own.
    pub(crate) net: Vec<String>,
    /// Retention is due: call [`Session::retain`].
    pub(crate) retain: bool,
    /// A turn of the statistics is due: call [`Session::fold_stats`].
    pub(crate) stats: bool,
    /// Somebody should look who holds back vacuum: call [`Session::vacuum_horizon`].
    pub(crate) horizon: bool,
    /// When schedules are to be fired, if that is before the next turn; 0: some are overdue.
    pub(crate) fire_ms: Option<i64>,
    /// When the next job becomes due that waits for its time, if that is soon.
    pub(crate) due_ms: Option<i64>,
}

/// A job whose worker was lost.
#[derive(Debug, Deserialize)]
pub(crate) struct RescuedJob {
    pub(crate) job: i64,
    pub(crate) kind: String,
    /// The attempt that was lost.
    pub(crate) attempt: i16,
    pub(crate) worker: String,
    pub(crate) worker_id: i64,
    /// It is in the dead letters now.
    dead: bool,
    /// It is cancelled now.
    #[serde(default)]
    cancelled: bool,
    /// The attempt does not count.
    #[serde(default)]
    spared: bool,
}

/// What became of a job whose worker was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rescue {
    /// The attempt failed, and it was the last one.
    Buried,
    /// Somebody had wanted it cancelled.
    Cancelled,
    /// It runs again, and the attempt does not count.
    Spared,
    /// The attempt failed, and the job runs again.
    Retried,
}

impl RescuedJob {
    pub(crate) fn became(&self) -> Rescue {
        match self {
            RescuedJob { dead: true, .. } => Rescue::Buried,
            RescuedJob { cancelled: true, .. } => Rescue::Cancelled,
            RescuedJob { spared: true, .. } => Rescue::Spared,
            RescuedJob { dead: false, cancelled: false, spared: false, .. } => Rescue::Retried,
        }
    }
}

/// The answer to [`Session::retain`].
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Retained {
    /// This call did a step; false: somebody else is at it.
    pub(crate) ran: bool,
    /// Jobs removed.
    pub(crate) removed: i64,
    /// Ranges of jobs whose space was given back.
    pub(crate) emptied: i64,
    /// Ranges that could be emptied, but that somebody reads.
    pub(crate) in_use: i64,
    /// There is more to do at once.
    pub(crate) more: bool,
}

impl Session {
    pub(crate) async fn register_worker(&self, me: &Introduction<'_>) -> Result<Registration, StoreError> {
        let lease_ms = millis(me.lease);
        let grace_ms = millis(me.grace);
        let version = env!("CARGO_PKG_VERSION");
        let row = self
            .query_opt(
                &REGISTER,
                &[
                    &me.name, &me.host, &me.pid, &version, &me.queues, &me.kinds, &lease_ms, &grace_ms, &me.lock,
                    &me.former,
                ],
            )
            .await?
            .ok_or_else(|| StoreError::Protocol("register_worker returned no row".to_owned()))?;
        Ok(Registration { worker: row.try_get(0)?, token: row.try_get(1)? })
    }

    /// Takes the shared session lock on this connection. False: the worker is gone, register anew.
    pub(crate) async fn attach_worker(&self, me: &Registration) -> Result<bool, StoreError> {
        self.yes_or_no(self.query_opt(&ATTACH, &[&me.worker, &me.token]).await?)
    }

    /// Extends the lease. None: the worker is gone.
    pub(crate) async fn heartbeat(&self, me: &Registration) -> Result<Option<Renewal>, StoreError> {
        let Some(row) = self.query_opt(&HEARTBEAT, &[&me.worker, &me.token]).await? else { return Ok(None) };
        let left_ms: i32 = row.try_get(0)?;
        let cancel_jobs: Option<Vec<i64>> = row.try_get(1)?;
        Ok(Some(Renewal {
            lease_left: Duration::from_millis(u64::try_from(left_ms).unwrap_or(0)),
            cancel_jobs: cancel_jobs.unwrap_or_default(),
        }))
    }

    /// Tells which jobs of this worker should have ended and have not; all of them. `left`: it has stopped but for these.
    pub(crate) async fn note_overruns(&self, me: &Registration, jobs: &[i64], left: bool) -> Result<(), StoreError> {
        self.query_opt(&NOTE_OVERRUNS, &[&me.worker, &me.token, &jobs, &left]).await.map(drop)
    }

    /// Tells which kinds this worker cannot run although it has a handler, all of them, each with its reason.
    pub(crate) async fn refuse_kinds(
        &self,
        me: &Registration,
        kinds: &[&str],
        reasons: &[&str],
    ) -> Result<(), StoreError> {
        self.query_opt(&REFUSE_KINDS, &[&me.worker, &me.token, &kinds, &reasons]).await.map(drop)
    }

    /// The last act of a clean stop. False: leases are left, the row stays until they are rescued.
    pub(crate) async fn leave_worker(&self, me: &Registration) -> Result<bool, StoreError> {
        self.yes_or_no(self.query_opt(&LEAVE, &[&me.worker, &me.token]).await?)
    }

    pub(crate) async fn sleep(&self, me: &Registration, queues: &[String]) -> Result<(), StoreError> {
        self.query(&SLEEP, &[&me.worker, &me.token, &queues]).await.map(drop)
    }

    pub(crate) async fn wake(&self, me: &Registration) -> Result<(), StoreError> {
        self.query(&WAKE, &[&me.worker, &me.token]).await.map(drop)
    }

    pub(crate) async fn claim(
        &self,
        me: &Registration,
        ask: &ClaimRequest<'_>,
    ) -> Result<(Vec<ClaimedRow>, Trailer), StoreError> {
        let rows = self
            .query(
                &CLAIM,
                &[
                    &me.worker,
                    &me.token,
                    &ask.queues,
                    &ask.wants,
                    &ask.kinds,
                    &ask.solo_kinds,
                    &ask.lanes,
                    &ask.after,
                    &ask.low,
                    &i32::try_from(ask.most).unwrap_or(i32::MAX),
                ],
            )
            .await?;
        let Some((last, jobs)) = rows.split_last() else {
            return Err(StoreError::Protocol("claim returned no trailer".to_owned()));
        };
        let trailer = serde_json::from_str(last.try_get::<_, JsonText<'_>>("payload")?.0)
            .map_err(|error| StoreError::Protocol(format!("claim returned a trailer that cannot be read: {error}")))?;
        let jobs = jobs.iter().map(claimed_row).collect::<Result<_, _>>()?;
        Ok((jobs, trailer))
    }

    /// Runs the duties that are due, within `limit` on the server. Busy, the next turn is sooner.
    pub(crate) async fn tick(&self, me: &Registration, busy: bool, limit: Duration) -> Result<Ticked, StoreError> {
        // Both commands go in one trip and are one transaction, so that the limit holds for this call alone, also behind
        // a pooler. Nothing but numbers, a truth value and the checked name of the schema is put into the text.
        let (limit_ms, schema) = (limit.as_millis(), self.schema());
        let script = format!("set local statement_timeout = {limit_ms}; select {schema}.tick({}, {busy})", me.worker);
        let text = self.run_script(&script).await?;
        serde_json::from_str(&text.unwrap_or_default())
            .map_err(|error| StoreError::Protocol(format!("tick returned what cannot be read: {error}")))
    }

    /// One duty of those that [`tick`](Self::tick) named, within `limit` on the server.
    pub(crate) async fn net(&self, duty: &str, limit: Duration) -> Result<(), StoreError> {
        // As with tick. The name came from the database: nothing but a word is taken.
        if !duty.bytes().all(|byte| byte.is_ascii_lowercase()) {
            return Err(StoreError::Protocol(format!("{duty:?} is no duty")));
        }
        let (limit_ms, schema) = (limit.as_millis(), self.schema());
        self.run_script(&format!("set local statement_timeout = {limit_ms}; select {schema}.net('{duty}')"))
            .await
            .map(drop)
    }

    /// One step of retention, of at most `rows` jobs deleted one by one, within `limit` on the server.
    pub(crate) async fn retain(&self, rows: u32, limit: Duration) -> Result<Retained, StoreError> {
        // As with tick: two commands, one trip, one transaction.
        let (limit_ms, schema) = (limit.as_millis(), self.schema());
        let script = format!("set local statement_timeout = {limit_ms}; select {schema}.retain({rows})");
        let text = self.run_script(&script).await?;
        serde_json::from_str(&text.unwrap_or_default())
            .map_err(|error| StoreError::Protocol(format!("retain returned what cannot be read: {error}")))
    }

    /// Who holds back vacuum, within `limit` on the server.
    pub(crate) async fn vacuum_horizon(&self, limit: Duration) -> Result<VacuumHorizon, StoreError> {
        // As with tick: two commands, one trip, one transaction.
        let (limit_ms, schema) = (limit.as_millis(), self.schema());
        let script = format!("set local statement_timeout = {limit_ms}; select {schema}.vacuum_horizon()");
        super::horizon::read(&self.run_script(&script).await?.unwrap_or_default())
    }

    /// Asks for the notifications of this worker on this connection.
    pub(crate) async fn listen(&self, me: &Registration) -> Result<(), StoreError> {
        let script = format!("listen {}_{}", self.schema(), me.worker);
        self.run_script(&script).await.map(drop)
    }

    /// Lets the server look every few seconds, also while a statement runs, whether this client is still there: what a
    /// client that is gone asked for is then not carried out any more. Refused by systems that cannot look.
    pub(crate) async fn end_with_its_client(&self) -> Result<(), StoreError> {
        self.run_script("set client_connection_check_interval = '5s'").await.map(drop)
    }

    /// Stores how far a job is. False: the lease is lost.
    pub(crate) async fn progress(&self, job: i64, lease: i64, value: &str) -> Result<bool, StoreError> {
        self.yes_or_no(self.query_opt(&PROGRESS, &[&job, &lease, &JsonText(value)]).await?)
    }

    /// Slows down a limit that a running job stands under. False: there is none.
    pub(crate) async fn throttle_job(&self, job: i64, limit: Option<&str>, wait: Duration) -> Result<bool, StoreError> {
        let wait_ms = i64::try_from(wait.as_millis()).unwrap_or(i64::MAX);
        self.yes_or_no(self.query_opt(&THROTTLE_JOB, &[&job, &limit, &wait_ms]).await?)
    }

    fn yes_or_no(&self, row: Option<Row>) -> Result<bool, StoreError> {
        Ok(row.map(|row| row.try_get::<_, Option<bool>>(0)).transpose()?.flatten().unwrap_or(false))
    }
}

fn claimed_row(row: &Row) -> Result<ClaimedRow, StoreError> {
    let slot: i32 = row.try_get(2)?;
    Ok(ClaimedRow {
        lease: row.try_get(0)?,
        job: row.try_get(1)?,
        slot: u32::try_from(slot).map_err(|_| StoreError::Protocol(format!("slot {slot} is negative")))?,
        queue: row.try_get(3)?,
        kind: row.try_get(4)?,
        attempt: row.try_get(5)?,
        max_attempts: row.try_get(6)?,
        timeout_ms: row.try_get(7)?,
        created_at: row.try_get(8)?,
        due_at: row.try_get(9)?,
        idempotency_key: row.try_get(10)?,
        payload: row.try_get(11)?,
    })
}

fn millis(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX)
}
