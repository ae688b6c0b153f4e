//! The product test: every event on every state through the real SQL, compared with the table in `model/lifecycle.rs`.

use tenure::lifecycle::{Attempt, Event, Next, State, chart, next, next_if_cancelled};
use tenure_scenarios::protocol::{Hand, Leased, REFUSED, Registration};
use tenure_scenarios::{Size, Stage, on_stage};

/// A job that was put into a state, and what its worker would say about it.
struct Placed {
    hand: Hand,
    job: Leased,
}

#[tokio::test]
async fn every_event_does_to_every_state_what_the_table_of_a_jobs_life_says() {
    on_stage(Size::Ci, async |stage| {
        let mut wrong = Vec::new();
        for state in State::ALL {
            for event in Event::ALL {
                if let Err(e) = check(stage, state, event).await {
                    wrong.push(format!("{state} / {}: {e}", event.as_str()));
                }
            }
        }
        assert!(wrong.is_empty(), "against the table:\n  {}", wrong.join("\n  "));
    })
    .await;
}

#[tokio::test]
async fn a_running_job_that_somebody_wants_cancelled_never_waits_again() {
    on_stage(Size::Ci, async |stage| {
        let mut wrong = Vec::new();
        for event in Event::ALL {
            let mut placed = place(stage, State::Running, event).await;
            let answer: String = stage.one("select tenure.cancel($1)", &[&placed.job.job]).await;
            assert_eq!(answer, "requested");
            if let Err(e) = compare(stage, &mut placed, event, next_if_cancelled(event)).await {
                wrong.push(format!("{}: {e}", event.as_str()));
            }
        }
        assert!(wrong.is_empty(), "against the table:\n  {}", wrong.join("\n  "));
    })
    .await;
}

#[test]
fn the_guide_shows_the_table_of_a_jobs_life() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/job.md");
    let guide = std::fs::read_to_string(path).unwrap();
    let (head, rest) = guide.split_once("<!-- the table of states -->\n").expect("where the table begins");
    let (shown, tail) = rest.split_once("<!-- its end -->").expect("where the table ends");
    if std::env::var_os("TENURE_BLESS").is_some() {
        let text = format!("{head}<!-- the table of states -->\n{}<!-- its end -->{tail}", chart());
        return std::fs::write(path, text).unwrap();
    }
    assert_eq!(shown, chart(), "TENURE_BLESS=1 cargo xtask test the_guide_shows writes it anew");
}

async fn check(stage: &Stage, state: State, event: Event) -> Result<(), String> {
    let mut placed = place(stage, state, event).await;
    let before = stage.status(placed.job.job).await;
    if before != state.as_str() {
        return Err(format!("could not be put there: it is {before}"));
    }
    compare(stage, &mut placed, event, next(state, event)).await
}

/// Applies the event and compares with what should come of it.
async fn compare(stage: &Stage, placed: &mut Placed, event: Event, expected: Next) -> Result<(), String> {
    let job = placed.job.job;
    let (state, attempts) = (stage.status(job).await, count_attempts(stage, job).await);
    let picture = stage.picture(job).await;
    let accepted = apply(stage, placed, event).await;
    let after = stage.status(job).await;
    let (wanted_state, wanted_answer) = match expected {
        Next::Moves(to, _, _) => (to.as_str(), true),
        Next::Stays | Next::Succeeded => (state.as_str(), true),
        Next::Gone => ("unknown", true),
        Next::Refused => (state.as_str(), false),
    };
    if (after.as_str(), accepted) != (wanted_state, wanted_answer) {
        return Err(format!("expected {expected:?}, found {after}, accepted: {accepted}"));
    }
    if expected == Next::Refused && stage.picture(job).await != picture {
        return Err(format!("refused, and changed:\n    {picture}\n    {}", stage.picture(job).await));
    }
    let used = count_attempts(stage, job).await;
    let wanted = match expected {
        Next::Moves(_, _, Attempt::Begins) => attempts + 1,
        Next::Moves(_, _, Attempt::GivenBack) => attempts - 1,
        Next::Moves(_, _, Attempt::Same) | Next::Stays | Next::Succeeded | Next::Gone | Next::Refused => attempts,
    };
    if expected != Next::Gone && used != wanted {
        return Err(format!("{attempts} attempts became {used}, not {wanted}"));
    }
    let leases = leases_on(stage, job).await;
    if leases != i64::from(after == State::Running.as_str()) {
        return Err(format!("{leases} leases on a job that is {after}"));
    }
    Ok(())
}

async fn count_attempts(stage: &Stage, job: i64) -> i64 {
    stage.count("select coalesce(max(j.attempt), 0)::bigint from tenure.jobs j where j.id = $1", &[&job]).await
}

async fn leases_on(stage: &Stage, job: i64) -> i64 {
    let statement = "select count(*) from tenure.lease l where get_bit(l.strip,
        ((array_position(l.blocks, $1::bigint >> 7) - 1) * 128 + ($1 & 127))::int) = 1 and l.blocks @> array[$1::bigint >> 7]";
    stage.count(statement, &[&job]).await
}

