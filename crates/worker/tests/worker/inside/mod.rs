//! The worker as the first process of a sandbox: in a pid namespace of its own, with the socket and the spool that it
//! inherits, and without the rest of a jail.

mod agent;
mod agents;
mod commands;
mod ends;
mod figures;
mod files;
mod terminal;
mod trees;

use crate::fake::Fake;
use crate::{SANDBOX, until};
use atoll_protocol::exec::{Ask, End, Opening, Start, Tell};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// What the launcher does for a worker, as far as these tests need it; as in the background of a shell, which ignores
/// what a terminal sends.
const START: &str = r#"trap '' HUP INT QUIT; exec 3<&0 4<"$1" 0</dev/null; exec "$0" init"#;

struct Sandbox {
    fake: Fake,
    dir: tempfile::TempDir,
    child: Child,
}

impl Sandbox {
    /// With the demo agent.
    fn start() -> Self {
        Self::with(|_| {})
    }

    fn with(prepare: impl FnOnce(&Fake)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("sock");
        let listener: OwnedFd = UnixListener::bind(&socket).unwrap().into();
        std::fs::create_dir(dir.path().join("spool")).unwrap();
        std::fs::create_dir(dir.path().join("workspace")).unwrap();
        std::fs::create_dir(dir.path().join("home")).unwrap();
        let fake = Fake::dialling(&socket);
        fake.with(|state| state.agent = Some("demo"));
        prepare(&fake);
        let worker = std::env::var_os("ATOLL_WORKER").unwrap_or_else(|| env!("CARGO_BIN_EXE_atoll-worker").into());
        let child = Command::new("unshare")
            .args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(["--", "sh", "-c", START])
            .arg(worker)
            .arg(dir.path().join("spool"))
            .env_clear()
            .envs([("PATH", "/usr/local/bin:/usr/bin:/bin"), ("LANG", "C.UTF-8")])
            .envs([("ATOLL_SANDBOX", SANDBOX), ("ATOLL_CGROUP_FDS", "0"), ("ATOLL_AGENT_UID", "0")])
            .env("ATOLL_WORKSPACE", dir.path().join("workspace"))
            .env("ATOLL_HOME", dir.path().join("home"))
            .stdin(Stdio::from(listener))
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(dir.path().join("stderr")).unwrap())
            .spawn()
            .unwrap();
        Self { fake, dir, child }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path("workspace").join(name)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("stderr")).unwrap()
    }

    /// The worker's process id, as it is outside.
    fn worker(&self) -> Pid {
        let id = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
        Pid::from_raw(children.trim().parse().unwrap()).unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.worker(), signal).unwrap();
    }

    fn count(&self, event: &str) -> usize {
        self.fake.types().iter().filter(|it| *it == event).count()
    }

    /// Waits until so many events of a type are stored.
    fn wait_for(&self, event: &str, count: usize) {
        self.wait_long_for(event, count, Duration::from_secs(20));
    }

    fn wait_long_for(&self, event: &str, count: usize, longest: Duration) {
        let deadline = Instant::now() + longest;
        while self.count(event) < count {
            assert!(Instant::now() < deadline, "no {event}: {:#?}\n{}", self.fake.events(), self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The data of the first event of a type.
    fn data(&self, event: &str) -> Value {
        let events = self.fake.events();
        let found = events.iter().find(|it| it["type"] == event);
        found.unwrap_or_else(|| panic!("no {event}: {events:#?}"))["data"].clone()
    }

    /// An ended sandbox's worker goes as soon as it has heard of it.
    fn end(&mut self) -> ExitStatus {
        self.fake.with(|state| state.state = "completing");
        let beginning = Instant::now();
        let status = self.wait();
        assert!(beginning.elapsed() < Duration::from_secs(5), "{:?}: {}", beginning.elapsed(), self.log());
        status
    }

    fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the worker did not end: {}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn connect(&self) -> UnixStream {
        self.connect_for(Opening::Exec)
    }

    fn connect_for(&self, opening: Opening) -> UnixStream {
        let socket = self.path("sock");
        until("the worker", || UnixStream::connect(&socket).is_ok());
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(&[opening.byte()]).unwrap();
        stream
    }

    fn exec(&self, start: Start) -> Exec {
        let mut stream = self.connect();
        stream.write_all(&Ask::Start(start).encode()).unwrap();
        Exec { stream, buffer: Vec::new(), stdout: Vec::new(), stderr: Vec::new(), taken: 0 }
    }

    fn shell(&self, command: &str) -> Exec {
        self.exec(start(&["sh", "-c", command]))
    }

    /// Runs a command of a shell to its end, and gives what it said.
    fn ask(&self, command: &str) -> String {
        let mut exec = self.shell(command);
        assert_eq!(exec.end(), End::Exited { code: 0 }, "{command}: {}", String::from_utf8_lossy(&exec.stderr));
        String::from_utf8(exec.stdout).unwrap()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // The rest of it dies with the first process.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn start(argv: &[&str]) -> Start {
    Start {
        argv: argv.iter().map(|word| (*word).to_owned()).collect(),
        cwd: None,
        env: std::collections::BTreeMap::new(),
        stdin: false,
        terminal: None,
    }
}

/// A command as its caller sees it.
struct Exec {
    stream: UnixStream,
    buffer: Vec<u8>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    /// How much of its input it has taken.
    taken: usize,
}

impl Exec {
    fn send(&mut self, ask: &Ask) {
        self.stream.write_all(&ask.encode()).unwrap();
    }

    /// Wants no more of it, but hears the rest.
    fn leave(&self) {
        self.stream.shutdown(std::net::Shutdown::Write).unwrap();
    }

    /// Something that it said, or its end.
    fn hear(&mut self) -> Option<End> {
        loop {
            match Tell::decode(&mut self.buffer).unwrap() {
                Some(Tell::Stdout(data)) => {
                    self.stdout.extend(data);
                    return None;
                }
                Some(Tell::Stderr(data)) => {
                    self.stderr.extend(data);
                    return None;
                }
                Some(Tell::Ended(end)) => return Some(end),
                Some(Tell::Taken(count)) => {
                    self.taken += count as usize;
                    continue;
                }
                None => {}
            }
            let mut chunk = vec![0; 1 << 16];
            let length = self.stream.read(&mut chunk).unwrap();
            assert!(length > 0, "the connection ended without an end");
            self.buffer.extend_from_slice(&chunk[..length]);
        }
    }

    fn end(&mut self) -> End {
        loop {
            if let Some(end) = self.hear() {
                return end;
            }
        }
    }
}

fn exists(path: &Path) -> bool {
    path.exists()
}
