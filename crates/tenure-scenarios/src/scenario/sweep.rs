//! The fault sweep over the verbs of a client: the connection is cut before the n-th message to the server, and from it,
//! for n = 1, 2, … until a call no longer gets that far. After each cut the actor starts anew, looks, and repeats.

use std::time::Duration;

use tenure::testing::{Cut, Proxy};
use tenure::{Client, DeadFilter, Ended, Enqueue, Error, ErrorCode, JobFilter, JobId, JobOptions, RawJson};
use tokio_postgres::NoTls;
use tokio_postgres::types::Type;

use crate::protocol::{Hand, Registration};
use crate::{Act, Bound, Measure, Size, Stage, size};

/// No call has this many messages.
const POINTS_MAX: u64 = 2_000;
/// Jobs of one bulk call; each is a message of the answer.
const MANY: usize = 12;

/// What a client can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Migrate,
    Enqueue,
    EnqueueMany,
    EnqueueCopy,
    EnqueueIn,
    Get,
    List,
    AttemptErrors,
    Wait,
    CancelWaiting,
    CancelRunning,
    Requeue,
    DeadLetters,
    DeadLetter,
    RequeueDead,
    Discard,
    DiscardDead,
    Queues,
    Pause,
    Resume,
    Workers,
    Server,
}

const VERBS: [Verb; 22] = [
    Verb::Migrate,
    Verb::Enqueue,
    Verb::EnqueueMany,
    Verb::EnqueueCopy,
    Verb::EnqueueIn,
    Verb::Get,
    Verb::List,
    Verb::AttemptErrors,
    Verb::Wait,
    Verb::CancelWaiting,
    Verb::CancelRunning,
    Verb::Requeue,
    Verb::DeadLetters,
    Verb::DeadLetter,
    Verb::RequeueDead,
    Verb::Discard,
    Verb::DiscardDead,
    Verb::Queues,
    Verb::Pause,
    Verb::Resume,
    Verb::Workers,
    Verb::Server,
];

/// What a verb works on, made anew for every cut.
struct Scene {
    queue: String,
    schema: String,
    /// One job of that queue, in the state that the verb wants.
    job: i64,
    /// Keeps a running job's worker alive.
    _hand: Option<Hand>,
}

/// What the sweep found.
#[derive(Default)]
struct Found {
    points: usize,
    half_done: Vec<String>,
    misnamed: Vec<String>,
    not_repeatable: Vec<String>,
}

/// Every verb of a client, cut at every message.
pub async fn client_verbs(stage: &Stage) -> Vec<Measure> {
    let proxy = Proxy::start(stage.url()).await;
    make_own(stage).await;
    let mut found = Found::default();
    for verb in VERBS {
        for direction in [Cut::ToServer as fn(u64) -> Cut, Cut::FromServer] {
            sweep(stage, &proxy, verb, direction, &mut found).await;
            stage.db.check_invariants().await;
        }
    }
    let list = |faults: &[String]| {
        faults.iter().for_each(|fault| eprintln!("{fault}"));
        faults.len()
    };
    vec![
        Measure::new("verbs of a client, cut at every message", Bound::Shown, VERBS.len() as f64, ""),
        Measure::new("places at which their connection was cut", Bound::AtLeast(50.0), found.points as f64, ""),
        Measure::count("of these, calls that were half done", 0, list(&found.half_done)),
        Measure::count("errors that do not say \"unreachable, try again\"", 0, list(&found.misnamed)),
        Measure::count("calls that could not be repeated", 0, list(&found.not_repeatable)),
    ]
}

/// The table of the program that enqueues.
async fn make_own(stage: &Stage) {
    stage.execute("create table if not exists own (queue text not null)", &[]).await;
}

/// Every verb once, by clients of this kind; those that do not do what they should, with what they said.
pub async fn each_verb(stage: &Stage, url: &str, client: impl Fn(&str) -> Client) -> Vec<String> {
    make_own(stage).await;
    let mut wrong = Vec::new();
    // A few clients at a time, so that connections behind a pooler change hands.
    let clients = |schema: &str| [client(schema), client(schema), client(schema)];
    let shared = clients("tenure");
    for (n, verb) in VERBS.into_iter().chain(VERBS).enumerate() {
        let scene = prepare(stage, verb).await;
        let own;
        let client = match verb {
            Verb::Migrate => {
                own = clients(&scene.schema);
                &own[0]
            }
            _ => &shared[n % shared.len()],
        };
        let answer = call(client, url, verb, &scene).await;
        let after = seen(stage, verb, &scene).await;
        if answer.is_err() || !is_done(verb, &after) {
            wrong.push(format!("{verb:?}: {answer:?}, {after:?}"));
        }
        clear(stage, verb, &scene).await;
    }
    wrong
}

