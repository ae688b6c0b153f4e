//! `tenure bench`: what this queue does on the database at hand, through the client and the worker that every program gets.
//!
//! A schema of its own is made and dropped ([`place`]), filled with what shall be there ([`population`]), and measured: the
//! parent enqueues ([`enqueue`]), processes of their own work ([`crew`], [`worker`]), the server's counters tell the cost ([`meter`]).

mod clock;
mod crew;
mod ended;
mod enqueue;
mod floor;
mod idle;
mod late;
mod latency;
mod meter;
mod mixed;
pub mod options;
mod payload;
mod place;
mod population;
mod progress;
mod report;
mod rounds;
mod statistics;
mod usage;
mod words;
mod work;
pub mod worker;

use anyhow::Result;
use serde_json::{Value, json};

use options::{
    Common, EnqueueOptions, FloorOptions, IdleOptions, LateOptions, LatencyOptions, MixedOptions, WorkOptions,
};
use place::Place;
pub use report::Report;
use report::Run;

/// The queue and the kind of all jobs that are measured, unless they are spread over several queues.
const QUEUE: &str = "bench";
const KIND: &str = "noop";
/// The kind of those that are committed late.
const LATE_KIND: &str = "late";

/// The names of so many queues.
fn queues(count: u16) -> Vec<String> {
    match count {
        1 => vec![QUEUE.to_owned()],
        _ => (1..=count).map(|n| format!("{QUEUE} {n}")).collect(),
    }
}

/// What to measure.
#[derive(Debug)]
pub enum Mode {
    Enqueue(EnqueueOptions),
    Work(WorkOptions),
    Latency(LatencyOptions),
    Mixed(MixedOptions),
    Idle(IdleOptions),
    Late(LateOptions),
    Floor(FloorOptions),
}

impl Mode {
    fn name(&self) -> &'static str {
        match self {
            Mode::Enqueue(_) => "enqueue",
            Mode::Work(_) => "work",
            Mode::Latency(_) => "latency",
            Mode::Mixed(_) => "mixed",
            Mode::Idle(_) => "idle",
            Mode::Late(_) => "late",
            Mode::Floor(_) => "floor",
        }
    }

    /// What all modes share.
    pub fn common(&self) -> &Common {
        match self {
            Mode::Enqueue(options) => &options.common,
            Mode::Work(options) => &options.common,
            Mode::Latency(options) => &options.common,
            Mode::Mixed(options) => &options.common,
            Mode::Idle(options) => &options.common,
            Mode::Late(options) => &options.common,
            Mode::Floor(options) => &options.common,
        }
    }

    /// Why what was typed makes no sense, though each word of it does.
    pub fn nonsense(&self) -> Option<String> {
        match self {
            Mode::Mixed(options) => options.nonsense(),
            Mode::Enqueue(_) | Mode::Work(_) | Mode::Latency(_) | Mode::Idle(_) | Mode::Late(_) | Mode::Floor(_) => {
                None
            }
        }
    }

    /// Worker processes at a time, at most.
    fn workers(&self) -> u16 {
        match self {
            Mode::Work(options) => options.workers.iter().copied().max().unwrap_or_default(),
            Mode::Latency(_) => 1,
            Mode::Mixed(options) => options.hands.workers,
            Mode::Idle(options) => options.workers,
            Mode::Late(options) => options.hands.workers,
            Mode::Enqueue(_) | Mode::Floor(_) => 0,
        }
    }

    fn settings(&self) -> Value {
        let ms = |time: std::time::Duration| time.as_secs_f64() * 1_000.0;
        match self {
            Mode::Enqueue(o) => json!({ "scene": o.scene, "batch": o.batch }),
            Mode::Work(o) => {
                json!({ "scene": o.scene, "jobs": o.jobs, "form": o.form, "producers": o.load.producers, "run_time_ms": ms(o.load.run_time) })
            }
            Mode::Latency(o) => json!({ "scene": o.scene, "jobs": o.jobs, "pause_ms": ms(o.pause) }),
            Mode::Mixed(o) => json!({
                "scene": o.scene, "duration_ms": ms(o.duration), "producers": o.load.producers, "run_time_ms": ms(o.load.run_time)
            }),
            Mode::Idle(o) => json!({
                "scene": o.scene, "jobs": o.jobs, "idle_ms": ms(o.idle), "pause_ms": ms(o.pause), "burst": o.burst
            }),
            Mode::Late(o) => {
                json!({ "scene": o.scene, "jobs": o.jobs, "hold_ms": ms(o.hold), "at_once": o.at_once, "producers": o.producers })
            }
            Mode::Floor(o) => json!({ "payload": o.payload, "batch": o.batch }),
        }
    }

    async fn measure(&self, place: &Place) -> Result<Vec<Run>> {
        match self {
            Mode::Enqueue(options) => enqueue::run(place, options).await,
            Mode::Work(options) => work::run(place, options).await,
            Mode::Latency(options) => latency::run(place, options).await,
            Mode::Mixed(options) => mixed::run(place, options).await,
            Mode::Idle(options) => idle::run(place, options).await,
            Mode::Late(options) => late::run(place, options).await,
            Mode::Floor(options) => floor::run(place, options).await,
        }
    }
}

/// How a measurement ended.
#[derive(Debug)]
pub enum End {
    /// With its figures.
    Measured(Box<Report>),
    /// Before it had any, for this reason.
    Stopped(String),
}

/// Measures, until `stop` gives a reason not to. In any case no process and no schema of it is left afterwards.
///
/// # Errors
/// The database fails, the schema is somebody else's, or a worker ends by itself.
pub async fn run(mode: &Mode, stop: impl Future<Output = String>) -> Result<End> {
    if cfg!(debug_assertions) {
        progress::say(
            "this is a debug build: the CPU time of workers, and all rates, are not those of a release build",
        );
    }
    let mut stop = std::pin::pin!(stop);
    // Nothing is made before there is a place.
    let place = tokio::select! {
        place = Place::find(&mode.common().place) => place?,
        why = &mut stop => return Ok(End::Stopped(why)),
    };
    place.server.refuse_crowd(mode.workers())?;
    let server = place.server.clone();
    let measured = async {
        place.make().await?;
        mode.measure(&place).await
    };
    // The processes of a measurement that is given up are killed as it is dropped.
    let runs = tokio::select! {
        runs = measured => runs.map(Ok),
        why = stop => Ok(Err(why)),
    };
    let closed = place.close().await;
    let runs = runs?;
    closed?;
    Ok(match runs {
        Ok(runs) => End::Measured(Box::new(Report { mode: mode.name(), settings: mode.settings(), server, runs })),
        Err(why) => End::Stopped(why),
    })
}
