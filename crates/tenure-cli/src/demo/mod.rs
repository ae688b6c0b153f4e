//! The demo: a real pipeline over real files, with a model server that misbehaves and workers that are killed.

mod database;
mod model_client;
pub mod model_server;
mod pipeline;
mod progress;
mod report;
mod run;
pub mod schema;
pub mod search;
mod store;
mod text;
mod walk;
pub mod workers;

pub use run::{Options, run};
