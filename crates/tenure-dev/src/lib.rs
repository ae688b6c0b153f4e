//! A private PostgreSQL server for development and tests.
