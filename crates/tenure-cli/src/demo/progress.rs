//! How far a run is, on stderr: a bar per stage on a terminal, otherwise a line now and then.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::pipeline::Stage;
use super::store::Progress;

/// Without a terminal: the time between two lines.
const LINE_INTERVAL: Duration = Duration::from_secs(2);

/// Where progress is shown.
pub enum Display {
    Bars { all: MultiProgress, bars: [ProgressBar; 4] },
    Lines { last: Option<Instant>, shown: Progress },
}

impl Display {
    /// Bars when stderr is a terminal.
    pub fn new() -> Self {
        if !std::io::stderr().is_terminal() {
            return Display::Lines { last: None, shown: Progress::default() };
        }
        let all = MultiProgress::new();
        let style = ProgressStyle::with_template("  {prefix:8} {bar:36.cyan/dim} {pos:>6}/{len} {msg}")
            .expect("the template is a constant")
            .progress_chars("━╸─");
        let bars = Stage::ALL.map(|stage| {
            let bar = all.add(ProgressBar::new(0)).with_style(style.clone()).with_prefix(stage.name());
            bar.with_message(if matches!(stage, Stage::Extract | Stage::Split) { "files" } else { "chunks" })
        });
        Display::Bars { all, bars }
    }

    /// Shows where the run is.
    pub fn show(&mut self, files: usize, progress: Progress) {
        match self {
            Display::Bars { bars, .. } => {
                for (bar, stage) in bars.iter().zip(Stage::ALL) {
                    let (done, of) = done_of(stage, files as u64, progress);
                    bar.set_length(of);
                    bar.set_position(done);
                }
            }
            Display::Lines { last, shown } => {
                let due = last.is_none_or(|last| last.elapsed() >= LINE_INTERVAL);
                if due && *shown != progress {
                    eprintln!("  {}", line(files as u64, progress));
                    (*last, *shown) = (Some(Instant::now()), progress);
                }
            }
        }
    }

    /// Shows a line that stays.
    pub fn say(&self, line: &str) {
        match self {
            Display::Bars { all, .. } => {
                let _ = all.println(line); // a terminal that is gone is no reason to stop
            }
            Display::Lines { .. } => eprintln!("{line}"),
        }
    }

    /// The last state, which stays on the screen.
    pub fn finish(&mut self, files: usize, progress: Progress) {
        match self {
            Display::Bars { .. } => {
                self.show(files, progress);
                if let Display::Bars { bars, .. } = self {
                    bars.iter().for_each(ProgressBar::abandon);
                }
            }
            Display::Lines { shown, .. } if *shown != progress => eprintln!("  {}", line(files as u64, progress)),
            Display::Lines { .. } => {}
        }
    }
}

fn done_of(stage: Stage, files: u64, progress: Progress) -> (u64, u64) {
    match stage {
        Stage::Extract => (progress.extracted, files),
        Stage::Split => (progress.split, files),
        Stage::Embed => (progress.embedded, progress.chunks),
        Stage::Store => (progress.stored, progress.chunks),
    }
}

fn line(files: u64, progress: Progress) -> String {
    let parts = Stage::ALL.map(|stage| {
        let (done, of) = done_of(stage, files, progress);
        format!("{} {done}/{of}", stage.name())
    });
    parts.join("   ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_every_stage() {
        let progress = Progress { documents: 9, extracted: 8, split: 7, chunks: 60, embedded: 50, stored: 40 };
        assert_eq!(line(10, progress), "extract 8/10   split 7/10   embed 50/60   store 40/60");
    }
}
