//! `tenure stats`: what happened in the last hour, how long it waited and ran, and what the workers measured of the database.

use std::time::{Duration, SystemTime};

use clap::ValueEnum;
use serde_json::{Value, json};
use tenure::{Histogram, Statistics, StatsBy, StatsFilter, StatsRow, WorkerStats};

use crate::connection::Connection;
use crate::exit::Outcome;
use crate::{output, when};

/// The longest bar.
const BAR_CHARS: usize = 16;

/// Show how much was enqueued, started and ended, how long jobs waited and ran, and how quick the database was
///
/// It reads what workers told of each minute, and no jobs: it is as quick with millions of them. What is a few seconds old may not be in it yet.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Rates are per second, over the time that is shown. WAIT is from the moment from which a job could run to its first start, RUN is of each attempt; both as p50,
p95 and p99, within 12.5 %. RESCUED are jobs of lost workers. Claims and flushes (reports of ends) that take long beside short runs mean a slow database.

Examples:
  tenure stats
  tenure stats --since 1d --by queue
  tenure stats --since 15m --by minute --kind send_mail
  tenure stats --since 7d --by minute --step 1h
  tenure stats --json | jq '.rows[] | {kind, p95: .wait.p95_ms}'")]
pub struct StatsArgs {
    /// From so long ago on, or from an instant (RFC 3339): 15m, 1h, 7d; statistics are kept for 30 days
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = when::instant_or_ago)]
    since: when::When,

    /// Only this queue
    #[arg(long, value_name = "QUEUE")]
    queue: Option<String>,

    /// Only this kind
    #[arg(long, value_name = "KIND")]
    kind: Option<String>,

    /// A line for each of these
    #[arg(long, value_enum, default_value = "kind")]
    by: By,

    /// By minute: so many whole minutes each, for example 10m or 1h [default: 1m]
    #[arg(long, value_name = "TIME", value_parser = when::duration)]
    step: Option<Duration>,

    /// Print a JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// What has a line of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum By {
    /// Each step of time, one minute unless --step says otherwise
    Minute,
    /// Each kind of each queue
    Kind,
    /// Each queue
    Queue,
}

/// The time that is shown.
#[derive(Clone, Copy)]
struct Span {
    since: SystemTime,
    now: SystemTime,
    step: Duration,
}

/// Looks once and prints.
pub async fn run(args: StatsArgs) -> Outcome {
    if args.step.is_some() && args.by != By::Minute {
        return Err(crate::exit::Failure::Usage("--step is for --by minute".to_owned()));
    }
    let client = args.connection.connect().await?;
    let now = client.now().await?;
    let since = match args.since {
        when::When::At(at) => at,
        when::When::Ago(ago) => now.checked_sub(ago).unwrap_or(SystemTime::UNIX_EPOCH),
    };
    let span = Span { since: minute_of(since), now, step: args.step.unwrap_or(Duration::from_secs(60)) };
    let statistics = client.stats(&filter(&args, span)).await?;
    let workers = client.worker_stats(now.duration_since(span.since).unwrap_or_default()).await?;
    match args.json {
        true => output::json(&to_json(span, &statistics, &workers))?,
        false => print(args.by, span, &statistics, &workers)?,
    }
    Ok(0)
}

fn filter(args: &StatsArgs, span: Span) -> StatsFilter {
    let by = match args.by {
        By::Minute => StatsBy::Minute,
        By::Kind => StatsBy::Kind,
        By::Queue => StatsBy::Queue,
    };
    let filter = StatsFilter::new().since(span.since).by(by).step(span.step);
    let filter = args.queue.iter().fold(filter, |filter, queue| filter.queue(queue));
    args.kind.iter().fold(filter, |filter, kind| filter.kind(kind))
}

/// The begin of its minute.
fn minute_of(at: SystemTime) -> SystemTime {
    let since_1970 = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::from_secs(since_1970.as_secs() / 60 * 60)
}

impl Span {
    /// The time that a row stands for: all of it, or its step, of which the last one is not over.
    fn of(self, row: &StatsRow) -> Duration {
        let Some(at) = row.at else { return self.now.duration_since(self.since).unwrap_or_default() };
        self.now.duration_since(at).unwrap_or_default().min(self.step)
    }
}

