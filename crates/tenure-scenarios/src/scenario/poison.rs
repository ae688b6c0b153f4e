//! A job that kills its process in one of many ways, among good ones, on workers that a supervisor starts again.

use std::io;
use std::time::{Duration, Instant};

use tenure::testing::until_within;

use crate::handlers::ABORT_KIND;
use crate::process::{WorkerOptions, WorkerProcess};
use crate::{Act, Bound, Measure, MemoryGroup, Stage, size};

const LIMIT: Duration = Duration::from_secs(120);
/// Worker processes at a time.
const WORKERS: usize = 3;
/// Processes that a poisonous job may cost.
const DEATHS_MAX: f64 = 4.0;

/// Address space of a worker that takes too much: several times what it needs, and nothing of it is ever written to.
const ADDRESS_SPACE: u64 = 4 << 30;
/// Memory of a worker and its handlers in a control group: several times what it needs.
const MEMORY: u64 = 256 << 20;
/// The largest file of a worker that writes too much, and of its log.
const FILE_SIZE: u64 = 16 << 20;

/// Good jobs that take a while, and one whose handler aborts once it has reported its start.
pub async fn among_slow_jobs(stage: &Stage) -> Vec<Measure> {
    let (poison, good) = enqueue_among_slow(stage, async || stage.enqueue(&Act::Abort).await).await;
    play(stage, "slow", poison, &good, |_| ()).await
}

/// The same with a handler whose first instruction aborts the process.
pub async fn at_the_first_instruction(stage: &Stage) -> Vec<Measure> {
    let enqueue = async || stage.one("select tenure.enqueue($1, '{}')", &[&ABORT_KIND]).await;
    let (poison, good) = enqueue_among_slow(stage, enqueue).await;
    play(stage, "first instruction", poison, &good, |_| ()).await
}

/// The same with a handler that calls itself without an end.
pub async fn by_its_stack(stage: &Stage) -> Vec<Measure> {
    let (poison, good) = enqueue_among_slow(stage, async || stage.enqueue(&Act::OverflowStack).await).await;
    play(stage, "stack overflow", poison, &good, |_| ()).await
}

/// The same with a handler that takes memory until its process may have no more.
pub async fn by_its_memory(stage: &Stage) -> Vec<Measure> {
    let (poison, good) = enqueue_among_slow(stage, async || stage.enqueue(&Act::TakeMemory).await).await;
    play(stage, "memory", poison, &good, |options| options.address_space = Some(ADDRESS_SPACE)).await
}

/// The same with a handler that fills memory until the kernel kills its process, as it does in a container with a limit.
pub async fn by_its_memory_group(stage: &Stage) -> Vec<Measure> {
    let groups: io::Result<Vec<_>> = (0..WORKERS).map(|_| MemoryGroup::new(MEMORY)).collect();
    let groups = match groups {
        Ok(groups) => groups,
        Err(error) => {
            return vec![Measure::did_not_run("a limit of a control group", &format!("no group of memory: {error}"))];
        }
    };
    let (poison, good) = enqueue_among_slow(stage, async || stage.enqueue(&Act::FillMemory).await).await;
    play(stage, "memory of its control group", poison, &good, |options| {
        let worker: usize = options.name.parse().expect("workers are numbered");
        options.memory_group = Some(groups[worker].path().to_owned());
    })
    .await
}

/// The same with a handler that writes until its process is killed for it; and one that is told that the disk is full, which is
/// a failure like any other.
pub async fn by_its_files(stage: &Stage) -> Vec<Measure> {
    let told = stage.enqueue(&Act::FullDisk).await;
    let (poison, good) = enqueue_among_slow(stage, async || stage.enqueue(&Act::FillFile).await).await;
    let mut measures = play(stage, "full disk", poison, &good, |options| options.file_size = Some(FILE_SIZE)).await;
    // Some of its attempts may be lost beside the poison.
    let failed = "select count(distinct job_id) from tenure.attempt_error where job_id = $1 and cause <> 'worker_lost' and message like '%No space left%'";
    measures.push(Measure::count(
        "a handler that is told that the disk is full: a failure like any other",
        1,
        stage.count(failed, &[&told]).await as usize,
    ));
    measures
}

