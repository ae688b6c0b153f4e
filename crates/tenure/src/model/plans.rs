//! What the hot calls cost on a database, and whether that is more than their work explains. Pure values; the database counts.

use std::fmt;

/// Rows that a call may read by a sequential scan: a table that small costs the same either way, and where no function pins the plan, as in the
/// view of jobs, the planner may choose so.
const SCAN_ROWS_MAX: u64 = 5_000;
/// From so many on, dead rows are the first suspects.
const DEAD_ROWS: u64 = 10_000;

/// What the hot calls cost on this database at this moment, see [`Client::check_plans`](crate::Client::check_plans).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct PlanCheck {
    /// The schema that was looked at.
    pub schema: String,
    /// One for each call, in the order in which they were made.
    pub calls: Vec<CallPlan>,
    /// The tables of the schema, by name.
    pub tables: Vec<TableFacts>,
    /// Calls that were not made, each with the reason.
    pub left_out: Vec<(String, String)>,
}

/// What one call of a hot function touched.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CallPlan {
    /// The verb, and what it was asked for: `claim 100`.
    pub call: String,
    /// Pages of 8 KB that it touched, those in memory as well; the least of several calls.
    pub buffers: u64,
    /// What it touches at most, whatever the number of jobs, when plans and indexes are as they should be. A turn of maintenance may
    /// touch more when there was much to do.
    pub usual: u64,
    /// Rows that it wrote or removed.
    pub rows_written: u64,
    /// Tables of the schema that it read from end to end.
    pub scans: Vec<TableScan>,
    /// The tables that it works on.
    pub tables: &'static [&'static str],
}

/// A sequential scan.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableScan {
    /// The table; of a range of jobs, the one that it belongs to.
    pub table: String,
    /// Rows that were read, the most of several calls.
    pub rows: u64,
}

/// What the server knows of a table.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct TableFacts {
    /// Its name.
    pub table: String,
    /// Rows, as it was last analysed; none: never.
    pub rows: Option<u64>,
    /// Rows that are gone and not yet removed by vacuum, as the server's statistics estimate them.
    pub dead: u64,
    /// Pages of its indexes together, as last vacuumed or analysed.
    pub index_pages: u64,
    /// Indexes that tenure made and that are not there.
    pub missing: Vec<String>,
    /// Indexes that no plan uses, because making them was broken off.
    pub invalid: Vec<String>,
}

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlanFinding {
    /// The call, or the table, that it was found at.
    pub place: String,
    /// What it is.
    pub what: String,
    /// What to do about it.
    pub way_out: String,
}

impl fmt::Display for PlanFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

impl PlanCheck {
    /// Everything that is not as it should be; empty: nothing is.
    pub fn findings(&self) -> Vec<PlanFinding> {
        let of_tables = self.tables.iter().flat_map(|table| table.findings(&self.schema));
        of_tables.chain(self.calls.iter().flat_map(|call| self.findings_of(call))).collect()
    }

    fn findings_of(&self, call: &CallPlan) -> Vec<PlanFinding> {
        let large = call.scans.iter().filter(|scan| scan.rows > SCAN_ROWS_MAX);
        let mut found: Vec<PlanFinding> = large
            .map(|scan| PlanFinding {
                place: call.call.clone(),
                what: format!("reads {} rows of {} by a sequential scan", scan.rows, scan.table),
                way_out: self.out_of_scan(&scan.table),
            })
            .collect();
        // The scan explains the buffers.
        if found.is_empty() && call.buffers > call.usual {
            found.push(PlanFinding {
                place: call.call.clone(),
                what: format!("touches {} buffers, and {} at most are usual", call.buffers, call.usual),
                way_out: self.out_of_bloat(call),
            });
        }
        found
    }

    fn facts(&self, table: &str) -> Option<&TableFacts> {
        self.tables.iter().find(|facts| facts.table == table)
    }

    fn out_of_scan(&self, table: &str) -> String {
        match self.facts(table) {
            Some(facts) if !facts.missing.is_empty() || !facts.invalid.is_empty() => {
                "the index that it lacks is named above".to_owned()
            }
            Some(TableFacts { rows: None, .. }) => {
                format!("it was never analysed: analyze {}.{table}", self.schema)
            }
            Some(_) | None => format!(
                "analyze {}.{table}; if that does not help, report it with the plan: load 'auto_explain', auto_explain.log_nested_statements = on",
                self.schema
            ),
        }
    }

