//! The topic `time`: each logical time of a schedule fires once, whoever dies, and nothing that has a time is late.

use anyhow::Result;
use tenure_scenarios::scenario::{punctual, schedules};

use super::parts::{self, Part, on_own_server, part, wait_for};
use super::{Options, table};

fn parts() -> Vec<Part> {
    vec![
        on_own_server("schedules", true, |_, size| wait_for(schedules::under_fire(size))),
        part!("many schedules", punctual::many_schedules, alone),
        part!("one-shot", punctual::one_shots, alone),
    ]
}

/// Runs the parts and prints what came out.
pub(crate) fn run(options: &Options) -> Result<()> {
    if options.list {
        parts().iter().for_each(|part| println!("{}", part.name));
        return Ok(());
    }
    let chosen = parts::choose(options, "time", parts(), "");
    let lines = parts::run(options, &chosen, None)?;
    table::print("time", options.quick, options.json, &lines)
}
