//! Tests of bundling and importing with real git.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod fixture;
mod hostile;
mod owner;
mod repository;
mod result_import;
mod setup_files;
mod source_bundle;
