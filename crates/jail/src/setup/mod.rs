//! The steps of a new process into a sandbox, until it executes its program.
//!
//! It starts with the launcher's uid on the host, which owns the directories to mount but is unmapped in the new user
//! namespace. So it clones these mounts first, then switches to root inside, builds the root, and drops privileges step
//! by step.

mod devices;
pub(crate) mod imported_root;
mod landlock;
pub(crate) mod mount_sources;
pub(crate) mod overlay;
pub(crate) mod privilege;
mod proc;
pub(crate) mod programs;
pub(crate) mod protect;
pub(crate) mod root;

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Resource, Rlimit};

use crate::error::{AtStep, Errno, LaunchStep, StepFailure};
use crate::host_view::HostView;
use crate::id_ranges::IdMap;
use crate::kernel;
use crate::layers::{LayerStack, LayerStore};
use crate::process_start;
use crate::record::SandboxDir;
use crate::seccomp::Filter;

pub(crate) use landlock::{Landlock, SignalScope};
use overlay::{OverlayMounts, OverlayRequest};
pub(crate) use privilege::{Role, become_root_inside};
use programs::{HostProgram, ProgramMount};

/// Everything that the new process needs to know.
pub(crate) struct SetupPlan<'a> {
    pub view: &'a HostView,
    pub template: &'a Path,
    pub worker: &'a Path,
    pub sandbox_dir: &'a SandboxDir,
    pub files: FileSources<'a>,
    /// Workspace paths that are read-only inside.
    pub protected: &'a [String],
    /// Programs of the host, mounted besides the root.
    pub programs: &'a [HostProgram],
    pub map: &'a IdMap,
    pub hostname: &'a str,
    pub limits: ProcessLimits,
    pub filter: &'a Filter,
    pub landlock: Landlock,
    /// True if the whole root belongs to the sandbox.
    pub writable_root: bool,
    pub role: Role,
    pub arguments: &'a [CString],
    pub environment: &'a [CString],
    /// The program's descriptors, from 0 on.
    pub descriptors: &'a [Descriptor<'a>],
    /// The `PATH` to search for the program.
    pub path: &'a str,
}

/// The sources of workspace, home and imported root.
pub(crate) struct FileSources<'a> {
    pub layers: &'a LayerStore,
    pub stack: &'a LayerStack,
    /// The overlays to mount.
    pub overlays: OverlayRequest,
    /// The overlays, if the launcher has mounted them.
    pub mounted: Option<OverlayMounts>,
    /// The idmapped layer store, which only the launcher can create.
    pub store: Option<OwnedFd>,
    /// Workspace and home, cloned by the launcher.
    pub files: Option<[OwnedFd; 2]>,
    /// Temporary files and spool, cloned by the launcher if they are in the layer store.
    pub scratch: Option<[OwnedFd; 2]>,
    /// The programs' mounts, in order, if the launcher could clone them.
    pub programs: Option<Vec<ProgramMount>>,
}

/// A root that the process has entered.
pub(crate) struct BuiltRoot {
    /// Detached mount.
    pub spool: OwnedFd,
    /// Protected paths that do not exist.
    pub missing_protected: Vec<String>,
}

/// Maximum file size of a one-shot run, including its output files.
const MAX_FILE_BYTES: u64 = 16 << 30;

/// Limits of each single process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcessLimits {
    pub open_files: u64,
    /// Set if no cgroup limits the memory.
    pub data: Option<u64>,
    /// Set if no cgroup limits the number of processes.
    pub processes: Option<u64>,
    /// Size limit of each tmpfs.
    pub shared_memory: u64,
    /// Set if other sandboxes share the kernel's limits of this user.
    pub user_share: Option<UserShare>,
}

/// A sandbox's share of what the kernel allows the user to whom several sandboxes are charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UserShare {
    pub inotify_instances: Option<u64>,
    pub inotify_watches: Option<u64>,
}

/// The divisor of a sandbox's share, for all limits of the user.
const USER_SHARE_DIVISOR: u64 = 8;
/// Enough for a few programs that watch files.
const MIN_INOTIFY_INSTANCES: u64 = 8;
const MIN_INOTIFY_WATCHES: u64 = 4096;

