//! Enqueue: one by one, by arrays, by COPY; by one producer or several.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use tenure::{Client, Enqueue, JobOptions};
use tokio::task::JoinSet;

use super::KIND;
use super::meter::{Cost, Meter};
use super::options::EnqueueOptions;
use super::payload::Payloads;
use super::place::Place;
use super::report::{Figure, Run};
use super::rounds::in_turns;
use super::usage;

/// Where jobs of the warm-up stand: nobody takes them, and no figure counts them.
const WARM_QUEUE: &str = "warm";
/// Jobs of the measurement when no number is named.
const JOBS_SINGLE: u32 = 20_000;
const JOBS_BULK: u32 = 200_000;

/// How jobs are enqueued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// `enqueue`: a commit each
    Single,
    /// `enqueue_many`
    Arrays,
    /// `enqueue_copy`
    Copy,
}

impl Form {
    /// As it is typed.
    pub fn name(self) -> &'static str {
        match self {
            Form::Single => "single",
            Form::Arrays => "arrays",
            Form::Copy => "copy",
        }
    }

    fn jobs(self) -> u32 {
        if self == Form::Single { JOBS_SINGLE } else { JOBS_BULK }
    }
}

/// Programs that enqueue: each has a connection of its own.
pub struct Producers {
    clients: Vec<Client>,
    form: Form,
    batch: usize,
    payloads: Arc<Payloads>,
    queues: Arc<[String]>,
}

/// What enqueuing so many jobs took.
#[derive(Debug, Clone, Copy)]
pub struct Enqueued {
    /// No job that was there before has a larger id.
    pub before: i64,
    pub seconds: f64,
    pub cost: Cost,
    /// CPU time of this process meanwhile.
    pub client_cpu_us: f64,
}

impl Producers {
    /// Connects them, and lets each enqueue once, so that no measurement pays for what happens once per connection.
    ///
    /// # Errors
    /// The database fails.
    pub async fn connect(
        place: &Place,
        producers: u16,
        form: Form,
        batch: u32,
        payloads: &Arc<Payloads>,
        queues: u16,
    ) -> Result<Producers> {
        let mut clients = Vec::new();
        for _ in 0..producers {
            clients.push(place.client(1).connect().await?);
        }
        let batch = batch as usize;
        let queues = super::queues(queues).into();
        let producers = Producers { clients, form, batch, payloads: payloads.clone(), queues };
        producers.share(producers.clients.len(), &[WARM_QUEUE.to_owned()].into()).await?;
        Ok(producers)
    }

    /// Enqueues so many jobs and measures it. The producers end with it.
    ///
    /// # Errors
    /// The database fails.
    pub async fn measure(self, place: &Place, jobs: u32) -> Result<Enqueued> {
        let before: i64 = place.sql.query_one("select last_value * 128 + 127 from block_id", &[]).await?.get(0);
        let meter = Meter::start(place).await?;
        let (start, cpu) = (Instant::now(), usage::own_cpu_us());
        self.share(jobs as usize, &self.queues).await?;
        let (seconds, client_cpu_us) = (start.elapsed().as_secs_f64(), (usage::own_cpu_us() - cpu) as f64);
        let mut cost = meter.cost(place).await?;
        drop(self);
        meter.settle(place, &mut cost).await?;
        Ok(Enqueued { before, seconds, cost, client_cpu_us })
    }

    /// All producers together enqueue so many.
    async fn share(&self, jobs: usize, queues: &Arc<[String]>) -> Result<()> {
        let mut all = JoinSet::new();
        let count = self.clients.len();
        for (n, client) in self.clients.iter().enumerate() {
            let share = jobs / count + usize::from(n < jobs % count);
            let (client, form, batch, payloads) = (client.clone(), self.form, self.batch, self.payloads.clone());
            let queues = queues.clone();
            all.spawn(async move { produce(&client, form, share, batch, &queues, &payloads).await });
        }
        while let Some(done) = all.join_next().await {
            done.context("a producer panicked")??;
        }
        Ok(())
    }
}

async fn produce(
    client: &Client,
    form: Form,
    jobs: usize,
    batch: usize,
    queues: &[String],
    payloads: &Payloads,
) -> Result<()> {
    let options = |n: usize| JobOptions::new().queue(&queues[n % queues.len()]);
    let job = |n: usize| Enqueue::raw(KIND, payloads.get(n).clone()).options(options(n));
    // An array is of one queue: as many jobs as a COPY of all queues would have brought it.
    let of_form = match form {
        Form::Single => 1,
        Form::Arrays => batch.div_ceil(queues.len()),
        Form::Copy => batch,
    };
    let (mut left, mut turn) = (jobs, 0);
    while left > 0 {
        let count = of_form.min(left);
        match form {
            Form::Single => drop(client.enqueue(job(left)).await?),
            Form::Arrays => drop(client.enqueue_many(KIND, payloads.take(count), options(turn)).await?),
            Form::Copy => drop(client.enqueue_copy((0..count).map(job)).await?),
        }
        left -= count;
        turn += 1;
    }
    Ok(())
}

/// Measures every form with every number of producers.
///
/// # Errors
/// The database fails.
pub async fn run(place: &Place, options: &EnqueueOptions) -> Result<Vec<Run>> {
    let mut turns = Vec::new();
    for &form in &options.forms {
        for &producers in &options.producers {
            let jobs = options.jobs.unwrap_or(form.jobs());
            turns.push((format!("{jobs} jobs, {}, {producers} producers", form.name()), (form, producers, jobs)));
        }
    }
    in_turns(place, &options.scene, options.common.rounds, &turns, async |(form, producers, jobs), payloads| {
        let all = Producers::connect(place, producers, form, options.batch, payloads, 1).await?;
        let enqueued = all.measure(place, jobs).await?;
        let stored = "select count(*) from job where id > $1";
        let stored: i64 = place.sql.query_one(stored, &[&enqueued.before]).await?.get(0);
        ensure!(stored == i64::from(jobs), "{stored} jobs are stored, {jobs} were enqueued");
        Ok(run_of(form, producers, jobs, &enqueued))
    })
    .await
}

fn run_of(form: Form, producers: u16, jobs: u32, enqueued: &Enqueued) -> Run {
    let count = f64::from(jobs);
    Run::new()
        .key("form", form.name())
        .key("producers", producers)
        .figure(Figure::rate("jobs_per_s", "jobs/s", count / enqueued.seconds))
        .cost(&enqueued.cost, count)
        .figure(Figure::tenths("client_cpu_us_per_job", "client CPU us/job", enqueued.client_cpu_us / count))
        .more("jobs", jobs)
        .more("seconds", enqueued.seconds)
}
