//! A Docker engine of the tests' own, from the distribution's packages, with a directory and a socket that go with it.
//! Tests that run at the same time share one.

use crate::local::{is_root, traces};
use crate::process::{self, Log};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A few programs and git, of this machine.
pub const IMAGE: &str = "atoll-test:latest";

const DAEMON: &str = "/usr/sbin/dockerd";
const BUSYBOX: &str = "/usr/bin/busybox";
const COMING_UP: Duration = Duration::from_secs(60);
const ENDING: Duration = Duration::from_secs(60);

static SHARED: Mutex<Weak<Engine>> = Mutex::new(Weak::new());

pub struct Engine {
    daemon: Child,
    log: Log,
    /// The cgroup that its containers are below of.
    group: String,
    dir: TempDir,
}

impl Engine {
    /// The one that tests share, made when the first of them needs it; or why there can't be one here.
    pub fn shared() -> Result<Arc<Self>, String> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = shared.upgrade() {
            return Ok(running);
        }
        let started = Arc::new(Self::start()?);
        *shared = Arc::downgrade(&started);
        Ok(started)
    }

    fn start() -> Result<Self, String> {
        if !is_root() {
            return Err("an engine wants to be root".into());
        }
        for needed in [DAEMON, BUSYBOX] {
            if !Path::new(needed).exists() {
                return Err(format!("{needed} is not installed (packages docker.io, busybox-static)"));
            }
        }
        let dir = crate::local::directory("atoll-engine-");
        let group = dir.path().file_name().unwrap().to_str().unwrap().to_owned();
        let settings = dir.path().join("daemon.json");
        std::fs::write(&settings, "{}").unwrap();
        let log = Log::new();
        // Told to end with these tests, however they end: it then takes its containers along.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", "--", DAEMON, "--iptables=false", "--ip6tables=false", "--bridge=none"]);
        command.arg("--config-file").arg(&settings).arg("--cgroup-parent").arg(&group);
        for (flag, name) in [("--data-root", "data"), ("--exec-root", "exec"), ("--pidfile", "pid")] {
            command.arg(flag).arg(dir.path().join(name));
        }
        command.arg("--host").arg(socket(dir.path()));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.stdio());
        let mut engine = Self { daemon: process::spawn(command), log, group, dir };
        let deadline = Instant::now() + COMING_UP;
        while engine.docker(&["version"]).is_err() {
            if Instant::now() > deadline || !matches!(engine.daemon.try_wait(), Ok(None)) {
                let said = engine.log.tail();
                let last = said.lines().last().unwrap_or_default();
                return Err(format!("no engine comes up on this machine: {last}"));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        engine.import()?;
        Ok(engine)
    }

    /// For `docker.socket`.
    pub fn socket(&self) -> String {
        socket(self.dir.path())
    }

    /// A command line for the engine.
    pub fn command(&self) -> Command {
        let mut command = Command::new("docker");
        command.env_remove("DOCKER_CONTEXT").env("DOCKER_CONFIG", self.dir.path()).arg("--host").arg(self.socket());
        command
    }

    /// What the command line says, or what it says in error.
    pub fn docker(&self, arguments: &[&str]) -> Result<String, String> {
        let output = self.command().args(arguments).stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// The names of what it has of a sandbox: containers and volumes.
    pub fn traces(&self, sandbox: &str) -> Vec<String> {
        let name = format!("name={sandbox}");
        let containers = self.docker(&["ps", "--all", "--filter", &name, "--format", "{{.Names}}"]).unwrap();
        let volumes = self.docker(&["volume", "ls", "--filter", &name, "--format", "{{.Name}}"]).unwrap();
        containers.lines().chain(volumes.lines()).map(str::to_owned).collect()
    }

    fn import(&self) -> Result<(), String> {
        let root = self.dir.path().join("root");
        make_root(&root);
        let archive = self.dir.path().join("root.tar");
        let packed = Command::new("tar").arg("-C").arg(&root).arg("-cf").arg(&archive).arg(".").status();
        assert!(packed.unwrap().success());
        let imported = self.docker(&["import", archive.to_str().unwrap(), IMAGE]);
        std::fs::remove_dir_all(&root).unwrap();
        std::fs::remove_file(&archive).unwrap();
        imported.map(drop)
    }
}

fn socket(dir: &Path) -> String {
    format!("unix://{}", dir.join("engine.sock").display())
}

/// The static worker that `make worker` builds; containers have no libraries of this machine.
pub fn worker() -> Result<PathBuf, String> {
    let test = std::env::current_exe().unwrap();
    let target = test.ancestors().nth(3).unwrap();
    let worker = target.join("worker/atoll-worker");
    if worker.is_file() { Ok(worker) } else { Err(format!("there is no {}: run `make worker`", worker.display())) }
}

/// A root directory with a shell and git: nothing is fetched for it.
fn make_root(root: &Path) {
    for directory in ["bin", "usr/bin", "usr/lib/git-core", "usr/share/git-core/templates", "etc"] {
        std::fs::create_dir_all(root.join(directory)).unwrap();
    }
    let temporary = root.join("tmp");
    std::fs::create_dir(&temporary).unwrap();
    std::fs::set_permissions(&temporary, std::os::unix::fs::PermissionsExt::from_mode(0o1777)).unwrap();
    let put = |file: &Path| {
        let place = root.join(file.strip_prefix("/").unwrap());
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::fs::copy(file, place).unwrap();
    };
    std::fs::copy(BUSYBOX, root.join("bin/busybox")).unwrap();
    let listed = Command::new(BUSYBOX).arg("--list").output().unwrap();
    for name in String::from_utf8(listed.stdout).unwrap().lines().filter(|name| *name != "busybox") {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(name)).unwrap();
    }
    put(Path::new("/usr/bin/git"));
    let libraries = Command::new("ldd").arg("/usr/bin/git").output().unwrap();
    for line in String::from_utf8(libraries.stdout).unwrap().lines() {
        if let Some(file) = line.split_whitespace().find(|word| word.starts_with('/')) {
            put(Path::new(file));
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if matches!(self.daemon.try_wait(), Ok(None)) {
            let _ = kill_process(Pid::from_child(&self.daemon), Signal::TERM);
            if process::wait(&mut self.daemon, ENDING).is_none() {
                drop((self.daemon.kill(), self.daemon.wait()));
            }
        }
        self.log.show_if_failing("dockerd");
        for line in traces::mounts_under(self.dir.path()) {
            if let Some(place) = line.split(' ').nth(4) {
                let _ = unmount(place, UnmountFlags::DETACH);
            }
        }
        for group in traces::cgroups(&self.group) {
            // Its containers' own went with them.
            drop(std::fs::remove_dir(group));
        }
    }
}
