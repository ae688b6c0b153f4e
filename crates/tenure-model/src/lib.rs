//! The lease protocol as a model, checked in every order of steps within stated bounds.
//!
//! `docs/design/model.md` says what is modelled, what is left out, and what the bounds are. The rules themselves stand
//! in `docs/design/lease.md`, `claim.md` and `worker.md`; a change of one of them belongs into `step` as well.
//!
//! ```no_run
//! let report = tenure_model::check(tenure_model::Bundles::Single, tenure_model::FAULTS);
//! assert!(report.holds());
//! ```

mod action;
mod bounds;
mod check;
mod flaw;
mod narrate;
mod normal;
mod property;
mod state;
mod step;

pub use bounds::{ATTEMPTS, GRACE, JOBS, LEASE, OWN_GRACE, OWN_LEASE, THIRD, WORKERS};
pub use check::{Asked, Bundles, Checked, Report, check, check_broken, unreached};
pub use flaw::Flaw;

/// Faults in one history, at most, unless somebody asks for more.
pub const FAULTS: u8 = 2;
