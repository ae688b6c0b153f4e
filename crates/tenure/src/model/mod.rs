//! Rules and values: no SQL, no clock, nothing asynchronous.

mod audit;
pub mod classify;
mod cron;
mod due;
pub mod duration;
mod fail;
pub(crate) mod histogram;
mod horizon;
mod id;
pub mod instant;
mod job;
pub mod lifecycle;
pub mod limits;
pub mod names;
mod raw_json;
pub mod retry;
mod rule;
mod schedule;
mod stored_text;
mod zone;

pub use audit::Absence;
pub(crate) use audit::{Audit, Stretch as NotedStretch};
pub(crate) use due::{Plan, Times};
pub use fail::{Cause, Fail, Verdict};
pub use histogram::Histogram;
pub use horizon::{DeadRows, Holder, Snapshot, VacuumHorizon};
pub use id::JobId;
pub use job::{Enqueue, Job, JobOptions};
pub(crate) use job::{Start, check_payload, micros, seconds_of, system_time};
pub use raw_json::RawJson;
pub use retry::{Jitter, RetryPolicy};
pub use rule::{Gap, Rule, Twice};
pub use schedule::{Missed, Overlap, Schedule};
pub(crate) use stored_text::storable;
