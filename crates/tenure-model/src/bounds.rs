//! The size of the model. Time goes in ticks; only the order of the limits matters, not their proportion.

/// Workers, each one registration.
pub const WORKERS: usize = 3;
/// Jobs, at most.
pub const JOBS: usize = 3;
/// Attempts of a job. A worker lost in the last one buries it.
pub const ATTEMPTS: u8 = 2;
/// Ticks of a lease.
pub const LEASE: u8 = 4;
/// Ticks by the worker's own clock until it gives up what it could not renew: a margin before the end.
/// Longer than the grace, so that a worker can be dead by its lock while its lease is good.
pub const OWN_LEASE: u8 = 3;
/// Between the two sightings of a lease that is over: a third of the lease.
pub const THIRD: u8 = 1;
/// Between the two sightings of a free session lock: the grace to reconnect.
pub const GRACE: u8 = 2;
/// Without both connections the worker gives up after this part of the grace.
pub const OWN_GRACE: u8 = 1;
/// Ticks that are looked on once the faults have ended. A worker that died with its lock held needs a lease, a third,
/// and one more for the order of things; three of them at once need no longer.
pub(crate) const CALM: u8 = 9;

/// Which row of `ready` holds each job at the start: two bundles, of which a claim may cut the first.
pub(crate) const BUNDLES: [u8; JOBS] = [1, 1, 2];
/// Two bundles of one job each, for histories with more faults.
pub(crate) const SINGLES: [u8; JOBS] = [1, 2, 0];
/// One bundle of one job.
pub(crate) const ONE: [u8; JOBS] = [1, 0, 0];
