//! Files of jobs, one JSON value a line: checked whole before anything is sent, then sent as one COPY.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;
use tenure::{Enqueue, Error, JobId, JobOptions, RawJson, instant, limits};

use crate::connection::Connection;
use crate::{output, when};

/// A line may be this much longer than the largest payload.
const LINE_BYTES_MAX: u64 = limits::PAYLOAD_BYTES_MAX as u64 + 64 * 1024;

/// A line that says more than the payload.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    kind: String,
    payload: RawJson,
    queue: Option<String>,
    priority: Option<i16>,
    at: Option<String>,
    r#in: Option<String>,
    max_attempts: Option<i16>,
    timeout: Option<String>,
}

/// What the first pass over the file found.
struct Survey {
    jobs: u64,
    longest_payload: usize,
    longest_line: u64,
}

/// How a line becomes a job.
#[derive(Clone)]
struct Reading {
    kind: Option<String>,
    options: JobOptions,
    /// Of instants that name none.
    zone: Option<String>,
}

/// Enqueues the lines of the file, all or none.
pub async fn enqueue(
    connection: &Connection,
    file: PathBuf,
    kind: Option<String>,
    options: JobOptions,
    zone: Option<String>,
) -> anyhow::Result<Vec<JobId>> {
    let reading = Reading { kind, options, zone };
    if file == Path::new("-") {
        // Stdin can be read only once, so its jobs are kept while they are checked.
        let jobs: Vec<Enqueue> =
            reading.clone().jobs(io::stdin().lock()).map(|job| job.map(|(_, job)| job)).collect::<Result<_, _>>()?;
        let survey = survey(jobs.iter().map(|job| Ok((0, job.clone()))))?;
        return send(connection, jobs.into_iter().map(Ok), survey).await;
    }
    let found = survey(reading.clone().jobs(open(&file)?))?;
    let jobs = reading.jobs(open(&file)?).map(|job| job.map(|(_, job)| job));
    send(connection, jobs, found).await
}

fn open(file: &Path) -> Result<BufReader<File>, Error> {
    let opened = File::open(file).and_then(|opened| match opened.metadata()?.is_dir() {
        true => Err(io::Error::from(io::ErrorKind::IsADirectory)),
        false => Ok(opened),
    });
    opened.map(|opened| BufReader::with_capacity(256 * 1024, opened)).map_err(|error| {
        Error::bad_input(
            format!("cannot read {}: {error}", file.display()),
            "name a file of JSON lines, or - for stdin",
        )
    })
}

/// Reads everything once without keeping it: the first bad line is found before the database is touched.
fn survey(jobs: impl Iterator<Item = Result<(u64, Enqueue), Error>>) -> Result<Survey, Error> {
    let mut survey = Survey { jobs: 0, longest_payload: 0, longest_line: 0 };
    for job in jobs {
        let (line, job) = job?;
        survey.jobs += 1;
        if job.payload().get().len() > survey.longest_payload {
            (survey.longest_payload, survey.longest_line) = (job.payload().get().len(), line);
        }
    }
    Ok(survey)
}

async fn send(
    connection: &Connection,
    jobs: impl Iterator<Item = Result<Enqueue, Error>> + Send,
    survey: Survey,
) -> anyhow::Result<Vec<JobId>> {
    let client = connection.connect().await?;
    let bar = progress_bar(survey.jobs);
    let ids = client.try_enqueue_copy(jobs.inspect(|_| bar.inc(1))).await;
    bar.finish_and_clear();
    Ok(ids.map_err(|error| match error.message().contains("the payload has") && survey.longest_line > 0 {
        true => error.context(format!("line {}, the longest", survey.longest_line)),
        false => error,
    })?)
}

/// On stderr, and only when that is a terminal.
fn progress_bar(jobs: u64) -> ProgressBar {
    let bar = ProgressBar::new(jobs);
    if let Ok(style) = ProgressStyle::with_template("enqueue {bar:30} {human_pos}/{human_len} {per_sec} {eta}") {
        bar.set_style(style);
    }
    bar
}

impl Reading {
    /// The jobs of a reader with the numbers of their lines; empty lines are passed over.
    fn jobs(self, mut reader: impl BufRead) -> impl Iterator<Item = Result<(u64, Enqueue), Error>> {
        let mut number = 0;
        std::iter::from_fn(move || {
            loop {
                number += 1;
                let line = match next_line(&mut reader) {
                    Ok(Some(line)) => line,
                    Ok(None) => return None,
                    Err(error) => return Some(Err(error.context(format!("line {number}")))),
                };
                if !line.trim().is_empty() {
                    let job = self.job(line.trim()).map_err(|e| e.context(format!("line {number}")));
                    return Some(job.map(|job| (number, job)));
                }
            }
        })
    }

