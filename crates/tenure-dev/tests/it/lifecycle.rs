//! Start, share, restart, stop.

use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;

use tenure_dev::{Options, Server};

use crate::support::{Folder, Holder, is_alive, query};

fn ephemeral() -> Options {
    Options { ephemeral: true, ..Options::default() }
}

#[test]
fn a_kept_cluster_is_used_again_with_its_data_and_port() {
    let folder = Folder::new("kept");
    let server = Server::start(folder.kept()).expect("it starts");
    let (pid, url) = (server.pid(), server.url().to_string());
    query(&url, "create table kept as select 7 as n").expect("it answers");
    server.stop().expect("it stops");
    assert!(!is_alive(pid));

    let server = Server::start(folder.kept()).expect("it starts again");
    assert_eq!(server.url(), url);
    assert_eq!(query(server.url(), "select n from kept"), Ok("7".into()));
    assert_eq!(query(server.url(), "show fsync"), Ok("on".into()));
}

#[test]
fn an_ephemeral_server_leaves_no_folder_and_is_durable_unless_told_otherwise() {
    let server = Server::start(ephemeral()).expect("it starts");
    let (home, pid) = (server.home().to_path_buf(), server.pid());
    assert_eq!(query(server.url(), "show fsync"), Ok("on".into()));
    server.stop().expect("it stops");
    assert!(!home.exists() && !is_alive(pid));

    let server = Server::start(Options { durable: false, ..ephemeral() }).expect("it starts");
    let home = server.home().to_path_buf();
    assert_eq!(query(server.url(), "show fsync"), Ok("off".into()));
    assert_eq!(query(server.url(), "show synchronous_commit"), Ok("on".into()));
    drop(server);
    assert!(!home.exists());
}

#[test]
fn the_server_never_runs_as_root() {
    let server = Server::start(ephemeral()).expect("it starts");
    let owner = server.data_dir().metadata().expect("its folder").uid();
    assert_ne!(owner, 0);
    let output = std::process::Command::new("ps").args(["-o", "uid=", "-p", &server.pid().to_string()]).output();
    let uid = String::from_utf8_lossy(&output.expect("ps runs").stdout).trim().to_string();
    assert_eq!(uid, owner.to_string());
    assert_eq!(server.home().metadata().expect("its folder").mode() & 0o777, 0o700);
}

#[test]
fn the_port_asks_for_the_password_and_the_url_leads_to_the_public_schema() {
    let server = Server::start(ephemeral()).expect("it starts");
    assert_eq!(query(server.url(), "select current_user || ' ' || current_database()"), Ok("tenure tenure".into()));
    assert_eq!(query(server.url(), "show search_path"), Ok("public".into()));
    let without = format!("postgres://tenure@127.0.0.1:{}/tenure", server.port());
    assert!(query(&without, "select 1").is_err());
    let wrong = format!("postgres://tenure:wrong@127.0.0.1:{}/tenure", server.port());
    assert_eq!(query(&wrong, "select 1"), Err("password authentication failed for user \"tenure\"".into()));
}

#[test]
fn settings_reach_the_server_and_win_over_ours() {
    let settings = vec!["max_connections=17".to_string(), "work_mem=9MB".to_string()];
    let server = Server::start(Options { settings, ..ephemeral() }).expect("it starts");
    assert_eq!(query(server.url(), "show max_connections"), Ok("17".into()));
    assert_eq!(query(server.url(), "show work_mem"), Ok("9MB".into()));
}

#[test]
fn a_second_start_shares_the_server_and_whoever_started_it_stops_it() {
    let folder = Folder::new("shared");
    let owner = Holder::start(folder.kept().data_dir.expect("a folder"));
    let mut guest = Server::start(folder.kept()).expect("it is shared");
    assert!(guest.is_shared() && guest.is_running());
    assert_eq!((guest.pid(), guest.url()), (owner.pid, owner.url.as_str()));
    assert!(guest.restart(false).is_err());
    guest.stop().expect("a guest may leave");
    assert_eq!(query(&owner.url, "select 1"), Ok("1".into()));

    let guest = Server::start(folder.kept()).expect("it is shared again");
    let pid = owner.pid;
    owner.finish();
    assert!(!is_alive(pid) && !guest.is_running());
}

#[test]
fn two_simultaneous_starts_make_one_cluster_and_one_server() {
    let folder = Folder::new("race");
    let dir = folder.kept().data_dir.expect("a folder");
    let other = std::thread::spawn(move || Holder::start(dir));
    let server = Server::start(folder.kept()).expect("it starts");
    let other = other.join().expect("the other one starts");
    assert_eq!((server.pid(), server.url()), (other.pid, other.url.as_str()));
    if server.is_shared() {
        other.finish();
    } else {
        server.stop().expect("it stops");
        other.finish();
    }
}

#[test]
fn a_restart_keeps_the_url_and_what_was_committed() {
    for immediate in [false, true] {
        let mut server = Server::start(Options { durable: false, ..ephemeral() }).expect("it starts");
        let (pid, url) = (server.pid(), server.url().to_string());
        query(&url, "create table kept as select 7 as n").expect("it answers");
        server.restart(immediate).expect("it starts again");
        assert_ne!(server.pid(), pid);
        assert_eq!(query(&url, "select n from kept"), Ok("7".into()));
    }
}

#[test]
fn a_port_that_was_taken_meanwhile_is_replaced() {
    let folder = Folder::new("port");
    let server = Server::start(folder.kept()).expect("it starts");
    let port = server.port();
    server.stop().expect("it stops");
    let _other = TcpListener::bind(("127.0.0.1", port)).expect("the port is free again");
    let server = Server::start(folder.kept()).expect("it starts on another port");
    assert_ne!(server.port(), port);
    assert_eq!(query(server.url(), "select 1"), Ok("1".into()));
}

#[test]
fn a_path_too_long_for_a_socket_leaves_the_port() {
    let folder = Folder::new("long");
    let data_dir = Some(folder.0.join("x".repeat(100)));
    let server = Server::start(Options { data_dir, ..Options::default() }).expect("it starts");
    assert_eq!(server.socket_dir(), None);
    assert_eq!(query(server.url(), "select 1"), Ok("1".into()));
}
