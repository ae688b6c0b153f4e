//! What a process that dies leaves behind, and who repairs it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use tenure_dev::{Options, Server};

use crate::support::{Folder, Holder, eventually, is_alive, query};

#[test]
fn after_kill_9_of_its_owner_the_next_start_has_the_data_and_one_server() {
    let folder = Folder::new("killed");
    let owner = Holder::start(folder.kept().data_dir.expect("a folder"));
    let (pid, url) = (owner.pid, owner.url.clone());
    query(&url, "create table kept as select 7 as n").expect("it answers");
    owner.kill();

    let server = Server::start(folder.kept()).expect("it starts");
    assert!(!server.is_shared());
    assert!(!is_alive(pid));
    assert_eq!(query(server.url(), "select n from kept"), Ok("7".into()));
}

#[cfg(target_os = "linux")]
#[test]
fn after_kill_9_of_its_owner_the_server_ends_by_itself() {
    let owner = Holder::start("ephemeral");
    let pid = owner.pid;
    owner.kill();
    eventually("the server ends", || !is_alive(pid));
}

#[test]
fn the_folder_of_a_killed_ephemeral_server_is_removed_by_the_next_one() {
    let dead = Holder::start("ephemeral");
    let alive = Holder::start("ephemeral");
    let (home, pid) = (dead.home.clone(), dead.pid);
    dead.kill();
    assert!(home.exists());
    let next = Server::start(Options { ephemeral: true, ..Options::default() }).expect("it starts");
    // Another test may have been quicker, and is removing it right now.
    eventually("the folder is removed", || !home.exists() && !is_alive(pid));
    assert_eq!(query(&alive.url, "select 1"), Ok("1".into()));
    assert_eq!(query(next.url(), "select 1"), Ok("1".into()));
    alive.finish();
}

/// Where the kernel does not stop the server with its parent, it is found running.
#[test]
fn a_server_that_outlived_its_owner_is_ended_by_the_next_start() {
    let folder = Folder::new("orphan");
    let server = Server::start(folder.kept()).expect("it starts");
    let (data, postgres) = (server.data_dir(), server.bin_dir().join("postgres"));
    let (owner, port) = (data.metadata().expect("its folder"), server.port());
    server.stop().expect("it stops");

    let mut command = Command::new(postgres);
    command.arg("-D").arg(&data).args(["-c", &format!("port={port}"), "-c", "unix_socket_directories="]);
    command.current_dir(&data).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    become_owner(&mut command, &owner);
    let mut orphan = command.spawn().expect("it starts");
    let ready = || fs::read_to_string(data.join("postmaster.pid")).is_ok_and(|file| file.contains("ready"));
    eventually("the orphan is ready", ready);

    let server = Server::start(folder.kept()).expect("it starts");
    assert!(orphan.wait().expect("it was ended").success());
    assert_eq!(query(server.url(), "select 1"), Ok("1".into()));
}

/// As root, lets the command run as the user of the server.
fn become_owner(command: &mut Command, owner: &fs::Metadata) {
    if fs::metadata("/proc/self").is_ok_and(|me| me.uid() == 0) {
        command.uid(owner.uid()).gid(owner.gid());
    }
}

/// After a reboot the number in the file is somebody else's.
#[test]
fn a_process_id_that_now_belongs_to_another_process_is_left_alone() {
    let folder = Folder::new("reused");
    let server = Server::start(folder.kept()).expect("it starts");
    let file = server.data_dir().join("postmaster.pid");
    let home = server.home().to_path_buf();
    let socket_lock = home.join(format!(".s.PGSQL.{}.lock", server.port()));
    let files =
        [file, socket_lock].map(|file| (fs::read_to_string(&file).expect("the file of a running server"), file));
    server.stop().expect("it stops");
    let mut innocent = Command::new("sleep");
    innocent.arg("600");
    // A process of the server's own user, because PostgreSQL asks by signal 0 and thinks only of those.
    become_owner(&mut innocent, &home.metadata().expect("its folder"));
    let mut innocent = innocent.spawn().expect("sleep starts");
    for (text, file) in files {
        let rest = text.split_once('\n').expect("lines").1;
        fs::write(&file, format!("{}\n{rest}", innocent.id())).expect("the file can be written");
    }

    let server = Server::start(folder.kept()).expect("it starts");
    assert_eq!(query(server.url(), "select 1"), Ok("1".into()));
    assert!(is_alive(innocent.id()));
    innocent.kill().expect("it can be killed");
    innocent.wait().expect("it ends");
}

#[test]
fn a_cluster_that_was_not_made_to_its_end_is_made_anew() {
    let folder = Folder::new("half");
    let half = folder.0.join("pg/data.new/base");
    fs::create_dir_all(&half).expect("a folder");
    let server = Server::start(folder.kept()).expect("it starts");
    assert_eq!(query(server.url(), "select 1"), Ok("1".into()));
    assert!(!half.exists());
}
