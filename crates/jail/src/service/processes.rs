//! The processes that the launcher watches: from their start to their end.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, WaitOptions};

use super::Service;
use super::layering::background;
use crate::cgroup::Leaf;
use crate::error::Error;
use crate::place::{Exit, Usage};
use crate::wire::{Answer, Said};
use crate::{census, kernel, start};

/// A process that is watched.
pub(super) struct Tracked {
    pub sandbox: String,
    pub kind: Kind,
    pub hold: OwnedFd,
    /// Its exit status is ours to take.
    pub child: bool,
    pub starting: Option<Starting>,
    /// Why it never became its program; who asked for it is told when it is gone.
    pub failure: Option<(u64, Error)>,
    /// The cgroups that end with it; its own first.
    pub leaves: Vec<Leaf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Worker,
    Run {
        run: u64,
    },
    /// A program in the living sandbox itself.
    Entered {
        run: u64,
        /// How often the kernel had killed for memory in the agent's cgroup before it came.
        kills: Option<u64>,
    },
    /// Ends such a program with all that it has started.
    Ender,
    Remover,
    Importer,
    /// Counts what sealed layers take.
    Measurer,
    /// Counts what files take.
    Counter,
    /// Ends those who write to them.
    Stopper,
}

/// A process that hasn't become its program yet.
pub(super) struct Starting {
    pub request: u64,
    pub status: File,
    /// Held, so that the process sees if its launcher goes.
    pub _go: Option<OwnedFd>,
}

impl Tracked {
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let status = self.starting.as_ref().map(|starting| starting.status.as_fd());
        [self.hold.as_fd()].into_iter().chain(status)
    }

    /// It may have ended already.
    pub fn kill(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.hold, Signal::KILL);
    }

    pub fn usage(&self) -> Usage {
        self.leaves.iter().map(Leaf::usage).fold(Usage::default(), sum)
    }

    fn is(&self, pid: i32) -> bool {
        pid_of(&self.hold) == Some(pid)
    }

    fn ended(&self) -> bool {
        let mut descriptors = [PollFd::new(&self.hold, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut descriptors, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    fn exit(&self) -> Exit {
        if !self.child {
            return Exit::Unknown;
        }
        let id = WaitId::PidFd(self.hold.as_fd());
        match rustix::io::retry_on_intr(|| rustix::process::waitid(id.clone(), WaitIdOptions::EXITED)) {
            Ok(Some(status)) => exit(&status),
            Ok(None) | Err(_) => Exit::Unknown,
        }
    }
}

/// The number of a process that is held, as long as it is there.
fn pid_of(hold: &OwnedFd) -> Option<i32> {
    let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", hold.as_raw_fd())).ok()?;
    about.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok()).filter(|pid| *pid > 0)
}

fn exit(status: &WaitIdStatus) -> Exit {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Exit::Exited(code),
        (None, Some(signal)) => Exit::Signalled(signal),
        (None, None) => Exit::Unknown,
    }
}

/// A process that ended badly after the kernel killed for memory in its cgroup ended for that.
fn with_memory(exit: Exit, oom_kills: Option<u64>) -> Exit {
    match exit {
        Exit::Signalled(_) | Exit::Exited(1..) if oom_kills.is_some_and(|kills| kills > 0) => Exit::OutOfMemory,
        exit => exit,
    }
}

/// Two usages as one; a peak of several is the highest.
pub(super) fn sum(one: Usage, other: Usage) -> Usage {
    let add = |one: Option<u64>, other: Option<u64>| match (one, other) {
        (None, None) => None,
        (one, other) => Some(one.unwrap_or(0) + other.unwrap_or(0)),
    };
    Usage {
        memory: add(one.memory, other.memory),
        memory_peak: one.memory_peak.max(other.memory_peak),
        oom_kills: add(one.oom_kills, other.oom_kills),
        cpu_microseconds: add(one.cpu_microseconds, other.cpu_microseconds),
        processes: add(one.processes, other.processes),
    }
}

impl Service {
    /// Does what the process at `index` is ready for; it leaves the list if that is its end.
    pub(super) fn attend(&mut self, index: usize) -> Result<(), Error> {
        let Some(tracked) = self.tracked.get_mut(index) else { return Ok(()) };
        // A program that ended at once has also said that it started: that comes first.
        if let Some(starting) = tracked.starting.take_if(|starting| has_spoken(&starting.status)) {
            self.started(index, starting)?;
        }
        let Some(tracked) = self.tracked.get(index) else { return Ok(()) };
        if tracked.ended() {
            let tracked = self.tracked.remove(index);
            self.finish(tracked)?;
        }
        Ok(())
    }

    fn started(&mut self, index: usize, mut starting: Starting) -> Result<(), Error> {
        let mut text = Vec::new();
        let read = starting.status.read_to_end(&mut text);
        let Some(tracked) = self.tracked.get_mut(index) else { return Ok(()) };
        let (unprotected, rest) = start::unprotected(&text);
        let failure = match read {
            _ if matches!(tracked.kind, Kind::Counter | Kind::Stopper) => None,
            Ok(_) => start::said(rest),
            // Its end will tell.
            Err(_) => None,
        };
        if matches!(tracked.kind, Kind::Counter | Kind::Stopper) {
            let found = Self::found(&tracked.sandbox, &text);
            return self.answer(starting.request, found);
        }
        // A process that was killed on its way in closes its status without a word too; then its end is told next.
        let name = tracked.sandbox.clone();
        if let Some(failure) = failure {
            tracked.failure = Some((starting.request, Error::step(&name, failure)));
            return Ok(());
        }
        let kind = tracked.kind;
        if let Some(sandbox) = self.sandboxes.get_mut(&name).filter(|_| kind == Kind::Worker) {
            sandbox.unprotected = unprotected;
        }
        let outcome = match kind {
            Kind::Worker => self.known(&name).map(|place| Answer::Place(Box::new(place))),
            Kind::Run { .. }
            | Kind::Entered { .. }
            | Kind::Ender
            | Kind::Remover
            | Kind::Importer
            | Kind::Measurer
            | Kind::Counter
            | Kind::Stopper => Ok(Answer::Done),
        };
        self.answer(starting.request, outcome)
    }

