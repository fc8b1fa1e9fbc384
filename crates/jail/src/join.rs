//! What is done inside a sandbox that lives: by a copy of the launcher that joins its namespaces, does one thing and ends.
//!
//! An overlay's upper layer can't be changed under the processes that use it, nor mounted twice. So a sandbox's files are
//! exchanged when nothing but its first process is left, and lent to one-shots while it lives.

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

use crate::error::{AtStep, Errno, Failure, Step};
use crate::ids::Map;
use crate::kernel::{self, MOUNTS, NO_DEVICES, NO_SUID, PROCESSES, Process, READ_ONLY, USER};
use crate::layers::{Layers, Stack};
use crate::setup::overlay::{Stacked, Wanted};
use crate::setup::programs::{PLACE, hang_place};
use crate::setup::{self, Plan, privilege, protect, system, trees};
use crate::start::said;
use crate::{census, maps, wire};

const WORKSPACE: &str = "/workspace";

/// How long what was killed may take to go.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a helper may take to do its one thing: everybody else waits meanwhile.
const HELPERS: Duration = Duration::from_secs(20);

/// The files that a living sandbox shall have from now on.
pub(crate) struct Exchange<'a> {
    /// Its first process.
    pub process: BorrowedFd<'a>,
    pub map: &'a Map,
    pub layers: &'a Layers,
    pub stack: &'a Stack,
    /// Paths of the workspace that nobody inside may change.
    pub protected: &'a [String],
    /// All layers with their ids mapped, where that is needed.
    pub store: Option<OwnedFd>,
}

/// Ends what runs besides the first process and gives the sandbox other files. If it fails, it has its old ones; or, where
/// that was no more possible, some of the new: its mounts tell (see [`shows`]). `drop` closes what only the launcher
/// shall hold.
pub(crate) fn exchange(exchange: &Exchange<'_>, drop: impl FnOnce()) -> Result<(), Failure> {
    let (status, said) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).at(Step::Descriptors)?;
    let process = kernel::spawn(0, None, || {
        drop();
        kernel::close_copy(status.as_fd());
        report(exchanged(exchange), said.as_fd())
    })
    .at(Step::Clone)?;
    std::mem::drop(said);
    finished(&process, File::from(status))
}

fn report(outcome: Result<(), Failure>, status: BorrowedFd<'_>) -> i32 {
    match outcome {
        Ok(()) => 0,
        Err(failure) => {
            // Who waits for it sees at least that it failed.
            let text = serde_json::to_vec(&failure).unwrap_or_default();
            if let Ok(status) = status.try_clone_to_owned() {
                let _ = File::from(status).write_all(&text);
            }
            71
        }
    }
}

fn finished(process: &Process, mut status: File) -> Result<(), Failure> {
    // What it says fits into a pipe, so it never waits for being heard.
    if !process.ends_within(HELPERS) {
        process.kill();
    }
    let mut text = Vec::new();
    status.read_to_end(&mut text).at(Step::Exchange)?;
    let code = process.wait().at(Step::Exchange)?.and_then(|status| status.exit_status());
    match (said(&text), code) {
        (Some(failure), _) => Err(failure),
        (None, Some(0)) => Ok(()),
        (None, _) => Err(Errno(libc::EIO)).at_with(Step::Exchange, "its helper was killed"),
    }
}

/// Nobody of the sandbox shall look into this process, whatever ids it has.
fn hide() -> Result<(), Failure> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).at(Step::Join)
}

