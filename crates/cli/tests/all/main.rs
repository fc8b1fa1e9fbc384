//! Tests of the program as a process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test reports failures by panicking")]

mod canned;
mod cp;
mod creation;
mod exec;
mod live;
mod program;
mod references;
mod run;
mod secret;
mod verify;
