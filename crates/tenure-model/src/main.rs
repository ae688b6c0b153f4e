//! `cargo run -p tenure-model`: checks the protocol, then each broken variant, and prints what was found.
//! With `cut N` or `single N` it checks the protocol alone, with these bundles and at most N faults.

use tenure_model::{Asked, Bundles, FAULTS, Flaw, Report, check, check_broken};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let reports = match args.as_slice() {
        [] => everything(),
        [bundles @ ("cut" | "single"), faults] => {
            let bundles = if *bundles == "cut" { Bundles::Cut } else { Bundles::Single };
            vec![faults.parse().map_or_else(|_| usage(), |faults| check(bundles, faults))]
        }
        _ => usage(),
    };
    reports.iter().for_each(print);
    let fine = |report: &Report| if report.flaw.is_none() { report.holds() } else { report.counterexample().is_some() };
    std::process::exit(i32::from(!reports.iter().all(fine)));
}

fn everything() -> Vec<Report> {
    let as_built = [check(Bundles::Cut, FAULTS - 1), check(Bundles::Single, FAULTS)];
    as_built.into_iter().chain(Flaw::ALL.map(check_broken)).collect()
}

fn usage() -> ! {
    eprintln!("usage: tenure-model [cut|single FAULTS]");
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
        for (n, sentence) in property.history.iter().enumerate() {
            println!("    {:>2}. {sentence}", n + 1);
        }
    }
}
