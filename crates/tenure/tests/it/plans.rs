//! Plans.

use tenure_scenarios::scenario::plans::plans_stay_right;
use tenure_scenarios::{Size, assert_held, on_stage};

#[tokio::test]
async fn plans_made_on_empty_tables_stay_right_when_many_rows_have_come() {
    on_stage(Size::from_env(), async |stage| assert_held(&plans_stay_right(stage).await)).await;
}
