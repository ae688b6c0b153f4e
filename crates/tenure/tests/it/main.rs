//! Tests of the whole: every one on a database of its own, on the server of `DATABASE_URL`.

mod attempts;
mod calls;
mod claim;
mod clients;
mod complete_in;
mod end;
mod enqueue;
mod faults;
mod fire;
mod given_up;
mod hosts;
mod inbox;
mod lifecycle;
mod limiting;
mod limits;
mod lost_answers;
mod maintenance;
mod migrate;
mod old_snapshots;
mod operate;
mod readme;
mod reports;
mod retain;
mod schema;
mod selections;
mod sleep;
mod stats;
mod worker;
mod workers;

/// Not a test: the tests start this program again as a worker process, and it arrives here.
#[test]
fn worker_process() {
    tenure_scenarios::process::run_if_asked();
}
