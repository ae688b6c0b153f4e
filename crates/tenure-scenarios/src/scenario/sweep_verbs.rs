//! What the sweep needs of every verb of a client: something to work on, the call, and what it leaves. A verb that is new in the
//! library's table does not compile here until it has all three.

use std::time::Duration;

use tenure::lifecycle::State;
use tenure::verbs::{Effect, Verb};
use tenure::{CancelFilter, Client, Ended, Enqueue, Error, JobFilter, JobId, JobOptions, MigrateOptions, RawJson};
use tokio_postgres::types::Type;
use tokio_postgres::{NoTls, Transaction};

use super::retention::ended;
use super::{sweep_declared, sweep_operate, sweep_time};
use crate::protocol::{Hand, Leased, Registration};
use crate::{Act, Stage, size};

/// Jobs of one bulk call; each is a message of the answer.
pub(super) const MANY: usize = 12;
/// The kind of all jobs here.
pub(super) const KIND: &str = "act";
/// Days after which the finished jobs of the past are not kept any more.
const PAST_DAYS: i32 = 8;
/// Longer than anything here takes.
pub(super) const HOUR: Duration = Duration::from_secs(3_600);
/// How long what waits, waits: in vain.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// A verb, and the state of the job that it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) verb: Verb,
    /// The job runs; only a cancel makes a difference there.
    running: bool,
}

impl Case {
    pub(super) fn all() -> Vec<Case> {
        let each = Verb::ALL.iter().map(|verb| Case { verb: *verb, running: false });
        each.chain([Case { verb: Verb::Cancel, running: true }]).collect()
    }
}

/// What a verb works on, made anew for every cut.
pub(super) struct Scene {
    pub(super) queue: String,
    pub(super) schema: String,
    /// One job of that queue, in the state that the verb wants.
    pub(super) job: i64,
    /// Dead letters of that queue, more than one transaction takes where the verb works in steps.
    dead: usize,
    /// Keeps a running job's worker alive.
    pub(super) hand: Option<Hand>,
}

/// The table of the program that enqueues.
pub(super) async fn make_own(stage: &Stage) {
    stage.execute("create table if not exists own (queue text not null)", &[]).await;
}

