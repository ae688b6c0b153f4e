//! The fault sweep, cuts between COMMIT and its answer, and what else breaks between a worker and its database.

use tenure_scenarios::chaos::{self, Chaos};
use tenure_scenarios::protocol::Registration;
use tenure_scenarios::scenario::{database, failover, horizon, kill, pooler, race, sweep, sweep_worker, unknown};
use tenure_scenarios::{Measure, Size, Stage, assert_held, on_stage, size};

async fn check(play: impl AsyncFnOnce(&Stage) -> Vec<Measure>) {
    on_stage(Size::from_env(), async |stage| assert_held(&play(stage).await)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_cut_at_any_message_has_done_all_or_nothing_and_can_repeat_it() {
    check(sweep::client_verbs).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_is_cut_at_any_message_of_its_life_loses_nothing() {
    check(sweep_worker::worker_comes_back).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_dies_at_any_message_of_its_life_loses_nothing() {
    check(sweep_worker::worker_dies).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flush_whose_answer_was_lost_is_told_apart_when_it_is_sent_again() {
    check(unknown::unknown_commits).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rescue_that_meets_the_end_of_a_job_changes_nothing_and_takes_the_stuck_ones() {
    check(race::rescue_meets_ends).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_jobs_of_a_killed_worker_run_although_its_row_is_gone() {
    check(kill::killed_and_unregistered).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_snapshot_makes_no_claim_dearer() {
    check(database::old_snapshot).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_that_take_turns_make_no_claim_dearer() {
    check(database::staggered_snapshots).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_snapshot_is_warned_of_once_a_minute_and_named_with_the_way_out() {
    check(horizon::old_snapshot_is_reported).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prepared_transactions_and_slots_that_hold_back_vacuum_are_named() {
    assert_held(&horizon::prepared_and_slot_are_reported(Size::from_env()).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wake_ups_do_not_slow_down_those_who_enqueue() {
    check(database::notifying).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_enqueue_commits_although_the_server_keeps_no_more_notifications() {
    assert_held(&database::full_notification_queue(Size::from_env()).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_worker_keeps_its_jobs_while_the_database_takes_no_writes() {
    assert_held(&database::read_only(Size::from_env()).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_and_clients_go_on_with_the_standby_that_became_the_primary() {
    assert_held(&failover::promoted_standby(Size::from_env()).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_run_on_over_a_silent_failover_that_is_shorter_than_the_grace() {
    assert_held(&failover::silent_primary_within_the_grace(Size::from_env()).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_dies_without_a_word_has_its_jobs_run_again() {
    assert_held(&failover::silent_primary(Size::from_env()).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_beyond_31_and_53_bits_are_numbers_like_others() {
    check(database::large_numbers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_is_back_when_its_databases_name_is_resolved_again() {
    check(database::unresolvable_name).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_is_back_when_its_role_may_log_in_again() {
    assert_held(&database::refused_logins(Size::from_env()).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_accounts_are_right_after_everything_broke_at_random() {
    let seed = fastrand::u64(1..1_000_000);
    let report = chaos::run(&Chaos::new(size::CHAOS.at(Size::from_env()), seed), |_| ()).await;
    let (history, faults) = (report.history.join("\n"), report.faults.join("\n"));
    assert!(report.faults.is_empty(), "seed {seed} did:\n{history}\n\nand this does not fit:\n{faults}");
    assert_held(&report.measures);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_verb_works_through_a_pooler_in_transaction_mode() {
    if !pooler::is_left_out() {
        check(pooler::functions_behind_a_pooler).await;
    }
}

/// Rescue writes the lost lease's id beside the end that it gives a job: a late report must not take that for its own.
#[tokio::test]
async fn a_late_worker_is_told_that_it_lost_its_lease_also_when_its_job_was_buried_or_cancelled() {
    on_stage(Size::Ci, async |stage| {
        for cancelled in [false, true] {
            let last = "select tenure.enqueue('act', '{}', p_max_attempts => 1)";
            let job: i64 = stage.one(last, &[]).await;
            let mut hand = stage.hand(&Registration::default()).await;
            let (jobs, _) = hand.claim(1).await.unwrap();
            if cancelled {
                stage.one::<String>("select tenure.cancel($1)", &[&job]).await;
            }
            stage.expire(hand.worker).await;
            assert_eq!(stage.rescue().await, 1);
            assert_eq!(stage.status(job).await, if cancelled { "cancelled" } else { "dead" });
            assert_eq!(hand.complete(&jobs).await.unwrap(), [(job, "lost".to_owned())]);
            assert_eq!(hand.bury(&jobs).await.unwrap(), ["lost"]);
        }
    })
    .await;
}
