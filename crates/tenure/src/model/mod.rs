//! Rules and values: no SQL, no clock, nothing asynchronous.

pub mod classify;
mod fail;
pub(crate) mod histogram;
mod horizon;
mod id;
mod job;
pub mod lifecycle;
pub mod limits;
pub mod names;
mod raw_json;
pub mod retry;
mod stored_text;
mod under;

pub use fail::{Cause, Fail, Verdict};
pub use histogram::Histogram;
pub use horizon::{DeadRows, Holder, Snapshot, VacuumHorizon};
pub use id::JobId;
pub use job::{Enqueue, Job, JobOptions};
pub(crate) use job::{Start, check_payload, micros, millis_up};
pub use raw_json::RawJson;
pub use retry::{Jitter, RetryPolicy};
pub(crate) use stored_text::storable;
pub use under::Under;
