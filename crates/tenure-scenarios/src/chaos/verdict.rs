//! The accounts of a chaos run, compared: what was promised, what was done, and what explains each thing done twice.

use std::time::{Duration, Instant};

use crate::Stage;
use crate::measure::{Bound, Measure};

/// Jobs that do not fit, at most, of which a report shows everything.
const SHOWN_MAX: usize = 5;
/// Between two looks whether all jobs have ended.
const LOOK: Duration = Duration::from_millis(100);

/// Seconds from the kill of a process to the next start of each job that it ran. One that another worker had by then, or that
/// has not started again because it had ended, does not count.
const WAITED: &str = "
    select extract(epoch from n.started_at - d.died_at)::float8
    from death d join probe p on p.pid = d.pid and p.started_at < d.died_at and coalesce(p.finished_at > d.died_at, true)
    join tenure.attempt_error e on e.job_id = p.job_id and e.lease_id = p.fence and e.cause = 'worker_lost' and e.failed_at > d.died_at
    cross join lateral (select started_at from probe n where n.job_id = p.job_id and n.started_at > e.failed_at - interval '1 second'
                        and n.fence <> p.fence and n.started_at > d.died_at order by 1 limit 1) n";

/// Runs with the time for which their lease was good: until they ended, their process died, or their job was given away.
const OVERLAPS: &str = "
    with run as (
      select p.run, p.job_id, p.fence, p.started_at,
             least(coalesce(p.finished_at, 'infinity'),
                   coalesce((select min(d.died_at) from death d where d.pid = p.pid and d.died_at >= p.started_at), 'infinity'),
                   coalesce((select min(e.failed_at) from tenure.attempt_error e where e.job_id = p.job_id and e.lease_id = p.fence), 'infinity')) as good_until
      from probe p)
    select distinct a.job_id from run a join run b on a.job_id = b.job_id and a.run <> b.run and a.started_at <= b.started_at
    where a.good_until > b.started_at and b.good_until > b.started_at and (a.started_at, a.run) < (b.started_at, b.run)";

/// Plain effects of leases that neither completed the job nor have a recorded end. The jobs of a handler that was dropped go back
/// without one when its worker was asked to stop, or gave its registration up: it has registered anew since. What the handler
/// noted of itself explains nothing: a failure that was not stored is what is looked for.
const UNEXPLAINED: &str = "
    select distinct f.job_id from effect_plain f
    where not exists (select from tenure.outcome o where o.job_id = f.job_id and o.lease_id = f.fence)
      and not exists (select from tenure.dead_letter d where d.job_id = f.job_id and d.lease_id = f.fence)
      and not exists (select from tenure.attempt_error e where e.job_id = f.job_id and e.lease_id = f.fence)
      and not exists (
        select from probe p where p.job_id = f.job_id and p.fence = f.fence and p.outcome = 'dropped'
          and (exists (select from asked_to_stop s where s.pid = p.pid and s.at < p.finished_at + interval '100 milliseconds')
            or exists (select from registered r where r.pid = p.pid and r.at > p.started_at)))";

/// Waits until every job has ended, not longer than `within`; seconds that it took.
pub(super) async fn until_all_ended(stage: &Stage, within: Duration) -> f64 {
    let begin = Instant::now();
    let sql = stage.db.sql().await;
    let left = "select (select count(*) from tenure.job) - (select count(*) from tenure.outcome) - (select count(*) from tenure.dead_letter)";
    while begin.elapsed() < within {
        if sql.query_one(left, &[]).await.is_ok_and(|row| row.get::<_, i64>(0) == 0) {
            break;
        }
        tokio::time::sleep(LOOK).await; // sleep: between two looks
    }
    begin.elapsed().as_secs_f64()
}

/// Compares; the lines of the table, and what does not fit with all that is known of it.
pub(super) async fn judge(stage: &Stage, told: &[i64], rest: f64, each: Bound) -> (Vec<Measure>, Vec<String>) {
    let eye = Eye { sql: stage.db.sql().await };
    let accounts = Accounts::of(&eye, told).await;
    (accounts.lines(&eye, told.len(), rest, each).await, accounts.faults(&eye).await)
}

