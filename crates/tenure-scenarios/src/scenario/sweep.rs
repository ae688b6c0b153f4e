//! The fault sweep over the verbs of a client: the connection is cut before the n-th message to the server, and from it,
//! for n = 1, 2, … until a call no longer gets that far. After each cut the actor starts anew, looks, and repeats.

use tenure::testing::{Cut, Proxy};
use tenure::verbs::{Effect, Verb};
use tenure::{Client, ErrorCode};

use super::sweep_verbs::{Case, Scene, call, clear, is_done, make_own, prepare, seen};
use crate::{Bound, Measure, Size, Stage, size};

/// No call has this many messages.
/// A look at plans that goes on for twelve rounds has more than ten thousand.
const POINTS_MAX: u64 = 50_000;

/// What the sweep found.
#[derive(Default)]
struct Found {
    points: usize,
    never_cut: Vec<String>,
    half_done: Vec<String>,
    misnamed: Vec<String>,
    not_repeatable: Vec<String>,
}

/// Every verb of a client, cut at every message.
pub async fn client_verbs(stage: &Stage) -> Vec<Measure> {
    let proxy = Proxy::start(stage.url()).await;
    make_own(stage).await;
    let mut found = Found::default();
    for case in Case::all() {
        let points = found.points;
        for direction in [Cut::ToServer as fn(u64) -> Cut, Cut::FromServer] {
            sweep(stage, &proxy, case, direction, &mut found).await;
        }
        stage.db.check_invariants().await;
        if found.points == points {
            found.never_cut.push(format!("{case:?} ended before the first cut"));
        }
    }
    let list = |faults: &[String]| {
        faults.iter().for_each(|fault| eprintln!("{fault}"));
        faults.len()
    };
    vec![
        Measure::new("verbs of a client, cut at every message", Bound::Shown, Verb::ALL.len() as f64, ""),
        Measure::new("places at which their connection was cut", Bound::AtLeast(50.0), found.points as f64, ""),
        Measure::count("verbs whose connection was never cut", 0, list(&found.never_cut)),
        Measure::count("of these, calls that were half done", 0, list(&found.half_done)),
        Measure::count("errors that do not say \"unreachable, try again\"", 0, list(&found.misnamed)),
        Measure::count("calls that could not be repeated", 0, list(&found.not_repeatable)),
    ]
}

/// Every verb once, by clients of this kind; those that do not do what they should, with what they said.
pub async fn each_verb(stage: &Stage, url: &str, client: impl Fn(&str) -> Client) -> Vec<String> {
    make_own(stage).await;
    let mut wrong = Vec::new();
    // A few clients at a time, so that connections behind a pooler change hands.
    let clients = |schema: &str| [client(schema), client(schema), client(schema)];
    let shared = clients("tenure");
    for (n, case) in Case::all().into_iter().chain(Case::all()).enumerate() {
        let scene = Box::pin(prepare(stage, case)).await;
        let own;
        let client = if case.verb == Verb::Migrate {
            own = clients(&scene.schema);
            &own[0]
        } else {
            &shared[n % shared.len()]
        };
        let answer = Box::pin(call(client, url, case, &scene)).await;
        let after = seen(stage, case, &scene).await;
        if answer.is_err() || !is_done(case, &scene, &after) {
            wrong.push(format!("{case:?}: {answer:?}, {after:?}"));
        }
        clear(stage, case, &scene).await;
    }
    wrong
}

/// At the small size not each place is tried, but others each time.
fn step(verb: Verb, size: Size) -> u64 {
    if verb == Verb::Migrate {
        size::SWEEP_STEP_MIGRATE.at(size)
    } else if verb == Verb::CheckPlans {
        size::SWEEP_STEP_PLANS.at(size)
    } else if matches!(verb, Verb::Drained | Verb::WorkerDrained) {
        // They wait a second for what may be under way.
        size::SWEEP_STEP_DRAIN.at(size)
    } else {
        size::SWEEP_STEP_CLIENT.at(size)
    }
}

async fn sweep(stage: &Stage, proxy: &Proxy, case: Case, direction: fn(u64) -> Cut, found: &mut Found) {
    let step = step(case.verb, stage.size);
    let first = 1..=size::SWEEP_STEP_CLIENT.at(stage.size);
    let (mut n, before) = (fastrand::u64(first), found.points);
    let mut scene = Box::pin(prepare(stage, case)).await;
    while n < POINTS_MAX {
        let reached = cut_once(stage, proxy, case, &scene, direction(n), found).await;
        clear(stage, case, &scene).await;
        if stage.size == Size::Full {
            stage.db.check_invariants().await;
        }
        if reached {
            found.points += 1;
            n += step;
        } else if found.points == before && n > 1 {
            // A short call: no verb goes without a cut.
            n /= 2;
        } else {
            return;
        }
        // What only looks finds the same each time.
        if case.verb.effect() != Effect::None {
            scene = Box::pin(prepare(stage, case)).await;
        }
    }
    panic!("{case:?}: {POINTS_MAX} messages and no end");
}

/// One call whose connection is cut there, and its repetition when it has not done all; whether it got that far.
async fn cut_once(stage: &Stage, proxy: &Proxy, case: Case, scene: &Scene, cut: Cut, found: &mut Found) -> bool {
    let before = seen(stage, case, scene).await;
    let cuts = proxy.cuts();
    proxy.cut_at(cut);
    let client = client(proxy, scene);
    let answer = Box::pin(call(&client, proxy.url(), case, scene)).await;
    proxy.disarm();
    let reached = proxy.cuts() > cuts;
    let after = seen(stage, case, scene).await;
    let done = is_done(case, scene, &after);
    let what = format!("{case:?}, cut at {cut:?}: before {before:?}, after {after:?}, answer {answer:?}");
    // What works in steps may have done some of them, and says that it failed.
    let may_be_half = answer.is_err() && case.verb.effect() == Effect::Steps;
    if !(done || answer.is_err() && after == before || may_be_half) {
        found.half_done.push(what.clone());
    }
    if answer.as_ref().is_err_and(|error| !(error.code() == ErrorCode::Unreachable && error.is_retryable())) {
        found.misnamed.push(what.clone());
    }
    if !done || reached && case.verb.effect() == Effect::None {
        // Now the same client, now a new one.
        let again = if fastrand::bool() { client } else { self::client(proxy, scene) };
        let answer = Box::pin(call(&again, proxy.url(), case, scene)).await;
        let after = seen(stage, case, scene).await;
        if answer.is_err() || !is_done(case, scene, &after) {
            found.not_repeatable.push(format!("{what}; again: {answer:?}, {after:?}"));
        }
    }
    reached
}

fn client(proxy: &Proxy, scene: &Scene) -> Client {
    Client::builder(proxy.url()).schema(&scene.schema).connect_lazy().expect("its settings are right")
}
