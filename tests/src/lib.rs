//! The harness of the end-to-end tests: databases, servers, workers and typed actors.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

pub mod actor;
pub mod database;
pub mod debian_root;
pub mod docker_engine;
pub mod event_reader;
pub mod forge_double;
pub mod git_server;
pub mod local;
pub mod manual_worker;
pub mod node;
pub mod otlp_receiver;
pub mod package_registry;
pub mod postgres;
pub mod process;
pub mod scale;
pub mod server;
pub mod small_disk;
pub mod ssh_server;
pub mod typed;
pub mod unprivileged_user;
pub mod worker_process;
