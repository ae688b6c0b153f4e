//! `tenure enqueue`: one job from the command line, or many from a file.

use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;
use tenure::{Enqueue, Error, JobOptions, RawJson, Under, limits};

use super::ndjson;
use crate::connection::Connection;
use crate::exit::{Failure, Outcome};
use crate::when::{self, ZoneOfInput};
use crate::{number, output};

/// Enqueue a job, or a file of jobs
///
/// The job's id goes to stdout. With --many, all jobs of the file are enqueued in one transaction, or none.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tenure enqueue send_mail '{\"to\": \"ada@example.org\"}'
  tenure enqueue report '{\"month\": 7}' --queue slow --priority 3 --in 10m --max-attempts 3 --timeout 2h
  tenure enqueue report - < payload.json
  tenure enqueue report 7 --at '2027-03-29T02:30[Europe/Berlin]'
  tenure enqueue report 7 --at 2027-03-29T02:30 --zone Europe/Berlin
  tenure enqueue embed '{\"page\": 7}' --under provider=acme --fair acme
  tenure enqueue --many jobs.ndjson              each line: {\"kind\": \"send_mail\", \"payload\": {…}}; further keys:
                                                 queue, priority, at, in, max_attempts, timeout
  tenure enqueue --many - --kind send_mail       each line of stdin is a payload")]
pub struct EnqueueArgs {
    /// Kind of the job: 1 to 128 bytes
    #[arg(value_name = "KIND", required_unless_present = "many", conflicts_with = "many")]
    kind: Option<String>,

    /// Payload: one JSON value; - reads it from stdin
    #[arg(value_name = "JSON", required_unless_present = "many")]
    payload: Option<String>,

    /// Enqueue each line of this file; - reads stdin
    #[arg(long, value_name = "FILE")]
    many: Option<PathBuf>,

    /// With --many: every line is the payload of a job of this kind
    #[arg(long = "kind", value_name = "KIND", requires = "many")]
    kind_of_all: Option<String>,

    #[command(flatten)]
    options: Options,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// How the job shall be run; with --many the values of lines that have none of their own.
#[derive(Debug, clap::Args)]
struct Options {
    /// Queue: 1 to 128 bytes
    #[arg(long, default_value = "default")]
    queue: String,

    /// 1 (most urgent) to 4
    #[arg(long, default_value_t = 2, allow_negative_numbers = true, value_parser = number::of::<i16>("write 1 to 4"))]
    priority: i16,

    /// Not before this instant: 2026-12-24T18:00:00Z, 2026-12-24T19:00[Europe/Berlin], or 2026-12-24T19:00 with --zone
    #[arg(long, value_name = "INSTANT", conflicts_with = "delay", allow_hyphen_values = true)]
    at: Option<String>,

    #[command(flatten)]
    zone: ZoneOfInput,

    /// Not before this time has passed: 5s, 10m, 2h, 1d
    #[arg(long = "in", id = "delay", value_name = "TIME", value_parser = when::duration, allow_hyphen_values = true)]
    delay: Option<Duration>,

    /// How often it may be tried: 1 to 1000
    #[arg(long, default_value_t = 5, allow_negative_numbers = true, value_parser = number::of::<i16>("write 1 to 1000"))]
    max_attempts: i16,

    /// How long one attempt may take; 0: no limit [default: the one of its kind]
    #[arg(long, value_name = "TIME", value_parser = when::duration, allow_hyphen_values = true)]
    timeout: Option<Duration>,

    /// A limit that it stands under, and the key of which it is one: gpu, provider=acme; can be given several times
    #[arg(long, value_name = "LIMIT[=KEY]", value_parser = under)]
    under: Vec<Under>,

    /// The keys of a queue take turns: whose turn it is
    #[arg(long, value_name = "KEY")]
    fair: Option<String>,

    /// Jobs of this key run one at a time, in the order in which they were enqueued
    #[arg(long, value_name = "KEY")]
    order: Option<String>,
}

fn under(text: &str) -> Result<Under, String> {
    match text.split_once('=') {
        Some((limit, key)) => Ok(Under::limit(limit).key(key)),
        None => Ok(Under::limit(text)),
    }
}

impl Options {
    fn read(&self) -> Result<JobOptions, Error> {
        let mut options = JobOptions::new().queue(&self.queue).priority(self.priority).max_attempts(self.max_attempts);
        options = self.under.iter().cloned().fold(options, JobOptions::under);
        if let Some(key) = &self.fair {
            options = options.fair(key, 1);
        }
        if let Some(key) = &self.order {
            options = options.order(key);
        }
        if let Some(at) = &self.at {
            options = options.run_at(self.zone.read(at).map_err(|error| error.context("--at"))?);
        }
        if let Some(delay) = self.delay {
            options = options.delay(delay);
        }
        Ok(match self.timeout {
            Some(timeout) => options.timeout(timeout),
            None => options,
        })
    }
}

/// Enqueues what was typed or what the file holds.
pub async fn run(args: EnqueueArgs) -> Outcome {
    let options = args.options.read()?;
    options.check()?;
    match &args.many {
        Some(file) => many(&args, file.clone(), options).await,
        None => one(&args, options).await,
    }
}

async fn one(args: &EnqueueArgs, options: JobOptions) -> Outcome {
    let (Some(kind), Some(payload)) = (&args.kind, &args.payload) else {
        return Err(Failure::Usage("KIND and JSON are missing".to_owned()));
    };
    let text = match payload.as_str() {
        "-" => payload_of(std::io::stdin().lock())?,
        text => text.to_owned(),
    };
    let shown = output::start_of(&text, 60);
    let payload = RawJson::parse(text).map_err(|error| error.context(format!("payload {shown}")))?;
    let job = Enqueue::raw(kind, payload).options(options);
    job.check()?;
    let id = args.connection.connect().await?.enqueue(job).await?;
    match args.json {
        true => output::json(&json!({ "id": id }))?,
        false => output::line(&id.to_string())?,
    }
    Ok(0)
}

/// Reads a payload to its end, or until it is too large: whoever writes it may never end.
fn payload_of(input: impl Read) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    input.take(limits::PAYLOAD_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > limits::PAYLOAD_BYTES_MAX {
        return Err(Failure::Usage(format!(
            "the payload on standard input is longer than {} bytes\n        store the document elsewhere and enqueue its id",
            limits::PAYLOAD_BYTES_MAX
        )));
    }
    String::from_utf8(bytes).map_err(|_| Failure::Usage("the payload on standard input is not UTF-8".to_owned()))
}

async fn many(args: &EnqueueArgs, file: PathBuf, options: JobOptions) -> Outcome {
    if let Some(kind) = &args.kind_of_all {
        Enqueue::raw(kind, RawJson::null()).check()?;
    }
    let ids =
        ndjson::enqueue(&args.connection, file, args.kind_of_all.clone(), options, args.options.zone.zone.clone())
            .await?;
    match (args.json, ids.first(), ids.last()) {
        (true, _, _) => output::json(&json!({ "enqueued": ids.len(), "ids": ids }))?,
        (false, Some(first), Some(last)) => {
            output::line(&format!("enqueued {} jobs, {first} to {last}", ids.len()))?;
        }
        (false, _, _) => output::line("enqueued 0 jobs")?,
    }
    Ok(0)
}
