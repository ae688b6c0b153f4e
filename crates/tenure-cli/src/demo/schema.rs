//! The demo's own tables: an application beside the queue, in a schema that every run makes anew.

use anyhow::{Context as _, Result, bail};
use tokio_postgres::{Client, Transaction};

/// The mark by which a later run knows that the schema is the demo's and may be dropped.
const MARK: &str = "made by: tenure demo";

const TABLES: &str = "
create schema tenure_demo;
comment on schema tenure_demo is 'made by: tenure demo';

create table tenure_demo.document (
  id     bigint generated always as identity primary key,
  path   text not null unique,
  name   text not null,
  text   text,      -- null until extracted
  chunks integer    -- null until split
);
create table tenure_demo.chunk (
  document bigint not null references tenure_demo.document (id),
  number   integer not null,
  text     text not null,
  primary key (document, number)
);
-- What the model answered: the way from embed to store. It stays, so that storing twice would be possible and seen.
create table tenure_demo.answer (
  document bigint not null,
  chunk    integer not null,
  model    text not null,
  elements real[] not null,
  primary key (document, chunk, model)
);
create table tenure_demo.vector (
  document bigint not null,
  chunk    integer not null,
  model    text not null,
  elements real[] not null constraint vector_has_256_dimensions check (cardinality(elements) = 256),
  primary key (document, chunk, model),
  foreign key (document, chunk) references tenure_demo.chunk (document, number)
);
-- Append-only, one row each time that a vector is stored: the witness for `stored_twice`. Deliberately without a key
-- over (document, chunk, model), which would hide what it is there to show.
create table tenure_demo.vector_log (
  id        bigint generated always as identity primary key,
  document  bigint not null,
  chunk     integer not null,
  model     text not null,
  job       bigint not null,
  attempt   smallint not null,
  stored_at timestamptz not null default clock_timestamp()
);
-- Every job of this run, written by the transaction that enqueued it: the witness for jobs without an end.
create table tenure_demo.enqueued (
  job      bigint primary key,
  stage    text not null,
  document bigint not null
);
create table tenure_demo.bill (
  key   text not null,
  chunk text not null,
  model text not null
);

create function tenure_demo.cosine(a real[], b real[]) returns double precision
language sql immutable strict parallel safe
return (select sum(x * y) / nullif(sqrt(sum(x * x)) * sqrt(sum(y * y)), 0) from unnest(a, b) as pair (x, y));
";

/// Takes the lock that keeps a second demo out while this connection lives.
///
/// # Errors
/// Another demo holds it.
pub async fn lock(client: &Client) -> Result<()> {
    let locked: bool =
        client.query_one("select pg_try_advisory_lock(hashtextextended('tenure demo', 0))", &[]).await?.get(0);
    if !locked {
        bail!("another `tenure demo` is running against this database; wait for its end or use another database");
    }
    Ok(())
}

/// The jobs that a former, interrupted run enqueued; none when there was no such run.
///
/// # Errors
/// The schema exists and is somebody else's.
pub async fn former_jobs(client: &Client) -> Result<Vec<i64>> {
    let found = client
        .query_opt("select obj_description(oid, 'pg_namespace') from pg_namespace where nspname = 'tenure_demo'", &[])
        .await?;
    let Some(found) = found else { return Ok(Vec::new()) };
    if found.get::<_, Option<&str>>(0) != Some(MARK) {
        bail!(
            "the schema tenure_demo of this database was not made by `tenure demo`; rename it or use another database"
        );
    }
    let ended = "select e.job from tenure_demo.enqueued e join jobs j on j.id = e.job
                 where j.status not in ('completed', 'cancelled', 'dead')";
    Ok(client.query(ended, &[]).await?.iter().map(|row| row.get(0)).collect())
}

/// Makes the tables, empty. Those of a former run go.
///
/// # Errors
/// The role may not create a schema.
pub async fn reset(transaction: &Transaction<'_>) -> Result<()> {
    transaction.batch_execute("set local client_min_messages = warning").await?;
    transaction.batch_execute("drop schema if exists tenure_demo cascade").await?;
    transaction.batch_execute(TABLES).await.context(
        "the schema tenure_demo cannot be made; it needs the right to create one: grant create on database NAME to ROLE",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_carries_the_mark() {
        assert!(TABLES.contains(&format!("comment on schema tenure_demo is '{MARK}'")));
    }
}
