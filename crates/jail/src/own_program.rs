//! Makes the launcher's program file read-only for every process that the launcher starts.
//!
//! A process that enters a sandbox runs the launcher's program until it executes a program of the sandbox. If that one
//! is a script with the interpreter `/proc/self/exe`, the kernel executes the launcher's file again, with the loader of
//! the sandbox's image: code of the image can then open the file. The launcher of an unprivileged user shares its id
//! with the sandbox's root user, so the mode of the file does not protect it. The launcher therefore executes itself
//! again from a read-only mount of the file. No process in a sandbox has the capability to make a mount writable.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, StatVfsMountFlags};
use rustix::mount::OpenTreeFlags;

use crate::error::{AtStep, Errno, LaunchStep, StepFailure};
use crate::kernel::{self, NO_DEVICES, NO_SUID, READ_ONLY};
use crate::wire;

const OWN_PROGRAM: &str = "/proc/self/exe";

/// Executes this program again from a read-only mount, unless its mount is read-only or its user is root.
///
/// The ids of root's sandboxes own nothing on the host. Call it before this process owns descriptors other than the
/// standard ones: exec closes the rest.
pub(crate) fn execute_read_only() -> Result<(), StepFailure> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let program = File::open(OWN_PROGRAM).at(LaunchStep::ProtectProgram)?;
    if is_on_read_only_mount(&program)? {
        return Ok(());
    }
    let read_only = File::from(open_on_read_only_mount()?);
    let identity = |file: &File| file.metadata().map(|metadata| (metadata.dev(), metadata.ino()));
    // The path may name another file by now.
    let is_same =
        identity(&program).at(LaunchStep::ProtectProgram)? == identity(&read_only).at(LaunchStep::ProtectProgram)?;
    if !is_same || !is_on_read_only_mount(&read_only)? {
        return Err(Errno(libc::ESTALE)).at(LaunchStep::ProtectProgram);
    }
    let to_c_string = |text: std::ffi::OsString| CString::new(text.into_vec()).unwrap_or_default();
    let arguments: Vec<CString> = std::env::args_os().map(to_c_string).collect();
    let environment: Vec<CString> = std::env::vars_os()
        .map(|(name, value)| {
            let mut variable = name;
            variable.push("=");
            variable.push(value);
            to_c_string(variable)
        })
        .collect();
    Err(kernel::exec_descriptor(read_only.as_fd(), &arguments, &environment)).at(LaunchStep::ProtectProgram)
}

fn is_on_read_only_mount(file: &File) -> Result<bool, StepFailure> {
    let about = rustix::fs::fstatvfs(file).at(LaunchStep::ProtectProgram)?;
    Ok(about.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// Opens this program on a detached, read-only mount, which only a process in its own user namespace can create.
fn open_on_read_only_mount() -> Result<OwnedFd, StepFailure> {
    let path = fs::read_link(OWN_PROGRAM).at(LaunchStep::ProtectProgram)?;
    let (socket, child_socket) = wire::socket_pair().map_err(|_| Errno(libc::EMFILE)).at(LaunchStep::Descriptors)?;
    let helper = kernel::spawn(kernel::NEW_USER_NAMESPACE | kernel::NEW_MOUNT_NAMESPACE, None, || {
        let sent = match clone_read_only(&path) {
            Ok(opened) => wire::send_packet(child_socket.as_fd(), &None::<StepFailure>, &[opened.as_fd()]),
            Err(failure) => wire::send_packet(child_socket.as_fd(), &Some(failure), &[]),
        };
        i32::from(sent.is_err())
    })
    .at(LaunchStep::Namespaces)?;
    drop(child_socket);
    let received = wire::receive_packet::<Option<StepFailure>>(socket.as_fd(), &mut [0; 4096]);
    helper.reap().at(LaunchStep::ProtectProgram)?;
    match received {
        Ok(Some((None, opened))) => opened.into_iter().next().ok_or(Errno(libc::EIO)).at(LaunchStep::ProtectProgram),
        Ok(Some((Some(failure), _))) => Err(failure),
        Ok(None) | Err(_) => Err(Errno(libc::EIO)).at_with(LaunchStep::ProtectProgram, "the helper process was killed"),
    }
}

fn clone_read_only(path: &Path) -> Result<OwnedFd, StepFailure> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = rustix::mount::open_tree(CWD, path, flags).at_with(LaunchStep::ProtectProgram, path.display())?;
    kernel::set_one_mount_attributes(tree.as_fd(), READ_ONLY | NO_SUID | NO_DEVICES).at(LaunchStep::ProtectProgram)?;
    // The descriptor of a mount cannot be executed or read.
    let mounted = format!("/proc/self/fd/{}", tree.as_raw_fd());
    rustix::fs::open(mounted, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).at(LaunchStep::ProtectProgram)
}
