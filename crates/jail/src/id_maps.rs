//! Detects the id maps that this user may create, and writes them into the kernel.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{AtStep, Errno, Error, LaunchStep, StepFailure};
use crate::id_ranges::{self, IdMap};
use crate::kernel;
use crate::sandbox::{IdMapKind, IdRange};

/// The ids that the launcher's user may map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum IdSource {
    /// Root: a range for each sandbox.
    Ranges { base: u32, reserved: Vec<IdRange>, mappable: Vec<IdRange> },
    /// One map for all sandboxes.
    Fixed { map: IdMap, why_single: Option<String> },
}

impl IdSource {
    pub fn detect(base: u32) -> Self {
        let user = rustix::process::geteuid().as_raw();
        let group = rustix::process::getegid().as_raw();
        let [passwd, groups, subuid, subgid] =
            ["/etc/passwd", "/etc/group", "/etc/subuid", "/etc/subgid"].map(read_text);
        if user == 0 {
            let reserved = id_ranges::parse_passwd_ids(&passwd)
                .chain(id_ranges::parse_passwd_ids(&groups))
                .chain(id_ranges::parse_sub_ids(&subuid).map(|(_, range)| range))
                .chain(id_ranges::parse_sub_ids(&subgid).map(|(_, range)| range))
                .collect();
            return Self::Ranges {
                base,
                reserved,
                mappable: id_ranges::parse_mappable_ids(&read_text("/proc/self/uid_map")),
            };
        }
        let name = user_name(&passwd, user);
        let users = id_ranges::sub_ids_of(&subuid, name, user);
        let sub_groups = id_ranges::sub_ids_of(&subgid, name, user);
        match (users, sub_groups, find_tool("newuidmap"), find_tool("newgidmap")) {
            (Some(users), Some(sub_groups), Some(_), Some(_)) => {
                Self::Fixed { map: IdMap::sub_ids(user, group, users, sub_groups), why_single: None }
            }
            (users, sub_groups, _, _) => {
                let why = if users.is_none() || sub_groups.is_none() {
                    "/etc/subuid and /etc/subgid have no ids for this user"
                } else {
                    "newuidmap and newgidmap are missing"
                };
                Self::Fixed { map: IdMap::single_id(user, group), why_single: Some(why.to_owned()) }
            }
        }
    }

    /// Chooses the range that files are stored under, if each sandbox has its own range.
    pub fn storage_range(&self) -> Result<Option<IdRange>, Error> {
        match self {
            Self::Ranges { .. } => Ok(self.allocate_map(&[])?.exclusive_range()),
            Self::Fixed { .. } => Ok(None),
        }
    }

    /// Allocates an id map for a new sandbox, given the ranges in use.
    pub fn allocate_map(&self, used: &[IdRange]) -> Result<IdMap, Error> {
        match self {
            Self::Ranges { base, reserved, mappable } => {
                let used_ranges: Vec<IdRange> = reserved.iter().chain(used).copied().collect();
                id_ranges::choose_range(*base, &used_ranges, mappable)
                    .map(IdMap::own_range)
                    .ok_or(Error::NoFreeIdRange { base: *base, count: id_ranges::RANGE_SIZE })
            }
            Self::Fixed { map, .. } => Ok(map.clone()),
        }
    }
}

impl IdSource {
    /// A map for removing files whose record is unreadable: root needs no particular one.
    pub fn fallback_map(&self) -> IdMap {
        match self {
            Self::Ranges { .. } => IdMap::single_id(0, 0),
            Self::Fixed { map, .. } => map.clone(),
        }
    }
}

fn read_text(path: &str) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

fn user_name(passwd: &str, user: u32) -> Option<&str> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(user)).then_some(name)
    })
}

fn find_tool(name: &str) -> Option<PathBuf> {
    ["/usr/bin", "/bin", "/usr/local/bin"]
        .iter()
        .map(|directory| Path::new(directory).join(name))
        .find(|path| path.exists())
}

/// Writes the id maps of a process in a new user namespace.
pub(crate) fn write_id_maps(pid: i32, map: &IdMap) -> Result<(), StepFailure> {
    match map.ids {
        IdMapKind::OwnRange | IdMapKind::CommonRange => {
            write_proc_file(pid, "uid_map", &format_lines(&map.users))?;
            write_proc_file(pid, "gid_map", &format_lines(&map.groups))
        }
        IdMapKind::SingleId => {
            write_proc_file(pid, "setgroups", "deny")?;
            write_proc_file(pid, "uid_map", &format_lines(&map.users))?;
            write_proc_file(pid, "gid_map", &format_lines(&map.groups))
        }
        IdMapKind::SubIds => {
            run_map_tool("newuidmap", pid, &map.users)?;
            run_map_tool("newgidmap", pid, &map.groups)
        }
    }
}

