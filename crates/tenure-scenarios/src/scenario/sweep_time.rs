//! The verbs about time: the calls of the sweep.

use tenure::lifecycle::State;
use tenure::verbs::Verb;
use tenure::{Backfill, Client, Error, JobId, Moved, Rule, Schedule};

use super::sweep_verbs::{Case, HOUR, Scene, job};

pub(super) async fn call(client: &Client, case: Case, scene: &Scene) -> Result<(), Error> {
    let (id, queue) = (JobId::from(scene.job), scene.queue.as_str());
    match case.verb {
        Verb::Reschedule => {
            client.reschedule(id, Moved::By(HOUR)).await.map(|state| assert_eq!(state, State::Scheduled))
        }
        Verb::RunNow => client.run_now(id).await.map(|state| assert_eq!(state, State::Available)),
        Verb::AddSchedule => client.add_schedule(&schedule(scene, "@yearly")).await,
        Verb::EditSchedule => client.edit_schedule(1, &schedule(scene, "@monthly")).await.map(drop),
        Verb::PauseSchedule => client.pause_schedule(queue, None, Some("swept")).await.map(drop),
        Verb::ResumeSchedule => client.resume_schedule(queue).await.map(drop),
        Verb::RemoveSchedule => client.remove_schedule(queue).await,
        Verb::RunSchedule => client.run_schedule(queue).await.map(drop),
        Verb::Schedules => {
            client.schedules(None, None).await.map(|found| assert!(found.iter().any(|found| found.name == queue)))
        }
        Verb::Schedule => client.schedule(queue).await.map(|found| assert_eq!(found.expect("it is there").name, queue)),
        Verb::ScheduleRuns => client.schedule_runs(queue, None, None).await.map(|runs| assert_eq!(runs.len(), 1)),
        Verb::AuditSchedule => {
            client.audit_schedule(queue, new_year(2001), None).await.map(|audit| assert_eq!(audit.schedule, queue))
        }
        Verb::TroubledSchedules => {
            let troubled = client.troubled_schedules(Some(1_000)).await;
            troubled.map(|troubled| assert!(troubled.schedules.iter().any(|schedule| schedule.name == queue)))
        }
        Verb::AddBackfill => client.add_backfill(&backfill(scene), Some("swept")).await.map(drop),
        Verb::BackfillPreview => client
            .backfill_preview(&backfill(scene))
            .await
            .map(|preview| assert_eq!((preview.times, preview.ran), (2, 0))),
        Verb::Backfills => client.backfills(Some(queue), None, None).await.map(|found| assert_eq!(found.len(), 1)),
        Verb::Backfill => {
            client.backfill(scene.job).await.map(|found| assert_eq!(found.expect("it is there").times, 3))
        }
        Verb::CancelBackfill => client.cancel_backfill(scene.job, Some("swept")).await.map(drop),
        verb => unreachable!("{verb:?} is not about time"),
    }
}

fn schedule(scene: &Scene, rule: &str) -> Schedule {
    Schedule::new(&scene.queue, Rule::new(rule, "UTC").expect("a rule"), job(scene))
}

/// Two times of a yearly schedule.
fn backfill(scene: &Scene) -> Backfill {
    Backfill::new(&scene.queue, new_year(2001)).until(new_year(2002))
}

fn new_year(year: u16) -> std::time::SystemTime {
    tenure::instant::read(&format!("{year}-01-01T00:00Z"), None).expect("an instant").at
}
