//! A private PostgreSQL server for development, tests and benchmarks: found or fetched, made, started, reused, stopped.
//!
//! The server is a direct child of this process, in a process group of its own, listening on 127.0.0.1 and on a socket
//! in its own folder. It never runs as root: started by root it runs as the owner of its folder, as the user `postgres`,
//! or as nobody.
//!
//! # Who may connect
//! The folder is 0700, so its socket needs no password. The port can be reached by every user of the machine, and a
//! superuser of the database can run programs as the user of the server (`copy … to program`): `trust` on the port
//! would hand this account to anybody with a shell here. So the port asks for a password (scram-sha-256), random for
//! each cluster, kept in the cluster's folder and part of [`Server::url`]. It has 128 random bits, so a dictionary
//! is no danger and one round of hashing is enough; the usual 4,096 cost a debug build 100 ms a connection.
//!
//! # After kill -9 of this process
//! On Linux the kernel tells the server to stop. Elsewhere it runs on until the next start in the same folder, which
//! finds that nobody holds the folder's lock and ends it. Ephemeral folders of dead processes are removed by the next
//! ephemeral start of the same user.
//!
//! ```no_run
//! let server = tenure_dev::Server::start(tenure_dev::Options { ephemeral: true, ..Default::default() })?;
//! println!("{}", server.url());
//! server.stop()?;
//! # Ok::<(), anyhow::Error>(())
//! ```

mod account;
mod advice;
mod archive;
mod ephemeral;
mod fetch;
mod find;
mod folders;
mod home;
mod initdb;
mod locks;
mod password;
mod postmaster;
mod server;
mod standby;

pub use advice::{Installer, installer};
pub use archive::install_archive;
pub use fetch::{Consent, FETCHED_MAJOR};
pub use find::{Binaries, MAJOR_MAX, MAJOR_MIN, find_binaries, find_pgbouncer, obtain_binaries};
pub use server::{Options, Server};
