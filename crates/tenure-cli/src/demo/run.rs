//! A run from the walk to the report.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures_util::future::try_join_all;
use tenure::{Client, JobId, Limit, Rate};
use tokio::time::{MissedTickBehavior, interval};
use uuid::Uuid;

use super::database::{Database, Lent};
use super::model_client::ModelClient;
use super::progress::Display;
use super::report::Report;
use super::search::search;
use super::store::{self, Progress};
use super::walk::{Corpus, Skipped, walk};
use super::workers::{Killed, Workers};
use super::{pipeline, schema};
use crate::connection::Connection;
use crate::process::Process;

/// How many files are taken in at once: each waits for its commit to be on disk.
const FEEDERS: usize = 4;
/// One more looks.
const CONNECTIONS: usize = FEEDERS + 1;
const LOOK_INTERVAL: Duration = Duration::from_millis(150);
/// A run that does not move for so long is reported as it stands.
const STALL_MAX: Duration = Duration::from_secs(60);
/// Everything seems done, or nothing moved for so long: ask whether every job has ended.
const QUIET: Duration = Duration::from_secs(2);
/// How many workers may be killed before one of them held a job in the moment of its death.
const KILLS_MAX: usize = 5;

/// What is asked for.
#[derive(Debug)]
pub struct Options {
    pub path: Option<PathBuf>,
    pub workers: usize,
    pub chaos: bool,
    pub seed: u64,
    pub query: String,
    /// Requests that the model server takes in each second.
    pub provider_rate: Option<u32>,
    /// Whether that is declared as a limit.
    pub declare_limit: bool,
    pub connection: Connection,
}

/// Runs the demo over the files and reports; nothing when `stop` came first. No process of it is left afterwards.
///
/// # Errors
/// There are no files, the database does not do, or a process of the demo ends by itself.
pub async fn run(options: &Options, stop: impl Future<Output = ()>) -> Result<Option<Report>> {
    let mut processes = Processes::default();
    let outcome = tokio::select! {
        report = perform(options, &mut processes) => report.map(Some),
        () = stop => Ok(None),
    };
    processes.end().await;
    outcome
}

/// The processes of a run, kept where they can be ended whatever became of the run.
#[derive(Default)]
struct Processes {
    model: Option<Process>,
    workers: Option<Workers>,
}

impl Processes {
    async fn end(self) {
        if let Some(mut workers) = self.workers {
            workers.end().await;
        }
        if let Some(model) = self.model {
            model.end().await;
        }
    }
}

async fn perform(options: &Options, processes: &mut Processes) -> Result<Report> {
    let corpus = walk(options.path.as_deref())?;
    introduce(&corpus);
    let client = options.connection.connect().await?;
    let database = Database::new(&options.connection, CONNECTIONS)?;
    let mut look = database.lend().await.context("the demo's own connection")?;
    prepare(&client, &mut look).await?;

    let started = Instant::now();
    let id = Uuid::new_v4().simple().to_string();
    let seed = options.seed.to_string();
    let rate = options.provider_rate.map(|rate| rate.to_string());
    let mut arguments = vec!["demo-model-server", "--seed", &seed];
    arguments.extend(rate.iter().flat_map(|rate| ["--rate", rate]));
    let model = processes.model.insert(Process::start("the model server", &arguments, None)?);
    if let Some(rate) = options.provider_rate.filter(|_| options.declare_limit) {
        client.set_limit(pipeline::MODEL_LIMIT, Limit::new().rate(Rate::per_second(rate))).await?;
    }
    let line = model.first_line().await?;
    let model_url = line.strip_prefix("listening on ").context("the model server did not say where it listens")?;
    let workers = processes.workers.insert(Workers::new(&id, model_url, options.declare_limit, &options.connection));
    let scene = Scene { options, corpus: &corpus, database: &database, client: &client, id: &id, started };
    scene.play(&mut look, workers, &ModelClient::new(model_url)?).await
}

/// Everything of a run that does not change.
struct Scene<'a> {
    options: &'a Options,
    corpus: &'a Corpus,
    database: &'a Database,
    client: &'a Client,
    id: &'a str,
    started: Instant,
}

