//! The command line through the real program.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says what is wrong by panicking")]

mod canned;
mod cp;
mod exec;
mod live;
mod program;
mod run;
mod verify;
