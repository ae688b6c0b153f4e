//! Enqueue many jobs at once: as arrays of payloads of one kind, or by COPY for any mixture.

use bytes::Bytes;
use serde::Serialize;

use super::Client;
use super::enqueue::{parameters, with_limits};
use super::executor::Executor;
use super::executor::sealed::{Param, Run};
use crate::model::limits::{COPY_PIECE_BYTES, ENQUEUE_CHUNK, ENQUEUE_CHUNK_BYTES};
use crate::model::{Start, check_payload, names};
use crate::store::enqueue::{
    BEFORE_COPY, COPY_INBOX, ENQUEUE_BUNDLES, ENQUEUE_INBOX, ENQUEUE_MANY_LIMITED, TRANSACTION,
};
use crate::store::{Session, Texts};
use crate::{Enqueue, Error, ErrorCode, JobId, JobOptions, RawJson};

impl Client {
    /// Enqueues jobs of one kind with the same options, all or none. Gives their ids in the order of the payloads.
    ///
    /// Payloads are sent 10,000 at a time. Jobs that are enqueued together are also claimed and finished together, at a
    /// fraction of the cost of single ones.
    ///
    /// # Errors
    /// `BadInput`, naming the value and, for a payload, which one it is (from 1).
    pub async fn enqueue_many<P>(
        &self,
        kind: &str,
        payloads: impl IntoIterator<Item = P, IntoIter: Send>,
        options: JobOptions,
    ) -> Result<Vec<JobId>, Error>
    where
        P: Serialize + Send,
    {
        let mut session = self.session().await?;
        let done = async {
            let mut tx = begin(session.client_mut()).await?;
            let ids = self.enqueue_many_in(&mut tx, kind, payloads, options).await?;
            commit(tx).await?;
            Ok(ids)
        };
        let done = done.await;
        explained(&session, done).await
    }

    /// The same in the caller's transaction. On a connection without one, every 10,000 commit by themselves.
    ///
    /// # Errors
    /// As [`enqueue_many`](Self::enqueue_many); the transaction must then be rolled back, part of the jobs may be in it.
    pub async fn enqueue_many_in<E, P>(
        &self,
        tx: &mut E,
        kind: &str,
        payloads: impl IntoIterator<Item = P, IntoIter: Send>,
        options: JobOptions,
    ) -> Result<Vec<JobId>, Error>
    where
        E: Executor + ?Sized,
        P: Serialize + Send,
    {
        names::check_kind(kind)?;
        options.check()?;
        let limits = options.limits.json();
        let mut payloads = payloads.into_iter();
        let mut ids = Vec::new();
        let mut chunk = next_chunk(&mut payloads, 0)?;
        while !chunk.is_empty() {
            let texts: Vec<&str> = chunk.iter().map(RawJson::get).collect();
            let params = parameters(kind, Param::Texts(&texts), &options);
            let call = async {
                match &limits {
                    None => tx.numbers(&self.texts, &ENQUEUE_BUNDLES, &params).await.map(|bundles| ids_of(&bundles)),
                    Some(limits) => tx.numbers(&self.texts, &ENQUEUE_MANY_LIMITED, &with_limits(params, limits)).await,
                }
            };
            // The next payloads are made while the database works on these.
            let before = ids.len() + chunk.len();
            let (made, next) = tokio::join!(call, async { next_chunk(&mut payloads, before) });
            let made = made?;
            check_count(made.len(), chunk.len())?;
            ids.extend(made.into_iter().map(JobId::from));
            chunk = next?;
        }
        Ok(ids)
    }

    /// Enqueues any mixture of jobs by COPY, all or none. Gives their ids in the order of the jobs.
    ///
    /// What is not yet sent is not held in memory. For jobs of one kind with the same options `enqueue_many` costs the database less.
    ///
    /// # Errors
    /// `BadInput`, naming the value and which job it is (from 1).
    pub async fn enqueue_copy(
        &self,
        jobs: impl IntoIterator<Item = Enqueue, IntoIter: Send>,
    ) -> Result<Vec<JobId>, Error> {
        self.try_enqueue_copy(jobs.into_iter().map(Ok)).await
    }

    /// The same from an iterator that can fail, for example while it reads a file; then nothing is enqueued.
    ///
    /// # Errors
    /// The first one of the iterator, or as [`enqueue_copy`](Self::enqueue_copy).
    pub async fn try_enqueue_copy(
        &self,
        jobs: impl IntoIterator<Item = Result<Enqueue, Error>, IntoIter: Send>,
    ) -> Result<Vec<JobId>, Error> {
        let mut session = self.session().await?;
        let done = async {
            let mut tx = begin(session.client_mut()).await?;
            let ids = self.copy_in(&mut tx, jobs.into_iter()).await?;
            commit(tx).await?;
            Ok(ids)
        };
        let done = done.await;
        explained(&session, done).await
    }

