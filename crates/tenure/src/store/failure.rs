//! What can go wrong between us and the database, sorted by what the caller has to do about it.

use std::error::Error as _;
use std::fmt;
use std::io;

use tokio_postgres::error::SqlState;

/// What kept us from a server, as far as it matters to whoever reads of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LossKind {
    /// It does not answer, refuses, goes down or comes up.
    Away,
    /// It takes no writes: a standby, or a primary that hands over.
    ReadOnly,
    /// No encrypted connection came about.
    Tls,
}

/// How a connection ended.
#[derive(Clone, Debug)]
pub(crate) struct Loss {
    pub(crate) kind: LossKind,
    /// The server said itself that it is going down or coming up (57P01 to 57P03), or that it takes no more writes
    /// (25006). Together with refused connections afterwards this means that nobody can reach the database, not only we.
    pub(crate) announced: bool,
    /// Nobody listens at the address (ECONNREFUSED, or no socket file), or a server that allows no writes.
    pub(crate) refused: bool,
    pub(crate) text: String,
}

impl Loss {
    pub(crate) fn silent(text: impl Into<String>) -> Loss {
        Loss { kind: LossKind::Away, announced: false, refused: false, text: text.into() }
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
        let Some(kind) = kind_of(&error, io) else { return StoreError::Protocol(full_text(&error)) };
        let nobody =
            io.is_some_and(|io| matches!(io.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound));
        let refused = nobody || kind == LossKind::ReadOnly;
        StoreError::Lost(Loss { kind, announced: false, refused, text: full_text(&error) })
    }
}

/// None: it is no loss of a connection. Some carry no source that we could look at (no answer in time, TLS), and that a
/// database "does not allow writes" is a denied permission to tokio-postgres: there its words are all there is.
fn kind_of(error: &tokio_postgres::Error, io: Option<&io::Error>) -> Option<LossKind> {
    let text = error.to_string();
    let says = |known: &[&str]| known.iter().any(|known| text.contains(known));
    let denied = io.filter(|io| io.kind() == io::ErrorKind::PermissionDenied);
    if denied.is_some_and(|io| io.to_string().contains("does not allow writes")) {
        return Some(LossKind::ReadOnly);
    }
    if says(&["error performing TLS handshake"]) {
        return Some(LossKind::Tls);
    }
    let unanswered = says(&["error connecting to server", "timeout waiting for server", "authentication error"]);
    (error.is_closed() || io.is_some() || unanswered).then_some(LossKind::Away)
}

/// The server says that it goes down or comes up.
pub(super) fn is_goodbye(sqlstate: &SqlState) -> bool {
    matches!(sqlstate.code(), "57P01" | "57P02" | "57P03")
}

fn from_database(db: &tokio_postgres::error::DbError) -> StoreError {
    let code = db.code().code();
    // 25006: we still talk to a server that became read-only; only a new connection can find the new primary. A session
    // that could write before hears it only when the server itself was told to take no writes, so it is an announcement.
    let read_only = code == "25006";
    let announced = is_goodbye(db.code()) || read_only;
    if announced || code.starts_with("08") || code == "57P05" {
        let kind = if read_only { LossKind::ReadOnly } else { LossKind::Away };
        return StoreError::Lost(Loss { kind, announced, refused: false, text: format!("{} ({code})", db.message()) });
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
