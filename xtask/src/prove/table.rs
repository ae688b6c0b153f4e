//! What was measured, as a table or as JSON, and whether it holds.

use anyhow::{Result, bail};
use comfy_table::presets;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use serde_json::json;
use tenure_scenarios::Measure;

/// Prints every line.
///
/// # Errors
/// A bound does not hold.
pub(crate) fn print(topic: &str, quick: bool, as_json: bool, lines: &[Measure]) -> Result<()> {
    if as_json {
        println!(
            "{}",
            json!({ "topic": topic, "quick": quick, "lines": lines.iter().map(as_value).collect::<Vec<_>>() })
        );
    } else {
        println!("{}", table(lines));
    }
    let broken: Vec<String> = lines.iter().filter(|line| line.held() == Some(false)).map(in_words).collect();
    if broken.is_empty() {
        return Ok(());
    }
    let bounds = lines.iter().filter(|line| line.held().is_some()).count();
    // Named once more: of a long output, often only the end is kept.
    bail!("{} of {bounds} bounds do not hold\n{}", broken.len(), broken.join("\n"))
}

fn in_words(line: &Measure) -> String {
    format!("  {}: {}, where the bound is {}", line.claim, line.measured_in_words(), line.bound)
}

fn table(lines: &[Measure]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(["claim", "bound", "measured", "held"]);
    for line in lines {
        let held = line.held().map_or("", |held| if held { "yes" } else { "NO" });
        table.add_row([line.claim.clone(), line.bound.to_string(), line.measured_in_words(), held.to_owned()]);
    }
    for column in [1, 2] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn as_value(line: &Measure) -> serde_json::Value {
    json!({
        "claim": line.claim, "bound": line.bound.to_string(), "measured": line.measured, "unit": line.unit, "held": line.held()
    })
}