/// The jobs that do not fit.
struct Accounts {
    told_and_gone: Vec<i64>,
    ledger_and_gone: Vec<i64>,
    no_end: Vec<i64>,
    twice: Vec<i64>,
    once_and_not_completed: Vec<i64>,
    completed_without: Vec<i64>,
    unexplained: Vec<i64>,
    overlaps: Vec<i64>,
    /// Dead letters of another cause: nothing here fails more often than its attempts allow.
    not_lost: Vec<i64>,
}

impl Accounts {
    async fn of(eye: &Eye, told: &[i64]) -> Accounts {
        let told_and_gone =
            "select t.id from unnest($1::bigint[]) t(id) where not exists (select from tenure.job j where j.id = t.id)";
        let ledger_and_gone =
            "select l.job_id from ledger l where not exists (select from tenure.job j where j.id = l.job_id)";
        let no_end = "select j.id from tenure.job j where (select count(*) from tenure.outcome o where o.job_id = j.id)
                + (select count(*) from tenure.dead_letter d where d.job_id = j.id) <> 1";
        let once_and_not_completed = "select e.job_id from effect_once e where not exists
                (select from tenure.outcome o where o.job_id = e.job_id and o.lease_id = e.fence and o.state = 'c')";
        let completed_without =
            "select o.job_id from tenure.outcome o join tenure.job j on j.id = o.job_id
             where o.state = 'c' and j.payload::text like '%effect_twice%' and not exists (select from effect_once e where e.job_id = o.job_id)
             union select o.job_id from tenure.outcome o where o.state = 'c' and not exists (select from effect_plain e where e.job_id = o.job_id)";
        Accounts {
            told_and_gone: eye.jobs(told_and_gone, told).await,
            ledger_and_gone: eye.ids(ledger_and_gone).await,
            no_end: eye.ids(no_end).await,
            twice: eye.ids("select job_id from effect_once group by job_id having count(*) > 1").await,
            once_and_not_completed: eye.ids(once_and_not_completed).await,
            completed_without: eye.ids(completed_without).await,
            unexplained: eye.ids(UNEXPLAINED).await,
            overlaps: eye.ids(OVERLAPS).await,
            not_lost: eye
                .ids("select job_id from tenure.dead_letter where cause not in ('worker_lost', 'given_up')")
                .await,
        }
    }

    async fn faults(&self, eye: &Eye) -> Vec<String> {
        let mut faults = Vec::new();
        for (what, jobs) in [
            ("told to a producer, and not there", &self.told_and_gone),
            ("in a producer's transaction, and not there", &self.ledger_and_gone),
            ("without exactly one end", &self.no_end),
            ("its transaction took effect twice", &self.twice),
            ("its transaction took effect, and it did not complete with it", &self.once_and_not_completed),
            ("completed without its effects", &self.completed_without),
            ("a plain effect that nothing explains", &self.unexplained),
            ("two runs at a time, both with a good lease", &self.overlaps),
            ("dead for another reason than lost workers", &self.not_lost),
        ] {
            for job in jobs.iter().take(SHOWN_MAX) {
                faults.push(format!("{what}: {}", eye.all_of(*job).await));
            }
        }
        faults
    }

