//! Cron lines in time zones, compared with an independent implementation: `times/table.tsv` is what croniter and zoneinfo
//! say, by `times/table.py`.

use std::collections::BTreeSet;

use tenure::{Rule, instant};

const TABLE: &str = include_str!("times/table.tsv");

/// The next runs of a rule, as the table writes them.
fn next_runs(rule: &Rule, after: &str, count: usize) -> Vec<String> {
    let mut after = instant::read(after, None).expect("an instant").at;
    let next = |_| {
        after = rule.next(after)?;
        Some(instant::show(after, "UTC").expect("an instant").replace(".000Z", "Z"))
    };
    (0..count).map_while(next).collect()
}

#[test]
fn the_next_runs_are_those_of_croniter_and_zoneinfo() {
    let (mut wrong, mut cases, mut zones) = (Vec::new(), 0, BTreeSet::new());
    for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
        let columns: Vec<&str> = line.split('\t').collect();
        let [text, zone, after, expected, what] = columns[..] else { panic!("{line}: not five columns") };
        let rule = Rule::new(text, zone).unwrap_or_else(|error| panic!("{error}"));
        let found = next_runs(&rule, after, 5).join(" ");
        if found != expected {
            wrong.push(format!("{text} in {zone} after {after} ({what})\n  expected {expected}\n  found    {found}"));
        }
        cases += 1;
        zones.insert(zone);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(cases >= 60 && zones.len() >= 20, "{cases} cases in {} zones were looked at", zones.len());
}
