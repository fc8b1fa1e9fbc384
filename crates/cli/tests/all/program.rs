//! The program as a process that ends with its test, and hears nothing of who runs the tests.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longer than anything here takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn atoll(data_dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_atoll"));
    clean(&mut command);
    command.env("ATOLL_DATA_DIR", data_dir).current_dir(data_dir).stdin(Stdio::null());
    command
}

pub fn clean(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let ours = name.to_str().is_some_and(|name| name.starts_with("ATOLL_") || name == "DATABASE_URL");
        if ours {
            command.env_remove(name);
        }
    }
}

/// To its end, with something on its input.
pub fn with_input(mut command: Command, input: &str) -> Output {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Its lines of JSON.
pub fn objects(output: &Output) -> Vec<Value> {
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A program that runs; killed when dropped.
pub struct Running {
    child: Child,
    lines: Option<BufReader<ChildStdout>>,
}

impl Running {
    pub fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines: Some(lines) }
    }

    /// Reads until a line has this in it.
    pub fn until(&mut self, wanted: &str) -> String {
        let mut line = String::new();
        while self.lines.as_mut().unwrap().read_line(&mut line).unwrap() > 0 {
            if line.contains(wanted) {
                return line;
            }
            line.clear();
        }
        panic!("the output ended without {wanted:?}");
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Closes the other end of its output.
    pub fn stop_reading(&mut self) {
        self.lines = None;
    }

    /// Its exit code, and what was left of its outputs.
    pub fn end(mut self) -> (Option<i32>, String, String) {
        let (mut stdout, mut stderr) = (String::new(), String::new());
        self.lines.take().unwrap().read_to_string(&mut stdout).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        (self.code(), stdout, stderr)
    }

    /// Its exit code, when it has ended.
    pub fn code(&mut self) -> Option<i32> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Running {
    /// Asked to go first: what a killed server has started would still write into the test's directory for a moment.
    fn drop(&mut self) {
        let is_there = |child: &mut Child| matches!(child.try_wait(), Ok(None));
        if is_there(&mut self.child) {
            let pid = rustix::process::Pid::from_child(&self.child);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let deadline = Instant::now() + PATIENCE;
            while is_there(&mut self.child) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A server on this data directory, once it listens.
pub fn serve(data_dir: &Path, listen: &str) -> (Running, String) {
    let mut command = atoll(data_dir);
    command.args(["serve", "--json", "--listen", listen]).env("ATOLL_LOG_LEVEL", "error");
    let mut server = Running::start(command);
    let line: Value = serde_json::from_str(&server.until("listening")).unwrap();
    (server, line["url"].as_str().unwrap().to_owned())
}
