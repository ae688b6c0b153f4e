//! The fault sweep, cuts between COMMIT and its answer, and what else breaks between a worker and its database.

use tenure_scenarios::scenario::{sweep, sweep_worker};
use tenure_scenarios::{Measure, Size, Stage, assert_held, on_stage};

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
