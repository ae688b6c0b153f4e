//! What a measurement cost the database: WAL, transactions, CPU time.

use std::collections::HashMap;

use anyhow::Result;

use super::place::Place;
use super::usage;

/// Sessions of this run but the asking one, and the server's own processes (of which a role without `pg_read_all_stats` sees
/// none).
const PROCESSES: &str = "
    select pid, coalesce(application_name = $1 and datname = current_database(), false) as ours
    from pg_stat_activity
    where pid <> pg_backend_pid() and (application_name = $1 and datname = current_database() or backend_type <> 'client backend')";
/// Transactions are the database's, whoever's they are; WAL is the whole server's.
const COUNTERS: &str = "
    select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint, (select wal_fpi from pg_stat_wal),
           (select xact_commit + xact_rollback from pg_stat_database where datname = current_database())";

/// What was read at its beginning.
#[derive(Debug)]
pub struct Meter {
    counters: Counters,
    cpu: Cpu,
}

#[derive(Debug, Clone, Copy)]
struct Counters {
    wal: i64,
    images: i64,
    transactions: i64,
}

/// CPU time so far by process; none where the server's processes cannot be read.
#[derive(Debug)]
struct Cpu {
    sessions: Option<HashMap<i32, f64>>,
    background: Option<HashMap<i32, f64>>,
}

/// What a measurement used, as a whole.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    pub wal_bytes: f64,
    /// Images of whole pages, which the first change of a page after a checkpoint writes; they count as WAL.
    pub page_images: f64,
    /// Known only after the sessions have ended, see [`Meter::settle`].
    pub transactions: f64,
    /// CPU time of the sessions of this run, in microseconds; none: unknown.
    pub session_cpu_us: Option<f64>,
    /// CPU time of the server's own processes: checkpointer, WAL writer, autovacuum and so on.
    pub background_cpu_us: Option<f64>,
}

impl Meter {
    /// Reads everything.
    ///
    /// # Errors
    /// The database fails.
    pub async fn start(place: &Place) -> Result<Meter> {
        Ok(Meter { cpu: Cpu::read(place).await?, counters: Counters::read(place).await? })
    }

    /// What was used since, while the sessions that used it are still there.
    ///
    /// # Errors
    /// The database fails.
    pub async fn cost(&self, place: &Place) -> Result<Cost> {
        let (counters, cpu) = (Counters::read(place).await?, Cpu::read(place).await?);
        Ok(Cost {
            wal_bytes: (counters.wal - self.counters.wal) as f64,
            page_images: 0.0,
            transactions: 0.0,
            session_cpu_us: since(self.cpu.sessions.as_ref(), cpu.sessions.as_ref()),
            background_cpu_us: since(self.cpu.background.as_ref(), cpu.background.as_ref()),
        })
    }

    /// Adds what the server counts with a delay. Call it when the sessions have been closed.
    ///
    /// # Errors
    /// The database fails.
    pub async fn settle(&self, place: &Place, cost: &mut Cost) -> Result<()> {
        place.until_alone().await?;
        let counters = Counters::read(place).await?;
        cost.transactions = (counters.transactions - self.counters.transactions) as f64;
        cost.page_images = (counters.images - self.counters.images) as f64;
        Ok(())
    }
}

impl Counters {
    async fn read(place: &Place) -> Result<Counters> {
        let row = place.sql.query_one(COUNTERS, &[]).await?;
        Ok(Counters { wal: row.get(0), images: row.get(1), transactions: row.get(2) })
    }
}

impl Cpu {
    async fn read(place: &Place) -> Result<Cpu> {
        if !place.is_local {
            return Ok(Cpu { sessions: None, background: None });
        }
        let (mut sessions, mut background) = (Vec::new(), Vec::new());
        for row in place.sql.query(PROCESSES, &[&place.name]).await? {
            if row.get("ours") { &mut sessions } else { &mut background }.push(row.get("pid"));
        }
        let background = (!background.is_empty()).then(|| usage::cpu_us(background));
        Ok(Cpu { sessions: Some(usage::cpu_us(sessions)), background })
    }
}

/// What processes used in between; those that came meanwhile count from their beginning.
fn since(before: Option<&HashMap<i32, f64>>, after: Option<&HashMap<i32, f64>>) -> Option<f64> {
    let before = before?;
    Some(after?.iter().map(|(pid, cpu)| (cpu - before.get(pid).unwrap_or(&0.0)).max(0.0)).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_meanwhile_counts_from_its_beginning_and_the_unknown_stays_unknown() {
        let (before, after) = (HashMap::from([(1, 5.0), (2, 9.0)]), HashMap::from([(1, 7.5), (3, 4.0)]));
        assert_eq!(since(Some(&before), Some(&after)), Some(6.5));
        assert_eq!(since(None, Some(&after)), None);
    }
}
