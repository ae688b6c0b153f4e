//! What the documentation shows is what there is: its commands are commands, its SQL runs.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{CommandFactory, Parser};
use tenure::testing::with_database;

use crate::args::Args;
use crate::args::tests::leaves;
use crate::demo::schema;

/// Languages of examples, and who else looks at those that are not looked at here.
const SHELL: [&str; 2] = ["sh", "console"];
const ELSEWHERE: [&str; 5] = ["rust", "rust,no_run", "rust,ignore", "toml", "text"];

/// An example, and where it stands.
struct Example {
    place: String,
    language: String,
    text: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What people read: the README, how to learn it, how to run it.
fn pages() -> Vec<(String, String)> {
    let mut names = vec!["README.md".to_owned()];
    for folder in ["docs/guide", "docs/operate"] {
        let entries = fs::read_dir(root().join(folder)).expect("a folder");
        let name = |entry: fs::DirEntry| format!("{folder}/{}", entry.file_name().to_string_lossy());
        names.extend(entries.map(|entry| name(entry.expect("an entry"))));
    }
    names.sort();
    let read = |name: String| {
        let text = fs::read_to_string(root().join(&name)).expect("a page");
        (name, text)
    };
    names.into_iter().map(read).collect()
}

fn examples() -> Vec<Example> {
    let mut found = Vec::new();
    for (name, text) in pages() {
        let mut open: Option<Example> = None;
        for (n, line) in text.lines().enumerate() {
            match (line.strip_prefix("```"), open.take()) {
                (Some(language), None) => {
                    let place = format!("{name}:{}", n + 1);
                    open = Some(Example { place, language: language.to_owned(), text: String::new() });
                }
                (Some(_), Some(example)) => found.push(example),
                (None, Some(mut example)) => {
                    example.text += line;
                    example.text += "\n";
                    open = Some(example);
                }
                (None, None) => {}
            }
        }
        assert!(open.is_none(), "{name}: an example does not end");
    }
    found
}

fn in_language(languages: &[&str]) -> Vec<Example> {
    examples().into_iter().filter(|example| languages.contains(&example.language.as_str())).collect()
}

/// The commands of a line, each as its words. What stands behind `#`, or behind three spaces, is for people.
fn commands(line: &str) -> Vec<Vec<String>> {
    let (mut commands, mut words) = (Vec::new(), Vec::new());
    let mut rest = line.trim_start();
    while !rest.is_empty() {
        let (word, after) = word(rest);
        rest = after;
        match word.as_str() {
            "|" | "&&" | "||" => commands.push(std::mem::take(&mut words)),
            // The name of the file.
            "<" | ">" => rest = self::word(after.trim_start()).1,
            _ => match word.strip_suffix(';') {
                Some(last) => {
                    words.push(last.to_owned());
                    commands.push(std::mem::take(&mut words));
                }
                None => words.push(word),
            },
        }
        if rest.starts_with("   ") || rest.trim_start().starts_with('#') {
            break;
        }
        rest = rest.trim_start();
    }
    commands.push(words);
    commands
}

/// The first word as a shell reads it, and what comes behind it.
fn word(text: &str) -> (String, &str) {
    let (mut word, mut quote) = (String::new(), None);
    for (at, c) in text.char_indices() {
        match (c, quote) {
            ('\'' | '"', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            (c, None) if c.is_whitespace() => return (word, &text[at..]),
            (c, _) => word.push(c),
        }
    }
    assert!(quote.is_none(), "{text:?}: a quote stays open");
    (word, "")
}

/// The faults of a line: what of it is called tenure and cannot be typed.
fn check_line(place: &str, line: &str, faults: &mut Vec<String>) {
    for words in commands(line).iter().filter(|words| words.first().is_some_and(|word| word == "tenure")) {
        if let Err(error) = Args::try_parse_from(words) {
            faults.push(format!("{place}: {line}\n{error}"));
        }
    }
}

#[test]
fn every_command_that_is_shown_can_be_typed() {
    let (mut faults, mut lines) = (Vec::new(), 0);
    for example in in_language(&SHELL) {
        for line in example.text.lines() {
            check_line(&example.place, line, &mut faults);
            lines += usize::from(line.starts_with("tenure "));
        }
    }
    let mut found = Vec::new();
    leaves(&Args::command(), "tenure", &mut found);
    for (path, command) in found {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let (_, examples) = help.split_once("Examples:\n").expect("examples");
        for line in examples.lines().filter_map(|line| line.strip_prefix("  ")) {
            check_line(&format!("{path} --help"), line, &mut faults);
            lines += usize::from(line.starts_with("tenure "));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(lines > 80, "{lines} lines were looked at");
}

#[test]
fn every_example_is_of_a_language_that_somebody_tries() {
    let known = |language: &str| language == "sql" || SHELL.contains(&language) || ELSEWHERE.contains(&language);
    for example in examples() {
        assert!(known(&example.language), "{}: {:?} is tried by no test", example.place, example.language);
    }
}

/// The application's own tables of the examples.
const TABLES: &str = "create table document (path text);";

/// The statements between `begin` and `commit`, as the test has a transaction of its own.
fn statements(text: &str) -> String {
    let outer = |line: &str| ["begin;", "commit;"].iter().any(|word| line.trim_start().starts_with(word));
    text.lines().filter(|line| !outer(line)).map(|line| format!("{line}\n")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sql_that_is_shown_runs() {
    let examples = in_language(&["sql"]);
    assert!(examples.len() >= 2, "the examples were not found");
    with_database(async |db| {
        let mut sql = db.sql().await;
        for example in examples {
            let tx = sql.transaction().await.expect("a transaction");
            schema::reset(&tx).await.expect("the demo's tables");
            tx.batch_execute(TABLES).await.expect("an application's tables");
            let done = tx.batch_execute(&statements(&example.text)).await;
            done.unwrap_or_else(|error| panic!("{}: {error:?}\n{}", example.place, example.text));
            tx.rollback().await.expect("undone");
        }
    })
    .await;
}

/// Whole statements inside of a sentence; the variables that a program finds in its environment count as numbers.
fn statements_in_sentences() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (name, text) in pages() {
        for (n, line) in text.lines().enumerate() {
            for span in line.split('`').skip(1).step_by(2) {
                if ["select ", "insert "].iter().any(|verb| span.starts_with(verb)) {
                    let sql = span.replace("$TENURE_JOB_ID", "1").replace("$TENURE_FENCE", "1");
                    found.push((format!("{name}:{}", n + 1), sql));
                }
            }
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sql_inside_of_sentences_is_understood() {
    let found = statements_in_sentences();
    assert!(found.len() > 7, "{found:?}");
    with_database(async |db| {
        let sql = db.sql().await;
        for (place, statement) in found {
            sql.prepare(&statement).await.unwrap_or_else(|error| panic!("{place}: {statement}: {error:?}"));
        }
    })
    .await;
}

#[test]
fn the_step_that_the_demo_page_shows_is_the_one_that_runs() {
    let source = fs::read_to_string(root().join("crates/tenure-cli/src/demo/pipeline.rs")).expect("the pipeline");
    let mut rest = source.as_str();
    let shown = in_language(&["rust,ignore"]);
    assert_eq!(shown.len(), 1, "only the demo's");
    let code = |line: &str| line.split("//").next().unwrap_or_default().trim().to_owned();
    for line in shown[0].text.lines().map(code).filter(|line| !line.is_empty()) {
        rest = rest.split_once(&line).unwrap_or_else(|| panic!("{}: {line} is not there", shown[0].place)).1;
    }
}

#[test]
fn lines_are_read_as_a_shell_reads_them() {
    let check = |line: &str, expected: &[&[&str]]| assert_eq!(commands(line), expected, "{line}");
    check("tenure status", &[&["tenure", "status"]]);
    check(
        "tenure enqueue k '{\"a b\": 1}' --in 5m   # soon",
        &[&["tenure", "enqueue", "k", "{\"a b\": 1}", "--in", "5m"]],
    );
    check("tenure dead list     all of them", &[&["tenure", "dead", "list"]]);
    check("tenure x --wait && deploy; tenure y", &[&["tenure", "x", "--wait"], &["deploy"], &["tenure", "y"]]);
    check("tenure x < in.json | jq '.[] | .a' > out", &[&["tenure", "x"], &["jq", ".[] | .a"]]);
    let mut faults = Vec::new();
    check_line("here", "tenure queue pause mail --because x", &mut faults);
    assert_eq!(faults.len(), 1);
}
