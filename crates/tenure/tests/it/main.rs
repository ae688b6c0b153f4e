//! Tests of the whole: every one on a database of its own, on the server of `DATABASE_URL`.

mod attempts;
mod backfill;
mod bounded;
mod calls;
mod claim;
mod clients;
mod complete_in;
mod cron;
mod declared;
mod end;
mod enqueue;
mod failing;
mod faults;
mod fire;
mod firing;
mod full_queues;
mod given_up;
mod hosts;
mod inbox;
mod lifecycle;
mod limiting;
mod limits;
mod limits_kept;
mod limits_progress;
mod limits_raced;
mod lost_answers;
mod maintenance;
mod migrate;
mod old_snapshots;
mod operate;
mod punctual;
mod readme;
mod reports;
mod reschedule;
mod retain;
mod roles;
mod schedules;
mod schema;
mod selections;
mod sleep;
mod stats;
mod times;
mod troubles;
mod worker;
mod workers;

/// Not a test: the tests start this program again as a worker process, and it arrives here.
#[test]
fn worker_process() {
    tenure_scenarios::process::run_if_asked();
}
