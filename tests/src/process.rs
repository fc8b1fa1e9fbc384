//! Runs the real programs as child processes.

use crate::local::host_state::{self, HostProcess};
use crate::unprivileged_user::UnprivilegedUser;
use atoll_test_wait::wait_for;
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, Once, OnceLock, PoisonError, mpsc};
use std::time::Duration;

/// Maximum length of a printed panic message: a failed comparison of large contents would print megabytes.
const MAX_PANIC_BYTES: usize = 16 * 1024;

/// Finds a program of the workspace in the target directory of this test.
pub fn find_program(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let dir = test.parent().and_then(Path::parent).unwrap();
    let program = dir.join(name);
    assert!(
        program.exists(),
        "{} is not built: run `make test`, or `cargo build --workspace` first",
        program.display()
    );
    program
}

/// Returns true if a directory of `PATH` has the program.
pub fn is_in_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(name).is_file())
}

/// A command for a program of the workspace.
///
/// The program dies with the tests and does not inherit the developer's `ATOLL_*` variables.
pub fn program_command(name: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(find_program(name)).stdin(Stdio::null());
    // The repository of the current directory is a default of the command line.
    command.current_dir("/");
    for (variable, _) in std::env::vars_os() {
        let is_atoll_variable = variable
            .to_str()
            .is_some_and(|name| name.starts_with("ATOLL_") || ["DATABASE_URL", "GITHUB_TOKEN"].contains(&name));
        if is_atoll_variable {
            command.env_remove(variable);
        }
    }
    command
}

type SpawnRequest = (Command, mpsc::Sender<std::io::Result<Child>>);

/// Spawns a process from a thread that lives as long as the tests.
///
/// The kernel sends the parent-death signal when the *thread* that spawned the process ends.
pub fn spawn_process(command: Command) -> Child {
    static SPAWN_REQUESTS: OnceLock<Mutex<mpsc::Sender<SpawnRequest>>> = OnceLock::new();
    let requests = SPAWN_REQUESTS.get_or_init(|| {
        let (requests, queue) = mpsc::channel::<SpawnRequest>();
        std::thread::spawn(move || {
            for (mut command, answer) in queue {
                drop(answer.send(command.spawn()));
            }
        });
        Mutex::new(requests)
    });
    let (answer, child) = mpsc::channel();
    requests.lock().unwrap_or_else(PoisonError::into_inner).send((command, answer)).unwrap();
    child.recv().unwrap().expect("the program starts")
}

/// The stderr of a process, printed only if the test fails.
pub struct ProcessLog(File);

impl ProcessLog {
    pub fn new() -> Self {
        static FAILURES: Once = Once::new();
        FAILURES.call_once(install_panic_printer);
        Self(tempfile::tempfile().unwrap())
    }

    pub fn stdio(&self) -> Stdio {
        self.0.try_clone().unwrap().into()
    }

    /// Returns the end of the log. `read_at` does not move the file offset, which the process shares.
    pub fn tail(&self) -> String {
        const MAX_TAIL_BYTES: u64 = 8 * 1024;
        let from = self.0.metadata().unwrap().len().saturating_sub(MAX_TAIL_BYTES);
        let mut bytes = vec![0; 2 * MAX_TAIL_BYTES as usize];
        let length = self.0.read_at(&mut bytes, from).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    pub fn read_all(&self) -> String {
        let mut bytes = vec![0; self.0.metadata().unwrap().len() as usize];
        let length = self.0.read_at(&mut bytes, 0).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    /// Prints the end of the log if the test is failing.
    pub fn print_if_failing(&self, program: &str) {
        if std::thread::panicking() {
            let text = format!("--- stderr of {program}:\n{}\n", self.tail());
            drop(std::io::stderr().lock().write_all(text.as_bytes()));
        }
    }
}

/// Prints each panic at once, next to the logs of the processes. libtest prints it only after all tests.
fn install_panic_printer() {
    let default_hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let thread = std::thread::current();
        let text = format!("--- {}: {panic}", thread.name().unwrap_or("a thread"));
        let clipped = &text[..text.floor_char_boundary(MAX_PANIC_BYTES)];
        drop(writeln!(std::io::stderr().lock(), "{clipped}"));
        // The default hook prints the whole message.
        if clipped == text {
            default_hook(panic);
        }
    }));
}

impl Default for ProcessLog {
    fn default() -> Self {
        Self::new()
    }
}