fn print(by: By, span: Span, statistics: &Statistics, workers: &[WorkerStats]) -> std::io::Result<()> {
    let most = statistics.rows.iter().map(|row| row.completed).max().unwrap_or(0);
    let row = |row: &StatsRow| {
        let time = span.of(row);
        let first = match by {
            By::Minute => vec![row.at.map(minute_text).unwrap_or_default()],
            By::Kind => vec![row.queue.clone().unwrap_or_default(), row.kind.clone().unwrap_or_default()],
            By::Queue => vec![row.queue.clone().unwrap_or_default()],
        };
        let rest = [
            rate(row.enqueued, time),
            rate(row.started, time),
            rate(row.completed, time),
            bar(row.completed, most),
            row.failed.to_string(),
            row.retried.to_string(),
            row.dead.to_string(),
            row.cancelled.to_string(),
            row.rescued.to_string(),
            percentiles(&row.wait, &[0.5, 0.95, 0.99]),
            percentiles(&row.run, &[0.5, 0.95, 0.99]),
        ];
        first.into_iter().chain(rest).collect()
    };
    let first: &[&str] = match by {
        By::Minute => &["SINCE"],
        By::Kind => &["QUEUE", "KIND"],
        By::Queue => &["QUEUE"],
    };
    let rest = [
        "ENQUEUED/s",
        "STARTED/s",
        "COMPLETED/s",
        "",
        "FAILED",
        "RETRIED",
        "DEAD",
        "CANCELLED",
        "RESCUED",
        "WAIT",
        "RUN",
    ];
    let header: Vec<&str> = first.iter().copied().chain(rest).collect();
    output::table(&header, statistics.rows.iter().map(row).collect(), "nothing happened in this time")?;
    if let Some(since) = statistics.uncounted_since {
        output::line(&format!(
            "\nNOTE: jobs enqueued since {} are not counted yet: a transaction that has written something is open since then (`tenure status`)",
            output::instant(since)
        ))?;
    }
    if workers.is_empty() {
        return Ok(());
    }
    output::line("")?;
    print_workers(workers)
}

/// What tells a slow database from a slow worker.
fn print_workers(workers: &[WorkerStats]) -> std::io::Result<()> {
    let row = |worker: &WorkerStats| {
        vec![
            worker.worker.to_string(),
            worker.name.clone().unwrap_or_default(),
            worker.claim.total().to_string(),
            percentiles(&worker.claim, &[0.5, 0.99]),
            worker.flush.total().to_string(),
            percentiles(&worker.flush, &[0.5, 0.99]),
            worker.memory.map(megabytes).unwrap_or_default(),
            worker.group_memory.map(megabytes).unwrap_or_default(),
            if worker.throttled.is_zero() { String::new() } else { short(worker.throttled) },
        ]
    };
    let header = [
        "WORKER",
        "NAME",
        "CLAIMS",
        "CLAIM p50 p99",
        "FLUSHES",
        "FLUSH p50 p99",
        "PEAK MB",
        "GROUP PEAK MB",
        "THROTTLED",
    ];
    output::table(&header, workers.iter().map(row).collect(), "")
}

/// Per second, in three digits.
fn rate(count: u64, time: Duration) -> String {
    let rate = count as f64 / time.as_secs_f64().max(1.0);
    match rate {
        _ if count == 0 => "0".to_owned(),
        100.0.. => format!("{rate:.0}"),
        10.0.. => format!("{rate:.1}"),
        0.01.. => format!("{rate:.2}"),
        _ => "<0.01".to_owned(),
    }
}

/// As long as its part of the most, to an eighth of a character.
fn bar(count: u64, most: u64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    if count == 0 {
        return String::new();
    }
    let eighths = ((count as f64 / most.max(count) as f64 * (BAR_CHARS * 8) as f64).round() as usize).max(1);
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}

fn percentiles(times: &Histogram, parts: &[f64]) -> String {
    let texts: Vec<String> = parts.iter().filter_map(|part| times.percentile(*part)).map(short).collect();
    texts.join(" ")
}

