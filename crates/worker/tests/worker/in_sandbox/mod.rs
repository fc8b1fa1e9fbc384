//! The worker as pid 1 of a pid namespace, with an inherited socket and spool, but without the rest of a sandbox.

mod benchmarks;
mod commands;
mod demo_agent;
mod files;
mod process_trees;
mod real_agents;
mod services;
mod terminal;
mod worker_exit;

use crate::SANDBOX_ID;
use crate::fake_server::FakeServer;
use atoll_protocol::exec::{ConnectionKind, ExecClientFrame, ExecExit, ExecStart, ExecWorkerFrame};
use atoll_test_wait::{try_wait_for, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// Starts the worker as the launcher does, with the terminal's signals ignored, as in a shell's background job.
const START_SCRIPT: &str = r#"trap '' HUP INT QUIT; exec 3<&0 4<"$1" 0</dev/null; exec "$0" init"#;

struct WorkerSandbox {
    server: FakeServer,
    dir: tempfile::TempDir,
    child: Child,
}

impl WorkerSandbox {
    /// Starts a worker that runs the demo agent.
    fn start() -> Self {
        Self::start_with(|_| {})
    }

    fn start_with(prepare: impl FnOnce(&FakeServer)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("sock");
        let listener: OwnedFd = UnixListener::bind(&socket).unwrap().into();
        std::fs::create_dir(dir.path().join("spool")).unwrap();
        std::fs::create_dir(dir.path().join("workspace")).unwrap();
        std::fs::create_dir(dir.path().join("home")).unwrap();
        let server = FakeServer::start_dialling(&socket);
        server.with_state(|state| state.agent = Some("demo"));
        prepare(&server);
        let worker = std::env::var_os("ATOLL_WORKER").unwrap_or_else(|| env!("CARGO_BIN_EXE_atoll-worker").into());
        let child = Command::new("unshare")
            .args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(["--", "sh", "-c", START_SCRIPT])
            .arg(worker)
            .arg(dir.path().join("spool"))
            .env_clear()
            .envs([("PATH", "/usr/local/bin:/usr/bin:/bin"), ("LANG", "C.UTF-8")])
            .envs([("ATOLL_SANDBOX", SANDBOX_ID), ("ATOLL_CGROUP_FDS", "0"), ("ATOLL_AGENT_UID", "0")])
            .env("ATOLL_WORKSPACE", dir.path().join("workspace"))
            .env("ATOLL_HOME", dir.path().join("home"))
            .stdin(Stdio::from(listener))
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(dir.path().join("stderr")).unwrap())
            .spawn()
            .unwrap();
        Self { server, dir, child }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn workspace_path(&self, name: &str) -> PathBuf {
        self.path("workspace").join(name)
    }

    fn worker_log(&self) -> String {
        std::fs::read_to_string(self.path("stderr")).unwrap()
    }

    /// The worker's pid on the host.
    fn worker_pid(&self) -> Pid {
        let id = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
        Pid::from_raw(children.trim().parse().unwrap()).unwrap()
    }

    fn send_signal(&self, signal: Signal) {
        kill_process(self.worker_pid(), signal).unwrap();
    }

    fn count_events(&self, event: &str) -> usize {
        self.server.event_types().iter().filter(|it| *it == event).count()
    }

    /// Waits until `count` events of a type are stored.
    fn wait_for_events(&self, event: &str, count: usize) {
        let stored = try_wait_for(|| if self.count_events(event) < count { Err(()) } else { Ok(()) });
        assert!(stored.is_ok(), "no {event}: {:#?}\n{}", self.server.events(), self.worker_log());
    }

    /// The data of the first event of a type.
    fn first_event_data(&self, event: &str) -> Value {
        let events = self.server.events();
        let event_of_type = events.iter().find(|it| it["type"] == event);
        event_of_type.unwrap_or_else(|| panic!("no {event}: {events:#?}"))["data"].clone()
    }

    /// Completes the sandbox and waits until its worker exits.
    fn complete_and_wait(&mut self) -> ExitStatus {
        self.server.with_state(|state| state.sandbox_state = "completing");
        self.wait_for_exit()
    }

    fn wait_for_exit(&mut self) -> ExitStatus {
        let exit = try_wait_for(|| self.child.try_wait().unwrap().ok_or(()));
        exit.unwrap_or_else(|()| panic!("the worker did not end: {}", self.worker_log()))
    }

    fn connect_exec(&self) -> UnixStream {
        self.connect_for(ConnectionKind::Exec)
    }

    fn connect_for(&self, kind: ConnectionKind) -> UnixStream {
        let socket = self.path("sock");
        wait_until("the worker", || UnixStream::connect(&socket).is_ok());
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(&[kind.to_byte()]).unwrap();
        stream
    }

    fn start_exec(&self, start: ExecStart) -> ExecConnection {
        let mut stream = self.connect_exec();
        stream.write_all(&ExecClientFrame::Start(start).encode()).unwrap();
        ExecConnection { stream, buffer: Vec::new(), stdout: Vec::new(), stderr: Vec::new(), stdin_bytes_consumed: 0 }
    }

    fn start_shell(&self, command: &str) -> ExecConnection {
        self.start_exec(exec_start(&["sh", "-c", command]))
    }

    /// Runs a shell command, checks that it succeeds, and returns its output.
    fn run_shell(&self, command: &str) -> String {
        let mut exec = self.start_shell(command);
        assert_eq!(
            exec.wait_for_end(),
            ExecExit::Exited { code: 0 },
            "{command}: {}",
            String::from_utf8_lossy(&exec.stderr)
        );
        String::from_utf8(exec.stdout).unwrap()
    }
}

impl Drop for WorkerSandbox {
    fn drop(&mut self) {
        // The other processes die with pid 1.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn exec_start(argv: &[&str]) -> ExecStart {
    ExecStart {
        argv: argv.iter().map(|word| (*word).to_owned()).collect(),
        cwd: None,
        env: std::collections::BTreeMap::new(),
        stdin: false,
        terminal: None,
    }
}

/// The client's side of a running command.
struct ExecConnection {
    stream: UnixStream,
    buffer: Vec<u8>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    /// Input bytes that the worker reported as consumed.
    stdin_bytes_consumed: usize,
}

impl ExecConnection {
    fn send(&mut self, frame: &ExecClientFrame) {
        self.stream.write_all(&frame.encode()).unwrap();
    }

    /// Closes the sending side; the exit can still be read.
    fn close_write_half(&self) {
        self.stream.shutdown(std::net::Shutdown::Write).unwrap();
    }

    /// Reads one output frame, or returns the exit.
    fn read_frame(&mut self) -> Option<ExecExit> {
        loop {
            match ExecWorkerFrame::decode(&mut self.buffer).unwrap() {
                Some(ExecWorkerFrame::Stdout(data)) => {
                    self.stdout.extend(data);
                    return None;
                }
                Some(ExecWorkerFrame::Stderr(data)) => {
                    self.stderr.extend(data);
                    return None;
                }
                Some(ExecWorkerFrame::Exited(end)) => return Some(end),
                Some(ExecWorkerFrame::StdinConsumed(count)) => {
                    self.stdin_bytes_consumed += count as usize;
                    continue;
                }
                None => {}
            }
            let mut chunk = vec![0; 1 << 16];
            let length = self.stream.read(&mut chunk).unwrap();
            assert!(length > 0, "the connection closed before the exit");
            self.buffer.extend_from_slice(&chunk[..length]);
        }
    }

    fn wait_for_end(&mut self) -> ExecExit {
        loop {
            if let Some(end) = self.read_frame() {
                return end;
            }
        }
    }
}

fn path_exists(path: &Path) -> bool {
    path.exists()
}