/// The poison between good jobs that take a while: its id, and theirs.
async fn enqueue_among_slow(stage: &Stage, enqueue: impl AsyncFnOnce() -> i64) -> (i64, Vec<i64>) {
    let (count, time) = (size::POISON_JOBS.at(stage.size), size::POISON_JOB.at(stage.size));
    let good = stage.enqueue_many(&Act::sleep(time), count / 2).await;
    let poison = enqueue().await;
    let more = stage.enqueue_many(&Act::sleep(time), count - count / 2).await;
    (poison, [good, more].concat())
}

/// Quick jobs, of which workers hold many that have not started, and the poison is one of them.
pub async fn among_quick_jobs(stage: &Stage) -> Vec<Measure> {
    let count = size::POISON_QUICK_JOBS.at(stage.size);
    let quick = Act::Sleep { ms: 0 };
    // Until its pace is known nothing is claimed ahead.
    let first = stage.enqueue_many(&quick, count / 4).await;
    let good = stage.enqueue_many(&quick, count / 4).await;
    let poison = stage.enqueue(&Act::Abort).await;
    let more = stage.enqueue_many(&quick, count - count / 2).await;
    play(stage, "quick", poison, &[first, good, more].concat(), |_| ()).await
}

async fn play(
    stage: &Stage,
    name: &str,
    poison: i64,
    good: &[i64],
    limit: impl Fn(&mut WorkerOptions),
) -> Vec<Measure> {
    let options = |n: usize| {
        let options = stage.worker(&format!("{n}")).concurrency(10);
        options.with(|o| o.kinds = vec!["act".into(), ABORT_KIND.into()]).with(&limit)
    };
    let mut supervised = Supervised::start(stage, (0..WORKERS).map(options).collect());
    let began = Instant::now();
    until_within(LIMIT, "the good jobs have completed and the poison is buried", async || {
        supervised.look().await;
        let statuses = stage.statuses().await;
        let done = statuses.get("completed") == Some(&(good.len() as i64)) && stage.status(poison).await == "dead";
        if done { Ok(()) } else { Err(format!("{statuses:?}, {} deaths", supervised.deaths)) }
    })
    .await;
    let took = began.elapsed().as_secs_f64();
    let (deaths, workers) = supervised.end();
    for worker in workers {
        worker.shut_down().await;
    }
    let starts = "select count(*) from tenure.attempt_error where job_id = $1 and cause = 'worker_lost'";
    let buried = "select count(*) from tenure.dead_letter where cause = 'worker_lost' and job_id = $1";
    let most = "select coalesce(max(attempt), 0)::bigint from tenure.outcome where job_id = any($1)";
    let claim = |text: &str| format!("poison ({name}): {text}");
    vec![
        Measure::count(
            claim("good jobs completed"),
            good.len(),
            stage.count("select count(*) from tenure.outcome where state = 'c'", &[]).await as usize,
        ),
        Measure::count(claim("buried as what loses its workers"), 1, stage.count(buried, &[&poison]).await as usize),
        Measure::count(claim("its starts"), 3, stage.count(starts, &[&poison]).await as usize),
        Measure::new(claim("worker processes it killed"), Bound::AtMost(DEATHS_MAX), deaths as f64, ""),
        Measure::new(
            claim("attempts that its worst neighbour needed"),
            Bound::AtMost(3.0),
            stage.count(most, &[&good]).await as f64,
            "",
        ),
        Measure::new(claim("until all was done"), Bound::Shown, took, "s"),
    ]
}

/// Worker processes that are started again when they die.
struct Supervised<'a> {
    stage: &'a Stage,
    options: Vec<WorkerOptions>,
    workers: Vec<WorkerProcess>,
    deaths: usize,
}

impl<'a> Supervised<'a> {
    fn start(stage: &'a Stage, options: Vec<WorkerOptions>) -> Supervised<'a> {
        let workers = options.iter().map(WorkerProcess::spawn).collect();
        Supervised { stage, options, workers, deaths: 0 }
    }

    async fn look(&mut self) {
        for (worker, options) in self.workers.iter_mut().zip(&self.options) {
            if worker.status().is_some() {
                self.deaths += 1;
                self.stage.execute("insert into death (pid) values ($1)", &[&worker.pid()]).await;
                *worker = WorkerProcess::spawn(options);
            }
        }
    }

    /// How many have died in all, and those that run.
    fn end(mut self) -> (usize, Vec<WorkerProcess>) {
        let mut alive = Vec::new();
        for mut worker in self.workers.drain(..) {
            match worker.status() {
                Some(_) => self.deaths += 1,
                None => alive.push(worker),
            }
        }
        (self.deaths, alive)
    }
}
