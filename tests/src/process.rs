//! The real programs as processes of their own.

use crate::local::traces::{self, Process};
use crate::ordinary::Person;
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, Once, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// A program of the workspace, built beside this test.
pub fn program(name: &str) -> PathBuf {
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

/// To run a program of the workspace that ends with these tests, however they end, and that hears
/// nothing of the settings of whoever runs them.
pub fn command(name: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program(name)).stdin(Stdio::null());
    for (variable, _) in std::env::vars_os() {
        let ours = variable.to_str().is_some_and(|name| name.starts_with("ATOLL_") || name == "DATABASE_URL");
        if ours {
            command.env_remove(variable);
        }
    }
    command
}

type Order = (Command, mpsc::Sender<std::io::Result<Child>>);

/// Starts a process from a thread that lives as long as the tests do: the death signal of
/// `command` comes when the *thread* that started the process ends.
pub fn spawn(command: Command) -> Child {
    static ORDERS: OnceLock<Mutex<mpsc::Sender<Order>>> = OnceLock::new();
    let orders = ORDERS.get_or_init(|| {
        let (orders, queue) = mpsc::channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, answer) in queue {
                drop(answer.send(command.spawn()));
            }
        });
        Mutex::new(orders)
    });
    let (answer, child) = mpsc::channel();
    orders.lock().unwrap_or_else(PoisonError::into_inner).send((command, answer)).unwrap();
    child.recv().unwrap().expect("the program starts")
}

/// What a process says on its error output; shown only when something went wrong.
pub struct Log(File);

impl Log {
    pub fn new() -> Self {
        static FAILURES: Once = Once::new();
        FAILURES.call_once(show_failures_at_once);
        Self(tempfile::tempfile().unwrap())
    }

    pub fn stdio(&self) -> Stdio {
        self.0.try_clone().unwrap().into()
    }

    /// The last of it. Reads without moving the place where the process writes, which is the same file's.
    pub fn tail(&self) -> String {
        const MOST: u64 = 8 * 1024;
        let from = self.0.metadata().unwrap().len().saturating_sub(MOST);
        let mut bytes = vec![0; 2 * MOST as usize];
        let length = self.0.read_at(&mut bytes, from).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    pub fn whole(&self) -> String {
        let mut bytes = vec![0; self.0.metadata().unwrap().len() as usize];
        let length = self.0.read_at(&mut bytes, 0).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    /// Shows it if the test is failing.
    pub fn show_if_failing(&self, whose: &str) {
        if std::thread::panicking() {
            let text = format!("--- {whose} said:\n{}\n", self.tail());
            drop(std::io::Write::write_all(&mut std::io::stderr().lock(), text.as_bytes()));
        }
    }
}

/// The test runner shows why a test failed at the end of all of them; whoever watches, or has but a part of the
/// output, sees it beside what the processes said.
fn show_failures_at_once() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let thread = std::thread::current();
        let text = format!("--- {}: {panic}\n", thread.name().unwrap_or("a thread"));
        drop(std::io::Write::write_all(&mut std::io::stderr().lock(), text.as_bytes()));
        usual(panic);
    }));
}

impl Default for Log {
    fn default() -> Self {
        Self::new()
    }
}

/// Waits for the end of a process; too long is a failure, not a hanging test.
pub fn wait(child: &mut Child, most: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + most;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        if Instant::now() > deadline {
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// An address that stays free while its server is down: below the ports that outgoing connections
/// take, so that no client that tries to connect gets it for itself.
pub fn lasting_address() -> SocketAddr {
    loop {
        let address = SocketAddr::from(([127, 0, 0, 1], rand::random_range(10_000..32_000)));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}

/// How `atoll serve` is started.
#[derive(Debug, Clone, Default)]
pub struct How {
    /// Further flags.
    pub arguments: Vec<String>,
    pub environment: Vec<(String, String)>,
    /// By whom; else by whoever runs these tests.
    pub person: Option<Person>,
}

/// `atoll serve` as a process. Killed when dropped.
pub struct ServerProcess {
    child: Child,
    log: Log,
    pub url: String,
    pub address: SocketAddr,
    data_dir: PathBuf,
    how: How,
    /// Launchers of servers that were killed: they go by themselves, a moment later.
    launchers: Vec<Process>,
}

fn serve(listen: SocketAddr, data_dir: &Path, how: &How, log: &Log) -> Child {
    let mut command = how.person.as_ref().map_or_else(|| command("atoll"), |person| person.command("atoll"));
    command.args(["serve", "--json", "--listen", &listen.to_string()]).arg("--data-dir").arg(data_dir);
    command.envs(how.environment.iter().cloned());
    command.args(&how.arguments).env("ATOLL_LOG_LEVEL", "warn").stdout(Stdio::piped()).stderr(log.stdio());
    spawn(command)
}

impl ServerProcess {
    /// On a free port; `arguments` are further flags of `atoll serve`.
    pub fn start(data_dir: &Path, arguments: &[String]) -> Self {
        Self::start_as(data_dir, How { arguments: arguments.to_vec(), ..How::default() })
    }

    pub fn start_as(data_dir: &Path, how: How) -> Self {
        Self::start_on(lasting_address(), data_dir, how)
    }

    fn start_on(listen: SocketAddr, data_dir: &Path, how: How) -> Self {
        let log = Log::new();
        let mut child = serve(listen, data_dir, &how, &log);
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let listening: Value =
            serde_json::from_str(&line).unwrap_or_else(|_| panic!("atoll serve did not start: {}", log.tail()));
        let url = listening["url"].as_str().unwrap().to_owned();
        let address = url.trim_start_matches("http://").parse().unwrap();
        Self { child, log, url, address, data_dir: data_dir.to_owned(), how, launchers: Vec::new() }
    }

    pub fn token(&self) -> String {
        std::fs::read_to_string(self.data_dir.join("admin-token")).unwrap().trim().to_owned()
    }

    /// All that it said on its error output.
    pub fn said(&self) -> String {
        self.log.whole()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL, at once.
    pub fn kill(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.launchers.extend(traces::children(self.pid()));
        }
        drop(self.child.kill());
        drop(self.child.wait());
    }

    /// Another one on the same data, at the same address.
    pub fn start_again(&mut self) {
        self.kill();
        *self = Self::start_on(self.address, &self.data_dir.clone(), self.how.clone());
    }

    /// Another one on the same data that does not live to say that it is there, or only just.
    pub fn start_and_kill(&mut self, after: Duration) {
        self.kill();
        let mut child = serve(self.address, &self.data_dir, &self.how, &self.log);
        std::thread::sleep(after);
        drop(child.kill());
        drop(child.wait());
    }

    pub fn terminate(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    /// Its exit status, if it ends in time.
    pub fn wait(&mut self, most: Duration) -> Option<ExitStatus> {
        wait(&mut self.child, most)
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.kill();
        // Until they are gone they may still write to a directory that is removed next.
        for launcher in &self.launchers {
            launcher.ends_within(Duration::from_secs(5));
            launcher.reap();
        }
        self.log.show_if_failing("atoll serve");
    }
}
