//! The test harness: a launcher with its own data directory.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use atoll_jail::{Exit, Launcher, LauncherOptions, ResourceLimits, RunningProgram, SandboxSpec, Support};
use atoll_test_wait::wait_for;

pub const LAUNCHER_VARIABLE: &str = "ATOLL_JAIL_TEST_LAUNCHER";

/// A test worker that sleeps forever.
const WORKER: &str = "#!/bin/sh\nexec sleep 1000000\n";

pub struct Harness {
    pub launcher: Launcher,
    pub options: LauncherOptions,
    pub data: Data,
}

/// The data directory; dropping it destroys sandboxes that a failed test has left.
pub struct Data {
    _directory: tempfile::TempDir,
    options: LauncherOptions,
}

impl Drop for Data {
    fn drop(&mut self) {
        let sandboxes = self.options.data_dir.join("sandboxes");
        let alive = fs::read_dir(sandboxes).into_iter().flatten().flatten();
        let alive: Vec<_> = alive
            .filter(|entry| {
                fs::read(entry.path().join("life.json")).is_ok_and(|worker_record| !worker_record.is_empty())
            })
            .collect();
        if alive.is_empty() {
            return;
        }
        let launcher = Launcher::start(self.options.clone()).unwrap();
        for entry in alive {
            launcher.destroy_sandbox(&entry.file_name().to_string_lossy()).unwrap();
        }
    }
}

/// Output and exit of a program.
#[derive(Debug)]
pub struct Output {
    pub exit: Exit,
    pub stdout: String,
    pub stderr: String,
}

impl Harness {
    /// Returns `None`, after a notice, if this host cannot create sandboxes; panics in CI.
    pub fn new() -> Option<Self> {
        Self::with_worker(WORKER)
    }

    pub fn with_worker(script: &str) -> Option<Self> {
        can_create_sandboxes().then(|| Self::with(script, |_| {}))
    }

    pub fn with(script: &str, change: impl FnOnce(&mut LauncherOptions)) -> Self {
        Self::within(Path::new("/var/tmp"), script, change)
    }

    /// Creates a disk pool of this size; returns `None`, after a notice, where that is impossible.
    pub fn with_pool(script: &str, bytes: u64) -> Option<Self> {
        (can_create_sandboxes() && can_create_pools())
            .then(|| Self::with(script, |options| options.disk_pool_bytes = Some(bytes)))
    }

    /// The layer store.
    pub fn layers_dir(&self) -> PathBuf {
        let data = &self.options.data_dir;
        if self.options.disk_pool_bytes.is_some() { data.join("pool/layers") } else { data.join("layers") }
    }

    /// Places the data on a tmpfs, so that timings do not depend on a disk.
    pub fn in_memory() -> Option<Self> {
        let directory = std::env::var_os("ATOLL_JAIL_TEST_DIR").unwrap_or_else(|| "/dev/shm".into());
        can_create_sandboxes().then(|| Self::within(Path::new(&directory), WORKER, |_| {}))
    }

    fn within(directory: &Path, script: &str, change: impl FnOnce(&mut LauncherOptions)) -> Self {
        let data = tempfile::Builder::new().prefix("atoll-jail-").tempdir_in(directory).unwrap();
        let mut options = options(data.path(), script);
        // `ATOLL_JAIL_TEST_POOL=1` runs the same tests in a disk pool.
        if std::env::var_os("ATOLL_JAIL_TEST_POOL").is_some() {
            options.disk_pool_bytes = Some(2 << 30);
        }
        change(&mut options);
        let data = Data { _directory: data, options: options.clone() };
        Self { launcher: Launcher::start(options.clone()).unwrap(), options, data }
    }

    /// Prepares a sandbox without a worker.
    pub fn prepare_sandbox(&self, name: &str) -> atoll_jail::SandboxInfo {
        self.launcher.prepare_sandbox(&spec(name)).unwrap()
    }

    /// Runs a shell script as `agent`.
    pub fn run_shell(&self, name: &str, script: &str) -> Output {
        run_program(&self.launcher, name, &["/bin/sh", "-c", script])
    }

