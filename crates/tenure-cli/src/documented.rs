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

/// What people read: the README, how to learn it, how to run it, what there is.
fn pages() -> Vec<(String, String)> {
    let mut names = vec!["README.md".to_owned()];
    for folder in ["docs/guide", "docs/operate", "docs/reference"] {
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
    assert!(examples.len() > 30, "the examples were not found");
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

/// What a role may call, a row for each form: its name, its parameters and what it returns, as the reference writes them.
const CALLABLE: &str = "
    select p.proname::text,
           array(select a.name || ' ' || replace(a.type, 'timestamp with time zone', 'timestamptz')
                        || case when a.o > p.pronargs - p.pronargdefaults then ' default ' else '' end
                 from (select n.name, format_type(t.type, null) as type, n.o
                       from unnest(p.proargnames[1:p.pronargs], p.proargtypes::oid[]) with ordinality as n(name, type, o)
                       cross join lateral (select n.type) t) a
                 order by a.o),
           replace(case when p.proargmodes && '{t,o}'
                        then case when p.proargmodes && '{t}' then 'table ' else '' end || '(' || r.columns || ')'
                        else case when p.proretset then 'setof ' else '' end || format_type(p.prorettype, null) end,
                   'timestamp with time zone', 'timestamptz')
    from pg_proc p
    cross join lateral (
        select string_agg(n.name || ' ' || format_type(n.type, null), ', ' order by n.o) as columns
        from unnest(p.proargnames, p.proallargtypes, p.proargmodes) with ordinality as n(name, type, mode, o)
        where n.mode in ('t', 'o')) r
    where p.pronamespace = 'reference'::regnamespace
      and exists (select from pg_roles r where r.rolname like 'reference\\_%' and has_function_privilege(r.oid, p.oid, 'execute'))
    order by 1";

const READABLE: &str = "
    select c.relname::text from pg_class c
    where c.relnamespace = 'reference'::regnamespace and c.relkind in ('r', 'p', 'v')
      and exists (select from pg_roles r where r.rolname like 'reference\\_%' and has_any_column_privilege(r.oid, c.oid, 'select, insert'))";

/// They serve the view `jobs` and `cron_state`, with the rights of whoever reads it.
const SERVANTS: [&str; 4] = ["cron_server", "idempotency_key_of", "jobs_in", "leases"];

/// Whether the reference has a section of that name, whose signature has these parameters and this result.
fn is_described(page: &str, name: &str, parameters: &[String], returns: &str) -> bool {
    let Some((_, section)) = page.split_once(&format!("\n### {name}\n\n`{name}(")) else { return false };
    let signature = section.lines().next().unwrap_or_default();
    signature.ends_with(&format!(") returns {returns}`"))
        && parameters.iter().all(|parameter| signature.contains(parameter.as_str()))
        && signature.matches(" default ").count()
            == parameters.iter().filter(|text| text.ends_with(" default ")).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sql_reference_describes_all_that_a_role_may_call_and_nothing_else() {
    let page = fs::read_to_string(root().join("docs/reference/sql.md")).expect("the reference");
    with_database(async |db| {
        let client = tenure::Client::builder(db.url()).schema("reference").connect().await.expect("connected");
        client.migrate(tenure::MigrateOptions { roles: true }).await.expect("migrated");
        let sql = db.sql().await;
        let mut described = std::collections::BTreeMap::<String, bool>::new();
        for row in sql.query(CALLABLE, &[]).await.expect("the catalog") {
            let (name, parameters, returns): (String, Vec<String>, String) = (row.get(0), row.get(1), row.get(2));
            let right = SERVANTS.contains(&name.as_str()) || is_described(&page, &name, &parameters, &returns);
            *described.entry(name).or_default() |= right;
        }
        assert!(described.len() > 50, "{described:?}");
        let missing: Vec<_> = described.iter().filter(|(_, right)| !**right).map(|(name, _)| name).collect();
        assert!(
            missing.is_empty(),
            "docs/reference/sql.md lacks these, or has other parameters or results: {missing:?}"
        );
        let tables: Vec<String> =
            sql.query(READABLE, &[]).await.expect("the catalog").iter().map(|row| row.get(0)).collect();
        for name in &tables {
            let named = page.contains(&format!("\n### {name}\n")) || page.contains(&format!("| `{name}` |"));
            assert!(named, "docs/reference/sql.md lacks {name}");
        }
        let sections = page.lines().filter_map(|line| line.strip_prefix("### ")).filter(|name| !name.contains(' '));
        let unknown: Vec<&str> = sections
            .filter(|name| !described.contains_key(*name) && !tables.iter().any(|table| table == name))
            .collect();
        assert!(unknown.is_empty(), "docs/reference/sql.md describes what nobody may call: {unknown:?}");
    })
    .await;
}

#[test]
fn a_signature_that_names_another_result_or_other_parameters_describes_nothing() {
    let page = "\n### f\n\n`f(p_a text, p_b integer default null) returns table (a text, b bigint)`\n\nIt works.\n";
    let check = |parameters: &[&str], returns: &str, expected: bool| {
        let parameters: Vec<String> = parameters.iter().map(|text| (*text).to_owned()).collect();
        assert_eq!(is_described(page, "f", &parameters, returns), expected, "{parameters:?} {returns}");
    };
    let parameters = ["p_a text", "p_b integer default "];
    check(&parameters, "table (a text, b bigint)", true);
    check(&parameters, "table (a text)", false);
    check(&parameters, "b bigint)", false);
    check(&parameters, "bigint", false);
    check(&["p_a text", "p_b integer"], "table (a text, b bigint)", false);
    check(&["p_a text", "p_c text", "p_b integer default "], "table (a text, b bigint)", false);
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
