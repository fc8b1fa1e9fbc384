//! Starts a process in a new sandbox, from the launcher's side.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::pipe::PipeFlags;
use serde::{Deserialize, Serialize};

use crate::cgroup::CgroupLeaf;
use crate::error::{AtStep, LaunchStep, StepFailure};
use crate::id_maps;
use crate::kernel::{self, ChildProcess};
use crate::setup::{self, SetupPlan};

/// A process that is entering its sandbox.
pub(crate) struct StartingProcess {
    pub process: ChildProcess,
    /// Closes silently when the program runs; otherwise contains the failure.
    pub status: File,
    /// Held open: the process exits if this closes before exec.
    pub go_ahead: OwnedFd,
}

/// Starts a process, writes its id maps, moves it into its cgroup, and lets it continue once `record_pid` has recorded its
/// pid.
pub(crate) fn start_process(
    plan: &SetupPlan<'_>,
    leaf: &CgroupLeaf,
    record_pid: impl FnOnce(i32) -> Result<(), StepFailure>,
) -> Result<StartingProcess, StepFailure> {
    let (wait, go) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).at(LaunchStep::Descriptors)?;
    let (status, report) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).at(LaunchStep::Descriptors)?;
    let wait = File::from(wait);
    let group = match (leaf.supports_clone_into, leaf.directories.first()) {
        (true, Some(directory)) => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            Some(
                rustix::fs::openat(CWD, directory, flags, Mode::empty())
                    .at_with(LaunchStep::Cgroup, directory.display())?,
            )
        }
        _ => None,
    };
    let spawn = || {
        kernel::spawn(kernel::NEW_NAMESPACES, group.as_ref().map(AsFd::as_fd), || {
            kernel::close_inherited(go.as_fd());
            kernel::close_inherited(status.as_fd());
            setup::enter_sandbox(plan, &wait, report.as_fd())
        })
    };
    let owner = plan.map.host_uid(0).filter(|_| rustix::process::geteuid().is_root());
    let process = match owner {
        Some(owner) => kernel::with_namespace_owner(owner, spawn).and_then(|process| process),
        None => spawn(),
    }
    .at(LaunchStep::Namespaces)?;
    let continue_child =
        || File::from(go.try_clone().at(LaunchStep::Descriptors)?).write_all(b"!").at(LaunchStep::Wait);
    // The child builds its root meanwhile: moving a process between v1 cgroups takes milliseconds.
    let prepared = id_maps::write_id_maps(process.pid, plan.map)
        .and_then(|()| continue_child())
        .and_then(|()| if group.is_some() { Ok(()) } else { leaf.add_process(process.pid).at(LaunchStep::EnterCgroup) })
        .and_then(|()| record_pid(process.pid))
        .and_then(|()| continue_child());
    match prepared {
        Ok(()) => Ok(StartingProcess { process, status: File::from(status), go_ahead: go }),
        Err(failure) => {
            process.kill_and_reap();
            drop(report);
            let mut text = Vec::new();
            // The child's own failure explains why it could not be moved.
            let _ = File::from(status).read_to_end(&mut text);
            Err(parse_failure(split_unprotected(&text).1).unwrap_or(failure))
        }
    }
}

/// Sent before exec if protected paths do not exist.
#[derive(Debug, Serialize, Deserialize)]
struct UnprotectedNotice {
    unprotected: Vec<String>,
}

/// One line; a failure may follow.
pub(crate) fn encode_unprotected(unprotected: &[String]) -> Vec<u8> {
    let mut line = serde_json::to_vec(&UnprotectedNotice { unprotected: unprotected.to_vec() }).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Splits a status text into the unprotected paths and the rest.
pub(crate) fn split_unprotected(text: &[u8]) -> (Vec<String>, &[u8]) {
    let Some(end) = text.iter().position(|byte| *byte == b'\n') else { return (Vec::new(), text) };
    let (line, rest) = text.split_at(end + 1);
    match serde_json::from_slice::<UnprotectedNotice>(line) {
        Ok(notice) => (notice.unprotected, rest),
        Err(_) => (Vec::new(), text),
    }
}

/// Parses the failure of a process that could not execute its program.
pub(crate) fn parse_failure(text: &[u8]) -> Option<StepFailure> {
    if text.is_empty() {
        return None;
    }
    Some(serde_json::from_slice(text).unwrap_or(StepFailure {
        step: LaunchStep::Execute,
        detail: "the process ended before it started its program".to_owned(),
        source: crate::error::Errno(libc::EIO),
    }))
}
