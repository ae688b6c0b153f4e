//! What tests of durable work need: a database of their own, the invariants, signals instead of sleeps, and a network
//! that fails on request. Feature `testing`; for tests of tenure itself and of programs that use it.
//!
//! ```no_run
//! # async fn example() {
//! tenure::testing::with_database(async |db| {
//!     let jobs = db.client().await;
//!     // enqueue, start a worker, wait on a condition with `until` …
//!     # let _ = jobs;
//! })
//! .await; // checks the invariants and drops the database
//! # }
//! ```

mod database;
mod gate;
mod proxy;
mod schema;
mod until;

pub use database::{Broken, TestDatabase, with_database};
pub use gate::{Gate, Probe, Run};
pub use proxy::{Cut, Fault, Proxy, Rejection};
pub use schema::schema_text;
pub use until::{DEADLINE, Seen, until, until_within};
