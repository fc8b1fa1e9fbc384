//! Sets up the worker in a container: the steps that the launcher does for a local sandbox.
//!
//! The worker creates the agent's directories, closes its own to the agent, listens, and drops the privileges that it
//! does not need.

use crate::memory_counters::MemoryCounters;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, chmodat, fchown, fstat, openat, statat};
use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{CapabilitiesSecureBits, CapabilitySet, CapabilitySets};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The socket's name in the link directory.
const SOCKET: &str = "sock";
const UNFINISHED: &str = "sock.new";
/// The container's memory counters in cgroup v2 and v1.
const COUNTERS: [(&str, &str); 2] = [
    ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory.peak"),
    ("/sys/fs/cgroup/memory/memory.oom_control", "/sys/fs/cgroup/memory/memory.max_usage_in_bytes"),
];

#[derive(Debug, thiserror::Error)]
#[error("failed to {action} {path}")]
pub struct Error {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

fn failed<E: Into<io::Error>>(action: &'static str, path: &Path) -> impl FnOnce(E) -> Error {
    move |source| Error { action, path: path.to_owned(), source: source.into() }
}

/// The mounts of the worker: the directory of its socket, and the spool.
#[derive(Debug)]
pub struct Mounts {
    pub link: PathBuf,
    pub spool: PathBuf,
}

/// The descriptors that a worker in a local sandbox inherits.
#[derive(Debug)]
pub struct Prepared {
    pub socket: OwnedFd,
    pub spool: OwnedFd,
    pub memory: MemoryCounters,
}

/// Prepares the container; `owned` are the directories of the agent, whose user id is `user`.
pub fn prepare_container(mounts: &Mounts, owned: &[&Path], user: u32, limit: Option<u64>) -> Result<Prepared, Error> {
    for mount in [&mounts.link, &mounts.spool] {
        restrict_to_root(mount.parent().unwrap_or(mount))?;
    }
    for directory in owned {
        give_to_agent(directory, user)?;
    }
    let socket = listen(&mounts.link)?;
    let spool = open_directory(&mounts.spool).map_err(failed("open", &mounts.spool))?;
    let capabilities = CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::KILL;
    drop_capabilities_except(capabilities).map_err(failed("drop the privileges of", Path::new("the worker")))?;
    Ok(Prepared { socket: socket.into(), spool, memory: MemoryCounters { limit, ..open_counters() } })
}

/// Listens in `directory`. Renames the socket into place once it accepts connections: the server takes a worker whose
/// socket refuses connections for dead.
fn listen(directory: &Path) -> Result<UnixListener, Error> {
    let (new, path) = (directory.join(UNFINISHED), directory.join(SOCKET));
    match std::fs::remove_file(&new) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed("remove", &new)(error)),
    }
    let socket = UnixListener::bind(&new).map_err(failed("listen at", &new))?;
    std::fs::rename(&new, &path).map_err(failed("listen at", &path))?;
    Ok(socket)
}

/// Closes a directory to everyone but root. The image may have replaced it, so check it first.
fn restrict_to_root(path: &Path) -> Result<(), Error> {
    let found = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).map_err(failed("stat", path))?;
    let is_ours = found.st_uid == geteuid().as_raw() && FileType::from_raw_mode(found.st_mode).is_dir();
    if !is_ours {
        let why = "not a directory of root; remove it from the image";
        return Err(failed("use", path)(io::Error::new(io::ErrorKind::PermissionDenied, why)));
    }
    chmodat(CWD, path, Mode::RWXU, AtFlags::empty()).map_err(failed("change the mode of", path))
}