async fn sweep(stage: &Stage, proxy: &Proxy, verb: Verb, direction: fn(u64) -> Cut, found: &mut Found) {
    // At the small size not each place is tried, but others each time.
    let step = match verb {
        Verb::Migrate => size::SWEEP_STEP_MIGRATE.at(stage.size),
        _ => size::SWEEP_STEP_CLIENT.at(stage.size),
    };
    let mut scene = prepare(stage, verb).await;
    for n in (fastrand::u64(1..=step as u64)..POINTS_MAX).step_by(step) {
        let cut = direction(n);
        let before = seen(stage, verb, &scene).await;
        let cuts = proxy.cuts();
        proxy.cut_at(cut);
        let client = client(proxy, &scene);
        let answer = call(&client, proxy.url(), verb, &scene).await;
        proxy.disarm();
        let reached = proxy.cuts() > cuts;
        let after = seen(stage, verb, &scene).await;
        let what = format!("{verb:?}, cut at {cut:?}: before {before:?}, after {after:?}, answer {answer:?}");
        match &answer {
            Ok(()) if !is_done(verb, &after) => found.half_done.push(what.clone()),
            Err(_) if after != before && !is_done(verb, &after) => found.half_done.push(what.clone()),
            Ok(()) | Err(_) => {}
        }
        match answer {
            Err(error) if !(error.code() == ErrorCode::Unreachable && error.is_retryable()) => {
                found.misnamed.push(what.clone());
            }
            Ok(()) | Err(_) => {}
        }
        if is_changing(verb) && after == before || !is_changing(verb) {
            // Now the same client, now a new one.
            let again = if n % 2 == 0 { client } else { self::client(proxy, &scene) };
            let answer = call(&again, proxy.url(), verb, &scene).await;
            let after = seen(stage, verb, &scene).await;
            if answer.is_err() || !is_done(verb, &after) {
                found.not_repeatable.push(format!("{what}; again: {answer:?}, {after:?}"));
            }
        }
        clear(stage, verb, &scene).await;
        if stage.size == Size::Full {
            stage.db.check_invariants().await;
        }
        if !reached {
            return;
        }
        found.points += 1;
        // What only looks finds the same each time.
        if is_changing(verb) {
            scene = prepare(stage, verb).await;
        }
    }
    panic!("{verb:?}: {POINTS_MAX} messages and no end");
}

fn client(proxy: &Proxy, scene: &Scene) -> Client {
    Client::builder(proxy.url()).schema(&scene.schema).connect_lazy().expect("its settings are right")
}

fn is_changing(verb: Verb) -> bool {
    match verb {
        Verb::Migrate
        | Verb::Enqueue
        | Verb::EnqueueMany
        | Verb::EnqueueCopy
        | Verb::EnqueueIn
        | Verb::CancelWaiting
        | Verb::CancelRunning
        | Verb::Requeue
        | Verb::RequeueDead
        | Verb::Discard
        | Verb::DiscardDead
        | Verb::Pause
        | Verb::Resume => true,
        Verb::Get
        | Verb::List
        | Verb::AttemptErrors
        | Verb::Wait
        | Verb::DeadLetters
        | Verb::DeadLetter
        | Verb::Queues
        | Verb::Workers
        | Verb::Server => false,
    }
}

