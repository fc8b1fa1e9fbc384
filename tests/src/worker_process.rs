//! The real worker as a child process, with a pipe to its stdin.

use crate::actor::ExternalSandbox;
use crate::process::{self, ProcessLog};
use atoll_test_wait::wait_for;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::thread::JoinHandle;

/// `atoll-worker` as a process. Killed when dropped.
pub struct WorkerProcess {
    child: Child,
    log: ProcessLog,
    reader: Option<JoinHandle<()>>,
}

impl WorkerProcess {
    /// Starts the worker with its spool and its token in `dir`.
    ///
    /// `on_line` gets each line that the worker prints, including those that it printed before a kill.
    pub fn start(
        server: &str,
        sandbox: &ExternalSandbox,
        dir: &Path,
        mut on_line: impl FnMut(Value) + Send + 'static,
    ) -> (Self, ChildStdin) {
        let token = dir.join("token");
        if !token.exists() {
            let mut options = std::fs::OpenOptions::new();
            let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&token).unwrap();
            std::io::Write::write_all(&mut file, sandbox.token.as_bytes()).unwrap();
        }
        let log = ProcessLog::new();
        let mut command = process::program_command("atoll-worker");
        command.args(["--server", server, "--sandbox", &sandbox.id, "--stdin", "--messages"]);
        command.arg("--token-file").arg(token).arg("--spool").arg(dir.join("spool"));
        command.env("ATOLL_LOG", "warn").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log.stdio());
        let mut child = process::spawn_process(command);
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                match serde_json::from_str(&line.unwrap()) {
                    Ok(value) => on_line(value),
                    // A kill cut the line off.
                    Err(_) => return,
                }
            }
        });
        (Self { child, log, reader: Some(reader) }, stdin)
    }

    /// Kills the process with SIGKILL and waits until `on_line` has got everything it printed.
    pub fn kill(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        self.join_reader();
    }

    /// Waits until the process ends and `on_line` has got everything it printed.
    pub fn wait_for_exit(&mut self) -> ExitStatus {
        let status = wait_for("the worker's exit", || self.child.try_wait().unwrap());
        self.join_reader();
        status
    }

    fn join_reader(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
    }

    /// Returns the end of its stderr.
    pub fn stderr_tail(&self) -> String {
        self.log.tail()
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        self.log.print_if_failing("atoll-worker");
    }
}
