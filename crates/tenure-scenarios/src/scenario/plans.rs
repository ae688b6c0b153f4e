//! What a call touches must not grow with the tables: no sequential scan, and no more buffers beside ten million jobs than beside ten thousand,
//! whether the tables were ever analysed or not, and whether a session made its plans beside none of them or beside all.

use std::collections::BTreeMap;

use tenure::{Client, PlanCheck};

use crate::filled::{GROWING, fill, keep_empty_ranges, make_partitions};
use crate::stage::text;
use crate::{Bound, Measure, Stage, size};

/// A call that touches no more than this may double; below, a level of an index more is not growth.
const FEW: f64 = 60.0;
/// Beside a thousand times as many jobs each index has one or two levels more.
const GROWTH_MAX: f64 = 1.5;

/// What each call touched at most, of several looks.
type Buffers = BTreeMap<String, f64>;

/// One size, in all its states.
struct Looks {
    jobs: usize,
    buffers: Buffers,
    rows_scanned: u64,
    findings: usize,
}

/// Every hot call at each size.
pub async fn plans_stay_right(stage: &Stage) -> Vec<Measure> {
    let sizes = size::PLAN_JOBS.at(stage.size);
    make_partitions(stage, sizes.last().copied().unwrap_or_default()).await;
    keep_unanalysed(stage).await;
    // Its plans are made beside no jobs, and kept.
    let first = one_session(stage).await;
    let (mut there, mut looks) = (0, Vec::new());
    for &jobs in sizes {
        if jobs > there {
            fill(stage, jobs - there).await;
            there = jobs;
        }
        looks.push(look(stage, &first, jobs).await);
    }
    report(&looks)
}

/// No table is analysed or vacuumed by itself meanwhile.
pub(super) async fn keep_unanalysed(stage: &Stage) {
    let off = "select string_agg(format('alter table tenure.%I set (autovacuum_enabled = false)', relname), ';') from pg_class
        where relnamespace = 'tenure'::regnamespace and relkind = 'r'";
    let off: String = stage.one(off, &[]).await;
    stage.sql.batch_execute(&off).await.unwrap_or_else(|e| panic!("{}", text(&e)));
}

async fn one_session(stage: &Stage) -> Client {
    Client::builder(stage.url()).pool_size(1).connect().await.expect("a client")
}

/// Not analysed since the last size, and then analysed; by the session of old, and by a new one.
async fn look(stage: &Stage, first: &Client, jobs: usize) -> Looks {
    let mut looks = Looks { jobs, buffers: Buffers::new(), rows_scanned: 0, findings: 0 };
    for state in ["not analysed", "analysed"] {
        if state == "analysed" {
            stage.sql.batch_execute("analyze").await.expect("analysed");
        }
        for (session, client) in [("an old session", first), ("a new session", &one_session(stage).await)] {
            keep_empty_ranges(stage).await;
            let check = client.check_plans().await.unwrap_or_else(|e| panic!("{jobs} jobs, {state}, {session}: {e}"));
            looks.add(&check, &format!("{jobs} jobs, {state}, {session}"));
        }
    }
    looks
}

impl Looks {
    fn add(&mut self, check: &PlanCheck, place: &str) {
        assert!(check.left_out.is_empty(), "{place}: {:?} were left out", check.left_out);
        for call in &check.calls {
            let most = self.buffers.entry(call.call.clone()).or_default();
            *most = most.max(call.buffers as f64);
            // No function pins the plan of the view: beside few rows the planner reads them all. What is too much is among the findings.
            let pinned = call.call != "get";
            for scan in call.scans.iter().filter(|scan| pinned && GROWING.contains(&scan.table.as_str())) {
                eprintln!("{place}: {} reads {} rows of {} by a sequential scan", call.call, scan.rows, scan.table);
                self.rows_scanned += scan.rows;
            }
        }
        for found in check.findings() {
            eprintln!("{place}: {found}: {}", found.way_out);
            self.findings += 1;
        }
    }
}

fn report(looks: &[Looks]) -> Vec<Measure> {
    let scanned = |looks: &Looks| {
        let claim = format!("rows read by sequential scans in one call of each verb, {} jobs", looks.jobs);
        Measure::new(claim, Bound::Exactly(0.0), looks.rows_scanned as f64, "")
    };
    let found = |looks: &Looks| {
        Measure::count(format!("findings of `tenure doctor --plans`, {} jobs", looks.jobs), 0, looks.findings)
    };
    let mut lines: Vec<Measure> = looks.iter().map(scanned).chain(looks.iter().map(found)).collect();
    let (Some(small), Some(large)) = (looks.iter().find(|looks| looks.jobs > 0), looks.last()) else { return lines };
    let growth = |(call, buffers): (&String, &f64)| buffers / f64::max(small.buffers[call], FEW);
    lines.push(Measure::new(
        format!("buffers of a call beside {} jobs against {}, the worst call", large.jobs, small.jobs),
        Bound::AtMost(GROWTH_MAX),
        large.buffers.iter().filter(|(call, _)| small.buffers.contains_key(*call)).map(growth).fold(0.0, f64::max),
        "x",
    ));
    for (call, buffers) in &large.buffers {
        let before = looks.iter().map(|looks| format!("{}", looks.buffers.get(call).copied().unwrap_or_default()));
        let sizes = looks.iter().map(|looks| looks.jobs.to_string());
        let claim = format!(
            "buffers of {call} beside {} jobs: {}",
            sizes.collect::<Vec<_>>().join(", "),
            before.collect::<Vec<_>>().join(", ")
        );
        lines.push(Measure::new(claim, Bound::Shown, *buffers, ""));
    }
    lines
}
