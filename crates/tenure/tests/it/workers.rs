//! Real worker processes: killed, frozen, cut off, behind a pooler; each test plays one scenario.

use std::time::Duration;

use tenure::testing::until_within;
use tenure_scenarios::scenario::{
    cost, duty, freeze, handling, kill, long, names, notify, outage, plans, poison, pooler, snooze,
};
use tenure_scenarios::{Act, Measure, Size, Stage, assert_held, on_stage};

async fn check(play: impl AsyncFnOnce(&Stage) -> Vec<Measure>) {
    on_stage(Size::from_env(), async |stage| assert_held(&play(stage).await)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn plans_made_on_empty_tables_stay_right_when_many_rows_have_come() {
    check(plans::plans_stay_right).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_jobs_of_a_killed_worker_start_again_within_three_seconds() {
    check(kill::killed_workers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_jobs_of_a_killed_worker_start_again_however_many_others_wait() {
    check(kill::killed_in_a_crowd).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_all_workers_are_killed_new_ones_run_their_jobs() {
    check(kill::all_workers_killed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_restarted_under_its_name_does_not_keep_the_jobs_of_its_predecessor() {
    check(kill::restarted_under_the_same_name).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_workers_jobs_run_elsewhere_and_it_is_told_that_it_lost_them() {
    check(freeze::frozen_worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_write_of_a_late_worker_is_refused_as_lease_lost() {
    check(freeze::late_writes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_late_worker_reports_the_other_workers_outcome_stands() {
    check(freeze::late_reports).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_frozen_between_completion_and_commit_blocks_no_rescue_and_has_no_effect() {
    check(freeze::frozen_before_commit).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_longer_than_its_lease_runs_once_waiting_or_burning_cpu() {
    check(long::longer_than_its_lease).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_worker_keeps_its_jobs_when_its_connections_are_terminated() {
    check(outage::terminated_connections).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_worker_keeps_its_jobs_when_the_database_restarts() {
    assert_held(&outage::restarted_database(Size::from_env()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_worker_keeps_its_jobs_when_a_backend_of_the_database_is_killed() {
    assert_held(&outage::crashed_backend(Size::from_env()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_are_back_within_seconds_after_restarts_cuts_and_stalls() {
    assert_held(&outage::outages(Size::from_env()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_in_the_middle_of_rescue_forgets_no_orphan() {
    assert_held(&outage::restarted_during_rescue(Size::from_env()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_is_stored_whatever_its_text() {
    check(handling::unstorable_failures).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn snoozes_use_no_attempt_and_the_first_failure_after_them_waits_as_the_first() {
    check(snooze::snoozes_before_failures).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_is_a_failed_attempt_and_its_slot_returns() {
    check(handling::panics).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_outlives_its_timeout_is_not_started_twice_at_a_time() {
    check(handling::timeouts).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_aborts_its_process_is_buried_and_its_neighbours_complete() {
    check(poison::among_slow_jobs).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_aborts_at_its_first_instruction_is_buried_too() {
    check(poison::at_the_first_instruction).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_aborts_among_many_that_were_claimed_ahead_is_buried_too() {
    check(poison::among_quick_jobs).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_overflows_its_stack_is_buried_too() {
    check(poison::by_its_stack).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_takes_all_memory_is_buried_too() {
    check(poison::by_its_memory).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_takes_more_than_its_container_may_have_is_buried_too() {
    check(poison::by_its_memory_group).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_fills_the_disk_is_buried_too() {
    check(poison::by_its_files).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn handlers_that_exhaust_their_pool_do_not_starve_the_worker() {
    check(handling::exhausted_pool).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_results_and_large_numbers_are_kept_as_they_are() {
    check(handling::odd_values).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn notifications_are_small_and_fail_no_enqueue() {
    check(notify::small_wake_ups).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_a_kind_that_no_worker_knows_wait_unharmed() {
    check(duty::unknown_kinds).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_worker_ends_what_is_short_and_gives_back_the_rest() {
    check(duty::shutdown).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_commit_with_a_low_id_is_found_within_a_second() {
    check(duty::late_commit).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rest_of_a_cut_bundle_is_claimed_when_its_worker_stops() {
    check(duty::cut_bundle).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_claim_was_answered_into_a_cut_connection_runs_soon() {
    check(duty::lost_answer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_are_taken_literally_or_refused() {
    check(names::nasty_names).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_worker_costs_little() {
    check(cost::idle_workers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_jobs_are_enqueued_by_arrays_and_by_copy() {
    check(cost::bulk_enqueue).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_workers_run_behind_a_pooler_in_transaction_mode() {
    if !pooler::is_left_out() {
        check(pooler::behind_a_pooler).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_row_somebody_holds_works_on_under_a_new_registration() {
    on_stage(Size::Ci, async |stage| {
        // Longer than three times the wait for a lock, so that each heartbeat is refused, and not given up.
        let lease = Duration::from_secs(9);
        let worker = stage.start(stage.worker("a").lease(lease)).await;
        let mut holder = stage.db.sql().await;
        let held = holder.transaction().await.unwrap();
        held.query("select from tenure.worker for update", &[]).await.unwrap();
        until_within(lease + Duration::from_secs(6), "it has registered anew", async || {
            (stage.count("select count(*) from tenure.worker", &[]).await == 2).then_some(())
        })
        .await;
        let job = stage.enqueue(&Act::Sleep { ms: 1 }).await;
        stage.completed(1, Duration::from_secs(10)).await;
        assert_eq!(stage.status(job).await, "completed");
        held.rollback().await.unwrap();
        worker.shut_down().await;
    })
    .await;
}
