//! The demo: a real pipeline over real files, with a model server that misbehaves and workers that are killed.
#![allow(dead_code)]

pub mod model_server;
mod process;
mod text;
mod walk;
