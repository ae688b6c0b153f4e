//! What worker processes of the bench tell their parent: one JSON value a line on their stdout, by a thread of its own, so that
//! no handler waits for a pipe.

use std::io::Write as _;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use serde::{Deserialize, Serialize};

use super::ended::Ended;

/// Runs that one line holds, at most.
const RUNS_MAX: usize = 500;

/// What a worker tells while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Tell {
    /// How many jobs are completed.
    Completed,
    /// When each handler started, and nothing of how many jobs are completed.
    Each,
    /// How many jobs are completed, and when the handlers of those that were committed late started.
    Late,
}

impl Tell {
    /// As it is typed.
    pub fn name(self) -> &'static str {
        match self {
            Tell::Completed => "completed",
            Tell::Each => "each",
            Tell::Late => "late",
        }
    }
}

/// One line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    /// The process is there and waits for the word to begin.
    Ready,
    /// The worker is registered.
    Registered,
    /// How many jobs it has completed so far, as recorded in the database.
    Completed(Completed),
    /// Handlers that have ended.
    Runs(Vec<Ran>),
    /// What it has done so far, when it is asked.
    Counted(Counted),
    /// The last one.
    Ended(Ended),
}

/// See [`Word::Completed`].
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Completed {
    pub jobs: u64,
    /// When the last of them was seen, by the clock of all processes.
    pub at_ns: u64,
    /// CPU time of the process from its beginning to work to then.
    pub cpu_us: u64,
}

/// See [`Word::Counted`].
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Counted {
    pub claims: u64,
    pub flushes: u64,
    /// CPU time of the process since it was told to begin.
    pub cpu_us: u64,
}

impl Counted {
    /// Two workers as one.
    pub fn with(self, other: Counted) -> Counted {
        let Counted { claims, flushes, cpu_us } = other;
        Counted { claims: self.claims + claims, flushes: self.flushes + flushes, cpu_us: self.cpu_us + cpu_us }
    }

    /// What was done since an earlier count.
    pub fn since(self, earlier: Counted) -> Counted {
        let Counted { claims, flushes, cpu_us } = earlier;
        Counted { claims: self.claims - claims, flushes: self.flushes - flushes, cpu_us: self.cpu_us - cpu_us }
    }
}

/// One run of a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ran {
    pub job: i64,
    pub started_ns: u64,
    pub took_ns: u64,
}

/// The thread that writes.
pub struct Speaker {
    words: Sender<Word>,
    thread: JoinHandle<()>,
}

impl Speaker {
    /// Starts it.
    pub fn start() -> Speaker {
        let (words, said) = mpsc::channel();
        Speaker { words, thread: thread::spawn(move || speak(&said)) }
    }

    /// Says a word. When nobody reads any more, the process is about to end.
    pub fn say(&self, word: Word) {
        let _ = self.words.send(word);
    }

    /// A way to say words from elsewhere.
    pub fn sender(&self) -> Sender<Word> {
        self.words.clone()
    }

    /// Says the last word and waits until it is written.
    pub fn finish(self, last: Ended) {
        self.say(Word::Ended(last));
        let _ = self.thread.join();
    }
}

fn speak(said: &Receiver<Word>) {
    let mut out = std::io::stdout().lock();
    let mut next = said.recv().ok();
    while let Some(word) = next.take().or_else(|| said.recv().ok()) {
        let word = match word {
            Word::Runs(runs) => {
                let (runs, other) = with_those_behind(runs, said);
                next = other;
                Word::Runs(runs)
            }
            word => word,
        };
        let line = serde_json::to_string(&word).expect("numbers and lists are JSON");
        let written = writeln!(out, "{line}").and_then(|()| out.flush());
        if written.is_err() || matches!(word, Word::Ended(_)) {
            return;
        }
    }
}

/// The runs that wait as well, up to a limit or to another word.
fn with_those_behind(mut runs: Vec<Ran>, said: &Receiver<Word>) -> (Vec<Ran>, Option<Word>) {
    while runs.len() < RUNS_MAX {
        match said.try_recv() {
            Ok(Word::Runs(more)) => runs.extend(more),
            Ok(other) => return (runs, Some(other)),
            Err(_) => break,
        }
    }
    (runs, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_wait_share_a_line_and_what_is_behind_them_follows() {
        let (words, said) = mpsc::channel();
        let ran = |job| Ran { job, started_ns: 5, took_ns: 1 };
        words.send(Word::Runs(vec![ran(2)])).unwrap();
        words.send(Word::Registered).unwrap();
        let (runs, other) = with_those_behind(vec![ran(1)], &said);
        assert_eq!(runs, [ran(1), ran(2)]);
        assert!(matches!(other, Some(Word::Registered)));
    }

    #[test]
    fn a_word_is_one_line_and_comes_back_as_itself() {
        let line = serde_json::to_string(&Word::Completed(Completed { jobs: 7, at_ns: 8, cpu_us: 9 })).unwrap();
        assert!(!line.contains('\n'));
        assert!(matches!(serde_json::from_str(&line), Ok(Word::Completed(Completed { jobs: 7, at_ns: 8, cpu_us: 9 }))));
    }
}
