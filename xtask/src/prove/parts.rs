//! What topics are made of: parts that play scenarios, on a durable server of their own, and the lines that come out.

use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::Result;
use clap::CommandFactory;
use clap::error::ErrorKind;
use tenure_dev::{Options as ServerOptions, Server};
use tenure_scenarios::{Bound, Measure, Size};

use super::Options;
use crate::{say, setup};

/// Parts that run at a time with `--quick`: they mostly wait.
const QUICK_AT_ONCE: usize = 3;

/// One part of a topic.
pub(super) struct Part {
    pub(super) name: &'static str,
    /// Whether `--quick` runs it: the whole has to end within two minutes.
    pub(super) quick: bool,
    /// Whether it measures what others would disturb.
    pub(super) alone: bool,
    pub(super) play: fn(&str, Size) -> Vec<Measure>,
}

/// A part that plays one scenario on a stage of its own.
macro_rules! part {
    ($name:literal, $scenario:path $(, $option:ident)*) => {
        $crate::prove::parts::Part {
            name: $name,
            quick: true $(&& stringify!($option) != "full_only")*,
            alone: false $(|| stringify!($option) == "alone")*,
            play: |url, size| {
                $crate::prove::parts::wait_for(tenure_scenarios::stage::on_stage_of(url, size, async |stage| {
                    $scenario(stage).await
                }))
            },
        }
    };
}

pub(super) use part;

/// A part that starts a server of its own.
pub(super) const fn on_own_server(name: &'static str, quick: bool, play: fn(&str, Size) -> Vec<Measure>) -> Part {
    Part { name, quick, alone: false, play }
}

/// Runs a scenario to its end on a runtime of its own.
pub(super) fn wait_for<T>(play: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(play)
}

/// What a topic has beside its parts, by name: given the URL of the server, its lines.
pub(super) type More<'a> = (&'static str, &'a dyn Fn(&str) -> Result<Vec<Measure>>);

/// Runs the chosen parts on a durable server of their own. `more` adds its lines in front, on the same server, under its name.
/// What fails there, or in the end, is a line that does not hold: what was measured is printed all the same.
pub(super) fn run(options: &Options, chosen: &[Part], more: Option<More<'_>>) -> Result<Vec<Measure>> {
    let server_options =
        ServerOptions { ephemeral: true, bin_dir: Some(setup::binaries()?.dir), say, ..ServerOptions::default() };
    let server = Server::start(server_options)?;
    say(&format!("PostgreSQL {}, durable, {} parts", server.version(), chosen.len()));
    let mut lines = play(chosen, server.url(), options.quick);
    if let Some((name, more)) = more {
        let url = server.url();
        lines.splice(0..0, guarded(name, || more(url)).unwrap_or_else(|failed| vec![failed]));
    }
    lines.extend(guarded("the server stops", || server.stop().map(|()| Vec::new())).err());
    Ok(lines)
}

/// The lines of something that may fail by an error or a panic, a deadline that passed or an invariant that is broken, for example:
/// then the line that says so, which does not hold.
pub(super) fn guarded(name: &str, play: impl FnOnce() -> Result<Vec<Measure>>) -> Result<Vec<Measure>, Measure> {
    let why = match catch_unwind(AssertUnwindSafe(play)) {
        Ok(Ok(lines)) => return Ok(lines),
        Ok(Err(error)) => format!("{error:#}"),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("panicked").to_owned()
        }
    };
    let why: String = why.chars().take(400).collect();
    Err(Measure::new(format!("{name}: {why}"), Bound::Exactly(0.0), 1.0, "failed"))
}

/// The parts that the options ask for. A word of `--only` that names none of them, nor what else the topic has, ends the program
/// with exit code 2: nothing would be proven.
pub(super) fn choose(options: &Options, topic: &str, parts: Vec<Part>, more: &str) -> Vec<Part> {
    let names: Vec<&str> = parts.iter().map(|part| part.name).chain([more]).collect();
    refuse_unknown(options, topic, &names);
    parts.into_iter().filter(|part| is_chosen(options, part.name, part.quick)).collect()
}

