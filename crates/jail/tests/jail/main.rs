//! Tests with real sandboxes on this host. A test that needs a missing feature prints a notice; in CI a host without
//! sandboxes fails.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it skips"
)]

mod caches;
mod developer_tools;
mod disk;
mod forks_and_snapshots;
mod harness;
mod host_programs;
mod images;
mod isolation;
mod landlock_rules;
mod lifecycle;
mod limits;
mod own_program;
mod pausing;
mod pool;
mod protected;
mod timings;
mod unprivileged;
mod zombie_leaders;

/// Not a test: the other tests start it as their launcher.
#[test]
fn launcher_entry() {
    if std::env::var_os(harness::LAUNCHER_VARIABLE).is_some() {
        let code = atoll_jail::launcher_main();
        std::process::exit(i32::from(code != std::process::ExitCode::SUCCESS));
    }
}
