//! The only place that talks to PostgreSQL. It records and reads, it never decides.
//!
//! Every statement is a constant beside the verbs it belongs to; its text says `tenure.` for the schema, which is put
//! in its place once per process ([`Texts`]).

pub(crate) mod address;
pub(crate) mod enqueue;
mod failure;
pub(crate) mod jobs;
pub(crate) mod migrate;
mod session;
mod statement;
mod template;
#[cfg(feature = "tls")]
mod tls;

pub(crate) use failure::{Loss, StoreError};
pub(crate) use session::{Session, SessionOptions};
pub(crate) use statement::{Statement, Texts};
