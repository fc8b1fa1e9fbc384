//! A private Docker engine from the distribution's packages, with a temporary directory and socket.
//! Tests that run at the same time share one engine.

use crate::local::{host_state, is_root};
use crate::process::{self, ProcessLog};
use atoll_test_wait::try_wait_for;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tempfile::TempDir;

/// An image with this machine's busybox and git.
pub const TEST_IMAGE: &str = "atoll-test:latest";

const DOCKERD_PATH: &str = "/usr/sbin/dockerd";
const BUSYBOX_PATH: &str = "/usr/bin/busybox";

static SHARED: Mutex<Weak<DockerEngine>> = Mutex::new(Weak::new());

pub struct DockerEngine {
    daemon: Child,
    log: ProcessLog,
    /// The parent cgroup of its containers.
    cgroup: String,
    dir: TempDir,
}

impl DockerEngine {
    /// Returns the shared engine and starts it on first use. The error says why this machine cannot run one.
    pub fn get_or_start() -> Result<Arc<Self>, String> {
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
            return Err("only root can run a Docker engine".into());
        }
        for needed in [DOCKERD_PATH, BUSYBOX_PATH] {
            if !Path::new(needed).exists() {
                return Err(format!("{needed} is not installed (packages docker.io, busybox-static)"));
            }
        }
        let dir = crate::local::create_temp_dir("atoll-engine-");
        let group = dir.path().file_name().unwrap().to_str().unwrap().to_owned();
        let settings = dir.path().join("daemon.json");
        std::fs::write(&settings, "{}").unwrap();
        let log = ProcessLog::new();
        // The parent-death signal ends the engine with the tests, and the engine then ends its containers.
        let mut command = Command::new("setpriv");
        command.args([
            "--pdeathsig",
            "TERM",
            "--",
            DOCKERD_PATH,
            "--iptables=false",
            "--ip6tables=false",
            "--bridge=none",
        ]);
        command.arg("--config-file").arg(&settings).arg("--cgroup-parent").arg(&group);
        for (flag, name) in [("--data-root", "data"), ("--exec-root", "exec"), ("--pidfile", "pid")] {
            command.arg(flag).arg(dir.path().join(name));
        }
        command.arg("--host").arg(engine_socket_url(dir.path()));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.stdio());
        let mut engine = Self { daemon: process::spawn_process(command), log, cgroup: group, dir };
        let is_started = try_wait_for(|| match engine.run_docker(&["version"]) {
            Err(error) if matches!(engine.daemon.try_wait(), Ok(None)) => Err(error),
            version => Ok(version.is_ok()),
        });
        if is_started != Ok(true) {
            let output = engine.log.tail();
            let last = output.lines().last().unwrap_or_default();
            return Err(format!("the Docker engine does not start on this machine: {last}"));
        }
        engine.import_image()?;
        Ok(engine)
    }

    /// The value for the setting `docker.socket`.
    pub fn socket_url(&self) -> String {
        engine_socket_url(self.dir.path())
    }

    /// A `docker` command that talks to this engine.
    pub fn docker_command(&self) -> Command {
        let mut command = Command::new("docker");
        command.env_remove("DOCKER_CONTEXT").env("DOCKER_CONFIG", self.dir.path()).arg("--host").arg(self.socket_url());
        command
    }

    /// Runs `docker` and returns its stdout, or its stderr if it fails.
    pub fn run_docker(&self, arguments: &[&str]) -> Result<String, String> {
        let output =
            self.docker_command().args(arguments).stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// Lists the names of a sandbox's containers and volumes.
    pub fn list_resources(&self, sandbox: &str) -> Vec<String> {
        let name = format!("name={sandbox}");
        let containers = self.run_docker(&["ps", "--all", "--filter", &name, "--format", "{{.Names}}"]).unwrap();
        let volumes = self.run_docker(&["volume", "ls", "--filter", &name, "--format", "{{.Name}}"]).unwrap();
        containers.lines().chain(volumes.lines()).map(str::to_owned).collect()
    }

    fn import_image(&self) -> Result<(), String> {
        let root = self.dir.path().join("root");
        build_image_root(&root);
        let archive = self.dir.path().join("root.tar");
        let packed = Command::new("tar").arg("-C").arg(&root).arg("-cf").arg(&archive).arg(".").status();
        assert!(packed.unwrap().success());
        let imported = self.run_docker(&["import", archive.to_str().unwrap(), TEST_IMAGE]);
        std::fs::remove_dir_all(&root).unwrap();
        std::fs::remove_file(&archive).unwrap();
        imported.map(drop)
    }
}

fn engine_socket_url(dir: &Path) -> String {
    format!("unix://{}", dir.join("engine.sock").display())
}

/// Finds the static worker that `make worker` builds. Containers do not have this machine's libraries.
pub fn find_static_worker() -> Result<PathBuf, String> {
    let test = std::env::current_exe().unwrap();
    let target = test.ancestors().nth(3).unwrap();
    let worker = target.join("worker/atoll-worker");
    if worker.is_file() { Ok(worker) } else { Err(format!("there is no {}: run `make worker`", worker.display())) }
}

/// Builds a root directory with a shell and git from this machine's files, without the network.
fn build_image_root(root: &Path) {
    build_busybox_root(root, Path::new("/usr/bin/git"));
    copy_into(root, Path::new("/usr/bin/git"));
}

fn copy_into(root: &Path, file: &Path) {
    let target = root.join(file.strip_prefix("/").unwrap());
    std::fs::create_dir_all(target.parent().unwrap()).unwrap();
    std::fs::copy(file, target).unwrap();
}

/// Builds a root directory with busybox, and with the libraries that `program` needs.
pub fn build_busybox_root(root: &Path, program: &Path) {
    for directory in ["bin", "usr/bin", "usr/lib/git-core", "usr/share/git-core/templates", "etc"] {
        std::fs::create_dir_all(root.join(directory)).unwrap();
    }
    let temporary = root.join("tmp");
    std::fs::create_dir(&temporary).unwrap();
    std::fs::set_permissions(&temporary, std::os::unix::fs::PermissionsExt::from_mode(0o1777)).unwrap();
    std::fs::copy(BUSYBOX_PATH, root.join("bin/busybox")).unwrap();
    let listed = Command::new(BUSYBOX_PATH).arg("--list").output().unwrap();
    for name in String::from_utf8(listed.stdout).unwrap().lines().filter(|name| *name != "busybox") {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(name)).unwrap();
    }
    let libraries = Command::new("ldd").arg(program).output().unwrap();
    for line in String::from_utf8(libraries.stdout).unwrap().lines() {
        if let Some(file) = line.split_whitespace().find(|word| word.starts_with('/')) {
            copy_into(root, Path::new(file));
        }
    }
}

impl Drop for DockerEngine {
    fn drop(&mut self) {
        if matches!(self.daemon.try_wait(), Ok(None)) {
            let _ = kill_process(Pid::from_child(&self.daemon), Signal::TERM);
            if try_wait_for(|| self.daemon.try_wait().ok().flatten().ok_or(())).is_err() {
                drop((self.daemon.kill(), self.daemon.wait()));
            }
        }
        self.log.print_if_failing("dockerd");
        for line in host_state::mounts_under(self.dir.path()) {
            if let Some(mount_point) = line.split(' ').nth(4) {
                let _ = unmount(mount_point, UnmountFlags::DETACH);
            }
        }
        for group in host_state::find_cgroups(&self.cgroup) {
            // The containers' own cgroups are gone already.
            drop(std::fs::remove_dir(group));
        }
    }
}