pub(super) async fn prepare(stage: &Stage, case: Case) -> Scene {
    let queue = format!("q{:x}", fastrand::u64(..));
    let schema = if case.verb == Verb::Migrate { format!("s{:x}", fastrand::u64(..)) } else { "tenure".to_owned() };
    let mut scene = Scene { queue, schema, job: 0, dead: 0, hand: None };
    let act = Act::Sleep { ms: 0 };
    match case.verb {
        Verb::Migrate
        | Verb::Enqueue
        | Verb::EnqueueMany
        | Verb::EnqueueCopy
        | Verb::TryEnqueueCopy
        | Verb::EnqueueIn
        | Verb::EnqueueManyIn
        | Verb::EnqueueCopyIn
        | Verb::Workers
        | Verb::Server
        | Verb::Now
        | Verb::VacuumHorizon
        | Verb::CheckPlans
        | Verb::Pause
        | Verb::PauseKind
        | Verb::Drained
        | Verb::SetKeep
        | Verb::AddSchedule
        | Verb::AddSchedules
        | Verb::CheckPgCron
        | Verb::KeepDefaults
        | Verb::SetLimit
        | Verb::SetQueueBound
        | Verb::Settings => {}
        // Set by the call before.
        Verb::SetSetting => {
            stage.execute("delete from tenure.setting", &[]).await;
        }
        Verb::Cancel if case.running => scene.hand = Some(scene.run_one(stage).await.0),
        Verb::Get
        | Verb::List
        | Verb::Cancel
        | Verb::CountUnfinished
        | Verb::WaitsFor
        | Verb::UnhandledKinds
        | Verb::Reschedule
        | Verb::RunNow
        | Verb::Queues => scene.job = stage.enqueue_to(&scene.queue, &act, 3).await[1],
        Verb::Resume => {
            stage.count("select tenure.pause($1)::int::bigint", &[&scene.queue]).await;
        }
        Verb::ResumeKind | Verb::PausedKinds => {
            stage.count("select tenure.pause_kind($1, $2)::int::bigint", &[&KIND, &scene.queue]).await;
        }
        Verb::RemoveLimit | Verb::Limits => {
            stage.count("select tenure.set_limit($1, 3)::int::bigint", &[&scene.queue]).await;
        }
        Verb::RemoveQueueBound | Verb::QueueBounds => {
            stage.count("select tenure.set_queue_bound($1, 3)::int::bigint", &[&scene.queue]).await;
        }
        Verb::DrainWorker | Verb::WorkerDrained => scene.hand = Some(hand(stage, &scene.queue).await),
        Verb::AttemptErrors => {
            let (hand, job) = scene.run_one(stage).await;
            hand.fail(&job, "retry", Some(0)).await.expect("failed");
        }
        Verb::Wait => {
            let (hand, job) = scene.run_one(stage).await;
            hand.complete(&[job]).await.expect("completed");
        }
        Verb::CancelMany => {
            // One that waits for its retry, one that runs, one that is ready.
            stage.enqueue_to(&scene.queue, &act, 3).await;
            let mut hand = hand(stage, &scene.queue).await;
            let (jobs, _) = hand.claim(2).await.expect("claimed");
            hand.fail(&jobs[0], "retry", Some(3_600_000)).await.expect("failed");
            scene.hand = Some(hand);
        }
        Verb::Requeue
        | Verb::DeadLetters
        | Verb::DeadLetter
        | Verb::DeadGroups
        | Verb::CountDead
        | Verb::LineOf
        | Verb::Discard => scene.bury(stage, 3).await,
        Verb::EditSchedule
        | Verb::PauseSchedule
        | Verb::ResumeSchedule
        | Verb::RemoveSchedule
        | Verb::RunSchedule
        | Verb::Schedules
        | Verb::Schedule
        | Verb::ScheduleRuns
        | Verb::AuditSchedule
        | Verb::TroubledSchedules
        | Verb::AddBackfill
        | Verb::BackfillPreview
        | Verb::Backfills
        | Verb::Backfill
        | Verb::CancelBackfill => scene.job = declare(stage, case.verb, &scene.queue).await,
        Verb::SyncSchedules | Verb::SyncSchedulesAsShown | Verb::SyncSchedulesPreview => {
            sweep_declared::declared(stage, &scene.queue).await
        }
        Verb::CronJobs | Verb::MoveCronJobs => sweep_declared::entry(stage, &scene.queue).await,
        Verb::RequeueDead | Verb::DiscardDead => scene.bury(stage, size::SWEEP_DEAD.at(stage.size)).await,
        Verb::Prune | Verb::PrunePreview => past(stage).await,
        Verb::Stats | Verb::WorkerStats => told(stage, &scene.queue).await,
    }
    if case.verb == Verb::RunNow {
        stage.count("select count(tenure.reschedule($1, p_delay_ms => 3600000))", &[&scene.job]).await;
    }
    scene
}

/// What a worker told of this queue.
async fn told(stage: &Stage, queue: &str) {
    let groups = serde_json::json!([{ "queue": queue, "kind": KIND, "started": MANY }]).to_string();
    let tell = "select tenure.record_stats($1, 1, clock_timestamp(), $2::text::json)::int::bigint";
    assert_eq!(stage.count(tell, &[&fastrand::i64(1..), &groups]).await, 1);
}

/// A schedule of that name, whose time does not come. The number of its backfill, where the verb is about one.
async fn declare(stage: &Stage, verb: Verb, name: &str) -> i64 {
    stage.count("select tenure.add_schedule($1, '@yearly', 'UTC', 'act', '{}', $1)", &[&name]).await;
    match verb {
        Verb::ResumeSchedule => stage.count("select tenure.pause_schedule($1)::int::bigint", &[&name]).await,
        Verb::ScheduleRuns => stage.count("select tenure.run_schedule($1)", &[&name]).await,
        Verb::TroubledSchedules => {
            let fail = "update tenure.schedule set error = 'swept', error_at = '2001-01-01Z' where name = $1";
            stage.execute(fail, &[&name]).await;
            0
        }
        Verb::Backfills | Verb::Backfill | Verb::CancelBackfill => {
            let begin = "select tenure.add_backfill($1, array(select make_date(n, 1, 1)::timestamp at time zone 'UTC' from generate_series(2001, 2003) n))";
            stage.count(begin, &[&name]).await
        }
        _ => 0,
    }
}

