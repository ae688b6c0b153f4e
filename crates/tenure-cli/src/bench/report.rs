//! What came out: every run, and the medians of those that are alike.

use std::thread::available_parallelism;

use serde_json::{Map, Value, json};

use super::clock::median;
use super::ended::Ended;
use super::meter::Cost;
use super::place::Server;
use crate::output;

/// One measurement: what tells it from others, and its figures.
#[derive(Debug, Clone)]
pub struct Run {
    round: u32,
    keys: Vec<(&'static str, Value)>,
    figures: Vec<Figure>,
    more: Vec<(&'static str, Value)>,
}

/// A number with its name in JSON, its title in the table, and how it is written there.
#[derive(Debug, Clone)]
pub struct Figure {
    name: &'static str,
    title: &'static str,
    digits: usize,
    /// The least and the most of all rounds stand beside the median.
    with_range: bool,
    value: Option<f64>,
}

/// Everything that a command prints.
#[derive(Debug)]
pub struct Report {
    pub mode: &'static str,
    pub settings: Value,
    pub server: Server,
    pub runs: Vec<Run>,
}

impl Figure {
    /// Jobs a second and the like: whole, with its range.
    pub fn rate(name: &'static str, title: &'static str, value: impl Into<Option<f64>>) -> Figure {
        Figure { with_range: true, ..Figure::whole(name, title, value) }
    }

    /// Whole.
    pub fn whole(name: &'static str, title: &'static str, value: impl Into<Option<f64>>) -> Figure {
        Figure { name, title, digits: 0, with_range: false, value: value.into() }
    }

    /// One digit.
    pub fn tenths(name: &'static str, title: &'static str, value: impl Into<Option<f64>>) -> Figure {
        Figure { digits: 1, ..Figure::whole(name, title, value) }
    }

    /// Three digits.
    pub fn fine(name: &'static str, title: &'static str, value: impl Into<Option<f64>>) -> Figure {
        Figure { digits: 3, ..Figure::whole(name, title, value) }
    }

    fn written(&self, value: Option<f64>) -> String {
        value.map_or_else(|| "unknown".to_owned(), |value| grouped(value, self.digits))
    }
}

impl Run {
    /// Without figures.
    pub fn new() -> Run {
        Run { round: 1, keys: Vec::new(), figures: Vec::new(), more: Vec::new() }
    }

    /// The round in which it was measured, from 1.
    pub fn in_round(self, round: u32) -> Run {
        Run { round, ..self }
    }

    /// What it is compared by.
    pub fn key(mut self, name: &'static str, value: impl Into<Value>) -> Run {
        self.keys.push((name, value.into()));
        self
    }

    /// What was measured; in the table and in JSON.
    pub fn figure(mut self, figure: Figure) -> Run {
        self.figures.push(figure);
        self
    }

    /// What is in JSON only.
    pub fn more(mut self, name: &'static str, value: impl Into<Value>) -> Run {
        self.more.push((name, value.into()));
        self
    }

    /// What each of so many jobs cost the database.
    pub fn cost(self, cost: &Cost, jobs: f64) -> Run {
        let each = |cpu: Option<f64>| cpu.map(|cpu| cpu / jobs);
        self.figure(Figure::whole("wal_bytes_per_job", "WAL B/job", cost.wal_bytes / jobs))
            .figure(Figure::fine("transactions_per_job", "tx/job", cost.transactions / jobs))
            .figure(Figure::tenths("database_cpu_us_per_job", "db CPU us/job", each(cost.session_cpu_us)))
            .figure(Figure::tenths("background_cpu_us_per_job", "db own us/job", each(cost.background_cpu_us)))
            .more("page_images", cost.page_images)
    }

    /// What each of so many jobs cost the workers.
    pub fn workers(self, ended: &Ended, jobs: f64) -> Run {
        self.figure(Figure::fine("calls_per_job", "calls/job", (ended.claims + ended.flushes) as f64 / jobs))
            .figure(Figure::tenths("worker_cpu_us_per_job", "worker CPU us/job", ended.cpu_us as f64 / jobs))
            .figure(Figure::tenths("peak_mb", "peak MB", ended.peak_mb))
            .more("completed", ended.completed)
            .more("claims", ended.claims)
            .more("flushes", ended.flushes)
    }

    fn as_value(&self) -> Value {
        let figures = self.figures.iter().map(|figure| (figure.name, json!(figure.value)));
        let all = [("round", json!(self.round))].into_iter().chain(self.keys.iter().cloned());
        object(all.chain(figures).chain(self.more.iter().cloned()))
    }
}

impl Report {
    /// Prints the table, or everything as one JSON object.
    ///
    /// # Errors
    /// Standard output is closed.
    pub fn print(&self, as_json: bool) -> anyhow::Result<()> {
        if as_json {
            return output::json(&self.as_value());
        }
        let Some(first) = self.runs.first() else { return Ok(()) };
        let titles = first.keys.iter().map(|(name, _)| *name).chain(first.figures.iter().map(|figure| figure.title));
        let rows = self.alike().iter().map(|runs| row(runs)).collect();
        eprintln!("tenure bench: {}", self.server.in_words());
        Ok(output::table(&titles.collect::<Vec<_>>(), rows, "nothing was measured")?)
    }

    fn as_value(&self) -> Value {
        let medians: Vec<Value> = self.alike().iter().map(|runs| medians(runs)).collect();
        json!({
            "mode": self.mode, "settings": self.settings, "server": self.server,
            "cores": available_parallelism().map_or(0, usize::from), "debug_build": cfg!(debug_assertions),
            "runs": self.runs.iter().map(Run::as_value).collect::<Vec<_>>(), "medians": medians,
        })
    }

    /// The runs of all rounds that measured the same, in the order of the first round.
    fn alike(&self) -> Vec<Vec<&Run>> {
        let mut groups: Vec<Vec<&Run>> = Vec::new();
        for run in &self.runs {
            match groups.iter_mut().find(|group| group[0].keys == run.keys) {
                Some(group) => group.push(run),
                None => groups.push(vec![run]),
            }
        }
        groups
    }
}

/// The values of one figure in all these runs; those that are unknown are left out.
fn values<'a>(runs: &'a [&Run], place: usize) -> impl Iterator<Item = f64> + 'a {
    runs.iter().filter_map(move |run| run.figures.get(place)?.value)
}

