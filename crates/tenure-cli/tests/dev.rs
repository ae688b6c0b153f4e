//! `tenure dev` as a person types it.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

fn dev(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.arg("dev").args(args).stdin(Stdio::null());
    command
}

/// Exit code, stdout, stderr.
fn ended(mut command: Command) -> (Option<i32>, String, String) {
    let output = command.output().expect("tenure starts");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_command_gets_the_url_and_its_exit_code_is_passed_on() {
    let (code, out, said) = ended(dev(&["--ephemeral", "--exec", "echo \"$DATABASE_URL\"; exit 7"]));
    assert_eq!(code, Some(7), "{said}");
    assert!(out.starts_with("postgres://tenure:") && out.ends_with("/tenure\n"), "{out}");
    assert_eq!(out.lines().count(), 1, "the words of tenure go to stderr");
    let (code, ..) = ended(dev(&["--ephemeral", "--exec", "kill -KILL $$"]));
    assert_eq!(code, Some(128 + 9));
}

#[test]
fn with_json_the_object_is_all_of_stdout_also_beside_a_command() {
    let exec = "echo \"$DATABASE_URL\"; echo words >&2; exit 7";
    let (code, out, said) = ended(dev(&["--ephemeral", "--json", "--exec", exec]));
    assert_eq!(code, Some(7), "{said}");
    let about: serde_json::Value = serde_json::from_str(&out).expect("one JSON object");
    assert_eq!((&about["exit_code"], &about["signal"], &about["exec"]), (&7.into(), &().into(), &exec.into()));
    let url = about["url"].as_str().expect("its URL");
    assert!(said.lines().any(|line| line == url) && said.lines().any(|line| line == "words"), "{said}");
    for key in ["version", "port", "pid", "folder", "bin_dir", "shared"] {
        assert!(!about[key].is_null(), "{key}: {about}");
    }
    let (code, out, _) = ended(dev(&["--ephemeral", "--json", "--exec", "kill -KILL $$"]));
    let about: serde_json::Value = serde_json::from_str(&out).expect("one JSON object");
    assert_eq!((code, &about["exit_code"], &about["signal"]), (Some(137), &137.into(), &9.into()));
}

#[test]
fn sigterm_and_ctrl_c_stop_the_server_cleanly() {
    for signal in ["-TERM", "-INT"] {
        let mut child = dev(&["--ephemeral", "--json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("tenure starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("its stdout")).read_line(&mut line).expect("a line");
        let about: serde_json::Value = serde_json::from_str(&line).expect("one JSON object");
        let folder = about["folder"].as_str().expect("its folder").to_string();
        assert!(std::path::Path::new(&folder).exists());
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().expect("kill runs");
        assert!(sent.success());
        assert_eq!(child.wait().expect("it ends").code(), Some(0));
        assert!(!std::path::Path::new(&folder).exists());
    }
}

#[test]
fn a_server_that_ends_by_itself_leaves_the_end_of_its_log() {
    let mut child =
        dev(&["--ephemeral", "--json"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("tenure starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("its stdout")).read_line(&mut line).expect("a line");
    let about: serde_json::Value = serde_json::from_str(&line).expect("one JSON object");
    let server = about["pid"].as_u64().expect("its process").to_string();
    assert!(Command::new("kill").args(["-INT", &server]).status().expect("kill runs").success());
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("has stopped by itself; its log "), "{said}");
    assert!(said.contains("database system is shut down"), "{said}");
}

#[test]
fn a_server_goes_on_when_nobody_reads_where_it_is() {
    for args in [&["--ephemeral"][..], &["--ephemeral", "--json"]] {
        let mut child = dev(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("tenure starts");
        drop(child.stdout.take());
        let mut said = BufReader::new(child.stderr.take().expect("its stderr")).lines();
        let serves = said.by_ref().map_while(Result::ok).any(|line| line.contains("Ctrl-C stops"));
        Command::new("kill").arg(child.id().to_string()).status().expect("kill runs");
        let rest: Vec<_> = said.map_while(Result::ok).collect();
        assert_eq!((child.wait().expect("it ends").code(), serves), (Some(0), true), "{args:?}: {rest:?}");
    }
}

#[test]
fn sigterm_reaches_the_command() {
    let exec = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done";
    let mut child = dev(&["--ephemeral", "--exec", exec])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("tenure starts");
    let mut out = BufReader::new(child.stdout.take().expect("its stdout"));
    out.read_line(&mut String::new()).expect("a line");
    Command::new("kill").arg(child.id().to_string()).status().expect("kill runs");
    assert_eq!(child.wait().expect("it ends").code(), Some(9));
}

#[test]
fn what_makes_no_sense_is_refused_with_exit_code_2_and_what_cannot_work_with_1() {
    for args in [["--ephemeral", "--data-dir", "x"].as_slice(), &["--port", "0"], &["--port", "70000"], &["extra"]] {
        assert_eq!(ended(dev(args)).0, Some(2), "{args:?}");
    }
    let mut nowhere = dev(&["--ephemeral"]);
    nowhere.env("TENURE_PG_BIN", "/nowhere");
    let (code, out, said) = ended(nowhere);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(said.contains("TENURE_PG_BIN: /nowhere has no program postgres"), "{said}");
}
