//! Durable work on PostgreSQL.

mod client;
mod error;
pub mod model;
mod store;
#[cfg(feature = "testing")]
pub mod testing;
mod worker;

pub use client::audit::{LeftOut, ScheduleAudit};
pub use client::backfill::{Backfill, BackfillInfo, BackfillPreview};
pub use client::bounds::{QueueBound, QueueBoundInfo, WhenFull};
pub use client::cancel::{CancelFilter, CancelledMany};
pub use client::cron::CronJob;
pub use client::dead::{DeadFilter, DeadGroup, DeadLetter, LineJob, RequeuePace};
pub use client::declared::{FieldChange, ScheduleChange, ScheduleSync};
pub use client::executor::Executor;
pub use client::jobs::{AttemptError, Cancelled, JobFilter, JobInfo};
pub use client::kinds::UnhandledKind;
pub use client::limits::{Limit, LimitInfo, Rate};
pub use client::pause::{KindPause, WaitReason};
pub use client::queues::{QueueInfo, ServerInfo, WorkerInfo};
pub use client::reschedule::Moved;
pub use client::retention::{Keep, Prunable, Pruned};
pub use client::schedules::{ScheduleInfo, ScheduleRun};
pub use client::settings::Setting;
pub use client::stats::{Statistics, StatsBy, StatsFilter, StatsRow, WorkerStats};
pub use client::troubles::{TroubledSchedule, TroubledSchedules};
pub use client::verbs;
pub use client::wait::Ended;
pub use client::{Client, ClientBuilder, MigrateOptions, connection_config, migration_sql};
pub use error::{Error, ErrorCode};
pub use model::{
    Absence, CallPlan, Cause, Check, DeadRows, Enqueue, Fail, Finding, Gap, Histogram, Holder, Jitter, Job, JobId,
    JobOptions, Missed, Overlap, PlanCheck, PlanFinding, RawJson, RetryPolicy, Rule, Schedule, Schedules, Snapshot,
    TableFacts, TableScan, Twice, Under, VacuumHorizon, Verdict, classify, duration, instant, lifecycle, limits,
};
pub use store::migrate::Migrated;
pub use worker::{Blocking, Context, KindOptions, RunningWorker, Stats, StopReason, Summary, Worker, WorkerBuilder};

/// The examples of the guide, compiled as they stand there.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/worker.md")]
pub struct GuideOfWorkers;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/schedule.md")]
pub struct GuideOfSchedules;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/limit.md")]
pub struct GuideOfLimits;

#[cfg(all(doctest, feature = "testing"))]
#[doc = include_str!("../../../docs/guide/testing.md")]
pub struct GuideOfTesting;
