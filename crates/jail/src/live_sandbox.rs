//! Operations inside a running sandbox: a copy of the launcher joins its namespaces, does one thing and exits.
//!
//! An overlay's upper layer can neither change under running processes nor be mounted twice. So layers are swapped
//! while only the init process runs, and one-shot runs get clones of the running sandbox's mounts.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::UnmountFlags;
use rustix::pipe::PipeFlags;
use rustix::process::DumpableBehavior;

use crate::error::{AtStep, Errno, LaunchStep, StepFailure};
use crate::id_ranges::IdMap;
use crate::kernel::{
    self, ChildProcess, MOUNT_NAMESPACE, NO_DEVICES, NO_SUID, PID_NAMESPACE, READ_ONLY, USER_NAMESPACE,
};
use crate::layers::{LayerStack, LayerStore};
use crate::overlay_mounter::OverlayMounter;
use crate::overlay_xattrs::OverlayXattrs;
use crate::process_start::parse_failure;
use crate::setup::overlay::{OverlayMounts, OverlayRequest};
use crate::setup::programs::{AGENTS_MOUNT_POINT, mount_agents_dir};
use crate::setup::{self, SetupPlan, imported_root, mount_sources, privilege, protect};
use crate::{id_maps, process_scan, wire};

const WORKSPACE_DIR: &str = "/workspace";

/// Time-out for killed processes to exit.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Time-out for a helper process: the launcher blocks meanwhile.
const HELPER_TIMEOUT: Duration = Duration::from_secs(20);

/// New layers for a running sandbox.
pub(crate) struct LayerSwap<'a> {
    /// The pidfd of the sandbox's init process.
    pub process: BorrowedFd<'a>,
    pub map: &'a IdMap,
    pub layers: &'a LayerStore,
    pub stack: &'a LayerStack,
    /// Workspace paths that are read-only inside.
    pub protected: &'a [String],
    /// The idmapped layer store, where ids need mapping.
    pub store: Option<OwnedFd>,
    /// Mounts the overlays, if the launcher and not the sandbox's root mounts them.
    pub mounter: Option<&'a OverlayMounter>,
}

/// Kills everything except the init process and remounts the sandbox's files from new layers.
///
/// On failure the sandbox keeps its old files; if it failed midway, it has some of the new ones, which its mounts show
/// (see [`is_upper_layer`]). `drop` closes what only the launcher may hold.
pub(crate) fn swap_layers(swap: &LayerSwap<'_>, drop: impl FnOnce()) -> Result<(), StepFailure> {
    let (status, report) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).at(LaunchStep::Descriptors)?;
    let process = kernel::spawn(0, None, || {
        drop();
        kernel::close_inherited(status.as_fd());
        report_outcome(swap_layers_inside(swap), report.as_fd())
    })
    .at(LaunchStep::Namespaces)?;
    std::mem::drop(report);
    await_helper(&process, File::from(status))
}

fn report_outcome(outcome: Result<(), StepFailure>, status: BorrowedFd<'_>) -> i32 {
    match outcome {
        Ok(()) => 0,
        Err(failure) => {
            // The exit code still reports the failure.
            let text = serde_json::to_vec(&failure).unwrap_or_default();
            if let Ok(status) = status.try_clone_to_owned() {
                let _ = File::from(status).write_all(&text);
            }
            71
        }
    }
}

fn await_helper(process: &ChildProcess, mut status: File) -> Result<(), StepFailure> {
    // The report fits into the pipe's buffer, so the helper never blocks on it.
    if !process.exits_within(HELPER_TIMEOUT) {
        process.kill();
    }
    let mut text = Vec::new();
    status.read_to_end(&mut text).at(LaunchStep::SwapLayers)?;
    let code = process.reap().at(LaunchStep::SwapLayers)?.and_then(|status| status.exit_status());
    match (parse_failure(&text), code) {
        (Some(failure), _) => Err(failure),
        (None, Some(0)) => Ok(()),
        (None, _) => Err(Errno(libc::EIO)).at_with(LaunchStep::SwapLayers, "the helper process was killed"),
    }
}

/// Keeps the sandbox's processes from inspecting this one, even with equal ids.
fn make_undumpable() -> Result<(), StepFailure> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).at(LaunchStep::Join)
}

