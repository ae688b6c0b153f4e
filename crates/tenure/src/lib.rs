//! Durable work on PostgreSQL.

mod client;
#[allow(dead_code)]
mod error;
pub mod model;
#[allow(dead_code, unused_imports)]
mod store;

pub use client::executor::Executor;
pub use client::{Client, ClientBuilder, MigrateOptions, migration_sql};
pub use error::{Error, ErrorCode};
pub use model::{
    Cause, Enqueue, Fail, Jitter, Job, JobId, JobOptions, Mask, RawJson, RetryPolicy, Verdict, classify, lifecycle,
    limits,
};
pub use store::migrate::Migrated;
