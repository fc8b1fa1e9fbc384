//! The process itself: one thread and one loop, which waits for requests, for the ends of what it started, and for
//! changes of files. It ends with the worker.

use super::watching::Watching;
use super::{Ending, Program, Reply, Request, spawn, tree, wire};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, kill_process_group, pidfd_open, waitpid};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::time::Instant;

/// How often one looks for ends where the kernel can't say when.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Well above what a worker ever is by its size.
const FIRST_TO_GO: &str = "500";

struct Child {
    id: u64,
    pid: Pid,
    /// Readable when it has ended.
    end: Option<OwnedFd>,
    /// What it leaves behind is ended too.
    whole: bool,
}

pub(super) struct Hands<S> {
    socket: S,
    children: Vec<Child>,
    /// The last one, and those before it that still have something to tell.
    watching: Vec<Watching>,
}

/// Serves the socket at standard input until its other end is closed.
pub fn main() -> ExitCode {
    atoll_jail::inside::heed_signals();
    // Where worker and agent share one bound of memory, the agent goes first; all that is started here inherits it.
    // Where it can't be said, the kernel chooses the largest, which is the agent too.
    drop(std::fs::write("/proc/self/oom_score_adj", FIRST_TO_GO));
    // Nothing that runs as the same user may look into it. It is no boundary: what it may do, the agent may.
    drop(atoll_jail::inside::prepare_init());
    atoll_jail::prompt(atoll_jail::Heirs::Same);
    rustix::process::umask(Mode::from_raw_mode(0o022));
    if atoll_jail::inside::lock_files().is_err() {
        return ExitCode::FAILURE;
    }
    let mut hands = Hands::new(io::stdin());
    let served = hands.serve();
    for child in &hands.children {
        let _ = kill_process_group(child.pid, Signal::KILL);
    }
    if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl<S: AsFd> Hands<S> {
    pub(super) const fn new(socket: S) -> Self {
        Self { socket, children: Vec::new(), watching: Vec::new() }
    }

    pub(super) fn serve(&mut self) -> io::Result<()> {
        loop {
            let (asked, ended, seen) = self.wait()?;
            if asked && !self.take_requests()? {
                return Ok(());
            }
            if ended {
                self.reap()?;
            }
            if seen {
                self.watching.iter_mut().for_each(Watching::go_on);
            }
            self.watching.retain(|watching| !watching.is_over());
        }
    }

    /// Until there is a request, an end, or something about files.
    fn wait(&self) -> io::Result<(bool, bool, bool)> {
        let mut wanted = vec![PollFd::new(&self.socket, PollFlags::IN)];
        wanted.extend(self.children.iter().flat_map(|child| &child.end).map(|end| PollFd::new(end, PollFlags::IN)));
        let files = wanted.len();
        wanted.extend(self.watching.iter().filter_map(Watching::wanted));
        let due = self.watching.iter().filter_map(Watching::due).min();
        let mut limit = due.map(|due| due.saturating_duration_since(Instant::now()));
        let blind = self.children.iter().any(|child| child.end.is_none());
        if blind {
            let look = LOOK.try_into().unwrap_or_default();
            limit = Some(limit.map_or(look, |limit| limit.min(look)));
        }
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        match poll(&mut wanted, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = |at: usize| wanted.get(at).is_some_and(|waited| !waited.revents().is_empty());
        let ended = blind || (1..files).any(ready);
        let seen = (files..wanted.len()).any(ready) || due.is_some_and(|due| due <= Instant::now());
        Ok((ready(0), ended, seen))
    }

    /// Takes all requests that are there; says whether the worker is.
    fn take_requests(&mut self) -> io::Result<bool> {
        loop {
            match wire::receive(&self.socket, RecvFlags::DONTWAIT) {
                Ok(Some((request, descriptors))) => self.take(request, descriptors)?,
                Ok(None) => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn take(&mut self, request: Request, mut descriptors: Vec<OwnedFd>) -> io::Result<()> {
        match request {
            Request::Spawn { id, program, has_input } => self.spawn(id, &program, has_input, descriptors),
            Request::Place { id, placing } => self.say(&Reply::Placed { id, error: spawn::place_all(&placing).err() }),
            Request::Signal { id, signal } => {
                let child = self.children.iter().find(|child| child.id == id);
                if let (Some(child), Some(signal)) = (child, Signal::from_named_raw(signal)) {
                    // It can only fail because everything in the group has ended: then it is as wished.
                    let _ = kill_process_group(child.pid, signal);
                    // A shell with a terminal puts what it runs into groups of their own.
                    if let Some(group) = tree::in_front(child.pid) {
                        let _ = kill_process_group(group, signal);
                    }
                }
                Ok(())
            }
            Request::Kill { id } => {
                if let Some(child) = self.children.iter().find(|child| child.id == id) {
                    tree::end(child.pid, id);
                }
                Ok(())
            }
            Request::Hold { id, still } => {
                if let Some(child) = self.children.iter().find(|child| child.id == id) {
                    if still { tree::stop(child.pid, id) } else { tree::go_on(child.pid, id) }
                }
                Ok(())
            }
            Request::Watch { root } => {
                self.watching.iter_mut().for_each(Watching::finish);
                self.watching.extend(descriptors.pop().map(|pipe| Watching::start(&root, pipe)));
                Ok(())
            }
            Request::Flush { number } => {
                let current = self.watching.iter_mut().rfind(|watching| !watching.is_finished());
                if let Some(watching) = current {
                    watching.flush(number);
                }
                Ok(())
            }
            Request::Unwatch => {
                self.watching.iter_mut().for_each(Watching::finish);
                Ok(())
            }
        }
    }

    fn spawn(&mut self, id: u64, program: &Program, has_input: bool, descriptors: Vec<OwnedFd>) -> io::Result<()> {
        let started = match program.terminal {
            Some(size) => spawn::on_terminal(id, program, size).map(|(pid, terminal)| (pid, Some(terminal))),
            None => with_streams(id, program, has_input, descriptors).map(|pid| (pid, None)),
        };
        let started = started.and_then(|(pid, terminal)| {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
            Ok((pid.ok_or_else(|| "the kernel gave it no process id".to_owned())?, terminal))
        });
        match started {
            Ok((pid, terminal)) => {
                let end = pidfd_open(pid, PidfdFlags::empty()).ok();
                self.children.push(Child { id, pid, end, whole: program.whole });
                let beside: Vec<_> = terminal.iter().map(AsFd::as_fd).collect();
                let reply = Reply::Started { id, pid: pid.as_raw_nonzero().get() };
                wire::send(&self.socket, &reply, &beside, SendFlags::empty())
            }
            Err(error) => self.say(&Reply::Failed { id, error }),
        }
    }

    fn reap(&mut self) -> io::Result<()> {
        let mut ended = Vec::new();
        self.children.retain(|child| match waitpid(Some(child.pid), WaitOptions::NOHANG) {
            Ok(None) => true,
            Ok(Some((_, status))) => {
                if child.whole {
                    let _ = kill_process_group(child.pid, Signal::KILL);
                }
                let exit = status.exit_status().map(Ending::Exited);
                let signal = status.terminating_signal().map(Ending::Signalled);
                ended.push((child.id, exit.or(signal).unwrap_or(Ending::Lost)));
                false
            }
            Err(_) => {
                ended.push((child.id, Ending::Lost));
                false
            }
        });
        for (id, ending) in ended {
            self.say(&Reply::Ended { id, ending })?;
        }
        Ok(())
    }

    fn say(&self, reply: &Reply) -> io::Result<()> {
        wire::send(&self.socket, reply, &[], SendFlags::empty())
    }
}

fn with_streams(id: u64, program: &Program, has_input: bool, descriptors: Vec<OwnedFd>) -> Result<u32, String> {
    let mut descriptors = descriptors.into_iter();
    let input = if has_input { descriptors.next() } else { None };
    match (descriptors.next(), descriptors.next()) {
        (Some(stdout), Some(stderr)) => spawn::spawn(id, program, input, [stdout, stderr]),
        _ => Err("the request came without its descriptors".to_owned()),
    }
}
