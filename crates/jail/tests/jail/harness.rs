//! A launcher with a data directory of its own, and ways to look inside its sandboxes.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use atoll_jail::{Ability, Exit, Launcher, LauncherOptions, Limits, Running, Spec};

pub const LAUNCHER: &str = "ATOLL_JAIL_TEST_LAUNCHER";

/// A worker for tests: it sleeps for ever, as a process that has started its agent.
const WORKER: &str = "#!/bin/sh\nexec sleep 1000000\n";

pub struct Harness {
    pub launcher: Launcher,
    pub options: LauncherOptions,
    pub data: Data,
}

/// The data directory; sandboxes that a failed test has left alive end with it.
pub struct Data {
    _directory: tempfile::TempDir,
    options: LauncherOptions,
}

impl Drop for Data {
    fn drop(&mut self) {
        let sandboxes = self.options.data_dir.join("sandboxes");
        let alive = fs::read_dir(sandboxes).into_iter().flatten().flatten();
        let alive: Vec<_> =
            alive.filter(|entry| fs::read(entry.path().join("life.json")).is_ok_and(|life| !life.is_empty())).collect();
        if alive.is_empty() {
            return;
        }
        let launcher = Launcher::start(self.options.clone()).unwrap();
        for entry in alive {
            launcher.destroy(&entry.file_name().to_string_lossy()).unwrap();
        }
    }
}

/// What a one-shot said and how it ended.
#[derive(Debug)]
pub struct Output {
    pub exit: Exit,
    pub stdout: String,
    pub stderr: String,
}

impl Harness {
    /// `None`, and a word about it, where this machine can't make sandboxes.
    pub fn new() -> Option<Self> {
        Self::with_worker(WORKER)
    }

    pub fn with_worker(script: &str) -> Option<Self> {
        possible().then(|| Self::with(script, |_| {}))
    }

    pub fn with(script: &str, change: impl FnOnce(&mut LauncherOptions)) -> Self {
        Self::within(Path::new("/var/tmp"), script, change)
    }

    /// With a pool of so many bytes, in which the kernel bounds each sandbox; `None`, and a word about it, where there
    /// can't be one.
    pub fn with_pool(script: &str, bytes: u64) -> Option<Self> {
        (possible() && pools()).then(|| Self::with(script, |options| options.disk_pool = Some(bytes)))
    }

    /// Where layers lie.
    pub fn store(&self) -> PathBuf {
        let data = &self.options.data_dir;
        if self.options.disk_pool.is_some() { data.join("pool/layers") } else { data.join("layers") }
    }

    /// On a file system in memory, whose speed depends on nobody else.
    pub fn in_memory() -> Option<Self> {
        let directory = std::env::var_os("ATOLL_JAIL_TEST_DIR").unwrap_or_else(|| "/dev/shm".into());
        possible().then(|| Self::within(Path::new(&directory), WORKER, |_| {}))
    }

    fn within(directory: &Path, script: &str, change: impl FnOnce(&mut LauncherOptions)) -> Self {
        let data = tempfile::Builder::new().prefix("atoll-jail-").tempdir_in(directory).unwrap();
        let mut options = options(data.path(), script);
        // The same tests, in a pool: `ATOLL_JAIL_TEST_POOL=1`.
        if std::env::var_os("ATOLL_JAIL_TEST_POOL").is_some() {
            options.disk_pool = Some(2 << 30);
        }
        change(&mut options);
        let data = Data { _directory: data, options: options.clone() };
        Self { launcher: Launcher::start(options.clone()).unwrap(), options, data }
    }

    /// A sandbox without a worker.
    pub fn prepared(&self, name: &str) -> atoll_jail::Place {
        self.launcher.prepare(&spec(name)).unwrap()
    }

    /// Runs a shell script as `agent`.
    pub fn shell(&self, name: &str, script: &str) -> Output {
        run(&self.launcher, name, &["/bin/sh", "-c", script])
    }

    /// What a shell script says, which must succeed.
    pub fn said(&self, name: &str, script: &str) -> String {
        let output = self.shell(name, script);
        assert_eq!(output.exit, Exit::Exited(0), "{script}: {output:?}");
        output.stdout.trim().to_owned()
    }
}

impl Harness {
    /// The same sandboxes under another launcher, after the first was killed.
    pub fn killed(self) -> Self {
        let pid = launcher_of(&self.options);
        let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        let Self { launcher, options, data } = self;
        drop(launcher);
        Self { launcher: Launcher::start(options.clone()).unwrap(), options, data }
    }

