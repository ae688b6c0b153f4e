//! What the hot calls touch on this database: for tests of plans, and for those who operate one.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Transaction};

use super::Client;
use super::jobs::column;
use crate::model::{CallPlan, PlanCheck, TableFacts, TableScan};
use crate::store::plans::{
    CALLS, COPIED, COUNTS, Call, DOCTOR, HEAD, INDEXES, JOBS, LEASES, QUEUES, RANGES_GOING, REGISTER, SETTINGS,
    SETTINGS_OF_HEADS, Scope, TABLES, TAKE_DUTIES,
};
use crate::store::{JsonText, Statement, Texts};
use crate::{Error, ErrorCode};

/// Each call is made so often, and the least counts: the first ones of a session look much up, and a plan that is made anew, since somebody
/// analysed a table in between, reads the catalogue.
const ROUNDS: usize = 4;
/// While a call touches more than is usual, so often at most: where others change many tables, the server lets every session forget what it knows of the
/// catalogue, again and again.
const ROUNDS_MAX: usize = 12;
/// Queues whose start is looked at.
const QUEUES_MAX: i64 = 20;

impl Client {
    /// Makes every hot call on this database as it is now, and tells what each touched: buffers, and tables that it read from end to end. See
    /// [`PlanCheck::findings`] for what of it is wrong.
    ///
    /// Nothing of it stays. All calls are made in a transaction that is rolled back, by a worker, on a queue and with a kind that nobody else
    /// sees; turns of maintenance, which touch rows of others, are undone as soon as they have been counted, and only made while no worker is
    /// at them. A look for due schedules is made beside workers, since any of them may fire at any time: it moves on up to ten backfills, and undoes
    /// that. Some numbers of sequences are used up, and for some milliseconds at a time a job that has just become due, or a worker that is just
    /// being looked at, is held. It needs the rights of the schema's owner, and a primary.
    ///
    /// # Errors
    /// `Denied`: the role does not own the schema. `ReadOnly`: a standby. Otherwise those of the database.
    pub async fn check_plans(&self) -> Result<PlanCheck, Error> {
        let mut session = self.session().await?;
        // So that a database that was never migrated is named as such.
        session.check_schema().await.map_err(|e| Error::store("check the plans", e))?;
        let mut seen = Seen::default();
        for round in 0..ROUNDS_MAX {
            if round >= ROUNDS && seen.calls.iter().all(|call| call.buffers <= call.usual) {
                break;
            }
            let tx = session.client_mut().transaction().await.map_err(|e| Error::postgres("check the plans", e))?;
            // Dropped without a commit, it is rolled back: however the round ends.
            Round::begin(&tx, &self.texts).await?.make(&mut seen).await?;
            tx.rollback().await.map_err(|e| Error::postgres("undo the calls", e))?;
        }
        let tables = session.query(&TABLES, &[&self.schema()]).await.map_err(|e| Error::store(TABLES.name, e))?;
        let tables = tables.iter().map(facts).collect::<Result<_, _>>()?;
        Ok(seen.finish(self.schema(), tables))
    }
}

/// What all rounds saw.
#[derive(Default)]
struct Seen {
    calls: Vec<CallPlan>,
    left_out: BTreeMap<String, String>,
}

impl Seen {
    /// The least buffers, with the rows that were written then, and the most rows scanned.
    fn add(&mut self, call: CallPlan) {
        self.left_out.remove(&call.call);
        let Some(known) = self.calls.iter_mut().find(|known| known.call == call.call) else {
            self.calls.push(call);
            return;
        };
        for scan in call.scans {
            match known.scans.iter_mut().find(|known| known.table == scan.table) {
                Some(known) => known.rows = known.rows.max(scan.rows),
                None => known.scans.push(scan),
            }
        }
        if call.buffers < known.buffers {
            (known.buffers, known.usual, known.rows_written) = (call.buffers, call.usual, call.rows_written);
        }
    }

    fn leave_out(&mut self, call: &str, why: &str) {
        if !self.calls.iter().any(|known| known.call == call) {
            self.left_out.insert(call.to_owned(), why.to_owned());
        }
    }

    fn finish(self, schema: &str, tables: Vec<TableFacts>) -> PlanCheck {
        PlanCheck {
            schema: schema.to_owned(),
            calls: self.calls,
            tables,
            left_out: self.left_out.into_iter().collect(),
        }
    }
}