fn swap_layers_inside(swap: &LayerSwap<'_>) -> Result<(), StepFailure> {
    let LayerSwap { process, map, layers, stack, protected, store, mounter } = swap;
    make_undumpable()?;
    kernel::join_namespaces(*process, USER_NAMESPACE).at_with(LaunchStep::Join, "user namespace")?;
    // Cloning the layers' mounts is allowed in a copy of the host's mount namespace, not in the original.
    kernel::unshare_mounts().at(LaunchStep::Join)?;
    let own_mounts = OwnMounts::open_current()?;
    let store = match store {
        Some(store) => store.try_clone().at(LaunchStep::Descriptors)?,
        None => mount_sources::clone_mount(&layers.directory, NO_SUID | NO_DEVICES)?,
    };
    kernel::join_namespaces(*process, MOUNT_NAMESPACE).at_with(LaunchStep::Join, "mounts")?;
    privilege::become_root_inside(map)?;
    make_undumpable()?;
    kill_other_processes(*process)?;
    // Mount the layers of all sandboxes in this process's own mount namespace: no process of the sandbox can
    // see them there.
    own_mounts.enter()?;
    let OverlayMounts { files, system } = match mounter {
        Some(mounter) => mounter.mount()?,
        None => {
            let overlays = OverlayRequest { files: true, system: stack.image.is_some() };
            setup::root::mount_overlays_in_namespace(&store, stack, overlays, OverlayXattrs::User)?
        }
    };
    drop(store);
    kernel::join_namespaces(*process, MOUNT_NAMESPACE).at_with(LaunchStep::Join, "mounts")?;
    let mut fresh: Vec<(OwnedFd, PathBuf)> = Vec::new();
    if let Some([workspace, home]) = files {
        // Find out which paths cannot be protected while the old files are still mounted.
        protect::find_missing(workspace.as_fd(), protected)?;
        fresh.push((workspace, WORKSPACE_DIR.into()));
        fresh.push((home, "/home/agent".into()));
    }
    let worker = match system {
        None => None,
        Some(system) => {
            let worker = mount_sources::clone_mount(Path::new("/opt/atoll/worker"), READ_ONLY | NO_SUID | NO_DEVICES)?;
            let directories = system.directories.into_iter().map(|(tree, name)| (tree, Path::new("/").join(name)));
            // A directory that the root lacks was not mounted before either.
            fresh.extend(directories.filter(|(_, path)| fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())));
            let agents = match fs::symlink_metadata(Path::new("/").join(AGENTS_MOUNT_POINT)) {
                Ok(found) if found.is_dir() => Some(mount_sources::clone_mount(
                    &Path::new("/").join(AGENTS_MOUNT_POINT),
                    READ_ONLY | NO_SUID | NO_DEVICES,
                )?),
                Ok(_) | Err(_) => None,
            };
            Some((worker, agents))
        }
    };
    let sealed = remount_read_only(&fresh, protected)?;
    for (index, (tree, path)) in fresh.iter().enumerate() {
        if let Err(error) = rustix::mount::unmount(path, UnmountFlags::DETACH) {
            if index == 0 {
                remount_writable(&sealed)?;
            }
            return Err(error).at_with(LaunchStep::SwapLayers, path.display());
        }
        mount_sources::attach_mount(tree, path, LaunchStep::SwapLayers)?;
    }
    protect::protect_paths(Path::new(WORKSPACE_DIR), protected)?;
    let Some((worker, agents)) = worker else { return Ok(()) };
    imported_root::mount_worker(&worker, Path::new("/"))?;
    agents.map_or(Ok(()), |agents| mount_agents_dir(&agents, Path::new("/")))
}

/// Remounts the old files read-only. Fails without changing anything if a file is open for writing. Returns the
/// remounted mounts.
fn remount_read_only(fresh: &[(OwnedFd, PathBuf)], protected: &[String]) -> Result<Vec<OwnedFd>, StepFailure> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut sealed = Vec::new();
    let mut close = |old: OwnedFd, path: &Path| match kernel::set_one_mount_attributes(old.as_fd(), READ_ONLY) {
        Ok(()) => {
            sealed.push(old);
            Ok(())
        }
        Err(error) => Err(error).at_with(LaunchStep::SwapLayers, path.display()),
    };
    // Parents of protected paths are mounts of their own; other paths are remounted with their parent.
    let not_a_mount = |outcome: Result<(), StepFailure>| match outcome {
        Err(failure) if failure.source.0 == libc::EINVAL => Ok(()),
        outcome => outcome,
    };
    let outcome = protect::open_covered_dirs(Path::new(WORKSPACE_DIR), protected)
        .and_then(|covered| covered.into_iter().try_for_each(|old| not_a_mount(close(old, Path::new(WORKSPACE_DIR)))))
        .and_then(|()| {
            fresh.iter().try_for_each(|(_, path)| {
                let old = rustix::fs::openat(CWD, path, flags, Mode::empty());
                close(old.at_with(LaunchStep::SwapLayers, path.display())?, path)
            })
        });
    if outcome.is_err() {
        remount_writable(&sealed)?;
    }
    outcome.map(|()| sealed)
}

