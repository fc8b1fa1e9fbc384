//! Real sandboxes on this machine. What it can't do is skipped by name.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it skips"
)]

mod disk;
mod harness;
mod images;
mod isolation;
mod landlock;
mod layers;
mod lifecycle;
mod limits;
mod ordinary;
mod pausing;
mod pool;
mod programs;
mod protected;
mod shown;
mod stragglers;
mod timings;

/// Not a test: what the others start as their launcher.
#[test]
fn launcher_entry() {
    if std::env::var_os(harness::LAUNCHER).is_some() {
        let code = atoll_jail::launcher_main();
        std::process::exit(i32::from(code != std::process::ExitCode::SUCCESS));
    }
}
