//! Behaviour of private servers.

mod archive;
mod bad_input;
mod death;
mod lifecycle;
mod support;
