//! Rules and values: no SQL, no clock, nothing asynchronous.

pub mod classify;
mod cron;
mod declared;
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
mod pg_cron;
mod raw_json;
pub mod retry;
mod rule;
mod schedule;
mod stored_text;
mod zone;

pub use declared::Schedules;
pub(crate) use due::{Plan, Times};
pub use fail::{Cause, Fail, Verdict};
pub use histogram::Histogram;
pub use horizon::{DeadRows, Holder, Snapshot, VacuumHorizon};
pub use id::JobId;
pub use job::{Enqueue, Job, JobOptions};
pub(crate) use job::{Start, check_payload, micros};
pub use pg_cron::{Check, Finding};
pub(crate) use pg_cron::{CronFacts, TickEntry};
pub use raw_json::RawJson;
pub use retry::{Jitter, RetryPolicy};
pub use rule::{Gap, Rule, Twice};
pub use schedule::{Missed, Overlap, Schedule};
pub(crate) use stored_text::storable;
