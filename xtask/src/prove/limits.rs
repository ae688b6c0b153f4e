//! The topic `limits`: never above a limit, whoever dies; what limits cost; whose turn it is; and the demo under its provider's limit.

use anyhow::Result;
use tenure_scenarios::scenario::{limits, limits_chaos};

use super::parts::{self, More, Part, is_chosen, on_own_server, part, wait_for};
use super::{Options, demo, table};

/// The demo, which is a program of its own.
const DEMO: &str = "demo";

fn parts() -> Vec<Part> {
    vec![
        part!("rate", limits::rate, alone),
        part!("throughput", limits::throughput, alone),
        part!("fairness", limits::fairness, alone),
        part!("shares", limits::shares),
        part!("behind", limits::behind, alone),
        on_own_server("chaos", true, |_, size| wait_for(limits_chaos::twenty_limits(size))),
    ]
}

/// Runs the parts and prints what came out.
pub(crate) fn run(options: &Options) -> Result<()> {
    if options.list {
        parts().iter().for_each(|part| println!("{}", part.name));
        println!("{DEMO}");
        return Ok(());
    }
    let chosen = parts::choose(options, "limits", parts(), DEMO);
    let with_demo = |url: &str| demo::under_its_limit(url, options.quick);
    let more: Option<More<'_>> = is_chosen(options, DEMO, true).then_some((DEMO, &with_demo));
    let lines = parts::run(options, &chosen, more)?;
    table::print("limits", options.quick, options.json, &lines)
}
