//! Pauses sandboxes: with the cgroup freezer, or without one by a SIGSTOP to each process, repeated until none runs.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::Service;
use super::processes::{ProcessKind, TrackedProcess};
use crate::cgroup::{CgroupLeaf, Freezer};
use crate::error::{Errno, Error};
use crate::process_scan::{self, ProcessHandle};
use crate::record::SandboxDir;
use crate::sandbox::SandboxInfo;
use crate::wire::Answer;

/// Time for all processes to stop. One in uninterruptible sleep may never do so.
const PAUSE_TIMEOUT: Duration = Duration::from_secs(10);

/// A requested pause that is not complete yet.
pub(super) struct PendingPause {
    request: u64,
    sandbox: String,
    since: Instant,
    /// True once its processes were asked to stop.
    is_requested: bool,
}

impl Service {
    pub(super) fn pause_sandbox(&mut self, request: u64, name: &str) -> Result<(), Error> {
        let (sandbox, _) = self.find_sandbox(name)?;
        if sandbox.ending.is_some() {
            return Err(Error::Ending { name: name.to_owned() });
        }
        if self.find_worker(name).is_none_or(|worker| worker.starting.is_some()) {
            return Err(Error::NotRunning { name: name.to_owned() });
        }
        self.pausing.push(PendingPause {
            request,
            sandbox: name.to_owned(),
            since: Instant::now(),
            is_requested: false,
        });
        self.advance_pauses()
    }

    fn request_pause(&self, name: &str) -> Result<(), Error> {
        let (sandbox, _) = self.find_sandbox(name)?;
        let failed = |error: std::io::Error| Error::file("pause the sandbox of", &sandbox.dir.directory, error);
        match self.agent_freezer(name) {
            Some(freezer) => freezer.freeze().map_err(failed),
            None => fs::write(sandbox.dir.pause_marker(), "").map_err(failed),
        }
    }

    /// True while a child that kills writers has frozen the sandbox; it will thaw it.
    fn is_frozen_by_killer(&self, name: &str) -> bool {
        self.tracked.iter().any(|tracked| tracked.sandbox == name && tracked.kind == ProcessKind::WriterKiller)
    }

    /// Advances pending pauses and answers those that are complete.
    pub(super) fn advance_pauses(&mut self) -> Result<(), Error> {
        for mut pause in std::mem::take(&mut self.pausing) {
            if !pause.is_requested && !self.is_frozen_by_killer(&pause.sandbox) {
                if let Err(error) = self.request_pause(&pause.sandbox) {
                    self.send_answer(pause.request, Err(error))?;
                    continue;
                }
                pause.is_requested = true;
            }
            let PendingPause { request, sandbox: name, since, is_requested } = &pause;
            if *is_requested && !self.is_paused(name) {
                // The worker exited, or another client resumed the sandbox.
                self.send_answer(*request, Err(Error::NotRunning { name: name.clone() }))?;
            } else if *is_requested && self.ensure_stopped(name) {
                let info = self.sandbox_info(name).map(|info| Answer::Sandbox(Box::new(info)));
                self.send_answer(*request, info)?;
            } else if since.elapsed() > PAUSE_TIMEOUT {
                self.resume_processes(name)?;
                let error = Error::PauseTimeout { name: name.clone(), seconds: PAUSE_TIMEOUT.as_secs() };
                self.send_answer(*request, Err(error))?;
            } else {
                self.pausing.push(pause);
            }
        }
        Ok(())
    }

    pub(super) fn resume_sandbox(&mut self, name: &str) -> Result<SandboxInfo, Error> {
        self.find_sandbox(name)?;
        self.resume_processes(name)?;
        self.sandbox_info(name)
    }

    /// True if the sandbox is paused, by its freezer or else its marker file.
    pub(super) fn is_paused(&self, name: &str) -> bool {
        let Some(sandbox) = self.sandboxes.get(name).filter(|_| self.find_worker(name).is_some()) else { return false };
        match self.agent_freezer(name) {
            Some(freezer) => freezer.is_freezing() && !self.is_frozen_by_killer(name),
            None => sandbox.dir.pause_marker().exists(),
        }
    }

    /// Sandboxes that are paused by signals, where new processes still run.
    pub(super) fn paused_by_signals(&self) -> impl Iterator<Item = &String> {
        let is_paused_by_signals = |name: &&String| self.agent_freezer(name).is_none() && self.is_paused(name);
        self.sandboxes.keys().filter(|_| !self.cgroups.can_freeze()).filter(is_paused_by_signals)
    }

    pub(super) fn stop_new_processes(&self) {
        for name in self.paused_by_signals() {
            self.ensure_stopped(name);
        }
    }

    /// True if all processes are stopped; without a freezer it stops those that still run.
    fn ensure_stopped(&self, name: &str) -> bool {
        match self.agent_freezer(name) {
            Some(freezer) => freezer.is_frozen(),
            None => {
                // Signal all and check again next time: one may have started another meanwhile.
                let running: Vec<_> =
                    self.list_processes(name).into_iter().filter(|process| !process.is_stopped()).collect();
                running.iter().filter(|process| process.send_signal(Signal::STOP)).count() == 0
            }
        }
    }

    fn resume_processes(&self, name: &str) -> Result<(), Error> {
        let (sandbox, _) = self.find_sandbox(name)?;
        match self.agent_freezer(name) {
            Some(freezer) => {
                freezer.thaw().map_err(|error| Error::file("resume the sandbox of", &sandbox.dir.directory, error))
            }
            None => match fs::remove_file(sandbox.dir.pause_marker()) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
                Err(error) => Err(Error::file("resume the sandbox of", &sandbox.dir.directory, Errno::from(error))),
                Ok(()) => {
                    for process in self.list_processes(name) {
                        process.send_signal(Signal::CONT);
                    }
                    Ok(())
                }
            },
        }
    }

    /// Clears a pause that outlived its processes: the next worker uses the same cgroup.
    pub(super) fn clear_pause(dir: &SandboxDir, agent: &CgroupLeaf) {
        let _ = fs::remove_file(dir.pause_marker());
        if let Some(freezer) = agent.freezer.as_ref().filter(|freezer| freezer.is_freezing()) {
            let _ = freezer.thaw();
        }
    }

    pub(super) fn find_worker(&self, name: &str) -> Option<&TrackedProcess> {
        self.tracked.iter().find(|tracked| tracked.sandbox == name && tracked.kind == ProcessKind::Worker)
    }

    /// The freezer of the agent's cgroup, the second one.
    fn agent_freezer(&self, name: &str) -> Option<&Freezer> {
        self.find_worker(name)?.cgroups.get(1)?.freezer.as_ref()
    }

    /// All processes of a running sandbox except its worker.
    fn list_processes(&self, name: &str) -> Vec<ProcessHandle> {
        let worker_record = self.sandboxes.get(name).and_then(|sandbox| sandbox.dir.read_worker_record());
        worker_record
            .map(|worker_record| {
                process_scan::processes_in_namespace(worker_record.process.namespace, worker_record.process.pid)
            })
            .unwrap_or_default()
    }
}
