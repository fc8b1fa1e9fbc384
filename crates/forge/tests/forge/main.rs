//! Tests of bundling and importing with real git.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod branch_update;
mod fixture;
#[path = "../../../../tests/src/git_server.rs"]
#[allow(dead_code, reason = "the end-to-end tests use more of it")]
mod git_server;
mod hostile;
mod owner;
mod remote;
mod repository;
mod result_import;
mod setup_files;
#[path = "../../../../tests/src/small_disk.rs"]
#[allow(dead_code, reason = "the end-to-end tests use more of it")]
mod small_disk;
mod source_bundle;
#[path = "../../../../tests/src/ssh_server.rs"]
#[allow(dead_code, reason = "the end-to-end tests use more of it")]
mod ssh_server;