async fn prepare(stage: &Stage, verb: Verb) -> Scene {
    let queue = format!("q{:x}", fastrand::u64(..));
    let schema = if verb == Verb::Migrate { format!("s{:x}", fastrand::u64(..)) } else { "tenure".to_owned() };
    let mut scene = Scene { queue, schema, job: 0, _hand: None };
    let act = Act::Sleep { ms: 0 };
    match verb {
        Verb::Migrate
        | Verb::Enqueue
        | Verb::EnqueueMany
        | Verb::EnqueueCopy
        | Verb::EnqueueIn
        | Verb::Workers
        | Verb::Server
        | Verb::Pause => {}
        Verb::Get | Verb::List | Verb::CancelWaiting | Verb::Queues => {
            scene.job = stage.enqueue_to(&scene.queue, &act, 3).await[1];
        }
        Verb::Resume => drop(stage.count("select tenure.pause($1)::int::bigint", &[&scene.queue]).await),
        Verb::CancelRunning | Verb::AttemptErrors | Verb::Wait => {
            scene.job = stage.enqueue_to(&scene.queue, &act, 1).await[0];
            let mut hand = hand(stage, &scene.queue).await;
            let (jobs, _) = hand.claim(1).await.expect("claimed");
            match verb {
                Verb::AttemptErrors => drop(hand.fail(&jobs[0], "retry", Some(0)).await.expect("failed")),
                Verb::Wait => drop(hand.complete(&jobs).await.expect("completed")),
                _ => scene._hand = Some(hand),
            }
        }
        Verb::Requeue
        | Verb::DeadLetters
        | Verb::DeadLetter
        | Verb::RequeueDead
        | Verb::Discard
        | Verb::DiscardDead => {
            scene.job = stage.enqueue_to(&scene.queue, &act, 3).await[1];
            let mut hand = hand(stage, &scene.queue).await;
            let (jobs, _) = hand.claim(3).await.expect("claimed");
            for job in &jobs {
                hand.fail(job, "permanent", None).await.expect("dead");
            }
        }
    }
    scene
}

async fn hand(stage: &Stage, queue: &str) -> Hand {
    stage.hand(&Registration { queues: vec![queue.to_owned()], ..Registration::default() }).await
}

async fn clear(stage: &Stage, verb: Verb, scene: &Scene) {
    if verb == Verb::Migrate {
        stage.sql.batch_execute(&format!("drop schema if exists {} cascade", scene.schema)).await.expect("dropped");
    }
}

/// What a verb that changes something has left, as a text.
async fn seen(stage: &Stage, verb: Verb, scene: &Scene) -> String {
    let seen = match verb {
        Verb::Migrate => {
            "(select count(*) from pg_namespace where nspname = p.schema),
             (select count(*) from pg_class where relnamespace = to_regnamespace(p.schema)),
             (select count(*) from pg_proc where pronamespace = to_regnamespace(p.schema))"
        }
        Verb::Enqueue | Verb::EnqueueMany | Verb::EnqueueCopy | Verb::EnqueueIn => {
            "(select count(*) from tenure.job where queue = p.queue),
             (select coalesce(sum(bit_count(mask)), 0) from tenure.ready where queue = p.queue),
             (select count(*) from tenure.inbox), (select count(*) from own where queue = p.queue)"
        }
        Verb::CancelWaiting => {
            "(select status from tenure.jobs where id = p.job), (select count(*) from tenure.outcome where job_id = p.job)"
        }
        Verb::CancelRunning => "(select count(*) from tenure.cancel_request where job_id = p.job)",
        Verb::Requeue | Verb::RequeueDead => {
            "(select count(*) from tenure.job where queue = p.queue and replaces_id is not null),
             (select count(*) from tenure.replacement r join tenure.dead_letter d using (job_id) where d.queue = p.queue),
             (select count(*) from tenure.ready where queue = p.queue)"
        }
        Verb::Discard | Verb::DiscardDead => {
            "(select count(*) from tenure.dead_letter where queue = p.queue), (select count(*) from tenure.job where queue = p.queue)"
        }
        Verb::Pause | Verb::Resume => {
            "(select count(*) from tenure.queue where name = p.queue and paused_at is not null)"
        }
        Verb::Get
        | Verb::List
        | Verb::AttemptErrors
        | Verb::Wait
        | Verb::DeadLetters
        | Verb::DeadLetter
        | Verb::Queues
        | Verb::Workers
        | Verb::Server => return String::new(),
    };
    let query = format!(
        "with p as (select $1::text as queue, $2::text as schema, $3::bigint as job) select concat_ws(' ', {seen}) from p"
    );
    stage.one::<String>(&query, &[&scene.queue, &scene.schema, &scene.job]).await
}

/// Is that what a complete call leaves?
fn is_done(verb: Verb, seen: &str) -> bool {
    match verb {
        // It is one transaction: with a few of the functions all of it is there.
        Verb::Migrate => seen.starts_with("1 ") && !seen.ends_with(" 0"),
        Verb::Enqueue => seen == "1 1 0 0",
        Verb::EnqueueMany | Verb::EnqueueCopy => seen == format!("{MANY} {MANY} 0 0"),
        Verb::EnqueueIn => seen == "1 1 0 1",
        Verb::CancelWaiting => seen == "cancelled 1",
        Verb::CancelRunning => seen == "1",
        Verb::Requeue => seen == "1 1 1",
        Verb::RequeueDead => seen == "3 3 3",
        Verb::Discard => seen == "2 2",
        Verb::DiscardDead => seen == "0 0",
        Verb::Pause => seen == "1",
        Verb::Resume => seen == "0",
        Verb::Get
        | Verb::List
        | Verb::AttemptErrors
        | Verb::Wait
        | Verb::DeadLetters
        | Verb::DeadLetter
        | Verb::Queues
        | Verb::Workers
        | Verb::Server => true,
    }
}

