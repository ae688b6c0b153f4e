//! Durable work on PostgreSQL.

#[allow(dead_code)]
mod error;
pub mod model;
#[allow(dead_code, unused_imports)]
mod store;

pub use error::{Error, ErrorCode};
pub use model::{
    Cause, Enqueue, Fail, Jitter, Job, JobId, JobOptions, Mask, RawJson, RetryPolicy, Verdict, classify, lifecycle,
    limits,
};
