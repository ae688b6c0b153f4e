//! Durable work on PostgreSQL.

mod client;
mod error;
pub mod model;
mod store;
#[cfg(feature = "testing")]
pub mod testing;
mod worker;

pub use client::cancel::{CancelFilter, CancelledMany};
pub use client::dead::{DeadFilter, DeadGroup, DeadLetter, LineJob, RequeuePace};
pub use client::executor::Executor;
pub use client::jobs::{AttemptError, Cancelled, JobFilter, JobInfo};
pub use client::kinds::UnhandledKind;
pub use client::limits::{Limit, LimitInfo, Rate};
pub use client::pause::{KindPause, WaitReason};
pub use client::queues::{QueueInfo, ServerInfo, WorkerInfo};
pub use client::retention::{Keep, Prunable, Pruned};
pub use client::settings::Setting;
pub use client::stats::{Statistics, StatsBy, StatsFilter, StatsRow, WorkerStats};
pub use client::verbs;
pub use client::wait::Ended;
pub use client::{Client, ClientBuilder, MigrateOptions, connection_config, migration_sql};
pub use error::{Error, ErrorCode};
pub use model::{
    Cause, DeadRows, Enqueue, Fail, Histogram, Holder, Jitter, Job, JobId, JobOptions, RawJson, RetryPolicy, Snapshot,
    Under, VacuumHorizon, Verdict, classify, lifecycle, limits,
};
pub use store::migrate::Migrated;
pub use worker::{Blocking, Context, KindOptions, RunningWorker, Stats, StopReason, Summary, Worker, WorkerBuilder};

/// The examples of the guide, compiled as they stand there.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/worker.md")]
pub struct GuideOfWorkers;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/limit.md")]
pub struct GuideOfLimits;

#[cfg(all(doctest, feature = "testing"))]
#[doc = include_str!("../../../docs/guide/testing.md")]
pub struct GuideOfTesting;
