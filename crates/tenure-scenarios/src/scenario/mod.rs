//! The scenarios: one file per area.

pub mod fire;
pub mod plans;
