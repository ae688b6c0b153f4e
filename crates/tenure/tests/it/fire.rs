//! Claims under fire.

use tenure_scenarios::scenario::fire::claims_under_fire;
use tenure_scenarios::{Size, assert_held, on_stage};

async fn check(want: i32) {
    on_stage(Size::from_env(), async |stage| assert_held(&claims_under_fire(stage, want).await)).await;
}

#[tokio::test]
async fn claims_of_7_under_fire_lose_nothing_and_end_nothing_twice() {
    check(7).await;
}

#[tokio::test]
async fn claims_of_17_under_fire_lose_nothing_and_end_nothing_twice() {
    check(17).await;
}

#[tokio::test]
async fn claims_of_100_under_fire_lose_nothing_and_end_nothing_twice() {
    check(100).await;
}
