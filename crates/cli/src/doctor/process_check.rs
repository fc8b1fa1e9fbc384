//! Checks the worker's program, the server's user and the limits of this process.

use super::{Check, Report};
use crate::failure::Result;
use crate::serve::server_user;
use atoll_config::Config;
use rustix::process::{Resource, getrlimit};
use std::path::PathBuf;
use std::process::{Command, Stdio};

const WORKER: &str = "atoll-worker";
/// Every reader, worker and request needs a file descriptor.
const MIN_DESCRIPTORS: u64 = 4096;

pub fn check_process(report: &mut Report<'_>) -> Result {
    report.add(check_worker())?;
    report.add(check_descriptors())
}

/// Checks the user that a server started by root switches to.
pub fn check_server_user(config: &Config) -> Check {
    const CHECK: &str = "user";
    match &config.server.user {
        None => Check::warn(
            CHECK,
            "a server started by root stays root",
            "Create a user (useradd --system atoll) and set server.user: only the launcher stays root then.",
        ),
        Some(user) => match server_user::find_user(user) {
            Ok(owner) => Check::ok(CHECK, format!("the server switches to {user} (uid {})", owner.uid)),
            Err(why) => Check::fail(CHECK, why, "Create that user, or set another server.user."),
        },
    }
}

fn check_worker() -> Check {
    let Some(path) = find_worker() else {
        let detail = format!("{WORKER} is neither beside this program nor in PATH");
        return Check::warn(WORKER, detail, "Install it; only external sandboxes need it.");
    };
    let output = Command::new(&path).arg("--version").stdin(Stdio::null()).output();
    let stdout =
        output.ok().filter(|ended| ended.status.success()).and_then(|ended| String::from_utf8(ended.stdout).ok());
    let version = stdout.as_deref().and_then(|text| text.trim().split(' ').next_back());
    match version {
        Some(env!("CARGO_PKG_VERSION")) => Check::ok(WORKER, path.display().to_string()),
        Some(version) => Check::warn(
            WORKER,
            format!("{} is version {version}, this is {}", path.display(), env!("CARGO_PKG_VERSION")),
            "Install both from the same release.",
        ),
        None => Check::warn(WORKER, format!("{} does not run", path.display()), "Install it again."),
    }
}

fn find_worker() -> Option<PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(WORKER)));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|dir| dir.join(WORKER));
    beside.into_iter().chain(in_path).find(|candidate| candidate.is_file())
}

fn check_descriptors() -> Check {
    const CHECK: &str = "descriptors";
    let limit = getrlimit(Resource::Nofile).current;
    match limit {
        Some(limit) if limit < MIN_DESCRIPTORS => Check::warn(
            CHECK,
            format!("at most {limit} open files"),
            format!("Run ulimit -n {MIN_DESCRIPTORS}, or set LimitNOFILE={MIN_DESCRIPTORS} in the systemd unit."),
        ),
        Some(limit) => Check::ok(CHECK, format!("at most {limit} open files")),
        None => Check::ok(CHECK, "unlimited open files"),
    }
}