fn exchanged(exchange: &Exchange<'_>) -> Result<(), Failure> {
    let Exchange { process, map, layers, stack, protected, store } = exchange;
    hide()?;
    kernel::join(*process, USER).at_with(Step::Join, "user namespace")?;
    // In a copy of the host's mounts this process may take hold of the layers; in the host's own it may not.
    kernel::copy_mounts().at(Step::Join)?;
    let aside = Aside::here()?;
    let store = match store {
        Some(store) => store.try_clone().at(Step::Descriptors)?,
        None => trees::tree(&layers.directory, NO_SUID | NO_DEVICES)?,
    };
    kernel::join(*process, MOUNTS).at_with(Step::Join, "mounts")?;
    privilege::become_root_inside(map)?;
    hide()?;
    quiet(*process)?;
    // The layers of all sandboxes hang in this process's own mounts for a moment: nobody of this one could see them
    // there, should anybody be left.
    aside.enter()?;
    let wanted = Wanted { files: true, system: stack.image.is_some() };
    let Stacked { files, system } = setup::root::stack_aside(&store, stack, wanted)?;
    drop(store);
    kernel::join(*process, MOUNTS).at_with(Step::Join, "mounts")?;
    let mut fresh: Vec<(OwnedFd, PathBuf)> = Vec::new();
    if let Some([workspace, home]) = files {
        // What can't be protected must be known while the old files are still there.
        protect::missing(workspace.as_fd(), protected)?;
        fresh.push((workspace, WORKSPACE.into()));
        fresh.push((home, "/home/agent".into()));
    }
    let worker = match system {
        None => None,
        Some(system) => {
            let worker = trees::tree(Path::new("/opt/atoll/worker"), READ_ONLY | NO_SUID | NO_DEVICES)?;
            let directories = system.directories.into_iter().map(|(tree, name)| (tree, Path::new("/").join(name)));
            // What the root has no place for can't have been there before either.
            fresh.extend(directories.filter(|(_, path)| fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())));
            let agents = match fs::symlink_metadata(Path::new("/").join(PLACE)) {
                Ok(found) if found.is_dir() => {
                    Some(trees::tree(&Path::new("/").join(PLACE), READ_ONLY | NO_SUID | NO_DEVICES)?)
                }
                Ok(_) | Err(_) => None,
            };
            Some((worker, agents))
        }
    };
    let sealed = seal(&fresh, protected)?;
    for (index, (tree, path)) in fresh.iter().enumerate() {
        if let Err(error) = rustix::mount::unmount(path, UnmountFlags::DETACH) {
            if index == 0 {
                unseal(&sealed)?;
            }
            return Err(error).at_with(Step::Exchange, path.display());
        }
        trees::hang(tree, path, Step::Exchange)?;
    }
    protect::protect(Path::new(WORKSPACE), protected)?;
    let Some((worker, agents)) = worker else { return Ok(()) };
    system::hang_worker(&worker, Path::new("/"))?;
    agents.map_or(Ok(()), |agents| hang_place(&agents, Path::new("/")))
}

/// From here on nobody can write to the old files, whatever they hold on to. Fails, and changes nothing, if somebody
/// has one open for writing. Returns what was closed.
fn seal(fresh: &[(OwnedFd, PathBuf)], protected: &[String]) -> Result<Vec<OwnedFd>, Failure> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut sealed = Vec::new();
    let mut close = |old: OwnedFd, path: &Path| match kernel::set_attributes_of_one(old.as_fd(), READ_ONLY) {
        Ok(()) => {
            sealed.push(old);
            Ok(())
        }
        Err(error) => Err(error).at_with(Step::Exchange, path.display()),
    };
    // Directories above protected paths are mounts of their own; others are closed with what they are in.
    let not_a_mount = |outcome: Result<(), Failure>| match outcome {
        Err(failure) if failure.source.0 == libc::EINVAL => Ok(()),
        outcome => outcome,
    };
    let outcome = protect::covered(Path::new(WORKSPACE), protected)
        .and_then(|covered| covered.into_iter().try_for_each(|old| not_a_mount(close(old, Path::new(WORKSPACE)))))
        .and_then(|()| {
            fresh.iter().try_for_each(|(_, path)| {
                let old = rustix::fs::openat(CWD, path, flags, Mode::empty());
                close(old.at_with(Step::Exchange, path.display())?, path)
            })
        });
    if outcome.is_err() {
        unseal(&sealed)?;
    }
    outcome.map(|()| sealed)
}