/// One round: the transaction, and what the worker in it holds.
struct Round<'a> {
    tx: &'a Transaction<'a>,
    texts: &'a Texts,
    worker: i64,
    token: String,
    leases: Vec<i64>,
    strips: Vec<String>,
    jobs: Vec<i64>,
    job_leases: Vec<i64>,
    /// After the last call; empty when others have touched something since.
    counts: HashMap<String, Counts>,
}

impl<'a> Round<'a> {
    async fn begin(tx: &'a Transaction<'a>, texts: &'a Texts) -> Result<Round<'a>, Error> {
        tx.batch_execute(SETTINGS).await.map_err(|e| Error::postgres("check the plans", e))?;
        let none = Round {
            tx,
            texts,
            worker: 0,
            token: String::new(),
            leases: Vec::new(),
            strips: Vec::new(),
            jobs: Vec::new(),
            job_leases: Vec::new(),
            counts: HashMap::new(),
        };
        let row = none.one(&REGISTER, &[&DOCTOR]).await?;
        none.query(&COPIED, &[&DOCTOR]).await?;
        Ok(Round { worker: column(&row, 0)?, token: column(&row, 1)?, ..none })
    }

    async fn make(mut self, seen: &mut Seen) -> Result<(), Error> {
        for call in CALLS {
            match call.scope {
                Scope::Own => seen.add(self.measured(call, call.name.to_owned(), DOCTOR).await?),
                Scope::Claims => {
                    seen.add(self.measured(call, call.name.to_owned(), DOCTOR).await?);
                    self.look_at_jobs().await?;
                }
                Scope::Everyone(lock) => self.make_and_undo(call, lock, seen).await?,
            }
        }
        self.run(SETTINGS_OF_HEADS).await?;
        let queues = self.query(&QUEUES, &[&DOCTOR, &QUEUES_MAX]).await?;
        for queue in queues.iter().map(|row| column::<String>(row, 0)) {
            let queue = queue?;
            seen.add(self.measured(&HEAD, format!("{} {queue:?}", HEAD.name), &queue).await?);
        }
        Ok(())
    }

    async fn make_and_undo(&mut self, call: &Call, lock: i32, seen: &mut Seen) -> Result<(), Error> {
        self.run("savepoint alone").await?;
        self.counts.clear();
        let is_free: bool = column(&self.one(&TAKE_DUTIES, &[&lock]).await?, 0)?;
        // Once nobody else can decide on it.
        let removes_a_range =
            is_free && call.tables.contains(&"partition") && column::<bool>(&self.one(&RANGES_GOING, &[]).await?, 0)?;
        let made = match is_free && !removes_a_range {
            true => Some(self.measured(call, call.name.to_owned(), DOCTOR).await?),
            false => None,
        };
        self.counts.clear();
        // Gives the locks back as well.
        self.run("rollback to savepoint alone; release savepoint alone").await?;
        match made {
            Some(made) => seen.add(made),
            None if removes_a_range => {
                seen.leave_out(call.name, "a range of old jobs may be removed as a whole at this step");
            }
            None => seen.leave_out(call.name, "a worker was at it each time"),
        }
        Ok(())
    }

    async fn measured(&mut self, call: &Call, name: String, queue: &str) -> Result<CallPlan, Error> {
        if call.takes_leases() {
            self.look_at_leases().await?;
        }
        let before = match std::mem::take(&mut self.counts) {
            counts if counts.is_empty() => self.counts().await?,
            counts => counts,
        };
        let params: [&(dyn ToSql + Sync); 7] =
            [&self.worker, &self.token, &self.leases, &self.strips, &self.jobs, &self.job_leases, &queue];
        let row = self.one(&call.explain, &params).await?;
        let buffers = buffers(column::<JsonText<'_>>(&row, 0)?.0)?;
        let after = self.counts().await?;
        let since = |table: &str| before.get(table).copied().unwrap_or_default();
        let scan = |(table, now): (&String, &Counts)| TableScan {
            table: table.clone(),
            rows: now.read.saturating_sub(since(table).read),
        };
        let scans = after.iter().map(scan).filter(|scan| scan.rows > 0).collect();
        let rows_written = after.iter().map(|(table, now)| now.written.saturating_sub(since(table).written)).sum();
        self.counts = after;
        Ok(CallPlan {
            call: name,
            buffers,
            usual: call.usual_for(rows_written),
            rows_written,
            scans,
            tables: call.tables,
        })
    }

    async fn counts(&self) -> Result<HashMap<String, Counts>, Error> {
        let schema = self.texts.schema();
        // One row for all tables: it is asked for before and after each call.
        let row = self.one(&COUNTS, &[&schema]).await?;
        let (names, read, written): (Vec<String>, Vec<i64>, Vec<i64>) =
            (column(&row, 0)?, column(&row, 1)?, column(&row, 2)?);
        let counts = read
            .iter()
            .zip(&written)
            .map(|(read, written)| Counts { read: read.unsigned_abs(), written: written.unsigned_abs() });
        Ok(names.into_iter().zip(counts).collect())
    }

    async fn look_at_leases(&mut self) -> Result<(), Error> {
        let row = self.one(&LEASES, &[&self.worker]).await?;
        (self.leases, self.strips) = (column(&row, 0)?, column(&row, 1)?);
        self.counts.clear();
        Ok(())
    }

    async fn look_at_jobs(&mut self) -> Result<(), Error> {
        let row = self.one(&JOBS, &[&self.worker]).await?;
        (self.jobs, self.job_leases) = (column(&row, 0)?, column(&row, 1)?);
        self.counts.clear();
        Ok(())
    }

    async fn one(&self, statement: &Statement, params: &[&(dyn ToSql + Sync)]) -> Result<Row, Error> {
        let row = self.query(statement, params).await?.pop();
        row.ok_or_else(|| Error::internal(format!("no row: {}", statement.name)))
    }

    async fn query(&self, statement: &Statement, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Error> {
        let typed: Vec<_> = params.iter().copied().zip(statement.params.iter().cloned()).collect();
        let answer = self.tx.query_typed(&self.texts.sql(statement), &typed).await;
        answer.map_err(|e| Error::postgres(statement.name, e).if_denied())
    }

    async fn run(&self, sql: &str) -> Result<(), Error> {
        self.tx.batch_execute(sql).await.map_err(|e| Error::postgres("check the plans", e))
    }
}

/// Of a table, so far in this session's transaction.
#[derive(Clone, Copy, Default)]
struct Counts {
    read: u64,
    written: u64,
}

/// What EXPLAIN says of the whole statement.
#[derive(Deserialize)]
struct Explained {
    #[serde(rename = "Plan")]
    plan: Touched,
}

#[derive(Deserialize)]
struct Touched {
    #[serde(rename = "Shared Hit Blocks")]
    hit: u64,
    #[serde(rename = "Shared Read Blocks")]
    read: u64,
}

fn buffers(explained: &str) -> Result<u64, Error> {
    let plans: Vec<Explained> = serde_json::from_str(explained)
        .map_err(|e| Error::internal(format!("EXPLAIN said what cannot be read: {e}: {explained}")))?;
    let plan = plans.first().ok_or_else(|| Error::internal("EXPLAIN said nothing"))?;
    Ok(plan.plan.hit + plan.plan.read)
}

fn facts(row: &Row) -> Result<TableFacts, Error> {
    let (table, there): (String, Vec<String>) = (column(row, 0)?, column(row, 4)?);
    let ours = INDEXES.iter().find(|(name, _)| *name == table).map_or(&[][..], |(_, indexes)| indexes);
    let missing = ours.iter().filter(|index| !there.iter().any(|name| name == *index));
    Ok(TableFacts {
        missing: missing.map(|index| (*index).to_owned()).collect(),
        table,
        rows: column::<Option<i64>>(row, 1)?.map(i64::unsigned_abs),
        dead: column::<i64>(row, 2)?.unsigned_abs(),
        index_pages: column::<i64>(row, 3)?.unsigned_abs(),
        invalid: column(row, 5)?,
    })
}

impl Error {
    /// A role that has its verbs only cannot look at all of them.
    fn if_denied(self) -> Error {
        match self.code() {
            ErrorCode::Denied => self.with_help("connect as the owner of the schema, as `tenure migrate` does"),
            _ => self,
        }
    }
}