    /// Dead rows first, since a vacuum is cheap; otherwise the indexes of what the call works on, the largest first.
    fn out_of_bloat(&self, call: &CallPlan) -> String {
        let mut tables: Vec<&TableFacts> = call.tables.iter().filter_map(|table| self.facts(table)).collect();
        tables.sort_by_key(|facts| std::cmp::Reverse(facts.dead));
        if let Some(dead) = tables.first().filter(|facts| facts.dead >= DEAD_ROWS) {
            return format!(
                "{} has {} dead rows: vacuum {}.{0}; `tenure status` names who keeps vacuum from removing them",
                dead.table, dead.dead, self.schema
            );
        }
        tables.sort_by_key(|facts| std::cmp::Reverse(facts.index_pages));
        match tables.first() {
            Some(facts) => format!(
                "vacuum (analyze) {0}.{1}, then check again; if it stays: reindex table concurrently {0}.{1} ({2} pages of indexes)",
                self.schema, facts.table, facts.index_pages
            ),
            None => "analyze all tables of the schema, then check again".to_owned(),
        }
    }
}

impl TableFacts {
    fn findings(&self, schema: &str) -> Vec<PlanFinding> {
        let place = || self.table.clone();
        let missing = self.missing.iter().map(|index| PlanFinding {
            place: place(),
            what: format!("the index {index} is missing"),
            way_out: format!("make it again (create index concurrently): `tenure migrate --print | grep -E '{index}|create table {schema}.{}'` shows what it was", self.table),
        });
        let invalid = self.invalid.iter().map(|index| PlanFinding {
            place: place(),
            what: format!("the index {index} is invalid: no plan uses it"),
            way_out: format!("reindex index concurrently {schema}.{index}"),
        });
        missing.chain(invalid).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(buffers: u64, scans: &[(&str, u64)]) -> CallPlan {
        let scans = scans.iter().map(|(table, rows)| TableScan { table: (*table).to_owned(), rows: *rows }).collect();
        CallPlan { call: "promote".to_owned(), buffers, usual: 50, rows_written: 2, scans, tables: &["later", "ready"] }
    }

    fn table(table: &str) -> TableFacts {
        TableFacts { table: table.to_owned(), rows: Some(5_000), index_pages: 10, ..TableFacts::default() }
    }

    fn found(call: CallPlan, tables: &[TableFacts]) -> Vec<(String, String)> {
        let check =
            PlanCheck { schema: "acme".to_owned(), calls: vec![call], tables: tables.to_vec(), left_out: Vec::new() };
        check.findings().into_iter().map(|found| (found.to_string(), found.way_out)).collect()
    }

    #[test]
    fn more_than_is_usual_is_found_with_the_table_whose_indexes_are_the_largest() {
        assert_eq!(found(call(50, &[]), &[table("later")]), []);
        let dear = found(call(51, &[]), &[table("later"), TableFacts { index_pages: 900, ..table("ready") }]);
        assert_eq!(dear[0].0, "promote: touches 51 buffers, and 50 at most are usual");
        assert!(dear[0].1.contains("reindex table concurrently acme.ready (900 pages"), "{dear:?}");
    }

    #[test]
    fn dead_rows_are_named_before_an_index_is_made_anew() {
        let dead = TableFacts { dead: 40_000, ..table("later") };
        let dear = found(call(9_000, &[]), &[dead, TableFacts { index_pages: 900, ..table("ready") }]);
        assert!(dear[0].1.starts_with("later has 40000 dead rows: vacuum acme.later; `tenure status`"), "{dear:?}");
    }

    #[test]
    fn a_scan_of_few_rows_is_none_and_one_of_many_says_what_is_missing() {
        assert_eq!(found(call(20, &[("later", 5_000)]), &[table("later")]), []);
        let scan = || call(9_000, &[("later", 5_001)]);
        let check = |facts: TableFacts, words: &[&str]| {
            let found = found(scan(), &[facts]);
            assert_eq!(found.len(), words.len(), "{found:?}");
            found.iter().zip(words).for_each(|(found, word)| assert!(found.1.contains(word), "{found:?}"));
        };
        check(table("later"), &["analyze acme.later; if that does not help"]);
        check(TableFacts { rows: None, ..table("later") }, &["it was never analysed: analyze acme.later"]);
        let missing = TableFacts { missing: vec!["later_due".to_owned()], ..table("later") };
        check(missing, &["tenure migrate --print | grep -E 'later_due|", "named above"]);
        let invalid = TableFacts { invalid: vec!["later_due".to_owned()], ..table("later") };
        check(invalid, &["reindex index concurrently acme.later_due", "named above"]);
    }
}