fn unseal(sealed: &[OwnedFd]) -> Result<(), Failure> {
    sealed.iter().try_for_each(|old| kernel::clear_attributes_of_one(old.as_fd(), READ_ONLY)).at(Step::Exchange)
}

/// This process's own mounts, to come back to.
struct Aside {
    mounts: OwnedFd,
    root: OwnedFd,
}

impl Aside {
    fn here() -> Result<Self, Failure> {
        let open = |path: &str, flags| rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).at(Step::Join);
        Ok(Self { mounts: open("/proc/self/ns/mnt", OFlags::RDONLY)?, root: open("/", OFlags::PATH)? })
    }

    fn enter(&self) -> Result<(), Failure> {
        kernel::join(self.mounts.as_fd(), MOUNTS).at_with(Step::Join, "own mounts")?;
        // The root that this process had in them, which need not be theirs.
        rustix::process::fchdir(&self.root).at(Step::Join)?;
        rustix::process::chroot(".").at(Step::Join)
    }
}

/// Ends all processes of the sandbox but the first.
fn quiet(process: BorrowedFd<'_>) -> Result<(), Failure> {
    kernel::join(process, PROCESSES).at_with(Step::Join, "processes")?;
    let started = Instant::now();
    // Once in any case: what is read of processes is not what keeps anybody out.
    loop {
        let killer = kernel::spawn(0, None, || {
            kernel::kill_all();
            0
        })
        .at(Step::Quiet)?;
        killer.wait().at(Step::Quiet)?;
        if others().at(Step::Quiet)? == 0 {
            return Ok(());
        }
        if started.elapsed() > PATIENCE {
            return Err(Errno(libc::ETIMEDOUT)).at(Step::Quiet);
        }
        std::thread::sleep(Duration::from_micros(300));
    }
}

/// How many processes but the first live in the sandbox whose mounts this process sees.
fn others() -> std::io::Result<usize> {
    let mut count = 0;
    for entry in fs::read_dir("/proc")?.flatten() {
        let name = entry.file_name();
        let Some(number) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        count += usize::from(number != 1 && census::lives(&entry.path()));
    }
    Ok(count)
}

/// Sees whether layers can be stacked here: before anything is sealed that could then not be shown any more.
pub(crate) fn try_stacking(
    layers: &Layers,
    map: &Map,
    stack: &Stack,
    store: Option<OwnedFd>,
    drop: impl FnOnce(),
) -> Result<(), Failure> {
    let (status, said) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).at(Step::Descriptors)?;
    let process = maps::spawn_in_namespace(map, || {
        drop();
        kernel::close_copy(status.as_fd());
        let outcome = kernel::copy_mounts().at(Step::Layers).and_then(|()| {
            let store = match store {
                Some(store) => store,
                None => trees::tree(&layers.directory, NO_SUID | NO_DEVICES)?,
            };
            privilege::become_root_inside(map)?;
            setup::root::stack_aside(&store, stack, Wanted { files: true, system: false }).map(std::mem::drop)
        });
        report(outcome, said.as_fd())
    })?;
    std::mem::drop(said);
    finished(&process, File::from(status))
}

/// Workspace and home of a living process's mount namespace, as trees that hang nowhere.
pub(crate) fn borrow(process: BorrowedFd<'_>, drop: impl FnOnce()) -> Result<[OwnedFd; 2], Failure> {
    let (ours, theirs) = wire::pair().map_err(|_| Errno(libc::EMFILE)).at(Step::Descriptors)?;
    let helper = kernel::spawn(0, None, || {
        drop();
        kernel::close_copy(ours.as_fd());
        let lent = hide().and_then(|()| {
            kernel::join(process, USER | MOUNTS).at(Step::Join)?;
            let attributes = NO_SUID | NO_DEVICES;
            Ok([trees::tree(Path::new("/workspace"), attributes)?, trees::tree(Path::new("/home/agent"), attributes)?])
        });
        let sent = match &lent {
            Ok(lent) => wire::send(theirs.as_fd(), &None::<Failure>, &lent.each_ref().map(AsFd::as_fd)),
            Err(failure) => wire::send(theirs.as_fd(), &Some(failure), &[]),
        };
        i32::from(sent.is_err())
    })
    .at(Step::Clone)?;
    std::mem::drop(theirs);
    if !helper.ends_within(HELPERS) {
        helper.kill();
    }
    let received = wire::receive::<Option<Failure>>(ours.as_fd(), &mut [0; 4096]);
    helper.wait().at(Step::Join)?;
    match received {
        Ok(Some((None, lent))) => lent.try_into().map_err(|_| Errno(libc::EIO)).at(Step::Join),
        Ok(Some((Some(failure), _))) => Err(failure),
        Ok(None) | Err(_) => Err(Errno(libc::EIO)).at_with(Step::Join, "its helper was killed"),
    }
}