    /// The layers that are there; those on their way out are waited for.
    pub fn layers(&self) -> Vec<String> {
        let start = Instant::now();
        loop {
            let entries = fs::read_dir(self.store()).unwrap().flatten();
            let names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
            if !names.iter().any(|name| name.starts_with('.')) {
                return names;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "{names:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The process that holds the lock of a data directory: the test process has several launchers.
pub fn launcher_of(options: &LauncherOptions) -> u32 {
    let lock = options.data_dir.join("sandboxes/.lock");
    let holds = |path: &Path| {
        fs::read_dir(path.join("fd"))
            .into_iter()
            .flatten()
            .flatten()
            .any(|entry| fs::read_link(entry.path()).is_ok_and(|to| to == lock))
    };
    let found = processes_with("launcher_entry").into_iter().find(|path| holds(path)).unwrap();
    found.file_name().unwrap().to_str().unwrap().parse().unwrap()
}

pub fn options(data: &Path, script: &str) -> LauncherOptions {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let worker = data.join("test-worker");
    fs::write(&worker, script).unwrap();
    fs::set_permissions(&worker, Permissions::from_mode(0o755)).unwrap();
    // Eight letters of it name the cgroups, and tests run at once.
    let deployment = format!("t{}{}", number, std::process::id());
    let mut options = LauncherOptions::new(data.join("data"), worker, deployment);
    options.exe = std::env::current_exe().unwrap();
    options.args = ["launcher_entry", "--exact", "--nocapture", "--test-threads=1"].map(str::to_owned).to_vec();
    options.env = vec![(LAUNCHER.to_owned(), "1".to_owned())];
    options
}

pub fn spec(name: &str) -> Spec {
    Spec {
        name: name.to_owned(),
        labels: BTreeMap::from([("atoll".to_owned(), "1".to_owned())]),
        limits: Limits { memory_bytes: 256 << 20, pids: 200, ..Limits::default() },
        hostname: "sandbox".to_owned(),
        image: None,
        snapshot: None,
        protected: Vec::new(),
        programs: Vec::new(),
    }
}

pub fn run(launcher: &Launcher, name: &str, argv: &[&str]) -> Output {
    output(argv, |argv, [stdin, stdout, stderr]| launcher.run(name, argv, stdin, stdout, stderr)).unwrap()
}

/// Runs a shell script in the living sandbox itself.
pub fn enter(launcher: &Launcher, name: &str, as_root: bool, script: &str) -> Result<Output, atoll_jail::Error> {
    output(&["/bin/sh", "-c", script], |argv, [stdin, stdout, stderr]| {
        launcher.enter(name, argv, as_root, stdin, stdout, stderr)
    })
}

fn output(
    argv: &[&str],
    start: impl FnOnce(&[String], [OwnedFd; 3]) -> Result<Running, atoll_jail::Error>,
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

/// Says that the test is skipped, and why; a line that can be looked for.
pub fn skip(reason: &str) {
    println!("SKIPPED {}: {reason}", std::thread::current().name().unwrap_or("a test"));
}

/// Whether this machine can make sandboxes at all.
fn possible() -> bool {
    static ISOLATION: OnceLock<Ability> = OnceLock::new();
    let isolation = ISOLATION.get_or_init(|| {
        let data = tempfile::Builder::new().prefix("atoll-jail-").tempdir_in("/var/tmp").unwrap();
        Launcher::start(options(data.path(), WORKER)).unwrap().probe().unwrap().isolation
    });
    match isolation {
        Ability::Yes => true,
        Ability::No { reason } => {
            skip(reason);
            false
        }
    }
}

/// Whether a pool can be made here.
fn pools() -> bool {
    static LACKS: OnceLock<Option<String>> = OnceLock::new();
    let lacks = LACKS.get_or_init(|| {
        let data = tempfile::Builder::new().prefix("atoll-jail-").tempdir_in("/var/tmp").unwrap();
        let options = LauncherOptions { disk_pool: Some(1 << 30), ..options(data.path(), WORKER) };
        let report = Launcher::start(options).unwrap().probe().unwrap();
        let missing = report.missing.iter().find(|missing| missing.what.contains("disk use"));
        missing.map(|missing| missing.what.clone())
    });
    if let Some(lacks) = lacks {
        skip(lacks);
    }
    lacks.is_none()
}

/// Whether sandboxes have ids of their own here; what is about these needs it.
pub fn as_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip("needs root");
    }
    root
}

/// Processes whose command line holds a text, over all of this machine.
pub fn processes_with(text: &str) -> Vec<PathBuf> {
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| fs::read(path.join("cmdline")).is_ok_and(|line| String::from_utf8_lossy(&line).contains(text)))
        .collect()
}

/// The directories of cgroups below a deployment's.
pub fn groups_of(options: &LauncherOptions) -> Vec<PathBuf> {
    let wanted = format!("atoll-{}", options.deployment.chars().take(8).collect::<String>());
    let mut found = Vec::new();
    let mut left = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_string_lossy() == wanted {
                    found.push(entry.path());
                } else {
                    left.push(entry.path());
                }
            }
        }
    }
    found
}
