//! Chaos: real worker processes and producers, while everything around them breaks at random; then the accounts are
//! compared. See [`run`].

pub mod action;
mod company;
pub mod producer;
mod verdict;

use std::time::{Duration, Instant};

use tenure_dev::{Options, Server};

use crate::Size;
use crate::measure::{Bound, Measure};
use crate::stage::on_stage_of;
use action::Script;
use company::Company;

/// How long and how to break things.
#[derive(Clone, Debug)]
pub struct Chaos {
    /// How long things break; what is left is then worked off in peace.
    pub time: Duration,
    /// The seed of everything that is chosen.
    pub seed: u64,
    /// Worker processes.
    pub workers: usize,
    /// Producer processes.
    pub producers: usize,
    /// The pause of a producer after each call.
    pub pause: Duration,
    /// Where the server's programs are; `None`: found.
    pub bin_dir: Option<std::path::PathBuf>,
}

impl Chaos {
    /// Four workers and two producers.
    pub fn new(time: Duration, seed: u64) -> Chaos {
        Chaos { time, seed, workers: 4, producers: 2, pause: Duration::from_millis(150), bin_dir: None }
    }
}

/// What came out.
#[derive(Debug)]
pub struct Report {
    /// The accounts.
    pub measures: Vec<Measure>,
    /// What was done, a line each, with the second at which it was.
    pub history: Vec<String>,
    /// What does not fit, with all that is known of it; empty when everything held.
    pub faults: Vec<String>,
}

/// The longest time in which everything that is left must end once nothing breaks any more.
const REST: Duration = Duration::from_secs(180);

/// From this time on, everything that chaos does is certain to come, many times over.
const EACH_FROM: Duration = Duration::from_secs(300);

/// What is counted of each kind of fault and of its traces: a run in which one never came says nothing of it. In a short run,
/// chance leaves some of them out.
fn each_at_least(time: Duration) -> Bound {
    if time >= EACH_FROM { Bound::AtLeast(1.0) } else { Bound::Shown }
}

/// Plays chaos on a server of its own. `tell` hears of the progress.
///
/// # Panics
/// When the server cannot be started, or a process does not do what it must; the history is then printed.
pub async fn run(chaos: &Chaos, tell: impl Fn(&str)) -> Report {
    let options = Options { ephemeral: true, durable: false, bin_dir: chaos.bin_dir.clone(), ..Options::default() };
    let server = tokio::task::spawn_blocking(move || Server::start(options)).await.expect("no panic");
    let mut server = server.expect("a private server");
    let url = server.url().to_owned();
    let report = on_stage_of(&url, Size::Full, async |stage| {
        let mut company = Company::start(stage, chaos).await;
        let (begin, mut script) = (Instant::now(), Script::new(chaos.seed, chaos.workers, chaos.producers));
        let mut told = 0;
        while begin.elapsed() < chaos.time {
            let (pause, action) = script.draw();
            tokio::time::sleep(pause).await; // sleep: the pace of chaos
            company.play(action, &mut server).await;
            let minutes = begin.elapsed().as_secs() / 60;
            if minutes > told {
                told = minutes;
                tell(&format!("{minutes} min: {}", company.summary()));
            }
        }
        company.calm().await;
        tell(&format!("nothing breaks any more: {}", company.summary()));
        let history = company.history();
        let rest = verdict::until_all_ended(stage, REST).await;
        let each = each_at_least(chaos.time);
        let (mut measures, mut faults) = verdict::judge(stage, &company.told(), rest, each).await;
        for broken in stage.db.broken_invariants().await {
            faults.push(format!("invariant {broken}"));
        }
        measures.splice(0..0, company.measures(each));
        measures.push(Measure::count("chaos: broken invariants, and jobs that do not fit", 0, faults.len()));
        company.end().await;
        Report { measures, history, faults }
    })
    .await;
    tokio::task::spawn_blocking(move || server.stop())
        .await
        .expect("no panic")
        .expect("the private server has stopped");
    report
}
