//! The real worker as a process, and a program that feeds it as an agent would.

use crate::actor::External;
use crate::process::{self, Log};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

/// `atoll-worker` as a process. Killed when dropped.
pub struct WorkerProcess {
    child: Child,
    log: Log,
    reader: Option<JoinHandle<()>>,
}

impl WorkerProcess {
    /// With its spool and its token in `dir`. Each line that it prints goes to `heard`, also those
    /// that it printed before it was killed.
    pub fn start(
        server: &str,
        sandbox: &External,
        dir: &Path,
        mut heard: impl FnMut(Value) + Send + 'static,
    ) -> (Self, ChildStdin) {
        let token = dir.join("token");
        if !token.exists() {
            let mut options = std::fs::OpenOptions::new();
            let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&token).unwrap();
            std::io::Write::write_all(&mut file, sandbox.token.as_bytes()).unwrap();
        }
        let log = Log::new();
        let mut command = process::command("atoll-worker");
        command.args(["--server", server, "--sandbox", &sandbox.id, "--stdin", "--messages"]);
        command.arg("--token-file").arg(token).arg("--spool").arg(dir.join("spool"));
        command.env("ATOLL_LOG", "warn").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log.stdio());
        let mut child = process::spawn(command);
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                match serde_json::from_str(&line.unwrap()) {
                    Ok(value) => heard(value),
                    // Killed in the middle of a line.
                    Err(_) => return,
                }
            }
        });
        (Self { child, log, reader: Some(reader) }, stdin)
    }

    /// SIGKILL, at once. Returns when everything that it had printed was heard.
    pub fn kill(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        self.heard_all();
    }

    /// Its exit status, if it ends in time; then everything that it printed was heard.
    pub fn wait(&mut self, most: Duration) -> Option<ExitStatus> {
        let status = process::wait(&mut self.child, most)?;
        self.heard_all();
        Some(status)
    }

    fn heard_all(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
    }

    /// What it said on its error output.
    pub fn said(&self) -> String {
        self.log.tail()
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        self.log.show_if_failing("atoll-worker");
    }
}
