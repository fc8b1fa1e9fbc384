//! Starts the spawner as the agent's user, and moves it into the agent's cgroup before its first request.

use atoll_jail::init_process::{CommandSession, prepare_child};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal, kill_process};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

#[derive(Debug)]
pub struct SpawnerLauncher {
    /// Path of this program.
    pub program: PathBuf,
    /// User id of the agent; `None` if it is the worker's own.
    pub user: Option<u32>,
    /// `cgroup.procs` of the agent's cgroup: one in cgroup v2, several in v1, none without cgroups.
    pub groups: Vec<OwnedFd>,
}

impl SpawnerLauncher {
    /// Starts the spawner; returns the worker's end of the socket and the pid.
    pub(super) fn start(&self) -> io::Result<(OwnedFd, Pid)> {
        let (socket, spawner_socket) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let mut command = Command::new(&self.program);
        command.arg0("atoll-worker").arg("spawner").env_clear().current_dir("/");
        command.stdin(Stdio::from(spawner_socket)).stdout(Stdio::null()).stderr(Stdio::null());
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        let started = prepare_child(&mut command, CommandSession::Inherit).spawn()?;
        let pid = Pid::from_child(&started);
        // It waits for its first request, so that nothing escapes the limits.
        if let Err(error) = self.move_into_cgroup(pid) {
            let _ = kill_process(pid, Signal::KILL);
            return Err(error);
        }
        Ok((socket, pid))
    }

    fn move_into_cgroup(&self, pid: Pid) -> io::Result<()> {
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
