//! The verbs that end jobs: complete, fail, release. Each answer tells done, done before and lease lost apart.

use serde::Serialize;
use tokio_postgres::types::Type;

use super::wire::{JsonText, Strip};
use super::worker::Registration;
use super::{Session, Statement, StoreError};

static COMPLETE_MANY: Statement = Statement {
    name: "complete_many",
    sql: "select lease_id, strip from tenure.complete_many($1, $2::text::uuid, $3, $4, $5, $6)",
    params: &[Type::INT8, Type::TEXT, Type::INT8_ARRAY, Type::VARBIT_ARRAY, Type::INT8_ARRAY, Type::JSON_ARRAY],
};
static FAIL: Statement = Statement {
    name: "fail",
    sql: "select job_id, status from tenure.fail($1, $2::text::uuid, $3)",
    params: &[Type::INT8, Type::TEXT, Type::JSON],
};
static RELEASE: Statement = Statement {
    name: "release",
    sql: "select lease_id, strip from tenure.release($1, $2::text::uuid, $3, $4)",
    params: &[Type::INT8, Type::TEXT, Type::INT8_ARRAY, Type::VARBIT_ARRAY],
};

static LEASES_OF: Statement = Statement {
    name: "leases_of",
    sql: "select lease_id, strip from tenure.leases_of($1, $2::text::uuid)",
    params: &[Type::INT8, Type::TEXT],
};
static ENDED_BY: Statement = Statement {
    name: "ended_by",
    sql: "select status from tenure.ended_by($1, $2)",
    params: &[Type::INT8_ARRAY, Type::INT8_ARRAY],
};

#[cfg(test)]
pub(super) static STATEMENTS: &[&Statement] = &[&COMPLETE_MANY, &FAIL, &RELEASE, &LEASES_OF, &ENDED_BY];

/// What became of a reported failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailStatus {
    Retrying,
    Dead,
    Snoozed,
    /// Goes back, the attempt not used.
    Released,
    Cancelled,
    Already,
    Lost,
}

/// When a job that failed runs again.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct NextRun {
    /// None: the default backoff, if no instant is named either.
    pub(crate) delay_ms: Option<i64>,
    /// Microseconds since 1970 by the database's clock. It goes before the delay.
    pub(crate) run_at_us: Option<i64>,
    /// This part of the time until the instant is added.
    pub(crate) spread: f64,
}

/// One failure as the SQL function reads it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FailureRow {
    pub(crate) lease: i64,
    pub(crate) job: i64,
    pub(crate) verdict: &'static str,
    /// Of "throttled"; none: those that the job stands under.
    pub(crate) limit: Option<String>,
    #[serde(flatten)]
    pub(crate) next: NextRun,
    pub(crate) cause: &'static str,
    pub(crate) message: String,
    pub(crate) details: serde_json::Value,
}

impl Session {
    /// Completes the slots of `strips[i]` in `leases[i]`; each lease occurs once. Results belong to the jobs beside them.
    /// Returns what was not completed now; [`Session::ended_by`] says why.
    pub(crate) async fn complete_many(
        &self,
        me: &Registration,
        leases: &[i64],
        strips: &[Strip],
        result_jobs: &[i64],
        results: &[JsonText<'_>],
    ) -> Result<Vec<(i64, Strip)>, StoreError> {
        assert_eq!(leases.len(), strips.len());
        assert_eq!(result_jobs.len(), results.len());
        let rows =
            self.query(&COMPLETE_MANY, &[&me.worker, &me.token, &leases, &strips, &result_jobs, &results]).await?;
        rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
    }

    pub(crate) async fn fail(
        &self,
        me: &Registration,
        failures: &[FailureRow],
    ) -> Result<Vec<(i64, FailStatus)>, StoreError> {
        let text = serde_json::to_string(failures)
            .map_err(|error| StoreError::Protocol(format!("failures cannot be written as JSON: {error}")))?;
        let rows = self.query(&FAIL, &[&me.worker, &me.token, &JsonText(&text)]).await?;
        rows.iter().map(|row| Ok((row.try_get(0)?, fail_status(row.try_get(1)?)?))).collect()
    }

    /// Gives jobs back without using an attempt; what the leases did not hold any more.
    pub(crate) async fn release(
        &self,
        me: &Registration,
        leases: &[i64],
        strips: &[Strip],
    ) -> Result<Vec<(i64, Strip)>, StoreError> {
        assert_eq!(leases.len(), strips.len());
        let rows = self.query(&RELEASE, &[&me.worker, &me.token, &leases, &strips]).await?;
        rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
    }

    /// Did this lease complete that job, at some time? In the order of the question.
    pub(crate) async fn ended_by(&self, leases: &[i64], jobs: &[i64]) -> Result<Vec<bool>, StoreError> {
        let rows = self.query(&ENDED_BY, &[&leases, &jobs]).await?;
        rows.iter().map(|row| Ok(row.try_get::<_, &str>(0)? == "completed")).collect()
    }

    /// All that the database says this worker holds.
    pub(crate) async fn leases_of(&self, me: &Registration) -> Result<Vec<(i64, Strip)>, StoreError> {
        let rows = self.query(&LEASES_OF, &[&me.worker, &me.token]).await?;
        rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
    }
}

fn fail_status(text: &str) -> Result<FailStatus, StoreError> {
    Ok(match text {
        "retrying" => FailStatus::Retrying,
        "dead" => FailStatus::Dead,
        "snoozed" => FailStatus::Snoozed,
        "released" => FailStatus::Released,
        "cancelled" => FailStatus::Cancelled,
        "already" => FailStatus::Already,
        "lost" => FailStatus::Lost,
        other => return Err(StoreError::Protocol(format!("unknown status {other:?} of a failed job"))),
    })
}
