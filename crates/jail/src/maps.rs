//! Id maps on this machine: which it can have, and how they get into the kernel.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{AtStep, Errno, Error, Failure, Step};
use crate::ids::{self, Map};
use crate::kernel;
use crate::place::{Ids, Range};

/// What the launcher's user may map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// Root: a range for each sandbox.
    Ranges { base: u32, foreign: Vec<Range>, mappable: Vec<Range> },
    /// One map for all sandboxes.
    Fixed { map: Map, why_single: Option<String> },
}

impl Source {
    pub fn find(base: u32) -> Self {
        let user = rustix::process::geteuid().as_raw();
        let group = rustix::process::getegid().as_raw();
        let [passwd, groups, subuid, subgid] = ["/etc/passwd", "/etc/group", "/etc/subuid", "/etc/subgid"].map(text);
        if user == 0 {
            let foreign = ids::named(&passwd)
                .chain(ids::named(&groups))
                .chain(ids::delegated(&subuid).map(|(_, range)| range))
                .chain(ids::delegated(&subgid).map(|(_, range)| range))
                .collect();
            return Self::Ranges { base, foreign, mappable: ids::mappable(&text("/proc/self/uid_map")) };
        }
        let name = name_of(&passwd, user);
        let users = ids::delegated_to(&subuid, name, user);
        let sub_groups = ids::delegated_to(&subgid, name, user);
        match (users, sub_groups, tool("newuidmap"), tool("newgidmap")) {
            (Some(users), Some(sub_groups), Some(_), Some(_)) => {
                Self::Fixed { map: Map::shared(user, group, users, sub_groups), why_single: None }
            }
            (users, sub_groups, _, _) => {
                let why = if users.is_none() || sub_groups.is_none() {
                    "/etc/subuid and /etc/subgid give this user no ids"
                } else {
                    "newuidmap and newgidmap are missing"
                };
                Self::Fixed { map: Map::single(user, group), why_single: Some(why.to_owned()) }
            }
        }
    }

    /// A range in which files can be stored, where each sandbox has ids of its own.
    pub fn stored(&self) -> Result<Option<Range>, Error> {
        match self {
            Self::Ranges { .. } => Ok(self.map(&[])?.range()),
            Self::Fixed { .. } => Ok(None),
        }
    }

    /// A map for a new sandbox, given the ranges of those that are there.
    pub fn map(&self, used: &[Range]) -> Result<Map, Error> {
        match self {
            Self::Ranges { base, foreign, mappable } => {
                let taken: Vec<Range> = foreign.iter().chain(used).copied().collect();
                ids::choose(*base, &taken, mappable)
                    .map(Map::own)
                    .ok_or(Error::NoRange { base: *base, count: ids::RANGE })
            }
            Self::Fixed { map, .. } => Ok(map.clone()),
        }
    }
}

impl Source {
    /// A map under which files can be removed whose own isn't known any more: root needs none.
    pub fn without_record(&self) -> Map {
        match self {
            Self::Ranges { .. } => Map::single(0, 0),
            Self::Fixed { map, .. } => map.clone(),
        }
    }
}

fn text(path: &str) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

fn name_of(passwd: &str, user: u32) -> Option<&str> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(user)).then_some(name)
    })
}

fn tool(name: &str) -> Option<PathBuf> {
    ["/usr/bin", "/bin", "/usr/local/bin"]
        .iter()
        .map(|directory| Path::new(directory).join(name))
        .find(|path| path.exists())
}

/// Gives a process in a new user namespace its ids.
pub(crate) fn write(pid: i32, map: &Map) -> Result<(), Failure> {
    match map.ids {
        Ids::Own | Ids::Common => {
            put(pid, "uid_map", &lines(&map.users))?;
            put(pid, "gid_map", &lines(&map.groups))
        }
        Ids::Single => {
            put(pid, "setgroups", "deny")?;
            put(pid, "uid_map", &lines(&map.users))?;
            put(pid, "gid_map", &lines(&map.groups))
        }
        Ids::Shared => {
            ask("newuidmap", pid, &map.users)?;
            ask("newgidmap", pid, &map.groups)
        }
    }
}

fn lines(lines: &[ids::Line]) -> String {
    lines.iter().map(|line| format!("{} {} {}\n", line.inside, line.outside, line.count)).collect()
}

fn put(pid: i32, file: &str, text: &str) -> Result<(), Failure> {
    fs::write(format!("/proc/{pid}/{file}"), text).at_with(Step::Maps, file)
}

fn ask(program: &str, pid: i32, lines: &[ids::Line]) -> Result<(), Failure> {
    let path = tool(program).ok_or(Errno(libc::ENOENT)).at_with(Step::Maps, program)?;
    let numbers = lines.iter().flat_map(|line| [line.inside, line.outside, line.count]);
    let output = Command::new(path)
        .arg(pid.to_string())
        .args(numbers.map(|number| number.to_string()))
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .at_with(Step::Maps, program)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Errno(libc::EPERM)).at_with(Step::Maps, said.trim())
}

/// Starts a process that does `work` as root of a user namespace with the given map, where it may do with files of
/// the mapped ids what the launcher's user may not. Root needs no namespace for that.
pub(crate) fn spawn_within(map: &Map, work: impl FnOnce() -> i32) -> Result<kernel::Process, Failure> {
    if map.ids != Ids::Shared {
        return kernel::spawn(0, None, work).at(Step::Clone);
    }
    spawn_in_namespace(map, work)
}

/// The same, and in a user namespace of its own for root too: it may do nothing to what has other ids.
pub(crate) fn spawn_in_namespace(map: &Map, work: impl FnOnce() -> i32) -> Result<kernel::Process, Failure> {
    let (wait, go) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).at(Step::Descriptors)?;
    let (wait, mut go) = (fs::File::from(wait), fs::File::from(go));
    let process = kernel::spawn(kernel::NEW_USER_NAMESPACE, None, || {
        kernel::close_copy(go.as_fd());
        let mut byte = [0];
        match (&wait).read(&mut byte) {
            Ok(1) => work(),
            Ok(_) | Err(_) => 71,
        }
    })
    .at(Step::Clone)?;
    match write(process.pid, map).and_then(|()| go.write_all(b"!").at(Step::Maps)) {
        Ok(()) => Ok(process),
        Err(failure) => {
            process.discard();
            Err(failure)
        }
    }
}

/// A user namespace with the given map, in which nobody is: mounts can show their ids by it.
pub(crate) fn namespace(map: &Map) -> Result<OwnedFd, Failure> {
    let (wait, go) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).at(Step::Descriptors)?;
    let wait = fs::File::from(wait);
    let process = kernel::spawn(kernel::NEW_USER_NAMESPACE, None, || {
        kernel::close_copy(go.as_fd());
        // Until it is ended, or its launcher is.
        let _ = (&wait).read(&mut [0]);
        0
    })
    .at(Step::Clone)?;
    let opened = write(process.pid, map).and_then(|()| {
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
        let path = format!("/proc/{}/ns/user", process.pid);
        rustix::fs::open(path, flags, rustix::fs::Mode::empty()).at_with(Step::Maps, "namespace")
    });
    process.discard();
    opened
}

/// For what only looks: also what the launcher's user has closed to itself is open to it.
pub(crate) fn spawn_as_owner(map: &Map, work: impl FnOnce() -> i32) -> Result<kernel::Process, Failure> {
    match map.ids {
        Ids::Shared | Ids::Single => spawn_in_namespace(map, work),
        // Root is let in everywhere.
        Ids::Own | Ids::Common => kernel::spawn(0, None, work).at(Step::Clone),
    }
}
