//! A statement's text and parameter types, and the text for the schema that was chosen.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio_postgres::types::Type;

/// The schema that all our texts are written for.
pub(crate) const DEFAULT_SCHEMA: &str = "tenure";

/// One SQL statement. The parameter types are part of it, so that it needs no trip to ask the server for them.
pub(crate) struct Statement {
    /// Unique; the key under which a connection keeps the prepared form.
    pub(crate) name: &'static str,
    /// The text; the schema is always written `tenure.`.
    pub(crate) sql: &'static str,
    pub(crate) params: &'static [Type],
}

/// The texts of all statements for one schema, each replaced once.
pub(crate) struct Texts {
    schema: String,
    replaced: Mutex<HashMap<&'static str, Arc<str>>>,
}

impl Texts {
    /// `schema` has been checked: it matches `[a-z_][a-z0-9_]{0,39}`.
    pub(crate) fn new(schema: &str) -> Arc<Texts> {
        Arc::new(Texts { schema: schema.to_owned(), replaced: Mutex::default() })
    }

    pub(crate) fn schema(&self) -> &str {
        &self.schema
    }

    pub(crate) fn sql(&self, statement: &Statement) -> Arc<str> {
        let mut replaced = self.replaced.lock().unwrap_or_else(PoisonError::into_inner);
        replaced.entry(statement.name).or_insert_with(|| self.with_schema(statement.sql).into()).clone()
    }

    fn with_schema(&self, sql: &str) -> String {
        if self.schema == DEFAULT_SCHEMA {
            return sql.to_owned();
        }
        sql.replace("tenure.", &format!("{}.", self.schema))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: Statement = Statement { name: "sample", sql: "select tenure.a($1), b.c", params: &[Type::INT8] };

    #[test]
    fn the_chosen_schema_takes_the_place_of_ours() {
        assert_eq!(&*Texts::new("jobs_2").sql(&SAMPLE), "select jobs_2.a($1), b.c");
        assert_eq!(&*Texts::new("tenure").sql(&SAMPLE), "select tenure.a($1), b.c");
    }
}
