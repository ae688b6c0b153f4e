//! The two sizes of every scenario, in one place: `ci` takes at most 20 seconds each, `full` has the numbers of the claims.

use std::time::Duration;

use crate::Bound;

/// How large to play.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// At most 20 seconds each.
    Ci,
    /// The numbers of the claims.
    Full,
}

impl Size {
    /// `TENURE_SIZE=full` or `ci`; `ci` when it is not set.
    ///
    /// # Panics
    /// On any other value.
    pub fn from_env() -> Size {
        match std::env::var("TENURE_SIZE").as_deref() {
            Err(_) | Ok("" | "ci") => Size::Ci,
            Ok("full") => Size::Full,
            Ok(other) => panic!("TENURE_SIZE is {other:?}: it is `ci` or `full`"),
        }
    }
}

/// A number of a scenario at both sizes.
#[derive(Clone, Copy, Debug)]
pub struct Sized<T> {
    ci: T,
    full: T,
}

impl<T: Copy> Sized<T> {
    /// The number at this size.
    pub const fn at(self, size: Size) -> T {
        match size {
            Size::Ci => self.ci,
            Size::Full => self.full,
        }
    }
}

const fn sized<T>(ci: T, full: T) -> Sized<T> {
    Sized { ci, full }
}

const fn seconds(ci: u64, full: u64) -> Sized<Duration> {
    sized(Duration::from_secs(ci), Duration::from_secs(full))
}