/// A duration in its largest unit.
fn short(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    let in_unit =
        |value: f64, unit: &str| if value < 10.0 { format!("{value:.1}{unit}") } else { format!("{value:.0}{unit}") };
    match seconds {
        ..0.0001 => "<0.1ms".to_owned(),
        ..1.0 => in_unit(seconds * 1_000.0, "ms"),
        ..60.0 => in_unit(seconds, "s"),
        ..3_600.0 => in_unit(seconds / 60.0, "m"),
        ..86_400.0 => in_unit(seconds / 3_600.0, "h"),
        _ => in_unit(seconds / 86_400.0, "d"),
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1_048_576.0)
}

/// An instant in UTC to the minute.
fn minute_text(at: SystemTime) -> String {
    let text = output::instant(at);
    text.get(..16).map_or_else(|| text.clone(), |minute| format!("{minute}Z"))
}

fn to_json(span: Span, statistics: &Statistics, workers: &[WorkerStats]) -> Value {
    let row = |row: &StatsRow| {
        json!({
            "at": row.at.map(output::instant),
            "queue": row.queue,
            "kind": row.kind,
            "seconds": span.of(row).as_secs_f64(),
            "enqueued": row.enqueued,
            "started": row.started,
            "completed": row.completed,
            "failed": row.failed,
            "retried": row.retried,
            "dead": row.dead,
            "cancelled": row.cancelled,
            "snoozed": row.snoozed,
            "released": row.released,
            "rescued": row.rescued,
            "overruns": row.overruns,
            "wait": times_json(&row.wait),
            "run": times_json(&row.run),
        })
    };
    let worker = |worker: &WorkerStats| {
        json!({
            "worker": worker.worker,
            "name": worker.name,
            "last_at": output::instant(worker.last_at),
            "claim": times_json(&worker.claim),
            "flush": times_json(&worker.flush),
            "memory_bytes": worker.memory,
            "group_memory_bytes": worker.group_memory,
            "throttled_ms": worker.throttled.as_millis() as u64,
        })
    };
    json!({
        "since": output::instant(span.since),
        "now": output::instant(span.now),
        "uncounted_since": statistics.uncounted_since.map(output::instant),
        "rows": statistics.rows.iter().map(row).collect::<Vec<_>>(),
        "workers": workers.iter().map(worker).collect::<Vec<_>>(),
    })
}

fn times_json(times: &Histogram) -> Value {
    let ms = |duration: Duration| duration.as_nanos() as f64 / 1e6;
    let part = |part: f64| times.percentile(part).map(ms);
    let bucket = |(from, to, count): (Duration, Option<Duration>, u64)| json!({ "from_ms": ms(from), "to_ms": to.map(ms), "count": count });
    json!({
        "count": times.total(),
        "p50_ms": part(0.5),
        "p95_ms": part(0.95),
        "p99_ms": part(0.99),
        "buckets": times.buckets().map(bucket).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_bars_their_part() {
        let minute = Duration::from_secs(60);
        let check = |count, expected| assert_eq!(rate(count, minute), expected, "{count}");
        check(0, "0");
        check(1, "0.02");
        check(90, "1.50");
        check(1_000, "16.7");
        check(60_000, "1000");
        assert_eq!(rate(1, minute * 100), "<0.01");
        assert_eq!((bar(0, 9), bar(9, 9), bar(1, 1_000_000)), (String::new(), "█".repeat(BAR_CHARS), "▏".to_owned()));
        assert_eq!(bar(1, 2), "█".repeat(BAR_CHARS / 2));
    }

    #[test]
    fn durations_are_shown_in_one_unit() {
        let check = |micros, expected| assert_eq!(short(Duration::from_micros(micros)), expected, "{micros} µs");
        check(50, "<0.1ms");
        check(1_500, "1.5ms");
        check(42_000, "42ms");
        check(2_500_000, "2.5s");
        check(90_000_000, "1.5m");
        check(36_000_000_000, "10h");
        check(864_000_000_000, "10d");
    }

    #[test]
    fn a_step_that_is_not_over_counts_as_long_as_it_lasts() {
        let at = |s| SystemTime::UNIX_EPOCH + Duration::from_secs(s);
        assert_eq!((minute_of(at(119)), minute_text(at(60))), (at(60), "1970-01-01T00:01Z".to_owned()));
    }
}
