//! A path through the model, told in sentences.

use crate::action::{Action, Side};
use crate::flaw::Flaw;
use crate::state::{End, Evidence, Fate, How, Jobs, Process, Stage, State};
use crate::step::Answer;

/// Workers are A, B, C; jobs and ticks are numbers.
pub(crate) fn sentence(before: &State, action: Action, after: &State, flaw: Option<Flaw>) -> String {
    let run_of = |worker: usize, run: usize| &before.workers[worker].runs[run];
    let job_of = |worker: usize, run: usize| run_of(worker, run).job + 1;
    match action {
        Action::BeginClaim { worker, row, whole } => {
            let seen = before.ready_in(row);
            let wanted = if whole { seen } else { seen.first() };
            format!("{} asks for {}: the claim sees {} in ready.", name(worker), jobs(wanted), jobs(seen))
        }
        Action::CommitClaim { worker } => committed(before, worker, after),
        Action::End { worker, run, how } => {
            format!("{}'s handler of job {} ends: {}.", name(worker), job_of(worker, run), said(how))
        }
        Action::Report { worker, run } => {
            let late = if before.workers[worker].process == Process::GaveUp { ", late," } else { "" };
            let (who, job, how) = (name(worker), job_of(worker, run), said(run_of(worker, run).says()));
            let renewed = |state: &State| state.workers[worker].runs.iter().filter(|run| run.renewed).count();
            if renewed(after) > renewed(before) {
                let then = "and is refused, for its lease is over. A heartbeat extends it.";
                return format!("{who}{late} reports job {job} as {how}, {then}");
            }
            format!("{who}{late} reports job {job} as {how}, {}", told(before.answer_to(worker, run, flaw)))
        }
        Action::Abort { worker, run } => {
            format!("{} aborts job {}, to give it back.", name(worker), job_of(worker, run))
        }
        Action::ClockForward => "The database's clock is set forward: all leases are over.".into(),
        Action::Renew { worker } if after.workers[worker].process == Process::GaveUp => {
            format!("{} learns from a heartbeat that it was given up, and stops its handlers.", name(worker))
        }
        Action::Renew { worker } => {
            let came_back = before.workers[worker].row.fate == Fate::Dead;
            let how = if came_back { ", although it was declared dead" } else { "" };
            format!("{} renews its lease{how}.", name(worker))
        }
        Action::GiveUp { worker } => {
            let runs_on = after.workers[worker].runs.iter().any(|run| run.stage == Stage::Running);
            let stops = if runs_on { "asks its handlers to stop" } else { "stops its handlers" };
            format!("{} gives up by its own clock: it {stops}.", name(worker))
        }
        Action::Reconnect { worker } if after.workers[worker].process == Process::GaveUp => {
            format!("{} connects again, learns that it was given up, and stops its handlers.", name(worker))
        }
        Action::Reconnect { worker } => {
            let came_back = before.workers[worker].row.fate == Fate::Dead;
            let how = if came_back { ", although it was declared dead" } else { "" };
            format!("{} connects again and takes the session lock{how}.", name(worker))
        }
        Action::Audit { worker } => {
            let back = Jobs::of(
                (0..before.jobs.len()).filter(|job| before.jobs[*job].ready == 0 && after.jobs[*job].ready > 0),
            );
            let found = if back.is_empty() { "and finds none".into() } else { format!("and releases {}", jobs(back)) };
            format!("{} asks for leases that it does not know {found}.", name(worker))
        }
        Action::Maintain { worker } => maintained(before, worker, after),
        Action::Tick => "A tick goes by.".into(),
        Action::ReportUnanswered { worker, run } => {
            let answer = told(before.answer_to(worker, run, flaw));
            let (job, how) = (job_of(worker, run), said(run_of(worker, run).says()));
            format!(
                "{} reports job {job} as {how}, {answer} The answer is lost with the work connection.",
                name(worker)
            )
        }
        Action::ReportDelayed { worker, run } => {
            let job = job_of(worker, run);
            format!("{} loses its work connection while its report of job {job} is on its way.", name(worker))
        }
        Action::Arrive { worker } => arrived(before, worker, after),
        Action::Cut { worker, side } => format!("{} loses its {}.", name(worker), side_name(side)),
        Action::CutUnseen { worker } => {
            format!("The server loses both connections of {}, which does not know it.", name(worker))
        }
        Action::Notice { worker } => format!("{} notices that its connections are gone.", name(worker)),
        Action::Crash { worker } => format!("{} crashes.", name(worker)),
        Action::CrashSending { worker, run } => {
            format!("{} crashes; its report of job {} is on its way.", name(worker), job_of(worker, run))
        }
        Action::Freeze { worker } => format!("{} is frozen.", name(worker)),
        Action::Thaw { worker } => format!("{} thaws.", name(worker)),
        Action::Stop { announced: true } => "The server says that it goes down, and ends all connections.".into(),
        Action::Stop { announced: false } => "The server goes down without a word.".into(),
        Action::Restart => "The server is up again.".into(),
        Action::Calm => "From here on nothing fails any more, and everybody does what is due.".into(),
        Action::Newcomer => "A new worker runs all that is ready.".into(),
    }
}

/// What is wrong at the end of a path.
pub(crate) fn verdict(state: &State, jobs: usize) -> String {
    let places = (0..jobs).map(|job| place(state, job));
    format!("In the end: {}.", places.collect::<Vec<_>>().join("; "))
}

