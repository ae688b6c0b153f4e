//! What can be asked of a measurement.

use std::time::Duration;

use serde::Serialize;

use super::enqueue::Form;
use super::statistics::Statistics;
use crate::connection::Connection;
use crate::{number, when};

/// Jobs of one measurement, at most.
const JOBS_MAX: u32 = 100_000_000;

/// Jobs of one steady load, at most: what is known of each stays in memory until the end, some 100 bytes.
const MIXED_JOBS_MAX: u64 = 10_000_000;

/// Where it is measured, and how often.
#[derive(Debug, Clone, clap::Args)]
pub struct Common {
    /// Repeat everything so often, 1 to 100: what is compared takes turns, and the medians are printed
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = number::within::<u32>(1..=100))]
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
    #[arg(long, value_name = "BYTES", default_value_t = 60, value_parser = number::within::<u32>(20..=65_536))]
    pub payload: u32,

    /// Have so many finished jobs present, at most 1 billion
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = number::within::<u64>(0..=1_000_000_000))]
    pub history: u64,

    /// Have so many jobs present that are due tomorrow, each at its own instant, at most 100 million
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = number::within::<u64>(0..=100_000_000))]
    pub scheduled: u64,

    /// Another session holds an old snapshot meanwhile, so that nothing dead can be removed
    #[arg(long)]
    pub pinned: bool,
}

/// Who enqueues, and how long what they enqueue takes.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Load {
    /// Producers that enqueue, each with a connection of its own, 1 to 200
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = number::within::<u16>(1..=200))]
    pub producers: u16,

    /// How long a handler takes, up to 1m. It waits, and burns nothing
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = run_time)]
    pub run_time: Duration,
}

/// Who works, where it is not what is compared.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Hands {
    /// Jobs that a worker runs at a time, 1 to 10000
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = number::within::<u16>(1..=10_000))]
    pub concurrency: u16,

    /// Worker processes, 1 to 256
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = number::within::<u16>(1..=256))]
    pub workers: u16,
}

/// How jobs are enqueued.
#[derive(Debug, Clone, clap::Args)]
pub struct EnqueueOptions {
    /// How jobs are enqueued: one by one, each with its own commit; by arrays; by COPY
    #[arg(long = "form", value_name = "FORM", value_enum, value_delimiter = ',', default_value = "single,arrays,copy")]
    pub forms: Vec<Form>,

    /// Producers at a time, each with a connection of its own, 1 to 200; several numbers are compared
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,4", value_parser = number::within::<u16>(1..=200))]
    pub producers: Vec<u16>,

    /// Jobs per transaction of arrays and COPY, 1 to 1000000
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = number::within::<u32>(1..=1_000_000))]
    pub batch: u32,

    /// Jobs of each measurement, 1 to 100000000 [default: 200000, one by one 20000]
    #[arg(long, value_name = "N", value_parser = number::within::<u32>(1..=JOBS_MAX))]
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
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,8,32,128", value_parser = number::within::<u16>(1..=10_000))]
    pub concurrency: Vec<u16>,

    /// Worker processes, 1 to 256; several numbers are compared
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1", value_parser = number::within::<u16>(1..=256))]
    pub workers: Vec<u16>,

    /// Queues over which the jobs are spread, 1 to 10000, each worker working on all of them; several numbers are compared
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1", value_parser = number::within::<u16>(1..=10_000))]
    pub queues: Vec<u16>,

    /// With and without statistics: without, the two functions that keep them do nothing, in the bench's own schema. For
    /// `cargo xtask prove speed`; there is no such setting for a queue
    #[arg(long, value_name = "ON", value_enum, value_delimiter = ',', default_value = "on", hide = true)]
    pub statistics: Vec<Statistics>,

    /// Jobs of each measurement, 1 to 100000000
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = number::within::<u32>(1..=JOBS_MAX))]
    pub jobs: u32,

    /// How the jobs were enqueued: one by one each has a bundle of its own
    #[arg(long, value_name = "FORM", value_enum, default_value = "arrays")]
    pub form: Form,

    #[command(flatten)]
    pub load: Load,
    #[command(flatten)]
    pub scene: Scene,
    #[command(flatten)]
    pub common: Common,
}

/// How an idle worker is woken.
#[derive(Debug, Clone, clap::Args)]
pub struct LatencyOptions {
    /// Jobs, enqueued one after the other, 1 to 100000
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = number::within::<u32>(1..=100_000))]
    pub jobs: u32,

    /// How long the worker is idle between two of them, up to 1m; between half of it and one and a half
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = run_time)]
    pub pause: Duration,

    /// Jobs that the worker may run at a time, 1 to 10000
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = number::within::<u16>(1..=10_000))]
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
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = number::within::<u32>(1..=100_000))]
    pub rate: u32,

    /// For how long, 1s to 1h
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = load_time)]
    pub duration: Duration,

    #[command(flatten)]
    pub load: Load,
    #[command(flatten)]
    pub hands: Hands,
    #[command(flatten)]
    pub scene: Scene,
    #[command(flatten)]
    pub common: Common,
}

