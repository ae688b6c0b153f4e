//! The look at who holds back vacuum.

use super::StoreError;
use super::statement::Statement;
use crate::model::VacuumHorizon;

pub(crate) const VACUUM_HORIZON: Statement =
    Statement { name: "look who holds back vacuum", sql: "select tenure.vacuum_horizon()::text", params: &[] };

/// Reads the answer, JSON.
pub(crate) fn read(text: &str) -> Result<VacuumHorizon, StoreError> {
    serde_json::from_str(text)
        .map_err(|error| StoreError::Protocol(format!("vacuum_horizon returned what cannot be read: {error}")))
}

#[cfg(test)]
pub(super) static STATEMENTS: &[&Statement] = &[&VACUUM_HORIZON];
