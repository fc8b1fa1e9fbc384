//! The spawner's process: one thread that serves requests, reaps children and watches files. It exits with the worker.

use super::file_events::WatchStream;
use super::{ExitStatus, ProgramSpec, Reply, Request, packets, process_tree, program};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, kill_process_group, pidfd_open, waitpid};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::time::Instant;

/// Poll interval for exits on kernels without pidfds.
const REAP_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Higher than the worker's own score.
const OOM_SCORE_ADJ: &str = "500";

struct Child {
    id: u64,
    pid: Pid,
    /// Readable after the exit.
    end: Option<OwnedFd>,
    /// Kill its process group after its exit.
    kill_group_on_exit: bool,
}

pub(super) struct SpawnerServer<S> {
    socket: S,
    children: Vec<Child>,
    /// The current watch stream, and older ones with unsent events.
    watching: Vec<WatchStream>,
}

/// Serves the socket at stdin until the worker closes it.
pub fn main() -> ExitCode {
    atoll_jail::init_process::stop_ignoring_signals();
    // If worker and agent share a memory limit, the kernel kills the agent first; children inherit the score.
    drop(std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ));
    // Hides this process from others of the same user. This is no security boundary: it has the agent's rights.
    drop(atoll_jail::init_process::harden_process());
    atoll_jail::request_short_slices(atoll_jail::SliceInheritance::Inherit);
    rustix::process::umask(Mode::from_raw_mode(0o022));
    if atoll_jail::init_process::restrict_writes().is_err() {
        return ExitCode::FAILURE;
    }
    let mut server = SpawnerServer::new(io::stdin());
    let served = server.serve();
    for child in &server.children {
        let _ = kill_process_group(child.pid, Signal::KILL);
    }
    if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl<S: AsFd> SpawnerServer<S> {
    pub(super) const fn new(socket: S) -> Self {
        Self { socket, children: Vec::new(), watching: Vec::new() }
    }

    pub(super) fn serve(&mut self) -> io::Result<()> {
        loop {
            let (has_request, has_exit, has_file_changes) = self.wait_for_work()?;
            if has_request && !self.handle_requests()? {
                return Ok(());
            }
            if has_exit {
                self.reap_children()?;
            }
            if has_file_changes {
                self.watching.iter_mut().for_each(WatchStream::advance);
            }
            self.watching.retain(|watching| !watching.is_done());
        }
    }

    /// Waits for a request, an exit, or file changes.
    fn wait_for_work(&self) -> io::Result<(bool, bool, bool)> {
        let mut polled = vec![PollFd::new(&self.socket, PollFlags::IN)];
        polled.extend(self.children.iter().flat_map(|child| &child.end).map(|end| PollFd::new(end, PollFlags::IN)));
        let files = polled.len();
        polled.extend(self.watching.iter().filter_map(WatchStream::poll_fd));
        let due = self.watching.iter().filter_map(WatchStream::next_deadline).min();
        let mut limit = due.map(|due| due.saturating_duration_since(Instant::now()));
        let needs_polling = self.children.iter().any(|child| child.end.is_none());
        if needs_polling {
            let interval = REAP_INTERVAL.try_into().unwrap_or_default();
            limit = Some(limit.map_or(interval, |limit| limit.min(interval)));
        }
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        match poll(&mut polled, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = |at: usize| polled.get(at).is_some_and(|fd| !fd.revents().is_empty());
        let has_exit = needs_polling || (1..files).any(ready);
        let has_file_changes = (files..polled.len()).any(ready) || due.is_some_and(|due| due <= Instant::now());
        Ok((ready(0), has_exit, has_file_changes))
    }

    /// Handles all waiting requests; false if the worker is gone.
    fn handle_requests(&mut self) -> io::Result<bool> {
        loop {
            match packets::receive_packet(&self.socket, RecvFlags::DONTWAIT) {
                Ok(Some((request, descriptors))) => self.handle_request(request, descriptors)?,
                Ok(None) => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn handle_request(&mut self, request: Request, mut descriptors: Vec<OwnedFd>) -> io::Result<()> {
        match request {
            Request::Spawn { id, program, has_input } => self.spawn_program(id, &program, has_input, descriptors),
            Request::Place { id, update } => {
                self.send_reply(&Reply::Placed { id, error: program::apply_update(&update).err() })
            }
            Request::Signal { id, signal } => {
                let child = self.children.iter().find(|child| child.id == id);
                if let (Some(child), Some(signal)) = (child, Signal::from_named_raw(signal)) {
                    // Fails only if the whole group has exited.
                    let _ = kill_process_group(child.pid, signal);
                    // A shell with a terminal runs commands in their own groups.
                    if let Some(group) = process_tree::foreground_group(child.pid) {
                        let _ = kill_process_group(group, signal);
                    }
                }
                Ok(())
            }
            Request::Kill { id } => {
                if let Some(child) = self.children.iter().find(|child| child.id == id) {
                    process_tree::kill_tree(child.pid, id);
                }
                Ok(())
            }
            Request::Hold { id, paused } => {
                if let Some(child) = self.children.iter().find(|child| child.id == id) {
                    if paused {
                        process_tree::pause_tree(child.pid, id)
                    } else {
                        process_tree::resume_tree(child.pid, id)
                    }
                }
                Ok(())
            }
            Request::Watch { root } => {
                self.watching.iter_mut().for_each(WatchStream::finish);
                self.watching.extend(descriptors.pop().map(|pipe| WatchStream::start(&root, pipe)));
                Ok(())
            }
            Request::Flush { number } => {
                let current = self.watching.iter_mut().rfind(|watching| !watching.is_finished());
                if let Some(watching) = current {
                    watching.flush_changes(number);
                }
                Ok(())
            }
            Request::Unwatch => {
                self.watching.iter_mut().for_each(WatchStream::finish);
                Ok(())
            }
        }
    }

    fn spawn_program(
        &mut self,
        id: u64,
        program: &ProgramSpec,
        has_input: bool,
        descriptors: Vec<OwnedFd>,
    ) -> io::Result<()> {
        let started = match program.terminal {
            Some(size) => program::spawn_on_terminal(id, program, size).map(|(pid, terminal)| (pid, Some(terminal))),
            None => spawn_with_streams(id, program, has_input, descriptors).map(|pid| (pid, None)),
        };
        let started = started.and_then(|(pid, terminal)| {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
            Ok((pid.ok_or_else(|| "the kernel gave it no process id".to_owned())?, terminal))
        });
        match started {
            Ok((pid, terminal)) => {
                let end = pidfd_open(pid, PidfdFlags::empty()).ok();
                self.children.push(Child { id, pid, end, kill_group_on_exit: program.kill_group_on_exit });
                let descriptors: Vec<_> = terminal.iter().map(AsFd::as_fd).collect();
                let reply = Reply::Started { id, pid: pid.as_raw_nonzero().get() };
                packets::send_packet(&self.socket, &reply, &descriptors, SendFlags::empty())
            }
            Err(error) => self.send_reply(&Reply::Failed { id, error }),
        }
    }

    fn reap_children(&mut self) -> io::Result<()> {
        let mut ended = Vec::new();
        self.children.retain(|child| match waitpid(Some(child.pid), WaitOptions::NOHANG) {
            Ok(None) => true,
            Ok(Some((_, status))) => {
                if child.kill_group_on_exit {
                    let _ = kill_process_group(child.pid, Signal::KILL);
                }
                let exit = status.exit_status().map(ExitStatus::Exited);
                let signal = status.terminating_signal().map(ExitStatus::Signalled);
                ended.push((child.id, exit.or(signal).unwrap_or(ExitStatus::Lost)));
                false
            }
            Err(_) => {
                ended.push((child.id, ExitStatus::Lost));
                false
            }
        });
        for (id, ending) in ended {
            self.send_reply(&Reply::Ended { id, ending })?;
        }
        Ok(())
    }

    fn send_reply(&self, reply: &Reply) -> io::Result<()> {
        packets::send_packet(&self.socket, reply, &[], SendFlags::empty())
    }
}

fn spawn_with_streams(
    id: u64,
    program: &ProgramSpec,
    has_input: bool,
    descriptors: Vec<OwnedFd>,
) -> Result<u32, String> {
    let mut descriptors = descriptors.into_iter();
    let input = if has_input { descriptors.next() } else { None };
    match (descriptors.next(), descriptors.next()) {
        (Some(stdout), Some(stderr)) => program::spawn_with_pipes(id, program, input, [stdout, stderr]),
        _ => Err("the request came without its descriptors".to_owned()),
    }
}
