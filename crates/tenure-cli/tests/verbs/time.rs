//! Time as it is typed and shown: instants with zones, waiting jobs at another time, schedules.

use tenure::testing::with_database;

use super::{json, tenure};

#[tokio::test(flavor = "multi_thread")]
async fn an_instant_is_typed_with_a_zone_and_stored_as_an_instant() {
    with_database(async |db| {
        let run_at = |args: &[&str]| {
            let id = json(db, args)["id"].to_string();
            json(db, &["job", "show", &id, "--json"])["run_at"].as_str().expect("an instant").to_owned()
        };
        let enqueue = ["enqueue", "k", "1", "--json", "--at"];
        assert_eq!(run_at(&[&enqueue[..], &["2027-03-29T02:30[Europe/Berlin]"]].concat()), "2027-03-29T00:30:00.000Z");
        let zoned = ["2027-03-29T02:30", "--zone", "America/New_York"];
        assert_eq!(run_at(&[&enqueue[..], &zoned].concat()), "2027-03-29T06:30:00.000Z");
        let end = tenure(db, &["enqueue", "k", "1", "--at", "2027-03-28T02:30[Europe/Berlin]"]);
        assert_eq!(end.code, 0, "{end:?}");
        assert!(end.said.contains("2027-03-28T02:30:00 does not exist in Europe/Berlin"), "{end:?}");
        let id = end.out.trim().to_owned();
        assert_eq!(json(db, &["job", "show", &id, "--json"])["run_at"], "2027-03-28T01:00:00.000Z");

        let end = tenure(db, &["job", "reschedule", &id, "--at", "2027-10-31T02:30", "--zone", "Europe/Berlin"]);
        assert_eq!((end.code, end.out), (0, format!("{id} scheduled\n")));
        assert!(end.said.contains("comes twice"), "{}", end.said);
        assert_eq!(json(db, &["job", "show", &id, "--json"])["run_at"], "2027-10-31T00:30:00.000Z");
        assert_eq!(json(db, &["job", "run", &id, "--json"])[0]["status"], "available");
        assert_eq!(json(db, &["job", "cancel", &id, "--json"])[0]["answer"], "cancelled");
        let ended = tenure(db, &["job", "run", &id]);
        assert_eq!(ended.code, 1);
        assert!(ended.said.contains("is cancelled") && ended.said.contains("requeue it"), "{ended:?}");
        assert_eq!(tenure(db, &["job", "run", "99999999"]).code, 3);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_is_added_changed_paused_run_and_removed() {
    with_database(async |db| {
        let add = ["schedule", "add", "nightly", "30 2 * * *", "report", r#"{"day": "{{logical_date}}"}"#];
        let added =
            tenure(db, &[&add[..], &["--zone", "Europe/Berlin", "--queue", "slow", "--missed", "all"]].concat());
        assert_eq!(added.code, 0, "{added:?}");
        assert!(
            added.out.starts_with("nightly added, first at ") && added.out.contains("[Europe/Berlin]"),
            "{added:?}"
        );
        let again = tenure(db, &[&add[..], &["--zone", "UTC"]].concat());
        assert_eq!(again.code, 1);
        assert!(again.said.contains("there is a schedule \"nightly\" already"), "{again:?}");
        let missing = json(db, &[&add[..], &["--zone", "UTC", "--if-missing", "--json"]].concat());
        assert_eq!(missing["changed"], false);

        let listed = json(db, &["schedule", "list", "--json"]);
        assert_eq!(listed[0]["name"], "nightly");
        assert_eq!((&listed[0]["zone"], &listed[0]["missed_max"]), (&"Europe/Berlin".into(), &100.into()));
        assert!(tenure(db, &["schedule", "list"]).out.contains("nightly"));

        let next = json(db, &["schedule", "next", "nightly", "-n", "2", "--from", "2027-03-27T12:00", "--json"]);
        assert_eq!(
            (&next[0]["at"], &next[1]["at"]),
            (&"2027-03-28T01:00:00.000Z".into(), &"2027-03-29T00:30:00.000Z".into())
        );
        assert!(next[0]["remark"].as_str().expect("a remark").contains("leaves its time out"), "{next}");

        let edited = json(db, &["schedule", "edit", "nightly", "--rule", "@hourly", "--priority", "1", "--json"]);
        assert_eq!(edited["changed"], true);
        assert_eq!(json(db, &["schedule", "edit", "nightly", "--rule", "@hourly", "--json"])["changed"], false);
        let shown = json(db, &["schedule", "show", "nightly", "--json"]);
        let facts = (&shown["rule"], &shown["zone"], &shown["queue"], &shown["priority"], &shown["missed"]);
        assert_eq!(facts, (&"@hourly".into(), &"Europe/Berlin".into(), &"slow".into(), &1.into(), &"all".into()));

        assert_eq!(json(db, &["schedule", "pause", "nightly", "--reason", "moving", "--json"])["changed"], true);
        let paused = tenure(db, &["schedule", "show", "nightly", "--show-zone", "Asia/Tokyo"]);
        assert!(paused.out.contains("moving") && paused.out.contains("[Asia/Tokyo]"), "{paused:?}");
        let id = json(db, &["schedule", "run", "nightly", "--json"])["id"].to_string();
        let job = json(db, &["job", "show", &id, "--json"]);
        assert_eq!((&job["queue"], &job["kind"], &job["priority"]), (&"slow".into(), &"report".into(), &1.into()));
        assert_eq!(json(db, &["schedule", "show", "nightly", "--json"])["recent"][0]["state"], "by hand");
        assert_eq!(json(db, &["schedule", "resume", "nightly", "--json"])["changed"], true);
        assert_eq!(tenure(db, &["schedule", "remove", "nightly"]).out, "nightly removed\n");
        for verb in ["show", "next", "pause", "resume", "remove", "run", "edit"] {
            let end = tenure(db, &["schedule", verb, "nightly"]);
            assert_eq!(end.code, 3, "{verb}: {end:?}");
            assert!(end.said.contains("there is no schedule \"nightly\""), "{verb}: {end:?}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preview_shows_times_and_policies_and_asks_no_database() {
    with_database(async |db| {
        let preview = |args: &[&str]| {
            let args = [&["schedule", "preview"], args, &["--json"]].concat();
            json(db, &args)
        };
        let shown = preview(&[
            "30 2 * * *",
            "--zone",
            "Europe/Berlin",
            "--from",
            "2027-03-27T12:00",
            "-n",
            "1",
            "--gap",
            "skip",
        ]);
        assert_eq!(shown["times"][0]["local"], "2027-03-29T02:30:00.000+02:00[Europe/Berlin]");
        assert!(shown["policies"][0].as_str().expect("words").contains("leaves out: does not run"), "{shown}");
        let twice = preview(&[
            "30 2 * * *",
            "--zone",
            "Europe/Berlin",
            "--from",
            "2027-10-30T12:00",
            "-n",
            "2",
            "--twice",
            "both",
        ]);
        assert_eq!(twice["times"][1]["at"], "2027-10-31T01:30:00.000Z");
        assert!(twice["times"][1]["remark"].as_str().expect("a remark").contains("the second"), "{twice}");
        let end = tenure(db, &["schedule", "preview", "@every 90s", "-n", "3"]);
        assert_eq!((end.code, end.out.lines().count()), (0, 3), "{end:?}");
        assert!(end.said.contains("missed times: the latest runs"), "{end:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_about_time_is_named_with_the_way_out() {
    let add = ["schedule", "add", "n"];
    let cases: &[(&[&str], &[&str])] = &[
        (&["enqueue", "k", "1", "--at", "2027-03-29T02:30"], &["has no time zone", "--zone"]),
        (&["enqueue", "k", "1", "--at", "2027-03-29T02:30", "--zone", "Berlin"], &["\"Berlin\" is not a time zone"]),
        (&["enqueue", "k", "1", "--at", "2027-03-29"], &["a date without a time"]),
        (&["job", "reschedule", "1"], &["--at", "--in"]),
        (&["job", "reschedule", "1", "--in", "4000d"], &["longer than 10 years"]),
        (&["schedule", "preview", "61 2 * * *", "--zone", "UTC"], &["minute 61 is outside 0-59"]),
        (&["schedule", "preview", "0 0 30 2 *", "--zone", "UTC"], &["would never run"]),
        (&["schedule", "preview", "30 2 * * *"], &["no time zone is given", "--zone Europe/Berlin"]),
        (&["schedule", "preview", "@daily", "--zone", "UTC", "-n", "0"], &["\"0\" is not a number from 1 to 1000"]),
        (&["schedule", "preview", "@daily", "--zone", "UTC", "--overlap", "x"], &["use allow, skip, queue or cancel"]),
        (&["schedule", "preview", "@daily", "--zone", "UTC", "--gap", "x"], &["use next or skip"]),
        (&["schedule", "preview", "@daily", "--zone", "UTC", "--missed", "x"], &["skip, latest, all"]),
        (&["schedule", "preview", "@daily", "--zone", "UTC", "--missed-max", "3"], &["--missed"]),
        (&[add[0], add[1], add[2], "@every 0.5s", "k"], &["\"0.5s\" is not a duration"]),
        (&[add[0], add[1], add[2], "@daily", "k", "{{", "--zone", "UTC"], &["not JSON"]),
        (&[add[0], add[1], add[2], "@daily", "k", "\"{{day}}\"", "--zone", "UTC"], &["{{day}} stands for nothing"]),
        (&[add[0], add[1], "", "@daily", "k", "--zone", "UTC"], &["schedule name is empty"]),
        (&[add[0], add[1], add[2], "@daily", "k", "--zone", "UTC", "--jitter", "2d"], &["longer than a day"]),
        (
            &[add[0], add[1], add[2], "@daily", "k", "--zone", "UTC", "--start", "soon"],
            &["--start", "is not an instant"],
        ),
    ];
    with_database(async |db| {
        for (args, parts) in cases {
            let end = tenure(db, args);
            assert_eq!((end.code, end.out.as_str()), (2, ""), "{args:?}: {end:?}");
            parts
                .iter()
                .for_each(|part| assert!(end.said.contains(part), "{args:?} does not say {part:?}: {}", end.said));
        }
        assert_eq!(json(db, &["schedule", "list", "--json"]).as_array().expect("a list").len(), 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backfill_is_counted_begun_shown_and_cancelled() {
    with_database(async |db| {
        let add = ["schedule", "add", "hourly", "@hourly", "report", "--zone", "UTC"];
        assert_eq!(tenure(db, &add).code, 0);
        let range = ["schedule", "backfill", "hourly", "--from", "2026-01-01T00:00", "--to", "2026-01-01T05:30"];
        let dry = json(db, &[&range[..], &["--dry-run", "--json"]].concat());
        assert_eq!((&dry["times"], &dry["ran"], &dry["to_run"]), (&6.into(), &0.into(), &6.into()));
        assert_eq!(dry["last_at"], "2026-01-01T05:00:00.000Z");
        let words = tenure(db, &[&range[..], &["--dry-run"]].concat());
        assert!(words.out.contains("would run  6"), "{words:?}");
        assert_eq!(json(db, &["backfill", "list", "--json"]).as_array().expect("a list").len(), 0);

        let id = json(db, &[&range[..], &["--newest-first", "--at-once", "2", "--by", "me", "--json"]].concat())["id"]
            .to_string();
        let shown = json(db, &["backfill", "show", &id, "--json"]);
        assert_eq!(
            (&shown["state"], &shown["times"], &shown["newest_first"]),
            (&"active".into(), &6.into(), &true.into())
        );
        assert_eq!((&shown["at_once"], &shown["priority"], &shown["created_by"]), (&2.into(), &4.into(), &"me".into()));
        assert!(tenure(db, &["backfill", "list", "--schedule", "hourly"]).out.contains("0/6"));
        assert!(tenure(db, &["backfill", "show", &id]).out.contains("newest first"));
        assert_eq!(json(db, &["backfill", "cancel", &id, "--json"])["changed"], true);
        assert_eq!(tenure(db, &["backfill", "cancel", &id]).out, format!("backfill {id} had ended before\n"));
        assert_eq!(json(db, &["backfill", "show", &id, "--json"])["state"], "cancelled");
        assert_eq!(tenure(db, &["backfill", "show", &id, "--wait"]).code, 1, "it was cancelled");

        for (args, code, words) in [
            (&["backfill", "show", "999"][..], 3, "there is no backfill 999"),
            (&["backfill", "cancel", "999"], 3, "there is no backfill 999"),
            (&["schedule", "backfill", "none", "--from", "1d"], 3, "there is no schedule \"none\""),
            (&["schedule", "backfill", "hourly", "--from", "soon"], 2, "--from"),
            (&["schedule", "backfill", "hourly", "--from", "1d", "--to", "2199-01-01T00:00"], 2, "lies ahead"),
            (&["schedule", "backfill", "hourly", "--from", "2000-01-01T00:00"], 2, "more than 100000 times"),
            (&["schedule", "backfill", "hourly", "--from", "1d", "--at-once", "0"], 2, "1 to 1000"),
        ] {
            let end = tenure(db, args);
            assert!(end.code == code && end.said.contains(words), "{args:?}: {end:?}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_audit_that_was_cut_says_so_and_vouches_for_nothing() {
    with_database(async |db| {
        assert_eq!(tenure(db, &["schedule", "add", "each second", "* * * * * *", "report", "--zone", "UTC"]).code, 0);
        let paused = "update tenure.schedule set ruled_at = clock_timestamp() - interval '3 days', changed_at = clock_timestamp() - interval '3 days';
            insert into tenure.schedule_gap (schedule_id, first_at, last_at, reason)
                select id, clock_timestamp() - interval '3 days', clock_timestamp() + interval '1 hour', 'paused' from tenure.schedule";
        db.sql().await.batch_execute(paused).await.expect("paused all the time");
        let whole = tenure(db, &["schedule", "audit", "--since", "1h"]);
        assert!(whole.code == 0 && !whole.said.contains("too many times"), "{whole:?}");
        let cut = tenure(db, &["schedule", "audit", "--since", "2d"]);
        assert!(cut.code == 1 && cut.said.contains("too many times") && cut.said.contains("hence exit code 1"), "{cut:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_audit_exits_with_1_when_a_time_is_missing_and_status_names_schedules_that_do_not_fire() {
    with_database(async |db| {
        let add = ["schedule", "add", "minutely", "* * * * *", "report", "--zone", "UTC"];
        assert_eq!(tenure(db, &add).code, 0);
        let new = tenure(db, &["schedule", "audit"]);
        assert!(new.code == 0 && new.said.contains("no time was compared"), "it has just been added: {new:?}");
        let sql = db.sql().await;
        let older = "update tenure.schedule set ruled_at = clock_timestamp() - interval '1 hour', changed_at = clock_timestamp() - interval '1 hour',
            look_at = clock_timestamp() - interval '1 hour'";
        sql.batch_execute(older).await.expect("older");
        let end = tenure(db, &["schedule", "audit", "minutely", "--since", "30m"]);
        assert!(end.code == 1 && end.out.contains("overdue") && end.out.contains("nobody has fired it yet"), "{end:?}");
        let audits = tenure(db, &["schedule", "audit", "--since", "30m", "--json"]);
        let audits: serde_json::Value = serde_json::from_str(&audits.out).expect("JSON");
        let out = &audits[0]["left_out"][0];
        assert_eq!((&out["reason"], &out["missing"], &audits[0]["with_job"]), (&"overdue".into(), &true.into(), &0.into()));
        let status = tenure(db, &["status"]);
        assert!(status.out.contains("minutely") && status.out.contains("overdue"), "{status:?}");

        let gap = "insert into tenure.schedule_gap (schedule_id, first_at, last_at, reason)
                select id, clock_timestamp() - interval '2 hours', clock_timestamp() + interval '1 hour', 'paused' from tenure.schedule;
            update tenure.schedule set error = 'no such zone', error_at = clock_timestamp()";
        sql.batch_execute(gap).await.expect("a gap");
        let end = tenure(db, &["schedule", "audit", "--since", "30m"]);
        assert!(end.code == 0 && end.out.contains("paused"), "{end:?}");
        let status = json(db, &["status", "--json"]);
        assert_eq!(status["troubled_schedules"][0]["state"], "failing");
        assert!(tenure(db, &["status"]).out.contains("no such zone"));
        assert_eq!(tenure(db, &["schedule", "audit", "none"]).code, 3);
        assert_eq!(tenure(db, &["schedule", "audit", "--since", "2026-01-01T00:00"]).code, 2, "it has no zone");
    })
    .await;
}
