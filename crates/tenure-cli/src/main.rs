//! The command line of tenure.
fn main() {}