impl Scene<'_> {
    async fn play(&self, look: &mut Lent<'_>, workers: &mut Workers, model: &ModelClient) -> Result<Report> {
        for _ in 0..self.options.workers {
            workers.start_one().await?;
        }
        let ((), killed) = tokio::try_join!(self.feed(), self.watch(look, workers))?;
        let wall = self.started.elapsed();
        // The search is billed too; what the run cost is asked before.
        let bill = model.bill().await.context("the model server gives no bill")?;
        let report = Report::from_database(look, &bill).await?;
        let hits = search(look, model, self.id, &self.options.query).await?;
        let query = self.options.query.clone();
        Ok(Report { wall_s: wall.as_secs_f64(), seed: self.options.seed, killed, query, hits, ..report })
    }

    /// Takes in every file, each in a transaction of its own.
    async fn feed(&self) -> Result<()> {
        let files = &self.corpus.files;
        let shares = files.chunks(files.len().div_ceil(FEEDERS)).map(|share| self.feed_share(share));
        try_join_all(shares).await.map(drop)
    }

    async fn feed_share(&self, files: &[PathBuf]) -> Result<()> {
        let mut connection = self.database.lend().await?;
        for file in files {
            let path = file.to_string_lossy();
            let name = self.name_of(file);
            let mut tx = connection.transaction().await?;
            pipeline::take_in(self.client, &mut tx, self.id, &path, &name).await?;
            tx.commit().await?;
        }
        Ok(())
    }

    fn name_of(&self, file: &Path) -> String {
        let inside = self.corpus.sources.iter().find_map(|source| file.strip_prefix(&source.folder).ok());
        inside.filter(|name| name.components().next().is_some()).unwrap_or(file).to_string_lossy().into_owned()
    }

    /// Shows progress, kills where that was asked for, and returns when every job has ended.
    async fn watch(&self, look: &Lent<'_>, workers: &mut Workers) -> Result<Vec<Killed>> {
        let files = self.corpus.files.len();
        let mut display = Display::new();
        let mut chaos = Chaos { wanted: self.options.chaos, killed: Vec::new() };
        let mut moved = (Progress::default(), Instant::now());
        let mut asked = Instant::now();
        let mut ticks = interval(LOOK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let progress = store::progress(look).await?;
            if progress != moved.0 {
                moved = (progress, Instant::now());
            }
            display.show(files, progress);
            workers.check_alive()?;
            chaos.strike(look, workers, progress, &display).await?;
            let quiet = moved.1.elapsed() > QUIET && asked.elapsed() > QUIET;
            if progress.documents == files as u64 && (all_stored(progress) || quiet) {
                asked = Instant::now();
                if store::jobs_without_end(look).await? == 0 {
                    break;
                }
            }
            if moved.1.elapsed() > STALL_MAX {
                display.say(&format!("nothing moved for {} s: the run ends here", STALL_MAX.as_secs()));
                break;
            }
        }
        display.finish(files, moved.0);
        Ok(chaos.killed)
    }
}

fn all_stored(progress: Progress) -> bool {
    progress.split == progress.documents && progress.stored == progress.chunks
}

/// Kills one worker in the middle of the run, while it runs jobs.
struct Chaos {
    wanted: bool,
    killed: Vec<Killed>,
}

impl Chaos {
    async fn strike(
        &mut self,
        look: &Lent<'_>,
        workers: &mut Workers,
        progress: Progress,
        display: &Display,
    ) -> Result<()> {
        let middle = progress.chunks > 0 && progress.stored * 4 >= progress.chunks && !all_stored(progress);
        if !self.wanted || !middle {
            return Ok(());
        }
        if let Some(killed) = workers.kill_the_busiest(look).await? {
            display.say(&format!(
                "chaos: kill -9 of worker {} (pid {}) while it ran {} jobs; {} takes its place",
                killed.name, killed.pid, killed.jobs, killed.replacement
            ));
            self.wanted = killed.jobs == 0 && self.killed.len() + 1 < KILLS_MAX;
            self.killed.push(killed);
        }
        Ok(())
    }
}

/// Makes the database ready: the tables of tenure, no jobs of a former run, the demo's own tables empty.
async fn prepare(client: &Client, look: &mut Lent<'_>) -> Result<()> {
    schema::lock(look).await?;
    client.migrate(tenure::MigrateOptions::default()).await?;
    let former = schema::former_jobs(look).await?;
    if !former.is_empty() {
        eprintln!("a former run was interrupted: cancelling its {} jobs", former.len());
    }
    for job in former {
        client.cancel(JobId::from(job)).await?;
    }
    let tx = look.transaction().await?;
    schema::reset(&tx).await?;
    tx.commit().await?;
    Ok(())
}

fn introduce(corpus: &Corpus) {
    let count = corpus.files.len();
    eprintln!("tenure demo: {count} {}", if count == 1 { "file" } else { "files" });
    for source in &corpus.sources {
        eprintln!("  {:>5} from {} ({})", source.files, source.what, source.folder.display());
    }
    let Skipped { binary, large, empty, unreadable, over_limit } = corpus.skipped;
    if binary + large + empty + unreadable > 0 {
        eprintln!("  skipped: {binary} binary, {large} over 1 MiB, {empty} empty, {unreadable} unreadable");
    }
    if over_limit {
        eprintln!("  there are more; a run takes at most {}", super::walk::FILES_MAX);
    }
}
