//! The user's repository, with real git: what goes into a sandbox and what comes out of one.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod hostile;
mod owner;
mod reading;
mod source;
mod take;
mod world;
