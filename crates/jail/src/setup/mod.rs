//! What a new process does on its way into a sandbox, in order, until it becomes the program.
//!
//! It starts with the launcher's id on the host, which the new user namespace doesn't know but which owns the
//! directories to show: it takes hold of those first, becomes somebody inside, builds the root and gives up, one after
//! the other, all that it no longer needs.

mod devices;
mod landlock;
pub(crate) mod overlay;
pub(crate) mod privilege;
mod proc;
pub(crate) mod programs;
pub(crate) mod protect;
pub(crate) mod root;
pub(crate) mod system;
pub(crate) mod trees;

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Resource, Rlimit};

use crate::error::{AtStep, Errno, Failure, Step};
use crate::ids::Map;
use crate::kernel;
use crate::layers::{Layers, Stack};
use crate::record::Home;
use crate::seccomp::Filter;
use crate::start;
use crate::view::View;

pub(crate) use landlock::{Landlock, Reach};
use overlay::Wanted;
pub(crate) use privilege::{Role, become_root_inside};
use programs::{Held, Shown};

/// All that the process needs to know.
pub(crate) struct Plan<'a> {
    pub view: &'a View,
    pub template: &'a Path,
    pub worker: &'a Path,
    pub home: &'a Home,
    pub files: Files<'a>,
    /// Paths of the workspace that nobody inside may change.
    pub protected: &'a [String],
    /// Programs of the host that are shown beside the root.
    pub programs: &'a [Shown],
    pub map: &'a Map,
    pub hostname: &'a str,
    pub limits: ProcessLimits,
    pub filter: &'a Filter,
    pub landlock: Landlock,
    /// The root is the sandbox's own, and not only parts of it.
    pub writable_root: bool,
    pub role: Role,
    pub arguments: &'a [CString],
    pub environment: &'a [CString],
    /// Those that the program has, from 0 on.
    pub descriptors: &'a [Descriptor<'a>],
    /// Where programs are looked for.
    pub path: &'a str,
}

/// Where workspace, home and an imported root come from.
pub(crate) struct Files<'a> {
    pub layers: &'a Layers,
    pub stack: &'a Stack,
    /// What has to be stacked.
    pub wanted: Wanted,
    /// All layers with their ids mapped, which only the launcher can do.
    pub store: Option<OwnedFd>,
    /// Workspace and home, which the launcher took hold of.
    pub taken: Option<[OwnedFd; 2]>,
    /// Temporary files and spool, where they lie with the layers and the launcher took hold of them.
    pub scratch: Option<[OwnedFd; 2]>,
    /// The programs to show, in their order, where the launcher could take hold of them.
    pub programs: Option<Vec<Held>>,
}

/// A root that is entered.
pub(crate) struct Built {
    /// Hangs nowhere.
    pub spool: OwnedFd,
    /// Protected paths that are not there.
    pub missing: Vec<String>,
}

/// What a one-shot may write to a file, be it one that its caller gave it for its output.
const LONGEST_FILE: u64 = 16 << 30;

/// Limits that each process has by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcessLimits {
    pub open_files: u64,
    /// Where no cgroup bounds the memory.
    pub data: Option<u64>,
    /// Where no cgroup bounds the number of processes.
    pub processes: Option<u64>,
    /// How large each of the file systems in memory may grow.
    pub shared_memory: u64,
}

pub(crate) enum Descriptor<'a> {
    Of(BorrowedFd<'a>),
    /// The spool, which only the process itself can take hold of.
    Spool,
}

/// Becomes the program, or says on `status` why not. A program that runs closes `status` without a word.
pub(crate) fn enter(plan: &Plan<'_>, wait: &File, status: BorrowedFd<'_>) -> i32 {
    let mut unprotected = Vec::new();
    let outcome = prepare(plan, wait).and_then(|Built { spool, missing }| {
        unprotected = missing;
        let descriptors: Vec<BorrowedFd<'_>> = plan
            .descriptors
            .iter()
            .map(|descriptor| match descriptor {
                Descriptor::Of(descriptor) => *descriptor,
                Descriptor::Spool => spool.as_fd(),
            })
            .collect();
        kernel::arrange(&descriptors, status).at(Step::Descriptors)
    });
    tell(plan, outcome, &unprotected, status)
}

/// Becomes the program, or says why not; first, what could not be protected.
fn tell(plan: &Plan<'_>, outcome: Result<OwnedFd, Failure>, unprotected: &[String], status: BorrowedFd<'_>) -> i32 {
    let (failure, status) = match outcome {
        Ok(status) => {
            let status = File::from(status);
            if !unprotected.is_empty() {
                // Who doesn't hear it hears the rest, and that is what counts.
                let _ = (&status).write_all(&start::lacking(unprotected));
            }
            (become_program(plan), status)
        }
        Err(failure) => match rustix::io::fcntl_dupfd_cloexec(status, 3) {
            Ok(status) => (failure, File::from(status)),
            Err(_) => return 71,
        },
    };
    // Nobody is left to hear that this failed.
    let _ = (&status).write_all(&serde_json::to_vec(&failure).unwrap_or_default());
    71
}

