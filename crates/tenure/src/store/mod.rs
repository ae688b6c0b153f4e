//! The only place that talks to PostgreSQL. It records and reads, it never decides.
//!
//! Every statement is a constant beside the verbs it belongs to; its text says `tenure.` for the schema, which is put
//! in its place once per process ([`Texts`]).

pub(crate) mod address;
pub(crate) mod enqueue;
mod failure;
mod finish;
pub(crate) mod jobs;
pub(crate) mod migrate;
mod session;
mod statement;
mod template;
#[cfg(feature = "tls")]
mod tls;
mod wire;
mod worker;

pub(crate) use failure::{Loss, StoreError};
pub(crate) use finish::{FailStatus, FailureRow};
pub(crate) use session::{Session, SessionOptions};
pub(crate) use statement::{Statement, Texts};
pub(crate) use wire::{JsonText, Strip};
pub(crate) use worker::{ClaimRequest, ClaimedRow, Introduction, Registration, Renewal, Ticked, Trailer};

/// Every statement that is sent to the server, so that a test can prepare each of them.
pub(crate) fn statements() -> impl Iterator<Item = &'static Statement> {
    [worker::STATEMENTS, finish::STATEMENTS].into_iter().flatten().copied()
}
