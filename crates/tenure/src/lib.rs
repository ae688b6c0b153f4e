//! Durable work on PostgreSQL.

#[allow(dead_code, unused_imports)]
mod store;
