//! What else is in the database: finished jobs, jobs for tomorrow, and somebody's old snapshot.

use anyhow::{Result, ensure};

use super::options::Scene;
use super::payload::Payloads;
use super::place::Place;
use super::progress::Progress;
use super::{KIND, QUEUE};

/// Finished jobs in one bundle, as `enqueue_many` makes them.
const BUNDLE: u64 = 100;
/// Bundles that one statement writes, at most, and bytes of payloads.
const BUNDLES_MAX: u64 = 500;
const STATEMENT_BYTES: u64 = 32 * 1024 * 1024;
/// Jobs for tomorrow that one statement writes, at most.
const SCHEDULED_MAX: u64 = 50_000;

/// Finished an hour ago: long before the measurement, and long before retention removes it.
const JOBS: &str = "
    insert into job (id, queue, kind, priority, max_attempts, created_at, payload)
    select b.block * 128 + n, $3, $4, 2, 5, clock_timestamp() - interval '1 hour', $5::text::json
    from unnest($1::bigint[]) as b(block) cross join generate_series(0, $2::int - 1) as n";
const OUTCOMES: &str = "
    insert into outcome (job_id, state, attempt, worker_id, lease_id, started_at, finished_at)
    select b.block * 128 + n, 'c', 1, 1, 0, clock_timestamp() - interval '1 hour', clock_timestamp() - interval '1 hour'
    from unnest($1::bigint[]) as b(block) cross join generate_series(0, $2::int - 1) as n";
/// Due in a day and n milliseconds; each in a block of its own, as `enqueue` makes them.
const SCHEDULED: &str = "
    with drawn as (
      select b.block, clock_timestamp() as at, clock_timestamp() + interval '1 day' + (b.n + $2::bigint) * interval '1 millisecond' as due_at
      from unnest($1::bigint[]) with ordinality as b(block, n)),
    stored as (
      insert into job (id, queue, kind, priority, max_attempts, created_at, run_at, payload)
      select d.block * 128, $3, $4, 2, 5, d.at, d.due_at, $5::text::json from drawn d)
    insert into later (block, id, due_at, reason, queue, priority, kind, attempt, flags, mask)
    select d.block, d.block, d.due_at, 's', $3, 2, $4, 0, 0, mask_fresh(1) from drawn d";
const DRAW: &str = "select array(select nextval('block_id') from generate_series(1, $1::bigint))";

/// Makes what the scene asks for.
///
/// # Errors
/// The database fails.
pub async fn populate(place: &Place, scene: &Scene, payloads: &Payloads) -> Result<()> {
    // They need not survive anything.
    place.sql.batch_execute("set synchronous_commit = off").await?;
    history(place, scene, payloads).await?;
    scheduled(place, scene, payloads).await?;
    place.sql.batch_execute("reset synchronous_commit").await?;
    if scene.history + scene.scheduled > 0 {
        // As autovacuum would in time.
        for table in ["job", "outcome", "later"] {
            place.sql.batch_execute(&format!("vacuum (analyze) {table}")).await?;
        }
    }
    Ok(())
}

/// Jobs as they stand after they have been run. They are written in bulk: running them would take as long as a measurement of
/// so many.
async fn history(place: &Place, scene: &Scene, payloads: &Payloads) -> Result<()> {
    let mut progress = Progress::new("finished jobs made", scene.history);
    let bundles_max = BUNDLES_MAX.min(STATEMENT_BYTES / BUNDLE / u64::from(scene.payload)).max(1);
    let mut left = scene.history;
    while left > 0 {
        let bundle = BUNDLE.min(left);
        let count = bundles_max.min(left / bundle);
        let blocks: Vec<i64> = place.sql.query_one(DRAW, &[&count.cast_signed()]).await?.get(0);
        let (jobs, payload) = (bundle as i32, payloads.get(left as usize).get());
        place.sql.execute(JOBS, &[&blocks, &jobs, &QUEUE, &KIND, &payload]).await?;
        place.sql.execute(OUTCOMES, &[&blocks, &jobs]).await?;
        left -= count * bundle;
        progress.at(scene.history - left);
    }
    Ok(())
}

