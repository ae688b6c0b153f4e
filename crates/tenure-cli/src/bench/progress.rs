//! How far a long step is, on stderr: a line now and then.

use std::time::{Duration, Instant};

/// The time between two lines. What is done sooner says nothing.
const INTERVAL: Duration = Duration::from_secs(2);

/// A step.
#[derive(Debug)]
pub struct Progress {
    what: &'static str,
    of: u64,
    said: Instant,
}

impl Progress {
    /// Begins; `what` follows the numbers.
    pub fn new(what: &'static str, of: u64) -> Progress {
        Progress { what, of, said: Instant::now() }
    }

    /// So many are done.
    pub fn at(&mut self, done: u64) {
        if self.said.elapsed() >= INTERVAL {
            eprintln!("  {done} of {} {}", self.of, self.what);
            self.said = Instant::now();
        }
    }
}

/// One line about what comes now.
pub fn say(line: &str) {
    eprintln!("tenure bench: {line}");
}