    /// Output of a shell script that must succeed.
    pub fn shell_output(&self, name: &str, script: &str) -> String {
        let output = self.run_shell(name, script);
        assert_eq!(output.exit, Exit::Exited(0), "{script}: {output:?}");
        output.stdout.trim().to_owned()
    }
}

impl Harness {
    /// Kills the launcher and starts another one over the same sandboxes.
    pub fn restart_after_kill(self) -> Self {
        let pid = launcher_pid(&self.options);
        let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        let Self { launcher, options, data } = self;
        drop(launcher);
        Self { launcher: Launcher::start(options.clone()).unwrap(), options, data }
    }

    /// Lists the layers; waits until none is being removed.
    pub fn list_layers(&self) -> Vec<String> {
        wait_for("removed layers to be gone", || {
            let entries = fs::read_dir(self.layers_dir()).unwrap().flatten();
            let names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
            (!names.iter().any(|name| name.starts_with('.'))).then_some(names)
        })
    }
}

/// Waits for a file that a process in the sandbox writes.
pub fn wait_for_file(path: &Path) -> String {
    wait_for(&path.display().to_string(), || fs::read_to_string(path).ok())
}

/// Asserts that a value stays the same while several programs run in the sandbox from start to end.
pub fn assert_unchanged<T: PartialEq + std::fmt::Debug>(launcher: &Launcher, name: &str, read: impl Fn() -> T) {
    let before = read();
    for _ in 0..20 {
        assert_eq!(run_program(launcher, name, &["/bin/true"]).exit, Exit::Exited(0));
        assert_eq!(read(), before);
    }
}

/// The launcher that holds the lock of a data directory: the test process has several.
pub fn launcher_pid(options: &LauncherOptions) -> u32 {
    launchers_with_lock(options)[0]
}

/// The launchers that have the lock file of a data directory open: the owner, and those that wait for the lock.
pub fn launchers_with_lock(options: &LauncherOptions) -> Vec<u32> {
    let lock = options.data_dir.join("sandboxes/.lock");
    let has_lock = |path: &PathBuf| {
        fs::read_dir(path.join("fd"))
            .into_iter()
            .flatten()
            .flatten()
            .any(|entry| fs::read_link(entry.path()).is_ok_and(|to| to == lock))
    };
    let processes = processes_with("launcher_entry").into_iter().filter(has_lock);
    processes.map(|path| path.file_name().unwrap().to_str().unwrap().parse().unwrap()).collect()
}

pub fn options(data: &Path, script: &str) -> LauncherOptions {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let worker = data.join("test-worker");
    fs::write(&worker, script).unwrap();
    fs::set_permissions(&worker, Permissions::from_mode(0o755)).unwrap();
    // Its first eight characters name the cgroups, and tests run in parallel.
    let deployment = format!("t{}{}", number, std::process::id());
    let mut options = LauncherOptions::new(data.join("data"), worker, deployment);
    options.exe = std::env::current_exe().unwrap();
    options.args = ["launcher_entry", "--exact", "--nocapture", "--test-threads=1"].map(str::to_owned).to_vec();
    options.env = vec![(LAUNCHER_VARIABLE.to_owned(), "1".to_owned())];
    options
}

pub fn spec(name: &str) -> SandboxSpec {
    SandboxSpec {
        name: name.to_owned(),
        labels: BTreeMap::from([("atoll".to_owned(), "1".to_owned())]),
        limits: ResourceLimits { memory_bytes: 256 << 20, pids: 200, ..ResourceLimits::default() },
        hostname: "sandbox".to_owned(),
        image: None,
        snapshot: None,
        cache: None,
        protected: Vec::new(),
        programs: Vec::new(),
    }
}

pub fn run_program(launcher: &Launcher, name: &str, argv: &[&str]) -> Output {
    capture_output(argv, |argv, [stdin, stdout, stderr]| launcher.run_program(name, argv, stdin, stdout, stderr))
        .unwrap()
}

