//! The table of verbs: everything that a [`Client`](crate::Client) can be asked for.
//!
//! Tests hold it complete: every public call of a client is here, every command of the command line leads to a verb, and what
//! sweeps over all verbs matches on [`Verb`] without a wildcard, so that a new one cannot be left out.

/// What a verb leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing: it only looks, or waits.
    None,
    /// All of it or nothing, in one transaction.
    Whole,
    /// Part of it after a failure half way: it works in several transactions, and asked again it does the rest.
    Steps,
}

macro_rules! verbs {
    ($($verb:ident $name:literal $effect:ident [$($command:literal),*];)*) => {
        /// A call of [`Client`](crate::Client), see [`name`](Verb::name).
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "each is documented at the call of its name")]
        pub enum Verb {
            $($verb,)*
        }

        impl Verb {
            /// All of them.
            pub const ALL: &[Verb] = &[$(Verb::$verb),*];

            /// The name of the call.
            pub fn name(self) -> &'static str {
                match self {
                    $(Verb::$verb => $name,)*
                }
            }

            /// What it leaves behind.
            pub fn effect(self) -> Effect {
                match self {
                    $(Verb::$verb => Effect::$effect,)*
                }
            }

            /// The commands of the command line that use it, for example `queue list`; none: only programs have a use for it.
            pub fn commands(self) -> &'static [&'static str] {
                match self {
                    $(Verb::$verb => &[$($command),*],)*
                }
            }
        }
    };
}

verbs! {
    Migrate "migrate" Whole ["migrate"];
    Enqueue "enqueue" Whole ["enqueue"];
    EnqueueIn "enqueue_in" Whole [];
    EnqueueMany "enqueue_many" Whole [];
    EnqueueManyIn "enqueue_many_in" Whole [];
    EnqueueCopy "enqueue_copy" Whole [];
    TryEnqueueCopy "try_enqueue_copy" Whole ["enqueue"];
    EnqueueCopyIn "enqueue_copy_in" Whole [];
    Get "get" None ["job show"];
    List "list" None ["job list"];
    AttemptErrors "attempt_errors" None ["job show", "dead show"];
    WaitsFor "waits_for" None ["job show"];
    Wait "wait" None [];
    Cancel "cancel" Whole ["job cancel"];
    CountUnfinished "count_unfinished" None ["job cancel"];
    CancelMany "cancel_many" Steps ["job cancel"];
    Requeue "requeue" Whole ["dead requeue"];
    Reschedule "reschedule" Whole ["job reschedule"];
    RunNow "run_now" Whole ["job run"];
    DeadLetters "dead_letters" None ["dead list"];
    DeadGroups "dead_groups" None ["dead list"];
    CountDead "count_dead" None ["dead discard"];
    LineOf "line_of" None ["dead show"];
    DeadLetter "dead_letter" None ["dead show"];
    RequeueDead "requeue_dead" Steps ["dead requeue"];
    Discard "discard" Whole ["dead discard"];
    DiscardDead "discard_dead" Steps ["dead discard"];
    Queues "queues" None ["queue list", "status"];
    Pause "pause" Whole ["queue pause", "queue drain"];
    Resume "resume" Whole ["queue resume"];
    PauseKind "pause_kind" Whole ["queue pause"];
    ResumeKind "resume_kind" Whole ["queue resume"];
    PausedKinds "paused_kinds" None ["queue list", "status"];
    Drained "drained" None ["queue drain"];
    SetKeep "set_keep" Whole ["queue set"];
    KeepDefaults "keep_defaults" None ["queue set"];
    Prune "prune" Steps ["prune"];
    PrunePreview "prune_preview" None ["prune"];
    Settings "settings" None ["setting list", "setting set", "setting unset"];
    SetSetting "set_setting" Whole ["setting set", "setting unset"];
    AddSchedule "add_schedule" Whole ["schedule add"];
    EditSchedule "edit_schedule" Whole ["schedule edit"];
    PauseSchedule "pause_schedule" Whole ["schedule pause"];
    ResumeSchedule "resume_schedule" Whole ["schedule resume"];
    RemoveSchedule "remove_schedule" Whole ["schedule remove"];
    RunSchedule "run_schedule" Whole ["schedule run"];
    Schedules "schedules" None ["schedule list", "schedule audit"];
    Schedule "schedule" None ["schedule show", "schedule edit", "schedule next"];
    ScheduleRuns "schedule_runs" None ["schedule show"];
    AuditSchedule "audit_schedule" None ["schedule audit"];
    TroubledSchedules "troubled_schedules" None ["status"];
    AddBackfill "add_backfill" Whole ["schedule backfill"];
    BackfillPreview "backfill_preview" None ["schedule backfill"];
    Backfills "backfills" None ["backfill list"];
    Backfill "backfill" None ["backfill show", "schedule backfill"];
    CancelBackfill "cancel_backfill" Whole ["backfill cancel"];
    AddSchedules "add_schedules" Whole ["schedule import"];
    SyncSchedules "sync_schedules" Whole [];
    SyncSchedulesAsShown "sync_schedules_as_shown" Whole ["schedule sync"];
    SyncSchedulesPreview "sync_schedules_preview" None ["schedule sync"];
    CronJobs "cron_jobs" None ["schedule import"];
    MoveCronJobs "move_cron_jobs" Whole ["schedule import"];
    CheckPgCron "check_pg_cron" None ["schedule check-pg-cron"];
    SetLimit "set_limit" Whole ["limit set"];
    RemoveLimit "remove_limit" Whole ["limit remove"];
    Limits "limits" None ["limit list", "limit show", "limit set"];
    SetQueueBound "set_queue_bound" Whole ["queue bound"];
    RemoveQueueBound "remove_queue_bound" Whole ["queue unbound"];
    QueueBounds "queue_bounds" None ["queue bounds"];
    UnhandledKinds "unhandled_kinds" None ["status"];
    Workers "workers" None ["worker list", "status"];
    DrainWorker "drain_worker" Whole ["worker drain", "worker resume"];
    WorkerDrained "worker_drained" None ["worker drain"];
    Server "server" None ["status"];
    Now "now" None ["queue list", "job list", "worker list", "dead list"];
    VacuumHorizon "vacuum_horizon" None ["status"];
    CheckPlans "check_plans" None ["doctor"];
    Stats "stats" None ["stats"];
    WorkerStats "worker_stats" None ["stats"];
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::Verb;

    /// Makes a client and is asked of none.
    const NO_VERB: &str = "connect";

    /// The public calls of all files below a folder.
    fn read_calls(folder: &Path, calls: &mut BTreeSet<String>) {
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            if path.is_dir() {
                read_calls(&path, calls);
                continue;
            }
            let text = std::fs::read_to_string(path).unwrap();
            let calls_of_file = text.lines().filter_map(|line| line.strip_prefix("    pub async fn "));
            calls.extend(calls_of_file.filter_map(|call| Some(call.split(['(', '<']).next()?.to_owned())));
        }
    }

    #[test]
    fn every_call_of_a_client_is_in_the_table() {
        let mut calls = BTreeSet::new();
        read_calls(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/client"), &mut calls);
        assert!(calls.remove(NO_VERB));
        let table: BTreeSet<String> = Verb::ALL.iter().map(|verb| verb.name().to_owned()).collect();
        assert_eq!(calls, table);
        assert_eq!(table.len(), Verb::ALL.len(), "a name is there twice");
    }
}
