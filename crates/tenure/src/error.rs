//! The one error of this crate: a code for programs, a message for people.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;

use crate::store::{LossKind, StoreError};

/// What went wrong, for programs. The text for people is the error's `Display`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorCode {
    /// The lease on the job is gone: another worker has it, or it ended. Nothing was written.
    LeaseLost,
    /// A value given by the caller is refused: out of range, empty, too long, not JSON.
    BadInput,
    /// The worker is unknown to the database or its own lease is over.
    WorkerGone,
    /// No such job, dead letter or queue.
    NotFound,
    /// The job or queue exists, but its state does not allow the verb.
    Refused,
    /// The queue is bounded and has no room for so many jobs more.
    Full,
    /// The database cannot be reached, or the connection broke.
    Unreachable,
    /// A wait was longer than its limit, here or in the database.
    Timeout,
    /// The transaction met another one (serialization failure, deadlock): run the transaction again.
    Conflict,
    /// The server is short of something: connections, memory, disk.
    Busy,
    /// The role lacks a right, or could not log in.
    Denied,
    /// The server or the session accepts no writes: a standby, or a primary that hands over to another one. That passes
    /// with a failover, so it is retryable; a caller's own read-only transaction is not mended by it.
    ReadOnly,
    /// The schema is missing, older or newer than this program, or the server is too old.
    Schema,
    /// The database reported something else.
    Database,
    /// A defect of tenure.
    Internal,
}

impl ErrorCode {
    /// Every code.
    pub const ALL: [ErrorCode; 15] = [
        ErrorCode::LeaseLost,
        ErrorCode::BadInput,
        ErrorCode::WorkerGone,
        ErrorCode::NotFound,
        ErrorCode::Refused,
        ErrorCode::Full,
        ErrorCode::Unreachable,
        ErrorCode::Timeout,
        ErrorCode::Conflict,
        ErrorCode::Busy,
        ErrorCode::Denied,
        ErrorCode::ReadOnly,
        ErrorCode::Schema,
        ErrorCode::Database,
        ErrorCode::Internal,
    ];

