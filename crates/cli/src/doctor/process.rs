//! What this process may do, and the worker's program.

use super::{Check, Report};
use crate::failure::Result;
use crate::serve::user;
use atoll_config::Config;
use rustix::process::{Resource, getrlimit};
use std::path::PathBuf;
use std::process::{Command, Stdio};

const WORKER: &str = "atoll-worker";
/// Every reader, worker and request takes one.
const DESCRIPTORS: u64 = 4096;

pub fn check(report: &mut Report<'_>) -> Result {
    report.tell(worker())?;
    report.tell(descriptors())
}

/// Whom a server becomes that root starts.
pub fn user(config: &Config) -> Check {
    const CHECK: &str = "user";
    match &config.server.user {
        None => Check::warn(
            CHECK,
            "this is root, and a server that root starts stays root",
            "Make a user for it (useradd --system atoll) and name that as server.user: only the process that makes \
             sandboxes stays root then.",
        ),
        Some(user) => match user::find(user) {
            Ok(owner) => Check::ok(CHECK, format!("the server becomes {user} (uid {})", owner.user)),
            Err(why) => Check::fail(CHECK, why, "Make that user, or name another with server.user."),
        },
    }
}

fn worker() -> Check {
    let Some(path) = find() else {
        let detail = format!("{WORKER} is neither beside this program nor in PATH");
        return Check::warn(WORKER, detail, "Install it there; only sandboxes with a worker started by hand need it.");
    };
    let asked = Command::new(&path).arg("--version").stdin(Stdio::null()).output();
    let said = asked.ok().filter(|ended| ended.status.success()).and_then(|ended| String::from_utf8(ended.stdout).ok());
    let version = said.as_deref().and_then(|text| text.trim().split(' ').next_back());
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

fn find() -> Option<PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(WORKER)));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|dir| dir.join(WORKER));
    beside.into_iter().chain(in_path).find(|candidate| candidate.is_file())
}

fn descriptors() -> Check {
    const CHECK: &str = "descriptors";
    let limit = getrlimit(Resource::Nofile).current;
    match limit {
        Some(limit) if limit < DESCRIPTORS => Check::warn(
            CHECK,
            format!("at most {limit} open files"),
            format!("ulimit -n {DESCRIPTORS}, or LimitNOFILE={DESCRIPTORS} in the systemd unit."),
        ),
        Some(limit) => Check::ok(CHECK, format!("at most {limit} open files")),
        None => Check::ok(CHECK, "no limit of open files"),
    }
}
