//! What a proxy does to its connections, and what it has counted.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use super::wire;

/// What the proxy does to every connection, those that are open included, until told otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// Forwards everything.
    None,
    /// Closes new connections at once; open ones go on.
    Refuse,
    /// Answers new connections with an error, as a server does that takes nobody in; open ones go on.
    Reject(Rejection),
    /// Holds every message, both ways, without closing anything; what was held goes on afterwards.
    Stall,
    /// Reads and throws away every message, both ways, without closing anything.
    BlackHole,
    /// Forwards what goes to the server and throws away what comes back: everything is done and nobody hears of it.
    LoseAnswers,
    /// Each message waits this long, each way.
    Delay(Duration),
}

/// The words of a server that takes nobody in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Five characters, for example `53300`.
    pub sqlstate: &'static str,
    /// The text.
    pub message: &'static str,
}

impl Rejection {
    /// All connections are in use.
    pub const TOO_MANY: Rejection =
        Rejection { sqlstate: "53300", message: "sorry, too many clients already (by the proxy)" };
    /// The password is wrong, for example because it was changed a moment ago.
    pub const PASSWORD: Rejection =
        Rejection { sqlstate: "28P01", message: "password authentication failed (by the proxy)" };
    /// The server has just been started.
    pub const STARTING: Rejection =
        Rejection { sqlstate: "57P03", message: "the database system is starting up (by the proxy)" };
}

/// Where the proxy cuts one connection. Numbers count from 1, over all connections, from the call of
/// [`Proxy::cut_at`](super::Proxy::cut_at).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Before the n-th message to the server is forwarded.
    ToServer(u64),
    /// Before the n-th message from the server is forwarded.
    FromServer(u64),
    /// Before the n-th statement (a simple query, or the execution of a prepared one) is forwarded.
    Statement(u64),
    /// Before the n-th "ready for query" is forwarded: the server has done, and committed, what the client will not hear of.
    Answer(u64),
    /// Before the answer to the n-th COMMIT is forwarded: committed, and the client does not know.
    CommitAnswer(u64),
}

impl Cut {
    fn at(self) -> u64 {
        match self {
            Cut::ToServer(at) | Cut::FromServer(at) | Cut::Statement(at) | Cut::Answer(at) | Cut::CommitAnswer(at) => {
                at
            }
        }
    }

    fn is_point(self, way: Way, message: &[u8]) -> bool {
        match (self, way) {
            (Cut::ToServer(_), Way::ToServer) | (Cut::FromServer(_), Way::FromServer) => true,
            (Cut::Statement(_), Way::ToServer) => wire::is_statement(message),
            (Cut::Answer(_), Way::FromServer) => wire::is_ready(message),
            (Cut::CommitAnswer(_), Way::FromServer) => wire::is_commit_answer(message),
            (Cut::ToServer(_) | Cut::Statement(_), Way::FromServer)
            | (Cut::FromServer(_) | Cut::Answer(_) | Cut::CommitAnswer(_), Way::ToServer) => false,
        }
    }
}

/// The direction of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    ToServer,
    FromServer,
}

/// A cut that has not been reached yet.
#[derive(Debug)]
struct Armed {
    cut: Cut,
    seen: u64,
    /// The whole network goes with it, and stays away.
    everything: bool,
}

/// What happens to messages; one for all connections of a proxy.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) fault: watch::Sender<Fault>,
    /// Counts up to close every connection that is open now.
    pub(super) generation: watch::Sender<u64>,
    armed: Mutex<Option<Armed>>,
    cuts: AtomicU64,
    to_server: AtomicU64,
    from_server: AtomicU64,
    pub(super) open: AtomicUsize,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            fault: watch::Sender::new(Fault::None),
            generation: watch::Sender::new(0),
            armed: Mutex::default(),
            cuts: AtomicU64::new(0),
            to_server: AtomicU64::new(0),
            from_server: AtomicU64::new(0),
            open: AtomicUsize::new(0),
        }
    }
}

impl Rules {
    pub(super) fn arm(&self, cut: Option<Cut>, everything: bool) {
        *self.armed.lock().expect("not poisoned") = cut.map(|cut| Armed { cut, seen: 0, everything });
    }

    pub(super) fn cuts(&self) -> u64 {
        self.cuts.load(Ordering::SeqCst)
    }

    pub(super) fn messages(&self) -> (u64, u64) {
        (self.to_server.load(Ordering::SeqCst), self.from_server.load(Ordering::SeqCst))
    }

    pub(super) fn close_all(&self) {
        self.generation.send_modify(|n| *n += 1);
    }

    /// Counts this message; true when the connection is to be cut before it.
    pub(super) fn cuts_here(&self, way: Way, message: &[u8]) -> bool {
        let all = match way {
            Way::ToServer => &self.to_server,
            Way::FromServer => &self.from_server,
        };
        all.fetch_add(1, Ordering::SeqCst);
        let mut slot = self.armed.lock().expect("not poisoned");
        let Some(armed) = slot.as_mut().filter(|armed| armed.cut.is_point(way, message)) else { return false };
        armed.seen += 1;
        if armed.seen < armed.cut.at() {
            return false;
        }
        let everything = armed.everything;
        *slot = None;
        drop(slot);
        if everything {
            self.fault.send_replace(Fault::Refuse);
            self.close_all();
        }
        self.cuts.fetch_add(1, Ordering::SeqCst);
        true
    }

    /// Waits as the fault of the moment says; false when the message is to be thrown away.
    pub(super) async fn let_pass(&self, way: Way) -> bool {
        let mut fault = self.fault.subscribe();
        let now = *fault.borrow_and_update();
        match now {
            Fault::None | Fault::Refuse | Fault::Reject(_) => true,
            Fault::BlackHole => false,
            Fault::LoseAnswers => way == Way::ToServer,
            Fault::Delay(time) => {
                tokio::time::sleep(time).await;
                true
            }
            Fault::Stall => {
                // The sender lives as long as the rules.
                let _ = fault.wait_for(|fault| *fault != Fault::Stall).await;
                true
            }
        }
    }
}