fn place(state: &State, job: usize) -> String {
    let at = &state.jobs[job];
    let mut places = Vec::new();
    if at.ready > 0 {
        places.push("ready".to_owned());
    }
    for lease in state.leases.iter().filter(|lease| lease.jobs.has(job)) {
        let row = match state.workers[lease.worker].row.fate {
            Fate::Alive => "",
            Fate::Dead => ", which is dead",
            Fate::Gone => ", which has no row",
        };
        places.push(format!("leased to {}{row}", name(lease.worker)));
    }
    match at.end {
        Some(End::Completed) => places.push("completed".into()),
        Some(End::Dead) => places.push("buried".into()),
        None => {}
    }
    for (number, worker) in state.workers.iter().enumerate() {
        for run in worker.runs.iter().filter(|run| run.job == job && run.stage == Stage::Running) {
            let lease = if state.lease_of(number, run.lease, job).is_some() { "its lease" } else { "no lease" };
            places.push(format!("running at {} with {lease}", name(number)));
        }
    }
    format!("job {} is {}", job + 1, if places.is_empty() { "nowhere".into() } else { places.join(" and ") })
}

fn committed(before: &State, worker: usize, after: &State) -> String {
    let held = |state: &State| {
        Jobs::of(
            (0..state.jobs.len())
                .filter(|job| state.leases.iter().any(|lease| lease.worker == worker && lease.jobs.has(*job))),
        )
    };
    let got = held(after).without(held(before));
    let whose = match before.workers[worker].row.fate {
        Fate::Alive => "",
        Fate::Dead | Fate::Gone => ", which is dead by now,",
    };
    if got.is_empty() {
        return format!("The claim of {}{whose} finds its row changed and brings nothing.", name(worker));
    }
    let still = Jobs::of(got.iter().filter(|job| after.jobs[*job].ready > 0));
    let left = if still.is_empty() { String::new() } else { format!(" The delete missed {}.", jobs(still)) };
    let is_read = before.workers[worker].claim.is_some_and(|claim| !claim.orphan);
    let gave_up = before.workers[worker].process == Process::GaveUp;
    let starts = after.workers[worker].runs.iter().any(|run| run.stage == Stage::Running && got.has(run.job));
    let read = match (is_read, gave_up, starts) {
        (false, _, _) => "nobody reads the answer",
        (true, false, _) => "the handlers start",
        (true, true, true) => "the handlers start, although it has given up",
        (true, true, false) => "they are not started, for it has given up",
    };
    format!("The claim of {}{whose} commits: it holds {}, and {read}.{left}", name(worker), jobs(got))
}

fn maintained(before: &State, worker: usize, after: &State) -> String {
    let (was, is) = (&before.workers[worker].row, &after.workers[worker].row);
    let gone = before.leases.iter().filter(|lease| lease.worker == worker);
    let given = Jobs::of(gone.flat_map(|lease| lease.jobs.iter()));
    let buried = Jobs::of(given.iter().filter(|job| after.jobs[*job].end.is_some()));
    let mut away = String::new();
    if !given.without(buried).is_empty() {
        away = format!(" Back to ready: {}.", jobs(given.without(buried)));
    }
    if !buried.is_empty() {
        away += &format!(" Buried: {}.", jobs(buried));
    }
    if was.fate != Fate::Alive {
        return format!("Maintenance finds leases of {}, which is dead.{away}", name(worker));
    }
    if is.fate != Fate::Alive {
        return format!("Maintenance declares {} dead.{away}", name(worker));
    }
    match is.suspicion {
        Some((Evidence::Lock, _)) => format!("Maintenance sees that {}'s session lock is free.", name(worker)),
        Some((Evidence::Time, _)) => format!("Maintenance sees that {}'s lease is over.", name(worker)),
        None => format!("Maintenance suspects {} no longer.", name(worker)),
    }
}

fn arrived(before: &State, worker: usize, after: &State) -> String {
    let changed = before.jobs != after.jobs || before.leases.len() != after.leases.len();
    let effect = if changed { "is carried out" } else { "changes nothing" };
    let job = before.workers[worker].letter.map_or(0, |letter| letter.job + 1);
    format!("The report of {} about job {job} reaches the server and {effect}.", name(worker))
}

fn said(how: How) -> &'static str {
    match how {
        How::Completed => "completed",
        How::Failed => "failed",
        How::Lost => "lost",
        How::Back => "one that goes back",
    }
}

fn told(answer: Answer) -> &'static str {
    match answer {
        Answer::Now => "which is done.",
        Answer::Before => "and is told that this was done before.",
        Answer::Lost => "and is told that the lease is lost.",
    }
}

fn side_name(side: Side) -> &'static str {
    match side {
        Side::Work => "work connection",
        Side::Control => "control connection",
        Side::Both => "connections, both of them",
    }
}

fn name(worker: usize) -> char {
    char::from(b'A' + worker as u8)
}

fn jobs(jobs: Jobs) -> String {
    let numbers: Vec<_> = jobs.iter().map(|job| (job + 1).to_string()).collect();
    match numbers.as_slice() {
        [] => "nothing".into(),
        [one] => format!("job {one}"),
        many => format!("jobs {}", many.join(" and ")),
    }
}
