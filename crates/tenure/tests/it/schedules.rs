//! Schedules: what fires, once, and what becomes of times that were missed, met by the run before, or that nobody can fire.

use std::time::Duration;

use serde_json::{Value, json};
use tenure::testing::{TestDatabase, until, until_within, with_database};
use tenure::{
    Client, Context, Enqueue, Error, ErrorCode, Fail, KindOptions, Missed, Overlap, RawJson, Rule, RunningWorker,
    Schedule, Worker,
};
use tenure_scenarios::protocol::{BAD_INPUT, Registration, sqlstate};
use tenure_scenarios::scenario::punctual::{many_schedules, one_shots};
use tenure_scenarios::scenario::schedules::under_fire;
use tenure_scenarios::{Size, Stage, assert_held, on_stage};

fn schedule(name: &str, rule: &str) -> Schedule {
    let payload = RawJson::parse(r#"{"at": "{{logical_epoch}}"}"#).unwrap();
    Schedule::new(name, Rule::new(rule, "UTC").unwrap(), Enqueue::raw("tick", payload).queue("ticks"))
}

/// A worker for the jobs of these schedules; it also fires them.
async fn worker(db: &TestDatabase) -> RunningWorker {
    let handler = |_: Context, _: RawJson| async { Ok::<_, Fail>(None) };
    let builder = Worker::builder(db.url()).queue("ticks", 4).handle_raw("tick", KindOptions::new(), handler);
    builder.start().await.unwrap()
}

async fn count(db: &TestDatabase, sql: &str) -> i64 {
    db.sql().await.query_one(sql, &[]).await.unwrap().get(0)
}

/// As if maintenance had last been there so long ago.
async fn neglect(db: &TestDatabase, name: &str, for_s: i32) {
    let back = "update tenure.schedule set next_at = date_trunc('minute', clock_timestamp()) - make_interval(secs => $2), \
                look_at = clock_timestamp() - make_interval(secs => $2) where name = $1";
    db.sql().await.execute(back, &[&name, &f64::from(for_s)]).await.unwrap();
}

async fn until_planned(client: &Client, name: &str) {
    until("a worker has computed the next time", async || {
        client.schedule(name).await.unwrap().unwrap().next_at.is_some()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_workers_fire_each_time_once_and_the_job_knows_it() {
    with_database(async |db| {
        let client = db.client().await;
        client.add_schedule(&schedule("each second", "@every 1s")).await.unwrap();
        let _workers = [worker(db).await, worker(db).await, worker(db).await];
        until("four runs", async || count(db, "select count(*) from tenure.schedule_run").await >= 4).await;
        let wrong = "select count(*) from tenure.schedule_run r join tenure.job j on j.id = r.job_id
            where (j.payload ->> 'at')::bigint <> extract(epoch from r.logical_at) or j.queue <> 'ticks' or j.run_at <> r.logical_at";
        assert_eq!(count(db, wrong).await, 0);
        let gaps = "select count(*) from (select logical_at - lag(logical_at) over (order by logical_at) as step from tenure.schedule_run) s where step <> '1 s'";
        assert_eq!(count(db, gaps).await, 0);
        let jobs = "select (select count(*) from tenure.job) - (select count(*) from tenure.schedule_run)";
        assert_eq!(count(db, jobs).await, 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_missed_follows_the_policy_and_what_was_left_out_is_counted() {
    with_database(async |db| {
        let client = db.client().await;
        let all = Missed::All { max: 5, window: Duration::from_secs(86_400) };
        let young = Missed::All { max: 1_000, window: Duration::from_secs(1_850) };
        let cases = [("skip", Missed::Skip, 0), ("latest", Missed::Latest, 1), ("all", all, 5), ("young", young, 31)];
        for (name, missed, _) in cases {
            client.add_schedule(&schedule(name, "* * * * *").missed(missed)).await.unwrap();
        }
        let sql = db.sql().await;
        // Far from a time of their own: one more would come otherwise.
        let second = "select extract(second from clock_timestamp())::float8";
        until_within(Duration::from_secs(60), "a minute's middle", async || {
            (12.0..40.0).contains(&sql.query_one(second, &[]).await.unwrap().get::<_, f64>(0))
        })
        .await;
        for (name, _, _) in cases {
            neglect(db, name, 6 * 3600).await;
        }
        let _worker = worker(db).await;
        for (name, _, runs) in cases {
            until("it is caught up with", async || {
                let info = client.schedule(name).await.unwrap().unwrap();
                info.left_out + info.runs == 361
            })
            .await;
            let info = client.schedule(name).await.unwrap().unwrap();
            assert_eq!((info.runs, info.left_out), (runs, 361 - runs), "{name}");
            let noted = client.schedule_runs(name, None, None).await.unwrap();
            let missed: i64 = noted.iter().filter(|run| run.state == "missed").filter_map(|run| run.times).sum();
            assert_eq!(missed, 361 - runs, "{name}");
            assert_eq!(noted.iter().filter(|run| run.job.is_some()).count() as i64, runs.min(100), "{name}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_that_cannot_fire_says_why_and_stops_no_other() {
    with_database(async |db| {
        let client = db.client().await;
        let sql = db.sql().await;
        let add = "select tenure.add_schedule($1, $2, $3, 'tick', $4::text::json, 'ticks')";
        for (name, rule, zone, payload) in [
            ("bad rule", "61 * * * *", "UTC", "{}"),
            ("bad zone", "@every 1s", "Nowhere", "{}"),
            ("too large", "@every 1s", "UTC", "\"{{logical_time}}\""),
            ("good", "@every 1s", "UTC", "{}"),
        ] {
            sql.query(add, &[&name, &rule, &zone, &payload]).await.unwrap();
        }
        sql.batch_execute("insert into tenure.setting values ('payload_bytes', '20')").await.unwrap();
        // Rendered it has 22 bytes, but only above 64 KiB the setting is looked at: so large it is.
        let large =
            "update tenure.schedule set payload = to_json(repeat('{{logical_time}}', 5000)) where name = 'too large'";
        sql.batch_execute(large).await.unwrap();
        let _worker = worker(db).await;
        until("the good one runs", async || client.schedule("good").await.unwrap().unwrap().runs >= 2).await;
        for (name, part) in [
            ("bad rule", "minute 61 is outside 0-59"),
            ("bad zone", "\"Nowhere\" is not a time zone"),
            ("too large", "the limit is"),
        ] {
            // Of a rule that this program cannot read not at once: another one might.
            until_within(Duration::from_secs(30), "it fails", async || {
                client.schedule(name).await.unwrap().unwrap().state == "failing"
            })
            .await;
            let info = client.schedule(name).await.unwrap().unwrap();
            assert_eq!(info.runs, 0, "{name}");
            assert!(info.error.as_deref().unwrap_or_default().contains(part), "{name}: {:?}", info.error);
        }
        // Mended, it runs.
        let info = client.schedule("too large").await.unwrap().unwrap();
        client.edit_schedule(info.version, &schedule("too large", "@every 1s")).await.unwrap();
        until("the mended one runs", async || client.schedule("too large").await.unwrap().unwrap().runs >= 1).await;
        assert_eq!(client.schedule("too large").await.unwrap().unwrap().error, None);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_a_removal_and_an_edit_hold_from_then_on() {
    with_database(async |db| {
        let client = db.client().await;
        let _worker = worker(db).await;
        for name in ["paused", "removed", "edited"] {
            client.add_schedule(&schedule(name, "@every 1s")).await.unwrap();
            until("it runs", async || client.schedule(name).await.unwrap().unwrap().runs >= 1).await;
        }
        assert!(client.pause_schedule("paused", Some("me"), Some("tests")).await.unwrap());
        assert!(!client.pause_schedule("paused", None, None).await.unwrap());
        client.remove_schedule("removed").await.unwrap();
        let info = client.schedule("edited").await.unwrap().unwrap();
        let other = Schedule::new(
            "edited",
            Rule::new("@every 2s", "UTC").unwrap(),
            Enqueue::raw("tick", RawJson::parse("\"new\"").unwrap()).queue("ticks"),
        );
        assert!(client.edit_schedule(info.version, &other).await.unwrap());
        let stale = client.edit_schedule(info.version, &schedule("edited", "@yearly")).await.unwrap_err();
        assert!(stale.code() == ErrorCode::Refused && stale.to_string().contains("somebody changed it"), "{stale}");
        let before = client.schedule("paused").await.unwrap().unwrap();
        let jobs = count(db, "select count(*) from tenure.job where payload::text <> '\"new\"'").await;
        until("the edited one runs twice", async || {
            count(db, "select count(*) from tenure.job where payload::text = '\"new\"'").await >= 2
        })
        .await;
        assert_eq!(count(db, "select count(*) from tenure.job where payload::text <> '\"new\"'").await, jobs);
        let paused = client.schedule("paused").await.unwrap().unwrap();
        assert_eq!((paused.state.as_str(), paused.runs, paused.next_at), ("paused", before.runs, None));
        assert_eq!(paused.pause_reason.as_deref(), Some("tests"));
        // The name is free, and nothing of the former is left in it.
        client.add_schedule(&schedule("removed", "@yearly")).await.unwrap();
        let anew = client.schedule("removed").await.unwrap().unwrap();
        assert_eq!((anew.runs, anew.version, anew.last_at), (0, 1, None));
        assert!(client.schedule_runs("removed", None, None).await.unwrap().is_empty());
        assert!(client.resume_schedule("paused").await.unwrap());
        until("it runs again", async || client.schedule("paused").await.unwrap().unwrap().runs > before.runs).await;
        let noted = client.schedule_runs("paused", None, None).await.unwrap();
        assert!(noted.iter().all(|run| run.state != "missed"), "{noted:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_comes_to_its_end_and_can_be_run_by_hand() {
    with_database(async |db| {
        let client = db.client().await;
        let now = client.now().await.unwrap();
        let ends = schedule("ends", "@every 1s").starts_at(now).ends_at(now + Duration::from_secs(2));
        client.add_schedule(&ends).await.unwrap();
        let _worker = worker(db).await;
        until("its end", async || client.schedule("ends").await.unwrap().unwrap().state == "ended").await;
        let runs = client.schedule("ends").await.unwrap().unwrap().runs;
        assert!((1..=2).contains(&runs), "{runs}");
        let job = client.run_schedule("ends").await.unwrap();
        assert_eq!(client.get(job).await.unwrap().unwrap().queue, "ticks");
        assert_eq!(client.schedule("ends").await.unwrap().unwrap().runs, runs + 1);
        for error in [
            client.run_schedule("none").await.unwrap_err(),
            client.pause_schedule("none", None, None).await.unwrap_err(),
            client.resume_schedule("none").await.unwrap_err(),
            client.remove_schedule("none").await.unwrap_err(),
            client.edit_schedule(1, &schedule("none", "@daily")).await.unwrap_err(),
        ] {
            assert!(error.code() == ErrorCode::NotFound && error.to_string().contains("\"none\""), "{error}");
        }
        let twice: Error = client.add_schedule(&schedule("ends", "@daily")).await.unwrap_err();
        assert!(twice.code() == ErrorCode::Refused && twice.to_string().contains("\"ends\" already"), "{twice}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edit_of_the_job_alone_leaves_the_rhythm_as_it_is() {
    with_database(async |db| {
        let client = db.client().await;
        let _worker = worker(db).await;
        client.add_schedule(&schedule("hourly", "@hourly")).await.unwrap();
        until_planned(&client, "hourly").await;
        let before = client.schedule("hourly").await.unwrap().unwrap();
        let job = Enqueue::raw("tick", RawJson::parse("\"other\"").unwrap()).queue("ticks").priority(1);
        let edited = Schedule::new("hourly", Rule::new("@hourly", "UTC").unwrap(), job).overlap(Overlap::Skip);
        assert!(client.edit_schedule(before.version, &edited).await.unwrap());
        assert!(!client.edit_schedule(before.version + 1, &edited).await.unwrap(), "it is so already");
        let after = client.schedule("hourly").await.unwrap().unwrap();
        assert_eq!(
            (after.next_at, after.changed_at, after.version),
            (before.next_at, before.changed_at, before.version + 1)
        );
        assert_eq!((after.priority, after.overlap.as_str()), (1, "skip"));
    })
    .await;
}

/// Seconds since 1970 of a time that has come.
pub(crate) async fn past(stage: &Stage) -> i64 {
    stage.one("select floor(extract(epoch from clock_timestamp()))::bigint - 5", &[]).await
}

/// What a worker would decide: fire these times, and come again at that.
pub(crate) async fn fire(stage: &Stage, schedule: i64, was: Option<i64>, times: &[i64], next: Option<i64>) -> Value {
    let us = |second: i64| second * 1_000_000;
    let version: i64 = stage.one("select version from tenure.schedule where id = $1", &[&schedule]).await;
    let plan = json!([{
        "id": schedule, "version": version, "was_us": was.map(us), "fire_us": times.iter().map(|at| us(*at)).collect::<Vec<_>>(),
        "out_us": null, "next_us": next.map(us), "more": false, "error": null,
    }]);
    let done: String = stage.one("select tenure.fire($1::text::json)::text", &[&plan.to_string()]).await;
    serde_json::from_str(&done).unwrap()
}

pub(crate) async fn add(stage: &Stage, overlap: &str) -> i64 {
    let add = "select tenure.add_schedule($1, '@every 1s', 'UTC', 'act', '{\"Sleep\":{\"ms\":0}}', p_overlap => $1)";
    stage.one(add, &[&overlap]).await
}

pub(crate) async fn states(stage: &Stage, schedule: i64) -> String {
    let states = "select string_agg(state, ' ' order by logical_at) from tenure.schedule_run where schedule_id = $1";
    stage.one(states, &[&schedule]).await
}

#[tokio::test]
async fn a_decision_holds_only_for_what_it_was_made_for() {
    on_stage(Size::Ci, async |stage| {
        let (id, t) = (add(stage, "allow").await, past(stage).await);
        assert_eq!(fire(stage, id, None, &[t], Some(t + 1)).await["jobs"], 1);
        assert_eq!(fire(stage, id, None, &[t], Some(t + 1)).await["jobs"], 0, "somebody else was first");
        // With a clock of its own, somebody comes to a time that was dealt with.
        assert_eq!(fire(stage, id, Some(t + 1), &[t, t + 1], Some(t + 2)).await["jobs"], 1);
        let stale = json!([{"id": id, "version": 7, "was_us": (t + 2) * 1_000_000, "fire_us": [(t + 2) * 1_000_000], "next_us": null, "more": false}]);
        let done: String = stage.one("select tenure.fire($1::text::json)::text", &[&stale.to_string()]).await;
        assert!(done.contains("\"jobs\" : 0"), "{done}");
        assert_eq!(states(stage, id).await, "fired fired");
        // Whoever holds the row is waited for by nobody.
        let mut other = stage.db.sql().await;
        let tx = other.transaction().await.unwrap();
        tx.query("select tenure.pause_schedule('allow')", &[]).await.unwrap();
        assert_eq!(fire(stage, id, Some(t + 2), &[t + 2], Some(t + 3)).await["jobs"], 0);
        tx.rollback().await.unwrap();
        assert_eq!(fire(stage, id, Some(t + 2), &[t + 2], Some(t + 3)).await["jobs"], 1);
    })
    .await;
}

#[tokio::test]
async fn schedules_that_come_together_are_fired_together_and_one_that_fails_stops_no_other() {
    on_stage(Size::Ci, async |stage| {
        let add = "select count(tenure.add_schedule('s' || n, '@every 1s', 'UTC', 'act', format('{\"Sleep\":{\"ms\":%s}}', n)::json,
                p_jitter_ms => case when n > 240 then 60000 else 0 end))
            from generate_series(1, 250) n";
        stage.count(add, &[]).await;
        let t = past(stage).await;
        let large = "update tenure.schedule set payload = to_json(repeat('x', 70000)) where name in ('s7', 's77')";
        stage.execute(large, &[]).await;
        // Somebody with another clock has dealt with this time, and nobody with the next one.
        let dealt = "insert into tenure.schedule_run (schedule_id, logical_at, state) select id, to_timestamp($1::bigint), 'overlap' from tenure.schedule where name = 's9'";
        stage.execute(dealt, &[&t]).await;
        let fire = "select tenure.fire(json_agg(json_build_object('id', id, 'version', case when name = 's11' then 7 else version end, 'was_us', null,
                'fire_us', array[$1::bigint * 1000000], 'out_us', null, 'next_us', ($1::bigint + 1) * 1000000, 'more', false, 'error', null) order by id desc))::text
            from tenure.schedule";
        let done: Value = serde_json::from_str(&stage.one::<String>(fire, &[&t]).await).unwrap();
        assert_eq!((&done["jobs"], &done["failed"]), (&json!(246), &json!(2)), "{done}");
        let left = "select string_agg(name, ' ' order by id) from tenure.schedule where next_at is null or error is not null";
        assert_eq!(stage.one::<String>(left, &[]).await, "s7 s11 s77");
        let wrong = "select count(*) from tenure.schedule s join tenure.schedule_run r on r.schedule_id = s.id join tenure.job j on j.id = r.job_id
            where s.last_job_id <> j.id or s.runs <> 1 or s.last_at <> r.logical_at or s.payload::text <> j.payload::text or s.look_at <> s.next_at
               or j.run_at not between r.logical_at and r.logical_at + s.jitter_ms * interval '1 millisecond'";
        assert_eq!(stage.count(wrong, &[]).await, 0);
        assert!(stage.count("select count(*) from tenure.ready", &[]).await < 50, "they share bundles");
        assert!(stage.count("select count(*) from tenure.later", &[]).await > 0, "those with jitter wait");
        // The same decisions again are too late.
        let again: Value = serde_json::from_str(&stage.one::<String>(fire, &[&t]).await).unwrap();
        assert_eq!(again["jobs"], 0);
        stage.db.check_invariants().await;
    })
    .await;
}

#[tokio::test]
async fn a_run_that_has_not_ended_is_met_as_the_policy_says() {
    on_stage(Size::Ci, async |stage| {
        for (overlap, while_it_runs, at_its_end) in [
            ("allow", "fired fired fired fired", "fired fired fired fired fired"),
            ("skip", "fired overlap overlap overlap", "fired overlap overlap overlap fired"),
            ("queue", "fired queued overlap overlap", "fired fired overlap overlap queued"),
            // The one that waited is cancelled in favour of the next, before it has run.
            ("cancel", "fired replaced replaced queued", "fired replaced replaced fired fired"),
        ] {
            let (id, t) = (add(stage, overlap).await, past(stage).await);
            fire(stage, id, None, &[t], Some(t + 1)).await;
            let mut hand = stage.hand(&Registration::default()).await;
            let (first, _) = hand.claim(1).await.unwrap();
            assert_eq!(first.len(), 1, "{overlap}");
            for n in 1..4 {
                fire(stage, id, Some(t + n), &[t + n], Some(t + n + 1)).await;
            }
            assert_eq!(states(stage, id).await, while_it_runs, "{overlap}");
            match overlap {
                "cancel" => drop(hand.fail(&first[0], "cancelled", None).await.unwrap()),
                _ => drop(hand.complete(&first).await.unwrap()),
            }
            // The one that waited is enqueued now, and the next time meets that.
            fire(stage, id, Some(t + 4), &[t + 4], Some(t + 5)).await;
            assert_eq!(states(stage, id).await, at_its_end, "{overlap}");
            stage.db.check_invariants().await;
            let (rest, _) = hand.claim(10).await.unwrap();
            hand.complete(&rest).await.unwrap();
            stage.execute("select tenure.remove_schedule($1)", &[&overlap]).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_job_that_waits_is_cancelled_in_favour_of_the_next_time() {
    on_stage(Size::Ci, async |stage| {
        let (id, t) = (add(stage, "cancel").await, past(stage).await);
        fire(stage, id, None, &[t], Some(t + 1)).await;
        fire(stage, id, Some(t + 1), &[t + 1], Some(t + 2)).await;
        assert_eq!(states(stage, id).await, "fired fired");
        let jobs = "select string_agg(j.status, ' ' order by r.logical_at) from tenure.schedule_run r join tenure.jobs j on j.id = r.job_id where r.schedule_id = $1";
        assert_eq!(stage.one::<String>(jobs, &[&id]).await, "cancelled available");
    })
    .await;
}

#[tokio::test]
async fn a_template_is_filled_in_and_one_that_says_nothing_is_refused() {
    on_stage(Size::Ci, async |stage| {
        let add = "select tenure.add_schedule($1, '@daily', 'Europe/Berlin', 'act', $2::text::json)";
        let check = async |payload: &str, expected: &str| {
            let id: i64 = stage.one(add, &[&"say \"x\"", &payload]).await;
            let render =
                "select tenure.render_payload(s, '2027-03-28T01:00:00Z')::text from tenure.schedule s where s.id = $1";
            assert_eq!(stage.one::<String>(render, &[&id]).await, expected);
            stage.execute("select tenure.remove_schedule($1)", &[&"say \"x\""]).await;
        };
        check(r#"{"at": "{{logical_time}}", "n": 1.10}"#, r#"{"at": "2027-03-28T01:00:00Z", "n": 1.10}"#).await;
        check(r#"["{{logical_local}}", "{{logical_date}}"]"#, r#"["2027-03-28T03:00:00", "2027-03-28"]"#).await;
        check(r#"{"a": {"b": "{{logical_epoch}}"}}"#, r#"{"a": {"b": "1806195600"}}"#).await;
        check(r#""{{schedule}}, {{{{name}}""#, r#""say \"x\", {{name}}""#).await;
        for bad in [r#""{{logical_tim}}""#, r#""{{ logical_time }}""#, r#"{"a": "x{{"}"#, r#""{{name}""#] {
            assert_eq!(sqlstate(stage.sql.query(add, &[&"bad", &bad]).await), BAD_INPUT, "{bad}");
        }
    })
    .await;
}

#[tokio::test]
async fn what_is_wrong_about_a_schedule_is_refused_by_the_database_too() {
    on_stage(Size::Ci, async |stage| {
        for call in [
            "'', '@daily', 'UTC', 'k', '{}'",
            "'n', '', 'UTC', 'k', '{}'",
            "'n', '@daily', '', 'k', '{}'",
            "'n', '@daily', 'UTC', '', '{}'",
            "'n', '@daily', 'UTC', 'k', null",
            "'n', '@daily', 'UTC', 'k', '{}', p_priority => 7",
            "'n', '@daily', 'UTC', 'k', '{}', p_jitter_ms => -1",
            "'n', '@daily', 'UTC', 'k', '{}', p_missed => 'some'",
            "'n', '@daily', 'UTC', 'k', '{}', p_missed_max => 0",
            "'n', '@daily', 'UTC', 'k', '{}', p_overlap => null",
            "'n', '@daily', 'UTC', 'k', '{}', p_gap => 'x'",
            "'n', '@daily', 'UTC', 'k', '{}', p_twice => 'x'",
            "'n', '@daily', 'UTC', 'k', '{}', p_starts_at => '2027-01-02Z', p_ends_at => '2027-01-01Z'",
            "'n', '@daily', 'UTC', 'k', '{}', p_ends_at => 'infinity'",
            "'n', '@daily', 'UTC', 'k', '{}', p_starts_at => '-infinity'",
        ] {
            let refused = stage.sql.query(&format!("select tenure.add_schedule({call})"), &[]).await;
            assert_eq!(sqlstate(refused), BAD_INPUT, "{call}");
        }
        assert_eq!(stage.count("select count(*) from tenure.schedule", &[]).await, 0);
    })
    .await;
}

#[tokio::test]
async fn the_times_of_a_schedule_that_has_ended_are_not_computed_again() {
    on_stage(Size::Ci, async |stage| {
        let (id, t) = (add(stage, "queue").await, past(stage).await);
        stage.execute("update tenure.schedule set changed_at = changed_at - interval '1 day'", &[]).await;
        let from = async || {
            stage.execute("update tenure.schedule set look_at = clock_timestamp() - interval '1 second'", &[]).await;
            let due = "select tenure.due_schedules(true) -> 'schedules' -> 0 ->> 'from_us'";
            stage.one::<Option<String>>(due, &[]).await
        };
        assert!(from().await.is_some(), "nobody has computed a time yet");
        fire(stage, id, None, &[t], None).await;
        assert_eq!(from().await, None, "it had its last one");
    })
    .await;
}

#[tokio::test]
async fn what_is_left_of_removed_schedules_and_old_runs_goes_after_a_week() {
    on_stage(Size::Ci, async |stage| {
        let (id, t) = (add(stage, "allow").await, past(stage).await);
        fire(stage, id, None, &[t], Some(t + 1)).await;
        stage.execute("select tenure.remove_schedule('allow')", &[]).await;
        let due = "select tenure.due_schedules(true)::text";
        let runs = "select count(*) from tenure.schedule_runs where schedule_id = $1 and removed";
        stage.one::<String>(due, &[]).await;
        assert_eq!(stage.count(runs, &[&id]).await, 1, "they can be looked at");
        stage.execute("update tenure.schedule set look_at = clock_timestamp() - interval '1 second'", &[]).await;
        for _ in 0..2 {
            stage.one::<String>(due, &[]).await;
        }
        let left = "select (select count(*) from tenure.schedule) + (select count(*) from tenure.schedule_run)";
        assert_eq!(stage.count(left, &[]).await, 0);
    })
    .await;
}

#[tokio::test]
async fn a_database_without_schedules_is_asked_for_none() {
    on_stage(Size::Ci, async |stage| {
        let fire_ms = "select tenure.tick(0) ->> 'fire_ms'";
        let again = "update tenure.duty set next_at = '-infinity' where name = 'tick'";
        assert_eq!(stage.one::<Option<String>>(fire_ms, &[]).await, None);
        add(stage, "allow").await;
        stage.execute(again, &[]).await;
        assert_eq!(stage.one::<Option<String>>(fire_ms, &[]).await.as_deref(), Some("0"), "nobody has planned it");
        // A time that is far away is nobody's business yet.
        stage
            .execute(
                "update tenure.schedule set next_at = now() + interval '1 h', look_at = now() + interval '1 h'",
                &[],
            )
            .await;
        stage.execute(again, &[]).await;
        assert_eq!(stage.one::<Option<String>>(fire_ms, &[]).await, None);
        stage.execute("update tenure.schedule set look_at = clock_timestamp() + interval '1 s'", &[]).await;
        stage.execute(again, &[]).await;
        let soon: i64 = stage.one::<Option<String>>(fire_ms, &[]).await.expect("soon").parse().unwrap();
        assert!((1..=1_000).contains(&soon), "{soon}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn schedulers_that_are_killed_and_a_restart_leave_out_no_time_and_fire_none_twice() {
    assert_held(&under_fire(Size::from_env()).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neither_the_databases_time_zone_nor_its_styles_move_an_instant() {
    with_database(async |db| {
        for zone in ["America/Sao_Paulo", "Asia/Kolkata", "Pacific/Kiritimati"] {
            let name = db.name();
            let set = format!(
                "alter database {name} set timezone = '{zone}'; alter database {name} set datestyle = 'German'; \
                 alter database {name} set intervalstyle = 'sql_standard'"
            );
            db.sql().await.batch_execute(&set).await.unwrap();
            let client = db.client().await;
            let at = client.now().await.unwrap() + Duration::from_micros(86_400_123_456);
            let id = client.enqueue(Enqueue::raw("tick", RawJson::null()).run_at(at)).await.unwrap();
            assert_eq!(client.get(id).await.unwrap().unwrap().run_at, at, "{zone}");
            let before = client.now().await.unwrap();
            let id = client.enqueue(Enqueue::raw("tick", RawJson::null()).delay(Duration::from_secs(5))).await.unwrap();
            let due = client.get(id).await.unwrap().unwrap().run_at.duration_since(before).unwrap();
            assert!((5.0..8.0).contains(&due.as_secs_f64()), "{zone}: {due:?}");
            let payload = RawJson::parse(r#"["{{logical_time}}", "{{logical_local}}", "{{logical_epoch}}"]"#).unwrap();
            let job = Enqueue::raw("tick", payload).queue("ticks");
            let rule = Rule::new("* * * * * *", "Asia/Kathmandu").unwrap();
            client.add_schedule(&Schedule::new(zone, rule, job)).await.unwrap();
            let _worker = worker(db).await;
            until("it runs", async || client.schedule(zone).await.unwrap().unwrap().runs >= 2).await;
            client.remove_schedule(zone).await.unwrap();
        }
        let wrong = "select count(*) from tenure.schedule_run r join tenure.job j on j.id = r.job_id
            where (j.payload ->> 0)::timestamptz <> r.logical_at or (j.payload ->> 2)::bigint <> extract(epoch from r.logical_at)
               or (j.payload ->> 1)::timestamp <> r.logical_at at time zone 'Asia/Kathmandu'";
        assert_eq!(count(db, wrong).await, 0);
    })
    .await;
}

/// S61: the queue is paused, its schedules are not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedules_fire_into_a_paused_queue_and_nothing_starts_there() {
    with_database(async |db| {
        let client = db.client().await;
        client.pause("ticks", None, Some("an incident")).await.unwrap();
        client.add_schedule(&schedule("each second", "@every 1s")).await.unwrap();
        let mut first = worker(db).await;
        until("two runs", async || client.schedule("each second").await.unwrap().unwrap().runs >= 2).await;
        first.shutdown();
        first.join().await;
        // Another one, which was not there when it was paused.
        let _second = worker(db).await;
        until("four runs", async || client.schedule("each second").await.unwrap().unwrap().runs >= 4).await;
        assert_eq!(
            count(db, "select (select count(*) from tenure.outcome) + (select count(*) from tenure.lease)").await,
            0
        );
        client.resume("ticks").await.unwrap();
        until("they run", async || count(db, "select count(*) from tenure.outcome where state = 'c'").await >= 4).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_begin_no_interval_anew_and_fire_nothing() {
    with_database(async |db| {
        let client = db.client().await;
        for rule in ["@every 7d", "0 3 * * 1"] {
            client.add_schedule(&schedule(rule, rule)).await.unwrap();
        }
        let mut planned = Vec::new();
        for _ in 0..3 {
            let mut worker = worker(db).await;
            for name in ["@every 7d", "0 3 * * 1"] {
                until_planned(&client, name).await;
                planned.push(client.schedule(name).await.unwrap().unwrap().next_at);
            }
            worker.shutdown();
            worker.join().await;
        }
        assert_eq!((&planned[..2], &planned[2..4]), (&planned[2..4], &planned[4..]));
        assert_eq!(count(db, "select count(*) from tenure.job").await, 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn very_many_schedules_that_are_due_at_one_instant_fire_within_a_moment() {
    on_stage(Size::from_env(), async |stage| assert_held(&many_schedules(stage).await)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_are_due_one_by_one_start_on_time_without_being_polled_for() {
    on_stage(Size::from_env(), async |stage| assert_held(&one_shots(stage).await)).await;
}
