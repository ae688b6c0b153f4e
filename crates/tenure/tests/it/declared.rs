//! Schedules that are declared together: what a sync changes, and what it leaves alone.

use std::time::Duration;

use tenure::testing::{until, with_database};
use tenure::{
    Client, Context, Enqueue, ErrorCode, Fail, KindOptions, Missed, RawJson, Rule, Schedule, ScheduleInfo, Schedules,
    Worker,
};

fn schedule(name: &str, rule: &str, payload: &str) -> Schedule {
    Schedule::new(name, Rule::new(rule, "UTC").unwrap(), Enqueue::raw("k", RawJson::parse(payload).unwrap()))
}

fn ours() -> Schedules {
    Schedules::new("billing").add(schedule("kept", "@daily", "{}")).add(schedule("edited", "@daily", "1"))
}

async fn info(client: &Client, name: &str) -> ScheduleInfo {
    client.schedule(name).await.unwrap().unwrap_or_else(|| panic!("there is no {name}"))
}

#[tokio::test]
async fn a_sync_adds_changes_and_removes_what_its_owner_declared_and_nothing_else() {
    with_database(async |db| {
        let client = db.client().await;
        client.add_schedule(&schedule("by hand", "@daily", "{}")).await.unwrap();
        client.sync_schedules(&Schedules::new("other").add(schedule("foreign", "@daily", "{}"))).await.unwrap();
        let first = client.sync_schedules(&ours().add(schedule("old", "@daily", "{}"))).await.unwrap();
        assert_eq!((first.added, first.unchanged), (vec!["edited".into(), "kept".into(), "old".into()], 0));
        // Maintenance has computed a time meanwhile, and an operator has paused one.
        let set = "update tenure.schedule set next_at = '2030-01-01Z', look_at = '2030-01-01Z'";
        db.sql().await.execute(set, &[]).await.unwrap();
        client.pause_schedule("edited", Some("ada"), Some("moving")).await.unwrap();
        let before = info(&client, "kept").await;

        let now = Schedules::new("billing")
            .add(schedule("kept", "@daily", "{}"))
            .add(schedule("edited", "@daily", "2").jitter(Duration::from_secs(60)).missed(Missed::Skip))
            .add(schedule("new", "@daily", "{}"));
        let shown = client.sync_schedules_preview(&now).await.unwrap();
        assert_eq!(
            (&shown.added[..], &shown.removed[..], shown.unchanged),
            (&["new".to_owned()][..], &["old".to_owned()][..], 1)
        );
        let fields: Vec<String> =
            shown.changed[0].fields.iter().map(|field| format!("{} {} {}", field.field, field.was, field.is)).collect();
        assert_eq!(fields, ["jitter_ms 0 60000", "missed \"latest\" \"skip\"", "payload \"1\" \"2\""]);
        assert_eq!(client.schedules(None, None).await.unwrap().len(), 5, "a preview changes nothing");

        let done = client.sync_schedules_as_shown(&now, &shown.basis).await.unwrap();
        assert_eq!(done, shown);
        let names: Vec<String> = client.schedules(None, None).await.unwrap().into_iter().map(|s| s.name).collect();
        assert_eq!(names, ["by hand", "edited", "foreign", "kept", "new"]);
        let (kept, edited) = (info(&client, "kept").await, info(&client, "edited").await);
        assert_eq!((kept.version, kept.next_at, kept.declared_by.as_deref()), (1, before.next_at, Some("billing")));
        assert_eq!(
            (edited.state.as_str(), edited.paused_by.as_deref(), edited.payload.get()),
            ("paused", Some("ada"), "2")
        );
        assert_eq!((info(&client, "foreign").await.version, info(&client, "by hand").await.declared_by), (1, None));
        assert!(client.sync_schedules(&now).await.unwrap().is_empty(), "the second time nothing changes");
        assert_eq!(info(&client, "edited").await.version, edited.version);
    })
    .await;
}

#[tokio::test]
async fn a_name_that_belongs_to_somebody_else_is_refused_and_what_was_added_by_hand_can_be_taken_over() {
    with_database(async |db| {
        let client = db.client().await;
        client.add_schedule(&schedule("edited", "@daily", "1")).await.unwrap();
        let error = client.sync_schedules(&ours()).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Refused);
        assert!(error.to_string().contains("schedule \"edited\" was added by hand"), "{error}");
        assert!(error.help().unwrap().contains("--adopt"), "{error:?}");
        assert!(client.schedule("kept").await.unwrap().is_none(), "all or nothing");

        let done = client.sync_schedules(&ours().adopt(true)).await.unwrap();
        assert_eq!(
            (done.adopted, done.added, done.changed.len()),
            (vec!["edited".to_owned()], vec!["kept".to_owned()], 0)
        );
        assert_eq!(info(&client, "edited").await.version, 1, "it is as it was declared");
        let other = Schedules::new("other").add(schedule("kept", "@daily", "{}")).adopt(true);
        let error = client.sync_schedules(&other).await.unwrap_err();
        assert!(error.to_string().contains("schedule \"kept\" is declared by \"billing\""), "{error}");
    })
    .await;
}

