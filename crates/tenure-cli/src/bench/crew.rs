//! The worker processes of a measurement, as their parent sees them.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use futures_util::future::join_all;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::timeout;

use super::clock::now_ns;
use super::ended::Ended;
use super::place::Place;
use super::progress::Progress;
use super::words::{Completed, Counted, Ran, Tell, Word};
use crate::process::{Process, Said};

/// When nothing is heard for so long, beside what a handler takes, the measurement is given up.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// A worker looks this often how much is done.
const LOOK_MIN: Duration = Duration::from_millis(2);
/// All of them together do not look more often: what looks takes of the machine belongs to the workers that are measured.
const LOOK_TOGETHER: Duration = Duration::from_millis(1);
/// Lines that wait to be looked at.
const LINES_MAX: usize = 10_000;

/// How workers are started.
#[derive(Debug, Clone, Copy)]
pub struct Crew {
    pub workers: u16,
    pub concurrency: u16,
    pub queues: u16,
    pub run_time: Duration,
    pub tell: Tell,
}

/// Workers that run.
pub struct AtWork {
    processes: Vec<Process>,
    heard: Receiver<(usize, Option<Word>)>,
    /// When they were told to begin.
    pub begun_ns: u64,
    completed: Vec<Completed>,
    silence_max: Duration,
}

impl Crew {
    /// Starts the processes, which connect when they are told to begin, and tells them.
    ///
    /// # Errors
    /// One of them does not start.
    pub async fn begin(self, place: &Place) -> Result<AtWork> {
        let (told, heard) = channel(LINES_MAX);
        let mut processes = Vec::new();
        for n in 0..usize::from(self.workers) {
            let mut process = self.start(n, place)?;
            tokio::spawn(listen(n, process.said()?, told.clone()));
            processes.push(process);
        }
        let completed = vec![Completed::default(); processes.len()];
        let silence_max = SILENCE_MAX + self.run_time;
        let mut crew = AtWork { processes, heard, begun_ns: 0, completed, silence_max };
        crew.until_all_said(|word| matches!(word, Word::Ready)).await?;
        crew.begun_ns = now_ns();
        for process in &mut crew.processes {
            process.tell("begin").await?;
        }
        Ok(crew)
    }

    fn start(self, n: usize, place: &Place) -> Result<Process> {
        let (concurrency, queues) = (self.concurrency.to_string(), self.queues.to_string());
        let run_time = self.run_time.as_micros().to_string();
        let look = LOOK_MIN.max(LOOK_TOGETHER * self.workers.into()).as_micros().to_string();
        let arguments = [
            ["bench-worker", "--name", &place.name, "--tell", self.tell.name()],
            ["--concurrency", &concurrency, "--queues", &queues, "--look-us"],
        ];
        let arguments = [&arguments.concat()[..], &[&look, "--run-time-us", &run_time]].concat();
        Process::start(&format!("worker {}", n + 1), &arguments, Some(&place.connection))
    }
}

impl AtWork {
    /// Waits until every worker is registered.
    ///
    /// # Errors
    /// One of them ends or stays silent.
    pub async fn until_registered(&mut self) -> Result<()> {
        self.until_all_said(|word| matches!(word, Word::Registered)).await
    }

    /// Waits until so many jobs are completed, and gives the instant of the last one.
    ///
    /// # Errors
    /// A worker ends, or nothing is completed for a minute.
    pub async fn until_completed(&mut self, jobs: u64) -> Result<u64> {
        let mut progress = Progress::new("completed", jobs);
        while self.jobs() < jobs {
            let before = self.jobs();
            match self.next().await.with_context(|| format!("{before} of {jobs} jobs were completed"))? {
                (n, Word::Completed(completed)) => self.completed[n] = completed,
                (_, Word::Ready | Word::Registered | Word::Runs(_) | Word::Counted(_) | Word::Ended(_)) => {}
            }
            progress.at(self.jobs());
        }
        Ok(self.completed.iter().map(|completed| completed.at_ns).max().unwrap_or_default())
    }

    /// Waits for the next word, and gives the handlers of which it tells that they have ended; often none.
    ///
    /// # Errors
    /// A worker ends, or none is heard of for a minute.
    pub async fn next_news(&mut self) -> Result<Vec<Ran>> {
        match self.next().await? {
            (_, Word::Runs(runs)) => return Ok(runs),
            (n, Word::Completed(completed)) => self.completed[n] = completed,
            (_, Word::Ready | Word::Registered | Word::Counted(_) | Word::Ended(_)) => {}
        }
        Ok(Vec::new())
    }

    /// Jobs that are completed so far, as far as it was told.
    pub fn jobs(&self) -> u64 {
        self.completed.iter().map(|completed| completed.jobs).sum()
    }

    /// Waits for handlers that have ended.
    ///
    /// # Errors
    /// A worker ends, or none is heard of for a minute.
    pub async fn next_runs(&mut self) -> Result<Vec<Ran>> {
        loop {
            if let (_, Word::Runs(runs)) = self.next().await? {
                return Ok(runs);
            }
        }
    }

    /// Asks every worker what it has done so far, and adds it up. Handlers that end meanwhile are not heard of.
    ///
    /// # Errors
    /// One of them ends or stays silent.
    pub async fn count(&mut self) -> Result<Counted> {
        for process in &mut self.processes {
            process.tell("count").await?;
        }
        let (mut sum, mut left) = (Counted::default(), self.processes.len());
        while left > 0 {
            if let (_, Word::Counted(counted)) = self.next().await? {
                sum = sum.with(counted);
                left -= 1;
            }
        }
        Ok(sum)
    }

    /// Stops all workers in order, and gives what they did together. Where it is known, their CPU time is that until the last
    /// job was completed.
    ///
    /// # Errors
    /// One of them could not sign off, or did not say what it did.
    pub async fn stop(mut self) -> Result<Ended> {
        self.processes.iter_mut().for_each(Process::close_stdin);
        let mut all = Vec::new();
        while all.len() < self.processes.len() {
            if let (n, Word::Ended(mut end)) = self.next().await? {
                ensure!(end.clean, "{} could not sign off", self.processes[n].name);
                if self.completed[n].jobs > 0 {
                    end.cpu_us = self.completed[n].cpu_us;
                }
                all.push(end);
            }
        }
        join_all(self.processes.into_iter().map(Process::end)).await;
        Ok(Ended::together(all))
    }

    async fn until_all_said(&mut self, wanted: impl Fn(&Word) -> bool) -> Result<()> {
        let mut left = self.processes.len();
        while left > 0 {
            let (_, word) = self.next().await?;
            left -= usize::from(wanted(&word));
        }
        Ok(())
    }

    async fn next(&mut self) -> Result<(usize, Word)> {
        match timeout(self.silence_max, self.heard.recv()).await {
            Ok(Some((n, Some(word)))) => Ok((n, word)),
            Ok(Some((n, None))) => bail!("{} ended by itself; its message is above", self.processes[n].name),
            Ok(None) => bail!("all workers ended by themselves"),
            Err(_) => bail!("nothing was heard of the workers for {} s", self.silence_max.as_secs()),
        }
    }
}

/// Passes on what a process says; at the end of it, none.
async fn listen(n: usize, mut said: Said, told: Sender<(usize, Option<Word>)>) {
    let mut last = false;
    while let Ok(Some(line)) = said.next_line().await {
        let Ok(word) = serde_json::from_str(&line) else { break };
        last = matches!(word, Word::Ended(_));
        if told.send((n, Some(word))).await.is_err() {
            return;
        }
    }
    if !last {
        let _ = told.send((n, None)).await; // nobody wants to know
    }
}
