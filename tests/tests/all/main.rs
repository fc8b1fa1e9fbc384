//! One test binary for all end-to-end tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod approvals;
mod architecture;
mod clock_jumps;
mod conformance;
mod database_hold;
mod docker;
mod escape;
mod fake_provider;
mod faults;
mod forge_double;
mod forge_login;
mod fuzz;
mod guardian;
mod health;
mod hostile;
mod inbox;
mod kill;
mod limits;
mod live_readers;
mod local;
mod login_files;
mod paging;
mod references;
mod registry;
mod request_flows;
mod routes;
mod secrets;
mod sessions;
mod sign_in;
mod store;
mod task_queue;
mod tasks;
mod tickets;
mod webhooks;
