//! What topics are made of: parts that play scenarios, on a durable server of their own, and the lines that come out.

use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::Result;
use tenure_dev::{Options as ServerOptions, Server};
use tenure_scenarios::{Bound, Measure, Size};

use super::Options;
use crate::{say, setup};

/// Parts that run at a time with `--quick`: they mostly wait.
const QUICK_AT_ONCE: usize = 3;

/// One part of a topic.
pub(super) struct Part {
    pub(super) name: &'static str,
    /// Whether `--quick` runs it: the whole has to end within two minutes.
    pub(super) quick: bool,
    /// Whether it measures what others would disturb.
    pub(super) alone: bool,
    pub(super) play: fn(&str, Size) -> Vec<Measure>,
}

/// A part that plays one scenario on a stage of its own.
macro_rules! part {
    ($name:literal, $scenario:path $(, $option:ident)*) => {
        $crate::prove::parts::Part {
            name: $name,
            quick: true $(&& stringify!($option) != "full_only")*,
            alone: false $(|| stringify!($option) == "alone")*,
            play: |url, size| {
                $crate::prove::parts::wait_for(tenure_scenarios::stage::on_stage_of(url, size, async |stage| {
                    $scenario(stage).await
                }))
            },
        }
    };
}

pub(super) use part;

/// A part that starts a server of its own.
pub(super) const fn on_own_server(name: &'static str, quick: bool, play: fn(&str, Size) -> Vec<Measure>) -> Part {
    Part { name, quick, alone: false, play }
}

/// Runs a scenario to its end on a runtime of its own.
pub(super) fn wait_for<T>(play: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(play)
}

/// Runs the chosen parts on a durable server of their own. `more` adds its lines in front, on the same server.
pub(super) fn run(
    options: &Options,
    chosen: &[Part],
    more: impl FnOnce(&str) -> Result<Vec<Measure>>,
) -> Result<Vec<Measure>> {
    let server_options =
        ServerOptions { ephemeral: true, bin_dir: Some(setup::binaries()?.dir), say, ..ServerOptions::default() };
    let server = Server::start(server_options)?;
    say(&format!("PostgreSQL {}, durable, {} parts", server.version(), chosen.len()));
    let mut lines = play(chosen, server.url(), options.quick);
    lines.splice(0..0, more(server.url())?);
    server.stop()?;
    Ok(lines)
}

/// Whether the options ask for the part of this name.
pub(super) fn is_chosen(options: &Options, name: &str, quick: bool) -> bool {
    match options.only.is_empty() {
        true => quick || !options.quick,
        false => options.only.iter().any(|word| name.contains(word.as_str())),
    }
}

/// Plays all parts, those that measure speed one after another; their lines in the order of the list.
fn play(parts: &[Part], url: &str, quick: bool) -> Vec<Measure> {
    let size = if quick { Size::Ci } else { Size::Full };
    panic::set_hook(Box::new(|info| say(&info.to_string())));
    let lines: Mutex<Vec<(usize, Vec<Measure>)>> = Mutex::default();
    let done = AtomicUsize::new(0);
    let clean = AtomicUsize::new(0);
    let one = |(n, part): (usize, &Part)| {
        let start = Instant::now();
        // One that fails is a line that does not hold; the others go on.
        let measures = catch_unwind(AssertUnwindSafe(|| (part.play)(url, size)));
        clean.fetch_add(usize::from(measures.is_ok()), Ordering::SeqCst);
        let measures = measures.unwrap_or_else(|panic| vec![failed(part.name, panic.as_ref())]);
        let all = done.fetch_add(1, Ordering::SeqCst) + 1;
        say(&format!("{all} of {}: {} ({:.0} s)", parts.len(), part.name, start.elapsed().as_secs_f64()));
        lines.lock().expect("lines").push((n, measures));
    };
    let numbered: Vec<(usize, &Part)> = parts.iter().enumerate().collect();
    let (alone, together): (Vec<_>, Vec<_>) = numbered.into_iter().partition(|(_, part)| part.alone || !quick);
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..QUICK_AT_ONCE {
            scope.spawn(|| {
                while let Some(part) = together.get(next.fetch_add(1, Ordering::SeqCst)) {
                    one(*part);
                }
            });
        }
    });
    alone.into_iter().for_each(one);
    let mut lines = lines.into_inner().expect("lines");
    lines.sort_by_key(|(n, _)| *n);
    let mut lines: Vec<Measure> = lines.into_iter().flat_map(|(_, lines)| lines).collect();
    lines.push(Measure::count("parts after which every invariant held", parts.len(), clean.into_inner()));
    lines
}

/// The line of a part that panicked: a deadline that passed, or an invariant that is broken.
fn failed(name: &str, panic: &(dyn std::any::Any + Send)) -> Measure {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    let text: String = text.unwrap_or("panicked").chars().take(400).collect();
    Measure::new(format!("{name}: {text}"), Bound::Exactly(0.0), 1.0, "failed")
}
