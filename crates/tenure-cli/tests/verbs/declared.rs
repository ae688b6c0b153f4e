//! Schedules out of files: a TOML file that declares them, a crontab that is imported.

use std::path::PathBuf;

use serde_json::json;
use tenure::testing::{TestDatabase, with_database};

use super::{json, tenure, tenure_with};

/// A file of this test's own, gone with it.
struct TextFile(PathBuf);

impl TextFile {
    fn new(db: &TestDatabase, name: &str, text: &str) -> TextFile {
        let path = std::env::temp_dir().join(format!("{}-{name}", db.name()));
        std::fs::write(&path, text).expect("a file");
        TextFile(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("a path")
    }
}

impl Drop for TextFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

const FIRST: &str = r#"
owner = "billing"
zone = "Europe/Berlin"

[schedule.nightly]
rule = "30 2 * * *"
kind = "report"
payload = { day = "{{logical_date}}" }

[schedule.old]
rule = "@daily"
kind = "k"
"#;

const SECOND: &str = r#"
owner = "billing"
zone = "Europe/Berlin"

[schedule.nightly]
rule = "30 3 * * *"
kind = "report"
payload = { day = "{{logical_date}}" }
jitter = "5m"
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_synchronised_after_its_changes_were_shown() {
    with_database(async |db| {
        let file = TextFile::new(db, "s.toml", FIRST);
        let sync = ["schedule", "sync", file.path()];
        let shown = tenure(db, &[&sync[..], &["--dry-run"]].concat());
        assert_eq!((shown.code, shown.out.as_str()), (0, "+ nightly\n+ old\n"), "{shown:?}");
        let unconfirmed = tenure(db, &sync);
        assert_eq!(unconfirmed.code, 2);
        assert!(unconfirmed.said.contains("--yes"), "{unconfirmed:?}");
        assert_eq!(json(db, &["schedule", "list", "--json"]), json!([]), "nothing was done");
        let done = json(db, &[&sync[..], &["--yes", "--json"]].concat());
        assert_eq!((&done["done"], &done["added"]), (&true.into(), &json!(["nightly", "old"])));
        let again = json(db, &[&sync[..], &["--json"]].concat());
        assert_eq!((&again["done"], &again["unchanged"]), (&false.into(), &2.into()), "nothing to confirm");

        std::fs::write(&file.0, SECOND).expect("written");
        let shown = tenure(db, &[&sync[..], &["--yes"]].concat());
        let expected = "~ nightly\n    jitter: 0ms -> 5m\n    rule: 30 2 * * * -> 30 3 * * *\n- old\n";
        assert_eq!((shown.code, shown.out.as_str()), (0, expected), "{shown:?}");
        assert!(shown.said.contains("0 added, 1 changed, 1 removed, 0 as declared"), "{shown:?}");
        let nightly = json(db, &["schedule", "show", "nightly", "--json"]);
        assert_eq!((&nightly["declared_by"], &nightly["rule"]), (&"billing".into(), &"30 3 * * *".into()));

        let listed = tenure(db, &["schedule", "list"]).out;
        assert!(listed.contains("DECLARED BY") && listed.contains("billing"), "{listed}");
        let edited = tenure(db, &["schedule", "edit", "nightly", "--priority", "1"]);
        assert!(edited.code == 0 && edited.said.contains("is declared by \"billing\", whose next sync"), "{edited:?}");
        let removed = tenure(db, &["schedule", "remove", "nightly"]);
        assert!(removed.code == 0 && removed.said.contains("next sync adds it again"), "{removed:?}");
        assert_eq!(json(db, &[&sync[..], &["--yes", "--json"]].concat())["added"], json!(["nightly"]));

        let other = tenure(db, &[&sync[..], &["--owner", "other", "--yes"]].concat());
        assert_eq!(other.code, 1);
        assert!(other.said.contains("is declared by \"billing\"") && other.said.contains("another name"), "{other:?}");
        std::fs::write(&file.0, "owner = \"billing\"\n").expect("written");
        let empty = tenure(db, &[&sync[..], &["--yes"]].concat());
        assert_eq!(empty.code, 2);
        assert!(empty.said.contains("--allow-empty"), "{empty:?}");
        assert_eq!(
            json(db, &[&sync[..], &["--yes", "--allow-empty", "--json"]].concat())["removed"],
            json!(["nightly"])
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_in_a_file_is_named_with_file_line_and_way_out() {
    with_database(async |db| {
        let file = TextFile::new(db, "wrong.toml", "");
        for (text, parts) in [
            (
                "owner = \"o\"\n[schedule.n]\nrule = \"@daily\"\nkind = \"k\"\nquue = \"x\"\n",
                ["wrong.toml:5", "unknown field `quue`"],
            ),
            (
                "owner = \"o\"\n\n[schedule.n]\nrule = \"@daily\"\nkind = \"k\"\n",
                ["wrong.toml:3", "zone = \"Europe/Berlin\""],
            ),
            ("zone = \"UTC\"\n[schedule.n]\nrule = \"@daily\"\nkind = \"k\"\n", ["names no owner", "--owner"]),
            (
                "owner = \"o\"\nzone = \"UTC\"\n[schedule.n]\nrule = \"61 * * * *\"\nkind = \"k\"\n",
                ["wrong.toml:3", "minute 61"],
            ),
        ] {
            std::fs::write(&file.0, text).expect("written");
            let end = tenure(db, &["schedule", "sync", file.path(), "--yes"]);
            assert_eq!((end.code, end.out.as_str()), (2, ""), "{end:?}");
            parts.iter().for_each(|part| assert!(end.said.contains(part), "{part} in {}", end.said));
        }
        let end = tenure(db, &["schedule", "sync", "/nowhere.toml", "--yes"]);
        assert!(end.code == 2 && end.said.contains("/nowhere.toml"), "{end:?}");
    })
    .await;
}

const CRONTAB: &str = "\
# what runs here
PATH=/usr/bin:/bin
30 2 * * *  /opt/backup.sh --full {{x}}
@reboot     /opt/start
CRON_TZ=Asia/Tokyo
@daily      mail ada%hello
61 * * * *  /bin/wrong
";

#[tokio::test(flavor = "multi_thread")]
async fn a_crontab_becomes_schedules_and_what_does_not_says_why() {
    with_database(async |db| {
        let file = TextFile::new(db, "crontab", CRONTAB);
        let import = ["schedule", "import", "--from", "crontab", file.path(), "--kind", "shell"];
        let no_zone = tenure(db, &[&import[..], &["--dry-run"]].concat());
        assert!(no_zone.code == 2 && no_zone.said.contains("--zone"), "{no_zone:?}");
        let import = [&import[..], &["--zone", "Europe/Berlin"]].concat();
        let shown = tenure(db, &[&import[..], &["--dry-run"]].concat());
        assert_eq!(shown.code, 1, "two lines cannot become schedules: {shown:?}");
        for part in [
            "+ backup.sh (line 3): 30 2 * * * in Europe/Berlin\n",
            "! line 4 stays: @reboot is no time",
            "+ mail (line 6): @daily in Asia/Tokyo\n",
            "! line 7 stays: \"61 * * * *\" is not a cron line: minute 61",
        ] {
            assert!(shown.out.contains(part), "{part} in {}", shown.out);
        }
        assert_eq!(tenure(db, &import).code, 2, "nobody said yes");
        let done = tenure(db, &[&import[..], &["--yes", "--json"]].concat());
        assert_eq!(done.code, 1, "{done:?}");
        let done = json_of(&done.out);
        assert_eq!(done["done"], true);
        assert_eq!(done["entries"].as_array().map(Vec::len), Some(4));
        let shown = json(db, &["schedule", "show", "backup.sh", "--json"]);
        let payload = json!({ "command": "/opt/backup.sh --full {{{{x}}", "env": { "PATH": "/usr/bin:/bin" } });
        assert_eq!((&shown["kind"], &shown["payload"]), (&"shell".into(), &payload));
        let job = json(db, &["schedule", "run", "backup.sh", "--json"])["id"].to_string();
        assert_eq!(json(db, &["job", "show", &job, "--json"])["payload"]["command"], "/opt/backup.sh --full {{x}}");
        let prefixed = tenure(db, &[&import[..], &["--yes", "--json", "--prefix", "b-"]].concat());
        assert_eq!(json_of(&prefixed.out)["done"], true, "{prefixed:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crontab_is_imported_again_and_only_what_was_added_to_it_becomes_a_schedule() {
    with_database(async |db| {
        let import = |crontab: &str, more: &[&str]| {
            let args =
                ["schedule", "import", "--from", "crontab", "-", "--kind", "shell", "--zone", "UTC", "--yes"];
            tenure_with(db, &[&args[..], more].concat(), crontab)
        };
        let (a, b, c) = ("0 1 * * * ./job a\n", "0 2 * * * ./job b\n", "0 3 * * * ./job c\n");
        let first = import(&format!("{a}{b}"), &[]);
        assert_eq!((first.code, first.out.lines().count()), (0, 2), "{first:?}");
        // One line more, above the others: those keep their names.
        let second = import(&format!("{c}{a}{b}"), &[]);
        let expected = "+ job-3 (line 1): 0 3 * * * in UTC\n= job (line 2): 0 1 * * * in UTC\n= job-2 (line 3): 0 2 * * * in UTC\n";
        assert_eq!((second.code, second.out.as_str()), (0, expected), "{second:?}");
        assert!(second.said.contains("1 become schedules, 2 are schedules already, 0 stay"), "{second:?}");
        let third = import(&format!("{c}{a}{b}"), &["--json"]);
        assert_eq!((third.code, &json_of(&third.out)["done"]), (0, &false.into()), "there is nothing to do: {third:?}");
        // One line is another: its schedule is left as it is, and the line stays.
        let edited = import(&format!("{}{b}{c}", a.replace('1', "5")), &[]);
        assert_eq!(edited.code, 1, "{edited:?}");
        assert!(edited.out.contains("! line 1 stays: there is a schedule \"job\" that says something else"), "{edited:?}");
        assert_eq!(json(db, &["schedule", "show", "job", "--json"])["rule"], "0 1 * * *");
        // A schedule and its line are removed: what comes behind them in number is known all the same.
        let removed = tenure(db, &["schedule", "remove", "job-2"]);
        assert_eq!(removed.code, 0, "{removed:?}");
        let fewer = import(&format!("{a}{c}"), &[]);
        let expected = "= job (line 1): 0 1 * * * in UTC\n= job-3 (line 2): 0 3 * * * in UTC\n";
        assert_eq!((fewer.code, fewer.out.as_str()), (0, expected), "{fewer:?}");
        let none = import("@reboot ./start\n61 * * * * ./wrong\n", &[]);
        assert!(none.code == 1 && none.said.contains("0 become schedules"), "{none:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_without_pg_cron_says_what_to_do() {
    with_database(async |db| {
        let end = tenure(db, &["schedule", "check-pg-cron"]);
        assert_eq!(end.code, 1, "{end:?}");
        assert!(end.out.contains("extension") && end.out.contains("tick() was never called"), "{end:?}");
        let checks = json_of(&tenure(db, &["schedule", "check-pg-cron", "--json"]).out);
        assert!(checks.as_array().is_some_and(|checks| checks.len() > 5), "{checks}");
        let end = tenure(db, &["schedule", "import", "--from", "pg_cron", "--dry-run"]);
        assert_eq!(end.code, 1);
        assert!(end.said.contains("has no pg_cron") && end.said.contains("cron.database_name"), "{end:?}");
        let usage = tenure(db, &["schedule", "import", "--from", "crontab"]);
        assert!(usage.code == 2 && usage.said.contains("name it"), "{usage:?}");
    })
    .await;
}

/// What stands in for pg_cron: its table, and how it removes an entry.
const STAND_IN: &str = "create schema cron;
    create table cron.job (jobid bigint, jobname text, schedule text, command text, database text, username text, active boolean);
    create function cron.unschedule(p_job bigint) returns boolean language sql as 'delete from cron.job where jobid = p_job returning true';
    insert into cron.job select n, name, schedule, command, coalesce(database, current_database()), current_user, active from (values
        (1, 'nightly', '30 2 * * *', 'select tenure.enqueue(''report'', ''{\"full\": true}'', ''slow'')', null, true),
        (2, null, '30 seconds', 'select tenure.enqueue(''ping'', ''{}'')', null, true),
        (3, 'tenure', '* * * * *', 'select tenure.tick()', null, true),
        (4, 'computed', '0 3 * * *', 'select tenure.enqueue(''report'', json_build_object(''day'', current_date))', null, true),
        (5, 'off', '0 3 * * *', 'select tenure.enqueue(''k'', ''{}'')', null, false),
        (6, 'elsewhere', '0 3 * * *', 'select tenure.enqueue(''k'', ''{}'')', 'other', true),
        (7, 'vacuum', '0 3 * * *', 'vacuum', null, true)) as e(n, name, schedule, command, database, active)";

#[tokio::test(flavor = "multi_thread")]
async fn pg_crons_entries_that_enqueue_plain_values_move_and_the_others_say_why_not() {
    with_database(async |db| {
        db.sql().await.batch_execute(STAND_IN).await.expect("a stand-in for pg_cron");
        let import = ["schedule", "import", "--from", "pg_cron", "--zone", "GMT"];
        let no_zone = tenure(db, &import[..4]);
        assert!(no_zone.code == 2 && no_zone.said.contains("cron.timezone"), "{no_zone:?}");
        let done = tenure(db, &[&import[..], &["--yes", "--json"]].concat());
        assert_eq!(done.code, 1, "some cannot move: {done:?}");
        let done = json_of(&done.out);
        let entries = done["entries"].as_array().expect("entries");
        assert_eq!(entries.len(), 7, "none is dropped");
        assert_eq!(entries[0]["schedule"], json!({ "name": "nightly", "rule": "30 2 * * *", "zone": "UTC" }));
        assert_eq!(entries[1]["schedule"], json!({ "name": "pg_cron-2", "rule": "@every 30s", "zone": "UTC" }));
        let reasons =
            ["calls tick()", "computed when it runs", "switched off", "in database \"other\"", "more or other than"];
        for (entry, reason) in entries[2..].iter().zip(reasons) {
            assert!(entry["stays_because"].as_str().is_some_and(|why| why.contains(reason)), "{reason}: {entry}");
        }
        let nightly = json(db, &["schedule", "show", "nightly", "--json"]);
        assert_eq!((&nightly["queue"], &nightly["payload"]), (&"slow".into(), &json!({ "full": true })));
        let left =
            db.sql().await.query_one("select string_agg(jobid::text, ' ' order by jobid) from cron.job", &[]).await;
        assert_eq!(left.expect("entries").get::<_, &str>(0), "3 4 5 6 7");

        // An entry that was left where it is when its schedule was added goes the next time; the one that calls tick is to stay.
        let again = "insert into cron.job values (1, 'nightly', '30 2 * * *', 'select tenure.enqueue(''report'', ''{\"full\": true}'', ''slow'')', current_database(), current_user, true);
            delete from cron.job where jobid > 3";
        db.sql().await.batch_execute(again).await.expect("the entry");
        // Not while its schedule is paused: nothing would do its work.
        assert_eq!(tenure(db, &["schedule", "pause", "nightly"]).code, 0);
        let end = tenure(db, &[&import[..], &["--yes"]].concat());
        assert_eq!(end.code, 1, "{end:?}");
        assert!(end.out.contains("! entry 1 stays: its schedule \"nightly\" is paused"), "{end:?}");
        let left = db.sql().await.query_one("select string_agg(jobid::text, ' ' order by jobid) from cron.job", &[]).await;
        assert_eq!(left.expect("entries").get::<_, &str>(0), "1 3");
        assert_eq!(tenure(db, &["schedule", "resume", "nightly"]).code, 0);
        let nobody = tenure(db, &import);
        assert!(nobody.code == 2 && nobody.said.contains("would remove 1 entry of pg_cron:"), "{nobody:?}");
        let end = tenure(db, &[&import[..], &["--yes"]].concat());
        assert_eq!(end.code, 0, "{end:?}");
        assert!(end.out.contains("= nightly (entry 1)") && end.out.contains("! entry 3 stays: it calls tick()"), "{end:?}");
        let left = db.sql().await.query_one("select string_agg(jobid::text, ' ') from cron.job", &[]).await;
        assert_eq!(left.expect("entries").get::<_, &str>(0), "3");
    })
    .await;
}

fn json_of(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}
