//! What can be asked of a measurement.

use std::time::Duration;

use serde::Serialize;

use super::enqueue::Form;
use crate::connection::Connection;
use crate::when;

/// Jobs of one measurement, at most.
const JOBS_MAX: i64 = 100_000_000;

/// Where it is measured, and how often.
#[derive(Debug, Clone, clap::Args)]
pub struct Common {
    /// Repeat everything so often, 1 to 100: what is compared takes turns, and the medians are printed
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,

    /// Give up after so long, 1s to 24h: then nothing is printed, and the exit code is 1 [default: never]
    #[arg(long, value_name = "TIME", value_parser = within_time)]
    pub within: Option<Duration>,

    /// Print settings, every run and the medians as one JSON object
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub place: PlaceOptions,
}

/// The database, and a schema of the bench's own.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Database")]
pub struct PlaceOptions {
    /// postgres://user:password@host:port/database or 'host=… dbname=…'; PGHOST, PGPORT, PGUSER, PGPASSWORD and PGDATABASE
    /// fill what it leaves open. The server itself, no pooler in between
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, default_value = "", hide_default_value = true)]
    pub database_url: String,

    /// Schema that is made for the measurement and dropped after it. One that something else made is refused
    #[arg(long, default_value = "tenure_bench")]
    pub schema: String,
}

impl PlaceOptions {
    /// As the commands of the queue take it.
    pub fn connection(&self) -> Connection {
        Connection { database_url: self.database_url.clone(), schema: self.schema.clone(), pooler: false }
    }
}

/// What else is in the database.
#[derive(Debug, Clone, Copy, clap::Args, Serialize)]
pub struct Scene {
    /// Bytes of each payload, 20 to 65536: JSON that does not compress
    #[arg(long, value_name = "BYTES", default_value_t = 60, value_parser = clap::value_parser!(u32).range(20..=65_536))]
    pub payload: u32,

    /// Have so many finished jobs present, at most 1 billion
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=1_000_000_000))]
    pub history: u64,

    /// Have so many jobs present that are due tomorrow, each at its own instant, at most 100 million
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=100_000_000))]
    pub scheduled: u64,

    /// Another session holds an old snapshot meanwhile, so that nothing dead can be removed
    #[arg(long)]
    pub pinned: bool,
}

/// How jobs are enqueued.
#[derive(Debug, Clone, clap::Args)]
pub struct EnqueueOptions {
    /// How jobs are enqueued: one by one, each with its own commit; by arrays; by COPY
    #[arg(long = "form", value_name = "FORM", value_enum, value_delimiter = ',', default_value = "single,arrays,copy")]
    pub forms: Vec<Form>,

    /// Producers at a time, each with a connection of its own, 1 to 200; several numbers are compared
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,4", value_parser = clap::value_parser!(u16).range(1..=200))]
    pub producers: Vec<u16>,

    /// Jobs per transaction of arrays and COPY, 1 to 1000000
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub batch: u32,

    /// Jobs of each measurement, 1 to 100000000 [default: 200000, one by one 20000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=JOBS_MAX))]
    pub jobs: Option<u32>,

    #[command(flatten)]
    pub scene: Scene,
    #[command(flatten)]
    pub common: Common,
}

/// How jobs are worked off.
#[derive(Debug, Clone, clap::Args)]
pub struct WorkOptions {
    /// Jobs that a worker runs at a time, 1 to 10000; several numbers are compared
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,8,32,128", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub concurrency: Vec<u16>,

    /// Worker processes, 1 to 256; several numbers are compared
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub workers: Vec<u16>,

    /// Jobs of each measurement, 1 to 100000000
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(1..=JOBS_MAX))]
    pub jobs: u32,

    /// How the jobs were enqueued: one by one each has a bundle of its own
    #[arg(long, value_name = "FORM", value_enum, default_value = "arrays")]
    pub form: Form,

    /// Producers that enqueue them, 1 to 200
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=200))]
    pub producers: u16,

    /// How long a handler takes, up to 1m. It waits, and burns nothing
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = run_time)]
    pub run_time: Duration,

    #[command(flatten)]
    pub scene: Scene,
    #[command(flatten)]
    pub common: Common,
}

