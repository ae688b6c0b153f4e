//! The verbs of those who operate a database: the calls of the sweep.

use tenure::lifecycle::State;
use tenure::verbs::Verb;
use tenure::{Client, DeadFilter, Error, JobId, Limit, QueueBound, RequeuePace, StatsFilter, WhenFull};

use super::sweep_verbs::{Case, KIND, MANY, PATIENCE, Scene};

pub(super) async fn call(client: &Client, case: Case, scene: &Scene) -> Result<(), Error> {
    let (id, queue) = (JobId::from(scene.job), scene.queue.as_str());
    let dead = DeadFilter::new().queue(queue);
    let worker = scene.hand.as_ref().map_or(0, |hand| hand.worker);
    match case.verb {
        Verb::DeadLetters => client.dead_letters(&dead, None, None).await.map(|dead| assert_eq!(dead.len(), 3)),
        Verb::DeadGroups => client.dead_groups(&dead, None).await.map(|groups| assert_eq!(groups[0].count, 3)),
        Verb::CountDead => client.count_dead(&dead).await.map(|count| assert_eq!(count, 3)),
        Verb::LineOf => client.line_of(id).await.map(|line| assert_eq!(line[0].status, Some(State::Dead))),
        Verb::DeadLetter => client.dead_letter(id).await.map(|dead| assert!(dead.is_some())),
        Verb::RequeueDead => client.requeue_dead(&dead, RequeuePace::AtOnce, |_| ()).await.map(drop),
        Verb::Discard => client.discard(id).await.map(drop),
        Verb::DiscardDead => client.discard_dead(&dead, |_| ()).await.map(drop),
        Verb::Queues => client.queues().await.map(|queues| assert!(queues.iter().any(|q| q.queue == queue))),
        Verb::Pause => client.pause(queue, None, Some("swept")).await.map(drop),
        Verb::Resume => client.resume(queue).await.map(drop),
        Verb::PauseKind => client.pause_kind(KIND, Some(queue), None, Some("swept")).await.map(drop),
        Verb::ResumeKind => client.resume_kind(KIND, Some(queue)).await.map(drop),
        Verb::PausedKinds => {
            let kinds = client.paused_kinds().await;
            kinds.map(|kinds| assert!(kinds.iter().any(|kind| kind.queue.as_deref() == Some(queue))))
        }
        Verb::Drained => client.drained(queue, Some(PATIENCE)).await.map(|running| assert_eq!(running, 0)),
        Verb::SetKeep => client.set_keep(Some(queue), State::Dead, Some(PATIENCE)).await,
        Verb::KeepDefaults => client.keep_defaults().await.map(|keep| assert!(keep.completed > PATIENCE)),
        Verb::SetLimit => client.set_limit(queue, Limit::new().concurrency(3)).await.map(drop),
        Verb::RemoveLimit => client.remove_limit(queue).await.map(drop),
        Verb::Limits => client.limits(Some(queue), 10).await.map(|limits| assert_eq!(limits.len(), 1)),
        Verb::SetQueueBound => client.set_queue_bound(queue, QueueBound::new(WhenFull::Reject).jobs(3)).await.map(drop),
        Verb::RemoveQueueBound => client.remove_queue_bound(queue).await.map(drop),
        Verb::QueueBounds => {
            client.queue_bounds().await.map(|bounds| assert!(bounds.iter().any(|bound| bound.queue == queue)))
        }
        Verb::Settings => client.settings().await.map(|settings| assert!(settings.len() > 1)),
        Verb::SetSetting => client.set_setting("snapshot_warn_ms", i64::try_from(PATIENCE.as_millis()).ok()).await,
        Verb::Prune => client.prune(|_| ()).await.map(drop),
        Verb::PrunePreview => {
            let due = client.prune_preview().await;
            due.map(|due| assert!(due.iter().any(|due| due.queue == "default" && due.outcome == State::Completed)))
        }
        Verb::UnhandledKinds => {
            client.unhandled_kinds().await.map(|kinds| assert!(kinds.iter().any(|kind| kind.queue == queue)))
        }
        Verb::Workers => client.workers().await.map(drop),
        Verb::DrainWorker => client.drain_worker(worker, true).await.map(|found| assert!(found)),
        Verb::WorkerDrained => client.worker_drained(worker, Some(PATIENCE)).await.map(|left| assert_eq!(left, 0)),
        Verb::Server => client.server().await.map(drop),
        Verb::Now => client.now().await.map(drop),
        Verb::VacuumHorizon => client.vacuum_horizon().await.map(drop),
        Verb::CheckPlans => client.check_plans().await.map(drop),
        Verb::Stats => {
            let stats = client.stats(&StatsFilter::new().queue(queue)).await;
            stats.map(|stats| assert_eq!(stats.rows[0].started, MANY as u64))
        }
        Verb::WorkerStats => client.worker_stats(PATIENCE).await.map(|workers| assert!(!workers.is_empty())),
        verb => unreachable!("{verb:?} is not of these"),
    }
}
