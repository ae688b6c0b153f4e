//! `tenure doctor`: looks whether the database is as it should be, and says what to do about what is not.

use serde_json::{Value, json};
use tenure::{CallPlan, PlanCheck, PlanFinding};

use crate::connection::Connection;
use crate::exit::{Failure, Outcome};
use crate::output;

/// Look whether the database is as it should be, and say what to do about what is not
///
/// With --plans every hot call is made on the database as it is now: what it touches must not grow with the number of jobs. Nothing of it
/// stays: the calls are made by a worker, on a queue and with a kind of their own, in transactions that are rolled back. It
/// needs the rights of the schema's owner. Exit code 1 when something was found.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tenure doctor --plans
  tenure doctor --plans --json | jq '.findings[] | .place + \": \" + .way_out'
  tenure doctor --plans --schema jobs && echo as it should be")]
pub struct Doctor {
    /// Look at plans and indexes: sequential scans, missing and invalid indexes, and calls that touch far more than is usual
    #[arg(long)]
    plans: bool,

    /// Print a JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Looks and prints.
pub async fn run(args: Doctor) -> Outcome {
    if !args.plans {
        return Err(Failure::Usage("say what to look at: --plans".to_owned()));
    }
    let check = args.connection.connect().await?.check_plans().await?;
    let findings = check.findings();
    match args.json {
        true => output::json(&as_value(&check, &findings))?,
        false => print(&check, &findings)?,
    }
    Ok(u8::from(!findings.is_empty()))
}

fn print(check: &PlanCheck, findings: &[PlanFinding]) -> std::io::Result<()> {
    let rows = check.calls.iter().map(|call| row(call, findings)).collect();
    output::table(&["CALL", "BUFFERS", "USUAL", "ROWS WRITTEN", "SCANNED", ""], rows, "")?;
    for (call, why) in &check.left_out {
        output::line(&format!("{call} was left out: {why}"))?;
    }
    output::line("")?;
    if findings.is_empty() {
        return output::line("all plans are as they should be");
    }
    findings.iter().try_for_each(|found| output::foreign_line(&format!("{found}\n  {}", found.way_out)))
}

fn row(call: &CallPlan, findings: &[PlanFinding]) -> Vec<String> {
    let scans = call.scans.iter().map(|scan| format!("{} {}", scan.table, scan.rows));
    let is_found = findings.iter().any(|found| found.place == call.call);
    vec![
        call.call.clone(),
        call.buffers.to_string(),
        format!("<= {}", call.usual),
        call.rows_written.to_string(),
        scans.collect::<Vec<_>>().join(", "),
        if is_found { "FOUND" } else { "" }.to_owned(),
    ]
}

fn as_value(check: &PlanCheck, findings: &[PlanFinding]) -> Value {
    let call = |call: &CallPlan| {
        let scans = call.scans.iter().map(|scan| json!({ "table": scan.table, "rows": scan.rows }));
        json!({
            "call": call.call,
            "buffers": call.buffers,
            "usual_max": call.usual,
            "rows_written": call.rows_written,
            "scans": scans.collect::<Vec<_>>(),
        })
    };
    let table = |facts: &tenure::TableFacts| {
        json!({
            "table": facts.table,
            "rows": facts.rows,
            "dead": facts.dead,
            "index_pages": facts.index_pages,
            "missing_indexes": facts.missing,
            "invalid_indexes": facts.invalid,
        })
    };
    let found = |found: &PlanFinding| json!({ "place": found.place, "what": found.what, "way_out": found.way_out });
    json!({
        "calls": check.calls.iter().map(call).collect::<Vec<_>>(),
        "tables": check.tables.iter().map(table).collect::<Vec<_>>(),
        "left_out": check.left_out.iter().map(|(call, why)| json!({ "call": call, "why": why })).collect::<Vec<_>>(),
        "findings": findings.iter().map(found).collect::<Vec<_>>(),
    })
}