fn job(scene: &Scene) -> Enqueue {
    Enqueue::raw("act", RawJson::null()).queue(&scene.queue)
}

/// One call, with the connection that it needs; its answer is looked at, too.
async fn call(client: &Client, url: &str, verb: Verb, scene: &Scene) -> Result<(), Error> {
    let id = JobId::from(scene.job);
    let filter = DeadFilter::new().queue(&scene.queue);
    match verb {
        Verb::Migrate => client.migrate(tenure::MigrateOptions::default()).await.map(drop),
        Verb::Enqueue => client.enqueue(job(scene)).await.map(drop),
        Verb::EnqueueMany => {
            let options = JobOptions::new().queue(&scene.queue);
            client.enqueue_many("act", 0..MANY, options).await.map(|ids| assert_eq!(ids.len(), MANY))
        }
        Verb::EnqueueCopy => {
            let jobs = (0..MANY).map(|_| job(scene));
            client.enqueue_copy(jobs).await.map(|ids| assert_eq!(ids.len(), MANY))
        }
        Verb::EnqueueIn => enqueue_in(client, url, scene).await,
        Verb::Get => client.get(id).await.map(|job| assert_eq!(job.expect("it is there").id, id)),
        Verb::List => {
            let filter = JobFilter { queue: Some(scene.queue.clone()), ..JobFilter::default() };
            client.list(&filter).await.map(|jobs| assert_eq!(jobs.len(), 3))
        }
        Verb::AttemptErrors => client.attempt_errors(id).await.map(|errors| assert_eq!(errors.len(), 1)),
        Verb::Wait => {
            let ended = client.wait(id, Duration::from_secs(10)).await;
            ended.map(|ended| assert!(matches!(ended, Ended::Completed { .. }), "{ended:?}"))
        }
        Verb::CancelWaiting | Verb::CancelRunning => client.cancel(id).await.map(drop),
        Verb::Requeue => client.requeue(id, None).await.map(drop),
        Verb::DeadLetters => client.dead_letters(&filter, None, None).await.map(|dead| assert_eq!(dead.len(), 3)),
        Verb::DeadLetter => client.dead_letter(id).await.map(|dead| assert!(dead.is_some())),
        Verb::RequeueDead => client.requeue_dead(&filter, tenure::RequeuePace::AtOnce, |_| ()).await.map(drop),
        Verb::Discard => client.discard(id).await.map(drop),
        Verb::DiscardDead => client.discard_dead(&filter, |_| ()).await.map(drop),
        Verb::Queues => {
            let queues = client.queues().await;
            queues.map(|queues| assert!(queues.iter().any(|queue| queue.queue == scene.queue)))
        }
        Verb::Pause => client.pause(&scene.queue, None, Some("swept")).await.map(drop),
        Verb::Resume => client.resume(&scene.queue).await.map(drop),
        Verb::Workers => client.workers().await.map(drop),
        Verb::Server => client.server().await.map(drop),
    }
}

/// Enqueues in a transaction of the caller's own, with a row of its own.
async fn enqueue_in(client: &Client, url: &str, scene: &Scene) -> Result<(), Error> {
    let unreachable = |e: tokio_postgres::Error| {
        // What the caller's own statements say is not ours to judge.
        assert!(e.as_db_error().is_none(), "{e}");
        None
    };
    let own = async {
        let (mut sql, connection) = tokio_postgres::connect(url, NoTls).await.map_err(unreachable)?;
        tokio::spawn(connection);
        let mut tx = sql.transaction().await.map_err(unreachable)?;
        tx.query_typed("insert into own values ($1)", &[(&scene.queue, Type::TEXT)]).await.map_err(unreachable)?;
        client.enqueue_in(&mut tx, job(scene)).await.map_err(Some)?;
        tx.commit().await.map_err(unreachable)
    };
    match own.await {
        Ok(()) => Ok(()),
        Err(Some(error)) => Err(error),
        // A call of ours that cannot succeed either, so that there is an error to give.
        Err(None) => {
            let nowhere = Client::builder("postgres://nobody@127.0.0.1:1/nowhere").connect_lazy().expect("settings");
            nowhere.server().await.map(drop)
        }
    }
}
