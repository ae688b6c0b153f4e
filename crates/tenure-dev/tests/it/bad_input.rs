//! Every refusal names the value and a way out.

use std::fs;
use std::net::TcpListener;
use std::path::Path;

use tenure_dev::{Options, Server, find_binaries};

use crate::support::Folder;

#[track_caller]
fn check(options: Options, parts: &[&str]) {
    let message = format!("{:#}", Server::start(options).expect_err("it must be refused"));
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in {message:?}");
    }
}

fn in_dir(dir: &Path) -> Options {
    Options { data_dir: Some(dir.to_path_buf()), ..Options::default() }
}

#[test]
fn a_folder_with_other_files_is_refused_and_stays_as_it_is() {
    let folder = Folder::new("other");
    fs::write(folder.0.join("letter.txt"), "dear").expect("a file");
    check(in_dir(&folder.0), &[&folder.0.display().to_string(), "letter.txt", "--data-dir"]);
    assert_eq!(fs::read_dir(&folder.0).expect("the folder").count(), 1);
}

#[test]
fn the_data_folder_of_another_server_is_refused() {
    let folder = Folder::new("foreign");
    fs::write(folder.0.join("PG_VERSION"), "15\n").expect("a file");
    check(in_dir(&folder.0), &["did not make", "DATABASE_URL", "--data-dir"]);
}

#[test]
fn a_file_and_a_folder_that_cannot_be_made_are_refused() {
    let folder = Folder::new("file");
    let file = folder.0.join("file");
    fs::write(&file, "").expect("a file");
    check(in_dir(&file), &["is not a folder", "--data-dir"]);
    check(in_dir(&file.join("below")), &["is not a folder", "--data-dir"]);
    check(in_dir(Path::new("/proc/tenure")), &["/proc", "--data-dir"]);
}

#[test]
fn a_cluster_of_another_version_is_refused() {
    let folder = Folder::new("version");
    let server = Server::start(folder.kept()).expect("it starts");
    let (major, home) = (server.major(), server.home().to_path_buf());
    server.stop().expect("it stops");
    let other = if major == 15 { 18 } else { 15 };
    let wanted = Options { major: Some(other), ..folder.kept() };
    check(wanted, &[&format!("is a cluster of PostgreSQL {major}"), &format!("not {other}"), "--data-dir"]);

    // As if it had been made with programs that are gone, of a version that is not here.
    let notes = fs::read_to_string(home.join("cluster.json")).expect("the notes");
    let notes = notes
        .replace(&format!("\"major\": {major}"), "\"major\": 14")
        .replace("\"bin_dir\": \"", "\"bin_dir\": \"/gone");
    fs::write(home.join("cluster.json"), notes).expect("the notes");
    fs::write(home.join("data/PG_VERSION"), "14\n").expect("the version");
    check(folder.kept(), &["is a cluster of PostgreSQL 14"]);
}

#[test]
fn damaged_notes_are_refused() {
    let folder = Folder::new("damaged");
    let dir = folder.0.join("pg");
    fs::create_dir_all(dir.join("data")).expect("a folder");
    check(folder.kept(), &["no cluster.json", "--data-dir"]);
    fs::write(dir.join("cluster.json"), "{").expect("a file");
    check(folder.kept(), &["cluster.json is damaged", "--data-dir"]);
    let notes = r#"{"major": 15, "bin_dir": "/", "port": 1, "password": ""}"#;
    fs::write(dir.join("cluster.json"), notes).expect("a file");
    check(folder.kept(), &["is no data folder of PostgreSQL 15", "PG_VERSION", "--data-dir"]);
}

#[test]
fn a_port_in_use_is_refused_by_its_number() {
    let other = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let port = other.local_addr().expect("its address").port();
    let options = Options { ephemeral: true, port: Some(port), ..Options::default() };
    check(options, &[&format!("port {port} is in use"), "--port"]);
}

#[test]
fn a_folder_without_the_programs_is_refused() {
    let folder = Folder::new("programs");
    let options = Options { bin_dir: Some(folder.0.clone()), ..folder.kept() };
    check(options, &[&folder.0.display().to_string(), "has no program postgres"]);
}

#[test]
fn a_version_that_is_not_here_is_refused_with_all_ways_out() {
    // Not when the version under test is named by the environment.
    let message = format!("{:#}", find_binaries(Some(14)).expect_err("14 is not supported"));
    let named = std::env::var_os("TENURE_PG_BIN").is_some();
    let parts: &[&str] =
        if named { &["TENURE_PG_BIN", "wanted is 14"] } else { &["of version 14", "TENURE_PG_BIN", "DATABASE_URL"] };
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in {message:?}");
    }
}

#[test]
fn contradictions_are_refused() {
    let folder = Folder::new("contradiction");
    check(Options { ephemeral: true, ..folder.kept() }, &["--ephemeral", "--data-dir"]);
    check(Options { durable: false, ..folder.kept() }, &["only an ephemeral server"]);
    check(Options { settings: vec!["work_mem".into()], ..folder.kept() }, &["\"work_mem\" is not name=value"]);
}

#[test]
fn a_setting_that_the_server_refuses_is_shown_with_its_words() {
    let options = Options { ephemeral: true, settings: vec!["work_mem=many".into()], ..Options::default() };
    check(options, &["invalid value for parameter \"work_mem\": \"many\""]);
}
