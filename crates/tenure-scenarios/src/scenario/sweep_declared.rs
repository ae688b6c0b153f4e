//! The verbs about schedules that come together, and about pg_cron's entries: what the sweep prepares for them, and the calls.

use tenure::verbs::Verb;
use tenure::{Client, CronJob, Enqueue, Error, Rule, Schedule, Schedules};

use crate::Stage;

/// Two schedules that an owner of that name has declared.
pub(super) async fn declared(stage: &Stage, name: &str) {
    let declare = "select count(tenure.sync_schedules($1::text, json_build_array(json_build_object('name', $1::text, 'rule', '@yearly', 'zone', 'UTC', 'kind', 'act'),
        json_build_object('name', $1::text || '-old', 'rule', '@yearly', 'zone', 'UTC', 'kind', 'act'))))";
    stage.count(declare, &[&name]).await;
}

/// An entry of pg_cron, by what stands in for that: tables and a function as it has them.
pub(super) async fn entry(stage: &Stage, name: &str) {
    let stand_in = "create schema if not exists cron;
        create table if not exists cron.job (jobid bigint generated always as identity, jobname text, schedule text, command text, database text, username text, active boolean);
        create table if not exists cron.job_run_details (jobid bigint, runid bigint, status text, return_message text);
        create or replace function cron.unschedule(p_job bigint) returns boolean language sql as 'delete from cron.job where jobid = p_job returning true'";
    stage.sql.batch_execute(stand_in).await.expect("a stand-in for pg_cron");
    let add = "insert into cron.job (jobname, schedule, command, database, username, active) values ($1, '0 3 * * *', 'select 1', current_database(), current_user, true)";
    stage.execute(add, &[&name]).await;
}

/// One call, for schedules and an owner of that name.
pub(super) async fn call(client: &Client, verb: Verb, name: &str, job: Enqueue) -> Result<(), Error> {
    let schedule = |suffix: &str, rule: &str| {
        Schedule::new(format!("{name}{suffix}"), Rule::new(rule, "UTC").expect("a rule"), job.clone())
    };
    let is_ours = |job: &&CronJob| job.name.as_deref() == Some(name);
    let ours = Schedules::new(name).add(schedule("", "@monthly")).add(schedule("-new", "@monthly"));
    match verb {
        Verb::AddSchedules => client.add_schedules(&[schedule("-1", "@yearly"), schedule("-2", "@yearly")]).await,
        Verb::SyncSchedules => client.sync_schedules(&ours).await.map(drop),
        Verb::SyncSchedulesAsShown => {
            let shown = client.sync_schedules_preview(&ours).await?;
            client.sync_schedules_as_shown(&ours, &shown.basis).await.map(drop)
        }
        Verb::SyncSchedulesPreview => {
            let shown = client.sync_schedules_preview(&ours).await;
            shown.map(|shown| assert_eq!((shown.added.len(), shown.removed.len()), (1, 1)))
        }
        Verb::CronJobs => client.cron_jobs().await.map(|jobs| assert_eq!(jobs.iter().filter(is_ours).count(), 1)),
        Verb::MoveCronJobs => {
            let jobs = client.cron_jobs().await?;
            let ids: Vec<i64> = jobs.iter().filter(is_ours).map(|job| job.id).collect();
            client.move_cron_jobs(&[schedule("", "@yearly")], &ids).await
        }
        Verb::CheckPgCron => client.check_pg_cron().await.map(|checks| assert!(checks.len() > 5)),
        verb => unreachable!("{verb:?} is about one"),
    }
}