#[tokio::test]
async fn what_was_shown_is_what_is_done_or_nothing() {
    with_database(async |db| {
        let client = db.client().await;
        let shown = client.sync_schedules_preview(&ours()).await.unwrap();
        client.add_schedules(&[schedule("edited", "@hourly", "{}")]).await.unwrap();
        let error = client.sync_schedules_as_shown(&ours().adopt(true), &shown.basis).await.unwrap_err();
        assert!(error.code() == ErrorCode::Refused && error.to_string().contains("not any more"), "{error}");
        assert!(client.schedule("kept").await.unwrap().is_none());
        // One value that the database refuses undoes all.
        let twice = client.add_schedules(&[schedule("a", "@daily", "{}"), schedule("edited", "@daily", "{}")]).await;
        assert!(twice.unwrap_err().to_string().contains("\"edited\" already"));
        assert!(client.schedule("a").await.unwrap().is_none());
        let wrong = "select tenure.sync_schedules('o', '[{\"name\": \"n\", \"rule\": \"@daily\", \"zone\": \"UTC\", \"kind\": \"k\", \"priority\": 9}]')";
        let error = db.sql().await.query(wrong, &[]).await.unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!((error.code().code(), error.message()), ("TN002", "schedule \"n\": priority 9 is outside 1 to 4"));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_that_declare_the_same_at_once_one_adds_and_the_others_find_it_so() {
    with_database(async |db| {
        let client = db.client().await;
        let calls = (0..8).map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.sync_schedules(&ours()).await })
        });
        let mut added = 0;
        for call in calls.collect::<Vec<_>>() {
            added += call.await.unwrap().unwrap().added.len();
        }
        assert_eq!(added, 2);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_declares_its_schedules_before_it_works() {
    with_database(async |db| {
        let client = db.client().await;
        let declared = |rule: &str| Schedules::new("worker").add(schedule("each", rule, "{}"));
        let worker = |declared: Schedules| {
            let handler = |_: Context, _: RawJson| async { Ok::<_, Fail>(None) };
            Worker::builder(db.url())
                .queue("default", 1)
                .handle_raw("k", KindOptions::new(), handler)
                .schedules(declared)
        };
        let _first = worker(declared("@every 1s")).start().await.unwrap();
        assert_eq!(info(&client, "each").await.declared_by.as_deref(), Some("worker"));
        until("it runs", async || info(&client, "each").await.runs > 0).await;
        let _second = worker(declared("@yearly")).start().await.unwrap();
        assert_eq!(info(&client, "each").await.rule, "@yearly");
        let error = worker(Schedules::new("worker")).start().await.err().expect("refused");
        assert!(error.to_string().contains("\"worker\" declares no schedule"), "{error}");
    })
    .await;
}

#[tokio::test]
async fn an_edit_that_comes_in_between_is_not_overwritten() {
    with_database(async |db| {
        let client = db.client().await;
        client.sync_schedules(&ours().add(schedule("old", "@daily", "{}"))).await.unwrap();
        let mut operator = db.sql().await;
        let look = db.sql().await;
        for name in ["edited", "old"] {
            // Not committed when the sync compares.
            let tx = operator.transaction().await.unwrap();
            let edit = "select tenure.edit_schedule($1, version, '@yearly', 'UTC', 'k', '{}') from tenure.schedule where name = $1";
            tx.query(edit, &[&name]).await.unwrap();
            // One is declared in another way, or not at all.
            let ours = Schedules::new("billing").add(schedule("kept", "@daily", "{}"));
            let declared = match name {
                "edited" => ours.add(schedule("edited", "@hourly", "2")).add(schedule("old", "@daily", "{}")),
                _ => ours.add(schedule("edited", "@yearly", "{}")),
            };
            let sync = tokio::spawn({
                let client = client.clone();
                async move { client.sync_schedules(&declared).await }
            });
            until("the sync waits for the row", async || {
                let waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
                look.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) == 1
            })
            .await;
            tx.commit().await.unwrap();
            let error = sync.await.unwrap().unwrap_err();
            let words = format!("schedule \"{name}\" was changed by somebody else just now");
            assert!(error.code() == ErrorCode::Refused && error.to_string().contains(&words), "{error}");
            assert_eq!(info(&client, name).await.rule, "@yearly");
        }
    })
    .await;
}

#[tokio::test]
async fn a_thousand_are_declared_together_and_no_more() {
    with_database(async |db| {
        let client = db.client().await;
        let many = |count: usize| (0..count).fold(Schedules::new("many"), |all, n| all.add(schedule(&format!("s{n}"), "@daily", "{}")));
        assert_eq!(client.sync_schedules(&many(1_000)).await.unwrap().added.len(), 1_000);
        let error = client.sync_schedules(&many(1_001)).await.unwrap_err();
        assert!(error.code() == ErrorCode::BadInput && error.to_string().contains("1001 schedules at once are more than 1000"), "{error}");
        // What goes is part of what was shown.
        let few = many(998);
        let shown = client.sync_schedules_preview(&few).await.unwrap();
        assert_eq!(shown.removed, ["s998", "s999"]);
        let edit = "select tenure.edit_schedule('s999', version, '@yearly', 'UTC', 'k', '{}') from tenure.schedule where name = 's999'";
        db.sql().await.query(edit, &[]).await.unwrap();
        assert_eq!(client.sync_schedules_as_shown(&few, &shown.basis).await.unwrap_err().code(), ErrorCode::Refused);
    })
    .await;
}

#[tokio::test]
async fn a_definition_that_is_none_is_refused_with_its_name_or_place_and_the_value() {
    with_database(async |db| {
        let sql = db.sql().await;
        let check = async |definition: &str, expected: &str| {
            let schedules = format!(
                "[{{\"name\": \"fine\", \"rule\": \"@daily\", \"zone\": \"UTC\", \"kind\": \"k\"}}, {definition}]"
            );
            for dry_run in [true, false] {
                let sync = "select tenure.sync_schedules('o', $1::text::json, p_dry_run => $2)::text";
                let error = sql.query_one(sync, &[&schedules, &dry_run]).await.unwrap_err();
                let error = error.as_db_error().unwrap_or_else(|| panic!("{definition}: {error}"));
                assert_eq!(error.code().code(), "TN002", "{definition}: {}", error.message());
                assert!(error.message().starts_with(expected), "{definition}: {}", error.message());
            }
        };
        check("1", "schedule 2 of those that were passed is 1, and no object").await;
        check("null", "schedule 2 of those that were passed is null, and no object").await;
        check("[]", "schedule 2 of those that were passed is [], and no object").await;
        check(r#"{"rule": "@daily"}"#, "the name of schedule 2 of those that were passed is missing").await;
        check(r#"{"name": null}"#, "the name of schedule 2 of those that were passed is null").await;
        check(r#"{"name": 5}"#, "the name of schedule 2 of those that were passed is 5").await;
        check(r#"{"name": ""}"#, "the name of schedule 2 of those that were passed is empty").await;
        check(r#"{"name": "a\u0000"}"#, "schedule 2 of those that were passed holds text that PostgreSQL cannot store")
            .await;
        check(r#"{"name": "fine"}"#, "schedule \"fine\" is there twice").await;
        check(r#"{"name": "n", "n": 1}"#, "schedule \"n\": \"n\" means nothing").await;
        check(r#"{"name": "n", "kind": "k", "kind": "k"}"#, "schedule \"n\": \"kind\" is there 2 times").await;
        check(r#"{"name": "n", "zone": ["UTC"]}"#, "schedule \"n\": zone is [\"UTC\"], and no text").await;
        check(r#"{"name": "n", "priority": "x"}"#, "schedule \"n\": priority is \"x\", and no whole number").await;
        check(r#"{"name": "n", "priority": 2.5}"#, "schedule \"n\": priority is 2.5, and no whole number").await;
        check(r#"{"name": "n", "missed_max": 3000000000}"#, "schedule \"n\": missed_max is 3000000000, and no").await;
        check(r#"{"name": "n", "timeout_ms": 1e30}"#, "schedule \"n\": timeout_ms is 1e30, and no whole number").await;
        check(
            r#"{"name": "n", "starts_us": 9223372036854775807}"#,
            "schedule \"n\": starts_us is 9223372036854775807,",
        )
        .await;
        check(r#"{"name": "n", "ends_us": -1}"#, "schedule \"n\": ends_us is -1, and no whole number from 0 to").await;
    })
    .await;
}

#[tokio::test]
async fn an_edit_names_the_version_that_it_changes() {
    with_database(async |db| {
        let sql = db.sql().await;
        sql.query("select tenure.add_schedule('n', '@daily', 'UTC', 'k', '{}')", &[]).await.unwrap();
        let edit = async |version: Option<i64>| {
            let edit = "select tenure.edit_schedule('n', $1, '@hourly', 'UTC', 'k', '{}')";
            sql.query_one(edit, &[&version]).await.map(|row| row.get::<_, Option<bool>>(0))
        };
        let error = edit(None).await.unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!(
            (error.code().code(), error.message()),
            ("TN002", "which version of schedule \"n\" is to be changed is missing (SQL null)")
        );
        assert_eq!(edit(Some(7)).await.unwrap(), None);
        assert_eq!(edit(Some(1)).await.unwrap(), Some(true));
    })
    .await;
}
