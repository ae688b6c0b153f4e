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