impl UserShare {
    /// Computes the share from the limits of the launcher's user.
    pub fn read_from_proc() -> Self {
        let share = |name: &str, least: u64| {
            let text = std::fs::read_to_string(Path::new("/proc/sys/user").join(name)).ok()?;
            let all: u64 = text.trim().parse().ok()?;
            Some((all / USER_SHARE_DIVISOR).max(least).min(all))
        };
        Self {
            inotify_instances: share("max_inotify_instances", MIN_INOTIFY_INSTANCES),
            inotify_watches: share("max_inotify_watches", MIN_INOTIFY_WATCHES),
        }
    }

    /// Sets the limits of this process's user namespace, through the fresh `/proc` below the current directory.
    fn apply_to_namespace(self) -> Result<(), StepFailure> {
        let limits = [("max_inotify_instances", self.inotify_instances), ("max_inotify_watches", self.inotify_watches)];
        for (name, limit) in limits {
            let Some(limit) = limit else { continue };
            let path = Path::new("proc/sys/user").join(name);
            std::fs::write(&path, limit.to_string()).at_with(LaunchStep::Limits, path.display())?;
        }
        Ok(())
    }
}

pub(crate) enum Descriptor<'a> {
    Fd(BorrowedFd<'a>),
    /// The spool, which only the new process can open.
    Spool,
}

/// Executes the program, or reports on `status` why not. A successful exec closes `status` silently.
pub(crate) fn enter_sandbox(plan: &SetupPlan<'_>, wait: &File, status: BorrowedFd<'_>) -> i32 {
    let mut unprotected = Vec::new();
    let outcome = prepare_process(plan, wait).and_then(|BuiltRoot { spool, missing_protected: missing }| {
        unprotected = missing;
        let descriptors: Vec<BorrowedFd<'_>> = plan
            .descriptors
            .iter()
            .map(|descriptor| match descriptor {
                Descriptor::Fd(descriptor) => *descriptor,
                Descriptor::Spool => spool.as_fd(),
            })
            .collect();
        kernel::install_descriptors(&descriptors, status).at(LaunchStep::Descriptors)
    });
    exec_or_report(plan, outcome, &unprotected, status)
}

/// Executes the program or reports the failure; first reports unprotected paths.
fn exec_or_report(
    plan: &SetupPlan<'_>,
    outcome: Result<OwnedFd, StepFailure>,
    unprotected: &[String],
    status: BorrowedFd<'_>,
) -> i32 {
    let (failure, status) = match outcome {
        Ok(status) => {
            let status = File::from(status);
            if !unprotected.is_empty() {
                // If this fails, the later failure report matters more.
                let _ = (&status).write_all(&process_start::encode_unprotected(unprotected));
            }
            (exec_program(plan), status)
        }
        Err(failure) => match rustix::io::fcntl_dupfd_cloexec(status, 3) {
            Ok(status) => (failure, File::from(status)),
            Err(_) => return 71,
        },
    };
    // There is no other place to report it.
    let _ = (&status).write_all(&serde_json::to_vec(&failure).unwrap_or_default());
    71
}

fn prepare_process(plan: &SetupPlan<'_>, wait: &File) -> Result<BuiltRoot, StepFailure> {
    wait_for_launcher(wait)?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let sources = mount_sources::MountSources::open(plan)?;
    become_root_inside(plan.map)?;
    let built = root::build_root(plan, sources)?;
    kernel::bring_up_loopback().at(LaunchStep::Network)?;
    rustix::system::sethostname(plan.hostname.as_bytes()).at(LaunchStep::Hostname)?;
    rustix::process::setsid().at(LaunchStep::Limits)?;
    wait_for_launcher(wait)?;
    // Only now the process is in its cgroup, which becomes its namespace's root.
    kernel::unshare_cgroups().at_with(LaunchStep::EnterCgroup, "namespace")?;
    privilege::drop_capabilities(plan.role, plan.map).at(LaunchStep::Capabilities)?;
    match plan.role {
        Role::Agent if !plan.writable_root => plan.landlock.restrict_self(SignalScope::OwnDomain)?,
        Role::Agent | Role::Worker | Role::Root => {}
    }
    check_launcher_alive(wait)?;
    kernel::reset_signals().at(LaunchStep::Limits)?;
    Ok(built)
}

