//! The SQL files are written for the schema `tenure`; another schema takes its place here.

use super::statement::DEFAULT_SCHEMA;

/// The text for another schema: the name is replaced where it is an identifier or a part of one (`tenure.job`,
/// `'tenure'`, `'tenure_'`, `tenure_worker`, in a search path), and left alone in prose.
pub(super) fn for_schema(sql: &str, schema: &str) -> String {
    if schema == DEFAULT_SCHEMA {
        return sql.to_owned();
    }
    let mut text = String::with_capacity(sql.len());
    let mut rest = sql;
    while let Some(at) = rest.find(DEFAULT_SCHEMA) {
        let (before, found) = rest.split_at(at);
        let after = &found[DEFAULT_SCHEMA.len()..];
        text.push_str(before);
        text.push_str(if is_identifier(&text, after) { schema } else { DEFAULT_SCHEMA });
        rest = after;
    }
    text.push_str(rest);
    text
}

fn is_identifier(before: &str, after: &str) -> bool {
    let starts_word = !before.ends_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '`' | '-'));
    let qualifies = after.starts_with('.') && after[1..].starts_with(|c: char| c.is_ascii_lowercase() || c == '%');
    let quoted = before.ends_with('\'') && after.starts_with('\'');
    let prefix = after.starts_with('_');
    let listed = before.ends_with("pg_catalog, ") || before.ends_with("schema ") || before.ends_with("exists ");
    starts_word && (qualifies || quoted || prefix || listed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_change_and_prose_stays() {
        let check = |sql: &str, expected: &str| assert_eq!(for_schema(sql, "jobs"), expected);
        check("select tenure.a('tenure'::regnamespace)", "select jobs.a('jobs'::regnamespace)");
        check("pg_notify('tenure_' || id)", "pg_notify('jobs_' || id)");
        check("set search_path = pg_catalog, tenure, pg_temp", "set search_path = pg_catalog, jobs, pg_temp");
        check("format('create table tenure.%I')", "format('create table jobs.%I')");
        check(
            "create schema tenure; grant x on schema tenure to tenure_viewer",
            "create schema jobs; grant x on schema jobs to jobs_viewer",
        );
        check(
            "-- run `tenure migrate`: see the docs of tenure. A",
            "-- run `tenure migrate`: see the docs of tenure. A",
        );
        assert_eq!(for_schema("tenure.a", "tenure"), "tenure.a");
    }
}
