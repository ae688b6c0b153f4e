//! A job that aborts its process, among good ones, on workers that a supervisor starts again.

use std::time::{Duration, Instant};

use tenure::testing::until_within;

use crate::handlers::ABORT_KIND;
use crate::process::{WorkerOptions, WorkerProcess};
use crate::{Act, Bound, Measure, Stage, size};

const LIMIT: Duration = Duration::from_secs(120);
/// Worker processes at a time.
const WORKERS: usize = 3;
/// Processes that a poisonous job may cost.
const DEATHS_MAX: f64 = 4.0;

/// Good jobs that take a while, and one whose handler aborts once it has reported its start.
pub async fn among_slow_jobs(stage: &Stage) -> Vec<Measure> {
    let (count, time) = (size::POISON_JOBS.at(stage.size), size::POISON_JOB.at(stage.size));
    let good = stage.enqueue_many(&Act::sleep(time), count / 2).await;
    let poison = stage.enqueue(&Act::Abort).await;
    let more = stage.enqueue_many(&Act::sleep(time), count - count / 2).await;
    play(stage, "slow", poison, &[good, more].concat()).await
}

/// The same with a handler whose first instruction aborts the process.
pub async fn at_the_first_instruction(stage: &Stage) -> Vec<Measure> {
    let (count, time) = (size::POISON_JOBS.at(stage.size), size::POISON_JOB.at(stage.size));
    let good = stage.enqueue_many(&Act::sleep(time), count / 2).await;
    let poison: i64 = stage.one("select tenure.enqueue($1, '{}')", &[&ABORT_KIND]).await;
    let more = stage.enqueue_many(&Act::sleep(time), count - count / 2).await;
    play(stage, "first instruction", poison, &[good, more].concat()).await
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
    play(stage, "quick", poison, &[first, good, more].concat()).await
}

async fn play(stage: &Stage, name: &str, poison: i64, good: &[i64]) -> Vec<Measure> {
    let options = |n: usize| {
        stage.worker(&format!("{n}")).concurrency(10).with(|o| o.kinds = vec!["act".into(), ABORT_KIND.into()])
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