/// Puts a job into the state, in a queue and with a worker of its own.
async fn place(stage: &Stage, state: State, event: Event) -> Placed {
    let queue = format!("{state} {}", event.as_str());
    let registration = Registration { queues: vec![queue.clone()], ..Registration::default() };
    let mut hand = stage.hand(&registration).await;
    let last = matches!(event, Event::FailLast | Event::RescueLast) && state == State::Running;
    let max_attempts: i32 = if last { 1 } else { 5 };
    let delay_ms = (state == State::Scheduled).then_some(3_600_000_i64);
    let enqueue = "select tenure.enqueue('act', '{}', $1, 2, null, $2, $3, null)";
    let id: i64 = stage.one(enqueue, &[&queue, &delay_ms, &max_attempts]).await;
    // What a worker would say that never had it.
    let mut job =
        Leased { lease: 0, job: id, slot: 0, bits: 128, attempt: 1, kind: "act".into(), payload: "{}".into() };
    let hour = Some(3_600_000);
    match state {
        State::Available | State::Scheduled => {}
        State::Held => {
            let hold = "with gone as (delete from tenure.ready where block = $1::bigint >> 7 returning *)
                insert into tenure.held (block, id, reason, queue, priority, kind, attempt, flags, mask)
                select block, id, 'approval', queue, priority, kind, attempt, flags, mask from gone";
            stage.execute(hold, &[&id]).await;
        }
        State::Running | State::Retrying | State::Snoozed | State::Completed | State::Dead | State::Cancelled => {
            job = hand.claim(1).await.expect("claimed").0.remove(0);
        }
    }
    match state {
        State::Available | State::Scheduled | State::Held | State::Running => {}
        State::Retrying => drop(hand.fail(&job, "retry", hour).await.expect("failed")),
        State::Snoozed => drop(hand.fail(&job, "snooze", hour).await.expect("snoozed")),
        State::Completed => drop(hand.complete(std::slice::from_ref(&job)).await.expect("completed")),
        State::Dead => drop(hand.fail(&job, "permanent", None).await.expect("buried")),
        State::Cancelled => drop(hand.fail(&job, "cancelled", None).await.expect("cancelled")),
    }
    Placed { hand, job }
}

/// Applies the event; whether it was accepted.
async fn apply(stage: &Stage, placed: &mut Placed, event: Event) -> bool {
    let Placed { hand, job } = placed;
    let before = stage.status(job.job).await;
    match event {
        Event::Claim => hand.claim(1).await.expect("claim").0.iter().any(|leased| leased.job == job.job),
        Event::Complete => hand.complete(std::slice::from_ref(job)).await.expect("complete").is_empty(),
        Event::FailRetry => fail(hand, job, "retry").await,
        Event::FailRetryNow => fail_at_once(hand, job, "retry").await,
        Event::FailLast => fail(hand, job, "retry").await,
        Event::FailPermanent => fail(hand, job, "permanent").await,
        Event::Snooze => fail(hand, job, "snooze").await,
        Event::SnoozeNow => fail_at_once(hand, job, "snooze").await,
        Event::EndCancelled => fail(hand, job, "cancelled").await,
        Event::Release => hand.release(std::slice::from_ref(job)).await.expect("release").is_empty(),
        Event::GiveUp => fail(hand, job, "given_up").await,
        Event::Progress => stage.one("select tenure.progress($1, $2, '1')", &[&job.job, &job.lease]).await,
        Event::Rescue | Event::RescueLast => {
            stage.expire(hand.worker).await;
            stage.rescue().await;
            stage.status(job.job).await != before
        }
        Event::Promote => {
            let due = "update tenure.later set due_at = clock_timestamp() - interval '1 second' where block = $1::bigint >> 7";
            let _ = stage.execute(due, &[&job.job]).await;
            stage.execute("select tenure.promote()", &[]).await;
            stage.status(job.job).await != before
        }
        Event::Reschedule => {
            let answer: String = stage.one("select tenure.reschedule($1, p_delay_ms => 3600000)", &[&job.job]).await;
            matches!(answer.as_str(), "scheduled" | "retrying" | "snoozed")
        }
        Event::RunNow => {
            let answer: String = stage.one("select tenure.run_now($1)", &[&job.job]).await;
            answer == "available"
        }
        Event::Cancel => {
            let answer: String = stage.one("select tenure.cancel($1)", &[&job.job]).await;
            matches!(answer.as_str(), "cancelled" | "requested")
        }
        Event::Requeue => match stage.sql.query_one("select tenure.requeue($1)", &[&job.job]).await {
            Ok(row) => stage.status(row.get(0)).await == "available",
            Err(e) => {
                assert_eq!(e.code().map(|code| code.code()), Some(REFUSED), "{e:?}");
                false
            }
        },
        Event::Discard => match stage.sql.query_one("select tenure.discard($1)", &[&job.job]).await {
            Ok(row) => row.get(0),
            Err(e) => {
                assert_eq!(e.code().map(|code| code.code()), Some(REFUSED), "{e:?}");
                false
            }
        },
        Event::Retain => {
            age(stage, job.job).await;
            stage.execute("select tenure.walk_anew()", &[]).await;
            stage.execute("select tenure.retain()", &[]).await;
            stage.status(job.job).await != before
        }
    }
}

/// Whatever the job's end was, it lies back a year.
async fn age(stage: &Stage, job: i64) {
    for table in [
        "outcome set started_at = started_at - interval '1 year', finished_at = finished_at - interval '1 year' where job_id",
        "dead_letter set died_at = died_at - interval '1 year' where job_id",
    ] {
        stage.execute(&format!("update tenure.{table} = $1"), &[&job]).await;
    }
}

/// Whether a report was taken; where the job went is looked at in the tables.
async fn fail(hand: &Hand, job: &Leased, verdict: &str) -> bool {
    is_taken(&hand.fail(job, verdict, Some(3_600_000)).await.expect("fail"))
}

async fn fail_at_once(hand: &Hand, job: &Leased, verdict: &str) -> bool {
    is_taken(&hand.fail(job, verdict, Some(0)).await.expect("fail"))
}

fn is_taken(answer: &str) -> bool {
    ["retrying", "snoozed", "released", "dead", "cancelled"].contains(&answer)
}
