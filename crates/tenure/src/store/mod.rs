//! The only place that talks to PostgreSQL. It records and reads, it never decides.
//!
//! Every statement is a constant beside the verbs it belongs to; its text says `tenure.` for the schema, which is put
//! in its place once per process ([`Texts`]).

pub(crate) mod address;
pub(crate) mod backfill;
pub(crate) mod declared;
pub(crate) mod enqueue;
mod failure;
mod finish;
pub(crate) mod horizon;
mod hosts;
pub(crate) mod jobs;
mod lost_answers;
pub(crate) mod migrate;
pub(crate) mod operate;
pub(crate) mod plans;
pub(crate) mod retention;
pub(crate) mod schedule;
mod session;
mod statement;
pub(crate) mod stats;
mod template;
#[cfg(feature = "tls")]
mod tls;
mod wire;
mod worker;

pub(crate) use declared::{CronEntry, CronState, TimesAhead};
pub(crate) use failure::{Loss, LossKind, StoreError};
pub(crate) use finish::{FailStatus, FailureRow, NextRun};
pub(crate) use lost_answers::ASK_AFTER;
pub(crate) use schedule::{Decision, DueSchedule};
pub(crate) use session::{Session, SessionOptions};
pub(crate) use statement::{Statement, Texts};
pub(crate) use wire::{JsonText, Strip};
pub(crate) use worker::{ClaimRequest, ClaimedRow, Introduction, Registration, Rescue, RescuedJob, Trailer};

/// Every statement that is sent to the server.
#[cfg(test)]
fn statements() -> impl Iterator<Item = &'static Statement> {
    [
        enqueue::STATEMENTS,
        jobs::STATEMENTS,
        retention::STATEMENTS,
        schedule::STATEMENTS,
        backfill::STATEMENTS,
        declared::STATEMENTS,
        horizon::STATEMENTS,
        worker::STATEMENTS,
        finish::STATEMENTS,
        operate::STATEMENTS,
        stats::STATEMENTS,
        plans::STATEMENTS,
    ]
    .into_iter()
    .flatten()
    .copied()
    .chain(plans::CALLS.iter().chain([&plans::HEAD]).map(|call| &call.explain))
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::testing::with_database;

    #[test]
    fn every_statement_is_in_the_list() {
        let sources = [
            include_str!("enqueue.rs"),
            include_str!("jobs.rs"),
            include_str!("retention.rs"),
            include_str!("schedule.rs"),
            include_str!("backfill.rs"),
            include_str!("declared.rs"),
            include_str!("horizon.rs"),
            include_str!("worker.rs"),
            include_str!("finish.rs"),
            include_str!("operate.rs"),
            include_str!("stats.rs"),
            include_str!("plans.rs"),
        ];
        let written: usize = sources.iter().map(|source| source.matches(": Statement =").count()).sum();
        assert_eq!(statements().count(), written + plans::CALLS.len() + 1);
    }

    #[tokio::test]
    async fn the_server_understands_every_statement_with_our_types() {
        with_database(async |db| {
            let sql = db.sql().await;
            let texts = Texts::new("tenure");
            let mut names = HashSet::new();
            for statement in statements() {
                assert!(names.insert(statement.name), "two statements are named {:?}", statement.name);
                // COPY cannot be prepared.
                if statement.sql.starts_with("copy ") {
                    continue;
                }
                let prepared = sql.prepare_typed(&texts.sql(statement), statement.params).await;
                let prepared = prepared.unwrap_or_else(|error| panic!("{}: {error:?}", statement.name));
                assert_eq!(prepared.params(), statement.params, "{}", statement.name);
            }
        })
        .await;
    }
}
