//! The processes that the launcher tracks, from start to exit.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, WaitOptions};

use super::Service;
use super::sealing::background_process;
use crate::cgroup::CgroupLeaf;
use crate::error::Error;
use crate::sandbox::{Exit, SandboxUsage};
use crate::wire::{Answer, LauncherMessage};
use crate::{kernel, process_scan, process_start};

/// A tracked process.
pub(super) struct TrackedProcess {
    pub sandbox: String,
    pub kind: ProcessKind,
    pub pidfd: OwnedFd,
    /// True if this launcher must reap it.
    pub is_child: bool,
    pub starting: Option<PendingStart>,
    /// The start failure, which is sent when the process has exited.
    pub failure: Option<(u64, Error)>,
    /// Cgroups that are removed with it; its own first.
    pub cgroups: Vec<CgroupLeaf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProcessKind {
    Worker,
    Run {
        run: u64,
    },
    /// A program in the running sandbox itself.
    Exec {
        run: u64,
        /// OOM kills in the agent's cgroup before it started.
        oom_kills_before: Option<u64>,
    },
    /// Kills such a program with its descendants.
    TreeKiller,
    Remover,
    Importer,
    /// Measures sealed layers.
    LayerCounter,
    /// Measures a sandbox's disk usage.
    DiskCounter,
    /// Kills processes that write.
    WriterKiller,
}

/// A process that has not executed its program yet.
pub(super) struct PendingStart {
    pub request: u64,
    pub status: File,
    /// Held open: the process sees it close if the launcher ends.
    pub _go_ahead: Option<OwnedFd>,
}

impl TrackedProcess {
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let status = self.starting.as_ref().map(|starting| starting.status.as_fd());
        [self.pidfd.as_fd()].into_iter().chain(status)
    }

    /// The process may have exited already.
    pub fn kill(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    pub fn usage(&self) -> SandboxUsage {
        self.cgroups.iter().map(CgroupLeaf::usage).fold(SandboxUsage::default(), add_usage)
    }

    fn has_pid(&self, pid: i32) -> bool {
        read_pid(&self.pidfd) == Some(pid)
    }

    fn has_exited(&self) -> bool {
        let mut descriptors = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut descriptors, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    fn take_exit_status(&self) -> Exit {
        if !self.is_child {
            return Exit::Unknown;
        }
        let id = WaitId::PidFd(self.pidfd.as_fd());
        match rustix::io::retry_on_intr(|| rustix::process::waitid(id.clone(), WaitIdOptions::EXITED)) {
            Ok(Some(status)) => to_exit(&status),
            Ok(None) | Err(_) => Exit::Unknown,
        }
    }
}

/// Reads the pid of a pidfd while the process exists.
fn read_pid(pidfd: &OwnedFd) -> Option<i32> {
    let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    about.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok()).filter(|pid| *pid > 0)
}

fn to_exit(status: &WaitIdStatus) -> Exit {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Exit::Exited(code),
        (None, Some(signal)) => Exit::Signalled(signal),
        (None, None) => Exit::Unknown,
    }
}

/// A process that failed after OOM kills in its cgroup ran out of memory.
fn classify_oom(exit: Exit, oom_kills: Option<u64>) -> Exit {
    match exit {
        Exit::Signalled(_) | Exit::Exited(1..) if oom_kills.is_some_and(|kills| kills > 0) => Exit::OutOfMemory,
        exit => exit,
    }
}

/// Adds two usages; the peak is the maximum.
pub(super) fn add_usage(one: SandboxUsage, other: SandboxUsage) -> SandboxUsage {
    let add = |one: Option<u64>, other: Option<u64>| match (one, other) {
        (None, None) => None,
        (one, other) => Some(one.unwrap_or(0) + other.unwrap_or(0)),
    };
    SandboxUsage {
        memory: add(one.memory, other.memory),
        memory_peak: one.memory_peak.max(other.memory_peak),
        oom_kills: add(one.oom_kills, other.oom_kills),
        cpu_microseconds: add(one.cpu_microseconds, other.cpu_microseconds),
        processes: add(one.processes, other.processes),
    }
}