/// How an idle worker is woken.
#[derive(Debug, Clone, clap::Args)]
pub struct LatencyOptions {
    /// Jobs, enqueued one after the other, 1 to 100000
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub jobs: u32,

    /// How long the worker is idle between two of them, up to 1m; between half of it and one and a half
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = run_time)]
    pub pause: Duration,

    /// Jobs that the worker may run at a time, 1 to 10000
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub concurrency: u16,

    #[command(flatten)]
    pub scene: Scene,
    #[command(flatten)]
    pub common: Common,
}

/// A steady load.
#[derive(Debug, Clone, clap::Args)]
pub struct MixedOptions {
    /// Jobs enqueued a second, one by one, 1 to 100000
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rate: u32,

    /// For how long, 1s to 1h
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = load_time)]
    pub duration: Duration,

    /// Jobs that a worker runs at a time, 1 to 10000
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub concurrency: u16,

    /// Worker processes, 1 to 256
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub workers: u16,

    /// Producers, each with a connection of its own, 1 to 200
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=200))]
    pub producers: u16,

    /// How long a handler takes, up to 1m. It waits, and burns nothing
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = run_time)]
    pub run_time: Duration,

    #[command(flatten)]
    pub scene: Scene,
    #[command(flatten)]
    pub common: Common,
}

/// Jobs that are committed late, under a full load.
#[derive(Debug, Clone, clap::Args)]
pub struct LateOptions {
    /// Jobs that are committed late, 1 to 10000
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub jobs: u32,

    /// How long each of their transactions stays open after the enqueue, 10ms to 1m
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = hold_time)]
    pub hold: Duration,

    /// Such transactions at a time, 1 to 100
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub at_once: u16,

    /// Jobs that a worker runs at a time, 1 to 10000
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub concurrency: u16,

    /// Worker processes, 1 to 256
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub workers: u16,

    /// Producers that keep the workers busy, 1 to 200
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=200))]
    pub producers: u16,

    #[command(flatten)]
    pub scene: Scene,
    #[command(flatten)]
    pub common: Common,
}

/// What the server does without a queue.
#[derive(Debug, Clone, clap::Args)]
pub struct FloorOptions {
    /// Rows of the COPY, 1 to 100000000
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(1..=JOBS_MAX))]
    pub rows: u32,

    /// Rows per transaction of the COPY, 1 to 1000000
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub batch: u32,

    /// Notifications and commits that are timed, 1 to 100000
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub trips: u32,

    /// Bytes of each row's payload, 20 to 65536
    #[arg(long, value_name = "BYTES", default_value_t = 60, value_parser = clap::value_parser!(u32).range(20..=65_536))]
    pub payload: u32,

    #[command(flatten)]
    pub common: Common,
}

fn run_time(text: &str) -> Result<Duration, String> {
    within(text, Duration::ZERO, Duration::from_secs(60), "0 to 1m")
}

fn load_time(text: &str) -> Result<Duration, String> {
    within(text, Duration::from_secs(1), Duration::from_secs(3_600), "1s to 1h")
}

fn hold_time(text: &str) -> Result<Duration, String> {
    within(text, Duration::from_millis(10), Duration::from_secs(60), "10ms to 1m")
}

fn within_time(text: &str) -> Result<Duration, String> {
    within(text, Duration::from_secs(1), Duration::from_secs(86_400), "1s to 24h")
}

fn within(text: &str, min: Duration, max: Duration, range: &str) -> Result<Duration, String> {
    let time = when::duration(text)?;
    if (min..=max).contains(&time) { Ok(time) } else { Err(format!("{text} is outside {range}")) }
}
