//! One test binary for all end-to-end tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says what is wrong by panicking")]

mod approvals;
mod architecture;
mod conformance;
mod docker;
mod escape;
mod fake;
mod faults;
mod flow;
mod follow;
mod fuzz;
mod hostile;
mod inbox;
mod kill;
mod limits;
mod local;
mod login_files;
mod paging;
mod registry;
mod routes;
mod secrets;
mod sessions;
mod store;
