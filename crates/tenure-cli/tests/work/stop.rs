//! How a worker stops, and what becomes of the programs that it runs.

use std::fs;

use tenure::lifecycle::State;
use tenure::testing::{until, with_database};
use tenure::{Enqueue, RawJson};

use super::{Folder, SECOND, WAITING, Work, drain, enqueue, job, until_gone};

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_lets_running_programs_end_and_gives_back_what_has_not_started() {
    with_database(async |db| {
        let (client, folder) = (db.client().await, Folder::new(db));
        let (first, second) = (enqueue(&client, "wait").await, enqueue(&client, "wait").await);
        let work = Work::start(db.url(), &folder, &["--queue", "default=1", "--exec", WAITING]);
        folder.process("shell").await;
        work.signal("-TERM");
        work.until_said("stopping, running jobs may end").await;
        fs::write(folder.path("go"), "").expect("a file");
        let end = work.end().await;
        assert_eq!(end.code, Some(0), "{end:?}");
        let (done, left) = (job(&client, first).await, job(&client, second).await);
        assert_eq!((done.status, left.status, left.attempt), (State::Completed, State::Available, 0));
        assert_eq!(client.workers().await.expect("an answer").len(), 0, "it signed off");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_grace_is_over_programs_get_sigterm_and_their_jobs_go_back_unharmed() {
    with_database(async |db| {
        let (client, folder) = (db.client().await, Folder::new(db));
        let (asked, deaf) = (enqueue(&client, "asked").await, enqueue(&client, "deaf").await);
        let asks =
            "asked=trap 'echo asked >$NOTES/told; exit 1' TERM; echo $$ >$NOTES/asked; while :; do sleep 0.05; done";
        let ignores = "deaf=trap '' TERM; echo $$ >$NOTES/deaf; while :; do sleep 0.05; done";
        let args = ["--queue", "default=2", "--grace", "5s", "--exec", asks, "--exec", ignores];
        let work = Work::start(db.url(), &folder, &args);
        let programs = [folder.process("asked").await, folder.process("deaf").await];
        work.signal("-TERM");
        let end = work.end().await;
        assert_eq!(end.code, Some(0), "{end:?}");
        assert!(folder.path("told").exists(), "SIGTERM came before SIGKILL");
        for (id, program) in [asked, deaf].into_iter().zip(programs) {
            until_gone(program).await;
            let seen = job(&client, id).await;
            assert_eq!((seen.status, seen.attempt), (State::Available, 0), "{}", seen.kind);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_behind_a_shell_has_its_time_to_clean_up_when_it_is_cancelled() {
    with_database(async |db| {
        let (client, folder) = (db.client().await, Folder::new(db));
        let id = enqueue(&client, "tidy").await;
        // The shell that the worker starts waits for another one, and goes at SIGTERM.
        let script =
            "trap 'sleep 0.5; echo >$NOTES/tidied; exit 1' TERM; echo $$ >$NOTES/tidy; while :; do sleep 0.05; done";
        fs::write(folder.path("tidy.sh"), script).expect("a file");
        let work = Work::start(db.url(), &folder, &["--exec", "tidy=sh $NOTES/tidy.sh | cat; echo"]);
        let program = folder.process("tidy").await;
        client.cancel(id).await.expect("asked");
        until_gone(program).await;
        assert!(folder.path("tidied").exists(), "it was killed before it had cleaned up");
        work.signal("-TERM");
        assert_eq!(work.end().await.code, Some(0));
        assert_eq!(job(&client, id).await.status, State::Cancelled);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_stops_at_once() {
    with_database(async |db| {
        let (client, folder) = (db.client().await, Folder::new(db));
        let id = enqueue(&client, "wait").await;
        let work = Work::start(db.url(), &folder, &["--grace", "1h", "--exec", WAITING]);
        let program = folder.process("shell").await;
        work.signal("-TERM");
        work.until_said("stopping, running jobs may end").await;
        work.signal("-INT");
        let end = work.end().await;
        assert_eq!(end.code, Some(0), "{end:?}");
        assert!(end.said.contains("stopping at once") && end.said.contains("1 given back"), "{}", end.said);
        until_gone(program).await;
        assert_eq!(job(&client, id).await.status, State::Available);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_jobs_program_is_asked_to_stop() {
    with_database(async |db| {
        let (client, folder) = (db.client().await, Folder::new(db));
        let id = enqueue(&client, "asked").await;
        let program = "asked=trap 'exit 1' TERM; echo $$ >$NOTES/shell; while :; do sleep 0.05; done";
        let work = Work::start(db.url(), &folder, &["--exec", program]);
        let process = folder.process("shell").await;
        client.cancel(id).await.expect("a request");
        until("the cancel", async || job(&client, id).await.status == State::Cancelled).await;
        until_gone(process).await;
        work.signal("-TERM");
        assert!(work.end().await.said.contains("1 cancelled"));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_does_not_wait_for_what_is_due_later() {
    with_database(async |db| {
        let (client, folder) = (db.client().await, Folder::new(db));
        let (now, payload) = (enqueue(&client, "k").await, RawJson::parse("1").expect("JSON"));
        let later = client.enqueue(Enqueue::raw("k", payload).delay(3_600 * SECOND)).await.expect("enqueued");
        let end = drain(db, &folder, &["k=true"]).await;
        assert_eq!(end.code, Some(0), "{end:?}");
        assert!(end.said.contains("1 completed, 0 failed"), "{}", end.said);
        assert_eq!(
            (job(&client, now).await.status, job(&client, later).await.status),
            (State::Completed, State::Scheduled)
        );
    })
    .await;
}