/// Finished jobs that are not kept any more. What was enqueued before them is older still: retention goes by the order of ids.
async fn past(stage: &Stage) {
    let age = "update tenure.job set created_at = created_at - make_interval(days => $1) where created_at > clock_timestamp() - interval '1 day'";
    stage.execute(age, &[&PAST_DAYS]).await;
    ended(stage, size::SWEEP_PAST.at(stage.size), PAST_DAYS).await;
}

impl Scene {
    /// A job that runs, and who runs it.
    async fn run_one(&mut self, stage: &Stage) -> (Hand, Leased) {
        self.job = stage.enqueue_to(&self.queue, &Act::Sleep { ms: 0 }, 1).await[0];
        let mut hand = hand(stage, &self.queue).await;
        let (mut jobs, _) = hand.claim(1).await.expect("claimed");
        (hand, jobs.remove(0))
    }

    /// Dead letters, one of which is the job.
    async fn bury(&mut self, stage: &Stage, count: usize) {
        self.dead = count;
        self.job = stage.enqueue_to(&self.queue, &Act::Sleep { ms: 0 }, count).await[1];
        let mut hand = hand(stage, &self.queue).await;
        let mut left = count;
        while left > 0 {
            let (jobs, _) = hand.claim(left as i32).await.expect("claimed");
            for job in &jobs {
                hand.fail(job, "permanent", None).await.expect("dead");
            }
            left -= jobs.len();
        }
    }
}

async fn hand(stage: &Stage, queue: &str) -> Hand {
    stage.hand(&Registration { queues: vec![queue.to_owned()], ..Registration::default() }).await
}

pub(super) async fn clear(stage: &Stage, case: Case, scene: &Scene) {
    if case.verb == Verb::Migrate {
        stage.sql.batch_execute(&format!("drop schema if exists {} cascade", scene.schema)).await.expect("dropped");
    }
}

/// What a verb has left, as a text; nothing for one that only looks.
pub(super) async fn seen(stage: &Stage, case: Case, scene: &Scene) -> String {
    let Some((columns, _)) = trace(case, scene) else {
        assert_eq!(case.verb.effect(), Effect::None, "{case:?} leaves a trace");
        return String::new();
    };
    let query = format!(
        "with p as (select $1::text as queue, $2::text as schema, $3::bigint as job, $4::bigint as worker)
         select concat_ws(' ', {columns}) from p"
    );
    let worker = scene.hand.as_ref().map(|hand| hand.worker);
    stage.one::<String>(&query, &[&scene.queue, &scene.schema, &scene.job, &worker]).await
}

/// Is that what a complete call leaves?
pub(super) fn is_done(case: Case, scene: &Scene, seen: &str) -> bool {
    trace(case, scene).is_none_or(|(_, complete)| seen == complete)
}

