//! The topic `engine`: nothing lost, nothing twice, quick to recover.

use anyhow::Result;
use tenure_scenarios::scenario::{
    cost, duty, fire, freeze, handling, kill, long, names, notify, outage, plans, pooler,
};
use tenure_scenarios::stage::on_stage_of;
use tenure_scenarios::{Measure, Size};

use super::parts::{self, More, Part, is_chosen, on_own_server, part, wait_for};
use super::{Options, demo, table};
use crate::setup;

/// The demo with chaos, which is a program of its own.
const DEMO: &str = "demo";

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

/// Behind a pooler, which is installed where that is permitted; without one the part fails.
pub(super) fn behind_a_pooler(url: &str, size: Size) -> Vec<Measure> {
    setup::pooler();
    wait_for(on_stage_of(url, size, async |stage| pooler::behind_a_pooler(stage).await))
}

/// Runs the parts and prints what came out.
pub(crate) fn run(options: &Options) -> Result<()> {
    if options.list {
        parts().iter().for_each(|part| println!("{}", part.name));
        println!("{DEMO}");
        return Ok(());
    }
    let chosen = parts::choose(options, "engine", parts(), DEMO);
    let demo = |url: &str| demo::with_chaos(url, options.quick);
    let demo: Option<More<'_>> = is_chosen(options, DEMO, true).then_some((DEMO, &demo));
    let lines = parts::run(options, &chosen, demo)?;
    table::print("engine", options.quick, options.json, &lines)
}