    /// The same in the caller's transaction.
    ///
    /// # Errors
    /// As [`enqueue_copy`](Self::enqueue_copy); the transaction must then be rolled back. `BadInput`: the connection is
    /// in no transaction.
    pub async fn enqueue_copy_in<E: Executor + ?Sized>(
        &self,
        tx: &mut E,
        jobs: impl IntoIterator<Item = Enqueue, IntoIter: Send>,
    ) -> Result<Vec<JobId>, Error> {
        self.copy_in(tx, jobs.into_iter().map(Ok)).await
    }

    async fn copy_in<E: Executor + ?Sized>(
        &self,
        tx: &mut E,
        jobs: impl Iterator<Item = Result<Enqueue, Error>> + Send,
    ) -> Result<Vec<JobId>, Error> {
        let now = before_copy(tx, &self.texts).await?;
        let mut rows = CopyText { jobs, now, sent: 0 };
        tx.copy_rows(&self.texts, &COPY_INBOX, &mut rows).await?;
        let sent = rows.sent;
        let ids = tx.numbers(&self.texts, &ENQUEUE_INBOX, &[]).await?;
        check_count(ids.len(), sent)?;
        Ok(ids.into_iter().map(JobId::from).collect())
    }
}

async fn begin(client: &mut tokio_postgres::Client) -> Result<tokio_postgres::Transaction<'_>, Error> {
    client.transaction().await.map_err(|e| Error::postgres("begin a transaction", e))
}

async fn commit(tx: tokio_postgres::Transaction<'_>) -> Result<(), Error> {
    tx.commit().await.map_err(|e| Error::postgres("commit the enqueued jobs", e))
}

/// That there is no schema at all says more than what of it was missed first. The transaction is over.
async fn explained<T>(session: &Session, done: Result<T, Error>) -> Result<T, Error> {
    if done.as_ref().is_err_and(|error| error.code() == ErrorCode::Schema) {
        session.check_schema().await.map_err(|e| Error::store("look for the schema", e))?;
    }
    done
}

/// The next payloads for one statement: at most so many, and not much more than so many bytes.
fn next_chunk<P: Serialize>(payloads: &mut impl Iterator<Item = P>, before: usize) -> Result<Vec<RawJson>, Error> {
    let mut chunk: Vec<RawJson> = Vec::new();
    let mut bytes = 0;
    while chunk.len() < ENQUEUE_CHUNK && bytes < ENQUEUE_CHUNK_BYTES {
        let Some(payload) = payloads.next() else { break };
        let at = before + chunk.len() + 1;
        let json = RawJson::of(&payload).map_err(|e| e.context(format!("payload {at}")))?;
        check_payload(&json).map_err(|e| e.context(format!("payload {at}")))?;
        bytes += json.get().len();
        chunk.push(json);
    }
    Ok(chunk)
}

/// Makes sure that COPY will start and what it copies will be seen, and reads the clock: delays become instants of the
/// database's.
async fn before_copy<E: Run + ?Sized>(tx: &mut E, texts: &Texts) -> Result<i64, Error> {
    let first = tx.numbers(texts, &TRANSACTION, &[]).await?;
    let second = tx.numbers(texts, &BEFORE_COPY, &[]).await?;
    match (&first[..], &second[..]) {
        ([before], [now, micros]) if before == now => Ok(*micros),
        ([_], [_, _]) => Err(Error::bad_input(
            "cannot copy the jobs outside of a transaction",
            "begin one, so that the copied rows and what is made of them commit together; or use enqueue_copy",
        )),
        (_, _) => Err(Error::internal("the look before the COPY answered with another number of rows than two")),
    }
}

/// The ids of bundles, of which each is told by its first one and their number.
fn ids_of(bundles: &[i64]) -> Vec<i64> {
    bundles.as_chunks().0.iter().flat_map(|&[first, jobs]| first..first + jobs).collect()
}

fn check_count(made: usize, sent: usize) -> Result<(), Error> {
    match made == sent {
        true => Ok(()),
        false => Err(Error::internal(format!("{made} jobs were made of {sent} payloads"))),
    }
}

/// Jobs as lines of COPY's text form, several to a piece.
struct CopyText<I> {
    jobs: I,
    now: i64,
    sent: usize,
}