/// See [`choose`].
pub(super) fn refuse_unknown(options: &Options, topic: &str, names: &[&str]) {
    if let Some(word) = unknown(&options.only, names) {
        let error =
            format!("no part of `{topic}` holds the word {word:?}; `cargo xtask prove {topic} --list` names them");
        Options::command().error(ErrorKind::InvalidValue, error).exit()
    }
}

fn unknown<'a>(words: &'a [String], names: &[&str]) -> Option<&'a str> {
    words.iter().map(String::as_str).find(|word| word.is_empty() || !names.iter().any(|name| means(word, name)))
}

/// A word means all names that hold it, with `=` before it the one name.
fn means(word: &str, name: &str) -> bool {
    word.strip_prefix('=').map_or_else(|| name.contains(word), |exact| name == exact)
}

/// Whether the options ask for the part of this name.
pub(super) fn is_chosen(options: &Options, name: &str, quick: bool) -> bool {
    match options.only.is_empty() {
        true => quick || !options.quick,
        false => options.only.iter().any(|word| means(word, name)),
    }
}

/// Plays all parts, those that measure speed one after another; their lines in the order of the list.
fn play(parts: &[Part], url: &str, quick: bool) -> Vec<Measure> {
    let size = if quick { Size::Ci } else { Size::Full };
    panic::set_hook(Box::new(|info| say(&info.to_string())));
    let lines: Mutex<Vec<(usize, Vec<Measure>)>> = Mutex::default();
    let done = AtomicUsize::new(0);
    let clean = AtomicUsize::new(0);
    let one = |(n, part): (usize, &Part)| {
        let start = Instant::now();
        // One that fails is a line that does not hold; the others go on.
        let measures = guarded(part.name, || Ok((part.play)(url, size)));
        let ran = measures.as_ref().is_ok_and(|lines| lines.iter().all(|line| line.bound != Bound::Run));
        clean.fetch_add(usize::from(ran), Ordering::SeqCst);
        let measures = measures.unwrap_or_else(|failed| vec![failed]);
        let all = done.fetch_add(1, Ordering::SeqCst) + 1;
        say(&format!("{all} of {}: {} ({:.0} s)", parts.len(), part.name, start.elapsed().as_secs_f64()));
        lines.lock().expect("lines").push((n, measures));
    };
    let numbered: Vec<(usize, &Part)> = parts.iter().enumerate().collect();
    let (alone, together): (Vec<_>, Vec<_>) = numbered.into_iter().partition(|(_, part)| part.alone || !quick);
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..QUICK_AT_ONCE {
            scope.spawn(|| {
                while let Some(part) = together.get(next.fetch_add(1, Ordering::SeqCst)) {
                    one(*part);
                }
            });
        }
    });
    alone.into_iter().for_each(one);
    let mut lines = lines.into_inner().expect("lines");
    lines.sort_by_key(|(n, _)| *n);
    let mut lines: Vec<Measure> = lines.into_iter().flat_map(|(_, lines)| lines).collect();
    lines.push(Measure::count("parts after which every invariant held", parts.len(), clean.into_inner()));
    lines
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn what_fails_is_a_line_that_does_not_hold() {
        let check = |play: fn() -> Result<Vec<Measure>>| guarded("demo", play).unwrap_err();
        for failed in [check(|| panic!("2 jobs have not ended")), check(|| bail!("2 jobs have not ended"))] {
            assert_eq!((failed.claim.as_str(), failed.held()), ("demo: 2 jobs have not ended", Some(false)));
        }
        assert_eq!(guarded("demo", || Ok(Vec::new())).unwrap().len(), 0);
    }

    #[test]
    fn a_word_that_names_no_part_is_found() {
        let check = |words: &[&str], expected| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            assert_eq!(unknown(&words, &["kill", "kill all", "demo"]), expected);
        };
        check(&["kill", "demo"], None);
        check(&["all"], None);
        check(&["kill", "kil l"], Some("kil l"));
        check(&[""], Some(""));
        check(&["=kill", "=demo"], None);
        check(&["=kil"], Some("=kil"));
        assert!(means("kill", "kill all") && means("=kill", "kill") && !means("=kill", "kill all"));
    }
}