impl Service {
    /// Handles an event of the process at `index`; removes it if it has exited.
    pub(super) fn handle_process_event(&mut self, index: usize) -> Result<(), Error> {
        let Some(tracked) = self.tracked.get_mut(index) else { return Ok(()) };
        // A program that exited at once has also reported its start, which comes first.
        if let Some(starting) = tracked.starting.take_if(|starting| is_readable(&starting.status)) {
            self.finish_start(index, starting)?;
        }
        let Some(tracked) = self.tracked.get(index) else { return Ok(()) };
        if tracked.has_exited() {
            let tracked = self.tracked.remove(index);
            self.handle_exit(tracked)?;
        }
        Ok(())
    }

    fn finish_start(&mut self, index: usize, mut starting: PendingStart) -> Result<(), Error> {
        let mut text = Vec::new();
        let read = starting.status.read_to_end(&mut text);
        let Some(tracked) = self.tracked.get_mut(index) else { return Ok(()) };
        let (unprotected, rest) = process_start::split_unprotected(&text);
        let failure = match read {
            _ if matches!(tracked.kind, ProcessKind::DiskCounter | ProcessKind::WriterKiller) => None,
            Ok(_) => process_start::parse_failure(rest),
            // Its exit will report it.
            Err(_) => None,
        };
        if matches!(tracked.kind, ProcessKind::DiskCounter | ProcessKind::WriterKiller) {
            let found = Self::parse_query_answer(&tracked.sandbox, &text);
            return self.send_answer(starting.request, found);
        }
        // A process that was killed before exec closes its status silently too; its exit is handled next.
        let name = tracked.sandbox.clone();
        if let Some(failure) = failure {
            tracked.failure = Some((starting.request, Error::step(&name, failure)));
            return Ok(());
        }
        let kind = tracked.kind;
        if let Some(sandbox) = self.sandboxes.get_mut(&name).filter(|_| kind == ProcessKind::Worker) {
            sandbox.unprotected = unprotected;
        }
        let outcome = match kind {
            ProcessKind::Worker => self.sandbox_info(&name).map(|info| Answer::Sandbox(Box::new(info))),
            ProcessKind::Run { .. }
            | ProcessKind::Exec { .. }
            | ProcessKind::TreeKiller
            | ProcessKind::Remover
            | ProcessKind::Importer
            | ProcessKind::LayerCounter
            | ProcessKind::DiskCounter
            | ProcessKind::WriterKiller => Ok(Answer::Done),
        };
        self.send_answer(starting.request, outcome)
    }

    /// OOM kills in the cgroup of a running sandbox's agent.
    pub(super) fn agent_oom_kills(&self, name: &str) -> Option<u64> {
        self.find_worker(name)?.cgroups.get(1)?.oom_kills()
    }

    /// Kills a program. In a running sandbox its descendants must be found first, which a child process does.
    pub(super) fn kill_run(&mut self, run_id: u64) {
        let mut enders = Vec::new();
        for tracked in &self.tracked {
            match tracked.kind {
                ProcessKind::Run { run } if run == run_id => tracked.kill(),
                ProcessKind::Exec { run, .. } if run == run_id => {
                    let ender = kernel::spawn(0, None, || {
                        self.close_launcher_fds();
                        if let Some(pid) = read_pid(&tracked.pidfd) {
                            process_scan::kill_descendants(pid);
                        }
                        tracked.kill();
                        0
                    });
                    match ender {
                        Ok(ender) => enders.push(background_process(ProcessKind::TreeKiller, &tracked.sandbox, ender)),
                        Err(_) => tracked.kill(),
                    }
                }
                _ => {}
            }
        }
        self.tracked.extend(enders);
    }

