//! A private PostgreSQL from the distribution's packages, on a free port and in a temporary directory.
//! Tests that run at the same time share one.

use atoll_test_wait::wait_until;
use rustix::process::Signal;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::thread::JoinHandle;
use tempfile::TempDir;

static SHARED: Mutex<Weak<Postgres>> = Mutex::new(Weak::new());

pub struct Postgres {
    port: u16,
    bin_dir: PathBuf,
    dir: TempDir,
    owner: Option<(u32, u32)>,
    running: Mutex<Option<RunningPostgres>>,
}

struct RunningPostgres {
    stop: mpsc::Sender<Signal>,
    thread: JoinHandle<()>,
}

fn find_newest_bin_dir() -> PathBuf {
    let mut found: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .map(|entries| entries.flatten().map(|entry| entry.path().join("bin")).collect())
        .unwrap_or_default();
    found.retain(|bin| bin.join("initdb").exists());
    found.sort();
    found.pop().expect("PostgreSQL is not installed: `make test` installs it (package postgresql)")
}

/// Returns the package's own user if the tests run as root, because PostgreSQL refuses to run as root.
fn find_owner() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap();
    let line = passwd.lines().find(|line| line.starts_with("postgres:")).expect("there is a user postgres");
    let mut fields = line.split(':').skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

pub fn find_free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn command_as_owner(program: &Path, owner: Option<(u32, u32)>) -> Command {
    let mut command = match owner {
        None => Command::new("setpriv"),
        Some((uid, gid)) => {
            let mut command = Command::new("setpriv");
            command.args([format!("--reuid={uid}"), format!("--regid={gid}"), "--clear-groups".into()]);
            command
        }
    };
    // The kernel kills the process when the thread that spawned it ends, also if the tests are killed.
    command.args(["--pdeathsig", "KILL"]).arg(program);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

impl Postgres {
    /// Returns the shared instance and starts it on first use.
    pub fn get_or_start() -> Arc<Self> {
        let mut shared = SHARED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(running) = shared.upgrade() {
            return running;
        }
        let started = Arc::new(Self::start());
        *shared = Arc::downgrade(&started);
        started
    }

    /// Starts an instance for one test, which may stop and start its process.
    pub fn start() -> Self {
        let (bin, owner) = (find_newest_bin_dir(), find_owner());
        let dir = tempfile::Builder::new().prefix("atoll-pg-").tempdir().unwrap();
        let data = dir.path().join("data");
        std::fs::create_dir(&data).unwrap();
        if let Some((uid, gid)) = owner {
            chown(dir.path(), Some(uid), Some(gid)).unwrap();
            chown(&data, Some(uid), Some(gid)).unwrap();
        }
        let mut initdb = command_as_owner(&bin.join("initdb"), owner);
        initdb.arg("-D").arg(&data).args(["-U", "atoll", "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C"]);
        assert!(initdb.status().unwrap().success(), "initdb failed");
        let postgres = Self { port: find_free_port(), bin_dir: bin, dir, owner, running: Mutex::new(None) };
        postgres.start_process();
        postgres
    }

    /// Starts the server process and waits until it accepts connections.
    pub fn start_process(&self) {
        let mut command = command_as_owner(&self.bin_dir.join("postgres"), self.owner);
        command.arg("-D").arg(self.dir.path().join("data"));
        command.args(["-p", &self.port.to_string(), "-c", "listen_addresses=127.0.0.1", "-c", "max_connections=200"]);
        command.arg("-c").arg(format!("unix_socket_directories={}", self.dir.path().display()));
        let (stop, stopped) = mpsc::channel();
        let (started, pid) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut child = command.spawn().expect("postgres starts");
            started.send(()).unwrap();
            let signal = stopped.recv().unwrap_or(Signal::INT);
            let pid = rustix::process::Pid::from_child(&child);
            let _ = rustix::process::kill_process(pid, signal);
            drop(child.wait());
        });
        pid.recv().unwrap();
        *self.running.lock().unwrap() = Some(RunningPostgres { stop, thread });
        wait_until("postgres", || self.is_ready());
    }

    fn is_ready(&self) -> bool {
        let mut command = Command::new(self.bin_dir.join("pg_isready"));
        command.args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()]);
        command.status().is_ok_and(|status| status.success())
    }

    /// Stops the server process and disconnects its clients. The data stays.
    pub fn stop_process(&self) {
        self.stop_with_signal(Signal::INT);
    }

    /// Stops the server process without a clean shutdown, so that the next start recovers from the log.
    pub fn crash(&self) {
        self.stop_with_signal(Signal::QUIT);
    }

    fn stop_with_signal(&self, signal: Signal) {
        if let Some(running) = self.running.lock().unwrap().take() {
            let _: Result<(), _> = running.stop.send(signal);
            running.thread.join().unwrap();
        }
    }

    /// Creates an empty database and returns its URL.
    pub fn create_database(&self) -> String {
        let name = format!("t{}", uuid::Uuid::now_v7().simple());
        let sql = format!("CREATE DATABASE {name}");
        let port = self.port.to_string();
        let mut command = Command::new(self.bin_dir.join("psql"));
        command.args(["-q", "-h", "127.0.0.1", "-p", &port, "-U", "atoll", "-d", "postgres", "-c", &sql]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        format!("postgres://atoll@127.0.0.1:{port}/{name}")
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.stop_process();
    }
}
