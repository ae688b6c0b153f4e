//! The scenarios: one file per area.

pub mod backlog;
pub mod cancel;
pub mod cost;
pub mod database;
pub mod duty;
pub mod failover;
pub mod fire;
pub mod freeze;
pub mod handling;
pub mod horizon;
pub mod kill;
pub mod long;
pub mod names;
pub mod notify;
pub mod outage;
pub mod pause;
pub mod plans;
pub mod poison;
pub mod pooler;
pub mod race;
pub mod retention;
pub mod schedules;
pub mod snooze;
pub mod sweep;
mod sweep_verbs;
pub mod sweep_worker;
pub mod unknown;