    /// Reaps adopted orphans.
    pub(super) fn reap_orphans(&self) {
        while let Some(pid) = kernel::peek_exited_child() {
            // The event loop reaps tracked processes.
            if self.tracked.iter().any(|tracked| tracked.has_pid(pid)) {
                return;
            }
            let reaped = Pid::from_raw(pid).map(|pid| rustix::process::waitpid(Some(pid), WaitOptions::NOHANG));
            if !matches!(reaped, Some(Ok(Some(_)))) {
                return;
            }
        }
    }

    /// Handles an exit: records it, removes the cgroups and answers requests.
    fn handle_exit(&mut self, tracked: TrackedProcess) -> Result<(), Error> {
        let usage = tracked.usage();
        let oom_kills = match tracked.kind {
            // It ran in the agent's cgroup.
            ProcessKind::Exec { oom_kills_before: kills_before, .. } => {
                self.agent_oom_kills(&tracked.sandbox).zip(kills_before).map(|(now, then)| now.saturating_sub(then))
            }
            _ => tracked.cgroups.first().and_then(CgroupLeaf::oom_kills),
        };
        let exit = classify_oom(tracked.take_exit_status(), oom_kills);
        let TrackedProcess { sandbox: name, kind, cgroups: leaves, failure, .. } = tracked;
        if let Some(sandbox) = self.sandboxes.get_mut(&name) {
            sandbox.usage = SandboxUsage { memory: None, processes: None, ..add_usage(sandbox.usage, usage) };
            if kind == ProcessKind::Worker {
                sandbox.exit = failure.is_none().then_some(exit);
                sandbox.dir.clear_worker_record();
            }
        }
        self.remove_cgroups(&name, leaves);
        match (kind, failure) {
            (_, Some((request, error))) => self.send_answer(request, Err(error))?,
            (ProcessKind::Worker, None) => {
                self.send_message(&LauncherMessage::WorkerEnded { name: name.clone(), exit })?
            }
            (ProcessKind::Run { run } | ProcessKind::Exec { run, .. }, None) => {
                self.send_message(&LauncherMessage::RunEnded { run, exit })?
            }
            (ProcessKind::Remover, None) => self.finish_removal(&name, exit)?,
            (ProcessKind::Importer, None) => self.finish_import(&name)?,
            // Their results are sent or stored already.
            (
                ProcessKind::LayerCounter
                | ProcessKind::DiskCounter
                | ProcessKind::WriterKiller
                | ProcessKind::TreeKiller,
                None,
            ) => {}
        }
        self.advance_termination(&name)
    }
}

pub(super) fn is_readable(status: &File) -> bool {
    let mut descriptors = [PollFd::new(status, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut descriptors, Some(&now)).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_after_an_oom_kill_is_out_of_memory() {
        assert_eq!(classify_oom(Exit::Signalled(9), Some(1)), Exit::OutOfMemory);
        assert_eq!(classify_oom(Exit::Exited(137), Some(1)), Exit::OutOfMemory);
        assert_eq!(classify_oom(Exit::Signalled(9), Some(0)), Exit::Signalled(9));
        assert_eq!(classify_oom(Exit::Signalled(9), None), Exit::Signalled(9));
        assert_eq!(classify_oom(Exit::Exited(0), Some(1)), Exit::Exited(0));
        assert_eq!(classify_oom(Exit::Unknown, Some(1)), Exit::Unknown);
    }

    #[test]
    fn adds_usages_and_keeps_unmeasured_values() {
        let one = SandboxUsage { memory: Some(1), memory_peak: Some(5), ..SandboxUsage::default() };
        let other =
            SandboxUsage { memory: Some(2), memory_peak: Some(3), oom_kills: Some(1), ..SandboxUsage::default() };
        let both = add_usage(one, other);
        assert_eq!((both.memory, both.memory_peak, both.oom_kills), (Some(3), Some(5), Some(1)));
        assert_eq!(both.cpu_microseconds, None);
    }
}