fn prepare(plan: &Plan<'_>, wait: &File) -> Result<Built, Failure> {
    may_go_on(wait)?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let trees = trees::Trees::open(plan)?;
    become_root_inside(plan.map)?;
    let built = root::build(plan, trees)?;
    kernel::loopback_up().at(Step::Network)?;
    rustix::system::sethostname(plan.hostname.as_bytes()).at(Step::Hostname)?;
    rustix::process::setsid().at(Step::Limits)?;
    may_go_on(wait)?;
    // Only now is it in its cgroup, which becomes the root of what it can see of cgroups.
    kernel::hide_groups_above().at_with(Step::EnterGroup, "namespace")?;
    privilege::give_up(plan.role, plan.map).at(Step::Capabilities)?;
    match plan.role {
        Role::Agent if !plan.writable_root => plan.landlock.close(Reach::Itself)?,
        Role::Agent | Role::Worker | Role::Root => {}
    }
    still_wanted(wait)?;
    kernel::reset_signals().at(Step::Limits)?;
    Ok(built)
}

/// Waits for the launcher: first until it has written the id maps, then until this process is in its cgroup and known.
fn may_go_on(mut wait: &File) -> Result<(), Failure> {
    let mut byte = [0];
    match wait.read(&mut byte).at(Step::Wait)? {
        0 => Err(Errno(libc::EPIPE)).at(Step::Wait),
        _ => Ok(()),
    }
}

/// Fails if the launcher ended meanwhile: it would have had to end a one-shot, which listens for that only from now on.
fn still_wanted(wait: &File) -> Result<(), Failure> {
    let mut descriptors = [PollFd::new(wait, PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    match rustix::event::poll(&mut descriptors, Some(&now)).at(Step::Wait)? {
        0 => Ok(()),
        _ => Err(Errno(libc::EPIPE)).at(Step::Wait),
    }
}

fn limit(limits: ProcessLimits, role: Role) -> rustix::io::Result<()> {
    let set = |resource: Resource, wanted: u64| {
        let hard = rustix::process::getrlimit(resource).maximum;
        let value = Some(hard.map_or(wanted, |hard| hard.min(wanted)));
        rustix::process::setrlimit(resource, Rlimit { current: value, maximum: value })
    };
    set(Resource::Core, 0)?;
    set(Resource::Nofile, limits.open_files)?;
    if role != Role::Worker {
        set(Resource::Fsize, LONGEST_FILE)?;
    }
    if let Some(data) = limits.data {
        set(Resource::Data, data)?;
    }
    if let Some(processes) = limits.processes {
        set(Resource::Nproc, processes)?;
    }
    Ok(())
}

/// Becomes the program in a sandbox that is there: the process has joined it.
pub(crate) fn enter_living(plan: &Plan<'_>, directory: &CStr, status: BorrowedFd<'_>) -> i32 {
    let outcome = settle_in(plan, directory).and_then(|()| {
        let descriptors: Vec<BorrowedFd<'_>> = plan
            .descriptors
            .iter()
            .filter_map(|descriptor| match descriptor {
                Descriptor::Of(descriptor) => Some(*descriptor),
                Descriptor::Spool => None,
            })
            .collect();
        kernel::arrange(&descriptors, status).at(Step::Descriptors)
    });
    tell(plan, outcome, &[], status)
}

fn settle_in(plan: &Plan<'_>, directory: &CStr) -> Result<(), Failure> {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    rustix::process::setsid().at(Step::Limits)?;
    privilege::give_up(plan.role, plan.map).at(Step::Capabilities)?;
    // As whom it will run: only there where that one may go.
    rustix::process::chdir(directory).at_with(Step::Join, directory.to_string_lossy())?;
    kernel::reset_signals().at(Step::Limits)
}

fn become_program(plan: &Plan<'_>) -> Failure {
    // Not earlier: a low number of open files would have been in the way of arranging them.
    if let Err(failure) = limit(plan.limits, plan.role).at(Step::Limits) {
        return failure;
    }
    // The launcher is prompt and so is what it becomes; what that starts has to wait like everything else.
    crate::prompt(crate::Heirs::Ordinary);
    if let Err(errno) = plan.filter.install() {
        return Failure { step: Step::Seccomp, detail: String::new(), source: errno };
    }
    let name = plan.arguments.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let directories = if name.contains('/') { vec![""] } else { plan.path.split(':').collect() };
    let mut last = Errno(libc::ENOENT);
    for directory in directories {
        let path = if directory.is_empty() { name.clone() } else { format!("{directory}/{name}") };
        if let Ok(path) = CString::new(path) {
            last = kernel::execute(&path, plan.arguments, plan.environment).into();
        }
        if !matches!(last.0, libc::ENOENT | libc::ENOTDIR) {
            break;
        }
    }
    Failure { step: Step::Execute, detail: name.chars().take(200).collect(), source: last }
}
