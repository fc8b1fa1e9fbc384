//! Launcher requests for forks, snapshots, caches and images, and for programs in a running sandbox.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::running::ExitSender;
use super::{Launcher, REQUEST_TIMEOUT, RunningProgram, await_answer, unexpected_answer};
use crate::catalog::{CopyKind, Image, Snapshot};
use crate::error::Error;
use crate::sandbox::{ProgramSpec, SandboxInfo, SandboxSpec};
use crate::wire::{Answer, Request};

/// An archive of many gigabytes takes long.
const IMPORT_TIMEOUT: Duration = Duration::from_secs(3600);

impl Launcher {
    /// Prepares a sandbox with a copy of another sandbox's current files.
    ///
    /// Kills everything in the parent except its worker. An existing sandbox stays unchanged.
    pub fn fork_sandbox(&self, parent: &str, spec: &SandboxSpec) -> Result<SandboxInfo, Error> {
        self.request_info(Request::Fork { parent: parent.to_owned(), spec: spec.clone() })
    }

    /// Stores a sandbox's current files as a snapshot. Kills everything in the sandbox except its worker.
    pub fn create_snapshot(&self, name: &str, snapshot: &str) -> Result<Snapshot, Error> {
        self.create_copy(CopyKind::Snapshot, name, snapshot)
    }

    pub fn list_snapshots(&self) -> Result<Vec<Snapshot>, Error> {
        self.list_copies(CopyKind::Snapshot)
    }

    /// Deletes a snapshot. Sandboxes that started from it keep their files; unused layers are removed.
    pub fn forget_snapshot(&self, snapshot: &str) -> Result<(), Error> {
        self.forget_copy(CopyKind::Snapshot, snapshot)
    }

    /// Stores a sandbox's current files as a cache, unless there is one of that name. Kills everything in the sandbox
    /// except its worker.
    pub fn seal_cache(&self, name: &str, cache: &str) -> Result<Snapshot, Error> {
        self.create_copy(CopyKind::Cache, name, cache)
    }

    pub fn list_caches(&self) -> Result<Vec<Snapshot>, Error> {
        self.list_copies(CopyKind::Cache)
    }

    /// Deletes a cache. Sandboxes that started from it keep their files; unused layers are removed.
    pub fn forget_cache(&self, cache: &str) -> Result<(), Error> {
        self.forget_copy(CopyKind::Cache, cache)
    }

    fn create_copy(&self, kind: CopyKind, name: &str, label: &str) -> Result<Snapshot, Error> {
        let request = Request::Snapshot { kind, name: name.to_owned(), label: label.to_owned() };
        match self.send_and_wait(request, REQUEST_TIMEOUT)? {
            Answer::Snapshot(made) => Ok(made),
            other => Err(unexpected_answer(&other)),
        }
    }

    fn list_copies(&self, kind: CopyKind) -> Result<Vec<Snapshot>, Error> {
        self.request_all(Request::Snapshots { kind }, |answer| match answer {
            Answer::Snapshot(found) => Ok(found),
            other => Err(other),
        })
    }

    fn forget_copy(&self, kind: CopyKind, label: &str) -> Result<(), Error> {
        self.request_done(Request::ForgetSnapshot { kind, label: label.to_owned() }, REQUEST_TIMEOUT)
    }

    /// Imports a root file system as an image: a tar of a root directory, a `docker save` archive or an OCI archive.
    pub fn import_image(&self, image: &str, archive: OwnedFd) -> Result<Image, Error> {
        let (id, answers) = self.shared.new_request()?;
        let request = Request::ImportImage { image: image.to_owned() };
        let outcome = self.shared.send_request(id, request, &[archive.as_fd()]).and_then(|()| {
            drop(archive);
            await_answer(&answers, "import image", IMPORT_TIMEOUT)
        });
        self.shared.lock_state().pending.remove(&id);
        match outcome? {
            Answer::Image(image) => Ok(image),
            other => Err(unexpected_answer(&other)),
        }
    }

    pub fn list_images(&self) -> Result<Vec<Image>, Error> {
        self.request_all(Request::Images, |answer| match answer {
            Answer::Image(image) => Ok(image),
            other => Err(other),
        })
    }

    /// Deletes an image that no sandbox and no snapshot uses.
    pub fn forget_image(&self, image: &str) -> Result<(), Error> {
        self.request_done(Request::ForgetImage { image: image.to_owned() }, REQUEST_TIMEOUT)
    }

    /// Runs a program in a running sandbox: as `agent`, or as root if the sandbox has an image.
    pub fn exec_program(
        &self,
        name: &str,
        argv: &[String],
        as_root: bool,
        stdin: OwnedFd,
        stdout: OwnedFd,
        stderr: OwnedFd,
    ) -> Result<RunningProgram, Error> {
        let program = ProgramSpec { argv: argv.to_vec(), as_root, ..ProgramSpec::default() };
        self.exec_with(name, program, [stdin, stdout, stderr])
    }

    /// Runs a program with full control over its settings; `descriptors` are its stdin, stdout and stderr.
    pub fn exec_with(
        &self,
        name: &str,
        program: ProgramSpec,
        descriptors: [OwnedFd; 3],
    ) -> Result<RunningProgram, Error> {
        self.start_program(Request::Exec { name: name.to_owned(), program }, descriptors)
    }

    /// Starts a program; the launcher reports its exit later.
    pub(super) fn start_program(&self, request: Request, descriptors: [OwnedFd; 3]) -> Result<RunningProgram, Error> {
        let (teller, end) = ExitSender::new();
        let id = {
            let mut state = self.shared.lock_state();
            state.last_id += 1;
            let id = state.last_id;
            state.runs.insert(id, teller);
            id
        };
        let running = RunningProgram::new(Arc::clone(&self.shared), id, end);
        let verb = request.label();
        let started = self.shared.register_request(id).and_then(|answers| {
            self.shared.send_request(id, request, &descriptors.each_ref().map(AsFd::as_fd))?;
            await_answer(&answers, verb, REQUEST_TIMEOUT)
        });
        self.shared.lock_state().pending.remove(&id);
        started?;
        Ok(running)
    }

    pub(super) fn request_all<T>(
        &self,
        request: Request,
        item: impl Fn(Answer) -> Result<T, Answer>,
    ) -> Result<Vec<T>, Error> {
        let verb = request.label();
        let (id, answers) = self.shared.new_request()?;
        let outcome = self.shared.send_request(id, request, &[]).and_then(|()| {
            let mut items = Vec::new();
            loop {
                match await_answer(&answers, verb, REQUEST_TIMEOUT)? {
                    Answer::Done => return Ok(items),
                    other => items.push(item(other).map_err(|other| unexpected_answer(&other))?),
                }
            }
        });
        self.shared.lock_state().pending.remove(&id);
        outcome
    }
}
