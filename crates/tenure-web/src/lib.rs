//! HTTP API and dashboard of tenure.
