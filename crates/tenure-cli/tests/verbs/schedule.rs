//! Schedules as somebody meets them who uses them for the first time: what an edit leaves alone, what an audit compares, what is said of them
//! before a worker has looked.

use serde_json::{Value, json};
use tenure::testing::{TestDatabase, with_database};

use super::{End, json, tenure, tenure_in};

/// A schedule's facts.
fn show(db: &TestDatabase, name: &str) -> Value {
    json(db, &["schedule", "show", name, "--json"])
}

fn done(db: &TestDatabase, args: &[&str]) -> End {
    let end = tenure(db, args);
    assert_eq!(end.code, 0, "{args:?}: {end:?}");
    end
}

#[tokio::test(flavor = "multi_thread")]
async fn the_zone_of_the_environment_is_for_rules_that_name_none_and_moves_no_schedule() {
    with_database(async |db| {
        let in_tokyo = |args: &[&str]| tenure_in(db, &[("TENURE_ZONE", "Asia/Tokyo")], args);
        done(db, &["schedule", "add", "nightly", "30 2 * * *", "report", "--zone", "Europe/Berlin"]);
        for edit in [&["--kind", "other"][..], &["--rule", "30 3 * * *"], &["--end", "2199-01-01T00:00"]] {
            assert_eq!(in_tokyo(&[&["schedule", "edit", "nightly"], edit].concat()).code, 0, "{edit:?}");
            assert_eq!(show(db, "nightly")["zone"], "Europe/Berlin", "{edit:?}");
        }
        assert_eq!(show(db, "nightly")["ends_at"], "2198-12-31T23:00:00.000Z", "in the schedule's zone");
        done(db, &["schedule", "edit", "nightly", "--zone", "America/New_York"]);
        assert_eq!(show(db, "nightly")["zone"], "America/New_York");

        let add = |name: &str, rule: &str| {
            let end = in_tokyo(&["schedule", "add", name, rule, "k"]);
            assert_eq!(end.code, 0, "{end:?}");
            show(db, name)["zone"].clone()
        };
        assert_eq!(add("none named", "0 9 * * *"), "Asia/Tokyo");
        assert_eq!(add("one named", "CRON_TZ=Europe/Berlin 0 9 * * *"), "Europe/Berlin");
        for verb in [
            &["add", "two named", "CRON_TZ=Europe/Berlin 0 9 * * *", "k"][..],
            &["edit", "nightly", "--rule", "CRON_TZ=Europe/Berlin 0 9 * * *"],
            &["preview", "CRON_TZ=Europe/Berlin 0 9 * * *"],
        ] {
            let end = tenure(db, &[&["schedule"], verb, &["--zone", "UTC"]].concat());
            assert!(end.code == 2 && end.said.contains("give one of them"), "{verb:?}: {end:?}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn instants_that_name_their_zone_need_no_other_and_what_never_runs_says_so() {
    with_database(async |db| {
        let added =
            json(db, &["schedule", "add", "once", "@at 2199-01-01T09:00Z, 2199-01-02T09:00+01:00", "k", "--json"]);
        assert_eq!(added["first_at"], "2199-01-01T09:00:00.000Z");
        assert_eq!(show(db, "once")["zone"], "UTC");
        let half = tenure(db, &["schedule", "add", "half", "@at 2199-01-01T09:00Z, 2199-01-02T09:00", "k"]);
        assert!(half.code == 2 && half.said.contains("no time zone is given"), "{half:?}");

        let past = done(db, &["schedule", "add", "past", "@daily", "k", "--zone", "UTC", "--end", "2020-01-01T00:00"]);
        assert_eq!(past.out, "past added\n");
        assert!(past.said.contains("past will never run: its end, 2020-01-01T00:00:00.000Z, has passed"), "{past:?}");
        let gone = tenure(db, &["schedule", "add", "gone", "@at 2020-01-01T09:00Z", "k", "--json"]);
        assert!(gone.out.contains("\"first_at\":null") && gone.said.contains("has no time ahead"), "{gone:?}");
        let ended = done(db, &["schedule", "edit", "once", "--end", "2020-01-01T00:00"]);
        assert!(ended.said.contains("once will never run"), "{ended:?}");
        assert_eq!(done(db, &["schedule", "edit", "once", "--end", "none"]).said, "");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_time_is_known_before_a_worker_has_looked() {
    with_database(async |db| {
        let first = json(db, &["schedule", "add", "weekly", "@every 7d", "k", "--json"])["first_at"].clone();
        let next = json(db, &["schedule", "next", "weekly", "-n", "1", "--json"])[0]["at"].clone();
        assert!(first.is_string() && first == next, "an interval counts from when it was added: {first}, {next}");
        assert_eq!(json(db, &["schedule", "list", "--json"])[0]["next_at"], first);
        assert!(done(db, &["schedule", "list"]).out.contains(first.as_str().expect("an instant")));
        done(db, &["schedule", "edit", "weekly", "--rule", "@at 2199-01-01T09:00Z"]);
        assert_eq!(show(db, "weekly")["next_at"], "2199-01-01T09:00:00.000Z");
        done(db, &["schedule", "pause", "weekly"]);
        assert_eq!(show(db, "weekly")["next_at"], Value::Null);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_all_missed_runs_each_bound_stays_that_an_edit_does_not_name() {
    with_database(async |db| {
        let all = ["--missed", "all", "--missed-max", "7", "--missed-window", "2d"];
        done(db, &[&["schedule", "add", "n", "@hourly", "k", "--zone", "UTC"], &all[..]].concat());
        let bounds = || {
            let shown = show(db, "n");
            json!([shown["missed"], shown["missed_max"], shown["missed_window_ms"]])
        };
        for (edit, expected) in [
            (&["--missed", "all", "--priority", "1"][..], json!(["all", 7, 172_800_000])),
            (&["--missed-max", "5"], json!(["all", 5, 172_800_000])),
            (&["--missed", "all", "--missed-window", "1h"], json!(["all", 5, 3_600_000])),
            (&["--missed", "skip"], json!(["skip", 100, 86_400_000])),
        ] {
            done(db, &[&["schedule", "edit", "n"], edit].concat());
            assert_eq!(bounds(), expected, "{edit:?}");
        }
        for wrong in [&["--missed-max", "5"][..], &["--missed", "latest", "--missed-window", "1d"]] {
            let end = tenure(db, &[&["schedule", "edit", "n"], wrong].concat());
            assert!(end.code == 2 && end.said.contains("write --missed all beside them"), "{wrong:?}: {end:?}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_that_cannot_be_read_is_named_and_keeps_no_other_from_being_audited() {
    with_database(async |db| {
        let add = "select tenure.add_schedule('bad', '61 * * * *', 'UTC', 'k', '{}'), tenure.add_schedule('good', '@hourly', 'UTC', 'k', '{}')";
        db.sql().await.batch_execute(add).await.expect("added by SQL, which knows no rules");
        for names in [&[][..], &["bad", "good"]] {
            let end = tenure(db, &[&["schedule", "audit", "--json"], names].concat());
            assert!(end.code == 1 && end.said.contains("schedule \"bad\": \"61 * * * *\" is not a cron line"), "{end:?}");
            let audits: Value = serde_json::from_str(&end.out).expect("JSON");
            assert_eq!((audits.as_array().map(Vec::len), &audits[0]["schedule"]), (Some(1), &"good".into()), "{audits}");
        }
        assert_eq!(tenure(db, &["schedule", "audit", "good", "none"]).code, 3);
        let backwards = tenure(db, &["schedule", "audit", "good", "--since", "1h", "--until", "2h"]);
        assert!(backwards.code == 2 && backwards.said.contains("ends before it begins"), "{backwards:?}");
        for verb in [&["edit", "bad", "--kind", "y"][..], &["backfill", "bad", "--from", "1d"], &["next", "bad"]] {
            let end = tenure(db, &[&["schedule"], verb].concat());
            assert!(end.code == 2 && end.said.contains("schedule \"bad\""), "{verb:?}: {end:?}");
        }
        done(db, &["schedule", "edit", "bad", "--rule", "@daily"]);
    })
    .await;
}

/// A schedule of each second since New Year, and what is noted of it: twenty runs in February, and a change and a pause before it had its rule.
const HISTORY: &str = "
    select tenure.add_schedule('seconds', '* * * * * *', 'UTC', 'k', '{}');
    update tenure.schedule set changed_at = '2026-01-01Z', ruled_at = '2026-01-01Z', next_at = '2199-01-01Z', look_at = '2199-01-01Z';
    insert into tenure.schedule_run (schedule_id, logical_at, state, job_id)
        select s.id, timestamptz '2026-02-01Z' + n * interval '1 second', 'fired', n from tenure.schedule s, generate_series(1, 20) n;
    insert into tenure.schedule_gap (schedule_id, first_at, last_at, times, reason)
        select s.id, timestamptz '2025-12-30Z' + e.n * interval '1 hour', timestamptz '2025-12-30Z' + e.n * interval '1 hour' + interval '1 minute', e.times, e.reason
        from tenure.schedule s, (values (1, null, 'changed'), (2, null, 'paused'), (3, 61, 'missed')) as e(n, times, reason)";

#[tokio::test(flavor = "multi_thread")]
async fn an_audit_compares_whole_seconds_and_says_what_it_could_not_compare() {
    with_database(async |db| {
        db.sql().await.batch_execute(HISTORY).await.expect("a history");
        let audit = |since: &str, until: &str, more: &[&str]| {
            tenure(db, &[&["schedule", "audit", "--since", since, "--until", until], more].concat())
        };
        let end = audit("2026-02-01T00:00:05.5Z", "2026-02-01T00:00:15.5Z", &["--json"]);
        assert_eq!(end.code, 0, "the time of the second in which it begins came before that: {end:?}");
        let found: Value = serde_json::from_str(&end.out).expect("JSON");
        let facts = (&found[0]["times"], &found[0]["with_job"], &found[0]["compared_from"]);
        assert_eq!(facts, (&10.into(), &10.into(), &"2026-02-01T00:00:05.500Z".into()));
        assert!(!end.said.contains("is compared from"), "{end:?}");

        let range = ("2025-12-30T00:00Z", "2026-01-01T00:00:30Z");
        let end = audit(range.0, range.1, &[]);
        assert!(end.said.contains("\"seconds\" is compared from 2026-01-01T00:00:01.000Z on"), "{end:?}");
        assert!(end.out.contains("missed") && end.out.contains("unexplained"), "{end:?}");
        assert!(!end.out.contains("paused") && !end.out.contains("changed"), "nobody knows of a time in them: {end:?}");
        let found: Value = serde_json::from_str(&audit(range.0, range.1, &["--json"]).out).expect("JSON");
        let reasons: Vec<_> =
            found[0]["left_out"].as_array().expect("a list").iter().map(|out| &out["reason"]).collect();
        assert_eq!(reasons, ["changed", "paused", "missed", "unexplained"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_whose_time_has_not_come_is_no_trouble() {
    with_database(async |db| {
        done(db, &["schedule", "add", "far", "@at 2199-01-01T09:00Z", "k"]);
        let looked = "update tenure.schedule set look_at = clock_timestamp() - interval '1 minute'";
        db.sql().await.batch_execute(looked).await.expect("nobody has looked for a minute");
        assert_eq!(json(db, &["status", "--json"])["troubled_schedules"], json!([]));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn instants_of_jobs_are_shown_in_the_zone_that_was_asked_for() {
    with_database(async |db| {
        let id = done(db, &["enqueue", "k", "1", "--at", "2027-03-29T00:30Z"]).out.trim().to_owned();
        let shown = "2027-03-29T09:30:00.000+09:00[Asia/Tokyo]";
        for verb in [&["list"][..], &["show", &id]] {
            let args = [&["job"], verb, &["--show-zone", "Asia/Tokyo"]].concat();
            assert!(done(db, &args).out.contains(shown), "{args:?}");
        }
        assert!(done(db, &["job", "list"]).out.contains("in "), "from now");
        assert_eq!(tenure(db, &["job", "show", &id, "--show-zone", "Tokyo"]).code, 2);
    })
    .await;
}
