//! The accounts of a chaos run, compared: what was promised, what was done, and what explains each thing done twice.

use std::time::{Duration, Instant};

use tenure::testing::until_within;

use crate::Stage;
use crate::measure::{Bound, Measure};

/// Jobs that do not fit, at most, of which a report shows everything.
const SHOWN_MAX: i64 = 5;

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

/// Plain effects of leases that neither completed the job, nor have a recorded end, nor belong to a worker that was asked to stop
/// or gave its registration up and gave the job back.
const UNEXPLAINED: &str = "
    select distinct f.job_id from effect_plain f
    where not exists (select from tenure.outcome o where o.job_id = f.job_id and o.lease_id = f.fence)
      and not exists (select from tenure.dead_letter d where d.job_id = f.job_id and d.lease_id = f.fence)
      and not exists (select from tenure.attempt_error e where e.job_id = f.job_id and e.lease_id = f.fence)
      and not exists (select from probe p where p.job_id = f.job_id and p.fence = f.fence and p.outcome in ('dropped', 'failed'))";

/// Waits until every job has ended; seconds that it took.
pub(super) async fn until_all_ended(stage: &Stage, within: Duration) -> f64 {
    let begin = Instant::now();
    let sql = stage.db.sql().await;
    until_within(within, "every job ends once nothing breaks any more", async || {
        let left = "select (select count(*) from tenure.job) - (select count(*) from tenure.outcome) - (select count(*) from tenure.dead_letter)";
        let left: i64 = sql.query_one(left, &[]).await.map_or(-1, |row| row.get(0));
        if left == 0 { Ok(()) } else { Err(format!("{left} have not")) }
    })
    .await;
    begin.elapsed().as_secs_f64()
}

/// Compares; the lines of the table, and what does not fit with all that is known of it.
pub(super) async fn judge(stage: &Stage, told: &[i64], rest: f64) -> (Vec<Measure>, Vec<String>) {
    let eye = Eye { sql: stage.db.sql().await };
    let mut faults = Vec::new();
    let told_and_gone = eye
        .jobs(
            "select t.id from unnest($1::bigint[]) t(id) where not exists (select from tenure.job j where j.id = t.id)",
            told,
        )
        .await;
    let ledger_and_gone = eye
        .ids("select l.job_id from ledger l where not exists (select from tenure.job j where j.id = l.job_id)")
        .await;
    let no_end = eye
        .ids(
            "select j.id from tenure.job j where (select count(*) from tenure.outcome o where o.job_id = j.id)
                + (select count(*) from tenure.dead_letter d where d.job_id = j.id) <> 1",
        )
        .await;
    let twice = eye.ids("select job_id from effect_once group by job_id having count(*) > 1").await;
    let once_and_not_completed = eye
        .ids(
            "select e.job_id from effect_once e where not exists
                (select from tenure.outcome o where o.job_id = e.job_id and o.lease_id = e.fence and o.state = 'c')",
        )
        .await;
    let completed_without = eye
        .ids(
            "select o.job_id from tenure.outcome o join tenure.job j on j.id = o.job_id
             where o.state = 'c' and j.payload::text like '%effect_twice%' and not exists (select from effect_once e where e.job_id = o.job_id)
             union select o.job_id from tenure.outcome o where o.state = 'c' and not exists (select from effect_plain e where e.job_id = o.job_id)",
        )
        .await;
    let unexplained = eye.ids(UNEXPLAINED).await;
    let overlaps = eye.ids(OVERLAPS).await;
    let not_lost = eye.ids("select job_id from tenure.dead_letter where cause <> 'worker_lost'").await;
    for (what, jobs) in [
        ("told to a producer, and not there", &told_and_gone),
        ("in a producer's transaction, and not there", &ledger_and_gone),
        ("without exactly one end", &no_end),
        ("its transaction took effect twice", &twice),
        ("its transaction took effect, and it did not complete with it", &once_and_not_completed),
        ("completed without its effects", &completed_without),
        ("a plain effect that nothing explains", &unexplained),
        ("two runs at a time, both with a good lease", &overlaps),
        ("dead for another reason than lost workers", &not_lost),
    ] {
        for job in jobs.iter().take(SHOWN_MAX as usize) {
            faults.push(format!("{what}: {}", eye.all_of(*job).await));
        }
    }
    let lost = told_and_gone.len() + ledger_and_gone.len() + no_end.len();
    let waited: Vec<f64> = eye.numbers(WAITED).await;
    let longest = waited.iter().copied().fold(0.0, f64::max);
    let mean = waited.iter().sum::<f64>() / waited.len().max(1) as f64;
    let jobs = eye.count("select count(*) from tenure.job").await;
    let rescues = eye.count("select count(*) from tenure.attempt_error where cause = 'worker_lost'").await;
    let dead = eye.count("select count(*) from tenure.dead_letter").await;
    let failed = eye.count("select count(*) from tenure.attempt_error where cause <> 'worker_lost'").await;
    let plain_twice = "select count(*)::bigint - count(distinct job_id) from effect_plain";
    let after_rescue =
        "select count(*) from (select distinct f.job_id, f.fence from effect_plain f join tenure.attempt_error e
        on e.job_id = f.job_id and e.lease_id = f.fence and e.cause = 'worker_lost') x";
    let shown = |what: &str, value: f64, unit| Measure::new(format!("chaos: {what}"), Bound::Shown, value, unit);
    let none = |what: &str, jobs: &[i64]| Measure::count(format!("chaos: {what}"), 0, jobs.len());
    let measures = vec![
        shown("jobs", jobs as f64, ""),
        shown("of these, ids that producers were told", told.len() as f64, ""),
        shown("jobs rescued from lost workers", rescues as f64, ""),
        shown("other failed attempts", failed as f64, ""),
        shown("jobs buried after three lost workers", dead as f64, ""),
        Measure::count("chaos: jobs lost", 0, lost),
        none("transactional effects that are there twice", &twice),
        none("transactional effects of jobs that did not complete with them", &once_and_not_completed),
        none("jobs that completed without their effects", &completed_without),
        shown("plain effects that are there again", eye.count(plain_twice).await as f64, ""),
        shown("of runs whose worker was lost", eye.count(after_rescue).await as f64, ""),
        none("plain effects again that nothing recorded explains", &unexplained),
        none("two runs of one job at a time under good leases", &overlaps),
        shown("jobs waiting for a worker after theirs was killed, on average", mean, "s"),
        shown("the longest that a job waited after its worker was killed, outages included", longest, "s"),
        shown("from the last fault to the end of the last job", rest, "s"),
    ];
    (measures, faults)
}

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
