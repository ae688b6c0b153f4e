//! What statistics cost. They cannot be switched off; in its own schema the bench has the two functions that keep them do nothing instead. What
//! workers count for themselves goes on.

use std::time::Duration;

use anyhow::{Context as _, Result};

use super::QUEUE;
use super::place::Place;
use crate::plain_sql;

/// Jobs that one turn counts, at most.
const TURN_JOBS: i32 = 100_000;
/// Between two turns.
const LOOK: Duration = Duration::from_millis(2);
const TURN: &str = "select fold_stats($1)::text";
/// Whether jobs are to be counted, or what was told to be folded.
const LEFT: &str = "
    select exists (select from duty d cross join block_id s where d.name = 'enqueued' and d.place < s.last_value * 128) or exists (select from stat_delta)";
/// The two functions, as they are.
const KEPT: &str = "
    select string_agg(pg_get_functiondef(p.oid), ';' order by p.proname) from pg_proc p
    where p.pronamespace = current_schema()::regnamespace and p.proname in ('record_stats', 'fold_stats')";
/// Of this measurement: the tables are emptied before each.
const COUNTED: &str = "select coalesce(sum(m.enqueued), 0)::bigint from stat_minute m where m.queue = $1";
/// Both, without what they do.
const LEFT_OUT: &str = "
    create or replace function record_stats(p_worker bigint, p_seq bigint, p_minute timestamptz, p_groups json, p_self json default '{}') returns boolean
      language sql as $$ select true $$;
    create or replace function fold_stats(p_limit integer default 20000) returns json
      language sql as $$ select json_build_object('ran', false, 'counted', 0, 'folded', 0, 'removed', 0, 'more', false) $$";

/// Whether the database keeps them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Statistics {
    On,
    Off,
}

impl Statistics {
    /// As it is typed.
    pub fn name(self) -> &'static str {
        match self {
            Statistics::On => "on",
            Statistics::Off => "off",
        }
    }

    /// Whether anybody compares.
    pub fn is_compared(all: &[Statistics]) -> bool {
        all != [Statistics::On]
    }
}

/// The functions of the schema, to be put back.
pub struct Switch(String);

impl Switch {
    /// Before anything is changed.
    ///
    /// # Errors
    /// The database fails.
    pub async fn of(place: &Place) -> Result<Switch> {
        let kept: Option<String> = place.sql.query_one(KEPT, &[]).await?.get(0);
        Ok(Switch(kept.context("the schema keeps no statistics")?))
    }

    /// From now on.
    ///
    /// # Errors
    /// The database fails.
    pub async fn set(&self, place: &Place, to: Statistics) -> Result<()> {
        match to {
            Statistics::On => place.sql.batch_execute(&self.0).await?,
            Statistics::Off => place.sql.batch_execute(LEFT_OUT).await?,
        }
        Ok(())
    }
}

/// Jobs that were counted as enqueued, and the session that counted the last of them: its CPU time counts as long as it is kept.
pub struct Folded {
    pub counted: i64,
    _session: tokio_postgres::Client,
}

/// Counts and folds what is left, which maintenance does every ten seconds, so that its cost belongs to the jobs that caused it. By a session of
/// the run.
///
/// # Errors
/// The database fails.
pub async fn fold_all(place: &Place, statistics: Statistics) -> Result<Folded> {
    let session = plain_sql::connect(place.config()).await?;
    session.batch_execute(&format!("set search_path = {}", place.connection.schema)).await?;
    // Jobs are counted once every transaction that was open at their enqueue has ended: a turn that comes too soon leaves them.
    while statistics == Statistics::On && place.sql.query_one(LEFT, &[]).await?.get::<_, bool>(0) {
        session.query_one(TURN, &[&TURN_JOBS]).await?;
        // sleep: such a transaction gives no signal, and lasts for milliseconds.
        tokio::time::sleep(LOOK).await;
    }
    let counted = place.sql.query_one(COUNTED, &[&QUEUE]).await?.get(0);
    Ok(Folded { counted, _session: session })
}
