//! The topic `failures`: every path on which something goes wrong, and the proof by trying to break it.

use anyhow::Result;
use tenure_scenarios::scenario::{
    backlog, cancel, database, duty, failover, freeze, handling, horizon, kill, long, notify, outage, pause, plans,
    poison, pooler, race, retention, snooze, sweep, sweep_worker, unknown,
};
use tenure_scenarios::stage::on_stage_of;
use tenure_scenarios::{Bound, Measure, Size};

use super::engine::behind_a_pooler;
use super::parts::{self, Part, is_chosen, on_own_server, part, wait_for};
use super::{Options, model, table};
use crate::{chaos, setup};

/// Chaos, which has a server of its own.
const CHAOS: &str = "chaos";
/// The seeds of the chaos runs, and how many minutes each breaks things.
const SEEDS: [u64; 3] = [11, 22, 33];
const MINUTES: f64 = 10.0;
const MINUTES_QUICK: f64 = 0.25;

fn parts() -> Vec<Part> {
    vec![
        part!("sweep client", sweep::client_verbs, full_only),
        part!("sweep worker", sweep_worker::worker_comes_back),
        part!("sweep dying worker", sweep_worker::worker_dies),
        part!("unknown commits", unknown::unknown_commits),
        part!("terminate", outage::terminated_connections),
        on_own_server("restart", true, |_, size| wait_for(outage::restarted_database(size))),
        on_own_server("backend killed", false, |_, size| wait_for(outage::crashed_backend(size))),
        on_own_server("restart during rescue", false, |_, size| wait_for(outage::restarted_during_rescue(size))),
        on_own_server("outages", false, |_, size| wait_for(outage::outages(size))),
        on_own_server("read only", true, |_, size| wait_for(database::read_only(size))),
        on_own_server("failover", false, |_, size| wait_for(failover::promoted_standby(size))),
        on_own_server("failover, long grace", false, |_, size| {
            wait_for(failover::silent_primary_within_the_grace(size))
        }),
        on_own_server("failover, silent", false, |_, size| wait_for(failover::silent_primary(size))),
        on_own_server("prepared and slot", false, |_, size| wait_for(horizon::prepared_and_slot_are_reported(size))),
        on_own_server("logins", false, |_, size| wait_for(database::refused_logins(size))),
        part!("name", database::unresolvable_name, full_only),
        part!("rescue race", race::rescue_meets_ends, full_only),
        part!("freeze", freeze::frozen_worker, full_only),
        part!("late writes", freeze::late_writes),
        part!("late reports", freeze::late_reports, full_only),
        part!("long job", long::longer_than_its_lease, full_only),
        part!("kill all", kill::all_workers_killed, full_only),
        part!("unregistered", kill::killed_and_unregistered, full_only),
        part!("same name", kill::restarted_under_the_same_name, full_only),
        part!("panics", handling::panics, full_only),
        part!("texts", handling::unstorable_failures, full_only),
        part!("timeouts", handling::timeouts, full_only),
        part!("pool", handling::exhausted_pool, full_only),
        part!("values", handling::odd_values, full_only),
        part!("snapshot", database::old_snapshot, alone, full_only),
        part!("staggered readers", database::staggered_snapshots, alone, full_only),
        part!("snapshot reported", horizon::old_snapshot_is_reported, full_only),
        part!("notifying", database::notifying, alone, full_only),
        part!("notify", notify::small_wake_ups, full_only),
        on_own_server("notify full", true, |_, size| wait_for(database::full_notification_queue(size))),
        part!("numbers", database::large_numbers),
        part!("plans", plans::plans_stay_right, alone, full_only),
        part!("kinds", duty::unknown_kinds, full_only),
        part!("shutdown", duty::shutdown, full_only),
        part!("poison among slow jobs", poison::among_slow_jobs, full_only),
        part!("poison at its first instruction", poison::at_the_first_instruction, full_only),
        part!("poison among quick jobs", poison::among_quick_jobs, full_only),
        part!("poison by its stack", poison::by_its_stack, full_only),
        part!("poison by its memory", poison::by_its_memory, full_only),
        part!("poison by its memory group", poison::by_its_memory_group, full_only),
        part!("poison by its files", poison::by_its_files, full_only),
        part!("snoozes", snooze::snoozes_before_failures, full_only),
        part!("cancels", cancel::cancels_at_random, full_only),
        part!("pause", pause::pauses_hold_everywhere, full_only),
        part!("paused kind", pause::paused_kind_is_passed_over_once, alone, full_only),
        part!("requeue spread", pause::requeue_spread, full_only),
        part!("retention", retention::whole_ranges_under_load, alone, full_only),
        part!("retention by rows", retention::row_by_row, alone, full_only),
        part!("retention of a backlog", backlog::everything_is_due, alone, full_only),
        part!("retention beside a read", retention::beside_a_long_read, alone, full_only),
        part!("retention plateau", retention::plateau, alone, full_only),
        Part { name: "model", quick: false, alone: true, play: model::checked },
        Part { name: "pooler", quick: false, alone: false, play: behind_a_pooler },
        Part { name: "verbs behind a pooler", quick: false, alone: false, play: verbs_behind_a_pooler },
    ]
}

fn verbs_behind_a_pooler(url: &str, size: Size) -> Vec<Measure> {
    setup::pooler();
    wait_for(on_stage_of(url, size, async |stage| pooler::functions_behind_a_pooler(stage).await))
}

/// Runs the parts and prints what came out.
pub(crate) fn run(options: &Options) -> Result<()> {
    if options.list {
        parts().iter().for_each(|part| println!("{}", part.name));
        println!("{CHAOS}");
        return Ok(());
    }
    let chosen = parts::choose(options, "failures", parts(), CHAOS);
    let mut lines = match chosen.is_empty() {
        true => Vec::new(),
        false => parts::run(options, &chosen, None)?,
    };
    if is_chosen(options, CHAOS, true) {
        lines.extend(with_chaos(options.quick));
    }
    table::print("failures", options.quick, options.json, &lines)
}

/// One run of chaos for each seed; a run that does not fit prints its history.
fn with_chaos(quick: bool) -> Vec<Measure> {
    let (seeds, minutes) = if quick { (&SEEDS[..1], MINUTES_QUICK) } else { (&SEEDS[..], MINUTES) };
    let one = |seed: u64| {
        let report = chaos::play(minutes, seed)?;
        chaos::print_faults(seed, &report);
        let mut lines = vec![Measure::new(format!("chaos, seed {seed}"), Bound::Shown, minutes, "min")];
        lines.extend(report.measures);
        Ok(lines)
    };
    let guarded = |seed: u64| parts::guarded(&format!("chaos, seed {seed}"), || one(seed));
    seeds.iter().flat_map(|seed| guarded(*seed).unwrap_or_else(|failed| vec![failed])).collect()
}