    /// How often the kernel has killed for memory in the cgroup of a living sandbox's agent.
    pub(super) fn kills_of_agent(&self, name: &str) -> Option<u64> {
        self.worker(name)?.leaves.get(1)?.oom_kills()
    }

    /// Ends a program before its time. One in a living sandbox has company that does not end by itself with it; to find it
    /// takes a while.
    pub(super) fn end_run(&mut self, wanted: u64) {
        let mut enders = Vec::new();
        for tracked in &self.tracked {
            match tracked.kind {
                Kind::Run { run } if run == wanted => tracked.kill(),
                Kind::Entered { run, .. } if run == wanted => {
                    let ender = kernel::spawn(0, None, || {
                        self.close_copies();
                        if let Some(pid) = pid_of(&tracked.hold) {
                            census::end_below(pid);
                        }
                        tracked.kill();
                        0
                    });
                    match ender {
                        Ok(ender) => enders.push(background(Kind::Ender, &tracked.sandbox, ender)),
                        Err(_) => tracked.kill(),
                    }
                }
                _ => {}
            }
        }
        self.tracked.extend(enders);
    }

    /// Takes note of the ends of those whose parents are gone.
    pub(super) fn reap_orphans(&self) {
        while let Some(pid) = kernel::ended_child() {
            // Its own turn comes.
            if self.tracked.iter().any(|tracked| tracked.is(pid)) {
                return;
            }
            let reaped = Pid::from_raw(pid).map(|pid| rustix::process::waitpid(Some(pid), WaitOptions::NOHANG));
            if !matches!(reaped, Some(Ok(Some(_)))) {
                return;
            }
        }
    }

    /// Takes note of an end, and lets everything go that ended with it.
    fn finish(&mut self, tracked: Tracked) -> Result<(), Error> {
        let usage = tracked.usage();
        let oom_kills = match tracked.kind {
            // It was in the agent's cgroup.
            Kind::Entered { kills, .. } => {
                self.kills_of_agent(&tracked.sandbox).zip(kills).map(|(now, then)| now.saturating_sub(then))
            }
            _ => tracked.leaves.first().and_then(Leaf::oom_kills),
        };
        let exit = with_memory(tracked.exit(), oom_kills);
        let Tracked { sandbox: name, kind, leaves, failure, .. } = tracked;
        if let Some(sandbox) = self.sandboxes.get_mut(&name) {
            sandbox.usage = Usage { memory: None, processes: None, ..sum(sandbox.usage, usage) };
            if kind == Kind::Worker {
                sandbox.exit = failure.is_none().then_some(exit);
                sandbox.home.forget_life();
            }
        }
        self.leave(&name, leaves);
        match (kind, failure) {
            (_, Some((request, error))) => self.answer(request, Err(error))?,
            (Kind::Worker, None) => self.say(&Said::WorkerEnded { name: name.clone(), exit })?,
            (Kind::Run { run } | Kind::Entered { run, .. }, None) => self.say(&Said::RunEnded { run, exit })?,
            (Kind::Remover, None) => self.removed(&name, exit)?,
            (Kind::Importer, None) => self.imported(&name)?,
            // What they found is told or written down by now.
            (Kind::Measurer | Kind::Counter | Kind::Stopper | Kind::Ender, None) => {}
        }
        self.settle(&name)
    }
}

pub(super) fn has_spoken(status: &File) -> bool {
    let mut descriptors = [PollFd::new(status, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut descriptors, Some(&now)).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_after_the_kernel_killed_for_memory_is_out_of_memory() {
        assert_eq!(with_memory(Exit::Signalled(9), Some(1)), Exit::OutOfMemory);
        assert_eq!(with_memory(Exit::Exited(137), Some(1)), Exit::OutOfMemory);
        assert_eq!(with_memory(Exit::Signalled(9), Some(0)), Exit::Signalled(9));
        assert_eq!(with_memory(Exit::Signalled(9), None), Exit::Signalled(9));
        assert_eq!(with_memory(Exit::Exited(0), Some(1)), Exit::Exited(0));
        assert_eq!(with_memory(Exit::Unknown, Some(1)), Exit::Unknown);
    }

    #[test]
    fn usages_add_up_and_what_is_not_counted_stays_so() {
        let one = Usage { memory: Some(1), memory_peak: Some(5), ..Usage::default() };
        let other = Usage { memory: Some(2), memory_peak: Some(3), oom_kills: Some(1), ..Usage::default() };
        let both = sum(one, other);
        assert_eq!((both.memory, both.memory_peak, both.oom_kills), (Some(3), Some(5), Some(1)));
        assert_eq!(both.cpu_microseconds, None);
    }
}