    async fn lines(&self, eye: &Eye, told: usize, rest: f64, each: Bound) -> Vec<Measure> {
        let lost = self.told_and_gone.len() + self.ledger_and_gone.len() + self.no_end.len();
        let waited: Vec<f64> = eye.numbers(WAITED).await;
        let longest = waited.iter().copied().fold(0.0, f64::max);
        let mean = waited.iter().sum::<f64>() / waited.len().max(1) as f64;
        let (some, shown) = (Bound::AtLeast(1.0), Bound::Shown);
        let line = |what: &str, bound, value: f64, unit| Measure::new(format!("chaos: {what}"), bound, value, unit);
        let count = async |query: &str| eye.count(query).await as f64;
        let none = |what: &str, jobs: &[i64]| Measure::count(format!("chaos: {what}"), 0, jobs.len());
        vec![
            line("jobs", some, count("select count(*) from tenure.job").await, ""),
            line("of these, ids that producers were told", some, told as f64, ""),
            line("jobs rescued from lost workers", each, count(RESCUED).await, ""),
            line("jobs given back by workers that gave up", shown, count(GIVEN_UP).await, ""),
            line("other failed attempts", each, count(FAILED).await, ""),
            line(
                "jobs buried after three lost workers",
                shown,
                count("select count(*) from tenure.dead_letter").await,
                "",
            ),
            Measure::count("chaos: jobs lost", 0, lost),
            none("transactional effects that are there twice", &self.twice),
            none("transactional effects of jobs that did not complete with them", &self.once_and_not_completed),
            none("jobs that completed without their effects", &self.completed_without),
            line("plain effects that are there again", each, count(PLAIN_AGAIN).await, ""),
            line("of runs whose worker was lost", shown, count(PLAIN_OF_LOST).await, ""),
            none("plain effects again that nothing recorded explains", &self.unexplained),
            none("two runs of one job at a time under good leases", &self.overlaps),
            none("jobs dead for another reason than lost workers", &self.not_lost),
            line("jobs waiting for a worker after theirs was killed, on average", shown, mean, "s"),
            line("the longest that a job waited after its worker was killed, outages included", shown, longest, "s"),
            line("from the last fault to the end of the last job", shown, rest, "s"),
        ]
    }
}

const RESCUED: &str = "select count(*) from tenure.attempt_error where cause = 'worker_lost'";
const FAILED: &str = "select count(*) from tenure.attempt_error where cause not in ('worker_lost', 'given_up')";
const GIVEN_UP: &str = "select count(*) from tenure.attempt_error where cause = 'given_up'";
const PLAIN_AGAIN: &str = "select count(*)::bigint - count(distinct job_id) from effect_plain";
const PLAIN_OF_LOST: &str =
    "select count(*) from (select distinct f.job_id, f.fence from effect_plain f join tenure.attempt_error e
        on e.job_id = f.job_id and e.lease_id = f.fence and e.cause = 'worker_lost') x";

/// Looks at the tables.
struct Eye {
    sql: tokio_postgres::Client,
}

impl Eye {
    async fn ids(&self, query: &str) -> Vec<i64> {
        let rows = self.sql.query(query, &[]).await.unwrap_or_else(|e| panic!("{query}: {e:?}"));
        rows.iter().map(|row| row.get(0)).collect()
    }

    async fn jobs(&self, query: &str, jobs: &[i64]) -> Vec<i64> {
        let rows = self.sql.query(query, &[&jobs]).await.unwrap_or_else(|e| panic!("{query}: {e:?}"));
        rows.iter().map(|row| row.get(0)).collect()
    }

    async fn numbers(&self, query: &str) -> Vec<f64> {
        let rows = self.sql.query(query, &[]).await.unwrap_or_else(|e| panic!("{query}: {e:?}"));
        rows.iter().map(|row| row.get(0)).collect()
    }

    async fn count(&self, query: &str) -> i64 {
        self.ids(query).await[0]
    }

    /// Everything that is known of a job, as JSON.
    async fn all_of(&self, job: i64) -> String {
        let all = "select json_build_object('job', $1::bigint,
            'state', (select to_json(x) from tenure.jobs x where x.id = $1),
            'runs', (select json_agg(p order by p.started_at) from probe p where p.job_id = $1),
            'deaths', (select json_agg(distinct d.*::text) from death d join probe p on p.pid = d.pid where p.job_id = $1),
            'errors', (select json_agg(e order by e.failed_at) from tenure.attempt_error e where e.job_id = $1),
            'plain', (select json_agg(f order by f.at) from effect_plain f where f.job_id = $1),
            'once', (select json_agg(f order by f.at) from effect_once f where f.job_id = $1))::text";
        self.sql.query_one(all, &[&job]).await.unwrap_or_else(|e| panic!("{all}: {e:?}")).get(0)
    }
}
