//! What can go wrong between us and the database, sorted by what the caller has to do about it.

use std::error::Error as _;
use std::fmt;
use std::io;

use tokio_postgres::error::SqlState;

/// How a connection ended.
#[derive(Clone, Debug)]
pub(crate) struct Loss {
    /// The server said itself that it is going down or coming up (57P01 to 57P03), or that it takes no more writes
    /// (25006). Together with refused connections afterwards this means that nobody can reach the database, not only we.
    pub(crate) announced: bool,
    /// Nobody listens at the address (ECONNREFUSED, or no socket file), or a server that allows no writes.
    pub(crate) refused: bool,
    pub(crate) text: String,
}

impl Loss {
    pub(crate) fn silent(text: impl Into<String>) -> Loss {
        Loss { announced: false, refused: false, text: text.into() }
    }
}

/// The failure of one statement.
#[derive(Clone, Debug)]
pub(crate) enum StoreError {
    /// The connection is of no use any more; whether the statement was done is unknown.
    Lost(Loss),
    /// The database refused the statement; nothing of it was done.
    Refused { sqlstate: SqlState, message: String, detail: Option<String>, hint: Option<String> },
    /// A value could not be sent or read: a fault of ours or of the schema's version.
    Protocol(String),
}

impl StoreError {
    pub(crate) fn sqlstate(&self) -> Option<&str> {
        match self {
            StoreError::Refused { sqlstate, .. } => Some(sqlstate.code()),
            StoreError::Lost(_) | StoreError::Protocol(_) => None,
        }
    }

    /// The worker is unknown to the database or its lease is over (TN003).
    pub(crate) fn is_worker_gone(&self) -> bool {
        self.sqlstate() == Some("TN003")
    }

    pub(crate) fn is_lost(&self) -> bool {
        matches!(self, StoreError::Lost(_))
    }

    /// Some value that was sent is the reason (data, constraint, program limit, or our own checks): without it the same
    /// statement would pass.
    pub(crate) fn is_about_values(&self) -> bool {
        match self {
            StoreError::Refused { sqlstate, .. } => {
                matches!(sqlstate.code().get(..2), Some("22" | "23" | "54")) || sqlstate.code() == "TN002"
            }
            StoreError::Protocol(_) => true,
            StoreError::Lost(_) => false,
        }
    }

    /// The server ended the statement because of its time, or because somebody asked it to.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.sqlstate() == Some("57014")
    }

    /// Somebody else held a row for longer than we wait.
    pub(crate) fn is_lock_wait(&self) -> bool {
        self.sqlstate() == Some("55P03")
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Lost(loss) => write!(f, "the connection to the database was lost: {}", loss.text),
            StoreError::Refused { sqlstate, message, detail, hint } => {
                write!(f, "{message} ({})", sqlstate.code())?;
                for more in [detail, hint].into_iter().flatten() {
                    write!(f, "; {more}")?;
                }
                Ok(())
            }
            StoreError::Protocol(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for StoreError {}

impl From<tokio_postgres::Error> for StoreError {
    fn from(error: tokio_postgres::Error) -> StoreError {
        if let Some(db) = error.as_db_error() {
            return from_database(db);
        }
        let io = error.source().and_then(|source| source.downcast_ref::<io::Error>());
        if error.is_closed() || io.is_some() || is_unanswered(&error) {
            let refused = io.is_some_and(is_refusal);
            return StoreError::Lost(Loss { announced: false, refused, text: full_text(&error) });
        }
        StoreError::Protocol(full_text(&error))
    }
}

/// Nobody is there, or somebody who takes no writes ("database does not allow writes", as tokio-postgres says it).
fn is_refusal(io: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotFound, PermissionDenied};
    matches!(io.kind(), ConnectionRefused | NotFound)
        || io.kind() == PermissionDenied && io.to_string().contains("does not allow writes")
}

/// Failures of the handshake (no answer in time, TLS) carry no source that we could look at.
fn is_unanswered(error: &tokio_postgres::Error) -> bool {
    let text = error.to_string();
    [
        "error connecting to server",
        "timeout waiting for server",
        "error performing TLS handshake",
        "authentication error",
    ]
    .iter()
    .any(|known| text.contains(known))
}

/// The server says that it goes down or comes up.
pub(super) fn is_goodbye(sqlstate: &SqlState) -> bool {
    matches!(sqlstate.code(), "57P01" | "57P02" | "57P03")
}

fn from_database(db: &tokio_postgres::error::DbError) -> StoreError {
    let code = db.code().code();
    // 25006: we still talk to a server that became read-only; only a new connection can find the new primary. A session
    // that could write before hears it only when the server itself was told to take no writes, so it is an announcement.
    let announced = is_goodbye(db.code()) || code == "25006";
    if announced || code.starts_with("08") || code == "57P05" {
        return StoreError::Lost(Loss { announced, refused: false, text: format!("{} ({code})", db.message()) });
    }
    StoreError::Refused {
        sqlstate: db.code().clone(),
        message: db.message().to_owned(),
        detail: db.detail().map(str::to_owned),
        hint: db.hint().map(str::to_owned),
    }
}

fn full_text(error: &tokio_postgres::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let more = source.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        next = source.source();
    }
    text
}
