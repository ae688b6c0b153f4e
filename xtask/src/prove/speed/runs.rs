//! What is run, with the arguments of `tenure bench`.

use std::time::Duration;

use tenure_scenarios::{Size, size};

/// Jobs that a worker runs at a time, where it is not what is compared.
pub(super) const CONCURRENCY: u64 = 32;
/// The settings that are compared, and the one beyond.
pub(super) const CONCURRENCIES: [u64; 4] = [1, 8, 32, 128];
/// Worker processes on one database.
pub(super) const PROCESSES: [u64; 5] = [1, 2, 4, 16, 64];
/// Programs that enqueue at a time: one against one COPY, and several.
pub(super) const PRODUCERS: [u64; 2] = [1, 4];

/// One call of `tenure bench`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Run {
    /// NOTIFY, a durable commit, COPY.
    Floor,
    /// By arrays and by COPY.
    Enqueue,
    /// By every concurrency, enqueued in bulk.
    Work,
    /// Enqueued one by one, each with its own commit.
    Singles,
    /// One job at a time to an idle worker.
    Latency,
    /// Very many in a row: what the next three are compared with.
    Row,
    /// The same under an old snapshot.
    Pinned,
    /// The same beside finished jobs.
    History,
    /// The same beside jobs for tomorrow.
    Scheduled,
    /// Handlers that wait, with larger payloads.
    Memory,
    /// By so many worker processes.
    Processes,
    /// Very many in a row that were enqueued one by one: each is a row of its own, which becomes a dead one.
    SinglesRow,
    /// The same under an old snapshot.
    SinglesPinned,
    /// Commits that come late under a full load.
    Late,
    /// Spread over very many queues, and the same in one.
    Queues,
    /// Very many workers without work, woken by one job at a time and by many.
    Idle,
    /// Payloads of 1 KB.
    Payload1K,
    /// Payloads of 64 KB, the most that a queue takes unless it is told otherwise.
    Payload64K,
    /// With statistics and without.
    Statistics,
}

impl Run {
    /// What `tenure bench` is told.
    pub(super) fn arguments(self, size: Size) -> Vec<String> {
        let mut arguments = self.measured(size);
        arguments.extend(time("--within", size::SPEED_RUN_MAX.at(size)));
        arguments
    }

    fn measured(self, size: Size) -> Vec<String> {
        let number = |option: &str, value: usize| vec![option.to_owned(), value.to_string()];
        let list = |option: &str, values: &[u64]| {
            vec![option.to_owned(), values.iter().map(u64::to_string).collect::<Vec<_>>().join(",")]
        };
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let (jobs, one) = (number("--jobs", size::SPEED_JOBS.at(size)), list("--concurrency", &[CONCURRENCY]));
        let row = || [words("work"), number("--jobs", size::SPEED_ROW.at(size)), one.clone()].concat();
        let singles = |jobs| [words("work --form single --producers 16"), number("--jobs", jobs), one.clone()].concat();
        match self {
            Run::Floor => [words("floor"), number("--rows", size::SPEED_JOBS.at(size))].concat(),
            Run::Enqueue => [words("enqueue --form arrays,copy"), jobs, list("--producers", &PRODUCERS)].concat(),
            Run::Work => [words("work"), jobs, list("--concurrency", &CONCURRENCIES)].concat(),
            Run::Singles => singles(size::SPEED_SINGLES.at(size)),
            Run::Latency => [words("latency"), number("--jobs", size::SPEED_LATENCY.at(size))].concat(),
            Run::Row => row(),
            Run::Pinned => [row(), words("--pinned")].concat(),
            Run::History => [row(), number("--history", size::SPEED_HISTORY.at(size))].concat(),
            Run::Scheduled => [row(), number("--scheduled", size::SPEED_SCHEDULED.at(size))].concat(),
            Run::Memory => {
                let jobs = number("--jobs", size::SPEED_MEMORY_JOBS.at(size));
                [words("work --concurrency 128 --payload 1024 --run-time 5ms"), jobs].concat()
            }
            Run::Processes => {
                let jobs = number("--jobs", size::SPEED_PROCESSES_JOBS.at(size));
                [words("work --concurrency 8"), jobs, list("--workers", &PROCESSES)].concat()
            }
            Run::SinglesRow => singles(size::SPEED_SINGLES_ROW.at(size)),
            Run::SinglesPinned => [singles(size::SPEED_SINGLES_ROW.at(size)), words("--pinned")].concat(),
            Run::Late => {
                let hold = time("--hold", size::SPEED_LATE_HOLD.at(size)).to_vec();
                [words("late --at-once 4"), number("--jobs", size::SPEED_LATE.at(size)), hold].concat()
            }
            Run::Queues => {
                let queues = list("--queues", &[1, size::SPEED_QUEUES.at(size) as u64]);
                [words("work --form copy --concurrency 8"), jobs, queues].concat()
            }
            Run::Idle => [
                words("idle"),
                number("--workers", size::SPEED_IDLE_WORKERS.at(size)),
                number("--jobs", size::SPEED_IDLE_JOBS.at(size)),
                number("--burst", size::SPEED_BURST.at(size)),
                time("--idle", size::SPEED_IDLE.at(size)).to_vec(),
            ]
            .concat(),
            Run::Payload1K => [words("work --payload 1024"), number("--jobs", size::SPEED_1K.at(size)), one].concat(),
            Run::Payload64K => {
                [words("work --payload 65536"), number("--jobs", size::SPEED_64K.at(size)), one].concat()
            }
            Run::Statistics => {
                let jobs = number("--jobs", size::SPEED_STATISTICS.at(size));
                [words("work --statistics on,off"), jobs, one].concat()
            }
        }
    }
}

/// An option whose value is a time of whole seconds.
fn time(option: &str, value: Duration) -> [String; 2] {
    [option.to_owned(), format!("{}s", value.as_secs())]
}