fn open_directory(path: &Path) -> rustix::io::Result<OwnedFd> {
    openat(CWD, path, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Creates a directory if needed and makes the agent its owner; does not change its contents.
fn give_to_agent(path: &Path, user: u32) -> Result<(), Error> {
    std::fs::create_dir_all(path).map_err(failed("create", path))?;
    let opened = open_directory(path).map_err(failed("open", path))?;
    if fstat(&opened).map_err(failed("stat", path))?.st_uid == user {
        return Ok(());
    }
    let (owner, group) = (Uid::from_raw(user), Gid::from_raw(user));
    fchown(&opened, Some(owner), Some(group)).map_err(failed("change the owner of", path))
}

fn open_counters() -> MemoryCounters {
    let open = |path: &str| File::open(path).ok().map(OwnedFd::from);
    let found = COUNTERS.iter().find_map(|(kills, peak)| Some((open(kills)?, open(peak))));
    found.map_or_else(MemoryCounters::default, |(kills, peak)| MemoryCounters { kills: Some(kills), peak, limit: None })
}

/// Drops all capabilities but `kept`, for this process and its children.
fn drop_capabilities_except(capabilities: CapabilitySet) -> rustix::io::Result<()> {
    rustix::thread::clear_ambient_capability_set()?;
    let bits = CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED;
    rustix::thread::set_capabilities_secure_bits(bits)?;
    for number in 0..64 {
        match rustix::thread::remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
            // The last capability of this kernel.
            Err(rustix::io::Errno::INVAL) => break,
            outcome => outcome?,
        }
    }
    let sets = CapabilitySets { effective: capabilities, permitted: capabilities, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets)?;
    rustix::thread::set_no_new_privs(true)
}

/// `as-agent USER ARGUMENTS…`: runs this program again as the agent's user, without privileges.
pub fn run_as_agent(arguments: &[String]) -> ExitCode {
    let error = match become_agent(arguments) {
        Ok(never) => match never {},
        Err(error) => error,
    };
    // The error format of a git operation: only those run this way.
    let error = serde_json::json!({ "error": atoll_dispatcher::link::chain(&error), "code": "io" });
    drop(writeln!(io::stderr().lock(), "{error}"));
    ExitCode::FAILURE
}

fn become_agent(arguments: &[String]) -> Result<std::convert::Infallible, Error> {
    let own_program = Path::new("/proc/self/exe");
    let invalid = || failed("parse the arguments of", own_program)(io::Error::from(io::ErrorKind::InvalidInput));
    let (user, rest) = arguments.split_first().ok_or_else(invalid)?;
    let user: u32 = user.parse().map_err(|_| invalid())?;
    give_to_agent(Path::new(crate::exec::WORKSPACE), user)?;
    drop_capabilities_except(CapabilitySet::SETUID | CapabilitySet::SETGID)
        .map_err(failed("drop the privileges of", own_program))?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    Err(failed("run", own_program)(Command::new(own_program).args(rest).uid(user).gid(user).exec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::os::unix::net::UnixStream;

    #[test]
    fn restricts_worker_directories_and_gives_agent_directories_away() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        restrict_to_root(dir.path()).unwrap();
        assert_eq!(std::fs::metadata(dir.path()).unwrap().mode() & 0o777, 0o700);

        let own = geteuid().as_raw();
        let home = dir.path().join("home/agent");
        give_to_agent(&home, own).unwrap();
        give_to_agent(&home, own).unwrap();
        assert_eq!(std::fs::metadata(&home).unwrap().uid(), own);
    }

    #[test]
    fn the_socket_replaces_the_one_of_a_dead_worker() {
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            let _listener = listen(dir.path()).unwrap();
            UnixStream::connect(dir.path().join(SOCKET)).unwrap();
        }
        assert!(!dir.path().join(UNFINISHED).exists());
        assert!(UnixStream::connect(dir.path().join(SOCKET)).is_err(), "the listener is closed");
    }

    #[test]
    fn rejects_a_link_in_place_of_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let (target, link) = (dir.path().join("target"), dir.path().join("link"));
        std::fs::create_dir(&target).unwrap();
        symlink(&target, &link).unwrap();
        assert!(
            atoll_dispatcher::link::chain(&restrict_to_root(&link).unwrap_err()).contains("not a directory of root")
        );
        assert!(give_to_agent(&link, geteuid().as_raw()).is_err());
    }
}
