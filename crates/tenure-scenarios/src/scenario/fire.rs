//! Claims under fire: many sessions claim odd numbers of jobs from bundles of odd sizes, finish random parts of them, are cut
//! in the middle, and lose their jobs to rescue. No job may be lost, run twice at once, or end twice.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use tenure::testing::until_within;

use crate::protocol::{Answer, Hand, Leased, Registration, WORKER_GONE};
use crate::stage::text;
use crate::{Act, Bound, Measure, Stage, size};

/// Sessions that claim.
const SESSIONS: usize = 8;
/// Sizes of the calls that enqueue, and so of the bundles.
const BUNDLES: [usize; 4] = [1, 7, 93, 100];
/// Waiting jobs above which no more are enqueued.
const WAITING_MAX: i64 = 5_000;
/// How long the jobs that are left may take once the fire is over.
const DRAIN: Duration = Duration::from_secs(60);
/// How long the fire goes on beyond its time when it has hurt nobody yet.
const PATIENCE: Duration = Duration::from_secs(30);

/// What all sessions share.
struct Field<'a> {
    stage: &'a Stage,
    want: i32,
    fire: AtomicBool,
    over: AtomicBool,
    /// How often each job's completion was accepted, as far as the sessions heard.
    accepted: Mutex<HashMap<i64, u32>>,
    errors: Mutex<Vec<String>>,
    /// Sessions that ended by themselves in the middle, and that were cut.
    deaths: AtomicUsize,
    cuts: AtomicUsize,
    lost: AtomicUsize,
}

/// Eight sessions that want `want` jobs at a time; returns what must be zero, and what was done.
pub async fn claims_under_fire(stage: &Stage, want: i32) -> Vec<Measure> {
    let field = Field {
        stage,
        want,
        fire: AtomicBool::new(true),
        over: AtomicBool::new(false),
        accepted: Mutex::default(),
        errors: Mutex::default(),
        deaths: AtomicUsize::new(0),
        cuts: AtomicUsize::new(0),
        lost: AtomicUsize::new(0),
    };
    let mut rng = Rng::with_seed(want as u64);
    while stage.count("select count(*) from tenure.job", &[]).await < size::FIRE_JOBS.at(stage.size) as i64 {
        enqueue(stage, &mut rng).await;
    }
    let started = Instant::now();
    let sessions = futures_util::future::join_all((0..SESSIONS).map(|n| session(&field, n as u64)));
    let ((), broken, _) = tokio::join!(cease(&field), watch(&field), sessions);
    let took = started.elapsed();
    report(&field, broken, took).await
}

/// Ends the fire after its time, then the sessions once every job has ended.
async fn cease(field: &Field<'_>) {
    let mut rng = Rng::with_seed(4711);
    let end = Instant::now() + size::FIRE.at(field.stage.size);
    // On a slow machine it lasts until it has hurt, as long as its bounds can still come true.
    while Instant::now() < end || !field.has_hurt() && Instant::now() < end + PATIENCE {
        let waiting = "select coalesce(sum(bit_count(mask)), 0)::bigint from tenure.ready";
        if field.stage.count(waiting, &[]).await < WAITING_MAX {
            enqueue(field.stage, &mut rng).await;
        }
        match rng.u8(..) {
            0..20 => cut_somebody(field).await,
            20..30 => give_up_somebody(field).await,
            30..=u8::MAX => {}
        }
        tokio::time::sleep(Duration::from_millis(10)).await; // the pace of the fire
    }
    field.fire.store(false, Ordering::SeqCst);
    until_within(DRAIN, "every job has ended", async || {
        let left = not_ended(field.stage).await;
        if left == 0 {
            Ok(())
        } else {
            Err(format!("{left} have not, {:?}", field.errors.lock().expect("errors").first()))
        }
    })
    .await;
    field.over.store(true, Ordering::SeqCst);
}

async fn not_ended(stage: &Stage) -> i64 {
    let left = "select (select count(*) from tenure.job) - (select count(*) from tenure.outcome) - (select count(*) from tenure.dead_letter)";
    stage.count(left, &[]).await
}