/// Runs the plan's program in the sandbox of `process`, in its agent's cgroups, and ends as it ends.
///
/// This is what the process does that is made for it: in the pid namespace can only be a child of it.
pub(crate) fn enter(
    plan: &Plan<'_>,
    directory: &CStr,
    process: BorrowedFd<'_>,
    admissions: &[File],
    status: BorrowedFd<'_>,
) -> i32 {
    let joined = hide()
        .and_then(|()| kernel::join(process, kernel::ALL).at(Step::Join))
        .and_then(|()| privilege::become_root_inside(plan.map))
        .and_then(|()| hide())
        .and_then(|()| {
            let signal = Some(rustix::process::Signal::KILL);
            rustix::process::set_parent_process_death_signal(signal).at(Step::Join)
        })
        .and_then(|()| {
            kernel::spawn(0, None, || {
                let admitted = admissions.iter().try_for_each(|mut file| file.write_all(b"0"));
                match admitted.at(Step::EnterGroup) {
                    Ok(()) => setup::enter_living(plan, directory, status),
                    Err(failure) => report(Err(failure), status),
                }
            })
            .at(Step::Clone)
        });
    let child = match joined {
        Ok(child) => child,
        Err(failure) => return report(Err(failure), status),
    };
    // The program's own: as long as they are open here, nobody sees that it has closed them.
    kernel::close_copy(status);
    for descriptor in plan.descriptors {
        if let setup::Descriptor::Of(descriptor) = descriptor {
            kernel::close_copy(*descriptor);
        }
    }
    match child.wait().ok().flatten() {
        Some(ended) => match (ended.exit_status(), ended.terminating_signal()) {
            (Some(code), _) => code,
            (None, Some(signal)) => kernel::end_by(signal),
            (None, None) => 70,
        },
        None => 70,
    }
}

/// Whether a layer is the one that is written to anywhere in a living process's mounts, by the kernel's own list of them.
pub(crate) fn shows(mounts: &str, layer: &str) -> bool {
    let option = format!("upperdir={layer}/");
    mounts.lines().any(|line| line.split([' ', ',']).any(|word| word.starts_with(&option)))
}

/// Which layer is on top in a living process's mounts, by the kernel's own list of them.
pub(crate) fn top_of(mounts: &str) -> Option<String> {
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
    fn the_top_is_known_by_the_mounts() {
        let plain = "1 2 254:0 /usr /usr ro - ext4 /dev/vda rw\n3 1 254:0 /var/lib/atoll/layers/abc/files/workspace /workspace rw,nosuid,idmapped - ext4 /dev/vda rw\n4 1 0:5 / /proc rw - proc proc rw\n";
        assert_eq!(top_of(plain), Some("abc".into()));
        let stacked = "9 1 0:77 /workspace /workspace rw,nosuid,nodev - overlay overlay rw,lowerdir=abc/files,upperdir=def/files,workdir=def/files-work,userxattr,volatile\n";
        assert_eq!(top_of(stacked), Some("def".into()));
        assert_eq!(top_of("1 2 0:1 / / rw - tmpfs tmpfs rw\n"), None);
        assert!(shows(stacked, "def") && !shows(stacked, "abc") && !shows(stacked, "de") && !shows(plain, "abc"));
    }
}
