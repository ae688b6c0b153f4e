//! `cargo run -p tenure-model`: checks the protocol, then each broken variant, and prints what was found.
//! With `broken` it checks the broken variants alone; with `cut N`, `single N` or `one N` the protocol alone, with these bundles and at most N faults.

use std::cell::Cell;

use tenure_model::{Asked, Bundles, FAULTS, Flaw, Report, check, check_broken, unreached};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let fine = Cell::new(true);
    let must = |holds: bool| fine.set(fine.get() && holds);
    let show = |report: Report| {
        print(&report);
        must(if report.flaw.is_none() { report.holds() } else { report.counterexample().is_some() });
    };
    match args.as_slice() {
        [] => {
            let as_built =
                [check(Bundles::One, FAULTS), check(Bundles::Cut, FAULTS - 1), check(Bundles::Single, FAULTS)];
            let unreached = unreached(&as_built);
            as_built.into_iter().for_each(show);
            unreached.iter().for_each(|name| println!("NOT REACHED BY ANY: {name}"));
            must(unreached.is_empty());
            Flaw::ALL.into_iter().for_each(|flaw| show(check_broken(flaw)));
        }
        ["broken"] => Flaw::ALL.into_iter().for_each(|flaw| show(check_broken(flaw))),
        ["cut", faults] => show(check(Bundles::Cut, number(faults))),
        ["single", faults] => show(check(Bundles::Single, number(faults))),
        ["one", faults] => show(check(Bundles::One, number(faults))),
        _ => usage(),
    }
    std::process::exit(i32::from(!fine.get()));
}

fn number(text: &str) -> u8 {
    text.parse().unwrap_or_else(|_| usage())
}

fn usage() -> ! {
    eprintln!("usage: tenure-model [broken | cut FAULTS | single FAULTS | one FAULTS]");
    std::process::exit(2);
}

fn print(report: &Report) {
    let what = report.flaw.map_or("the protocol as built", Flaw::in_words);
    println!(
        "{what}: {} states, {} steps, depth {}, at most {} faults, {:.1} s",
        report.states,
        report.steps,
        report.depth,
        report.faults,
        report.took.as_secs_f64()
    );
    for property in &report.properties {
        let became = match (property.asked, property.held) {
            (Asked::Always | Asked::InTheEnd, true) if report.flaw.is_none() => "holds",
            (Asked::Always | Asked::InTheEnd, true) => continue,
            (Asked::Always | Asked::InTheEnd, false) => "BROKEN",
            (Asked::Reachable, true) => "reached",
            (Asked::Reachable, false) => "NOT REACHED",
        };
        println!("  {became}: {}", property.name);
        if report.counterexample().is_some_and(|shown| shown.name != property.name) {
            continue;
        }
        for (n, sentence) in property.history.iter().enumerate() {
            println!("    {:>2}. {sentence}", n + 1);
        }
    }
}