/// Jobs that are due tomorrow, each at another instant, so that none shares a row with another one.
async fn scheduled(place: &Place, scene: &Scene, payloads: &Payloads) -> Result<()> {
    let mut progress = Progress::new("jobs for tomorrow made", scene.scheduled);
    let count_max = SCHEDULED_MAX.min(STATEMENT_BYTES / u64::from(scene.payload)).max(1);
    let mut made = 0;
    while made < scene.scheduled {
        let count = count_max.min(scene.scheduled - made);
        let blocks: Vec<i64> = place.sql.query_one(DRAW, &[&count.cast_signed()]).await?.get(0);
        let (before, payload) = (made.cast_signed(), payloads.get(made as usize).get());
        place.sql.execute(SCHEDULED, &[&blocks, &before, &QUEUE, &KIND, &payload]).await?;
        made += count;
        progress.at(made);
    }
    Ok(())
}

/// A session with an old snapshot, and a transaction id of its own.
#[derive(Debug)]
pub struct Pin(Option<tokio_postgres::Client>);

impl Pin {
    /// Opens it if the scene asks for it.
    ///
    /// # Errors
    /// The database fails.
    pub async fn open(place: &Place, scene: &Scene) -> Result<Pin> {
        if !scene.pinned {
            return Ok(Pin(None));
        }
        let sql = place.bystander().await?;
        sql.batch_execute(
            "begin isolation level repeatable read; select pg_current_xact_id(); select count(*) from pg_class",
        )
        .await?;
        Ok(Pin(Some(sql)))
    }

    /// Closes it.
    ///
    /// # Errors
    /// It did not last to the end, so that the figures are not what they claim to be.
    pub async fn close(self) -> Result<()> {
        if let Some(sql) = self.0 {
            ensure!(!sql.is_closed(), "the session with the old snapshot was ended by somebody during the measurement");
            sql.batch_execute("commit").await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tenure::MigrateOptions;
    use tenure::testing::{TestDatabase, with_database};

    use super::super::options::PlaceOptions;
    use super::*;

    /// The bench's schema under the name that the invariants know.
    async fn place(db: &TestDatabase) -> Place {
        db.sql().await.batch_execute("drop schema tenure cascade").await.expect("dropped");
        let options = PlaceOptions { database_url: db.url().to_owned(), schema: "tenure".to_owned() };
        let place = Place::find(&options).await.expect("a place");
        place.make().await.expect("made");
        place
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_made_beside_the_measured_jobs_is_as_if_it_had_been_run() {
        with_database(async |db| {
            let place = place(db).await;
            let scene = Scene { payload: 60, history: 1_234, scheduled: 250, pinned: false };
            populate(&place, &scene, &Payloads::new(60).expect("payloads")).await.expect("made");
            let broken = db.broken_invariants().await;
            assert!(broken.is_empty(), "{broken:?}");
            let statuses = "select status, count(*) from jobs group by status order by status";
            let rows = place.sql.query(statuses, &[]).await.expect("statuses");
            let counts: Vec<(&str, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
            assert_eq!(counts, [("completed", 1_234), ("scheduled", 250)]);
            let instants: i64 =
                place.sql.query_one("select count(distinct due_at) from later", &[]).await.expect("a count").get(0);
            assert_eq!(instants, 250);
            let removed = "select retain()::json ->> 'removed'";
            let removed: Option<String> = place.sql.query_one(removed, &[]).await.expect("retention").get(0);
            assert_eq!(removed.as_deref(), Some("0"), "nothing of it is old enough");
            place.close().await.expect("closed");
            db.client().await.migrate(MigrateOptions::default()).await.expect("as it was");
        })
        .await;
    }
}
