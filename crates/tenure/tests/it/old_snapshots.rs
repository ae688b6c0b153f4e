//! What an old snapshot, which keeps every dead row in place, makes no dearer.

use tenure::testing::until;
use tenure_scenarios::protocol::Registration;
use tenure_scenarios::{Size, on_stage};

/// Buffers that a statement touches.
pub(crate) async fn buffers(sql: &tokio_postgres::Client, statement: &str) -> i64 {
    let explain = format!("explain (analyze, buffers, timing off) {statement}");
    let rows = sql.query(&explain, &[]).await.unwrap_or_else(|e| panic!("{statement}: {e:?}"));
    let line = rows.iter().map(|row| row.get::<_, String>(0)).find(|line| line.contains("Buffers: "));
    let line = line.expect("a line on buffers");
    line.split(' ').filter_map(|word| word.split_once('=')).map(|(_, n)| n.parse::<i64>().unwrap_or_default()).sum()
}

#[tokio::test]
async fn turns_and_naps_behind_an_old_snapshot_make_no_claim_no_enqueue_and_no_turn_dearer() {
    on_stage(Size::Ci, async |stage| {
        const TIMES: usize = 2_000;
        // However long a busy machine takes for them.
        let hand = stage.hand(&Registration { lease_ms: 3_600_000, ..Registration::default() }).await;
        let (claim, enqueue) = (hand.claim_text(1), "select tenure.enqueue('other', '{}')");
        let turn = "select tenure.set_turn('tick', clock_timestamp())";
        let forgotten = stage.db.sql().await;
        forgotten
            .batch_execute("begin isolation level repeatable read; select count(*) from tenure.duty")
            .await
            .unwrap();
        let cost = async || {
            // The first calls of a session, and those after a function has changed, look much up.
            for statement in [&*claim, enqueue, turn, &claim, enqueue, turn] {
                stage.sql.query(statement, &[]).await.unwrap();
            }
            // The least of some: an index page that is split, or a catalog read anew, costs one call buffers and not the next.
            let mut least = [i64::MAX; 3];
            for _ in 0..4 {
                for (n, statement) in [&*claim, enqueue, turn].into_iter().enumerate() {
                    least[n] = least[n].min(buffers(&stage.sql, statement).await);
                }
            }
            least
        };
        let before = cost().await;
        let much = format!(
            "do $$ begin for n in 1 .. {TIMES} loop
               perform tenure.set_turn('tick', clock_timestamp());
               perform tenure.tick({worker}, true);
               commit;
               perform tenure.sleep({worker}, '{token}', '{{default}}');
               commit;
               perform tenure.wake({worker}, '{token}');
               commit;
             end loop; end $$",
            worker = hand.worker,
            token = hand.token
        );
        stage.sql.batch_execute(&much).await.unwrap();
        // Turns are a second apart, and the last one is the latest: those of this loop are noted for the second that comes.
        let ahead = "select count(*) from tenure.duty where name = 'tick' and next_at > clock_timestamp()";
        until("the turns that are noted to be over", async || stage.count(ahead, &[]).await == 0).await;
        // What went to sleep two minutes ago is not looked at any more.
        stage
            .sql
            .batch_execute(
                "create or replace function tenure.minute() returns bigint language sql stable as
            $$ select floor(extract(epoch from clock_timestamp()) / 60)::bigint + 2 $$",
            )
            .await
            .unwrap();
        let after = cost().await;
        // A turn goes down the index of duties three times; each version more that it walks through would cost it a buffer.
        let allowed = [5, 5, 10];
        let dearer = (0..3).any(|n| after[n] > before[n] + allowed[n]);
        assert!(!dearer, "claim, enqueue, turn: {before:?}, then {after:?}");
        forgotten.batch_execute("commit").await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn rows_that_were_copied_behind_an_old_snapshot_are_not_read_again_by_the_net() {
    on_stage(Size::Ci, async |stage| {
        let forgotten = stage.db.sql().await;
        forgotten.batch_execute("begin isolation level repeatable read; select count(*) from tenure.inbox").await.unwrap();
        let copied = "insert into tenure.inbox (kind, payload) select 'act', to_json(repeat('x', 500)) from generate_series(1, 5000)";
        for _ in 0..4 {
            stage.execute(copied, &[]).await;
        }
        assert_eq!(stage.count("select count(*) from tenure.job", &[]).await, 20_000);
        let net = "select tenure.net('inbox')";
        // Once all transactions of the server have ended that were open at the copies.
        until("the net reads none of them", async || {
            let read = buffers(&stage.sql, net).await;
            if read < 50 { Ok(()) } else { Err(format!("{read} buffers")) }
        })
        .await;
        // What is left behind from now on is found all the same.
        stage.execute("set session_replication_role = replica", &[]).await;
        stage.execute("insert into tenure.inbox (kind, payload) values ('act', '1')", &[]).await;
        stage.execute(net, &[]).await;
        assert_eq!(stage.count("select count(*) from tenure.job", &[]).await, 20_001);
        forgotten.batch_execute("commit").await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn firing_looks_up_no_version_of_a_schedule_that_only_an_old_snapshot_sees() {
    on_stage(Size::Ci, async |stage| {
        const TIMES: i64 = 400;
        let add = "select tenure.add_schedule(n, '@every 1s', 'UTC', 'act', '{}', p_overlap => 'skip') from unnest('{one,two,three}'::text[]) n";
        stage.sql.query(add, &[]).await.unwrap();
        let forgotten = stage.db.sql().await;
        let look = "begin isolation level repeatable read; select count(*) from tenure.schedule";
        forgotten.batch_execute(look).await.unwrap();
        // What a worker would decide: nothing has come, and the next time is another one, too far ahead for whoever asks when the next one is.
        // One schedule alone goes its own way, two go together.
        let plans = "select json_agg(json_build_object('id', s.id, 'version', s.version, 'look_us', tenure.to_us(s.look_at), 'was_us', tenure.to_us(s.next_at),
                'fire_us', '{}'::bigint[], 'next_us', tenure.to_us(clock_timestamp() + interval '1 hour'), 'more', false))::text from tenure.schedule s where s.name = any($1)";
        let cost = async |names: &[&str]| {
            let mut least = i64::MAX;
            for _ in 0..4 {
                let plans: String = stage.one(plans, &[&names]).await;
                least = least.min(buffers(&stage.sql, &format!("select tenure.fire('{plans}')")).await);
            }
            least
        };
        let next = async |names: &[&str]| {
            let next = "select min(next_at) from tenure.schedule where name = any($1)";
            stage.one::<std::time::SystemTime>(next, &[&names]).await
        };
        for names in [&["one"][..], &["two", "three"]] {
            let (before, changed) = (cost(names).await, next(names).await);
            let turns = format!(
                "do $$ declare v_plans json; begin for n in 1 .. {TIMES} loop
                   v_plans := ({}); perform tenure.fire(v_plans); commit;
                 end loop; end $$",
                plans.replace("::text from", "from").replace("$1", &format!("'{{{}}}'::text[]", names.join(",")))
            );
            stage.sql.batch_execute(&turns).await.unwrap();
            assert!(next(names).await > changed, "nothing was changed");
            let grown = cost(names).await - before;
            // Only the two unique indexes, of ids and of names, look at them, once each, when a version is added.
            let allowed = (2 * TIMES + 50) * names.len() as i64;
            assert!(grown <= allowed, "{names:?}: {before}, then {grown} more");
        }
        forgotten.batch_execute("commit").await.unwrap();
    })
    .await;
}
