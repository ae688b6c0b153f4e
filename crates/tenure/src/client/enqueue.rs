//! Enqueue one job: on its own, or in the caller's transaction.

use super::Client;
use super::executor::Executor;
use super::executor::sealed::{Param, Run};
use crate::store::Texts;
use crate::store::enqueue::{COMPLETE, ENQUEUE, ENQUEUE_LIMITED};
use crate::{Enqueue, Error, JobId, JobOptions, RawJson};

impl Client {
    /// Enqueues one job and commits. It runs as soon as a worker for its kind is free.
    ///
    /// # Errors
    /// `BadInput`, naming the value. `Unreachable`: it may or may not have been enqueued.
    pub async fn enqueue(&self, job: Enqueue) -> Result<JobId, Error> {
        job.check()?;
        let mut session = self.session().await?;
        enqueue_on(&mut *session, &self.texts, &job).await
    }

    /// Enqueues one job in the caller's transaction: it exists when that commits, and never did when it rolls back.
    ///
    /// ```no_run
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct SendMail { to: String }
    /// # impl tenure::Job for SendMail { const KIND: &'static str = "send_mail"; }
    /// # async fn example(client: tenure::Client, db: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use tenure::Enqueue;
    ///
    /// let mut tx = db.transaction().await?;
    /// tx.execute("insert into signup (mail) values ('ada@example.org')", &[]).await?;
    /// client.enqueue_in(&mut tx, Enqueue::new(&SendMail { to: "ada@example.org".into() })?).await?;
    /// tx.commit().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`enqueue`](Self::enqueue). After an error from the database the transaction can only be rolled back.
    pub async fn enqueue_in<E: Executor + ?Sized>(&self, tx: &mut E, job: Enqueue) -> Result<JobId, Error> {
        job.check()?;
        enqueue_on(tx, &self.texts, &job).await
    }
}

async fn enqueue_on<E: Run + ?Sized>(on: &mut E, texts: &Texts, job: &Enqueue) -> Result<JobId, Error> {
    let payload = Param::Text(Some(job.payload().get()));
    let params = parameters(job.kind(), payload, job.job_options());
    let ids = match job.job_options().limits.json() {
        None => on.numbers(texts, &ENQUEUE, &params).await?,
        Some(limits) => on.numbers(texts, &ENQUEUE_LIMITED, &with_limits(params, &limits)).await?,
    };
    only(&ids)
}

/// The parameters of enqueue and enqueue_many, which differ in the payload.
pub(super) fn parameters<'a>(kind: &'a str, payload: Param<'a>, options: &'a JobOptions) -> [Param<'a>; 8] {
    [
        Param::Text(Some(kind)),
        payload,
        Param::Text(Some(&options.queue)),
        Param::Int(Some(options.priority.into())),
        Param::Int(options.run_at_micros()),
        Param::Int(options.delay_ms()),
        Param::Int(Some(options.max_attempts.into())),
        Param::Int(options.timeout_ms()),
    ]
}

/// And those of the functions for jobs that stand under limits.
pub(super) fn with_limits<'a>(params: [Param<'a>; 8], limits: &'a str) -> [Param<'a>; 9] {
    let [kind, payload, queue, priority, run_at, delay, attempts, timeout] = params;
    [kind, payload, queue, priority, run_at, delay, attempts, timeout, Param::Text(Some(limits))]
}

fn only(ids: &[i64]) -> Result<JobId, Error> {
    match ids {
        [id] => Ok(JobId::from(*id)),
        _ => Err(Error::internal(format!("enqueue answered with {} rows", ids.len()))),
    }
}

/// Ends a running job in the caller's transaction.
pub(crate) async fn complete_on<E: Executor + ?Sized>(
    tx: &mut E,
    texts: &Texts,
    job: JobId,
    fence: i64,
    result: Option<&RawJson>,
) -> Result<(), Error> {
    let params = [Param::Int(Some(job.get())), Param::Int(Some(fence)), Param::Text(result.map(RawJson::get))];
    tx.numbers(texts, &COMPLETE, &params).await?;
    Ok(())
}
