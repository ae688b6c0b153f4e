//! A worker of the bench, as its own process, so that its CPU time and its memory are its alone. It is the worker that every
//! program gets; its handler does nothing, or waits.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use anyhow::Result;
use tenure::{Context, KindOptions, RawJson, RunningWorker, Stats, Worker};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines, Stdin};
use tokio::time::{MissedTickBehavior, interval};

use super::clock::now_ns;
use super::ended::Ended;
use super::usage;
use super::words::{Completed, Counted, Ran, Speaker, Tell, Word};
use super::{KIND, LATE_KIND, queues};
use crate::connection::Connection;

/// Between two words on it. The last number is said at once.
const SAY_NS: u64 = 50_000_000;
/// Instants that are kept; more, and every second one is forgotten.
const POINTS_MAX: usize = 8_000;

/// What the hidden command `tenure bench-worker` is told.
#[derive(Debug, clap::Args)]
pub struct WorkerArgs {
    #[arg(long)]
    name: String,
    #[arg(long)]
    concurrency: usize,
    #[arg(long)]
    queues: u16,
    #[arg(long)]
    run_time_us: u64,
    #[arg(long, value_enum)]
    tell: Tell,
    /// How often it is looked how many jobs are completed: what an instant of a figure may be off by.
    #[arg(long)]
    look_us: u64,
    #[command(flatten)]
    connection: Connection,
}

/// Says that it is there, begins when it is told to, and works until stdin ends.
///
/// # Errors
/// The worker cannot start.
pub async fn run(args: WorkerArgs) -> Result<()> {
    let speaker = Speaker::start();
    let mut told = BufReader::new(tokio::io::stdin()).lines();
    speaker.say(Word::Ready);
    if told.next_line().await?.is_none() {
        return Ok(());
    }
    let begun_us = usage::own_cpu_us();
    let mut running = start(&args, &speaker).await?;
    speaker.say(Word::Registered);
    let mut watch = Watch { begun_us, ..Watch::default() };
    if args.tell == Tell::Each {
        answer(&mut told, &running, &speaker, begun_us).await;
    } else {
        tokio::select! {
            () = answer(&mut told, &running, &speaker, begun_us) => {}
            () = watch.keep(Duration::from_micros(args.look_us), &running, &speaker) => {}
        }
    }
    running.shutdown();
    let summary = running.join().await;
    let cpu_us = usage::own_cpu_us() - begun_us;
    speaker.finish(Ended::of(&summary.stats, summary.clean, watch.points, cpu_us, usage::own_peak_mb()));
    Ok(())
}

/// Counts whenever a line comes, until stdin ends.
async fn answer(told: &mut Lines<BufReader<Stdin>>, running: &RunningWorker, speaker: &Speaker, begun_us: u64) {
    while matches!(told.next_line().await, Ok(Some(_))) {
        let Stats { claims, flushes, .. } = running.stats();
        speaker.say(Word::Counted(Counted { claims, flushes, cpu_us: usage::own_cpu_us() - begun_us }));
    }
}

async fn start(args: &WorkerArgs, speaker: &Speaker) -> Result<RunningWorker> {
    let run_time = Duration::from_micros(args.run_time_us);
    let told = || Some(Arc::new(speaker.sender()));
    let each = if args.tell == Tell::Each { told() } else { None };
    let mut worker = Worker::builder(&args.connection.database_url)
        .schema(&args.connection.schema)
        .name(&args.name)
        .handle_raw(KIND, KindOptions::new(), move |ctx: Context, _: RawJson| handle(ctx, run_time, each.clone()));
    for queue in queues(args.queues) {
        worker = worker.queue(queue, args.concurrency);
    }
    if args.tell == Tell::Late {
        let late = told();
        let handler = move |ctx: Context, _: RawJson| handle(ctx, run_time, late.clone());
        worker = worker.handle_raw(LATE_KIND, KindOptions::new(), handler);
    }
    Ok(worker.start().await?)
}

async fn handle(
    ctx: Context,
    run_time: Duration,
    each: Option<Arc<Sender<Word>>>,
) -> Result<Option<RawJson>, tenure::Fail> {
    let started_ns = each.as_ref().map(|_| now_ns());
    if !run_time.is_zero() {
        // sleep: the handler takes as long as was asked for.
        tokio::time::sleep(run_time).await;
    }
    if let (Some(each), Some(started_ns)) = (each, started_ns) {
        let ran = Ran { job: ctx.job_id().get(), started_ns, took_ns: now_ns() - started_ns };
        let _ = each.send(Word::Runs(vec![ran])); // nobody listens once the parent is gone
    }
    Ok(None)
}

/// Sees how many jobs are completed, and when.
#[derive(Default)]
struct Watch {
    begun_us: u64,
    last: Completed,
    said: Completed,
    points: Vec<(u64, u64)>,
    /// Of so many changes one is kept, as a power of two.
    thinned: u32,
    changes: u64,
}

impl Watch {
    async fn keep(&mut self, look: Duration, running: &RunningWorker, speaker: &Speaker) {
        let mut ticks = interval(look);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Some(word) = self.look(running.stats().completed, now_ns()) {
                speaker.say(Word::Completed(word));
            }
        }
    }

    /// What is to be said now.
    fn look(&mut self, jobs: u64, now_ns: u64) -> Option<Completed> {
        if jobs > self.last.jobs {
            self.last = Completed { jobs, at_ns: now_ns, cpu_us: usage::own_cpu_us() - self.begun_us };
            self.keep_point();
            return (now_ns - self.said.at_ns >= SAY_NS).then(|| self.say());
        }
        // Nothing new for a moment: perhaps that was all.
        (self.last.jobs > self.said.jobs).then(|| self.say())
    }

    fn say(&mut self) -> Completed {
        self.said = self.last;
        self.last
    }

    fn keep_point(&mut self) {
        if self.changes.is_multiple_of(1 << self.thinned) {
            self.points.push((self.last.at_ns, self.last.jobs));
        }
        self.changes += 1;
        if self.points.len() >= POINTS_MAX {
            let mut n = 0;
            self.points.retain(|_| {
                n += 1;
                n % 2 == 1
            });
            self.thinned += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_is_said_as_soon_as_nothing_follows() {
        let mut watch = Watch::default();
        let start = 1_000_000_000;
        assert_eq!(watch.look(5, start).map(|word| word.jobs), Some(5));
        assert!(watch.look(9, start + 2_000_000).is_none(), "one was said a moment ago");
        let last = watch.look(9, start + 4_000_000).expect("nothing new");
        assert_eq!((last.jobs, last.at_ns), (9, start + 2_000_000));
        assert!(watch.look(9, start + 6_000_000).is_none(), "it is known");
        assert_eq!(watch.points, [(start, 5), (start + 2_000_000, 9)]);
    }

    #[test]
    fn of_very_many_instants_some_are_kept_in_their_order() {
        let mut watch = Watch::default();
        for n in 1..=5 * POINTS_MAX as u64 {
            watch.look(n, n * 1_000);
        }
        assert!(watch.points.len() < POINTS_MAX && watch.points.len() > POINTS_MAX / 4, "{}", watch.points.len());
        assert!(watch.points.is_sorted());
    }
}
