//! The demo as people run it: the program, on a server of its own.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tenure_dev::{Options, Server};

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn server() -> Server {
    let options = Options { ephemeral: true, durable: false, say: |_| {}, ..Options::default() };
    Server::start(options).expect("a server for the test")
}

fn demo(server: &Server, folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.arg("demo").arg("--path").arg(folder).args(arguments).env("DATABASE_URL", server.url());
    command
}

/// A folder of text files, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, files: usize, paragraphs: usize) -> Self {
        let folder = std::env::temp_dir().join(format!("tenure-demo-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for file in 0..files {
            let text: String = (0..paragraphs).map(|n| paragraph(file, n)).collect();
            fs::write(folder.join(format!("file-{file}.md")), text).unwrap();
        }
        fs::write(folder.join("fox.txt"), "The silver fox sleeps behind the old mill.").unwrap();
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn paragraph(file: usize, n: usize) -> String {
    let words = ["harvest", "ledger", "copper", "window", "marble", "signal", "garden", "timber"];
    let line: Vec<_> = (0..60).map(|word| words[(word * 7 + n * 3 + file) % words.len()]).collect();
    format!("Paragraph {n} of file {file}: {}.\n\n", line.join(" "))
}

fn report_of(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("one JSON object alone on stdout")
}

fn check_nothing_lost_or_twice(report: &Value) {
    for promise in ["lost", "stored_twice", "billed_twice"] {
        assert_eq!(report[promise], 0, "{report}");
    }
}

#[test]
fn a_folder_is_indexed_and_a_search_finds_it_although_a_worker_is_killed() {
    let server = server();
    let folder = Folder::new("whole", 30, 30);
    let arguments = ["--chaos", "--json", "--workers", "2", "--query", "where does the silver fox sleep"];
    let report = report_of(&demo(&server, &folder.0, &arguments).output().unwrap());
    check_nothing_lost_or_twice(&report);
    assert_eq!(report["documents"], 31);
    assert!(report["chunks"].as_u64().unwrap() > 300, "{report}");
    assert!(report["attempts"].as_u64() >= report["jobs"].as_u64(), "{report}");
    assert_eq!(report["hits"][0]["file"], "fox.txt");
    assert!(report["killed"].as_array().unwrap().iter().any(|killed| killed["jobs"] != 0), "{report}");
    assert!(report["rescues"].as_u64() >= Some(1), "{report}");
    assert!(report["wall_s"].as_f64() > Some(0.0), "{report}");
}

#[test]
fn an_interrupted_demo_leaves_no_process_and_the_next_one_starts_afresh() {
    let server = server();
    let folder = Folder::new("interrupted", 40, 20);
    for signal in [libc::SIGINT, libc::SIGKILL] {
        let mut running = demo(&server, &folder.0, &[]).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        wait_for_line(&mut running, "extract ");
        let children = children_of(running.id());
        assert!(children.len() >= 4, "a model server and three workers: {children:?}");
        // SAFETY: a signal to a process that this test started and has not waited for.
        unsafe { libc::kill(running.id() as libc::pid_t, signal) };
        let status = running.wait().unwrap();
        assert_eq!(status.code(), (signal == libc::SIGINT).then_some(1), "{status}");
        wait_until(|| children.iter().all(|&pid| !is_demo(pid)));
    }
    let report = report_of(&demo(&server, &folder.0, &["--json"]).output().unwrap());
    check_nothing_lost_or_twice(&report);
    assert_eq!(report["documents"], 41);
}

#[test]
fn chaos_that_met_no_worker_at_work_is_no_success() {
    let server = server();
    let folder = Folder::new("small", 0, 0);
    let output = demo(&server, &folder.0, &["--chaos", "--workers", "1"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(said.contains("--chaos killed no worker that ran jobs") && said.contains("--path"), "{said}");
}

#[test]
fn a_folder_without_text_is_refused() {
    let server = server();
    let folder = std::env::temp_dir().join(format!("tenure-demo-{}-missing", std::process::id()));
    let output = demo(&server, &folder, &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot be opened"), "{output:?}");
}

/// Reads stderr up to a line with this text, and lets a thread read the rest, so that the pipe never fills.
fn wait_for_line(running: &mut Child, text: &str) {
    let mut lines = BufReader::new(running.stderr.take().unwrap()).lines();
    let found = lines.by_ref().map_while(Result::ok).any(|line| line.contains(text));
    assert!(found, "the demo ended before it said {text:?}");
    std::thread::spawn(move || lines.for_each(drop));
}

fn wait_until(mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < PATIENCE, "it did not come true within {PATIENCE:?}");
        // sleep: between two looks at processes of others, until a deadline.
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn processes(columns: &str) -> String {
    let output = Command::new("ps").args(["-A", "-o", columns]).output().expect("the program ps");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn children_of(parent: u32) -> Vec<u32> {
    let table = processes("pid=,ppid=");
    let pairs = table.lines().filter_map(|line| line.trim().split_once(char::is_whitespace));
    let mine = pairs.filter(|(_, of)| of.trim() == parent.to_string());
    mine.filter_map(|(pid, _)| pid.parse().ok()).collect()
}

/// Is this still a process of the demo? A number can be given out anew, and an orphan stays listed until init has seen it.
fn is_demo(pid: u32) -> bool {
    let table = processes("pid=,stat=,command=");
    let line = table.lines().map(str::trim).find(|line| line.split_whitespace().next() == Some(&pid.to_string()));
    line.is_some_and(|line| {
        line.contains("demo-") && !line.split_whitespace().nth(1).unwrap_or_default().starts_with('Z')
    })
}