/// Waits for the launcher: first until the id maps are written, then until this process is in its cgroup and recorded.
fn wait_for_launcher(mut wait: &File) -> Result<(), StepFailure> {
    let mut byte = [0];
    match wait.read(&mut byte).at(LaunchStep::Wait)? {
        0 => Err(Errno(libc::EPIPE)).at(LaunchStep::Wait),
        _ => Ok(()),
    }
}

/// Fails if the launcher has ended: only from now on a one-shot run is killed with it.
fn check_launcher_alive(wait: &File) -> Result<(), StepFailure> {
    let mut descriptors = [PollFd::new(wait, PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    match rustix::event::poll(&mut descriptors, Some(&now)).at(LaunchStep::Wait)? {
        0 => Ok(()),
        _ => Err(Errno(libc::EPIPE)).at(LaunchStep::Wait),
    }
}

fn set_process_limits(limits: ProcessLimits, role: Role) -> rustix::io::Result<()> {
    let set = |resource: Resource, requested: u64| {
        let hard = rustix::process::getrlimit(resource).maximum;
        let value = Some(hard.map_or(requested, |hard| hard.min(requested)));
        rustix::process::setrlimit(resource, Rlimit { current: value, maximum: value })
    };
    set(Resource::Core, 0)?;
    set(Resource::Nofile, limits.open_files)?;
    if role != Role::Worker {
        set(Resource::Fsize, MAX_FILE_BYTES)?;
    }
    if let Some(data) = limits.data {
        set(Resource::Data, data)?;
    }
    if limits.user_share.is_some() {
        for resource in [Resource::Sigpending, Resource::Msgqueue] {
            if let Some(hard) = rustix::process::getrlimit(resource).maximum {
                set(resource, hard / USER_SHARE_DIVISOR)?;
            }
        }
    }
    if let Some(processes) = limits.processes {
        set(Resource::Nproc, processes)?;
    }
    Ok(())
}

/// Executes the program in a running sandbox that this process has joined.
pub(crate) fn enter_running_sandbox(plan: &SetupPlan<'_>, directory: &CStr, status: BorrowedFd<'_>) -> i32 {
    let outcome = prepare_joined_process(plan, directory).and_then(|()| {
        let descriptors: Vec<BorrowedFd<'_>> = plan
            .descriptors
            .iter()
            .filter_map(|descriptor| match descriptor {
                Descriptor::Fd(descriptor) => Some(*descriptor),
                Descriptor::Spool => None,
            })
            .collect();
        kernel::install_descriptors(&descriptors, status).at(LaunchStep::Descriptors)
    });
    exec_or_report(plan, outcome, &[], status)
}

fn prepare_joined_process(plan: &SetupPlan<'_>, directory: &CStr) -> Result<(), StepFailure> {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    rustix::process::setsid().at(LaunchStep::Limits)?;
    privilege::drop_capabilities(plan.role, plan.map).at(LaunchStep::Capabilities)?;
    // After the switch of ids: the program's user must be able to enter it.
    rustix::process::chdir(directory).at_with(LaunchStep::Join, directory.to_string_lossy())?;
    kernel::reset_signals().at(LaunchStep::Limits)
}

fn exec_program(plan: &SetupPlan<'_>) -> StepFailure {
    // Not earlier: a low limit of open files would break the installation of descriptors.
    if let Err(failure) = set_process_limits(plan.limits, plan.role).at(LaunchStep::Limits) {
        return failure;
    }
    // The launcher has short slices, and so has this program; its children get default ones.
    crate::request_short_slices(crate::SliceInheritance::Reset);
    if let Err(errno) = plan.filter.install() {
        return StepFailure { step: LaunchStep::Seccomp, detail: String::new(), source: errno };
    }
    let name = plan.arguments.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let directories = if name.contains('/') { vec![""] } else { plan.path.split(':').collect() };
    let mut last = Errno(libc::ENOENT);
    for directory in directories {
        let path = if directory.is_empty() { name.clone() } else { format!("{directory}/{name}") };
        if let Ok(path) = CString::new(path) {
            last = kernel::exec(&path, plan.arguments, plan.environment).into();
        }
        if !matches!(last.0, libc::ENOENT | libc::ENOTDIR) {
            break;
        }
    }
    StepFailure { step: LaunchStep::Execute, detail: name.chars().take(200).collect(), source: last }
}