async fn enqueue(stage: &Stage, rng: &mut Rng) {
    let count = BUNDLES[rng.usize(..BUNDLES.len())];
    stage.enqueue_many(&Act::Sleep { ms: 0 }, count).await;
}

/// Cuts the connection of a random session, wherever it is in its work.
async fn cut_somebody(field: &Field<'_>) {
    let cut = "select count(*) filter (where pg_terminate_backend(pid)) from
        (select pid from pg_stat_activity where datname = current_database() and application_name = 'fire' order by random() limit 1) one";
    let met = field.stage.count(cut, &[]).await;
    field.cuts.fetch_add(met as usize, Ordering::SeqCst);
}

/// Lets a random worker's lease be over while it works on: its jobs are given away, and its reports come late.
async fn give_up_somebody(field: &Field<'_>) {
    let row = field
        .stage
        .sql
        .query_opt("select id from tenure.worker where dead_at is null order by random() limit 1", &[])
        .await;
    if let Ok(Some(row)) = row {
        field.stage.expire(row.get(0)).await;
        field.stage.rescue().await;
    }
}

/// Looks at the invariants while the fire lasts: rows that broke one.
async fn watch(field: &Field<'_>) -> usize {
    let mut broken = 0;
    while !field.over.load(Ordering::SeqCst) {
        for b in field.stage.db.broken_invariants().await {
            eprintln!("{b}");
            broken += b.count;
        }
        tokio::time::sleep(Duration::from_secs(1)).await; // looking costs the database something
    }
    broken
}

/// One session: registers, works until it is cut, registers anew.
async fn session(field: &Field<'_>, n: u64) {
    let mut rng = Rng::with_seed(n);
    let registration =
        Registration { name: format!("fire-{n}"), lease_ms: 4_000, grace_ms: 200, ..Registration::default() };
    while !field.over.load(Ordering::SeqCst) {
        let sql = field.stage.db.sql().await;
        if sql.batch_execute("set application_name = 'fire'").await.is_err() {
            continue;
        }
        let ended = match Hand::register(sql, &registration).await {
            Ok(mut hand) => live(field, &mut hand, &mut rng).await,
            Err(e) => Err(e),
        };
        if let Err(e) = ended {
            field.note(&e);
        }
    }
}

/// Works to its end. Whoever hears that his jobs were given away says all the same what became of them.
async fn live(field: &Field<'_>, hand: &mut Hand, rng: &mut Rng) -> Answer<()> {
    let mut held = Vec::new();
    let end = work(field, hand, &mut held, rng).await;
    match end {
        Err(e) if sqlstate_of(&e) == Some(WORKER_GONE) => {
            let refused = hand.complete(&held).await?;
            field.lost.fetch_add(refused.len(), Ordering::SeqCst);
            note_accepted(field, &held, &refused);
            Err(e)
        }
        end => end,
    }
}

fn note_accepted(field: &Field<'_>, reported: &[Leased], refused: &[(i64, String)]) {
    let mut accepted = field.accepted.lock().expect("accepted");
    for job in reported.iter().filter(|job| refused.iter().all(|(id, _)| *id != job.job)) {
        *accepted.entry(job.job).or_default() += 1;
    }
}

fn sqlstate_of(error: &tokio_postgres::Error) -> Option<&str> {
    error.code().map(|code| code.code())
}

/// Claims and finishes until the session is cut or kills itself.
async fn work(field: &Field<'_>, hand: &mut Hand, held: &mut Vec<Leased>, rng: &mut Rng) -> Answer<()> {
    let mut beat = Instant::now();
    while !field.over.load(Ordering::SeqCst) {
        if beat.elapsed() > Duration::from_millis(500) {
            hand.heartbeat().await?;
            beat = Instant::now();
        }
        if rng.u8(..) < 80 {
            hand.rewind();
        }
        hand.solo_kinds = if rng.u8(..) < 50 { vec!["act".into()] } else { Vec::new() };
        let (jobs, trailer) = hand.claim(field.want).await?;
        if trailer.tick_due {
            hand.tick().await?;
        }
        let idle = jobs.is_empty();
        held.extend(jobs);
        finish_some(field, hand, held, rng).await?;
        if idle {
            tokio::time::sleep(Duration::from_millis(5)).await; // a worker that finds nothing does not ask at once either
        }
        if field.fire.load(Ordering::SeqCst) && rng.u16(..1000) < 3 {
            field.deaths.fetch_add(1, Ordering::SeqCst);
            return Ok(()); // as a kill: the connection goes, the leases stay
        }
    }
    hand.complete(held).await.map(drop)
}