    fn job(&self, line: &str) -> Result<Enqueue, Error> {
        let job = match &self.kind {
            Some(kind) => Enqueue::raw(kind, RawJson::parse(line)?).options(self.options.clone()),
            None => self.job_of(read_line(line)?)?,
        };
        job.check()?;
        Ok(job)
    }

    fn job_of(&self, line: Line) -> Result<Enqueue, Error> {
        let mut job = Enqueue::raw(line.kind, line.payload).options(self.options.clone());
        if let Some(queue) = line.queue {
            job = job.queue(queue);
        }
        if let Some(priority) = line.priority {
            job = job.priority(priority);
        }
        if let Some(attempts) = line.max_attempts {
            job = job.max_attempts(attempts);
        }
        if let Some(timeout) = line.timeout {
            job = job.timeout(when::duration(&timeout).map_err(wrong)?);
        }
        match (line.at, line.r#in) {
            (Some(at), None) => Ok(job.run_at(instant::read(&at, self.zone.as_deref())?.at)),
            (None, Some(delay)) => Ok(job.delay(when::duration(&delay).map_err(wrong)?)),
            (None, None) => Ok(job),
            (Some(_), Some(_)) => Err(Error::bad_input("both \"at\" and \"in\" are given", "give one of them")),
        }
    }
}

fn wrong(message: String) -> Error {
    Error::bad_input(message, "nothing was enqueued")
}

fn read_line(line: &str) -> Result<Line, Error> {
    // First whether it is JSON at all, so that the message is about that.
    RawJson::parse(line).map_err(|e| e.context(output::start_of(line, 60)))?;
    serde_json::from_str(line).map_err(|error| {
        Error::bad_input(
            format!("{}: {error}", output::start_of(line, 60)),
            "a line is {\"kind\": …, \"payload\": …} with queue, priority, at, in, max_attempts, timeout as it likes; for payloads alone name their --kind",
        )
    })
}

fn next_line(reader: &mut impl BufRead) -> Result<Option<String>, Error> {
    let mut line = Vec::new();
    let read = reader.take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
    let bytes = read.map_err(|error| Error::bad_input(format!("cannot be read: {error}"), "nothing was enqueued"))?;
    if bytes == 0 {
        return Ok(None);
    }
    if bytes as u64 == LINE_BYTES_MAX && !line.ends_with(b"\n") {
        return Err(Error::bad_input(
            format!("longer than {LINE_BYTES_MAX} bytes"),
            "one job a line; store documents elsewhere and enqueue their ids",
        ));
    }
    match String::from_utf8(line) {
        Ok(line) => Ok(Some(line)),
        Err(_) => Err(Error::bad_input("not UTF-8", "convert the file to UTF-8")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(kind: Option<&str>, text: &str) -> Result<Vec<(u64, Enqueue)>, Error> {
        Reading { kind: kind.map(str::to_owned), options: JobOptions::new(), zone: None }
            .jobs(text.as_bytes())
            .collect()
    }

    #[test]
    fn lines_become_jobs_and_empty_ones_are_passed_over() {
        let jobs = read(
            None,
            "{\"kind\":\"a\",\"payload\":[1, 2]}\n\n {\"kind\":\"b\",\"payload\":null,\"queue\":\"q\",\"in\":\"5s\"}",
        )
        .unwrap();
        assert_eq!(jobs.iter().map(|(line, job)| (*line, job.kind())).collect::<Vec<_>>(), [(1, "a"), (3, "b")]);
        assert_eq!(jobs[0].1.payload().get(), "[1, 2]");
        assert_eq!(read(Some("k"), "{\"kind\":1}\n2\n").unwrap().len(), 2);
    }

    #[test]
    fn a_bad_line_is_named_by_its_number() {
        let check = |kind: Option<&str>, line: &str, expected: &str| {
            let error = read(kind, &format!("\n{line}\n")).unwrap_err().to_string();
            assert!(error.starts_with("line 2: ") && error.contains(expected), "{error}");
        };
        check(None, "{\"kind\":\"a\"}", "missing field `payload`");
        check(None, "{\"kind\":\"a\",\"payload\":1,\"que\":\"x\"}", "unknown field `que`");
        check(None, "{oops", "this is not JSON");
        check(None, "17", "a line is {\"kind\": …");
        check(None, "{\"kind\":\"\",\"payload\":1}", "the kind name is empty");
        check(None, "{\"kind\":\"a\",\"payload\":1,\"priority\":9}", "priority 9 is outside 1 to 4");
        check(None, "{\"kind\":\"a\",\"payload\":1,\"in\":\"-5s\"}", "\"-5s\" is not a duration");
        check(None, "{\"kind\":\"a\",\"payload\":1,\"in\":\"5s\",\"at\":\"2026-01-01T00:00:00Z\"}", "give one of them");
        check(Some("k"), "\"\\u0000\"", r"\u0000 at $");
    }
}
