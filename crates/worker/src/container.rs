//! The worker in a container that somebody's engine made. What the launcher does for a local sandbox before the worker
//! runs, the worker does here itself, first of all: it makes the agent's directories, shuts its own off from the agent,
//! listens, and gives up every privilege that it does not need for the rest of its life.

use crate::memory::Memory;
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
/// The container's own memory counters: in a unified hierarchy, and in one of its own.
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

/// What the engine was told to put in: where the server reaches the worker, and where the spool is.
#[derive(Debug)]
pub struct Mounts {
    pub link: PathBuf,
    pub spool: PathBuf,
}

/// What a worker in a local sandbox would have inherited.
#[derive(Debug)]
pub struct Prepared {
    pub socket: OwnedFd,
    pub spool: OwnedFd,
    pub memory: Memory,
}

/// `owned` are directories that belong to the agent, who has the id `user`.
pub fn prepare(mounts: &Mounts, owned: &[&Path], user: u32, limit: Option<u64>) -> Result<Prepared, Error> {
    for mount in [&mounts.link, &mounts.spool] {
        shut(mount.parent().unwrap_or(mount))?;
    }
    for directory in owned {
        give_to(directory, user)?;
    }
    let socket = listen(&mounts.link)?;
    let spool = directory(&mounts.spool).map_err(failed("open", &mounts.spool))?;
    let kept = CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::KILL;
    keep_only(kept).map_err(failed("give up the privileges of", Path::new("the worker")))?;
    Ok(Prepared { socket: socket.into(), spool, memory: Memory { limit, ..counters() } })
}

/// The socket has its name only when it can be dialled: whoever finds it and is refused takes the worker for dead.
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

/// Only root passes through it from here on. Whose it is was decided by the image, so it is looked at first.
fn shut(path: &Path) -> Result<(), Error> {
    let found = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).map_err(failed("look at", path))?;
    let is_ours = found.st_uid == geteuid().as_raw() && FileType::from_raw_mode(found.st_mode).is_dir();
    if !is_ours {
        let why = "it is no directory of root: the image has something of its own there";
        return Err(failed("use", path)(io::Error::new(io::ErrorKind::PermissionDenied, why)));
    }
    chmodat(CWD, path, Mode::RWXU, AtFlags::empty()).map_err(failed("shut", path))
}

fn directory(path: &Path) -> rustix::io::Result<OwnedFd> {
    openat(CWD, path, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Makes a directory if it is not there, and the agent its owner; what is in it stays as it is.
fn give_to(path: &Path, user: u32) -> Result<(), Error> {
    std::fs::create_dir_all(path).map_err(failed("make", path))?;
    let opened = directory(path).map_err(failed("open", path))?;
    if fstat(&opened).map_err(failed("look at", path))?.st_uid == user {
        return Ok(());
    }
    let (owner, group) = (Uid::from_raw(user), Gid::from_raw(user));
    fchown(&opened, Some(owner), Some(group)).map_err(failed("give to the agent", path))
}

fn counters() -> Memory {
    let open = |path: &str| File::open(path).ok().map(OwnedFd::from);
    let found = COUNTERS.iter().find_map(|(kills, peak)| Some((open(kills)?, open(peak))));
    found.map_or_else(Memory::default, |(kills, peak)| Memory { kills: Some(kills), peak, limit: None })
}

/// Leaves nothing but `kept`, to this process and to whatever it starts.
fn keep_only(kept: CapabilitySet) -> rustix::io::Result<()> {
    rustix::thread::clear_ambient_capability_set()?;
    let bits = CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED;
    rustix::thread::set_capabilities_secure_bits(bits)?;
    for number in 0..64 {
        match rustix::thread::remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
            // The kernel knows no more.
            Err(rustix::io::Errno::INVAL) => break,
            outcome => outcome?,
        }
    }
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets)?;
    rustix::thread::set_no_new_privs(true)
}

/// `as-agent USER ARGUMENTS…`: this program again, as the agent and without any privilege, over its workspace.
pub fn as_agent(arguments: &[String]) -> ExitCode {
    let error = match become_agent(arguments) {
        Ok(never) => match never {},
        Err(error) => error,
    };
    // In the form of a git job, which is what is run so.
    let said = serde_json::json!({ "error": crate::link::chain(&error), "code": "io" });
    drop(writeln!(io::stderr().lock(), "{said}"));
    ExitCode::FAILURE
}

fn become_agent(arguments: &[String]) -> Result<std::convert::Infallible, Error> {
    let myself = Path::new("/proc/self/exe");
    let wrong = || failed("understand the arguments of", myself)(io::Error::from(io::ErrorKind::InvalidInput));
    let (user, rest) = arguments.split_first().ok_or_else(wrong)?;
    let user: u32 = user.parse().map_err(|_| wrong())?;
    give_to(Path::new(crate::exec::WORKSPACE), user)?;
    keep_only(CapabilitySet::SETUID | CapabilitySet::SETGID).map_err(failed("give up the privileges of", myself))?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    Err(failed("become", myself)(Command::new(myself).args(rest).uid(user).gid(user).exec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::os::unix::net::UnixStream;

    #[test]
    fn what_is_the_workers_is_shut_and_what_is_the_agents_is_given() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        shut(dir.path()).unwrap();
        assert_eq!(std::fs::metadata(dir.path()).unwrap().mode() & 0o777, 0o700);

        let own = geteuid().as_raw();
        let home = dir.path().join("home/agent");
        give_to(&home, own).unwrap();
        give_to(&home, own).unwrap();
        assert_eq!(std::fs::metadata(&home).unwrap().uid(), own);
    }

    #[test]
    fn the_socket_takes_the_place_of_one_that_a_dead_worker_left() {
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            let _listener = listen(dir.path()).unwrap();
            UnixStream::connect(dir.path().join(SOCKET)).unwrap();
        }
        assert!(!dir.path().join(UNFINISHED).exists());
        assert!(UnixStream::connect(dir.path().join(SOCKET)).is_err(), "nobody listens any more");
    }

    #[test]
    fn a_link_in_the_place_of_a_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (target, link) = (dir.path().join("target"), dir.path().join("link"));
        std::fs::create_dir(&target).unwrap();
        symlink(&target, &link).unwrap();
        assert!(crate::link::chain(&shut(&link).unwrap_err()).contains("something of its own"));
        assert!(give_to(&link, geteuid().as_raw()).is_err());
    }
}