fn remount_writable(sealed: &[OwnedFd]) -> Result<(), StepFailure> {
    sealed
        .iter()
        .try_for_each(|old| kernel::clear_one_mount_attributes(old.as_fd(), READ_ONLY))
        .at(LaunchStep::SwapLayers)
}

/// This process's own mount namespace, to return to.
struct OwnMounts {
    mounts: OwnedFd,
    root: OwnedFd,
}

impl OwnMounts {
    fn open_current() -> Result<Self, StepFailure> {
        let open =
            |path: &str, flags| rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).at(LaunchStep::Join);
        Ok(Self { mounts: open("/proc/self/ns/mnt", OFlags::RDONLY)?, root: open("/", OFlags::PATH)? })
    }

    fn enter(&self) -> Result<(), StepFailure> {
        kernel::join_namespaces(self.mounts.as_fd(), MOUNT_NAMESPACE).at_with(LaunchStep::Join, "own mounts")?;
        // Restore this process's root, which may differ from the namespace's root.
        rustix::process::fchdir(&self.root).at(LaunchStep::Join)?;
        rustix::process::chroot(".").at(LaunchStep::Join)
    }
}

/// Kills all processes of the sandbox except init.
fn kill_other_processes(process: BorrowedFd<'_>) -> Result<(), StepFailure> {
    kernel::join_namespaces(process, PID_NAMESPACE).at_with(LaunchStep::Join, "processes")?;
    let started = Instant::now();
    // Kill at least once: `/proc` is not what isolation relies on.
    loop {
        let killer = kernel::spawn(0, None, || {
            kernel::kill_all_visible();
            0
        })
        .at(LaunchStep::KillProcesses)?;
        killer.reap().at(LaunchStep::KillProcesses)?;
        if count_other_processes().at(LaunchStep::KillProcesses)? == 0 {
            return Ok(());
        }
        if started.elapsed() > KILL_TIMEOUT {
            return Err(Errno(libc::ETIMEDOUT)).at(LaunchStep::KillProcesses);
        }
        std::thread::sleep(Duration::from_micros(300));
    }
}

/// Counts the live processes, except init, of the sandbox whose mounts this process has.
fn count_other_processes() -> std::io::Result<usize> {
    let mut count = 0;
    for entry in fs::read_dir("/proc")?.flatten() {
        let name = entry.file_name();
        let Some(number) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        count += usize::from(number != 1 && process_scan::is_process_alive(&entry.path()));
    }
    Ok(count)
}

/// Tries whether overlays can be mounted here, before sealing layers that could then not be mounted.
pub(crate) fn try_mount_overlay(
    layers: &LayerStore,
    map: &IdMap,
    stack: &LayerStack,
    store: Option<OwnedFd>,
    drop: impl FnOnce(),
) -> Result<(), StepFailure> {
    let (status, report) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).at(LaunchStep::Descriptors)?;
    let process = id_maps::spawn_in_namespace(map, || {
        drop();
        kernel::close_inherited(status.as_fd());
        let outcome = kernel::unshare_mounts().at(LaunchStep::MountOverlay).and_then(|()| {
            let store = match store {
                Some(store) => store,
                None => mount_sources::clone_mount(&layers.directory, NO_SUID | NO_DEVICES)?,
            };
            privilege::become_root_inside(map)?;
            let overlays = OverlayRequest { files: true, system: false };
            setup::root::mount_overlays_in_namespace(&store, stack, overlays, OverlayXattrs::User).map(std::mem::drop)
        });
        report_outcome(outcome, report.as_fd())
    })?;
    std::mem::drop(report);
    await_helper(&process, File::from(status))
}

/// Clones the workspace and home mounts of a running process, detached.
pub(crate) fn clone_file_mounts(process: BorrowedFd<'_>, drop: impl FnOnce()) -> Result<[OwnedFd; 2], StepFailure> {
    let (socket, child_socket) = wire::socket_pair().map_err(|_| Errno(libc::EMFILE)).at(LaunchStep::Descriptors)?;
    let helper = kernel::spawn(0, None, || {
        drop();
        kernel::close_inherited(socket.as_fd());
        let mounts = make_undumpable().and_then(|()| {
            kernel::join_namespaces(process, USER_NAMESPACE | MOUNT_NAMESPACE).at(LaunchStep::Join)?;
            let attributes = NO_SUID | NO_DEVICES;
            Ok([
                mount_sources::clone_mount(Path::new("/workspace"), attributes)?,
                mount_sources::clone_mount(Path::new("/home/agent"), attributes)?,
            ])
        });
        let sent = match &mounts {
            Ok(mounts) => {
                wire::send_packet(child_socket.as_fd(), &None::<StepFailure>, &mounts.each_ref().map(AsFd::as_fd))
            }
            Err(failure) => wire::send_packet(child_socket.as_fd(), &Some(failure), &[]),
        };
        i32::from(sent.is_err())
    })
    .at(LaunchStep::Namespaces)?;
    std::mem::drop(child_socket);
    if !helper.exits_within(HELPER_TIMEOUT) {
        helper.kill();
    }
    let received = wire::receive_packet::<Option<StepFailure>>(socket.as_fd(), &mut [0; 4096]);
    helper.reap().at(LaunchStep::Join)?;
    match received {
        Ok(Some((None, mounts))) => mounts.try_into().map_err(|_| Errno(libc::EIO)).at(LaunchStep::Join),
        Ok(Some((Some(failure), _))) => Err(failure),
        Ok(None) | Err(_) => Err(Errno(libc::EIO)).at_with(LaunchStep::Join, "the helper process was killed"),
    }
}

