//! The launcher's part in starting a process in a sandbox.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::pipe::PipeFlags;
use serde::{Deserialize, Serialize};

use crate::cgroup::Leaf;
use crate::error::{AtStep, Failure, Step};
use crate::kernel::{self, Process};
use crate::maps;
use crate::setup::{self, Plan};

/// A process on its way in.
pub(crate) struct Started {
    pub process: Process,
    /// Ends without a word once the program runs; otherwise says why it doesn't.
    pub status: File,
    /// Held until then: that it closes tells the process that its launcher is gone.
    pub go: OwnedFd,
}

/// Starts a process, gives it its ids and its cgroup, and lets it go once `known` has written down who it is.
pub(crate) fn start(
    plan: &Plan<'_>,
    leaf: &Leaf,
    known: impl FnOnce(i32) -> Result<(), Failure>,
) -> Result<Started, Failure> {
    let (wait, go) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).at(Step::Descriptors)?;
    let (status, told) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).at(Step::Descriptors)?;
    let wait = File::from(wait);
    let group = match (leaf.born_into, leaf.directories.first()) {
        (true, Some(directory)) => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            Some(rustix::fs::openat(CWD, directory, flags, Mode::empty()).at_with(Step::Group, directory.display())?)
        }
        _ => None,
    };
    let process = kernel::spawn(kernel::NEW_NAMESPACES, group.as_ref().map(AsFd::as_fd), || {
        kernel::close_copy(go.as_fd());
        kernel::close_copy(status.as_fd());
        setup::enter(plan, &wait, told.as_fd())
    })
    .at(Step::Clone)?;
    let let_go_on = || File::from(go.try_clone().at(Step::Descriptors)?).write_all(b"!").at(Step::Wait);
    // It builds its root while it is moved: of version 1 the kernel lets one wait for that, for milliseconds.
    let prepared = maps::write(process.pid, plan.map)
        .and_then(|()| let_go_on())
        .and_then(|()| if group.is_some() { Ok(()) } else { leaf.enter(process.pid).at(Step::EnterGroup) })
        .and_then(|()| known(process.pid))
        .and_then(|()| let_go_on());
    match prepared {
        Ok(()) => Ok(Started { process, status: File::from(status), go }),
        Err(failure) => {
            process.discard();
            drop(told);
            let mut text = Vec::new();
            // What it failed with itself is why it could not be moved.
            let _ = File::from(status).read_to_end(&mut text);
            Err(said(unprotected(&text).1).unwrap_or(failure))
        }
    }
}

/// What a process says before it becomes its program, if some of what it should protect is not there.
#[derive(Debug, Serialize, Deserialize)]
struct Lacking {
    unprotected: Vec<String>,
}

/// A line of its own: what may follow is a failure.
pub(crate) fn lacking(unprotected: &[String]) -> Vec<u8> {
    let mut line = serde_json::to_vec(&Lacking { unprotected: unprotected.to_vec() }).unwrap_or_default();
    line.push(b'\n');
    line
}

/// What a process said could not be protected, and the rest of what it said.
pub(crate) fn unprotected(text: &[u8]) -> (Vec<String>, &[u8]) {
    let Some(end) = text.iter().position(|byte| *byte == b'\n') else { return (Vec::new(), text) };
    let (line, rest) = text.split_at(end + 1);
    match serde_json::from_slice::<Lacking>(line) {
        Ok(lacking) => (lacking.unprotected, rest),
        Err(_) => (Vec::new(), text),
    }
}

/// What a process that could not become its program said.
pub(crate) fn said(text: &[u8]) -> Option<Failure> {
    if text.is_empty() {
        return None;
    }
    Some(serde_json::from_slice(text).unwrap_or(Failure {
        step: Step::Execute,
        detail: "the process ended on its way".to_owned(),
        source: crate::error::Errno(libc::EIO),
    }))
}