/// Workers that have nothing to do, and are woken.
#[derive(Debug, Clone, clap::Args)]
pub struct IdleOptions {
    /// Worker processes, 1 to 256
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = number::within::<u16>(1..=256))]
    pub workers: u16,

    /// Jobs that a worker may run at a time, 1 to 10000
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = number::within::<u16>(1..=10_000))]
    pub concurrency: u16,

    /// For how long they are watched while nothing happens, 1s to 1h
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = load_time)]
    pub idle: Duration,

    /// Jobs, enqueued one after the other, 1 to 100000
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = number::within::<u32>(1..=100_000))]
    pub jobs: u32,

    /// How long nothing happens between two of them, up to 1m; between half of it and one and a half
    #[arg(long, value_name = "TIME", default_value = "300ms", value_parser = run_time)]
    pub pause: Duration,

    /// Jobs that are then enqueued at once, 1 to 1000000
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = number::within::<u32>(1..=1_000_000))]
    pub burst: u32,

    #[command(flatten)]
    pub scene: Scene,
    #[command(flatten)]
    pub common: Common,
}

/// Jobs that are committed late, under a full load.
#[derive(Debug, Clone, clap::Args)]
pub struct LateOptions {
    /// Jobs that are committed late, 1 to 10000
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = number::within::<u32>(1..=10_000))]
    pub jobs: u32,

    /// How long each of their transactions stays open after the enqueue, 10ms to 1m
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = hold_time)]
    pub hold: Duration,

    /// Such transactions at a time, 1 to 100
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = number::within::<u16>(1..=100))]
    pub at_once: u16,

    /// Producers that keep the workers busy, 1 to 200
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = number::within::<u16>(1..=200))]
    pub producers: u16,

    #[command(flatten)]
    pub hands: Hands,
    #[command(flatten)]
    pub scene: Scene,
    #[command(flatten)]
    pub common: Common,
}

/// What the server does without a queue.
#[derive(Debug, Clone, clap::Args)]
pub struct FloorOptions {
    /// Rows of the COPY, 1 to 100000000
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = number::within::<u32>(1..=JOBS_MAX))]
    pub rows: u32,

    /// Rows per transaction of the COPY, 1 to 1000000
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = number::within::<u32>(1..=1_000_000))]
    pub batch: u32,

    /// Notifications and commits that are timed, 1 to 100000
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = number::within::<u32>(1..=100_000))]
    pub trips: u32,

    /// Bytes of each row's payload, 20 to 65536
    #[arg(long, value_name = "BYTES", default_value_t = 60, value_parser = number::within::<u32>(20..=65_536))]
    pub payload: u32,

    #[command(flatten)]
    pub common: Common,
}

impl MixedOptions {
    /// How many are enqueued in all.
    pub fn jobs(&self) -> u64 {
        (f64::from(self.rate) * self.duration.as_secs_f64()).round() as u64
    }

    /// Why it makes no sense.
    pub fn nonsense(&self) -> Option<String> {
        let jobs = self.jobs();
        (jobs > MIXED_JOBS_MAX).then(|| {
            format!(
                "--rate {} for {:?} makes {jobs} jobs, each of which is remembered: {MIXED_JOBS_MAX} at most; lower --rate or --duration",
                self.rate, self.duration
            )
        })
    }

    /// What to expect when the handlers take longer than there are slots for them.
    pub fn overload(&self) -> Option<String> {
        let needed = (f64::from(self.rate) * self.load.run_time.as_secs_f64()).ceil() as u64;
        let there = u64::from(self.hands.workers) * u64::from(self.hands.concurrency);
        (needed > there).then(|| {
            format!(
                "{} jobs a second that take {:?} need {needed} handlers at a time, and there are {there}: jobs will wait longer and \
                 longer (more --concurrency or --workers)",
                self.rate, self.load.run_time
            )
        })
    }
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Typed {
        #[command(flatten)]
        mixed: MixedOptions,
    }

    fn mixed(typed: &str) -> MixedOptions {
        Typed::parse_from(["mixed"].into_iter().chain(typed.split_whitespace())).mixed
    }

    #[test]
    fn a_load_that_nobody_could_remember_is_refused() {
        assert_eq!(mixed("--rate 2000 --duration 1h").nonsense(), None);
        let said = mixed("--rate 100000 --duration 1h").nonsense().expect("too many");
        assert!(said.contains("360000000 jobs") && said.contains("lower --rate or --duration"), "{said}");
    }

    #[test]
    fn a_load_for_which_there_are_too_few_handlers_is_told() {
        assert_eq!(mixed("--rate 500 --run-time 20ms").overload(), None);
        let said = mixed("--rate 500 --run-time 100ms --workers 1").overload().expect("too few");
        assert!(said.contains("need 50 handlers at a time, and there are 32"), "{said}");
    }
}
