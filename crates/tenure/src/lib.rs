//! Durable work on PostgreSQL.
