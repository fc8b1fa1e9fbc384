//! What the end-to-end tests share: databases of their own, servers, typed actors.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says what is wrong by panicking")]

pub mod actor;
pub mod database;
pub mod engine;
pub mod local;
pub mod ordinary;
pub mod postgres;
pub mod process;
pub mod program;
pub mod reader;
pub mod scale;
pub mod server;
pub mod small_disk;
pub mod worker;