fn medians(runs: &[&Run]) -> Value {
    let first = runs[0];
    let figures = first.figures.iter().enumerate();
    let figures = figures.map(|(n, figure)| (figure.name, json!(median(values(runs, n)))));
    object(first.keys.iter().cloned().chain([("rounds", json!(runs.len()))]).chain(figures))
}

fn row(runs: &[&Run]) -> Vec<String> {
    let first = runs[0];
    let keys = first.keys.iter().map(|(_, value)| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    let figures = first.figures.iter().enumerate().map(|(n, figure)| {
        let middle = figure.written(median(values(runs, n)));
        if !figure.with_range || runs.len() < 2 {
            return middle;
        }
        let (least, most) = (values(runs, n).reduce(f64::min), values(runs, n).reduce(f64::max));
        format!("{middle} ({}..{})", figure.written(least), figure.written(most))
    });
    keys.chain(figures).collect()
}

fn object(pairs: impl Iterator<Item = (&'static str, Value)>) -> Value {
    Value::Object(pairs.map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>())
}

/// With commas between groups of three.
fn grouped(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let (sign, whole) = whole.split_at(usize::from(whole.starts_with('-')));
    let mut out = sign.to_owned();
    for (n, digit) in whole.chars().enumerate() {
        if n > 0 && (whole.len() - n).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(round: u32, concurrency: u32, rate: f64, memory: Option<f64>) -> Run {
        let run = Run::new().key("concurrency", concurrency).figure(Figure::rate("jobs_per_s", "jobs/s", rate));
        run.figure(Figure::tenths("peak_mb", "peak MB", memory)).more("seconds", 2.5).in_round(round)
    }

    fn report() -> Report {
        let server = Server::unknown();
        let mut runs = vec![run(1, 8, 90_000.0, Some(20.25)), run(1, 32, 70_000.0, None)];
        runs.extend([run(2, 8, 110_000.0, Some(22.0)), run(2, 32, 50_000.0, None), run(3, 8, 100_000.0, Some(21.0))]);
        Report { mode: "work", settings: json!({}), server, runs }
    }

    #[test]
    fn a_row_is_the_median_of_runs_that_are_alike() {
        let report = report();
        let rows: Vec<_> = report.alike().iter().map(|runs| row(runs)).collect();
        assert_eq!(rows, [["8", "100,000 (90,000..110,000)", "21.0"], ["32", "60,000 (50,000..70,000)", "unknown"]]);
    }

    #[test]
    fn json_has_every_run_and_says_null_of_what_is_unknown() {
        let value = report().as_value();
        assert_eq!(value["runs"].as_array().map(Vec::len), Some(5));
        assert_eq!(
            value["runs"][0],
            json!({"round": 1, "concurrency": 8, "jobs_per_s": 90_000.0, "peak_mb": 20.25, "seconds": 2.5})
        );
        assert_eq!(
            value["medians"][1],
            json!({"concurrency": 32, "rounds": 2, "jobs_per_s": 60_000.0, "peak_mb": null})
        );
    }

    #[test]
    fn large_numbers_are_grouped() {
        let check = |value, digits, expected| assert_eq!(grouped(value, digits), expected);
        check(1_234_567.4, 0, "1,234,567");
        check(999.96, 1, "1,000.0");
        check(0.25, 3, "0.250");
        check(-1_500.0, 0, "-1,500");
    }
}