/// Finds an address that stays free while its server is down.
///
/// Its port is below the ephemeral range, so that no outgoing connection takes it.
pub fn find_stable_address() -> SocketAddr {
    loop {
        let address = SocketAddr::from(([127, 0, 0, 1], rand::random_range(10_000..32_000)));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}

/// Options for starting `atoll serve`.
#[derive(Debug, Clone, Default)]
pub struct ServeOptions {
    /// Additional flags.
    pub arguments: Vec<String>,
    pub environment: Vec<(String, String)>,
    /// The user that runs the server. `None` means the user that runs the tests.
    pub user: Option<UnprivilegedUser>,
}

/// `atoll serve` as a process. Killed when dropped.
pub struct ServerProcess {
    child: Child,
    log: ProcessLog,
    pub url: String,
    pub address: SocketAddr,
    data_dir: PathBuf,
    options: ServeOptions,
    /// Launchers of killed servers. They exit by themselves, a moment later.
    launchers: Vec<HostProcess>,
}

/// Deadline for a sandbox's first heartbeat. Generous, so that a slow machine fails no test.
const CREATE_TIMEOUT: &str = "10m";

fn spawn_server(listen: SocketAddr, data_dir: &Path, options: &ServeOptions, log: &ProcessLog) -> Child {
    let mut command =
        options.user.as_ref().map_or_else(|| program_command("atoll"), |user| user.program_command("atoll"));
    command.args(["serve", "--json", "--listen", &listen.to_string()]).arg("--data-dir").arg(data_dir);
    for provider in ["LOCAL", "FAKE"] {
        command.env(format!("ATOLL_SANDBOX_CREATE_TIMEOUT_{provider}"), CREATE_TIMEOUT);
    }
    command.env("ATOLL_LOG_LEVEL", "warn").envs(options.environment.iter().cloned());
    command.args(&options.arguments).stdout(Stdio::piped()).stderr(log.stdio());
    spawn_process(command)
}

impl ServerProcess {
    /// Starts on a free port with additional flags of `atoll serve`.
    pub fn start(data_dir: &Path, arguments: &[String]) -> Self {
        Self::start_with_options(data_dir, ServeOptions { arguments: arguments.to_vec(), ..ServeOptions::default() })
    }

    pub fn start_with_options(data_dir: &Path, options: ServeOptions) -> Self {
        Self::start_on(find_stable_address(), data_dir, options)
    }

    fn start_on(listen: SocketAddr, data_dir: &Path, options: ServeOptions) -> Self {
        let log = ProcessLog::new();
        let mut child = spawn_server(listen, data_dir, &options, &log);
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let listening: Value =
            serde_json::from_str(&line).unwrap_or_else(|_| panic!("atoll serve did not start: {}", log.tail()));
        let url = listening["url"].as_str().unwrap().to_owned();
        let address = url.trim_start_matches("http://").parse().unwrap();
        Self { child, log, url, address, data_dir: data_dir.to_owned(), options, launchers: Vec::new() }
    }

    pub fn admin_token(&self) -> String {
        std::fs::read_to_string(self.data_dir.join("admin-token")).unwrap().trim().to_owned()
    }

    /// Returns its whole stderr so far.
    pub fn stderr_text(&self) -> String {
        self.log.read_all()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the process with SIGKILL.
    pub fn kill(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.launchers.extend(host_state::list_children(self.pid()));
        }
        drop(self.child.kill());
        drop(self.child.wait());
    }

    /// Kills the process and starts another one with the same data and address.
    pub fn restart(&mut self) {
        self.kill();
        *self = Self::start_on(self.address, &self.data_dir.clone(), self.options.clone());
    }

    /// Starts another process with the same data and kills it while it starts, after this delay.
    pub fn start_and_kill(&mut self, after: Duration) {
        self.kill();
        let mut child = spawn_server(self.address, &self.data_dir, &self.options, &self.log);
        std::thread::sleep(after);
        drop(child.kill());
        drop(child.wait());
    }

    pub fn terminate(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    pub fn wait_for_exit(&mut self) -> ExitStatus {
        wait_for("the server's exit", || self.child.try_wait().unwrap())
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.kill();
        // Launchers may still write to the data directory, which the test removes next.
        for launcher in &self.launchers {
            launcher.ends_in_time();
            launcher.reap();
        }
        self.log.print_if_failing("atoll serve");
    }
}
