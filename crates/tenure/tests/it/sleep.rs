//! What a worker says of its sleep, and what becomes of it when the worker cannot take it back.

use tenure_scenarios::protocol::{Hand, Registration};
use tenure_scenarios::{Size, Stage, on_stage};

use crate::old_snapshots::buffers;

const QUEUES: i64 = 2;

/// It says that it sleeps.
async fn sleep(stage: &Stage, hand: &Hand) {
    let sleep = "select tenure.sleep($1, $2::text::uuid, '{default,mail}')";
    stage.execute(sleep, &[&hand.worker, &hand.token]).await;
}

/// From now on it is so many minutes later for those who sleep.
async fn pass_minutes(stage: &Stage, minutes: u32) {
    let later = format!(
        "create or replace function tenure.minute() returns bigint language sql stable as
            $$ select floor(extract(epoch from clock_timestamp()) / 60)::bigint + {minutes} $$"
    );
    stage.sql.batch_execute(&later).await.unwrap();
}

#[tokio::test]
async fn what_a_worker_said_before_it_was_cut_off_for_minutes_goes_with_the_net() {
    on_stage(Size::Ci, async |stage| {
        let (away, here) = (stage.hand(&Registration::default()).await, stage.hand(&Registration::default()).await);
        let said = async |hand: &Hand| {
            stage.count("select count(*) from tenure.sleeper where worker_id = $1", &[&hand.worker]).await
        };
        // A second outage is as the first one.
        for minutes in [0, 20] {
            pass_minutes(stage, minutes).await;
            sleep(stage, &away).await;
            sleep(stage, &here).await;
            stage.maintain().await;
            assert_eq!((said(&away).await, said(&here).await), (QUEUES, QUEUES), "what counts is left alone");
            pass_minutes(stage, minutes + 10).await;
            sleep(stage, &here).await;
            assert_eq!((said(&away).await, said(&here).await), (QUEUES, 2 * QUEUES));
            stage.maintain().await;
            assert_eq!((said(&away).await, said(&here).await), (0, QUEUES));
        }
    })
    .await;
}

#[tokio::test]
async fn naps_behind_an_old_snapshot_are_read_once_by_the_net() {
    on_stage(Size::Ci, async |stage| {
        let hand = stage.hand(&Registration::default()).await;
        let forgotten = stage.db.sql().await;
        forgotten
            .batch_execute("begin isolation level repeatable read; select count(*) from tenure.sleeper")
            .await
            .unwrap();
        let naps = format!(
            "do $$ begin for n in 1 .. 2500 loop
               perform tenure.sleep({worker}, '{token}', '{{default}}');
               commit;
               perform tenure.wake({worker}, '{token}');
               commit;
             end loop; end $$",
            worker = hand.worker,
            token = hand.token
        );
        stage.sql.batch_execute(&naps).await.unwrap();
        pass_minutes(stage, 10).await;
        let net = "select tenure.net('sleepers')";
        // The first call after a function has changed looks much up.
        stage.execute(net, &[]).await;
        stage.execute("update tenure.duty set place = 0 where name = 'sleepers'", &[]).await;
        let (first, second) = (buffers(&stage.sql, net).await, buffers(&stage.sql, net).await);
        assert!(first > second + 10, "{first} buffers, then {second}");
        forgotten.batch_execute("commit").await.unwrap();
    })
    .await;
}