impl<I: Iterator<Item = Result<Enqueue, Error>>> Iterator for CopyText<I> {
    type Item = Result<Bytes, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut piece = String::new();
        while piece.len() < COPY_PIECE_BYTES {
            let Some(job) = self.jobs.next() else { break };
            self.sent += 1;
            let at = format_args!("job {}", self.sent);
            match job.and_then(|job| job.check().map(|()| job).map_err(|e| e.context(at))) {
                Ok(job) => push_line(&mut piece, &job, self.now),
                Err(error) => return Some(Err(error)),
            }
        }
        (!piece.is_empty()).then(|| Ok(Bytes::from(piece)))
    }
}

fn push_line(out: &mut String, job: &Enqueue, now: i64) {
    let options = job.job_options();
    push_escaped(out, job.kind());
    out.push('\t');
    push_escaped(out, job.payload().get());
    out.push('\t');
    push_escaped(out, &options.queue);
    let run_at = match options.start {
        Start::Now => None,
        Start::After(_) => Some(now.saturating_add(options.delay_ms().unwrap_or(0).saturating_mul(1_000))),
        Start::At(_) => options.run_at_micros(),
    };
    let run_at = run_at.map_or_else(|| r"\N".to_owned(), timestamp_text);
    let timeout = options.timeout_ms().map_or_else(|| r"\N".to_owned(), |ms| ms.to_string());
    out.push_str(&format!("\t{}\t{run_at}\t{}\t{timeout}\t", options.priority, options.max_attempts));
    match options.limits.json() {
        None => out.push_str(r"\N"),
        Some(limits) => push_escaped(out, &limits),
    }
    out.push('\n');
}

/// In COPY's text form a backslash starts an escape, and tabs and line ends separate.
fn push_escaped(out: &mut String, text: &str) {
    let mut rest = text;
    while let Some(at) = rest.find(['\\', '\t', '\n', '\r']) {
        out.push_str(&rest[..at]);
        out.push_str(match rest.as_bytes()[at] {
            b'\\' => r"\\",
            b'\t' => r"\t",
            b'\n' => r"\n",
            _ => r"\r",
        });
        rest = &rest[at + 1..];
    }
    out.push_str(rest);
}

/// Microseconds since 1970 as a timestamptz in UTC.
fn timestamp_text(micros: i64) -> String {
    let (days, micros) = (micros.div_euclid(86_400_000_000), micros.rem_euclid(86_400_000_000));
    let (year, month, day) = civil(days);
    let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
    let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{micros:06}+00")
}

/// The date of a number of days since 1970-01-01, by Howard Hinnant's `civil_from_days`.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153; // March is 0
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn a_line_holds_every_option_and_escapes_what_separates() {
        let check = |job: Enqueue, expected: &str| {
            let mut line = String::new();
            push_line(&mut line, &job, 1_000_000);
            assert_eq!(line, expected);
        };
        let json = |text: &str| RawJson::parse(text).unwrap();
        check(
            Enqueue::raw("a\\b", json("[1,\n\t\"\\n\"]")),
            "a\\\\b\t[1,\\n\\t\"\\\\n\"]\tdefault\t2\t\\N\t5\t\\N\t\\N\n",
        );
        let late = Enqueue::raw("k", json("1")).queue("q").priority(4).max_attempts(9);
        check(
            late.clone().delay(Duration::from_millis(1_500)).timeout(Duration::ZERO),
            "k\t1\tq\t4\t1970-01-01 00:00:02.500000+00\t9\t0\t\\N\n",
        );
        check(
            late.under("p").run_at(SystemTime::UNIX_EPOCH + Duration::from_secs(1_835_438_400)),
            "k\t1\tq\t4\t2028-02-29 12:00:00.000000+00\t9\t\\N\t{\"under\":[{\"cost\":1,\"key\":null,\"limit\":\"p\"}]}\n",
        );
    }

    #[test]
    fn a_wrong_job_is_named_by_its_place() {
        let jobs = [Enqueue::raw("k", RawJson::null()), Enqueue::raw("", RawJson::null())];
        let mut rows = CopyText { jobs: jobs.into_iter().map(Ok), now: 0, sent: 0 };
        let error = rows.next().unwrap().unwrap_err();
        assert!(error.to_string().starts_with("job 2: the kind name is empty"), "{error}");
        let error = next_chunk(&mut ["a", "b\0"].into_iter(), 10).unwrap_err();
        assert!(error.to_string().starts_with(r"payload 12: \u0000 at $"), "{error}");
    }
}