/// Runs a shell script in the running sandbox itself.
pub fn exec_shell(launcher: &Launcher, name: &str, as_root: bool, script: &str) -> Result<Output, atoll_jail::Error> {
    exec_program(launcher, name, as_root, &["/bin/sh", "-c", script])
}

/// Runs a program in the running sandbox itself.
pub fn exec_program(
    launcher: &Launcher,
    name: &str,
    as_root: bool,
    argv: &[&str],
) -> Result<Output, atoll_jail::Error> {
    capture_output(argv, |argv, [stdin, stdout, stderr]| {
        launcher.exec_program(name, argv, as_root, stdin, stdout, stderr)
    })
}

fn capture_output(
    argv: &[&str],
    start: impl FnOnce(&[String], [OwnedFd; 3]) -> Result<RunningProgram, atoll_jail::Error>,
) -> Result<Output, atoll_jail::Error> {
    let argv: Vec<String> = argv.iter().map(|argument| (*argument).to_owned()).collect();
    let (stdin, _) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    let (stdout, out) = pipe();
    let (stderr, err) = pipe();
    let mut running = start(&argv, [stdin, out, err])?;
    let [stdout, stderr] = [stdout, stderr].map(|mut file| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).unwrap();
            String::from_utf8_lossy(&bytes).into_owned()
        })
    });
    let exit = running.wait(Duration::from_secs(120)).unwrap();
    Ok(Output { exit, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() })
}

fn pipe() -> (fs::File, OwnedFd) {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    (fs::File::from(read), write)
}

/// Prints that the test is skipped, and why.
pub fn skip_test(reason: &str) {
    println!("SKIPPED {}: {reason}", std::thread::current().name().unwrap_or("a test"));
}

/// True if this host can create sandboxes. In CI a host that cannot is a failure.
fn can_create_sandboxes() -> bool {
    static ISOLATION: OnceLock<Support> = OnceLock::new();
    let isolation = ISOLATION.get_or_init(|| {
        let data = tempfile::Builder::new().prefix("atoll-jail-").tempdir_in("/var/tmp").unwrap();
        Launcher::start(options(data.path(), WORKER)).unwrap().probe_host().unwrap().isolation
    });
    match isolation {
        Support::Available => true,
        Support::Unavailable { reason } => {
            assert!(std::env::var_os("CI").is_none(), "CI must run the sandbox tests, but this host cannot: {reason}");
            skip_test(reason);
            false
        }
    }
}

/// True if a disk pool can be created here.
fn can_create_pools() -> bool {
    static MISSING: OnceLock<Option<String>> = OnceLock::new();
    let reason = MISSING.get_or_init(|| {
        let data = tempfile::Builder::new().prefix("atoll-jail-").tempdir_in("/var/tmp").unwrap();
        let options = LauncherOptions { disk_pool_bytes: Some(1 << 30), ..options(data.path(), WORKER) };
        let report = Launcher::start(options).unwrap().probe_host().unwrap();
        let missing = report.missing.iter().find(|missing| missing.description.contains("disk use"));
        missing.map(|missing| missing.description.clone())
    });
    if let Some(reason) = reason {
        skip_test(reason);
    }
    reason.is_none()
}

/// True as root, where sandboxes have their own id ranges.
pub fn require_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip_test("needs root");
    }
    root
}

/// Processes of this host whose command line contains a text.
pub fn processes_with(text: &str) -> Vec<PathBuf> {
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| fs::read(path.join("cmdline")).is_ok_and(|line| String::from_utf8_lossy(&line).contains(text)))
        .collect()
}

/// The cgroup directories of a deployment.
pub fn cgroup_dirs(options: &LauncherOptions) -> Vec<PathBuf> {
    let group_name = format!("atoll-{}", options.deployment.chars().take(8).collect::<String>());
    let mut found = Vec::new();
    let mut left = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_string_lossy() == group_name {
                    found.push(entry.path());
                } else {
                    left.push(entry.path());
                }
            }
        }
    }
    found
}