fn format_lines(lines: &[id_ranges::IdMapLine]) -> String {
    lines.iter().map(|line| format!("{} {} {}\n", line.inside, line.outside, line.count)).collect()
}

fn write_proc_file(pid: i32, file: &str, text: &str) -> Result<(), StepFailure> {
    fs::write(format!("/proc/{pid}/{file}"), text).at_with(LaunchStep::IdMaps, file)
}

fn run_map_tool(program: &str, pid: i32, lines: &[id_ranges::IdMapLine]) -> Result<(), StepFailure> {
    let path = find_tool(program).ok_or(Errno(libc::ENOENT)).at_with(LaunchStep::IdMaps, program)?;
    let numbers = lines.iter().flat_map(|line| [line.inside, line.outside, line.count]);
    let output = Command::new(path)
        .arg(pid.to_string())
        .args(numbers.map(|number| number.to_string()))
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .at_with(LaunchStep::IdMaps, program)?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(Errno(libc::EPERM)).at_with(LaunchStep::IdMaps, stderr.trim())
}

/// Spawns a process as root of a user namespace with the given map, where it has full access to files of the mapped
/// ids. Root needs no namespace for that.
pub(crate) fn spawn_as_mapped_root(
    map: &IdMap,
    work: impl FnOnce() -> i32,
) -> Result<kernel::ChildProcess, StepFailure> {
    if map.ids != IdMapKind::SubIds {
        return kernel::spawn(0, None, work).at(LaunchStep::Namespaces);
    }
    spawn_in_namespace(map, work)
}

/// Spawns a process in its own user namespace, for root too: it has no power over other ids.
pub(crate) fn spawn_in_namespace(map: &IdMap, work: impl FnOnce() -> i32) -> Result<kernel::ChildProcess, StepFailure> {
    let (wait, go) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).at(LaunchStep::Descriptors)?;
    let (wait, mut go) = (fs::File::from(wait), fs::File::from(go));
    let process = kernel::spawn(kernel::NEW_USER_NAMESPACE, None, || {
        kernel::close_inherited(go.as_fd());
        let mut byte = [0];
        match (&wait).read(&mut byte) {
            Ok(1) => work(),
            Ok(_) | Err(_) => 71,
        }
    })
    .at(LaunchStep::Namespaces)?;
    match write_id_maps(process.pid, map).and_then(|()| go.write_all(b"!").at(LaunchStep::IdMaps)) {
        Ok(()) => Ok(process),
        Err(failure) => {
            process.kill_and_reap();
            Err(failure)
        }
    }
}

/// Creates a user namespace with the given map and without processes, for idmapped mounts.
pub(crate) fn create_user_namespace(map: &IdMap) -> Result<OwnedFd, StepFailure> {
    let (wait, go) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).at(LaunchStep::Descriptors)?;
    let wait = fs::File::from(wait);
    let process = kernel::spawn(kernel::NEW_USER_NAMESPACE, None, || {
        kernel::close_inherited(go.as_fd());
        // Blocks until it is killed or the launcher ends.
        let _ = (&wait).read(&mut [0]);
        0
    })
    .at(LaunchStep::Namespaces)?;
    let opened = write_id_maps(process.pid, map).and_then(|()| {
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
        let path = format!("/proc/{}/ns/user", process.pid);
        rustix::fs::open(path, flags, rustix::fs::Mode::empty()).at_with(LaunchStep::IdMaps, "namespace")
    });
    process.kill_and_reap();
    opened
}

/// Spawns a process that can read all files of a sandbox, even those that the launcher's user may not.
pub(crate) fn spawn_with_read_access(
    map: &IdMap,
    work: impl FnOnce() -> i32,
) -> Result<kernel::ChildProcess, StepFailure> {
    match map.ids {
        IdMapKind::SubIds | IdMapKind::SingleId => spawn_in_namespace(map, work),
        // Root can read everything.
        IdMapKind::OwnRange | IdMapKind::CommonRange => kernel::spawn(0, None, work).at(LaunchStep::Namespaces),
    }
}