    /// The code's stable name in JSON and logs, for example `lease_lost`.
    pub fn as_str(self) -> &'static str {
        match self {
            ErrorCode::LeaseLost => "lease_lost",
            ErrorCode::BadInput => "bad_input",
            ErrorCode::WorkerGone => "worker_gone",
            ErrorCode::NotFound => "not_found",
            ErrorCode::Refused => "refused",
            ErrorCode::Full => "full",
            ErrorCode::Unreachable => "unreachable",
            ErrorCode::Timeout => "timeout",
            ErrorCode::Conflict => "conflict",
            ErrorCode::Busy => "busy",
            ErrorCode::Denied => "denied",
            ErrorCode::ReadOnly => "read_only",
            ErrorCode::Schema => "schema",
            ErrorCode::Database => "database",
            ErrorCode::Internal => "internal",
        }
    }

    fn is_retryable(self) -> bool {
        match self {
            ErrorCode::Unreachable
            | ErrorCode::Timeout
            | ErrorCode::Conflict
            | ErrorCode::Busy
            | ErrorCode::ReadOnly => true,
            ErrorCode::LeaseLost
            | ErrorCode::BadInput
            | ErrorCode::WorkerGone
            | ErrorCode::NotFound
            | ErrorCode::Refused
            | ErrorCode::Full
            | ErrorCode::Denied
            | ErrorCode::Schema
            | ErrorCode::Database
            | ErrorCode::Internal => false,
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The error of every fallible call: opaque, with a [`code`](Error::code) and a few predicates.
///
/// The message says what failed and with which value; [`help`](Error::help) says the way out.
#[derive(Debug)]
pub struct Error {
    inner: Box<Inner>,
}

#[derive(Debug)]
struct Inner {
    code: ErrorCode,
    message: String,
    help: Option<String>,
    sqlstate: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// What went wrong, for programs.
    pub fn code(&self) -> ErrorCode {
        self.inner.code
    }

    /// What failed, with which value; without the way out.
    pub fn message(&self) -> &str {
        &self.inner.message
    }

    /// The way out, where there is one to name.
    pub fn help(&self) -> Option<&str> {
        self.inner.help.as_deref()
    }

    /// The five characters of SQLSTATE, when the database reported the error.
    pub fn sqlstate(&self) -> Option<&str> {
        self.inner.sqlstate.as_deref()
    }

    /// The lease on the job is gone: the write was refused and the job belongs to somebody else now, or has ended.
    pub fn is_lease_lost(&self) -> bool {
        self.inner.code == ErrorCode::LeaseLost
    }

    /// The same call may succeed a moment later, without anybody changing anything.
    ///
    /// For [`ErrorCode::Conflict`] "the call" is the whole transaction. After [`ErrorCode::Unreachable`] a write may or
    /// may not have happened.
    pub fn is_retryable(&self) -> bool {
        self.inner.code.is_retryable()
    }

    /// A value is refused, and the way out: for code around this crate that checks input of its own.
    pub fn bad_input(message: impl Into<String>, help: impl Into<String>) -> Self {
        Error::new(ErrorCode::BadInput, message).with_help(help)
    }

    /// Puts "what: " in front of the message, for the caller's own words ("line 7").
    pub fn context(mut self, what: impl fmt::Display) -> Self {
        self.inner.message = format!("{what}: {}", self.inner.message);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.inner.message)?;
        match &self.inner.help {
            Some(help) => write!(f, " ({help})"),
            None => Ok(()),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.inner.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

// Building errors: inside the crate only, so that no dependency's error type shows in the public API.
impl Error {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Error { inner: Box::new(Inner { code, message: message.into(), help: None, sqlstate: None, source: None }) }
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Error::new(ErrorCode::Internal, message)
            .with_help("this is a defect of tenure, please report it with this message")
    }

    pub(crate) fn with_help(mut self, help: impl Into<String>) -> Self {
        self.inner.help = Some(help.into());
        self
    }

    #[cfg(any(test, feature = "sqlx08", feature = "sqlx09"))]
    pub(crate) fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.inner.source = Some(source.into());
        self
    }

    /// From a failed statement; `what` completes "cannot …": `"claim jobs"`.
    pub(crate) fn store(what: impl fmt::Display, error: StoreError) -> Self {
        match error {
            StoreError::Refused { sqlstate, message, detail, hint } => {
                Error::reported(what, sqlstate.code(), &message, detail.as_deref(), hint.as_deref())
            }
            StoreError::Lost(loss) => {
                let (code, help) = match loss.kind {
                    LossKind::Away => (ErrorCode::Unreachable, HELP_UNREACHABLE),
                    LossKind::ReadOnly => (ErrorCode::ReadOnly, HELP_READ_ONLY),
                    LossKind::Tls => (ErrorCode::Unreachable, HELP_TLS),
                };
                Error::new(code, format!("cannot {what}: {}", loss.text)).with_help(help)
            }
            StoreError::Protocol(text) => Error::new(ErrorCode::Database, format!("cannot {what}: {text}")),
        }
    }

    /// From an error of tokio-postgres itself, where a caller's own transaction is used.
    pub(crate) fn postgres(what: impl fmt::Display, error: tokio_postgres::Error) -> Self {
        Error::store(what, StoreError::from(error))
    }

    /// From what a server reported, whatever the client library.
    pub(crate) fn reported(
        what: impl fmt::Display,
        sqlstate: &str,
        message: &str,
        detail: Option<&str>,
        hint: Option<&str>,
    ) -> Self {
        let (code, help) = meaning(sqlstate);
        // Our own functions already name the value and the way out.
        let text = match (sqlstate.starts_with("TN"), detail) {
            (true, _) => message.to_owned(),
            (false, Some(detail)) => format!("cannot {what}: {message}: {detail} (SQLSTATE {sqlstate})"),
            (false, None) => format!("cannot {what}: {message} (SQLSTATE {sqlstate})"),
        };
        let mut built = Error::new(code, text);
        built.inner.help = hint.map(Cow::Borrowed).or(help.map(Cow::Borrowed)).map(Cow::into_owned);
        built.inner.sqlstate = Some(sqlstate.to_owned());
        built
    }
}

const HELP_UNREACHABLE: &str =
    "is the server running, and are host and port right? See --database-url, DATABASE_URL, PGHOST and PGPORT";
const HELP_TLS: &str = "sslmode=prefer goes on without TLS; sslmode=verify-full needs a certificate of an authority that this system or SSL_CERT_FILE names";
const HELP_READ_ONLY: &str = "connect to the primary, not to a standby, and check default_transaction_read_only";

/// The meaning of a SQLSTATE and, where there is one, the way out.
fn meaning(sqlstate: &str) -> (ErrorCode, Option<&'static str>) {
    match sqlstate {
        "TN001" => (ErrorCode::LeaseLost, None),
        "TN002" => (ErrorCode::BadInput, None),
        "TN003" => (ErrorCode::WorkerGone, None),
        "TN004" => (ErrorCode::NotFound, None),
        "TN005" => (ErrorCode::Refused, None),
        "TN006" => (ErrorCode::Schema, None),
        "TN007" => (ErrorCode::Full, None),
        "40001" | "40P01" => (ErrorCode::Conflict, Some("run the whole transaction again")),
        "55P03" => {
            (ErrorCode::Timeout, Some("another transaction holds the lock: look at pg_stat_activity for old ones"))
        }
        "57014" => (ErrorCode::Timeout, None),
        "57P01" | "57P02" | "57P03" | "57P05" | "25P03" => (ErrorCode::Unreachable, None),
        "25006" => (ErrorCode::ReadOnly, Some(HELP_READ_ONLY)),
        "42501" => (
            ErrorCode::Denied,
            Some(
                "connect as the owner of the schema, or grant the role with `tenure migrate --roles` and GRANT tenure_producer, tenure_worker, tenure_viewer or tenure_admin",
            ),
        ),
        "3D000" => (ErrorCode::Database, Some("create the database first, or name another one")),
        "3F000" | "42P01" | "42883" | "42703" | "42704" => {
            (ErrorCode::Schema, Some("run `tenure migrate` (with the same --schema) with this version's program"))
        }
        "22P02" | "22P05" | "22021" | "22032" | "22P03" => (ErrorCode::BadInput, None),
        _ => (meaning_of_class(sqlstate.get(..2).unwrap_or("")), None),
    }
}

fn meaning_of_class(class: &str) -> ErrorCode {
    match class {
        "08" => ErrorCode::Unreachable,
        "28" => ErrorCode::Denied,
        "40" => ErrorCode::Conflict,
        "53" => ErrorCode::Busy,
        _ => ErrorCode::Database,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sqlstate_becomes_a_code() {
        let check = |sqlstate: &str, code: ErrorCode, retryable: bool| {
            let error = Error::reported("claim jobs", sqlstate, "m", None, None);
            assert_eq!((error.code(), error.is_retryable()), (code, retryable), "{sqlstate}");
            assert_eq!(error.sqlstate(), Some(sqlstate));
        };
        check("TN001", ErrorCode::LeaseLost, false);
        check("TN002", ErrorCode::BadInput, false);
        check("TN003", ErrorCode::WorkerGone, false);
        check("TN004", ErrorCode::NotFound, false);
        check("TN005", ErrorCode::Refused, false);
        check("TN006", ErrorCode::Schema, false);
        check("TN007", ErrorCode::Full, false);
        check("40001", ErrorCode::Conflict, true);
        check("40P01", ErrorCode::Conflict, true);
        check("08006", ErrorCode::Unreachable, true);
        check("57P01", ErrorCode::Unreachable, true);
        check("53300", ErrorCode::Busy, true);
        check("28P01", ErrorCode::Denied, false);
        check("42501", ErrorCode::Denied, false);
        check("25006", ErrorCode::ReadOnly, true);
        check("42883", ErrorCode::Schema, false);
        check("23505", ErrorCode::Database, false);
    }

    #[test]
    fn our_own_messages_stay_as_the_database_wrote_them() {
        let error = Error::reported("enqueue", "TN002", "priority 9 is outside 1 to 4", None, Some("use 1, 2, 3 or 4"));
        assert_eq!(error.to_string(), "priority 9 is outside 1 to 4 (use 1, 2, 3 or 4)");
        assert_eq!(error.context("line 7").to_string(), "line 7: priority 9 is outside 1 to 4 (use 1, 2, 3 or 4)");
    }

    #[test]
    fn codes_have_distinct_names() {
        let names: std::collections::HashSet<_> = ErrorCode::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(names.len(), ErrorCode::ALL.len());
    }
}
