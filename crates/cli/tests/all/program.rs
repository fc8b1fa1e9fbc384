//! The program as a process with a clean environment, killed at the end of its test.

use atoll_test_wait::{try_wait_for, wait_for};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

pub fn atoll(data_dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_atoll"));
    clean(&mut command);
    command.env("ATOLL_DATA_DIR", data_dir).current_dir(data_dir).stdin(Stdio::null());
    command
}

pub fn clean(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let is_ours = name.to_str().is_some_and(|name| name.starts_with("ATOLL_") || name == "DATABASE_URL");
        if is_ours {
            command.env_remove(name);
        }
    }
}

/// Runs a command with this stdin.
pub fn with_input(mut command: Command, input: &str) -> Output {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Parses each line of stdout as JSON.
pub fn objects(output: &Output) -> Vec<Value> {
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A running program, killed when dropped.
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

    /// Reads until a line contains this text.
    pub fn until(&mut self, text: &str) -> String {
        let mut line = String::new();
        while self.lines.as_mut().unwrap().read_line(&mut line).unwrap() > 0 {
            if line.contains(text) {
                return line;
            }
            line.clear();
        }
        panic!("the output ended without {text:?}");
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Closes our end of its stdout.
    pub fn stop_reading(&mut self) {
        self.lines = None;
    }

    /// Waits for its exit; returns the code and the rest of stdout and stderr.
    pub fn end(mut self) -> (Option<i32>, String, String) {
        let (mut stdout, mut stderr) = (String::new(), String::new());
        self.lines.take().unwrap().read_to_string(&mut stdout).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        (self.code(), stdout, stderr)
    }

    /// Waits for its exit code.
    pub fn code(&mut self) -> Option<i32> {
        wait_for("the program's exit", || self.child.try_wait().unwrap()).code()
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Running {
    /// Sends SIGTERM first: processes of a killed server would write into the test's directory for a moment.
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let pid = rustix::process::Pid::from_child(&self.child);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let _ = try_wait_for(|| if matches!(self.child.try_wait(), Ok(None)) { Err(()) } else { Ok(()) });
        }
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Starts a server on this data directory and waits until it listens.
pub fn serve(data_dir: &Path, listen: &str) -> (Running, String) {
    let mut command = atoll(data_dir);
    command.args(["serve", "--json", "--listen", listen]).env("ATOLL_LOG_LEVEL", "error");
    let mut server = Running::start(command);
    let line: Value = serde_json::from_str(&server.until("listening")).unwrap();
    (server, line["url"].as_str().unwrap().to_owned())
}
