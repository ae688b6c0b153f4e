//! The topic `engine`: nothing lost, nothing twice, quick to recover.

use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::Result;
use tenure_dev::{Options as ServerOptions, Server};
use tenure_scenarios::scenario::{
    cost, duty, fire, freeze, handling, kill, long, names, notify, outage, plans, pooler,
};
use tenure_scenarios::stage::on_stage_of;
use tenure_scenarios::{Bound, Measure, Size};

use super::{Options, demo, table};
use crate::{say, setup};

/// Parts that run at a time with `--quick`: they mostly wait.
const QUICK_AT_ONCE: usize = 3;

/// One part of the topic.
struct Part {
    name: &'static str,
    /// Whether `--quick` runs it: the whole has to end within two minutes.
    quick: bool,
    /// Whether it measures what others would disturb.
    alone: bool,
    play: fn(&str, Size) -> Vec<Measure>,
}

/// A part that plays one scenario on a stage of its own.
macro_rules! part {
    ($name:literal, $scenario:path $(, $option:ident)*) => {
        Part {
            name: $name,
            quick: true $(&& stringify!($option) != "full_only")*,
            alone: false $(|| stringify!($option) == "alone")*,
            play: |url, size| wait_for(on_stage_of(url, size, async |stage| $scenario(stage).await)),
        }
    };
}

const fn on_own_server(name: &'static str, quick: bool, play: fn(&str, Size) -> Vec<Measure>) -> Part {
    Part { name, quick, alone: false, play }
}

fn parts() -> Vec<Part> {
    vec![
        part!("kill", kill::killed_workers, alone),
        part!("kill in a crowd", kill::killed_in_a_crowd, alone),
        part!("kill all", kill::all_workers_killed),
        part!("same name", kill::restarted_under_the_same_name, alone),
        part!("freeze", freeze::frozen_worker),
        part!("late writes", freeze::late_writes),
        part!("late reports", freeze::late_reports),
        part!("freeze before commit", freeze::frozen_before_commit),
        part!("long job", long::longer_than_its_lease),
        part!("terminate", outage::terminated_connections),
        on_own_server("restart", true, |_, size| wait_for(outage::restarted_database(size))),
        on_own_server("backend killed", false, |_, size| wait_for(outage::crashed_backend(size))),
        on_own_server("restart during rescue", false, |_, size| wait_for(outage::restarted_during_rescue(size))),
        on_own_server("outages", false, |_, size| wait_for(outage::outages(size))),
        part!("roll back", cost::rolled_back),
        part!("bulk", cost::bulk_enqueue, alone),
        part!("idle", cost::idle_workers, alone),
        Part { name: "fire 7", quick: true, alone: true, play: |url, size| under_fire(url, size, 7) },
        Part { name: "fire 17", quick: false, alone: true, play: |url, size| under_fire(url, size, 17) },
        Part { name: "fire 100", quick: false, alone: true, play: |url, size| under_fire(url, size, 100) },
        part!("cut bundle", duty::cut_bundle, alone),
        part!("late commit", duty::late_commit, alone),
        part!("lost answer", duty::lost_answer, alone),
        part!("plans", plans::plans_stay_right, alone),
        part!("panics", handling::panics, full_only),
        part!("texts", handling::unstorable_failures, full_only),
        part!("timeouts", handling::timeouts, full_only),
        part!("pool", handling::exhausted_pool, full_only),
        part!("values", handling::odd_values, full_only),
        part!("kinds", duty::unknown_kinds, full_only),
        part!("shutdown", duty::shutdown, full_only),
        part!("notify", notify::small_wake_ups, full_only),
        part!("names", names::nasty_names, full_only),
        Part { name: "pooler", quick: false, alone: false, play: behind_a_pooler },
    ]
}

fn under_fire(url: &str, size: Size, want: i32) -> Vec<Measure> {
    wait_for(on_stage_of(url, size, async |stage| fire::claims_under_fire(stage, want).await))
}

fn behind_a_pooler(url: &str, size: Size) -> Vec<Measure> {
    if pooler::program().is_none() {
        return vec![Measure::new("behind a pooler: PgBouncer is installed", Bound::Exactly(1.0), 0.0, "")];
    }
    wait_for(on_stage_of(url, size, async |stage| pooler::behind_a_pooler(stage).await))
}

/// Runs a scenario to its end on a runtime of its own.
fn wait_for<T>(play: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(play)
}

/// Runs the parts on a durable server of their own, and prints what came out.
pub(crate) fn run(options: &Options) -> Result<()> {
    let chosen: Vec<Part> = parts().into_iter().filter(|part| is_chosen(options, part.name, part.quick)).collect();
    let with_demo = is_chosen(options, "demo", true);
    if options.list {
        for part in parts() {
            println!("{}", part.name);
        }
        println!("demo");
        return Ok(());
    }
    let server_options =
        ServerOptions { ephemeral: true, bin_dir: Some(setup::binaries()?.dir), say, ..ServerOptions::default() };
    let server = Server::start(server_options)?;
    say(&format!("PostgreSQL {}, durable, on {} parts", server.version(), chosen.len() + usize::from(with_demo)));
    let mut lines = play(&chosen, server.url(), options.quick);
    if with_demo {
        lines.splice(0..0, demo::with_chaos(server.url(), options.quick)?);
    }
    server.stop()?;
    table::print("engine", options.quick, options.json, &lines)
}

fn is_chosen(options: &Options, name: &str, quick: bool) -> bool {
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