/// Where to look for what a verb leaves, and what is there after a complete call. None: it only looks.
fn trace(case: Case, scene: &Scene) -> Option<(&'static str, String)> {
    let dead = scene.dead;
    let enqueued = |jobs: usize, own: usize| {
        let columns = "(select count(*) from tenure.job where queue = p.queue),
             (select coalesce(sum(bit_count(mask)), 0) from tenure.ready where queue = p.queue),
             (select count(*) from tenure.inbox), (select count(*) from own where queue = p.queue)";
        (columns, format!("{jobs} {jobs} 0 {own}"))
    };
    let requeued = |jobs: usize| {
        let columns = "(select count(*) from tenure.job where queue = p.queue and replaces_id is not null),
             (select count(*) from tenure.replacement r join tenure.dead_letter d using (job_id) where d.queue = p.queue),
             (select coalesce(sum(bit_count(mask)), 0) from tenure.ready where queue = p.queue)";
        (columns, format!("{jobs} {jobs} {jobs}"))
    };
    let discarded = |left: usize| {
        let columns = "(select count(*) from tenure.dead_letter where queue = p.queue),
             (select count(*) from tenure.job where queue = p.queue)";
        (columns, format!("{left} {left}"))
    };
    let paused = |yes: bool| {
        (
            "(select count(*) from tenure.queue where name = p.queue and paused_at is not null)",
            u8::from(yes).to_string(),
        )
    };
    let kind_paused =
        |yes: bool| ("(select count(*) from tenure.kind_pause where queue = p.queue)", u8::from(yes).to_string());
    Some(match case.verb {
        // It is one transaction: with a few of the functions all of it is there.
        Verb::Migrate => {
            let columns = "(select count(*) from pg_namespace where nspname = p.schema),
             (select least(count(*), 1) from pg_class where relnamespace = to_regnamespace(p.schema)),
             (select least(count(*), 1) from pg_proc where pronamespace = to_regnamespace(p.schema))";
            (columns, "1 1 1".to_owned())
        }
        Verb::Enqueue => enqueued(1, 0),
        Verb::EnqueueMany | Verb::EnqueueCopy | Verb::TryEnqueueCopy => enqueued(MANY, 0),
        Verb::EnqueueIn => enqueued(1, 1),
        Verb::EnqueueManyIn | Verb::EnqueueCopyIn => enqueued(MANY, 1),
        Verb::Cancel if case.running => {
            ("(select count(*) from tenure.cancel_request where job_id = p.job)", "1".to_owned())
        }
        Verb::Cancel => {
            let columns = "(select status from tenure.jobs where id = p.job),
             (select count(*) from tenure.outcome where job_id = p.job)";
            (columns, "cancelled 1".to_owned())
        }
        Verb::CancelMany => {
            let columns = "(select count(*) from tenure.job j join tenure.outcome o on o.job_id = j.id where j.queue = p.queue and o.state = 'x'),
             (select count(*) from tenure.job j join tenure.cancel_request c on c.job_id = j.id where j.queue = p.queue)";
            (columns, "2 1".to_owned())
        }
        Verb::Requeue => requeued(1),
        Verb::RequeueDead => requeued(dead),
        Verb::Discard => discarded(dead - 1),
        Verb::DiscardDead => discarded(0),
        Verb::Pause => paused(true),
        Verb::Resume => paused(false),
        Verb::PauseKind => kind_paused(true),
        Verb::ResumeKind => kind_paused(false),
        Verb::DrainWorker => {
            ("(select count(*) from tenure.worker_drain d where d.worker_id = p.worker)", "1".to_owned())
        }
        Verb::SetLimit => ("(select concurrency from tenure.limit_rule where name = p.queue)", "3".to_owned()),
        Verb::RemoveLimit => ("(select count(*) from tenure.limit_rule where name = p.queue)", "0".to_owned()),
        Verb::SetQueueBound => ("(select jobs from tenure.queue_bound where queue = p.queue)", "3".to_owned()),
        Verb::RemoveQueueBound => ("(select count(*) from tenure.queue_bound where queue = p.queue)", "0".to_owned()),
        Verb::SetKeep => {
            ("(select keep_dead_ms from tenure.queue where name = p.queue)", PATIENCE.as_millis().to_string())
        }
        Verb::SetSetting => {
            ("(select value from tenure.setting where name = 'snapshot_warn_ms')", PATIENCE.as_millis().to_string())
        }
        Verb::Reschedule => ("(select status from tenure.jobs where id = p.job)", "scheduled".to_owned()),
        Verb::RunNow => ("(select status from tenure.jobs where id = p.job)", "available".to_owned()),
        Verb::AddSchedule | Verb::EditSchedule | Verb::PauseSchedule | Verb::ResumeSchedule => {
            let columns = "(select version from tenure.schedules where name = p.queue),
             (select rule from tenure.schedules where name = p.queue), (select state from tenure.schedules where name = p.queue)";
            let complete = match case.verb {
                Verb::AddSchedule => "1 @yearly active",
                Verb::EditSchedule => "2 @monthly active",
                Verb::PauseSchedule => "2 @yearly paused",
                _ => "3 @yearly active",
            };
            (columns, complete.to_owned())
        }
        Verb::AddSchedules => {
            ("(select count(*) from tenure.schedules where name like p.queue || '-%')", "2".to_owned())
        }
        Verb::SyncSchedules | Verb::SyncSchedulesAsShown => {
            let columns = "(select string_agg(concat_ws(' ', replace(name, p.queue, 'q'), version, rule), ', ' order by name) from tenure.schedules where declared_by = p.queue)";
            (columns, "q 2 @monthly, q-new 1 @monthly".to_owned())
        }
        Verb::MoveCronJobs => {
            let columns = "(select count(*) from tenure.schedules where name = p.queue), (select count(*) from cron.job where jobname = p.queue)";
            (columns, "1 0".to_owned())
        }
        Verb::RemoveSchedule => ("(select count(*) from tenure.schedules where name = p.queue)", "0".to_owned()),
        Verb::RunSchedule => {
            let columns = "(select count(*) from tenure.job where queue = p.queue),
             (select count(*) from tenure.schedule_runs where schedule = p.queue and state = 'by hand')";
            (columns, "1 1".to_owned())
        }
        Verb::AddBackfill => (
            "(select string_agg(state || ' ' || times, ' ') from tenure.backfills where schedule = p.queue)",
            "active 2".to_owned(),
        ),
        Verb::CancelBackfill => ("(select state from tenure.backfills where id = p.job)", "cancelled".to_owned()),
        // A job and its outcome go together.
        Verb::Prune => {
            let columns = "(select count(*) from tenure.job where queue = 'default'),
             (select count(*) from tenure.outcome o where not exists (select from tenure.job j where j.id = o.job_id))";
            (columns, "0 0".to_owned())
        }
        Verb::Get
        | Verb::List
        | Verb::AttemptErrors
        | Verb::WaitsFor
        | Verb::Wait
        | Verb::CountUnfinished
        | Verb::DeadLetters
        | Verb::DeadGroups
        | Verb::CountDead
        | Verb::LineOf
        | Verb::DeadLetter
        | Verb::Queues
        | Verb::PausedKinds
        | Verb::Drained
        | Verb::KeepDefaults
        | Verb::Settings
        | Verb::Limits
        | Verb::QueueBounds
        | Verb::PrunePreview
        | Verb::Schedules
        | Verb::Schedule
        | Verb::ScheduleRuns
        | Verb::AuditSchedule
        | Verb::TroubledSchedules
        | Verb::BackfillPreview
        | Verb::Backfills
        | Verb::Backfill
        | Verb::SyncSchedulesPreview
        | Verb::CronJobs
        | Verb::CheckPgCron
        | Verb::UnhandledKinds
        | Verb::Workers
        | Verb::WorkerDrained
        | Verb::Server
        | Verb::Now
        | Verb::VacuumHorizon
        | Verb::CheckPlans
        | Verb::Stats
        | Verb::WorkerStats => return None,
    })
}

