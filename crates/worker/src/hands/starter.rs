//! Starting the hands: as the agent's user, and inside the agent's cgroup before they are asked for anything.

use atoll_jail::inside::{Session, child};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal, kill_process};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

#[derive(Debug)]
pub struct Starter {
    /// This program.
    pub program: PathBuf,
    /// Whom to become; nobody else where there is only one user.
    pub user: Option<u32>,
    /// `cgroup.procs` of the agent's leaf: one in a unified hierarchy, several else, none without cgroups.
    pub groups: Vec<OwnedFd>,
}

impl Starter {
    /// The worker's end of the socket, and who is at the other.
    pub(super) fn start(&self) -> io::Result<(OwnedFd, Pid)> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let mut command = Command::new(&self.program);
        command.arg0("atoll-worker").arg("hands").env_clear().current_dir("/");
        command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        let started = child(&mut command, Session::Inherited).spawn()?;
        let pid = Pid::from_child(&started);
        // It waits for its first request, so nothing that it does escapes the limits.
        if let Err(error) = self.confine(pid) {
            let _ = kill_process(pid, Signal::KILL);
            return Err(error);
        }
        Ok((ours, pid))
    }

    fn confine(&self, pid: Pid) -> io::Result<()> {
        for group in &self.groups {
            let written = rustix::io::write(group, pid.as_raw_nonzero().to_string().as_bytes());
            written.map_err(|error| {
                let why = format!("failed to move it into the agent's cgroup: {error}");
                io::Error::new(io::Error::from(error).kind(), why)
            })?;
        }
        Ok(())
    }
}