/// Claims under fire: how long, for each of the wants.
pub const FIRE: Sized<Duration> = seconds(6, 60);
/// Claims under fire: jobs enqueued before it starts; more are added all the time.
pub const FIRE_JOBS: Sized<usize> = sized(4_000, 40_000);
/// Schedules of one run per second, under fire.
pub const SCHEDULES: Sized<usize> = sized(20, 200);
/// Workers that fire them.
pub const SCHEDULERS: Sized<usize> = sized(3, 5);
/// How long.
pub const SCHEDULE_TIME: Sized<Duration> = seconds(8, 600);
/// A worker is frozen, and mostly killed, every so often.
pub const SCHEDULE_KILL_EVERY: Sized<Duration> = seconds(2, 10);
/// Seconds after which the last of [`MANY_SCHEDULES`] has fired.
pub const MANY_FIRED: Sized<Bound> = sized(Bound::AtMost(1.5), Bound::AtMost(3.0));
/// Schedules that are due at one instant.
pub const MANY_SCHEDULES: Sized<usize> = sized(1_000, 10_000);
/// Jobs that are due at random instants, and within which time.
pub const ONE_SHOTS: Sized<usize> = sized(500, 10_000);
/// See [`ONE_SHOTS`].
pub const ONE_SHOTS_OVER: Sized<Duration> = seconds(5, 60);
/// How late such a job may start, in seconds: half of them, and all but one of a hundred. Tests share their machine.
pub const ONE_SHOT_P50: Sized<f64> = sized(0.25, 0.025);
/// See [`ONE_SHOT_P50`].
pub const ONE_SHOT_P99: Sized<f64> = sized(1.0, 0.05);
/// Transactions a second of an idle worker: a claim, a heartbeat and a turn of maintenance, each about once.
pub const IDLE_TRANSACTIONS: Sized<f64> = sized(8.0, 4.0);
/// What a look for due schedules may take, in milliseconds, when none is due.
pub const SCHEDULE_LOOK_MS: Sized<f64> = sized(50.0, 5.0);
/// Kills of a worker by signal 9.
pub const KILLS: Sized<usize> = sized(3, 20);
/// The job that is longer than its lease.
pub const LONG_JOB: Sized<Duration> = seconds(12, 60);
/// Its lease.
pub const LONG_JOB_LEASE: Sized<Duration> = seconds(2, 5);
/// Every connection of a live worker terminated, so often.
pub const TERMINATIONS: Sized<usize> = sized(5, 20);
/// Restarts of the database under running jobs.
pub const RESTARTS: Sized<usize> = sized(2, 5);
/// Restarts of the database in the middle of a rescue.
pub const RESCUE_RESTARTS: Sized<usize> = sized(2, 10);
/// Jobs that run during the restarts, and how long each takes.
pub const RESTART_JOBS: Sized<usize> = sized(10, 50);
/// See [`RESTART_JOBS`].
pub const RESTART_JOB: Sized<Duration> = seconds(10, 30);
/// Jobs enqueued by arrays, and again by COPY.
pub const BULK_JOBS: Sized<usize> = sized(20_000, 100_000);
/// Jobs that wait while a worker is killed.
pub const CROWD: Sized<usize> = sized(50_000, 1_000_000);
/// Jobs beside which every hot call is looked at, one size after the other: plans that were made beside none of them must stay right.
pub const PLAN_JOBS: Sized<&[usize]> = sized(&[0, 10_000], &[0, 10_000, 10_000_000]);
/// How long an idle worker is watched.
pub const IDLE: Sized<Duration> = seconds(4, 30);
/// Idle workers at once.
pub const IDLE_WORKERS: Sized<usize> = sized(10, 100);
/// Cycles of the outage scenario: restarts, cuts, stalls.
pub const OUTAGES: Sized<usize> = sized(3, 50);
/// The longest cut or stall of one cycle.
pub const OUTAGE: Sized<Duration> = seconds(3, 60);
/// Orphaned jobs while the database restarts in the middle of rescue.
pub const ORPHANS: Sized<usize> = sized(100, 250);
/// How long an old worker runs beside jobs of a kind that it does not know.
pub const UNKNOWN_KIND: Sized<Duration> = seconds(5, 120);
/// Jobs of that kind.
pub const UNKNOWN_KIND_JOBS: Sized<usize> = sized(1_000, 1_000);
/// The long jobs of the shutdown scenario.
pub const SHUTDOWN_JOB: Sized<Duration> = seconds(60, 60);
/// Grace of the shutdown scenario.
pub const SHUTDOWN_GRACE: Sized<Duration> = seconds(4, 10);
/// Jobs that run while all workers are killed, and the lease.
pub const KILLED_JOBS: Sized<usize> = sized(12, 50);
/// See [`KILLED_JOBS`].
pub const KILLED_LEASE: Sized<Duration> = seconds(4, 10);
/// Bytes of the error text that cannot be stored as it is.
pub const ERROR_BYTES: Sized<usize> = sized(50_000_000, 50_000_000);
/// Panicking jobs, and as many normal ones after them.
pub const PANICS: Sized<usize> = sized(100, 100);
/// Good jobs beside one that aborts its process, and how long each takes.
pub const POISON_JOBS: Sized<usize> = sized(60, 200);
/// See [`POISON_JOBS`].
pub const POISON_JOB: Sized<Duration> = sized(Duration::from_millis(300), Duration::from_secs(1));
/// Good jobs of a quick kind beside one that aborts its process, so many that workers run ahead.
pub const POISON_QUICK_JOBS: Sized<usize> = sized(2_000, 10_000);
/// How often a job snoozes before it fails for the first time.
pub const SNOOZES: Sized<u64> = sized(300, 40_000);
/// How long a handler blocks after its time is up.
pub const OVERRUN: Sized<Duration> = seconds(6, 30);
/// How long a handler holds a connection of the pool that all share, and the lease.
pub const POOL_HOLD: Sized<Duration> = seconds(3, 10);
/// Finished jobs that retention removes by whole ranges while others run.
pub const RETAINED_JOBS: Sized<usize> = sized(40_000, 2_000_000);
/// Finished jobs of all kinds of ends that are due when retention is switched on; twice as many rows.
pub const RETAINED_BACKLOG: Sized<usize> = sized(40_000, 20_000_000);
/// Jobs that are enqueued and run in each second meanwhile.
pub const RETENTION_LOAD: Sized<usize> = sized(300, 1_000);
/// How long claims are measured before the removal, and again after it.
pub const RETENTION_PHASE: Sized<Duration> = seconds(2, 20);
/// Finished jobs that retention removes row by row.
pub const RETAINED_ROWS: Sized<usize> = sized(20_000, 1_000_000);
/// How long somebody reads an old range while others enqueue and claim.
pub const RETENTION_READ: Sized<Duration> = seconds(3, 60);
/// How long jobs that are kept for a moment run through, and how long they are kept.
pub const RETENTION_DAY: Sized<Duration> = seconds(12, 600);
/// See [`RETENTION_DAY`].
pub const RETENTION_KEEP: Sized<Duration> = seconds(1, 30);
/// How long the removal of everything may take.
pub const RETENTION_PATIENCE: Sized<Duration> = seconds(60, 900);
/// The fault sweep over a worker's life cuts at every n-th message of it.
pub const SWEEP_STEP: Sized<u64> = sized(31, 1);
/// The fault sweep over a migration cuts at every n-th message of it.
pub const SWEEP_STEP_MIGRATE: Sized<u64> = sized(149, 1);
/// The fault sweep over the other verbs of a client.
pub const SWEEP_STEP_CLIENT: Sized<u64> = sized(30, 1);
/// The fault sweep over the look at plans, which makes every hot call several times.
pub const SWEEP_STEP_PLANS: Sized<u64> = sized(997, 101);
/// The fault sweep over the verbs that wait until nothing runs: a second each.
pub const SWEEP_STEP_DRAIN: Sized<u64> = sized(500, 2);
/// Dead letters of the sweep over verbs that take 200 of them per transaction.
pub const SWEEP_DEAD: Sized<usize> = sized(3, 450);
/// Finished jobs of the sweep over the removal of them, which takes 2,000 per transaction.
pub const SWEEP_PAST: Sized<usize> = sized(200, 4_500);
/// Flushes that were committed and whose answer is lost.
pub const UNKNOWN_COMMITS: Sized<usize> = sized(25, 1_000);
/// Rounds of ends that meet a rescue.
pub const RESCUE_RACES: Sized<usize> = sized(4, 50);
/// Jobs that pass while somebody else's old snapshot is open.
pub const LONG_SNAPSHOT_JOBS: Sized<usize> = sized(20_000, 1_200_000);
/// How long each of three readers that take turns keeps its snapshot.
pub const READER: Sized<Duration> = seconds(2, 40);
/// After so many rounds of 100 jobs the oldest gives its turn away in any case, however quick the machine is.
pub const READER_LOOKS: Sized<usize> = sized(20, usize::MAX);
/// From what age on somebody else's open snapshot is warned of; `full`: the usual minute.
pub const SNAPSHOT_OLD: Sized<Duration> = seconds(2, 60);
/// How long the log is watched for further warnings.
pub const SNAPSHOT_WATCHED: Sized<Duration> = seconds(5, 150);
/// Programs that enqueue at the same time, each job in a transaction of its own, and for how long.
pub const NOTIFYING_CLIENTS: Sized<usize> = sized(8, 64);
/// See [`NOTIFYING_CLIENTS`].
pub const NOTIFYING: Sized<Duration> = seconds(2, 60);
/// How long the database takes no writes.
pub const READ_ONLY: Sized<Duration> = seconds(4, 30);
/// From the primary's end to the promotion of its standby.
pub const FAILOVER: Sized<Duration> = seconds(3, 30);
/// Jobs that run when the primary ends, half of which end before there is a new one.
pub const FAILOVER_JOBS: Sized<usize> = sized(10, 50);
/// How long chaos breaks things, when a test plays it.
pub const CHAOS: Sized<Duration> = seconds(12, 60);
/// Jobs that are cancelled at random moments.
pub const CANCELS: Sized<usize> = sized(2_000, 5_000);
/// Jobs that are enqueued during a pause, dead letters that are requeued, and how long the pause is watched.
pub const PAUSED_JOBS: Sized<usize> = sized(200, 1_000);
/// See [`PAUSED_JOBS`].
pub const PAUSED_DEAD: Sized<usize> = sized(50, 500);
/// See [`PAUSED_JOBS`].
pub const PAUSED: Sized<Duration> = seconds(2, 40);
/// Dead letters that come back over five minutes.
pub const SPREAD: Sized<usize> = sized(2_000, 10_000);
/// Jobs of a paused kind, each enqueued alone, that claims have to pass over.
pub const PAUSED_CROWD: Sized<usize> = sized(20_000, 1_000_000);
/// Rounds of the topic `speed`, in each of which everything that is compared takes its turn.
pub const SPEED_ROUNDS: Sized<usize> = sized(1, 3);
/// Jobs that are enqueued in bulk, and worked off.
pub const SPEED_JOBS: Sized<usize> = sized(100_000, 300_000);
/// Jobs that are enqueued one by one.
pub const SPEED_SINGLES: Sized<usize> = sized(5_000, 50_000);
/// Jobs that are enqueued one by one and worked off in a row, without and with an old snapshot.
pub const SPEED_SINGLES_ROW: Sized<usize> = sized(10_000, 200_000);
/// Jobs that several worker processes work off together: so many that the start of 64 of them, a second or two, hardly counts.
pub const SPEED_PROCESSES_JOBS: Sized<usize> = sized(100_000, 4_000_000);
/// Jobs that commit late under a full load, and how long after their enqueue.
pub const SPEED_LATE: Sized<usize> = sized(8, 60);
/// See [`SPEED_LATE`].
pub const SPEED_LATE_HOLD: Sized<Duration> = seconds(3, 3);
/// How long one call of the bench may take, what it has to make beforehand included: one that hangs is given up.
pub const SPEED_RUN_MAX: Sized<Duration> = seconds(300, 3_600);
/// Jobs for an idle worker, one at a time.
pub const SPEED_LATENCY: Sized<usize> = sized(60, 300);
/// Jobs that are worked off in a row: beside nothing, an old snapshot, history, jobs for tomorrow.
pub const SPEED_ROW: Sized<usize> = sized(200_000, 1_000_000);
/// Finished jobs that are present.
pub const SPEED_HISTORY: Sized<usize> = sized(500_000, 10_000_000);
/// Jobs for tomorrow that are present.
pub const SPEED_SCHEDULED: Sized<usize> = sized(50_000, 1_000_000);
/// Jobs with payloads of 1 KB and handlers that wait, for the memory of a worker.
pub const SPEED_MEMORY_JOBS: Sized<usize> = sized(20_000, 100_000);
/// Queues over which jobs are spread.
pub const SPEED_QUEUES: Sized<usize> = sized(100, 1_000);
/// Workers that idle together, and for how long they are watched.
pub const SPEED_IDLE_WORKERS: Sized<usize> = sized(6, 50);
/// See [`SPEED_IDLE_WORKERS`].
pub const SPEED_IDLE: Sized<Duration> = seconds(2, 20);
/// Jobs that wake them, one at a time, and then at once.
pub const SPEED_IDLE_JOBS: Sized<usize> = sized(10, 100);
/// See [`SPEED_IDLE_JOBS`].
pub const SPEED_BURST: Sized<usize> = sized(2_000, 50_000);
/// Jobs with payloads of 1 KB.
pub const SPEED_1K: Sized<usize> = sized(5_000, 200_000);
/// Jobs with payloads of 64 KB: more than half a gigabyte in full.
pub const SPEED_64K: Sized<usize> = sized(200, 10_000);
/// Jobs with and without statistics: so many that workers report several times, and the database counts for some time.
pub const SPEED_STATISTICS: Sized<usize> = sized(50_000, 2_000_000);
/// How long a rate is watched, and what part of it has to be used.
pub const RATE_TIME: Sized<Duration> = seconds(6, 60);
/// See [`RATE_TIME`]. In a short time on a busy machine a token more is lost.
pub const RATE_PART: Sized<f64> = sized(0.9, 0.98);
/// Jobs that are worked off in a row, plain and under limits, and how often.
pub const LIMIT_JOBS: Sized<usize> = sized(2_000, 100_000);
/// See [`LIMIT_JOBS`].
pub const LIMIT_ROUNDS: Sized<usize> = sized(1, 3);
/// What part of the plain queue's throughput is left under a limit that is not exhausted; a short run says little.
pub const LIMIT_WIDE: Sized<Bound> = sized(Bound::Shown, Bound::AtLeast(0.8));
/// The same with 10,000 keys.
pub const LIMIT_KEYS: Sized<Bound> = sized(Bound::Shown, Bound::AtLeast(0.5));
/// Jobs of one tenant beside 99 with ten each.
pub const FAIR_JOBS: Sized<usize> = sized(20_000, 100_000);
/// Jobs of each of three keys with different shares.
pub const SHARE_JOBS: Sized<usize> = sized(1_000, 10_000);
/// Jobs that wait behind a limit that is used up, and the claims that are timed beside them.
pub const HELD_JOBS: Sized<usize> = sized(20_000, 1_000_000);
/// See [`HELD_JOBS`].
pub const HELD_CLAIMS: Sized<usize> = sized(30, 300);
/// What part of a claim's speed is left beside them; few claims on a busy machine say little.
pub const HELD_PART: Sized<Bound> = sized(Bound::Shown, Bound::AtLeast(0.9));
/// How long workers are killed and the database restarts under twenty limits.
pub const LIMIT_CHAOS: Sized<Duration> = seconds(12, 300);