pub(super) fn job(scene: &Scene) -> Enqueue {
    Enqueue::raw(KIND, RawJson::null()).queue(&scene.queue)
}

fn jobs(scene: &Scene) -> impl Iterator<Item = Enqueue> + Send + 'static {
    let job = job(scene);
    (0..MANY).map(move |_| job.clone())
}

/// One call, with the connection that it needs; its answer is looked at, too.
pub(super) async fn call(client: &Client, url: &str, case: Case, scene: &Scene) -> Result<(), Error> {
    let (id, queue) = (JobId::from(scene.job), scene.queue.as_str());
    let all = CancelFilter::new().queue(queue);
    let options = || JobOptions::new().queue(queue);
    // In several functions, boxed: one future of all verbs is more than the stack of a test's thread holds.
    match case.verb {
        Verb::Migrate => client.migrate(MigrateOptions::default()).await.map(drop),
        Verb::Enqueue => client.enqueue(job(scene)).await.map(drop),
        Verb::EnqueueMany => client.enqueue_many(KIND, 0..MANY, options()).await.map(|ids| assert_eq!(ids.len(), MANY)),
        Verb::EnqueueCopy => client.enqueue_copy(jobs(scene)).await.map(|ids| assert_eq!(ids.len(), MANY)),
        Verb::TryEnqueueCopy => {
            client.try_enqueue_copy(jobs(scene).map(Ok)).await.map(|ids| assert_eq!(ids.len(), MANY))
        }
        Verb::EnqueueIn => {
            with_a_row_of_its_own(url, scene, async |tx| client.enqueue_in(tx, job(scene)).await.map(drop)).await
        }
        Verb::EnqueueManyIn => {
            let many = async |tx: &mut Transaction<'_>| client.enqueue_many_in(tx, KIND, 0..MANY, options()).await;
            with_a_row_of_its_own(url, scene, async |tx| many(tx).await.map(drop)).await
        }
        Verb::EnqueueCopyIn => {
            with_a_row_of_its_own(url, scene, async |tx| client.enqueue_copy_in(tx, jobs(scene)).await.map(drop)).await
        }
        Verb::Get => client.get(id).await.map(|job| assert_eq!(job.expect("it is there").id, id)),
        Verb::List => {
            let filter = JobFilter { queue: Some(scene.queue.clone()), ..JobFilter::default() };
            client.list(&filter).await.map(|jobs| assert_eq!(jobs.len(), 3))
        }
        Verb::AttemptErrors => client.attempt_errors(id).await.map(|errors| assert_eq!(errors.len(), 1)),
        Verb::WaitsFor => client.waits_for(id).await.map(|reason| assert_eq!(reason.expect("one").reason, "no_worker")),
        Verb::Wait => {
            let ended = client.wait(id, PATIENCE).await;
            ended.map(|ended| assert!(matches!(ended, Ended::Completed { .. }), "{ended:?}"))
        }
        Verb::Cancel => client.cancel(id).await.map(drop),
        Verb::CountUnfinished => client.count_unfinished(&all).await.map(|c| assert_eq!(c, [(State::Available, 3)])),
        Verb::CancelMany => client.cancel_many(&all, |_| ()).await.map(drop),
        Verb::Requeue => client.requeue(id, None).await.map(drop),
        Verb::Reschedule
        | Verb::RunNow
        | Verb::AddSchedule
        | Verb::EditSchedule
        | Verb::PauseSchedule
        | Verb::ResumeSchedule
        | Verb::RemoveSchedule
        | Verb::RunSchedule
        | Verb::Schedules
        | Verb::Schedule
        | Verb::ScheduleRuns
        | Verb::AuditSchedule
        | Verb::TroubledSchedules
        | Verb::AddBackfill
        | Verb::BackfillPreview
        | Verb::Backfills
        | Verb::Backfill
        | Verb::CancelBackfill => Box::pin(sweep_time::call(client, case, scene)).await,
        Verb::AddSchedules
        | Verb::SyncSchedules
        | Verb::SyncSchedulesAsShown
        | Verb::SyncSchedulesPreview
        | Verb::CronJobs
        | Verb::MoveCronJobs
        | Verb::CheckPgCron => Box::pin(sweep_declared::call(client, case.verb, queue, job(scene))).await,
        Verb::DeadLetters
        | Verb::DeadGroups
        | Verb::CountDead
        | Verb::LineOf
        | Verb::DeadLetter
        | Verb::RequeueDead
        | Verb::Discard
        | Verb::DiscardDead
        | Verb::Queues
        | Verb::Pause
        | Verb::Resume
        | Verb::PauseKind
        | Verb::ResumeKind
        | Verb::PausedKinds
        | Verb::Drained
        | Verb::SetKeep
        | Verb::KeepDefaults
        | Verb::SetLimit
        | Verb::RemoveLimit
        | Verb::Limits
        | Verb::SetQueueBound
        | Verb::RemoveQueueBound
        | Verb::QueueBounds
        | Verb::Settings
        | Verb::SetSetting
        | Verb::Prune
        | Verb::PrunePreview
        | Verb::UnhandledKinds
        | Verb::Workers
        | Verb::DrainWorker
        | Verb::WorkerDrained
        | Verb::Server
        | Verb::Now
        | Verb::VacuumHorizon
        | Verb::CheckPlans
        | Verb::Stats
        | Verb::WorkerStats => Box::pin(sweep_operate::call(client, case, scene)).await,
    }
}

/// Enqueues in a transaction of the caller's own, with a row of its own.
async fn with_a_row_of_its_own(
    url: &str,
    scene: &Scene,
    enqueue: impl AsyncFnOnce(&mut Transaction<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let unreachable = |e: tokio_postgres::Error| {
        // What the caller's own statements say is not ours to judge.
        assert!(e.as_db_error().is_none(), "{e}");
        None
    };
    let own = async {
        let (mut sql, connection) = tokio_postgres::connect(url, NoTls).await.map_err(unreachable)?;
        tokio::spawn(connection);
        let mut tx = sql.transaction().await.map_err(unreachable)?;
        tx.query_typed("insert into own values ($1)", &[(&scene.queue, Type::TEXT)]).await.map_err(unreachable)?;
        enqueue(&mut tx).await.map_err(Some)?;
        tx.commit().await.map_err(unreachable)
    };
    match own.await {
        Ok(()) => Ok(()),
        Err(Some(error)) => Err(error),
        // A call of ours that cannot succeed either, so that there is an error to give.
        Err(None) => {
            let nowhere = Client::builder("postgres://nobody@127.0.0.1:1/nowhere").connect_lazy().expect("settings");
            nowhere.server().await.map(drop)
        }
    }
}
