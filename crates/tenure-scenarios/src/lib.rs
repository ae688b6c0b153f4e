//! Scenarios that tenure must survive, each as a function that plays it on a [`Stage`] and returns what it measured.
//!
//! The tests run them at the size `ci`, `cargo xtask prove` at `full`, the numbers of the claims; both sizes stand in
//! [`size`]. Real worker processes, real kills: see [`process`].

// Private to this repository: what needs an explanation has one.
#![allow(missing_docs)]

pub mod act;
pub mod chaos;
mod ends;
mod filled;
pub mod handlers;
pub mod measure;
mod memory_group;
pub mod process;
pub mod protocol;
pub mod reports;
pub mod scenario;
pub mod size;
pub mod stage;

pub use act::Act;
pub use measure::{Bound, Measure, assert_held};
pub use memory_group::MemoryGroup;
pub use process::{WorkerOptions, WorkerProcess};
pub use size::Size;
pub use stage::{Stage, on_stage};