/// Runs the plan's program in the sandbox of `process`, in its agent's cgroups, and exits as it exits.
///
/// The calling process only joins: a new pid namespace applies to its children.
pub(crate) fn run_in_sandbox(
    plan: &SetupPlan<'_>,
    directory: &CStr,
    process: BorrowedFd<'_>,
    procs_files: &[File],
    status: BorrowedFd<'_>,
) -> i32 {
    let joined = make_undumpable()
        .and_then(|()| kernel::join_namespaces(process, kernel::ALL_NAMESPACES).at(LaunchStep::Join))
        .and_then(|()| privilege::become_root_inside(plan.map))
        .and_then(|()| make_undumpable())
        .and_then(|()| {
            let signal = Some(rustix::process::Signal::KILL);
            rustix::process::set_parent_process_death_signal(signal).at(LaunchStep::Join)
        })
        .and_then(|()| {
            kernel::spawn(0, None, || {
                let admitted = procs_files.iter().try_for_each(|mut file| file.write_all(b"0"));
                match admitted.at(LaunchStep::EnterCgroup) {
                    Ok(()) => setup::enter_running_sandbox(plan, directory, status),
                    Err(failure) => report_outcome(Err(failure), status),
                }
            })
            .at(LaunchStep::Namespaces)
        });
    let child = match joined {
        Ok(child) => child,
        Err(failure) => return report_outcome(Err(failure), status),
    };
    // Close the program's own descriptors here, or their readers would never see the end.
    kernel::close_inherited(status);
    for descriptor in plan.descriptors {
        if let setup::Descriptor::Fd(descriptor) = descriptor {
            kernel::close_inherited(*descriptor);
        }
    }
    match child.reap().ok().flatten() {
        Some(ended) => match (ended.exit_status(), ended.terminating_signal()) {
            (Some(code), _) => code,
            (None, Some(signal)) => kernel::raise_fatal(signal),
            (None, None) => 70,
        },
        None => 70,
    }
}

/// True if a layer is an upper layer in a process's mountinfo.
pub(crate) fn is_upper_layer(mounts: &str, layer: &str) -> bool {
    let option = format!("upperdir={layer}/");
    mounts.lines().any(|line| line.split([' ', ',']).any(|word| word.starts_with(&option)))
}

/// Finds the top layer of the workspace in a process's mountinfo.
pub(crate) fn top_layer(mounts: &str) -> Option<String> {
    let line = mounts.lines().rev().find(|line| line.split(' ').nth(4) == Some("/workspace"))?;
    let (mount, file_system) = line.split_once(" - ")?;
    let layer = |path: &str| Some(path.strip_suffix("/files")?.rsplit('/').next()?.to_owned());
    if file_system.starts_with("overlay ") {
        let options = file_system.split([' ', ',']);
        return layer(options.filter_map(|option| option.strip_prefix("upperdir=")).next()?);
    }
    layer(mount.split(' ').nth(3)?.strip_suffix("/workspace")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_top_layer_in_mountinfo() {
        let plain = "1 2 254:0 /usr /usr ro - ext4 /dev/vda rw\n3 1 254:0 /var/lib/atoll/layers/abc/files/workspace /workspace rw,nosuid,idmapped - ext4 /dev/vda rw\n4 1 0:5 / /proc rw - proc proc rw\n";
        assert_eq!(top_layer(plain), Some("abc".into()));
        let overlaid = "9 1 0:77 /workspace /workspace rw,nosuid,nodev - overlay overlay rw,lowerdir=abc/files,upperdir=def/files,workdir=def/files-work,userxattr,volatile\n";
        assert_eq!(top_layer(overlaid), Some("def".into()));
        assert_eq!(top_layer("1 2 0:1 / / rw - tmpfs tmpfs rw\n"), None);
        assert!(
            is_upper_layer(overlaid, "def")
                && !is_upper_layer(overlaid, "abc")
                && !is_upper_layer(overlaid, "de")
                && !is_upper_layer(plain, "abc")
        );
    }
}