/// Ends, fails or gives back a random part of what is held.
async fn finish_some(field: &Field<'_>, hand: &Hand, held: &mut Vec<Leased>, rng: &mut Rng) -> Answer<()> {
    let calm = !field.fire.load(Ordering::SeqCst) || held.len() > 5 * field.want as usize;
    let mut part = Vec::new();
    held.retain(|job| {
        let now = calm || rng.u8(..) < 110;
        if now {
            part.push(job.clone());
        }
        !now
    });
    let kind = if calm { u8::MAX } else { rng.u8(..) };
    match kind {
        0..20 => {
            let refused = hand.release(&part).await?;
            field.lost.fetch_add(refused.len(), Ordering::SeqCst);
        }
        20..40 => {
            held.extend(part.split_off(part.len().min(3)));
            for job in part {
                let verdict = if rng.bool() { "retry" } else { "snooze" };
                if hand.fail(&job, verdict, Some(rng.i64(0..5))).await? == "lost" {
                    field.lost.fetch_add(1, Ordering::SeqCst);
                }
            }
        }
        40..=u8::MAX => {
            let refused = hand.complete(&part).await?;
            field.lost.fetch_add(refused.len(), Ordering::SeqCst);
            note_accepted(field, &part, &refused);
        }
    }
    Ok(())
}

impl Field<'_> {
    /// Somebody was cut, somebody was killed, and somebody's report came late.
    fn has_hurt(&self) -> bool {
        [&self.cuts, &self.deaths, &self.lost].iter().all(|count| count.load(Ordering::SeqCst) > 0)
    }

    /// An error that nobody caused is a fault; a cut connection and a worker that was given up are the fire's own.
    fn note(&self, error: &tokio_postgres::Error) {
        let expected = match sqlstate_of(error) {
            Some(state) => [WORKER_GONE, "57P01"].contains(&state),
            None => error.is_closed() || error.to_string().contains("communicating"),
        };
        if !expected {
            eprintln!("fire: {}", text(error));
            self.errors.lock().expect("errors").push(text(error));
        }
    }
}

async fn report(field: &Field<'_>, broken: usize, took: Duration) -> Vec<Measure> {
    let want = field.want;
    let twice = field.accepted.lock().expect("accepted").values().filter(|n| **n > 1).count();
    let errors = field.errors.lock().expect("errors").len();
    let jobs = field.stage.count("select count(*) from tenure.job", &[]).await;
    let line = |what: &str, n: usize| Measure::count(format!("claims of {want} under fire: {what}"), 0, n);
    // Without them there was no fire.
    let some = |what: &str, n: usize| {
        Measure::new(format!("claims of {want} under fire: {what}"), Bound::AtLeast(1.0), n as f64, "")
    };
    vec![
        line("jobs in two places or none", broken),
        line("jobs missing", not_ended(field.stage).await.unsigned_abs() as usize),
        line("jobs ended twice", twice),
        line("errors", errors),
        shown(want, "jobs", jobs as f64, ""),
        shown(want, "jobs a second", jobs as f64 / took.as_secs_f64(), "/s"),
        some("sessions cut", field.cuts.load(Ordering::SeqCst)),
        some("sessions killed", field.deaths.load(Ordering::SeqCst)),
        some("reports refused as late", field.lost.load(Ordering::SeqCst)),
        some("jobs rescued", field.stage.rescues().await as usize),
    ]
}

fn shown(want: i32, what: &str, measured: f64, unit: &'static str) -> Measure {
    Measure::new(format!("claims of {want} under fire: {what}"), Bound::Shown, measured, unit)
}
